"""The module that is running, forward and backward, by global hooks of torch.

A path begins with the class of the outermost module that was called, followed by the names of its submodules:
`Decoder.layers.3.attention`. Wrappers that do not compute (DistributedDataParallel, torch.compile, activation
checkpointing, FSDP) are left out, so that a wrapped and a plain model have the same paths.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partialmethod
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

_WRAPPERS = frozenset(
    ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "CheckpointWrapper", "OptimizedModule")
)
_WRAPPED = re.compile(r"(^|\.)(module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?=\.|$)")
_FSDP_CLASS = "FSDP"
"""Prefix of the class names that `fully_shard` gives to modules."""
_KEY = "trainyard_module"
"""Key in the metadata of an autograd node: the path of the module whose forward pass created it."""

Boundary = Callable[[str, int, Literal["data", "input", "output"], list[Tensor]], None]
"""Called with path, call index, role and tensors; `data`: inputs of an outermost module, `input`: those of others."""


class NamedParameter(NamedTuple):
    """A parameter with the path of its module and its name there."""

    tensor: Tensor
    module: str
    name: str


class ModulePaths:
    """Follows the forward passes of all modules of this process. Use as a context manager.

    Modules that torch.compile compiles are not entered: what they compute belongs to the outermost of them.
    """

    def __init__(self, on_boundary: Boundary, on_parameters: Callable[[list[NamedParameter]], None]) -> None:
        """`on_boundary`: called with the inputs and outputs of all modules; `on_parameters`: with the parameters of an
        outermost module, before its first call."""
        self._on_boundary, self._on_parameters = on_boundary, on_parameters
        self._stack: list[tuple[str, int]] = []
        """Path and call index of the modules that are running, the innermost last."""
        self._paths: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        self._roots: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._parameters: Any = WeakTensorKeyDictionary()
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> ModulePaths:
        self._handles = [
            nn.modules.module.register_module_forward_pre_hook(self._enter),
            nn.modules.module.register_module_forward_hook(self._leave, always_call=True),
        ]
        self._compile = nn.Module.compile
        nn.Module.compile = partialmethod(_compile_followed, self)  # pyright: ignore[reportAttributeAccessIssue]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        nn.Module.compile = self._compile

    def compile(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        """Compiles a module in place, as `nn.Module.compile` does. Hooks of modules are compiled away in it, so that
        calls are followed around the compiled function."""
        self._compile(module, *args, **kwargs)
        compiled: Callable[..., Any] = module._compiled_call_impl  # pyright: ignore[reportAssignmentType]

        def call(*args: Any, **kwargs: Any) -> Any:
            self._enter(module, args)
            output = compiled(*args, **kwargs)
            self._leave(module, args, output)
            return output

        module._compiled_call_impl = call

    def begin_step(self) -> None:
        """Counts the calls of modules from 0 again."""
        self._calls.clear()
        self._stack.clear()

    @property
    def current(self) -> str:
        """Path of the module whose forward or backward pass is running; empty outside of modules."""
        if torch._C._current_graph_task_id() != -1:
            node: Any = torch._C._current_autograd_node()
            return node.metadata.get(_KEY, "") if node is not None else ""
        return self._stack[-1][0] if self._stack else ""

    @property
    def recomputes(self) -> bool:
        """Whether a forward pass is running inside a backward pass, as activation checkpointing does."""
        return bool(self._stack) and torch._C._current_graph_task_id() != -1

    def path(self, module: nn.Module) -> str:
        """Path of a module; empty before it, or a module that contains it, was called."""
        return self._paths.get(module, "")

    def parameter(self, tensor: Tensor) -> tuple[str, str]:
        """Path of the module that owns a parameter, and its name there; empty strings if no called module owns it."""
        return self._parameters.get(tensor, ("", ""))

    def find_parameter(self, module: str, name: str) -> Tensor | None:
        """The parameter of a called module; None if there is none."""
        return next((tensor for tensor, known in self._parameters.items() if known == (module, name)), None)

    def parameters(self) -> list[Tensor]:
        """The parameters of all called modules."""
        return list(self._parameters.keys())

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        path = self._paths.get(module)
        if path is None:
            self._name(module)
            path = self._paths[module]
        tensors = tensors_in(inputs)
        self._assign_nodes(tensors, self._stack[-1][0] if self._stack else "")
        call = self._calls[path]
        self._calls[path] += 1
        role = "input" if self._stack else "data"
        self._stack.append((path, call))
        self._on_boundary(path, call, role, tensors)

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or not self._stack:
            return
        path, call = self._stack[-1]
        if self._paths.get(module) != path:  # an inner module failed
            return
        tensors = tensors_in(output)
        self._assign_nodes(tensors, path)
        self._on_boundary(path, call, "output", tensors)
        self._stack.pop()

    def _name(self, root: nn.Module) -> None:
        """Names a module that was called outside of all named modules, its submodules and parameters."""
        inner = root
        while type(inner).__name__ in _WRAPPERS and (children := list(inner.children())):
            inner = children[0]
        base = type(inner).__name__.removeprefix(_FSDP_CLASS)
        self._roots[base] += 1
        prefix = base if self._roots[base] == 1 else f"{base}#{self._roots[base]}"
        for name, module in root.named_modules():
            within = _WRAPPED.sub("", f".{name}" if name else "")
            self._paths.setdefault(module, prefix + within)
        named: list[NamedParameter] = []
        for name, parameter in root.named_parameters(remove_duplicate=False):
            owner, _, last = _WRAPPED.sub("", f".{name}").rpartition(".")
            if parameter not in self._parameters:
                self._parameters[parameter] = (prefix + owner, last)
                named.append(NamedParameter(parameter, prefix + owner, last))
        self._on_parameters(named)

    def _assign_nodes(self, tensors: Iterable[Tensor], path: str) -> None:
        """Notes `path` at the autograd nodes behind the tensors that have none yet."""
        pending: list[Any] = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
        while pending:
            node = pending.pop()
            if _KEY in node.metadata:
                continue
            node.metadata[_KEY] = path
            pending += [following for following, _ in node.next_functions if following is not None]


def _compile_followed(module: nn.Module, paths: ModulePaths, *args: Any, **kwargs: Any) -> None:
    paths.compile(module, *args, **kwargs)


def tensors_in(values: Any) -> list[Tensor]:
    """The tensors in arguments or results."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
