"""Phases of work inside `optimizer.step(closure)`: those of the same work outside of it."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trace_maker import MAIN, trace, write
from trainyard.events import OP
from trainyard.trace.classify import context
from trainyard.trace.classify.closures import find_evaluations
from trainyard.trace.classify.context import PHASES, build_context
from trainyard.trace.classify.passes import find_passes
from trainyard.trace.measure import measure, read
from trainyard.trace.readers.kineto import native

ENGINE = "autograd::engine::evaluate_function: "
NAMES = [
    "aten::mm",
    "aten::add_",
    "Optimizer.step#Adam.step",
    "Optimizer.zero_grad#x",
    ENGINE + "Mm",
    "nn.Module: A_0",
    "x.py(1): f",
]


def phases_of(folder, host):
    (events,) = read([write(folder, trace(host=host))])
    return [PHASES[phase] for phase in build_context(events).phase]


def numbered(name, seq, start, stop):
    return (name, MAIN, start, stop, "cpu_op", {"Sequence number": seq})


def plain(name, start, stop):
    return (name, MAIN, start, stop, "cpu_op")


def node(seq, start, stop, thread=MAIN):
    return (ENGINE + "MmBackward0", thread, start, stop, "cpu_op", {"Sequence number": seq, "Fwd thread id": 1})


def step(start, stop):
    return ("Optimizer.step#LBFGS.step", MAIN, start, stop, "user_annotation")


def test_update_between_two_evaluations_is_the_optimizers(tmp_path):
    host = [
        step(0, 200), numbered("aten::to", 1, 5, 8), numbered("aten::mm", 1, 10, 20), node(1, 30, 40),
        numbered("aten::detach", 2, 42, 44), plain("aten::dot", 50, 60), numbered("aten::mm", 2, 70, 80),
        node(2, 90, 100), plain("aten::add_", 110, 120),
    ]  # fmt: skip
    assert phases_of(tmp_path, host) == [
        "optimizer", "forward", "forward", "backward", "optimizer", "optimizer", "forward", "backward", "optimizer",
    ]  # fmt: skip


def test_number_that_no_node_repeats_inside_is_the_update(tmp_path):
    """An optimizer that updates with gradients recorded: the next step's backward pass repeats its last number."""
    host = [step(0, 100), numbered("aten::add_", 1, 10, 20), numbered("aten::mm", 1, 110, 120), node(1, 130, 140)]
    assert phases_of(tmp_path, host) == ["optimizer", "optimizer", "forward", "backward"]


def test_frame_around_the_evaluation_keeps_the_optimizers_phase(tmp_path):
    frame = ("torch/optim/adam.py(9): step", MAIN, 1, 99, "python_function")
    module = ("nn.Module: Linear_0", MAIN, 10, 30, "python_function")
    host = [step(0, 100), frame, module, plain("aten::mm", 12, 20), plain("aten::add_", 50, 60)]
    assert phases_of(tmp_path, host) == ["optimizer", "optimizer", "other", "forward", "optimizer"]


def test_backward_pass_on_another_thread_ends_the_evaluation(tmp_path):
    host = [step(0, 100), numbered("aten::mm", 1, 10, 20), node(1, 30, 60, thread=200), plain("aten::add_", 70, 80)]
    assert phases_of(tmp_path, host) == ["optimizer", "forward", "backward", "optimizer"]


def test_wrapped_optimizer_evaluates_the_closure(tmp_path):
    """Accelerate's optimizer is one, and calls the user's."""
    wrapper = ("Optimizer.step#AcceleratedOptimizer.step", MAIN, 0, 200, "user_annotation")
    host = [wrapper, step(5, 190), numbered("aten::mm", 1, 10, 20), node(1, 30, 40), plain("aten::add_", 50, 60)]
    assert phases_of(tmp_path, host) == ["optimizer", "optimizer", "forward", "backward", "optimizer"]


HOST_ROWS = st.lists(
    st.tuples(
        st.sampled_from(NAMES), st.integers(MAIN, MAIN + 1), st.integers(0, 300), st.integers(0, 200),
        st.sampled_from(["cpu_op", "cpu_op", "user_annotation", "python_function"]), st.integers(-1, 4),
        st.integers(0, 1),
    ),
    min_size=1, max_size=14,
)  # fmt: skip


