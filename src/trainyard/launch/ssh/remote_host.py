"""Run a shell script on a host with `ssh`, with errors that name the host and the next step."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from trainyard.errors import HostFailed, MissingProgram
from trainyard.launch.ssh.node_script import NO_FOLDER, NO_PYTHON, NO_TRAINYARD
from trainyard.redact import redact

_CONNECT_S, _TIMEOUT_S = 15, 120
_SSH_FAILED = 255
_NEXT_STEPS = {
    "remote host identification has changed": "If the host was installed again, remove its old key: "
    "ssh-keygen -R HOST. Otherwise another machine answers in its place.",
    "host key verification failed": "Connect once by hand (ssh HOST) and compare its key: it is unknown here.",
    "could not resolve hostname": "Check the name of the host, or add it to ~/.ssh/config.",
    "permission denied": "Install your key on the host (ssh-copy-id HOST) and load it into ssh-agent: "
    "passwords are not asked for.",
    "connection refused": "Check that sshd runs on the host, and its port in ~/.ssh/config.",
    "timed out": "Check that the host is up and that no firewall is between.",
    "no route to host": "Check that the host is up and in a network that can be reached from here.",
    "bad configuration option": "Correct the ssh configuration file.",
}
_EXIT_CODES = {
    NO_PYTHON: (
        "the interpreter of the job does not exist there",
        "Pass --python with the path of a Python on the hosts.",
    ),
    NO_TRAINYARD: (
        "its Python cannot import trainyard",
        "Install trainyard there, or pass --python with the path of a Python that has it.",
    ),
    NO_FOLDER: (
        "the folder of the node cannot be written",
        "Pass --node-folder with a folder that exists or can be made.",
    ),
}


def run_on_host(host: str, script: str, options: Sequence[str] = ()) -> bytes:
    """Run `script` with `sh` on `host`; return its output.

    `options`: words for ssh, before the host. No password is asked for. Raises `HostFailed`, or `MissingProgram`
    without ssh.
    """
    words = ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_S}", *options, "--", host, "sh -s"]
    try:
        done = subprocess.run(words, input=script.encode(), capture_output=True, timeout=_TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise MissingProgram("ssh is not installed.", "Install it (Debian: openssh-client).") from None
    except subprocess.TimeoutExpired:
        raise HostFailed(f"{host}: no answer within {_TIMEOUT_S} s.", _NEXT_STEPS["timed out"]) from None
    if done.returncode == 0:
        return done.stdout
    stderr = " ".join(done.stderr.decode("utf-8", "replace").split())
    output = redact(stderr)[-400:]
    if done.returncode in _EXIT_CODES:
        problem, next_step = _EXIT_CODES[done.returncode]
        raise HostFailed(f"{host}: {problem}.", next_step)
    step = next((step for text, step in _NEXT_STEPS.items() if text in stderr.lower()), "")
    kind = "cannot be reached" if done.returncode == _SSH_FAILED else f"ended with exit code {done.returncode}"
    raise HostFailed(f"{host}: {kind}: {output or 'no output'}", step.replace("HOST", host))
