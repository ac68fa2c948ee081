"""unfused_elementwise: chains of elementwise kernels that each read and write the whole tensor.

What it does: finds three and more different elementwise kernels in a row on one stream, of one module; fused, a chain
costs as much as its longest member (or the one that moves most), since traffic to memory is all it is. One kernel over
and over is a loop over many tensors, where fusing saves no traffic, and ends a chain.
Why it matters: each kernel of a chain reads what the one before has just written.
Example: a hand-written GELU is eight kernels; fused it is one.
Remedy: torch.compile, or the fused op (`F.gelu`, `F.rms_norm`, a fused loss).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainyard import units
from trainyard.booked import Booked
from trainyard.detect.finding_text import each_step, finding, matters, short
from trainyard.detect.select_events import owned, work
from trainyard.events import I64
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

_CHAIN = 3  # two are an op and a cast, which nobody fuses by hand
_LONG_NS = 5_000  # shorter ones cost their launch and no traffic: the tiny kernels' rule has them
_SURE = 0.6  # that they are of like size is likely and not seen


class UnfusedElementwise:
    rule = "unfused_elementwise"
    needs = ("ledger", "events")

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Booked] | None) -> Sequence[Finding]:
        ranks = events or ()
        chains = [_chains(rank) for rank in ranks]
        saved = each_step(ranks, (_saved(rank, own) for rank, own in zip(ranks, chains)))
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
    """Rows of each chain: consecutive elementwise work on a stream, by one module, where the file names modules."""
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
    """Of each chain all but its longest member; where the file tells what each moves, not more than the traffic of all
    but the one that moves most."""
    return sum(_without_largest(booked.owned[chain], booked.bytes[chain]) for chain in chains)


def _without_largest(ns: I64, moved: I64) -> int:
    total = int(ns.sum())
    by_time = total - int(ns.max())
    if (moved <= 0).any():
        return by_time
    return min(by_time, total * int(moved.sum() - moved.max()) // int(moved.sum()))


def _dearest(events: Sequence[Booked], chains: Sequence[list[I64]]) -> str:
    """The module whose chains waste most."""
    totals: dict[str, int] = {}
    for rank, own in zip(events, chains):
        for chain in own:
            number = int(rank.module[chain[0]])
            if number >= 0:
                name = rank.events.names[number].removeprefix("nn.Module: ")
                totals[name] = totals.get(name, 0) + _saved(rank, [chain])
    return f", most of it in {short(max(totals, key=lambda name: totals[name]))}" if totals else ""
