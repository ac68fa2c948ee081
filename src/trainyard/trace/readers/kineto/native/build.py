"""Compiles the C files beside this one: `python -m trainyard.trace.readers.kineto.native.build`. Needs a C compiler and
nothing else.

The wheel's build does it too (hatch_build.py). Without a compiler nothing is built, and nothing is lost but speed.
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
    """Writes `into`. Empty where that went well, else why not."""
    named = os.environ.get("CC")
    compiler = shlex.split(named) if named else [next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), "")]
    if not compiler or not compiler[0]:
        return "no C compiler was found"
    sources = sorted(str(path) for path in _HERE.glob("*.c"))
    # Written beside and moved: a process that has the old one loaded keeps it.
    with tempfile.TemporaryDirectory(dir=into.parent) as folder:
        made = Path(folder) / into.name
        try:
            done = subprocess.run(
                [*compiler, *flags, "-o", str(made), *sources], capture_output=True, text=True, check=False
            )
        except OSError as error:
            return f"{compiler[0]}: {error.strerror}"
        if done.returncode:
            return done.stderr.strip() or f"{compiler[0]} ended with {done.returncode}"
        made.replace(into)
    return ""


if __name__ == "__main__":
    why = build()
    if why:
        sys.stderr.write(f"The compiled scanner was not built: {why}. Everything works without it, more slowly.\n")
