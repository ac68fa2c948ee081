"""Detects which framework a configuration file belongs to, and reads its job."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

from trainyard.errors import BadFile, BadInput, FileTooLarge
from trainyard.formats import toml
from trainyard.job import Job
from trainyard.predict.configs import divisible_sizes
from trainyard.predict.configs.config_keys import LARGEST, CommandArguments, FrameworkConfig
from trainyard.predict.configs.deepspeed import deepspeed_json, deepspeed_keys
from trainyard.predict.configs.megatron import megatron_read
from trainyard.predict.configs.torchtitan import torchtitan_read
from trainyard.units import counted

ConfigFormat = Literal["trainyard", "megatron", "torchtitan", "deepspeed"]
_READERS: Mapping[str, Callable[[bytes, str, CommandArguments], FrameworkConfig]] = {
    "megatron": megatron_read.read,
    "torchtitan": torchtitan_read.read,
    "deepspeed": deepspeed_json.read,
}


_DEEPSPEED_KEYS = (*deepspeed_keys.BATCHES, "zero_optimization")
"""Top-level keys of which every configuration of DeepSpeed has at least one."""


def detect(data: bytes) -> ConfigFormat | None:
    """The framework whose format the contents `data` of a file have; None for any other file, such as a model file. A
    file with a syntax error counts as the framework whose key or table names it contains, so that its reader reports
    the error."""
    text = data[: LARGEST + 1].decode("utf-8-sig", "replace")
    if text.lstrip().startswith("{"):
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            document = {key: None for key in _DEEPSPEED_KEYS if f'"{key}"' in text}
        return "deepspeed" if isinstance(document, dict) and any(key in document for key in _DEEPSPEED_KEYS) else None
    try:
        tables: Any = toml.loads(text)
    except toml.DecodeError:
        tables = {name: {} for name in ("recipe", "parallelism", "training") if f"[{name}]" in text}
        if not tables:
            return "megatron" if any(word.startswith("--") for word in text.split()) else None
    if isinstance(tables.get("recipe"), dict):
        return "trainyard"
    return "torchtitan" if any(isinstance(tables.get(name), dict) for name in ("parallelism", "training")) else None


def read(data: bytes, where: str, arguments: CommandArguments) -> FrameworkConfig:
    """Reads the job of another framework's configuration (not of trainyard's own job file). `data`: the contents of the
    file; `where`: its name in messages; `arguments`: devices, sequence length and model, which some files leave to the
    command line. Raises `BadFile` and `BadInput` as the framework's reader does, and if the layout does not divide the
    model."""
    if len(data) > LARGEST:
        raise FileTooLarge(f"{where}: more than {LARGEST:,} bytes, too large for a configuration.")
    framework = detect(data)
    if framework is None or framework not in _READERS:
        raise BadFile(f"{where} is neither a job file, torchtitan's TOML, DeepSpeed's JSON nor Megatron's arguments.")
    config = _READERS[framework](data, where, arguments)
    _check_divisible(config.job, where)
    return config


def _check_divisible(job: Job, where: str) -> None:
    """Raises `BadInput`, with the remainder, if the layout does not divide the model's experts, a stage's ranks or the
    sequence, or if there are more pipeline stages than layers plus embedding and head; the readers check the heads.
    `where`: the name of the file in messages."""
    model, layout, recipe = job.decoder, job.layout, job.recipe
    stage_ranks = layout.dp_replicate * layout.dp_shard * layout.cp * layout.tp
    for size_name, size, divisor, axis_name in (
        ("experts", model.experts, layout.ep, "expert parallelism"),
        ("ranks of a stage", stage_ranks, layout.ep, "expert parallelism"),
        # Context parallelism balances a causal mask with two chunks of the sequence per rank.
        ("tokens", recipe.seq_len, 2 * layout.cp if layout.cp > 1 else 1, "twice context parallelism"),
    ):
        divisible_sizes.check_divisor(size_name, size, axis_name, divisor, where)
    if layout.pp * layout.interleave > model.layers + 2:
        raise BadInput(
            f"{where}: pipeline parallelism {layout.pp} x {layout.interleave} per rank = "
            f"{layout.pp * layout.interleave} stages are more than {counted(model.layers, 'layer')}.",
            f"Use at most {counted(model.layers, 'stage')}.",
        )
