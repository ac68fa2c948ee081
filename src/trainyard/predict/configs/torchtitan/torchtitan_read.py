"""Reads torchtitan's TOML as a job. The keys are those of `torchtitan/config/job_config.py` of version 0.2.2 and their
older names; later versions take the same keys as `--section.key` on the command line."""

from __future__ import annotations

from math import ceil
from typing import Any, Literal

from trainyard.errors import BadFile, BadInput
from trainyard.formats import toml
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.predict.configs import divisible_sizes
from trainyard.predict.configs.config_keys import CommandArguments, ConfigKeys, FrameworkConfig, flat
from trainyard.predict.configs.torchtitan import flavors, torchtitan_keys
from trainyard.predict.pipeline import partition
from trainyard.recipe import Recipe

_REPLICAS_ONLY = "torchtitan refuses replication without sharding combined with tensor or pipeline parallelism."


def read(data: bytes, where: str, arguments: CommandArguments) -> FrameworkConfig:
    """Reads `data`. `where`: the name of the file in messages. Raises `BadFile` if it is not such a file or cannot be
    represented, `BadInput` if devices or batch do not divide."""
    try:
        document = flat(toml.loads(data.decode()))
    except (UnicodeDecodeError, toml.DecodeError) as error:
        raise BadFile(f"{where}: not TOML: {error}.") from error
    values, spelling = torchtitan_keys.rename_old_keys(document, where)
    return _TorchtitanReader(ConfigKeys(values, where, spelling=spelling)).job(arguments)


