"""Description of a planted fault: its script, its source, and the locations that count as named."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

SCRIPTS = Path(__file__).parent / "scripts"


class Location(NamedTuple):
    """The first tensor in which two runs differ, as a report names it; empty if it does not. `line`: "file:line".
    `kind`: of the difference, as "value" or "not updated"."""

    step: int | None = None
    phase: str = ""
    module: str = ""
    operation: str = ""
    role: str = ""
    line: str = ""
    kind: str = ""


class Accepted(NamedTuple):
    """Locations that name a fault: all conditions that are not empty must hold.

    `module`: the path, or that of a parent. `operation`: any of them, as "aten.mm" or "c10d.allreduce_". `role`: any of
    them, as "gradient". `function`: of the script, which contains the line.
    """

    phase: str = ""
    module: str = ""
    operation: tuple[str, ...] = ()
    role: tuple[str, ...] = ()
    function: str = ""

    def matches(self, location: Location, script: str) -> bool:
        return (
            self.phase in ("", location.phase)
            and (not self.module or _contains(location.module, self.module))
            and (not self.operation or _without_overload(location.operation) in self.operation)
            and (not self.role or location.role in self.role)
            and (not self.function or _is_in_function(location.line, script, self.function))
        )


class Fault(NamedTuple):
    """`number`: of the list of faults in the docs. `first_step`: the first step, counted from 0, in which a recorded
    tensor differs. `changes_float64`: whether weights differ in float64 beyond rounding, too. `amended`: the reason why
    accepted locations were changed after a comparison; tables mark such a fault.
    """

    number: int
    id: str
    title: str
    source: str
    script: str
    accepted: tuple[Accepted, ...]
    ranks: int = 1
    arguments: tuple[str, ...] = ()
    first_step: int = 0
    changes_float64: bool = True
    amended: str = ""

    def command(self, python: str, *, faulty: bool, arguments: tuple[str, ...] = ()) -> list[str]:
        """The command of a side. `python`: the interpreter; `arguments`: further ones, as `--seed 3`."""
        variant = "faulty" if faulty else "good"
        script = str(SCRIPTS / f"{self.script}.py")
        return [python, *launcher(self.ranks), script, "--variant", variant, *self.arguments, *arguments]

    def names(self, location: Location) -> bool:
        """Whether a reported location names the fault."""
        return any(accepted.matches(location, self.script) for accepted in self.accepted)


def launcher(ranks: int) -> list[str]:
    """Arguments of Python that start a script on several ranks, with a port that no other job uses."""
    return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []


def _contains(path: str, part: str) -> bool:
    """Whether the names of `part` follow each other in those of a module's path."""
    return f".{part}." in f".{path}."


def _without_overload(operation: str) -> str:
    """ "aten.add.Tensor" -> "aten.add" """
    return ".".join(operation.split(".")[:2])


def _is_in_function(line: str, script: str, function: str) -> bool:
    """Whether "file:line" is in a function of a script."""
    file, _, number = line.rpartition(":")
    if Path(file).name != f"{script}.py" or not number.isdecimal():
        return False
    tree = ast.parse((SCRIPTS / f"{script}.py").read_text("utf-8"))
    return any(
        node.lineno <= int(number) <= (node.end_lineno or 0)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == function
    )
