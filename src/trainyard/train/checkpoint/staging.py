"""Staging: copies of the state in host memory, made while the next step computes.

The copies are launched by the saver's background thread and, on an accelerator, run in a stream of their own. Training
may read the state meanwhile; before it changes the state, it calls `hold_training`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from trainyard.train.checkpoint.save_plan import WritePlan, local_bytes


class CopyStream(Protocol):
    """Where the copies run, and their order with respect to training.

    `follow_training` and `hold_training` are called in the training's thread, the others in the background thread.
    """

    pins_memory: bool
    """Whether copies are asynchronous for the host, which needs a page-locked buffer."""

    def follow_training(self) -> None:
        """Orders later copies after all work that training has launched so far."""
        ...

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Launches the copy of this rank's part of `source` into `target`, its bytes."""
        ...

    def end_copies(self) -> None:
        """Marks the end of the copies launched so far."""
        ...

    def hold_training(self) -> None:
        """Orders the training's later work after the marked end. Does not block the host."""
        ...

    def wait(self) -> None:
        """Blocks the host until the copies before the marked end are done."""
        ...


class HostStream:
    """A `CopyStream` for state in host memory: a copy is done when it returns, so that there is nothing to order."""

    pins_memory = False

    def follow_training(self) -> None: ...

    def copy(self, target: Tensor, source: Tensor) -> None:
        copy_bytes(target, source)

    def end_copies(self) -> None: ...

    def hold_training(self) -> None: ...

    def wait(self) -> None: ...


class DeviceStream:
    """A `CopyStream` for state on an accelerator."""

    pins_memory = True

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        """`cuda`: the module of the device's streams and events; tests pass their own."""
        self._device, self._cuda = device, cuda
        self._stream = cuda.Stream(device)
        self._end = cuda.Event()

    def follow_training(self) -> None:
        self._stream.wait_stream(self._cuda.current_stream(self._device))

    def copy(self, target: Tensor, source: Tensor) -> None:
        with self._cuda.stream(self._stream):
            copy_bytes(target, source)

    def end_copies(self) -> None:
        self._end.record(self._stream)

    def hold_training(self) -> None:
        self._cuda.current_stream(self._device).wait_event(self._end)

    def wait(self) -> None:
        self._end.synchronize()


def copy_bytes(target: Tensor, source: Tensor) -> None:
    """Copies this rank's part of `source` into `target`, its bytes; on a device, in its current stream."""
    target.copy_(local_bytes(source), non_blocking=True)


def copy_stream(device: torch.device) -> CopyStream:
    """The stream for copies from `device`."""
    return DeviceStream(device) if device.type == "cuda" else HostStream()


class Staging:
    """A host buffer with the contents of this rank's file; page-locked if the device is an accelerator.

    Reused between saves: allocating memory costs more than the copy into it.
    """

    def __init__(self, stream: CopyStream) -> None:
        self.stream = stream
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def launch(self, plan: WritePlan, state: Mapping[str, Tensor]) -> None:
        """Launches the copies of this rank's parts of `state` (tensors by name) into the buffer, as `plan` lays them
        out. The state may change after the stream's `hold_training`."""
        if len(self._buffer) < plan.bytes:
            self._buffer = torch.zeros(plan.bytes, dtype=torch.uint8, pin_memory=self.stream.pins_memory)
        for slot in plan.slots:
            self.stream.copy(self._buffer[slot.at : slot.at + slot.bytes], state[slot.name])
        self.stream.end_copies()

    def contents(self, plan: WritePlan) -> memoryview:
        """Waits for the copies and returns the file's bytes, which are valid until the next `launch`."""
        self.stream.wait()
        return self._buffer.numpy().data[: plan.bytes]
