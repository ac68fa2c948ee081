"""Mixture of experts: each token passes through the experts chosen by its router, and through the shared experts.

Shapes: B sequences, T positions, N = B T tokens, D width, F inner width, E experts, A experts a token uses.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.model import Model
from trainyard.train.model.mlp import Mlp
from trainyard.train.model.router import Router
from trainyard.train.parallel.local_part import local_part


class Experts(nn.Module):
    """SwiGLU experts, stacked: `gate` and `up` (E, F, D), `down` (E, D, F); under expert parallelism this rank's E."""

    def __init__(self, model: Model) -> None:
        """Matrices of all E experts, stacked: `gate` and `up` (E, ffn, D), `down` (E, D, ffn)."""
        super().__init__()
        shape = (model.experts, model.moe_ffn_hidden_size, model.hidden_size)
        self.gate = nn.Parameter(torch.empty(shape))
        self.up = nn.Parameter(torch.empty(shape))
        self.down = nn.Parameter(torch.empty(model.experts, model.hidden_size, model.moe_ffn_hidden_size))

    def forward(self, x_ND: Tensor, counts_E: Tensor) -> Tensor:
        """Applies each expert to its tokens: `x_ND` has the tokens sorted by expert, and `counts_E` the number of
        tokens of each expert. Returns (N, D) in the same order."""
        ends_E = counts_E.cumsum(0).to(torch.int32)  # of each expert's rows

        def product(x: Tensor, weight: Tensor) -> Tensor:
            local = local_part(weight)
            return F.grouped_mm(x, local.to(x.dtype).transpose(1, 2), offs=ends_E)

        return product(F.silu(product(x_ND, self.gate)) * product(x_ND, self.up), self.down)


Dispatch = Callable[[Experts, Tensor, Tensor], Tensor]
"""(experts, tokens sorted by expert, token count of each expert) -> the experts' outputs in the same order."""


def run_locally(experts: Experts, x_ND: Tensor, counts_E: Tensor) -> Tensor:
    """The `Dispatch` if all experts are on this rank."""
    return experts(x_ND, counts_E)


class Moe(nn.Module):
    """An MoE layer in place of an `Mlp`. Expert parallelism replaces `dispatch`."""

    def __init__(self, model: Model) -> None:
        """Router, routed experts, and a shared expert as wide as `shared_experts` of them. `dispatch` runs the experts;
        expert parallelism replaces it."""
        super().__init__()
        self.router = Router(model)
        self.experts = Experts(model)
        self.shared = Mlp(model, model.shared_experts * model.moe_ffn_hidden_size) if model.shared_experts else None
        self.dispatch: Dispatch = run_locally

    # Not compiled: the token count of each expert is known only at run time.
    @torch.compiler.disable
    def forward(self, x_BTD: Tensor) -> Tensor:
        """Sends each of the N = B T tokens to its A experts and sums their outputs by the router's gates, plus the
        shared expert. (B, T, D) to (B, T, D)."""
        x_ND = x_BTD.flatten(0, 1)
        chosen_NA, gates_NA, counts_E = self.router(x_ND)
        order = chosen_NA.flatten().argsort(stable=True)  # (token, expert) pairs, positions n A + a, sorted by expert
        # One row per (token, expert) pair, so that sums have a fixed order, also in the backward pass.
        rows = x_ND.repeat_interleave(chosen_NA.shape[1], dim=0).index_select(0, order)
        outputs = self.dispatch(self.experts, rows, counts_E)
        outputs_NAD = outputs.index_select(0, inverse(order)).unflatten(0, chosen_NA.shape)
        y_BTD = (outputs_NAD * gates_NA.unsqueeze(2).to(x_ND.dtype)).sum(dim=1).view_as(x_BTD)
        return y_BTD if self.shared is None else y_BTD + self.shared(x_BTD)


def inverse(order: Tensor) -> Tensor:
    """The permutation that undoes the permutation `order`: `x[order][inverse(order)]` is `x`."""
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
