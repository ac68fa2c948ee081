"""The `Task` of click prediction, and its `Samples`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import cast

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from trainyard.job import Job
from trainyard.train.model.distributions import Constant, Distribution, Normal, Uniform
from trainyard.train.parallel.mesh import Meshes
from trainyard.train.recommender.clicks import Planted, hot_share
from trainyard.train.recommender.dlrm import ClickModel
from trainyard.train.recommender.embeddings import ByRow, ByTable
from trainyard.train.recommender.recommender_sizes import Dlrm
from trainyard.train.step.precision import compute_dtype
from trainyard.train.step.profiler_span import span
from trainyard.train.task import Batch

_LAST_DEVIATION = 0.01
"""Standard deviation of the last matrix: small, so that the initial loss is ln 2."""

_HOT_ROWS = 100


class Predict:
    """A `Task` and `SplitTask`. Outputs are logits (B), targets clicks (B)."""

    def __init__(self, job: Job, sizes: Dlrm) -> None:
        self.sizes = sizes
        self.seed = job.recipe.seed
        self.dtype = compute_dtype(job.recipe)
        self.row_gradients = job.recipe.updates_rows

    def module(self) -> nn.Module:
        return ClickModel(self.sizes, self.dtype, row_gradients=self.row_gradients)

    def blocks(self, module: nn.Module) -> Mapping[str, nn.Module]:
        return cast(ClickModel, module).blocks

    def split(self, module: nn.Module, meshes: Meshes) -> None:
        """Replaces the model's embedding by one that is sharded over all data-parallel ranks, by row or by table.
        Replicated tables with gradients of rows get the group of the ranks; others are left as they are."""
        sharded_types = {"by_row": ByRow, "by_table": ByTable}
        model = cast(ClickModel, module)
        if self.sizes.tables in sharded_types:
            with torch.device("meta"):
                model.embed = sharded_types[self.sizes.tables](
                    self.sizes, self.dtype, _ranks(meshes), row_gradients=self.row_gradients
                )
        elif self.row_gradients:
            model.embed.replicas = _ranks(meshes).get_group()

    def distribution(self, name: str, shape: torch.Size) -> Distribution:
        """DLRM's initialization: biases are zero, tables uniform with the bound 1 / sqrt(rows), and matrices normal
        with the variance of Glorot and Bengio (2010)."""
        if len(shape) == 1:
            return Constant(0.0)
        if name.startswith("embed."):
            return Uniform(shape[0] ** -0.5)
        if name == f"top.{len(self.sizes.top) - 1}.weight":
            return Normal(_LAST_DEVIATION)
        return Normal((2 / sum(shape)) ** 0.5)

    def loss(self, outputs: Tensor, targets: tuple[Tensor, ...]) -> Tensor:
        """Cross-entropy in nats per sample."""
        with span("loss"):
            return F.binary_cross_entropy_with_logits(outputs.float(), targets[0])


def _ranks(meshes: Meshes) -> DeviceMesh:
    """The mesh of all ranks; if they form a single axis, that axis, so that profiles name it by the axis."""
    axis = meshes.layout.only_axis
    return meshes.data[axis] if axis else meshes.world


class Clicks:
    """`Samples`: inputs are dense features (B, F) and ids (B, I), targets are clicks (B), 0 or 1."""

    def __init__(self, job: Job, sizes: Dlrm) -> None:
        """The samples of a job, drawn from a random model (`Planted`) that the recommender can learn. `source`: their
        description; `sha256`: digest of all that determines them."""
        self.planted = Planted(sizes, job.recipe.seed)
        hot_fraction = hot_share(max(sizes.rows), sizes.skew, _HOT_ROWS)
        self.source = (
            f"synthetic clicks of a planted model: normal features, ids by Zipf's law with exponent {sizes.skew:g}, by "
            f"which {hot_fraction:.1%} of the largest table's are of its {_HOT_ROWS} hottest rows"
        )
        definition = [sizes.dense, sizes.rows, sizes.hots, sizes.skew, job.recipe.seed]
        self.sha256 = hashlib.sha256(msgspec.json.encode([self.source, definition])).hexdigest()

    def batch(self, step: int, indices: range) -> Batch:
        dense, ids, clicks = map(torch.from_numpy, self.planted.batch(step, indices))
        return Batch((dense, ids), (clicks,))
