"""Writes and reads files with the values of a rank's tensors: `rankN.bin` has the bytes in row-major order."""

from __future__ import annotations

import hashlib
from math import prod
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from trainyard.errors import BadFile
from trainyard.numerics.bisect.value_index import StoredTensor, ValueIndex, read_index
from trainyard.numerics.record.flat_values import flat_values
from trainyard.numerics.tensor_record import TensorKey

MOST_BYTES = 16 << 30
"""Bytes of the values of a rank."""


class ValueWriter:
    """Writes the values of a rank. Raises `OSError`."""

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._index = folder / f"rank{rank}.json"
        self._file = (folder / f"rank{rank}.bin").open("wb")
        self._stored: list[StoredTensor] = []
        self._offsets: dict[bytes, int] = {}
        """Hash of the bytes of a tensor -> their offset: tensors of equal values share them."""
        self._failure = ""

    def write(self, key: TensorKey, values: Tensor) -> None:
        """Appends a tensor. `values`: on the CPU."""
        content = flat_values(values).view(torch.uint8).numpy().data if values.numel() else b""
        digest = hashlib.blake2b(content).digest()
        if digest not in self._offsets:
            offset = self._file.tell()
            if offset + len(content) > MOST_BYTES:
                self._failure = f"the values of a rank have more than {MOST_BYTES >> 30} GiB"
                return
            self._file.write(content)
            self._offsets[digest] = offset
        dtype = str(values.dtype).removeprefix("torch.")
        self._stored.append(StoredTensor(key=key, dtype=dtype, shape=tuple(values.shape), offset=self._offsets[digest]))

    def flush(self) -> None:
        """Makes everything written so far readable."""
        self._file.flush()
        self._index.write_bytes(msgspec.json.encode(ValueIndex(tensors=tuple(self._stored), failure=self._failure)))


class ValueReader:
    """Reads the values of a rank."""

    def __init__(self, folder: Path, rank: int) -> None:
        """Raises `BadFile`."""
        self._path = folder / f"rank{rank}.bin"
        self._stored = {stored.key: stored for stored in read_index(folder, rank).tensors}

    def read(self, key: TensorKey) -> Tensor | None:
        """The tensor with a key, on the CPU; None if it was not stored. Raises `BadFile`."""
        stored = self._stored.get(key)
        if stored is None:
            return None
        dtype = getattr(torch, stored.dtype, None)
        if not isinstance(dtype, torch.dtype) or min(stored.shape, default=0) < 0:
            raise BadFile(f"{self._path}: there is no tensor of {stored.dtype}, shape {stored.shape}.", "Remove it.")
        size = prod(stored.shape) * dtype.itemsize
        if stored.offset < 0 or stored.offset + size > self._path.stat().st_size:
            raise BadFile(f"{self._path} ends before byte {stored.offset + size}.", "Remove it.")
        with self._path.open("rb") as file:
            file.seek(stored.offset)
            values = bytearray(file.read(size))
        if not size:
            return torch.empty(stored.shape, dtype=dtype)
        return torch.frombuffer(values, dtype=dtype).view(stored.shape)
