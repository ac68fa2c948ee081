"""What an allocation is for: by the innermost telling frame of its stack, and by how long it lived.

    communication     allocated by torch.distributed, NCCL's or DDP's reducer code
    parameter         by a module's construction, `.to` and their kin
    optimizer_state   by an optimizer, and living on when its step is over
    gradient          under the autograd engine, and living on when the backward pass is over
    activation        by a forward pass, and living on when it is over; or made anew by recomputation
    temporary         any of these, gone before another phase allocates
    input             by a data loader
    unknown           no frame tells

A profile's own categories, and a category that the program names by `_set_memory_metadata`, go before all of this.
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
"""Phases of a step, as an allocation's stack shows them; _OTHER ends none of them."""

_LIVES_ON = {_FORWARD: "activation", _BACKWARD: "gradient", _OPTIMIZER: "optimizer_state", _INIT: "parameter"}
_SYNONYMS = {"autograd_detail": "temporary"}

# (file, name) patterns; the first to fit the innermost frame that any fits decides. DTensor's and FSDP's wrappers
# stand in every stack of their models, so of torch.distributed only the code that makes buffers counts.
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
    told = [phase_and_kind(stack) for stack in stacks]
    if python_alone(stacks):
        # The autograd engine's threads run no Python: where only Python's frames were recorded, theirs are empty.
        told[0] = (_BACKWARD, "")
    index = {kind: place for place, kind in enumerate(KINDS)}
    named = [index.get(_SYNONYMS.get(label, label), -1) for label in labels]
    phase = np.array([phase for phase, _ in told], np.int64)[lives.stack]
    phase[(lives.start < 0) & (lives.stack == 0)] = _OTHER
    # What lives at the end of the trace has lived on, whichever phase the trace ended in.
    inside = (lives.stop < _phase_ends(lives, count, phase)) & (lives.stop < count)
    lasting = np.array([index[_LIVES_ON.get(one, "unknown")] for one in range(5)])[phase]
    found = np.where(inside & (phase != _OTHER), index["temporary"], lasting)
    fixed = np.array([index.get(kind, -1) for _, kind in told])[lives.stack]
    found = np.where(fixed >= 0, fixed, found)
    given = np.array(named)[lives.label]
    return np.where(given >= 0, given, found).astype(np.int8)


def _phase_ends(lives: Lives, count: int, phase: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each allocation the event at which another phase first allocates after it; `count` where none does."""
    known = np.flatnonzero((phase != _OTHER) & (lives.start >= 0))
    known = known[np.argsort(lives.start[known], kind="stable")]
    changes = known[np.flatnonzero(np.diff(phase[known])) + 1]
    ends = np.append(lives.start[changes], count)
    return ends[np.searchsorted(ends[:-1], lives.start, side="right")]


def phase_and_kind(stack: tuple[Frame, ...]) -> tuple[int, str]:
    """The phase of the step that a stack (innermost frame first) shows, and the category where lifetime has no say."""
    phase, kind, role = _OTHER, "", _OTHER
    for frame in stack:
        here = _role(frame)
        if isinstance(here, str):
            kind = kind or (here if role == _OTHER else "")
        elif here != _OTHER:
            role = here if role == _OTHER else role
            # Recomputation runs the forward under the engine, and an optimizer may call modules: the outer one reigns.
            phase = here if phase == _OTHER or here in (_BACKWARD, _OPTIMIZER) else phase
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


def python_alone(stacks: Sequence[tuple[Frame, ...]]) -> bool:
    """Whether stacks were recorded, and none of them with C++ frames."""
    return len(stacks) > 1 and not any("::" in frame.name for stack in stacks for frame in stack)


def where(stack: tuple[Frame, ...]) -> str:
    """The place to show: the innermost Python line outside torch, else any; under autograd's threads its operation."""
    if not stack:
        return ""
    operation = next((found[0] for frame in stack if (found := _OPERATION.search(frame.name))), None)
    python = [frame for frame in stack if _PYTHON.search(frame.file)]
    own = [frame for frame in python if not _TORCH.search(frame.file)]
    if operation and not own:
        return f"autograd {operation}"
    return shown((own or python or stack)[0])


def shown(frame: Frame) -> str:
    """`model.py:42 forward`, with the last two parts of the path."""
    place = "/".join(frame.file.split("/")[-2:])
    return f"{place}:{frame.line} {frame.name}" if place else frame.name
