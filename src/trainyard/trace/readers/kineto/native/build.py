"""Compiles the C files of this folder: `python -m trainyard.trace.readers.kineto.native.build`.

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

_HERE = Path(__file__).parent
_FLAGS = ("-O3", "-std=c11", "-shared", "-fPIC")


def build(flags: tuple[str, ...] = _FLAGS, into: Path = _HERE / "native.so") -> str:
    """Compiles the C files of this folder with `$CC`, or the first compiler on the path, into the shared library
    `into`. `flags`: of the compiler. Returns why there is no compiler or why it failed, empty on success."""
    named = os.environ.get("CC")
    compiler = shlex.split(named) if named else [next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), "")]
    if not compiler or not compiler[0]:
        return "no C compiler was found"
    sources = sorted(str(path) for path in _HERE.glob("*.c"))
    # Written to a temporary file and moved: a process that has the old library loaded keeps it.
    with tempfile.TemporaryDirectory(dir=into.parent) as folder:
        library = Path(folder) / into.name
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
    reason = build()
    if reason:
        sys.stderr.write(f"The compiled scanner was not built: {reason}. Everything works without it, more slowly.\n")
