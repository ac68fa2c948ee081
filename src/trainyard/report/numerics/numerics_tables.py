"""Tables of a comparison of recorded tensors: by module, and by phase of each step."""

from __future__ import annotations

from trainyard.numerics.compare.comparison_result import ModuleComparison, ModuleErrors, RecordComparison
from trainyard.report.numerics.sentences import describe_phase, show
from trainyard.report.view.view import Column, Table

_BEFORE, _AFTER = 5, 8
"""Modules shown before and after that of the first fault."""
FIRST_FAULT = "▶ "
"""Mark of the module of the first fault."""
_STATUS = {
    "identical": "identical",
    "within rounding": "rounding",
    "compensated": "rounding",
    "different": "different",
    "undetectable": "undetectable",
}
"""Status as a table shows it."""


def module_table(comparison: RecordComparison, full: bool) -> Table:
    """A row for each module in order of execution; without `full`, those around the first fault or with the largest
    errors. Errors are those in the step and phase of the first fault: later, all modules may differ."""
    shown = comparison.modules if full else _around_fault(comparison.modules)
    left_out = len(comparison.modules) - len(shown)
    indent = " " * len(FIRST_FAULT) if any(module.is_first_fault for module in shown) else ""
    root, first = _root(comparison.modules), comparison.first
    scope = "" if first is None else describe_phase(first.tensor.step, first.tensor.phase)
    return Table(
        title=f"module of {root}" if root else "module",
        notes=(
            *([f"rho, of limit, status and noise: in {scope}, as the first fault."] if scope else []),
            *([f"{left_out:,} more modules with --full."] if left_out else []),
        ),
        columns=(
            Column(title="module"),
            Column(title="rho", id=True),
            Column(title="of limit", id=True),
            Column(title="status", id=True),
            Column(title="differs since", id=True, optional=True),
            Column(title="noise", id=True, optional=True),
            Column(title="largest in", optional=True),
            Column(title="tensors", digits=0, optional=True),
        ),
        rows=tuple(
            (
                (FIRST_FAULT if module.is_first_fault else indent) + _within(root, module.module),
                *_error_cells(module if first is None else module.near_fault, module),
                module.tensors,
            )
            for module in shown
        ),
    )


def _error_cells(errors: ModuleErrors | None, module: ModuleComparison) -> tuple[str, ...]:
    """The cells of a module from rho to the place of the largest error; None without tensors in the phase shown."""
    since = describe_phase(module.first_step, module.first_phase)
    if errors is None:
        return ("", "", "", since, "", "")
    return (_rho(errors), show(errors.of_limit), _STATUS[errors.status], since, show(errors.noise), errors.worst)


def _root(modules: tuple[ModuleComparison, ...]) -> str:
    """The module that contains all others; empty if there is none."""
    names = [module.module for module in modules if module.module]
    root = min(names, key=len, default="")
    return root if len(names) > 1 and all(name == root or name.startswith(f"{root}.") for name in names) else ""


def _within(root: str, module: str) -> str:
    """The path of a module without that of the root."""
    return (module.removeprefix(f"{root}.") if root else module) or "(no module)"


def _rho(errors: ModuleErrors) -> str:
    """The largest rho; `exact` if only checks of bits alarmed."""
    return "exact" if errors.status == "different" and (errors.of_limit or 0.0) <= 1 else show(errors.rho)


def _around_fault(modules: tuple[ModuleComparison, ...]) -> tuple[ModuleComparison, ...]:
    """The modules around that of the first fault or, without one, around that with the largest error."""
    if len(modules) <= _BEFORE + _AFTER + 1:
        return modules
    faults = [at for at, module in enumerate(modules) if module.is_first_fault]
    middle = faults[0] if faults else max(range(len(modules)), key=lambda at: modules[at].of_limit or 0.0)
    begin = min(max(0, middle - _BEFORE), len(modules) - _BEFORE - _AFTER - 1)
    return modules[begin : begin + _BEFORE + _AFTER + 1]


def step_table(comparison: RecordComparison) -> Table:
    """A row for each phase of each step."""
    return Table(
        title="step",
        notes=("Error of B and noise: medians over the tensors.",),
        columns=(
            Column(title="step", digits=0),
            Column(title="phase", id=True),
            Column(title="rho", id=True),
            Column(title="of limit", id=True),
            Column(title="error", id=True, optional=True),
            Column(title="noise", id=True, optional=True),
            Column(title="different", digits=0),
            Column(title="undetectable", digits=0, optional=True),
            Column(title="tensors", digits=0, optional=True),
        ),
        rows=tuple(
            (
                step.step,
                step.phase,
                show(step.rho),
                show(step.of_limit),
                show(step.error),
                show(step.noise),
                step.different,
                step.undetectable,
                step.tensors,
            )
            for step in comparison.steps
        ),
    )
