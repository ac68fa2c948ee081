"""Which experts a token goes to, and how much each counts.

`softmax`: the `active` likeliest of a softmax over all experts, their shares brought to a sum of one (Mixtral,
arXiv:2401.04088, section 2.1). `sigmoid`: each expert has a score of its own from 0 to 1; those chosen are divided by
their sum (DeepSeek-V3, arXiv:2412.19437, section 2.1.2). Scores are float32.

Shapes: N tokens, D width, E experts, A experts a token uses, G groups of experts.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.job import Model
from trainyard.train.model.expert_balance import Load, also_loss, follow


class Router(nn.Module):
    """`bias` (E,), where balance is by bias, is added to scores to choose, and only to choose. Kept, not trained."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.weight = nn.Parameter(torch.empty(model.experts, model.width))
        self.register_buffer("bias", torch.empty(model.experts) if model.balance == "bias" else None)
        self.bias: Tensor | None
        self.load = Load(model.experts)

    def forward(self, x_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Experts chosen (N, A), what each counts (N, A) float32, and how many tokens chose each expert (E,)."""
        logits_NE = F.linear(x_ND.float(), self.weight.to(x_ND.dtype).float())
        scores_NE = logits_NE.softmax(dim=1) if self.model.router == "softmax" else logits_NE.sigmoid()
        chosen_NA = self._choose(scores_NE.detach())
        # Not `bincount`, for which the host would wait: its result is as long as the greatest value.
        chosen = chosen_NA.flatten()
        counts_E = chosen.new_zeros(self.model.experts).scatter_add_(0, chosen, torch.ones_like(chosen))
        gates_NA = scores_NE.gather(1, chosen_NA)
        gates_NA = gates_NA / gates_NA.sum(dim=1, keepdim=True) * self.model.route_scale
        gates_NA = self.load.counted(gates_NA, counts_E)
        if self.model.balance == "loss":
            gates_NA = also_loss(gates_NA, self.load.loss(scores_NE, counts_E), self.load.share)
        return chosen_NA, gates_NA, counts_E

    def follow(self) -> None:
        """After a step: the bias moves by what the step's load was."""
        if self.bias is not None and self.load.last is not None:
            follow(self.bias, self.load.last)

    def _choose(self, scores_NE: Tensor) -> Tensor:
        if self.bias is not None:
            scores_NE = scores_NE + self.bias
        if self.model.expert_groups > 1:
            scores_NE = self._in_groups(scores_NE)
        return scores_NE.topk(self.model.active, dim=1).indices

    def _in_groups(self, scores_NE: Tensor) -> Tensor:
        """Only experts of the `active_groups` best groups, by the sum of a group's two best scores, can be chosen."""
        of_group = scores_NE.unflatten(1, (self.model.expert_groups, -1))
        best_NG = of_group.topk(min(2, of_group.shape[2]), dim=2).values.sum(dim=2)
        kept_NG = torch.zeros_like(best_NG, dtype=torch.bool)
        kept_NG.scatter_(1, best_NG.topk(self.model.active_groups, dim=1).indices, True)
        return of_group.masked_fill(~kept_NG.unsqueeze(2), -torch.inf).flatten(1)
