"""Exports the weights of a checkpoint as one safetensors file, under the unsharded model's names. Needs no torch."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.errors import BadFile, BadInput, MissingLibrary
from trainyard.formats.atomic import replacing
from trainyard.train.checkpoint.checkpoint_store import CheckpointStore
from trainyard.train.checkpoint.manifest import WIDTHS, Manifest, Stored

WEIGHTS = "model/"
"""Prefix of the names of weights and buffers in a checkpoint (see training_state.py)."""
_RESERVED = "__metadata__"
"""A key of a safetensors header that cannot name a tensor."""
ENDING = ".safetensors"


class Exported(NamedTuple):
    """An exported file. `step`: the last step it includes, counted from 0. `rejected`: newer checkpoints that were
    damaged, with the reasons."""

    step: int
    tensors: int
    bytes: int
    rejected: tuple[str, ...]


def export(run: Path, out: Path, step: int | None = None) -> Exported:
    """Exports the weights after `step` (counted from 0), or of the newest good checkpoint. Holds them in memory once.

    Raises `BadInput` if there is no such checkpoint or `out` does not end in .safetensors, `BadFile` if the requested
    checkpoint is damaged or cannot be exported.
    """
    if out.suffix != ENDING:
        raise BadInput(f"{out}: weights are exported as safetensors only.", f"Use {out.with_suffix(ENDING).name}.")
    try:
        from safetensors.numpy import save_file
    except ImportError as error:
        raise MissingLibrary("safetensors is not installed.", "pip install 'trainyard[safetensors]'") from error
    checkpoints = CheckpointStore(run)
    manifest, rejected = _last_good(checkpoints, step)
    if WEIGHTS + _RESERVED in manifest.tensors:
        raise BadFile(
            f"{checkpoints.folder(manifest.step)}: a tensor is named {_RESERVED!r}, which safetensors reserves."
        )
    weights = {
        name.removeprefix(WEIGHTS): tensor(checkpoints.folder(manifest.step), stored)
        for name, stored in manifest.tensors.items()
        if name.startswith(WEIGHTS)
    }
    with replacing(out) as part:
        part.touch()
        mode = part.stat().st_mode & 0o777  # the user's umask; the library sets other permissions
        save_file(weights, part, {"step": str(manifest.step), "format": "pt"})
        part.chmod(mode)
    return Exported(
        step=manifest.step,
        tensors=len(weights),
        bytes=sum(values.nbytes for values in weights.values()),
        rejected=tuple(rejected),
    )


def _last_good(checkpoints: CheckpointStore, step: int | None) -> tuple[Manifest, list[str]]:
    """The manifest of the checkpoint after `step` (None: the newest good one), and why newer ones were rejected. Raises
    `BadInput` without a good checkpoint, `BadFile` if that of `step` is damaged."""
    if step is not None:
        steps = checkpoints.steps()
        if step not in steps:
            available = f"it has those after {', '.join(str(other + 1) for other in steps)}" if steps else "it is empty"
            raise BadInput(f"{checkpoints.root} has no checkpoint after step {step + 1}: {available}.")
        if damage := checkpoints.describe_damage(step):
            raise BadFile(f"{checkpoints.folder(step)}: {damage.rstrip('.')}.")
        return checkpoints.read(step), []
    manifest, rejected = checkpoints.last_good()
    if manifest is None:
        raise BadInput(
            " ".join([f"{checkpoints.root} has no good checkpoint.", *(f"{reason}." for reason in rejected)]),
            "" if rejected else "To save checkpoints, set interval = N under [checkpoint] in the job.",
        )
    return manifest, rejected


def tensor(folder: Path, stored: Stored) -> NDArray[Any]:
    """Reads an unsharded tensor from its pieces in the checkpoint's `folder`. bfloat16, which numpy lacks, becomes
    float32 without loss: its 16 bits are the upper half of those of the same float32. Raises `BadFile` for float8."""
    if stored.dtype.startswith("float8"):
        raise BadFile(f"{folder}: {stored.dtype} cannot be exported.")
    is_bfloat16 = stored.dtype == "bfloat16"
    values = np.zeros(stored.shape, np.uint16 if is_bfloat16 else np.dtype(stored.dtype))
    for piece in stored.pieces:
        value_count = prod(piece.sizes)
        with (folder / piece.file).open("rb") as file:
            file.seek(piece.at)
            data = file.read(value_count * WIDTHS[stored.dtype])
        piece_slices = tuple(slice(offset, offset + size) for offset, size in zip(piece.offsets, piece.sizes))
        values[piece_slices] = np.frombuffer(data, values.dtype, value_count).reshape(piece.sizes)
    return (values.astype(np.uint32) << 16).view(np.float32) if is_bfloat16 else values
