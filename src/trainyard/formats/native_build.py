"""Compiles the C files of each folder `native`: `python -m trainyard.formats.native_build`.

Needs only a C compiler. The build of the wheel does this too (hatch_build.py). Without a compiler nothing is built:
everything works, more slowly.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
FOLDERS = tuple(_PACKAGE / name / "native" for name in ("trace/readers/kineto", "numerics/record"))
LIBRARY = "native.so"
_FLAGS = ("-O3", "-std=c11", "-shared", "-fPIC")


def build(folder: Path, flags: tuple[str, ...] = _FLAGS, into: Path | None = None) -> str:
    """Compiles the C files of a folder with `$CC`, or the first compiler on the path, into the shared library `into`,
    by default `LIBRARY` in the folder. `flags`: of the compiler. Returns why there is no compiler or why it failed,
    empty on success."""
    into = into or folder / LIBRARY
    named = os.environ.get("CC")
    compiler = shlex.split(named) if named else [next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), "")]
    if not compiler or not compiler[0]:
        return "no C compiler was found"
    sources = sorted(str(path) for path in folder.glob("*.c"))
    # Written to a temporary file and moved: a process that has the old library loaded keeps it.
    with tempfile.TemporaryDirectory(dir=into.parent) as temporary:
        library = Path(temporary) / into.name
        try:
            compilation = subprocess.run(
                [*compiler, *flags, "-o", str(library), *sources], capture_output=True, text=True, check=False
            )
        except OSError as error:
            return f"{compiler[0]}: {error.strerror}"
        if compilation.returncode:
            return compilation.stderr.strip() or f"{compiler[0]} ended with {compilation.returncode}"
        library.replace(into)
    return ""


if __name__ == "__main__":
    for native in FOLDERS:
        if reason := build(native):
            sys.stderr.write(f"{native} was not built: {reason}. Everything works without it, more slowly.\n")
