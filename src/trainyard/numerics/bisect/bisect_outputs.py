"""Finds the parts of a training that compute something else than those of another run from the same values."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from trainyard.errors import BadFile, BadInput, NotEnoughEvidence
from trainyard.numerics.bisect.bisect_modules import OUTSIDE_NAME
from trainyard.numerics.bisect.bisection_result import NumericsBisection, Trial
from trainyard.numerics.bisect.configuration import Change
from trainyard.numerics.bisect.replaced_values import ReplacedValues, read_replaced
from trainyard.numerics.bisect.swap import Swap
from trainyard.numerics.bisect.value_index import read_index
from trainyard.numerics.compare.compare_records import MatchedRecords, match_records
from trainyard.numerics.compare.comparison_result import Divergence
from trainyard.numerics.compare.data_flow import DataFlow
from trainyard.numerics.compare.find_divergences import DivergenceFinder
from trainyard.numerics.compare.logical_tensors import LogicalKey
from trainyard.numerics.record.record_command import record_command, repeat_command
from trainyard.numerics.record.record_process import RecordRequest
from trainyard.numerics.record_files import read_header, variants
from trainyard.numerics.record_state import RecordOptions, check_scripts, read_state
from trainyard.numerics.tensor_record import RecordHeader
from trainyard.redact import redact_command

_ORIGIN = "origin.json"
_REPLICAS = 4
"""Jittered runs of A if its record has none."""


def bisect_outputs(
    a: Path, command: Sequence[str], folder: Path, say: Callable[[str], object] = lambda text: None
) -> NumericsBisection:
    """Runs the command of the record in folder `a`, and stores its values: outputs of modules, their gradients, the
    gradients and weights of parameters, and states of the optimizer. Then records that command, with its float64
    reference and replicas, and `command`, and replaces these values of each as soon as they are recorded. Modules and
    updates are so compared from the same inputs, with limits for their own rounding, and each that differs is a cause
    of its own.

    `folder`: values and records are kept there, and are not computed again. Raises `BadInput` for values of another
    record, `NotEnoughEvidence` if no part differs, or if the values do not fit.
    """
    replicas = sum(variant.startswith("replica") for variant in variants(a)) or _REPLICAS
    header = read_header(a, "plain")
    check_scripts(a)
    values, of_a, of_b = folder / "values", folder / "a", folder / "b"
    if not values.is_dir():
        _store(header, values, say)
    elif _read_origin(values) != header:
        raise BadInput(f"{values} has the values of another record than {a}.", "Pass another folder.")
    known = read_state(of_b) if of_b.is_dir() else None
    if known is not None and known.origin.command != tuple(redact_command(command)):
        raise BadInput(
            f"{of_b} is the record of another command: {shlex.join(known.origin.command)}.",
            f"Remove {of_b} to keep the runs of A, or pass another folder.",
        )
    options = RecordOptions(steps=header.steps, replicas=0, swap=Swap(kind="outputs", values=str(values.absolute())))
    record_command(command, of_b, options, lambda text: say(f"B: {text}"))
    _check_replaced(read_replaced(of_b), say)
    record_command(header.command, of_a, options._replace(replicas=replicas), lambda text: say(f"A: {text}"))
    first = _first_divergences(of_a, of_b)
    if not first:
        raise NotEnoughEvidence(
            "no part of B differs from A beyond rounding if it starts from the values of A.",
            f"Record other steps of A, or see how close they are: trainyard numerics compare {of_a} {of_b}.",
        )
    return NumericsBisection(
        changes=tuple(first),
        causes=tuple(first),
        first=next(iter(first.values())),
        trials=tuple(
            Trial(changes=(change,), outcome="different", first=divergence) for change, divergence in first.items()
        ),
        swap="outputs",
    )


def _check_replaced(counts: ReplacedValues, say: Callable[[str], object]) -> None:
    """Raises `NotEnoughEvidence` unless most tensors of B were replaced by values of A."""
    replaced, others = counts.replaced, counts.missing + counts.kept
    say(f"B: {replaced:,} tensors replaced by those of A; {others:,} kept, without counterpart of the same shape")
    if replaced <= others:
        raise NotEnoughEvidence(
            f"of {replaced + others:,} tensors of B, {others:,} have no counterpart of the same shape in A.",
            "Compare trainings with the same modules, ranks and batches.",
        )


def _store(header: RecordHeader, values: Path, say: Callable[[str], object]) -> None:
    """Runs the command of A and stores its values in a folder, which appears when all are there."""
    partial = values.with_name(f".{values.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    request = RecordRequest(
        variant="plain", steps=header.steps, level="modules", command=header.command, store=str(partial.absolute())
    )
    repeat_command(header, partial, request, say)
    for rank in range(header.ranks):
        index = read_index(partial, rank)
        if index.failure or not index.tensors:
            raise NotEnoughEvidence(
                f"the values of A cannot be stored: {index.failure or f'rank {rank} has none'}.",
                "Record fewer steps of A, with --steps 0.",
            )
    (partial / _ORIGIN).write_bytes(msgspec.json.encode(header))
    os.replace(partial, values)


def _read_origin(values: Path) -> RecordHeader:
    """The header of the record whose values are in a folder. Raises `BadFile`."""
    path = values / _ORIGIN
    try:
        return msgspec.json.decode(path.read_bytes(), type=RecordHeader)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise BadFile(f"{path}: {error}.", "Pass another folder.") from error


def _first_divergences(a: Path, b: Path) -> dict[Change, Divergence]:
    """The parts that differ, each with its first divergence, in order of execution."""
    matched = match_records(a, b)
    finder = DivergenceFinder(matched.a.tensors, matched.b.tensors, matched.alignment, matched.judgements)
    first: dict[Change, Divergence] = {}
    flows = {step: DataFlow(matched.a.tensors, step) for step in matched.common}
    for key, divergence in finder.find_all(matched.exact, _following_rows(matched, flows)):
        first.setdefault(_cause(key, flows[key.tensor.step]), divergence)
    return first


def _following_rows(matched: MatchedRecords, flows: Mapping[int, DataFlow]) -> set[int]:
    """The differing rows that follow from others although values are replaced. `flows`: of each step of A.

    Gradients of parameters are reduced over ranks and clipped by code outside of modules before the optimizer reads
    them, and they are replaced. Formats and shapes are not replaced.
    """
    tensors, pairs, judged = matched.a.tensors, matched.alignment.pairs, matched.judgements
    differing = {pair.a: row for row, pair in enumerate(pairs) if judged.status[row] == "different"}
    replaced = {key for key in tensors if not key.tensor.operation}
    following: set[int] = set()
    for key, row in differing.items():
        flow, kind = flows[key.tensor.step], judged.kinds[row]
        if kind in ("dtype", "shape"):
            output = key._replace(tensor=key.tensor._replace(phase="forward", role="output"))
            before = {output, *flow.inputs(key)} - {key}  # the tensor of which this is the gradient, and its inputs
            follows = any(judged.kinds[differing[at]] == kind for at in before if at in differing)
        else:
            follows = not _module(key, flow) and any(
                source in differing and source.tensor.operation and source.tensor.module
                for source in flow.sources(key, replaced)
            )
        if follows:
            following.add(row)
    return following


def _module(key: LogicalKey, flow: DataFlow) -> str | None:
    """The module that computes a tensor; empty for code outside of modules. Gradients and inputs of modules are
    computed by the operation that wrote them. None if it is not known."""
    tensor = key.tensor
    if tensor.role not in ("gradient", "input"):
        return tensor.module
    writer = next((source for source in flow.inputs(key) if source.tensor.operation), None)
    if writer is not None:
        return writer.tensor.module
    if tensor.role == "input":
        return tensor.module.rpartition(".")[0]
    return tensor.module if tensor.name else None


def _cause(key: LogicalKey, flow: DataFlow) -> Change:
    """The part of the training that computes a tensor of A."""
    tensor = key.tensor
    if tensor.role == "data":
        return _part("batches")
    if tensor.role == "weight" and tensor.phase == "forward":
        return _part("initial weights")
    if tensor.role in ("weight", "optimizer_state"):
        return _part("update of the weights by the optimizer")
    module = _module(key, flow)
    if module is None:
        return _part(f"gradient of the output of {tensor.module}")
    return Change(number=0, kind="module", name=module) if module else _part(OUTSIDE_NAME)


def _part(name: str) -> Change:
    return Change(number=0, kind="part", name=name)
