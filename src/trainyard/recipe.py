"""The recipe of a job: batch, number format, optimizer, learning rate, reactions to faulty steps, and data."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Literal

import msgspec

from trainyard import limits, words
from trainyard.errors import BadJob

_RECIPE_LIMITS = {
    "seq_len": limits.TOKENS, "micro_batch_size": limits.SAMPLES, "activation_checkpoint_every": limits.LAYERS,
    "num_workers": limits.WORKERS, "prefetch_factor": limits.WORKERS, "tokens_per_step": limits.STEP,
}  # fmt: skip


_MOMENTUM = {"sgd": 0.9, "muon": 0.95}
"""Default momentum of the optimizers that have one."""
StepAction = Literal["stop", "skip", "rollback"]
"""The reactions of a run to a faulty step."""
_SCHEDULE_STEPS = ("warmup_steps", "decay_steps", "stable_steps", "lr_step_size")
_RECIPE_RANGES: tuple[tuple[tuple[str, ...], Callable[[float], bool], str], ...] = (
    (("beta1", "beta2", "momentum", "label_smoothing"), lambda value: 0 <= value < 1, "at least 0 and less than 1"),
    (("eps", "weight_decay", "max_norm"), lambda value: 0 <= value < inf, "at least 0 and finite"),
    (("min_lr_factor", "lr_gamma"), lambda value: 0 <= value <= 1, "from 0 to 1"),
    (("loss_spike_threshold",), lambda value: 0 < value < inf, "more than 0 and finite"),
    (("loss_spike_window",), lambda value: 8 <= value <= 10_000, "from 8 to 10,000"),
    (("rollback_skip_steps",), lambda value: 1 <= value <= 10_000, "from 1 to 10,000"),
    (("max_consecutive_skips", "max_rollbacks"), lambda value: 0 <= value <= 10_000, "from 0 to 10,000"),
)
"""(fields, whether a value is in their range, the range in words). None, the optimizer's default, is always allowed."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Training settings. `tokens_per_step` is global; `micro_batch_size` is the samples per micro-batch of a rank.

    A sample is a sequence of `seq_len` tokens; if samples are not text, `seq_len` is 1 and a token is a sample.
    `activation_checkpoint`: which activations the backward pass recomputes, in every `activation_checkpoint_every`-th
    block: none, those of whole blocks (`full`), or all of a block except its matrix products and attention
    (`selective`); with `recompute_modules`, `selective` recomputes only these modules, by Megatron Core's names.
    `overlap_dispatch`: tokens are sent to experts and back during the compute of another micro-batch. trainyard's own
    trainer has neither. `offload`: parameters and optimizer state reside in host memory. `compile`: torch.compile each
    block (true) or the whole model (`whole`). `optimizer_implementation`: that of the optimizer step; `auto` is
    `fused`, or `foreach` if torch has no fused kernel. `embedding_optimizer`: that of a recommender's tables: the
    model's optimizer (`same`), or row-wise AdaGrad (`rowwise_adagrad`), whose cost depends on the rows looked up, not
    on the table size.

    `beta1`, `beta2`, `eps`: of AdamW; `eps`: of row-wise AdaGrad too. `momentum`, `nesterov`: of SGD (default 0.9,
    false) and Muon (0.95, true); `weight_decay`: decoupled, for SGD as an L2 term (default 0.1; 0 for SGD and for the
    matrices of Shampoo). It does not apply to the kinds of parameters in `no_weight_decay`. `max_norm`: the global
    gradient norm is clipped to it (0: not clipped). `label_smoothing`: of image classification.

    The learning rate rises over `warmup_steps` (the discarded steps of a measurement are `warmup` of `[measure]`). Then
    `lr_decay_style` applies: `cosine` and `linear` decay over `decay_steps` to `min_lr_factor` of `learning_rate`
    (cosine with 0 steps: constant); `wsd` keeps the rate for `stable_steps` before it decays in the shape
    `lr_wsd_decay_style`; `step` multiplies the rate by `lr_gamma` after every `lr_step_size` steps.

    `channels_last`: convolutions on tensors in channels-last memory layout, by default on accelerators;
    `cudnn_benchmark`: cuDNN measures which of its algorithms is fastest for each shape, so that runs may round
    differently.
    `num_workers`: processes that load batches, each `prefetch_factor` batches ahead; by default 2 on accelerators and
    none on CPUs. `pin_memory`: batches are in page-locked memory; `device_prefetch`: the next batch is copied to the
    device during the current step. Both have effect on accelerators only, where they are on by default.
    `on_non_finite`: the reaction to a step whose loss or gradient norm is not finite: the run stops with the first such
    tensor (`stop`), the update is skipped (`skip`), the run restarts from its last checkpoint and trains without the
    batch (`rollback`), or the step is not checked (`ignore`), so that the host does not wait for the device before the
    update. `on_loss_spike`: the same for a loss that is more than `loss_spike_threshold` robust standard deviations
    above the median of the last `loss_spike_window` losses; by default such losses are not looked for.
    `max_consecutive_skips`, `max_rollbacks`: with more of them the run stops. `rollback_skip_steps`: number of steps,
    the last of which is the faulty one, that a rollback leaves out.
    `dataset`: the training data: `python` (the standard library's sources, available on any machine), or a file or
    folder. Other workloads: their own default, a file or folder, or `synthetic`.
    """

    seq_len: int = 1
    tokens_per_step: int
    micro_batch_size: int = 1
    dtype: str = "float32"
    activation_checkpoint: Literal["none", "selective", "full"] = "none"
    activation_checkpoint_every: int = 1
    recompute_modules: tuple[str, ...] = ()
    overlap_dispatch: bool = False
    schedule: Literal["none", "gpipe", "1f1b", "interleaved", "looped_bfs", "zero_bubble", "zbv", "dualpipev"] = "none"
    offload: bool = False
    compile: bool | Literal["whole"] = False
    optimizer: str = "adamw"
    optimizer_implementation: Literal["auto", "fused", "foreach", "for-loop"] = "auto"
    embedding_optimizer: Literal["same", "rowwise_adagrad"] = "same"
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
    on_non_finite: StepAction | Literal["ignore"] = "stop"
    on_loss_spike: StepAction | Literal["ignore"] = "ignore"
    loss_spike_threshold: float = 6.0
    loss_spike_window: int = 128
    max_consecutive_skips: int = 3
    max_rollbacks: int = 3
    rollback_skip_steps: int = 1
    seed: int = 0
    dataset: str = "python"
    num_workers: int | None = None
    prefetch_factor: int = 2
    pin_memory: bool | None = None
    device_prefetch: bool | None = None

    def __post_init__(self) -> None:
        """Raises `BadJob` if a setting is out of range or the dtype is unknown."""
        for field in ("seq_len", "micro_batch_size", "activation_checkpoint_every", "prefetch_factor"):
            if getattr(self, field) < 1:
                raise BadJob(f"{field} = {limits.show(getattr(self, field))} must be at least 1.")
        for field in ("tokens_per_step", *_SCHEDULE_STEPS, "num_workers"):
            if (getattr(self, field) or 0) < 0:
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
        words.check_dtype(self.dtype)
        for module in self.recompute_modules:
            words.check(module, words.RECOMPUTE_MODULES, "recompute_modules")
        if self.recompute_modules and self.activation_checkpoint != "selective":
            raise BadJob(
                f"recompute_modules = {list(self.recompute_modules)} with activation_checkpoint = "
                f"{self.activation_checkpoint!r}.",
                "Use activation_checkpoint = 'selective'.",
            )

    @property
    def rolls_back(self) -> bool:
        """Whether a faulty step may restart the run from its last checkpoint."""
        return "rollback" in (self.on_non_finite, self.on_loss_spike)

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

    @property
    def updates_rows(self) -> bool:
        """Whether tables get gradients and updates of the rows that a step looked up, and of no others."""
        return self.embedding_optimizer == "rowwise_adagrad"
