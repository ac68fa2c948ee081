"""`trainyard run JOB`, and its modes."""

from __future__ import annotations

from trainyard.cli.support.default_group import DefaultGroup, Mode

command = DefaultGroup(
    name="run",
    help="Run a job or a training script on this machine: time, profile and record it.",
    default="trainyard.cli.run.run_job",
    modes={
        "resume": Mode("trainyard.cli.run.resume", "Resume an unfinished run, or start a new one from its checkpoint."),
        "chaos": Mode("trainyard.cli.run.chaos", "Run a job with injected faults, and score its recovery."),
        "chaos-nodes": Mode(
            "trainyard.cli.run.chaos_nodes", "Run a job on nodes that are killed, and score its recovery."
        ),
    },
    replaced={
        "--resume": "resume RUN [JOB.toml]",
        "--chaos": "chaos PLAN.toml JOB.toml",
        "--against": "chaos PLAN.toml JOB.toml --against RUN",
    },
)
