"""Dimensions of the vision models. Needs no torch."""

from __future__ import annotations

import msgspec

from trainyard import limits
from trainyard.errors import BadJob
from trainyard.train.sizes import require_at_least, require_divisible

_LIMITS = {
    "image": limits.SIDE,
    "channels": limits.WIDTH,
    "classes": limits.VOCAB,
    "width": limits.WIDTH,
}


class Vit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="family", tag="vit"):
    """A vision transformer on images of `image` x `image` pixels, in patches of `patch` x `patch` pixels."""

    image: int = 224
    channels: int = 3
    classes: int = 1000
    patch: int = 16
    layers: int
    width: int
    ffn: int
    heads: int

    def __post_init__(self) -> None:
        """Raises `BadJob` if a dimension is out of range or does not divide another."""
        require_at_least(self, 1, "image", "channels", "patch", "layers", "width", "ffn", "heads")
        require_at_least(self, 2, "classes")
        limits.check(
            self,
            _LIMITS | {"patch": limits.SIDE, "layers": limits.LAYERS, "ffn": limits.WIDTH, "heads": limits.HEADS},
            " at $.sizes.",
        )
        require_divisible(self, "image", "patch", "an image consists of a whole number of patches")
        require_divisible(self, "width", "heads", "each head has a whole number of channels")

    @property
    def tokens(self) -> int:
        """Tokens per image: its patches and the class token."""
        return (self.image // self.patch) ** 2 + 1


class ResNet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="family", tag="resnet"):
    """A ResNet with `stages[i]` bottleneck blocks in stage i. `width`: inner channels of the first stage's blocks; they
    double in each further stage, and blocks have four times as many output channels."""

    image: int = 224
    channels: int = 3
    classes: int = 1000
    width: int = 64
    stages: list[int]

    def __post_init__(self) -> None:
        """Raises `BadJob` if a dimension is out of range or there is no stage."""
        require_at_least(self, 1, "image", "channels", "width", "stages")
        require_at_least(self, 2, "classes")
        limits.check(self, _LIMITS | {"stages": limits.LAYERS}, " at $.sizes.")
        if not self.stages:
            raise BadJob(
                "stages = [] at $.sizes.stages, but at least one stage is needed.", "ResNet-50 has [3, 4, 6, 3]."
            )

    @property
    def sides(self) -> list[int]:
        """Side lengths of the feature maps in pixels: after the first convolution, then after each stage."""
        sides = [-(-self.image // 2)]
        for _ in self.stages:
            sides.append(-(-sides[-1] // 2))
        return sides


EXPANSION = 4
"""Ratio of a bottleneck's output channels to its inner channels (He et al. 2015, arXiv:1512.03385, section 4.1)."""

Sizes = Vit | ResNet
KINDS = (Vit, ResNet)
