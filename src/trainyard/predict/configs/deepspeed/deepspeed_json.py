"""DeepSpeed's JSON, read and written. The keys are those of DeepSpeed 0.19 (`deepspeed/runtime/config.py`,
`docs/_pages/config-json.md`) and what earlier versions had. It names no model, no length of sequences and no number of
devices: those come with the command."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

from trainyard.errors import BadFile, BadInput
from trainyard.job import Job, Layout, Model, Recipe
from trainyard.predict.configs.config_keys import CommandArguments, ConfigKeys, FrameworkConfig, flat
from trainyard.predict.configs.deepspeed import deepspeed_keys


def read(data: bytes, where: str, beside: CommandArguments) -> FrameworkConfig:
    """Raises `BadFile` for what is no such file or cannot be represented, `BadInput` where devices or batch do not
    divide, or what the file does not say is missing."""
    try:
        said = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{where}: not JSON: {error}.") from error
    if not isinstance(said, dict):
        raise BadFile(f"{where}: not DeepSpeed's configuration: it holds no table of keys.")
    given = ConfigKeys(flat(said), where)
    if beside.model and beside.devices and beside.seq_len:
        return _DeepSpeedReader(given, beside.model, beside.devices, beside.seq_len).job()
    missing = "MODEL" if not beside.model else "--devices" if not beside.devices else "--seq-len"
    raise BadInput(
        f"{where}: {missing} is not given, and a DeepSpeed file does not contain it.",
        f"trainyard plan MODEL --check {where} --devices N --seq-len N",
    )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """As DeepSpeed does, which refuses a key that stands twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"{twice!r:.60} stands in it twice")
    return found


