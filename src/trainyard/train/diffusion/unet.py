"""The U-Net of latent diffusion (Rombach et al. 2021, arXiv:2112.10752, section 3.3 and appendix E.2.1), built as in
Stable Diffusion 1, without dropout.

Shapes: B samples, K channels, H rows, W columns, N = H W positions, S text tokens, D width of the time embedding. In
`text_BSW`, W is the width of the text.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.train.diffusion import time_embedding
from trainyard.train.diffusion.diffusion_sizes import MLP_EXPANSION, UNet
from trainyard.train.model.layers import LayerNorm, Linear
from trainyard.train.step.profiler_span import span
from trainyard.train.vision.convolutions import Conv2d, GroupNorm, arrange
from trainyard.train.vision.full_attention import attend


class UnetResidual(nn.Module):
    """Two convolutions, with the time embedding added between them."""

    def __init__(self, sizes: UNet, channels_in: int, channels: int) -> None:
        """`channels_in` to `channels` feature maps; the time embedding is projected to `channels`."""
        super().__init__()
        self.norm1 = GroupNorm(sizes.groups, channels_in)
        self.conv1 = Conv2d(channels_in, channels, 3)
        time_width = MLP_EXPANSION * sizes.width
        self.time = Linear(time_width, channels, bias=True)
        self.norm2 = GroupNorm(sizes.groups, channels)
        self.conv2 = Conv2d(channels, channels, 3)
        self.skip = Conv2d(channels_in, channels, 1) if channels_in != channels else None

    def forward(self, x_BKHW: Tensor, time_BD: Tensor) -> Tensor:
        skip_BKHW = x_BKHW if self.skip is None else self.skip(x_BKHW)
        y_BKHW = self.conv1(F.silu(self.norm1(x_BKHW))) + self.time(F.silu(time_BD))[:, :, None, None]
        return skip_BKHW + self.conv2(F.silu(self.norm2(y_BKHW)))


class UnetAttention(nn.Module):
    """Self-attention of positions, or cross-attention to the text."""

    def __init__(self, width: int, context_width: int, heads: int) -> None:
        """Queries from features of `width` channels, keys and values from a context of `context_width`. `heads`: their
        number, which divides `width`."""
        super().__init__()
        self.head_dim = width // heads
        self.q = Linear(width, width)
        self.k = Linear(context_width, width)
        self.v = Linear(context_width, width)
        self.out = Linear(width, width, bias=True)

    def forward(self, x_BNK: Tensor, context_BSW: Tensor) -> Tensor:
        return self.out(attend(self.q(x_BNK), self.k(context_BSW), self.v(context_BSW), self.head_dim))


class UnetMlp(nn.Module):
    """GEGLU (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner_width = MLP_EXPANSION * width
        self.up = Linear(width, 2 * inner_width, bias=True)  # values and gates
        self.down = Linear(inner_width, width, bias=True)

    def forward(self, x_BNK: Tensor) -> Tensor:
        values, gates = self.up(x_BNK).chunk(2, dim=-1)
        return self.down(values * F.gelu(gates))


class UnetBlock(nn.Module):
    """A transformer block: self-attention, cross-attention to the text, and an MLP, each with a residual sum."""

    def __init__(self, sizes: UNet, width: int) -> None:
        """Layers of a transformer block over features of `width` channels."""
        super().__init__()
        self.norm1 = LayerNorm(width)
        self.attention = UnetAttention(width, width, sizes.heads)
        self.norm2 = LayerNorm(width)
        self.cross = UnetAttention(width, sizes.text_width, sizes.heads)
        self.norm3 = LayerNorm(width)
        self.mlp = UnetMlp(width)

    def forward(self, x_BNK: Tensor, text_BSW: Tensor) -> Tensor:
        normed_BNK = self.norm1(x_BNK)
        x_BNK = x_BNK + self.attention(normed_BNK, normed_BNK)
        x_BNK = x_BNK + self.cross(self.norm2(x_BNK), text_BSW)
        return x_BNK + self.mlp(self.norm3(x_BNK))


class Spatial(nn.Module):
    """Transformer blocks over the positions of a feature map."""

    def __init__(self, sizes: UNet, width: int, blocks: int) -> None:
        """`blocks` transformer blocks over feature maps of `width` channels, between two 1 x 1 convolutions."""
        super().__init__()
        self.norm = GroupNorm(sizes.groups, width, eps=1e-6)
        self.first = Conv2d(width, width, 1)
        self.blocks = nn.ModuleList(UnetBlock(sizes, width) for _ in range(blocks))
        self.last = Conv2d(width, width, 1)

    def forward(self, x_BKHW: Tensor, text_BSW: Tensor) -> Tensor:
        y_BNK = self.first(self.norm(x_BKHW)).flatten(2).transpose(1, 2)
        for block in self.blocks:
            y_BNK = block(y_BNK, text_BSW)
        return x_BKHW + self.last(y_BNK.transpose(1, 2).unflatten(2, x_BKHW.shape[2:]))


class UnetLevelPart(nn.Module):
    """A residual block, followed by the transformer blocks of its level, if any."""

    def __init__(self, sizes: UNet, channels_in: int, channels: int, transformer_blocks: int) -> None:
        super().__init__()
        self.residual = UnetResidual(sizes, channels_in, channels)
        self.spatial = Spatial(sizes, channels, transformer_blocks) if transformer_blocks else None

    def forward(self, x_BKHW: Tensor, time_BD: Tensor, text_BSW: Tensor) -> Tensor:
        x_BKHW = self.residual(x_BKHW, time_BD)
        return x_BKHW if self.spatial is None else self.spatial(x_BKHW, text_BSW)


class UNetwork(nn.Module):
    """Maps latents (B, channels, L, L), times (B) from 0 to 999 and text (B, S, text_width) to the latents' noise."""

    def __init__(self, sizes: UNet, dtype: torch.dtype, channels_last: bool | None = None) -> None:
        """Builds the layers in execution order. Level i has 1 / 2^i of the side. A skip connection carries the output
        of each layer on the way down to the matching layer on the way up, whose input has its channels in addition to
        those from below. `channels_last`: as in `arrange`."""
        super().__init__()
        self.sizes, self.compute_dtype, self.channels_last = sizes, dtype, channels_last
        widths = [sizes.width * multiple for multiple in sizes.multiples]  # channels of each level
        time_width = MLP_EXPANSION * sizes.width  # D of the time embedding (B, D)
        self.time = time_embedding.Embedder(sizes.width, time_width)
        self.first = Conv2d(sizes.channels, sizes.width, 3)
        self.down, self.shrink = nn.ModuleDict(), nn.ModuleDict()
        channels = sizes.width
        skip_channels = [channels]  # of each output on the way down, last to be used first
        for level, width in enumerate(widths):
            for number in range(sizes.blocks):
                transformer_blocks = sizes.attention[level]
                self.down[f"{level}_{number}"] = UnetLevelPart(sizes, channels, width, transformer_blocks)
                channels = width
                skip_channels.append(channels)
            if level + 1 < len(widths):
                self.shrink[str(level)] = Conv2d(channels, channels, 3, stride=2)
                skip_channels.append(channels)
        self.middle = UnetLevelPart(sizes, channels, channels, max(sizes.attention))
        self.after = UnetResidual(sizes, channels, channels)  # the residual block after `middle`
        self.up, self.grow = nn.ModuleDict(), nn.ModuleDict()
        for level, width in reversed(list(enumerate(widths))):
            for number in range(sizes.blocks + 1):
                channels_in, transformer_blocks = channels + skip_channels.pop(), sizes.attention[level]
                self.up[f"{level}_{number}"] = UnetLevelPart(sizes, channels_in, width, transformer_blocks)
                channels = width
            if level:
                self.grow[str(level)] = Conv2d(channels, channels, 3)
        self.norm = GroupNorm(sizes.groups, channels)
        self.head = Conv2d(channels, sizes.channels, 3)

    @property
    def blocks(self) -> dict[str, nn.Module]:
        """Blocks by name, in execution order."""
        down = {f"down.{name}": block for name, block in self.down.items()}
        up = {f"up.{name}": block for name, block in self.up.items()}
        return {**down, "middle": self.middle, "after": self.after, **up}

    @property
    def last_layers(self) -> tuple[nn.Module, ...]:
        """The modules after the blocks."""
        return (self.norm, self.head)

    def forward(self, latents_BKLL: Tensor, times_B: Tensor, text_BSW: Tensor) -> Tensor:
        """Predicts the noise (B, channels, L, L). Feature maps (B, K, H, W) halve at each level down and double on the
        way up; each level up also reads the maps kept on the way down (`skips`)."""
        dtype, levels, level_blocks = self.compute_dtype, len(self.sizes.multiples), self.sizes.blocks
        text_BSW = text_BSW.to(dtype)
        with span("time"):
            time_BD = self.time(time_embedding.sinusoids(times_B, self.sizes.width).to(dtype))
        # Arranged again, since latents of one channel do not define a layout.
        x = arrange(self.first(arrange(latents_BKLL.to(dtype), self.channels_last)), self.channels_last)
        skips = [x]
        for level in range(levels):
            for number in range(level_blocks):
                x = self.down[f"{level}_{number}"](x, time_BD, text_BSW)
                skips.append(x)
            if level + 1 < levels:
                x = self.shrink[str(level)](x)
                skips.append(x)
        x = self.after(self.middle(x, time_BD, text_BSW), time_BD)
        for level in reversed(range(levels)):
            for number in range(level_blocks + 1):
                x = self.up[f"{level}_{number}"](torch.cat((x, skips.pop()), dim=1), time_BD, text_BSW)
            if level:
                x = self.grow[str(level)](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        with span("head"):
            return self.head(F.silu(self.norm(x)))
