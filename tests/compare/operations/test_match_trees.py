"""Matching of operation trees: edits that are planted in random trees are found, and changes add up."""

from copy import deepcopy

from hypothesis import given
from hypothesis import strategies as st

from tests.compare.operations.trees import Draft, drafts, parent_of
from trainyard.compare.operations.largest_changes import find_changes
from trainyard.compare.operations.match_trees import match_trees
from trainyard.operation_tree import IDLE, KERNEL, MODULE, OP, PHASE, STEP


def balanced(before, after):
    """The changes between two drafts, after a check that they add up."""
    first, second = before.tree(), after.tree()
    changes = find_changes(first, second)
    assert sum(change.ns for change in changes.largest) + changes.rest_ns == second.wall_ns - first.wall_ns
    assert sum(change.before_ns for change in changes.largest) + changes.rest_before_ns == first.wall_ns
    assert sum(change.after_ns for change in changes.largest) + changes.rest_after_ns == second.wall_ns
    assert all(change.ns == change.after_ns - change.before_ns for change in changes.largest)
    return changes


def only(changes):
    """The single reported change."""
    (change,) = changes.largest
    return change


@given(drafts())
def test_identical_trees_have_no_changes(step):
    changes = balanced(step, deepcopy(step))
    assert changes.largest == ()
    assert changes.rest_ns == 0
    assert set(match_trees(step.tree(), step.tree()).kinds.values()) == {"same"}


@given(drafts(), drafts())
def test_changes_of_unrelated_trees_add_up(before, after):
    balanced(before, after)
    matches = match_trees(before.tree(), after.tree())
    assert len(set(matches.pairs.values())) == len(matches.pairs)


@given(drafts(), st.data())
def test_a_renamed_node_is_found_without_cost(step, data):
    edited = deepcopy(step)
    node = data.draw(st.sampled_from([node for node in edited.walk() if node.kind == MODULE]))
    old, node.label = node.label, "Renamed"
    change = only(balanced(step, edited))
    assert (change.match, change.path[-1], change.path_before[-1], change.ns) == ("renamed", "Renamed", old, 0)


@given(drafts(), st.data())
def test_a_moved_subtree_is_found_without_cost(step, data):
    edited = deepcopy(step)
    phase = data.draw(st.sampled_from(edited.children))
    node = data.draw(st.sampled_from([node for node in phase.walk() if node.kind == MODULE]))
    parent = parent_of(edited, node)
    inside = {id(inner) for inner in node.walk()}
    targets = [
        target
        for target in phase.walk()
        if target.kind in (MODULE, PHASE) and id(target) not in inside and target is not parent
    ]
    target = data.draw(st.sampled_from(targets)) if targets else None
    if target is None:
        return
    parent.children.remove(node)
    target.children.append(node)
    change = only(balanced(step, edited))
    assert (change.match, change.path[-1], change.ns) == ("moved", node.label, 0)
    assert change.path[:-1] != change.path_before[:-1]


@given(drafts(), st.data(), st.integers(0, 10**7))
def test_fused_ops_are_found_with_their_cost(step, data, fused_ns):
    edited = deepcopy(step)
    module = data.draw(st.sampled_from([node for node in edited.walk() if node.kind == MODULE]))
    ops = [child for child in module.children if child.kind == OP]
    old_ns = sum(op.total() for op in ops)
    kernel = Draft("combined", KERNEL, fused_ns, module.calls)
    module.children = [child for child in module.children if child.kind != OP]
    module.children.append(Draft("Fused", OP, 0, module.calls, [kernel]))
    changes = balanced(step, edited)
    change = only(changes)
    assert (change.match, change.joined_before, change.joined_after) == ("fused", 2, 1)
    assert (change.before_ns, change.after_ns) == (old_ns, fused_ns)
    back = only(balanced(edited, step))
    assert (back.match, back.joined_before, back.joined_after, back.ns) == ("split", 1, 2, -change.ns)


