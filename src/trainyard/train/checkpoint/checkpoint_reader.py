"""Loads a checkpoint with torch.distributed.checkpoint, which reshards it to the current layout."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from trainyard.errors import DamagedFile
from trainyard.train.checkpoint.manifest import WIDTHS, Manifest, Piece
from trainyard.train.checkpoint.rank_group import CheckpointGroup


class CheckpointReader(StorageReader):
    """A `StorageReader` that reads raw values only. torch's own reader unpickles metadata, which can execute code."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Reads the checkpoint in `folder`, described by `manifest`. `pieces`: each piece, a box of a tensor that is
        contiguous in a file, by (tensor name, offset in each dimension)."""
        self.folder = folder
        self.manifest = manifest
        self.pieces: dict[MetadataIndex, Piece] = {
            MetadataIndex(name, piece.offsets): piece
            for name, stored in manifest.tensors.items()
            for piece in stored.pieces
        }

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Shape, dtype and pieces of every tensor of the checkpoint, as torch.distributed.checkpoint wants them."""
        return Metadata(
            {
                name: TensorStorageMetadata(
                    TensorProperties(dtype=getattr(torch, stored.dtype)),
                    torch.Size(stored.shape),
                    [ChunkStorageMetadata(torch.Size(p.offsets), torch.Size(p.sizes)) for p in stored.pieces],
                )
                for name, stored in self.manifest.tensors.items()
            }
        )

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copies each planned piece from its file into the tensor to load. Returns a future that is already
        complete."""
        for item in plan.items:
            target = planner.resolve_tensor(item).detach()
            target.copy_(self._read(item))
            planner.commit_tensor(item, target)
        completed_future: Future[None] = Future()
        completed_future.set_result(None)
        return completed_future

    def _read(self, item: ReadItem) -> Tensor:
        """The values of the box of a tensor that `item` requests, which lies in one piece. Reads only the rows (first
        dimension) of the piece that the box touches."""
        piece = self.pieces[item.storage_index]
        stored = self.manifest.tensors[item.storage_index.fqn]
        read_shape, offset_bytes, value_bytes = list(piece.sizes), piece.at, WIDTHS[stored.dtype]
        box_offsets = list(item.storage_offsets)  # of the box in the piece, per dimension
        if read_shape:
            offset_bytes += box_offsets[0] * prod(read_shape[1:]) * value_bytes
            read_shape[0], box_offsets[0] = item.lengths[0], 0
        values = torch.empty(prod(read_shape) * value_bytes, dtype=torch.uint8)
        _fill(self.folder / piece.file, offset_bytes, values)
        box = values.view(getattr(torch, stored.dtype)).reshape(read_shape)
        for dimension, (start, length) in enumerate(zip(box_offsets, item.lengths)):
            box = box.narrow(dimension, start, length)
        return box

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        pass

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return Path(checkpoint_id).is_dir()


def _fill(path: Path, offset_bytes: int, buffer: Tensor) -> None:
    """Fills `buffer` (bytes) with the bytes of the file from `offset_bytes` on. Raises `DamagedFile` if the file is too
    short."""
    unfilled = buffer.numpy().data
    with path.open("rb", buffering=0) as file:
        file.seek(offset_bytes)
        while unfilled:
            read_bytes = file.readinto(unfilled)
            if not read_bytes:
                raise DamagedFile(f"{path}: the file ends {len(unfilled)} bytes early.")
            unfilled = unfilled[read_bytes:]


def read_into(state: Mapping[str, Tensor], folder: Path, manifest: Manifest, group: CheckpointGroup) -> None:
    """Loads every tensor of `state` in place, whatever layout it was saved under. Collective."""
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    reader = CheckpointReader(folder, manifest)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*assuming the intent is to load in a single process.*")
        is_single_process = group.world == 1
        load(dict(state), storage_reader=reader, planner=planner, process_group=group.group, no_dist=is_single_process)
