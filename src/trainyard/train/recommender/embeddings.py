"""Embedding tables of categorical features: replicated, sharded by row, or sharded by table (Mudigere et al. 2021,
arXiv:2104.05158, section 4.2).

Rows are summed in float32. Gradients are dense, as large as the tables, or with `row_gradients` sparse: of the rows
that were looked up.

Shapes: B samples, T tables, D width, I ids of a sample over all tables, H of them of one table, R ranks, N = R B.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from trainyard.train.parallel.differentiable_collectives import exchange, gather, sum_and_scatter
from trainyard.train.parallel.local_part import local_part
from trainyard.train.recommender.recommender_sizes import Dlrm, assign_tables
from trainyard.train.step.profiler_span import span
from trainyard.train.task import RowTable


class EmbeddingTable(nn.Module):
    """One table with `weight` (rows, D)."""

    def __init__(self, rows: int, width: int, row_gradients: bool) -> None:
        """`looked_up`: as in `RowTable`; stays empty without `row_gradients`."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))
        self.row_gradients = row_gradients
        self.looked_up: list[Tensor] = []

    def forward(self, ids_BH: Tensor) -> Tensor:
        """The sum of the rows of each sample, (B, D)."""
        return F.embedding_bag(ids_BH, self.own_rows(), mode="sum", sparse=self.row_gradients)

    def own_rows(self) -> Tensor:
        """The rows on this rank, to look up. With `row_gradients`, a new leaf with the same memory, which gets the
        gradient: that of `weight` could not be sparse if it is sharded."""
        rows = local_part(self.weight)
        if not (self.row_gradients and torch.is_grad_enabled()):
            return rows
        self.looked_up.append(rows.detach().requires_grad_())
        return self.looked_up[-1]


class Embeddings(nn.ModuleDict):
    """All tables by number, on this rank. Maps ids (B, I) to vectors (B, T, D) in `dtype`."""

    replicas: ProcessGroup | None = None

    def __init__(self, sizes: Dlrm, dtype: torch.dtype, tables: Iterable[int], *, row_gradients: bool = False) -> None:
        super().__init__(
            {str(table): EmbeddingTable(sizes.rows[table], sizes.width, row_gradients) for table in tables}
        )
        self.sizes = sizes
        self.compute_dtype = dtype
        self.row_gradients = row_gradients

    def table(self, number: int) -> EmbeddingTable:
        return cast(EmbeddingTable, self[str(number)])

    def row_tables(self) -> Sequence[RowTable]:
        """Implements `HasRowTables`."""
        tables = cast(Iterable[EmbeddingTable], self.values()) if self.row_gradients else ()
        return [RowTable(table.weight, table.looked_up) for table in tables]

    def forward(self, ids_BI: Tensor) -> Tensor:
        """Sums the vectors of each table's ids (H of the I per sample). Returns (B, T, D) for T tables."""
        with span("embed"):
            ids_by_table = ids_BI.split(self.sizes.hots, dim=1)
            return torch.stack([self.table(number)(ids_BH) for number, ids_BH in enumerate(ids_by_table)], dim=1).to(
                self.compute_dtype
            )


class Replicated(Embeddings):
    """Whole tables on every rank, with gradients of rows. A `SelfSharded` module, since DDP and FSDP would reduce
    gradients as large as the tables."""

    def __init__(self, sizes: Dlrm, dtype: torch.dtype, replicas: ProcessGroup | None = None) -> None:
        super().__init__(sizes, dtype, range(len(sizes.rows)), row_gradients=True)
        self.replicas = replicas

    def unshared(self) -> Sequence[nn.Parameter]:
        return ()

    # Not compiled: gradients are sparse.
    @torch.compiler.disable
    def forward(self, ids_BI: Tensor) -> Tensor:
        return super().forward(ids_BI)


