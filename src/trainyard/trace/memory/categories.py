"""Categorizes allocations by the innermost recognized frame of their stack and by their lifetime.

    communication     allocated by torch.distributed, NCCL's or DDP's reducer code
    parameter         by the construction of a module, `.to` and similar methods
    optimizer_state   by an optimizer, and alive after its step
    gradient          under the autograd engine, and alive after the backward pass
    activation        by a forward pass, and alive after it; or by recomputation
    temporary         any of these, freed before another phase allocates
    input             by a data loader
    unknown           no frame is recognized

Categories in a profile, and a category that the program sets with `_set_memory_metadata`, take precedence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainyard import words
from trainyard.trace.memory.replay_allocations import Lives
from trainyard.trace.memory.snapshot import Frame

KINDS = tuple(words.MEMORY)
_FORWARD, _BACKWARD, _OPTIMIZER, _INIT, _OTHER = range(5)
"""Phases of a step, from an allocation's stack; _OTHER does not end a phase."""

_LONG_LIVED = {_FORWARD: "activation", _BACKWARD: "gradient", _OPTIMIZER: "optimizer_state", _INIT: "parameter"}
_SYNONYMS = {"autograd_detail": "temporary"}

# (file, name) patterns: the innermost frame that matches any of them decides, by the first pattern that matches it.
# DTensor's and FSDP's wrappers are in every stack of their models, so only the code of torch.distributed that
# allocates buffers counts.
_COMM = (
    re.compile(
        r"torch/distributed/(distributed_c10d|_functional_collectives|_symmetric_memory/|fsdp/_flat_param\.py"
        r"|fsdp/_fully_shard/_fsdp_(collectives|param\.py)|_shard/|rpc/)|torch/cuda/nccl|ProcessGroup|deep_ep/"
    ),
    re.compile(r"c10d::|ncclComm|Reducer::|_ddp_init_helper"),
)
_ENGINE = re.compile(r"(_engine_run_)?backward\Z|autograd::Engine|Backward\d*::apply")
_RECOMPUTE = re.compile(r"torch/utils/checkpoint\.py\Z"), re.compile(r"recompute_fn|unpack_hook|backward")
# A script may be called optim.py too, with every stack in it: outside torch.optim the function counts as well.
_OPTIM = (
    re.compile(r"(^|/)(optim|optimizers?|\w*adam\w*|lion|muon|shampoo|sgd)[/_.]", re.IGNORECASE),
    re.compile(r"step|_init|init_|_tensor_|update|zero_grad|adam|sgd|state", re.IGNORECASE),
)
_DATA = re.compile(r"torch/utils/data/")
_BUILD = (
    re.compile(r"torch/nn/(init|parameter)\.py\Z|torch/nn/modules/module\.py\Z"),
    re.compile(r"(_apply|to|cuda|to_empty|half|bfloat16|float|convert|reset_parameters|__new__|_?(no_grad_)?\w+_)\Z"),
)
_CALLED = re.compile(r"(forward|_call_impl|_wrapped_call_impl)\Z")
_OPERATION = re.compile(r"\w+Backward\d*(?=::apply)")
_PYTHON = re.compile(r"\.py\Z|\A<")
_TORCH = re.compile(
    r"-packages/(torch|functorch)/|(^|/)torch/(nn|autograd|optim|utils|distributed|_\w+|cuda|fx|amp)[/.]"
)


