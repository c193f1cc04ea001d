"""Before the route: the axes and descriptions from which the library's formats are built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spcomp.dtypes import handle, int64
from spcomp.errors import FormatError
from spcomp.formats.rules import FormatRewriteRule
from spcomp.ir.axis import Axis, SparseBuffer
from spcomp.ir.expr import Expr, Var, cast, const
from spcomp.ir.program import CoordFunc
from spcomp.ir.stmt import Seq

if TYPE_CHECKING:
    from spcomp.dtypes import DType

CSR = ("dense_fixed", "sparse_variable")
CSF = (*CSR, "sparse_variable")


def require(buffer: SparseBuffer, kinds: tuple[str, ...], what: str) -> None:
    """Raise FormatError unless *buffer* has axes of *kinds*, each the parent of the next."""
    actual = tuple(axis.kind for axis in buffer.axes)
    nested = all(a.parent is b for a, b in zip(buffer.axes[1:], buffer.axes, strict=False))
    if actual != kinds or not nested or buffer.extra_storage:
        raise FormatError(
            f"{buffer.name} cannot be stored {what}, its axes are {', '.join(actual)}",
            buffer.span,
            hint=f"the format is for buffers along {' and '.join(kinds)} axes",
        )


def dense(name: str, length: Expr | int) -> Axis:
    """Return a dense root axis."""
    return Axis(name, "dense_fixed", const(length) if isinstance(length, int) else length)


def compressed(name: str, parent: Axis, length: Expr, idtype: DType) -> Axis:
    """Return a sparse_variable axis below *parent*, with new parameters for arrays and count."""
    arrays = Var(f"{name}_indptr", handle), Var(f"{name}_indices", handle)
    count = Var(f"{name}_count", int64)
    return Axis(name, "sparse_variable", length, parent, count, None, *arrays, idtype)


def padded(
    name: str, parent: Axis, length: Expr, width: int | None, idtype: DType, *, unique: bool = False
) -> Axis:
    """Return a sparse_fixed axis of *width* coordinates below *parent*; None: a parameter."""
    size = Var(f"{name}_width", int64) if width is None else const(width)
    indices = Var(f"{name}_indices", handle)
    return Axis(
        name, "sparse_fixed", length, parent, None, size, None, indices, idtype, unique=unique
    )


def listed(name: str, length: Expr, idtype: DType, *, unique: bool = True) -> tuple[Axis, Axis]:
    """Return a root axis of length 1 and, below it, an ascending list of coordinates."""
    root = dense("O", 1)
    return root, padded(name, root, length, None, idtype, unique=unique)


def pieces(name: str, parent: Axis, idtype: DType) -> Axis:
    """Return a free axis: the pieces into which each fiber below *parent* is cut."""
    indptr, count = Var(f"{name}_indptr", handle), Var(f"{name}_count", int64)
    return Axis(name, "dense_variable", count, parent, count, None, indptr, None, idtype)


def stored(
    name: str, axes: tuple[Axis, ...], idtype: DType, *, distinct: bool = False
) -> SparseBuffer:
    """Return a buffer of coordinates along *axes*, at a new parameter."""
    return SparseBuffer(name, Var(name.lower(), handle), axes, idtype, distinct=distinct)


def description(
    buffer: SparseBuffer, axes: tuple[Axis, ...], *coordinates: SparseBuffer
) -> CoordFunc:
    """Return the description of *buffer* along *axes*; their arrays and sizes are parameters.

    So are those of *coordinates*, buffers that say where elements lie.
    """
    data = Var((buffer.data or buffer).name, handle)
    new = SparseBuffer(buffer.name, data, axes, buffer.dtype)
    params = [data]
    for axis in axes:
        named = (axis.indptr, axis.indices, axis.nnz, axis.nnz_cols)
        params += [x for x in named if isinstance(x, Var)]
    params += [x.data for x in coordinates if x.data is not None]
    buffers = (new, *coordinates)
    return CoordFunc(f"{buffer.name}_format", tuple(params), axes, buffers, Seq(()))


def remainder(buffer: SparseBuffer) -> FormatRewriteRule:
    """Return the rule ``rest``: compressed rows, without empty ones, for all other elements."""
    rows, columns = buffer.axes
    root, some = listed("R", rows.length, columns.idtype)
    stored = compressed("J", some, columns.length, columns.idtype)
    return FormatRewriteRule(
        "rest",
        description(buffer, (root, some, stored)),
        (buffer.name,),
        (rows.name, columns.name),
        ("O", "R", "J"),
        {rows.name: ("O", "R"), columns.name: ("J",)},
        lambda i, j: (0, i, j),
        lambda o, r, j: (r, j),  # noqa: ARG005
    )


def length(axis: Axis) -> Expr:
    """Return the length of *axis* as an int64."""
    return cast(axis.length, int64)
