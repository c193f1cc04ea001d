"""Before the route: ``tvm.tir.transform``, functions that return passes over modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from spcomp.dtypes import int64
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.arith.simplify import simplify, simplify_stmt
from spcomp.ir.axis import AnyBuffer, Axis
from spcomp.ir.expr import BinOp, Const, Expr, cast, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.program import FlatFunc, PosFunc
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import walk
from spcomp.passes.decompose import preprocess
from spcomp.schedule.schedule import Schedule
from spcomp.sparsetir import sparse
from spcomp.sparsetir.fusion import fuse_horizontally
from spcomp.sparsetir.module import IRModule

Transform: TypeAlias = Callable[[IRModule], IRModule]


def LowerSparseIter(  # noqa: N802 (TVM's name)
    check_invalid_binary_search: bool = False,  # noqa: FBT001, FBT002
) -> Transform:
    """Return the pass to position space; see ``lower_sparse_iter``."""
    return lambda mod: sparse.lower_sparse_iter(mod, check_invalid_binary_search)


def LowerSparseBuffer() -> Transform:  # noqa: N802
    """Return the pass to flat buffers; see ``lower_sparse_buffer``."""
    return sparse.lower_sparse_buffer


def Simplify() -> Transform:  # noqa: N802
    """Return the pass that simplifies arithmetic and drops statements that never run."""
    return lambda mod: mod.map(lambda schedule: _with_func(schedule, simplify_stmt(schedule.func)))


def HorizontalFusion() -> Transform:  # noqa: N802
    """Return the pass that fuses the launches of functions with the attribute ``horizontal_fuse``.

    It needs loops that are bound to a grid; for the CPU, see ``Schedule.horizontal_fuse``.
    """

    def fused(func: Func) -> Func:
        if isinstance(func, PosFunc) and func.attr("horizontal_fuse"):
            return fuse_horizontally(func)
        return func

    return lambda mod: mod.map_funcs(fused)


def _with_func(schedule: Schedule, func: Func) -> Schedule:
    """Return *schedule* with its program replaced by *func*, which computes the same."""
    return Schedule(
        func,
        schedule.trace,
        lowered=schedule.lowered,
        source=schedule.source,
        opened=schedule.opened,
    )


def RemovePreprocess() -> Transform:  # noqa: N802
    """Return the pass that drops preprocessing, so that the buffers it fills become parameters.

    Preprocessing fills the parts of a decomposition or, in a program with loops, searches.
    """
    return lambda mod: mod.map_funcs(
        lambda func: over_all_positions(preprocess.remove_preprocess(func))
    )


def ExtractPreprocess() -> Transform:  # noqa: N802
    """Return the pass that keeps all parameters, and of the body only the preprocessing."""
    return lambda mod: mod.map_funcs(
        lambda func: over_all_positions(preprocess.extract_preprocess(func, keep_args=True))
    )


def RemoveUnusedArgs() -> Transform:  # noqa: N802
    """Return the pass that drops the parameters that a function does not use."""
    return lambda mod: mod.map(_without_unused_params)


def over_all_positions(func: Func) -> Func:
    """Return *func* with loops over all fibers at once as in SparseTIR: ``nnz`` iterations.

    In spcomp such a loop runs from the first element of indptr to the last. Where *func*, in
    position space, reads no other element, indptr is then not read at all, so a program that gets
    positions and rows does not need it as a parameter. The result is not trusted: like any program
    that a person wrote, it checks its accesses.
    """
    if not isinstance(func, PosFunc):
        return func
    whole: dict[AnyBuffer, Axis] = {}
    for buffer in func.buffers:
        axis = next((a for a in func.axes if a.indptr is buffer.data), None)
        root = axis.parent if axis is not None else None
        if axis is not None and axis.nnz is not None and root is not None and root.parent is None:
            whole[buffer] = axis
    for node in (n for n in walk(func.body) if isinstance(n, (Load, Search))):
        axis = whole.get(node.buffer)
        if axis is not None and (isinstance(node, Search) or _bound(node, axis) is None):
            del whole[node.buffer]
    if not whole:
        return func
    return func.replace(body=annotate_regions(_Bounds(whole).rewrite(func.body)))


def _bound(load: Load, axis: Axis) -> Expr | None:
    """Return where all fibers of *axis* begin or end, if *load* reads that from its indptr."""
    (index,) = load.indices
    assert index is not None
    assert axis.parent is not None
    assert axis.nnz is not None
    if isinstance(index, Const) and index.value == 0:
        return const(0, load.dtype)
    at_end = expr_equal(cast(index, int64), cast(axis.parent.length, int64))
    return cast(axis.nnz, load.dtype) if at_end else None


class _Bounds(Rewriter):
    def __init__(self, whole: dict[AnyBuffer, Axis]) -> None:
        self.whole = whole

    def visit_Load(self, load: Load) -> Node:
        axis = self.whole.get(load.buffer)
        return self.visit_Node(load) if axis is None else _bound(load, axis) or load

    def visit_BinOp(self, op: BinOp) -> Node:
        new = self.visit_Node(op)
        return new if new is op or not isinstance(new, BinOp) else simplify(new)


def _without_unused_params(schedule: Schedule) -> Schedule:
    """Return *schedule* without unused parameters.

    A flat function does not describe its index arrays; they are checked as in the function that it
    was lowered from. If that one has other parameters, the flat function is no longer trusted.
    """
    func = preprocess.remove_unused_args(schedule.func)
    source = func
    if isinstance(func, FlatFunc):
        source = preprocess.remove_unused_args(schedule.source)
        if [p.name for p in source.params] != [p.name for p in func.params]:
            return Schedule(func)
    return Schedule(
        func,
        schedule.trace,
        lowered=schedule.lowered,
        source=source,
        opened=schedule.opened,
    )
