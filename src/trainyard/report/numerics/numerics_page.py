"""A comparison of recorded tensors as one self-contained page: the first fault, modules in order with their tensors,
the histogram of errors, errors by step, losses, both sides and the reproducer."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import msgspec

from trainyard import __version__, units
from trainyard.formats.atomic import write_text
from trainyard.numerics.compare.comparison_result import ModuleComparison, RecordSide, TensorComparison
from trainyard.printable import printable
from trainyard.redact.command_line import redact_command
from trainyard.report.numerics.numerics_report import NumericsReport
from trainyard.report.numerics.numerics_tables import module_table, step_table
from trainyard.report.numerics.sentences import (
    describe,
    describe_phase,
    describe_tensor,
    divergence_facts,
)
from trainyard.report.render.html import NO_SITE, SiteFrame, document
from trainyard.report.render.html_tables import escaped, tables_html
from trainyard.report.view.view import KeyFigure

_CODE_FACTS = ("code", "code in A", "code in B")
"""Facts of a divergence that are shown as code."""
_LINES = "\n\t"
"""Characters that lay out a script."""
_LIMITS = (
    "A difference smaller than its limit is not seen. Undetectable does not mean equal.",
    "Differences after the first fault are listed only if they do not follow from it.",
)


def write(report: NumericsReport, path: Path) -> None:
    """Writes the page atomically. Raises `PlaceUnwritable`."""
    write_text(page(report), path)


def page(report: NumericsReport, site: SiteFrame = NO_SITE) -> str:
    """The HTML document. `site`: the navigation of a server."""
    return document(report.headline, plain_view(report), "numerics", _static(report), site)


def plain_view(report: NumericsReport) -> dict[str, Any]:
    """The data that the page's script draws, as the script names it."""
    steps = len({step.step for step in report.steps})
    return {
        "title": report.headline,
        "subtitle": f"B compared with A: {units.counted(report.counts.compared, 'tensor')} of "
        f"{units.counted(len(report.modules), 'module')} in {units.counted(steps, 'step')}",
        "chips": [f"A {Path(report.a.folder).name}", f"B {Path(report.b.folder).name}"],
        "figures": msgspec.to_builtins(_figures(report)),
        "warnings": [],
        "wall_ns": 0,
        "fault": _fault(report),
        "further": [f"{describe_tensor(divergence.tensor)}: {describe(divergence)}" for divergence in report.further],
        "modules": [_module(module) for module in report.modules],
        "tensors": _pack(report.tensors, report.modules),
        "histogram": msgspec.to_builtins(report.histogram),
        "undetectable_reasons": report.undetectable_reasons,
        "steps": msgspec.to_builtins(report.steps),
        "losses": msgspec.to_builtins(report.losses),
        "sides": _sides(report.a, report.b),
        "reproducer": report.reproducer,
        "notes": _notes(report),
        "limits": _LIMITS,
        "generated": f"trainyard {__version__}",
    }


def _figures(report: NumericsReport) -> list[KeyFigure]:
    """Key figures: tensors that differ, agree, and cannot be judged."""
    counts = report.counts
    return [
        KeyFigure(label="different", value=f"{counts.different:,}", description="Tensors beyond the limit."),
        KeyFigure(
            label="same",
            value=f"{counts.identical + counts.within_rounding + counts.compensated:,}",
            description="Tensors that are equal bit by bit, or within rounding.",
        ),
        KeyFigure(
            label="undetectable",
            value=f"{counts.undetectable:,}",
            description="Tensors that could not be judged.",
        ),
    ]


def _fault(report: NumericsReport) -> dict[str, Any] | None:
    """Title, facts (name, value, is code), and step and phase of the first divergence."""
    if report.first is None:
        return None
    facts = [(name, value, name in _CODE_FACTS) for name, value in divergence_facts(report.first)]
    tensor = report.first.tensor
    return {
        "title": describe_tensor(tensor),
        "facts": facts,
        "place": describe_phase(tensor.step, tensor.phase),
    }


