"""Gate results in the formats of CI systems: step summaries, test reports, dashboards. A gate compares the metrics of
two revisions, BASE and HEAD, over pairs of runs.

Machine-readable formats keep every name unchanged, escaped as the format requires. Markdown, which people read, shows
invisible characters by their code point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from statistics import median
from typing import Any
from xml.etree import ElementTree as Xml

import msgspec

from trainyard import words
from trainyard.compare.gate.gate_result import GateResult
from trainyard.errors import BadInput, UnknownName, nearest
from trainyard.printable import encode_json, printable_json, printable_xml, storable_xml
from trainyard.report.gate import sentences
from trainyard.report.gate.gate_markdown import markdown


def write(gate: GateResult, form: str) -> str:
    """The text of the result in the format `form`. Raises `UnknownName`."""
    check_format(form)
    return FORMATS[form](gate)


def check_format(form: str) -> None:
    """Raises `UnknownName` for a format that does not exist."""
    if form not in FORMATS:
        raise UnknownName(f"--format {form}: there is no such format.", nearest(form, FORMATS))


def junit(gate: GateResult) -> str:
    """JUnit XML with one test case per metric: worse is a failure, not enough evidence is skipped."""
    count = {outcome: sum(verdict.outcome == outcome for verdict in gate.verdicts) for outcome in ("worse", "unclear")}
    suite = Xml.Element(
        "testsuite", name=f"trainyard gate {storable_xml(gate.job)}", tests=str(len(gate.verdicts)),
        failures=str(count["worse"]), skipped=str(count["unclear"]), errors="0",
    )  # fmt: skip
    for verdict in gate.verdicts:
        case = Xml.SubElement(suite, "testcase", classname=f"trainyard.{storable_xml(gate.job)}", name=verdict.metric)
        message = f"{sentences.LABELS[verdict.outcome]}: {sentences.describe_verdict(verdict)}"
        if verdict.outcome == "worse":
            Xml.SubElement(case, "failure", message=message, type="worse").text = storable_xml(
                sentences.culprit(gate.changed_accounts)
            )
        elif verdict.outcome == "unclear":
            Xml.SubElement(case, "skipped", message=message)
        Xml.SubElement(case, "system-out").text = storable_xml(f"{message}\n{sentences.description(gate)}")
    Xml.indent(suite)
    return printable_xml(Xml.tostring(suite, "unicode", xml_declaration=True)) + "\n"


def github_action_benchmark(gate: GateResult) -> str:
    """JSON for github-action-benchmark: medians of HEAD with half the interquartile range.

    Such a file is for metrics where smaller is better or for metrics where larger is better: raises `BadInput` for a
    mixture of the two.
    """
    if len({words.metric(name).better for name in gate.values}) > 1:
        raise BadInput(
            f"--format github-action-benchmark: {', '.join(gate.values)} mix metrics where smaller is better with "
            "metrics where larger is better; a file of this format holds one kind.",
            "Write one file for each kind.",
        )
    return _json(
        [
            {
                "name": f"{gate.job}/{verdict.metric}", "unit": words.metric(verdict.metric).unit,
                "value": median(gate.values[verdict.metric].head),
                "range": f"± {_half_interquartile_range(gate.values[verdict.metric].head):.6g}",
                "extra": sentences.describe_verdict(verdict),
            }
            for verdict in gate.verdicts
        ]
    )  # fmt: skip


def bencher(gate: GateResult) -> str:
    """JSON in Bencher Metric Format: benchmark -> measure -> value with its least and greatest, of HEAD."""
    measures = {
        name: {"value": median(figures.head), "lower_value": min(figures.head), "upper_value": max(figures.head)}
        for name, figures in gate.values.items()
    }
    return _json({gate.job: measures})


def asv(gate: GateResult) -> str:
    """JSON of an asv results file, version 2, of HEAD, with times in seconds. Its date is the start of the last run of
    HEAD; asv reads the date of the commit from git."""
    columns = ["result", "params", "version", "started_at", "duration", "stats_ci_99_a", "stats_ci_99_b", "stats_q_25",
               "stats_q_75", "stats_number", "stats_repeat", "samples", "profile"]  # fmt: skip
    results: dict[str, list[Any]] = {}
    for name, figures in gate.values.items():
        scaled = [value / 1e9 if words.metric(name).unit == "ns" else value for value in figures.head]
        low, high = sorted(scaled)[len(scaled) // 4], sorted(scaled)[(3 * len(scaled)) // 4]
        key = f"{gate.job}.{'time' if words.metric(name).unit == 'ns' else 'track'}_{name}"
        results[key] = [[median(scaled)], [], name, None, None, None, None, [low], [high], [1], [len(scaled)], [scaled]]
    return _json(
        {
            "commit_hash": gate.commit, "env_name": "existing", "date": _ms(gate.time),
            "params": {"machine": gate.machine}, "python": "",
            "requirements": {}, "env_vars": {}, "result_columns": columns, "results": results, "durations": {},
            "version": 2,
        }
    )  # fmt: skip


def _ms(when: str) -> int:
    """An ISO 8601 time in ms since 1970; 0 if it is empty."""
    return round(1000 * datetime.fromisoformat(when).timestamp()) if when else 0


def _json(value: Any) -> str:
    """Indented JSON, with invisible characters of names escaped."""
    return printable_json(msgspec.json.format(encode_json(value), indent=2).decode()) + "\n"


def _half_interquartile_range(values: tuple[float, ...]) -> float:
    ordered = sorted(values)
    return (ordered[(3 * len(ordered)) // 4] - ordered[len(ordered) // 4]) / 2


FORMATS: Mapping[str, Callable[[GateResult], str]] = {
    "github": markdown, "markdown": markdown, "junit": junit, "github-action-benchmark": github_action_benchmark,
    "bencher": bencher, "asv": asv,
}  # fmt: skip
