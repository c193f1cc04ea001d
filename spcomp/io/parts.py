"""Beside reading: some rows of a matrix in a file, of which no one reads all."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.errors import ArgumentError, FileError
from spcomp.io import binsparse, hdf5, matrix_market
from spcomp.io.coordinates import Entries, csr
from spcomp.io.source import Source
from spcomp.tensors.convert import convert
from spcomp.tensors.tensor import Tensor

if TYPE_CHECKING:
    from spcomp.arrays import Array
    from spcomp.io.coordinates import Duplicates

HEAD = 2  # lines that a part of a text file gets: the banner and the sizes


@dataclass(frozen=True, slots=True)
class TextParts:
    """A Matrix Market file of entries in any order, in parts; part k begins at ``offsets[k]``.

    *count*: the entries that it declares.
    """

    path: str
    banner: str
    shape: tuple[int, int]
    dtype: str
    count: int
    offsets: tuple[int, ...]


def text_parts(path: Any, most: int) -> TextParts:
    """Return how the file *path* is read in parts of about *most* bytes. Raises FileError."""
    source = Source(path)
    if source.zipped:
        source.refuse(0, "parts of a compressed file cannot be read", hint="unpack it: gunzip")
    with source.file_errors():
        header = matrix_market.read_header(source)
        if header.layout != "coordinate":
            source.refuse(1, "it is a dense array", hint="read it with spcomp.read")
        offsets = [header.offset]
        with source.opened() as file:
            while offsets[-1] + most < source.size:
                file.seek(offsets[-1] + most)
                file.readline()
                offsets.append(min(file.tell(), source.size))
    last = [source.size] if source.size > offsets[-1] or len(offsets) == 1 else []
    banner = f"%%MatrixMarket matrix coordinate {header.field} {header.symmetry}"
    dtype = matrix_market.DTYPES[header.field]
    return TextParts(source.name, banner, header.shape, dtype, header.count, (*offsets, *last))


def read_text_part(parts: TextParts, at: int) -> tuple[Entries, int]:
    """Return the entries of part *at*, mirrored ones included, and how many lines have one.

    Raises FileError with the place.
    """
    begin, end = parts.offsets[at : at + 2]
    source = Source(parts.path)
    with source.opened() as file:
        file.seek(begin)
        data = file.read(end - begin)
    if len(data) < end - begin:
        source.refuse(0, f"the file ends before byte {end}: it has changed")
    lines = sum(1 for line in data.split(b"\n") if line.strip())
    rows, columns = parts.shape
    with tempfile.TemporaryDirectory() as folder:  # what reads a file reads its parts, too
        path = Path(folder, "part.mtx")
        path.write_bytes(f"{parts.banner}\n{rows} {columns} {lines}\n".encode() + data)
        part = Source(path)
        try:
            return matrix_market.entries(part, matrix_market.read_header(part)), lines
        except FileError as error:
            where, _, reason = error.message.removeprefix(f"{path}:").partition(": ")
            line = int(where) - HEAD if where.isdigit() else 0
            place = f"line {line} after byte {begin}"
            raise FileError(f"{parts.path}: {place}: {reason}", hint=error.hint) from None


@dataclass(frozen=True, slots=True)
class Rows:
    """A Binsparse file in csr, or csc (then *format* says so, and rows are columns)."""

    path: str
    format: str
    shape: tuple[int, ...]
    dtype: str
    types: dict[str, str]


def binsparse_rows(path: Any) -> tuple[Rows, Array]:
    """Return what is known of the file *path* without its elements, and the pointers of its rows.

    Raises FileError for other formats than CSR and CSC, which cannot be read in parts.
    """
    source = Source(path)
    container = hdf5.arrays(source, binsparse.ATTRIBUTE, "pointers_to_1")
    about = binsparse.descriptor(source, container)
    shape, kind, types = binsparse.shape_of(source, about), about.get("format"), about["data_types"]
    plain = not about.get("structure") and not about.get("fill")
    if kind not in ("CSR", "CSC") or len(shape) != 2 or not plain:
        source.refuse(0, f"parts of {kind} cannot be read", hint="read it with spcomp.read")
    values = str(types.get("values"))
    if values.startswith("iso["):
        source.refuse(0, "it has one value for all", hint="read it with spcomp.read")
    dtype = {"bint8": "bool"}.get(values, values)
    pointers = binsparse.Arrays(source, container, types)["pointers_to_1"]
    if pointers.size != shape[kind == "CSC"] + 1 or (np.diff(pointers.astype(np.int64)) < 0).any():
        source.refuse(0, "array pointers_to_1 does not ascend over all rows")
    return Rows(source.name, kind.lower(), shape, dtype, types), pointers


def read_rows(rows: Rows, begin: int, end: int, first: int, last: int) -> Any:
    """Return the rows from *begin* to *end*, whose elements are those from *first* to *last*.

    Raises FileError.
    """
    source = Source(rows.path)
    parts = {"pointers_to_1": (begin, end + 1), "indices_1": (first, last), "values": (first, last)}
    try:
        container = hdf5.arrays(source, binsparse.ATTRIBUTE, binsparse.NAMES, parts)
        arrays = binsparse.Arrays(source, container, rows.types)
        pointers, values = arrays["pointers_to_1"].astype(np.int64), arrays.values(last - first)
        level = ("compressed", pointers - first, arrays["indices_1"])
        minor = rows.shape[rows.format == "csr"]
        block = Tensor((end - begin, minor), (None, level), values)
        return convert(block if rows.format == "csr" else block.T, rows.format, duplicates="error")
    except FileError:
        raise
    except ArgumentError as error:
        where = f"rows {begin} to {end}"
        raise source.error(0, f"{where}: {error.message.replace('argument', 'array', 1)}") from None


def by_rows(entries: Entries, starts: tuple[int, ...]) -> list[Entries]:
    """Return for each two consecutive *starts* the entries of these rows, counted from the first.

    Entries keep their order.
    """
    rows, columns = entries.coords
    piece = np.searchsorted(starts[1:], rows, "right")
    order = np.argsort(piece, kind="stable")
    cuts = np.searchsorted(piece[order], np.arange(len(starts)))
    found = []
    for begin, end, first, last in zip(starts, starts[1:], cuts, cuts[1:], strict=False):
        kept = order[first:last]
        coords = (rows[kept] - begin, columns[kept])
        shape = (end - begin, *entries.shape[1:])
        found.append(replace(entries, shape=shape, coords=coords, values=entries.values[kept]))
    return found


def block_of(parts: TextParts, pieces: list[tuple[Entries, int]], duplicates: Duplicates) -> Any:
    """Return the csr array of the *pieces* of some rows, one of each part, with its lines.

    Raises FileError if the file has another number of entries than it says, or repeats one.
    """
    source = Source(parts.path)
    count = sum(lines for _, lines in pieces)
    if count != parts.count:
        source.refuse(0, f"there are {count} entries, {parts.count} are declared")
    found = [entries for entries, _ in pieces]
    coords = tuple(np.concatenate([e.coords[dim] for e in found]) for dim in range(2))
    values = np.concatenate([e.values for e in found])
    block, repeated = csr(Entries(found[0].shape, coords, values))
    if repeated and duplicates == "error":
        source.refuse(
            0, "an entry is repeated", hint='read it with duplicates="sum" to add them up'
        )
    return block
