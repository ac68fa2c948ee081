"""Tables of a report, as far as there are data: ops below the roofline, last to arrive, bandwidths, incidents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from trainyard import units, words
from trainyard.record import Run
from trainyard.report.view.price_text import show_interval
from trainyard.report.view.traffic_tables import traffic_tables
from trainyard.report.view.view import Cell, Column, Table
from trainyard.trace.align.bandwidth import Bandwidth
from trainyard.trace.flops.coverage import FormulaCoverage, formula_coverage
from trainyard.trace.flops.roofline import RECORD_SHAPES, OpRow, Roofline
from trainyard.trace.measured_trace import Lateness, MeasuredTrace, ModelMean
from trainyard.trace.whatif.assumptions import ALL_REPLAYS, assumption

if TYPE_CHECKING:
    from trainyard.report.view.trace_results import QueryResult, Reconciliation, WhatIf

_MOST_ROWS = 40
"""Rows of the tables of ops and of bandwidths."""
_MOST_UNCOVERED = 20
"""Rows of the table of ops without known FLOPs or bytes; JSON has all."""
_RANKS = 4
"""Ranks side by side in a table of 80 columns."""
_TOOLS = {"hta": "HTA", "tracelens": "TraceLens"}
"""`--with` -> the tool's name."""
_CHANGES, _SMALL = 12, 0.001
"""Rows of a prediction on one screen, and the fraction of the step below which a change is folded."""


def tables(measured: MeasuredTrace, roofline: Roofline, way_to_record: str = RECORD_SHAPES) -> tuple[Table, ...]:
    """The tables of a trace that have rows: models of device, ops against the roofline, last to arrive, bandwidths.
    `roofline`: of the ranks that the mean covers; `way_to_record`: how the user records shapes."""
    all_tables = (
        device_models(measured.by_model),
        ops(roofline),
        uncovered_ops(formula_coverage(roofline), way_to_record),
        lateness(measured.lateness),
        bandwidths(measured.bandwidths),
        *traffic_tables(measured.traffic),
    )
    return tuple(table for table in all_tables if table.rows)


def run_tables(run: Run) -> tuple[Table, ...]:
    """Incidents and goodput of a run that had incidents; goodput also of one that saved checkpoints."""
    incident_tables = (incidents(run),) if run.incidents else ()
    return (*incident_tables, goodput(run)) if incident_tables or run.goodput.get("save") else ()


def incidents(run: Run) -> Table:
    """The table of a run's incidents: the culprit and the time in s that they cost."""
    return Table(
        title="Incidents",
        notes=(),
        columns=(
            Column(title="What"), Column(title="Says", prose=True), Column(title="Rank", digits=0),
            Column(title="Node", digits=0, optional=True),
            Column(title="Step", digits=0, optional=True, note="Step: the last that had ended."),
            Column(title="Noticed", digits=2, note="Noticed: s from the fault to its detection."),
            Column(title="Restart", digits=2, note="Restart: s from detection until all ranks trained again."),
            Column(title="Lost", digits=2, note="Lost: s of training that was repeated."),
            Column(
                title="Resumed", digits=0, optional=True, note="Resumed: the step after which training continued."
            ),
        ),
        rows=tuple(
            (
                words.FAULTS[incident.kind].label,
                incident.summary.splitlines()[0] if incident.summary else "",
                *(None if number < 0 else number for number in (incident.rank, incident.node)),
                None if incident.step < 0 else incident.step + 1,
                incident.detect_s,
                incident.restart_s,
                incident.lost_s,
                None if incident.resumed_step < 0 else incident.resumed_step,
            )
            for incident in run.incidents
        ),
    )  # fmt: skip


def goodput(run: Run) -> Table:
    """The table of the job's wall time in s by cause, from its start to its end."""
    total_s = sum(run.goodput.values())
    shares = {cause: units.show_share(round(spent * 1e9), round(total_s * 1e9)) for cause, spent in run.goodput.items()}
    return Table(
        title="Goodput",
        notes=(
            f"Of {total_s:.1f} s from the start of the job to its end, {shares.get('good', '0 %')} went into steps.",
        ),
        columns=_columns_with_decimals("Cause", "Means", "Share", Seconds=2),
        rows=tuple(
            (words.TIMES[cause].label, words.TIMES[cause].means, shares[cause], run.goodput[cause])
            for cause in words.TIMES
            if run.goodput.get(cause)
        ),
    )


