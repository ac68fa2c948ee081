"""A program on two ranks that captures each collective, in place and functional, and writes the slice and its result.

Run with torchrun: `-m tests.numerics.reproduce.capture_collectives FOLDER`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as functional

from tests.numerics.reproduce.recording_nothing import recorder
from trainyard.numerics.reproduce.capture_operations import CaptureOperations
from trainyard.numerics.reproduce.captured_slice import CapturedSlice


def all_reduce(x: Tensor) -> Tensor:
    x = x * 2
    dist.all_reduce(x, dist.ReduceOp.MAX)
    return x


def broadcast(x: Tensor) -> Tensor:
    x = x + 1
    dist.broadcast(x, 1)
    return x


def reduce(x: Tensor) -> Tensor:
    x = x + 1
    dist.reduce(x, 0)
    return x if dist.get_rank() == 0 else x * 0


def all_gather(x: Tensor) -> Tensor:
    parts = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(parts, x * 3)
    return torch.cat(parts)


def all_gather_into_tensor(x: Tensor) -> Tensor:
    output = x.new_empty(2 * len(x))
    dist.all_gather_into_tensor(output, x * 3)
    return output


def all_to_all(x: Tensor) -> Tensor:
    output = torch.empty_like(x)
    dist.all_to_all_single(output, x)
    return output


def unequal_all_to_all(x: Tensor) -> Tensor:
    sent, received = ([1, 3], [1, 2]) if dist.get_rank() == 0 else ([2, 2], [3, 2])
    output = x.new_empty(sum(received))
    dist.all_to_all_single(output, x, received, sent)
    return output


def point_to_point(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    if dist.get_rank() == 0:
        dist.send(x * 5, 1)
    else:
        dist.recv(y, 0)
    return x + y


def functional_all_reduce(x: Tensor) -> Tensor:
    return functional.all_reduce(x, "sum", [0, 1]) + 1


def functional_all_gather(x: Tensor) -> Tensor:
    return functional.all_gather_tensor(x, 0, [0, 1]) * 2


def functional_reduce_scatter(x: Tensor) -> Tensor:
    return functional.reduce_scatter_tensor(x, "sum", 0, [0, 1]) * 2


PROGRAMS: tuple[Callable[[Tensor], Tensor], ...] = (
    all_reduce,
    broadcast,
    reduce,
    all_gather,
    all_gather_into_tensor,
    all_to_all,
    unequal_all_to_all,
    point_to_point,
    functional_all_reduce,
    functional_all_gather,
    functional_reduce_scatter,
)


def main() -> None:
    dist.init_process_group("gloo")
    rank, folder = dist.get_rank(), Path(sys.argv[1])
    for program in PROGRAMS:
        x = torch.arange(4.0) + 10 * rank
        capture = CaptureOperations(recorder(), ())
        with torch.no_grad(), capture:
            capture.note_inputs([x])
            result = program(x)
            if isinstance(result, functional.AsyncCollectiveTensor):
                result = result.trigger_wait()
        capture.note_result(result)
        sliced = CapturedSlice(
            inputs=tuple(described for described, _ in capture.inputs),
            operations=tuple(capture.operations),
            result=capture.result,
            versions={"torch": "2"},
            device="cpu",
        )
        values = {described.name: value.tolist() for described, value in capture.inputs}
        content = {"slice": sliced, "inputs": values, "result": result.tolist()}
        (folder / f"{program.__name__}-{rank}.json").write_bytes(msgspec.json.encode(content))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