def categories(
    lives: Lives, count: int, stacks: Sequence[tuple[Frame, ...]], labels: Sequence[str]
) -> NDArray[np.int8]:
    """The category of each allocation of a trace of `count` events, as an index into KINDS (words.MEMORY's order)."""
    by_stack = [phase_and_kind(stack) for stack in stacks]
    if has_only_python_frames(stacks):
        # The autograd engine's threads run no Python: if only Python frames were recorded, their stacks are empty.
        by_stack[0] = (_BACKWARD, "")
    index = {kind: number for number, kind in enumerate(KINDS)}
    by_label = [index.get(_SYNONYMS.get(label, label), -1) for label in labels]
    phase = np.array([phase for phase, _ in by_stack], np.int64)[lives.stack]
    phase[(lives.start < 0) & (lives.stack == 0)] = _OTHER
    # An allocation that is alive at the end of the trace is long-lived, whichever phase the trace ended in.
    freed_in_phase = (lives.stop < _phase_ends(lives, count, phase)) & (lives.stop < count)
    long_lived = np.array([index[_LONG_LIVED.get(number, "unknown")] for number in range(5)])[phase]
    category = np.where(freed_in_phase & (phase != _OTHER), index["temporary"], long_lived)
    from_stack = np.array([index.get(kind, -1) for _, kind in by_stack])[lives.stack]
    category = np.where(from_stack >= 0, from_stack, category)
    from_label = np.array(by_label)[lives.label]
    return np.where(from_label >= 0, from_label, category).astype(np.int8)


def _phase_ends(lives: Lives, count: int, phase: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each allocation the first later event at which another phase allocates; `count` if none does."""
    known = np.flatnonzero((phase != _OTHER) & (lives.start >= 0))
    known = known[np.argsort(lives.start[known], kind="stable")]
    changes = known[np.flatnonzero(np.diff(phase[known])) + 1]
    ends = np.append(lives.start[changes], count)
    return ends[np.searchsorted(ends[:-1], lives.start, side="right")]


def phase_and_kind(stack: tuple[Frame, ...]) -> tuple[int, str]:
    """The phase of a step that a stack (innermost frame first) belongs to, and the category, empty if the lifetime
    decides it."""
    phase, kind, role = _OTHER, "", _OTHER
    for frame in stack:
        frame_role = _role(frame)
        if isinstance(frame_role, str):
            kind = kind or (frame_role if role == _OTHER else "")
        elif frame_role != _OTHER:
            role = frame_role if role == _OTHER else role
            # Recomputation runs a forward pass under the engine, and an optimizer may call modules: the outer decides.
            phase = frame_role if phase == _OTHER or frame_role in (_BACKWARD, _OPTIMIZER) else phase
    if role == _FORWARD and phase == _BACKWARD:
        kind = kind or "activation"
    return phase, kind


def _role(frame: Frame) -> int | str:
    file, _, name = frame
    if _COMM[0].search(file) or _COMM[1].search(name):
        return "communication"
    if _DATA.search(file):
        return "input"
    if _ENGINE.search(name) or (_RECOMPUTE[0].search(file) and _RECOMPUTE[1].search(name)):
        return _BACKWARD
    if _OPTIM[0].search(file) and _OPTIM[1].search(name):
        return _OPTIMIZER
    if (_BUILD[0].search(file) and _BUILD[1].search(name)) or (name == "__init__" and "torch/nn/modules/" in file):
        return _INIT
    return _FORWARD if file.endswith("torch/nn/functional.py") or _CALLED.search(name) else _OTHER


def has_only_python_frames(stacks: Sequence[tuple[Frame, ...]]) -> bool:
    """Whether stacks were recorded, but without C++ frames."""
    return len(stacks) > 1 and not any("::" in frame.name for stack in stacks for frame in stack)


def source_location(stack: tuple[Frame, ...]) -> str:
    """The source location to show: the innermost Python line outside torch, else the innermost line; on an autograd
    thread its operation."""
    if not stack:
        return ""
    operation = next((match[0] for frame in stack if (match := _OPERATION.search(frame.name))), None)
    python = [frame for frame in stack if _PYTHON.search(frame.file)]
    own = [frame for frame in python if not _TORCH.search(frame.file)]
    if operation and not own:
        return f"autograd {operation}"
    return _format_frame((own or python or stack)[0])


def _format_frame(frame: Frame) -> str:
    """`layers/model.py:42 forward`: the last two parts of the path, line and function."""
    path = "/".join(frame.file.split("/")[-2:])
    return f"{path}:{frame.line} {frame.name}" if path else frame.name
