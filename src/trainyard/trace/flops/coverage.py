"""How much of the compute time has known FLOPs and bytes, and which work has none."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from trainyard.trace.flops.roofline import OpRow, Roofline


class UncoveredOp(msgspec.Struct, frozen=True, kw_only=True):
    """An op, or a kernel without one, whose FLOPs or bytes are unknown, per step and rank. `missing`: the reason, a key
    of words.MISSING_COSTS; `ns`: the part of the step that its work owns; `count`: its calls; `share`: its fraction of
    the compute time."""

    op: str
    account: str
    missing: str
    ns: int
    count: float
    share: float


class FormulaCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the compute time formulas cover, per step and rank. `covered_ns` of `compute_ns` are in ops whose
    FLOPs and bytes are known; `share`: their fraction, None without compute; `uncovered`: the others, the longest
    first; `assumptions`: what the formulas assume about values that the file does not record."""

    compute_ns: int
    covered_ns: int
    share: float | None
    uncovered: tuple[UncoveredOp, ...] = ()
    assumptions: tuple[str, ...] = ()


def formula_coverage(roofline: Roofline) -> FormulaCoverage:
    """The coverage of a roofline: its rows without a complete cost, merged by op, account and reason."""
    rows: dict[tuple[str, str, str], list[OpRow]] = defaultdict(list)
    for row in roofline.rows:
        if row.missing:
            rows[row.op, row.account, row.missing].append(row)
    compute_ns = roofline.compute_ns
    uncovered = [
        UncoveredOp(
            op=op,
            account=account,
            missing=missing,
            ns=(ns := sum(row.ns for row in merged)),
            count=sum(row.count for row in merged),
            share=ns / compute_ns if compute_ns else 0.0,
        )
        for (op, account, missing), merged in rows.items()
    ]
    return FormulaCoverage(
        compute_ns=compute_ns,
        covered_ns=roofline.known_ns,
        share=roofline.known_ns / compute_ns if compute_ns else None,
        uncovered=tuple(sorted(uncovered, key=lambda row: (-row.ns, row.op, row.account))),
        assumptions=roofline.assumptions,
    )
