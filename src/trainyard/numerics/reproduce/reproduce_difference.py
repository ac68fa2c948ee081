"""Writes a script that shows the first difference of two records alone, and runs it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from trainyard.errors import BadInput, NotEnoughEvidence
from trainyard.numerics.compare.compare_records import match_records
from trainyard.numerics.compare.comparison_result import Divergence, TensorPoint
from trainyard.numerics.record.record_command import run_recorded
from trainyard.numerics.record.record_process import RecordRequest
from trainyard.numerics.reproduce.captured_slice import CapturedSlice, CaptureRequest, read_slice
from trainyard.numerics.reproduce.select_slice import Slices, select_slices
from trainyard.numerics.reproduce.write_script import ScriptParts, Side, needed_inputs, write_script
from trainyard.numerics.tensor_record import RecordHeader, TensorKey
from trainyard.redact import HIDDEN

if TYPE_CHECKING:
    from trainyard.numerics.reproduce.script_values import Value

_ERROR = re.compile(r"^([AB]): error (\S+) of torch\.(\w+) \[.*\]$", re.MULTILINE)
_TIMEOUT_S = 600
_LEAST_TOLERANCE = 1e-5
"""Relative distance of two inputs that are taken for the same."""

Inputs = Literal["random", "captured"]


class Reproducer(msgspec.Struct, frozen=True, kw_only=True):
    """A script that needs only torch. `shows_fault`: it was run in an empty folder, and B's operations differ from A's
    in it. `inputs`: random numbers, or the values of the training. `error_a`, `error_b`: relative errors of the
    operations of each side in the script, None if it failed; `limit`: what rounding explains. `files`: next to the
    script. `failure`: the end of the script's output if it failed."""

    schema: Literal["trainyard/numerics-reproducer/1"] = "trainyard/numerics-reproducer/1"
    tensor: TensorPoint
    script: str
    text: str
    files: tuple[str, ...]
    shows_fault: bool
    inputs: Inputs
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


def reproduce_difference(
    a: Path, b: Path, script: Path, say: Callable[[str], object] = lambda text: None
) -> Reproducer:
    """Repeats the commands of the records in folders `a` and `b` to capture the operations of their first difference,
    and writes a script that shows it. Inputs are random if the difference shows with them.

    Raises `BadInput` for records that do not belong together or whose commands have hidden words, `NotEnoughEvidence`
    if there is no difference that operations show, `CommandFailed` if a command fails.
    """
    matched = match_records(a, b)
    first, slices = select_slices(matched)
    rank = max(0, slices.point.rank)
    with tempfile.TemporaryDirectory() as folder:
        captured_a = _capture(matched.run_a.header, slices.operations_a, slices.result_a, Path(folder) / "a", rank, say)
        captured_b = None
        if not slices.is_compiled:
            folder_b = Path(folder) / "b"
            captured_b = _capture(matched.run_b.header, slices.operations_b, slices.result_b, folder_b, rank, say)
        with_random = _attempt(first, slices, captured_a, captured_b, Path(folder), script, "random")
        if with_random.shows_fault:
            return with_random
        return _attempt(first, slices, captured_a, captured_b, Path(folder), script, "captured")


