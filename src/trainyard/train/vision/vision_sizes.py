"""Dimensions of the vision models. No torch here."""

from __future__ import annotations

import msgspec

from trainyard import limits
from trainyard.errors import BadJob
from trainyard.train.sizes import at_least, divides

_LIMITS = {
    "image": limits.SIDE,
    "channels": limits.WIDTH,
    "classes": limits.VOCAB,
    "width": limits.WIDTH,
}


class Vit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="family", tag="vit"):
    """A vision transformer: square images of `image` pixels a side, cut into patches of `patch` pixels a side."""

    image: int = 224
    channels: int = 3
    classes: int = 1000
    patch: int = 16
    layers: int
    width: int
    ffn: int
    heads: int

    def __post_init__(self) -> None:
        at_least(self, 1, "image", "channels", "patch", "layers", "width", "ffn", "heads")
        at_least(self, 2, "classes")
        limits.check(
            self,
            _LIMITS | {"patch": limits.SIDE, "layers": limits.LAYERS, "ffn": limits.WIDTH, "heads": limits.HEADS},
            " at $.sizes.",
        )
        divides(self, "image", "patch", "an image is a whole number of patches")
        divides(self, "width", "heads", "each head has a whole number of channels")

    @property
    def tokens(self) -> int:
        """The patches of an image, and the class token."""
        return (self.image // self.patch) ** 2 + 1


class ResNet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="family", tag="resnet"):
    """A residual network of bottleneck blocks, `stages[i]` of them at the i-th resolution. `width`: channels of the
    first stage inside its blocks; each further stage has twice as many, and four times as many outside."""

    image: int = 224
    channels: int = 3
    classes: int = 1000
    width: int = 64
    stages: list[int]

    def __post_init__(self) -> None:
        at_least(self, 1, "image", "channels", "width", "stages")
        at_least(self, 2, "classes")
        limits.check(self, _LIMITS | {"stages": limits.LAYERS}, " at $.sizes.")
        if not self.stages:
            raise BadJob(
                "stages = [] at $.sizes.stages, but a network has one at least.", "ResNet-50 has [3, 4, 6, 3]."
            )

    @property
    def sides(self) -> list[int]:
        """Pixels a side of the feature maps: after the first convolution, then of each stage."""
        sides = [-(-self.image // 2)]
        for _ in self.stages:
            sides.append(-(-sides[-1] // 2))
        return sides


EXPANSION = 4
"""Channels outside a bottleneck over channels inside (He et al. 2015, arXiv:1512.03385, section 4.1)."""

Sizes = Vit | ResNet
KINDS = (Vit, ResNet)
