"""The convergence gate: verdicts on curves, bad input, golden files, reference points, and the command itself."""

import errno
import json
import math
import os

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.one_screen import check
from tests.json_documents import read_document
from tests.refused import refused
from trainyard.cli.main import answer
from trainyard.errors import BadFile, BadInput, MissingFile, WrongRunState
from trainyard.formats import mllog
from trainyard.job import SCRIPT, Job
from trainyard.numerics.convergence import golden_curves, mlperf_reference
from trainyard.numerics.convergence.compare_curves import LEAST_STEPS, judge
from trainyard.numerics.convergence.curves import LossCurve, curve_of, seed_of
from trainyard.numerics.convergence.effect_size import pairs_needed, sizes
from trainyard.numerics.convergence.paired_curves import pair
from trainyard.recipe import Recipe
from trainyard.record import Provenance, Run, Sample
from trainyard.report.gate.convergence_table import sentence, table
from trainyard.report.render.mllog_export import text as as_mllog
from trainyard.store.store import Store
from validation.convergence import SHIFT, drifting, verdicts

STEPS = 40


def curve(losses, seed=0, name="run", steps=None, **more):
    steps = tuple(range(len(losses))) if steps is None else tuple(steps)
    return LossCurve(name=name, seed=seed, steps=steps, losses=tuple(losses), **more)


def runs(number, seeds=5, sides=(1, 1), steps=STEPS, shift=0.0, noise=2e-4, onset=0):
    """(heads, bases): same-seed runs apart by an offset each, heads by `shift` of the loss from `onset` on too."""
    draw = np.random.default_rng(number)
    by_side = ([], [])
    for seed in range(seeds):
        shape = 3 + 4 * np.exp(-np.arange(steps) / 20) + 0.05 * draw.standard_normal(steps)
        for side, count in enumerate(sides):
            for repeat in range(count):
                apart = 1 + noise * draw.standard_normal() + 1e-5 * draw.standard_normal(steps)
                planted = 1 + shift * ((np.arange(steps) >= onset) & (side == 0))
                by_side[side].append(curve((shape * apart * planted).tolist(), seed, f"{side}-{seed}-{repeat}"))
    return by_side


def verdict(heads, bases, **more):
    return judge(pair(heads, bases), **more)


designs = st.tuples(st.integers(2, 6), st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2)]))


@given(st.integers(0, 2**32), designs, st.sampled_from([0.0, 0.0025, -0.01]))
def test_sides_swapped_are_the_mirror_image(number, design, shift):
    heads, bases = runs(number, *design, shift=shift)
    forward, swapped = verdict(heads, bases), verdict(bases, heads)
    assert (forward.verdict, forward.onset, forward.pairs_needed) == (
        swapped.verdict,
        swapped.onset,
        swapped.pairs_needed,
    )
    assert math.log1p(forward.difference) == pytest.approx(-math.log1p(swapped.difference), abs=1e-12)
    assert math.log1p(forward.low) == pytest.approx(-math.log1p(swapped.high), abs=1e-12)


@given(st.integers(0, 2**32), designs, st.floats(0.01, 1000))
def test_the_unit_of_the_loss_does_not_count(number, design, scale):
    sides = runs(number, *design, shift=0.002)
    other = [[msgspec.structs.replace(c, losses=tuple(scale * x for x in c.losses)) for c in side] for side in sides]
    assert verdict(*other).verdict == verdict(*sides).verdict
    assert verdict(*other).difference == pytest.approx(verdict(*sides).difference, abs=1e-9)


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 60))
def test_the_same_to_the_bit_is_the_same_at_once(number, seeds, steps):
    heads, _ = runs(number, seeds, steps=steps)
    result = verdict(heads, heads)
    assert (result.verdict, result.identical, result.difference, result.test) == ("same", True, 0.0, "bits")
    assert sentence(result).startswith("Same, bitwise")


