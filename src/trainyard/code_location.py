"""Locations in Python code: file, line, function, and whose code it is.

Profilers write a Python frame as `path.py(line): function`. Kineto strips the entries of `sys.path` from the beginning
of the path, so that a file of the standard library or of an installed package may begin with its package's name.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from typing import NamedTuple

import msgspec

USER, LIBRARY, SYSTEM = range(3)
"""Owners of code: the user, an installed package, and the interpreter (the standard library, PyTorch, generated code).
A location is that of the innermost frame of the user; of a library only if the user has no frame, and so on."""
MAX_PATH_LENGTH, MAX_FUNCTION_LENGTH = 400, 120

_FRAME = re.compile(r"(?P<file>.+\.pyx?|<[^>]+>(?:\.\d+)?)\((?P<line>\d{1,9})\): (?P<function>.+)", re.DOTALL)
_INSTALLED = re.compile(r"(?:^|[/\\])(?:site|dist)-packages[/\\]")
_INTERPRETER = re.compile(r"[/\\]lib(64)?[/\\]python3[\d.t]*[/\\]|[/\\]torch[/\\](nn|optim|autograd|_\w+|utils)[/\\]")
_INTERACTIVE = ("<stdin", "<ipython-input", "<input", "<cell")
_SYSTEM_PACKAGES = frozenset({"torch", "torchgen", "functorch", "triton"})
_LIBRARY_NAMES = (
    "accelerate aiohttp apex av bitsandbytes click cv2 dask datasets deepspeed diffusers dill einops evaluate fairseq "
    "fbgemm_gpu fire flash_attn flax fsspec grpc h5py huggingface_hub hydra ignite ipykernel IPython jax jaxlib joblib "
    "kornia librosa lightning lightning_fabric lightning_utilities matplotlib megatron megatron_core mlflow monai "
    "mpi4py msgspec multiprocess nltk nvidia numba numpy omegaconf optax optimum orbax pandas peft PIL polars psutil "
    "pyarrow pydantic pytorch_lightning pytorch_metric_learning ray regex requests rich safetensors scipy "
    "sentence_transformers sentencepiece sentry_sdk skimage sklearn spacy sympy tensorboard tensorboardX tensorflow "
    "tensorstore timm tokenizers torchao torchaudio torchdata torchmetrics torchrec torchtext torchtune torchvision "
    "tqdm trainyard transformer_engine transformers trl typer urllib3 vllm wandb webdataset xformers yaml zmq"
)
_LIBRARIES = frozenset(_LIBRARY_NAMES.split())
"""Packages whose files are not the user's, if a path begins with the package's name because its folder was stripped."""


class CodeLocation(msgspec.Struct, frozen=True):
    """A line of Python code. `file`: path as recorded, relative to the working directory of the program if that is
    known; `line`: the line that ran, or the function's first line if the profiler records only that."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{show_path(self.file)}:{self.line} ({self.function})"


class StackLocation(NamedTuple):
    """The location of a stack: its innermost frame of the user (if the user has none, of a library, else the innermost
    one), and the innermost frame of a library below it, None if it has none."""

    location: CodeLocation
    callee: CodeLocation | None = None


class Frame(NamedTuple):
    """A Python frame as a profiler names it. `owner`: USER, LIBRARY or SYSTEM."""

    location: CodeLocation
    owner: int


@lru_cache(maxsize=65536)
def parse_frame(name: str) -> Frame | None:
    """The frame that a span's name (`train.py(52): log`) describes; None for other names, as of built-in functions."""
    match = _FRAME.fullmatch(name)
    if match is None:
        return None
    file, function = match["file"][-MAX_PATH_LENGTH:], match["function"][:MAX_FUNCTION_LENGTH]
    return Frame(CodeLocation(file, int(match["line"]), function), owner_of(match["file"]))


def owner_of(path: str) -> int:
    """The owner of the code in a file, by its path as a trace has it: USER, LIBRARY or SYSTEM. A relative path whose
    first part is the name of a well-known package or of a module of the standard library counts as that one."""
    if path.startswith("<"):
        return USER if path.startswith(_INTERACTIVE) else SYSTEM
    installed = _INSTALLED.search(path)
    relative = path[installed.end() :] if installed else path
    first_part = re.split(r"[/\\]", relative, maxsplit=1)[0].removesuffix(".py")
    if installed:
        return SYSTEM if first_part in _SYSTEM_PACKAGES else LIBRARY
    if _INTERPRETER.search(path) or first_part in _SYSTEM_PACKAGES or first_part in sys.stdlib_module_names:
        return SYSTEM
    return LIBRARY if first_part in _LIBRARIES else USER


def is_nameless(function: str) -> bool:
    """Whether a function is a comprehension or lambda, which is better named after the function around it."""
    return function.startswith("<") and function != "<module>"


def show_path(path: str, most: int = 48) -> str:
    """The path, shortened at its beginning to at most `most` characters: `…/data/loader.py`."""
    return path if len(path) <= most else f"…{path[1 - most :]}"
