"""A script of one's own under `trainyard run`: its steps are seen, its profile is booked, and nothing else changes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

import trainyard
from tests.refused import code_of, missing_values, refused
from tests.simulated_device import SimulatedDevice
from trainyard.errors import BadInput, CommandFailed
from trainyard.inject.python_path import python_path
from trainyard.job import SCRIPT, Job, Measure
from trainyard.recipe import Recipe
from trainyard.record import Run, Sample
from trainyard.report.view.build_analysis import analyse_run
from trainyard.run.local import harness
from trainyard.run.script import run_command, step_mark
from trainyard.run.session import Session
from trainyard.store.store import Store, now

PLAIN = """
import os, sys, torch
import torch.distributed as dist
if "RANK" in os.environ:
    dist.init_process_group("gloo")
model = torch.nn.Linear(64, 64)
if "RANK" in os.environ:
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(int(sys.argv[1])):
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("the script's last word")
"""
MARKED = """
import sys, torch, trainyard
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loss = None
for step in range(int(sys.argv[1])):
    with trainyard.step(tokens=32, loss=loss):
        for _ in range(2):  # two updates a step: only the mark counts
            found = model(torch.randn(8, 64)).square().mean()
            found.backward()
            optimizer.step()
        loss = found.item()
"""


def run(tmp_path, command, *options):
    """The stored run as JSON, and how the command ended."""
    given = [sys.executable, "-m", "trainyard.cli.main", "run", *options, "--json", "--", *command]
    environment = {**__import__("os").environ, "TRAINYARD_STORE": str(tmp_path / "store"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(given, capture_output=True, text=True, env=environment, check=False, cwd=tmp_path)
    return (json.loads(done.stdout) if done.stdout else None), done


def written(tmp_path, text):
    path = tmp_path / "my_train.py"
    path.write_text(text)
    return str(path)


# The watch itself, by a clock of the test's own


class Profiler:
    def __init__(self):
        self.steps = 0

    def step(self):
        self.steps += 1


def watched(folder, monkeypatch, measure, walls):
    """A script of marked steps, `walls` ns each; what was written, and the steps the profiler was told of."""
    pytest.importorskip("torch")
    from contextlib import contextmanager

    from trainyard.run.local import capture as captures
    from trainyard.run.script import watch_steps as watches

    (folder / "samples").mkdir()
    profiler, now = Profiler(), [0]

    @contextmanager
    def capture(*_, **__):
        yield profiler

    monkeypatch.setattr(captures, "capture", capture)
    watch = watches.ScriptWatch(folder, 0, measure, read_ns=lambda: now[0])
    for wall in walls:
        with watch.step(5, None):
            now[0] += wall
    watch.close()
    lines = (folder / "samples" / "rank0.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Sample) for line in lines], profiler.steps


@pytest.mark.torch
def test_steps_are_warmed_up_timed_profiled_and_timed_again(tmp_path, monkeypatch):
    walls = [10 + step for step in range(14)]
    samples, output = watched(tmp_path, monkeypatch, Measure(warmup=2, steps=4, repeats=1, profiled=3), walls)
    assert [sample.wall_ns for sample in samples] == walls
    assert [sample.step for sample in samples] == list(range(14))
    #                       warm-up   timed       profiled, the first thrown away   disturbed, timed
    assert [sample.warmup for sample in samples] == [True] * 2 + [False] * 4 + [True] + [False] * 3 + [True] + [
        False
    ] * 3
    assert [sample.profiled for sample in samples] == [False] * 6 + [True] * 4 + [False] * 4
    assert [sample.repeat for sample in samples] == [0] * 6 + [1] * 8
    assert output == 4
    assert {(sample.tokens, sample.loss) for sample in samples} == {(5, None)}


@pytest.mark.torch
def test_without_profile_only_warmup_steps_are_discarded(tmp_path, monkeypatch):
    samples, output = watched(tmp_path, monkeypatch, Measure(warmup=1, steps=2, repeats=1, profiled=0), [1] * 6)
    assert [sample.warmup for sample in samples] == [True] + [False] * 5
    assert output == 0


@pytest.mark.torch
def test_steps_on_a_device_take_its_time_not_the_hosts(tmp_path):
    pytest.importorskip("torch")
    from trainyard.run.script.watch_steps import ScriptWatch

    (tmp_path / "samples").mkdir()
    device, optimizer = SimulatedDevice(), Profiler()
    measure = Measure(warmup=1, steps=3, repeats=1, profiled=0)
    watch = ScriptWatch(tmp_path, 0, measure, read_ns=device.read_ns, device_module=lambda: device)
    for step in range(6):
        device.captures = step == 3  # a step that is captured into a graph is not executed
        device.launch(1_000, 0 if device.captures else 10_000_000)
        watch._optimizer_stepped(optimizer)
    assert (device.host_ns, device.waits) == (6_000, 0)
    device.synchronize()
    watch.close()
    lines = (tmp_path / "samples" / "rank0.jsonl").read_bytes().splitlines()
    samples = [msgspec.json.decode(line, type=Sample) for line in lines]
    assert [(sample.step, sample.wall_ns, sample.clock) for sample in samples] == [
        (step, 10_000_000, "events") for step in range(4)
    ]
    run = Run(id="a", job=Job(name="a", workload=SCRIPT, recipe=Recipe(tokens_per_step=0)), started=now(),
              samples=tuple(samples))  # fmt: skip
    assert run.step_clocks == ("events",)


@pytest.mark.torch
def test_internal_error_ends_watching_but_not_the_script(tmp_path, capsys):
    pytest.importorskip("torch")
    from trainyard.run.script.watch_steps import ScriptWatch

    watch = ScriptWatch(tmp_path / "nowhere", 3, Measure())
    for _ in range(3):
        with watch.step(0, None):
            pass
    messages = capsys.readouterr().err
    assert messages.count("rank 3 is no longer watched") == 1


@pytest.mark.torch
def test_the_first_optimizer_that_steps_ends_a_step(tmp_path):
    pytest.importorskip("torch")
    from trainyard.run.script.watch_steps import ScriptWatch

    hooks = []
    (tmp_path / "samples").mkdir()
    watch = ScriptWatch(tmp_path, 0, Measure(warmup=0, steps=100, profiled=0))
    watch.follow(SimpleNamespace(register_optimizer_step_post_hook=hooks.append))
    first, second = Profiler(), Profiler()  # any objects
    for _ in range(4):
        for optimizer in (first, second, second):
            hooks[0](optimizer, (), {})
    assert watch.recorded_steps == 3  # the start of the first was not recorded
    del first, optimizer
    hooks[0](second, (), {})
    watch.close()
    assert watch.recorded_steps == 4, "where the first is no more, another has taken its place"


RUNNER = """
import sys
from pathlib import Path
from trainyard.job import Measure
from trainyard.run.script.run_command import _run
_run(sys.argv[2:], Path(sys.argv[1]), Measure())
"""
ASLEEP = "import os, sys, time; print(os.getpid(), file=sys.stderr, flush=True); time.sleep(60)"


def alive(process):
    """Whether it still runs: one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is Linux")
