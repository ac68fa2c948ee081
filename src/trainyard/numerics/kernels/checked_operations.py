"""Check operations against float64 while a program runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.numerics.kernels.check_operation import (
    NotChecked,
    OperationCheck,
    OperationInputs,
    check_operation,
    copy_inputs,
)
from trainyard.numerics.kernels.unchecked_reason import FAILED, LARGE, MEMORY, unchecked_reason
from trainyard.numerics.record.module_paths import tensors_in
from trainyard.numerics.record.tensor_writers import tensors_among


class CheckedOperations(TorchDispatchMode):
    """Context in which operations of eager code are checked. The results of the program are unchanged."""

    def __init__(
        self,
        choose: Callable[[Any, str], str | None],
        note_check: Callable[[Any, OperationCheck], object],
        note_unchecked: Callable[[Any, str], object],
        most_elements: int,
    ) -> None:
        """`choose`: called with an operation that is about to run, and the reason for which it cannot be checked, if
        any; returns the reason for which it is not checked, an empty text to check it, or None to neither check nor
        count it. `note_check`: called with each checked operation; `note_unchecked`: with each other operation and its
        reason. `most_elements`: operations on larger tensors are not checked."""
        super().__init__()
        self._choose, self._note_check, self._note_unchecked = choose, note_check, note_unchecked
        self._most_elements = most_elements

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        inputs = self._inputs(func, args, kwargs)
        result = func(*args, **kwargs)
        if inputs is not None:
            self._check(inputs, args, kwargs, result)
        return result

    def _inputs(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> OperationInputs | None:
        """The inputs of a call that is to be checked; None for others."""
        reason = unchecked_reason(func, args, kwargs)
        if not reason and self._is_large(tensors_among(args, kwargs)):
            reason = LARGE
        chosen = self._choose(func, reason)
        if chosen is None:
            return None
        try:
            if not chosen:
                return copy_inputs(func, args, kwargs)
        except torch.OutOfMemoryError:
            chosen = MEMORY
        except Exception:  # an error here must not end the program
            chosen = FAILED
        self._note_unchecked(func, chosen)
        return None

    def _check(self, inputs: OperationInputs, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        try:
            if self._is_large(tensors_in(result)):
                raise NotChecked(LARGE)
            check = check_operation(inputs, args, kwargs, result)
        except NotChecked as error:
            self._note_unchecked(inputs.func, str(error))
        except torch.OutOfMemoryError:
            self._note_unchecked(inputs.func, MEMORY)
        except Exception:
            self._note_unchecked(inputs.func, FAILED)
        else:
            self._note_check(inputs.func, check)

    def _is_large(self, tensors: Iterable[Tensor]) -> bool:
        return any(tensor.numel() > self._most_elements for tensor in tensors)
