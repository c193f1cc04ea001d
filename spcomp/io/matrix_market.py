"""Reading of ``.mtx``: the header, then scipy's reader after a check, or line by line.

The format is that of Boisvert, Pozo and Remington, *The Matrix Market Exchange Formats: Initial
Design* (NISTIR 5935, 1996), whose rules are kept: comments only between the first line and the
sizes, blank lines anywhere after the first; a symmetric matrix lists the entries on and below the
diagonal, a skew-symmetric one those below. ``unsigned-integer``, which scipy writes, is read too.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from spcomp.arrays import Array
from spcomp.io import grammar
from spcomp.io.coordinates import Entries, matrix, refuse_repeated, with_mirror_images
from spcomp.io.numbers import index, integer, real, show
from spcomp.io.source import PROSE, WORDS, require_room

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scipy.sparse import csr_array

    from spcomp.io.coordinates import Duplicates
    from spcomp.io.source import Source

BANNER = b"%%MatrixMarket"
DTYPES = {"real": "float64", "integer": "int64", "unsigned-integer": "uint64", "pattern": "float64"}
SYMMETRIES = {
    "real": ("general", "symmetric", "skew-symmetric"),
    "integer": ("general", "symmetric", "skew-symmetric"),
    "unsigned-integer": ("general", "symmetric"),
    "pattern": ("general", "symmetric"),
}
WHOLE = 1 << 16  # bytes: from this size on, scipy's reader and our grammar are worth loading
INT64 = np.iinfo(np.int64)
BYTES_OF_VALUE = 8
LINE = 1 << 10  # bytes: no reasonable line is longer
UNPACKS = 1100  # the most bytes that one byte of gzip unpacks to


@dataclass(frozen=True, slots=True)
class Header:
    """The lines before the entries; ``offset`` is the byte where the entries begin."""

    layout: str
    field: str
    symmetry: str
    shape: tuple[int, int]
    count: int
    line: int
    offset: int

    @property
    def columns(self) -> tuple[grammar.Column, ...]:
        """The kind of each word of a line."""
        indices: tuple[grammar.Column, ...] = ()
        if self.layout == "coordinate":
            indices = ("index", "index")
        if self.field == "unsigned-integer":
            return (*indices, "index")
        if self.field == "real":
            return (*indices, "real")
        return (*indices, "integer") if self.field == "integer" else indices


def read(source: Source, duplicates: Duplicates) -> csr_array | Array:
    """Return the matrix or dense array in *source*; raises FileError with the wrong line."""
    header = read_header(source)
    if header.layout == "array":
        if max(header.shape) * BYTES_OF_VALUE > sys.maxsize:  # numpy refuses it even if empty
            source.refuse(header.line, f"no array has the shape {header.shape}")
        array = _fast_dense(source, header) if source.size >= WHOLE else None
        return _dense(source, header) if array is None else array
    if source.size >= WHOLE and (entries := _fast(source, header)):
        result = matrix(source, entries, duplicates)
        if result is not None:
            return result
    entries = _careful(source, header)
    if duplicates == "error":
        refuse_repeated(source, entries)
    return cast("csr_array", matrix(source, _mirrored(entries, header), "sum"))


def entries(source: Source, header: Header) -> Entries:
    """Return the entries of *source*, mirrored ones included, some maybe repeated.

    Raises FileError with the wrong line.
    """
    fast = _fast(source, header) if source.size >= WHOLE else None
    return fast or _mirrored(_careful(source, header), header)


def read_header(source: Source) -> Header:
    """Read the first line, the comments and the sizes."""
    _, line = next(source.lines(), (0, b""))
    if not source.number:
        source.refuse(0, "it is empty")
    kinds = _banner(source, WORDS.findall(line))
    for number, words in source.entries(b"%", 1, source.offset):
        return _sizes(source, number, words, kinds)
    raise source.error(source.number, "the file ends before the line of sizes")


def _banner(source: Source, words: list[bytes]) -> tuple[str, str, str]:
    """Return layout, field and symmetry of the first line; refuses other combinations."""
    if not words or words[0] != BANNER:
        source.refuse(
            1,
            "the first line is no Matrix Market banner",
            hint="it reads like: %%MatrixMarket matrix coordinate real general",
        )
    if len(words) != 5:
        source.refuse(1, f"the banner has {len(words)} words, expected 5")
    kind, layout, field, symmetry = (word.decode("latin-1").lower() for word in words[1:])
    if kind != "matrix":
        source.refuse(1, f"the object {show(words[1])} is unknown, expected matrix")
    if layout not in ("coordinate", "array"):
        source.refuse(1, f"the format {show(words[2])} is unknown, expected coordinate or array")
    if field == "complex":
        source.refuse(1, "complex matrices are not supported")
    if field not in DTYPES:
        source.refuse(
            1, f"the field {show(words[3])} is unknown, expected real, integer or pattern"
        )
    if symmetry not in (*SYMMETRIES["real"], "hermitian"):
        source.refuse(
            1,
            f"the symmetry {show(words[4])} is unknown, expected {', '.join(SYMMETRIES['real'])}",
        )
    if symmetry not in SYMMETRIES[field]:
        source.refuse(1, f"a matrix that is {field} cannot be {symmetry}")
    if (layout, field) == ("array", "pattern"):
        source.refuse(1, "an array cannot be pattern, it has no positions")
    return layout, field, symmetry


def _sizes(source: Source, line: int, words: list[bytes], kinds: tuple[str, str, str]) -> Header:
    """Return the header, from the *words* of the line of sizes."""
    layout, field, symmetry = kinds
    names = ("rows", "columns", "entries")[: 3 if layout == "coordinate" else 2]
    if len(words) != len(names):
        source.refuse(line, f"got {len(words)} sizes, expected {len(names)}: {', '.join(names)}")
    sizes = [integer(source, line, word) for word in words]
    for name, size, word in zip(names, sizes, words, strict=True):
        if size < 0 or not word.isdigit():
            source.refuse(line, f"the number of {name} is {show(word)}, expected 0 or more")
    rows, columns = sizes[:2]
    if symmetry != "general" and rows != columns:
        source.refuse(line, f"a matrix of shape {rows} x {columns} cannot be {symmetry}")
    count = sizes[2] if layout == "coordinate" else _value_count(rows, columns, symmetry)
    return Header(layout, field, symmetry, (rows, columns), count, line, source.offset)


def _value_count(rows: int, columns: int, symmetry: str) -> int:
    """Return how many values an array file has."""
    below = {"general": rows * columns, "symmetric": rows * (rows + 1) // 2}
    return below.get(symmetry, rows * (rows - 1) // 2)


def _too_short(source: Source, header: Header) -> bool:
    """Whether the file is too short for its entries, so that no memory may be allocated."""
    least = 2 * max(len(header.columns), 1)  # bytes of a line, its end included
    room = (source.size - header.offset) * (UNPACKS if source.zipped else 1)
    return header.count * least > room + 1 or (source.zipped and header.count * least > 1 << 40)


def _through_scipy(source: Source, header: Header) -> Any:
    """Return what scipy's reader reads; None if the grammar or scipy does not accept the file."""
    from scipy.io import mmread

    if not header.count or _too_short(source, header):
        return None  # scipy divides by the number of rows: without any, the process crashes
    most = PROSE + LINE * header.count
    if not grammar.conforms(source, header.offset, header.columns, most=most):
        return None
    try:
        return mmread(source.path, spmatrix=False)
    except (ValueError, OverflowError, RuntimeError, MemoryError, OSError, EOFError):
        return None  # the careful reading finds out why


