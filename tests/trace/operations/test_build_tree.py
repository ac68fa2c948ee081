"""Operation trees of traces: every ns of the mean step is at the span that it belongs to."""

import numpy as np
import pytest
from hypothesis import given

from tests.properties.test_trace_properties import rank_traces
from tests.trace_maker import MAIN, trace, write
from trainyard import words
from trainyard.operation_tree import IDLE, KERNEL, MODULE, OP
from trainyard.trace.measure import measure, read
from trainyard.trace.operations.build_tree import build_operation_tree
from trainyard.trace.operations.owned_time import find_owned_time


def tree_of(folder, **rows):
    measured = measure(read([write(folder, trace(**rows))]))
    tree = build_operation_tree(measured)
    return measured, tree


def by_path(tree):
    """Path of each node -> (kind, own ns, calls)."""
    return {tree.path(row): (node.kind, node.own_ns, node.calls) for row, node in enumerate(tree.nodes)}


MARKS = [("0", 0, 1000), ("1", 1000, 2000), ("2", 2000, 3000)]


def module_rows(start):
    """The host rows of a forward and a backward pass of one linear layer, within 900 ns."""
    return [
        ("nn.Module: Net_0", MAIN, start, start + 400, "python_function"),
        ("net.py(7): forward", MAIN, start + 5, start + 390, "python_function"),
        ("nn.Module: Linear_0", MAIN, start + 10, start + 350, "python_function"),
        ("aten::linear", MAIN, start + 20, start + 300, "cpu_op", {"Sequence number": start + 1}),
        ("aten::addmm", MAIN, start + 30, start + 200, "cpu_op", {"Input Dims": [[4, 4], [4, 8]]}),
        ("autograd::engine::evaluate_function: AddmmBackward0", MAIN, start + 500, start + 800, "cpu_op",
         {"Sequence number": start + 1, "Fwd thread id": 1}),
        ("AddmmBackward0", MAIN, start + 510, start + 790, "cpu_op",
         {"Sequence number": start + 1, "Fwd thread id": 1}),
        ("aten::mm", MAIN, start + 520, start + 700, "cpu_op"),
    ]  # fmt: skip


def test_device_time_is_under_modules_and_ops(tmp_path):
    host = [row for start in (0, 1000, 2000) for row in module_rows(start)]
    device = []
    for start in (0, 1000, 2000):
        device += [("gemm_forward", 7, start + 100, start + 300, start + 50)]
        device += [("gemm_backward", 7, start + 600, start + 950, start + 550)]
    measured, tree = tree_of(tmp_path, host=host, device=device, marks=MARKS)
    nodes = by_path(tree)
    assert tree.wall_ns == measured.mean.wall_ns
    linear = ("forward", "Net_0", "Linear_0", "aten::linear", "aten::addmm")
    backward = ("backward", "Net_0", "Linear_0", "AddmmBackward0", "aten::mm")
    assert nodes[(*linear, "gemm_forward")] == (KERNEL, 200, 1.0)
    assert nodes[(*backward, "gemm_backward")] == (KERNEL, 350, 1.0)
    assert nodes[linear][0] == OP
    assert nodes[linear[:3]][0] == MODULE
    assert not any("net.py(7): forward" in path for path in nodes)
    (addmm,) = (node for node in tree.nodes if node.label == "aten::addmm")
    assert addmm.shapes == {"((4, 4), (4, 8))"}


def test_cpu_time_is_own_time_of_the_op(tmp_path):
    host = [row for start in (0, 1000, 2000) for row in module_rows(start)]
    measured, tree = tree_of(tmp_path, host=host, marks=MARKS)
    nodes = by_path(tree)
    assert tree.wall_ns == measured.mean.wall_ns == 1000
    assert nodes["forward", "Net_0", "Linear_0", "aten::linear"] == (OP, 110, 1.0)
    assert nodes["forward", "Net_0", "Linear_0", "aten::linear", "aten::addmm"] == (OP, 170, 1.0)
    assert nodes["backward", "Net_0", "Linear_0", "AddmmBackward0", "aten::mm"] == (OP, 180, 1.0)
    # The engine's span and the function in it have one name, and are one node.
    assert nodes["backward", "Net_0", "Linear_0", "AddmmBackward0"] == (OP, 120, 1.0)
    idle_ns = sum(ns for kind, ns, _ in nodes.values() if kind == IDLE)
    assert idle_ns == 1000 - 110 - 170 - 180 - 120


