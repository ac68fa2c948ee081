"""unfused_elementwise: chains of elementwise kernels that each read and write the whole tensor.

What it does: finds three or more different elementwise kernels in a row on one stream and in one module. Fused, a chain
takes as long as its longest kernel (or the one that moves most bytes), since it is bound by memory traffic. The same
kernel repeated is a loop over many tensors, for which fusing saves no traffic; it ends a chain.
Why it matters: each kernel of a chain reads the tensor that the previous one has just written.
Example: a hand-written GELU runs eight kernels; fused, it runs one.
Remedy: torch.compile, or the fused op (`F.gelu`, `F.rms_norm`, a fused loss).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainyard import units
from trainyard.booked import Booked
from trainyard.detect.confidence import confidence
from trainyard.detect.finding_text import count_per_step, finding, matters, mean_per_step, shorten
from trainyard.detect.row_changes import F64, row_change
from trainyard.detect.select_events import owned_ns_per_step, select_work
from trainyard.events import I64
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run
from trainyard.recorded_stacks import MODULE_PREFIX

# `Booked` is one rank's profile. Its columns have one row per interval of work: `start`, `stop`, `owned` (ns booked to
# it), `name` (index into `events.names`), `key` (index into `pairs`: account and phase), `begins` (False if it resumes
# interrupted work). `keys(test)` is a mask over `pairs`, `names(test)` one over names; index them with these columns.
# `idle` has one row per idle interval of the device (on a CPU: of the training thread). `full(times)`: mask of the
# times in full steps.

_MIN_CHAIN_KERNELS = 3  # two are usually an op and a cast, which are not fused by hand
_MIN_KERNEL_NS = 5_000  # shorter ones are launch-bound and left to tiny_kernels
_SIZE_DOUBT = 0.2  # that the kernels process tensors of unequal size, if the file does not show their bytes
_MEMORY_DOUBT = 0.1  # that the values of a chain are needed elsewhere, so that fusing saves less traffic


class UnfusedElementwise:
    rule = "unfused_elementwise"
    needs = ("ledger", "ranks")

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """The time of chains of elementwise kernels that a fused kernel could save.

        `ledger`: the mean step ledger. `run`: unused; the `Detector` protocol has it. `ranks`: the booked profile of
        each rank, None if only a ledger is available; row arrays index its columns, which have one row per interval of
        work. A chain is an array of such rows.
        """
        ranks = ranks or ()
        chains_by_rank = [_find_chains(rank) for rank in ranks]
        saved_ns = mean_per_step(
            ranks, (_fusion_savings_ns(rank, rank_chains) for rank, rank_chains in zip(ranks, chains_by_rank))
        )
        if not matters(ledger, saved_ns):
            return ()
        chain_count = count_per_step(ranks, (len(rank_chains) for rank_chains in chains_by_rank))
        chains = units.counted(chain_count, "unfused chain")
        rows_by_rank = [
            np.concatenate(rank_chains) if rank_chains else np.empty(0, np.int64) for rank_chains in chains_by_rank
        ]
        longest_chain = max(len(chain) for rank_chains in chains_by_rank for chain in rank_chains)
        return finding(
            self.rule,
            ledger,
            Account("compute", "elementwise"),
            saved_ns,
            f"{chains} of elementwise kernels per step waste{'s' if chain_count == 1 else ''}",
            evidence=f"{units.show_time(owned_ns_per_step(ranks, rows_by_rank))} in chains of up to {longest_chain}"
            + _describe_worst_module(ranks, chains_by_rank),
            remedy="Fuse them: torch.compile, or the library's fused op.",
            confidence=confidence(_SIZE_DOUBT * (1 - _known_fraction(ranks, rows_by_rank)), _MEMORY_DOUBT),
            change=row_change(
                self.rule,
                ranks,
                rows=rows_by_rank,
                remaining=[_remaining(rank, chains) for rank, chains in zip(ranks, chains_by_rank)],
            ),
        )


def _known_fraction(ranks: Sequence[Booked], rows_by_rank: Sequence[I64]) -> float:
    """The fraction of the chains' kernels whose bytes are known."""
    known = sum(int((rank.bytes[rows] > 0).sum()) for rank, rows in zip(ranks, rows_by_rank))
    return known / max(1, sum(map(len, rows_by_rank)))


def _find_chains(booked: Booked) -> list[I64]:
    """Rows of each chain: consecutive elementwise kernels on a stream and, if the file names modules, in one module."""
    kernels = select_work(booked, "compute")
    kernels = kernels[booked.stop[kernels] - booked.start[kernels] >= _MIN_KERNEL_NS]
    if not len(kernels):
        return []
    stream = booked.events.work.stream[kernels] if booked.on_device else np.zeros(len(kernels), np.int32)
    kernels = kernels[np.lexsort((booked.start[kernels], stream))]
    stream = np.sort(stream, kind="stable")
    is_fusible_key = booked.keys(lambda account, _: (account.kind, account.what) == ("compute", "elementwise"))
    is_fusible = is_fusible_key[booked.key[kernels]]
    module = booked.module[kernels]
    name = booked.name[kernels]
    # Between consecutive kernels: whether the second one starts a new chain.
    starts_chain = (
        (name[1:] == name[:-1])
        | (module[1:] != module[:-1])
        | (stream[1:] != stream[:-1])
        | (is_fusible[1:] != is_fusible[:-1])
    )
    pieces = np.split(kernels, np.flatnonzero(starts_chain) + 1)
    return [piece for piece in pieces if len(piece) >= _MIN_CHAIN_KERNELS and is_fusible_key[booked.key[piece[0]]]]


def _fusion_savings_ns(booked: Booked, chains: list[I64]) -> int:
    """ns that fusing saves over all steps. `chains`: rows of each chain."""
    return sum(_chain_savings_ns(booked.owned[chain], booked.bytes[chain]) for chain in chains)


def _chain_savings_ns(ns: I64, moved_bytes: I64) -> int:
    """ns that fusing one chain saves, from the columns of its kernels: all but the longest kernel. If the bytes are
    known (-1: unknown), at most the traffic of all but the kernel that moves most."""
    total_ns = int(ns.sum())
    saved_ns = total_ns - int(ns.max())
    if (moved_bytes <= 0).any():
        return saved_ns
    return min(saved_ns, total_ns * int(moved_bytes.sum() - moved_bytes.max()) // int(moved_bytes.sum()))


def _remaining(booked: Booked, chains: list[I64]) -> F64:
    """The fraction of its time that each kernel of the chains keeps if they are fused, in order."""
    return np.concatenate(
        [
            np.full(len(chain), 1 - _fusion_savings_ns(booked, [chain]) / max(1, int(booked.owned[chain].sum())))
            for chain in chains
        ]
        or [np.empty(0)]
    )


def _describe_worst_module(ranks: Sequence[Booked], chains_by_rank: Sequence[list[I64]]) -> str:
    """Evidence: the module whose chains waste most; "" if the files name no modules."""
    saved_by_module: dict[str, int] = {}
    for rank, rank_chains in zip(ranks, chains_by_rank):
        for chain in rank_chains:
            name_index = int(rank.module[chain[0]])
            if name_index >= 0:
                name = rank.events.names[name_index].removeprefix(MODULE_PREFIX)
                saved_by_module[name] = saved_by_module.get(name, 0) + _fusion_savings_ns(rank, [chain])
    if not saved_by_module:
        return ""
    worst = max(saved_by_module, key=lambda name: saved_by_module[name])
    most = 2 * saved_by_module[worst] > sum(saved_by_module.values())
    return f", {'mostly' if most else 'the largest part'} in {shorten(worst)}"
