"""The job: a Model or other sizes, a Layout and a Recipe, trained by a Workload on a Machine.

A job is a TOML file (`job_file.py`). Axis names are torchtitan's (`dp_replicate`, `dp_shard`, `tp`, `cp`, `pp`, `ep`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod
from typing import Literal

import msgspec

from trainyard import limits, words
from trainyard.errors import BadJob
from trainyard.model import Model

FACTORS = tuple(axis for axis in words.AXES if axis != "ep")
"""The axes whose product is the world size. `ep` is not one of them: it reuses ranks of the others."""


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parallelism degrees; their product is the world size, except `ep`, which reuses ranks of the other axes.

    `interleave`: pipeline stages per rank. `zero`: what `dp_shard` shards: optimizer state (1), also gradients (2),
    also parameters (3). `sequence_parallel`: `tp` also splits the activations between its matrices, along the sequence.
    `loss_parallel`: it also splits the logits, along the vocabulary. `cp_method`: how attention gets the keys and
    values of the other context-parallel ranks.

    `reshard_after_forward`: whether FSDP frees the gathered weights of the embedding and of each block after the
    forward pass, and gathers them again for the backward pass: `default` with ZeRO-3 and without pp; `never`: as
    ZeRO-2; `always`: also in a pipeline and for the norm and the head. `forward_prefetch`, `backward_prefetch`: number
    of units that FSDP gathers ahead of the current one; 0 forward: the host runs ahead instead. `bucket_cap_mb`: size
    of DDP's gradient buckets in MiB.
    """

    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    cp: int = 1
    pp: int = 1
    ep: int = 1
    interleave: int = 1
    zero: Literal[1, 2, 3] = 3
    sequence_parallel: bool = False
    loss_parallel: bool = False
    cp_method: Literal["all_gather", "ulysses", "ring"] = "all_gather"
    reshard_after_forward: Literal["default", "always", "never"] = "default"
    forward_prefetch: int = 0
    backward_prefetch: int = 1
    bucket_cap_mb: int = 25

    def __post_init__(self) -> None:
        """Raises `BadJob` if a degree or number is out of range."""
        if self.forward_prefetch < 0:
            raise BadJob(f"forward_prefetch = {limits.show(self.forward_prefetch)} must not be negative.")
        for field in (*words.AXES, "interleave", "backward_prefetch", "bucket_cap_mb"):
            if getattr(self, field) < 1:
                raise BadJob(f"{field} = {limits.show(getattr(self, field))} must be at least 1.")
        limits.check(
            self,
            {
                "ranks": limits.DEVICES,
                "ep": limits.DEVICES,
                **dict.fromkeys(("interleave", "forward_prefetch", "backward_prefetch"), limits.LAYERS),
                "bucket_cap_mb": limits.WIDTH,
            },
        )

    @property
    def ranks(self) -> int:
        return prod(getattr(self, axis) for axis in FACTORS)

    @property
    def only_axis(self) -> str:
        """The one axis that all ranks form, or empty when there are several or one rank."""
        wide = [axis for axis in FACTORS if getattr(self, axis) > 1]
        return wide[0] if len(wide) == 1 else ""

    @property
    def batch_ranks(self) -> int:
        """Number of ranks that the samples of a step are divided over."""
        return self.dp_replicate * self.dp_shard

    @property
    def reshards(self) -> bool:
        """Whether FSDP frees the weights of the embedding and of each block between forward and backward pass."""
        if self.reshard_after_forward == "default":
            return self.zero == 3 and self.pp == 1
        return self.zero == 3 and self.reshard_after_forward == "always"

    @property
    def token_ranks(self) -> int:
        """Number of ranks that the tokens of a step are divided over: the ranks whose losses are averaged."""
        return self.batch_ranks * self.cp

    def __str__(self) -> str:
        """The degrees above 1 and the settings that differ from the default, such as `dp_shard 4 x tp 2, ZeRO-2`."""
        parts = [f"{field} {getattr(self, field)}" for field in (*words.AXES, "interleave") if getattr(self, field) > 1]
        text = " x ".join(parts) or "one rank"
        if self.dp_shard > 1 and self.zero != 3:
            text += f", ZeRO-{self.zero}"
        if self.cp > 1:
            text += f", {self.cp_method}"
        if self.reshard_after_forward != "default":
            text += f", resharded {self.reshard_after_forward}"
        return text + ", sequence parallel" * self.sequence_parallel + ", loss parallel" * self.loss_parallel


