"""Print the result of a gate, and return the exit code."""

from __future__ import annotations

from trainyard.cli.support.output import console, echo, print_json
from trainyard.compare.gate.gate_result import GateResult
from trainyard.report.gate.gate_terminal import print_gate


def show(gate: GateResult, form: str | None, as_json: bool) -> int:
    if as_json:
        print_json(gate)
    elif form:
        from trainyard.report.gate.ci_formats import write

        echo(write(gate, form), newline=False)
    else:
        print_gate(gate, console())
    return gate.exit_code
