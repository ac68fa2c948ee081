"""The text that decoders are trained on, as bytes, and the sequences that each step takes from it. They depend on
(seed, step, index in the global batch) only, not on the number of ranks."""

from __future__ import annotations

import hashlib
import os
import platform
import struct
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.errors import BadJob
from trainyard.recipe import Recipe

MAX_BYTES = 32 * 10**6
"""Maximum bytes of text: later files are left out, and the last is truncated."""

_NOT_TEXT = {"site-packages", "dist-packages", "__pycache__", "test", "tests"}


class TrainingText(NamedTuple):
    """A text. `data`: uint8. `source` describes its origin without revealing paths of this machine."""

    data: NDArray[np.uint8]
    source: str
    sha256: str


def read(source: str) -> TrainingText:
    """Reads a text: the standard library's sources for `python`, else a file or folder relative to the working folder.

    A folder is read in the order of its files' relative paths, without hidden ones. Raises `BadJob`.
    """
    if source == "python":
        root = Path(sysconfig.get_path("stdlib"))
        return _join(f"Python {platform.python_version()} standard library", root, _sources(root))
    path = Path(source)
    with _input_errors(source):
        if path.is_dir():
            return _join(f"folder {path.resolve().name}", path, _visible(path))
        return _join(f"file {path.name}", path.parent, [path])


def check(recipe: Recipe) -> None:
    """Raises `BadJob` if the text is missing or shorter than a sample. Looks at file sizes only."""
    if recipe.dataset == "python":
        return
    path = Path(recipe.dataset)
    with _input_errors(recipe.dataset):
        size = sum(file.stat().st_size for file in (_visible(path) if path.is_dir() else [path]))
    _start_positions(size, recipe.seq_len, repr(recipe.dataset))


@contextmanager
def _input_errors(source: str) -> Iterator[None]:
    """Turns an `OSError` inside the `with` block into a `BadJob` that names the data set. `source`: the name of the
    data set."""
    try:
        yield
    except OSError as error:
        raise BadJob(
            f"dataset = {source!r} at $.recipe: {error.strerror or error}.", 'Name a file or a folder, or use "python".'
        ) from error


def _start_positions(text_bytes: int, seq_len: int, description: str) -> int:
    """The number of positions in a text of `text_bytes` bytes at which a sample can begin. `description`: of the text,
    for the message of the `BadJob` raised if there are none."""
    if text_bytes <= seq_len:
        raise BadJob(
            f"the text ({description}) has {text_bytes} bytes, but a sample takes "
            f"seq_len {seq_len} + 1 = {seq_len + 1}.",
            "Use a longer text, or lower seq_len.",
        )
    return text_bytes - seq_len


def _sources(root: Path) -> Iterable[Path]:
    """The Python files under `root`, without tests and installed packages."""
    return (path for path in _walk(root, lambda folder: folder in _NOT_TEXT) if path.suffix == ".py")


def _visible(root: Path) -> Iterable[Path]:
    """The files under `root` whose names, and those of their folders, do not begin with a dot."""
    return (path for path in _walk(root, lambda folder: folder.startswith(".")) if not path.name.startswith("."))


def _walk(root: Path, skips_folder: Callable[[str], bool]) -> Iterable[Path]:
    """The regular files under `root`, except in folders whose name satisfies `skips_folder`."""
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not skips_folder(name)]
        yield from (path for name in files if (path := Path(folder, name)).is_file())


def _join(source: str, root: Path, paths: Iterable[Path]) -> TrainingText:
    """Concatenates the files in the order of their paths below `root`, up to `MAX_BYTES` bytes. `source`: a description
    of their origin, without paths of this machine."""
    parts: list[bytes] = []
    size = 0
    for path in sorted(paths, key=lambda path: path.relative_to(root).as_posix()):
        if size >= MAX_BYTES:
            break
        parts.append(path.read_bytes()[: MAX_BYTES - size])
        size += len(parts[-1])
    data = b"".join(parts)
    file_count = "1 file" if len(parts) == 1 else f"{len(parts)} files"
    cap_note = f", cut at {MAX_BYTES / 1e6:.0f} MB" if size == MAX_BYTES else ""
    description = f"{source}, {file_count}, {size / 1e6:.1f} MB{cap_note}"
    return TrainingText(data=np.frombuffer(data, np.uint8), source=description, sha256=hashlib.sha256(data).hexdigest())


def sample(text: TrainingText, seq_len: int, seed: int, step: int, index: int) -> NDArray[np.uint8]:
    """Sequence `index` of the global batch of `step`: seq_len + 1 bytes, the last being the last target.

    A function of (seed, step, index) alone, so that any split of the batch over ranks trains on the same text.
    Raises `BadJob` when the text is shorter than one sequence.
    """
    start_positions = _start_positions(len(text.data), seq_len, text.source)
    # A hash in place of a generator: one sequence is drawn without drawing those before it.
    digest = hashlib.blake2b(struct.pack("<QQQ", seed, step, index), digest_size=8).digest()
    start = int.from_bytes(digest, "little") % start_positions
    return text.data[start : start + seq_len + 1]


def batch(text: TrainingText, seq_len: int, seed: int, step: int, indices: Iterable[int]) -> NDArray[np.uint8]:
    """Sequences (len(indices), seq_len + 1) of the global batch of `step`, as bytes (uint8)."""
    return np.stack([sample(text, seq_len, seed, step, index) for index in indices])
