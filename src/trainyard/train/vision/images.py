"""Labelled images, and the samples of each step, which do not depend on the number of ranks. Needs no torch.

`recipe.dataset` selects them: `digits` (or `python`, the field's default) is scikit-learn's 1,797 digits of 8 x 8 grey
pixels; `synthetic` is noise; anything else is a folder. Each of its subfolders is a class, in alphabetical order; a
folder without subfolders is one class. Images are .npy arrays, (H, W), (H, W, C) or (N, H, W, C), of bytes or of
fractions from 0 to 1, and .png files.
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
from trainyard.recipe import Recipe

Pixels = NDArray[np.float32]

DIGITS = ("digits", "python")
SYNTHETIC = "synthetic"
MAX_BYTES = 2 * 10**9
"""Maximum bytes of the files in a folder, which are kept in memory."""

_ENDINGS = (".npy", ".png")


class ImageSet(NamedTuple):
    """Labelled images. `data`: (H, W, C) each, from 0 to 1; empty if synthetic. `source` describes their origin without
    revealing paths of this machine."""

    data: Sequence[Pixels]
    labels: Sequence[int]
    classes: int
    source: str
    sha256: str


def read(source: str, classes: int) -> ImageSet:
    """Reads an image set. `source`: the value of `recipe.dataset`. Raises `BadJob`, also if it has more classes than
    the model's `classes`, and `MissingLibrary`."""
    if source == SYNTHETIC:
        description = f"synthetic pictures: noise, with one of {classes} classes drawn for each"
        return ImageSet(
            data=(),
            labels=(),
            classes=classes,
            source=description,
            sha256=hashlib.sha256(SYNTHETIC.encode()).hexdigest(),
        )
    image_set = _digits() if source in DIGITS else _folder(Path(source))
    if image_set.classes > classes:
        raise BadJob(
            f"the images ({image_set.source}) have {image_set.classes} classes, but classes = {classes} at "
            "$.sizes.classes.",
            f"Use classes = {image_set.classes} or more.",
        )
    return image_set


def check(recipe: Recipe) -> None:
    """Raises `BadJob` or `MissingLibrary` if the images are missing. Does not read them."""
    if recipe.dataset in DIGITS:
        _digits_file()
    elif recipe.dataset != SYNTHETIC:
        _files(Path(recipe.dataset))


def _digits_file() -> Path:
    """The path of the digits; located without importing scikit-learn, which takes seconds."""
    spec = find_spec("sklearn")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(folder, "datasets", "data", "digits.csv.gz")).is_file():
            return path
    raise MissingLibrary(
        'dataset = "digits" at $.recipe, but scikit-learn, which contains them, is not installed.',
        "pip install 'trainyard[data]', name a folder of images, or use text = \"synthetic\".",
    )


def _digits() -> ImageSet:
    """The 1,797 handwritten digits that scikit-learn contains: (8, 8, 1) pixels from 0 to 1 in 10 classes."""
    data = _digits_file().read_bytes()
    rows = np.loadtxt(gzip.decompress(data).decode("ascii").splitlines(), delimiter=",", dtype=np.float32)
    pixels = rows[:, :-1].reshape(-1, 8, 8, 1) / 16
    description = f"scikit-learn's digits, {len(rows):,} pictures of 8 x 8 grey pixels, scaled to the model's size"
    return ImageSet(
        data=list(pixels),
        labels=rows[:, -1].astype(int).tolist(),
        classes=10,
        source=description,
        sha256=hashlib.sha256(data).hexdigest(),
    )


def _files(root: Path) -> list[list[Path]]:
    """The image files of each class: of each subfolder of `root` by name, or of `root` if it has no subfolders. Raises
    `BadJob` if there are none, or they are too large in total."""
    try:
        folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
        files_by_class = [
            sorted(path for path in folder.iterdir() if path.suffix in _ENDINGS) for folder in folders or [root]
        ]
        total_bytes = sum(path.stat().st_size for files in files_by_class for path in files)
    except OSError as error:
        raise BadJob(
            f"dataset = {str(root)!r} at $.recipe: {error.strerror or error}.",
            'Name a folder of images, or use "digits" or "synthetic".',
        ) from error
    if not any(files_by_class):
        raise BadJob(
            f"dataset = {str(root)!r} at $.recipe: no {' or '.join(_ENDINGS)} file in it or in its subfolders.",
            "Put each class into a subfolder.",
        )
    if total_bytes > MAX_BYTES:
        raise BadJob(
            f"dataset = {str(root)!r} at $.recipe: {total_bytes:,} bytes, but at most {MAX_BYTES:,} are kept in memory."
        )
    return files_by_class


