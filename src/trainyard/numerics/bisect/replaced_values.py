"""How many tensors of a training were replaced by those of another run, per rank in `replaced-rankN.json`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from trainyard.errors import BadFile


class ReplacedValues(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of tensors. `missing`: the other run has none with this module, name and call. `kept`: it has one of
    another shape, or the tensor cannot be written, as one whose elements share memory."""

    replaced: int = 0
    missing: int = 0
    kept: int = 0


def write_replaced(folder: Path, rank: int, counts: ReplacedValues) -> None:
    """Writes the numbers of a rank. Raises `OSError`."""
    (folder / f"replaced-rank{rank}.json").write_bytes(msgspec.json.encode(counts))


def read_replaced(folder: Path) -> ReplacedValues:
    """The numbers of all ranks together. Raises `BadFile`."""
    total = ReplacedValues()
    for path in sorted(folder.glob("replaced-rank*.json")):
        try:
            counts = msgspec.json.decode(path.read_bytes(), type=ReplacedValues)
        except (OSError, msgspec.DecodeError, RecursionError) as error:
            raise BadFile(f"{path}: {error}.", "Remove the folder, and repeat the command.") from error
        total = ReplacedValues(
            replaced=total.replaced + counts.replaced,
            missing=total.missing + counts.missing,
            kept=total.kept + counts.kept,
        )
    return total
