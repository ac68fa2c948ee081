"""The layouts that `trainyard plan` shows: no two variants of the same layout, those that are tied with
the fastest first, the simplest of these at the top, and plain data parallelism for comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.machine import Machine
from trainyard.predict.economics.training_budget import NO_BUDGET, TrainingBudget
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.search import baseline, layout_ratio, search_space, simplicity, stage_placement, variants
from trainyard.predict.search.layout_cost import LayoutCost
from trainyard.predict.search.points import LayoutPoint
from trainyard.predict.search.search import SearchResult, find_fitting
from trainyard.predict.search.search_space import Runnable, SearchSpace

_MAX_PER_ROW = 40
"""Mean number of variants per row after which the search for further rows ends."""
_MAX_CANDIDATES = 64
"""Layouts of one level of simplicity that are compared with the fastest."""

Key = tuple[int, ...]


@dataclass(slots=True)
class _FastestRows:
    """The rows of a search. `rows`: key -> the fastest of its variants; `variants`: key -> the others that were
    simulated, as points; `front`: those on the Pareto front of time and memory, the fastest first."""

    rows: dict[Key, LayoutCost]
    variants: dict[Key, list[LayoutPoint]]
    front: list[LayoutPoint]


def shortlist(
    wanted: PlannerInput,
    machine: Machine,
    framework: Framework,
    most: int = 10,
    budget: TrainingBudget = NO_BUDGET,
    refuses: Callable[[Job], None] = lambda _: None,
    front: bool = False,
) -> SearchResult:
    """Finds the layouts to show, at most `most`: the recommended one first, which is the simplest of those tied with
    the fastest, then the others that are tied, the simplest first, then the rest by time. Arguments and errors are
    those of `search.search`. `most` is at least 3: the recommended, the fastest and the baseline."""
    space = find_fitting(wanted, machine, framework)
    refused: list[str] = []
    by_time = space.by_time()
    runnable = search_space.runnable_cases(space, by_time, refuses, refused)
    fastest_rows = _find_fastest(space, runnable, most, budget)
    if not fastest_rows.rows:
        raise BadJob(*search_space.explain_refusals(refused))
    _place_layers(space, fastest_rows, budget)
    fastest = next(iter(fastest_rows.rows.values()))
    plain, no_baseline = baseline.find_baseline(space, machine, refuses)
    simplest = _find_simplest_tied(space, fastest_rows.rows, refuses)
    extra = {variants.key_of(space, each): each for each in (simplest, plain) if each}
    new = {key: each for key, each in extra.items() if key not in fastest_rows.rows}
    costs = search_space.cost_choices(space, list(new.values()), budget, [False] * len(new))
    added = dict(zip(new, stage_placement.place_layers(space, costs, budget), strict=True))
    kept = [key for key in fastest_rows.rows if key in extra]
    others = [key for key in fastest_rows.rows if key not in extra]
    rows = {key: fastest_rows.rows[key] for key in (*kept, *others[: most - len(kept) - len(added)])} | added
    choices = {
        key: replace(
            choice,
            ratio=layout_ratio.step_ratio(choice.plan.ledger, fastest.plan.ledger),
            baseline=plain is not None and key == variants.key_of(space, plain),
            folded=variants.count_variants(space, key) - 1,
            variants=tuple(fastest_rows.variants.get(key, ())),
        )
        for key, choice in rows.items()
    }
    points = fastest_rows.front
    if front:
        points += search_space.extend_front(space, by_time, runnable, fastest, points[-1].reserved)
    levels = _levels_of_keys(space, choices)
    return SearchResult(
        choices=tuple(choices[key] for key in sorted(choices, key=lambda key: _rank(choices[key], levels[key]))),
        searched=space.searched,
        fitting=len(space.fits),
        refused=tuple(refused),
        tuned=space.model.tuned,
        front=tuple(points) if front else (),
        no_baseline=no_baseline,
    )


def _find_fastest(space: SearchSpace, runnable: Iterator[Runnable], most: int, budget: TrainingBudget) -> _FastestRows:
    """The `most` fastest layouts that are not variants of each other."""
    simulated: list[Runnable] = []
    by_key: dict[Key, list[Runnable]] = {}
    for each in islice(runnable, most * _MAX_PER_ROW):
        simulated.append(each)
        by_key.setdefault(variants.key_of(space, each), []).append(each)
        if len(by_key) == most:
            break
    on_front = dict(zip((timed.index for timed, _ in simulated), search_space.are_on_front(simulated), strict=True))
    firsts = [runnables[0] for runnables in by_key.values()]
    choices = search_space.cost_choices(space, firsts, budget, [on_front[timed.index] for timed, _ in firsts])
    rows = dict(zip(by_key, choices, strict=True))
    others = [(key, each) for key, runnables in by_key.items() for each in runnables[1:]]
    points = search_space.points_of(space, [each for _, each in others], [rows[key] for key, _ in others])
    variants_of: dict[Key, list[LayoutPoint]] = {}
    for (key, _), point in zip(others, points, strict=True):
        variants_of.setdefault(key, []).append(point)
    point_at = {timed.index: row.point for (timed, _), row in zip(firsts, choices, strict=True)}
    point_at |= {timed.index: point for (_, (timed, _)), point in zip(others, points, strict=True)}
    front = [point_at[index] for index, is_on_front in on_front.items() if is_on_front]
    return _FastestRows(rows=rows, variants=variants_of, front=front)


def _place_layers(space: SearchSpace, fastest_rows: _FastestRows, budget: TrainingBudget) -> None:
    """Replaces each row whose layers can be placed so that it is faster, sorts the rows by time, and corrects the
    Pareto front."""
    rows, points = fastest_rows.rows, fastest_rows.front
    placed = dict(zip(rows, stage_placement.place_layers(space, list(rows.values()), budget), strict=True))
    new_points = {row.point: placed[key].point for key, row in rows.items() if placed[key] is not row}
    if not new_points:
        return
    by_time = sorted((new_points.get(point, point) for point in points), key=lambda point: point.wall_ns)
    front: list[LayoutPoint] = []
    for point in by_time:
        if not front or point.reserved < front[-1].reserved:
            front.append(point)
    fastest_rows.front = front
    fastest_rows.rows = {
        key: replace(row, front=row.point in front)
        for key, row in sorted(placed.items(), key=lambda item: item[1].plan.ledger.wall_ns)
    }


def _rank(choice: LayoutCost, level: int) -> tuple[float, ...]:
    """The sort key of a row: tied layouts by simplicity, then the others by time."""
    wall_ns = choice.plan.ledger.wall_ns
    if choice.ratio is None or not choice.ratio.tied:
        return 1, wall_ns, choice.reserved
    return 0, level, simplicity.schedule_complexity(choice.plan.job), wall_ns, choice.reserved


def _levels_of_keys(space: SearchSpace, keys: Iterable[Key]) -> dict[Key, int]:
    """Key -> its level of simplicity."""
    levels = simplicity.levels_for(space.sizes.layouts)
    return {
        key: int(levels.of({axis: np.array(value) for axis, value in variants.axes_of(key).items()})) for key in keys
    }


def _find_simplest_tied(
    space: SearchSpace, rows: Mapping[Key, LayoutCost], refuses: Callable[[Job], None]
) -> Runnable | None:
    """The fastest of the simplest layouts that are tied with the first of `rows`, the fastest; None if one of `rows`
    that is tied is as simple."""
    fastest = next(iter(rows.values())).plan.ledger
    limit_s = fastest.wall_ns / 1e9 * layout_ratio.LARGEST_TIED_RATIO
    levels_of_rows = _levels_of_keys(space, rows)
    simplest = min(
        levels_of_rows[key] for key, row in rows.items() if layout_ratio.step_ratio(row.plan.ledger, fastest).tied
    )
    fitting = {axis: space.column(axis) for axis in space.sizes.layouts.columns}
    levels, may_tie = simplicity.levels_for(space.sizes.layouts).of(fitting), space.bounds <= limit_s
    for level in sorted(set(levels[may_tie & (levels < simplest)].tolist())):
        by_time = space.by_time(may_tie & (levels == level))
        runnable = search_space.runnable_cases(space, by_time, refuses, [])
        for each in islice(variants.fastest_variants(space, runnable), _MAX_CANDIDATES):
            if each[0].wall_seconds > limit_s:
                break
            if layout_ratio.step_ratio(search_space.ledger_of(space, each), fastest).tied:
                return each
    return None
