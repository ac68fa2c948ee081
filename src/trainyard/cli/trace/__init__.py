"""`trainyard trace PATH...`, and its modes."""

from __future__ import annotations

from trainyard.cli.support.default_group import DefaultGroup, Mode

command = DefaultGroup(
    name="trace",
    help="Analyse profiler files of one or more ranks: where every nanosecond of a step went.",
    default="trainyard.cli.trace.analysis",
    modes={
        "what-if": Mode(
            "trainyard.cli.trace.what_if", "Predict the step with changes: a faster network, no stragglers, ..."
        ),
        "critical-path": Mode(
            "trainyard.cli.trace.critical_path", "Show the chain of dependent ops that determines the step time."
        ),
        "sql": Mode("trainyard.cli.trace.sql", "Run a SQL query over the tables of a trace (extra `sql`)."),
        "reconcile": Mode(
            "trainyard.cli.trace.reconcile",
            "Show figures by the definitions of HTA or TraceLens, and why they differ.",
        ),
        "hangs": Mode("trainyard.cli.trace.hangs", "Find the ranks that make a job hang, from flight-recorder dumps."),
        "memory": Mode("trainyard.cli.trace.memory", "Show what held the peak of a torch memory snapshot."),
    },
    replaced={
        "--what-if": "what-if PATH... --change CHANGE",
        "--sql": "sql QUERY PATH...",
        "hta": "reconcile PATH... --with hta",
        "tracelens": "reconcile PATH... --with tracelens",
        "--top": "PATH... --full",
    },
)
