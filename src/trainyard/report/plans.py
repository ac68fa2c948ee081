"""Plans as tables: layouts side by side, the ledger of one, its memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from trainyard import units, words
from trainyard.errors import BadFile
from trainyard.job import Layout
from trainyard.ledger import decode_hook
from trainyard.machine import Machine
from trainyard.plan import Plan
from trainyard.predict import failures
from trainyard.predict.failures import Goodput
from trainyard.predict.search import Choice, Found
from trainyard.report.view import Cell, Column, Table

SCHEMA = "trainyard/plans/1"
_HEAD = 200
"""Bytes at a file's beginning that hold its schema."""
_OTHER_PARTS = {"logits": "Logits and the head's gradient", "gathered": "Gathered weights and gradients"}


def layouts(found: Found, budget: float, as_it_is: bool = False) -> Table:
    """One row a layout, the fastest first. `as_it_is`: but for the first, which was given."""
    paid = budget and any(one.bill.dollars is not None for one in found.choices)
    unit, ns = ("s", 1e9) if found.choices[0].plan.ledger.wall_ns >= 1e9 else ("ms", 1e6)
    columns = (
        Column(head="micro-batch", digits=0), Column(head="remat"), Column(head=f"step, {unit}", digits=2),
        Column(head="from", digits=2), Column(head="to", digits=2), Column(head="tokens/s", digits=0),
        Column(head="MFU, %", digits=1), Column(head="memory, GB", digits=1),
        *((Column(head="days", digits=1),) if budget else ()), *((Column(head="$", digits=0),) if paid else ()),
    )  # fmt: skip
    tuned = found.tuned
    said = f"Fitted to {tuned.rows} measurements of {tuned.source}." if tuned.rows else tuned.says
    return Table(
        title="Layout",
        notes=(
            *(("The first is the job as it is; the others are the fastest that fit.",) if as_it_is else ()),
            f"{found.searched:,} layouts divide everything, {found.fitting:,} fit. Constants: {tuned.name}. {said}",
            "From, to: four of five measured steps are expected between them. Memory is what the allocator reserves. "
            "Where tp divides matrices it divides the sequence between them and the loss too.",
            *_disturbed(found.choices[0].bill.goodput),
            *(f"Left out: {reason}" for reason in found.refused[:3]),
        ),
        columns=(Column(head="", prose=True), *columns),
        rows=tuple(_row(one, ns, bool(budget), bool(paid)) for one in found.choices),
    )  # fmt: skip


def _disturbed(found: Goodput | None) -> tuple[str, ...]:
    """What failures take."""
    if found is None:
        return ()
    low, share, high = (f"{100 * part:.1f}" for part in (found.low, found.share, found.high))
    restart, every = failures.RESTART.value / 60, found.every_s / 60
    return (
        f"Days and dollars are of a run in which {share} % of the time trains ({low} to {high} in four of five runs): "
        f"a failure every {found.mtbf_s / 3600:.1f} h ({failures.RATE.source}), {restart:.0f} min to restart, "
        f"a checkpoint every {every:.1f} min.",
    )


def _short(layout: Layout) -> str:
    """Without what all have whose tp is more than 1."""
    return str(replace(layout, sequence_parallel=False, loss_parallel=False)).replace(f", {layout.cp_method}", "")


def _row(one: Choice, unit_ns: float, days: bool, dollars: bool) -> tuple[Cell, ...]:
    plan, bill = one.plan, one.bill
    cells: list[Cell] = [
        _short(plan.job.layout), plan.job.recipe.microbatch, plan.job.recipe.remat, plan.ledger.wall_ns / unit_ns,
        plan.low / unit_ns, plan.high / unit_ns, bill.tokens_per_s, 100 * bill.mfu, one.reserved / 1e9,
    ]  # fmt: skip
    return (*cells, *((bill.days,) if days else ()), *((bill.dollars,) if dollars else ()))


def ledger(plan: Plan) -> Table:
    """Where the time of a step goes, in order of precedence."""
    whole = plan.ledger.wall_ns
    rows: list[tuple[Cell, ...]] = [
        (account.label, ns / 1e6, units.show_share(ns, whole)) for account, ns in plan.ledger.by_account().items() if ns
    ]
    return Table(
        title="Predicted ledger, mean over ranks",
        notes=(),
        columns=(Column(head="account"), Column(head="ms", digits=1), Column(head="share")),
        rows=(*rows, ("Step", whole / 1e6, f"{units.show_ns(whole)} ns exactly")),
    )


def memory(plan: Plan, reserved: int, limit: float, counted: Mapping[int, int]) -> Table:
    """Bytes by part on the fullest rank. `counted`: rank -> bytes that a fake run counted."""
    rows: list[tuple[Cell, ...]] = [
        (_OTHER_PARTS.get(part) or words.MEMORY[part].label, size / 1e9) for part, size in plan.memory.items() if size
    ]
    allocated = sum(plan.memory.values())
    exact: list[tuple[Cell, ...]] = [(f"Counted, of rank {rank:,}", size / 1e9) for rank, size in counted.items()]
    return Table(
        title="Memory of the fullest rank",
        notes=(),
        columns=(Column(head="part"), Column(head="GB", digits=1)),
        rows=(
            *rows,
            ("Allocated", allocated / 1e9),
            *exact,
            ("Reserved", reserved / 1e9),
            ("The device has", limit / 1e9),
        ),
    )


def as_plain(found: Found, machine: Machine, devices: int) -> dict[str, Any]:
    """For JSON; `read` takes the plans out of it again."""
    return {
        "schema": SCHEMA, "machine": machine.name, "devices": devices, "searched": found.searched,
        "fitting": found.fitting, "refused": found.refused, "constants": found.tuned,
        "choices": [
            {"plan": one.plan, "bill": one.bill, "reserved_bytes": one.reserved, "front": one.front}
            for one in found.choices
        ],
    }  # fmt: skip


class _Kept(msgspec.Struct):
    plan: Plan


class _Document(msgspec.Struct):
    choices: list[_Kept]


def read(path: Path) -> list[Plan]:
    """The plans of a file that `trainyard plan --json` wrote, the fastest first; none where it is another file. Raises
    `BadFile` for a damaged one."""
    try:
        with path.open("rb") as file:
            if SCHEMA.encode() not in file.read(_HEAD):
                return []
        document = msgspec.json.decode(path.read_bytes(), type=_Document, dec_hook=decode_hook)
    except OSError:
        return []
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadFile(f"{path}: not a file of plans: {error}.") from error
    return [kept.plan for kept in document.choices]
