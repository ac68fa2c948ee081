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
MAX_BYTES = 1 << 16


def sign(data: bytes, key: Path) -> bytes:
    """Sign `data`: the contents of a signature file by the private key in the file `key`, or, if that is a public key,
    by the SSH agent's private key for it.

    Raises `BadInput` if `ssh-keygen` cannot sign with it, `MissingLibrary` without OpenSSH.
    """
    result = _run(["-Y", "sign", "-n", NAMESPACE, "-f", str(key)], data)
    if result.returncode or not result.stdout:
        raise BadInput(
            f"{key}: cannot sign: {_reason(result)}.", "Give an SSH key, as `ssh-keygen -t ed25519` makes it."
        )
    return result.stdout


def verify(data: bytes, signature: bytes, allowed_signers: Path, shown: str) -> str:
    """Verify that `signature` signs `data`; return the name of the signer, as the file `allowed_signers` lists it.

    The file has the format of `man ssh-keygen`, ALLOWED SIGNERS; `shown`: the signature's name in messages. Raises
    `BadFile` for a signature by another key than those, or of other data.
    """
    with tempfile.TemporaryDirectory(prefix="trainyard-") as folder:
        path = Path(folder) / "signature"
        path.write_bytes(signature)
        verify_arguments = ["-n", NAMESPACE, "-f", str(allowed_signers), "-s", str(path)]
        principals = _run(["-Y", "find-principals", "-f", str(allowed_signers), "-s", str(path)])
        for signer in _names(principals.stdout):
            if _run(["-Y", "verify", *verify_arguments, "-I", signer], data).returncode == 0:
                return signer
    if principals.returncode:
        raise BadFile(f"{shown}: its signer is not in {allowed_signers}: {_reason(principals)}.")
    raise BadFile(f"{shown}: does not sign these digests, or not any more.")


def _names(principals: bytes) -> list[str]:
    """The names that the file of allowed signers gives a key. `principals`: the output of ssh-keygen, a name a line, or
    one comma-separated list in older versions. Names that start with ! (negated patterns) are left out."""
    names = principals.decode(errors="replace").replace("\n", ",").split(",")
    return [name for name in names if name and not name.startswith("!")]


def _run(arguments: list[str], data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run `ssh-keygen` with `data` on stdin; its exit code is not checked. Raises `MissingLibrary` without it."""
    try:
        return subprocess.run(["ssh-keygen", *arguments], input=data, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise MissingLibrary(
            "Signatures need ssh-keygen, which is not installed.", "Install OpenSSH's client, 8.2 or later."
        ) from error


def _reason(result: subprocess.CompletedProcess[bytes]) -> str:
    """The error message of an `ssh-keygen` that failed, in one line."""
    return " ".join(result.stderr.decode(errors="replace").split()).rstrip(".") or f"exit code {result.returncode}"