def test_annotations_with_the_number_of_a_step_are_one_node(tmp_path):
    host = []
    for number in range(4):
        host.append((f"batch {17 + number}", MAIN, 1000 * number + 10, 1000 * number + 900, "user_annotation"))
        host.append(("layers.3", MAIN, 1000 * number + 20, 1000 * number + 400, "user_annotation"))
        host.append(("aten::mm", MAIN, 1000 * number + 30, 1000 * number + 300, "cpu_op"))
    marks = [(str(number), 1000 * number, 1000 * number + 1000) for number in range(4)]
    _, tree = tree_of(tmp_path, host=host, marks=marks)
    labels = {node.label for node in tree.nodes}
    assert "batch #" in labels
    assert "layers.3" in labels
    assert not any(label.startswith("batch 1") for label in labels)


def test_work_without_host_ops_has_no_tree(tmp_path):
    _, tree = tree_of(tmp_path, device=[("gemm", 7, 100, 200, None), ("gemm", 7, 300, 400, None)])
    assert tree is None


@given(rank_traces())
def test_nodes_add_up_to_the_mean_ledger(tmp_path_factory, document):
    measured = measure(read([write(tmp_path_factory.mktemp("t"), document)]))
    tree = build_operation_tree(measured)
    if tree is None:
        assert not any((rank.events.host.what == 0).any() for rank in measured.ranks)
        return
    assert tree.wall_ns == measured.mean.wall_ns
    assert all(node.own_ns >= 0 for node in tree.nodes)
    assert all(node.parent < row for row, node in enumerate(tree.nodes))
    assert len({(node.parent, node.kind, node.label) for node in tree.nodes}) == len(tree.nodes)


@given(rank_traces(rank=0, world=2), rank_traces(rank=1, world=2))
def test_nodes_of_two_ranks_add_up(tmp_path_factory, first, second):
    folder = tmp_path_factory.mktemp("t")
    paths = [write(folder, document, f"{number}.json") for number, document in enumerate((first, second))]
    measured = measure(read(paths))
    tree = build_operation_tree(measured)
    assert tree is None or tree.wall_ns == measured.mean.wall_ns


def test_waits_are_below_the_op_that_launched_the_collective(tmp_path):
    paths = []
    for rank, late in enumerate((0, 300)):
        host, device = [], []
        for start in (0, 1000, 2000):
            host.append(("c10d::allreduce_", MAIN, start + 10 + late, start + 60 + late, "cpu_op"))
            device.append(("gemm", 7, start + 5, start + 100 + late, start + 1))
            device.append((
                "ncclDevKernel_AllReduce_Sum_f32_RING", 8, start + 100 + late, start + 600, start + 20 + late,
                {"Collective name": "allreduce", "Process Group Name": "0", "Group size": 2},
            ))  # fmt: skip
        document = trace(host=host, device=device, marks=MARKS, rank=rank, world=2, host_name="one")
        paths.append(write(tmp_path, document, f"{rank}.json"))
    measured = measure(read(paths))
    tree = build_operation_tree(measured)
    straggler_ns = sum(e.ns for e in measured.mean.entries if e.account.kind == "straggler")
    assert straggler_ns == 150  # 300 ns on one of two ranks
    waits = {path: ns for path, (_, ns, _) in by_path(tree).items() if "Straggler" in "".join(path[-1:])}
    assert sum(waits.values()) == straggler_ns
    assert all("c10d::allreduce_" in path for path in waits)


@given(rank_traces())
def test_each_part_adds_up_to_its_ledger(tmp_path_factory, document):
    measured = measure(read([write(tmp_path_factory.mktemp("t"), document)]))
    (rank,) = measured.ranks
    for index, ledger in enumerate(rank.ledgers):
        owned = find_owned_time(rank, np.arange(len(rank.parts)) == index)
        assert owned.ns.sum() == ledger.wall_ns
        assert (owned.ns >= 0).all()
        kernels = owned.ns[owned.leaf_kind == KERNEL].sum()
        assert kernels == sum(e.ns for e in ledger.entries if e.account.kind in ("compute", "comm", "copy"))
        assert owned.phase.max(initial=0) < len(words.PHASES)


PUBLIC = [
    "resnet50_loader0.json.gz", "v100_dlrm_8ranks", "cpu_gloo_3ranks", "mi300_qwen_0.5b.json.gz",
    "diff_control.json.gz",
]  # fmt: skip


@pytest.mark.parametrize("name", PUBLIC)
def test_public_traces_add_up(public_trace, name):
    measured = measure(read([public_trace(name)]))
    tree = build_operation_tree(measured)
    assert tree is not None
    assert tree.wall_ns == measured.mean.wall_ns
    kernel_ns = sum(node.own_ns for node in tree.nodes if node.kind != IDLE)
    # Time in kernels, collectives and ops: a node's rounding is less than a nanosecond.
    owned = sum(e.ns for e in measured.mean.entries if e.account.kind in ("compute", "comm", "copy"))
    on_device = any(len(rank.events.work) for rank in measured.ranks)
    assert not on_device or abs(kernel_ns - owned) <= len(tree.nodes)
