"""Parameters, FLOPs and bytes of the diffusion models, layer by layer. Needs no torch.

Functions that take `ops`, a `Tally`, add layers to it in the order of the forward pass of one sample: its methods are
named after the layers, take rows and channels, and count the backward pass too. `split="out"` divides a matrix over
tensor-parallel ranks by its outputs, `split="in"` by its inputs. Layers in `with ops.block()` are recomputed together.
`width` is the channels of the residual stream.
"""

from __future__ import annotations

from trainyard.job import Job
from trainyard.recipe import Recipe
from trainyard.train.diffusion.diffusion_sizes import KINDS, MLP_EXPANSION, TIME_WIDTH, Dit, Sizes, UNet
from trainyard.train.rules import sample_rules, trainable
from trainyard.train.sizes import convert
from trainyard.workloads.ops.tally import Tally

AXES = {Dit: ("dp_replicate", "dp_shard", "tp"), UNet: ("dp_replicate", "dp_shard")}


def check(job: Job) -> Sizes:
    """The job's sizes. Raises `BadJob` if it cannot be trained."""
    sizes: Sizes = convert(job, *KINDS)
    sample_rules.check(job)
    trainable.check(job, AXES[type(sizes)])
    if isinstance(sizes, Dit):
        sample_rules.check_split(job, {"heads": sizes.heads, "ffn": sizes.ffn, "patch * patch * channels": sizes.dots})
    return sizes


def tally(sizes: Sizes, recipe: Recipe, tp: int = 1) -> Tally:
    return _dit(sizes, recipe, tp) if isinstance(sizes, Dit) else _unet(sizes, recipe)


def _embedder(ops: Tally, width_in: int, width: int) -> None:
    """A two-layer MLP that embeds one input vector per sample."""
    ops.linear(1, width_in, width, bias=True, input_is_data=True)
    ops.silu(width)
    ops.linear(1, width, width, bias=True)


def _dit(sizes: Dit, recipe: Recipe, tp: int) -> Tally:
    """Tallies a diffusion transformer, layer by layer in the order of its forward pass. `tp`: tensor-parallel ranks."""
    ops, width, patch_values = Tally(recipe, tp), sizes.width, sizes.dots
    patches, text_tokens = sizes.patches, sizes.text_tokens
    ops.linear(patches, patch_values, width, bias=True, input_is_data=True)
    if text_tokens:
        ops.linear(text_tokens, sizes.text_width, width, bias=True, input_is_data=True)
    _embedder(ops, TIME_WIDTH, width)
    if sizes.guidance:
        _embedder(ops, TIME_WIDTH, width)
    _embedder(ops, sizes.pooled_width, width)
    ops.add((1 + sizes.guidance) * width)
    if not sizes.rope:
        ops.add(patches * width)
    for number in range(sizes.double):
        text_ends = number == sizes.double - 1 and not sizes.single
        with ops.block():
            _double(ops, sizes, text_ends)
    for _ in range(sizes.single):
        with ops.block():
            _single(ops, sizes)
    for _ in range(sizes.plain):
        with ops.block():
            _plain(ops, sizes)
    _modulation(ops, width, parts=2)
    _modulated_norm(ops, patches, width)
    ops.linear(patches, width, patch_values, bias=True, split="out")
    ops.loss(patches * patch_values, "elementwise")
    return ops


def _modulation(ops: Tally, width: int, parts: int) -> None:
    """Tallies the projection of one condition vector per sample to `parts` vectors: shifts, scales and gates."""
    ops.silu(width)
    ops.linear(1, width, parts * width, bias=True)


def _modulated_norm(ops: Tally, rows: int, width: int) -> None:
    """Tallies a norm of `rows` positions, scaled and shifted by the condition's vectors."""
    ops.norm(rows * width)
    ops.pointwise(rows * width, flops=2, moved=2, back_flops=3, back_moved=3)