@given(st.integers(0, 2**32), designs)
def test_a_margin_never_turns_the_same_into_a_difference(number, design):
    heads, bases = runs(number, *design)
    narrow, wide = verdict(heads, bases, margin=0.0005), verdict(heads, bases, margin=0.005)
    assert not (narrow.verdict == "same" and wide.verdict != "same")
    assert wide.verdict != "differs" or narrow.verdict == "differs"


def test_the_onset_is_found_within_a_window():
    for onset in (10, 40, 75):
        for design in ((5, (1, 1)), (3, (1, 2))):
            result = verdict(*runs(7, *design, steps=100, shift=0.02, onset=onset))
            assert result.verdict == "differs"
            assert onset - 5 <= result.onset <= onset + 5


def test_a_difference_on_the_way_that_heals_is_told_apart():
    heads, bases = runs(3, 3, (1, 2), steps=100)
    healed = [
        msgspec.structs.replace(c, losses=tuple(x * (1.02 if 30 <= k < 50 else 1) for k, x in enumerate(c.losses)))
        for c in heads
    ]
    result = verdict(healed, bases)
    assert (result.verdict, result.healed, result.onset) == ("differs", True, 30)
    assert "temporarily" in sentence(result)


def test_noise_that_hides_the_margin_is_not_judged():
    result = verdict(*runs(1, 3, noise=5e-3))
    assert result.verdict == "cannot tell"
    assert result.pairs_needed > 3
    assert "A second base of each seed would help" in sentence(result)
    labelled = msgspec.structs.replace(result, test="relabelling")
    assert "More than 20 seeds" in sentence(labelled)
    assert "8 seeds would settle it" in sentence(msgspec.structs.replace(labelled, pairs_needed=8))


@pytest.mark.parametrize("noise", [2e-4, 5e-4, 1e-3])
def test_the_seeds_asked_for_settle_it(noise):
    """With `pairs_needed` pairs, about 90 % of comparisons of identical training are judged the same."""
    count, draw = pairs_needed(noise, 0, 0.001, 0.05), np.random.default_rng(3)
    settled = 0
    for _ in range(300):
        pairs = noise * draw.standard_normal((count, 2, 1, 1))
        size = sizes([(heads, bases) for heads, bases in pairs], 0.05)
        settled += bool(size.low[0] > -0.001 and size.high[0] < 0.001)
    assert 0.84 <= settled / 300 <= 0.99


def test_one_pair_alone_says_nothing_of_the_noise():
    result = verdict(*runs(1, 1, shift=0.5))
    assert (result.verdict, result.low, result.noise, result.pairs_needed) == ("cannot tell", None, None, None)
    assert "three seeds" in sentence(result)


def test_one_pair_and_repeats_do():
    assert verdict(*runs(1, 1, (1, 6), shift=0.05)).verdict == "differs"


def test_repeats_to_the_bit_count_once():
    heads, bases = runs(1, 3, shift=0.003)
    once, twice = verdict(heads, bases), verdict(heads, [*bases, *bases])
    assert (once.low, once.high, once.verdict) == (twice.low, twice.high, twice.verdict)
    assert any("bitwise equal" in note for note in twice.notes)


def test_power_and_false_alarms():
    """A small draw of `validation.convergence`; its bounds are wide enough for chance (fixed seeds)."""
    for design in ((3, 1, 2), (5, 1, 1)):
        draw = np.random.default_rng(5)
        assert verdicts(draw, drifting, design, 0.0, 150).count("differs") <= 13
        assert verdicts(draw, drifting, design, SHIFT, 150).count("differs") >= 143


def test_a_head_that_is_no_number_differs():
    heads, bases = runs(1, 3, steps=100)
    heads[1] = msgspec.structs.replace(heads[1], losses=(*heads[1].losses[:50], *[None] * 50))
    result = verdict(heads, bases)
    assert (result.verdict, result.diverged, result.onset) == ("differs", True, 50)
    assert "step 51" in sentence(result)
    assert [row[-2] for row in table(result).rows] == [None, None, None, 51]
    with refused(BadInput, heads[1].name, 51):
        verdict(bases, heads)


