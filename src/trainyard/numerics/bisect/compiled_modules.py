"""Leave modules of a training out of torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, partialmethod
from typing import Any

import torch
from torch import nn

from trainyard.numerics.bisect.swap import OUTSIDE, Swap
from trainyard.numerics.record.module_paths import ModulePaths


class CompiledModules:
    """Context in which torch.compile and `nn.Module.compile` compile only the modules that `swap` keeps, each apart,
    with the options that the script passes. Compiled functions are called as they are unless code outside of modules is
    kept."""

    def __init__(self, swap: Swap, paths: ModulePaths) -> None:
        """`paths`: names the modules when they are called, after they were compiled."""
        self._swap, self._paths = swap, paths

    def __enter__(self) -> CompiledModules:
        self._compile, self._compile_in_place = torch.compile, nn.Module.compile
        torch.compile = self.compile
        nn.Module.compile = partialmethod(_compile_in_place, self)  # pyright: ignore[reportAttributeAccessIssue]
        return self

    def __exit__(self, *_: object) -> None:
        torch.compile, nn.Module.compile = self._compile, self._compile_in_place

    def compile(self, model: Any = None, **options: Any) -> Any:
        """Stands in for `torch.compile`."""
        if model is None:
            return partial(self.compile, **options)
        if not isinstance(model, nn.Module):
            return self._compile(model, **options) if self._swap.keeps(OUTSIDE) else model
        optimized: Any = self._compile(model, **options)
        optimized.forward = self._chosen(model, optimized.forward, model.__call__, options)
        return optimized

    def compile_in_place(self, module: nn.Module, *args: Any, **options: Any) -> None:
        """Stands in for `nn.Module.compile`."""
        compiled: Any = self._compile(module._call_impl, *args, **options)
        module._compiled_call_impl = self._chosen(module, compiled, module._call_impl, options)  # pyright: ignore[reportAttributeAccessIssue]

    def _chosen(
        self, module: nn.Module, compiled: Callable[..., Any], eager: Callable[..., Any], options: dict[str, Any]
    ) -> Callable[..., Any]:
        """A function that calls a module, compiled if it is kept; otherwise only its kept submodules are compiled."""
        is_first = True

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_first
            if self._swap.keeps(self._paths.path(module)):
                return compiled(*args, **kwargs)
            if is_first:
                is_first = False
                self._compile_kept(module, options)
            return eager(*args, **kwargs)

        return call

    def _compile_kept(self, module: nn.Module, options: dict[str, Any]) -> None:
        """Compiles the outermost submodules that are kept; of lists of modules, which are not called, the members."""
        for inner in module.children():
            if self._swap.keeps(self._paths.path(inner)) and type(inner).forward is not nn.Module.forward:
                inner.forward = self._compile(inner.forward, **options)
            else:
                self._compile_kept(inner, options)


def _compile_in_place(module: nn.Module, modules: CompiledModules, *args: Any, **options: Any) -> None:
    modules.compile_in_place(module, *args, **options)
