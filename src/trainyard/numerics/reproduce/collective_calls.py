"""Calls of torch.distributed that are equivalent to captured collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from trainyard.errors import NotEnoughEvidence
from trainyard.numerics.reproduce.captured_slice import CapturedOperation

_NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


def is_collective(operation: str) -> bool:
    """Whether an operation, such as `c10d.allreduce_.default`, needs other ranks."""
    namespace, name, _ = operation.split(".")
    return namespace in _NAMESPACES and name != "wait_tensor"


def ranks_of(operations: Sequence[CapturedOperation]) -> Iterator[tuple[int, ...]]:
    """The ranks of the process group of each collective."""
    for operation in operations:
        for value in operation.arguments if is_collective(operation.operation) else ():
            if _is_group(value):
                yield tuple(value["group"])


def collective_calls(operation: str, arguments: Sequence[Any], source: Callable[[Any], str]) -> list[str]:
    """The statements of a collective of the namespace `c10d`, which writes to its arguments. `source`: gives an
    argument as source. Raises `NotEnoughEvidence` for one without a counterpart."""
    texts = [source(argument) for argument in arguments]

    def items(position: int) -> list[str]:
        """The elements of a list of tensors."""
        return [source(each) for each in arguments[position]]

    name = operation.split(".")[1]
    match name:
        case "allreduce_" | "allreduce_coalesced_":
            return [f"dist.all_reduce({each}, {texts[2]}, {texts[1]})" for each in items(0)]
        case "reduce_":
            options = f"op={texts[2]}, group={texts[1]}, group_dst={texts[3]}"
            return [f"dist.reduce({each}, {options})" for each in items(0)]
        case "broadcast_":
            return [f"dist.broadcast({each}, group={texts[1]}, group_src={texts[2]})" for each in items(0)]
        case "_allgather_base_":
            return [f"dist.all_gather_into_tensor({texts[0]}, {texts[1]}, {texts[2]})"]
        case "allgather_into_tensor_coalesced_":
            pairs = zip(items(0), items(1))
            return [f"dist.all_gather_into_tensor({output}, {each}, {texts[2]})" for output, each in pairs]
        case "allgather_":
            pairs = zip(items(0), items(1))
            return [f"dist.all_gather({outputs}, {each}, {texts[2]})" for outputs, each in pairs]
        case "_reduce_scatter_base_":
            return [f"dist.reduce_scatter_tensor({texts[0]}, {texts[1]}, {texts[3]}, {texts[2]})"]
        case "reduce_scatter_tensor_coalesced_":
            pairs = zip(items(0), items(1))
            options = f"{texts[3]}, {texts[2]}"
            return [f"dist.reduce_scatter_tensor({output}, {each}, {options})" for output, each in pairs]
        case "reduce_scatter_":
            pairs = zip(items(0), items(1))
            return [f"dist.reduce_scatter({output}, {each}, {texts[3]}, {texts[2]})" for output, each in pairs]
        case "alltoall_base_":
            splits = f"{texts[3]} or None, {texts[4]} or None"
            return [f"dist.all_to_all_single({texts[0]}, {texts[1]}, {splits}, {texts[2]})"]
        case "alltoall_":
            return [f"dist.all_to_all({texts[0]}, {texts[1]}, {texts[2]})"]
        case "send":
            return [f"dist.send({each}, group={texts[1]}, tag={texts[3]}, group_dst={texts[2]})" for each in items(0)]
        case "recv_":
            return [f"dist.recv({each}, group={texts[1]}, tag={texts[3]}, group_src={texts[2]})" for each in items(0)]
        case "barrier" | "monitored_barrier_":
            return []
        case _:
            raise NotEnoughEvidence(
                f"the collective {name} has no counterpart in a script.", "The comparison names the operation."
            )


def functional_call(operation: str, arguments: Sequence[Any], source: Callable[[Any], str]) -> str:
    """The call of a functional collective, whose result is waited for: tensors in flight wait when they are used."""
    texts = [f"{source(each)}.group_name" if _is_group(each) else source(each) for each in arguments]
    return f"torch.ops._c10d_functional.wait_tensor(torch.ops.{operation}({', '.join(texts)}))"


def _is_group(argument: Any) -> bool:
    """Whether an encoded argument is a process group."""
    return isinstance(argument, dict) and "group" in argument