def _attempt(
    first: Divergence,
    slices: Slices,
    a: CapturedSlice,
    b: CapturedSlice | None,
    folder: Path,
    script: Path,
    inputs: Inputs,
) -> Reproducer:
    """Writes the script with random or with captured inputs, and runs it."""
    from trainyard.numerics.reproduce.script_values import (
        captured_source,
        random_source,
        read_value,
        shared_names,
    )

    limit = first.limit or 0.0
    needed_a = needed_inputs(a)
    values_a = [read_value(folder / "a", each, f"a_{each.name}") for each in a.inputs if each.name in needed_a]
    values_b = []
    if b is not None:
        needed_b = needed_inputs(b)
        values_b = [read_value(folder / "b", each, each.name) for each in b.inputs if each.name in needed_b]
    shared = shared_names(values_a, values_b, max(limit, _LEAST_TOLERANCE))
    if not len(shared) == len(values_a) == len(values_b) and b is not None:
        inputs = "captured"  # random numbers would not belong together
        _check_comparable(
            [value for value in values_a if value.name not in shared],
            [value for value in values_b if value.name not in shared.values()],
        )
    values = [*values_b, *(value for value in values_a if value.name not in shared)]
    sources = [
        (
            value,
            random_source(value) if inputs == "random" else captured_source(value, f"{script.stem}-{value.name}.bin"),
        )
        for value in values
    ]
    names_a = {value.name.removeprefix("a_"): shared.get(value.name, value.name) for value in values_a}
    side_b = None if b is None else Side(b, {value.name: value.name for value in values_b})
    text = write_script(ScriptParts(_title(first, a), sources, Side(a, names_a), side_b, limit, _compared(first)))
    files = {f"{script.stem}-{value.name}.bin": source.file for value, source in sources if source.file is not None}
    outcome = _run(text, files)
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(text, "utf-8")
    for name, data in files.items():
        script.with_name(name).write_bytes(data)
    error_a, dtype_a = outcome.errors.get("A", (None, ""))
    error_b, dtype_b = outcome.errors.get("B", (None, ""))
    return Reproducer(
        tensor=slices.point,
        script=str(script),
        text=text,
        files=tuple(files),
        shows_fault=outcome.shows_fault,
        inputs=inputs,
        operations_a=len(slices.operations_a),
        operations_b=len(slices.operations_b),
        error_a=error_a,
        error_b=error_b,
        dtype_a=dtype_a,
        dtype_b=dtype_b,
        limit=limit,
        failure=outcome.failure,
    )


def _check_comparable(only_a: Sequence[Value], only_b: Sequence[Value]) -> None:
    """Raises `NotEnoughEvidence` if each side reads a tensor that the other lacks: the script would show the difference
    of the inputs."""
    from trainyard.numerics.reproduce.script_values import is_rearranged

    if only_a and not all(any(is_rearranged(a.tensor, b.tensor) for a in only_a) for b in only_b):
        raise NotEnoughEvidence(
            f"the operations of A and B read different tensors ({len(only_a)} and {len(only_b)}): a script would show "
            "the difference of its inputs.",
            "The difference enters before them, for example in a collective: see the causes of the comparison.",
        )


def _compared(first: Divergence) -> Literal["values", "dtype", "shape"]:
    """What the script compares."""
    return first.kind if first.kind == "dtype" or first.kind == "shape" else "values"


def _capture(
    header: RecordHeader,
    operations: Sequence[TensorKey],
    result: TensorKey,
    folder: Path,
    rank: int,
    say: Callable[[str], object],
) -> CapturedSlice:
    """Repeats the command of a record, and returns what a rank captured."""
    command = list(header.command)
    if not command or any(HIDDEN in word for word in command):
        raise BadInput(
            f"the command of the record cannot be repeated: {shlex.join(command) or 'it is not in the record'}.",
            "Record a command without secrets; pass them in environment variables.",
        )
    say(f"repeats {shlex.join(command)}")
    request = RecordRequest(
        variant="plain",
        steps=(result.step,),
        level="operations",
        capture=CaptureRequest(folder=str(folder), operations=tuple(operations), result=result),
    )
    run_recorded(command, folder, request)
    return read_slice(folder, rank)


def _title(first: Divergence, captured: CapturedSlice) -> list[str]:
    """The lines at the top of the script."""
    point = first.tensor
    where = ".".join(filter(None, (point.module, point.name)))
    subject = point.operation or point.role
    code = point.location_b or point.location_a
    owner, line = f" of {where}" if where else "", f" ({code})" if code else ""
    torch = captured.versions.get("torch", "")
    return [
        f"{subject}{owner} in the {point.phase} pass of step {point.step}{line}: B differs from A.",
        "",
        f"Captured with torch {torch} on {captured.device}. Needs only torch; exits with 1 if the fault shows.",
    ]


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
