"""Dimensions of the diffusion models, from `[sizes]` of a job. A latent is the compressed image that the model
denoises. Needs no torch."""

from __future__ import annotations

from math import isqrt

import msgspec

from trainyard import limits
from trainyard.errors import BadJob
from trainyard.train.sizes import require_at_least, require_divisible

_LIMITS = dict.fromkeys(("channels", "width", "text_width"), limits.WIDTH) | {
    "latent": limits.SIDE,
    "heads": limits.HEADS,
    "text_tokens": limits.TOKENS,
}


class Dit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="family", tag="dit"):
    """A diffusion transformer on latents of `latent` x `latent` x `channels`, in patches of `patch` x `patch`.

    `double` blocks have separate weights for image and text; the `single` blocks after them share weights. Text is
    `text_tokens` vectors of `text_width`, and one of `pooled_width`. Alternatively all blocks are `plain`, with the
    pooled vector as the only text (Peebles and Xie 2022, arXiv:2212.09748). `rope`: channels per head that rotate by
    (text position, row, column), as in FLUX; if empty, a fixed embedding is added to the patches, as in Stable
    Diffusion 3. `guidance`: the guidance strength is an input too (a constant here), as in a guidance-distilled model.
    """

    latent: int
    channels: int = 16
    patch: int = 2
    width: int
    ffn: int
    heads: int
    double: int = 0
    single: int = 0
    plain: int = 0
    text_tokens: int = 0
    text_width: int = 0
    pooled_width: int
    rope: list[int] = []
    qk_norm: bool = False
    guidance: bool = False

    def __post_init__(self) -> None:
        """Raises `BadJob` if a dimension is out of range or does not divide another."""
        require_at_least(self, 1, "latent", "channels", "patch", "width", "ffn", "heads", "pooled_width")
        require_at_least(self, 0, "double", "single", "plain", "text_tokens", "text_width", "rope")
        limits.check(
            self,
            _LIMITS
            | dict.fromkeys(("double", "single", "plain"), limits.LAYERS)
            | dict.fromkeys(("ffn", "pooled_width"), limits.WIDTH)
            | {"patch": limits.SIDE},
            " at $.sizes.",
        )
        self._check_blocks()
        require_divisible(self, "latent", "patch", "latents consist of a whole number of patches")
        require_divisible(self, "width", "heads", "each head has a whole number of channels")
        _check_channels(self.channels)
        if self.rope:
            self._check_rope()
        elif self.width % 4:
            raise BadJob(
                f"width {self.width} % 4 = {self.width % 4} at $.sizes.width, but the position embedding has a "
                "sine and a cosine each for row and column.",
                f"Use {max(1, self.width // 4) * 4}.",
            )

    def _check_blocks(self) -> None:
        """Raises `BadJob` if plain blocks are combined with others, or double blocks are missing without them."""
        if not self.plain:
            require_at_least(self, 1, "double", "text_tokens", "text_width")
            return
        for field in ("double", "single", "text_tokens", "text_width"):
            if value := getattr(self, field):
                raise BadJob(
                    f"plain = {self.plain} at $.sizes.plain with {field} = {value} at $.sizes.{field}, but plain "
                    "blocks cannot be combined with others and see the image only.",
                    f"Use {field} = 0, or plain = 0.",
                )

    def _check_rope(self) -> None:
        """Raises `BadJob` unless `rope` is three even numbers of channels whose sum is a head's channels."""
        if len(self.rope) != 3 or any(channels % 2 for channels in self.rope):
            raise BadJob(
                f"rope = {self.rope} at $.sizes.rope, but it must be three even numbers: the channels of a head that "
                "rotate by text position, row and column.",
            )
        if sum(self.rope) != self.head_dim:
            terms = " + ".join(map(str, self.rope))
            raise BadJob(
                f"rope {terms} = {sum(self.rope)} at $.sizes.rope, but a head has width {self.width} / heads "
                f"{self.heads} = {self.head_dim} channels.",
            )

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def dots(self) -> int:
        """Values per patch: patch x patch positions of `channels` values."""
        return self.patch**2 * self.channels

    @property
    def patches(self) -> int:
        """Patches per sample."""
        return (self.latent // self.patch) ** 2


class UNet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="family", tag="unet"):
    """A U-shaped convolutional network on latents of `latent` x `latent` x `channels`.

    Level i has `width` * `multiples[i]` channels at 1 / 2^i of the side, `blocks` residual blocks down and one more up,
    each followed by `attention[i]` (0: none) transformer blocks with `heads` heads and cross-attention to the text.
    `groups`: group norm groups. Text is `text_tokens` vectors of `text_width`.
    """

    latent: int
    channels: int = 4
    width: int
    multiples: list[int]
    blocks: int = 2
    attention: list[int]
    heads: int
    groups: int = 32
    text_tokens: int
    text_width: int

    def __post_init__(self) -> None:
        """Raises `BadJob` if a dimension is out of range, does not divide another, or a list has not one entry per
        level."""
        require_at_least(self, 1, "latent", "channels", "width", "multiples", "blocks", "heads", "groups")
        require_at_least(self, 1, "text_tokens", "text_width")
        require_at_least(self, 0, "attention")
        limits.check(
            self,
            _LIMITS
            | dict.fromkeys(("multiples", "groups"), limits.WIDTH)
            | dict.fromkeys(("blocks", "attention"), limits.LAYERS),
            " at $.sizes.",
        )
        require_divisible(self, "width", "groups", "each group has a whole number of channels")
        require_divisible(self, "width", "heads", "each head has a whole number of channels")
        _check_channels(self.channels)
        if not self.multiples or len(self.multiples) != len(self.attention):
            raise BadJob(
                f"{len(self.attention)} numbers at $.sizes.attention, but {len(self.multiples)} at $.sizes.multiples: "
                "both need one per level."
            )
        if self.width % 2:
            raise BadJob(f"width = {self.width} at $.sizes.width is odd, but the time embedding has sines and cosines.")
        halvings = 2 ** (len(self.multiples) - 1)
        if self.latent % halvings:
            raise BadJob(
                f"latent {self.latent} % {halvings} = {self.latent % halvings} at $.sizes.latent, but it is halved "
                f"{len(self.multiples) - 1} times.",
                f"Use {max(1, round(self.latent / halvings)) * halvings}.",
            )


def _check_channels(channels: int) -> None:
    """Raises `BadJob` unless the number of latent channels is a square number: a latent pixel is made of that many
    pixels of the image, in a square."""
    if isqrt(channels) ** 2 != channels:
        raise BadJob(
            f"channels = {channels} at $.sizes.channels is not a square number, but a latent pixel is a square of grey "
            "pixels.",
            f"Use {isqrt(channels) ** 2}.",
        )


MLP_EXPANSION = 4
"""Expansion of the time embedding's MLP and of a transformer block's GEGLU, relative to their channels."""
TIME_WIDTH = 256
"""Sines and cosines in a diffusion transformer's time embedding."""

Sizes = Dit | UNet
KINDS = (Dit, UNet)
