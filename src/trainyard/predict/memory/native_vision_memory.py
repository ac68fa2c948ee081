"""Activations that a layer of trainyard's own vision and diffusion Transformers keeps, as columns.

Derived from their code (`train/vision/vit.py`, `train/diffusion/dit.py`) and fake runs of it, like `native_memory.py`.
A column has a value per case (layout), of shape [case].
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.predict.inputs.cases import FULL, Cases, Column

_FLOAT32 = 4.0


class VisionLayerBytes(NamedTuple):
    """Bytes of a layer and a micro-batch. `whole`: kept without recomputation; `inputs`: kept if blocks are recomputed;
    `products`: kept if all but products and attention is recomputed; `recomputed`: recomputed in the backward
    pass; `attention`: the part of `whole` in attention; `temporaries`: of the backward pass. `matrix_weights`: number
    of weights in matrices, on a rank of tp."""

    whole: Column
    inputs: Column
    products: Column
    recomputed: Column
    attention: Column
    temporaries: Column
    matrix_weights: Column


def mean(cases: Cases) -> VisionLayerBytes:
    """The mean layer."""
    return _layer(cases, cases.double_layers / cases.layers, cases.text_ends / cases.layers)


def last(cases: Cases) -> VisionLayerBytes:
    """The last layer, with which the backward pass begins."""
    is_double = np.where(cases.double_layers == cases.layers, 1.0, 0.0)
    return _layer(cases, is_double, is_double * cases.text_ends)


def first(cases: Cases) -> VisionLayerBytes:
    """The first layer, with which the backward pass ends."""
    return _layer(cases, np.where(cases.double_layers > 0, 1.0, 0.0), np.zeros(1))


def _layer(cases: Cases, double_share: Column, text_end_share: Column) -> VisionLayerBytes:
    """Bytes of the mean of some layers. `double_share`: share of them with separate weights for text; `text_end_share`:
    share with nothing after attention for text. Saved tensors of `width` channels: the input and output of a norm, and
    its modulated output; queries, keys, values and attention's output; two of the MLP; and the operands of gates."""
    value_bytes, width, tp, ffn = cases.width_bytes, cases.width, cases.tp, cases.ffn / cases.tp
    token_rows, text_rows = cases.tokens, cases.micro_batch_size * cases.text_positions
    is_modulated, has_text = np.where(cases.modulation_vectors > 0, 1.0, 0.0), cases.text_positions > 0
    single_share = np.where(has_text, 1 - double_share, 0.0)  # attention and MLP side by side: one norm, one gate
    mlp_rows = token_rows - text_rows * text_end_share
    norm_rows = mlp_rows - token_rows * single_share  # rows with a norm of their own before the MLP
    norm_bytes = (2 + is_modulated) * value_bytes * width + 2 * _FLOAT32  # per row, with its mean and deviation
    head_norm_bytes = cases.qk_norm * (2 * value_bytes * width + 2 * _FLOAT32 * cases.heads) / tp
    attention_bytes = token_rows * (
        norm_bytes + 4 * value_bytes * width / tp + _FLOAT32 * cases.heads / tp + head_norm_bytes
    )
    gate_bytes = value_bytes * width * is_modulated * (2 * norm_rows + token_rows * single_share)
    joined_bytes = (
        value_bytes * width / tp * np.where(has_text, mlp_rows * double_share, 0.0)
    )  # each stream's part of attention's output
    all_bytes = attention_bytes + norm_rows * norm_bytes + mlp_rows * 2 * value_bytes * ffn + gate_bytes + joined_bytes
    input_bytes = value_bytes * token_rows * width
    result_bytes = value_bytes * mlp_rows * 2 * width
    product_bytes = value_bytes * (token_rows * 4 * width / tp + mlp_rows * ffn) + result_bytes
    # Matrices of width x width, per stream: six (shift, scale and gate of attention and MLP), two if it ends, three in
    # a single-stream block.
    modulation_matrices = (
        np.where(has_text, 12 * double_share + 3 * single_share - 4 * text_end_share, 6.0) * is_modulated
    )
    streams, mlp_weights = 1 + double_share, 2 * width * ffn
    matrix_weights = (
        streams * (4 * width**2 / tp + mlp_weights) - text_end_share * (width**2 / tp + mlp_weights)
    ) + modulation_matrices * width**2
    return VisionLayerBytes(
        whole=all_bytes,
        inputs=input_bytes,
        products=input_bytes + product_bytes,
        attention=attention_bytes,
        matrix_weights=matrix_weights,
        recomputed=all_bytes
        - input_bytes
        - np.where(cases.activation_checkpoint == FULL, 0.0, product_bytes - result_bytes * (1 - is_modulated)),
        # The gradient of the MLP's result and of what GELU takes, less what GELU gave, and the layer's own.
        temporaries=value_bytes * (mlp_rows * ffn + token_rows * width),
    )
