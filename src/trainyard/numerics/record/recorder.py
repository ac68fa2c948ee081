"""Record the tensors of the steps of a training in this process, without changing what it computes."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal, NamedTuple
from weakref import ref

import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

from trainyard import scaled_steps
from trainyard.errors import BadInput
from trainyard.numerics.record.dtensor_shard import shard_of
from trainyard.numerics.record.module_paths import ModulePaths, NamedParameter, tensors_in
from trainyard.numerics.record.operation_name import operation_name
from trainyard.numerics.record.scaler_steps import ScalerSteps, own_state
from trainyard.numerics.record.summarise import Summary, summarise
from trainyard.numerics.record.tensor_writers import TensorWriters, tensors_among
from trainyard.numerics.record.user_location import user_location
from trainyard.numerics.tensor_record import Level, Phase, Role, TensorKey, TensorRecord
from trainyard.scaled_steps import ScaledStep

_ALLOCATIONS = frozenset(
    (
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
        *("detach", "lift_fresh", "set_", "resize_"),
    )
)
"""Operations without values of their own."""
_COLLECTIVES = frozenset(("c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem", "fsdp"))
"""Namespaces of collectives, and of FSDP2's copies to and from their buffers, which are not initialised at first."""
_UNRECORDED = _COLLECTIVES | {"inductor", "profiler", "prim"}
"""Namespaces of collectives and of the framework's own operations."""
_MASKS = frozenset(("masked_fill", "masked_fill_", "where", "full", "full_like", "tril", "triu", "fill_", "new_full"))
"""Operations that write the negative infinities of a mask."""


