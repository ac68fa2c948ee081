"""Annotates the forward pass of every `nn.Module` with the module's path while a window is profiled.

The annotation `nn.Module: GPT2LMHeadModel.transformer.h.0.mlp` has the prefix that a profile with `with_stack=True`
gives to modules, so that ops, kernels and idle time are attributed to modules, whatever wrapper calls the model.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from trainyard.recorded_stacks import MODULE_PREFIX


class ModuleMarks:
    """Global forward hooks between `start` and `stop`. An error in a hook ends the annotation, not the program."""

    def __init__(self, annotate: Callable[[str], Any]) -> None:
        """`annotate`: makes a context manager that writes a span with a name into the profile, as
        `torch.profiler.record_function` does."""
        self._annotate = annotate
        self._path_of: dict[int, str] = {}
        """id of a module -> its path from an outermost module."""
        self._outermost: list[object] = []
        """Modules with known paths, kept alive so that no other module gets their id."""
        self._open = threading.local()
        """`stack`: the open annotations of each thread, the innermost last; None for a call that is not annotated."""
        self._handles: list[Any] = []

    def start(self) -> None:
        """Register the hooks, unless torch.compile has compiled something: compiled code depends on whether there are
        hooks, and would be compiled again."""
        if _has_compiled():
            return
        from torch.nn.modules import module

        self._handles = [
            module.register_module_forward_pre_hook(self._enter),
            module.register_module_forward_hook(self._exit, always_call=True),
        ]

    def stop(self) -> None:
        """Remove the hooks."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        self._path_of.clear()
        self._outermost.clear()

    def _stack(self) -> list[Any]:
        if not hasattr(self._open, "stack"):
            self._open.stack = []
        return self._open.stack

    def _enter(self, module: Any, _: object) -> None:
        """Open the annotation of a module's forward pass."""
        stack, annotation = self._stack(), None
        try:
            if id(module) not in self._path_of:
                self._name_modules(module)
            annotation = self._annotate(MODULE_PREFIX + self._path_of[id(module)])
            annotation.__enter__()
        except Exception:  # an error of ours must not end the program
            annotation = None
        stack.append(annotation)

    def _exit(self, *_: object) -> None:
        """Close the annotation of the innermost open forward pass."""
        stack = self._stack()
        annotation = stack.pop() if stack else None
        if annotation is not None:
            annotation.__exit__(None, None, None)

    def _name_modules(self, outermost: Any) -> None:
        """Store the paths of a module that no known module contains, and of all modules in it."""
        root = type(outermost).__name__
        self._outermost.append(outermost)
        for name, module in outermost.named_modules():
            self._path_of.setdefault(id(module), f"{root}.{name}" if name else root)


def _has_compiled() -> bool:
    """Whether torch.compile has compiled a function in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters = getattr(dynamo, "counters", None)
    return bool(counters and counters.get("frames"))