@given(drafts(), st.data(), st.booleans())
def test_added_and_removed_subtrees_are_found(step, data, adds):
    edited = deepcopy(step)
    node = data.draw(st.sampled_from([node for node in edited.walk() if node.kind in (MODULE, OP)]))
    parent_of(edited, node).children.remove(node)
    change = only(balanced(edited, step) if adds else balanced(step, edited))
    assert change.match == ("added" if adds else "removed")
    assert change.path[-1] == node.label
    assert change.ns == (node.total() if adds else -node.total())


def step_of(*modules, idle=0):
    forward = Draft("forward", PHASE, 0, 0.0, [*modules, Draft("Idle: Python", IDLE, idle)])
    return Draft("step", STEP, 0, 0.0, [forward])


def layers(softmax_ns, count=12):
    return [
        Draft(f"Block_{number}", MODULE, 0, 1.0, [
            Draft("aten::softmax", OP, 10, 1.0, [Draft("softmax_warp", KERNEL, softmax_ns(number), 1.0)]),
            Draft("aten::mm", OP, 10, 1.0, [Draft("gemm", KERNEL, 10_000, 1.0)]),
        ])
        for number in range(count)
    ]  # fmt: skip


def test_equal_changes_of_all_layers_are_one_row():
    changes = balanced(step_of(*layers(lambda _: 1000)), step_of(*layers(lambda _: 3000)))
    change = only(changes)
    assert change.path == ("forward", "Block_*", "aten::softmax", "softmax_warp")
    assert (change.places, change.ns, changes.rest_ns) == (12, 24_000, 0)


def test_a_change_of_one_layer_is_reported_at_that_layer():
    changes = balanced(step_of(*layers(lambda _: 1000)), step_of(*layers(lambda number: 9000 if number == 7 else 1001)))
    assert only(changes).path == ("forward", "Block_7", "aten::softmax", "softmax_warp")
    assert only(changes).places == 1
    assert changes.rest_ns == 11


def test_changes_that_cancel_are_both_reported():
    before = step_of(*layers(lambda _: 1000), idle=50_000)
    after = step_of(*layers(lambda _: 5000), idle=2_000)
    assert [(change.kind, change.ns) for change in balanced(before, after).largest] == [
        ("kernel", 48_000), ("idle", -48_000),
    ]  # fmt: skip


def test_a_change_of_many_kernels_is_reported_at_their_op():
    def op(ns):
        return Draft("aten::conv", OP, 0, 1.0, [Draft(f"kernel{letter}", KERNEL, ns, 1.0) for letter in "abcd"])

    change = only(balanced(step_of(op(1000)), step_of(op(2000))))
    assert (change.path, change.ns) == (("forward", "aten::conv"), 4000)


def test_another_kernel_of_an_op_is_renamed():
    def op(label):
        return Draft("aten::mm", OP, 0, 2.0, [Draft(label, KERNEL, 1000 + len(label), 2.0)])

    change = only(balanced(step_of(op("ampere_sgemm_128x64")), step_of(op("cutlass"))))
    assert (change.match, change.path[-1], change.path_before[-1]) == ("renamed", "cutlass", "ampere_sgemm_128x64")


def test_idle_time_is_neither_added_nor_removed():
    change = only(balanced(step_of(idle=0), step_of(Draft("Idle: host sync", IDLE, 70_000), idle=0)))
    assert (change.match, change.kind, change.ns) == ("same", "idle", 70_000)


def test_a_wrapped_module_is_moved_into_the_added_one():
    (block, *rest) = layers(lambda _: 1000, 2)
    wrapped = Draft("Wrapper", MODULE, 0, 1.0, [deepcopy(block)])
    changes = balanced(step_of(block, *rest), step_of(wrapped, *deepcopy(rest)))
    assert {(change.match, change.path[1:]) for change in changes.largest} == {
        ("added", ("Wrapper",)), ("moved", ("Wrapper", "Block_0")),
    }  # fmt: skip
    assert [change.ns for change in changes.largest] == [0, 0]


def test_many_different_ops_are_not_called_fused():
    ops = [Draft(f"op{chr(97 + number)}", OP, 1000, 1.0) for number in range(20)]
    changes = balanced(step_of(*ops), step_of(Draft("graph", OP, 1000, 1.0)))
    assert {change.match for change in changes.largest} == {"added", "removed"}
