"""Parity: reference job, tolerances, verdicts, and the matrix of mixes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.refused import code_of, missing_values, refused
from trainyard import job_file as jobs
from trainyard.errors import BadInput, BadJob, RankDied
from trainyard.job import Job, Layout, Recipe
from trainyard.model import Model
from trainyard.numerics.parity import TOLERANCE, ParityMix, alone, compare
from trainyard.numerics.parity_trial import Trial
from trainyard.train.rules.recipe_rules import DTYPES
from trainyard.train.step.outcome import Outcome

JOB = Job(
    model=Model(layers=2, hidden_size=32, ffn_hidden_size=64, heads=4, kv_heads=2, head_dim=8),
    recipe=Recipe(seq_len=32, tokens_per_step=512, micro_batch_size=2, activation_checkpoint="full", compile=True),
    layout=Layout(dp_replicate=2),
)


def judged(spread, reference, job=JOB):
    """The verdict on `job` if it returns `spread` and one process returns `reference`: (loss, norm) per step."""

    def run(run_job, _):
        return Trial([Outcome(*outcome) for outcome in (spread if run_job == job else reference)], 1.0)

    return next(compare([ParityMix("a mix", job)], run))


def test_every_training_dtype_has_a_tolerance():
    assert tuple(TOLERANCE) == DTYPES


def test_reference_keeps_micro_batches_and_recipe():
    reference = alone(JOB)
    assert reference.layout == Layout()
    assert (reference.recipe.micro_batch_size, reference.accumulate) == (2, 8)
    assert reference.model == JOB.model
    assert reference.recipe == replace(JOB.recipe, activation_checkpoint="none", compile=False)
    assert alone(reference) == reference


@given(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(-3e-5, 3e-5), st.floats(-3e-5, 3e-5))
def test_equal_needs_loss_and_grad_norm_within_tolerance(loss, norm, off, askew):
    result = judged([(loss * (1 + off), norm * (1 + askew))], [(loss, norm)])
    assert result.loss_error == pytest.approx(abs(off), abs=1e-12)
    assert result.grad_norm_error == pytest.approx(abs(askew), abs=1e-12)
    assert (result.verdict == "equal") == (result.loss_error <= 1e-5 and result.grad_norm_error <= 1e-5)
    assert bool(result.reason) == (result.verdict == "different")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_values_are_different(bad):
    assert judged([(bad, 1.0)], [(1.0, 1.0)]).verdict == "different"
    assert judged([(1.0, 1.0)], [(1.0, bad)]).verdict == "different"


def test_the_largest_error_of_any_step_counts():
    assert judged([(1.0, 1.0), (1.1, 1.0), (1.0, 1.0)], [(1.0, 1.0)] * 3).loss_error == pytest.approx(0.1)
    with refused(BadInput, "0 steps"):
        judged([], [])


def test_errors_are_verdicts_and_the_reference_runs_once():
    trained = []

    def run(job, steps):
        trained.append(job)
        if job.layout.tp > 1:
            raise BadJob("tp = 2 cannot be.", "Use 1.")
        if job.layout.dp_shard > 1:
            raise RankDied("rank 1 of a trial died: Traceback\n  ...\nValueError: no")
        return Trial([Outcome(1.0, 1.0)] * steps, 2.0)

    layouts = {"a": Layout(tp=2), "b": Layout(dp_shard=2), "c": Layout(dp_replicate=2), "d": Layout(dp_replicate=4)}
    result = list(compare([ParityMix(name, replace(JOB, layout=layout)) for name, layout in layouts.items()], run))
    assert [entry.verdict for entry in result] == ["refused", "different", "equal", "equal"]
    assert [entry.reason for entry in result] == ["tp = 2 cannot be. Use 1.", "ValueError: no", "", ""]
    assert [entry.ranks for entry in result] == [2, 2, 2, 4]
    assert trained.count(alone(JOB)) == 1


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


def test_every_number_format_has_a_tolerance():
    from trainyard import words

    assert TOLERANCE.keys() <= words.DTYPES.keys()
    assert sorted(TOLERANCE.values())[0] == TOLERANCE["float32"]


def test_mix_names_are_unique():
    from trainyard.numerics.parity_mixes import MIXES

    names = [mix.name for mix in MIXES]
    assert len(set(names)) == len(names) >= 30


# The matrix itself


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_mix_is_equal_to_one_process_or_refused_with_a_reason():
    """The table in docs/parity.md has the same mixes and verdicts."""
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "trainyard.cli.main", "numerics", "parity", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    result = json.loads(done.stdout)["results"]
    assert not [entry for entry in result if entry["verdict"] == "different"]
    assert done.returncode == 0
    rows = (Path(__file__).parents[2] / "docs" / "parity.md").read_text().splitlines()
    table = [tuple(cell.strip() for cell in row.split("|")[1:-1]) for row in rows if row.startswith("| ")][1:]
    assert [(row[0], row[-1]) for row in table] == [(entry["mix"], entry["verdict"]) for entry in result]
    assert all(entry["reason"] for entry in result if entry["verdict"] == "refused")


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
    assert result["reason"] == "loss and gradient norm off by more than 1e-05"
