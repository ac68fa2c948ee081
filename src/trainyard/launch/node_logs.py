"""The logs of a launch's nodes: `nodeN.log`, or `nodeN-E.log` for element E of a job array."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from trainyard.formats.appended_lines import read_appended

_ELEMENT = re.compile(r"node\d+-(\d+)\.log\Z")


def node_logs(logs: Path, node: int) -> list[Path]:
    """The existing logs of a node in the folder `logs`: of each element, by index, if the launch is an array."""
    paths = [*logs.glob(f"node{node}.log"), *logs.glob(f"node{node}-*.log")]
    return sorted(paths, key=lambda path: _element_of(path) or 0)


class FollowedLogs:
    """Reads the lines that are appended to the logs of a node. `logs`: folder; `node`: index of the node."""

    def __init__(self, logs: Path, node: int) -> None:
        self._logs, self._node = logs, node
        self._offsets: dict[Path, int] = {}

    def new_lines(self, is_over: bool) -> Iterator[str]:
        """Yields the lines since the last call; `is_over`: also a last line without an end. Lines of an array begin
        with the index of their element."""
        for path in node_logs(self._logs, self._node):
            offset, element = self._offsets.get(path, 0), _element_of(path)
            lines = read_appended(path, offset, incomplete=is_over)
            self._offsets[path] = offset + len(lines)
            for line in lines.decode("utf-8", "replace").splitlines():
                yield line if element is None else f"{element}: {line}"


def _element_of(path: Path) -> int | None:
    """The index of the array's element whose log this is; None without an array."""
    match = _ELEMENT.match(path.name)
    return int(match[1]) if match else None
