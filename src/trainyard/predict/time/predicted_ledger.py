"""Conversion of a predicted step, columns of seconds, into a ledger that balances to the nanosecond."""

from __future__ import annotations

import numpy as np

from trainyard.ledger import Account, Entry, Ledger, Scope
from trainyard.predict.inputs.cases import Column
from trainyard.predict.time.step import StepTime

_S = 1_000_000_000


def ledger(predicted: StepTime, index: int, ranks: int, source: str) -> Ledger:
    """The step of case `index`, mean over its ranks. The largest entry absorbs the rounding error."""

    def at(column: Column | float) -> float:
        return float(np.ravel(column)[index if np.size(column) > 1 else 0])

    exposed: dict[tuple[str, str], list[float]] = {}
    for line in predicted.lines:
        spent, hidden = at(line.seconds), at(line.hidden)
        if spent > 0 or hidden > 0:
            both = exposed.setdefault((line.account, line.phase), [0.0, 0.0])
            both[0] += spent
            both[1] += hidden
    wall = round(at(predicted.wall) * _S)
    rounded = {key: int(spent * _S) for key, (spent, _) in exposed.items()}
    fullest = max(rounded, key=lambda key: rounded[key])
    rounded[fullest] += wall - sum(rounded.values())
    return Ledger(
        wall_ns=wall,
        entries=tuple(
            Entry(
                account=Account.parse(account),
                phase=phase,
                ns=ns,
                hidden_ns=int(exposed[account, phase][1] * _S),
                how="modelled",
            )
            for (account, phase), ns in rounded.items()
        ),
        basis="predicted",
        scope=Scope(steps=("predicted",), ranks=tuple(range(ranks)) if ranks <= 64 else (), reduce="mean"),
        source=source,
    )