class _DeepSpeedReader:
    def __init__(self, given: ConfigKeys, model: Model, devices: int, seq_len: int) -> None:
        self.given, self.where = given, given.where
        self.model, self.devices, self.seq_len = model, devices, seq_len

    def job(self) -> FrameworkConfig:
        given, model = self.given, self.model
        stage, layout = self._layout()
        microbatch, batch = self._batch(layout.batch_ranks)
        dtype, keeps = self._kept(stage, layout)
        recipe = Recipe(
            offload=self._offload(stage, layout),
            seq_len=self.seq_len,
            tokens_per_step=batch * self.seq_len,
            microbatch=microbatch,
            dtype=dtype,
            remat=self._remat(layout.pp),
            schedule="1f1b" if layout.pp > 1 else "none",
        )
        kind = given.get("optimizer.type")
        if kind is not None and str(kind).lower().removeprefix("fused") not in ("adam", "adamw", "auto"):
            given.refuse("optimizer.type", "its state and its update are not AdamW's")
        passed, otherwise = given.done(deepspeed_keys.RULES)
        return FrameworkConfig(
            "deepspeed", Job(name=model.name, model=model, layout=layout, recipe=recipe), keeps, passed, otherwise
        )

    def _settled(self, key: str) -> Any:
        """Raises `BadFile` for what is to be filled in by whoever starts it."""
        value = self.given.get(key)
        if value == "auto":
            raise BadFile(
                f"{self.where}: {key} = 'auto' is filled in when it starts.", f"Fill in {deepspeed_keys.FILL_IN[key]}."
            )
        return value

    def _layout(self) -> tuple[int, Layout]:
        given = self.given
        stage = self._stage()
        self._settled("pipeline.stages")
        tp, pp = max(1, given.whole("tensor_parallel.autotp_size", 1, 0)), given.whole("pipeline.stages", 1)
        cp = given.whole("sequence_parallel_size", 1)
        experts = given.flag("expert_parallel.enabled")
        ep = given.whole("expert_parallel.autoep_size", 1)
        if self.devices % (tp * pp * cp):
            raise BadInput(
                f"{self.where}: {self.devices} devices % (tensor {tp} x pipeline {pp} x sequence {cp}) = "
                f"{self.devices % (tp * pp * cp)}."
            )
        dp = self.devices // (tp * pp * cp)
        if pp > 1 and (stage > 1 or tp > 1):
            said = f"zero_optimization.stage = {stage}" if stage > 1 else f"tensor_parallel.autotp_size = {tp}"
            raise BadFile(f"{self.where}: {said} beside pipeline.stages = {pp} is refused by DeepSpeed.")
        if given.whole("zero_optimization.zero_hpz_partition_size", 1, 0) > 1:
            given.refuse("zero_optimization.zero_hpz_partition_size", "a second copy of the weights in each group")
        group = given.whole("zero_optimization.mics_shard_size", -1, -1)
        shard = (dp if group < 1 else group) if stage else 1
        if dp % shard:
            raise BadInput(f"{self.where}: {dp} ranks of data parallelism % mics_shard_size {shard} = {dp % shard}.")
        divides = shard * cp > 1 and stage
        if cp > 1 and not stage:
            given.refuse("sequence_parallel_size", "without ZeRO each of its ranks keeps all weights and state")
        kept: dict[int, Literal[1, 2, 3]] = {1: 1, 2: 2, 3: 3}
        return stage, Layout(
            dp_shard=shard,
            dp_replicate=dp // shard,
            tp=tp,
            pp=pp,
            cp=cp,
            cp_method="ulysses" if cp > 1 else "all_gather",
            ep=ep if experts and self.model.experts else 1,
            zero=kept[stage] if divides else 3,
            loss_parallel=tp > 1 and given.flag("tensor_parallel.vocab_parallel_lm_head"),
        )

    def _offload(self, stage: int, layout: Layout) -> bool:
        """Whether the optimizer's state is the host's, by today's key or the earlier one. Raises `BadFile` without
        ZeRO."""
        given, table = self.given, "zero_optimization.offload_optimizer"
        key, early = f"{table}.device", "zero_optimization.cpu_offload"
        if given.get(key) not in (None, "none", "cpu", "nvme"):
            raise BadFile(f"{self.where}: {given.shown(key)} is not known.", "Known: none, cpu, nvme.")
        if given.get(key) == "nvme":
            given.refuse(key, "what waits on a disk has no predicted time")
        key = key if given.get(key) == "cpu" else early
        if key == early and not given.flag(early):
            return False
        if not stage:
            raise BadFile(f"{self.where}: {given.shown(key)} without ZeRO.", "Set zero_optimization.stage.")
        if layout.pp > 1:
            given.refuse(key, "beside a pipeline it is not planned for")
        if given.number(f"{table}.ratio", 1.0) < 1:
            given.refuse(f"{table}.ratio", "a part of the state stays on the device")
        return True

    def _stage(self) -> int:
        """Of ZeRO: 0 divides nothing. `true` alone was stage 1 once."""
        whole = self.given.get("zero_optimization")
        if isinstance(whole, bool):
            return int(whole)
        self._settled("zero_optimization.stage")
        stage = self.given.whole("zero_optimization.stage", 0, 0, 3)
        if self.given.flag("zero_optimization.overlap_comm", default=stage == 3) is False and stage:
            self.given.otherwise(
                "zero_optimization.overlap_comm", "predicted as if gradients were sent under the backward pass"
            )
        if not self.given.flag("zero_optimization.reduce_scatter", default=True):
            self.given.otherwise("zero_optimization.reduce_scatter", "predicted as if it did")
        return stage

    def _batch(self, ways: int) -> tuple[int, int]:
        """A micro-batch and a whole batch: two of the three numbers give the third, one leaves one micro-batch."""
        said = {key: self.given.get(key) for key in deepspeed_keys.BATCHES}
        known = [key for key, value in said.items() if value not in (None, "auto")]
        if len(known) < 2:
            for key in deepspeed_keys.BATCHES:
                self._settled(key)
        whole, micro, many = (self.given.whole(key) if key in known else 0 for key in deepspeed_keys.BATCHES)
        if not (whole or micro):
            raise BadFile(
                f"{self.where}: neither {deepspeed_keys.BATCHES[0]} nor {deepspeed_keys.BATCHES[1]} is there.",
                "Say two of the three sizes.",
            )
        many = many or (whole // (micro * ways) if whole and micro else 1)
        micro = micro or whole // (many * ways)
        made = micro * many * ways
        if not made or (whole and whole != made):
            raise BadInput(
                f"{self.where}: train_batch_size {whole} is not micro-batch {micro} x accumulation {many} x {ways} "
                f"ranks of data parallelism = {made}."
            )
        return micro, made

    def _kept(self, stage: int, layout: Layout) -> tuple[str, tuple[int, int, int] | None]:
        """What is computed in, and how weights and state are kept where that is not the usual way."""
        given = self.given
        bf16 = "bf16" if any(key.startswith("bf16") for key in given.said) else "bfloat16"
        for key in ("bf16.enabled", "fp16.enabled"):
            self._settled(key)
        brain, half = given.flag(f"{bf16}.enabled"), given.flag("fp16.enabled")
        if brain and half:
            raise BadFile(f"{self.where}: {bf16}.enabled and fp16.enabled are both true.")
        if given.flag("torch_autocast.enabled"):
            types = {"bfloat16": "bfloat16", "bf16": "bfloat16", "float16": "float16", "fp16": "float16"}
            named = str(given.get("torch_autocast.dtype") or "bfloat16").removeprefix("torch.")
            if named not in types:
                raise BadFile(f"{self.where}: {given.shown('torch_autocast.dtype')} is not known.")
            return types[named], (4, 4, 8)
        if not (brain or half):
            return "float32", None
        sums = given.choice("data_types.grad_accum_dtype", deepspeed_keys.BYTES, 2)
        state = 12
        if brain and given.flag(f"{bf16}.bf16_master_weights_and_grads"):
            state = 6 if given.flag(f"{bf16}.bf16_optimizer_states") else 10
        if half and given.flag("fp16.fp16_master_weights_and_grads"):
            state = 10
        if brain and not stage and layout.pp == 1:
            given.otherwise("zero_optimization.stage", "predicted with weights in float32 beside those in bfloat16")
        return "bfloat16" if brain else "float16", (2, sums, state) if (sums, state) != (2, 12) else None

    def _remat(self, pp: int) -> Literal["none", "full"]:
        given, every = self.given, self.given.whole("pipeline.activation_checkpoint_interval", 0, 0)
        if pp > 1:
            if every > 1:
                given.refuse("pipeline.activation_checkpoint_interval", "layers are computed again several at a time")
            return "full" if every else "none"
        asked = [key for key in given.said if key.partition(".")[0] == "activation_checkpointing"]
        if asked:
            given.otherwise(asked[0], "predicted as if the model checkpointed each layer, which is the model's to do")
        return "full" if asked else "none"


def write(job: Job) -> str:
    """What `deepspeed --deepspeed_config` takes; the model, its pipeline's stages and its length of sequences stand in
    the program that it starts."""
    layout, recipe = job.layout, job.recipe
    stage = layout.zero if layout.dp_shard * layout.cp > 1 else 2 if recipe.offload else 0
    away = {"offload_optimizer": {"device": "cpu", "pin_memory": True}} if recipe.offload else {}
    said: dict[str, Any] = {
        "train_batch_size": job.batch,
        "train_micro_batch_size_per_gpu": recipe.microbatch,
        "gradient_accumulation_steps": job.accumulate,
        "optimizer": {"type": "AdamW", "params": {"lr": recipe.learning_rate}},
        "zero_optimization": {"stage": stage, "overlap_comm": True} | away,
        "bf16": {"enabled": recipe.dtype == "bfloat16"},
        "fp16": {"enabled": recipe.dtype == "float16"},
    }
    if layout.tp > 1:
        said["tensor_parallel"] = {"autotp_size": layout.tp}
    if layout.cp > 1:
        said["sequence_parallel_size"] = layout.cp
    if layout.ep > 1:
        said["expert_parallel"] = {"enabled": True, "autoep_size": layout.ep}
    if layout.pp > 1:
        said["pipeline"] = {"stages": layout.pp, "activation_checkpoint_interval": int(recipe.remat == "full")}
    elif recipe.remat == "full":
        said["activation_checkpointing"] = {"partition_activations": False}
    return msgspec.json.format(msgspec.json.encode(said), indent=2).decode() + "\n"
