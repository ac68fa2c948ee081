"""Orthogonalization of the updates of matrices by Muon's Newton-Schulz iterations (Jordan et al. 2024,
kellerjordan.github.io/posts/muon), as columns.

Each matrix is processed whole, or its part on a rank of tp (Megatron Core's `--muon-tp-mode blockwise`). Data
parallelism that shards the optimizer's state divides whole matrices over its ranks (`layer_wise_optimizer.py` of
Megatron Core). A column has a value per case (layout), of shape [case].
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware
from trainyard.predict.time import data_parallel, shapes
from trainyard.predict.time.layer import product
from trainyard.predict.time.shapes import Product

ITERATIONS = 5
"""Newton-Schulz iterations of a step by default, of Megatron Core and torch."""


def orthogonalization_seconds(cases: Cases, hardware: RankHardware, tuned: Constants) -> Column:
    """Seconds per step of the rank with most work on the layers of a stage: its share of the matrices, and at least the
    largest. 0 with AdamW."""
    if not (cases.muon_iterations > 0).any():
        return np.zeros(1)
    shards = np.where(cases.is_sharded > 0, cases.dp_shard * cases.cp, 1.0)
    owners = np.where(cases.is_sharded > 0, data_parallel.expert_replicas(cases, hardware).ranks, 1.0)
    stage_layers = cases.layers / cases.pp
    share_s, largest_s = np.zeros(1), np.zeros(1)
    for matrix, layer_share, is_expert in _matrices(cases):
        matrix_s = np.where(layer_share * matrix.count > 0, _matrix_seconds(cases, hardware, tuned, matrix), 0.0)
        ranks = owners if is_expert else shards
        share_s = share_s + stage_layers * layer_share * matrix.count * matrix_s / ranks
        largest_s = np.maximum(largest_s, matrix_s)
    return np.where(cases.muon_iterations > 0, np.maximum(share_s, largest_s), 0.0)


def largest_matrix(cases: Cases) -> Column:
    """Weights of the largest matrix of a layer on a rank of tp and ep."""
    largest = np.zeros(1)
    for matrix, layer_share, _ in _matrices(cases):
        size = np.where(layer_share * matrix.count > 0, matrix.columns * matrix.depth, 0.0)
        largest = np.maximum(largest, size)
    return largest


def _matrices(cases: Cases) -> Iterator[tuple[Product, Column, bool]]:
    """(product of the matrix, share of the layers that have it, whether it belongs to a routed expert) of each."""
    dense_share, moe_share = (kind / cases.layers for kind in shapes.layer_kinds(cases))
    attention_share, space_share = shapes.mixer_shares(cases)
    for products, share in (
        (shapes.attention_products(cases), attention_share), (shapes.space_products(cases), space_share),
        (shapes.dense_products(cases), dense_share), (shapes.common_expert_products(cases), moe_share),
    ):  # fmt: skip
        for each in products:
            yield each, share, False
    for each in shapes.expert_products(cases):
        yield each, moe_share, True


def _matrix_seconds(cases: Cases, hardware: RankHardware, tuned: Constants, matrix: Product) -> Column:
    """Seconds for all iterations on a matrix of m x n, m <= n, as three products each: its square, m x m, the square of
    that, and the result times the matrix."""
    m, n = (choose(matrix.columns, matrix.depth) for choose in (np.minimum, np.maximum))
    products = (Product(m, m, n), Product(m, m, m), Product(m, n, m))
    return cases.muon_iterations * sum((product(hardware, tuned, each) for each in products), np.zeros(1))
