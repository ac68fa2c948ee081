"""Arguments of Megatron Core's pretrain_gpt.py, as a job: what somebody runs already.

The names and defaults are those of Megatron-LM's `megatron/training/arguments.py`. How many devices there are does not
stand in them.
"""

from __future__ import annotations

import shlex
from typing import Any, Literal

from trainyard.errors import BadFile, BadInput, FileTooLarge
from trainyard.job import Job, Layout, Model, Recipe
from trainyard.predict.configs.config_keys import CommandArguments, ConfigKeys, FrameworkConfig
from trainyard.predict.configs.megatron import megatron_keys, megatron_model, megatron_stages

_LONGEST = 1 << 16
"""Bytes of arguments: the shell's rules take the square of a word's length to apply."""
_DTYPES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}


def read(data: bytes, where: str, beside: CommandArguments) -> FrameworkConfig:
    """Raises `BadFile` for what is no such text or cannot be represented, `BadInput` where devices or batch do not
    divide."""
    if len(data) > _LONGEST:
        raise FileTooLarge(f"{where}: {len(data):,} bytes, more than arguments have.")
    try:
        words = shlex.split(data.decode("utf-8-sig").replace("\\\n", " "), comments=True)
    except (UnicodeDecodeError, ValueError) as error:
        raise BadFile(f"{where}: not arguments: {error}.") from error
    if not beside.devices:
        raise BadInput(f"{where}: how many devices there are does not stand in arguments.", "Give --devices.")
    return _MegatronReader(ConfigKeys(_said(words), where, before="--")).job(beside.devices, beside.model)