def test_curves_of_unlike_length_are_compared_where_both_are():
    heads, bases = runs(1, 3, steps=100)
    short = [msgspec.structs.replace(c, steps=c.steps[:60], losses=c.losses[:60]) for c in heads]
    result = verdict(short, bases)
    assert result.steps == 60
    assert any("60 steps that all runs have" in note for note in result.notes)


@pytest.mark.parametrize(
    ("heads", "bases", "values"),
    [
        ([], [curve([1.0])], ["HEAD", "--base", "--golden"]),
        ([curve([1.0], 11)], [curve([1.0], 12)], [11, 12]),
        ([curve([1.0], None)] * 2, [curve([1.0], None)], [2, 1, "--seed"]),
        ([curve([1.0], None, "nameless")], [curve([1.0], 13)], ["nameless", 13]),
        ([curve([1.0, 2.0])], [curve([1.0, 2.5])], [2, LEAST_STEPS]),
        ([curve([1.0], name="one")], [curve([1.0], steps=[4], name="other")], ["one", 1, "other", 5]),
        ([curve([1.0, -7.0], name="one")], [curve([1.0, 2.0])], ["one", 2, -7]),
        ([curve([1.0], work="text a")], [curve([1.0], work="text b")], ["text a", "text b"]),
    ],
)
def test_what_cannot_be_compared_is_refused(heads, bases, values):
    with refused(BadInput, *values):
        verdict(heads, bases)


def test_what_is_left_out_is_said():
    heads, bases = runs(1, 4)
    assert "seed 3" in verdict(heads[:3], bases).notes[0]
    unknown = [[msgspec.structs.replace(c, seed=None) for c in side] for side in (heads, bases)]
    assert "order given" in verdict(*unknown).notes[0]
    begun = [msgspec.structs.replace(c, start=f"{c.name}") for c in heads]
    other = [msgspec.structs.replace(c, start=f"{c.name}") for c in bases]
    assert "different weights" in verdict(begun, other).notes[0]


def stored(losses, seed=0, state="complete", ranks=2, id="00000001", **job):
    samples = tuple(
        Sample(step=step, rank=rank, repeat=0, wall_ns=1, tokens=8, memory_bytes=1, loss=loss if rank else None)
        for rank in range(ranks)
        for step, loss in enumerate(losses)
    )
    recipe = Recipe(tokens_per_step=16, seq_len=4, seed=seed)
    job = Job(**{"name": "tiny", "recipe": recipe, **job})
    return Run(id=id, job=job, started="2025-01-01T00:00:00+00:00", state=state, samples=samples,
               provenance=Provenance(digests={"text": "abc"}))  # fmt: skip


def test_a_run_gives_its_curve():
    result = curve_of(stored([3.0, float("nan"), 2.0], seed=4))
    assert (result.losses, result.steps, result.seed) == ((3.0, None, 2.0), (0, 1, 2), 4)
    with refused(WrongRunState, "00000001", "failed"):
        curve_of(stored([3.0], state="failed"))
    with refused(BadInput, "00000001", "trainyard.step"):
        curve_of(stored([None, None]))


@pytest.mark.parametrize(
    ("command", "seed"),
    [("python t.py --seed 3", 3), ("python t.py --seed=12 -x", 12), ("python t.py", None), ("t.py --seed x", None)],
)
def test_the_seed_of_a_script(command, seed):
    run = stored([1.0], workload=SCRIPT, sizes={"command": command})
    assert seed_of(run) == seed


@given(st.integers(0, 2**32))
def test_golden_curves_are_read_as_they_were_written(tmp_path_factory, number):
    path = tmp_path_factory.mktemp("golden") / "golden.json"
    heads, bases = runs(number, 3)
    golden_curves.write(path, bases)
    assert golden_curves.read(path) == tuple(bases)
    assert verdict(heads, golden_curves.read(path)) == verdict(heads, bases)