_RECIPE_LIMITS = {
    "seq_len": limits.TOKENS, "micro_batch_size": limits.SAMPLES, "activation_checkpoint_every": limits.LAYERS,
    "num_workers": limits.WORKERS, "prefetch_factor": limits.WORKERS, "tokens_per_step": limits.STEP,
}  # fmt: skip


_MOMENTUM = {"sgd": 0.9, "muon": 0.95}
"""Default momentum of the optimizers that have one."""
_SCHEDULE_STEPS = ("warmup_steps", "decay_steps", "stable_steps", "lr_step_size")
_RECIPE_RANGES: tuple[tuple[tuple[str, ...], Callable[[float], bool], str], ...] = (
    (("beta1", "beta2", "momentum", "label_smoothing"), lambda value: 0 <= value < 1, "at least 0 and less than 1"),
    (("eps", "weight_decay", "max_norm"), lambda value: 0 <= value < inf, "at least 0 and finite"),
    (("min_lr_factor", "lr_gamma"), lambda value: 0 <= value <= 1, "from 0 to 1"),
)
"""(fields, whether a value is in their range, the range in words). None, the optimizer's default, is always allowed."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Training settings. `tokens_per_step` is global; `micro_batch_size` is the samples per micro-batch of a rank.

    A sample is a sequence of `seq_len` tokens; if samples are not text, `seq_len` is 1 and a token is a sample.
    `activation_checkpoint`: which activations the backward pass recomputes, in every `activation_checkpoint_every`-th
    block: none, those of whole blocks (`full`), or all of a block except its matrix products and attention
    (`selective`). `offload`: parameters and optimizer state reside in host memory. `compile`: torch.compile each block
    (true) or the whole model (`whole`). `optimizer_implementation`: that of the optimizer step; `auto` is `fused`, or
    `foreach` if torch has no fused kernel.

    `beta1`, `beta2`, `eps`: of AdamW. `momentum`, `nesterov`: of SGD (default 0.9, false) and Muon (0.95, true);
    `weight_decay`: decoupled, for SGD as an L2 term (default 0.1; 0 for SGD and for the matrices of Shampoo). It does
    not apply to the kinds of parameters in `no_weight_decay`. `max_norm`: the global gradient norm is clipped to it
    (0: not clipped). `label_smoothing`: of image classification.

    The learning rate rises over `warmup_steps` (the discarded steps of a measurement are `warmup` of `[measure]`). Then
    `lr_decay_style` applies: `cosine` and `linear` decay over `decay_steps` to `min_lr_factor` of `learning_rate`
    (cosine with 0 steps: constant); `wsd` keeps the rate for `stable_steps` before it decays in the shape
    `lr_wsd_decay_style`; `step` multiplies the rate by `lr_gamma` after every `lr_step_size` steps.

    `channels_last`: convolutions on tensors in channels-last memory layout, by default on accelerators;
    `cudnn_benchmark`: cuDNN measures which of its algorithms is fastest for each shape, so that runs may round
    differently.
    `num_workers`: processes that load batches, each `prefetch_factor` batches ahead; `pin_memory`: into page-locked
    memory.
    `dataset`: the training data: `python` (the standard library's sources, available on any machine), or a file or
    folder. Other workloads: their own default, a file or folder, or `synthetic`.
    """

    seq_len: int = 1
    tokens_per_step: int
    micro_batch_size: int = 1
    dtype: str = "float32"
    activation_checkpoint: Literal["none", "selective", "full"] = "none"
    activation_checkpoint_every: int = 1
    schedule: Literal["none", "gpipe", "1f1b", "interleaved", "looped_bfs", "zero_bubble", "zbv", "dualpipev"] = "none"
    offload: bool = False
    compile: bool | Literal["whole"] = False
    optimizer: str = "adamw"
    optimizer_implementation: Literal["auto", "fused", "foreach", "for-loop"] = "auto"
    learning_rate: float = 3e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    momentum: float | None = None
    nesterov: bool | None = None
    weight_decay: float | None = None
    no_weight_decay: tuple[Literal["norm", "bias", "embedding"], ...] = ("norm", "bias", "embedding")
    max_norm: float = 1.0
    label_smoothing: float = 0.0
    channels_last: bool | None = None
    cudnn_benchmark: bool = True
    warmup_steps: int = 0
    lr_decay_style: Literal["constant", "cosine", "linear", "wsd", "step"] = "cosine"
    decay_steps: int = 0
    min_lr_factor: float = 0.1
    stable_steps: int = 0
    lr_wsd_decay_style: Literal["linear", "cosine", "minus_sqrt", "exponential"] = "linear"
    lr_step_size: int = 0
    lr_gamma: float = 0.1
    seed: int = 0
    dataset: str = "python"
    num_workers: int = 0
    prefetch_factor: int = 2
    pin_memory: bool = False

    def __post_init__(self) -> None:
        """Raises `BadJob` if a setting is out of range or the dtype is unknown."""
        for field in ("seq_len", "micro_batch_size", "activation_checkpoint_every", "prefetch_factor"):
            if getattr(self, field) < 1:
                raise BadJob(f"{field} = {limits.show(getattr(self, field))} must be at least 1.")
        for field in ("tokens_per_step", *_SCHEDULE_STEPS, "num_workers"):
            if getattr(self, field) < 0:
                raise BadJob(f"{field} = {limits.show(getattr(self, field))} must not be negative.")
        limits.check(self, _RECIPE_LIMITS)
        for fields, is_in_range, range_text in _RECIPE_RANGES:
            for field in fields:
                value = getattr(self, field)
                if value is not None and not is_in_range(value):
                    raise BadJob(f"{field} = {value} must be {range_text}.")
        if not 0 < self.learning_rate < float("inf"):
            raise BadJob(f"learning_rate = {self.learning_rate} must be a positive number.")
        if not 0 <= self.seed < 2**63:
            raise BadJob(f"seed = {self.seed} must be from 0 to 2**63 - 1.")
        words.check(self.dtype, words.DTYPES, "dtype")

    def momentum_of(self, optimizer: str) -> float:
        """The momentum of `optimizer` with this recipe; 0 for an optimizer without momentum."""
        return _MOMENTUM.get(optimizer, 0.0) if self.momentum is None else self.momentum

    @property
    def state_values(self) -> int | None:
        """Float32 values of optimizer state per weight of a layer's matrix: the two moments of AdamW, or the momentum
        of SGD (none if it is 0) or Muon. None for an optimizer whose state is not known."""
        if self.optimizer == "sgd":
            return int(self.momentum_of("sgd") > 0)
        return {"adamw": 2, "muon": 1}.get(self.optimizer)