def _folder(root: Path) -> ImageSet:
    """The pictures of a folder with one subfolder per class, in the order of their names."""
    data: list[Pixels] = []
    labels: list[int] = []
    digest = hashlib.sha256()
    files_by_class = _files(root)
    for label, files in enumerate(files_by_class):
        for path in files:
            for picture in _pictures(path):
                data.append(picture)
                labels.append(label)
                digest.update(struct.pack("<4Q", label, *picture.shape) + picture.tobytes())
    count = f"{len(data):,} pictures in {len(files_by_class)} classes"
    description = f"folder {root.resolve().name}, {count}, scaled to the model's size"
    return ImageSet(
        data=data, labels=labels, classes=len(files_by_class), source=description, sha256=digest.hexdigest()
    )


def _pictures(path: Path) -> list[Pixels]:
    """Reads the images of a .npy or .png file, each as (H, W, C) float32 from 0 to 1. Raises `BadJob` for a file that
    cannot be read, or with another shape, dtype or range of values."""
    try:
        array = np.load(path, allow_pickle=False) if path.suffix == ".npy" else _png(path)
    except (OSError, ValueError, EOFError, MemoryError) as error:
        raise BadJob(f"{path}: not a readable image: {error}.") from error
    fractions = array.dtype.kind == "f"
    if array.dtype != np.uint8 and not fractions:
        raise BadJob(f"{path}: values of {array.dtype}, but images must be uint8 or fractions from 0 to 1.")
    if array.ndim == 2:
        array = array[None, :, :, None]
    elif array.ndim == 3:
        array = array[None]
    if array.ndim != 4 or not array.size:
        raise BadJob(f"{path}: the shape {array.shape} is not (H, W), (H, W, C) or (N, H, W, C).")
    if fractions and not (array.min() >= 0 and array.max() <= 1):
        raise BadJob(f"{path}: values from {array.min()} to {array.max()}, but fractions must be from 0 to 1.")
    return [image.astype(np.float32) / (1 if fractions else 255) for image in array]


def _png(path: Path) -> NDArray[np.uint8]:
    """A picture as (H, W, 1 or 3) values from 0 to 255. Raises `MissingLibrary` without Pillow."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingLibrary(
            f"{path}: reading it needs Pillow.", "pip install 'trainyard[data]', or use .npy."
        ) from error
    with Image.open(path) as image:
        return np.asarray(image.convert("L" if image.mode in ("1", "L", "LA") else "RGB"))


def rng(purpose: str, seed: int, step: int, index: int) -> np.random.Generator:
    """Random number generator of sample `index` of the global batch of `step`, independent for each purpose."""
    digest = hashlib.blake2b(struct.pack("<QQQ", seed, step, index) + purpose.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


def sample(image_set: ImageSet, side: int, channels: int, seed: int, step: int, index: int) -> tuple[Pixels, int]:
    """Image (C, side, side) from -1 to 1, and its class; a function of (seed, step, index) only."""
    draws = rng("picture", seed, step, index)
    if not image_set.data:
        noise = draws.random((channels, side, side), dtype=np.float32) * 2 - 1
        return noise, int(draws.integers(image_set.classes))
    picture_index = int(draws.integers(len(image_set.data)))
    picture = image_set.data[picture_index]
    if picture.shape[2] != channels:
        picture = np.repeat(picture.mean(axis=2, keepdims=True), channels, axis=2)
    row_weights, column_weights = (interpolation_matrix(length, side) for length in picture.shape[:2])
    scaled = np.einsum("ih,hwc,jw->cij", row_weights, picture, column_weights, optimize=True)
    return scaled * 2 - 1, image_set.labels[picture_index]


def interpolation_matrix(old_size: int, new_size: int) -> Pixels:
    """Interpolation matrix (new_size, old_size): triangular weights around each new pixel's centre, as wide as the
    coarser of both grids (bilinear when upscaling, an average when downscaling). Each row sums to one."""
    half_width = max(1.0, old_size / new_size)
    centres = (np.arange(new_size) + 0.5) * old_size / new_size - 0.5
    distances = np.abs(np.arange(old_size) - centres[:, None]) / half_width
    weights = np.maximum(0.0, 1.0 - distances)  # row i: of the old pixels in new pixel i
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
