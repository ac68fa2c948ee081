"""`compare_designs`: the gain of each change of a machine in a suite of trainings."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, NamedTuple

from trainyard.api.design_arguments import read_factors, read_prices
from trainyard.api.design_suite import SUITE
from trainyard.api.plan_layouts import PlanOptions, check_numbers, load_machine, planner_input_of, refuse_unsupported
from trainyard.api.plan_request import read_request
from trainyard.errors import BadInput, BadJob, UnknownName, nearest
from trainyard.job import Job
from trainyard.machine import Machine
from trainyard.model import Model
from trainyard.predict.designs.fastest_step import fastest_step
from trainyard.predict.designs.machine_changes import CHANGES, improve_machine, with_own_constants
from trainyard.predict.inputs import constant_sets
from trainyard.predict.inputs.framework_support import FRAMEWORKS, Framework
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.report.plans.describe_candidates import name_layout
from trainyard.report.plans.design_comparison import (
    ALL,
    Design,
    DesignComparison,
    DesignStep,
    DesignTraining,
    mean_speedup,
)

Path = str | os.PathLike[str]


class _SearchedTraining(NamedTuple):
    """A training on the unchanged machine, and its step on each changed one."""

    unchanged: DesignTraining
    steps: tuple[DesignStep, ...]


def compare_designs(
    models: Sequence[Path] = (),
    *,
    machine: Path,
    devices: int | None = None,
    batch: int | None = None,
    seq_len: int | None = None,
    changes: Sequence[str] = (),
    price_changes: Sequence[str] = (),
    framework: Literal["", "trainyard", "megatron", "torchtitan", "deepspeed"] = "",
    progress: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> DesignComparison:
    """Compares hypothetical designs of a machine: how much faster each change makes the steps of a suite of trainings.

    For each training and change, the fastest layout is searched again on the changed machine. `models`: names of the
    suite (`llama3-8b`, `llama3-70b`, `deepseek-v3`, `llama3-8b-128k`, `flux1-dev`; default: all), or models as for
    `plan`. `devices`, `batch`, `seq_len`: of every training, in place of the suite's. `changes`: `NAME=FACTOR` of
    `matmul`, `memory-bandwidth`, `memory-capacity`, `intra-node`, `inter-node`, `node-size`, `latency` or `host-time`;
    a factor above 1 improves the machine (default: all, by 2). `price_changes`: `NAME=PERCENT`, how much more a device
    costs with the change, or with `all` of them. `framework`: as for `plan`. `progress`: maps a message to a context
    for whose duration it is shown.

    ```python
    result = api.compare_designs(machine="h100", changes=["memory-bandwidth=2", "inter-node=2"])
    for design in result.designs:
        print(design.label, design.mean_speedup)
    ```

    Raises `UnknownName` for an unknown machine, model or change, `BadInput` for a factor of 1 or not between 0.01 and
    100, and `BadJob` if no training has a layout. A training without one has a `reason`.
    """
    check_numbers(PlanOptions(devices=devices, batch=batch, seq_len=seq_len))
    if framework and framework not in FRAMEWORKS:
        raise UnknownName(f"there is no framework {framework!r}.", nearest(framework, FRAMEWORKS))
    name, own_framework = os.fspath(machine), framework or "trainyard"
    if "," in name:
        raise BadInput(f"--machine {name}: designs are compared for a machine of one kind.", "Pass one machine.")
    runner, target = FRAMEWORKS[own_framework], load_machine(name)
    unchanged = with_own_constants(target, runner.software)
    factors = read_factors(unchanged, changes)
    designs = {change: {change: factor} for change, factor in factors.items()}
    if len(factors) > 1:
        designs[ALL] = factors
    prices = read_prices(designs, price_changes)
    machines = [improve_machine(unchanged, changed) for changed in designs.values()]
    refuses = refuse_unsupported if own_framework == "trainyard" else lambda _: None
    wanted = {
        training: _read_training(training, unchanged, devices, batch, seq_len)
        for training in ([os.fspath(model) for model in models] or SUITE)
    }
    compared: list[_SearchedTraining] = []
    for training, request in wanted.items():
        with progress(f"Searching {training} on {len(machines) + 1} machines ({len(compared) + 1} of {len(wanted)})"):
            compared.append(_search(training, request, [unchanged, *machines], runner, refuses))
    trainings = tuple(training.unchanged for training in compared)
    if not any(training.step_ns for training in trainings):
        raise BadJob(
            f"No training has a layout on {target.name}; {trainings[0].name}: {trainings[0].reason}",
            "Pass smaller models with --model, more --devices, or another --batch.",
        )
    rows = [
        _design(change, changed, trainings, [training.steps[index] for training in compared], prices.get(change))
        for index, (change, changed) in enumerate(designs.items())
    ]
    rows.sort(key=lambda row: (row.name == ALL, -(row.mean_speedup or 0.0)))
    return DesignComparison(
        machine=target.name,
        device=target.device.name,
        framework=own_framework,
        constants=constant_sets.choose(target, runner.software).name,
        trainings=trainings,
        designs=tuple(rows),
        assumptions=(
            "Assumed: attained shares of the peaks and all other fitted constants stay the same. The two steps of a "
            "ratio share most of their prediction error; gains of a few percent may still be within it.",
        ),
    )


def _read_training(
    name: str, machine: Machine, devices: int | None, batch: int | None, seq_len: int | None
) -> PlannerInput:
    """The search of one training on the machine. The numbers replace those of the suite. Raises `BadInput` for a model
    that cannot be planned for, or one outside the suite without a batch."""
    suite = SUITE.get(name)
    request = read_request(suite.model if suite else name, None, None, None)
    options = PlanOptions(
        devices=devices or (suite.devices if suite else None),
        batch=batch or (suite.batch if suite else None),
        seq_len=(seq_len or (suite.seq_len if suite else None)) if isinstance(request.model, Model) else None,
    )
    return planner_input_of(request, machine, options)


def _search(
    name: str, wanted: PlannerInput, machines: Sequence[Machine], framework: Framework, refuses: Callable[[Job], None]
) -> _SearchedTraining:
    """Searches one training on the unchanged machine, which is the first of `machines`, and on each changed one."""
    known: list[Job] = []
    steps: list[DesignStep] = []
    for machine in machines:
        try:
            plan = fastest_step(wanted, machine, framework, refuses, known).plan
        except BadJob as error:
            steps.append(DesignStep(reason=error.message))
            continue
        step_ns = plan.ledger.wall_ns
        unchanged_ns = steps[0].step_ns if steps else step_ns
        speedup = unchanged_ns / step_ns if unchanged_ns else None
        known.append(plan.job)
        steps.append(DesignStep(step_ns=step_ns, speedup=speedup, layout=name_layout(plan.job)))
    first, *changed = steps
    unchanged = DesignTraining(
        name=name if name in SUITE else wanted.model.name, model=wanted.model.name,
        devices=wanted.devices // machines[0].device.ranks, batch=wanted.samples, seq_len=wanted.seq_len,
        step_ns=first.step_ns, layout=first.layout, reason=first.reason,
    )  # fmt: skip
    return _SearchedTraining(unchanged, tuple(changed))


def _design(
    name: str,
    factors: dict[str, float],
    trainings: Sequence[DesignTraining],
    steps: Sequence[DesignStep],
    price_change: float | None,
) -> Design:
    """One row of the comparison. `steps`: of each training; `price_change`: None if it is not stated."""
    mean = mean_speedup(trainings, steps)
    label = "all together" if name == ALL else CHANGES[name].describe(factors[name])
    cost = (1 + price_change) / mean if price_change is not None and mean is not None else None
    return Design(
        name=name, label=label, factors=factors, steps=tuple(steps), mean_speedup=mean, price_change=price_change,
        cost_per_token=cost,
    )  # fmt: skip
