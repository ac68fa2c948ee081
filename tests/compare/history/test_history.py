"""`trainyard history`: stored runs and files, accepted changes, exit codes, the HTML page, error rates."""

import errno
import json
import os
import re
from types import SimpleNamespace

import numpy as np
import pytest

from tests.cli.one_screen import check
from tests.json_documents import read_document
from tests.refused import code_of, missing_values, refused
from tests.report.render.test_html import BROWSER, drawn
from trainyard import api
from trainyard.cli.main import answer
from trainyard.compare.history import accepted_changes as files
from trainyard.compare.history.detect_changes import detect
from trainyard.compare.history.judge_changes import judge
from trainyard.compare.history.sources.series import Series, SeriesPoint, describe_metric, load
from trainyard.errors import BadFile, BadInput
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.ledger import Account, Entry, Ledger, Scope
from trainyard.model import Model
from trainyard.recipe import Recipe
from trainyard.record import DeviceSeen, Provenance, Run, Sample
from trainyard.report.history import history_page
from trainyard.report.history import history_terminal as report
from trainyard.report.history.sentences import explain_estimate
from trainyard.store import run_folder
from trainyard.store.store import Store
from trainyard.words import METRICS
from validation.history import cover, f1, read
from validation.history_noise import Rate, autocorrelated, two_modes

MODEL = Model(layers=1, hidden_size=8, ffn_hidden_size=8, heads=1, kv_heads=1, head_dim=8)


def a_run(number, step_ns, device="A100", torch="2.1", gap=0, layout=None):
    """A run of the job tiny: its step takes `step_ns`, of which `gap` is a launch gap."""
    entries = (
        Entry(account=Account("compute", "matmul"), ns=step_ns - gap),
        Entry(account=Account("launch_gap", "python"), ns=gap),
    )
    return Run(
        id=f"{number:08x}",
        job=Job(name="tiny", model=MODEL, layout=layout or Layout(), recipe=Recipe(seq_len=8, tokens_per_step=16)),
        started=f"2026-01-01T{number // 60:02d}:{number % 60:02d}:00.000+00:00",
        state="complete",
        provenance=Provenance(
            code={"sha": f"{number + 0xABC000:x}".ljust(40, "0"), "dirty": "no"},
            packages={"torch": torch},
            devices=(DeviceSeen(index=0, name=device, vendor="nvidia"),),
        ),
        samples=(Sample(step=0, rank=0, repeat=0, wall_ns=step_ns, tokens=16, memory_bytes=100),),
        ledgers=(Ledger(wall_ns=step_ns, entries=entries, scope=Scope(reduce="mean", ranks=(0,))),),
    )


def store_run(store, run):
    store.begin(run, "name = 'tiny'\n")
    store.finish(run)


