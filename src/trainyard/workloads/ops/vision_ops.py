"""Parameters, FLOPs and bytes of the vision models, layer by layer. Needs no torch.

The methods of a `Tally` add layers in the order of the forward pass of one sample: they are named after the layers,
take rows and channels (or the elements of an elementwise operation), and count the backward pass too. `split="out"`
divides a matrix over tensor-parallel ranks by its outputs, `split="in"` by its inputs. Layers in `with ops.block()` are
recomputed together; recomputation stops before one with `last=True`, whose result the backward pass does not need.
"""

from __future__ import annotations

from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.recipe import Recipe
from trainyard.train.rules import sample_rules, trainable
from trainyard.train.sizes import convert
from trainyard.train.vision.vision_sizes import EXPANSION, KINDS, ResNet, Sizes, Vit
from trainyard.workloads.ops.tally import Tally

AXES = {Vit: ("dp_replicate", "dp_shard", "tp"), ResNet: ("dp_replicate", "dp_shard")}


def check(job: Job) -> Sizes:
    """The job's sizes. Raises `BadJob` if it cannot be trained."""
    sizes: Sizes = convert(job, *KINDS)
    sample_rules.check(job)
    trainable.check(job, AXES[type(sizes)])
    if isinstance(sizes, Vit):
        sample_rules.check_split(job, {"heads": sizes.heads, "ffn": sizes.ffn, "classes": sizes.classes})
    if isinstance(sizes, ResNet) and job.recipe.micro_batch_size * sizes.sides[-1] ** 2 == 1:
        raise BadJob(
            "micro_batch_size 1 * 1 * 1 pixels of the last stage = 1 value per channel at "
            "$.recipe.micro_batch_size, but a batch "
            "norm needs at least two.",
            "Use micro_batch_size = 2 or more.",
        )
    return sizes


def tally(sizes: Sizes, recipe: Recipe, tp: int = 1) -> Tally:
    return _vit(sizes, recipe, tp) if isinstance(sizes, Vit) else _resnet(sizes, recipe)


def _vit(sizes: Vit, recipe: Recipe, tp: int) -> Tally:
    """Tallies a vision transformer, layer by layer in the order of its forward pass. `tp`: tensor-parallel ranks."""
    ops, rows, width = Tally(recipe, tp), sizes.tokens, sizes.width
    ops.weights(width, rows * width)  # the class token, and an embedding for each position
    patches = sizes.image // sizes.patch
    ops.conv(sizes.image, patches, sizes.channels, width, sizes.patch, bias=True, input_is_data=True)
    ops.add(rows * width)
    for _ in range(sizes.layers):
        with ops.block():
            ops.norm(rows * width, width)
            for _ in range(3):
                ops.linear(rows, width, width, bias=True, split="out")
            ops.attention(rows, rows, sizes.heads, width // sizes.heads)
            ops.linear(rows, width, width, bias=True, split="in")
            ops.add(rows * width)
            ops.norm(rows * width, width)
            ops.linear(rows, width, sizes.ffn, bias=True, split="out")
            ops.gelu(rows * sizes.ffn // tp)
            ops.linear(rows, sizes.ffn, width, bias=True, last=True, split="in")
            ops.add(rows * width, last=True)
    ops.norm(width, width)
    ops.linear(1, width, sizes.classes, bias=True, split="out")
    ops.loss(sizes.classes)
    return ops


def _resnet(sizes: ResNet, recipe: Recipe) -> Tally:
    """Tallies a residual network, layer by layer in the order of its forward pass."""
    ops, stem = Tally(recipe), sizes.sides[0]
    ops.conv(sizes.image, stem, sizes.channels, sizes.width, 7, input_is_data=True)
    ops.norm(stem**2 * sizes.width, sizes.width)
    ops.relu(stem**2 * sizes.width)
    channels, side_in = sizes.width, sizes.sides[1]
    ops.reduce(stem**2 * channels, side_in**2 * channels, 9 * side_in**2 * channels)  # maximum over 3 x 3 pixels
    for stage, (blocks, side) in enumerate(zip(sizes.stages, sizes.sides[1:])):
        width = sizes.width << stage
        for number in range(blocks):
            with ops.block():
                _bottleneck(ops, side_in, side, channels, width, changes=number == 0)
            channels, side_in = EXPANSION * width, side
    ops.reduce(side_in**2 * channels, channels, side_in**2 * channels)  # mean over all pixels
    ops.linear(1, channels, sizes.classes, bias=True)
    ops.loss(sizes.classes)
    return ops


def _bottleneck(ops: Tally, side_in: int, side: int, channels: int, width: int, changes: bool) -> None:
    """Tallies a block from `channels` maps of `side_in` rows to `EXPANSION` x `width` maps of `side` rows. `changes`:
    the skip path has a convolution of its own."""
    channels_out = EXPANSION * width
    ops.conv(side_in, side_in, channels, width, 1)
    ops.norm(side_in**2 * width, width)
    ops.relu(side_in**2 * width)
    ops.conv(side_in, side, width, width, 3)
    ops.norm(side**2 * width, width)
    ops.relu(side**2 * width)
    ops.conv(side, side, width, channels_out, 1)
    ops.norm(side**2 * channels_out, channels_out)
    if changes:
        ops.conv(side_in, side, channels, channels_out, 1)
        ops.norm(side**2 * channels_out, channels_out)
    ops.add(side**2 * channels_out)
    ops.relu(side**2 * channels_out)
