"""Short names to build programs by hand from IR nodes, for the interpreter and the verifier."""

from __future__ import annotations

from typing import Any

import numpy as np

from spcomp import dtypes as dt
from spcomp.ir.access import Load
from spcomp.ir.axis import AnyBuffer, Axis, Buffer, SparseBuffer
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import BinOp, Expr, Var, binary, cast, const
from spcomp.ir.func import Func
from spcomp.ir.interpret.program import interpret
from spcomp.ir.position import Block, BlockIter
from spcomp.ir.program import CoordFunc, FlatFunc, PosFunc
from spcomp.ir.stmt import For, Stmt, Store

f32, i32, i64 = dt.float32, dt.int32, dt.int64


def var(name: str, dtype: dt.DType = i64) -> Var:
    return Var(name, dtype)


def handle(name: str) -> Var:
    return Var(name, dt.handle)


def dense(name: str, length: int) -> Axis:
    return Axis(name, "dense_fixed", const(length))


def compressed(name: str, parent: Axis, length: int, **more: Any) -> Axis:
    """A sparse_variable axis; its arrays are NAME_indptr and NAME_indices."""
    arrays = {"indptr": handle(f"{name}_indptr"), "indices": handle(f"{name}_indices")}
    return Axis(name, "sparse_variable", const(length), parent, **(arrays | more))


def ragged(name: str, parent: Axis, length: int) -> Axis:
    indptr = handle(f"{name}_indptr")
    return Axis(name, "dense_variable", const(length), parent, indptr=indptr)


def fixed(name: str, parent: Axis, length: int, columns: int) -> Axis:
    indices = handle(f"{name}_indices")
    count = const(columns)
    return Axis(name, "sparse_fixed", const(length), parent, nnz_cols=count, indices=indices)


def assembled(name: str, parent: Axis, length: int) -> Axis:
    return Axis(name, "sparse_variable", const(length), parent)


def sparse(name: str, axes: tuple[Axis, ...], dtype: dt.DType = f32, **more: Any) -> SparseBuffer:
    """A buffer called NAME at the handle of its name in lower case."""
    return SparseBuffer(name, handle(name.lower()), axes, dtype, **more)


def flat(name: str, size: int, dtype: dt.DType = f32) -> Buffer:
    return Buffer(name, handle(name.lower()), (const(size),), dtype)


def aux(axis: Axis) -> tuple[SparseBuffer, SparseBuffer]:
    """The indptr and indices of an axis as buffers of the position level."""
    indptr = SparseBuffer(
        f"{axis.name}_indptr", axis.indptr, axis.path()[:-1], axis.idtype, extra_storage=1
    )
    return indptr, SparseBuffer(f"{axis.name}_indices", axis.indices, axis.path(), axis.idtype)


def program(
    kind: type[Func], body: Stmt, buffers: tuple[AnyBuffer, ...] = (), scalars: tuple[Var, ...] = ()
) -> Any:
    """A function of *body*: axes and handles are those that the buffers have."""
    axes: dict[Axis, None] = {}
    for buffer in buffers:
        for axis in getattr(buffer, "axes", ()):
            axes |= dict.fromkeys(axis.path())
    found = [b.data for b in buffers] + [x for a in axes for x in (a.indptr, a.indices)]
    handles = dict.fromkeys(x for x in found if x is not None)
    declared = tuple(axes) if kind is not FlatFunc else ()
    return kind("test", (*handles, *scalars), declared, buffers, body)


def sp_iter(
    domains: list[Any], kinds: str, variables: list[Var], body: Stmt, init: Stmt | None = None
) -> SpIter:
    return SpIter(tuple(variables), tuple(domains), kinds, "it", init, body)


def get(buffer: AnyBuffer, *indices: Expr | int | None, mask: Expr | None = None) -> Load:
    return Load(buffer, _indices(indices), mask)


def put(
    buffer: AnyBuffer, indices: tuple[Any, ...], value: Expr | float, mask: Expr | None = None
) -> Store:
    stored = value if isinstance(value, Expr) else const(value, buffer.dtype)
    return Store(buffer, _indices(indices), stored, mask)


def add(buffer: AnyBuffer, indices: tuple[Any, ...], value: Expr) -> Store:
    return put(buffer, indices, binary("+", get(buffer, *indices), value))


def loop(variable: Var, end: Expr | int, body: Stmt, begin: Expr | int = 0) -> For:
    begin, end = (const(x) if isinstance(x, int) else x for x in (begin, end))
    return For(variable, begin, end, body)


def block(
    name: str,
    iters: list[tuple[str, Var, Any, Any]],
    body: Stmt,
    init: Stmt | None = None,
    where: Expr | None = None,
) -> Block:
    """*iters* are tuples of kind, variable, extent and value."""
    made = tuple(
        BlockIter(v, const(e) if isinstance(e, int) else e, value, kind)
        for kind, v, e, value in iters
    )
    return Block(name, made, (), (), init, body, where)


def _indices(indices: tuple[Any, ...]) -> tuple[Expr | None, ...]:
    return tuple(const(i) if isinstance(i, int) else i for i in indices)


def index(load: Load) -> Expr:
    """An index array's element as an int64."""
    return cast(load, i64)


def length(indptr: SparseBuffer, *above: Expr) -> Expr:
    """How long the fiber under the positions *above* is."""
    *outer, last = above
    end, begin = get(indptr, *outer, binary("+", last, 1)), get(indptr, *above)
    return cast(BinOp("-", end, begin), i64)


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def evaluate(expr: Expr, dtype: dt.DType | None = None) -> Any:
    """The value of an expression without variables, as flat code stores it."""
    dtype = dtype or expr.dtype
    out = flat("Out", dtype.lanes, dtype.element)
    array = np.zeros(dtype.lanes, dtype.numpy_name)
    at = const(0) if dtype.lanes == 1 else ramp(0, dtype.lanes)
    interpret(program(FlatFunc, Store(out, (at,), expr), (out,)), {"out": array})
    return array if dtype.lanes > 1 else array[0]


def ramp(base: int, lanes: int, stride: int = 1) -> Expr:
    from spcomp.ir.expr import Ramp

    return Ramp(const(base), stride, lanes)


__all__ = ["CoordFunc", "FlatFunc", "PosFunc", "interpret"]
