"""The job: a Model or other sizes, a Layout and a Recipe, trained by a Workload on a Machine.

A job is a TOML file (`job_file.py`). Axis names are torchtitan's (`dp_replicate`, `dp_shard`, `tp`, `cp`, `pp`, `ep`).
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Literal

import msgspec
from msgspec.structs import replace

from trainyard import batch_shares
from trainyard.errors import BadJob
from trainyard.layout import FACTORS, Layout
from trainyard.model import Model
from trainyard.recipe import Recipe

SCRIPT = "script"
"""The workload of a run of the user's own script, of which only the command and the samples are known."""
PROFILER_WARMUP = 1
"""Profiled steps that are discarded before the window: they include the profiler's start-up."""


class Measure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The steps of a run: `warmup` discarded steps, then `repeats` x `steps` without the profiler, then `profiled`
    steps with it. A resumed run repeats the discarded steps. They are unrelated to `warmup_steps` of `[recipe]`, over
    which the learning rate rises. `stacks`: sample the Python stacks of each rank in the profiled steps, so that
    findings name files and lines. `shapes`: record the shapes of ops on a CPU too, where it makes steps several times
    as long; on an accelerator they are always recorded. `memory`: record allocations, for memory over time and what
    holds its peak."""

    warmup: int = 3
    steps: int = 5
    repeats: int = 2
    profiled: int = 3
    stacks: bool = False
    shapes: bool = False
    memory: bool = False

    def __post_init__(self) -> None:
        for field, least in (("warmup", 0), ("steps", 1), ("repeats", 1), ("profiled", 0)):
            if getattr(self, field) < least:
                raise BadJob(f"{field} = {getattr(self, field)} must be at least {least}.")

    @property
    def in_window(self) -> int:
        """Steps under the profiler, including discarded ones."""
        return PROFILER_WARMUP + self.profiled if self.profiled else 0

    @property
    def in_all(self) -> int:
        """Total steps of a rank."""
        return self.warmup + self.steps * self.repeats + self.in_window


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Checkpointing: save after every `interval` steps (0: never) and keep the last `keep_latest_k`. `mode` async:
    training continues while the state is copied to host memory and written; only the next update waits for the
    copies."""

    interval: int = 0
    keep_latest_k: int = 2
    mode: Literal["sync", "async"] = "sync"

    def __post_init__(self) -> None:
        for field, least in (("interval", 0), ("keep_latest_k", 1)):
            if getattr(self, field) < least:
                raise BadJob(f"{field} = {getattr(self, field)} must be at least {least}.")


