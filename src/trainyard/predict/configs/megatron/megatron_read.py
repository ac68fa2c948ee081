"""Reads the arguments of Megatron Core's pretrain_gpt.py as a job.

Names and defaults are those of Megatron-LM's `megatron/training/arguments.py`. The device count is the user's, or that
of torchrun's arguments before the script.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from trainyard.errors import BadFile, BadInput, BadJob, FileTooLarge
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.predict.configs import divisible_sizes
from trainyard.predict.configs.config_keys import CommandArguments, ConfigKeys, FrameworkConfig
from trainyard.predict.configs.megatron import (
    megatron_conflicts,
    megatron_keys,
    megatron_model,
    megatron_optimizer,
    megatron_recompute,
    megatron_stages,
)
from trainyard.predict.pipeline import partition
from trainyard.recipe import Recipe

_LONGEST = 1 << 16
"""Largest size of the arguments in bytes: `shlex` takes time quadratic in the length of a word."""
_LAUNCHER = (("nnodes",), ("nproc-per-node", "nproc_per_node"))
"""torchrun's numbers of hosts, and of processes on each."""
_DTYPES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
"""Megatron's name of a dtype -> bytes of a value."""


def read(data: bytes, where: str, arguments: CommandArguments) -> FrameworkConfig:
    """Reads `data`. `where`: the name of the file in messages. Raises `BadFile` if it is not a list of arguments or
    cannot be represented, `BadInput` if devices or batch do not divide."""
    if len(data) > _LONGEST:
        raise FileTooLarge(f"{where}: {len(data):,} bytes; Megatron arguments may have {_LONGEST:,}.")
    try:
        words = shlex.split(data.decode("utf-8-sig").replace("\\\n", " "), comments=True)
    except (UnicodeDecodeError, ValueError) as error:
        raise BadFile(f"{where}: not arguments: {error}.") from error
    values, repeated = _parse_arguments(words)
    launched = _launched(values)
    devices = arguments.devices or launched
    if not devices:
        raise BadInput(f"{where}: the arguments do not give the device count.", "Pass --devices.")
    keys = ConfigKeys(values, where, prefix="--")
    megatron_conflicts.check(keys)
    try:
        config = _MegatronReader(keys).job(devices, arguments.model)
    except BadJob as error:
        raise BadFile(f"{where}: {error.message}", error.next_step) from error
    repetitions = (f"{keys.with_value(name)}: given several times, and the last value counts" for name in repeated)
    other_count = (f"torchrun's {launched} processes: --devices {devices} counts",) * (launched not in (0, devices))
    return config._replace(approximated=(*config.approximated, *repetitions, *other_count))


def _launched(values: Mapping[str, Any]) -> int:
    """The processes that torchrun starts with these arguments; 0 if they are not given."""
    processes = 1
    for names in _LAUNCHER:
        value = next((values[name] for name in names if name in values), 0)
        count = value[0] if isinstance(value, list) else value  # the script's name may follow
        processes *= count if isinstance(count, int) and count is not True and count > 0 else 0
    return processes


def _parse_arguments(words: list[str]) -> tuple[dict[str, Any], list[str]]:
    """(argument name -> True for a flag, a number, a word, or a list of several of those; names given several times
    with different values)."""
    words_by_name: dict[str, list[Any]] = {}
    earlier: list[tuple[str, list[Any]]] = []
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if name in words_by_name:
                earlier.append((name, words_by_name[name]))
            words_by_name[name] = [_parse_value(value)] if equals else []
        elif name:
            words_by_name[name].append(_parse_value(word))
    values_by_name = {
        name: True if not values else values[0] if len(values) == 1 else values
        for name, values in words_by_name.items()
    }
    return values_by_name, list(dict.fromkeys(name for name, values in earlier if values != words_by_name[name]))


def _parse_value(word: str) -> int | float | str:
    """A word of a command line as an integer or a float if it is one."""
    if word.isascii() and word.isdecimal() and len(word) < 10:
        return int(word)
    try:
        return float(word)
    except ValueError:
        return word


