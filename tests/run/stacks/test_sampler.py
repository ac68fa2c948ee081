"""The sampler of stacks: which line a thread is in, whatever stack surrounds it."""

import _thread
import random
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.code_location import LIBRARY, SYSTEM, USER
from trainyard.run.stacks import sampler as samplers
from trainyard.run.stacks.sampler import StackSampler

SLEEP = "checkpoint()"


class Paused:
    """A program in a thread that stops at each call of `checkpoint`, until `go` is called."""

    def __init__(self, text, path, start=threading.Thread):
        self.reached, self.released = threading.Semaphore(0), threading.Semaphore(0)
        scope = {"checkpoint": self.checkpoint, "__name__": "program"}
        code = compile(text, path, "exec")
        self.ended = threading.Event()
        self.ident = 0

        def run():
            self.ident = threading.get_ident()
            exec(code, scope)  # noqa: S102
            self.ended.set()

        if start is threading.Thread:
            threading.Thread(target=run, daemon=True).start()
        else:
            start(run, ())
        self.reached.acquire()

    def checkpoint(self):
        self.reached.release()
        self.released.acquire()

    def go(self, last=False):
        self.released.release()
        (self.ended.wait if last else self.reached.acquire)()


def locations(document):
    """(path, line, function) of the user's frames of each sample, innermost first."""
    chains = []
    for frame in document.frame:
        chain = []
        while frame >= 0:
            frame, function, line = document.frames[frame]
            file, name = document.functions[function]
            path, owner = document.files[file]
            if owner == USER and "test_sampler" not in path:
                chain.append((path, line, name))
        chains.append(chain)
    return chains


@st.composite
def programs(draw):
    """(text, line and function of each stop): functions that call each other and stop in random lines."""
    count = draw(st.integers(1, 6))
    lines, stops = [], []
    for number in range(count):
        lines.append(f"def f{number}():")
        lines.extend(["    x = 1"] * draw(st.integers(1, 4)))
        if draw(st.booleans()) or number == count - 1:
            lines.append(f"    {SLEEP}")
            stops.append((len(lines), f"f{number}"))
        lines.extend(["    x = 2"] * draw(st.integers(0, 2)))
        if number:
            lines.append(f"    f{number - 1}()")
    lines.append(f"f{count - 1}()")
    return "\n".join(lines), stops[::-1]


@settings(max_examples=40, deadline=None)
@given(programs())
def test_each_stop_is_located_at_its_line(program):
    text, stops = program
    paused = Paused(text, "/somewhere/train.py")
    sampler = StackSampler(paused.ident)
    sampler.read_clock()
    for index in range(len(stops)):
        sampler._take_sample(sys._current_frames(), 0)
        paused.go(last=index == len(stops) - 1)
    sampler._is_stopped = True
    document = sampler.finish()
    assert [chain[0] for chain in locations(document)] == [("/somewhere/train.py", line, name) for line, name in stops]


def test_frames_of_the_autograd_thread_follow_the_call_of_the_engine():
    engine = Paused(f"def _engine_run_backward():\n    {SLEEP}\n_engine_run_backward()", "/x/torch/autograd/graph.py")
    other = Paused(f"def load():\n    {SLEEP}\nload()", "/x/loader.py")
    recomputing = Paused(f"def forward():\n    {SLEEP}\nforward()", "/x/model.py", start=_thread.start_new_thread)
    frames = dict(sys._current_frames())
    frames[engine.ident] = _user_frame(frames[engine.ident])
    sampler = StackSampler(engine.ident)
    sampler.read_clock()
    sampler._take_sample(frames, threading.get_ident())
    sampler._is_stopped = True
    (chain,) = locations(sampler.finish())
    for program in (engine, other, recomputing):
        program.go(last=True)
    assert [name for _, _, name in chain] == ["forward", "<module>"]


def _user_frame(frame):
    """The innermost frame of a compiled program, as if the stop were not in Python."""
    while frame.f_code.co_name != "_engine_run_backward":
        frame = frame.f_back
    return frame


def test_long_windows_keep_half_of_the_samples(monkeypatch):
    monkeypatch.setattr(samplers, "MAX_SAMPLES", 8)
    sampler = StackSampler(threading.get_ident())
    for _ in range(9):
        sampler._take_sample(sys._current_frames(), 0)
    assert len(sampler.samples) == len(sampler.times_ns) == 5
    assert sampler._min_period_s == 2 * samplers.MIN_PERIOD_S


def test_a_full_tree_keeps_the_known_frames(monkeypatch):
    sampler = StackSampler(threading.get_ident())
    monkeypatch.setattr(samplers, "MAX_FRAMES", 2)
    sampler._take_sample(sys._current_frames(), 0)
    assert len(sampler.frames) == 2
    assert sampler.samples == [1]


def test_deep_recursion_keeps_the_innermost_frames():
    def recurse(depth):
        if depth:
            return recurse(depth - 1)
        return sampler._take_sample(sys._current_frames(), 0)

    sampler = StackSampler(threading.get_ident())
    recurse(600)
    assert len(sampler.frames) == samplers._MAX_DEPTH


def test_errors_end_the_sampling_and_are_reported(monkeypatch):
    def fail(*_):
        raise MemoryError("no more")

    monkeypatch.setattr(StackSampler, "_take_sample", fail)
    sampler = StackSampler(threading.get_ident())
    sampler.start()
    document = sampler.finish()
    assert document.problem == "MemoryError: no more"
    assert document.frame == []


def test_a_thread_that_is_gone_has_no_samples():
    interval = sys.getswitchinterval()
    sampler = StackSampler(thread_id=-1)
    sampler.start()
    sampler.read_clock()
    document = sampler.finish()
    assert document.frame == document.gap_ns == []
    assert sys.getswitchinterval() == interval


def test_a_process_without_more_threads_is_not_disturbed(monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    sampler = StackSampler(threading.get_ident())
    sampler.start()
    assert sampler.finish().problem == "can't start new thread"


def test_the_cost_of_sampling_is_recorded():
    sampler = StackSampler(threading.get_ident())
    sampler.start()
    sampler.read_clock()
    while len(sampler.samples) < 3:
        pass
    document = sampler.finish()
    assert 0 < document.cpu_ns < document.wall_ns
    assert len(document.frame) == len(document.gap_ns) >= 3
    assert document.period_ns > 0


@pytest.mark.parametrize(
    ("path", "shown", "owner"),
    [
        (random.__file__, "random.py", SYSTEM),
        (samplers.__file__, "trainyard/run/stacks/sampler.py", LIBRARY),
        (pytest.__file__, "pytest/__init__.py", LIBRARY),
    ],
)
def test_installed_files_are_shown_from_their_package_on(path, shown, owner):
    from trainyard.run.stacks.stack_document import _describe_file

    assert _describe_file(path) == (shown, owner)


def test_files_in_the_working_directory_are_relative_to_it(tmp_path, monkeypatch):
    from trainyard.run.stacks.stack_document import _describe_file

    monkeypatch.chdir(tmp_path)
    assert _describe_file(str(tmp_path / "src" / "train.py")) == ("src/train.py", USER)


def test_packages_installed_into_a_folder_are_libraries(tmp_path, monkeypatch):
    from trainyard.run.stacks.stack_document import _describe_file

    (tmp_path / "rare_package-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert _describe_file(str(tmp_path / "rare_package" / "x.py")) == ("rare_package/x.py", LIBRARY)
    assert _describe_file(str(tmp_path / "own" / "x.py"))[1] == USER
