"""Activations that a layer of trainyard's own vision and diffusion Transformers keeps, as columns.

Derived from their code (`train/vision/vit.py`, `train/diffusion/dit.py`) and fake runs of it, like `native_memory.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column

_FLOAT32 = 4.0


class VisionLayerBytes(NamedTuple):
    """Bytes of a layer and a micro-batch. `whole`: kept without recomputation; `inputs`: kept if blocks are recomputed;
    `products`: kept if all but products and attention is recomputed; `again`: recomputed in the backward pass;
    `attention`: the part of `whole` in attention; `work`: temporaries of the backward pass. `matrices`: number of
    weights in matrices, on a rank of tp."""

    whole: Column
    inputs: Column
    products: Column
    again: Column
    attention: Column
    work: Column
    matrices: Column


def mean(cases: Cases) -> VisionLayerBytes:
    """The mean layer."""
    return _layer(cases, cases.doubles / cases.layers, cases.text_ends / cases.layers)


def last(cases: Cases) -> VisionLayerBytes:
    """The last layer, with which the backward pass begins."""
    alone = np.where(cases.doubles == cases.layers, 1.0, 0.0)
    return _layer(cases, alone, alone * cases.text_ends)


def first(cases: Cases) -> VisionLayerBytes:
    """The first layer, with which the backward pass ends."""
    return _layer(cases, np.where(cases.doubles > 0, 1.0, 0.0), np.zeros(1))


def _layer(cases: Cases, apart: Column, ends: Column) -> VisionLayerBytes:
    """`apart`: share of layers with separate weights for text; `ends`: share with nothing after attention for text.

    Saved tensors of `width` channels: the input and output of a norm, and its modulated output; queries, keys, values
    and attention's output; two of the MLP; and the operands of gates."""
    value, width, tp, ffn = cases.width_bytes, cases.width, cases.tp, cases.ffn / cases.tp
    every, text = cases.tokens, cases.micro_batch_size * cases.text
    modulated, two = np.where(cases.modulated > 0, 1.0, 0.0), cases.text > 0
    single = np.where(two, 1 - apart, 0.0)  # attention and MLP side by side: one norm, one gate
    finished = every - text * ends
    after = finished - every * single  # rows with a norm of their own before the MLP
    norm = (2 + modulated) * value * width + 2 * _FLOAT32
    normed = cases.normed_heads * (2 * value * width + 2 * _FLOAT32 * cases.heads) / tp
    attention = every * (norm + 4 * value * width / tp + _FLOAT32 * cases.heads / tp + normed)
    gates = value * width * modulated * (2 * after + every * single)
    joined = value * width / tp * np.where(two, finished * apart, 0.0)  # each stream's part of attention's output
    whole = attention + after * norm + finished * 2 * value * ffn + gates + joined
    inputs = value * every * width
    results = value * finished * 2 * width
    products = value * (every * 4 * width / tp + finished * ffn) + results
    parts = np.where(two, 12 * apart + 3 * single - 4 * ends, 6.0) * modulated
    streams, of_mlp = 1 + apart, 2 * width * ffn
    matrices = (streams * (4 * width**2 / tp + of_mlp) - ends * (width**2 / tp + of_mlp)) + parts * width**2
    return VisionLayerBytes(
        whole=whole,
        inputs=inputs,
        products=inputs + products,
        attention=attention,
        matrices=matrices,
        again=whole - inputs - np.where(cases.activation_checkpoint == 2, 0.0, products - results * (1 - modulated)),
        # The gradient of the MLP's result and of what GELU takes, less what GELU gave, and the layer's own.
        work=value * (finished * ffn + every * width),
    )