def _projections(ops: Tally, sizes: Dit, rows: int) -> None:
    """Tallies queries, keys and values of `rows` positions, and the norms of queries and keys."""
    for _ in range(3):
        ops.linear(rows, sizes.width, sizes.width, bias=True, split="out")
    if sizes.qk_norm:
        for _ in range(2):
            ops.norm(rows * sizes.width // ops.tp, sizes.head_dim, tensors=1)


def _attend(ops: Tally, sizes: Dit) -> None:
    """Tallies rotary embedding and attention over text and patches together."""
    rows = sizes.patches + sizes.text_tokens
    if sizes.rope:
        ops.pointwise(2 * rows * sizes.width // ops.tp, flops=3, moved=2, back_flops=3, back_moved=2)
    ops.attention(rows, rows, sizes.heads, sizes.head_dim)


def _double(ops: Tally, sizes: Dit, text_ends: bool) -> None:
    """Tallies a block with separate weights for text and image. `text_ends`: nothing reads its text output, so that the
    text only gives queries, keys and values."""
    width = sizes.width
    streams = ((sizes.text_tokens, text_ends), (sizes.patches, False))  # (rows, whether the stream ends here)
    for rows, ends in streams:
        # Shift and scale before attention; also its gate, and the three of the MLP.
        _modulation(ops, width, parts=2 if ends else 6)
        _modulated_norm(ops, rows, width)
        _projections(ops, sizes, rows)
    _attend(ops, sizes)
    for rows, ends in streams:
        if not ends:
            _finish(ops, sizes, rows)


def _plain(ops: Tally, sizes: Dit) -> None:
    """Tallies a block over the image patches only."""
    _modulation(ops, sizes.width, parts=6)
    _modulated_norm(ops, sizes.patches, sizes.width)
    _projections(ops, sizes, sizes.patches)
    _attend(ops, sizes)
    _finish(ops, sizes, sizes.patches)


def _finish(ops: Tally, sizes: Dit, rows: int) -> None:
    """Tallies the part of a block after attention, for the `rows` positions of one stream (the image patches or the
    text tokens, which have weights of their own): the output projection, the MLP of `sizes.ffn` hidden channels, and
    the gated residual sum after each."""
    width = sizes.width
    ops.linear(rows, width, width, bias=True, split="in")
    ops.gated_add(rows * width)
    _modulated_norm(ops, rows, width)
    ops.linear(rows, width, sizes.ffn, bias=True, split="out")
    ops.gelu(rows * sizes.ffn // ops.tp)
    ops.linear(rows, sizes.ffn, width, bias=True, split="in")
    ops.gated_add(rows * width)


def _single(ops: Tally, sizes: Dit) -> None:
    """Tallies a block over text and patches together, whose attention and MLP run in parallel."""
    rows, width = sizes.patches + sizes.text_tokens, sizes.width
    _modulation(ops, width, parts=3)
    _modulated_norm(ops, rows, width)
    _projections(ops, sizes, rows)
    _attend(ops, sizes)
    ops.linear(rows, width, width, split="in")
    ops.linear(rows, width, sizes.ffn, bias=True, split="out")
    ops.gelu(rows * sizes.ffn // ops.tp)
    ops.linear(rows, sizes.ffn, width, bias=True, split="in")
    ops.add(rows * width)
    ops.gated_add(rows * width)


def _unet(sizes: UNet, recipe: Recipe) -> Tally:
    """Tallies a U-Net, layer by layer in the order of its forward pass: `sizes.blocks` residual blocks per level with a
    downsampling convolution between levels, two in the middle, and one more than on the way down per level on the way
    up, each of which also takes a map from the way down."""
    ops, last_level = Tally(recipe), len(sizes.multiples) - 1
    widths = [sizes.width * multiple for multiple in sizes.multiples]  # channels at each level
    sides = [sizes.latent >> level for level in range(last_level + 1)]  # rows of a square map at each level
    time_width = MLP_EXPANSION * sizes.width  # of the time embedding
    _embedder(ops, sizes.width, time_width)
    ops.conv(sides[0], sides[0], sizes.channels, sizes.width, 3, bias=True, input_is_data=True)
    channels, skip_channels = sizes.width, [sizes.width]  # of the current map, and of those kept for the way up
    for level, (width, side) in enumerate(zip(widths, sides)):
        for _ in range(sizes.blocks):
            _level_part(ops, sizes, side, channels, width, sizes.attention[level])
            channels = width
            skip_channels.append(channels)
        if level < last_level:
            ops.conv(side, sides[level + 1], channels, channels, 3, bias=True)
            skip_channels.append(channels)
    _level_part(ops, sizes, sides[last_level], channels, channels, max(sizes.attention))
    with ops.block():
        _residual(ops, sizes, sides[last_level], channels, channels, last=True)
    for level in reversed(range(last_level + 1)):
        for _ in range(sizes.blocks + 1):
            _level_part(ops, sizes, sides[level], channels + skip_channels.pop(), widths[level], sizes.attention[level])
            channels = widths[level]
        if level:
            ops.pointwise(sides[level - 1] ** 2 * channels, flops=0, moved=2, back_flops=1, back_moved=2)
            ops.conv(sides[level - 1], sides[level - 1], channels, channels, 3, bias=True)
    ops.norm(sides[0] ** 2 * channels, channels)
    ops.silu(sides[0] ** 2 * channels)
    ops.conv(sides[0], sides[0], channels, sizes.channels, 3, bias=True)
    ops.loss(sides[0] ** 2 * sizes.channels, "elementwise")
    return ops


def _level_part(ops: Tally, sizes: UNet, side: int, channels_in: int, channels: int, transformer_blocks: int) -> None:
    """Tallies a residual block on maps of `side` rows, from `channels_in` to `channels`, followed by the transformer
    blocks of its level, if any; all are recomputed together."""
    with ops.block():
        _residual(ops, sizes, side, channels_in, channels, last=not transformer_blocks)
        if transformer_blocks:
            _spatial(ops, sizes, side, channels, transformer_blocks)


def _residual(ops: Tally, sizes: UNet, side: int, channels_in: int, channels: int, last: bool) -> None:
    """Tallies a residual block on square maps of `side` rows. `last`: it ends its block, so that recomputation stops
    before its last convolution."""
    pixels = side**2
    time_width = MLP_EXPANSION * sizes.width  # of the time embedding, whose projection is added to the maps
    if channels_in != channels:
        ops.conv(side, side, channels_in, channels, 1, bias=True)
    ops.norm(pixels * channels_in, channels_in)
    ops.silu(pixels * channels_in)
    ops.conv(side, side, channels_in, channels, 3, bias=True)
    ops.silu(time_width)
    ops.linear(1, time_width, channels, bias=True)
    ops.add(pixels * channels)
    ops.norm(pixels * channels, channels)
    ops.silu(pixels * channels)
    ops.conv(side, side, channels, channels, 3, bias=True, last=last)
    ops.add(pixels * channels, last=last)


def _spatial(ops: Tally, sizes: UNet, side: int, width: int, blocks: int) -> None:
    """Tallies `blocks` transformer blocks over the side^2 positions of a map of `width` channels."""
    rows = side**2
    mlp_width = MLP_EXPANSION * width  # inner width of the GEGLU, whose up-projection gives values and gates
    ops.norm(rows * width, width)
    ops.conv(side, side, width, width, 1, bias=True)
    for _ in range(blocks):
        ops.norm(rows * width, width)
        _attention(ops, sizes, rows, width, rows, width, keys_are_data=False)
        ops.norm(rows * width, width)
        _attention(ops, sizes, rows, width, sizes.text_tokens, sizes.text_width, keys_are_data=True)
        ops.norm(rows * width, width)
        ops.linear(rows, width, 2 * mlp_width, bias=True)
        ops.gelu(rows * mlp_width)
        ops.pointwise(rows * mlp_width, flops=1, moved=3, back_flops=2, back_moved=5)
        ops.linear(rows, mlp_width, width, bias=True)
        ops.add(rows * width)
    ops.conv(side, side, width, width, 1, bias=True, last=True)
    ops.add(rows * width, last=True)


def _attention(ops: Tally, sizes: UNet, rows: int, width: int, keys: int, key_width: int, keys_are_data: bool) -> None:
    """Tallies projections, attention and residual sum for `rows` queries of `width` channels and `keys` keys of
    `key_width`. `keys_are_data`: they need no gradient, as the text."""
    ops.linear(rows, width, width)
    ops.linear(keys, key_width, width, input_is_data=keys_are_data)
    ops.linear(keys, key_width, width, input_is_data=keys_are_data)
    ops.attention(rows, keys, sizes.heads, width // sizes.heads)
    ops.linear(rows, width, width, bias=True)
    ops.add(rows * width)