def test_a_command_does_not_outlive_who_watches_it(tmp_path):
    command = [sys.executable, "-c", RUNNER, str(tmp_path), sys.executable, "-S", "-c", ASLEEP]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as watcher:
        assert watcher.stderr is not None
        child = int(watcher.stderr.readline())
        watcher.kill()
        assert watcher.stderr.read() == "", "the pipe is closed, by the command too"
    while alive(child):
        time.sleep(0.01)


@pytest.mark.torch
def test_ranks_that_a_script_spawns_are_told_apart(tmp_path, monkeypatch):
    """They have no number in the environment, and the process group comes after the watch."""
    pytest.importorskip("torch")
    import torch.distributed as dist

    from trainyard.run.script.watch_steps import ScriptWatch

    (tmp_path / "samples").mkdir()
    watches = [ScriptWatch(tmp_path, 0, Measure(warmup=0, steps=100, profiled=0)) for _ in range(2)]
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    for rank, watch in enumerate(watches):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        with watch.step(0, None):
            pass
        watch.close()
    assert sorted(path.name for path in (tmp_path / "samples").iterdir()) == ["rank0.jsonl", "rank1.jsonl"]


@pytest.mark.torch
def test_a_fork_of_a_rank_is_another_process(tmp_path):
    pytest.importorskip("torch")
    from trainyard.run.script.watch_steps import ScriptWatch

    (tmp_path / "samples").mkdir()
    watch = ScriptWatch(tmp_path, 0, Measure(warmup=0, steps=100, profiled=0))
    with watch.step(0, None):
        pass
    child = os.fork()
    if child == 0:
        try:
            with watch.step(0, None):
                pass
            watch.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert len((tmp_path / "samples" / "rank0.jsonl").read_bytes().splitlines()) == 1
    with watch.step(0, None):
        pass
    watch.close()
    assert len((tmp_path / "samples" / "rank0.jsonl").read_bytes().splitlines()) == 2


def test_a_mark_is_nothing_where_nobody_watches():
    assert trainyard.step is step_mark.step
    with trainyard.step(tokens=3):
        pass


