"""Writes a script that shows the first difference of two records alone, and runs it."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from trainyard.errors import NotEnoughEvidence
from trainyard.numerics.compare.compare_records import MatchedRecords, match_records
from trainyard.numerics.compare.comparison_result import Divergence, OneSidedOperation, TensorPoint
from trainyard.numerics.record_state import check_scripts
from trainyard.numerics.reproduce.capture_ranks import capture, read_ranks
from trainyard.numerics.reproduce.operation_source import needed_operations
from trainyard.numerics.reproduce.script_title import script_title
from trainyard.numerics.reproduce.select_slice import Slices, select_slices, select_update
from trainyard.numerics.reproduce.write_rank_script import Compared, RankScriptParts, write_rank_script
from trainyard.numerics.reproduce.write_script import ScriptParts, write_script

if TYPE_CHECKING:
    from trainyard.numerics.reproduce.script_inputs import ScriptInputs

_ERROR = re.compile(r"^([AB]): error (\S+) of torch\.(\w+) \[.*\]$", re.MULTILINE)
_TIMEOUT_S = 600
_LEAST_TOLERANCE = 1e-5
"""Relative distance of two inputs that are taken for the same."""

Inputs = Literal["random", "captured"]


class Reproducer(msgspec.Struct, frozen=True, kw_only=True):
    """A script that needs only torch. `shows_fault`: it was run in an empty folder, and B's operations differ from A's
    in it. `causes`: as of `Divergence`. `inputs`: random numbers, or the values of the training. `ranks`: processes of
    the script. `operations_a`, `operations_b`: of the first of them. `error_a`, `error_b`: relative errors of the
    operations of each side in the script, the largest of all ranks, None if it failed; `limit`: what rounding
    explains. `files`: next to the script. `failure`: the end of the script's output if it failed."""

    schema: Literal["trainyard/numerics-reproducer/1"] = "trainyard/numerics-reproducer/1"
    tensor: TensorPoint
    causes: tuple[OneSidedOperation, ...] = ()
    script: str
    text: str
    files: tuple[str, ...]
    shows_fault: bool
    inputs: Inputs
    ranks: int = 1
    operations_a: int
    operations_b: int
    error_a: float | None
    error_b: float | None
    dtype_a: str
    dtype_b: str
    limit: float
    failure: str = ""

    @property
    def exit_code(self) -> int:
        return 0 if self.shows_fault else 1


class _Outcome(NamedTuple):
    shows_fault: bool
    errors: Mapping[str, tuple[float, str]]
    failure: str


class _Attempt(NamedTuple):
    """A script that was run. `files`: name -> bytes of a file next to it."""

    reproducer: Reproducer
    files: Mapping[str, bytes]


def reproduce_difference(
    a: Path, b: Path, script: Path, say: Callable[[str], object] = lambda text: None
) -> Reproducer:
    """Repeats the commands of the records in folders `a` and `b` to capture the operations of their first difference,
    and writes a script that shows it. Inputs are random if the difference shows with them. If the operations differ
    only in a weight that they read, the script has the first step of the optimizer that made it differ.

    Raises `BadInput` for records that do not belong together or whose commands have hidden words, `NotEnoughEvidence`
    if there is no difference that operations show, `CommandFailed` if a command fails.
    """
    from trainyard.numerics.reproduce.script_inputs import OtherWeights

    matched = match_records(a, b)
    first, slices = select_slices(matched)
    for folder in (a, b):
        check_scripts(folder)
    try:
        attempt = _reproduce(matched, first, slices, script, say)
    except OtherWeights as error:
        update = select_update(matched, error.parameter, first.tensor.step)
        attempt = None if update is None else _reproduce(matched, *update, script, say)
        if attempt is None or not attempt.reproducer.shows_fault:
            raise
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(attempt.reproducer.text, "utf-8")
    for name, data in attempt.files.items():
        script.with_name(name).write_bytes(data)
    return attempt.reproducer