def ops(roofline: Roofline) -> Table:
    """The table of the ops that lose the most time to their roofline, in ms per step."""
    covered_share = units.show_share(roofline.known_ns, roofline.compute_ns) if roofline.compute_ns else "none"
    with_formula = [row for row in roofline.rows if row.flops is not None or row.bytes is not None]
    assumptions = "; ".join(roofline.assumptions)
    return Table(
        title="Ops against the roofline",
        notes=(
            f"In ms per step. Formulas cover {covered_share} of compute time.",
            *roofline.notes,
            *([f"Formulas assume: {assumptions}."] if assumptions else []),
        ),
        columns=(
            Column(title="Op"), Column(title="Shapes"), Column(title="Bound", optional=True),
            Column(title="Calls", digits=1, optional=True), Column(title="ms", digits=3),
            Column(title="Reachable", digits=3, optional=True, note="Reachable: ms at the roofline."),
            Column(title="Loss", digits=3, note="Loss: ms minus the ms at the roofline."),
            Column(title="TFLOP/s", digits=2), Column(title="GB/s", digits=1),
        ),
        rows=tuple(_op_cells(row) for row in with_formula[:_MOST_ROWS]),
    )  # fmt: skip


def uncovered_ops(coverage: FormulaCoverage, way_to_record: str = RECORD_SHAPES) -> Table:
    """The table of the compute whose FLOPs or bytes are unknown, in ms per step, the longest first.
    `way_to_record`: how the user records shapes."""
    rows = [row for row in coverage.uncovered if row.ns][:_MOST_UNCOVERED]
    total_ns = coverage.compute_ns - coverage.covered_ns
    reasons = sorted({row.missing for row in rows})
    return Table(
        title="Compute without known FLOPs or bytes",
        notes=(
            f"In ms per step: {units.show_share(total_ns, coverage.compute_ns)} of compute time, "
            f"{units.show_time(total_ns)}. `--formulas FILE` adds formulas.",
            *(
                f"{words.MISSING_COSTS[reason].label}: {words.MISSING_COSTS[reason].means}"
                + f" Record with {way_to_record}." * (reason == "no_arguments")
                for reason in reasons
            ),
        )
        if rows
        else (),
        columns=_columns_with_decimals("Op or kernel", "Account", "Reason", "Share", Calls=1, ms=3),
        rows=tuple(
            (
                row.op,
                row.account,
                words.MISSING_COSTS[row.missing].label,
                units.show_share(row.ns, coverage.compute_ns),
                row.count,
                row.ns / 1e6,
            )
            for row in rows
        ),
    )


def _op_cells(row: OpRow) -> tuple[Cell, ...]:
    """Cells of an operator's row: name, shapes, bound, calls per step, ms per step measured, reachable and lost,
    TFLOP/s and GB/s. None if unknown."""
    # FLOPs that are an upper bound give no minimum time, and so no bound.
    bound = "FLOPs at most" if row.at_most else "" if row.bound == "unknown" else row.bound
    return (
        row.op,
        row.shape,
        bound,
        row.count,
        row.ns / 1e6,
        None if row.reachable_ns is None else row.reachable_ns / 1e6,
        None if row.loss_ns is None else row.loss_ns / 1e6,
        None if row.flops_rate is None else row.flops_rate / 1e12,
        None if row.bytes_rate is None else row.bytes_rate / 1e9,
    )


def device_models(models: Sequence[ModelMean]) -> Table:
    """The mean step of the ranks on each model of device, by kind of account; no rows if there is one model."""
    kinds = [kind for kind in words.KINDS if any(kind in model.mean.by_kind() for model in models)]
    return Table(
        title="Device models",
        notes=("In ms: the mean over the ranks on a model and their full steps.",),
        columns=_columns_with_decimals(
            "Model", **{"Ranks": 0, "Step": 3} | {words.KINDS[kind].label: 3 for kind in kinds}
        ),
        rows=tuple(
            (
                model.model,
                len(model.ranks),
                model.mean.wall_ns / 1e6,
                *(model.mean.by_kind().get(kind, 0) / 1e6 for kind in kinds),
            )
            for model in models
        ),
    )