@pytest.fixture
def env(tmp_path, monkeypatch):
    """A temporary working directory with an empty store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINYARD_STORE", str(tmp_path / "store"))
    return SimpleNamespace(path=tmp_path, store=Store(tmp_path / "store", say=print))


def run_history(capsys, *args):
    """(exit code, stdout, stderr) of `trainyard history`."""
    code = answer(["history", *map(str, args)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def slower(env, at=24, n=40):
    """Runs whose step grows by 8 % at run `at`, with a new torch and a launch gap."""
    noise = np.random.default_rng(1).normal(0, 1e4, n)
    for number in range(n):
        late = number >= at
        wall = round(1e6 + 8e4 * late + noise[number])
        store_run(env.store, a_run(number, wall, torch="2.2" if late else "2.1", gap=80_000 if late else 0))


def test_reports_when_and_why_a_job_became_slower(env, capsys):
    slower(env)
    code, out, _ = run_history(capsys, "tiny")
    assert code == 1
    assert "tiny: step time is worse since abc0180000, 16 points ago" in out
    assert re.search(r"step +24 ", out)
    joined = " ".join(out.split())
    assert "run 00000017" in joined
    assert "run 00000018" in joined
    assert "Packages torch: 2.1 against 2.2." in joined
    assert "largest change: Idle: Python 0 ns → 80.0 µs" in joined
    check(out)
    document = read_document("history", run_history(capsys, "tiny", "--json")[1])
    result = api.history("tiny")
    assert document["headline"] == result.headline
    assert result._repr_html_().startswith("<iframe srcdoc=")
    assert document["worse"] is True
    [change] = [item for item in document["changes"] if item["change"]["kind"] == "step"]
    assert change["change"]["at"] == 24
    assert change["point"]["run"] == "00000018"
    assert change["share"]["low"] < 0.08 < change["share"]["high"]
    assert change["verdict"] == "worse"


def test_a_metric_has_a_direction(env, capsys):
    slower(env)
    code, out, _ = run_history(capsys, "tiny", "--metric", "tokens_per_s")
    assert code == 1
    assert "tokens a second is worse" in out
    assert run_history(capsys, "tiny", "--metric", "launch_gap/python")[0] == 1
    assert run_history(capsys, "tiny", "--metric", "memory")[:2][0] == 0
    code, _, err = run_history(capsys, "tiny", "--metric", "mfu")
    assert code == 3
    assert code_of(err) == "not-enough-evidence"
    assert missing_values(err, 40, "'tiny'", "mfu") == []
    code, _, err = run_history(capsys, "tiny", "--metric", "step_tiem")
    assert code == 2
    assert code_of(err) == "unknown-name"
    assert missing_values(err, "'step_tiem'", "'step_time'") == []


def test_accepted_change_does_not_alert_and_unknown_entry_is_reported(env, capsys):
    slower(env)
    file = env.path / files.FILE_NAME
    file.write_text(
        '[[accepted]]\nrun = "00000018"\nreason = "a guard"\n[[accepted]]\ncommit = "ffffffff"\nmetric = "step_tme"\n'
    )
    code, out, _ = run_history(capsys, "tiny")
    assert code == 0
    assert "no change in 40 points except 1 accepted change" in out
    assert "a guard" in out
    assert "commit ffffffff is named under accepted, but is not in this series" in out
    assert "for 'step_tme', which is not a metric. Did you mean 'step_time'?" in " ".join(out.split())
    file.write_text('[[accepted]]\nrun = "00000018"\nmetric = "memory"\n')
    assert run_history(capsys, "tiny")[0] == 1


def test_reset_restarts_the_history(env, capsys):
    slower(env)
    (env.path / "resets.toml").write_text('[[reset]]\nrun = "00000018"\nreason = "new machine"\n')
    code, out, _ = run_history(capsys, "tiny", "--accepted", env.path / "resets.toml")
    assert code == 0
    assert "no change in 16 points" in out


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('[[accepted]]\nrn = "00000018"\n', ["$.accepted[0]:", "'rn'", "'run'"]),
        ('[[acepted]]\nrun = "00000018"\n', ["$:", "'acepted'", "'accepted'"]),
        ('[[accepted]]\nreason = "nothing named"\n', ["$.accepted[0]", "run = ''", "commit = ''"]),
        ('[[accepted]]\nrun = "1"\n', ["$.accepted[0]", "'1'", 4]),
        ('[[accepted]]\nrun = "00000018"\ncommit = "abcdef12"\n', ["run = '00000018'", "commit = 'abcdef12'"]),
        ("accepted = 3\n", ["$.accepted", "`array`", "`int`"]),
        ("[[", ["TOML"]),
    ],
)
def test_invalid_file_of_accepted_changes_is_rejected_with_its_path(tmp_path, text, values):
    path = tmp_path / "said.toml"
    path.write_text(text)
    with refused(BadFile, path, *values):
        files.read(path)


def test_runs_of_other_work_or_machines_are_left_out_with_reasons(env, capsys):
    slower(env, at=99)
    for number in range(100, 104):
        store_run(env.store, a_run(number - 90 + 50, 5_000_000, device="V100"))
    for number in range(14, 16):
        store_run(env.store, a_run(number + 60, 1_000_000, layout=Layout(dp_replicate=2)))
    store_run(env.store, a_run(99, 1_000_000))
    code, out, _ = run_history(capsys, "tiny")
    assert code == 0
    assert "no change in 41 points" in out
    assert "4 runs left out, different from the newest: devices 1 x V100 against 1 x A100." in " ".join(out.split())
    assert "2 runs left out, different from the newest: layout" in " ".join(out.split())


def test_too_few_runs_failed_runs_and_unknown_jobs(env, capsys):
    assert run_history(capsys, "tiny")[0] == 2
    for number in range(5):
        store_run(env.store, a_run(number, 1_000_000))
    failed = a_run(50, 1_000_000)
    env.store.begin(failed, "")
    run_folder.write(env.store.runs / failed.id, Run(**{**vars_of(failed), "state": "failed", "failure": "rank 0"}))
    code, _, err = run_history(capsys, "tiny")
    assert code == 3
    assert code_of(err) == "not-enough-evidence"
    assert missing_values(err, "5 points") == []
    code, _, err = run_history(capsys, "tny")
    assert code == 2
    assert code_of(err) == "unknown-name"
    assert missing_values(err, "'tny'", "'tiny'") == []


def vars_of(run):
    return {name: getattr(run, name) for name in run.__struct_fields__}


def test_a_run_of_a_later_version_is_passed_over(env, capsys):
    slower(env)
    path = env.store.runs / "00000005" / "run.json"
    path.write_text(path.read_text().replace("trainyard/run/3", "trainyard/run/9"))
    code, out, err = run_history(capsys, "tiny")
    assert code == 1
    assert "39 points" in out
    assert "trainyard/run/9" in err


# Files


@pytest.mark.parametrize(
    "write",
    [
        json.dumps,
        lambda values: json.dumps({"points": [{"latency": value, "run": "x"} for value in values]}),
        lambda values: json.dumps([{"latency": value} for value in values]),
        lambda values: "\n".join(map(str, values)),
        lambda values: "commit,latency\n" + "\n".join(f"abc{n},{value}" for n, value in enumerate(values)),
    ],
)
def test_any_series_is_taken(env, capsys, write):
    path = env.path / "series.txt"
    path.write_text(write([1.0, 1.1, 0.9] * 10 + [2.0, 2.1, 1.9] * 10))
    code, out, _ = run_history(capsys, "--series", path, "--metric", "latency")
    assert code == 1
    assert "latency is worse" in out


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("[1, 2, null]", ["point 2", "None"]),
        ('[1, "fast"]', ["point 1", "'fast'"]),
        ("[1, NaN]", ["JSON"]),
        ("value\n1\nnan\n", ["point 1", "'nan'"]),
        ("value\n1\n1e999\n", ["point 1", "'1e999'"]),
        ("a,b\n1,2\n3\n", ["series.txt:3:", 1, 2]),
        ('{"a": 3}', ["[1.0, 2.0, ...]", "`value`"]),
        ("", ["0 points"]),
        ("[true]", ["point 0", "True"]),
    ],
)
def test_broken_file_is_reported_with_its_position(env, capsys, text, values):
    path = env.path / "series.txt"
    path.write_text(text)
    code, _, err = run_history(capsys, "--series", path)
    assert (code, code_of(err)) == (2, "bad-file")
    assert missing_values(err, path, *values) == []


@pytest.mark.parametrize("text", ["commit,value,loss\nabc,1,2\n", '[{"commit": "abc", "value": 1, "loss": 2}]'])
@pytest.mark.parametrize(("metric", "code"), [("latency", 2), ("commit", 2), ("value", 3), ("loss", 3), (None, 3)])
def test_unknown_column_is_refused_with_the_columns(env, capsys, text, metric, code):
    path = env.path / "series.txt"
    path.write_text(text)
    result, _, err = run_history(capsys, "--series", path, *(("--metric", metric) if metric else ()))
    assert result == code
    if metric == "latency":
        assert code_of(err) == "unknown-name"
        assert missing_values(err, path, "'latency'", "value, loss") == []


def test_selected_column_precedes_the_column_value(env):
    path = env.path / "series.csv"
    path.write_text("value,loss,step_time\n1,2,3\n")
    assert [load(path, name).values for name in ("value", "loss", "step_time", "tokens_per_s")] == [[1], [2], [3], [1]]


def judged_levels(change):
    rng = np.random.default_rng(3)
    values = np.concatenate([rng.exponential(1.0, 40) + 1, change(rng.exponential(1.0, 40) + 1)])
    points = tuple(SeriesPoint(value=float(value)) for value in values)
    return judge(Series(name="x", metric="step_time", about=describe_metric(METRICS["step_time"]), points=points))


@pytest.mark.parametrize(
    ("change", "explained"), [(lambda values: values * 3, True), (lambda _: np.full(40, 9.0), False)]
)
def test_change_that_is_no_ratio_is_explained(change, explained):
    history = judged_levels(change)
    (judged,) = [judged for judged in history.changes if judged.change.kind == "step"]
    ratio = judged.change.after.value / judged.change.before.value - 1
    assert (abs(ratio - judged.change.share.value) >= 0.0005) == explained
    assert bool(explain_estimate([judged.change])) == explained


def test_one_of_job_and_file_is_named(env, capsys):
    assert run_history(capsys)[0] == 2
    assert run_history(capsys, "tiny", "--series", "x.json")[0] == 2
    code, _, err = run_history(capsys, "--series", "missing.json")
    assert (code, code_of(err)) == (2, "missing-file")
    assert missing_values(err, "missing.json:", os.strerror(errno.ENOENT)) == []


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("value,when\n1,2026-01-02\n", ["2026-01-02"]),
        ("value,time\n1,2026-01-02\n", ["2026-01-02"]),
        ("value,when,time\n1,2025-01-01,2026-01-02\n", ["2026-01-02"]),
        ("value,time\n1,0.25\n", [""]),
        ('{"points": [{"value": 1, "when": "2026-01-02"}]}', ["2026-01-02"]),
    ],
)
def test_dates_of_points_are_read_under_both_names(env, text, times):
    path = env.path / "series.txt"
    path.write_text(text)
    assert [point.time for point in load(path, "value").points] == times


def test_duration_under_the_name_time_is_a_figure(env):
    path = env.path / "series.csv"
    path.write_text("commit,time\na,0.5\n")
    assert load(path, "time").points == (SeriesPoint(value=0.5, commit="a"),)


def test_old_key_of_an_accepted_change_names_the_new_one(tmp_path):
    path = tmp_path / "trainyard-history.toml"
    path.write_text('[[accepted]]\ncommit = "abcdef"\nwhy = "x"\n')
    with refused(BadFile, "'why'", "reason"):
        files.read(path)
    path.write_text('[[reset]]\ncommit = "abcdef"\nreason = "x"\n')
    assert files.read(path).reset[0].reason == "x"


def test_points_with_decreasing_dates_are_reported(env, capsys):
    path = env.path / "series.csv"
    days = [f"2026-01-{1 + (n if n != 9 else 2):02d}" for n in range(20)]
    path.write_text("value,time\n" + "\n".join(f"{n % 3},{day}" for n, day in enumerate(days)))
    assert "1 point has an earlier date than the point before" in run_history(capsys, "--series", path)[1]


# What is seen


def seen(values):
    return [(change.kind, change.at, change.until) for change in detect(values).changes]


@pytest.mark.parametrize("noise", [0, 1e-4, 1e-3, 1e-2, 0.1, 0.3])
def test_steady_climb_is_a_drift_at_any_noise_level(noise):
    """A slow leak of memory: its differences are alike, which is no memory of noise."""
    values = 100 + np.linspace(0, 20, 200) + np.random.default_rng(1).normal(0, 20 * noise, 200)
    (change,) = detect(values.tolist()).changes
    assert change.kind == "drift"


def test_distinguishes_steps_drifts_excursions_and_spikes():
    noise = np.random.default_rng(0).standard_normal(200)
    here = np.arange(200)
    assert seen(noise) == []
    [(kind, at, _)] = seen(noise + 4 * (here >= 90))
    assert (kind, abs(at - 90) <= 1) == ("step", True)
    [(kind, at, until)] = seen(noise + 0.04 * here)
    assert (kind, at, until) == ("drift", 0, 200)
    detections = seen(noise + 8 * ((here >= 100) & (here < 114)))
    assert ("excursion", 100, 114) in detections
    assert not detect(noise + 8 * ((here >= 100) & (here < 114))).lasting
    assert ("spike", 120, 122) in seen(noise + 20 * ((here >= 120) & (here < 122)))


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: rng.standard_normal(200),
        lambda rng: two_modes(rng, 0.5),
        lambda rng: rng.standard_t(1.5, 200),
        lambda rng: autocorrelated(rng, 200, 0.5),
    ],
    ids=["normal", "two modes", "heavy tails", "autocorrelated"],
)
def test_noise_alone_seldom_changes(draw):
    """At a rate of 1 %, more than 5 of 60 series show a change with a probability of 1 in 30,000."""
    rng = np.random.default_rng(8)
    assert sum(bool(detect(draw(rng)).lasting) for _ in range(60)) <= 5


@pytest.mark.parametrize(("size", "at"), [(0.03, 100), (0.05, 190)])
def test_a_step_is_mostly_found(size, at):
    rng = np.random.default_rng(9)
    detections = 0
    for _ in range(30):
        values = 100 + 1.5 * rng.standard_normal(200)
        values[at:] *= 1 + size
        detections += any(change.low - 3 <= at <= change.high + 3 for change in detect(values).lasting)
    assert detections >= 26


# The page


def hostile():
    values = [1e6, 1.1e6, 0.9e6] * 8 + [2e6, 2.1e6, 1.9e6] * 8
    names = ["</script><img src=x onerror=alert(1)>", "\u2028${policy}", "lone \ud800"] * 16
    points = tuple(SeriesPoint(value=value, run=name, commit=name, time=name) for value, name in zip(values, names))
    return judge(Series(name="<b>x", metric="step_time", about=describe_metric(METRICS["step_time"]), points=points))


def test_hostile_names_stay_data(tmp_path):
    text = history_page.page(hostile())
    assert "<img" not in text.replace("</script><img", "", 0).split('id="data">')[0]
    assert "</script><img" not in text
    assert text.count("</script>") == 2


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_a_browser_draws_it_without_complaint(tmp_path):
    history_page.write(hostile(), tmp_path / "history.html")
    document, complaints = drawn(tmp_path / "history.html")
    assert complaints == []
    assert 'class="change-mark worse"' in document
    assert 'class="level"' in document
    assert "+100.0 %" in document
    assert "<img" not in re.sub(r"(?s)<script.*?</script>", "", document)


def test_every_kind_is_drawn_on_a_terminal():
    noise = np.random.default_rng(0).standard_normal(200)
    here = np.arange(200)
    values = 100 + noise + 8 * ((here >= 60) & (here < 74)) + 20 * (here == 20) - 6 * (here >= 150)
    series = Series(
        name="x",
        metric="step_time",
        about=describe_metric(METRICS["step_time"]),
        points=tuple(SeriesPoint(value=v) for v in values),
    )
    line, marks = report.picture(judge(series), 100)
    assert len(line) == 100
    assert set(marks) == {" ", "·", "^", "▲"}


# Scores


def test_scores_are_those_of_the_definitions():
    marks = {"a": [], "b": [50]}
    assert f1(marks, []) == pytest.approx(2 * 1 * 0.75 / 1.75)
    assert f1(marks, [53]) == 1.0
    assert f1(marks, [50, 51]) == pytest.approx(2 * (2 / 3) * 1 / (2 / 3 + 1))
    assert cover(marks, [], 100) == pytest.approx((1 + 0.5) / 2)
    assert cover(marks, [50], 100) == pytest.approx((0.5 + 1) / 2)


def test_bounds_of_a_share_are_scipys():
    stats = pytest.importorskip("scipy.stats")
    for hits, trials in ((0, 50), (3, 200), (200, 200), (17, 20)):
        theirs = stats.binomtest(hits, trials).proportion_ci(method="exact")
        assert (Rate(hits, trials).low, Rate(hits, trials).high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


@pytest.mark.parametrize("text", [None, "[]", '{"a": 3}', '{"x": {}}'])
def test_a_folder_without_annotations_is_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "annotations.json").write_text(text)
        (tmp_path / "x.json").write_text('{"name": "x", "series": [{"raw": [1, 2]}]}')
    with pytest.raises((BadFile, BadInput)):
        read(tmp_path)
