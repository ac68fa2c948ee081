"""What is to be trained and how: Model x Layout x Recipe, on a Machine, by a Workload.

A job is a TOML file; a misspelt key is refused with its path and the nearest right one. Axis names
are torchtitan's (`dp_replicate`, `dp_shard`, `tp`, `cp`, `pp`, `ep`).
"""

from __future__ import annotations

import re
import tomllib
from math import prod
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import msgspec

from trainyard import words
from trainyard.errors import BadFile, BadJob, nearest


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decoder's dimensions. `heads` query heads share `kv_heads` key/value heads; `ffn` is the gated width.

    `experts` = 0 is dense; otherwise `active` of `experts` are used by each token.
    """

    name: str = "unnamed"
    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int = 256
    experts: int = 0
    active: int = 0

    def __post_init__(self) -> None:
        for field in ("layers", "width", "ffn", "heads", "kv_heads", "head_dim", "vocab"):
            if getattr(self, field) < 1:
                raise BadJob(f"{field} = {getattr(self, field)} must be at least 1.")
        if self.heads % self.kv_heads:
            raise BadJob(
                f"heads {self.heads} % kv_heads {self.kv_heads} = {self.heads % self.kv_heads}, "
                "but each key/value head serves a whole number of query heads.",
                f"Make kv_heads a divisor of {self.heads}.",
            )
        if self.head_dim % 2:
            raise BadJob(f"head_dim = {self.head_dim} is odd, but rotary embedding turns pairs.")
        if not 0 <= self.active <= self.experts:
            raise BadJob(f"active = {self.active} of experts = {self.experts}.")


FACTORS = tuple(axis for axis in words.AXES if axis != "ep")
"""The axes whose product is the world size; experts borrow ranks from them."""


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How ranks divide the work; their product is the world size (`ep` borrows ranks from the others)."""

    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    cp: int = 1
    pp: int = 1
    ep: int = 1
    interleave: int = 1

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            if getattr(self, field) < 1:
                raise BadJob(f"{field} = {getattr(self, field)} must be at least 1.")

    @property
    def ranks(self) -> int:
        return prod(getattr(self, axis) for axis in FACTORS)

    @property
    def only_axis(self) -> str:
        """The one axis that all ranks form, or empty when there are several or one rank."""
        wide = [axis for axis in FACTORS if getattr(self, axis) > 1]
        return wide[0] if len(wide) == 1 else ""

    def __str__(self) -> str:
        parts = [f"{field} {getattr(self, field)}" for field in self.__struct_fields__ if getattr(self, field) > 1]
        return " x ".join(parts) or "one rank"


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a step is trained. `tokens_per_step` is global; `microbatch` counts sequences a rank runs at once.

    `text`: `python` (the standard library's own sources, found on any machine) or a file or folder.
    """

    seq_len: int
    tokens_per_step: int
    microbatch: int = 1
    dtype: str = "float32"
    remat: Literal["none", "full"] = "none"
    schedule: Literal["none"] = "none"
    offload: bool = False
    compile: bool = False
    learning_rate: float = 3e-4
    seed: int = 0
    text: str = "python"

    def __post_init__(self) -> None:
        for field in ("seq_len", "tokens_per_step", "microbatch"):
            if getattr(self, field) < 1:
                raise BadJob(f"{field} = {getattr(self, field)} must be at least 1.")
        if not 0 < self.learning_rate < float("inf"):
            raise BadJob(f"learning_rate = {self.learning_rate} must be a positive number.")
        if not 0 <= self.seed < 2**63:
            raise BadJob(f"seed = {self.seed} must be from 0 to 2**63 - 1.")
        words.check(self.dtype, words.DTYPES, "dtype")


PROFILER_WARMUP = 1
"""Profiled steps before the window that are thrown away: the profiler starts up in them."""


class Measure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is timed: `warmup` steps thrown away, then `repeats` x `steps` without the profiler, then
    `profiled` steps with it."""

    warmup: int = 3
    steps: int = 5
    repeats: int = 2
    profiled: int = 3

    def __post_init__(self) -> None:
        for field, least in (("warmup", 0), ("steps", 1), ("repeats", 1), ("profiled", 0)):
            if getattr(self, field) < least:
                raise BadJob(f"{field} = {getattr(self, field)} must be at least {least}.")

    @property
    def in_window(self) -> int:
        """Steps under the profiler, the discarded ones too."""
        return PROFILER_WARMUP + self.profiled if self.profiled else 0

    @property
    def in_all(self) -> int:
        """Steps a rank takes."""
        return self.warmup + self.steps * self.repeats + self.in_window


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job file. `machine` names a machine file, or is empty for the machine it runs on."""

    name: str = "unnamed"
    workload: str = "transformer"
    machine: str = ""
    model: Model
    layout: Layout = Layout()
    recipe: Recipe
    measure: Measure = Measure()

    def __post_init__(self) -> None:
        ways = self.layout.dp_replicate * self.layout.dp_shard
        slice_tokens = self.recipe.seq_len * self.recipe.microbatch * ways
        if self.recipe.tokens_per_step % slice_tokens:
            raise BadJob(
                f"tokens_per_step {self.recipe.tokens_per_step:,} is not a multiple of seq_len "
                f"{self.recipe.seq_len} * microbatch {self.recipe.microbatch} * data-parallel ranks {ways} "
                f"= {slice_tokens:,}.",
                f"Use {max(1, round(self.recipe.tokens_per_step / slice_tokens)) * slice_tokens:,}.",
            )

    @property
    def accumulate(self) -> int:
        """Micro-batches a rank runs in one step."""
        ways = self.layout.dp_replicate * self.layout.dp_shard
        return self.recipe.tokens_per_step // (self.recipe.seq_len * self.recipe.microbatch * ways)

    def check_fits(self, devices: int, where: str) -> None:
        """Raises `BadJob` with the arithmetic when the layout needs more ranks than `devices`."""
        layout = self.layout
        if layout.ranks > devices:
            factors = " * ".join(f"{axis} {getattr(layout, axis)}" for axis in FACTORS if getattr(layout, axis) > 1)
            widest = max(FACTORS, key=lambda axis: getattr(layout, axis))
            raise BadJob(
                f"bad layout at $.layout: {factors} = {layout.ranks} ranks, but {where} holds {devices}.",
                f"Lower {widest} to {max(1, getattr(layout, widest) * devices // layout.ranks)}.",
            )


_PLACED = re.compile(r"(?P<says>.*?)(?: - at `\$(?P<path>[^`]*)`)?\Z", re.DOTALL)
_UNKNOWN_KEY = re.compile(r"unknown field `(?P<key>[^`]*)`")


def _placed(error: str) -> tuple[str, str]:
    """msgspec's "says - at `$.path`" as (says, path)."""
    match = _PLACED.match(error)
    return (match["says"], match["path"] or "") if match else (error, "")


def _fields_at(path: str) -> tuple[str, ...]:
    """The struct fields a job document may have at `.layout` or the like."""
    kind: Any = Job
    for part in filter(None, path.split(".")):
        kind = get_type_hints(kind).get(part, Job)
        kind = next((arg for arg in get_args(kind) if isinstance(arg, type)), kind)
    return getattr(kind, "__struct_fields__", ())


def parse(text: str, where: str) -> Job:
    """A job from TOML. Raises `BadJob` naming `where`, the path in the document and the next step."""
    try:
        return msgspec.convert(tomllib.loads(text), Job)
    except tomllib.TOMLDecodeError as error:
        raise BadJob(f"{where}: not TOML: {error}.") from error
    except msgspec.ValidationError as error:
        says, path = _placed(str(error))
        hint = ""
        if unknown := _UNKNOWN_KEY.search(says):
            says = f"unknown key {unknown[1]!r}"
            hint = nearest(unknown[1], _fields_at(path))
        raise BadJob(f"{where} at ${path}: {says.rstrip('.')}.", hint) from error


def load(path: str | Path) -> Job:
    """A job file. Raises `BadFile` when it cannot be read and `BadJob` when it makes no sense."""
    return parse(read(path), str(path))


def read(path: str | Path) -> str:
    """A job file's text. Raises `BadFile`."""
    try:
        return Path(path).read_text("utf-8")
    except FileNotFoundError as error:
        raise BadFile(f"{path}: there is no such file.", "Name a job file; examples/ holds some.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f"{path}: cannot be read as text: {error}.") from error
