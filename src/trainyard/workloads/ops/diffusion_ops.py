"""The diffusion models told layer by layer: parameters, FLOPs and bytes. No torch here."""

from __future__ import annotations

from trainyard.job import Job, Recipe
from trainyard.train.diffusion.diffusion_sizes import GROWS, KINDS, TIME_WIDTH, Dit, Sizes, UNet
from trainyard.train.rules import sample_rules, trainable
from trainyard.train.sizes import convert
from trainyard.workloads.ops.tally import Tally

AXES = {Dit: ("dp_replicate", "dp_shard", "tp"), UNet: ("dp_replicate", "dp_shard")}


def check(job: Job) -> Sizes:
    """The job's sizes. Raises `BadJob` for what cannot be trained."""
    sizes: Sizes = convert(job, *KINDS)
    sample_rules.check(job)
    trainable.check(job, AXES[type(sizes)])
    if isinstance(sizes, Dit):
        sample_rules.check_split(job, {"heads": sizes.heads, "ffn": sizes.ffn, "patch * patch * channels": sizes.dots})
    return sizes


def tally(sizes: Sizes, recipe: Recipe, tp: int = 1) -> Tally:
    return _dit(sizes, recipe, tp) if isinstance(sizes, Dit) else _unet(sizes, recipe)


def _embedder(told: Tally, wide: int, width: int) -> None:
    """Two matrices, for one vector a sample that is data."""
    told.linear(1, wide, width, bias=True, of_data=True)
    told.silu(width)
    told.linear(1, width, width, bias=True)


def _dit(sizes: Dit, recipe: Recipe, tp: int) -> Tally:
    told, width, dots = Tally(recipe, tp), sizes.width, sizes.dots
    patches, text = sizes.patches, sizes.text_tokens
    told.linear(patches, dots, width, bias=True, of_data=True)
    if text:
        told.linear(text, sizes.text_width, width, bias=True, of_data=True)
    _embedder(told, TIME_WIDTH, width)
    if sizes.guidance:
        _embedder(told, TIME_WIDTH, width)
    _embedder(told, sizes.pooled_width, width)
    told.add((1 + sizes.guidance) * width)
    if not sizes.rope:
        told.add(patches * width)
    for number in range(sizes.double):
        ends = number == sizes.double - 1 and not sizes.single
        with told.block():
            _double(told, sizes, ends)
    for _ in range(sizes.single):
        with told.block():
            _single(told, sizes)
    for _ in range(sizes.plain):
        with told.block():
            _plain(told, sizes)
    _modulation(told, width, 2)
    _modulated_norm(told, patches, width)
    told.linear(patches, width, dots, bias=True, split="out")
    told.loss(patches * dots, "elementwise")
    return told


def _modulation(told: Tally, width: int, parts: int) -> None:
    told.silu(width)
    told.linear(1, width, parts * width, bias=True)


def _modulated_norm(told: Tally, rows: int, width: int) -> None:
    told.norm(rows * width)
    told.pointwise(rows * width, 2, 2, 3, 3)