class Recovery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fault tolerance: if a rank is lost, the job restarts from its last good checkpoint, at most `max_restarts` times.

    `hang_timeout_s`: seconds without a step until a rank counts as hung; 5 times as long while it starts or saves, 15
    times while it finishes. `nodes`: number of nodes that divide the ranks; on a single machine, the number of agents,
    each simulating a node. With at least `min_nodes` of them (0: all) the job continues with fewer replicas.
    `ranks_per_node`: the number of ranks of each node, in order, if they differ; the job then needs all nodes. Empty:
    equal numbers.
    """

    max_restarts: int = 0
    hang_timeout_s: float = 120.0
    nodes: int = 1
    min_nodes: int = 0
    ranks_per_node: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raises `BadJob` if a number is out of range, or the numbers of nodes differ."""
        for field, least in (("max_restarts", 0), ("nodes", 1), ("min_nodes", 0)):
            if getattr(self, field) < least:
                raise BadJob(f"{field} = {getattr(self, field)} must be at least {least}.")
        if not self.hang_timeout_s > 0:
            raise BadJob(f"hang_timeout_s = {self.hang_timeout_s} must be more than 0.")
        if self.min_nodes > self.nodes:
            raise BadJob(f"min_nodes = {self.min_nodes} is more than nodes = {self.nodes}.")
        if self.ranks_per_node:
            self._check_ranks_per_node()

    def _check_ranks_per_node(self) -> None:
        """Raises `BadJob` unless `ranks_per_node` has a positive number for each node, all of which are needed."""
        ranks, count = f"ranks_per_node = {list(self.ranks_per_node)}", len(self.ranks_per_node)
        if count != self.nodes:
            raise BadJob(f"{ranks} has {count} items, but nodes = {self.nodes}.", f"Set nodes = {count}.")
        if min(self.ranks_per_node) < 1:
            raise BadJob(f"{ranks} has an item {min(self.ranks_per_node)}, but each node needs a rank.")
        if 0 < self.min_nodes < self.nodes and len(set(self.ranks_per_node)) > 1:
            raise BadJob(
                f"min_nodes = {self.min_nodes} is less than nodes = {self.nodes} with {ranks}, but only equal nodes "
                "can continue with fewer.",
                f"Use min_nodes = {self.nodes}, or equal numbers of ranks.",
            )


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job. `machine`: name or path of the machine file that the job is planned and launched for. Without effect on
    `run`, which trains on the machine that it is started on.

    `model`: a decoder, for the workloads that train one; any other workload uses `sizes`.
    """

    name: str = "unnamed"
    workload: str = "transformer"
    machine: str = ""
    model: Model | None = None
    sizes: dict[str, bool | int | float | str | list[int]] = {}
    layout: Layout = Layout()
    recipe: Recipe
    measure: Measure = Measure()
    checkpoint: Checkpoint = Checkpoint()
    recovery: Recovery = Recovery()

    def __post_init__(self) -> None:
        """Raises `BadJob` unless a step is a whole number of micro-batches on every data-parallel replica, and the
        nodes have all ranks."""
        stated_ranks = sum(self.recovery.ranks_per_node)
        if stated_ranks and stated_ranks != self.layout.ranks:
            raise BadJob(
                f"ranks_per_node = {list(self.recovery.ranks_per_node)} at $.recovery is {stated_ranks} ranks, but the "
                f"layout ({self.layout}) has {self.layout.ranks}.",
                "Change [layout] or ranks_per_node.",
            )
        if self.workload == SCRIPT:
            return
        if self.recipe.tokens_per_step < 1:
            raise BadJob(f"tokens_per_step = {self.recipe.tokens_per_step} at $.recipe must be at least 1.")
        # Tokens of the least micro-batches in proportion to the shares, of which a step has a whole multiple.
        slice_tokens = self.recipe.seq_len * self.recipe.micro_batch_size * self._slice_micro_batches
        if self.recipe.tokens_per_step % slice_tokens:
            layout, count = self.layout, self._slice_micro_batches
            factor = f"data-parallel ranks {count}" if layout.has_equal_shares else f"sum of the batch shares {count}"
            raise BadJob(
                f"tokens_per_step {self.recipe.tokens_per_step:,} is not a multiple of seq_len "
                f"{self.recipe.seq_len} * micro_batch_size {self.recipe.micro_batch_size} * "
                f"{factor} = {slice_tokens:,}.",
                f"Use tokens_per_step = {max(1, round(self.recipe.tokens_per_step / slice_tokens)) * slice_tokens}.",
            )

    @property
    def decoder(self) -> Model:
        """`model` of a workload that trains a decoder. Raises `BadJob` if the job has none."""
        if self.model is None:
            raise BadJob(f"workload = {self.workload!r} trains a decoder, but there is no $.model.", "Add [model].")
        return self.model

    @property
    def trace_axis(self) -> str:
        """The mesh axis of all communication in the job's traces; empty if there are several, or if it is unknown: the
        layout of a script is only its number of ranks."""
        return "" if self.workload == SCRIPT else self.layout.only_axis

    def node_ranks(self, node: int) -> int:
        """Number of ranks of a node, of all nodes of the job."""
        return (
            self.recovery.ranks_per_node[node]
            if self.recovery.ranks_per_node
            else self.layout.ranks // self.recovery.nodes
        )

    def node_of(self, rank: int) -> int:
        """The node of a rank if all nodes of the job take part."""
        return bisect_right(list(accumulate(map(self.node_ranks, range(self.recovery.nodes)))), rank)

    def ranks_on(self, nodes: int) -> int:
        """Number of ranks in an attempt on this number of nodes."""
        return sum(self.node_ranks(node) for node in range(nodes))

    @property
    def _slice_micro_batches(self) -> int:
        """The least number of micro-batches of all data-parallel replicas that are in proportion to their shares."""
        shares = batch_shares.lowest_terms(self.layout.batch_shares)
        return sum(shares) * (self.layout.batch_ranks // len(shares))

    @property
    def _slices(self) -> int:
        """How often a step repeats the least number of micro-batches."""
        return self.recipe.tokens_per_step // (
            self.recipe.seq_len * self.recipe.micro_batch_size * self._slice_micro_batches
        )

    @property
    def accumulate(self) -> int:
        """Gradient accumulation: micro-batches per rank and step; with batch shares, of the ranks with the most."""
        return self._slices * max(batch_shares.lowest_terms(self.layout.batch_shares))

    @property
    def micro_batches(self) -> tuple[int, ...]:
        """Micro-batches per step of each data-parallel replica."""
        return tuple(self._slices * share for share in self.layout.replica_shares)

    @property
    def mean_micro_batches(self) -> float:
        """Micro-batches per step of a data-parallel replica, the mean over all of them. The gradient of the mean loss
        over all samples is the mean over replicas of the gradients of their summed losses divided by this number."""
        return self._slices * self._slice_micro_batches / self.layout.batch_ranks

    def replica_samples(self, batch_rank: int) -> range:
        """The samples of each global batch that the data-parallel replica `batch_rank` trains on: consecutive, after
        those of the replicas before it."""
        micro_batches, size = self.micro_batches, self.recipe.micro_batch_size
        first = sum(micro_batches[:batch_rank]) * size
        return range(first, first + micro_batches[batch_rank] * size)

    def rank_tokens(self, rank: int) -> int:
        """Tokens per step of a rank: its part of the tokens of its data-parallel replica."""
        layout, recipe = self.layout, self.recipe
        tokens = self.micro_batches[layout.batch_rank(rank)] * recipe.micro_batch_size * recipe.seq_len
        return tokens // (layout.pp * layout.cp * layout.tp)

    def with_equal_shares(self, micro_batches: int) -> Job:
        """The job in which each data-parallel replica has `micro_batches` micro-batches per step: the work of a rank
        with that many in this job."""
        tokens = self.recipe.seq_len * self.recipe.micro_batch_size * self.layout.batch_ranks * micro_batches
        return replace(
            self,
            layout=replace(self.layout, batch_shares=()),
            recipe=replace(self.recipe, tokens_per_step=tokens),
        )

    @property
    def batch(self) -> int:
        """Global batch size: samples per step over all ranks."""
        return self.recipe.tokens_per_step // self.recipe.seq_len

    def check_node_fits(self, node: int, devices: int, where: str) -> None:
        """Raises `BadJob` if a node is to run more ranks than it has `devices`. `where`: the node, for the message."""
        if self.node_ranks(node) > devices:
            nodes, layout = self.recovery.nodes, self.layout
            raise BadJob(
                f"node {node} of {nodes} is to run {self.node_ranks(node)} of the {layout.ranks} ranks of the layout "
                f"({layout}), but {where} has {devices}.",
                "Use more nodes, a smaller [layout], or ranks_per_node at $.recovery in the order of the nodes.",
            )

    def check_fits(self, devices: int, where: str) -> None:
        """Raises `BadJob` with the arithmetic if the layout needs more ranks than `devices`. `where`: what has the
        devices (a machine, a host), for the message."""
        layout = self.layout
        if layout.ranks > devices:
            factors = " * ".join(f"{axis} {getattr(layout, axis)}" for axis in FACTORS if getattr(layout, axis) > 1)
            widest = max(FACTORS, key=lambda axis: getattr(layout, axis))
            raise BadJob(
                f"bad layout at $.layout: {factors} = {layout.ranks} ranks, but {where} has {devices}.",
                f"Lower {widest} to {max(1, getattr(layout, widest) * devices // layout.ranks)}.",
            )
