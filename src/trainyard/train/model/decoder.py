"""A decoder-only transformer, with the norms, positions, biases, attention and experts of its `Model`.

No dropout. Weights are float32 (see layers.py). Shapes: B sequences, T positions, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from trainyard.model import Model
from trainyard.train.model import expert_balance
from trainyard.train.model.attention import Attention
from trainyard.train.model.layers import Embedding, LayerNorm, Linear, RmsNorm, Tied
from trainyard.train.model.mla import LatentAttention
from trainyard.train.model.mlp import Mlp
from trainyard.train.model.moe import Moe
from trainyard.train.model.rope import rope_table
from trainyard.train.model.router import Router
from trainyard.train.step.profiler_span import span


class DecoderBlock(nn.Module):
    """A pre-norm transformer block: causal attention and an MLP (or mixture of experts), each with a residual sum."""

    def __init__(self, model: Model, layer: int) -> None:
        """Layer number `layer` of the whole model, counted from 0: it defines whether the MLP is dense or a mixture of
        experts."""
        super().__init__()
        self.name = f"layers.{layer}"
        self.attention_norm = _norm(model)
        self.attention = LatentAttention(model) if model.kv_lora_rank else Attention(model)
        self.mlp_norm = _norm(model)
        self.mlp = Moe(model) if model.experts and layer >= model.dense_layers else Mlp(model, model.ffn_hidden_size)

    def forward(self, x_BTD: Tensor, cos_TC: Tensor | None, sin_TC: Tensor | None) -> Tensor:
        with span(self.name, ".attention"):
            x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), cos_TC, sin_TC)
        with span(self.name, ".mlp"):
            return x_BTD + self.mlp(self.mlp_norm(x_BTD))


class Decoder(nn.Module):
    """Maps tokens (B, T) to logits (B, T, V), or is a pipeline stage with the given `layers`.

    Only the `first` stage has the embedding and only the `last` has the head; between them, stages exchange hidden
    states (B, T, D). Parameter names are those of the unsplit model.

    `max_length`: maximum sequence length in tokens, one row each if positions are learned.
    `positions`: sequence position of each token of this rank, if not 0 to T - 1.
    `token_groups`: process groups over ranks with different tokens; reducing over each of them in turn gives the sum
    over the global batch.
    """

    def __init__(
        self,
        model: Model,
        dtype: torch.dtype,
        layers: Iterable[int],
        max_length: int,
        first: bool = True,
        last: bool = True,
    ) -> None:
        """The part of the model with the given layers, for sequences of at most `max_length` tokens. `first`: with the
        embedding; `last`: with the final norm and the head."""
        super().__init__()
        self.rope = (model.qk_rope_head_dim or model.head_dim, model.rope_theta) if model.position == "rope" else None
        self.positions: Tensor | None = None
        self.embed = Embedding(model.vocab, model.hidden_size, dtype) if first else None
        self.place = Embedding(max_length, model.hidden_size, dtype) if first and model.position == "learned" else None
        self.layers = nn.ModuleDict({str(layer): DecoderBlock(model, layer) for layer in layers})
        self.norm = _norm(model) if last else None
        self.head = self._head(model) if last else None
        self.token_groups: Sequence[ProcessGroup] = ()

    def _head(self, model: Model) -> nn.Module:
        """The layer that maps hidden states to logits: it shares the embedding's weights if `tie_word_embeddings` and
        this stage has the embedding, else it has a matrix of its own."""
        if model.tie_word_embeddings and self.embed is not None:
            return Tied(self.embed)
        return Linear(model.hidden_size, model.vocab)

    def forward(self, x: Tensor) -> Tensor:
        """Maps tokens (B, T), or hidden states (B, T, D) from the previous pipeline stage, to hidden states or, in the
        last stage, logits (B, T, vocab)."""
        positions_T = torch.arange(x.shape[1], device=x.device) if self.positions is None else self.positions
        if self.embed is not None:
            with span("embed"):
                x = self.embed(x) if self.place is None else self.embed(x) + self.place(positions_T)
        cos_TC, sin_TC = rope_table(positions_T, *self.rope) if self.rope else (None, None)
        for layer in self.layers.values():
            x = layer(x, cos_TC, sin_TC)
        if self.norm is not None:
            with span("norm"):
                x = self.norm(x)
        if self.head is not None:
            with span("head"):
                x = self.head(x)
        return x

    @property
    def routers(self) -> Mapping[str, Router]:
        """The routers of this stage's MoE layers, by layer name (`layers.<number>`)."""
        mlps = {name: block.mlp for name, block in self.layers.items() if isinstance(block, DecoderBlock)}
        return {f"layers.{name}": mlp.router for name, mlp in mlps.items() if isinstance(mlp, Moe)}

    def set_loss_weight(self, share: float) -> None:
        """Implements `HasAuxiliaryLoss`: sets the factor of the routers' balance loss for the next step."""
        for router in self.routers.values():
            router.load.share = share

    def after_step(self) -> None:
        """Implements `UpdatesAfterStep`: sums the expert loads over the global batch and updates the routers."""
        routers = self.routers.values()
        expert_balance.end_step([router.load for router in routers], self.token_groups)
        for router in routers:
            router.update_bias()

    def discard_step(self) -> None:
        """Implements `DiscardsStep`: forgets the expert loads of a step that is skipped."""
        for router in self.routers.values():
            router.load.running = None

    @property
    def expert_count(self) -> int:
        """Implements `ReportsCounts`."""
        return sum(router.load.experts for router in self.routers.values())

    def tokens_per_expert(self) -> Mapping[str, Tensor]:
        """Implements `ReportsCounts`: layer name to the tokens of each expert, over the last step's global batch."""
        loads = {layer: router.load.last for layer, router in self.routers.items()}
        return {layer: last for layer, last in loads.items() if last is not None}


def _norm(model: Model) -> nn.Module:
    if model.norm == "rms":
        return RmsNorm(model.hidden_size, model.norm_eps)
    return LayerNorm(model.hidden_size, model.norm_eps, bias=model.bias == "all")
