"""Diffusion transformers: Stable Diffusion 3 (Esser et al. 2024, arXiv:2403.03206, section 4 and figure 2), whose
blocks are all double; FLUX.1 (github.com/black-forest-labs/flux), with single blocks after them; and the original DiT
(Peebles and Xie 2022, arXiv:2212.09748, section 3.2, adaLN-Zero), whose plain blocks see no text.

Shapes: B samples, T patches, S text tokens, A = S + T positions of both, D width, E all heads' channels, C a head's.
"Conditioning" is one vector (B, D) per sample, from the time and the pooled text. Each block maps it to the shift,
scale and gate vectors (B, 1, D) of its norms and outputs: its modulation.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.train.diffusion import time_embedding
from trainyard.train.diffusion.diffusion_sizes import TIME_WIDTH, Dit
from trainyard.train.model.layers import Linear, RmsNorm
from trainyard.train.model.rope import rotate
from trainyard.train.step.profiler_span import span
from trainyard.train.vision.full_attention import heads

EPS = 1e-6
TIME_SCALE = 1000.0
"""Factor applied to times and guidance strengths, from 0 to 1, before they are embedded."""


class RotaryTable(NamedTuple):
    """Cosines and sines of each position's angles, each (A, C); None if a fixed embedding is added instead."""

    cos: Tensor | None = None
    sin: Tensor | None = None

    def apply(self, x_BHAC: Tensor) -> Tensor:
        """`x_BHAC` (B, H, A, C) rotated by each position's angles; unchanged without a table."""
        return x_BHAC if self.cos is None or self.sin is None else rotate(x_BHAC, self.cos, self.sin)


def modulated_norm(x_BTD: Tensor, shift_B1D: Tensor, scale_B1D: Tensor) -> Tensor:
    """A layer norm of x (B, T, D), then scaled by 1 + `scale_B1D` and shifted by `shift_B1D`, which depend on the
    sample (Peebles and Xie 2022, arXiv:2212.09748, section 3.2)."""
    return F.layer_norm(x_BTD, x_BTD.shape[-1:], eps=EPS) * (1 + scale_B1D) + shift_B1D


class Modulation(nn.Module):
    """Maps the sample's conditioning vector to `parts` vectors (B, 1, D)."""

    def __init__(self, width: int, parts: int) -> None:
        super().__init__()
        self.parts = parts
        self.linear = Linear(width, parts * width, bias=True)

    def forward(self, condition_BD: Tensor) -> tuple[Tensor, ...]:
        return self.linear(F.silu(condition_BD)).unsqueeze(1).chunk(self.parts, dim=-1)


class Projections(nn.Module):
    """Queries, keys and values (B, H, T, C); under tensor parallelism those of this rank's heads."""

    def __init__(self, sizes: Dit) -> None:
        """Three linear layers D to D, and norms of queries and keys over a head's channels if `qk_norm`."""
        super().__init__()
        self.head_dim = sizes.head_dim
        self.q = Linear(sizes.width, sizes.width, bias=True)
        self.k = Linear(sizes.width, sizes.width, bias=True)
        self.v = Linear(sizes.width, sizes.width, bias=True)
        self.q_norm = RmsNorm(sizes.head_dim, EPS) if sizes.qk_norm else None
        self.k_norm = RmsNorm(sizes.head_dim, EPS) if sizes.qk_norm else None

    def forward(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (heads(part(x_BTD), self.head_dim) for part in (self.q, self.k, self.v))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return q, k, v


def attend(q_BHAC: Tensor, k_BHAC: Tensor, v_BHAC: Tensor, rotary: RotaryTable) -> Tensor:
    """Attention output, (B, A, E)."""
    y_BHAC = F.scaled_dot_product_attention(rotary.apply(q_BHAC), rotary.apply(k_BHAC), v_BHAC)
    return y_BHAC.transpose(1, 2).flatten(2)


class DitMlp(nn.Module):
    """Two linear layers with GELU (its tanh approximation) between them."""

    def __init__(self, sizes: Dit) -> None:
        super().__init__()
        self.up = Linear(sizes.width, sizes.ffn, bias=True)
        self.down = Linear(sizes.ffn, sizes.width, bias=True)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x_BTD), approximate="tanh"))


class AttentionOnlyStream(nn.Module):
    """A double block's weights for text whose output is unused: it is only attended to."""

    def __init__(self, sizes: Dit, parts: int = 2) -> None:
        super().__init__()
        self.modulation = Modulation(sizes.width, parts)
        self.attention = Projections(sizes)


class Stream(AttentionOnlyStream):
    """A double block's weights for the image, or for the text."""

    def __init__(self, sizes: Dit) -> None:
        super().__init__(sizes, parts=6)
        self.out = Linear(sizes.width, sizes.width, bias=True)
        self.mlp = DitMlp(sizes)

    def finish(self, x_BTD: Tensor, y_BTE: Tensor, modulation: list[Tensor]) -> Tensor:
        """Adds the attention output `y_BTE` and the MLP, both gated. `modulation`: four vectors (B, 1, D), the gate of
        attention and shift, scale and gate of the MLP."""
        gate, shift, scale, gate_mlp = modulation
        x_BTD = x_BTD + gate * self.out(y_BTE)
        return x_BTD + gate_mlp * self.mlp(modulated_norm(x_BTD, shift, scale))


