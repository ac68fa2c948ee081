"""Reads and writes DeepSpeed's JSON. The keys are those of DeepSpeed 0.19 (`deepspeed/runtime/config.py`,
`docs/_pages/config-json.md`) and of earlier versions. The file gives neither the model nor the sequence length nor the
device count: those come from the command line."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from trainyard.errors import BadFile, BadInput, near
from trainyard.formats import json_objects
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.predict.configs import divisible_sizes
from trainyard.predict.configs.config_keys import CommandArguments, ConfigKeys, FrameworkConfig, flat
from trainyard.predict.configs.deepspeed import deepspeed_keys
from trainyard.recipe import Recipe

_SAME_KEY = 0.7
"""Least similarity of an unknown key to the key that it misspells."""


def read(data: bytes, where: str, arguments: CommandArguments) -> FrameworkConfig:
    """Reads `data`. `where`: the name of the file in messages. Raises `BadFile` if it is not such a file or cannot be
    represented, `BadInput` if devices or batch do not divide, or if `arguments` lacks a value that the file does not
    give."""
    try:
        document = json_objects.loads(data.decode("utf-8-sig"))
    except ValueError as error:
        raise BadFile(f"{where}: not JSON: {error}.") from error
    if not isinstance(document, dict):
        raise BadFile(f"{where}: not a DeepSpeed configuration: the top level is not an object.")
    keys = ConfigKeys(flat(document), where)
    if arguments.model and arguments.devices and arguments.seq_len:
        return _DeepSpeedReader(keys, arguments.model, arguments.devices, arguments.seq_len).job()
    raise _missing_arguments(where, arguments)


def _missing_arguments(where: str, arguments: CommandArguments) -> BadInput:
    """The error for a file whose model, devices or sequence length are not given as arguments."""
    values = (
        ("the model", "--model MODEL", arguments.model),
        ("the number of devices", "--devices N", arguments.devices),
        ("the sequence length", "--seq-len N", arguments.seq_len),
        ("the machine", "--machine NAME", arguments.names_machine),
    )
    missing = {name: flag for name, flag, value in values if not value}
    lacks = (
        f"contains neither {' nor '.join(missing)}" if len(missing) > 1 else f"does not contain {next(iter(missing))}"
    )
    return BadInput(
        f"{where} is a DeepSpeed file, which {lacks}.",
        f"Add {' '.join(missing.values())} to trainyard plan check {where}.",
    )


class _DeepSpeedReader:
    """Reads a job from the flattened keys of one file. Each method reads the keys of one aspect; `keys.refuse` and
    `keys.approximate` record settings that are not predicted as given, and `keys.finish` reports them."""

    def __init__(self, keys: ConfigKeys, model: Model, devices: int, seq_len: int) -> None:
        self.keys, self.where = keys, keys.where
        self.model, self.devices, self.seq_len = model, devices, seq_len

    def job(self) -> FrameworkConfig:
        """Reads the job, with the keys that are unknown or approximated. Raises `BadFile` for keys that change the
        prediction and are not supported."""
        keys, model = self.keys, self.model
        stage, layout = self._layout()
        micro_batch_size, batch = self._batch(layout.batch_ranks)
        dtype, stored_bytes = self._dtype(stage, layout)
        recipe = Recipe(
            offload=self._offload(stage, layout),
            seq_len=self.seq_len,
            tokens_per_step=batch * self.seq_len,
            micro_batch_size=micro_batch_size,
            dtype=dtype,
            activation_checkpoint=self._activation_checkpoint(layout.pp),
            schedule="1f1b" if layout.pp > 1 else "none",
        )
        optimizer = keys.get("optimizer.type")
        if optimizer is not None and str(optimizer).lower().removeprefix("fused") not in ("adam", "adamw", "auto"):
            keys.refuse("optimizer.type", "its state and its update are not AdamW's")
        unknown, approximated = keys.finish(deepspeed_keys.RULES)
        self._check_spelling(unknown)
        return FrameworkConfig(
            framework="deepspeed",
            job=Job(name=model.name, model=model, layout=layout, recipe=recipe),
            keeps=stored_bytes,
            unknown=unknown,
            approximated=approximated,
        )

    def _check_spelling(self, unknown_keys: tuple[str, ...]) -> None:
        """Raises `BadFile` for an unknown top-level key that resembles one that the file lacks and the prediction
        depends on. DeepSpeed ignores it."""
        read, given = ({key.partition(".")[0] for key in keys} for keys in (self.keys.requested, self.keys.values))
        known = {*read, "activation_checkpointing"} - given
        for key in unknown_keys:
            name = key.partition(".")[0]
            if suggestion := near(name, known, cutoff=_SAME_KEY):
                raise BadFile(f"{self.where}: {name} is not a key of DeepSpeed, which would ignore it.", suggestion)

    def _value_not_auto(self, key: str) -> Any:
        """The value of `key`. Raises `BadFile` for "auto", which the launcher fills in."""
        value = self.keys.get(key)
        if value == "auto":
            raise BadFile(
                f"{self.where}: {key} = 'auto' is filled in at launch, so it is unknown here.",
                f"Fill in {deepspeed_keys.FILL_IN[key]}.",
            )
        return value

    def _layout(self) -> tuple[int, Layout]:
        """(ZeRO stage, layout). Raises `BadInput` if the degrees do not divide the devices, `BadFile` for a combination
        that DeepSpeed refuses."""
        keys = self.keys
        stage = self._zero_stage()
        self._value_not_auto("pipeline.stages")
        tp, pp = max(1, keys.integer("tensor_parallel.autotp_size", 1, 0)), keys.integer("pipeline.stages", 1)
        cp = keys.integer("sequence_parallel_size", 1)
        experts = keys.flag("expert_parallel.enabled")
        ep = keys.integer("expert_parallel.autoep_size", 1)
        divisible_sizes.check_tensor_parallelism(self.model, tp, self.where)
        if self.devices % (tp * pp * cp):
            raise BadInput(
                f"{self.where}: {self.devices} devices % (tensor {tp} x pipeline {pp} x sequence {cp}) = "
                f"{self.devices % (tp * pp * cp)}."
            )
        dp = self.devices // (tp * pp * cp)
        if pp > 1 and (stage > 1 or tp > 1):
            conflict = f"zero_optimization.stage = {stage}" if stage > 1 else f"tensor_parallel.autotp_size = {tp}"
            raise BadFile(f"{self.where}: DeepSpeed refuses {conflict} with pipeline.stages = {pp}.")
        if keys.integer("zero_optimization.zero_hpz_partition_size", 1, 0) > 1:
            keys.refuse("zero_optimization.zero_hpz_partition_size", "a second copy of the weights in each group")
        group = keys.integer("zero_optimization.mics_shard_size", -1, -1)  # default and minimum -1: all ranks
        shard = (dp if group < 1 else group) if stage else 1
        if dp % shard:
            raise BadInput(f"{self.where}: {dp} ranks of data parallelism % mics_shard_size {shard} = {dp % shard}.")
        sharded = shard * cp > 1 and stage
        if cp > 1 and not stage:
            keys.refuse("sequence_parallel_size", "without ZeRO, each of its ranks holds all weights and state")
        zero_stages: dict[int, Literal[1, 2, 3]] = {1: 1, 2: 2, 3: 3}
        return stage, Layout(
            dp_shard=shard,
            dp_replicate=dp // shard,
            tp=tp,
            pp=pp,
            cp=cp,
            cp_method="ulysses" if cp > 1 else "all_gather",
            ep=ep if experts and self.model.experts else 1,
            zero=zero_stages[stage] if sharded else 3,
            loss_parallel=tp > 1 and keys.flag("tensor_parallel.vocab_parallel_lm_head"),
        )

    def _offload(self, stage: int, layout: Layout) -> bool:
        """Whether the optimizer state is offloaded to the host, by the current key or the old one. `stage`: the ZeRO
        stage, 0 to 3. Raises `BadFile` for an unknown device, or for offloading without ZeRO (stage 0)."""
        keys, table = self.keys, "zero_optimization.offload_optimizer"
        key, old_key = f"{table}.device", "zero_optimization.cpu_offload"
        if keys.get(key) not in (None, "none", "cpu", "nvme"):
            raise BadFile(f"{self.where}: {keys.with_value(key)} is not known.", "Known: none, cpu, nvme.")
        if keys.get(key) == "nvme":
            keys.refuse(key, "the time of offloading to NVMe is not predicted")
        key = key if keys.get(key) == "cpu" else old_key
        if key == old_key and not keys.flag(old_key):
            return False
        if not stage:
            raise BadFile(f"{self.where}: {keys.with_value(key)} without ZeRO.", "Set zero_optimization.stage.")
        if layout.pp > 1:
            keys.refuse(key, "offloading with a pipeline is not supported")
        if keys.number(f"{table}.ratio", 1.0) < 1:
            keys.refuse(f"{table}.ratio", "a part of the state stays on the device")
        return True

    def _zero_stage(self) -> int:
        """ZeRO stage; 0 if nothing is sharded. `zero_optimization: true` meant stage 1 in old versions."""
        value = self.keys.get("zero_optimization")
        if isinstance(value, bool):
            return int(value)
        self._value_not_auto("zero_optimization.stage")
        stage = self.keys.integer("zero_optimization.stage", 0, 0, 3)
        if self.keys.flag("zero_optimization.overlap_comm", default=stage == 3) is False and stage:
            self.keys.approximate(
                "zero_optimization.overlap_comm", "predicted with gradient communication overlapped with backward"
            )
        if not self.keys.flag("zero_optimization.reduce_scatter", default=True):
            self.keys.approximate("zero_optimization.reduce_scatter", "predicted with reduce-scatter")
        return stage

    def _batch(self, dp: int) -> tuple[int, int]:
        """(micro-batch, global batch) in sequences. Two of the three sizes in the file (global batch, micro-batch,
        accumulation steps) give the third; one alone means no accumulation. `dp`: data-parallel ranks, each with its
        own samples. Raises `BadFile` if neither batch is given, `BadInput` if the sizes contradict each other."""
        sizes = {key: self.keys.get(key) for key in deepspeed_keys.BATCHES}
        stated_keys = [key for key, value in sizes.items() if value not in (None, "auto")]
        if len(stated_keys) < 2:
            for key in deepspeed_keys.BATCHES:
                self._value_not_auto(key)
        batch, micro_batch_size, accumulation = (
            self.keys.integer(key) if key in stated_keys else 0 for key in deepspeed_keys.BATCHES
        )
        if not (batch or micro_batch_size):
            raise BadFile(
                f"{self.where}: neither {deepspeed_keys.BATCHES[0]} nor {deepspeed_keys.BATCHES[1]} is given.",
                "Give two of the three sizes.",
            )
        rest = {key: size for key, size in zip(deepspeed_keys.BATCHES[1:], (micro_batch_size, accumulation)) if size}
        divisor = math.prod(rest.values()) * dp
        if len(rest) < 2 and batch % divisor:
            factors = " x ".join([*(f"{key} {size}" for key, size in rest.items()), f"{dp} ranks of data parallelism"])
            raise BadInput(
                f"{self.where}: train_batch_size {batch} % ({factors}) = {batch % divisor}.",
                f"Use a multiple of {divisor}.",
            )
        accumulation = accumulation or (batch // (micro_batch_size * dp) if batch and micro_batch_size else 1)
        micro_batch_size = micro_batch_size or batch // (accumulation * dp)
        product = micro_batch_size * accumulation * dp
        if batch and batch != product:
            raise BadInput(
                f"{self.where}: train_batch_size {batch} is not micro-batch {micro_batch_size} x "
                f"accumulation {accumulation} "
                f"x {dp} ranks of data parallelism = {product}.",
                "Leave out one of the three sizes, or correct them.",
            )
        return micro_batch_size, product

    def _dtype(self, stage: int, layout: Layout) -> tuple[str, tuple[int, int, int] | None]:
        """(compute dtype, bytes of a weight, its gradient and its optimizer state; None if they are the defaults).
        `stage`: the ZeRO stage, 0 to 3."""
        keys = self.keys
        bf16 = "bf16" if any(key.startswith("bf16") for key in keys.values) else "bfloat16"
        for key in ("bf16.enabled", "fp16.enabled"):
            self._value_not_auto(key)
        use_bf16, use_fp16 = keys.flag(f"{bf16}.enabled"), keys.flag("fp16.enabled")
        if use_bf16 and use_fp16:
            raise BadFile(f"{self.where}: {bf16}.enabled and fp16.enabled are both true.")
        if keys.flag("torch_autocast.enabled"):
            types = {"bfloat16": "bfloat16", "bf16": "bfloat16", "float16": "float16", "fp16": "float16"}
            name = str(keys.get("torch_autocast.dtype") or "bfloat16").removeprefix("torch.")
            if name not in types:
                raise BadFile(f"{self.where}: {keys.with_value('torch_autocast.dtype')} is not known.")
            # float32 weights, gradients and two Adam moments; autocast casts per operation.
            return types[name], (4, 4, 8)
        if not (use_bf16 or use_fp16):
            return "float32", None
        gradient = keys.choice("data_types.grad_accum_dtype", deepspeed_keys.BYTES, 2)
        # Per weight: float32 master weight and two Adam moments, 4 bytes each; a two-byte master weight saves 2, two-
        # byte moments 4 more.
        optimizer_state = 12
        if use_bf16 and keys.flag(f"{bf16}.bf16_master_weights_and_grads"):
            optimizer_state = 6 if keys.flag(f"{bf16}.bf16_optimizer_states") else 10
        if use_fp16 and keys.flag("fp16.fp16_master_weights_and_grads"):
            optimizer_state = 10
        if use_bf16 and not stage and layout.pp == 1:
            keys.approximate("zero_optimization.stage", "predicted with float32 master weights")
        stored_bytes = (2, gradient, optimizer_state) if (gradient, optimizer_state) != (2, 12) else None
        return "bfloat16" if use_bf16 else "float16", stored_bytes

    def _activation_checkpoint(self, pp: int) -> Literal["none", "full"]:
        """`full` if a pipeline has a checkpoint interval or, without a pipeline, the file has an
        activation_checkpointing section."""
        keys, interval = self.keys, self.keys.integer("pipeline.activation_checkpoint_interval", 0, 0)
        if pp > 1:
            if interval > 1:
                keys.refuse("pipeline.activation_checkpoint_interval", "several layers are recomputed at a time")
            return "full" if interval else "none"
        checkpointing_keys = [key for key in keys.values if key.partition(".")[0] == "activation_checkpointing"]
        if checkpointing_keys:
            keys.approximate(
                checkpointing_keys[0], "predicted with each layer checkpointed, which depends on the model's code"
            )
        return "full" if checkpointing_keys else "none"


def write(job: Job) -> str:
    """The file for `deepspeed --deepspeed_config`. The training script defines the model, its pipeline stages and the
    sequence length."""
    layout, recipe = job.layout, job.recipe
    stage = layout.zero if layout.dp_shard * layout.cp > 1 else 2 if recipe.offload else 0
    offload = {"offload_optimizer": {"device": "cpu", "pin_memory": True}} if recipe.offload else {}
    config: dict[str, Any] = {
        "train_batch_size": job.batch,
        "train_micro_batch_size_per_gpu": recipe.micro_batch_size,
        "gradient_accumulation_steps": job.accumulate,
        "optimizer": {"type": "AdamW", "params": {"lr": recipe.learning_rate}},
        "zero_optimization": {"stage": stage, "overlap_comm": True} | offload,
        "bf16": {"enabled": recipe.dtype == "bfloat16"},
        "fp16": {"enabled": recipe.dtype == "float16"},
    }
    if layout.tp > 1:
        config["tensor_parallel"] = {"autotp_size": layout.tp}
    if layout.cp > 1:
        config["sequence_parallel_size"] = layout.cp
    if layout.ep > 1:
        config["expert_parallel"] = {"enabled": True, "autoep_size": layout.ep}
    if layout.pp > 1:
        config["pipeline"] = {
            "stages": layout.pp,
            "activation_checkpoint_interval": int(recipe.activation_checkpoint == "full"),
        }
    elif recipe.activation_checkpoint == "full":
        config["activation_checkpointing"] = {"partition_activations": False}
    return msgspec.json.format(msgspec.json.encode(config), indent=2).decode() + "\n"
