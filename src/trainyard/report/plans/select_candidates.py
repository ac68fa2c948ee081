"""Select the layouts of a plan that are worth measuring."""

from __future__ import annotations

from trainyard.errors import BadInput
from trainyard.report.plans.plans_file import PlanRecord, Plans


def select_candidates(plans: Plans, top: int) -> tuple[PlanRecord, ...]:
    """At most `top` distinct layouts: the recommended one, plain data parallelism, then the others by predicted step.

    The fastest layout is therefore among three, and a layout that is tied with it precedes one that is not. Raises
    `BadInput` for a `top` below 1.
    """
    if top < 1:
        raise BadInput(f"--top {top} must be at least 1.", "Pass the number of layouts to measure.")
    recommended, *others = plans.searched_choices
    by_step = sorted(others, key=lambda record: (not record.baseline, record.plan.ledger.wall_ns))
    return (recommended, *by_step[: top - 1])
