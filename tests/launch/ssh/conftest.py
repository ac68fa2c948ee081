"""An sshd on a free port of the loopback addresses, with keys that the test makes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.processes import until


class Sshd(NamedTuple):
    """A running sshd. `config`: configuration of ssh that reaches it as the hosts `first` and `second`; `folder`: with
    its keys."""

    config: Path
    folder: Path


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """An sshd that accepts a new key of this user; skips the test if sshd is not installed."""
    program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None or shutil.which("ssh-keygen") is None:
        pytest.skip("sshd is not installed")
    folder = tmp_path_factory.mktemp("sshd")
    for name in ("host", "user", "other"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "authorized_keys").write_bytes((folder / "user.pub").read_bytes())
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nListenAddress 127.0.0.2\nHostKey {folder}/host\nUsePAM no\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nPidFile {folder}/pid\nPermitRootLogin yes\n"
        "PasswordAuthentication no\nMaxStartups 100\n"
    )
    public = (folder / "host.pub").read_text().split()
    for name, key in (("known_hosts", public[1]), ("changed_hosts", (folder / "other.pub").read_text().split()[1])):
        lines = [f"[{address}]:{port} {public[0]} {key}\n" for address in ("127.0.0.1", "127.0.0.2")]
        (folder / name).write_text("".join(lines))
    for name, hosts in (("config", "known_hosts"), ("changed_config", "changed_hosts"), ("unknown_config", "none")):
        (folder / name).write_text(
            f"Host first\n  HostName 127.0.0.1\nHost second\n  HostName 127.0.0.2\nHost dead\n  HostName 127.0.0.3\n"
            f"Host *\n  Port {port}\n  IdentityFile {folder}/user\n  IdentitiesOnly yes\n  LogLevel ERROR\n"
            f"  UserKnownHostsFile {folder}/{hosts}\n  StrictHostKeyChecking yes\n"
        )
    Path("/run/sshd").mkdir(exist_ok=True) if os.geteuid() == 0 else None
    process = subprocess.Popen([program, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=subprocess.DEVNULL)
    config = folder / "config"

    def answers() -> bool:
        """Whether sshd accepts a connection."""
        words = ["ssh", "-F", str(config), "first", "true"]
        return subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode == 0

    try:
        assert until(answers, 20)
        yield Sshd(config, folder)
    finally:
        process.kill()
        process.wait()
