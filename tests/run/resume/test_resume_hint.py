"""How a run that ended early is gone on with: what its user hears, and what a new run may take from an old one."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.refused import missing_values, refused
from tests.train.checkpoint.test_checkpoint import MANIFEST
from trainyard.errors import BadInput, BadJob, RankDied
from trainyard.job import Checkpoint, Job, Measure, Recovery
from trainyard.job_file import parse, write
from trainyard.launch.supervisor import event_log
from trainyard.launch.supervisor.event_log import EventLogWriter, JobEvent
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.recipe import Recipe
from trainyard.record import DeviceSeen, Origin, Run
from trainyard.run.local import harness
from trainyard.run.local.progress_events import ENDS, ProgressMessages
from trainyard.run.resume import fork_run, resume_hint
from trainyard.run.session import Progress, Session
from trainyard.store.store import Store, now
from trainyard.train.checkpoint import checkpoint_store
from trainyard.train.checkpoint.checkpoint_store import CheckpointStore

JOB = Job(
    model=Model(layers=1, hidden_size=8, ffn_hidden_size=8, heads=1, kv_heads=1, head_dim=8),
    layout=Layout(dp_replicate=2),
    recipe=Recipe(seq_len=8, tokens_per_step=16),
    measure=Measure(warmup=0, steps=20, repeats=1, profiled=0),
    checkpoint=Checkpoint(interval=5),
    recovery=Recovery(max_restarts=2, nodes=2, min_nodes=1),
)
CORES = (DeviceSeen(index=0, name="some cores", vendor="cpu", facts={"cores": "4"}),)


def shelve(run: Path, step: int) -> None:
    """A checkpoint whose manifest is in order, after `step` (counted from 0)."""
    checkpoints = CheckpointStore(run, "token")
    checkpoints.unfinished_folder(step).mkdir(parents=True)
    file = checkpoint_store.write(checkpoints.unfinished_folder(step) / "rank0.bin", [bytes(32)])
    checkpoints.commit(msgspec.structs.replace(MANIFEST, step=step, files={"rank0.bin": file}))


# What is told


def test_resume_sentence_names_the_last_checkpoint_or_none(tmp_path: Path) -> None:
    assert "It has no checkpoint (none was saved yet)" in resume_hint.resume_sentence(tmp_path, JOB)
    assert "[checkpoint] interval = N to save some" in resume_hint.resume_sentence(
        tmp_path, replace(JOB, checkpoint=Checkpoint())
    )
    shelve(tmp_path, 4)
    shelve(tmp_path, 9)
    sentence = resume_hint.resume_sentence(tmp_path, JOB)
    assert sentence == f"`trainyard run resume {tmp_path.name}` resumes from its checkpoint after step 10 of 20."
    of_several_hosts = resume_hint.resume_sentence(tmp_path, JOB, "4711")
    assert missing_values(of_several_hosts, "4711", "step 10 of 20") == []
    assert "trainyard run resume" not in of_several_hosts
    (CheckpointStore(tmp_path).folder(9) / "manifest.json").write_text("{}")
    assert "after step 5 of 20" in resume_hint.resume_sentence(tmp_path, JOB)


def fault(kind: str, **more: Any) -> JobEvent:
    return JobEvent(type="fault", at=1, noticed=2, kind=kind, **more)


DIED = "rank 1 died: killed by SIGKILL (pid 7). It wrote no error message."


def test_each_fault_is_one_line_with_resume_point(tmp_path: Path) -> None:
    news = ProgressMessages(tmp_path, JOB)
    death = "rank 1 died: killed by SIGKILL (pid 7)"
    assert (
        news.line(fault("worker_death", attempt=0, rank=1, message=DIED))
        == f"{death}; restarting from the beginning, restart 1 of 2"
    )
    shelve(tmp_path, 9)
    assert news.line(fault("hang", attempt=1, message="rank 0 hung: it is stopped.")) == (
        "rank 0 hung: it is stopped; resuming from step 10 of 20, restart 2 of 2"
    )
    assert news.line(fault("worker_death", attempt=2, rank=1, message=DIED)) == "", "the job's error says it"
    assert news.line(fault("slow", message="rank 1 takes 2 times as long")) == "rank 1 takes 2 times as long"
    assert news.line(fault("preempted", message="asked to leave")) == ""


def test_loading_unexpected_checkpoint_is_reported(tmp_path: Path) -> None:
    shelve(tmp_path, 9)
    news = ProgressMessages(tmp_path, JOB)
    assert news.line(JobEvent(type="loaded", at=1, step=10)) == ""
    assert news.line(fault("bad_checkpoint", message="set aside")) == "set aside"
    assert news.line(JobEvent(type="loaded", at=1, step=5)) == "resuming from step 5 of 20"
    assert news.line(JobEvent(type="loaded", at=1, step=5)) == "", "by another rank"
    assert news.line(JobEvent(type="loaded", at=1, step=0)) == "restarting from the beginning"


def test_node_changes_are_reported(tmp_path: Path) -> None:
    news = ProgressMessages(tmp_path, JOB)
    assert news.line(JobEvent(type="launched", at=1, nodes=2)) == ""
    shelve(tmp_path, 4)
    message = news.line(JobEvent(type="launched", at=1, nodes=1, message="without node 1"))
    assert message == "without node 1: 1 of 2 nodes, resuming from step 5 of 20"


@given(st.lists(st.sampled_from(["worker_death", "hang", "slow", "preempted", "agent_death"]), max_size=12))
def test_reported_restarts_do_not_exceed_the_limit(kinds: list[str]) -> None:
    news = ProgressMessages(Path("nowhere"), JOB)
    lines = [news.line(fault(kind, attempt=attempt, message="something.")) for attempt, kind in enumerate(kinds)]
    restarts = [line for line in lines if "restart" in line]
    assert len(restarts) == min(2, sum(kind in ENDS for kind in kinds))
    assert [f"restart {number + 1} of 2" in line for number, line in enumerate(restarts)] == [True] * len(restarts)


def test_event_reader_returns_only_new_complete_lines(tmp_path: Path) -> None:
    EventLogWriter(tmp_path, "rank0").saved(5, step=4)
    following = event_log.EventLogReader(tmp_path)
    assert following.new() == []
    EventLogWriter(tmp_path, "rank1").loaded(7, step=3)
    path = tmp_path / event_log.PART / "rank0.jsonl"
    line = msgspec.json.encode(JobEvent(type="saved", at=3, step=9)) + b"\n"
    with path.open("ab", buffering=0) as file:
        file.write(line[:9])
        assert [event.type for event in following.new()] == ["loaded"]
        file.write(line[9:])
    assert [event.step for event in following.new()] == [9]
    assert following.new() == []


# What a new run may take from an old one

FREE = {
    "layout": Layout(tp=1), "measure": Measure(), "checkpoint": Checkpoint(), "recovery": Recovery(), "name": "other",
}  # fmt: skip
FREE_IN_RECIPE = {
    "micro_batch_size": 2, "dtype": "bfloat16", "activation_checkpoint": "full", "learning_rate": 1.0,
    "warmup_steps": 3,
    "num_workers": 1,
}  # fmt: skip
BOUND = {"seq_len": 16, "tokens_per_step": 32, "seed": 5, "dataset": "/elsewhere", "optimizer": "sgd"}


def old(job: Job = JOB) -> Run:
    return Run(id="0badcafe", job=job, started=now())


@pytest.mark.parametrize("field", FREE)
def test_how_a_step_is_computed_may_change(field: str) -> None:
    fork_run.check(old(), replace(JOB, **{field: FREE[field]}))


@pytest.mark.parametrize("field", FREE_IN_RECIPE)
def test_fork_may_change_recipe_fields_that_keep_the_training(field: str) -> None:
    source = replace(JOB, layout=Layout())
    fork_run.check(old(source), replace(source, recipe=replace(source.recipe, **{field: FREE_IN_RECIPE[field]})))


@pytest.mark.parametrize("field", BOUND)
def test_fork_refuses_changed_training_with_both_values(field: str) -> None:
    source = replace(JOB, layout=Layout())
    before = repr(getattr(JOB.recipe, field))
    with refused(BadJob, "0badcafe", f"{field} = {BOUND[field]!r}", "$.recipe", before):
        fork_run.check(old(source), replace(source, recipe=replace(source.recipe, **{field: BOUND[field]})))


def test_a_model_is_the_same_one_by_any_name() -> None:
    assert JOB.model is not None
    fork_run.check(old(), replace(JOB, model=replace(JOB.model, name="by another name")))
    with refused(BadJob, "0badcafe", "layers = 2", "$.model", 1, "hidden_size = 16", 8):
        fork_run.check(old(), replace(JOB, model=replace(JOB.model, layers=2, hidden_size=16)))
    with refused(BadJob, "0badcafe", "workload = 'vision'", "$", "'transformer'"):
        fork_run.check(old(), replace(JOB, workload="vision", model=None))
    vision = replace(JOB, workload="vision", model=None, sizes={"layers": 3})
    with refused(BadJob, "0badcafe", "layers = 4", "$.sizes", 3):
        fork_run.check(old(vision), replace(vision, sizes={"layers": 4}))


def test_fork_without_checkpoint_or_steps_left_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    folder = store.begin(old(), write(JOB))
    with refused(BadInput, "0badcafe"):
        fork_run.execute("0badcafe", JOB, write(JOB), Session(store, lambda _: [], devices=CORES))
    shelve(folder, 19)
    with refused(BadJob, "0badcafe", "step 20", "$.measure"):
        fork_run.execute("0badcafe", JOB, write(JOB), Session(store, lambda _: [], devices=CORES))
    assert [row.id for row in store.rows()] == ["0badcafe"]


def test_an_adopted_checkpoint_is_whole_and_outlives_its_run(tmp_path: Path) -> None:
    shelve(tmp_path / "old", 9)
    mine = CheckpointStore(tmp_path / "new", "token")
    mine.copy_from(CheckpointStore(tmp_path / "old"), 9)
    CheckpointStore(tmp_path / "old", "other").set_aside(9, "torn")
    manifest, rejected = mine.last_good()
    assert (manifest and manifest.step, rejected) == (9, [])
    assert [path.name for path in mine.root.iterdir()] == ["step-000010"]


# With real ranks

TINY = """
[model]
layers = 2
hidden_size = 16
ffn_hidden_size = 32
heads = 2
kv_heads = 2
head_dim = 8
[layout]
{layout}
[recipe]
seq_len = 16
tokens_per_step = 128
dataset = "text.txt"
[measure]
warmup = 1
steps = {steps}
repeats = 1
profiled = 0
[checkpoint]
interval = 4
"""


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Runs a job of so many steps on a layout, from the beginning or from where the run `after` stands."""
    pytest.importorskip("torch")
    (tmp_path / "text.txt").write_bytes(bytes(range(256)) * 40)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def begin(layout: str, steps: int, after: Run | None = None, more: str = "", **options: Any) -> Run:
        text = TINY.format(layout=layout, steps=steps - 1) + more
        session = Session(Store(tmp_path / "store"), lambda _: [], devices=CORES, **options)
        if after is None:
            return harness.execute(parse(text, "tiny.toml"), text, session)
        return fork_run.execute(after.id, parse(text, "tiny.toml"), text, session)

    return begin


