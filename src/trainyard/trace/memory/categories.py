"""Categorizes allocations by the innermost recognized frame of their stack and by their lifetime.

    communication     allocated by torch.distributed, NCCL's or DDP's reducer code
    parameter         by the construction of a module, `.to` and similar methods
    optimizer_state   by an optimizer, and alive after its step
    gradient          under the autograd engine, and alive after the backward pass
    activation        by a forward pass, and alive after it; or by recomputation
    temporary         any of these, freed before another phase allocates
    input             by a data loader
    unknown           no frame is recognized

Categories in a profile, and a category that the program sets with `_set_memory_metadata`, take precedence. Unknown
allocations from before the trace get inferred categories in `infer_earlier`.

An allocation is a row of `Lives`; events of the allocator's trace are numbered from 0, and an allocation lives from the
event `start` (-1: before the trace) to the event `stop` (the number of events: never freed).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard import words
from trainyard.trace.memory.replay_allocations import Lives
from trainyard.trace.memory.snapshot import Frame

KINDS = tuple(words.MEMORY)
FORWARD, BACKWARD, OPTIMIZER, INIT, OTHER = range(5)
"""Phases of a step, from an allocation's stack; OTHER does not end a phase."""
_KIND_IF_KEPT = {FORWARD: "activation", BACKWARD: "gradient", OPTIMIZER: "optimizer_state", INIT: "parameter"}
_SYNONYMS = {"autograd_detail": "temporary"}

# (file, name) patterns: the innermost frame that matches any of them decides, by the first pattern that matches it.
# DTensor's and FSDP's wrappers are in every stack of their models, so only the code of torch.distributed that
# allocates buffers counts.
_COMM_PATTERNS = (
    re.compile(
        r"torch/distributed/(distributed_c10d|_functional_collectives|_symmetric_memory/|fsdp/_flat_param\.py"
        r"|fsdp/_fully_shard/_fsdp_(collectives|param\.py)|_shard/|rpc/)|torch/cuda/nccl|ProcessGroup|deep_ep/"
    ),
    re.compile(r"c10d::|ncclComm|Reducer::|_ddp_init_helper"),
)
_ENGINE_NAME = re.compile(r"(_engine_run_)?backward\Z|autograd::Engine|Backward\d*::apply")
_RECOMPUTE_PATTERNS = re.compile(r"torch/utils/checkpoint\.py\Z"), re.compile(r"recompute_fn|unpack_hook|backward")
# A script may be called optim.py too, with every stack in it: outside torch.optim the function counts as well.
_OPTIMIZER_PATTERNS = (
    re.compile(r"(^|/)(optim|optimizers?|\w*adam\w*|lion|muon|shampoo|sgd)[/_.]", re.IGNORECASE),
    re.compile(r"step|_init|init_|_tensor_|update|zero_grad|adam|sgd|state", re.IGNORECASE),
)
_DATA_FILE = re.compile(r"torch/utils/data/")
_CONSTRUCTION_PATTERNS = (
    re.compile(r"torch/nn/(init|parameter)\.py\Z|torch/nn/modules/module\.py\Z"),
    re.compile(r"(_apply|to|cuda|to_empty|half|bfloat16|float|convert|reset_parameters|__new__|_?(no_grad_)?\w+_)\Z"),
)
_FORWARD_NAME = re.compile(r"(forward|_call_impl|_wrapped_call_impl)\Z")
_AUTOGRAD_OP = re.compile(r"\w+Backward\d*(?=::apply)")
_PYTHON_FILE = re.compile(r"\.py\Z|\A<")
_TORCH_FILE = re.compile(
    r"-packages/(torch|functorch)/|(^|/)torch/(nn|autograd|optim|utils|distributed|_\w+|cuda|fx|amp)[/.]"
)


class Categories(NamedTuple):
    """The category of each allocation, as an index into KINDS, and whether a backward pass made it."""

    category: NDArray[np.int8]
    is_backward: NDArray[np.bool_]


def categorize(
    lives: Lives, event_count: int, stacks: Sequence[tuple[Frame, ...]], labels: Sequence[str]
) -> Categories:
    """Determines the category of each allocation of a trace of `event_count` events, by the rules of the module's
    docstring. `stacks`: each with the innermost frame first; `labels`: categories that a profile or the program states;
    `lives.stack` and `lives.label` are indices into them."""
    # For each stack: the phase (0 to 4) and the category; it is empty if the lifetime decides.
    phase_and_kind_by_stack = [phase_and_kind(stack) for stack in stacks]
    if has_only_python_frames(stacks):
        # The autograd engine's threads run no Python: if only Python frames were recorded, their stacks are empty.
        phase_and_kind_by_stack[0] = (BACKWARD, "")
    kind_number = {kind: index for index, kind in enumerate(KINDS)}
    kind_by_label = [kind_number.get(_SYNONYMS.get(label, label), -1) for label in labels]
    # From here on arrays have an element for each allocation.
    phase = np.array([phase for phase, _ in phase_and_kind_by_stack], np.int64)[lives.stack]
    phase[(lives.start < 0) & (lives.stack == 0)] = OTHER  # from before the trace, without a stack
    category = categorize_by_lifetime(lives.start, lives.stop, event_count, phase)
    # The stack decides over the lifetime, and a label over both; -1: it does not decide.
    kind_from_stack = np.array([kind_number.get(kind, -1) for _, kind in phase_and_kind_by_stack])[lives.stack]
    category = np.where(kind_from_stack >= 0, kind_from_stack, category)
    kind_from_label = np.array(kind_by_label)[lives.label]
    category = np.where(kind_from_label >= 0, kind_from_label, category).astype(np.int8)
    return Categories(category, phase == BACKWARD)


