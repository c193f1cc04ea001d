"""Beside the route: the normal form in which SparseTIR's programs and ours are compared.

Loops, bindings, conditions and stores say what a program computes, and in which order. The rest
follows from them and is left out or computed anew: see normal_form.
"""

from __future__ import annotations

from typing import TypeVar

from spcomp.dtypes import int64
from spcomp.ir.analysis.exprs import variables
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
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import walk
from spcomp.passes.decompose.preprocess import axes_of, buffers_used

Fn = TypeVar("Fn", bound=Func)
IMPLIED = ("global_symbol", "tir.noalias", "horizontal_fuse", "order_needed")


def normal_form(func: Fn) -> Fn:
    """Return *func* in the form in which programs are compared.

    - Declarations of buffers are in the order of the parameters, those of axes in the order of
      their use. Unused ones are dropped, and so are promises about the values of buffers.
    - The axis along which indices lie (SparseTIR's ``J_dense``) is the axis whose indices they are.
    - Block variables are replaced by their values. A block with an init keeps, as its iterators,
      the loops of its reduction, since these decide when the init runs. Regions are dropped, since
      they follow from the loads and stores of the body, and so is a block ``root`` around a body.
    - Buffers allocated in a list of statements are allocated before it, in the order of their use.
    - Arithmetic is simplified. Constant sizes of axes have one type.
    """
    func = relink(func, axes=_with_untyped_sizes(func))
    if isinstance(func, PosFunc):
        func = relink(func, axes=_index_owners(func))
        func = func.replace(body=simplify_stmt(_Normalizer(func).rewrite(func.body)))
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
    """Return the axes of *func*, ancestors included, in the order of their use."""
    axes = [axis for b in func.buffers if isinstance(b, SparseBuffer) for axis in b.axes]
    for node in walk(func.body):
        if isinstance(node, SpIter):
            axes += axes_of(*node.domains)
        elif isinstance(node, Alloc) and isinstance(node.buffer, SparseBuffer):
            axes += node.buffer.axes
    return dict.fromkeys(above for axis in axes for above in axis.path())


def _with_untyped_sizes(func: Func) -> dict[Axis, Axis]:
    """Return each axis of *func* with its constant sizes in one type."""
    axes: dict[Axis, Axis] = {}
    for axis in func.axes:
        sizes = {name: getattr(axis, name) for name in ("length", "nnz", "nnz_cols")}
        axes[axis] = axis.replace(
            parent=axes.get(axis.parent) if axis.parent is not None else None,
            **{name: _size(size) for name, size in sizes.items() if size is not None},
        )
    return axes


def _size(size: Expr) -> Expr:
    folded = simplify(size)
    return const(folded.value) if isinstance(folded, Const) else folded


def _index_owners(func: Func) -> dict[Axis, Axis]:
    """Return, for each axis along which indices lie, the axis whose indices they are."""
    owners = {axis.indices: axis for axis in func.axes if axis.indices is not None}
    owned: dict[Axis, Axis] = {}
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
            owned[last] = owner
    return owned


class _Normalizer(Rewriter):
    """Replaces block variables by their values and moves allocations to the front.

    *loops*: the variables of the function that are not block variables.
    """

    def __init__(self, func: Func) -> None:
        nodes = list(walk(func.body))
        iters = {iter_.var for n in nodes if isinstance(n, Block) for iter_ in n.iters}
        self.loops = {n for n in nodes if isinstance(n, Var)} - iters - {*func.params}

    def visit_Seq(self, stmt: Seq) -> Node:
        inner = self.visit_Node(stmt)
        assert isinstance(inner, Seq)
        parts = [_split_allocs(part) for part in inner.body]
        allocs = [buffer for buffers, _ in parts for buffer in buffers]
        return _with_allocs(allocs, seq(*(part for _, part in parts)))

    def visit_Alloc(self, stmt: Alloc) -> Node:
        inner = self.visit_Node(stmt)
        assert isinstance(inner, Alloc)
        return _with_allocs(*_split_allocs(inner))

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


def _split_allocs(stmt: Stmt) -> tuple[list[AnyBuffer], Stmt]:
    """Return the buffers that *stmt* allocates at its beginning, and the rest of it."""
    buffers: list[AnyBuffer] = []
    while isinstance(stmt, Alloc):
        buffers.append(stmt.buffer)
        stmt = stmt.body
    return buffers, stmt


def _with_allocs(buffers: list[AnyBuffer], stmt: Stmt) -> Stmt:
    """Return *stmt* with allocations of *buffers* before it, in the order of their use."""
    order = [getattr(node, "buffer", None) for node in walk(stmt)]
    for buffer in sorted(buffers, key=lambda b: order.index(b) if b in order else -1, reverse=True):
        stmt = Alloc(buffer, stmt)
    return stmt