def lateness(rows: Sequence[Lateness]) -> Table:
    """The ranks that arrived last at collectives, how often, and how long the others waited."""
    return Table(
        title="Last to arrive",
        notes=(
            "Waiting time of the other ranks in ms, summed over waits that began in full steps: exposed (no compute "
            "overlapped it) and total. The ledger also includes the end of waits that began before.",
        ),
        columns=_columns_with_decimals("Rank", Last=0, Of=0, Exposed=3, All=3),
        rows=tuple(
            (str(row.rank), row.last, row.met, row.exposed_ns / 1e6, row.waited_ns / 1e6) for row in rows if row.last
        ),
    )


def bandwidths(rows: Sequence[Bandwidth]) -> Table:
    """The table of collectives with their times in µs and algorithm and bus bandwidths in GB/s, one row for each
    collective, group and range of sizes (between two powers of two)."""
    return Table(
        title="Collectives' bandwidth",
        notes=(
            "Sizes in MB, times in µs, bandwidths in GB/s; medians. Times are from the last arrival to the end, or, if "
            "that is unknown, those of the shortest member: then a bandwidth is a lower bound.",
        ),
        columns=_BANDWIDTH_COLUMNS,
        rows=tuple(_bandwidth_cells(row) for row in rows[:_MOST_ROWS]),
    )


_BANDWIDTH_COLUMNS = (
    Column(title="Collective"),
    Column(title="Group", optional=True),
    Column(title="Timed by", optional=True),
    Column(title="Verdict", id=True),
    Column(title="Ranks", digits=0, optional=True),
    Column(title="MB", digits=3),
    Column(title="Count", digits=0),
    Column(title="µs", digits=1),
    Column(title="Algorithm", digits=2, optional=True, note="Algorithm: bytes of a call by its time."),
    Column(title="Bus", digits=2, note="Bus: bus bandwidth as nccl-tests defines it."),
    Column(title="Slowest", digits=2, optional=True, note="Slowest: the least bus bandwidth of a single call."),
    Column(title="Fastest", digits=2, optional=True, note="Fastest: the greatest bus bandwidth of a single call."),
    Column(
        title="Waiting", digits=0,
        note="Waiting: the members' time before the last arrival, in % of their time in these calls.",
    ),
    Column(
        title="Link", digits=0, optional=True,
        note="Link: bus bandwidth in % of the rate of the link between the members, as published for the usual machine "
        "with their device; empty if it is unknown.",
    ),
)  # fmt: skip


def _bandwidth_cells(row: Bandwidth) -> tuple[Cell, ...]:
    """Cells of a collective's row: size in MB, calls, time in µs, algorithm and bus bandwidth in GB/s."""
    return (
        words.COLLECTIVES[row.collective].label,
        row.group,
        "last arrival" if row.from_last else "shortest member",
        row.verdict,
        row.members or None,
        row.size / 1e6,
        row.count,
        row.time_ns / 1e3,
        row.algbw / 1e9,
        *(None if rate is None else rate / 1e9 for rate in (row.busbw, row.slowest, row.fastest)),
        _waiting_percent(row),
        None if row.link_use is None else 100 * row.link_use,
    )


def _waiting_percent(row: Bandwidth) -> float | None:
    """The share of the members' time that they wait for the last arrival, in percent; None if it is unknown."""
    if row.waiting_ns is None or row.moving_ns is None:
        return None
    return 100 * row.waiting_ns / max(1, row.waiting_ns + row.moving_ns)


def reconciliation_tables(result: Reconciliation, full: bool = False) -> list[Table]:
    """Tables of the figures of the ranks in ms by the definitions of another tool. More ranks than fit side by side are
    summarised by the least, the mean and the most, or, if `full`, are listed in several tables."""
    ranks, names = result.ranks, list(result.ranks[0].ns)
    title = f"By the definitions of {_TOOLS[result.tool]}"
    notes = ("In ms. How these definitions differ from the ledger's:", *result.differs)
    if len(ranks) > _RANKS and not full:
        values = {name: [rank.ns[name] for rank in ranks] for name in names}
        rows = tuple(
            (name, min(values_ns) / 1e6, sum(values_ns) / len(values_ns) / 1e6, max(values_ns) / 1e6)
            for name, values_ns in values.items()
        )
        heads = _columns_with_decimals("Figure", **{"least": 3, "mean": 3, "most": 3})
        return [Table(title=f"{title}, {len(ranks)} ranks", notes=notes, columns=heads, rows=rows)]
    groups = [ranks[first : first + _RANKS] for first in range(0, len(ranks), _RANKS)]
    return [
        Table(
            title=title,
            notes=notes if group is groups[-1] else (),
            columns=_columns_with_decimals("Figure", **{f"rank {rank.rank}": 3 for rank in group}),
            rows=tuple((name, *(rank.ns[name] / 1e6 for rank in group)) for name in names),
        )
        for group in groups
    ]