def _fast(source: Source, header: Header) -> Entries | None:
    """Return all entries, mirrored ones included; None if they must be read line by line."""
    coo = _through_scipy(source, header)
    if coo is None or coo.shape != header.shape or coo.nnz < header.count:
        return None
    rows, columns, values = coo.row, coo.col, coo.data
    if values.dtype != DTYPES[header.field] or (header.field == "real" and np.isinf(values).any()):
        return None
    least = {"symmetric": 0, "skew-symmetric": 1}.get(header.symmetry)
    listed = slice(header.count)  # scipy appends the mirrored entries to those of the file
    if least is not None and (rows[listed] - columns[listed] < least).any():
        return None
    if least and values.dtype.kind == "i" and (values == np.iinfo(values.dtype).min).any():
        return None
    return Entries(header.shape, (rows, columns), values, declared=header.line)


def _fast_dense(source: Source, header: Header) -> Array | None:
    """Return the array; None if it must be read line by line."""
    if header.symmetry != "general":
        return None
    array = _through_scipy(source, header)
    if array is None or array.shape != header.shape or array.dtype != DTYPES[header.field]:
        return None
    if header.field == "real" and np.isinf(array).any():
        return None
    return np.asarray(array)


def _body(source: Source, header: Header) -> Iterator[tuple[int, list[bytes]]]:
    """Yield number and words of each line with an entry; there are as many as declared."""
    count, what = 0, "values" if header.layout == "array" else "entries"
    for number, words in source.entries(None, header.line, header.offset):
        if words[0].startswith(b"%"):
            source.refuse(number, f"a comment among the {what}")
        if count == header.count:
            source.refuse(number, f"there are more {what} than the {count} declared")
        if len(words) != len(header.columns):
            expected = f"expected {len(header.columns)}: {_expected(header)}"
            source.refuse(number, f"got {len(words)} words, {expected}")
        count += 1
        yield number, words
    if count < header.count:
        source.refuse(source.number, f"the file ends after {count} of {header.count} {what}")


