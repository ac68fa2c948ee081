"""Where commands print: data to stdout, messages to stderr. Nothing else in `cli/` writes to either.

Everything printed is made visible by `printable`: names out of files must not steer the terminal.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from typing import TYPE_CHECKING, Any, TextIO

import click

from trainyard.errors import PlaceUnwritable
from trainyard.printable import encode_json, printable, printable_json

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

_WIDTH, _FULL_WIDTH = 80, 120
"""Width of output into a pipe or a file, in characters: by default, and of tables in full."""
_SPACES_AT_END = re.compile(r" +$", re.MULTILINE)
_TOML_LINE = re.compile(r"\s*(\w+ = |\[\w+\]$)")
_NAMES: dict[str, str] = {}
"""Temporary copies of pipes, and the pipes' names."""


class ReaderGone(Exception):
    """Raised if the program that reads our stdout has ended, as `head` does, which is not an error."""


class _OutputStream(io.TextIOBase):
    """stdout or stderr of the process. After a failed write it discards further output, including the flush at exit.

    `failed`: a write failed, and not because the reader has ended. `written`: a command wrote to the stream."""

    def __init__(self, stream: TextIO | None) -> None:
        """Wraps a stream; None for one that was closed before the program started."""
        self.stream = stream
        self.failed = False
        self.written = False
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for characters that the locale's encoding lacks

    def write(self, text: str, /) -> int:
        """Writes text and returns its length in characters; a failed write is passed to `_lose`, and raises only on
        stdout."""
        if not isinstance(text, str):
            raise TypeError(f"not text: {type(text).__name__}")
        if not text:  # click probes a stream with an empty text, and ignores the result
            return 0
        self.written = True
        if self.stream is None:
            self._closed()
        else:
            try:
                self.stream.write(text)
            except OSError as error:
                self._lose(error)
        return len(text)

    def flush(self) -> None:
        """Flushes the stream; a failure is treated as in `write`."""
        if self.stream is not None:
            try:
                self.stream.flush()
            except OSError as error:
                self._lose(error)

    def _lose(self, error: OSError) -> None:
        """Handles a failed write: records it in `failed`, unless the reader has ended, and redirects the descriptor to
        the null device, so that buffered output is not written, now or at exit."""
        self.failed |= not isinstance(error, BrokenPipeError)
        if self.stream is not None:
            with suppress(OSError):  # a stream in memory has no descriptor
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())

    def _closed(self) -> None:
        """Called for a write to a stream that was closed before the program started."""

    def isatty(self) -> bool:
        return self.stream is not None and self.stream.isatty()

    def fileno(self) -> int:
        if self.stream is None:
            raise io.UnsupportedOperation("fileno")
        return self.stream.fileno()

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return (self.stream and self.stream.encoding) or "utf-8"

    def writable(self) -> bool:
        return True


class _Data(_OutputStream):
    """stdout: a failed write ends the command."""

    def _lose(self, error: OSError) -> None:
        super()._lose(error)
        if isinstance(error, BrokenPipeError):
            raise ReaderGone from error
        raise PlaceUnwritable(f"cannot write stdout: {error.strerror or error}.") from error

    def _closed(self) -> None:
        raise PlaceUnwritable("cannot write stdout: it is closed.")


@contextmanager
def guarded() -> Iterator[tuple[_Data, _OutputStream]]:
    """Wrap stdout and stderr, so that failed writes do not count as bugs. A failed write to stdout raises
    `PlaceUnwritable` or `ReaderGone`; one to stderr is recorded, and the command runs to its end."""
    data, messages = _Data(sys.stdout), _OutputStream(sys.stderr)
    with redirect_stdout(data), redirect_stderr(messages):
        yield data, messages


def console(err: bool = False, full: bool = False) -> Console:
    """Rich's console on stdout, or on stderr if `err`. In a pipe it is plain, without spaces at the ends of lines, and
    80 characters wide, 120 if `full`, unless COLUMNS is set."""
    from rich.console import Console
    from rich.segment import Segment

    class Printable(Console):
        """Rich's console; control characters in the printed text become visible."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                visible = segment.text if segment.control else printable(segment.text, keep="\n")
                yield segment if visible == segment.text else Segment(visible, segment.style)

    class Plain(Printable):
        """The console of a pipe: Rich fills the cells of tables with spaces, also at the ends of lines."""

        def print(self, *objects: Any, **options: Any) -> None:
            with self.capture() as captured:
                super().print(*objects, **options)
            self.file.write(_SPACES_AT_END.sub("", captured.get()))
            self.file.flush()

    out = Printable(highlight=False, stderr=err)
    if out.is_terminal:
        return out
    return Plain(highlight=False, stderr=err, width=_width(os.environ.get("COLUMNS", ""), full))


def _width(columns: str, full: bool) -> int:
    """The width in COLUMNS if it is a positive integer, else the default for pipes."""
    if columns.isdecimal() and int(columns[:9]) > 0:
        return int(columns)
    return _FULL_WIDTH if full else _WIDTH


def shown_as(copy: str, name: str) -> None:
    """Print `name` instead of the path `copy`, a temporary copy of it, from now on."""
    _NAMES[copy] = name


def _text(text: str, spell: Callable[[str], str] = str) -> str:
    """`text` with the paths of pipes' copies replaced by the names of the pipes. `spell`: encodes a path in the text's
    format."""
    for copy, name in _NAMES.items():
        text = text.replace(spell(copy), spell(name))
    return text


def echo(text: str = "", newline: bool = True) -> None:
    """Print text to stdout."""
    click.echo(printable(_text(text), keep="\n"), nl=newline)


def say(text: str) -> None:
    """Print a message to stderr, with secrets redacted."""
    from trainyard.redact import redact_message

    columns = os.environ.get("COLUMNS", "")
    message = printable(redact_message(_text(text)), keep="\n")
    if sys.stderr.isatty() or columns:
        message = _wrapped(message, _width(columns, False) if columns else console(err=True).width)
    click.echo(message, err=True)


def _wrapped(message: str, width: int) -> str:
    """The message with lines of at most `width` characters, continued with the indentation of the line; lines of a TOML
    file and words that are longer are not broken."""
    import textwrap

    lines: list[str] = []
    for line in message.splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        wrapped = textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )  # fmt: skip
        lines += [line] if _TOML_LINE.match(line) or not wrapped else wrapped
    return "\n".join(lines)


def say_error(message: str, next_step: str = "") -> None:
    """Print the message of an error to stderr and, on a second line, the next step."""
    say(message + (f"\n       {next_step}" if next_step else ""))


def confirm(question: str) -> None:
    """Ask for confirmation on stderr. Raises `click.Abort` for any answer but yes."""
    click.confirm(printable(question), abort=True, err=True)


def busy(text: str) -> AbstractContextManager[object]:
    """Show a status line on a terminal for the duration of the context."""
    return console(err=True).status(text) if sys.stderr.isatty() else nullcontext()


def print_json(value: Any) -> None:
    """Print a value as JSON. Types that JSON lacks are printed as text, NaN and Infinity as null."""
    click.echo(printable_json(_text(encode_json(value).decode(), lambda path: encode_json(path).decode()[1:-1])))