def _said(words: list[str]) -> dict[str, Any]:
    """By name: true for one without a value, a number, a word, or several of those as a list."""
    found: dict[str, list[Any]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found[name] = [_value(value)] if equals else []
        elif name:
            found[name].append(_value(word))
    return {name: True if not values else values[0] if len(values) == 1 else values for name, values in found.items()}


def _value(word: str) -> int | float | str:
    if word.isascii() and word.isdecimal() and len(word) < 10:
        return int(word)
    try:
        return float(word)
    except ValueError:
        return word


class _MegatronReader:
    def __init__(self, given: ConfigKeys) -> None:
        self.given, self.where = given, given.where

    def job(self, devices: int, instead: Model | None) -> FrameworkConfig:
        given = self.given
        model = instead or megatron_model.read(given)
        layout = self._layout(devices, model)
        recipe = self._recipe(layout, model)
        keeps = self._keeps(recipe.dtype)
        if given.get("optimizer") not in (None, "adam"):
            given.refuse("optimizer", "its state and its update are not AdamW's")
        if given.get("transformer-impl") == "local" and not given.flag("use-flash-attn"):
            given.refuse("transformer-impl", "attention that writes its scores")
        rules = megatron_keys.RULES
        if instead:
            rules = rules._replace(nothing=megatron_keys.with_sizes())
        passed, otherwise = given.done(rules)
        return FrameworkConfig(
            "megatron", Job(name=model.name, model=model, layout=layout, recipe=recipe), keeps, passed, otherwise
        )

    def _layout(self, devices: int, model: Model) -> Layout:
        given = self.given
        tp, pp = given.whole("tensor-model-parallel-size", 1), given.whole("pipeline-model-parallel-size", 1)
        cp, ep = given.whole("context-parallel-size", 1), given.whole("expert-model-parallel-size", 1)
        if devices % (tp * pp * cp):
            raise BadInput(
                f"{self.where}: {devices} devices % (tensor {tp} x pipeline {pp} x context {cp}) = "
                f"{devices % (tp * pp * cp)}.",
                "Give --devices: how many there are does not stand in the arguments.",
            )
        dp = devices // (tp * pp * cp)
        zero = self._zero()
        copies = given.whole("num-distributed-optimizer-instances", 1)
        if zero and dp % copies:
            raise BadInput(
                f"{self.where}: {dp} ranks of data parallelism % --num-distributed-optimizer-instances {copies} = "
                f"{dp % copies}."
            )
        shard = dp // copies if zero else 1
        if cp > 1 and not zero:
            given.refuse(
                "context-parallel-size", "beside it here the optimizer's state is divided: --use-distributed-optimizer"
            )
        each = given.whole("expert-tensor-parallel-size", tp)
        if model.experts and tp > 1 and each != (1 if ep > 1 else tp):
            given.refuse(
                "expert-tensor-parallel-size",
                f"--expert-model-parallel-size {ep} and experts divided by {each} of {tp} ranks",
            )
        kept: dict[int, Literal[1, 2, 3]] = {1: 1, 2: 2, 3: 3}
        return Layout(
            dp_shard=shard,
            dp_replicate=dp // shard,
            tp=tp,
            pp=pp,
            cp=cp,
            ep=ep if model.experts else 1,
            interleave=self._interleave(pp, model),
            zero=kept[zero] if zero and shard * cp > 1 else 3,
            sequence_parallel=given.flag("sequence-parallel") and tp > 1,
            loss_parallel=tp > 1,
            cp_method=self._context(cp),
        )

    def _zero(self) -> int:
        """What data parallelism divides: nothing (0), or as ZeRO's stages."""
        given = self.given
        divides = given.flag("use-distributed-optimizer")
        if given.flag("use-megatron-fsdp") or given.flag("use-custom-fsdp"):
            shares = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
            return given.choice("data-parallel-sharding-strategy", shares, 0)
        return int(divides)

    def _context(self, cp: int) -> Literal["all_gather", "ulysses", "ring"]:
        known: dict[str, Literal["all_gather", "ulysses", "ring"]] = {
            "p2p": "ring",
            "all_gather": "all_gather",
            "allgather": "all_gather",
            "a2a": "ulysses",
        }
        said = self.given.get("cp-comm-type")
        if cp == 1:
            return "all_gather"
        if isinstance(said, list) or said == "a2a+p2p":
            self.given.otherwise("cp-comm-type", "predicted as a ring in all layers")
            return "ring"
        return self.given.choice("cp-comm-type", known, "ring")

    def _interleave(self, pp: int, model: Model) -> int:
        """Pipeline stages a rank has."""
        given = self.given
        rounds, each = given.whole("num-virtual-stages-per-pipeline-rank", 1), "num-layers-per-virtual-pipeline-stage"
        ends = [given.flag(f"account-for-{end}-in-pipeline-split") for end in ("embedding", "loss")]
        layers = model.layers + sum(ends)
        said = given.get("pipeline-model-parallel-layout")
        if said is not None:
            each_has = megatron_stages.read(str(said), model.layers, self.where)
            many = len(each_has)
            if each_has != megatron_stages.usual(model.layers, many):
                given.otherwise("pipeline-model-parallel-layout", "predicted with layers divided evenly")
            if many % pp:
                raise BadFile(
                    f"{self.where}: --pipeline-model-parallel-layout: {many} stages % {pp} ranks = {many % pp}."
                )
            return many // pp
        for end in ("decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"):
            if given.get(end) is not None:
                given.otherwise(end, "predicted as if stages had as many layers each")
                return rounds
        if layers % pp:
            raise BadFile(
                f"{self.where}: {layers} layers % --pipeline-model-parallel-size {pp} = {layers % pp}.",
                "--pipeline-model-parallel-layout says which stage has which.",
            )
        if given.get(each) is not None:
            one = given.whole(each)
            if layers // pp % one:
                raise BadFile(f"{self.where}: {layers // pp} layers of a rank % --{each} {one} = {layers // pp % one}.")
            rounds = layers // pp // one
        return rounds

    def _recipe(self, layout: Layout, model: Model) -> Recipe:
        given, ways = self.given, layout.batch_ranks
        seq_len = given.whole("seq-length" if "encoder-seq-length" not in given.said else "encoder-seq-length")
        microbatch = given.whole("micro-batch-size")
        batch = given.whole("global-batch-size", microbatch * ways)
        if batch % (ways * microbatch):
            raise BadInput(
                f"{self.where}: --global-batch-size {batch} % ({ways} ranks of data parallelism x --micro-batch-size "
                f"{microbatch}) = {batch % (ways * microbatch)}."
            )
        remat, every = self._remat(layout, model)
        schedule = "none" if layout.pp == 1 else "interleaved" if layout.interleave > 1 else "1f1b"
        return Recipe(
            seq_len=seq_len,
            tokens_per_step=batch * seq_len,
            microbatch=microbatch,
            dtype=self._dtype(),
            remat=remat,
            remat_every=every,
            schedule=schedule,
            offload=self._offload(),
        )

    def _dtype(self) -> str:
        given = self.given
        low = [given.get(name) for name in ("fp8-format", "fp8", "fp8-hybrid", "fp8-e4m3")]
        brain, half = given.flag("bf16"), given.flag("fp16")
        if given.get("fp4-format") is not None:
            return "float4"
        return "float8" if any(low) else "float16" if half else "bfloat16" if brain else "float32"

    def _offload(self) -> bool:
        """Raises `BadFile` where Megatron refuses it."""
        given, key = self.given, "optimizer-cpu-offload"
        if not given.flag(key):
            return False
        for needed in ("use-precision-aware-optimizer", "use-distributed-optimizer"):
            if not given.flag(needed):
                raise BadFile(f"{self.where}: --{key} without --{needed} is refused by Megatron.", f"Add --{needed}.")
        if given.number("optimizer-offload-fraction", 1.0) < 1:
            given.refuse("optimizer-offload-fraction", "a part of the state stays on the device")
        if not given.flag("overlap-cpu-optimizer-d2h-h2d"):
            given.otherwise("overlap-cpu-optimizer-d2h-h2d", "predicted as if copies went on under the update")
        if given.flag("use-torch-optimizer-for-cpu-offload"):
            given.otherwise("use-torch-optimizer-for-cpu-offload", "predicted as the faster update")
        return True

    def _remat(self, layout: Layout, model: Model) -> tuple[Literal["none", "full", "op"], int]:
        """What is computed again, and in every how many layers."""
        given = self.given
        granularity: dict[str, Literal["none", "full", "op"]] = {"full": "full", "selective": "op"}
        some: Literal["none", "full", "op"] = "op" if given.flag("recompute-activations") else "none"
        remat: Literal["none", "full", "op"] = given.choice("recompute-granularity", granularity, some)
        modules = given.get("recompute-modules")
        if remat == "op" and modules not in (None, "core_attn"):
            given.otherwise("recompute-modules", "predicted as all but products and attention")
        if remat != "full":
            return remat, 1
        many, here = given.whole("recompute-num-layers", 1), -(-model.layers // (layout.pp * layout.interleave))
        if given.get("recompute-method") == "block" and many < here:
            if here % many:
                given.refuse("recompute-num-layers", f"{many} of {here} layers of a stage are not every n-th")
                return remat, 1
            return remat, here // many
        if given.get("recompute-method") != "block" and many > 1:
            given.otherwise("recompute-num-layers", "predicted one layer at a time")
        return remat, 1

    def _keeps(self, dtype: str) -> tuple[int, int, int] | None:
        """Weights and state, where not in the usual types. Float16 sums gradients in itself unless told not to."""
        given = self.given
        sums = 2 if given.flag("grad-reduce-in-bf16") else 4
        if given.flag("accumulate-allreduce-grads-in-fp32") or dtype != "float16":
            pass
        else:
            sums = 2
        state = 12
        if given.flag("use-precision-aware-optimizer"):
            state = sum(given.choice(f"{part}-dtype", _DTYPES, 4) for part in ("main-params", "exp-avg", "exp-avg-sq"))
            sums = given.choice("main-grads-dtype", _DTYPES, sums)
        return (2, sums, state) if (sums, state) != (4, 12) and dtype != "float32" else None
