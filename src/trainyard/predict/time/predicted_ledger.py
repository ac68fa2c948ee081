"""Conversion of a predicted step, columns of seconds, into a ledger that balances to the nanosecond.

A ledger lists the time of a step by account (category, such as `compute/matmul`) and phase; its entries sum to the wall
time. Hidden time is overlapped with other work and is not in the sum.
"""

from __future__ import annotations

import numpy as np

from trainyard.ledger import Account, Entry, Ledger, Scope
from trainyard.predict.inputs.cases import Column
from trainyard.predict.time.step import StepTime

_NS_PER_SECOND = 1_000_000_000
_MAX_LISTED_RANKS = 64
"""Largest number of ranks that the scope of a ledger lists."""


def ledger(predicted: StepTime, index: int, ranks: int, source: str) -> Ledger:
    """The step of case `index` of `predicted` as a ledger, mean over its `ranks`, in integer ns. The largest entry
    absorbs the rounding error. `source`: of the ledger, such as the machine's name."""

    def value_at(column: Column | float) -> float:
        """The value of case `index`; a column of one value, or a number, is that of all cases."""
        return float(np.ravel(column)[index if np.size(column) > 1 else 0])

    seconds_by_key: dict[tuple[str, str], list[float]] = {}  # (account, phase) -> [exposed, hidden]
    for line in predicted.lines:
        exposed, hidden = value_at(line.seconds), value_at(line.hidden)
        if exposed > 0 or hidden > 0:
            exposed_hidden = seconds_by_key.setdefault((line.account, line.phase), [0.0, 0.0])
            exposed_hidden[0] += exposed
            exposed_hidden[1] += hidden
    wall_ns = round(value_at(predicted.wall) * _NS_PER_SECOND)
    ns_by_key = {key: int(exposed * _NS_PER_SECOND) for key, (exposed, _) in seconds_by_key.items()}
    largest_key = max(ns_by_key, key=lambda key: ns_by_key[key])
    ns_by_key[largest_key] += wall_ns - sum(ns_by_key.values())
    return Ledger(
        wall_ns=wall_ns,
        entries=tuple(
            Entry(
                account=Account.parse(account),
                phase=phase,
                ns=ns,
                hidden_ns=int(seconds_by_key[account, phase][1] * _NS_PER_SECOND),
                how="modelled",
            )
            for (account, phase), ns in ns_by_key.items()
        ),
        basis="predicted",
        scope=Scope(
            steps=("predicted",), ranks=tuple(range(ranks)) if ranks <= _MAX_LISTED_RANKS else (), reduce="mean"
        ),
        source=source,
    )
