"""Settings of a fine-tuning: which weights are trained, and how the frozen ones are kept."""

from __future__ import annotations

from typing import Literal

import msgspec

from trainyard.errors import BadInput
from trainyard.model import Model
from trainyard.predict.inputs.vision_models import VisionModel

NF4_BYTES = (4 + 0.127) / 8
"""Bytes of a weight in NF4: 4 bits, and the constants of its block of 64 weights, which double quantisation stores in
8/64 + 32/(64 x 256) = 0.127 bits per weight (Dettmers et al. 2023, arXiv:2305.14314, section 3)."""
Method = Literal["sft", "lora", "qlora"]
Targets = Literal["all", "attention", "mlp"]


class FineTuning(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is fine-tuned.

    `method`: `sft` trains all weights; `lora` trains adapters only and keeps all other weights frozen in the compute
    dtype; `qlora` is `lora` with the matrices of the layers in NF4. `rank`: of the adapters; 0 for `sft`. `targets`:
    the matrices of the layers with adapters: those of attention, of the MLP, or all. `padding`: share of the tokens
    that are padding; None if unknown."""

    method: Method
    rank: int = 0
    targets: Targets = "all"
    padding: float | None = None

    @property
    def trains_adapters(self) -> bool:
        """Whether only adapters are trained."""
        return self.method != "sft"

    @property
    def label(self) -> str:
        """A short description: `sft`, or `lora, rank 16, all`."""
        return f"{self.method}, rank {self.rank}, {self.targets}" if self.trains_adapters else self.method

    def check(self, model: Model | VisionModel) -> None:
        """Raises `BadInput` if the model cannot be predicted with these settings."""
        if not isinstance(model, Model):
            raise BadInput(
                f"--fine-tune {self.method}, but {model.name} is not a decoder, and only fine-tuning of decoders is "
                "predicted.",
                "Leave out --fine-tune, or pass a decoder (trainyard plan list models).",
            )
        if not self.trains_adapters:
            return
        if not 1 <= self.rank <= model.hidden_size:
            raise BadInput(
                f"--lora-rank {self.rank} is not from 1 to {model.hidden_size:,}, the hidden size of {model.name}.",
                "The usual ranks are 8 to 64.",
            )
        if reason := self._refuse(model):
            raise BadInput(
                f"--fine-tune {self.method} with {model.name}: {reason}", "Plan --fine-tune sft, or another model."
            )
        if model.experts and self.targets != "attention":
            raise BadInput(
                f"--lora-targets {self.targets} with {model.name}, whose layers have {model.experts} experts: adapters "
                "of experts are not predicted.",
                "Pass --lora-targets attention.",
            )

    def _refuse(self, model: Model) -> str:
        """The reason that adapters of this model are not predicted, else ""."""
        if model.hybrid_pattern:
            return "adapters of state-space layers are not predicted."
        if model.kv_lora_rank:
            return "adapters of latent attention are not predicted."
        return "NF4 weights of experts are not predicted." if model.experts and self.method == "qlora" else ""

    def columns(self, split: bool) -> dict[str, float]:
        """The columns of `Cases` (name -> value) that these settings change. `split`: queries, keys, values, gate and
        up projections have an adapter each, not one for a fused matrix."""
        if not self.trains_adapters:
            return {}
        return {
            "adapters": self.rank * (self.targets != "mlp"),
            "mlp_adapters": self.rank * (self.targets != "attention"),
            "split_adapters": split,
            "quantised": self.method == "qlora",
        }
