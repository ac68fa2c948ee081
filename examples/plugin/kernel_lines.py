"""Reads a made-up format: one JSON object per line, with a kernel's name, stream, start and duration in ns.

{"kernel": "sgemm_128x64", "stream": "7", "start_ns": 1000, "duration_ns": 250}
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from trainyard.errors import BadFile
from trainyard.events import KERNEL, Events
from trainyard.plugins import AS_WRITTEN, ReadOptions
from trainyard.trace.readers import whole_files
from trainyard.trace.readers.gather import Gather


class Kernel(msgspec.Struct):
    kernel: str
    stream: str
    start_ns: int
    duration_ns: int


class KernelLines:
    """The `Reader` of kernel lines."""

    def sniff(self, path: Path) -> bool:
        return whole_files.head(path).startswith(b'{"kernel"')

    def read(self, path: Path, options: ReadOptions = AS_WRITTEN) -> Sequence[Events]:
        """The events of the file's only device. Raises `BadFile`."""
        rows = Gather(path.name, options.mark)
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            try:
                kernel = msgspec.json.decode(line, type=Kernel)
            except msgspec.MsgspecError as error:
                raise BadFile(f"{path}, line {number}: {error}.") from error
            stop_ns = kernel.start_ns + kernel.duration_ns
            rows.work(kernel.kernel, KERNEL, kernel.stream, 0, kernel.start_ns, stop_ns)
        return rows.events(["kernel lines have no host spans, so idle time has no cause."])
