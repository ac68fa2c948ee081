"""torchtitan's TOML, as a job. The keys are those of `torchtitan/config/job_config.py` of version 0.2.2, and their
older names; later versions take the same keys as `--section.key` on the command line."""

from __future__ import annotations

from math import ceil
from typing import Literal

from trainyard.errors import BadFile, BadInput
from trainyard.formats import toml
from trainyard.job import Job, Layout, Model, Recipe
from trainyard.predict.configs.config_keys import CommandArguments, ConfigKeys, FrameworkConfig, flat
from trainyard.predict.configs.torchtitan import flavors, torchtitan_keys

_ALONE = "Replicas alone beside tensor or pipeline parallelism are refused by torchtitan."


def read(data: bytes, where: str, beside: CommandArguments) -> FrameworkConfig:
    """Raises `BadFile` for what is no such file or cannot be represented, `BadInput` where devices or batch do not
    divide."""
    try:
        document = flat(toml.loads(data.decode()))
    except (UnicodeDecodeError, toml.DecodeError) as error:
        raise BadFile(f"{where}: not TOML: {error}.") from error
    values, written = torchtitan_keys.today(document, where)
    return _TorchtitanReader(ConfigKeys(values, where, written=written)).job(beside)


class _TorchtitanReader:
    def __init__(self, given: ConfigKeys) -> None:
        self.given = given
        self.where = given.where

    def job(self, beside: CommandArguments) -> FrameworkConfig:
        given = self.given
        model = self._model(beside.model)
        layout = self._layout(beside.devices, model)
        recipe = self._recipe(layout, model)
        keeps = given.choice("training.dtype", {"float32": None, "bfloat16": (2, 2, 4)}, None)
        if keeps:
            given.otherwise("training.dtype", "predicted as if gradients were summed in it too")
        if self._text("optimizer.name", "AdamW") not in ("Adam", "AdamW"):
            given.refuse("optimizer.name", "its state and its update are not AdamW's")
        passed, otherwise = given.done(torchtitan_keys.RULES)
        job = Job(name=model.name, model=model, layout=layout, recipe=recipe)
        return FrameworkConfig("torchtitan", job, keeps, passed, otherwise)

    def _model(self, instead: Model | None) -> Model:
        name, flavor = self._text("model.name", "llama3"), self._text("model.flavor", "debugmodel")
        if instead is not None:
            return instead
        model, masked = flavors.take(name, flavor, self.where)
        if masked:
            self.given.otherwise("model.flavor", f"predicted as if {masked} saw the whole sequence before a token")
        return model

    def _text(self, key: str, default: str) -> str:
        value = self.given.get(key)
        if value is not None and not isinstance(value, str):
            raise BadFile(f"{self.where}: {self.given.shown(key)} is no text.")
        return value or default

    def _degree(self, name: str) -> int:
        return self.given.whole(f"parallelism.{name}_parallel_degree", 1)

    def _layout(self, devices: int | None, model: Model) -> Layout:
        given = self.given
        replicate = given.whole("parallelism.data_parallel_replicate_degree", 1)
        tp, cp, pp, ep = (self._degree(name) for name in ("tensor", "context", "pipeline", "expert"))
        shard = self._shard(devices, replicate, tp, cp, pp)
        if replicate > 1 and shard * cp == 1 and tp * pp > 1:
            raise BadFile(
                f"{self.where}: data_parallel_replicate_degree = {replicate}, data_parallel_shard_degree = 1, "
                f"tensor_parallel_degree = {tp}, pipeline_parallel_degree = {pp}.",
                _ALONE,
            )
        kept = {"default": 3 if pp == 1 else 2, "always": 3, "never": 2}
        zero = given.choice("parallelism.fsdp_reshard_after_forward", kept, kept["default"])
        each = given.whole("parallelism.expert_tensor_parallel_degree", 1)
        if ep > 1 and tp > 1 and each > 1:
            given.refuse("parallelism.expert_tensor_parallel_degree", "experts divided by tensor parallelism as well")
        rotated: dict[str, Literal["all_gather", "ring"]] = {"allgather": "all_gather", "alltoall": "ring"}
        return Layout(
            dp_replicate=replicate,
            dp_shard=shard,
            tp=tp,
            cp=cp,
            pp=pp,
            ep=ep if model.experts else 1,
            interleave=self._interleave(pp, model),
            zero=2 if zero == 2 and shard * cp > 1 else 3,
            sequence_parallel=given.flag("parallelism.enable_sequence_parallel", default=True) and tp > 1,
            loss_parallel=not given.flag("parallelism.disable_loss_parallel") and tp > 1,
            cp_method=given.choice("parallelism.context_parallel_rotate_method", rotated, "all_gather"),
        )

    def _shard(self, devices: int | None, replicate: int, tp: int, cp: int, pp: int) -> int:
        """Data parallelism's own division of weights: said, or what the other degrees leave of the devices."""
        key, others = "parallelism.data_parallel_shard_degree", replicate * tp * cp * pp
        product = f"replicate {replicate} x tensor {tp} x context {cp} x pipeline {pp}"
        if self.given.get(key) in (None, -1):
            if devices is None:
                raise BadInput(
                    f"{self.where}: {self.given.show(key)} is what is left of the devices.", "Give --devices."
                )
            if devices % others:
                raise BadInput(f"{self.where}: {devices} devices % ({product}) = {devices % others}.")
            return devices // others
        shard = self.given.whole(key)
        if devices is not None and shard * others != devices:
            raise BadInput(
                f"{self.where}: {product} x shard {shard} = {shard * others}, but --devices {devices}.",
                f"{self.given.show(key)} = -1 takes what is left.",
            )
        return shard

    def _interleave(self, pp: int, model: Model) -> int:
        """Stages a rank has (`torchtitan/distributed/pipeline_parallel.py`, pipeline_llm)."""
        given, key = self.given, "parallelism.pipeline_parallel_layers_per_stage"
        looped = self._schedule() == "interleaved"
        less = sum(
            given.whole(f"parallelism.pipeline_parallel_{end}_stage_less_layers", 1, 0) for end in ("first", "last")
        )
        stages = pp * (2 if looped else 1)
        if given.get(key) is not None:
            stages = ceil((model.layers + less) / given.whole(key))
        for key, more in (("module_fqns_per_model_part", 0), ("pipeline_parallel_split_points", 1)):
            cuts = given.get(f"parallelism.{key}")
            if cuts and isinstance(cuts, str | list):
                stages = len(cuts.split(",") if isinstance(cuts, str) else cuts) + more
                given.otherwise(f"parallelism.{key}", "predicted as if stages had as many layers each")
        if pp == 1:
            return 1
        if stages % pp or (stages // pp > 1) != looped:
            wanted = f"a multiple of pipeline_parallel_degree {pp}, twice it at least" if looped else f"{pp} here"
            raise BadFile(f"{self.where}: {model.layers} layers make {stages} stages; its schedule needs {wanted}.")
        return stages // pp

    def _schedule(self) -> Literal["1f1b", "interleaved"]:
        key = "parallelism.pipeline_parallel_schedule"
        name = self._text(key, "1F1B")
        if name.lower() in torchtitan_keys.UNPLANNED:
            self.given.refuse(key, "this schedule is not planned for")
        elif name.lower() not in torchtitan_keys.SCHEDULES:
            raise BadFile(f"{self.where}: {self.given.shown(key)} is not known.", "Known: 1F1B, Interleaved1F1B.")
        return torchtitan_keys.SCHEDULES.get(name.lower(), "1f1b")

    def _recipe(self, layout: Layout, model: Model) -> Recipe:
        given, ways, pp = self.given, layout.batch_ranks, layout.pp
        local, seq_len = given.whole("training.local_batch_size", 8), given.whole("training.seq_len", 2048)
        whole = given.get("training.global_batch_size")
        batch = local * ways if whole in (None, -1) else given.whole("training.global_batch_size")
        if batch % (local * ways):
            raise BadInput(
                f"{self.where}: global_batch_size {batch} % ({given.show('training.local_batch_size')} {local} x "
                f"{ways} ranks of data parallelism) = {batch % (local * ways)}."
            )
        rounds, microbatch = batch // (local * ways), local if pp == 1 else self._microbatch(local, pp)
        if pp > 1 and rounds > 1:
            given.refuse(
                "training.global_batch_size",
                f"{rounds} pipelines one after the other, each filled and "
                f"drained; local_batch_size = {local * rounds} makes one of them",
            )
        divisor = layout.tp * (2 * layout.cp if layout.cp > 1 else 1)
        if seq_len % divisor:
            raise BadInput(
                f"{self.where}: seq_len {seq_len} % (tensor x twice context: {divisor}) = {seq_len % divisor}."
            )
        remat, every = self._remat()
        return Recipe(
            seq_len=seq_len,
            tokens_per_step=batch * seq_len,
            microbatch=microbatch,
            dtype=self._dtype(layout, model),
            remat=remat,
            remat_every=every,
            schedule="none" if pp == 1 else self._schedule(),
            offload=self._offload(layout),
            compile=given.said.get("compile.enable") is True,
        )

    def _offload(self, layout: Layout) -> bool:
        given, key = self.given, "training.enable_cpu_offload"
        if not given.flag(key):
            return False
        if layout.dp_shard * layout.cp == 1 or layout.zero < 3 or layout.pp > 1:
            given.refuse(
                key, "predicted where weights are gathered anew for each micro-batch, and there is no pipeline"
            )
        return True

    def _microbatch(self, local: int, pp: int) -> int:
        """Sequences that pass a stage at once. Before there was a key for it, as many micro-batches as stages."""
        given, size, many = self.given, "parallelism.pipeline_parallel_microbatch_size", torchtitan_keys.MICROBATCHES
        early = given.show("parallelism.pipeline_parallel_degree").startswith("experimental.")
        count = given.whole(many, pp) if early and given.get(size) is None else 0
        one = local // count if count and local % count == 0 else given.whole(size, 1)
        if local % (count or one):
            raise BadInput(f"{self.where}: local_batch_size {local} % {count or one} of a micro-batch = {local % one}.")
        return one

    def _remat(self) -> tuple[Literal["none", "full", "op"], int]:
        given, mode = self.given, self._text("activation_checkpoint.mode", "selective")
        option = given.get("activation_checkpoint.selective_ac_option")
        if mode == "memory_budget":
            given.refuse("activation_checkpoint.mode", "the compiler decides what is computed again")
            return "none", 1
        if mode in ("none", "full"):
            return ("none", 1) if mode == "none" else ("full", 1)
        if mode != "selective":
            raise BadFile(f"{self.where}: {given.shown('activation_checkpoint.mode')} is not known.")
        said = "2" if option is None else str(option)
        if said == "op":
            return "op", 1
        if not said.isdecimal() or len(said) > 4:
            raise BadFile(f"{self.where}: {given.shown('activation_checkpoint.selective_ac_option')} is not known.")
        return "full", max(1, int(said))

    def _dtype(self, layout: Layout, model: Model) -> str:
        given, key = self.given, "model.converters"
        dtype = given.choice(
            "training.mixed_precision_param", {"bfloat16": "bfloat16", "float32": "float32"}, "bfloat16"
        )
        converters = given.get(key) or []
        names = [one.strip() for one in converters.split(",")] if isinstance(converters, str) else converters
        if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
            raise BadFile(f"{self.where}: {given.shown(key)} is no list of names.")
        low = [one in torchtitan_keys.FLOAT8 for one in names if one not in torchtitan_keys.EXPERTS]
        if not all(low):
            given.refuse(key, "a conversion that is not known here")
        if len(low) < len(names) and not low:
            given.refuse(key, "experts alone in float8")
        for recipe in ("quantize.linear.mx.recipe_name", "mx.recipe_name"):
            if any(low) and str(given.get(recipe)).startswith("mxfp4"):
                given.refuse(recipe, "four bits are not planned for")
        if any(low):
            if model.experts and len(low) == len(names):
                given.otherwise(key, "predicted as if the experts' products were in float8 too")
            return "float8"
        if dtype != "float32" and layout.dp_shard * layout.cp == 1 and layout.tp * layout.pp > 1:
            given.otherwise(
                "parallelism.data_parallel_shard_degree",
                "predicted in float32, as torchtitan trains where nothing is sharded",
            )
            return "float32"
        return dtype