class DoubleBlock(nn.Module):
    """Separate weights for image and text, with joint attention. The text output is None if `text_ends`."""

    def __init__(self, sizes: Dit, name: str, text_ends: bool) -> None:
        super().__init__()
        self.name = name
        self.image = Stream(sizes)
        self.text = AttentionOnlyStream(sizes) if text_ends else Stream(sizes)

    def forward(
        self, x_BTD: Tensor, text_BSD: Tensor, condition_BD: Tensor, rotary: RotaryTable
    ) -> tuple[Tensor, Tensor | None]:
        """Updates the image (B, T, D) and the text (B, S, D) by one attention over all A = S + T positions, text first,
        then an MLP each. `y_BAE`: its output for all E channels of the heads. Returns None for the text in the last
        block that uses it (`text_ends`)."""
        with span(self.name, ".attention"):
            shift, scale, *text_modulation = self.text.modulation(condition_BD)
            text_qkv = self.text.attention(modulated_norm(text_BSD, shift, scale))
            shift, scale, *image_modulation = self.image.modulation(condition_BD)
            image_qkv = self.image.attention(modulated_norm(x_BTD, shift, scale))
            q, k, v = (torch.cat(both, dim=2) for both in zip(text_qkv, image_qkv))
            y_BAE = attend(q, k, v, rotary)
        with span(self.name, ".mlp"):
            length = text_BSD.shape[1]
            image_BTD = self.image.finish(x_BTD, y_BAE[:, length:], image_modulation)
            if not isinstance(self.text, Stream):
                return image_BTD, None
            return image_BTD, self.text.finish(text_BSD, y_BAE[:, :length], text_modulation)


class PlainBlock(nn.Module):
    """Attention over the image patches, then the MLP."""

    def __init__(self, sizes: Dit, name: str) -> None:
        super().__init__()
        self.name = name
        self.image = Stream(sizes)

    def forward(self, x_BTD: Tensor, condition_BD: Tensor, rotary: RotaryTable) -> Tensor:
        """Attention and MLP over the image patches (B, T, D), modulated by the condition (B, D)."""
        with span(self.name, ".attention"):
            shift, scale, *mlp_modulation = self.image.modulation(condition_BD)
            q, k, v = self.image.attention(modulated_norm(x_BTD, shift, scale))
            y_BTE = attend(q, k, v, rotary)
        with span(self.name, ".mlp"):
            return self.image.finish(x_BTD, y_BTE, mlp_modulation)


class SingleBlock(nn.Module):
    """Shared weights for image and text; attention and MLP in parallel (Dehghani et al. 2023, arXiv:2302.05442,
    section 2)."""

    def __init__(self, sizes: Dit, name: str) -> None:
        """Layers of a block whose attention and MLP run in parallel on the same modulated input."""
        super().__init__()
        self.name = name
        self.modulation = Modulation(sizes.width, 3)
        self.attention = Projections(sizes)
        self.up = Linear(sizes.width, sizes.ffn, bias=True)
        self.out = Linear(sizes.width, sizes.width)  # `down` has the bias of the sum
        self.down = Linear(sizes.ffn, sizes.width, bias=True)

    def forward(self, x_BAD: Tensor, condition_BD: Tensor, rotary: RotaryTable) -> Tensor:
        """Adds attention and MLP of the same input to text and patches together (B, S + T, D), scaled by a gate."""
        shift, scale, gate = self.modulation(condition_BD)
        normed_BAD = modulated_norm(x_BAD, shift, scale)
        with span(self.name, ".attention"):
            q, k, v = self.attention(normed_BAD)
            y_BAD = self.out(attend(q, k, v, rotary))
        with span(self.name, ".mlp"):
            y_BAD = y_BAD + self.down(F.gelu(self.up(normed_BAD), approximate="tanh"))
        return x_BAD + gate * y_BAD


