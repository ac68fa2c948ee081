"""Tables of the traffic between ranks: a matrix (sender x receiver) of few ranks, the largest pairs of many."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard import words
from trainyard.report.view.view import Column, Table
from trainyard.trace.align.traffic import PairTraffic

_MATRIX_RANKS = 8
"""Most ranks of a matrix: eight columns of numbers fit into 80 characters."""
_MOST_PAIRS = 40
_NOTE = "Over the whole window. An all-to-all serves all pairs at once, so the times of pairs do not add up."


def traffic_tables(traffic: Sequence[PairTraffic]) -> tuple[Table, ...]:
    """For each collective with traffic between pairs of ranks: the bytes, and the time of the calls, of each pair."""
    collectives = sorted({pair.collective for pair in traffic})
    return tuple(
        table
        for collective in collectives
        for table in _tables_of([pair for pair in traffic if pair.collective == collective])
    )


def _tables_of(pairs: Sequence[PairTraffic]) -> tuple[Table, ...]:
    """The tables of one collective's pairs."""
    label = words.COLLECTIVES[pairs[0].collective].label
    ranks = sorted({rank for pair in pairs for rank in (pair.sender, pair.receiver)})
    if len(ranks) > _MATRIX_RANKS:
        return (_largest_pairs(label, pairs),)
    return (
        _matrix(f"{label}: MB sent", ranks, {(pair.sender, pair.receiver): pair.bytes / 1e6 for pair in pairs}),
        _matrix(
            f"{label}: time of the calls in ms", ranks, {(pair.sender, pair.receiver): pair.ns / 1e6 for pair in pairs}
        ),
    )


def _matrix(title: str, ranks: Sequence[int], values: dict[tuple[int, int], float]) -> Table:
    """A matrix with a row for each sender and a column for each receiver. `values`: by (sender, receiver)."""
    return Table(
        title=title,
        notes=("Rows are senders, columns are receivers.", _NOTE),
        columns=(Column(title="Sender", digits=0), *(Column(title=f"to {rank}", digits=3) for rank in ranks)),
        rows=tuple((sender, *(values.get((sender, receiver)) for receiver in ranks)) for sender in ranks),
    )


def _largest_pairs(label: str, pairs: Sequence[PairTraffic]) -> Table:
    """The pairs with the most bytes, the largest first."""
    largest = sorted(pairs, key=lambda pair: (-pair.bytes, pair.sender, pair.receiver))[:_MOST_PAIRS]
    mean_bytes = sum(pair.bytes for pair in pairs) / len(pairs)
    return Table(
        title=f"{label}: largest of {len(pairs):,} pairs of ranks",
        notes=(_NOTE, f"The largest pair exchanges {largest[0].bytes / mean_bytes:.2f} times the mean of all pairs."),
        columns=(
            Column(title="Sender", digits=0),
            Column(title="Receiver", digits=0),
            Column(title="MB", digits=3),
            Column(title="calls", digits=0),
            Column(title="time ms", digits=3),
            Column(title="GB/s", digits=2),
        ),
        rows=tuple(
            (
                pair.sender,
                pair.receiver,
                pair.bytes / 1e6,
                pair.calls,
                pair.ns / 1e6,
                pair.bytes / pair.ns if pair.ns else None,
            )
            for pair in largest
        ),
    )
