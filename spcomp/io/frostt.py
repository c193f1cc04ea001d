"""Reading of ``.tns``: lines of 1-based coordinates and a value, as FROSTT has them.

The order is the number of columns less one; lines that begin with ``#`` are comments. The format
has no place for the shape: it is given, or as large as the coordinates ask for. See Smith et al.,
*FROSTT: The Formidable Repository of Open Sparse Tensors and Tools* (2017), http://frostt.io.
"""

from __future__ import annotations

import io
import operator
from array import array
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from spcomp.errors import ArgumentError
from spcomp.io import grammar
from spcomp.io.coordinates import Entries, collected, refuse_repeated
from spcomp.io.numbers import index, real
from spcomp.io.source import REPORT

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from spcomp.compiler.tensor import Tensor
    from spcomp.io.coordinates import Duplicates
    from spcomp.io.source import Source

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Shape: TypeAlias = tuple[int, ...]
WHOLE = 1 << 16  # bytes of a file from which on scipy and our grammar are worth their loading
EXACT = 1 << 53  # integers up to here are what they are as float64, too
ORDERS = 32  # axes at most
NUMBER = 16  # bytes of memory for one that is read: itself, and a copy in another order


def read(source: Source, duplicates: Duplicates, shape: Shape | None) -> csr_array | Tensor:
    """Return the tensor in *source*, a CSR array if it has two axes.

    Raises FileError at the line at fault, ArgumentError for a *shape* that is none.
    """
    line, offset, order = _first(source)
    _check_shape(source, line, shape, order)
    entries = _fast(source, line, offset, order, shape) if source.size >= WHOLE else None
    if entries is not None and (made := collected(source, entries, duplicates)) is not None:
        return made
    entries = _careful(source, order, shape)
    if duplicates == "error":
        refuse_repeated(source, entries)
    made = collected(source, entries, "sum")
    if made is None:
        source.refuse(0, "it has repeated entries")
    return made


def _first(source: Source) -> tuple[int, int, int]:
    """Return the line before the first entry, the byte where it ends, and the order."""
    for number, words in source.entries(b"#"):
        if not 2 <= len(words) <= ORDERS + 1:
            expected = f"expected 1 to {ORDERS} coordinates and a value"
            source.refuse(number, f"got {len(words)} words, {expected}")
        return number - 1, source.begin, len(words) - 1
    return source.number, source.offset, 0


def _check_shape(source: Source, line: int, shape: Shape | None, order: int) -> None:
    if shape is None:
        if not order:
            source.refuse(
                line, "the file ends without an entry", hint="an empty tensor needs shape=(...)"
            )
    elif order not in (0, len(shape)):
        source.refuse(line + 1, f"got {order} coordinates for the shape {shape}")


def _fast(
    source: Source, line: int, offset: int, order: int, shape: Shape | None
) -> Entries | None:
    """Return all entries, or None where only the careful reading can."""
    from scipy.io import mmread

    index_: grammar.Column = "index"
    body = io.BytesIO()
    body.write(b" " * 99 + b"\n")  # room for the header, which has the number of lines
    apart = bytes.maketrans(b" \t\r", b"\n\n\n")  # as an array: one number on a line
    rows = 0

    def keep(lines: bytes) -> None:
        nonlocal rows
        rows += lines.count(b"\n")
        source.require_room(0, body.tell() + len(lines) + rows * (order + 1) * NUMBER)
        body.write(lines.translate(apart))

    if not grammar.conforms(source, offset, (*[index_] * order, "real"), empty=False, sink=keep):
        return None
    if not rows:
        return None  # an array without rows ends the process: scipy divides by their number
    head = b"%%%%MatrixMarket matrix array real general\n%d 1" % (rows * (order + 1))
    body.seek(0)
    body.write(head)
    body.seek(0)
    try:
        found = np.asarray(mmread(body))
    except (ValueError, OverflowError, RuntimeError, MemoryError):
        return None  # the careful reading finds out why
    if found.shape != (rows * (order + 1), 1) or np.isinf(found).any():
        return None
    columned = found.reshape(rows, order + 1)
    where, values = columned[:, :-1], columned[:, -1].copy()
    if where.min() < 1 or where.max() >= EXACT:
        return None
    coords = tuple(where[:, axis].astype(np.int64) - 1 for axis in range(order))
    least = tuple(int(coord.max()) + 1 for coord in coords)
    if shape and any(need > extent for need, extent in zip(least, shape, strict=True)):
        return None
    return Entries(shape or least, coords, values, declared=line)


def _careful(source: Source, order: int, shape: Shape | None) -> Entries:
    """Return the entries as they are listed, each with its line."""
    order = order or len(shape or ())
    limits = shape or (-1,) * order
    coords = tuple(array("q") for _ in range(order))
    lines, values = array("q"), array("d")
    for number, words in source.entries(b"#"):
        if len(words) != order + 1:
            expected = f"expected {order} coordinates and a value"
            source.refuse(number, f"got {len(words)} words, {expected}")
        for axis, coord in enumerate(coords):
            name = f"coordinate {axis + 1}"
            coord.append(index(source, number, words[axis], limits[axis], name))
        values.append(real(source, number, words[-1]))
        lines.append(number)
        if len(lines) % REPORT == 0:
            source.require_room(number, len(lines) * (order + 2) * NUMBER)
    arrays = tuple(np.array(coord) for coord in coords)
    extents = shape or tuple(int(coord.max()) + 1 for coord in arrays)
    return Entries(extents, arrays, np.array(values), np.array(lines))


def shape_of(shape: Any) -> Shape | None:
    """Return the *shape* argument as a tuple of int; raises ArgumentError if it is none."""
    if shape is None:
        return None
    try:
        found = tuple(operator.index(extent) for extent in shape)
    except TypeError:
        found = ()
    if not found or len(found) > ORDERS or any(not 0 <= n < 1 << 63 for n in found):
        raise ArgumentError(f"argument shape: got {shape!r}, expected 1 to {ORDERS} extents")
    return found
