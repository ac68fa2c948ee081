"""Turns the samples of a `StackSampler` into the document that the trace holds: paths, owners and lines of frames."""

from __future__ import annotations

import glob
import os
import site
import sys
import sysconfig
from bisect import bisect_left
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import CodeType
from typing import Protocol

from trainyard.code_location import LIBRARY, MAX_FUNCTION_LENGTH, MAX_PATH_LENGTH, SYSTEM, USER, owner_of
from trainyard.recorded_stacks import VERSION, RecordedStacks


class SampledStacks(Protocol):
    """The samples of a `StackSampler`; its attributes are described there."""

    frames: dict[tuple[int, int, int], int]
    code_of: dict[int, CodeType]
    times_ns: list[int]
    samples: list[int]
    clock_ns: list[int]
    problem: str
    cpu_ns: int


def build_document(sampler: SampledStacks, wall_ns: int) -> RecordedStacks:
    """The document of a sampler that has ended, without the samples before the first reading of its clock. `wall_ns`:
    length of the sampled window. Paths are relative to the working directory if they are inside it."""
    first = bisect_left(sampler.times_ns, sampler.clock_ns[0]) if sampler.clock_ns else 0
    times_ns, samples = sampler.times_ns[first:], sampler.samples[first:]
    tables = _Tables()
    frames = [tables.frame(parent, sampler.code_of[code], instruction) for parent, code, instruction in sampler.frames]
    return RecordedStacks(
        version=VERSION,
        period_ns=int(median(after - before for before, after in pairwise(times_ns))) if len(times_ns) > 1 else 0,
        cpu_ns=sampler.cpu_ns,
        wall_ns=wall_ns,
        clock_ns=sampler.clock_ns,
        files=list(tables.files),
        functions=list(tables.functions),
        frames=frames,
        gap_ns=[after - before for before, after in zip([0, *times_ns], times_ns)],
        frame=samples,
        problem=sampler.problem,
    )


class _Tables:
    """The files and functions of the frames, each numbered in order of its first occurrence."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, int], int] = {}
        """(Path as shown, owner) -> index."""
        self.functions: dict[tuple[int, str], int] = {}
        """(Index of the file, name) -> index."""
        self._lines: dict[CodeType, list[tuple[int, int]]] = {}

    def frame(self, parent: int, code: CodeType, instruction: int) -> tuple[int, int, int]:
        """(Index of the parent frame, index of the function, line) of a frame. `instruction`: offset in the code."""
        file = self.files.setdefault(_describe_file(code.co_filename), len(self.files))
        name = getattr(code, "co_qualname", code.co_name).rpartition("<locals>.")[2]
        function = self.functions.setdefault((file, _storable(name)[:MAX_FUNCTION_LENGTH]), len(self.functions))
        return parent, function, self._line(code, instruction)

    def _line(self, code: CodeType, instruction: int) -> int:
        """The line of the instruction at this offset; the function's first line if it has none."""
        if code not in self._lines:
            self._lines[code] = [(begin, line) for begin, _, line in code.co_lines() if line is not None]
        starts = self._lines[code]
        at = bisect_left(starts, (instruction + 1, 0)) - 1
        return max(0, starts[at][1] if at >= 0 else code.co_firstlineno)


@cache
def _describe_file(path: str) -> tuple[str, int]:
    """The path as shown and the owner of a source file. Paths of installed code are relative to the folder of its
    package, those inside the working directory relative to that, others absolute."""
    if path.startswith("<"):
        return _storable(path)[:MAX_PATH_LENGTH], owner_of(path)
    absolute = os.path.abspath(path)
    shown, owner = _installed_file(absolute) or (absolute, owner_of(absolute))
    if owner == USER:
        shown = shown.removeprefix(os.path.join(os.getcwd(), ""))
    return _storable(shown)[-MAX_PATH_LENGTH:], owner


def _installed_file(absolute: str) -> tuple[str, int] | None:
    """(Path below its package's folder, LIBRARY or SYSTEM) of a file of an installed package or of the standard
    library; None for other files."""
    for folder, base, owner in _installed_folders():
        if absolute.startswith(folder):
            relative = absolute[len(base) :]
            return relative, max(owner, owner_of(f"site-packages/{relative}"))
    for folder in sys.path:
        base = os.path.join(os.path.abspath(folder), "")
        if absolute.startswith(base) and _is_distribution(base, absolute[len(base) :]):
            return absolute[len(base) :], max(LIBRARY, owner_of(f"site-packages/{absolute[len(base) :]}"))
    return None


def _is_distribution(folder: str, relative: str) -> bool:
    """Whether the package of this file was installed into `folder`, as `pip install --target` does."""
    package = relative.split(os.sep)[0].removesuffix(".py")
    return any(Path(folder).glob(f"{glob.escape(package)}-*.dist-info"))


@cache
def _installed_folders() -> tuple[tuple[str, str, int], ...]:
    """(Folder, folder to which its files' paths are relative, owner of its files), each folder with a final slash:
    installed packages, trainyard, PyTorch, the standard library."""
    paths = sysconfig.get_paths()
    user_site = site.getusersitepackages() if site.ENABLE_USER_SITE else None
    installed = [paths["purelib"], paths["platlib"], *site.getsitepackages(), user_site]
    folders = [(folder, folder, LIBRARY) for folder in installed if folder]
    for package, owner in (("trainyard", LIBRARY), ("torch", SYSTEM)):
        file = getattr(sys.modules.get(package), "__file__", None)
        if file:
            folders.append((os.path.dirname(file), os.path.dirname(os.path.dirname(file)), owner))
    folders += [(paths[name], paths[name], SYSTEM) for name in ("stdlib", "platstdlib")]
    return tuple(
        (os.path.join(os.path.abspath(folder), ""), os.path.join(os.path.abspath(base), ""), owner)
        for folder, base, owner in folders
    )


def _storable(text: str) -> str:
    """The text without halves of surrogate pairs, which no encoding can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")