@pytest.mark.parametrize(
    ("data", "values"),
    [(b"", []), (b"{}", ["`curves`"]), (b"[1]", []), (b"\xff", []), (b"[" * 100_000, []),
     (b'{"schema": "trainyard/golden/2", "curves": []}', ["$.schema"]),
     (b'{"schema": "trainyard/golden/1", "curves": []}', ["$.curves"]),
     (b'{"schema": "trainyard/golden/1", "curves": [{"name": "a", "steps": [1, 1], "losses": [1.0, 2.0]}]}',
      ["$.curves[0]", "a:"]),
     (b'{"schema": "trainyard/golden/1", "curves": [{"name": "a", "steps": [1], "losses": [1.0, 2.0]}]}',
      ["$.curves[0]", "a:", 1, 2])],
)  # fmt: skip
def test_bad_golden_files_are_refused(tmp_path, data, values):
    path = tmp_path / "golden.json"
    path.write_bytes(data)
    with refused(BadFile, "golden.json:", "--store-golden", *values):
        golden_curves.read(path)


def test_a_golden_file_that_is_not_there(tmp_path):
    with refused(MissingFile, "none.json:", os.strerror(errno.ENOENT)):
        golden_curves.read(tmp_path / "none.json")


# MLPerf's reference convergence points


def mlperf_result(needed, benchmark="bert", batch=256, unit="samples_count"):
    return mlperf_reference.Result(benchmark, batch, {} if needed is None else {unit: needed})


def record(needed, benchmark="bert", batch=256, unit="samples to converge"):
    return {"Benchmark": benchmark, "BS": batch, "Hyperparams": {}, unit: needed}


def points(tmp_path, *records):
    path = tmp_path / "rcps.json"
    path.write_bytes(msgspec.json.encode({str(number): point_record for number, point_record in enumerate(records)}))
    return mlperf_reference.read_points(path)


epochs = st.lists(st.floats(10, 20), min_size=6, max_size=20)


@given(epochs, st.lists(st.floats(8, 24), min_size=4, max_size=10))
def test_the_rule_is_a_t_test_between_trimmed_means(tmp_path_factory, theirs, ours):
    """Against scipy's test, as the rule is worded: pass where p is above 5 %."""
    stats = pytest.importorskip("scipy.stats")
    known = points(tmp_path_factory.mktemp("rcp"), record(theirs))
    result = mlperf_reference.judge([mlperf_result(epochs_needed) for epochs_needed in ours], known)
    kept, mean, spread = sorted(ours)[1:-1], np.mean(sorted(theirs)[1:-1]), np.std(theirs)
    if spread < 1e-6:
        return
    expected = stats.ttest_ind_from_stats(np.mean(kept), spread, len(kept), mean, spread, len(theirs) - 2,
                                      equal_var=True, alternative="less")  # fmt: skip
    if abs(expected.pvalue - 0.05) > 1e-6:
        assert result.mlperf == ("pass" if expected.pvalue > 0.05 else "fail")
        assert (result.verdict == "faster") == (result.mlperf == "fail")
    assert result.scale == pytest.approx(max(1, mean / np.mean(kept)))


def test_between_two_batch_sizes_the_reference_is_interpolated(tmp_path):
    known = points(tmp_path, record([10.0, 11, 12, 13], batch=100), record([20.0, 21, 22, 23], batch=200))
    result = mlperf_reference.judge([mlperf_result(x, batch=150) for x in (16, 16.5, 17, 16)], known)
    assert result.reference == pytest.approx(16.5)
    assert result.verdict == "same"
    smaller = mlperf_reference.judge([mlperf_result(x, batch=50) for x in (11, 11.5, 12, 11)], known)
    assert "smallest" in smaller.how
    with refused(BadInput, 300, 200):
        mlperf_reference.judge([mlperf_result(x, batch=300) for x in (30, 30, 31)], known)


