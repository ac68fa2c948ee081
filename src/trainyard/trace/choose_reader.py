"""Chooses the reader of a profiler's file and reads the file with it.

A reader of another package is consulted first, since it was installed on purpose; the formats of the built-in readers
exclude each other (`readers/recognise.py`). The files of an archive, and packed files for readers that know only plain
ones, are unpacked to temporary files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainyard import plugins
from trainyard.errors import BadFile
from trainyard.events import Events
from trainyard.plugins import AS_WRITTEN, ReadOptions
from trainyard.trace.readers.kineto.unpack import UnpackedText, open_documents
from trainyard.trace.readers.recognise import recognise
from trainyard.trace.readers.whole_files import is_packed, unpacked


def read_file(file: Path, how: ReadOptions = AS_WRITTEN) -> Sequence[Events]:
    """One file's ranks, by the reader that recognises it. The files of an archive are read one after another. Raises
    `BadFile`."""
    name = reader_name(file)
    if not name:
        raise refusal(file)
    reader = plugins.load("readers", name)
    if is_packed(file) and not _reads_packed(name, reader, file):
        return [
            events for text in open_documents(file, how.limit) for events in _read_unpacked(reader, file, text, how)
        ]
    return reader.read(file, how)


def reader_name(file: Path) -> str:
    """The name of the reader that recognises the file; empty if there is none. A packed file that no reader accepts is
    offered to the readers of other packages unpacked."""
    others = _readers_of_other_packages()
    if name := next((name for name, reader in others.items() if reader.sniff(file)), ""):
        return name
    if name := recognise(file).reader:
        return name
    try:
        for text in open_documents(file, AS_WRITTEN.limit) if others and is_packed(file) else ():
            with unpacked(text) as copy:
                if name := next((name for name, reader in others.items() if reader.sniff(copy)), ""):
                    return name
    except BadFile:
        pass
    return ""


def certain_reader_name(file: Path) -> str:
    """As `reader_name`, but empty for empty and damaged text, whose format is not known."""
    name = reader_name(file)
    return name if name in _readers_of_other_packages() or recognise(file).is_certain else ""


def _readers_of_other_packages() -> dict[str, plugins.Reader]:
    """name -> reader, of the readers that trainyard does not bring along."""
    points = plugins.names("readers").items()
    return {name: plugins.load("readers", name) for name, point in points if not point.module.startswith("trainyard.")}


def _reads_packed(name: str, reader: plugins.Reader, file: Path) -> bool:
    """Whether the reader reads the packed file as it is: Kineto's streams every archive, the others unpack an archive
    of a single file, and a reader of another package reads the files that it recognises."""
    if name in _readers_of_other_packages():
        return reader.sniff(file)
    return name == "kineto" or len(open_documents(file, AS_WRITTEN.limit)) == 1


def _read_unpacked(reader: plugins.Reader, file: Path, text: UnpackedText, how: ReadOptions) -> Sequence[Events]:
    """The ranks of one document of a packed file; none if the reader does not recognise it. Raises `BadFile`, whose
    message names the packed file."""
    copy = file
    try:
        with unpacked(text) as copy:
            return reader.read(copy, how) if reader.sniff(copy) else ()
    except BadFile as error:
        message = error.says.replace(str(copy), f"{file} ({text.name})")
        raise type(error)(message, error.next_step) from error


def refusal(file: Path) -> BadFile:
    """The error for a file that no reader recognises."""
    refused = recognise(file)
    return BadFile(
        f"{file}: {refused.reason}.", refused.next_step or f"Readers: {', '.join(plugins.names('readers'))}."
    )