def losses(run: Run) -> dict[int, float]:
    return {sample.step: sample.loss or math.nan for sample in run.kept() if sample.rank == 0}


@pytest.mark.torch
@pytest.mark.slow
def test_fork_continues_training_on_any_number_of_ranks(go: Callable[..., Run]) -> None:
    whole = go("dp_shard = 2", 12)
    first = go("dp_shard = 2", 6)
    assert whole.origin is None
    for layout, ranks in (("dp_shard = 1", 1), ("dp_replicate = 2\ntp = 2", 4)):
        then = go(layout, 12, after=first)
        assert (then.id != first.id, then.state, then.job.layout.ranks) == (True, "complete", ranks)
        assert then.origin == Origin(run=first.id, step=5), "the last step is saved, though six is no multiple of four"
        assert sorted(losses(then)) == list(range(6, 12))
        assert losses(then) == pytest.approx({step: losses(whole)[step] for step in range(6, 12)}, rel=1e-5)


@pytest.mark.torch
@pytest.mark.slow
def test_rank_death_is_reported_at_once_with_resume_command(go: Callable[..., Run], tmp_path: Path) -> None:
    messages: list[str] = []
    killed: list[int] = []

    def kill(at: Progress) -> None:
        pid = int(next((tmp_path / "store" / "runs").glob("*/logs/rank1.pid")).read_text())
        if at.step >= 6 and pid not in killed:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    with refused(RankDied, "rank 1", "SIGKILL", "of 400") as caught:
        go(
            "dp_replicate = 2",
            400,
            more="[recovery]\nmax_restarts = 1\n",
            progress=kill,
            say=messages.append,
            tag="mine",
        )
    (line,) = [line for line in messages if "SIGKILL" in line]
    assert line.startswith("rank 1 died: killed by SIGKILL")
    assert line.endswith(", restart 1 of 1")
    store = Store(tmp_path / "store")
    assert f"`trainyard run resume {store.find('mine').name}`" in caught.value.next_step