def prediction_table(result: WhatIf, full: bool = False) -> Table:
    """The mean step as measured and as predicted, by account, in ms; the changes sum to the step's change. Unless
    `full`, small changes are folded into one row."""
    before_ns, after_ns = result.before.wall_ns, result.after.wall_ns
    longer = (
        "If nothing was slowed, a longer step means that its bounds moved and now include earlier work: "
        "--window all books the whole window."
    )
    changes = sorted(result.accounts, key=lambda change: -abs(change.ns))
    large = changes if full else [change for change in changes[:_CHANGES] if abs(change.ns) >= _SMALL * before_ns]
    rows = [(change.account.label, change.before_ns, change.after_ns) for change in large]
    if folded := changes[len(large) :]:
        sums = sum(change.before_ns for change in folded), sum(change.after_ns for change in folded)
        rows.append((units.counted(len(folded), "more account"), *sums))
    rows.append(("Step", before_ns, after_ns))
    return Table(
        title="Account",
        notes=(
            "In ms.",
            *(f"{change}: {assumption(change)}" for change in result.changes),
            ALL_REPLAYS,
            *((longer,) if after_ns > before_ns else ()),
        ),
        columns=_columns_with_decimals("Account", measured=3, predicted=3, change=3),
        rows=tuple((label, was_ns / 1e6, now_ns / 1e6, (now_ns - was_ns) / 1e6) for label, was_ns, now_ns in rows),
    )


def prediction_title(result: WhatIf) -> str:
    """The headline: `With network=2x, the step takes 110.0 ms instead of 150.0 ms (-26.7 %): 40.0 ms recovered, 80 %
    interval 38.0 to 42.0 ms.`"""
    before_ns, after_ns = result.before.wall_ns, result.after.wall_ns
    share = f" ({100 * (after_ns - before_ns) / before_ns:+.1f} %)" if before_ns else ""
    takes = f"the step takes {units.show_time(after_ns)} instead of {units.show_time(before_ns)}{share}"
    recovered = f"{units.show_time(result.recovered_ns)} recovered" if result.recovered_ns >= 0 else "nothing recovered"
    interval = f", {show_interval(result.interval_ns)}" if result.interval_ns else ""
    return f"With {', '.join(result.changes)}, {takes}: {recovered}{interval}."


def query_table(answer: QueryResult) -> Table:
    """The table of a query's rows. A column of integers or of numbers is aligned as such; values of other columns
    become text."""
    # Per column, the types of its values; then its decimals, None for a column of text.
    kinds = [{type(row[column]) for row in answer.rows} - {type(None)} for column in range(len(answer.columns))]
    digits_of_column = [0 if kind == {int} else 6 if kind and kind <= {int, float} else None for kind in kinds]
    return Table(
        title=answer.columns[0] if answer.columns else "",
        notes=(),
        columns=tuple(Column(title=head, digits=places) for head, places in zip(answer.columns, digits_of_column)),
        rows=tuple(
            tuple(
                cell if places is not None or cell is None else str(cell) for cell, places in zip(row, digits_of_column)
            )
            for row in answer.rows
        ),
    )


def with_notes(table: Table, notes: Sequence[str]) -> Table:
    """The table with further notes."""
    return replace(table, notes=(*table.notes, *notes))


def _columns_with_decimals(*texts: str, **numbers: int) -> tuple[Column, ...]:
    """Columns of text with the heads `texts`, then columns of numbers with the heads and decimals of `numbers`."""
    return (
        *(Column(title=head, prose=head in ("Says", "Means")) for head in texts),
        *(Column(title=head, digits=digits) for head, digits in numbers.items()),
    )
