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
from trainyard.detect.finding_text import finding, matters, mean_per_step, shorten
from trainyard.detect.select_events import owned, work
from trainyard.events import I64
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

_CHAIN = 3  # two are usually an op and a cast, which are not fused by hand
_LONG_NS = 5_000  # shorter ones are launch-bound and left to tiny_kernels
_SURE = 0.6  # that the kernels process tensors of similar size is likely but not measured


class UnfusedElementwise:
    rule = "unfused_elementwise"
    needs = ("ledger", "events")

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Booked] | None) -> Sequence[Finding]:
        ranks = events or ()
        chains = [_chains(rank) for rank in ranks]
        saved = mean_per_step(ranks, (_saved(rank, own) for rank, own in zip(ranks, chains)))
        if not matters(ledger, saved):
            return ()
        number = sum(len(own) for own in chains) // max(1, sum(rank.steps for rank in ranks))
        kernels = [np.concatenate(own) if own else np.empty(0, np.int64) for own in chains]
        length = max(len(chain) for own in chains for chain in own)
        return finding(
            self.rule,
            ledger,
            Account("compute", "elementwise"),
            saved,
            f"{number:,} chain{'s' if number != 1 else ''} of elementwise kernels a step, unfused, waste",
            evidence=f"{units.show_time(owned(ranks, kernels))} in chains of up to {length}" + _dearest(ranks, chains),
            remedy="Fuse them: torch.compile, or the library's fused op.",
            sure=_SURE,
        )


def _chains(booked: Booked) -> list[I64]:
    """Rows of each chain: consecutive elementwise kernels on a stream and, if the file names modules, in one module."""
    every = work(booked, "compute")
    every = every[booked.stop[every] - booked.start[every] >= _LONG_NS]
    if not len(every):
        return []
    stream = booked.events.work.stream[every] if booked.on_device else np.zeros(len(every), np.int32)
    every = every[np.lexsort((booked.start[every], stream))]
    stream = np.sort(stream, kind="stable")
    fusible = booked.keys(lambda account, _: (account.kind, account.what) == ("compute", "elementwise"))
    member = fusible[booked.key[every]]
    module = booked.module[every]
    name = booked.name[every]
    new = (
        (name[1:] == name[:-1])
        | (module[1:] != module[:-1])
        | (stream[1:] != stream[:-1])
        | (member[1:] != member[:-1])
    )
    pieces = np.split(every, np.flatnonzero(new) + 1)
    return [piece for piece in pieces if len(piece) >= _CHAIN and fusible[booked.key[piece[0]]]]


def _saved(booked: Booked, chains: list[I64]) -> int:
    """ns that fusing saves: all but the longest kernel of each chain. If the bytes are known, at most the traffic of
    all but the kernel that moves most."""
    return sum(_without_largest(booked.owned[chain], booked.bytes[chain]) for chain in chains)


def _without_largest(ns: I64, moved: I64) -> int:
    total = int(ns.sum())
    by_time = total - int(ns.max())
    if (moved <= 0).any():
        return by_time
    return min(by_time, total * int(moved.sum() - moved.max()) // int(moved.sum()))


def _dearest(events: Sequence[Booked], chains: Sequence[list[I64]]) -> str:
    """Evidence: the module whose chains waste most."""
    totals: dict[str, int] = {}
    for rank, own in zip(events, chains):
        for chain in own:
            number = int(rank.module[chain[0]])
            if number >= 0:
                name = rank.events.names[number].removeprefix("nn.Module: ")
                totals[name] = totals.get(name, 0) + _saved(rank, [chain])
    return f", mostly in {shorten(max(totals, key=lambda name: totals[name]))}" if totals else ""
