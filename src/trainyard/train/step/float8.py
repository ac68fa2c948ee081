"""Matrix products of the blocks' linear layers in float8, by torchao (github.com/pytorch/ao, torchao.float8).

Forward in e4m3, gradients of outputs in e5m2, each tensor with one scale of its own, found when it is multiplied
(Micikevicius et al. 2022, arXiv:2209.05433). Scales are powers of two: then another layout, whose ranks see other
largest values, rounds the same values alike, but for those near the smallest that e4m3 holds.
"""

from __future__ import annotations

from torch import Tensor, nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from torchao.float8.float8_linear import Float8Linear, matmul_with_hp_or_float8_args

MULTIPLE = 16
"""Of both widths of a matrix, for the kernels to take it."""
_CONFIG = Float8LinearConfig(round_scales_to_power_of_2=True)


class MasterWeightFloat8Linear(Float8Linear):
    """The weight is cast to the dtype of the input before it is rounded: sharded, it comes so cast."""

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight.to(input.dtype)
        output = matmul_with_hp_or_float8_args.apply(input, weight.t(), self.linear_mm_config, self.config)
        return output if self.bias is None else output + self.bias.to(output.dtype)


def convert(block: nn.Module) -> None:
    """The linear layers within `block` that `fits`; parameters keep their names and values."""
    convert_to_float8_training(block, module_filter_fn=fits, config=_CONFIG)
    for part in block.modules():
        if type(part) is Float8Linear:
            part.__class__ = MasterWeightFloat8Linear


def fits(part: nn.Module, name: str) -> bool:
    """Kernels take multiples of 16; a router chooses by small differences."""
    return (
        isinstance(part, nn.Linear)
        and not any(width % MULTIPLE for width in part.weight.shape)
        and "router" not in name
    )
