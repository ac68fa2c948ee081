"""Small trainings that wait for their host, next to their predictions: `python -m validation.small_models`.

Megatron-LM's functional tests train a decoder of 12 layers, 512 channels wide, on eight devices in several layouts; its
repository has their step times over two years. The layouts are those of the tests' model_config.yaml. The tests run
deterministic kernels and compute norms and statistics in every step, which a training does not, so that their steps are
upper bounds: constants are not fitted to them. Needs the step times next to the checkout.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from rich.console import Console

from trainyard import machine as machines
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.plan import Plan
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.search.layout_cost import cost_job
from trainyard.recipe import Recipe
from trainyard.report.render.terminal import print_table
from trainyard.report.view.view import Column, Table
from validation import fit

STEP_TIMES = fit.PUBLISHED.parents[1] / "megatron_loss_and_step_times.jsonl.gz"
LAYOUTS = {
    "gpt3_mcore_te_tp1_pp1_resume_torch_dist_dist_optimizer": Layout(dp_replicate=8, zero=1),
    "gpt3_mcore_te_tp1_pp4_vp1": Layout(dp_replicate=2, pp=4),
    "gpt3_mcore_te_tp2_pp2_resume_torch_dist": Layout(dp_replicate=2, tp=2, pp=2),
    "gpt3_mcore_te_tp4_pp1_dist_optimizer_overlap_grad_reduce_param_gather": Layout(dp_replicate=2, tp=4, zero=1),
}
"""Test -> its layout."""
MACHINES = {"dgx_a100": "a100", "dgx_h100": "h100"}
"""Part of the name of a file of step times -> machine."""
_MODEL = Model(
    layers=12, hidden_size=512, ffn_hidden_size=2048, heads=8, kv_heads=8, head_dim=64, vocab=50304, norm="layer",
    mlp="gelu", position="learned", bias="all", tie_word_embeddings=True,
)  # fmt: skip
_RECIPE = Recipe(seq_len=1024, tokens_per_step=32 * 1024, micro_batch_size=4, dtype="bfloat16")


class SmallTraining(NamedTuple):
    """A test on a machine. `measured_s`: the median over its recorded runs of their median step, of `runs`."""

    test: str
    machine: str
    runs: int
    measured_s: float
    plan: Plan

    @property
    def holds(self) -> bool:
        return self.plan.low <= self.measured_s * 1e9 <= self.plan.high


def predict() -> Iterator[SmallTraining]:
    """The tests with step times on a known machine."""
    for (test, machine), medians in sorted(_step_times().items()):
        job = Job(model=_MODEL, layout=LAYOUTS[test], recipe=_RECIPE)
        plan = cost_job(job, machines.load(machine), FRAMEWORKS["megatron"]).plan
        yield SmallTraining(test, machine, len(medians), float(np.median(medians)), plan)


def _step_times() -> dict[tuple[str, str], list[float]]:
    """(test, machine) -> the median step of each recorded run in seconds."""
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    with gzip.open(STEP_TIMES, "rt", encoding="utf-8") as file:
        for line in file:
            run = json.loads(line)
            test, name = run["path"].split("/")[-2:]
            machine = next((machine for part, machine in MACHINES.items() if part in name), None)
            steps = [step for step in run.get("iteration-time", {}).get("v", ()) if isinstance(step, float)]
            if test in LAYOUTS and machine and steps:
                times[test, machine].append(float(np.median(steps)))
    return times


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    columns = (
        Column(title="layout"), Column(title="machine"), Column(title="runs", digits=0),
        Column(title="predicted, ms", digits=0), Column(title="80 % interval, ms"),
        Column(title="measured, ms", digits=0), Column(title="in interval"),
    )  # fmt: skip
    lines = [
        (
            f"tp {LAYOUTS[each.test].tp}, pp {LAYOUTS[each.test].pp}", each.machine, each.runs,
            each.plan.ledger.wall_ns / 1e6,
            f"{each.plan.low / 1e6:.0f} to {each.plan.high / 1e6:.0f}", 1e3 * each.measured_s,
            "yes" if each.holds else "no",
        )
        for each in predict()
    ]  # fmt: skip
    print_table(Table(title="Small trainings", notes=(), columns=columns, rows=tuple(lines)), Console(width=120))


if __name__ == "__main__":
    main()
