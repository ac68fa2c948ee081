"""Pictures with classes, and the ones that each step takes: the same whatever the number of ranks. No torch here.

`recipe.text` names them: `digits` (or `python`, the field's default) are scikit-learn's 1,797 digits of 8 x 8 grey
pixels; `synthetic` is noise without meaning; anything else is a folder. Each of its subfolders is a class, in the
order of their names; a folder without any is one class. Pictures are .npy arrays, (H, W), (H, W, C) or
(N, H, W, C), of bytes or of fractions from 0 to 1, and .png files.
"""

from __future__ import annotations

import gzip
import hashlib
import struct
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.errors import BadJob, MissingLibrary
from trainyard.job import Recipe

Pixels = NDArray[np.float32]

DIGITS = ("digits", "python")
SYNTHETIC = "synthetic"
CAP = 2 * 10**9
"""Bytes of files that a folder may have: they are kept in memory."""

_ENDINGS = (".npy", ".png")


class ImageSet(NamedTuple):
    """`data`: (H, W, C) each, from 0 to 1; none where they are synthetic. `source` does not say where that lies on
    this machine."""

    data: Sequence[Pixels]
    labels: Sequence[int]
    classes: int
    source: str
    sha256: str


def read(source: str, classes: int) -> ImageSet:
    """Raises `BadJob`, also where there are more classes than the model's `classes`, and `MissingLibrary`."""
    if source == SYNTHETIC:
        said = f"synthetic pictures: noise, with one of {classes} classes drawn for each"
        return ImageSet((), (), classes, said, hashlib.sha256(SYNTHETIC.encode()).hexdigest())
    pictures = _digits() if source in DIGITS else _folder(Path(source))
    if pictures.classes > classes:
        raise BadJob(
            f"the pictures ({pictures.source}) have {pictures.classes} classes, but classes = {classes} at "
            "$.sizes.classes.",
            f"Use classes = {pictures.classes} or more.",
        )
    return pictures


def check(recipe: Recipe) -> None:
    """Raises `BadJob` or `MissingLibrary` when the pictures are not there, without reading them."""
    if recipe.text in DIGITS:
        _digits_file()
    elif recipe.text != SYNTHETIC:
        _files(Path(recipe.text))


def _digits_file() -> Path:
    """Found as a file: importing scikit-learn takes seconds."""
    spec = find_spec("sklearn")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(place, "datasets", "data", "digits.csv.gz")).is_file():
            return path
    raise MissingLibrary(
        'text = "digits" at $.recipe, but scikit-learn, which brings them, is not installed.',
        "pip install 'trainyard[data]', name a folder of pictures, or use text = \"synthetic\".",
    )


def _digits() -> ImageSet:
    data = _digits_file().read_bytes()
    rows = np.loadtxt(gzip.decompress(data).decode("ascii").splitlines(), delimiter=",", dtype=np.float32)
    pixels = rows[:, :-1].reshape(-1, 8, 8, 1) / 16
    said = f"scikit-learn's digits, {len(rows):,} pictures of 8 x 8 grey pixels, scaled to the model's size"
    return ImageSet(list(pixels), rows[:, -1].astype(int).tolist(), 10, said, hashlib.sha256(data).hexdigest())


def _files(root: Path) -> list[list[Path]]:
    """By class. Raises `BadJob`."""
    try:
        folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
        found = [sorted(path for path in folder.iterdir() if path.suffix in _ENDINGS) for folder in folders or [root]]
        size = sum(path.stat().st_size for files in found for path in files)
    except OSError as error:
        raise BadJob(
            f"text = {str(root)!r} at $.recipe: {error.strerror or error}.",
            'Name a folder of pictures, or use "digits" or "synthetic".',
        ) from error
    if not any(found):
        raise BadJob(
            f"text = {str(root)!r} at $.recipe: no {' or '.join(_ENDINGS)} file lies there or in a folder below.",
            "Put each class into a folder of its own.",
        )
    if size > CAP:
        raise BadJob(f"text = {str(root)!r} at $.recipe: {size:,} bytes, but at most {CAP:,} are kept in memory.")
    return found


