"""A View as GitHub-flavoured Markdown, for pull requests, issues and step summaries.

Names come from files, so text is escaped: no markup, no HTML, no links, no @-mentions. Kernel names are set as code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from trainyard import units
from trainyard.finding import Finding
from trainyard.report.render.fitted_table import plain
from trainyard.report.view.price_text import show_interval, show_price
from trainyard.report.view.view import View

_MARKUP = re.compile(r"[\\`*_{}\[\]<>#|~&$]|:(?=//)|(?<=www)\.")
_MENTION = re.compile(r"(?<!\w)@")
_LONGEST_TEXT = 200
"""Characters of a name or sentence above which it is shortened."""
_MOST_KERNELS = 12


def text(view: View) -> str:
    """The view as a Markdown document: title, key figures, ledger, findings, longest kernels and notes."""
    parts = [f"## {escaped(view.title)}", escaped(" · ".join([view.subtitle, *view.chips]))]
    parts += [f"> **{escaped(warning)}**" for warning in view.warnings]
    if view.figures:
        parts.append(
            " · ".join(
                f"**{escaped(f'{figure.value} {figure.unit}'.strip())}** {escaped(figure.label)}"
                for figure in view.figures
            )
        )
        parts += [escaped(figure.line) for figure in view.figures if figure.line]
    if view.wall_ns:
        parts.append(_ledger(view))
    if view.findings:
        parts += ["### Findings", _findings(view)]
    if view.kernels:
        parts += ["### Top kernels", _kernels(view)]
    notes = [*view.notes, *view.limits, view.generated]
    parts.append("\n".join(f"- {escaped(line)}" for line in notes if line))
    return "\n\n".join(parts) + "\n"


def escaped(text: str) -> str:
    """Markdown that renders as the literal text."""
    return _MENTION.sub("@&#8203;", _MARKUP.sub(r"\\\g<0>", _short(text)))


def code(text: str) -> str:
    """The text as inline code. Only the backtick and, in tables, the bar have a meaning there. The bar is replaced, not
    escaped: a backslash before it in the name would cancel ours."""
    shown = _short(text).replace("`", "'").replace("|", "¦")
    return f"`{shown or ' '}`"


def _short(text: str) -> str:
    """The text on one line, truncated."""
    shown = plain(" ".join(text.split()))
    return shown if len(shown) <= _LONGEST_TEXT else shown[: _LONGEST_TEXT - 1] + "…"


def _ledger(view: View) -> str:
    """The Markdown table of the mean step's accounts by phase in ns, with their sum."""
    rows = [
        (escaped(label), escaped(phase), units.show_ns(ns), units.show_share(ns, view.wall_ns), units.show_ns(hidden),
         f"{count:,}")
        for _, label, phase, ns, hidden, count in view.table
    ]  # fmt: skip
    total = ("**step**", "", f"**{units.show_ns(view.wall_ns)}**", "100.0 %", "", "")
    return table_text(("account", "phase", "ns", "share", "hidden ns", "count"), "llrrrr", [*rows, total])


def _findings(view: View) -> str:
    """The Markdown table of findings: severity, price a step, evidence, remedy, and how sure the rule is."""
    rows = [
        (finding.severity, escaped(finding.summary), _price(finding), escaped(finding.evidence),
         escaped(finding.remedy.description) if finding.remedy else "", f"{100 * finding.confidence:.0f} %")
        for finding in view.findings
    ]  # fmt: skip
    return table_text(("severity", "finding", "a step", "evidence", "remedy", "confidence"), "llrllr", rows)


def _price(finding: Finding) -> str:
    """The price of a finding a step with its interval, if a replay gave one."""
    return "; ".join([show_price(finding), *([show_interval(finding.interval_ns)] if finding.interval_ns else [])])


def _kernels(view: View) -> str:
    """The Markdown table of the kernels that take most of a step, in ns."""
    rows = [
        (code(row.name), code(row.account), row.phase, units.show_ns(row.ns), f"{100 * row.share:.1f} %",
         f"{row.count:,}")
        for row in view.kernels[:_MOST_KERNELS]
    ]  # fmt: skip
    return table_text(("kernel", "account", "phase", "ns a step", "share", "calls"), "lllrrr", rows)


def table_text(heads: Sequence[str], sides: str, rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of escaped cells. `sides`: for each column, `l` or `r`: aligned to the left or right."""
    lines = [heads, ["---:" if side == "r" else "---" for side in sides], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