def _expected(header: Header) -> str:
    if header.layout == "array":
        return "one value"
    return "row, column" + ("" if header.field == "pattern" else ", value")


def _number(source: Source, line: int, word: bytes, header: Header) -> Any:
    if header.field == "real":
        return real(source, line, word)
    value = integer(source, line, word, DTYPES[header.field])
    if header.symmetry == "skew-symmetric" and value == INT64.min:
        source.refuse(line, f"the negative of {value} overflows int64")
    return value


def _careful(source: Source, header: Header) -> Entries:
    """Return the entries as they are listed, each with its line."""
    code = {"real": "d", "integer": "q", "unsigned-integer": "Q", "pattern": "d"}[header.field]
    rows, columns, lines, values = array("q"), array("q"), array("q"), array(code)
    for line, words in _body(source, header):
        row = index(source, line, words[0], header.shape[0], "row")
        column = index(source, line, words[1], header.shape[1], "column")
        _refuse_wrong_triangle(source, line, row, column, header.symmetry)
        value: Any = 1.0 if header.field == "pattern" else _number(source, line, words[2], header)
        rows.append(row)
        columns.append(column)
        lines.append(line)
        values.append(value)
    coords = (np.array(rows), np.array(columns))
    return Entries(header.shape, coords, np.array(values), np.array(lines), header.line)


def _refuse_wrong_triangle(source: Source, line: int, row: int, column: int, symmetry: str) -> None:
    """Raise FileError for an entry in the triangle that *symmetry* implies."""
    if symmetry == "general" or row > column or (symmetry == "symmetric" and row == column):
        return
    where = "on" if row == column else "above"
    source.refuse(
        line, f"entry ({row + 1}, {column + 1}) is {where} the diagonal of a {symmetry} matrix"
    )


def _mirrored(entries: Entries, header: Header) -> Entries:
    """Return *entries* and their mirror images."""
    if header.symmetry == "general":
        return entries
    return with_mirror_images(entries, -1 if header.symmetry == "skew-symmetric" else 1)


def _dense(source: Source, header: Header) -> Array:
    """Return the array of a file, which lists values column by column."""
    dtype = np.dtype(DTYPES[header.field])
    values = array({"f": "d", "i": "q", "u": "Q"}[dtype.kind])
    for line, words in _body(source, header):
        value = _number(source, line, words[0], header)
        values.append(value)
    numbers = np.array(values, dtype)
    if header.symmetry == "general":
        return np.ascontiguousarray(numbers.reshape(header.shape, order="F"))
    require_room(source, header.line, header.shape, dtype.itemsize * header.shape[0] ** 2)
    full = np.zeros(header.shape, dtype)
    offset = 1 if header.symmetry == "skew-symmetric" else 0
    columns, rows = np.triu_indices(header.shape[0], offset)  # column by column below the diagonal
    full[columns, rows] = -numbers if offset else numbers
    full[rows, columns] = numbers
    return full