def _projections(told: Tally, sizes: Dit, rows: int) -> None:
    for _ in range(3):
        told.linear(rows, sizes.width, sizes.width, bias=True, split="out")
    if sizes.qk_norm:
        for _ in range(2):
            told.norm(rows * sizes.width // told.tp, sizes.head_dim, tensors=1)


def _attend(told: Tally, sizes: Dit) -> None:
    rows = sizes.patches + sizes.text_tokens
    if sizes.rope:
        told.pointwise(2 * rows * sizes.width // told.tp, 3, 2, 3, 2)
    told.attention(rows, rows, sizes.heads, sizes.head_dim)


def _double(told: Tally, sizes: Dit, text_ends: bool) -> None:
    width = sizes.width
    streams = ((sizes.text_tokens, text_ends), (sizes.patches, False))
    for rows, ends in streams:
        _modulation(told, width, 2 if ends else 6)
        _modulated_norm(told, rows, width)
        _projections(told, sizes, rows)
    _attend(told, sizes)
    for rows, ends in streams:
        if not ends:
            _finish(told, sizes, rows)


def _plain(told: Tally, sizes: Dit) -> None:
    _modulation(told, sizes.width, 6)
    _modulated_norm(told, sizes.patches, sizes.width)
    _projections(told, sizes, sizes.patches)
    _attend(told, sizes)
    _finish(told, sizes, sizes.patches)


def _finish(told: Tally, sizes: Dit, rows: int) -> None:
    """What comes after attention."""
    width = sizes.width
    told.linear(rows, width, width, bias=True, split="in")
    told.gated_add(rows * width)
    _modulated_norm(told, rows, width)
    told.linear(rows, width, sizes.ffn, bias=True, split="out")
    told.gelu(rows * sizes.ffn // told.tp)
    told.linear(rows, sizes.ffn, width, bias=True, split="in")
    told.gated_add(rows * width)


def _single(told: Tally, sizes: Dit) -> None:
    rows, width = sizes.patches + sizes.text_tokens, sizes.width
    _modulation(told, width, 3)
    _modulated_norm(told, rows, width)
    _projections(told, sizes, rows)
    _attend(told, sizes)
    told.linear(rows, width, width, split="in")
    told.linear(rows, width, sizes.ffn, bias=True, split="out")
    told.gelu(rows * sizes.ffn // told.tp)
    told.linear(rows, sizes.ffn, width, bias=True, split="in")
    told.add(rows * width)
    told.gated_add(rows * width)


def _unet(sizes: UNet, recipe: Recipe) -> Tally:
    told, last = Tally(recipe), len(sizes.multiples) - 1
    widths = [sizes.width * multiple for multiple in sizes.multiples]
    sides = [sizes.latent >> level for level in range(last + 1)]
    _embedder(told, sizes.width, GROWS * sizes.width)
    told.conv(sides[0], sides[0], sizes.channels, sizes.width, 3, bias=True, of_data=True)
    channels, kept = sizes.width, [sizes.width]
    for level, (width, side) in enumerate(zip(widths, sides)):
        for _ in range(sizes.blocks):
            _part(told, sizes, side, channels, width, sizes.attention[level])
            channels = width
            kept.append(channels)
        if level < last:
            told.conv(side, sides[level + 1], channels, channels, 3, bias=True)
            kept.append(channels)
    _part(told, sizes, sides[last], channels, channels, max(sizes.attention))
    with told.block():
        _residual(told, sizes, sides[last], channels, channels, last=True)
    for level in reversed(range(last + 1)):
        for _ in range(sizes.blocks + 1):
            _part(told, sizes, sides[level], channels + kept.pop(), widths[level], sizes.attention[level])
            channels = widths[level]
        if level:
            told.pointwise(sides[level - 1] ** 2 * channels, 0, 2, 1, 2)
            told.conv(sides[level - 1], sides[level - 1], channels, channels, 3, bias=True)
    told.norm(sides[0] ** 2 * channels, channels)
    told.silu(sides[0] ** 2 * channels)
    told.conv(sides[0], sides[0], channels, sizes.channels, 3, bias=True)
    told.loss(sides[0] ** 2 * sizes.channels, "elementwise")
    return told


def _part(told: Tally, sizes: UNet, side: int, channels_in: int, channels: int, attention: int) -> None:
    with told.block():
        _residual(told, sizes, side, channels_in, channels, last=not attention)
        if attention:
            _spatial(told, sizes, side, channels, attention)


def _residual(told: Tally, sizes: UNet, side: int, channels_in: int, channels: int, last: bool) -> None:
    pixels = side**2
    if channels_in != channels:
        told.conv(side, side, channels_in, channels, 1, bias=True)
    told.norm(pixels * channels_in, channels_in)
    told.silu(pixels * channels_in)
    told.conv(side, side, channels_in, channels, 3, bias=True)
    told.silu(GROWS * sizes.width)
    told.linear(1, GROWS * sizes.width, channels, bias=True)
    told.add(pixels * channels)
    told.norm(pixels * channels, channels)
    told.silu(pixels * channels)
    told.conv(side, side, channels, channels, 3, bias=True, last=last)
    told.add(pixels * channels, last=last)


def _spatial(told: Tally, sizes: UNet, side: int, width: int, blocks: int) -> None:
    rows = side**2
    told.norm(rows * width, width)
    told.conv(side, side, width, width, 1, bias=True)
    for _ in range(blocks):
        told.norm(rows * width, width)
        _attention(told, sizes, rows, width, rows, width, seen_is_data=False)
        told.norm(rows * width, width)
        _attention(told, sizes, rows, width, sizes.text_tokens, sizes.text_width, seen_is_data=True)
        told.norm(rows * width, width)
        told.linear(rows, width, 2 * GROWS * width, bias=True)
        told.gelu(rows * GROWS * width)
        told.pointwise(rows * GROWS * width, 1, 3, 2, 5)
        told.linear(rows, GROWS * width, width, bias=True)
        told.add(rows * width)
    told.conv(side, side, width, width, 1, bias=True, last=True)
    told.add(rows * width, last=True)


def _attention(told: Tally, sizes: UNet, rows: int, width: int, seen: int, seen_width: int, seen_is_data: bool) -> None:
    told.linear(rows, width, width)
    told.linear(seen, seen_width, width, of_data=seen_is_data)
    told.linear(seen, seen_width, width, of_data=seen_is_data)
    told.attention(rows, seen, sizes.heads, width // sizes.heads)
    told.linear(rows, width, width, bias=True)
    told.add(rows * width)