SCRIPT = "script"
"""The workload of a run of the user's own script, of which only the command and the samples are known."""
PROFILER_WARMUP = 1
"""Profiled steps that are discarded before the window: they include the profiler's start-up."""


class Measure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The steps of a run: `warmup` discarded steps, then `repeats` x `steps` without the profiler, then `profiled`
    steps with it. A resumed run repeats the discarded steps. They are unrelated to `warmup_steps` of `[recipe]`, over
    which the learning rate rises. `stacks`: sample the Python stacks of each rank in the profiled steps, so that
    findings name files and lines. `shapes`: record the shapes of ops on a CPU too, where it makes steps several times
    as long; on an accelerator they are always recorded."""

    warmup: int = 3
    steps: int = 5
    repeats: int = 2
    profiled: int = 3
    stacks: bool = False
    shapes: bool = False

    def __post_init__(self) -> None:
        for field, least in (("warmup", 0), ("steps", 1), ("repeats", 1), ("profiled", 0)):
            if getattr(self, field) < least:
                raise BadJob(f"{field} = {getattr(self, field)} must be at least {least}.")

    @property
    def in_window(self) -> int:
        """Steps under the profiler, including discarded ones."""
        return PROFILER_WARMUP + self.profiled if self.profiled else 0

    @property
    def in_all(self) -> int:
        """Total steps of a rank."""
        return self.warmup + self.steps * self.repeats + self.in_window


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Checkpointing: save after every `interval` steps (0: never) and keep the last `keep_latest_k`. `mode` async:
    training continues while the files are written."""

    interval: int = 0
    keep_latest_k: int = 2
    mode: Literal["sync", "async"] = "sync"

    def __post_init__(self) -> None:
        for field, least in (("interval", 0), ("keep_latest_k", 1)):
            if getattr(self, field) < least:
                raise BadJob(f"{field} = {getattr(self, field)} must be at least {least}.")


