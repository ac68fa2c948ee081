"""Evaluations, checkpoints and pauses between training steps: parts of their own, which the mean leaves out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trace.align.training_trace import Recording
from tests.trace_maker import write
from trainyard.plugins import ReadOptions
from trainyard.report.view.build_analysis import analyse_measured
from trainyard.trace.align import between_steps
from trainyard.trace.measure import measure, read

DEVICES = [False, True]
STEPS = 8


def loop(recording, work, after=4, marked=True):
    """Eight steps, with `work` after one of them, inside its mark."""
    for number in range(STEPS):
        recording.train(str(number) if marked else None)
        if number == after:
            work()
        if marked:
            recording.extend_mark()
    return recording


def measured(folder, recording, name="trace.json", **facts):
    return measure(read([write(folder, recording.document(**facts), name)]))


def kinds(result, rank=0):
    """label -> kind of the parts that are not steps, without those at the edges of the window."""
    return {part.label: part.kind for part in result.ranks[rank].parts if part.kind not in ("step", "cut")}


@pytest.mark.parametrize("on_device", DEVICES)
@pytest.mark.parametrize("marked", [True, False])
def test_evaluation_does_not_count_in_the_step_time(tmp_path, on_device, marked):
    plain, evaluated = Recording(on_device), Recording(on_device)
    (tmp_path / "plain").mkdir()
    usual = measured(tmp_path / "plain", loop(plain, lambda: None, marked=marked))
    result = measured(tmp_path, loop(evaluated, evaluated.evaluate, marked=marked))
    after = "4" if marked else "5"  # inferred steps are numbered from 1
    assert kinds(result) == {f"{after} evaluation": "evaluation"}
    assert result.mean.wall_ns == pytest.approx(usual.mean.wall_ns, rel=0.05)
    assert [part.kind for part in result.steps.left_out].count("evaluation") == 1
    assert sum("1 evaluation" in note for note in result.notes) == 1


@pytest.mark.parametrize("on_device", DEVICES)
@pytest.mark.parametrize("name", ["torch/serialization.py(1): save", "x/trainer.py(9): save_checkpoint"])
def test_checkpoint_does_not_count_in_the_step_time(tmp_path, on_device, name):
    recording = Recording(on_device)
    result = measured(tmp_path, loop(recording, lambda: recording.save(3000, name)))
    assert kinds(result) == {"4 checkpoint": "checkpoint"}
    (part,) = (part for part in result.ranks[0].parts if part.kind == "checkpoint")
    assert part.stop - part.start >= 2800
    assert result.mean.by_kind().get("checkpoint", 0) == 0
    (ledger,) = (ledger for ledger in result.by_rank if ledger.scope.steps == ("4 checkpoint",))
    assert ledger.by_kind()["checkpoint"] >= 2800


@pytest.mark.parametrize("size", [1 << 20, 4])
def test_large_copies_to_the_host_are_a_checkpoint(tmp_path, size):
    recording = Recording(on_device=True)

    def save():
        for _ in range(10):
            recording.device.append(
                (
                    "Memcpy DtoH (Device -> Pageable)",
                    7,
                    recording.at + 3,
                    recording.at + 90,
                    recording.at,
                    {"bytes": size},
                )
            )
            recording.rest(100)

    kind = "checkpoint" if size > 4 else "pause"
    assert kinds(measured(tmp_path, loop(recording, save))) == {f"4 {kind}": kind}


def test_evaluation_then_checkpoint_are_two_parts(tmp_path):
    recording = Recording(on_device=True)

    def work():
        recording.evaluate()
        recording.save(2000)

    assert list(kinds(measured(tmp_path, loop(recording, work)))) == ["4 evaluation", "4 checkpoint"]


def test_checkpoint_in_every_step_is_a_part_of_it(tmp_path):
    recording = Recording(on_device=True)
    for number in range(STEPS):
        recording.train(str(number))
        recording.save(300)
        recording.extend_mark()
    result = measured(tmp_path, recording)
    assert kinds(result) == {}
    assert result.mean.by_kind()["checkpoint"] > 0


def test_forward_pass_of_a_teacher_is_a_part_of_the_step(tmp_path):
    recording = Recording()
    for number in range(STEPS):
        recording.train(str(number))
        recording.forward(with_gradients=False)
        recording.extend_mark()
    assert kinds(measured(tmp_path, recording)) == {}


@pytest.mark.parametrize("on_device", DEVICES)
def test_evaluation_with_marks_of_its_own(tmp_path, on_device):
    recording = Recording(on_device)
    for number in range(STEPS):
        start = recording.at
        if number in (3, 4):
            recording.evaluate(1)
            recording.marks.append((str(number), start, recording.at))
        else:
            recording.train(str(number))
    result = measured(tmp_path, recording)
    assert kinds(result) == {"3 evaluation": "evaluation", "4 evaluation": "evaluation"}
    assert not {"3", "4"} & set(result.mean.scope.steps)


def test_micro_batches_without_optimizer_are_steps(tmp_path):
    recording = Recording()
    for number in range(STEPS):
        recording.train(str(number), optimizers=("Optimizer.step#Adam.step",) * (number % 4 == 3))
    assert kinds(measured(tmp_path, recording)) == {}


@pytest.mark.parametrize("on_device", DEVICES)
def test_long_pause_between_steps_is_left_out(tmp_path, on_device):
    recording = Recording(on_device)
    result = measured(tmp_path, loop(recording, lambda: recording.rest(50_000)))
    assert kinds(result) == {"4 pause": "pause"}
    assert result.mean.wall_ns < 1000


def test_long_wait_for_data_counts_in_the_step(tmp_path):
    recording = Recording()

    def wait():
        recording.inside("enumerate(DataLoader)#_Iter.__next__", lambda: recording.rest(50_000))

    result = measured(tmp_path, loop(recording, wait))
    assert kinds(result) == {}
    assert result.mean.by_kind()["data_wait"] > 5_000
    assert [step.label for step in result.steps.long] == ["4"]


def test_checkpoint_of_one_rank_is_a_part_on_all(tmp_path):
    """Rank 1 waits for rank 0 without launching anything: both ranks leave the same interval out."""

    def file_of(rank):
        recording = Recording(on_device=True)
        loop(recording, lambda: recording.save(3000) if rank == 0 else recording.rest(3002))
        return write(tmp_path, recording.document(rank=rank, world=2, host_name="one"), f"{rank}.json")

    files = [file_of(0), file_of(1)]
    result = measure(read(files))
    bounds = [[(part.start, part.stop) for part in rank.parts if part.label == "4 checkpoint"] for rank in result.ranks]
    assert bounds[0] == bounds[1] != []
    (left_out,) = (part for part in result.steps.left_out if part.kind == "checkpoint")
    assert left_out.ranks == (0, 1)
    window = result.ranks[0].parts[-1].stop - result.ranks[0].parts[0].start
    assert left_out.share == pytest.approx(left_out.ns / window)


@pytest.mark.parametrize(("save_us", "is_named"), [(3000, True), (300, False)])
def test_checkpoints_that_fill_the_window_come_first(save_us, is_named, tmp_path):
    recording = Recording(on_device=True)
    loop(recording, lambda: recording.save(save_us))
    analysis = analyse_measured(measure(read([write(tmp_path, recording.document())])))
    (share,) = (part.share for part in analysis.steps.left_out if part.kind == "checkpoint")
    assert (share > 0.3) == is_named
    assert analysis.headline.startswith(f"1 checkpoint takes {100 * share:.0f} % of the window. ") == is_named


def test_annotations_of_one_name_are_numbered_steps(tmp_path):
    recording = Recording(on_device=True)
    for _ in range(4):
        recording.inside("train", recording.train)
    path = write(tmp_path, recording.document())
    result = measure(read([path], ReadOptions(mark="train")))
    assert [part.label for part in result.ranks[0].parts] == ["0", "1", "2", "3"]
    assert result.steps.how == "marked"
    assert not {"train"} & {result.ranks[0].events.names[name] for name in result.ranks[0].context.module if name >= 0}


def test_name_of_a_mark_excludes_longer_names(tmp_path):
    recording = Recording()
    recording.inside("train_epoch", lambda: [recording.inside("train", recording.train) for _ in range(3)])
    (events,) = read([write(tmp_path, recording.document())], ReadOptions(mark="train"))
    assert [mark.label for mark in events.marks] == ["0", "1", "2"]


def test_missing_mark_is_named_in_a_note(tmp_path):
    recording = Recording()
    recording.train()
    result = measure(read([write(tmp_path, recording.document())], ReadOptions(mark="my_step")))
    assert any("my_step" in note for note in result.notes)


@given(st.lists(st.integers(0, 60), unique=True, max_size=14), st.lists(st.integers(0, 60), min_size=2, max_size=12))
def test_covered_time_of_gaps(edges, cuts):
    edges, cuts = sorted(edges[: len(edges) // 2 * 2]), sorted(cuts[: len(cuts) // 2 * 2])
    start, stop = (np.array(edges[at::2], np.int64) for at in range(2))
    gaps = between_steps._Gaps(
        *(np.array(cuts[at::2], np.int64) for at in range(2)), np.zeros(len(cuts) // 2, np.int64)
    )
    covered = {ns for begin, end in zip(start.tolist(), stop.tolist()) for ns in range(begin, end)}
    expected = [len(covered & set(range(begin, end))) for begin, end in zip(cuts[::2], cuts[1::2])]
    assert between_steps._covered_ns(start, stop, gaps).tolist() == expected
