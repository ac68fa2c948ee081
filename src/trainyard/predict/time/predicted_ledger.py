"""Conversion of a predicted step, columns of seconds, into a ledger that balances to the nanosecond."""

from __future__ import annotations

import numpy as np

from trainyard.ledger import Account, Entry, Ledger, Scope
from trainyard.predict.inputs.cases import Column
from trainyard.predict.time.step import StepTime

_NS_PER_SECOND = 1_000_000_000


def ledger(predicted: StepTime, index: int, ranks: int, source: str) -> Ledger:
    """The step of case `index` as a ledger, mean over its `ranks`. The largest entry absorbs the rounding error."""

    def value_at(column: Column | float) -> float:
        return float(np.ravel(column)[index if np.size(column) > 1 else 0])

    seconds_of: dict[tuple[str, str], list[float]] = {}
    for line in predicted.lines:
        exposed, hidden = value_at(line.seconds), value_at(line.hidden)
        if exposed > 0 or hidden > 0:
            exposed_hidden = seconds_of.setdefault((line.account, line.phase), [0.0, 0.0])
            exposed_hidden[0] += exposed
            exposed_hidden[1] += hidden
    wall_ns = round(value_at(predicted.wall) * _NS_PER_SECOND)
    ns_of = {key: int(exposed * _NS_PER_SECOND) for key, (exposed, _) in seconds_of.items()}
    largest = max(ns_of, key=lambda key: ns_of[key])
    ns_of[largest] += wall_ns - sum(ns_of.values())
    return Ledger(
        wall_ns=wall_ns,
        entries=tuple(
            Entry(
                account=Account.parse(account),
                phase=phase,
                ns=ns,
                hidden_ns=int(seconds_of[account, phase][1] * _NS_PER_SECOND),
                how="modelled",
            )
            for (account, phase), ns in ns_of.items()
        ),
        basis="predicted",
        scope=Scope(steps=("predicted",), ranks=tuple(range(ranks)) if ranks <= 64 else (), reduce="mean"),
        source=source,
    )
