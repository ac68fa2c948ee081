"""`trainyard plan MODEL`, and its modes."""

from __future__ import annotations

from trainyard.cli.support.default_group import DefaultGroup, Mode

command = DefaultGroup(
    name="plan",
    help="Find the fastest layouts of a model on a cluster: time, memory, days and dollars.",
    default="trainyard.cli.plan.search",
    modes={
        "check": Mode("trainyard.cli.plan.check", "Predict a training configuration as it is, next to the fastest."),
        "measure": Mode("trainyard.cli.plan.measure", "Measure the best layouts with short runs on this machine."),
        "design": Mode("trainyard.cli.plan.design", "Compare changes of a machine: which makes trainings faster?"),
        "rollout": Mode("trainyard.cli.plan.rollout", "Plan reinforcement learning: generation and training together."),
        "list": Mode("trainyard.cli.plan.list", "List the models and machines that are known by name."),
    },
    replaced={"--check": "check FILE [--model MODEL]", "--list": "list"},
)