class Recorder:
    """Records steps of the training in this process. Use as a context manager around the training.

    A step ends when the first optimizer that stepped has stepped again; a step that the scaler of the loss skips counts
    too. Operations of compiled regions, and forward passes repeated in the backward pass, are not recorded, nor are
    operations that initialise parameters in place: the weights of a model are recorded before its first call. An error
    of the recorder is printed and ends the recording; the training continues.
    """

    def __init__(
        self,
        write: Callable[[Sequence[TensorRecord]], object],
        steps: Collection[int],
        level: Level = "operations",
        most_elements: int = 0,
    ) -> None:
        """`write`: called with the records of each recorded step. `steps`: to be recorded, from 0. `most_elements`:
        tensors with more are not recorded, except gradients, weights and states; 0 for no limit. The attribute `paths`
        names the module that is running."""
        self._write, self._steps, self._level, self._most_elements = write, frozenset(steps), level, most_elements
        self._process = os.getpid()
        self.paths = ModulePaths(self._at_boundary, self._at_model)
        self._scaler_steps = ScalerSteps(self._after_skipped)
        self._records: list[TensorRecord] = []
        self._calls: Counter[tuple[Phase, str, str, Role, str]] = Counter()
        self._step = 0
        self._optimizer: int | None = None
        """Identity of the optimizer whose steps end training steps."""
        self._trains = False
        """Whether this process has called a module or an optimizer."""
        self._is_busy = False
        """Whether operations are the recorder's own, or an optimizer's."""
        self._last: _LastSummary | None = None
        self.device_types: set[str] = set()
        """Types of the devices of the recorded tensors, such as `cpu`."""
        self._writers = TensorWriters()
        self._initialised: Any = WeakTensorKeyDictionary()
        """Parameter -> line of code that wrote its initial values in place."""
        self._stack = ExitStack()

    def __enter__(self) -> Recorder:
        self._stack.enter_context(self.paths)
        self._stack.enter_context(self._scaler_steps)
        scaled_steps.observers.append(self._at_own_step)
        self._stack.callback(scaled_steps.observers.remove, self._at_own_step)
        for handle in (
            register_optimizer_step_pre_hook(self._before_optimizer),
            register_optimizer_step_post_hook(self._after_optimizer),
        ):
            self._stack.callback(handle.remove)
        if self._level == "operations":
            self._stack.enter_context(self._operation_mode())
        self._begin_step()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.flush()

    def _operation_mode(self) -> TorchDispatchMode:
        """The mode that sees the operations."""
        return _Operations(self._at_operation)

    def next_key(self, func: Any, args: Sequence[Any]) -> TensorKey | None:
        """The key of the first result of an operation that is about to run; None if it will not be recorded."""
        if not self.is_recording or self.paths.recomputes or func.is_view or _is_left_out(func):
            return None
        if self._initialises(func, args):
            return None
        name = operation_name(func)
        phase, module = _present_phase(), self.paths.current
        call = self._calls[phase, module, name, "output", "0"]
        return TensorKey(self._step, phase, module[:1000], name[:1000], "output", "", call, 0)

    def flush(self) -> None:
        """Writes the records of the present step, if this process trains."""
        records, self._records = self._records, []
        if not records or not self._trains or os.getpid() != self._process:
            return
        try:
            self._write(records)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Ends the recording."""
        self._steps = frozenset[int]()
        print(f"trainyard: tensors are no longer recorded: {error}", file=sys.stderr)  # noqa: T201

    @property
    def is_recording(self) -> bool:
        """Whether the present step is recorded, and by this process: data loaders are forks of it."""
        return self._step in self._steps and not self._is_busy and os.getpid() == self._process

    # ---- events ----

    def _at_operation(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Records the outputs of an ATen operation."""
        if func.namespace in _COLLECTIVES or func._schema.is_mutable:
            self._last = None  # a version is counted after the operation, and by collectives never
        if not self.is_recording or func.is_view:
            return
        if self._initialises(func, args):
            self._initialised[args[0]] = user_location(sys._getframe(1))
            return
        inputs, outputs = self._writers.of(tensors_among(args, kwargs)), tensors_in(result)
        if self.paths.recomputes or _is_left_out(func):
            for tensor in outputs:
                self._writers.write(tensor, inputs)
            return
        name = operation_name(func)
        masks = func.overloadpacket.__name__ in _MASKS
        for output, tensor in enumerate(outputs):
            self._record(tensor, "output", operation=name, output=output, masks=masks, inputs=inputs)

    def _initialises(self, func: Any, args: Sequence[Any]) -> bool:
        """Whether an operation writes to a parameter before this process trains."""
        return not self._trains and bool(args) and isinstance(args[0], nn.Parameter) and is_in_place(func)

    def _at_model(self, parameters: Iterable[NamedParameter]) -> None:
        """Records the weights that a model begins with. Operations do not list them as their inputs, in this step as in
        the others."""
        self._note_training()
        if not self.is_recording or self.paths.recomputes:
            return
        for tensor, module, name in parameters:
            if not is_lazy(tensor):
                location = self._initialised.get(tensor, "")
                self._record(
                    tensor, "weight", module=module, name=name, phase="forward", call=0, inputs=(), location=location
                )
                self._writers.write(tensor, ())

    def _at_boundary(
        self, path: str, call: int, role: Literal["data", "input", "output"], tensors: list[Tensor]
    ) -> None:
        """Records the outputs of a module, the inputs of an outermost one, and later the gradients of outputs."""
        self._note_training()
        if not self.is_recording or self._level == "steps" or self.paths.recomputes or role == "input":
            return
        for output, tensor in enumerate(tensors):
            self._record(tensor, role, module=path, call=call, output=output)
            if role == "output" and tensor.requires_grad and torch.is_grad_enabled():
                tensor.register_hook(self._gradient_hook(path, call, output))

    def _note_training(self) -> None:
        """Notes that this process trains. A fork that does is a rank, and records from here on."""
        if os.getpid() != self._process:
            self._process, self._records = os.getpid(), []
        if not self._trains:
            self._trains = True
            self._record_random_state()

    def _gradient_hook(self, path: str, call: int, output: int) -> Callable[[Tensor | None], Tensor | None]:
        step = self._step

        def hook(gradient: Tensor | None) -> Tensor | None:
            # compiled regions call hooks with None for outputs without a gradient
            if gradient is None or not self.is_recording or step != self._step:
                return None
            return self._at_output_gradient(gradient, path, call, output)

        return hook

    def _at_output_gradient(self, gradient: Tensor, path: str, call: int, output: int) -> Tensor | None:
        """Records the gradient of an output of a module. Returns a gradient that takes its place, or None."""
        self._record(gradient, "gradient", module=path, call=call, output=output)

    def _before_optimizer(self, optimizer: Optimizer, *_: object) -> None:
        """Records the gradients that the optimizer reads, and the scale of the loss."""
        self._note_training()
        self._scaler_steps.note_step()
        if self.is_recording:
            divisor = self._scaler_steps.divisor(optimizer)
            for owner, name, parameter in self._parameters_of(optimizer):
                if parameter.grad is not None:
                    self._record_gradient(parameter.grad, owner, name, divisor)
            for name, value in self._scaler_steps.state(optimizer):
                self._record(value, "scalar", module="", name=name, phase="optimizer")
        self._is_busy = True

    def _record_gradient(self, gradient: Tensor, module: str, name: str, divisor: float) -> None:
        """Records the gradient of a parameter, divided by the scale that it still has."""
        inputs = self._writers.of([gradient])
        if divisor != 1:
            with torch.no_grad(), _disable_current_modes():
                gradient = gradient / divisor
        self._record(gradient, "gradient", module=module, name=name, phase="optimizer", call=0, inputs=inputs)

    def _after_optimizer(self, optimizer: Optimizer, *_: object) -> None:
        """Records weights and states after the update, and ends the step."""
        self._is_busy = False
        if self.is_recording:
            for owner, name, parameter in self._parameters_of(optimizer):
                self._record(parameter, "weight", module=owner, name=name, phase="optimizer", call=0)
                for key, value in optimizer.state.get(parameter, {}).items():
                    if isinstance(value, Tensor):
                        state = f"{name}.{key}"
                        self._record(value, "optimizer_state", module=owner, name=state, phase="optimizer", call=0)
        if self._optimizer is None:
            self._optimizer = id(optimizer)
        if id(optimizer) == self._optimizer:
            self._end_step()

    def _end_step(self) -> None:
        self.flush()
        self._step += 1
        self._begin_step()

    def _after_skipped(self, optimizer: Optimizer) -> None:
        """Records a step that the scaler of the loss skips, whose weights stay as they are."""
        self._before_optimizer(optimizer)
        self._after_optimizer(optimizer)

    def _at_own_step(self, step: ScaledStep) -> None:
        """Records the scale of the loss of our own training, and ends a step that it skips."""
        self._note_training()
        if self.is_recording:
            for name, value in own_state(step):
                self._record(value, "scalar", module="", name=name, phase="optimizer")
        if step.is_skipped:
            self._end_step()

    def _begin_step(self) -> None:
        self._calls.clear()
        self._writers.clear()
        self.paths.begin_step()
        if self._trains:  # before, the script has not seeded its generators
            self._record_random_state()

    def _record_random_state(self) -> None:
        if self.is_recording:
            self._record(torch.get_rng_state(), "random_state", module="", call=0, phase="forward")

    def _parameters_of(self, optimizer: Optimizer) -> Iterator[tuple[str, str, Tensor]]:
        """Module, name and tensor of each parameter. One that no called module owns is named by its position."""
        position = 0
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                owner, name = self.paths.parameter(parameter)
                yield owner, name or f"parameter {position}", parameter
                position += 1

    # ---- records ----

    def _record(
        self,
        tensor: Tensor,
        role: Role,
        *,
        module: str | None = None,
        operation: str = "",
        name: str = "",
        call: int | None = None,
        output: int = 0,
        phase: Phase | None = None,
        masks: bool = False,
        inputs: tuple[int, ...] | None = None,
        location: str | None = None,
    ) -> TensorRecord | None:
        """Adds the record of a tensor and returns it; None if the tensor is not recorded. `module`, `call`, `phase`,
        `location`: None for the present ones; `inputs`: None for the records that wrote the tensor."""
        if _is_symbolic(tensor):
            return None
        inputs = self._writers.of([tensor]) if inputs is None else inputs
        if operation and 0 < self._most_elements < tensor.numel():
            self._writers.write(tensor, inputs)
            return None
        if location is None:
            has_location = phase != "optimizer" and _present_phase() == "forward"
            location = user_location(sys._getframe(1)) if has_location else ""
        phase = phase or _present_phase()
        module = self.paths.current if module is None else module
        if call is None:
            counted = (phase, module, operation, role, f"{name}{output}")
            call = self._calls[counted]
            self._calls[counted] += 1
        index = len(self._records)
        self.device_types.add(tensor.device.type)
        self._writers.write(tensor, (index,))
        record = TensorRecord(
            index=index,
            step=self._step,
            phase=phase,
            role=role,
            module=module[:1000],
            operation=operation[:1000],
            name=name[:1000],
            call=call,
            output=output,
            inputs=inputs,
            location=location,
            **_summary_fields(self._summarise(tensor), masks),
        )
        self._records.append(record)
        return record

    def _summarise(self, tensor: Tensor) -> Summary:
        """The summary of a tensor. The output of a module is often that of its last operation, which is known."""
        if self._last is not None and self._last.is_of(tensor):
            return self._last.summary
        self._is_busy = True
        try:
            summary = _summarise_apart(tensor)
        except Exception as error:
            self._fail(error)
            summary = Summary(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        finally:
            self._is_busy = False
        self._last = None if tensor.is_inference() else _LastSummary(ref(tensor), tensor._version, summary)
        return summary


class _LastSummary(NamedTuple):
    """The summary of a tensor at a version of it, which operations in place count."""

    tensor: ref[Tensor]
    version: int
    summary: Summary

    def is_of(self, tensor: Tensor) -> bool:
        """Whether a tensor is this one, unchanged."""
        return self.tensor() is tensor and tensor._version == self.version


def _summary_fields(summary: Summary, masks: bool) -> dict[str, Any]:
    """The fields of a record that depend on the tensor's values. `masks`: a mask may have written its infinities."""
    fields = summary._asdict()
    if masks and summary.nonfinite is not None and summary.nonfinite.negative:
        fields["nonfinite"] = replace(summary.nonfinite, masked=True)
    return fields


def _summarise_apart(tensor: Tensor) -> Summary:
    """The summary of a tensor, by operations that no mode sees: they are neither recorded nor widened."""
    if type(tensor) in (Tensor, nn.Parameter):
        with torch._C._DisableTorchDispatch():  # takes a tenth of the time of leaving the modes
            return summarise(tensor)
    with torch.no_grad(), _disable_current_modes():
        return _summarise_part(tensor) if isinstance(tensor, DTensor) else summarise(tensor)


def _summarise_part(tensor: DTensor) -> Summary:
    """The summary of this rank's part; without values if the parts of the ranks do not add up to the tensor."""
    try:
        part = shard_of(tensor)
    except BadInput:
        return Summary(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
    return summarise(part.tensor, shard=part.shard, shape=part.shape)


class _Operations(TorchDispatchMode):
    """Calls `record` with each ATen operation outside of compiled regions, its arguments and its result."""

    def __init__(self, record: Callable[[Any, Sequence[Any], Mapping[str, Any], Any], None]) -> None:
        super().__init__()
        self._record = record

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self._record(func, args, kwargs, result)
        return result


def _present_phase() -> Phase:
    return "backward" if torch._C._current_graph_task_id() != -1 else "forward"


def is_in_place(func: Any) -> bool:
    """Whether an operation writes to its first argument."""
    alias = func._schema.arguments[0].alias_info if func._schema.arguments else None
    return alias is not None and alias.is_write


def _is_left_out(func: Any) -> bool:
    """Whether an operation has no values of its own: allocations, collectives (whose results may still be on
    their way; waiting for one is recorded), and kernels that compiled code calls."""
    name = func.overloadpacket.__name__
    if func.namespace in _UNRECORDED and name != "wait_tensor":
        return True
    return name in _ALLOCATIONS or func._overloadname.endswith("out")


def _is_symbolic(tensor: Tensor) -> bool:
    """Whether a tensor has no values: while a compiler traces the script, or on the device `meta`."""
    return tensor.is_meta or isinstance(tensor, (FakeTensor, FunctionalTensor)) or tensor.layout != torch.strided
