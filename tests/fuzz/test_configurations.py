"""Configurations of other frameworks: any bytes, and any values of known keys, are read or refused with `BadInput`."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.test_mutations import mutations
from tests.predict.configs.test_configs import ARGUMENTS, MODELS, NEW, OLD, SPEED
from tests.refused import refused
from trainyard.errors import BadInput, FileTooLarge
from trainyard.formats import toml
from trainyard.predict.configs import detect_format
from trainyard.predict.configs.config_keys import LARGEST, CommandArguments, FrameworkConfig, flat
from trainyard.predict.configs.deepspeed import deepspeed_json
from trainyard.predict.configs.megatron import megatron_read
from trainyard.predict.configs.torchtitan import torchtitan_read

COMMAND_ARGUMENTS = [
    CommandArguments(),
    CommandArguments(64),
    CommandArguments(64, 256, MODELS["dense"]),
    CommandArguments(8, 128, MODELS["latent"]),
]
SEEDS = {
    "megatron": ARGUMENTS.encode(), "torchtitan, earlier": OLD.encode(), "torchtitan": NEW.encode(),
    "deepspeed": json.dumps(SPEED, indent=1).encode(),
}  # fmt: skip


def check(data: bytes) -> None:
    """Runs format detection and every reader. Any error but `BadInput` is a bug."""
    for arguments in COMMAND_ARGUMENTS:
        for read in (detect_format.read, megatron_read.read, torchtitan_read.read, deepspeed_json.read):
            with suppress(BadInput):
                config = read(data, "x", arguments)
                assert isinstance(config, FrameworkConfig)
                assert config.job.layout.ranks >= 1


@pytest.mark.parametrize("name", SEEDS)
def test_seed_is_read(name: str) -> None:
    model = MODELS["dense"] if name == "deepspeed" else None
    assert detect_format.read(SEEDS[name], "x", CommandArguments(512 if name == "torchtitan" else 64, 256, model)).job


@pytest.mark.parametrize("name", SEEDS)
@settings(max_examples=150)
@given(data=st.data())
def test_mutated_file_is_read_or_refused(name: str, data: st.DataObject) -> None:
    check(data.draw(mutations(SEEDS[name])))


@settings(max_examples=150)
@given(st.binary(max_size=200), st.sampled_from([b"", b"{", b"[", b"--a ", b'{"train_batch_size":', b"[training]\n"]))
def test_random_bytes_are_read_or_refused(data: bytes, head: bytes) -> None:
    check(head + data)


WORDS = st.sampled_from(["auto", "none", "", "op", "2", "x", "float8", "selective", "Interleaved1F1B", "cpu"])
TABLES = st.sampled_from(["enabled", "stage", "a"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(0, 64) | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TABLES, inner, max_size=3),
    max_leaves=4,
)


def nested(values: dict[str, Any]) -> dict[str, Any]:
    """Converts dotted keys to nested tables."""
    root: dict[str, Any] = {}
    for key, value in values.items():
        table, (*path, last) = root, key.split(".")
        for part in path:
            table = table.setdefault(part, {}) if isinstance(table.setdefault(part, {}), dict) else {}
        table[last] = value
    return root


SPEED_KEYS = [
    *flat(SPEED), "train_batch_size", "fp16.enabled", "bf16", "zero_optimization", "optimizer", "pipeline.stages",
    "tensor_parallel.autotp_size", "sequence_parallel_size", "activation_checkpointing.cpu_checkpointing", "bfloat16",
    "zero_optimization.mics_shard_size", "zero_optimization.zero_hpz_partition_size", "expert_parallel.autoep_size",
    "torch_autocast.enabled", "torch_autocast.dtype", "data_types.grad_accum_dtype", "expert_parallel.enabled",
    "pipeline.activation_checkpoint_interval",
]  # fmt: skip


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from(SPEED_KEYS), VALUES, max_size=6))
def test_any_deepspeed_values_are_read_or_refused(changed: dict[str, Any]) -> None:
    check(json.dumps(nested(flat(SPEED) | changed)).encode())


TITAN_KEYS = [
    "model.name", "model.flavor", "model.converters", "training.local_batch_size", "training.global_batch_size",
    "training.seq_len", "training.dtype", "training.mixed_precision_param", "training.batch_size", "optimizer.name",
    *(f"parallelism.{axis}_parallel_degree" for axis in ("tensor", "context", "pipeline", "expert", "expert_tensor")),
    "parallelism.data_parallel_shard_degree", "parallelism.data_parallel_replicate_degree", "parallelism",
    "parallelism.pipeline_parallel_schedule", "parallelism.pipeline_parallel_layers_per_stage", "training",
    "parallelism.module_fqns_per_model_part", "parallelism.pipeline_parallel_split_points", "experimental",
    "parallelism.fsdp_reshard_after_forward", "parallelism.pipeline_parallel_microbatch_size", "activation_checkpoint",
    "experimental.pipeline_parallel_degree", "experimental.pipeline_parallel_microbatches",
    "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option", "compile.enable",
    "quantize.linear.mx.recipe_name",
]  # fmt: skip


def no_nulls(value: Any) -> Any:
    """The value without nulls, which TOML lacks."""
    if isinstance(value, dict):
        return {key: no_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [no_nulls(item) for item in value if item is not None]
    return value


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from(TITAN_KEYS), VALUES, max_size=6))
def test_any_torchtitan_values_are_read_or_refused(changed: dict[str, Any]) -> None:
    document = no_nulls(nested({"model.flavor": "8B", "training.seq_len": 256} | changed))
    check(toml.dumps(document).encode())


MEGATRON_KEYS = [
    *(word[2:].partition("=")[0] for word in ARGUMENTS.split() if word.startswith("--")),
    "num-experts", "moe-layer-freq", "moe-shared-expert-intermediate-size", "expert-model-parallel-size",
    "context-parallel-size", "cp-comm-type",
    "pipeline-model-parallel-layout", "num-virtual-stages-per-pipeline-rank", "recompute-granularity", "fp8-format",
    "num-layers-per-virtual-pipeline-stage", "recompute-num-layers", "recompute-method", "multi-latent-attention",
    "use-precision-aware-optimizer", "exp-avg-dtype", "norm-epsilon", "rotary-base", "optimizer",
]  # fmt: skip


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.sampled_from(MEGATRON_KEYS), st.text(max_size=8) | st.integers(-1, 64).map(str)), max_size=5)
)
def test_any_megatron_arguments_are_read_or_refused(changed: list[tuple[str, str]]) -> None:
    more = [f"--{name} {value}" for name, value in changed]
    check((ARGUMENTS.replace("# theirs", "") + " ".join(more)).encode("utf-8", "surrogatepass"))


def test_too_long_or_too_deep_input_is_refused() -> None:
    check(b'{"train_batch_size":' * 100_000)
    check(b"[training]\na = " + b"[" * 100_000)
    check(b"--num-layers " + b"9" * 100_000)
    with refused(FileTooLarge, "x", f"{LARGEST:,}"):
        detect_format.read(b"--num-layers 2 " + b" " * LARGEST, "x", CommandArguments(1))
    with refused(FileTooLarge, "x", "100,013"):
        detect_format.read(b"--num-layers " + b"9" * 100_000, "x", CommandArguments(1))
