"""Predictions with constants that were fitted without a whole source or device: `python -m validation.left_out`.

The rows of each owner of sources (sources.toml), then those of each machine, are left out, all sets of constants are
fitted to the rest, and the rows left out are predicted with the constants that the planner chooses for them, but
without the rates of products that their sources measured (`with_rates.py`). Writes the residuals to
validation/left_out.csv, from which prediction intervals are estimated (`intervals.py`) and judged (`plan.py`).
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal
from zlib import crc32

import msgspec
import numpy as np

from trainyard.predict.inputs import constant_sets
from trainyard.predict.inputs.constant_sets import family_of
from trainyard.predict.inputs.prediction_interval import Distance
from trainyard.predict.time.step_shares import step_shares
from validation import fit, rows
from validation.fit import Fitted
from validation.rows import Row

Split = Literal["owner", "machine"]

RESIDUALS = Path(__file__).parent / "left_out.csv"
_KEPT = 16
_FLAGS = ("same_family", "same_software", "machine_fitted")
"""Columns with True or False."""


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A row predicted without its owner's or its machine's rows. `rows_of_kind`: those of its kind of model that the
    constants were fitted to; `owners_of_kind`: the number of owners of these; `same_family`: whether the constants are
    of its software, in any release; `same_software`, `machine_fitted`: whether rows of its release and of its machine
    remain; `outside`: doublings outside of the fitted range by feature; `above_largest`: doublings of its ranks above
    those of the largest row that remains; `host_share`, `attention_share`: of its step, as in `Distance`; `log_ratio`:
    logarithm of measured over predicted; `log_spread`: standard deviation of the logarithm of the prediction over what
    the source leaves open."""

    id: str
    split: Split
    left_out: str
    owner: str
    machine: str
    kind: str
    software: str
    constants: str
    same_family: bool
    same_software: bool
    machine_fitted: bool
    rows_of_kind: int
    owners_of_kind: int
    outside: dict[str, float]
    above_largest: float
    host_share: float
    attention_share: float
    log_ratio: float
    log_spread: float

    @property
    def group(self) -> tuple[str, ...]:
        """Rows whose errors may have a common cause: those of one owner and kind on one set of constants, if the same
        rows were left out."""
        return self.owner, self.constants, self.kind, self.split, self.left_out

    @property
    def is_comparable(self) -> bool:
        """Whether its kind of model was fitted, with software of its family."""
        return self.rows_of_kind > 0 and self.same_family

    @property
    def distance(self) -> Distance:
        """How it differs from the rows that the constants were fitted to."""
        return Distance(
            kind=self.kind,
            owners=self.owners_of_kind,
            machine_fitted=self.machine_fitted,
            same_software=self.same_software,
            outside=self.outside,
            above_largest=self.above_largest,
            host_share=self.host_share,
            attention_share=self.attention_share,
        )


def predict_left_out(
    every: Sequence[Row], whole: Mapping[str, Fitted], split: Split, name: str, *, with_rates: bool = False
) -> Iterator[LeftOut]:
    """The residuals of the rows of an owner or a machine. `whole`: the sets of constants fitted to all rows.
    `with_rates`: with the rates of products that their sources measured, which a user seldom knows."""
    rest = [row for row in every if getattr(row, split) != name]
    left = [row for row in every if getattr(row, split) == name]
    if not with_rates:
        left = [replace(row, differs=msgspec.structs.replace(row.differs, sustained={})) for row in left]
    fitted = fit.fit_all(rest, whole)
    sets = [fit.constant_set(known) for known in fitted.values()]
    largest = max(map(ranks_of, rest))
    for row in left:
        chosen = constant_sets.choose(rows.machine_of(row), row.software, sets)
        own = fitted.get(chosen.name)
        constants = own.constants if own else chosen.values()
        expected, seconds = fit.predicted([row], constants)
        case, where, _ = fit.columns([row])
        shares = step_shares(case, where, constants)
        of_kind = chosen.ranges.get(row.kind)
        nearest = of_kind or max(chosen.ranges.values(), key=lambda known: known.rows, default=None)
        yield LeftOut(
            id=row.id, split=split, left_out=name, owner=row.owner, machine=row.machine, kind=row.kind,
            software=row.software, constants=chosen.name,
            same_family=family_of(row.software) == family_of(chosen.software),
            same_software=nearest is not None and row.software in nearest.software,
            machine_fitted=nearest is not None and row.machine in nearest.machines,
            rows_of_kind=of_kind.rows if of_kind else 0, owners_of_kind=len(of_kind.owners) if of_kind else 0,
            outside=nearest.outside(case) if nearest else {},
            above_largest=max(0.0, float(np.log2(ranks_of(row) / largest))),
            host_share=float(shares.host[0]), attention_share=float(shares.attention[0]),
            log_ratio=float(np.log(seconds[0] / expected[0])), log_spread=fit.log_spread(row, constants),
        )  # fmt: skip


def ranks_of(row: Row) -> float:
    """The ranks of a row."""
    return float(fit.columns([row])[0].ranks[0])


def write(residuals: Sequence[LeftOut], path: Path = RESIDUALS) -> None:
    """Writes the residuals as CSV."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, LeftOut.__struct_fields__, lineterminator="\n")
        table.writeheader()
        for residual in residuals:
            table.writerow({name: _cell(value) for name, value in msgspec.to_builtins(residual).items()})


def _cell(value: object) -> str:
    """Numbers with four digits; numbers by name as `ranks=2 tp=1`."""
    if isinstance(value, dict):
        return " ".join(f"{name}={number:.4g}" for name, number in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def read(path: Path = RESIDUALS) -> list[LeftOut]:
    """The residuals that `write` wrote."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    return msgspec.convert(
        [
            line
            | {name: line[name] == "True" for name in _FLAGS}
            | {"outside": dict(part.split("=") for part in line["outside"].split())}
            for line in lines
        ],
        list[LeftOut],
        strict=False,
    )


def main() -> int:
    every = [row for row in fit.usable(fit.published()) if is_used(row)]
    whole = fit.fit_all(every)
    residuals: list[LeftOut] = []
    for split in ("owner", "machine"):
        for name in sorted({getattr(row, split) for row in every}):
            residuals += predict_left_out(every, whole, split, name)
            print(f"without {split} {name}: {len(residuals)} residuals so far", flush=True)
            write(residuals)
    return 0


def is_used(row: Row) -> bool:
    """Whether a row takes part: one in `_KEPT` of vTrain, which has more rows than all other owners together."""
    return fit.is_fitted(row) and (row.owner != "vTrain" or crc32(row.id.encode()) % _KEPT == 0)


if __name__ == "__main__":
    sys.exit(main())
