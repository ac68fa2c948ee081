"""A rank's batches on its device; the next one is copied while the device computes the current step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trainyard.train.step.profiler_span import span
from trainyard.train.task import Batch


class DeviceBatches:
    """Call with a step's number to get the batch of that step, on the device.

    `prefetch` copies the next batch in a stream of its own. Call it once the work of the current step is launched: it
    waits for the loader, and the device should not wait with it.
    """

    def __init__(
        self, load: Callable[[int], Batch], device: torch.device, prefetches: bool, cuda: Any = torch.cuda
    ) -> None:
        """`load`: returns the batch of a step on the host. `prefetches`: otherwise `prefetch` does nothing. `cuda`: the
        module of the device's streams; tests pass their own."""
        self._load, self._device, self._cuda = load, device, cuda
        self._stream: Any = cuda.Stream(device) if prefetches else None
        self._next: tuple[int, Batch, Any] | None = None
        """Step, batch, and the event after its copy."""

    def __call__(self, step: int) -> Batch:
        """The batch of a step; the work launched later in the current stream waits for its copy."""
        following, self._next = self._next, None
        with span("wait_for_batch"):
            if following is None or following[0] != step:
                return self._load(step).to(self._device)
            _, batch, copied = following
            stream = self._cuda.current_stream(self._device)
            stream.wait_event(copied)
            for part in (*batch.inputs, *batch.targets):
                part.record_stream(stream)  # its memory may be reused only after this stream's work
            return batch

    def prefetch(self, step: int) -> None:
        """Launches the copy of the batch of `step`."""
        if self._stream is None:
            return
        with span("wait_for_batch"):
            on_host = self._load(step)
            with self._cuda.stream(self._stream):
                batch = on_host.to(self._device)
            copied = self._cuda.Event()
            copied.record(self._stream)
            self._next = step, batch, copied
