"""The vision transformer (Dosovitskiy et al. 2020, arXiv:2010.11929, section 3.1), without dropout.

Shapes: B images, T positions (the class token, then patches in rows), D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.train.model.layers import LayerNorm, Linear
from trainyard.train.step.profiler_span import span
from trainyard.train.vision.convolutions import Patches
from trainyard.train.vision.full_attention import attend
from trainyard.train.vision.vision_sizes import Vit

EPS = 1e-6


class VitAttention(nn.Module):
    """Attention over all heads; under tensor parallelism over this rank's."""

    def __init__(self, sizes: Vit) -> None:
        """Four linear layers D to D."""
        super().__init__()
        self.head_dim = sizes.width // sizes.heads
        self.q = Linear(sizes.width, sizes.width, bias=True)
        self.k = Linear(sizes.width, sizes.width, bias=True)
        self.v = Linear(sizes.width, sizes.width, bias=True)
        self.out = Linear(sizes.width, sizes.width, bias=True)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.out(attend(self.q(x_BTD), self.k(x_BTD), self.v(x_BTD), self.head_dim))


class VitMlp(nn.Module):
    """Two linear layers with GELU between them."""

    def __init__(self, sizes: Vit) -> None:
        super().__init__()
        self.up = Linear(sizes.width, sizes.ffn, bias=True)
        self.down = Linear(sizes.ffn, sizes.width, bias=True)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x_BTD)))


class VitBlock(nn.Module):
    """A pre-norm transformer block: attention and an MLP, each with a residual sum."""

    def __init__(self, sizes: Vit, name: str) -> None:
        """Layers of a block called `name`: a norm and attention, a norm and an MLP."""
        super().__init__()
        self.name = name
        self.attention_norm = LayerNorm(sizes.width, EPS)
        self.attention = VitAttention(sizes)
        self.mlp_norm = LayerNorm(sizes.width, EPS)
        self.mlp = VitMlp(sizes)

    def forward(self, x_BTD: Tensor) -> Tensor:
        with span(self.name, ".attention"):
            x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD))
        with span(self.name, ".mlp"):
            return x_BTD + self.mlp(self.mlp_norm(x_BTD))


class VisionTransformer(nn.Module):
    """Maps images (B, C, H, W) to logits (B, classes), computed from the class token."""

    def __init__(self, sizes: Vit, dtype: torch.dtype) -> None:
        """Patch embedding, class token, learned positions, blocks, final norm and head. `dtype`: the compute dtype."""
        super().__init__()
        self.compute_dtype = dtype
        self.patches = Patches(sizes.channels, sizes.width, sizes.patch)
        self.class_token = nn.Parameter(torch.empty(sizes.width))
        self.position = nn.Parameter(torch.empty(sizes.tokens, sizes.width))
        self.layers = nn.ModuleDict({str(layer): VitBlock(sizes, f"layers.{layer}") for layer in range(sizes.layers)})
        self.norm = LayerNorm(sizes.width, EPS)
        self.head = Linear(sizes.width, sizes.classes, bias=True)

    @property
    def blocks(self) -> dict[str, nn.Module]:
        return {f"layers.{name}": block for name, block in self.layers.items()}

    @property
    def last_layers(self) -> tuple[nn.Module, ...]:
        """The modules after the blocks."""
        return (self.norm, self.head)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Class logits (B, classes) of images (B, C, H, W), read from the class token, the first of T."""
        with span("embed"):
            patches_BTD = self.patches(images_BCHW.to(self.compute_dtype)).flatten(2).transpose(1, 2)
            first_BTD = self.class_token.to(self.compute_dtype).expand(len(patches_BTD), 1, -1)
            x_BTD = torch.cat((first_BTD, patches_BTD), dim=1) + self.position.to(self.compute_dtype)
        for layer in self.layers.values():
            x_BTD = layer(x_BTD)
        with span("head"):
            return self.head(self.norm(x_BTD[:, 0]))