class Recovery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fault tolerance: if a rank is lost, the job restarts from its last good checkpoint, at most `max_restarts` times.

    `hang_timeout_s`: seconds without a step until a rank counts as hung; 5 times as long while it starts or saves, 15
    times while it finishes. `nodes`: number of nodes that divide the ranks; on a single machine, the number of agents,
    each simulating a node. With at least `min_nodes` of them (0: all) the job continues with fewer replicas.
    """

    max_restarts: int = 0
    hang_timeout_s: float = 120.0
    nodes: int = 1
    min_nodes: int = 0

    def __post_init__(self) -> None:
        """Raises `BadJob` if a number is out of range."""
        for field, least in (("max_restarts", 0), ("nodes", 1), ("min_nodes", 0)):
            if getattr(self, field) < least:
                raise BadJob(f"{field} = {getattr(self, field)} must be at least {least}.")
        if not self.hang_timeout_s > 0:
            raise BadJob(f"hang_timeout_s = {self.hang_timeout_s} must be more than 0.")
        if self.min_nodes > self.nodes:
            raise BadJob(f"min_nodes = {self.min_nodes} is more than nodes = {self.nodes}.")


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job. `machine`: name of a machine file, empty for the machine that runs it.

    `model`: a decoder, for the workloads that train one; any other workload uses `sizes`.
    """

    name: str = "unnamed"
    workload: str = "transformer"
    machine: str = ""
    model: Model | None = None
    sizes: dict[str, bool | int | float | str | list[int]] = {}
    layout: Layout = Layout()
    recipe: Recipe
    measure: Measure = Measure()
    checkpoint: Checkpoint = Checkpoint()
    recovery: Recovery = Recovery()

    def __post_init__(self) -> None:
        """Raises `BadJob` unless a step is a whole number of micro-batches on every data-parallel rank."""
        if self.workload == SCRIPT:
            return
        if self.recipe.tokens_per_step < 1:
            raise BadJob(f"tokens_per_step = {self.recipe.tokens_per_step} at $.recipe must be at least 1.")
        batch_ranks = self.layout.batch_ranks
        # Tokens of one micro-batch on all data-parallel ranks, of which a step has a whole number.
        slice_tokens = self.recipe.seq_len * self.recipe.micro_batch_size * batch_ranks
        if self.recipe.tokens_per_step % slice_tokens:
            raise BadJob(
                f"tokens_per_step {self.recipe.tokens_per_step:,} is not a multiple of seq_len "
                f"{self.recipe.seq_len} * micro_batch_size {self.recipe.micro_batch_size} * "
                f"data-parallel ranks {batch_ranks} = {slice_tokens:,}.",
                f"Use {max(1, round(self.recipe.tokens_per_step / slice_tokens)) * slice_tokens}.",
            )

    @property
    def decoder(self) -> Model:
        """`model` of a workload that trains a decoder. Raises `BadJob` if the job has none."""
        if self.model is None:
            raise BadJob(f"workload = {self.workload!r} trains a decoder, but there is no $.model.", "Add [model].")
        return self.model

    @property
    def trace_axis(self) -> str:
        """The mesh axis of all communication in the job's traces; empty if there are several, or if it is unknown: the
        layout of a script is only its number of ranks."""
        return "" if self.workload == SCRIPT else self.layout.only_axis

    @property
    def accumulate(self) -> int:
        """Gradient accumulation: micro-batches per rank and step."""
        return self.recipe.tokens_per_step // (
            self.recipe.seq_len * self.recipe.micro_batch_size * self.layout.batch_ranks
        )

    @property
    def batch(self) -> int:
        """Global batch size: samples per step over all ranks."""
        return self.recipe.tokens_per_step // self.recipe.seq_len

    def check_fits(self, devices: int, where: str) -> None:
        """Raises `BadJob` with the arithmetic if the layout needs more ranks than `devices`. `where`: what has the
        devices (a machine, a host), for the message."""
        layout = self.layout
        if layout.ranks > devices:
            factors = " * ".join(f"{axis} {getattr(layout, axis)}" for axis in FACTORS if getattr(layout, axis) > 1)
            widest = max(FACTORS, key=lambda axis: getattr(layout, axis))
            raise BadJob(
                f"bad layout at $.layout: {factors} = {layout.ranks} ranks, but {where} has {devices}.",
                f"Lower {widest} to {max(1, getattr(layout, widest) * devices // layout.ranks)}.",
            )
