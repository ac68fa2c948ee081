"""Render the result of a gate in the requested format."""

from __future__ import annotations

from trainyard.cli.support.output import console, echo, print_json
from trainyard.report.gate.gate_report import GateReport
from trainyard.report.gate.gate_terminal import print_gate


def render_gate(gate: GateReport, form: str | None, as_json: bool, full: bool) -> None:
    """Prints the result of a gate as JSON, in the format `form` of a CI system if it is not None, or as text."""
    if as_json:
        print_json(gate)
    elif form:
        from trainyard.report.gate.ci_formats import write

        echo(write(gate, form), newline=False)
    else:
        print_gate(gate, console(full=full), full)
