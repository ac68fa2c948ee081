"""The search for the part of a tree of modules that makes a training differ."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from trainyard.numerics.bisect.delta_debugging import Outcome
from trainyard.numerics.bisect.module_tree import ModuleTree, smallest_parts
from trainyard.numerics.bisect.swap import OUTSIDE, Swap

NAMES = st.sampled_from(["Model", "a", "b", "0", "1"])
PATHS = st.lists(st.lists(NAMES, min_size=1, max_size=4).map(".".join), min_size=1, max_size=20)


@given(PATHS)
def test_the_tree_has_each_path_and_those_around_it(paths: list[str]) -> None:
    tree = ModuleTree(["", *paths])
    expected = {OUTSIDE, *(".".join(path.split(".")[:end]) for path in paths for end in range(1, path.count(".") + 2))}
    assert set(tree.children) == expected
    reached = list(tree.top)
    for path in reached:
        assert all(child.rpartition(".")[0] == path for child in tree.children[path])
        reached += tree.children[path]
    assert sorted(reached) == sorted(expected)
    assert tree.top[-1] == OUTSIDE


@given(PATHS, st.data())
def test_the_smallest_module_with_the_culprits_is_named(paths: list[str], data: st.DataObject) -> None:
    """Code of one module, or of two that act together."""
    tree = ModuleTree(paths)
    culprits = data.draw(st.sets(st.sampled_from(sorted(tree.children)), min_size=1, max_size=2))

    def test(kept: Sequence[str]) -> Outcome:
        swap = Swap(kind="float64", modules=tuple(kept))
        return "different" if all(swap.keeps(culprit) for culprit in culprits) else "same"

    named = smallest_parts(tree, test)
    assert test(named) == "different"
    for at, path in enumerate(named):
        others = [*named[:at], *named[at + 1 :]]
        assert test(others) == "same"
        assert len(named) > 1 or test(tree.children[path]) == "same"
    if len(culprits) == 1:
        assert named == list(culprits)
