"""Columns: a table of named numpy columns, which data-frame libraries can import.

It implements the Arrow PyCapsule interface: `polars.DataFrame(columns)`, `pyarrow.table(columns)` and
`pandas.DataFrame.from_arrow(columns)` read it without a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from trainyard.errors import MissingLibrary
from trainyard.events import I32
from trainyard.trace.export.arrow_stream import Column, Words, make_stream

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

TYPES = ("bool", "int32", "int64", "float64")
"""Number formats of columns."""
_CHUNK = 65536
"""Rows that are converted to Python values at a time."""


class Columns:
    """An immutable table: ordered named columns of equal length. Raises `ValueError` for invalid columns."""

    # Not a Mapping: libraries would treat it as a dictionary of arrays instead of using the interface.
    __slots__ = ("_columns", "_length")

    def __init__(self, columns: Mapping[str, Column]) -> None:
        """`columns`: name -> column; contiguous ones are not copied. Raises `ValueError` for columns of different
        lengths, of a number format that is not in `TYPES`, or with several dimensions."""
        self._columns = MappingProxyType({name: _frozen(name, column) for name, column in columns.items()})
        lengths = {_length(column) for column in self._columns.values()}
        if len(lengths) != 1:
            raise ValueError(f"columns of different lengths: {sorted(lengths)}")
        self._length = lengths.pop()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._columns)

    def __getitem__(self, name: str) -> Column:
        return self._columns[name]

    def items(self) -> Iterable[tuple[str, Column]]:
        """(name, column), in order."""
        return self._columns.items()

    def __len__(self) -> int:
        """Number of rows."""
        return self._length

    def __repr__(self) -> str:
        return f"<Columns, {len(self):,} rows: {', '.join(self.names)}>"

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yields rows of plain Python values, None if missing."""
        for begin in range(0, len(self), _CHUNK):
            yield from zip(*(_values(column, begin, begin + _CHUNK) for _, column in self.items()))

    @staticmethod
    def joined(tables: Sequence[Columns]) -> Columns:
        """Concatenates the rows of one or more tables with the same columns."""
        return Columns({name: _join([table[name] for table in tables]) for name in tables[0].names})

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame: texts as categories, numbers with missing ones as nullable arrays. Raises `MissingLibrary`."""
        library = import_optional("pandas")
        return library.DataFrame({name: _for_pandas(library, column) for name, column in self.items()}, copy=False)

    def to_polars(self) -> polars.DataFrame:
        """Raises `MissingLibrary`."""
        return import_optional("polars").DataFrame(self)

    def to_arrow(self) -> pyarrow.Table:
        """Raises `MissingLibrary`."""
        return import_optional("pyarrow").table(self)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """See https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html. One batch; numbers are not
        copied. A requested schema is ignored, as the interface allows."""
        return make_stream(self._columns, self._length)


def text_column_from_codes(codes: I32, texts: Sequence[str]) -> Words:
    """A text column from indices into `texts`, -1 for missing.

    The dictionary of the result has each text in use once, in the order of `texts`; characters that UTF-8 cannot encode
    are replaced.
    """
    used = np.zeros(len(texts) + 1, bool)
    used[codes] = True
    numbers: dict[str, int] = {}  # text -> its code in the result
    new_code = np.full(len(texts) + 1, -1, np.int32)
    for code in np.flatnonzero(used[:-1]).tolist():
        text = texts[code].encode("utf-8", "replace").decode()
        new_code[code] = numbers.setdefault(text, len(numbers))
    return Words(new_code[codes], tuple(numbers))


def text_column(texts: Sequence[str | None]) -> Words:
    """A text column from a list of texts, None for missing."""
    numbers: dict[str, int] = {}
    codes = [-1 if text is None else numbers.setdefault(text, len(numbers)) for text in texts]
    return text_column_from_codes(np.array(codes, np.int32), tuple(numbers))


def mask_unknown(values: ArrayLike, unknown: int = -1) -> Column:
    """A number column in which values equal to `unknown` are missing."""
    array = np.asarray(values)
    return np.ma.MaskedArray(array, array == unknown)


def number_column(values: Sequence[float | None], dtype: str = "int64") -> Column:
    """A number column from a list, None for missing."""
    missing = np.array([value is None for value in values], bool)
    filled = np.array([0 if value is None else value for value in values], dtype)
    return np.ma.MaskedArray(filled, missing)


def import_optional(library: str) -> Any:
    """Imports an optional library. Raises `MissingLibrary`."""
    try:
        return import_module(library)
    except ImportError as error:
        raise MissingLibrary(f"{library} is not installed.", f"Install it: pip install {library}") from error


def _frozen(name: str, column: Column) -> Column:
    """A read-only view of a column. Raises `ValueError` if Arrow's interface cannot describe its dtype or shape."""
    if isinstance(column, Words):
        return column._replace(codes=_frozen(name, column.codes))
    if column.dtype.name not in TYPES or column.ndim != 1:
        raise ValueError(
            f"column {name} is {column.dtype}, {column.ndim}-dimensional; it must be one of {TYPES}, 1-dimensional"
        )
    view = (column if column.flags.c_contiguous else column.copy()).view()
    view.flags.writeable = False
    return view


def _length(column: Column) -> int:
    return len(column.codes if isinstance(column, Words) else column)


def _values(column: Column, begin: int, end: int) -> list[Any]:
    if isinstance(column, Words):
        return column._replace(codes=column.codes[begin:end]).texts().tolist()
    return column[begin:end].tolist()


def _join(columns: Sequence[Column]) -> Column:
    """Concatenates columns of one type. Text columns get a common list of words, and their codes are changed to it."""
    texts = [column for column in columns if isinstance(column, Words)]
    if not texts:
        numeric = [column for column in columns if not isinstance(column, Words)]
        has_mask = any(isinstance(column, np.ma.MaskedArray) for column in numeric)
        return (np.ma if has_mask else np).concatenate(numeric)
    numbers: dict[str, int] = {}  # word -> its code in the result
    # For each column: the new code of each old one, -1 for -1, taken by the old codes.
    codes = [
        np.array([*(numbers.setdefault(word, len(numbers)) for word in part.words), -1], np.int32)[part.codes]
        for part in texts
    ]
    return Words(np.concatenate(codes), tuple(numbers))


def _for_pandas(pandas: Any, column: Column) -> Any:
    """The column as a pandas extension array that has missing values, if it needs one."""
    if isinstance(column, Words):
        return pandas.Categorical.from_codes(column.codes, categories=list(column.words))
    if isinstance(column, np.ma.MaskedArray):
        kind = pandas.arrays.FloatingArray if column.dtype.kind == "f" else pandas.arrays.IntegerArray
        return kind(np.asarray(column.data), np.ma.getmaskarray(column).copy())
    return column
