"""Chooses the reader of a profiler's file and reads the file with it.

A reader is a plugin of the group `readers` (Kineto, Nsight Systems, ...): `sniff(file)` states whether it recognises a
file, `read(file, options)` returns the events of each rank in it. A reader of another package is consulted first, since
it was installed on purpose; the formats of the built-in readers exclude each other (`readers/recognise.py`). A packed
file is a gzip or zip file. The files of an archive, and packed files for readers that know only plain ones, are
unpacked to temporary files.
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


def read_file(file: Path, options: ReadOptions = AS_WRITTEN) -> Sequence[Events]:
    """Reads a profiler file: one `Events` for each rank in it. The documents of an archive are read one after another.

    `options`: options of the readers. Raises `BadFile` if no reader recognises the file, or if it is damaged.
    """
    name = reader_name(file)
    if not name:
        raise refusal(file)
    reader = plugins.load("readers", name)
    if is_packed(file) and not _reads_packed(name, reader, file):
        return [
            events
            for text in open_documents(file, options.limit)
            for events in _read_unpacked(reader, file, text, options)
        ]
    return reader.read(file, options)


def reader_name(file: Path) -> str:
    """The name of the reader that recognises the file; empty if there is none.

    The order is: readers of other packages on the file as it is, the built-in readers, then readers of other packages
    on each unpacked document of a packed file. Damage inside a packed file counts as not recognised.
    """
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
    """The name of the reader that recognises the file, as `reader_name`, but empty for empty or damaged text.

    Such text may be offered to a reader (Kineto's for text named as JSON) that then reports the damage, but its format
    is not known.
    """
    name = reader_name(file)
    return name if name in _readers_of_other_packages() or recognise(file).is_certain else ""


def _readers_of_other_packages() -> dict[str, plugins.Reader]:
    """Reader name -> reader, for the readers that are not part of trainyard."""
    points = plugins.names("readers").items()
    return {name: plugins.load("readers", name) for name, point in points if not point.module.startswith("trainyard.")}


def _reads_packed(name: str, reader: plugins.Reader, file: Path) -> bool:
    """Whether the reader called `name` reads this packed file without unpacking it to a temporary file first.

    Kineto's reader streams every archive, the other built-in readers unpack an archive of a single file themselves, and
    a reader of another package reads the files that it recognises.
    """
    if name in _readers_of_other_packages():
        return reader.sniff(file)
    return name == "kineto" or len(open_documents(file, AS_WRITTEN.limit)) == 1


def _read_unpacked(reader: plugins.Reader, file: Path, text: UnpackedText, options: ReadOptions) -> Sequence[Events]:
    """Reads one document of the packed file `file` from a temporary copy: its ranks, none if it is not recognised.

    `text`: the document, unpacked on reading. Raises `BadFile`, whose message names the packed file and the document
    instead of the copy.
    """
    copy = file
    try:
        with unpacked(text) as copy:
            return reader.read(copy, options) if reader.sniff(copy) else ()
    except BadFile as error:
        message = error.message.replace(str(copy), f"{file} ({text.name})")
        raise type(error)(message, error.next_step) from error


def refusal(file: Path) -> BadFile:
    """The error for a file that no reader recognises."""
    refused = recognise(file)
    return BadFile(f"{file}: {refused.reason}.", refused.next_step or _list_readers())


def _list_readers() -> str:
    """The next step for a file of an unknown kind: what to export, and the names of the readers."""
    return (
        "Pass an export of torch.profiler (export_chrome_trace), rocprofv3, Nsight Systems, XLA or neuron-profile; "
        f"docs/how-to/profile-your-job.md has the commands. Readers: {', '.join(plugins.names('readers'))}."
    )