class ByRow(Embeddings):
    """Tables sharded by row; a `SelfSharded` module. Each rank gathers the ids of all ranks and sums its own rows for
    them; the partial sums are reduce-scattered to the samples' ranks."""

    def __init__(self, sizes: Dlrm, dtype: torch.dtype, mesh: DeviceMesh, *, row_gradients: bool = False) -> None:
        """Shards the rows of every table over the mesh. Each rank builds all rows with equal values and keeps its part:
        with `src_data_rank=None`, `distribute_tensor` sends nothing."""
        super().__init__(sizes, dtype, range(len(sizes.rows)), row_gradients=row_gradients)
        self.mesh = mesh
        for table in self.values():
            rows = distribute_tensor(cast(EmbeddingTable, table).weight.detach(), mesh, (Shard(0),), src_data_rank=None)
            table.weight = nn.Parameter(rows)

    def unshared(self) -> Sequence[nn.Parameter]:
        return ()

    # Not compiled: the number of ids on this rank is known only at run time.
    @torch.compiler.disable
    def forward(self, ids_BI: Tensor) -> Tensor:
        """As `Embeddings.forward`: gathers the ids of all N = ranks B samples, sums this rank's rows, then sums over
        the ranks and keeps the own samples."""
        with span("embed"):
            group = self.mesh.get_group()
            ids_by_table = gather(ids_BI, group).split(self.sizes.hots, dim=1)
            sums_NTD = torch.stack([self._own_sums(table, ids_NH) for table, ids_NH in enumerate(ids_by_table)], dim=1)
            return _average_gradient(sum_and_scatter(sums_NTD, group), group.size()).to(self.compute_dtype)

    def _own_sums(self, table: int, ids_NH: Tensor) -> Tensor:
        """The sums over this rank's rows of `table`, (N, D), for the ids (N, H) of all ranks' samples; zero for a
        sample without any."""
        rows = self.table(table).own_rows()
        # DTensor gives each rank ceil(rows / ranks) consecutive rows; the last ranks may have fewer or none.
        first_row = min(
            self.sizes.rows[table], self.mesh.get_local_rank() * -(-self.sizes.rows[table] // self.mesh.size())
        )
        is_own_NH = (ids_NH >= first_row) & (ids_NH < first_row + len(rows))
        own_count_N = is_own_NH.sum(dim=1)
        return F.embedding_bag(
            ids_NH[is_own_NH] - first_row,
            rows,
            own_count_N.cumsum(0) - own_count_N,
            mode="sum",
            sparse=self.row_gradients,
        )


class ByTable(Embeddings):
    """Tables sharded by table; a `SelfSharded` module. Ids are sent to the rank that has their table, and sums are sent
    back."""

    def __init__(self, sizes: Dlrm, dtype: torch.dtype, mesh: DeviceMesh, *, row_gradients: bool = False) -> None:
        self.owners = assign_tables(sizes.rows, mesh.size())
        super().__init__(sizes, dtype, self.owners[mesh.get_local_rank()], row_gradients=row_gradients)
        self.mesh = mesh

    def unshared(self) -> Sequence[nn.Parameter]:
        return list(self.parameters())

    @torch.compiler.disable
    def forward(self, ids_BI: Tensor) -> Tensor:
        """As `Embeddings.forward`: sends ids to the ranks that own the tables, sums there, and sends the sums back. The
        result is in the order of the tables."""
        with span("embed"):
            group, ranks, samples = self.mesh.get_group(), self.mesh.size(), len(ids_BI)
            hots, width, own_tables = self.sizes.hots, self.sizes.width, self.owners[self.mesh.get_local_rank()]
            ids_by_table = ids_BI.split(hots, dim=1)
            # self.owners: the table numbers of each rank. Ids are grouped by the rank that has their table.
            sent_ids = [torch.cat([ids_by_table[table] for table in tables], dim=1).flatten() for tables in self.owners]
            sent_counts = [len(part) for part in sent_ids]  # ids to each rank
            received_counts = [samples * sum(hots[table] for table in own_tables)] * ranks  # ids from each rank
            ids = exchange(torch.cat(sent_ids), group, sent_counts, received_counts)
            ids_NI = ids.view(ranks * samples, -1).split([hots[table] for table in own_tables], dim=1)
            sums = torch.stack([self.table(table)(ids_NH) for table, ids_NH in zip(own_tables, ids_NI)], dim=1)
            sent_counts = [sums.numel() // ranks] * ranks  # values to each rank
            received_counts = [samples * len(tables) * width for tables in self.owners]  # values from each rank
            returned = _average_gradient(
                exchange(sums.to(self.compute_dtype).flatten(), group, sent_counts, received_counts), ranks
            )
            sums_BTD = torch.cat([part.view(samples, -1, width) for part in returned.split(received_counts)], dim=1)
            order = torch.tensor([table for tables in self.owners for table in tables], device=sums.device)
            return sums_BTD.index_select(1, order.argsort())


def _average_gradient(x: Tensor, ranks: int) -> Tensor:
    """Returns `x` with its gradient divided by the number of ranks: like all parameters, tables get the gradient of the
    mean of the ranks' losses."""
    if x.requires_grad:
        x.register_hook(lambda grad: grad / ranks)
    return x
