"""Pipes named on the command line, such as `<(zcat trace.json.gz)` or /dev/stdin: each is copied to a file, which can
be read more than once."""

from __future__ import annotations

import atexit
import os
import select
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from trainyard.cli.support.output import say, shown_as
from trainyard.errors import BadFile, BadInput, PlaceUnwritable
from trainyard.formats.regular_files import unreadable

_TIMEOUT_VARIABLE = "TRAINYARD_PIPE_TIMEOUT_S"
"""Environment variable with the timeout in seconds."""
_SILENCE_S = 60.0
"""Default timeout without data. A decompressor or a remote copy takes a few seconds for its first bytes."""
_QUIET_S = 2.0
"""Seconds without data after which a message says that the command waits."""
_PIECE = 1 << 20
"""Maximum bytes of one read."""


class InputFile(click.ParamType):
    """An input file, which may be a pipe, or another name (a folder, a run), converted to `kind`."""

    name = "path"

    def __init__(self, kind: Callable[[str], Any] = str) -> None:
        self.kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        from trainyard.redact import keep_words_after

        keep_words_after(value)
        return self.kind(copy_pipe(value))


def copy_pipe(name: str) -> str:
    """Copies a pipe to a temporary file that lasts as long as the process, and returns the path of the copy; returns
    any other name as it is. Messages show the pipe's name in place of the copy's.

    Raises `BadFile` for a device, or if no data arrives for too long, `PlaceUnwritable` if the copy cannot be
    written."""
    if not os.path.exists(name) or os.path.isfile(name) or os.path.isdir(name):
        return name
    if _is_endless(name):
        raise BadFile(f"{name} is a device, not a file or a pipe.", "Pass a file.")
    import tempfile

    folder = tempfile.TemporaryDirectory(prefix="trainyard-pipe-")
    atexit.register(folder.cleanup)
    copy = Path(folder.name) / Path(name).name
    pieces = _pieces(name)
    try:
        with copy.open("wb") as file:
            for piece in pieces:
                file.write(piece)
    except OSError as error:
        raise PlaceUnwritable(
            f"{name}: its copy {copy} cannot be written: {error.strerror}.", "Set TMPDIR to a folder with more space."
        ) from error
    shown_as(str(copy), name)
    return str(copy)


def _is_endless(name: str) -> bool:
    """Whether a name is a device that may never end, as /dev/zero: one that is not a terminal or the null device."""
    mode = os.stat(name).st_mode
    if stat.S_ISBLK(mode):
        return True
    if not stat.S_ISCHR(mode) or os.path.samefile(name, os.devnull):
        return False
    try:
        device = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return not os.isatty(device)
    finally:
        os.close(device)


def _pieces(name: str) -> Iterator[bytes]:
    """Yields the bytes of a named pipe until its writer closes it. Raises `BadFile` if no data arrives for too long."""
    timeout_s = _silence_s()
    try:
        pipe = os.open(name, os.O_RDONLY | os.O_NONBLOCK)  # opening a pipe without a writer must not wait for one
        try:
            if not select.select([pipe], [], [], min(_QUIET_S, timeout_s))[0]:
                say(f"Waiting for data through the pipe {name}, for at most {timeout_s:g} s more.")
            while select.select([pipe], [], [], timeout_s)[0]:
                if not (data := os.read(pipe, _PIECE)):
                    return
                yield data
        finally:
            os.close(pipe)
    except OSError as error:
        raise unreadable(name, error) from error
    raise BadFile(
        f"{name}: no data arrived through the pipe for {timeout_s:g} s.",
        f"Check that the program that writes it still runs. {_TIMEOUT_VARIABLE} sets the timeout in seconds.",
    )


def _silence_s() -> float:
    """Seconds without data after which a pipe is given up, from the environment. Raises `BadInput` if not positive."""
    text = os.environ.get(_TIMEOUT_VARIABLE) or str(_SILENCE_S)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise BadInput(
            f"{_TIMEOUT_VARIABLE} = {text!r} is not a positive number of seconds.", f"{_SILENCE_S:g} is the default."
        )
    return seconds
