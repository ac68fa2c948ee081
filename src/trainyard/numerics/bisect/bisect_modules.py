"""Finds the modules, and the operations of a module, that make a training differ, by swapping all others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from trainyard.errors import NotEnoughEvidence
from trainyard.numerics.bisect.bisection_result import NumericsBisection
from trainyard.numerics.bisect.configuration import Change
from trainyard.numerics.bisect.delta_debugging import Outcome, minimise
from trainyard.numerics.bisect.module_tree import ModuleTree, smallest_parts
from trainyard.numerics.bisect.swap import Swap, SwapKind
from trainyard.numerics.bisect.trials import Trials
from trainyard.numerics.compare.logical_tensors import LogicalKey
from trainyard.numerics.compare.read_run import read_run
from trainyard.numerics.record.record_command import record_command
from trainyard.numerics.record_files import variants
from trainyard.numerics.record_state import RecordOptions

OUTSIDE_NAME = "code outside of modules"
_SWAPPED = {"eager": "compiled", "float64": "computed in the formats of the script"}


def bisect_modules(
    a: Path,
    command: Sequence[str],
    folder: Path,
    kind: SwapKind,
    say: Callable[[str], object] = lambda text: None,
) -> NumericsBisection:
    """Runs `command` with some modules as they are and all others swapped, and compares each run with the record in
    folder `a`: at gradients, weights and states of the optimizer, since values within swapped modules differ.

    Swapped operations, in float64: if a single module is left, its operations are searched too. `folder`: finished
    trials are kept there, and are not repeated. Raises `NotEnoughEvidence` if B does not differ, or differs although
    all modules are swapped.
    """
    run = read_run(a, "plain", variants(a))
    parts = _Parts(run.tensors.tensors.keys(), kind)
    options = RecordOptions(steps=run.header.steps, level="steps", replicas=0)

    def record(kept: tuple[Change, ...], record_folder: Path) -> None:
        record_command(command, record_folder, options._replace(swap=parts.swap(kept)))

    trials = Trials(a, folder, parts.changes, record, say)
    top = parts.modules(parts.tree.top)
    if trials.outcome(top) != "different":
        raise NotEnoughEvidence(
            f"B does not differ from A beyond rounding in gradients, weights and states: {trials.reason(top)}.",
            "Record other steps, or compare them with `trainyard numerics compare`.",
        )
    if trials.outcome(()) != "same":
        raise NotEnoughEvidence(
            f"B differs from A although no module is {_SWAPPED[kind]}: {trials.reason(())}.",
            "The difference is not in how modules are computed. Search options with `numerics bisect` without --swap.",
        )

    def test(paths: Sequence[str]) -> Outcome:
        return trials.outcome(parts.modules(paths))

    causes = tuple(parts.modules(smallest_parts(parts.tree, test)))
    if kind == "float64" and len(causes) == 1:
        operations = parts.operations(causes[0])
        if operations and trials.outcome(operations) == "different":
            causes = tuple(minimise(operations, trials.outcome))
    tried = {change for trial in trials.finished for change in trial.changes}
    return NumericsBisection(
        changes=tuple(change for change in parts.changes if change in tried),
        causes=causes,
        first=trials.get(causes).first,
        trials=tuple(trials.finished),
        swap=kind,
    )


class _Parts:
    """The modules and operations of a training as changes, and the swaps that leave some of them as they are."""

    def __init__(self, keys: Iterable[LogicalKey], kind: SwapKind) -> None:
        """`keys`: of the recorded tensors."""
        modules = dict.fromkeys(key.tensor.module for key in keys)
        operations = dict.fromkeys((key.tensor.module, key.tensor.operation) for key in keys if key.tensor.operation)
        self.tree = ModuleTree(modules)
        self._kind: SwapKind = kind
        paths = list(self.tree.children)
        self._module = {
            path: Change(number=number, kind="module", name=path or OUTSIDE_NAME) for number, path in enumerate(paths)
        }
        self._operation = {
            (module, name): Change(number=number, kind="operation", name=f"{name} of {module or OUTSIDE_NAME}")
            for number, (module, name) in enumerate(operations, len(paths))
        }
        self._path_of = {change: path for path, change in self._module.items()}
        self._operation_of = {change: operation for operation, change in self._operation.items()}
        self.changes = (*self._module.values(), *self._operation.values())

    def modules(self, paths: Iterable[str]) -> list[Change]:
        """The changes of modules."""
        return [self._module[path] for path in paths]

    def operations(self, module: Change) -> list[Change]:
        """The operations of a module and its submodules."""
        kept = self.swap([module])
        return [change for (path, _), change in self._operation.items() if kept.keeps(path)]

    def swap(self, kept: Iterable[Change]) -> Swap:
        """The swap of all modules and operations but those of some changes."""
        kept = list(kept)
        return Swap(
            kind=self._kind,
            modules=tuple(self._path_of[change] for change in kept if change.kind == "module"),
            operations=tuple(self._operation_of[change] for change in kept if change.kind == "operation"),
        )
