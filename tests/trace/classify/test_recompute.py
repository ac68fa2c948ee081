"""Detection of recomputation in the backward pass, and of work that only resembles it, in traces by torch."""

from collections import Counter

import pytest

from tests.trace_maker import MAIN, trace, write
from trainyard.trace.classify.context import PHASES, build_context
from trainyard.trace.measure import read


def spans(tree, at=0):
    """Host rows of a tree: (name, number, whether a backward node, children...), each 10 ns longer than its children;
    and where they end."""
    name, number, node, *children = tree
    end, rows = at + 5, []
    for child in children:
        inside, end = spans(child, end)
        rows += inside
    args = {"Sequence number": number, "Fwd thread id": int(node)} if number is not None else {}
    return [(name, MAIN, at, end + 5, "cpu_op", args), *rows], end + 5


def evaluated(name, number, *children):
    return (f"autograd::engine::evaluate_function: {name}", number, True, (name, number, True, *children))


def op(name, number=None, *children):
    return (name, number, False, *children)


def phases(folder, *trees):
    """Phase of each row in order, by name."""
    rows, at = [], 0
    for tree in trees:
        host_rows, at = spans(tree, at)
        rows += host_rows
    (events,) = read([write(folder, trace(host=rows))])
    around = build_context(events)
    return [(events.names[name], PHASES[phase]) for name, phase in zip(events.host.name, around.phase)]


FORWARD = op("aten::mm", 1)
OWN_WORK = op("aten::mm")


def inside_node(folder, *children, node="MmBackward0"):
    by_row = phases(folder, FORWARD, evaluated(node, 1, *children))
    return [phase for _, phase in by_row[3:]]


def test_numbered_ops_before_a_nodes_own_work_are_recomputation(tmp_path):
    assert inside_node(tmp_path, op("aten::silu", 9, op("aten::exp")), OWN_WORK) == [*["recompute"] * 2, "backward"]


def test_an_engine_pass_inside_a_node_follows_recomputation(tmp_path):
    again = [op("aten::detach"), op("aten::silu", 9), evaluated("SiluBackward0", 9, op("aten::silu_backward"))]
    counts = inside_node(tmp_path, *again, node="CheckpointFunctionBackward")
    assert counts == ["backward", "recompute", *["backward"] * 3]


def test_a_function_applied_as_a_nodes_own_work_is_not_recomputation(tmp_path):
    nested = op("NestedRedistribute", 9, op("c10d::allreduce_"))
    assert inside_node(tmp_path, nested, node="RedistributeBackward") == ["backward"] * 2
    assert inside_node(tmp_path, op("aten::mul"), nested, OWN_WORK, node="RedistributeBackward") == ["backward"] * 4


@pytest.mark.parametrize("name", ["Norm", "CompiledFunction"])
def test_a_function_applied_within_recomputation_is_recomputed(name, tmp_path):
    amid = [op("aten::silu", 9), op(name, 9, op("aten::mm")), op("aten::mul", 10), OWN_WORK]
    assert inside_node(tmp_path, *amid) == [*["recompute"] * 4, "backward"]


def test_a_compiled_graph_is_recomputed_whatever_follows(tmp_path):
    compiled = op("CompiledFunction", 9, op("triton_poi_0"))
    assert inside_node(tmp_path, compiled, OWN_WORK) == [*["recompute"] * 2, "backward"]
    assert inside_node(tmp_path, compiled, node="CompiledFunctionBackward") == ["recompute"] * 2


def test_gradients_of_gradients_are_not_recomputation(tmp_path):
    assert inside_node(tmp_path, op("aten::t", 9), op("aten::matmul", 10, op("aten::mm", 10))) == ["backward"] * 3


def recorded(folder, step):
    """Ops by phase in a step recorded by torch's profiler; only the outermost op of each phase."""
    from torch.profiler import ProfilerActivity, profile

    step()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    file = folder / "recorded.json"
    profiler.export_chrome_trace(str(file))
    (events,) = read([file])
    return Counter(
        (events.names[name], PHASES[phase]) for name, phase in zip(events.host.name, build_context(events).phase)
    )


@pytest.mark.torch
@pytest.mark.parametrize("reentrant", [True, False])
def test_torch_checkpointing(reentrant, tmp_path):
    torch = pytest.importorskip("torch")
    from torch.utils.checkpoint import checkpoint

    block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 4))

    def step():
        x = torch.randn(2, 4, requires_grad=True)
        checkpoint(block, x, use_reentrant=reentrant).sum().backward()

    counts = recorded(tmp_path, step)
    assert counts["aten::linear", "recompute"] == counts["aten::linear", "forward"] == 2
    assert counts["aten::gelu", "recompute"] == 1
    assert counts["aten::gelu_backward", "backward"] == 1
    assert not counts["aten::gelu_backward", "recompute"]


@pytest.mark.torch
def test_torch_functions_whose_gradient_is_another_function(tmp_path):
    torch = pytest.importorskip("torch")

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x / 2

        @staticmethod
        def backward(ctx, gradient):
            return Doubled.apply(gradient)

    def step():
        x = torch.randn(2, 4, requires_grad=True)
        Halved.apply(x.exp()).sum().backward()

    counts = recorded(tmp_path, step)
    assert counts["Doubled", "backward"] == 1
    assert not [name for name, phase in counts if phase == "recompute"]


@pytest.mark.torch
def test_torch_gradients_of_gradients(tmp_path):
    torch = pytest.importorskip("torch")
    linear = torch.nn.Linear(4, 4)

    def step():
        x = torch.randn(2, 4, requires_grad=True)
        (gradient,) = torch.autograd.grad(linear(x).pow(2).sum(), x, create_graph=True)
        gradient.pow(2).sum().backward()

    counts = recorded(tmp_path, step)
    assert counts["aten::mm", "backward"] > 1
    assert not [name for name, phase in counts if phase == "recompute"]