@given(HOST_ROWS)
def test_compiled_and_python_context_are_the_same(tmp_path_factory, rows):
    if native.library() is None:
        pytest.skip("the compiled code is not built")
    events = events_of(tmp_path_factory.mktemp("t"), rows)
    by_name = [context._name_facts(name, (), events.mark) for name in events.names]
    evaluated = context.rows_of_evaluations(events.host, evaluations_in(events))
    recomputed = context._is_recomputed(events.host, events.names)
    arguments = (events.host, by_name, bool((events.host.seq >= 0).any()), recomputed, evaluated)
    for fast, slow in zip(context._inherit_fast(*arguments), context._inherit(*arguments)):
        assert np.array_equal(fast, slow)


@given(HOST_ROWS)
def test_evaluations_lie_apart_inside_annotations(tmp_path_factory, rows):
    events = events_of(tmp_path_factory.mktemp("t"), rows)
    host, evaluations = events.host, evaluations_in(events)
    steps = find_passes(host, events.names).optimizer
    for start, stop, thread in zip(*evaluations):
        assert start <= stop
        assert any(host.start[row] <= start and stop <= host.stop[row] and host.thread[row] == thread for row in steps)
    for thread in set(evaluations.thread.tolist()):
        rows_of_thread = evaluations.thread == thread
        assert (evaluations.start[rows_of_thread][1:] >= evaluations.start[rows_of_thread][:-1]).all()


def evaluations_in(events):
    return find_evaluations(events.host, events.names, find_passes(events.host, events.names))


def events_of(folder, rows):
    host = [
        (name, thread, start, start + length, cat, {"Sequence number": seq, "Fwd thread id": forward})
        for name, thread, start, length, cat, seq, forward in rows
    ]
    (events,) = read([write(folder, trace(host=host))])
    return events


@pytest.mark.torch
@pytest.mark.parametrize("with_stack", [False, True])
def test_closure_has_the_phases_of_an_explicit_step(tmp_path, with_stack):
    torch = pytest.importorskip("torch")

    def ops_by_phase(calls_closure):
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        batch = torch.randn(4, 8)

        def closure():
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            return loss

        with torch.profiler.profile(with_stack=with_stack) as profiler:
            for _ in range(3):
                if calls_closure:
                    optimizer.step(closure)
                else:
                    closure()
                    optimizer.step()
        return count_ops(profiler, tmp_path / f"{calls_closure}.json")

    explicit, inside = ops_by_phase(False), ops_by_phase(True)
    assert {phase for _, phase in explicit} == {"forward", "backward", "optimizer", "other"}
    assert inside == explicit


@pytest.mark.torch
def test_loss_scaler_checks_gradients_after_the_forward_pass(tmp_path):
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters())
    scaler = torch.amp.GradScaler("cpu")
    with torch.profiler.profile() as profiler:
        for _ in range(3):
            scaler.scale(model(torch.randn(4, 8)).square().mean()).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    counts = count_ops(profiler, tmp_path / "trace.json")
    assert counts["aten::linear", "forward"] == 3
    assert counts["aten::item", "other"] >= 3
    assert not {name for name, phase in counts if phase == "forward"} & {"aten::reciprocal"}


@pytest.mark.torch
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_update_is_all_that_is_optimizer(tmp_path, search):
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, line_search_fn=search)
    batch, evaluations = torch.randn(4, 8), []

    def closure():
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        evaluations.append(1)
        return loss

    with torch.profiler.profile() as profiler:
        for _ in range(2):
            optimizer.step(closure)
    counts = count_ops(profiler, tmp_path / "trace.json")
    passes = len(evaluations)
    assert counts["aten::linear", "forward"] == counts["MeanBackward0", "backward"] == passes > 4
    assert not {name for name, phase in counts if phase == "optimizer"} & {"aten::linear", "aten::mean"}
    assert (
        counts["aten::dot", "optimizer"] == sum(count for (name, _), count in counts.items() if name == "aten::dot") > 0
    )
    ledger = measure(read([tmp_path / "trace.json"]), "all").mean
    assert ledger.by_phase()["optimizer"] > 0


def count_ops(profiler, path):
    """(op, phase) -> how often."""
    profiler.export_chrome_trace(str(path))
    (events,) = read([path])
    phase = build_context(events).phase
    rows = np.flatnonzero(events.host.what == OP)
    return Counter((events.names[events.host.name[row]], PHASES[phase[row]]) for row in rows)
