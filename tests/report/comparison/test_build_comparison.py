"""The comparison of several runs: exact sums, the verdicts of `diff`, settings, findings, plans, missing ledgers."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.compared_runs import (
    GAP,
    GATHER,
    MATMUL,
    PROVENANCE,
    compared,
    finding,
    ledgers,
    planned,
    plans,
    stored_run,
    traced,
)
from tests.refused import refused
from tests.stored import JOB
from trainyard.api.compare_runs import rename_equal
from trainyard.errors import BadInput
from trainyard.layout import Layout
from trainyard.ledger import decode_hook, encode_hook
from trainyard.recipe import Recipe
from trainyard.record import Sample
from trainyard.report.comparison.build_comparison import MAX_RUNS, compare_runs
from trainyard.report.comparison.compared_run import ComparedRun
from trainyard.report.comparison.finding_changes import compare_findings
from trainyard.report.comparison.ledger_rows import arrange_ledgers
from trainyard.report.comparison.run_facts import compare_facts
from trainyard.report.comparison.runs_comparison import RunsComparison
from trainyard.report.comparison.step_series import collect_series
from trainyard.report.view.comparison import compare

BEFORE = compared(stored_run("aaaa", (1000, 100, 500, 2, 3), (1010, 110, 510, 2, 3)))
AFTER = compared(stored_run("bbbb", (1200, 100, 400, 2, 3), (1210, 112, 410, 2, 3)))

step = st.tuples(*(st.integers(0, 10_000) for _ in range(5)))
runs = st.lists(st.lists(step, min_size=1, max_size=3), min_size=2, max_size=4)


@given(runs)
def test_rows_of_each_run_add_up_to_its_step(steps_of_runs):
    compared_runs = [compared(stored_run(f"run{at}", *steps)) for at, steps in enumerate(steps_of_runs)]
    result = compare_runs(compared_runs)
    for at, run in enumerate(result.runs):
        assert sum(row.ns[at] or 0 for row in result.rows) == run.wall_ns
        starts = [row.start_ns[at] for row in result.rows]
        assert starts == [sum(row.ns[at] or 0 for row in result.rows[:index]) for index in range(len(result.rows))]
    for at, run in enumerate(result.runs[1:]):
        changes = [change.ns for row in result.rows if (change := row.changes[at])]
        assert sum(changes) == run.wall_ns - result.base.wall_ns


def test_verdicts_are_those_of_diff():
    result = compare_runs([BEFORE, AFTER])
    expected = compare(BEFORE.side, AFTER.side)
    assert result.comparisons == (expected,)
    verdicts = {str(change.account): change.verdict for change in expected.changes}
    assert {row.account: row.changes[0].verdict for row in result.rows if row.account} == {
        account: verdicts[account] for account in ("compute/matmul", "launch_gap/python", "comm/all_gather@dp")
    }
    assert verdicts["compute/matmul"] == "worse"
    assert verdicts["comm/all_gather@dp"] == "better"
    folded = [row for row in result.rows if not row.account]
    assert [row.ns for row in folded] == [(5, 5)]
    assert folded[0].changes[0].verdict == ""


def test_document_round_trip():
    result = compare_runs([BEFORE, AFTER, planned(plans(1700), JOB)])
    encoded = msgspec.json.encode(result, enc_hook=encode_hook)
    assert msgspec.json.decode(encoded, type=RunsComparison, dec_hook=decode_hook) == result


def test_number_of_runs_is_limited():
    for number in (1, MAX_RUNS + 1):
        with refused(BadInput, number, MAX_RUNS):
            compare_runs([BEFORE] * number)


def test_settings_that_differ_come_apart_from_equal_ones():
    changed = replace(
        PROVENANCE, code={"sha": "2222222", "dirty": "no"}, packages={"torch": "2.14.0", "numpy": "2.4.0"}
    )
    job = replace(JOB, recipe=replace(JOB.recipe, optimizer="muon"))
    other = compared(stored_run("bbbb", (1, 1, 1, 1, 1), provenance=changed, job=job))
    rows = compare_facts([BEFORE, other])
    assert {(row.kind, row.key): row.values for row in rows if row.status == "differs"} == {
        ("code", "sha"): ("1111111", "2222222"),
        ("recipe", "optimizer"): ("adamw", "muon"),
        ("packages", "torch"): ("2.13.0", "2.14.0"),
        ("packages", "msgspec"): ("0.20", "absent"),
    }
    assert next(row.kind for row in rows if row.status == "differs") == "code"
    assert ("host", "name") in {(row.kind, row.key) for row in rows if row.status == "equal"}


def test_settings_that_one_run_does_not_record_are_not_differences(tmp_path):
    rows = compare_facts([BEFORE, traced(tmp_path, "trace")])
    assert {row.status for row in rows if row.kind in ("code", "packages", "recipe", "host")} == {"partial"}
    assert {(row.kind, row.key) for row in rows if row.status == "differs"} == {
        ("devices", "model"),
        ("layout", "ranks"),
    }


def test_equal_lines_of_long_settings_are_left_out():
    builds = ("CUDA 12.8\nMKL 2024\ncuDNN 9.1", "CUDA 12.8\nMKL 2024\ncuDNN 9.2")
    first, second = (
        compared(stored_run(name, provenance=replace(PROVENANCE, torch_build={"config": build})))
        for name, build in zip("ab", builds)
    )
    row = next(row for row in compare_facts([first, second]) if row.kind == "torch")
    assert (row.values, row.status) == (("cuDNN 9.1", "cuDNN 9.2"), "differs")
    row = next(row for row in compare_facts([first, first]) if row.kind == "torch")
    assert row.status == "equal"


def with_findings(run: ComparedRun, *findings) -> ComparedRun:
    return run._replace(analysis=replace(run.analysis, findings=findings))


def test_findings_appear_and_go_away():
    before = with_findings(BEFORE, finding("host_sync", GAP, 90), finding("exposed_comm", GATHER, 50))
    after = with_findings(AFTER, finding("host_sync", GAP, 10), finding("slow_matmul", MATMUL, 30))
    changes = {change.status: change for change in compare_findings(before, after)}
    assert {status: change.cost_change_ns for status, change in changes.items()} == {
        "both": -80,
        "gone": -50,
        "appeared": 30,
    }
    assert changes["appeared"].before is None
    assert changes["gone"].after is None


def test_findings_of_a_rule_are_paired_by_weight():
    heavy, light = finding("host_sync", GAP, 90, "heavy"), finding("host_sync", GAP, 20, "light")
    changes = compare_findings(with_findings(BEFORE, light, heavy), with_findings(AFTER, finding("host_sync", GAP, 80)))
    assert [(change.status, change.cost_change_ns) for change in changes] == [("gone", -20), ("both", -10)]


def test_findings_of_a_rule_are_paired_across_accounts():
    before = with_findings(BEFORE, finding("launch_bound", GAP, 90), finding("launch_bound", GATHER, 50))
    after = with_findings(AFTER, finding("launch_bound", MATMUL, 60), finding("launch_bound", GATHER, 55))
    changes = compare_findings(before, after)
    assert [(change.status, change.cost_change_ns) for change in changes] == [("both", -30), ("both", 5)]


def test_findings_are_not_paired_with_those_of_a_plan():
    after = with_findings(AFTER, finding("host_sync", GAP, 10))
    assert [change.status for change in compare_findings(planned(plans(1700), JOB), after)] == ["unpaired"]


@pytest.mark.parametrize(
    ("predicted_ns", "position"), [(100, "above"), (115, "inside"), (120, "inside"), (150, "below")]
)
def test_timed_step_against_the_interval_of_a_plan(predicted_ns, position):
    """The median timed step of `tests.stored.samples` is 125 ns."""
    check = compare_runs([planned(plans(predicted_ns), JOB), BEFORE]).plan_checks[0]
    assert (check.measured_ns, check.clock, check.position) == (125, "timed", position)
    assert (check.low_ns, check.high_ns) == (predicted_ns * 9 // 10, predicted_ns * 11 // 10)
    assert (check.predicted_bytes, check.measured_bytes, check.memory) == (2000, 1001, "allocated")


def test_plan_without_a_timed_step_is_checked_against_the_profiled_one():
    run = replace(stored_run("aaaa", (1000, 100, 500, 0, 0)), samples=())
    check = compare_runs([planned(plans(1600), JOB), compared(run)]).plan_checks[0]
    assert (check.measured_ns, check.clock, check.position) == (1600, "profiled", "inside")
    assert check.memory == ""


def test_plan_without_a_measured_step():
    run = replace(stored_run("aaaa"), samples=())
    result = compare_runs([planned(plans(1600), JOB), compared(run)])
    assert (result.plan_checks[0].measured_ns, result.plan_checks[0].position) == (0, "")
    assert result.comparisons == (None,)


def test_accounts_that_a_plan_does_not_predict_count_in_full():
    result = compare_runs([planned(plans(1600), JOB), BEFORE])
    row = next(row for row in result.rows if row.account == "launch_gap/python")
    assert row.ns == (1, 105)
    assert row.changes[0].verdict == "unknown"


def test_plan_with_the_layout_of_the_run_is_chosen():
    other = replace(JOB, layout=Layout(dp_shard=2))
    fastest, like_run = (plans(ns, job=job).choices[0] for ns, job in ((100, other), (130, JOB)))
    two_plans = replace(plans(100), choices=(fastest, like_run))
    check = compare_runs([planned(two_plans, JOB), BEFORE]).plan_checks[0]
    assert (check.choice, check.choices, check.same_layout, check.predicted_ns) == (2, 2, True, 130)
    unlike = compare_runs([planned(replace(two_plans, choices=(fastest,)), JOB), BEFORE])
    assert unlike.plan_checks[0].same_layout is False
    assert unlike.warnings


def test_memory_of_a_process_on_a_cpu_is_not_compared_with_a_plan():
    devices = tuple(replace(device, vendor="cpu") for device in PROVENANCE.devices)
    run = stored_run("aaaa", (1000, 1, 1, 1, 1), provenance=replace(PROVENANCE, devices=devices))
    result = compare_runs([planned(plans(1600), JOB), compared(run)])
    assert result.plan_checks[0].memory == "resident"


def test_run_without_a_profile_has_no_ledger_but_settings_and_curves():
    result = compare_runs([BEFORE, compared(stored_run("bbbb"))])
    assert result.comparisons == (None,)
    assert [row.ns[1] for row in result.rows] == [None] * len(result.rows)
    assert all(row.changes == (None,) for row in result.rows)
    assert [bool(run.no_ledger) for run in result.runs] == [False, True]
    assert all(series.loss and series.step_ns for series in result.series)
    assert result.warnings


def test_damaged_run_is_not_compared():
    damaged = compared(replace(stored_run("bbbb", (1, 1, 1, 1, 1)), state="damaged", failure="samples.json is short"))
    result = compare_runs([BEFORE, damaged])
    assert result.comparisons == (None,)
    assert "samples.json is short" in result.runs[1].no_ledger
    assert result.runs[1].state == "damaged"


def test_same_run_twice_has_no_changes():
    result = compare_runs([BEFORE, BEFORE])
    assert {change.ns for row in result.rows for change in row.changes} == {0}
    assert not [row for row in result.facts if row.status == "differs"]
    assert [warning for warning in result.warnings if "equal ledgers" in warning]


def test_runs_without_anything_are_compared_by_their_settings():
    empty = compared(replace(stored_run("aaaa"), samples=()))
    result = compare_runs([empty, empty.renamed("bbbb")])
    assert (result.rows, result.findings, result.comparisons) == ((), ((),), (None,))
    assert result.facts


def test_different_jobs_have_no_verdicts_but_a_warning():
    job = replace(JOB, recipe=Recipe(seq_len=8, tokens_per_step=32))
    result = compare_runs([BEFORE, compared(stored_run("bbbb", (1, 1, 1, 1, 1), job=job))])
    assert not result.comparisons[0].comparable
    assert {change.verdict for row in result.rows for change in row.changes} == {""}
    assert set(result.comparisons[0].reasons) <= set(result.warnings)


def test_unequal_numbers_of_ranks_are_not_comparable(tmp_path):
    result = compare_runs([traced(tmp_path, "one"), traced(tmp_path, "two", ranks=2)])
    assert not result.comparisons[0].comparable
    assert [row.ns for row in result.rows if row.account == "compute/matmul"] == [(4000, 4000)]


def test_curves_keep_spikes_when_they_are_reduced():
    def sample(step: int) -> Sample:
        loss = 99.0 if step == 4321 else float("nan") if step == 7 else 1.0
        return Sample(step=step, rank=0, repeat=0, wall_ns=5 + (step == 1234), tokens=1, loss=loss, memory_bytes=1)

    series = collect_series(replace(stored_run("aaaa"), samples=tuple(map(sample, range(10_000)))))
    assert max(series.loss.values) == 99.0
    assert series.loss.steps[series.loss.values.index(99.0)] == 4322, "counted from 1"
    assert max(series.step_ns.values) == 6
    assert len(series.step_ns.steps) <= 1000
    assert (series.loss.recorded, series.step_ns.recorded) == (9999, 10_000)


def test_ledger_without_time_is_drawn():
    assert arrange_ledgers([ledgers((0, 0, 0, 0, 0))[0]] * 2, [None]) == ()


def test_equal_names_of_different_files_are_told_apart(tmp_path):
    paths = [tmp_path / name / "x" / "rank0" for name in ("before", "after")]
    for path in paths:
        path.mkdir(parents=True)
    items = [ComparedRun("rank0", None), ComparedRun("rank0", None)]
    assert [item.name for item in rename_equal(items, paths)] == ["before/x/rank0", "after/x/rank0"]
    assert [item.name for item in rename_equal(items, [paths[0], paths[0]])] == ["rank0", "rank0"]
    assert [item.name for item in rename_equal(items, ["not", Path("there")])] == ["rank0", "rank0"]
