"""The result of a search for the cause of a numerical difference."""

from __future__ import annotations

from typing import Literal

import msgspec

from trainyard.numerics.bisect.configuration import Change
from trainyard.numerics.bisect.delta_debugging import Outcome
from trainyard.numerics.bisect.swap import SwapKind
from trainyard.numerics.compare.comparison_result import Divergence


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A training with some of the changes. `first`: its first divergence; `failure`: why it has no outcome."""

    changes: tuple[Change, ...]
    outcome: Outcome
    first: Divergence | None = None
    failure: str = ""


class NumericsBisection(msgspec.Struct, frozen=True, kw_only=True):
    """`changes`: all differences that were tried; `causes`: those that together make the training differ, none of which
    can be left out. `first`: the first divergence with the causes alone. `trials`: in order. `swap`: how the modules
    were computed that are not in a trial; None if configurations were searched."""

    schema: Literal["trainyard/numerics-bisection/1"] = "trainyard/numerics-bisection/1"
    changes: tuple[Change, ...]
    causes: tuple[Change, ...]
    first: Divergence | None
    trials: tuple[Trial, ...]
    swap: SwapKind | None = None

    @property
    def exit_code(self) -> int:
        """0 for one cause, 1 for several that act together."""
        return 0 if len(self.causes) == 1 else 1