def test_points_that_need_more_than_their_neighbours_are_left_out(tmp_path):
    slow = record([50.0, 51, 52, 53], batch=150)
    known = points(tmp_path, record([10.0, 11, 12, 13], batch=100), slow, record([20.0, 21, 22, 23], batch=200))
    assert mlperf_reference.judge(
        [mlperf_result(x, batch=150) for x in (16, 16.5, 17, 16)], known
    ).reference == pytest.approx(16.5)


def test_runs_that_miss_the_target(tmp_path):
    known = points(tmp_path, record([10.0, 11, 12, 13]))
    passing = mlperf_reference.judge([mlperf_result(x) for x in (11, 12, 11, None)], known)
    assert (passing.missed, passing.mlperf) == (1, "pass")
    failing = mlperf_reference.judge([mlperf_result(x) for x in (11, 12, None, None)], known)
    assert (failing.missed, failing.mlperf, failing.verdict) == (2, "fail", "slower")


@pytest.mark.parametrize(
    ("results", "values"),
    [
        ([mlperf_result(11), mlperf_result(12)], [2, 3]),
        ([mlperf_result(11), mlperf_result(12), mlperf_result(12, batch=8)], [3, 2, "batch 8"]),
        ([mlperf_result(11, benchmark="gpt3")] * 3, ["gpt3", "bert"]),
        ([], [0]),
    ],
)
def test_logs_that_cannot_be_judged(tmp_path, results, values):
    with refused(BadInput, *values):
        mlperf_reference.judge(results, points(tmp_path, record([10.0, 11, 12, 13])))


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b'{"a": {}}', b'{"a": {"Benchmark": "b", "BS": "x", "Epochs to converge": [1, 2, 3]}}',
     b'{"a": {"Benchmark": "b", "BS": 3, "Epochs to converge": [1, null, 3]}}',
     b'{"a": {"Benchmark": "b", "BS": 3, "Epochs to converge": [1]}}'],
)  # fmt: skip
def test_bad_reference_points_are_refused(tmp_path, data):
    path = tmp_path / "rcps.json"
    path.write_bytes(data)
    with pytest.raises(BadInput):
        mlperf_reference.read_points(path)


def log(path, epochs, status="success", **more):
    fields = {"submission_benchmark": "bert", "global_batch_size": 256, **more}
    lines = [mllog.line(key, value, 0) for key, value in fields.items()]
    lines += [mllog.line("eval_accuracy", 0.7, 1, {"epoch_num": epoch}) for epoch in (1, epochs)]
    path.write_text("\n".join([*lines, mllog.line("run_stop", None, 2, {"status": status})]) + "\n")
    return path


def test_a_log_says_when_it_reached_its_target(tmp_path):
    assert mlperf_reference.read_result(log(tmp_path / "a.txt", 3.5)).needed == {"epoch_num": 3.5}
    assert mlperf_reference.read_result(log(tmp_path / "a.txt", 3.5, "aborted")).needed == {}
    with refused(BadInput, "a.txt:", "global_batch_size"):
        mlperf_reference.read_result(log(tmp_path / "a.txt", 3.5, global_batch_size="many"))


def test_a_run_as_mllog(tmp_path):
    path = tmp_path / "run.mllog"
    path.write_text(as_mllog(stored([3.0, 2.5], seed=7)))
    entries = mllog.read(path)
    assert [entry.key for entry in entries] == [
        "submission_benchmark", "global_batch_size", "seed", "run_start", "train_loss", "train_loss", "run_stop",
    ]  # fmt: skip
    assert [entry.value for entry in entries[:6]] == ["tiny", 4, 7, None, 3.0, 2.5]
    assert entries[5].metadata == {"step_num": 2, "samples_count": 8}
    assert entries[6].metadata == {"status": "success"}


