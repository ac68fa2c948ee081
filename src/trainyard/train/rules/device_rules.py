"""Constraints on a recipe by this machine's devices and libraries. Needs no torch.

In messages, `$` is the root of the job file: `$.layout` is its table [layout].
"""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec

from trainyard.errors import BadJob, MissingLibrary, MissingProgram
from trainyard.recipe import Recipe


def check(recipe: Recipe, vendor: str) -> None:
    """Checks a recipe for the devices of `vendor`, as in words.VENDORS. Raises `BadJob`, `MissingLibrary` or
    `MissingProgram` with the reason and a valid alternative."""
    if recipe.dtype == "tf32" and vendor != "nvidia":
        raise BadJob(
            f"dtype = 'tf32' at $.recipe, but the device is {vendor}, and tf32 is a mode of NVIDIA's tensor cores.",
            "Use dtype = 'float32'.",
        )
    if recipe.offload and vendor in ("cpu", "pretend"):
        raise BadJob(
            "offload = true at $.recipe, but the device is the CPU: weights are in host memory already.",
            "Use offload = false.",
        )
    if recipe.dtype == "float8" and find_spec("torchao") is None:
        raise MissingLibrary("dtype = 'float8' at $.recipe needs torchao.", "Run: pip install 'trainyard[float8]'")
    if recipe.compile and not any(map(shutil.which, compilers(vendor))):
        raise MissingProgram(
            f"compile at $.recipe needs a compiler, but there is no {' or '.join(compilers(vendor))}.",
            "Install one, or use compile = false.",
        )


def notices(recipe: Recipe, vendor: str) -> list[str]:
    """Notices about unexpected behaviour of a recipe on these devices. `vendor`: of the devices."""
    if recipe.dtype == "float8" and vendor in ("cpu", "pretend"):
        return [
            "dtype = 'float8' on a CPU, which has no float8 arithmetic: products are emulated and take several times "
            "as long as in bfloat16. Losses are those of float8; step times do not carry over to devices with float8."
        ]
    return []


def compilers(vendor: str) -> list[str]:
    """Compilers of which one must be installed: for torch.compile's CPU code (torch._inductor.config.cpp.cxx), or for
    the launchers of Triton's kernels. `vendor`: of the devices."""
    if vendor == "cpu":
        return [os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")]
    return [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
