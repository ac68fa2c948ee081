"""How the routers of a run spread tokens over experts: the chart and the table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainyard import units
from trainyard.record import Run
from trainyard.report.view.charts import ExpertLoad
from trainyard.report.view.natural_order import natural_key
from trainyard.report.view.view import Column, Table

_MOST_COUNTS = 40_000
"""Counts of a chart; of larger runs, fewer steps are shown."""
_MOST_LAYERS = 256
_TITLE = "Expert load by layer"


def expert_load(run: Run) -> ExpertLoad | None:
    """The recorded tokens per expert of the last attempts; None if the samples have none. Layers whose number of
    experts differs from that of the first one, and steps without all layers, are left out."""
    counts: dict[int, dict[str, tuple[int, ...]]] = {}
    for sample in run.kept():
        if sample.experts:
            counts.setdefault(sample.step, {}).update(sample.experts)
    names = max(counts.values(), key=len, default={})
    layers = sorted(names, key=natural_key)[:_MOST_LAYERS]
    if not layers or not names[layers[0]]:
        return None
    expert_count = len(names[layers[0]])
    layers = [layer for layer in layers if len(names[layer]) == expert_count]
    steps = [step for step in sorted(counts) if _is_complete(counts[step], layers, expert_count)]
    if not steps:
        return None
    shown = max(2, _MOST_COUNTS // (len(layers) * expert_count))
    if len(steps) > shown:
        steps = [steps[index] for index in np.unique(np.linspace(0, len(steps) - 1, shown).astype(int))]
    return ExpertLoad(
        layers=tuple(layers),
        experts=expert_count,
        steps=tuple(step + 1 for step in steps),
        tokens=tuple(tuple(counts[step][layer] for layer in layers) for step in steps),
        table=_TITLE,
    )


def _is_complete(of_step: dict[str, tuple[int, ...]], layers: list[str], expert_count: int) -> bool:
    """Whether a step has the counts of all `layers`, of `expert_count` experts each, and a token in each layer."""
    return all(
        len(row := of_step.get(layer, ())) == expert_count and min(row) >= 0 and 0 < sum(row) < 2**53
        for layer in layers
    )


def expert_table(load: ExpertLoad) -> Table:
    """The imbalance of each layer over the recorded steps, and the experts with the most and the fewest tokens."""
    tokens = np.array(load.tokens, np.float64)  # (steps, layers, experts)
    imbalance = imbalances(tokens)
    of_layer = tokens.sum(axis=0)
    busiest, idlest = of_layer.argmax(axis=1), of_layer.argmin(axis=1)
    shares = 100 * of_layer / of_layer.sum(axis=1, keepdims=True)
    worst = imbalance.argmax(axis=0)
    rows = tuple(
        (
            layer,
            float(imbalance[:, row].mean()),
            float(imbalance[worst[row], row]),
            load.steps[int(worst[row])],
            int(busiest[row]),
            float(shares[row, busiest[row]]),
            int(idlest[row]),
            float(shares[row, idlest[row]]),
            int((of_layer[row] == 0).sum()),
        )
        for row, layer in enumerate(load.layers)
    )
    even = 100 / load.experts
    return Table(
        title=_TITLE,
        notes=(
            f"Tokens of {units.counted(load.experts, 'expert')} in {units.counted(len(load.steps), 'recorded step')}, "
            f"over the global batch. An even share is {even:.3g} %. No token is dropped: experts have no capacity "
            "limit.",
        ),
        columns=(
            Column(title="Layer"),
            Column(title="Max/mean", digits=2, note="Max/mean: tokens of the busiest expert by the mean, of a step."),
            Column(title="Worst", digits=2, note="Worst: the highest max/mean of a recorded step."),
            Column(title="in step", digits=0),
            Column(title="Busiest", digits=0),
            Column(title="its share, %", digits=2),
            Column(title="Idlest", digits=0, optional=True),
            Column(title="its share, %", digits=2, optional=True),
            Column(title="Unused", digits=0, note="Unused: experts without a token in these steps."),
        ),
        rows=rows,
    )


def imbalances(tokens: NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest count divided by the mean, along the last axis."""
    return tokens.max(axis=-1) / tokens.mean(axis=-1)