# The command


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINYARD_STORE", str(tmp_path / "store"))
    run_store = Store()
    heads, bases = runs(11, 3, (1, 2), shift=0.004)
    for number, loss_curve in enumerate([*heads, *bases]):
        run = stored(loss_curve.losses, loss_curve.seed, id=f"{number:08x}")
        run_store.begin(run, "")
        run_store.finish(run)
        run_store.tag(run.id, f"r{loss_curve.name}")
    return [f"r{loss_curve.name}" for loss_curve in heads], [f"r{loss_curve.name}" for loss_curve in bases]


def run_numerics(*words):
    return answer(["gate", "convergence", *words])


def test_the_command(store, tmp_path, capsys):
    heads, bases = store
    against = [word for base in bases for word in ("--base", base)]
    assert run_numerics(*heads, *against) == 1
    out = capsys.readouterr().out
    assert out.startswith("Differs from step 1 on (+0.")
    check(out)
    assert run_numerics(*heads, *against, "--json") == 1
    document = read_document("convergence", capsys.readouterr().out)
    assert (document["verdict"], document["pairs"], document["test"]) == ("differs", 3, "relabelling")
    assert document["headline"] == " ".join(out.partition("\n\n")[0].split())
    kept = str(tmp_path / "golden.json")
    assert run_numerics(*bases, "--store-golden", kept, "--json") == 0
    assert read_document("golden-stored", capsys.readouterr().out)["curves"] == len(bases)
    assert run_numerics(*heads, "--golden", kept, "--json") == 1
    assert json.loads(capsys.readouterr().out)["difference"] == document["difference"]
    assert (
        run_numerics(*bases[::2], *("--base", bases[1], "--base", bases[3], "--base", bases[5]), "--margin", "1") == 0
    )
    assert run_numerics(*heads[:1], "--base", bases[0]) == 3


def test_the_command_refuses(store, capsys):
    heads, bases = store
    for words in ((), (heads[0],), (heads[0], "--base", heads[0]), (heads[0], "--base", bases[-1]),
                  (heads[0], "--base", "nobody"), (heads[0], "--golden", "none.json"), (heads[0], "--mllog"),
                  (heads[0], "--base", bases[0], "--margin", "0")):  # fmt: skip
        assert run_numerics(*words) == 2, words
        assert "Traceback" not in capsys.readouterr().err


def test_the_command_on_logs(tmp_path, capsys):
    (tmp_path / "rcps.json").write_bytes(
        msgspec.json.encode({"a": record([3.0, 3.1, 3.2, 3.3, 3.1, 3.2], unit="Epochs to converge")})
    )
    for folder, needed in (("same", (3.1, 3.2, 3.1, 3.2)), ("slow", (4.0, 4.1, 4.0, 4.2)), ("fast", (2, 2.1, 2, 2.0))):
        (tmp_path / folder).mkdir()
        for number, epochs in enumerate(needed):
            log(tmp_path / folder / f"result_{number}.txt", epochs)
    base = ("--base", str(tmp_path / "rcps.json"), "--mllog")
    assert run_numerics(str(tmp_path / "same"), *base) == 0
    assert run_numerics(str(tmp_path / "slow"), *base) == 1
    out = capsys.readouterr().out
    assert "slower than the reference" in out
    check(out)
    assert run_numerics(str(tmp_path / "fast"), *base, "--json") == 1
    assert read_document("points", capsys.readouterr().out)["mlperf"] == "fail"
    log(tmp_path / "slow" / "result_0.txt", 4.0, "aborted")
    log(tmp_path / "slow" / "result_1.txt", 4.0, "aborted")
    assert run_numerics(str(tmp_path / "slow"), *base, "--json") == 1
    assert read_document("points", capsys.readouterr().out)["mean"] is None
    assert run_numerics(str(tmp_path / "fast"), "--base", str(tmp_path / "same"), "--mllog") == 1
    (tmp_path / "none").mkdir()
    assert run_numerics(str(tmp_path / "none"), *base) == 2