def _folder(root: Path) -> ImageSet:
    data: list[Pixels] = []
    labels: list[int] = []
    digest = hashlib.sha256()
    found = _files(root)
    for label, files in enumerate(found):
        for path in files:
            for picture in _pictures(path):
                data.append(picture)
                labels.append(label)
                digest.update(struct.pack("<4Q", label, *picture.shape) + picture.tobytes())
    said = f"folder {root.resolve().name}, {len(data):,} pictures in {len(found)} classes, scaled to the model's size"
    return ImageSet(data, labels, len(found), said, digest.hexdigest())


def _pictures(path: Path) -> list[Pixels]:
    """Raises `BadJob`."""
    try:
        array = np.load(path, allow_pickle=False) if path.suffix == ".npy" else _png(path)
    except (OSError, ValueError, EOFError, MemoryError) as error:
        raise BadJob(f"{path}: no picture: {error}.") from error
    fractions = array.dtype.kind == "f"
    if array.dtype != np.uint8 and not fractions:
        raise BadJob(f"{path}: values of {array.dtype}, but pictures are uint8 or fractions from 0 to 1.")
    if array.ndim == 2:
        array = array[None, :, :, None]
    elif array.ndim == 3:
        array = array[None]
    if array.ndim != 4 or not array.size:
        raise BadJob(f"{path}: the shape {array.shape} is none of (H, W), (H, W, C), (N, H, W, C).")
    if fractions and not (array.min() >= 0 and array.max() <= 1):
        raise BadJob(f"{path}: values from {array.min()} to {array.max()}, but fractions lie from 0 to 1.")
    return [one.astype(np.float32) / (1 if fractions else 255) for one in array]


def _png(path: Path) -> NDArray[np.uint8]:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingLibrary(
            f"{path}: reading it takes Pillow.", "pip install 'trainyard[data]', or use .npy."
        ) from error
    with Image.open(path) as image:
        return np.asarray(image.convert("L" if image.mode in ("1", "L", "LA") else "RGB"))


def rng(purpose: str, seed: int, step: int, index: int) -> np.random.Generator:
    """Of sample `index` of the global batch of `step`, for one purpose: no draw shifts another."""
    mixed = hashlib.blake2b(struct.pack("<QQQ", seed, step, index) + purpose.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(mixed, "little")))


def sample(pictures: ImageSet, side: int, channels: int, seed: int, step: int, index: int) -> tuple[Pixels, int]:
    """Picture (C, side, side) from -1 to 1, and its class; a function of (seed, step, index) alone."""
    draws = rng("picture", seed, step, index)
    if not pictures.data:
        noise = draws.random((channels, side, side), dtype=np.float32) * 2 - 1
        return noise, int(draws.integers(pictures.classes))
    chosen = int(draws.integers(len(pictures.data)))
    picture = pictures.data[chosen]
    if picture.shape[2] != channels:
        picture = np.repeat(picture.mean(axis=2, keepdims=True), channels, axis=2)
    high, wide = (scaling(length, side) for length in picture.shape[:2])
    scaled = np.einsum("ih,hwc,jw->cij", high, picture, wide, optimize=True)
    return scaled * 2 - 1, pictures.labels[chosen]


def scaling(length: int, to: int) -> Pixels:
    """(to, length): rows of weights, a triangle around each new pixel's centre, as wide as the coarser of both grids
    (bilinear upwards, an average downwards). Each row sums to one."""
    reach = max(1.0, length / to)
    centres = (np.arange(to) + 0.5) * length / to - 0.5
    away = np.abs(np.arange(length) - centres[:, None]) / reach
    weights = np.maximum(0.0, 1.0 - away)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
