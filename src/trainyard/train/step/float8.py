"""Matrix products of the blocks' linear layers in float8, by torchao (github.com/pytorch/ao, torchao.float8).

Forward in e4m3, gradients of outputs in e5m2, with dynamic scaling per tensor (Micikevicius et al. 2022,
arXiv:2209.05433). Scales are powers of two, so that values are rounded the same way under any layout, although its
ranks see different maxima; except for values near the smallest that e4m3 can represent.
"""

from __future__ import annotations

from torch import Tensor, nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from torchao.float8.float8_linear import Float8Linear, matmul_with_hp_or_float8_args

MULTIPLE = 16
"""Kernels need both dimensions of a matrix to be a multiple of this."""
_CONFIG = Float8LinearConfig(round_scales_to_power_of_2=True)


class MasterWeightFloat8Linear(Float8Linear):
    """Casts the weight to the input's dtype before rounding, as FSDP does with sharded weights."""

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight.to(input.dtype)
        output = matmul_with_hp_or_float8_args.apply(input, weight.t(), self.linear_mm_config, self.config)
        return output if self.bias is None else output + self.bias.to(output.dtype)


def convert(block: nn.Module) -> None:
    """Converts the linear layers in `block` that `fits` accepts; parameters keep their names and values."""
    convert_to_float8_training(block, module_filter_fn=fits, config=_CONFIG)
    for part in block.modules():
        if type(part) is Float8Linear:
            part.__class__ = MasterWeightFloat8Linear


def fits(part: nn.Module, name: str) -> bool:
    """Whether a module is a linear layer with dimensions that are multiples of 16, and not a router, which selects by
    small differences."""
    return (
        isinstance(part, nn.Linear)
        and not any(width % MULTIPLE for width in part.weight.shape)
        and "router" not in name
    )
