"""When a recipe cannot be on the devices, or with the libraries, of this machine. No torch here."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec

from trainyard.errors import BadJob, MissingLibrary, MissingProgram
from trainyard.job import Recipe


def check(recipe: Recipe, vendor: str) -> None:
    """`vendor`: whose devices compute, as in words.VENDORS. Raises `BadJob`, `MissingLibrary` or `MissingProgram`
    with the reason and what works."""
    if recipe.dtype == "tf32" and vendor != "nvidia":
        raise BadJob(
            f"dtype = 'tf32' at $.recipe, but {vendor} computes, and tf32 is a way of NVIDIA's tensor cores.",
            "Use dtype = 'float32'.",
        )
    if recipe.offload and vendor in ("cpu", "pretend"):
        raise BadJob(
            "offload = true at $.recipe, but the CPU computes: weights are in the host's memory already.",
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
    """What is done on these devices, and not as a user would expect it."""
    if recipe.dtype == "float8" and vendor in ("cpu", "pretend"):
        return [
            "dtype = 'float8' on a CPU, which has no such arithmetic: its products are emulated, and take several "
            "times as long as in bfloat16. Losses are float8's; step times say nothing of a device that has it."
        ]
    return []


def compilers(vendor: str) -> list[str]:
    """One of these must be there: what torch.compile builds code for CPUs with (torch._inductor.config.cpp.cxx), or
    what Triton builds the launchers of its kernels with."""
    if vendor == "cpu":
        return [os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")]
    return [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