class _TorchtitanReader:
    """Reads a job from the flattened keys of one file. Each method reads the keys of one aspect; `keys.refuse` and
    `keys.approximate` record settings that are not predicted as given, and `keys.finish` reports them. The second
    argument of `keys.integer` is the default, the third the minimum."""

    def __init__(self, keys: ConfigKeys) -> None:
        self.keys = keys
        self.where = keys.where

    def job(self, arguments: CommandArguments) -> FrameworkConfig:
        """Reads the job, with the keys that are unknown or approximated. `arguments`: model and device count from the
        command line; None for those of the file. Raises `BadFile` for keys that cannot be predicted."""
        keys = self.keys
        model = self._model(arguments.model)
        layout = self._layout(arguments.devices, model)
        recipe = self._recipe(layout, model)
        # Bytes of a weight, its gradient and its optimizer state; None for the framework's defaults.
        stored_bytes = keys.choice("training.dtype", {"float32": None, "bfloat16": (2, 2, 4)}, None)
        if stored_bytes:
            keys.approximate("training.dtype", "predicted with gradients reduced in it too")
        if self._text("optimizer.name", "AdamW") not in ("Adam", "AdamW"):
            keys.refuse("optimizer.name", "its state and its update are not AdamW's")
        job = Job(name=model.name, model=model, layout=layout, recipe=recipe)
        columns = self._updates_in_backward(job)
        unknown, approximated = keys.finish(torchtitan_keys.RULES)
        return FrameworkConfig(
            framework="torchtitan", job=job, keeps=stored_bytes, unknown=unknown, approximated=approximated,
            columns=columns,
        )  # fmt: skip

    def _updates_in_backward(self, job: Job) -> dict[str, float]:
        """The column of updates during the backward pass, if the file has them. Raises `BadFile` for a combination that
        torchtitan refuses, or with which it trains another model."""
        keys, key, layout = self.keys, "optimizer.early_step_in_backward", job.layout
        if not keys.flag(key):
            return {}
        unsupported = "is refused by torchtitan"
        contradictions = (
            (layout.pp > 1, f"with pipeline_parallel_degree = {layout.pp} {unsupported}"),
            (layout.ep > 1, f"with expert_parallel_degree = {layout.ep} {unsupported}"),
            (job.accumulate > 1, f"updates weights after each of {job.accumulate} micro-batches of a step"),
            (
                layout.dp_replicate > 1 and layout.dp_shard * layout.cp == 1,
                "updates weights before DDP reduces gradients",
            ),
        )
        for contradicts, condition in contradictions:
            if contradicts:
                raise BadFile(f"{self.where}: {keys.with_value(key)} {condition}.", f"Remove {keys.spell(key)}.")
        if keys.get("training.max_norm"):
            keys.approximate("training.max_norm", "no effect, since gradients are freed before they are clipped")
        return {"updates_in_backward": 1.0}

    def _model(self, override: Model | None) -> Model:
        """The model of the file's name and flavor, unless `override` replaces it."""
        name, flavor = self._text("model.name", "llama3"), self._text("model.flavor", "debugmodel")
        if override is not None:
            return override
        model, masking = flavors.load(name, flavor, self.where)
        if masking:
            self.keys.approximate("model.flavor", f"predicted with causal attention instead of {masking}")
        return model

    def _text(self, key: str, default: str) -> str:
        value = self.keys.get(key)
        if value is not None and not isinstance(value, str):
            raise BadFile(f"{self.where}: {self.keys.with_value(key)} is not a string.")
        return value or default

    def _degree(self, name: str) -> int:
        return self.keys.integer(f"parallelism.{name}_parallel_degree", 1)

    def _layout(self, devices: int | None, model: Model) -> Layout:
        """The parallelism degrees as a layout. Raises `BadFile` for replication without sharding but with tensor or
        pipeline parallelism."""
        keys = self.keys
        replicate = keys.integer("parallelism.data_parallel_replicate_degree", 1)
        tp, cp, pp, ep = (self._degree(name) for name in ("tensor", "context", "pipeline", "expert"))
        divisible_sizes.check_tensor_parallelism(model, tp, self.where)
        shard = self._shard(devices, replicate, tp, cp, pp)
        if replicate > 1 and shard * cp == 1 and tp * pp > 1:
            raise BadFile(
                f"{self.where}: data_parallel_replicate_degree = {replicate}, data_parallel_shard_degree = {shard}, "
                f"context_parallel_degree = {cp}, tensor_parallel_degree = {tp}, pipeline_parallel_degree = {pp}.",
                _REPLICAS_ONLY,
            )
        zero_stages = {"default": 3 if pp == 1 else 2, "always": 3, "never": 2}
        zero = keys.choice("parallelism.fsdp_reshard_after_forward", zero_stages, zero_stages["default"])
        expert_tp = keys.integer("parallelism.expert_tensor_parallel_degree", 1)
        if ep > 1 and tp > 1 and expert_tp > 1:
            keys.refuse("parallelism.expert_tensor_parallel_degree", "experts also sharded by tensor parallelism")
        interleave, less_layers = self._stages(pp, model)
        cp_methods: dict[str, Literal["all_gather", "ring"]] = {"allgather": "all_gather", "alltoall": "ring"}
        return Layout(
            dp_replicate=replicate,
            dp_shard=shard,
            tp=tp,
            cp=cp,
            pp=pp,
            ep=ep if model.experts else 1,
            interleave=interleave,
            first_stage_less_layers=less_layers and less_layers[0],
            last_stage_less_layers=less_layers and less_layers[1],
            zero=2 if zero == 2 and shard * cp > 1 else 3,
            sequence_parallel=keys.flag("parallelism.enable_sequence_parallel", default=True) and tp > 1,
            loss_parallel=not keys.flag("parallelism.disable_loss_parallel") and tp > 1,
            cp_method=keys.choice("parallelism.context_parallel_rotate_method", cp_methods, "all_gather"),
        )

    def _shard(self, devices: int | None, replicate: int, tp: int, cp: int, pp: int) -> int:
        """Sharded data-parallel degree: as given, or the devices divided by the other degrees. `replicate`: the
        replicated data-parallel degree."""
        key, other_ranks = "parallelism.data_parallel_shard_degree", replicate * tp * cp * pp
        product = f"replicate {replicate} x tensor {tp} x context {cp} x pipeline {pp}"
        if self.keys.get(key) in (None, -1):
            if devices is None:
                raise BadInput(
                    f"{self.where}: {self.keys.spell(key)} is unset or -1, so it depends on the device count.",
                    "Pass --devices.",
                )
            if devices % other_ranks:
                raise BadInput(f"{self.where}: {devices} devices % ({product}) = {devices % other_ranks}.")
            return devices // other_ranks
        shard = self.keys.integer(key)
        if devices is not None and shard * other_ranks != devices:
            raise BadInput(
                f"{self.where}: {product} x shard {shard} = {shard * other_ranks}, but --devices {devices}.",
                f"Set {self.keys.spell(key)} = -1 to derive it from the device count.",
            )
        return shard

    def _stages(self, pp: int, model: Model) -> tuple[int, tuple[int, int] | None]:
        """(pipeline stages per rank, layers fewer on the first and the last stage), derived from the layers per stage,
        the modules of each stage or the split points (`torchtitan/distributed/pipeline_parallel.py`, pipeline_llm);
        None for one layer fewer on each, the default."""
        keys, key = self.keys, "parallelism.pipeline_parallel_layers_per_stage"
        looped = self._schedule() == "interleaved"
        first_less, last_less = (
            keys.integer(f"parallelism.pipeline_parallel_{end}_stage_less_layers", 1, 0) for end in ("first", "last")
        )
        less_layers = None if first_less == last_less == 1 else (first_less, last_less)
        stages = pp * (2 if looped else 1)
        if keys.get(key) is not None:
            stages = ceil((model.layers + first_less + last_less) / keys.integer(key))
        # A list of the modules of each stage, or of the points between stages, which has one item fewer.
        for key, extra in (("module_fqns_per_model_part", 0), ("pipeline_parallel_split_points", 1)):
            stage_list = keys.get(f"parallelism.{key}")
            if stage_list and isinstance(stage_list, str | list):
                stages = len(stage_list.split(",") if isinstance(stage_list, str) else stage_list) + extra
                less_layers = self._less_layers_of_modules(f"parallelism.{key}", stage_list, model)
        if pp == 1:
            return 1, None
        if stages % pp or (stages // pp > 1) != looped:
            allowed_stages = f"a multiple of pipeline_parallel_degree {pp}, at least twice it" if looped else f"{pp}"
            raise BadFile(
                f"{self.where}: {model.layers} layers make {stages} stages; the schedule needs {allowed_stages}."
            )
        return stages // pp, less_layers

    def _less_layers_of_modules(self, key: str, parts: Any, model: Model) -> tuple[int, int] | None:
        """The layers fewer on the first and the last stage if `parts`, the value of `key`, lists the modules of each
        stage; None for torchtitan's own division, and if the stages have to be approximated by that."""
        counts = [
            sum(str(name).startswith("layers.") for name in part) if isinstance(part, list) else 0 for part in parts
        ]
        if isinstance(parts, list) and sum(counts) == model.layers:
            less = partition.find_less_layers(counts)
            if less is not None and min(counts) > 0:
                default = partition.layers_per_stage(model.layers, len(counts), 1, 1)
                return None if counts == default else less
        self.keys.approximate(key, "predicted with layers divided evenly")
        return None

    def _schedule(self) -> Literal["1f1b", "interleaved"]:
        """The pipeline schedule under trainyard's name. Raises `BadFile` for an unknown one; refuses those that are not
        planned."""
        key = "parallelism.pipeline_parallel_schedule"
        name = self._text(key, "1F1B")
        if name.lower() in torchtitan_keys.UNPLANNED:
            self.keys.refuse(key, "this schedule is not supported")
        elif name.lower() not in torchtitan_keys.SCHEDULES:
            raise BadFile(f"{self.where}: {self.keys.with_value(key)} is not known.", "Known: 1F1B, Interleaved1F1B.")
        return torchtitan_keys.SCHEDULES.get(name.lower(), "1f1b")

    def _recipe(self, layout: Layout, model: Model) -> Recipe:
        """Batch, sequence length, dtype and recomputation. Raises `BadInput` if the batch or the sequence cannot be
        divided."""
        keys, dp, pp = self.keys, layout.batch_ranks, layout.pp
        local_batch, seq_len = keys.integer("training.local_batch_size", 8), keys.integer("training.seq_len", 2048)
        global_batch = keys.get("training.global_batch_size")
        batch = local_batch * dp if global_batch in (None, -1) else keys.integer("training.global_batch_size")
        if batch % (local_batch * dp):
            raise BadInput(
                f"{self.where}: global_batch_size {batch} % ({keys.spell('training.local_batch_size')} {local_batch} x "
                f"{dp} ranks of data parallelism) = {batch % (local_batch * dp)}."
            )
        accumulation = batch // (local_batch * dp)
        micro_batch_size = local_batch if pp == 1 else self._microbatch(local_batch, pp)
        if pp > 1 and accumulation > 1:
            keys.refuse(
                "training.global_batch_size",
                f"{accumulation} pipeline passes in sequence, each with its own warm-up and drain; "
                f"local_batch_size = {local_batch * accumulation} makes them one",
            )
        divisor = layout.tp * (2 * layout.cp if layout.cp > 1 else 1)
        if seq_len % divisor:
            raise BadInput(
                f"{self.where}: seq_len {seq_len} % (tensor x twice context: {divisor}) = {seq_len % divisor}."
            )
        activation_checkpoint, checkpoint_every = self._activation_checkpoint()
        return Recipe(
            seq_len=seq_len,
            tokens_per_step=batch * seq_len,
            micro_batch_size=micro_batch_size,
            dtype=self._dtype(layout, model),
            activation_checkpoint=activation_checkpoint,
            activation_checkpoint_every=checkpoint_every,
            schedule="none" if pp == 1 else self._schedule(),
            offload=self._offload(layout),
            compile=keys.values.get("compile.enable") is True,
        )

    def _offload(self, layout: Layout) -> bool:
        """Whether weights and optimizer state are offloaded; refused if trainyard cannot predict it."""
        keys, key = self.keys, "training.enable_cpu_offload"
        if not keys.flag(key):
            return False
        if layout.dp_shard * layout.cp == 1 or layout.zero < 3 or layout.pp > 1:
            keys.refuse(key, "predicted only with ZeRO-3 (weights gathered for each micro-batch) and without pipeline")
        return True

    def _microbatch(self, local_batch: int, pp: int) -> int:
        """Sequences per micro-batch of a pipeline with `pp` ranks; `local_batch`: sequences of a rank per step.
        Versions without a key for it ran as many micro-batches as stages."""
        keys, count_key = self.keys, torchtitan_keys.MICROBATCHES
        size_key = "parallelism.pipeline_parallel_microbatch_size"
        old_keys = keys.spell("parallelism.pipeline_parallel_degree").startswith("experimental.")
        count = keys.integer(count_key, pp) if old_keys and keys.get(size_key) is None else 0
        size = local_batch // count if count and local_batch % count == 0 else keys.integer(size_key, 1)
        divisor, unit = (count, "micro-batches") if count else (size, "samples of a micro-batch")
        if local_batch % divisor:
            raise BadInput(
                f"{self.where}: local_batch_size {local_batch} % {divisor} {unit} = {local_batch % divisor}."
            )
        return size

    def _activation_checkpoint(self) -> tuple[Literal["none", "full", "selective"], int]:
        """(activation checkpointing mode, n), with one checkpointed layer in n."""
        keys, mode = self.keys, self._text("activation_checkpoint.mode", "selective")
        option = keys.get("activation_checkpoint.selective_ac_option")
        if mode == "memory_budget":
            keys.refuse("activation_checkpoint.mode", "the compiler decides what is recomputed")
            return "none", 1
        if mode in ("none", "full"):
            return ("none", 1) if mode == "none" else ("full", 1)
        if mode != "selective":
            raise BadFile(f"{self.where}: {keys.with_value('activation_checkpoint.mode')} is not known.")
        selection = "2" if option is None else str(option)
        if selection == "op":
            return "selective", 1
        if not selection.isdecimal() or len(selection) > 4:
            raise BadFile(f"{self.where}: {keys.with_value('activation_checkpoint.selective_ac_option')} is not known.")
        return "full", max(1, int(selection))

    def _dtype(self, layout: Layout, model: Model) -> str:
        """The compute dtype: float8 if converters name it, else the dtype of mixed precision; float32 if torchtitan
        would not apply mixed precision."""
        keys, key = self.keys, "model.converters"
        dtype = keys.choice(
            "training.mixed_precision_param", {"bfloat16": "bfloat16", "float32": "float32"}, "bfloat16"
        )
        converters = keys.get(key) or []
        names = [name.strip() for name in converters.split(",")] if isinstance(converters, str) else converters
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise BadFile(f"{self.where}: {keys.with_value(key)} is not a list of names.")
        # For each converter of linear layers, whether it computes in float8; the others of `names` convert the experts.
        float8 = [name in torchtitan_keys.FLOAT8 for name in names if name not in torchtitan_keys.EXPERTS]
        if not all(float8):
            keys.refuse(key, "an unknown converter")
        if len(float8) < len(names) and not float8:
            keys.refuse(key, "only the experts in float8")
        for recipe in ("quantize.linear.mx.recipe_name", "mx.recipe_name"):
            if any(float8) and str(keys.get(recipe)).startswith("mxfp4"):
                keys.refuse(recipe, "4-bit formats are not supported")
        if any(float8):
            if model.experts and len(float8) == len(names):
                keys.approximate(key, "predicted with the experts in float8 too")
            return "float8"
        if dtype != "float32" and layout.dp_shard * layout.cp == 1 and layout.tp * layout.pp > 1:
            keys.approximate(
                "parallelism.data_parallel_shard_degree",
                "predicted in float32, as torchtitan trains without sharding",
            )
            return "float32"
        return dtype