def _module(module: ModuleComparison) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(module)
    return plain | {"differs_from": describe_phase(module.first_step, module.first_phase)}


def _pack(tensors: tuple[TensorComparison, ...], modules: tuple[ModuleComparison, ...]) -> dict[str, Any]:
    """The tensors in columns: `rows` of (module, step, phase, label, status, error, noise, limit, reason, location),
    where the module is its index, and texts are indices into `texts`."""
    numbers = {module.module: at for at, module in enumerate(modules)}
    texts: dict[str, int] = {}

    def number(text: str) -> int:
        return texts.setdefault(text, len(texts))

    rows = [
        (
            numbers[tensor.module],
            tensor.step,
            number(tensor.phase),
            number(_label(tensor)),
            number(tensor.status),
            tensor.error,
            tensor.noise,
            tensor.limit,
            number(tensor.reason),
            number(tensor.location),
        )
        for tensor in tensors
    ]
    return {"texts": list(texts), "rows": rows}


def _label(tensor: TensorComparison) -> str:
    """A tensor within its module: `aten.mm (call 1)`, `gradient: weight`."""
    call = f" (call {tensor.call})" if tensor.operation and tensor.call else ""
    output = f" output {tensor.output}" if tensor.output else ""
    rank = f" on rank {tensor.rank}" if tensor.rank > 0 else ""
    name = f": {tensor.name}" if tensor.name else ""
    return f"{tensor.operation or tensor.role.replace('_', ' ')}{call}{output}{name}{rank}"


def _sides(a: RecordSide, b: RecordSide) -> list[tuple[str, str, str]]:
    """Rows (name, value of A, value of B) of what was recorded."""
    rows = [(name, value(a), value(b)) for name, value in _FACTS]
    for kind, of_a, of_b in (("", a.versions, b.versions), ("variable ", a.environment, b.environment)):
        rows += [(f"{kind}{key}", of_a.get(key, ""), of_b.get(key, "")) for key in sorted(of_a.keys() | of_b.keys())]
    return [row for row in rows if row[1] or row[2]]


_FACTS: tuple[tuple[str, Callable[[RecordSide], str]], ...] = (
    ("folder", lambda side: side.folder),
    ("command", lambda side: shlex.join(redact_command(side.command))),
    ("device", lambda side: side.device),
    ("layout", lambda side: side.layout),
    ("ranks", lambda side: str(side.ranks)),
    ("level", lambda side: side.level),
    ("runs", lambda side: ", ".join(side.variants)),
    ("steps", lambda side: ", ".join(map(str, side.steps))),
    ("tensors", lambda side: f"{side.tensors:,}"),
    ("deterministic algorithms", lambda side: "on" if side.deterministic else "off"),
)


def _notes(report: NumericsReport) -> list[str]:
    """The sentences on the comparison, and on tensors that the page does not list."""
    listed = len(report.tensors)
    cut = f"{listed:,} of {listed + report.tensors_left_out:,} tensors are listed: of each module the first different "
    return [
        *report.explanations,
        *([f"{cut}one and those with the largest errors. All of them are counted."] if report.tensors_left_out else []),
    ]


def _static(report: NumericsReport) -> str:
    """The headline, the facts of the first divergence and the tables, for readers whose browser runs no scripts."""
    facts = () if report.first is None else divergence_facts(report.first)
    return "\n".join(
        (
            f"<h1>{escaped(report.headline)}</h1>",
            f"<dl>{''.join(f'<dt>{escaped(name)}</dt><dd>{escaped(value)}</dd>' for name, value in facts)}</dl>",
            tables_html("", [module_table(report, full=True), step_table(report)]),
            f"<pre>{escape(printable(report.reproducer, keep=_LINES))}</pre>" if report.reproducer else "",
            *(f"<p>{escaped(note)}</p>" for note in _notes(report)),
        )
    )
