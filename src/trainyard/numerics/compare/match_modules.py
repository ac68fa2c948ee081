"""Matches the modules of two records: by path without the parts that wrappers add, then by structure.

A module that only one side has is matched with one that only the other side has if both have inputs, outputs and
parameters of the same shapes, in the same order of execution.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher
from typing import NamedTuple

from trainyard.numerics.compare.logical_tensors import LogicalKey, is_initial_weight
from trainyard.numerics.tensor_record import TensorRecord

_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Parts of a path that torch.compile, FSDP and activation checkpointing add."""
_DATA_PARALLEL = "module"
"""Part that DistributedDataParallel and DataParallel add below the outermost module."""

Structure = tuple[tuple[object, ...], ...]


class RenamedModule(NamedTuple):
    """Paths of a module on the two sides."""

    a: str
    b: str


class ModuleMatches(NamedTuple):
    """`names`: path of B -> path of A, of all modules that both have. `renamed`: those matched by structure."""

    names: dict[str, str]
    renamed: tuple[RenamedModule, ...]


def match_modules(a: Mapping[LogicalKey, TensorRecord], b: Mapping[LogicalKey, TensorRecord]) -> ModuleMatches:
    """The modules that both sides have."""
    structure_a, structure_b = _structures(a), _structures(b)
    unwrapped_a, unwrapped_b = _unwrap(structure_a), _unwrap(structure_b)
    paths_a = {short: path for path, short in unwrapped_a.items()}
    names = {path: paths_a[short] for path, short in unwrapped_b.items() if short in paths_a}
    matched = set(names.values())
    left_a = [path for path in structure_a if path not in matched]
    left_b = [path for path in structure_b if path not in names]
    matcher = SequenceMatcher(
        None, [structure_a[path] for path in left_a], [structure_b[path] for path in left_b], autojunk=False
    )
    renamed = [
        RenamedModule(left_a[block.a + at], left_b[block.b + at])
        for block in matcher.get_matching_blocks()
        for at in range(block.size)
    ]
    names.update({pair.b: pair.a for pair in renamed})
    return ModuleMatches(names, tuple(renamed))


def _structures(tensors: Mapping[LogicalKey, TensorRecord]) -> dict[str, Structure]:
    """The structure of each module, in order of execution: roles, names and shapes of its boundary and parameters in
    the first step. Initial weights have no order of execution."""
    structures: dict[str, list[tuple[object, ...]]] = {}
    first_step: int | None = None
    for key, record in tensors.items():
        if is_initial_weight(key.tensor):
            continue
        first_step = record.step if first_step is None else first_step
        structure = structures.setdefault(record.module, [])
        if record.step == first_step and not record.operation and record.phase != "backward":
            structure.append((record.role, record.name, record.output, record.shape))
    return {module: tuple(structure) for module, structure in structures.items()}


def _unwrap(paths: Iterable[str]) -> dict[str, str]:
    """Each path without the parts that wrappers add."""
    parts = {path: [part for part in path.split(".") if part not in _WRAPPERS] for path in paths}
    roots = {names[0] for names in parts.values() if len(names) > 1}
    for depth, below in (
        (0, [path for path, names in parts.items() if names[:1] not in ([], [""])]),
        (1, [path for path, names in parts.items() if len(names) > 1]),
    ):
        if below and len(roots) <= 1 and all(parts[path][depth] == _DATA_PARALLEL for path in below):
            parts.update({path: parts[path][:depth] + parts[path][depth + 1 :] for path in below})
            break
    return {path: ".".join(names) for path, names in parts.items()}