class _MegatronReader:
    """Reads a job from the arguments, named without their dashes. Each method reads one aspect; `keys.refuse` and
    `keys.approximate` record settings that are not predicted as given, and `keys.finish` reports them. The second
    argument of `keys.integer` is the default."""

    def __init__(self, keys: ConfigKeys) -> None:
        self.keys, self.where = keys, keys.where

    def job(self, devices: int, model_override: Model | None) -> FrameworkConfig:
        """The job of the arguments with the stored bytes of weights and state. `model_override`: replaces the model
        that the arguments describe."""
        keys = self.keys
        model = megatron_model.pad(keys, model_override) if model_override else megatron_model.read(keys)
        layout = self._layout(devices, model)
        recipe = self._recipe(layout, model)
        stored_bytes = self._stored_bytes(recipe.dtype)
        columns = self._offloaded_activations(layout, recipe, model) | megatron_optimizer.columns(keys)
        if keys.get("transformer-impl") == "local" and not keys.flag("use-flash-attn"):
            keys.refuse("transformer-impl", "attention that materialises its scores")
        rules = megatron_keys.RULES
        if model_override:
            rules = rules._replace(irrelevant=megatron_keys.with_sizes())
        unknown, approximated = keys.finish(rules)
        return FrameworkConfig(
            framework="megatron",
            job=Job(name=model.name, model=model, layout=layout, recipe=recipe),
            keeps=stored_bytes,
            unknown=unknown,
            approximated=approximated,
            columns=columns,
            notes=megatron_model.padding_notes(keys, model_override),
        )

    def _layout(self, devices: int, model: Model) -> Layout:
        """The layout of the arguments on `devices` ranks. The data-parallel degree is `devices` over the other degrees;
        the distributed optimizer shards over it, or over each of several instances. Raises `BadInput` if a division has
        a remainder."""
        keys = self.keys
        tp, pp = keys.integer("tensor-model-parallel-size", 1), keys.integer("pipeline-model-parallel-size", 1)
        cp, ep = keys.integer("context-parallel-size", 1), keys.integer("expert-model-parallel-size", 1)
        divisible_sizes.check_tensor_parallelism(model, tp, self.where)
        if ep > 1 and not (model.experts or keys.integer("num-experts", 0, 0)):
            raise BadFile(
                f"{self.where}: --expert-model-parallel-size {ep} without experts is refused by Megatron.",
                "Add --num-experts, or leave it out.",
            )
        if devices % (tp * pp * cp):
            raise BadInput(
                f"{self.where}: {devices} devices % (tensor {tp} x pipeline {pp} x context {cp}) = "
                f"{devices % (tp * pp * cp)}.",
                "Pass another number of --devices, or change these sizes.",
            )
        dp = devices // (tp * pp * cp)
        zero = self._zero()
        copies = keys.integer("num-distributed-optimizer-instances", 1)
        if zero and dp % copies:
            raise BadInput(
                f"{self.where}: {dp} ranks of data parallelism % --num-distributed-optimizer-instances {copies} = "
                f"{dp % copies}."
            )
        shard = dp // copies if zero else 1
        if cp > 1 and not zero:
            keys.refuse("context-parallel-size", "supported only with --use-distributed-optimizer")
        # Supported: experts sharded over tp if ep is 1, else whole on each rank of tp.
        expert_tp = keys.integer("expert-tensor-parallel-size", tp)
        if model.experts and tp > 1 and expert_tp != (1 if ep > 1 else tp):
            raise BadFile(
                f"{self.where}: experts are divided over {expert_tp} ranks of tensor parallelism and {ep} of expert "
                "parallelism, which is not modelled.",
                f"Set --expert-tensor-parallel-size {1 if ep > 1 else tp}.",
            )
        zero_stages: dict[int, Literal[1, 2, 3]] = {1: 1, 2: 2, 3: 3}
        interleave, less_layers = self._stages(pp, model)
        return Layout(
            dp_shard=shard,
            dp_replicate=dp // shard,
            tp=tp,
            pp=pp,
            cp=cp,
            ep=ep if model.experts else 1,
            interleave=interleave,
            zero=zero_stages[zero] if zero and shard * cp > 1 else 3,
            sequence_parallel=keys.flag("sequence-parallel") and tp > 1,
            loss_parallel=tp > 1,
            cp_method=self._cp_method(cp),
            first_stage_less_layers=less_layers and less_layers[0],
            last_stage_less_layers=less_layers and less_layers[1],
        )

    def _zero(self) -> int:
        """ZeRO stage of the data parallelism: 0 if nothing is sharded."""
        keys = self.keys
        sharded = keys.flag("use-distributed-optimizer") or keys.get("optimizer") == "dist_muon"
        if keys.flag("use-megatron-fsdp") or keys.flag("use-custom-fsdp"):
            strategies = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
            return keys.choice("data-parallel-sharding-strategy", strategies, 0)
        return int(sharded)

    def _cp_method(self, cp: int) -> Literal["all_gather", "ulysses", "ring"]:
        """The method of context parallelism, by `--cp-comm-type`."""
        methods: dict[str, Literal["all_gather", "ulysses", "ring"]] = {
            "p2p": "ring",
            "all_gather": "all_gather",
            "allgather": "all_gather",
            "a2a": "ulysses",
        }
        method = self.keys.get("cp-comm-type")
        if cp == 1:
            return "all_gather"
        if isinstance(method, list) or method == "a2a+p2p":
            self.keys.approximate("cp-comm-type", "predicted as a ring in all layers")
            return "ring"
        return self.keys.choice("cp-comm-type", methods, "ring")

    def _stages(self, pp: int, model: Model) -> tuple[int, tuple[int, int] | None]:
        """(pipeline stages per rank, layers fewer on the first and the last stage) from the layout of the stages, the
        stages per rank or the layers per stage; None for Megatron's own division. `pp`: pipeline ranks. Stages of other
        sizes are approximated by even ones. Raises `BadFile` if the layers or stages do not divide over the ranks."""
        keys = self.keys
        layers_key = "num-layers-per-virtual-pipeline-stage"
        interleave = keys.integer("num-virtual-stages-per-pipeline-rank", 1)
        # Each of the embedding and the loss may count as a layer.
        end_layers = [int(keys.flag(f"account-for-{end}-in-pipeline-split")) for end in ("embedding", "loss")]
        layers = model.layers + sum(end_layers)
        layout = keys.get("pipeline-model-parallel-layout")
        if layout is not None:
            counts = megatron_stages.read(str(layout), model.layers, self.where)
            if len(counts) % pp:
                raise BadFile(
                    f"{self.where}: --pipeline-model-parallel-layout: {len(counts)} stages % {pp} ranks = "
                    f"{len(counts) % pp}."
                )
            return len(counts) // pp, self._less_layers(counts, "pipeline-model-parallel-layout")
        ends = [f"decoder-{end}-pipeline-num-layers" for end in ("first", "last")]
        if any(keys.get(end) is not None for end in ends):
            return interleave, self._less_layers_of_ends(ends, pp, interleave, model.layers)
        if layers % pp:
            raise BadFile(
                f"{self.where}: {layers} layers % --pipeline-model-parallel-size {pp} = {layers % pp}.",
                "Assign layers to stages with --pipeline-model-parallel-layout.",
            )
        if keys.get(layers_key) is not None:
            layers_per_chunk, layers_per_rank = keys.integer(layers_key), layers // pp
            if layers_per_rank % layers_per_chunk:
                raise BadFile(
                    f"{self.where}: {layers_per_rank} layers of a rank % --{layers_key} {layers_per_chunk} = "
                    f"{layers_per_rank % layers_per_chunk}."
                )
            interleave = layers_per_rank // layers_per_chunk
        if not any(end_layers) or pp == 1 or layers % (pp * interleave):
            return interleave, None
        counts = partition.layers_per_stage(model.layers, pp * interleave, *end_layers)
        return interleave, self._less_layers(counts, "account-for-loss-in-pipeline-split")

    def _less_layers_of_ends(
        self, ends: Sequence[str], pp: int, interleave: int, layers: int
    ) -> tuple[int, int] | None:
        """The layers fewer on the first and the last stage by the arguments `ends`, the layers of the first and the
        last rank: the other ranks have the rest (`get_num_layers_to_build` of Megatron Core). Raises `BadFile` if that
        does not divide evenly."""
        given = [end for end in ends if self.keys.get(end) is not None]
        if interleave > 1 or pp == 1:  # every stage of these ranks has fewer layers, not only the first and the last
            for end in given:
                self.keys.approximate(end, "predicted with layers divided evenly")
            return None
        count_of_end = {end: self.keys.integer(end, 0, 0) for end in given}
        other_layers, others = layers - sum(count_of_end.values()), pp - len(given)
        if other_layers < 0 or (other_layers % others if others else other_layers):
            arguments = ", ".join(f"--{end} {count}" for end, count in count_of_end.items())
            raise BadFile(
                f"{self.where}: {arguments}: the other {other_layers} of {layers} layers do not divide evenly over "
                f"{others} ranks.",
                "Change these arguments, or use --pipeline-model-parallel-layout.",
            )
        each = other_layers // others if others else 0
        first, last = (count_of_end.get(end, each) for end in ends)
        return self._less_layers([first, *[each] * (pp - 2), last], given[0])

    def _less_layers(self, counts: Sequence[int], key: str) -> tuple[int, int] | None:
        """The layers fewer on the first and the last of stages with `counts` layers, which the argument `key` sets;
        None for Megatron's own division, and if the stages have to be approximated by that."""
        if list(counts) == megatron_stages.default_stages(sum(counts), len(counts)):
            return None
        less = partition.find_less_layers(counts)
        if less is None:
            self.keys.approximate(key, "predicted with layers divided evenly")
        return less

    def _recipe(self, layout: Layout, model: Model) -> Recipe:
        """The recipe of the arguments: batch, precision, activation checkpointing, schedule."""
        keys, dp = self.keys, layout.batch_ranks
        seq_len = keys.integer("seq-length" if "encoder-seq-length" not in keys.values else "encoder-seq-length")
        micro_batch_size = keys.integer("micro-batch-size")
        batch = keys.integer("global-batch-size", micro_batch_size * dp)
        if batch % (dp * micro_batch_size):
            raise BadInput(
                f"{self.where}: --global-batch-size {batch} % ({dp} ranks of data parallelism x --micro-batch-size "
                f"{micro_batch_size}) = {batch % (dp * micro_batch_size)}."
            )
        activation_checkpoint, checkpoint_every = megatron_recompute.activation_checkpoint(keys, layout, model)
        schedule = "none" if layout.pp == 1 else "interleaved" if layout.interleave > 1 else "1f1b"
        return Recipe(
            seq_len=seq_len,
            tokens_per_step=batch * seq_len,
            micro_batch_size=micro_batch_size,
            dtype=self._dtype(),
            activation_checkpoint=activation_checkpoint,
            activation_checkpoint_every=checkpoint_every,
            schedule=schedule,
            offload=self._offload(),
            recompute_modules=megatron_recompute.modules(keys, activation_checkpoint),
            overlap_dispatch=self._overlap_dispatch(layout, activation_checkpoint),
        )

    def _dtype(self) -> str:
        """The compute dtype: the narrowest format that the arguments name; float32 if none."""
        keys = self.keys
        fp8 = [keys.get(name) for name in ("fp8-format", "fp8", "fp8-hybrid", "fp8-e4m3")]
        bf16, fp16 = keys.flag("bf16"), keys.flag("fp16")
        if keys.get("fp4-format") is not None:
            return "float4"
        return "float8" if any(fp8) else "float16" if fp16 else "bfloat16" if bf16 else "float32"

    def _offload(self) -> bool:
        """Whether the optimizer is offloaded. Raises `BadFile` for a combination that Megatron refuses."""
        keys, key = self.keys, "optimizer-cpu-offload"
        if not keys.flag(key):
            return False
        for needed in ("use-precision-aware-optimizer", "use-distributed-optimizer"):
            if not keys.flag(needed):
                raise BadFile(f"{self.where}: --{key} without --{needed} is refused by Megatron.", f"Add --{needed}.")
        if keys.number("optimizer-offload-fraction", 1.0) < 1:
            keys.refuse("optimizer-offload-fraction", "a part of the state stays on the device")
        if not keys.flag("overlap-cpu-optimizer-d2h-h2d"):
            keys.approximate("overlap-cpu-optimizer-d2h-h2d", "predicted with copies overlapped with the update")
        if keys.flag("use-torch-optimizer-for-cpu-offload"):
            keys.approximate("use-torch-optimizer-for-cpu-offload", "predicted as the faster update")
        return True

    def _offloaded_activations(self, layout: Layout, recipe: Recipe, model: Model) -> dict[str, float]:
        """The column of layers whose activations are offloaded, if there are any. Raises `BadFile` for a combination
        that Megatron refuses."""
        keys, key = self.keys, "cpu-offloading-num-layers"
        if not keys.flag("cpu-offloading") and keys.get(key) is None:
            return {}
        layers = keys.integer(key, 0, 0)
        contradictions = (
            (layers >= model.layers, f"of {model.layers} layers", f"Set --{key} {model.layers - 1}."),
            (layout.pp > 1, "with --pipeline-model-parallel-size above 1", f"Remove --{key}."),
            (recipe.activation_checkpoint != "none", "with --recompute-granularity", "Remove one of them."),
        )
        for contradicts, condition, next_step in contradictions:
            if layers and contradicts:
                raise BadFile(f"{self.where}: --{key} {layers} {condition} is refused by Megatron.", next_step)
        keys.flag("cpu-offloading-double-buffering")
        return {"offloaded_layers": float(layers)} if layers else {}

    def _overlap_dispatch(self, layout: Layout, activation_checkpoint: str) -> bool:
        """Whether tokens are dispatched during other compute. Raises `BadFile` for a combination that Megatron
        refuses."""
        keys, flag = self.keys, "overlap-moe-expert-parallel-comm"
        if not keys.flag(flag):
            return False
        contradictions = (
            (layout.ep == 1, "without expert parallelism", "Add --expert-model-parallel-size."),
            (layout.pp > 1 and layout.interleave == 1, "in a pipeline with one stage per rank",
             "Add --num-virtual-stages-per-pipeline-rank 2."),
            (activation_checkpoint == "full", "with --recompute-granularity full",
             "Use --recompute-granularity selective."),
        )  # fmt: skip
        for contradicts, condition, next_step in contradictions:
            if contradicts:
                raise BadFile(f"{self.where}: --{flag} {condition} is refused by Megatron.", next_step)
        return True

    def _stored_bytes(self, dtype: str) -> tuple[int, int, int] | None:
        """Bytes of a weight, its gradient and its optimizer state; None if they are the defaults, (2, 4, 12), or if
        `dtype` is float32. In float16, gradients are accumulated in float16 by default."""
        keys = self.keys
        accumulates_float16 = dtype == "float16" and not keys.flag("accumulate-allreduce-grads-in-fp32")
        gradient_bytes = 2 if keys.flag("grad-reduce-in-bf16") or accumulates_float16 else 4
        state_bytes = 12  # float32 master weight and two Adam moments
        if keys.flag("use-precision-aware-optimizer"):
            state_bytes = sum(
                keys.choice(f"{part}-dtype", _DTYPES, 4) for part in ("main-params", "exp-avg", "exp-avg-sq")
            )
            gradient_bytes = keys.choice("main-grads-dtype", _DTYPES, gradient_bytes)
        return (
            (2, gradient_bytes, state_bytes)
            if (gradient_bytes, state_bytes) != (4, 12) and dtype != "float32"
            else None
        )
