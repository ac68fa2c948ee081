"""The tensors that enter the operations of a script, and which of them both sides and all ranks share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from trainyard.errors import NotEnoughEvidence
from trainyard.numerics.reproduce.capture_ranks import CapturedRanks
from trainyard.numerics.reproduce.captured_slice import CapturedSlice
from trainyard.numerics.reproduce.operation_source import needed_inputs
from trainyard.numerics.reproduce.script_values import Value, is_rearranged, read_value, shared_names
from trainyard.numerics.reproduce.write_script import Side

_NEXT_STEP = "Find the parts that differ: `trainyard numerics bisect A --out FOLDER --swap outputs --rerun -- COMMAND`."


class OtherWeights(NotEnoughEvidence):
    """The operations of the sides read other values of a parameter. `parameter`: its path."""

    def __init__(self, parameter: str) -> None:
        super().__init__(
            f"the operations of A and B read other values of {parameter}, which earlier steps of the optimizer wrote: "
            "a script would show the difference of its inputs.",
            _NEXT_STEP,
        )
        self.parameter = parameter


class ScriptInputs(NamedTuple):
    """`values`: the tensors of the script. `a`, `b`: rank -> operations, with the names of their inputs in the script.
    `are_shared`: whether a side reads only tensors that the other reads, so that random ones may replace all."""

    values: Sequence[Value]
    a: dict[int, Side]
    b: dict[int, Side]
    are_shared: bool


def match_inputs(a: CapturedRanks, b: CapturedRanks | None, tolerance: float) -> ScriptInputs:
    """The inputs of the operations of both sides. `b`: None if it has the operations of A. `tolerance`: relative
    distance of two tensors that are taken for the same.

    Raises `NotEnoughEvidence` if each side of a rank reads a tensor that the other lacks; `OtherWeights` if these are
    values of the same parameter.
    """
    values: list[Value] = []
    sides_a: dict[int, Side] = {}
    sides_b: dict[int, Side] = {}
    are_shared = True
    for rank, captured_a in a.by_rank.items():
        values_a = _read(a.folder, captured_a)
        captured_b = None if b is None else b.by_rank[rank]
        values_b = [] if b is None or captured_b is None else _read(b.folder, captured_b)
        shared = shared_names(values_a, values_b, tolerance)
        names_b: dict[str, str] = {}
        for value in values_b:
            names_b[value.name] = _add(values, value, names_b.values())
        names_a = {name: names_b[other] for name, other in shared.items()}
        for value in values_a:
            if value.name not in shared:
                names_a[value.name] = _add(values, value, {*names_a.values(), *names_b.values()})
        sides_a[rank] = Side(captured_a, {value.name: names_a[value.name] for value in values_a})
        if captured_b is not None:
            sides_b[rank] = Side(captured_b, names_b)
            are_shared = are_shared and len(shared) == min(len(values_a), len(values_b))
            _check_comparable(
                [value for value in values_a if value.name not in shared],
                [value for value in values_b if value.name not in shared.values()],
            )
    return ScriptInputs(values, sides_a, sides_b, are_shared)


def rounding_limit(values: Sequence[Value]) -> float:
    """A relative error that rounding explains in a few operations on these tensors."""
    formats = {value.tensor.dtype for value in values if value.tensor.is_floating_point() and value.tensor.numel() > 1}
    return 8 * max((torch.finfo(dtype).eps for dtype in formats), default=torch.finfo(torch.float32).eps)


def _read(folder: Path, captured: CapturedSlice) -> list[Value]:
    """The inputs on which the result depends."""
    needed = needed_inputs(captured)
    return [read_value(folder, each, each.name) for each in captured.inputs if each.name in needed]


def _add(values: list[Value], value: Value, used: Collection[str]) -> str:
    """The name of an input in the script; that of an equal one of another rank, if there is one. `used`: the names of
    this rank's other inputs, which operations in place may change apart from each other."""
    tensor = value.tensor
    for known in values:
        has_format = known.tensor.dtype == tensor.dtype and known.tensor.stride() == tensor.stride()
        if known.name not in used and has_format and torch.equal(known.tensor, tensor):
            return known.name
    values.append(Value(f"x{len(values)}", tensor))
    return values[-1].name


def _check_comparable(only_a: Sequence[Value], only_b: Sequence[Value]) -> None:
    """Raises `NotEnoughEvidence` if each side reads a tensor that the other lacks: the script would show the difference
    of the inputs."""
    if only_a and not all(any(is_rearranged(a.tensor, b.tensor) for a in only_a) for b in only_b):
        parameters = {value.parameter for value in only_b}
        for value in only_a:
            if value.parameter and value.parameter in parameters:
                raise OtherWeights(value.parameter)
        raise NotEnoughEvidence(
            f"the operations of A and B read different tensors ({len(only_a)} and {len(only_b)}): a script would show "
            "the difference of its inputs.",
            _NEXT_STEP,
        )
