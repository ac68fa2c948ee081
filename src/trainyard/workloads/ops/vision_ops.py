"""The vision models told layer by layer: parameters, FLOPs and bytes. No torch here."""

from __future__ import annotations

from trainyard.errors import BadJob
from trainyard.job import Job, Recipe
from trainyard.train.rules import sample_rules, trainable
from trainyard.train.sizes import convert
from trainyard.train.vision.vision_sizes import EXPANSION, KINDS, ResNet, Sizes, Vit
from trainyard.workloads.ops.tally import Tally

AXES = {Vit: ("dp_replicate", "dp_shard", "tp"), ResNet: ("dp_replicate", "dp_shard")}


def check(job: Job) -> Sizes:
    """The job's sizes. Raises `BadJob` for what cannot be trained."""
    sizes: Sizes = convert(job, *KINDS)
    sample_rules.check(job)
    trainable.check(job, AXES[type(sizes)])
    if isinstance(sizes, Vit):
        sample_rules.check_split(job, {"heads": sizes.heads, "ffn": sizes.ffn, "classes": sizes.classes})
    if isinstance(sizes, ResNet) and job.recipe.microbatch * sizes.sides[-1] ** 2 == 1:
        raise BadJob(
            "microbatch 1 * 1 * 1 pixels of the last stage = 1 value a channel at $.recipe.microbatch, but a batch "
            "norm needs two.",
            "Use microbatch = 2 or more.",
        )
    return sizes


def tally(sizes: Sizes, recipe: Recipe, tp: int = 1) -> Tally:
    return _vit(sizes, recipe, tp) if isinstance(sizes, Vit) else _resnet(sizes, recipe)


def _vit(sizes: Vit, recipe: Recipe, tp: int) -> Tally:
    told, rows, width = Tally(recipe, tp), sizes.tokens, sizes.width
    told.weights(width, rows * width)
    patches = sizes.image // sizes.patch
    told.conv(sizes.image, patches, sizes.channels, width, sizes.patch, bias=True, of_data=True)
    told.add(rows * width)
    for _ in range(sizes.layers):
        with told.block():
            told.norm(rows * width, width)
            for _ in range(3):
                told.linear(rows, width, width, bias=True, split="out")
            told.attention(rows, rows, sizes.heads, width // sizes.heads)
            told.linear(rows, width, width, bias=True, split="in")
            told.add(rows * width)
            told.norm(rows * width, width)
            told.linear(rows, width, sizes.ffn, bias=True, split="out")
            told.gelu(rows * sizes.ffn // tp)
            told.linear(rows, sizes.ffn, width, bias=True, last=True, split="in")
            told.add(rows * width, last=True)
    told.norm(width, width)
    told.linear(1, width, sizes.classes, bias=True, split="out")
    told.loss(sizes.classes)
    return told


def _resnet(sizes: ResNet, recipe: Recipe) -> Tally:
    told, stem = Tally(recipe), sizes.sides[0]
    told.conv(sizes.image, stem, sizes.channels, sizes.width, 7, of_data=True)
    told.norm(stem**2 * sizes.width, sizes.width)
    told.relu(stem**2 * sizes.width)
    channels, before = sizes.width, sizes.sides[1]
    told.reduce(stem**2 * channels, before**2 * channels, 9 * before**2 * channels)
    for stage, (blocks, side) in enumerate(zip(sizes.stages, sizes.sides[1:])):
        width = sizes.width << stage
        for number in range(blocks):
            with told.block():
                _bottleneck(told, before, side, channels, width, changes=number == 0)
            channels, before = EXPANSION * width, side
    told.reduce(before**2 * channels, channels, before**2 * channels)
    told.linear(1, channels, sizes.classes, bias=True)
    told.loss(sizes.classes)
    return told


def _bottleneck(told: Tally, before: int, side: int, channels: int, width: int, changes: bool) -> None:
    out = EXPANSION * width
    told.conv(before, before, channels, width, 1)
    told.norm(before**2 * width, width)
    told.relu(before**2 * width)
    told.conv(before, side, width, width, 3)
    told.norm(side**2 * width, width)
    told.relu(side**2 * width)
    told.conv(side, side, width, out, 1)
    told.norm(side**2 * out, out)
    if changes:
        told.conv(before, side, channels, out, 1)
        told.norm(side**2 * out, out)
    told.add(side**2 * out)
    told.relu(side**2 * out)
