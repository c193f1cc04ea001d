"""Reading of ``.tns``: lines of 1-based coordinates and a value, as in FROSTT.

The order is the number of columns less one; lines that begin with ``#`` are comments. The format
has no shape: it is an argument, or the least that holds the coordinates. See Smith et al.,
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
from spcomp.io.coordinates import Entries, csr_or_tensor, refuse_repeated
from spcomp.io.numbers import index, real
from spcomp.io.source import REPORT

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from spcomp.io.coordinates import Duplicates
    from spcomp.io.source import Source
    from spcomp.tensors.tensor import Tensor

Shape: TypeAlias = tuple[int, ...]
WHOLE = 1 << 16  # bytes: from this size on, scipy's reader and our grammar are worth loading
EXACT = 1 << 53  # float64 holds all integers up to here
ORDERS = 32  # axes at most
NUMBER = 16  # bytes of memory for each number that is read: itself and a reordered copy


def read(source: Source, duplicates: Duplicates, shape: Shape | None) -> csr_array | Tensor:
    """Return the tensor in *source*, as a CSR array if it has two axes.

    Raises FileError with the wrong line.
    """
    line, offset, order = _first(source)
    _check_shape(source, line, shape, order)
    entries = _fast(source, line, offset, order, shape) if source.size >= WHOLE else None
    if entries is not None and (result := csr_or_tensor(source, entries, duplicates)) is not None:
        return result
    entries = _careful(source, order, shape)
    if duplicates == "error":
        refuse_repeated(source, entries)
    result = csr_or_tensor(source, entries, "sum")
    if result is None:
        source.refuse(0, "it has repeated entries")
    return result


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
    """Return all entries; None if they must be read line by line."""
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
        return None  # scipy divides by the number of rows: without any, the process crashes
    head = b"%%%%MatrixMarket matrix array real general\n%d 1" % (rows * (order + 1))
    body.seek(0)
    body.write(head)
    body.seek(0)
    try:
        numbers = np.asarray(mmread(body))
    except (ValueError, OverflowError, RuntimeError, MemoryError):
        return None  # the careful reading finds out why
    if numbers.shape != (rows * (order + 1), 1) or np.isinf(numbers).any():
        return None
    columned = numbers.reshape(rows, order + 1)
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
    """Return the *shape* argument as a tuple of int; raises ArgumentError if it is not a shape."""
    if shape is None:
        return None
    try:
        extents = tuple(operator.index(extent) for extent in shape)
    except TypeError:
        extents = ()
    if not extents or len(extents) > ORDERS or any(not 0 <= n < 1 << 63 for n in extents):
        raise ArgumentError(f"argument shape: got {shape!r}, expected 1 to {ORDERS} extents")
    return extents