def _reproduce(
    matched: MatchedRecords, first: Divergence, slices: Slices, script: Path, say: Callable[[str], object]
) -> _Attempt:
    """Captures the operations of a difference, and runs the script with random inputs, or with the captured ones if
    these do not show it."""
    from trainyard.numerics.reproduce.script_inputs import match_inputs

    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder) / "a"]
        capture(matched.run_a.header, slices.a, folders[0], say)
        if not slices.is_compiled:
            folders.append(Path(folder) / "b")
            capture(matched.run_b.header, slices.b, folders[1], say)
        captured_a, *captured_b = read_ranks(folders, max(0, slices.point.rank))
        tolerance = max(first.limit or 0.0, _LEAST_TOLERANCE)
        inputs = match_inputs(captured_a, captured_b[0] if captured_b else None, tolerance)
    if inputs.are_shared:
        with_random = _attempt(first, inputs, script, "random")
        if with_random.reproducer.shows_fault:
            return with_random
    return _attempt(first, inputs, script, "captured")


def _attempt(first: Divergence, inputs: ScriptInputs, script: Path, kind: Inputs) -> _Attempt:
    """Runs the script with random or with captured inputs."""
    from trainyard.numerics.reproduce.script_inputs import rounding_limit
    from trainyard.numerics.reproduce.script_values import captured_source, random_source

    limit = rounding_limit(inputs.values) if first.limit is None else first.limit
    sources = [
        (value, random_source(value) if kind == "random" else captured_source(value, f"{script.stem}-{value.name}.bin"))
        for value in inputs.values
    ]
    rank = min(inputs.a)
    a, b = inputs.a[rank], inputs.b.get(rank)
    files = {f"{script.stem}-{value.name}.bin": source.file for value, source in sources if source.file is not None}
    title, compared = script_title(first, a.captured, files), _compared(first)
    if len(inputs.a) == 1 and compared != "replicas":
        text = write_script(ScriptParts(title, sources, a, b, limit, compared))
    elif len(inputs.a) > 1 and b is not None:
        text = write_rank_script(RankScriptParts(title, sources, inputs.a, inputs.b, limit, compared))
    else:
        cause = "B compiles a collective" if b is None else "no collective of A's step makes the replicas equal"
        raise NotEnoughEvidence(f"a script cannot show the difference: {cause}.", "The comparison names the tensor.")
    outcome = _run(text, files)
    error_a, dtype_a = outcome.errors.get("A", (None, ""))
    error_b, dtype_b = outcome.errors.get("B", (None, ""))
    reproducer = Reproducer(
        tensor=first.tensor,
        causes=first.causes,
        script=str(script),
        text=text,
        files=tuple(files),
        shows_fault=outcome.shows_fault,
        inputs=kind,
        ranks=len(inputs.a),
        operations_a=len(needed_operations(a.captured)),
        operations_b=len(needed_operations(a.captured if b is None else b.captured)),
        error_a=error_a,
        error_b=error_b,
        dtype_a=dtype_a,
        dtype_b=dtype_b,
        limit=limit,
        failure=outcome.failure,
    )
    return _Attempt(reproducer, files)


def _compared(first: Divergence) -> Compared:
    """What the script compares."""
    match first.kind:
        case "dtype" | "shape":
            return first.kind
        case "replicas differ":
            return "replicas"
        case _:
            return "values"


def _run(text: str, files: Mapping[str, bytes]) -> _Outcome:
    """Runs the script in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "reproducer.py"
        path.write_text(text, "utf-8")
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        try:
            done = subprocess.run(
                [sys.executable, "-I", str(path)],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return _Outcome(False, {}, f"it did not end within {_TIMEOUT_S} s")
    errors = {side: (float(error), dtype) for side, error, dtype in _ERROR.findall(done.stdout)}
    failed = done.returncode not in (0, 1) or len(errors) != 2
    return _Outcome(done.returncode == 1 and not failed, errors, done.stderr[-2000:] if failed else "")