class DiffusionTransformer(nn.Module):
    """Maps latents (B, channels, L, L), times (B) from 0 to 1, text (B, S, text_width) and pooled text
    (B, pooled_width) to predictions of the latents' shape."""

    def __init__(self, sizes: Dit, dtype: torch.dtype) -> None:
        """Embeddings of patches, text and condition, then double, single and plain blocks, then the head. `dtype`: the
        compute dtype."""
        super().__init__()
        self.sizes, self.compute_dtype = sizes, dtype
        self.patches = Linear(sizes.dots, sizes.width, bias=True)
        self.text = Linear(sizes.text_width, sizes.width, bias=True) if sizes.text_tokens else None
        self.time = time_embedding.Embedder(TIME_WIDTH, sizes.width)
        self.guidance = time_embedding.Embedder(TIME_WIDTH, sizes.width) if sizes.guidance else None
        self.pooled = time_embedding.Embedder(sizes.pooled_width, sizes.width)
        last = sizes.double - 1
        self.doubles = nn.ModuleDict(
            {
                str(number): DoubleBlock(sizes, f"doubles.{number}", text_ends=number == last and not sizes.single)
                for number in range(sizes.double)
            }
        )
        self.singles = nn.ModuleDict(
            {str(number): SingleBlock(sizes, f"singles.{number}") for number in range(sizes.single)}
        )
        self.plains = nn.ModuleDict(
            {str(number): PlainBlock(sizes, f"plains.{number}") for number in range(sizes.plain)}
        )
        self.modulation = Modulation(sizes.width, 2)
        self.head = Linear(sizes.width, sizes.dots, bias=True)

    @property
    def blocks(self) -> dict[str, nn.Module]:
        kinds = {"doubles": self.doubles, "singles": self.singles, "plains": self.plains}
        return {f"{kind}.{name}": block for kind, modules in kinds.items() for name, block in modules.items()}

    @property
    def last_layers(self) -> tuple[nn.Module, ...]:
        """The modules after the blocks."""
        return (self.modulation, self.head)

    def forward(self, latents_BKLL: Tensor, times_B: Tensor, text_BSW: Tensor, pooled_BW: Tensor) -> Tensor:
        """Predicts the velocity of the latents (B, channels, L, L) at times (B) from 0 to 1, given the text (B, S,
        text_width) and its pooled vector (B, pooled_width)."""
        dtype, text_length = self.compute_dtype, text_BSW.shape[1]
        with span("embed"):
            x_BTD = self.patches(self._patches(latents_BKLL.to(dtype)))
            text_BSD = None if self.text is None else self.text(text_BSW.to(dtype))
            condition_BD = self.time(
                time_embedding.sinusoids(times_B * TIME_SCALE, TIME_WIDTH).to(dtype)
            ) + self.pooled(pooled_BW.to(dtype))
            if self.guidance is not None:
                guidance_B = torch.full_like(times_B, TIME_SCALE)  # a guidance of 1: unguided
                condition_BD = condition_BD + self.guidance(time_embedding.sinusoids(guidance_B, TIME_WIDTH).to(dtype))
            rotary = self._rotary_table(text_length, x_BTD.device) if self.sizes.rope else RotaryTable()
            if not self.sizes.rope:
                x_BTD = x_BTD + self._code(x_BTD.device).to(dtype)
        for block in self.doubles.values():
            x_BTD, text_BSD = block(x_BTD, text_BSD, condition_BD, rotary)
        if text_BSD is not None:
            x_BAD = torch.cat((text_BSD, x_BTD), dim=1)
            for block in self.singles.values():
                x_BAD = block(x_BAD, condition_BD, rotary)
            x_BTD = x_BAD[:, text_length:]
        for block in self.plains.values():
            x_BTD = block(x_BTD, condition_BD, rotary)
        with span("head"):
            return self._latents(self.head(modulated_norm(x_BTD, *self.modulation(condition_BD))))

    def _patches(self, latents_BKLL: Tensor) -> Tensor:
        """Cuts latents (B, channels, L, L) into patches (B, T, patch * patch * channels), row by row."""
        patch = self.sizes.patch
        cut = latents_BKLL.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))
        return cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)

    def _latents(self, x_BTP: Tensor) -> Tensor:
        """The inverse of `_patches`: latents (B, channels, L, L) from patches (B, T, patch * patch * channels)."""
        patch, side = self.sizes.patch, self.sizes.latent // self.sizes.patch
        cut = x_BTP.unflatten(2, (-1, patch, patch)).unflatten(1, (side, side))
        return cut.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3).clone()  # FSDP's hooks do not take a view

    def _rotary_table(self, text_length: int, device: torch.device) -> RotaryTable:
        """Angles of `text_length` text positions, then of the patches: text is at position 0, patches at their row and
        column; each axis (text, row, column) rotates its own channels."""
        positions_A3 = torch.cat((torch.zeros(text_length, 3, device=device), self._grid(device)))
        angles = []  # per axis, (A, channels / 2): position x period^(-2 i / channels), as in `rope_table`
        for axis, channels in enumerate(self.sizes.rope):
            powers = torch.arange(0, channels, 2, device=device, dtype=torch.float32) / max(1, channels)
            angles.append(torch.outer(positions_A3[:, axis], time_embedding.MAX_PERIOD**-powers))
        angles_AC = torch.cat(angles, dim=1).repeat(1, 2)
        return RotaryTable(angles_AC.cos(), angles_AC.sin())

    def _code(self, device: torch.device) -> Tensor:
        """Position embedding (T, D): half of the channels encode the row, half the column."""
        _, rows_T, columns_T = self._grid(device).unbind(1)
        half = self.sizes.width // 2
        return torch.cat((time_embedding.sinusoids(rows_T, half), time_embedding.sinusoids(columns_T, half)), dim=1)

    def _grid(self, device: torch.device) -> Tensor:
        """(0, row, column) of each patch, (T, 3)."""
        side = torch.arange(self.sizes.latent // self.sizes.patch, device=device, dtype=torch.float32)
        rows, columns = torch.meshgrid(side, side, indexing="ij")
        return torch.stack((torch.zeros_like(rows), rows, columns), dim=-1).flatten(0, 1)
