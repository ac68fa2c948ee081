"""Removes private data from records (host names, paths, secrets), and checks that none was missed."""

from __future__ import annotations

import gzip
import os
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from trainyard.record import Run
from trainyard.redact import is_secret

_PERSONAL = re.compile(r"HOST|NODE|USER|ACCOUNT|ADDR|SUBMIT|JOB_NAME|STORE|CLUSTER", re.IGNORECASE)
_FOLDERS = re.compile(r"(?:\bHOME|(?<![\w/.:<]))/(?:[\w.+@=~-]+/)+")
_SHORTEST = 8
"""A shorter value of a secret variable (`1`, `none`) is found in any text by chance."""


def private(environment: Mapping[str, str] = os.environ, host: str = "") -> dict[str, str]:
    """What must not be found -> what stands for it."""
    names = {host or socket.gethostname(), environment.get("HOSTNAME", "")} - {"", "localhost"}
    hosts = {part: "HOST" for name in names for part in (name, name.partition(".")[0]) if len(part) > 3}
    values = {value for name, value in environment.items() if is_secret(name) and len(value) >= _SHORTEST}
    home = environment.get("HOME", "")
    return {**hosts, **({home: "HOME"} if home.count("/") > 1 else {}), **dict.fromkeys(values, "SECRET")}


def clean(text: str, hidden: Mapping[str, str]) -> str:
    """`text` without what is `hidden`, and with no folder of an absolute path but its last part."""
    for value in sorted(hidden, key=len, reverse=True):
        text = _alone(value).sub(hidden[value], text)
    return _FOLDERS.sub("PATH/", text)


def clean_run(run: Run) -> Run:
    """`run` without the host's name, the devices' own numbers and the variables that name people or places."""
    about = run.provenance
    devices = tuple(
        replace(device, facts={k: v for k, v in device.facts.items() if k not in ("uuid", "pci")})
        for device in about.devices
    )
    environment = {k: v for k, v in about.environment.items() if not _PERSONAL.search(k)}
    host = {k: v for k, v in about.host.items() if k != "name"}
    return replace(run, provenance=replace(about, devices=devices, environment=environment, host=host))


def leaks(folder: Path, hidden: Mapping[str, str]) -> Iterator[str]:
    """`file: what` for each hidden thing still found in a file; what it is, not its text."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8", "replace")
        for value, label in hidden.items():
            if _alone(value).search(text):
                yield f"{path.relative_to(folder)}: {label}"


def _alone(text: str) -> re.Pattern[str]:
    """Not as a part of a longer word."""
    return re.compile(rf"(?<![A-Za-z0-9]){re.escape(text)}(?![A-Za-z0-9])")
