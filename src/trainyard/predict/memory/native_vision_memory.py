"""What a layer of our own vision and diffusion transformers keeps for its backward pass, as columns.

Read off their code (`train/vision/vit.py`, `train/diffusion/dit.py`) and fake runs of it, as `native_memory.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column

_FLOAT32 = 4.0


class Pictured(NamedTuple):
    """Bytes of a layer and a micro-batch: all it keeps; what stays of that where blocks are computed again, or all but
    products and attention; what then is made again; what is attention's; and what its backward pass makes beside it.
    `matrices`: its weights, on a rank of tp."""

    whole: Column
    inputs: Column
    products: Column
    again: Column
    attention: Column
    work: Column
    matrices: Column


def mean(cases: Cases) -> Pictured:
    """Of all layers."""
    return _layer(cases, cases.doubles / cases.layers, cases.text_ends / cases.layers)


def last(cases: Cases) -> Pictured:
    """The layer that the backward pass begins with."""
    alone = np.where(cases.doubles == cases.layers, 1.0, 0.0)
    return _layer(cases, alone, alone * cases.text_ends)


def first(cases: Cases) -> Pictured:
    return _layer(cases, np.where(cases.doubles > 0, 1.0, 0.0), np.zeros(1))


def _layer(cases: Cases, apart: Column, ends: Column) -> Pictured:
    """`apart`: share of layers whose text has weights of its own; `ends`: of those where nothing comes after it.

    Rows of `width` as numbers of tensors: what a norm takes and gives, scaled and shifted where a sample has a say in
    that; queries, keys, values and what attention gives; the MLP's two; and what gates are multiplied with."""
    value, width, tp, ffn = cases.width_bytes, cases.width, cases.tp, cases.ffn / cases.tp
    every, text = cases.tokens, cases.microbatch * cases.text
    told, two = np.where(cases.modulated > 0, 1.0, 0.0), cases.text > 0
    single = np.where(two, 1 - apart, 0.0)  # attention and MLP side by side: one norm, one gate
    finished = every - text * ends
    after = finished - every * single  # rows with a norm of their own before the MLP
    norm = (2 + told) * value * width + 2 * _FLOAT32
    normed = cases.normed_heads * (2 * value * width + 2 * _FLOAT32 * cases.heads) / tp
    attention = every * (norm + 4 * value * width / tp + _FLOAT32 * cases.heads / tp + normed)
    gates = value * width * told * (2 * after + every * single)
    joined = value * width / tp * np.where(two, finished * apart, 0.0)  # each stream's part of what attention gives
    whole = attention + after * norm + finished * 2 * value * ffn + gates + joined
    inputs = value * every * width
    results = value * finished * 2 * width
    products = value * (every * 4 * width / tp + finished * ffn) + results
    parts = np.where(two, 12 * apart + 3 * single - 4 * ends, 6.0) * told
    streams, of_mlp = 1 + apart, 2 * width * ffn
    matrices = (streams * (4 * width**2 / tp + of_mlp) - ends * (width**2 / tp + of_mlp)) + parts * width**2
    return Pictured(
        whole=whole,
        inputs=inputs,
        products=inputs + products,
        attention=attention,
        matrices=matrices,
        again=whole - inputs - np.where(cases.remat == 2, 0.0, products - results * (1 - told)),
        # The gradient of the MLP's result and of what GELU takes, less what GELU gave, and the layer's own.
        work=value * (finished * ffn + every * width),
    )
