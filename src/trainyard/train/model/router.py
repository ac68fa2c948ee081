"""The router of an MoE layer: selects the experts of each token and computes their gate weights.

`softmax`: the top `active` of a softmax over all experts, renormalized (Mixtral, arXiv:2401.04088, section 2.1).
`sigmoid`: an independent score from 0 to 1 per expert; those of the selected experts are divided by their sum
(DeepSeek-V3, arXiv:2412.19437, section 2.1.2). Scores are float32.

Shapes: N tokens, D width, E experts, A experts a token uses, G groups of experts.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.model import Model
from trainyard.train.model.expert_balance import Load, add_auxiliary_loss, update_bias


class Router(nn.Module):
    """A top-k router. `bias` (E,): added to the scores for selection only; a persistent buffer that is not trained, or
    None unless load_balancing is 'bias'."""

    def __init__(self, model: Model) -> None:
        """`weight` (E, D): one row per expert. `bias` (E): added to the scores for the choice only, to balance the
        load. `load`: tokens per expert."""
        super().__init__()
        self.model = model
        self.weight = nn.Parameter(torch.empty(model.experts, model.hidden_size))
        self.register_buffer("bias", torch.empty(model.experts) if model.load_balancing == "bias" else None)
        self.bias: Tensor | None
        self.load = Load(model.experts)

    def forward(self, x_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns selected experts (N, A), their gate weights (N, A) float32, and token counts per expert (E,)."""
        logits_NE = F.linear(x_ND.float(), self.weight.to(x_ND.dtype).float())
        scores_NE = logits_NE.softmax(dim=1) if self.model.router == "softmax" else logits_NE.sigmoid()
        chosen_NA = self._choose(scores_NE.detach())  # expert numbers
        # Not `bincount`: the length of its result depends on the values, which needs a host sync.
        chosen = chosen_NA.flatten()
        counts_E = chosen.new_zeros(self.model.experts).scatter_add_(0, chosen, torch.ones_like(chosen))
        gates_NA = scores_NE.gather(1, chosen_NA)
        gates_NA = gates_NA / gates_NA.sum(dim=1, keepdim=True) * self.model.route_scale
        gates_NA = self.load.count_in_backward(gates_NA, counts_E)
        if self.model.load_balancing == "aux_loss":
            gates_NA = add_auxiliary_loss(gates_NA, self.load.loss(scores_NE, counts_E), self.load.share)
        return chosen_NA, gates_NA, counts_E

    def update_bias(self) -> None:
        """Updates the balancing bias by the token counts of the last step. Without a bias it does nothing."""
        if self.bias is not None and self.load.last is not None:
            update_bias(self.bias, self.load.last)

    def _choose(self, scores_NE: Tensor) -> Tensor:
        """The A = `top_k` experts of each token, (N, A), by score plus balancing bias, inside the best groups of
        experts if there are groups."""
        if self.bias is not None:
            scores_NE = scores_NE + self.bias
        if self.model.n_group > 1:
            scores_NE = self._mask_other_groups(scores_NE)
        return scores_NE.topk(self.model.top_k, dim=1).indices

    def _mask_other_groups(self, scores_NE: Tensor) -> Tensor:
        """The scores (N, E), with those of all experts masked (-inf) except in the `topk_group` best groups. A group
        is as good as the sum of its two best scores."""
        grouped_NGE = scores_NE.unflatten(1, (self.model.n_group, -1))
        best_NG = grouped_NGE.topk(min(2, grouped_NGE.shape[2]), dim=2).values.sum(dim=2)
        kept_NG = torch.zeros_like(best_NG, dtype=torch.bool)
        kept_NG.scatter_(1, best_NG.topk(self.model.topk_group, dim=1).indices, True)
        return grouped_NGE.masked_fill(~kept_NG.unsqueeze(2), -torch.inf).flatten(1)
