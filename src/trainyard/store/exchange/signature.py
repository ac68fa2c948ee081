"""Signatures of a run's digests with SSH keys, made and checked by `ssh-keygen` (OpenSSH 8.2 or later).

SHA256SUMS.sig signs SHA256SUMS, which has the digest of every file of the run, run.json with the run's id among them.
Anyone can check it without trainyard:

    ssh-keygen -Y verify -n trainyard -f ALLOWED_SIGNERS -I WHO -s SHA256SUMS.sig < SHA256SUMS
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from trainyard.errors import BadFile, BadInput, MissingLibrary

NAMESPACE = "trainyard"
MOST_BYTES = 1 << 16


def sign(data: bytes, key: Path) -> bytes:
    """A signature of `data` by the private key `key`, or by the agent's if it is a public one.

    Raises `BadInput` if `ssh-keygen` cannot sign with it, `MissingLibrary` without OpenSSH."""
    done = _run(["-Y", "sign", "-n", NAMESPACE, "-f", str(key)], data)
    if done.returncode or not done.stdout:
        raise BadInput(f"{key}: cannot sign: {_reason(done)}.", "Give an SSH key, as `ssh-keygen -t ed25519` makes it.")
    return done.stdout


def verify(data: bytes, signature: bytes, allowed: Path, shown: str) -> str:
    """Who signed `data`, as the file `allowed` names them (`man ssh-keygen`, ALLOWED SIGNERS).

    Raises `BadFile` for a signature by another key than those, or of other data; messages call it `shown`."""
    with tempfile.TemporaryDirectory(prefix="trainyard-") as folder:
        path = Path(folder) / "signature"
        path.write_bytes(signature)
        signed = ["-n", NAMESPACE, "-f", str(allowed), "-s", str(path)]
        listed = _run(["-Y", "find-principals", "-f", str(allowed), "-s", str(path)])
        for signer in _names(listed.stdout):
            if _run(["-Y", "verify", *signed, "-I", signer], data).returncode == 0:
                return signer
    if listed.returncode:
        raise BadFile(f"{shown}: its signer is not in {allowed}: {_reason(listed)}.")
    raise BadFile(f"{shown}: does not sign these digests, or not any more.")


def _names(principals: bytes) -> list[str]:
    """The names that the file of allowed signers gives a key, a line each, or as one list in older versions."""
    listed = principals.decode(errors="replace").replace("\n", ",").split(",")
    return [name for name in listed if name and not name.startswith("!")]


def _run(arguments: list[str], data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run `ssh-keygen` with `data` on stdin; its exit code is not checked. Raises `MissingLibrary` without it."""
    try:
        return subprocess.run(["ssh-keygen", *arguments], input=data, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise MissingLibrary(
            "Signatures need ssh-keygen, which is not installed.", "Install OpenSSH's client, 8.2 or later."
        ) from error


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    return " ".join(done.stderr.decode(errors="replace").split()).rstrip(".") or f"exit code {done.returncode}"
