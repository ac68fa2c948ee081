"""Record a Python process of the user's script. Called by our sitecustomize; environment variables hold the request.

torch is not imported before the script imports it.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Collection
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from trainyard.inject.after_import import AfterImport
from trainyard.numerics.bisect.swap import Swap
from trainyard.numerics.kernels.check_result import KernelCheckRequest
from trainyard.numerics.reproduce.captured_slice import CaptureRequest
from trainyard.numerics.tensor_record import Level, RecordHeader

FOLDER, REQUEST = "TRAINYARD_NUMERICS_FOLDER", "TRAINYARD_NUMERICS_REQUEST"
"""Environment variables: the folder of the record; a `RecordRequest` as JSON."""
ENVIRONMENT = (
    *("CUBLAS_WORKSPACE_CONFIG", "HIPBLASLT_TENSILE_LIBPATH", "NVIDIA_TF32_OVERRIDE", "NCCL_ALGO", "NCCL_PROTO"),
    *("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "ONEDNN_MAX_CPU_ISA", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "MKL_CBWR"),
    "PYTHONHASHSEED",
)
"""Variables that change results."""


class RecordRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to record of a process; see `RecordHeader` and `Recorder`."""

    variant: str
    steps: tuple[int, ...]
    level: Level
    most_elements: int = 0
    jitter_ulp: float = 0.0
    seed: int = 0
    command: tuple[str, ...] = ()
    capture: CaptureRequest | None = None
    """Captures operations instead of recording."""
    check: KernelCheckRequest | None = None
    """Checks operations against float64 instead of recording."""
    swap: Swap | None = None
    """Computes modules in another way than the script does."""
    store: str = ""
    """Folder in which the values of tensors are stored, instead of recording."""


def record() -> None:
    """Records this process once it has imported torch, as the environment variables request."""
    request = msgspec.json.decode(os.environ[REQUEST], type=RecordRequest)
    process = _Process(Path(os.environ[FOLDER]), request)
    sys.meta_path.insert(0, AfterImport("torch", process.begin))


class _Process:
    """The recorded process."""

    def __init__(self, folder: Path, request: RecordRequest) -> None:
        self._folder, self._request = folder, request
        self._stack = ExitStack()
        self._recorder: Any = None
        self._writer: Any = None
        self._narrow: set[str] = set()
        """Operations that the float64 variant could not compute in float64."""

    def begin(self, torch: ModuleType) -> None:
        """Starts to record. Modes that change what is computed are entered before the recorder, which sees their
        results."""
        other = self._other_recorder()
        if other is not None:
            self._stack.enter_context(other)
            atexit.register(self._end)
            return
        from trainyard.numerics.record.float64_mode import Float64
        from trainyard.numerics.record.recorder import Recorder
        from trainyard.numerics.ulp_jitter import UlpJitter

        request = self._request
        if request.variant == "float64":
            self._narrow = self._stack.enter_context(Float64()).narrow
        elif request.jitter_ulp:
            self._stack.enter_context(UlpJitter(request.seed, request.jitter_ulp, all_operations=True))
        swap, steps, level, limit = request.swap, request.steps, request.level, request.most_elements
        if swap is not None and swap.kind == "outputs":
            from trainyard.numerics.bisect.replace_values import ReplacingRecorder

            recorder = ReplacingRecorder(Path(swap.values), self._folder, self._write, steps, level, limit)
        else:
            recorder = Recorder(self._write, steps, level, limit)
            if swap is not None:
                from trainyard.numerics.bisect.swapped_modules import swapped_modules

                self._stack.enter_context(swapped_modules(swap, recorder.paths, self._narrow))
        self._recorder = self._stack.enter_context(recorder)
        atexit.register(self._end)

    def _other_recorder(self) -> AbstractContextManager[Any] | None:
        """The recorder of a request for something else than a record; None for a record."""
        request = self._request
        if request.capture is not None:
            from trainyard.numerics.reproduce.capture_recorder import CaptureRecorder

            return CaptureRecorder(request.capture)
        if request.store:
            from trainyard.numerics.bisect.store_values import ValueRecorder

            return ValueRecorder(Path(request.store), request.steps)
        if request.check is not None:
            from trainyard.numerics.kernels.check_recorder import CheckRecorder

            return CheckRecorder(self._folder, request.steps, request.check)
        return None

    def _write(self, tensors: Any) -> None:
        from trainyard.numerics.record_files import RecordWriter

        if self._writer is None:
            self._writer = RecordWriter(self._folder, _header(self._request, self._recorder.device_types))
        for tensor in tensors:
            self._writer.write(tensor)
        self._writer.flush()

    def _end(self) -> None:
        self._stack.close()
        if self._writer is not None:
            self._writer.close()
        if self._narrow:
            print(f"trainyard: without a kernel for float64: {', '.join(sorted(self._narrow))}", file=sys.stderr)  # noqa: T201


def _header(request: RecordRequest, device_types: Collection[str]) -> RecordHeader:
    """How this process is recorded. `device_types`: of the devices that hold its tensors."""
    import torch

    from trainyard.numerics.record.process_rank import process_rank, process_ranks
    from trainyard.numerics.record_files import FORMAT

    return RecordHeader(
        format=FORMAT,
        variant=request.variant,
        rank=process_rank(),
        ranks=process_ranks(),
        level=request.level,
        steps=request.steps,
        command=request.command,
        device=_device_name(device_types),
        seed=request.seed,
        jitter_ulp=request.jitter_ulp,
        deterministic=torch.are_deterministic_algorithms_enabled(),
        replaced=request.swap is not None and request.swap.kind == "outputs",
        versions={"torch": str(torch.__version__), "python": sys.version.split()[0]},
        environment={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
    )


def _device_name(device_types: Collection[str]) -> str:
    """The name of the accelerator that holds tensors; `cpu` if none does."""
    import torch

    accelerators = sorted(set(device_types) - {"cpu"})
    if not accelerators:
        return "cpu"
    name_of = getattr(torch.get_device_module(accelerators[0]), "get_device_name", None)
    return name_of() if name_of is not None else accelerators[0]
