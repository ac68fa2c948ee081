"""Parity: reference job, tolerances, verdicts, and the matrix of mixes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.numerics.covering_mixes import covering_mixes, settings_and_pairs
from tests.refused import code_of, missing_values, refused
from trainyard import job_file as jobs
from trainyard.errors import BadInput, BadJob, RankDied
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.numerics.parity import ParityMix, alone, compare
from trainyard.numerics.parity_mixes import MIXES
from trainyard.numerics.parity_trial import Trial, trial
from trainyard.numerics.rounding_tolerance import FLOOR
from trainyard.recipe import Recipe
from trainyard.train.step.outcome import Outcome

JOB = Job(
    model=Model(layers=2, hidden_size=32, ffn_hidden_size=64, heads=4, kv_heads=2, head_dim=8),
    recipe=Recipe(seq_len=32, tokens_per_step=512, micro_batch_size=2, activation_checkpoint="full", compile=True),
    layout=Layout(dp_replicate=2),
)


def judged(spread, reference, job=JOB, replicas=()):
    """The verdict on `job` if it returns `spread` and one process returns `reference`: (loss, norm) per step.
    `replicas`: those of the reference; without any, all have its losses and norms."""

    def run(run_job, _, count):
        if run_job == job:
            return Trial([Outcome(*outcome) for outcome in spread], 1.0)
        jittered = [[Outcome(*outcome) for outcome in replica] for replica in replicas or [reference] * count]
        return Trial([Outcome(*outcome) for outcome in reference], 1.0, jittered)

    return next(compare([ParityMix("a mix", job)], run))


def test_reference_keeps_micro_batches_and_recipe():
    reference = alone(JOB)
    assert reference.layout == Layout()
    assert (reference.recipe.micro_batch_size, reference.accumulate) == (2, 8)
    assert reference.model == JOB.model
    in_process = {"num_workers": 0, "pin_memory": False, "device_prefetch": False}
    assert reference.recipe == replace(JOB.recipe, activation_checkpoint="none", compile=False, **in_process)
    assert alone(reference) == reference


@given(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(-1e-6, 1e-6), st.floats(-1e-6, 1e-6))
def test_equal_needs_loss_and_grad_norm_within_tolerance(loss, norm, off, askew):
    result = judged([(loss * (1 + off), norm * (1 + askew))], [(loss, norm)])
    assert result.loss.error == pytest.approx(abs(off), abs=1e-12)
    assert result.grad_norm.error == pytest.approx(abs(askew), abs=1e-12)
    assert (result.verdict == "equal") == (result.loss.error <= FLOOR and result.grad_norm.error <= FLOOR)
    assert bool(result.reason) == (result.verdict == "different")


def test_each_step_is_compared_with_the_replicas_of_its_step():
    """An error that rounding explains in the second step is a difference in the first."""
    reference, replicas = [(1.0, 1.0), (1.0, 1.0)], [[(1.0, 1.0), (1.0 + sign * 1e-3, 1.0)] for sign in (1, -1)]
    late = judged([(1.0, 1.0), (1.003, 1.0)], reference, replicas=replicas)
    early = judged([(1.003, 1.0), (1.0, 1.0)], reference, replicas=replicas)
    assert (late.verdict, late.loss.step, late.grad_norm.tolerance) == ("equal", 1, FLOOR)
    assert (early.verdict, early.loss.step, early.loss.tolerance) == ("different", 0, FLOOR)
    assert missing_values(early.reason, "loss in step 0", "3.0e-03", "4.8e-07") == []


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_values_are_different(bad):
    result = judged([(bad, 1.0)], [(1.0, 1.0)])
    assert (result.verdict, result.loss.error) == ("different", None)
    assert judged([(1.0, 1.0)], [(1.0, bad)]).verdict == "different"


def test_the_largest_error_of_any_step_counts():
    assert judged([(1.0, 1.0), (1.1, 1.0), (1.0, 1.0)], [(1.0, 1.0)] * 3).loss.error == pytest.approx(0.1)
    with refused(BadInput, "0 steps"):
        judged([], [])


def test_errors_are_verdicts_and_the_reference_runs_once():
    trained = []

    def run(job, steps, replicas):
        trained.append(job)
        if job.layout.tp > 1:
            raise BadJob("tp = 2 cannot be.", "Use 1.")
        if job.layout.dp_shard > 1:
            raise RankDied("rank 1 of a trial died: Traceback\n  ...\nValueError: no")
        return Trial([Outcome(1.0, 1.0)] * steps, 2.0, [[Outcome(1.0, 1.0)] * steps] * replicas)

    layouts = {"a": Layout(tp=2), "b": Layout(dp_shard=2), "c": Layout(dp_replicate=2), "d": Layout(dp_replicate=4)}
    mixes = [ParityMix(name, replace(JOB, name=name, layout=layout)) for name, layout in layouts.items()]
    result = list(compare(mixes, run))
    assert [entry.verdict for entry in result] == ["refused", "different", "equal", "equal"]
    assert [entry.reason for entry in result] == ["tp = 2 cannot be. Use 1.", "ValueError: no", "", ""]
    assert [entry.ranks for entry in result] == [2, 2, 2, 4]
    assert sum(job.layout == Layout() for job in trained) == 1


def test_job_on_one_process_reports_no_layout_tested():
    reference = alone(JOB)
    result = judged([(1.0, 1.0)], [(1.0, 1.0)], reference)
    assert (result.verdict, result.dtype) == ("equal", "float32")
    assert result.reason == "one process, compared with itself: that does not test a layout"
    recomputed = replace(reference, recipe=replace(reference.recipe, activation_checkpoint="full"))
    assert not judged([(1.0, 1.0)], [(1.0, 1.0)], recomputed).reason


def test_refused_job_is_also_printed_as_json(tmp_path):
    job = tmp_path / "job.toml"
    job.write_text(jobs.write(replace(JOB, layout=Layout(tp=3))))
    command = [sys.executable, "-m", "trainyard.cli.main", "numerics", "parity", str(job), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    [result] = json.loads(done.stdout)["results"]
    assert result["verdict"] == "refused"
    assert missing_values(result["reason"], "tp = 3", "$.layout", "heads 4 % tp 3 = 1") == []
    assert code_of(done.stderr) == "bad-job"
    assert missing_values(done.stderr, "tp = 3", "$.layout", "heads 4 % tp 3 = 1") == []


def test_mix_names_are_unique():
    names = [mix.name for mix in MIXES]
    assert len(set(names)) == len(names) >= 30


@pytest.mark.torch
@pytest.mark.parametrize("name", ["DDP, shares 3:1", "FSDP2, ZeRO-2, shares 3:1"])
def test_unequal_batch_shares_train_like_one_process(name):
    pytest.importorskip("torch")

    mixes = {mix.name: mix for mix in MIXES}
    [result] = compare([mixes[name]], trial)
    assert mixes[name].job.micro_batches == (3, 1)
    assert (result.verdict, result.ranks) == ("equal", 2)


# The matrix itself


def parity_table():
    """(mix, verdict) of each row of docs/parity.md."""
    rows = (Path(__file__).parents[2] / "docs" / "parity.md").read_text().splitlines()
    table = [tuple(cell.strip() for cell in row.split("|")[1:-1]) for row in rows if row.startswith("| ")][1:]
    return [(row[0], row[-1]) for row in table]


def test_the_page_has_every_mix_and_none_is_different():
    assert [name for name, _ in parity_table()] == [mix.name for mix in MIXES]
    assert {verdict for _, verdict in parity_table()} == {"equal", "refused"}


QUICK = covering_mixes([mix for mix in MIXES if mix.job.recipe.dtype != "float8"])
"""Those of float8 have the slowest replicas."""


def test_quick_mixes_lack_no_setting_but_float8():
    quick, every = (set().union(*map(settings_and_pairs, mixes)) for mixes in (QUICK, MIXES))
    assert every - quick == {(("dtype", "float8"),)}
    assert len(QUICK) < len(MIXES) / 2


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_quick_mixes_are_equal_to_one_process_or_refused_with_a_reason():
    pytest.importorskip("torch")
    results = list(compare(QUICK, trial, steps=2))
    verdicts = dict(parity_table())
    assert {result.mix: result.verdict for result in results} == {
        result.mix: verdicts[result.mix] for result in results
    }
    assert all(result.reason for result in results if result.verdict == "refused")


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_every_mix_is_equal_to_one_process_or_refused_with_a_reason():
    """The table in docs/parity.md has the same verdicts."""
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "trainyard.cli.main", "numerics", "parity", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    results = json.loads(done.stdout)["results"]
    assert [(entry["mix"], entry["verdict"]) for entry in results] == parity_table()
    assert all(entry["reason"] for entry in results if entry["verdict"] == "refused")


@pytest.mark.torch
@pytest.mark.slow
def test_a_difference_is_found_and_ends_with_code_1(monkeypatch):
    """A reference with another seed, as if a layout used different samples or weights."""
    pytest.importorskip("torch")
    from click.testing import CliRunner

    from trainyard.cli import numerics
    from trainyard.numerics import parity

    monkeypatch.setattr(parity, "alone", lambda job: replace(alone(job), recipe=replace(job.recipe, seed=8)))
    result = CliRunner().invoke(numerics.command, ["parity", "--only", "DDP, no accumulation", "--json"])
    assert result.exit_code == 1
    [result] = json.loads(result.stdout)["results"]
    assert result["verdict"] == "different"
    assert missing_values(result["reason"], "loss in step", "gradient norm in step") == []
