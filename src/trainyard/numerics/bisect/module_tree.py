"""The tree of the modules of a training, and the search for the smallest part of it that makes a training differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from trainyard.numerics.bisect.delta_debugging import Outcome, minimise
from trainyard.numerics.bisect.swap import OUTSIDE


class ModuleTree:
    """`top`: the outermost modules, and `OUTSIDE` last. `children`: paths of the submodules of a path, in order."""

    def __init__(self, paths: Iterable[str]) -> None:
        """`paths`: of modules, such as `Decoder.layers.0.mlp`; those of the modules around them follow."""
        self.children: dict[str, list[str]] = {}
        self.top: list[str] = []
        for path in dict.fromkeys(paths):
            if path != OUTSIDE:
                self._add(path)
        self._add(OUTSIDE)

    def _add(self, path: str) -> None:
        if path in self.children:
            return
        self.children[path] = []
        parent = path.rpartition(".")[0]
        if not parent:
            self.top.append(path)
            return
        self._add(parent)
        self.children[parent].append(path)


def smallest_parts(tree: ModuleTree, test: Callable[[Sequence[str]], Outcome]) -> list[str]:
    """The paths of the smallest parts of the tree that have the outcome "different".

    `test`: the outcome if modules, with their submodules, are as they are and all others are swapped; that of all must
    be "different". From the top, the search descends into a module as long as its submodules show the difference
    without its own code.
    """
    chosen = minimise(tree.top, test)
    while len(chosen) == 1 and (inner := tree.children[chosen[0]]) and test(inner) == "different":
        chosen = minimise(inner, test)
    return chosen