def test_an_environments_own_sitecustomize_is_still_run(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('its own')")
    path = python_path({"PYTHONPATH": str(tmp_path)})
    done = subprocess.run(
        [sys.executable, "-c", ""], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("its own\n", "")


# Whole scripts


@pytest.mark.torch
@pytest.mark.slow
def test_an_unchanged_script_is_recorded_and_booked(tmp_path):
    pytest.importorskip("torch")
    stored, done = run(tmp_path, [sys.executable, written(tmp_path, PLAIN), "25"], "--profile", "2")
    assert done.returncode == 0, done.stderr
    assert "the script's last word" in done.stderr
    assert stored["job"]["workload"] == SCRIPT
    assert stored["job"]["name"] == "my_train"
    samples = [sample for sample in stored["samples"] if not sample.get("profiled")]
    assert len(stored["samples"]) == 24
    assert all(sample["wall_ns"] > 0 and sample["memory_bytes"] > 0 for sample in samples)
    mean = stored["ledgers"][-1]
    assert mean["basis"] == "measured"
    assert sum(entry["ns"] for entry in mean["entries"]) == mean["wall_ns"]
    assert len(mean["scope"]["steps"]) == 2


@pytest.mark.torch
@pytest.mark.slow
def test_whatever_launches_the_ranks(tmp_path):
    pytest.importorskip("torch")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    stored, done = run(tmp_path, [*launcher, written(tmp_path, PLAIN), "25"])
    assert done.returncode == 0, done.stderr
    assert stored["job"]["layout"]["dp_replicate"] == 2
    assert {sample["rank"] for sample in stored["samples"]} == {0, 1}
    assert any(entry["account"].startswith("comm/") for entry in stored["ledgers"][-1]["entries"])


@pytest.mark.torch
@pytest.mark.slow
def test_a_marked_script_says_its_tokens_and_losses(tmp_path):
    pytest.importorskip("torch")
    stored, done = run(tmp_path, [sys.executable, written(tmp_path, MARKED), "20"])
    assert done.returncode == 0, done.stderr
    assert len(stored["samples"]) == 20
    assert stored["job"]["recipe"]["tokens_per_step"] == 32
    assert [sample.get("loss") is None for sample in stored["samples"]] == [True] + [False] * 19


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "code", "error", "values", "stored_runs"),
    [
        (
            PLAIN.replace("print(", "raise SystemExit(9)\nprint("),
            4,
            "command-failed",
            ["exit code 9"],
            1,
        ),
        ("raise SystemExit(3)", 4, "command-failed", ["exit code 3", "second"], 0),
        ("print('no training here')", 2, "bad-input", ["trainyard.step()"], 0),
    ],
    ids=["fails late", "fails at once", "takes no step"],
)
def test_a_script_that_fails_or_takes_no_step(tmp_path, text, code, error, values, stored_runs):
    pytest.importorskip("torch")
    stored, done = run(tmp_path, [sys.executable, written(tmp_path, text), "8"])
    assert done.returncode == code
    assert (stored["schema"], stored["code"], stored["exit_code"]) == ("trainyard/error/1", error, code)
    assert code_of(done.stderr) == error
    assert missing_values(done.stderr, *values) == []
    rows = Store(tmp_path / "store").rows()
    assert len(rows) == stored_runs
    for row in rows:
        (incident,) = Store(tmp_path / "store").load(row.id).incidents
        assert (incident.kind, incident.rank) == ("command_death", -1)
        assert missing_values(incident.summary, *values) == []


def test_memory_kills_during_a_command_are_named(tmp_path, monkeypatch):
    counts = iter([3, 5])
    monkeypatch.setattr(run_command, "_memory_kills", lambda: next(counts))
    monkeypatch.setattr(run_command, "memory_limit_bytes", lambda _: 1 << 30)
    command = [sys.executable, "-c", "raise SystemExit(9)"]
    with refused(CommandFailed, "exit code 9", "2 processes", "1.0 GiB"):
        run_command.execute(command, Measure(), Session(Store(tmp_path), lambda _: ()))


def test_a_command_is_not_gone_on_with(tmp_path):
    store = Store(tmp_path)
    job = Job(workload=SCRIPT, recipe=Recipe(tokens_per_step=0))
    store.begin(Run(id="0badcafe", job=job, started=now()), "# python train.py\n")
    with refused(BadInput, "0badcafe", "command"):
        harness.resume("0bad", Session(store, lambda traces: ()))


def test_what_is_neither_a_job_nor_a_program(tmp_path):
    _, done = run(tmp_path, ["no-such-program", "x"])
    assert done.returncode == 2
    assert code_of(done.stderr) == "bad-input"
    assert missing_values(done.stderr, "no-such-program", "PATH") == []


def test_missing_torchrun_names_the_module(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with refused(BadInput, "torchrun", "torch.distributed.run"):
        run_command.execute(["torchrun", "x.py"], Measure(), Session(Store(tmp_path / "store")))


@pytest.mark.parametrize(
    ("profiled", "says"), [(3, "was too short for a profile, which takes 17 timed steps; it had 4"),
                           (0, "was not profiled")],
)  # fmt: skip
def test_script_too_short_for_profile_differs_from_script_without_profile(profiled, says):
    measure = Measure(warmup=3, steps=10, repeats=1, profiled=profiled)
    job = Job(workload=SCRIPT, sizes={"command": "python short.py"}, recipe=Recipe(tokens_per_step=0), measure=measure)
    samples = tuple(
        Sample(step=step, rank=rank, repeat=0, wall_ns=9, tokens=0, memory_bytes=1)
        for rank in (0, 1)
        for step in range(4)
    )
    done = Run(id="0badcafe", job=job, started=now(), state="complete", samples=samples)
    assert says in analyse_run(done).headline
