"""Annotations of modules' forward passes: their paths, and that nothing else changes."""

import sys
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from trainyard.run.stacks.module_marks import ModuleMarks  # noqa: E402


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.linear(x)


class Failing(torch.nn.Module):
    def forward(self, x):
        raise ValueError("of the program")


class Recorder:
    """Records the begin and the end of each annotation."""

    def __init__(self):
        self.log = []

    @contextmanager
    def __call__(self, name):
        self.log.append(f"+{name.removeprefix('nn.Module: ')}")
        yield
        self.log.append(f"-{name.removeprefix('nn.Module: ')}")


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch):
    """Another test may have compiled a function in this process."""
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(counters={}))


@pytest.fixture
def recorder():
    recorder = Recorder()
    marks = ModuleMarks(recorder)
    marks.start()
    yield recorder
    marks.stop()


def test_paths_lead_from_the_outermost_module_on(recorder):
    torch.nn.Sequential(Block(), torch.nn.ReLU())(torch.zeros(1, 2))
    assert recorder.log == [
        "+Sequential", "+Sequential.0", "+Sequential.0.linear", "-Sequential.0.linear", "-Sequential.0",
        "+Sequential.1", "-Sequential.1", "-Sequential",
    ]  # fmt: skip


def test_a_module_called_alone_keeps_its_path_in_the_model(recorder):
    """As in a forward pass that another thread recomputes."""
    model = torch.nn.Sequential(Block())
    model(torch.zeros(1, 2))
    recorder.log.clear()
    thread = threading.Thread(target=lambda: model[0](torch.zeros(1, 2)))
    thread.start()
    thread.join()
    assert recorder.log[0] == "+Sequential.0"


def test_annotations_close_if_the_program_fails(recorder):
    with pytest.raises(ValueError, match="of the program"):
        torch.nn.Sequential(Failing())(torch.zeros(1))
    assert recorder.log == ["+Sequential", "+Sequential.0", "-Sequential.0", "-Sequential"]


def test_errors_of_the_annotation_do_not_reach_the_program():
    def refuse(_):
        raise RuntimeError("ours")

    marks = ModuleMarks(refuse)
    marks.start()
    try:
        assert torch.nn.Identity()(torch.ones(1)).item() == 1
    finally:
        marks.stop()


def test_nothing_is_annotated_after_the_end():
    recorder = Recorder()
    marks = ModuleMarks(recorder)
    marks.start()
    marks.stop()
    torch.nn.Identity()(torch.zeros(1))
    assert recorder.log == []


def test_compiled_programs_are_not_annotated(monkeypatch):
    """Hooks would make torch.compile compile again within the window."""
    compiled = SimpleNamespace(counters={"frames": {"total": 1}})
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", compiled)
    recorder = Recorder()
    marks = ModuleMarks(recorder)
    marks.start()
    torch.nn.Identity()(torch.zeros(1))
    marks.stop()
    assert recorder.log == []
