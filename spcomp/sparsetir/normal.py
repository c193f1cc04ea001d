"""Beside the route: the form in which programs of SparseTIR's and ours are compared.

A program says some things twice. What it computes, and in which order, is in its loops, bindings,
conditions and stores; the rest follows from these, and is left out or made anew: see normal_form.
"""

from __future__ import annotations

from typing import TypeVar

from spcomp.dtypes import int64
from spcomp.ir.analysis.exprs import variables
from spcomp.ir.arith.linear import expr_equal
from spcomp.ir.arith.simplify import simplify, simplify_stmt
from spcomp.ir.axis import AnyBuffer, Axis, SparseBuffer
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import Const, Expr, Var, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, BlockIter
from spcomp.ir.program import PosFunc
from spcomp.ir.rewrite import Rewriter, relink, substitute
from spcomp.ir.stmt import Alloc, Seq, Stmt, seq
from spcomp.ir.visitor import walk
from spcomp.passes.decompose.preprocess import axes_of, buffers_used

Fn = TypeVar("Fn", bound=Func)
IMPLIED = ("global_symbol", "tir.noalias", "horizontal_fuse", "order_needed")


def normal_form(func: Fn) -> Fn:
    """Return *func* as it is compared.

    - Declarations of buffers stand in the order of the parameters, those of axes in the order of
      their use; what nothing uses goes. So do promises about the values of buffers.
    - The axis along which indices lie (SparseTIR's ``J_dense``) is the axis whose indices they are.
    - What a block calls a value stands for the value. Of its iters, a block with an init has the
      loops that drive its reduction, as these decide when the init runs. Regions go: they say what
      the stores and loads of the body say. So does ``root``, a block that is nothing but its body.
    - What is allocated in a list of statements is so before them, in the order of its use.
    - Arithmetic is simplified. Numbers that are sizes of axes have no type.
    """
    func = relink(func, axes=_sized(func))
    if isinstance(func, PosFunc):
        func = relink(func, axes=_mirrored(func))
        func = func.replace(body=simplify_stmt(_Plain(func).rewrite(func.body)))
    order = {param: k for k, param in enumerate(func.params)}
    used = buffers_used(func.replace(domains=()))
    buffers = [buffer for buffer in func.buffers if buffer in used]
    attrs = sorted((name, value) for name, value in func.attrs if name not in IMPLIED)
    func = func.replace(
        buffers=tuple(sorted(buffers, key=lambda buffer: order[buffer.data])),
        domains=(),
        attrs=tuple(attrs),
    )
    return func.replace(axes=tuple(_axes(func)))


def _axes(func: Func) -> dict[Axis, None]:
    """Return the axes of *func*, ancestors included, as they are met."""
    met = [axis for b in func.buffers if isinstance(b, SparseBuffer) for axis in b.axes]
    for node in walk(func.body):
        if isinstance(node, SpIter):
            met += axes_of(*node.domains)
        elif isinstance(node, Alloc) and isinstance(node.buffer, SparseBuffer):
            met += node.buffer.axes
    return dict.fromkeys(above for axis in met for above in axis.path())


def _sized(func: Func) -> dict[Axis, Axis]:
    """Return the axes of *func* with the numbers among their sizes in one type."""
    made: dict[Axis, Axis] = {}
    for axis in func.axes:
        sizes = {name: getattr(axis, name) for name in ("length", "nnz", "nnz_cols")}
        made[axis] = axis.replace(
            parent=made.get(axis.parent) if axis.parent is not None else None,
            **{name: _size(size) for name, size in sizes.items() if size is not None},
        )
    return made


def _size(size: Expr) -> Expr:
    folded = simplify(size)
    return const(folded.value) if isinstance(folded, Const) else folded


def _mirrored(func: Func) -> dict[Axis, Axis]:
    """Return for each axis that indices lie along the axis whose indices these are."""
    owners = {axis.indices: axis for axis in func.axes if axis.indices is not None}
    made: dict[Axis, Axis] = {}
    for buffer in func.buffers:
        owner = None if buffer.data is None else owners.get(buffer.data)
        if owner is None or not isinstance(buffer, SparseBuffer):
            continue
        last = buffer.axes[-1]
        fixed = last.kind == "dense_fixed" and owner.kind == "sparse_fixed"
        size = (last.length, owner.nnz_cols) if fixed else (last.nnz, owner.nnz)
        if last is owner or last.indptr is not owner.indptr or None in size:
            continue
        if expr_equal(*size):
            made[last] = owner
    return made


class _Plain(Rewriter):
    """Puts values in the place of what blocks call them, and what is allocated first.

    *loops*: the variables of the function that are no iters.
    """

    def __init__(self, func: Func) -> None:
        nodes = list(walk(func.body))
        iters = {own.var for n in nodes if isinstance(n, Block) for own in n.iters}
        self.loops = {n for n in nodes if isinstance(n, Var)} - iters - {*func.params}

    def visit_Seq(self, stmt: Seq) -> Node:
        inner = self.visit_Node(stmt)
        assert isinstance(inner, Seq)
        parts = [_bare(part) for part in inner.body]
        made = [buffer for buffers, _ in parts for buffer in buffers]
        return _allocated(made, seq(*(part for _, part in parts)))

    def visit_Alloc(self, stmt: Alloc) -> Node:
        inner = self.visit_Node(stmt)
        assert isinstance(inner, Alloc)
        return _allocated(*_bare(inner))

    def visit_Block(self, block: Block) -> Node:
        inner = self.visit_Node(block)
        assert isinstance(inner, Block)
        values = inner.values
        init, body, where = (
            None if part is None else substitute(part, values)
            for part in (inner.init, inner.body, inner.where)
        )
        assert body is not None
        if inner.name == "root" and init is None and where is None:
            return body
        reduced = {v: None for x in inner.iters if x.kind == "R" for v in variables(x.value)}
        drivers = [BlockIter(Var("r", int64), const(1), v, "R") for v in reduced if v in self.loops]
        return inner.replace(
            iters=() if init is None else tuple(drivers),
            reads=(),
            writes=(),
            init=init,
            body=body,
            where=where,
            attrs=tuple(sorted(pair for pair in inner.attrs if pair[0] != "sparse")),
        )


def _bare(stmt: Stmt) -> tuple[list[AnyBuffer], Stmt]:
    """Return the buffers that *stmt* begins by allocating, and the rest."""
    made: list[AnyBuffer] = []
    while isinstance(stmt, Alloc):
        made.append(stmt.buffer)
        stmt = stmt.body
    return made, stmt


def _allocated(made: list[AnyBuffer], stmt: Stmt) -> Stmt:
    """Return *stmt* with the buffers *made* before it, in the order of their use."""
    met = [getattr(node, "buffer", None) for node in walk(stmt)]
    for buffer in sorted(made, key=lambda own: met.index(own) if own in met else -1, reverse=True):
        stmt = Alloc(buffer, stmt)
    return stmt