def categorize_by_lifetime(
    start: NDArray[np.int64], stop: NDArray[np.int64], event_count: int, phase: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The category of each allocation, by its phase and by whether it outlives that phase. `start`, `stop`: numbers of
    events, as in `Lives`; `phase`: `FORWARD` to `OTHER`."""
    kind_if_kept = np.array([KINDS.index(_KIND_IF_KEPT.get(index, "unknown")) for index in range(5)])[phase]
    # An allocation that is alive at the end of the trace is long-lived, whichever phase the trace ended in.
    is_freed_in_phase = (stop < _phase_ends(start, event_count, phase)) & (stop < event_count)
    return np.where(is_freed_in_phase & (phase != OTHER), KINDS.index("temporary"), kind_if_kept)


def _phase_ends(start: NDArray[np.int64], event_count: int, phase: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each allocation the number of the first later event at which the phase changes, by the phases of the
    allocations; `event_count` if it does not. `start`, `phase`: of each allocation; `OTHER` changes nothing."""
    # Rows of allocations with a phase, in order of time; then those that begin another phase.
    phased = np.flatnonzero((phase != OTHER) & (start >= 0))
    phased = phased[np.argsort(start[phased], kind="stable")]
    phase_starts = phased[np.flatnonzero(np.diff(phase[phased])) + 1]
    end_events = np.append(start[phase_starts], event_count)
    return end_events[np.searchsorted(end_events[:-1], start, side="right")]


def phase_and_kind(stack: tuple[Frame, ...]) -> tuple[int, str]:
    """(Phase of a step that a stack belongs to, category of its allocations). The stack's innermost frame is first; the
    category is empty if the lifetime decides it. A frame that decides the category counts only if no frame inside it
    belongs to a phase."""
    phase, kind, innermost_phase = OTHER, "", OTHER
    for frame in stack:
        phase_or_kind = _classify_frame(frame)
        if isinstance(phase_or_kind, str):
            kind = kind or (phase_or_kind if innermost_phase == OTHER else "")
        elif phase_or_kind != OTHER:
            innermost_phase = phase_or_kind if innermost_phase == OTHER else innermost_phase
            # Recomputation runs a forward pass under the engine, and an optimizer may call modules: the outer decides.
            phase = phase_or_kind if phase == OTHER or phase_or_kind in (BACKWARD, OPTIMIZER) else phase
    if innermost_phase == FORWARD and phase == BACKWARD:  # recomputation
        kind = kind or "activation"
    return phase, kind


def _classify_frame(frame: Frame) -> int | str:
    """The category that a frame decides, as text; else the phase of a step that it belongs to, `OTHER` for none."""
    file, _, name = frame
    if _COMM_PATTERNS[0].search(file) or _COMM_PATTERNS[1].search(name):
        return "communication"
    if _DATA_FILE.search(file):
        return "input"
    if _ENGINE_NAME.search(name) or (_RECOMPUTE_PATTERNS[0].search(file) and _RECOMPUTE_PATTERNS[1].search(name)):
        return BACKWARD
    if _OPTIMIZER_PATTERNS[0].search(file) and _OPTIMIZER_PATTERNS[1].search(name):
        return OPTIMIZER
    if (_CONSTRUCTION_PATTERNS[0].search(file) and _CONSTRUCTION_PATTERNS[1].search(name)) or (
        name == "__init__" and "torch/nn/modules/" in file
    ):
        return INIT
    return FORWARD if file.endswith("torch/nn/functional.py") or _FORWARD_NAME.search(name) else OTHER


def has_only_python_frames(stacks: Sequence[tuple[Frame, ...]]) -> bool:
    """Whether stacks were recorded, but without C++ frames."""
    return len(stacks) > 1 and not any("::" in frame.name for stack in stacks for frame in stack)


def source_location(stack: tuple[Frame, ...]) -> str:
    """The source location to show: the innermost Python line outside torch, else the innermost line; on an autograd
    thread its operation."""
    if not stack:
        return ""
    autograd_op = next((match[0] for frame in stack if (match := _AUTOGRAD_OP.search(frame.name))), None)
    python_frames = [frame for frame in stack if _PYTHON_FILE.search(frame.file)]
    outside_torch = [frame for frame in python_frames if not _TORCH_FILE.search(frame.file)]
    if autograd_op and not outside_torch:
        return f"autograd {autograd_op}"
    return _format_frame((outside_torch or python_frames or stack)[0])


def _format_frame(frame: Frame) -> str:
    """`layers/model.py:42 forward`: the last two parts of the path, line and function."""
    path = "/".join(frame.file.split("/")[-2:])
    return f"{path}:{frame.line} {frame.name}" if path else frame.name
