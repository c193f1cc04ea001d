"""Beside the route: the form in which programs of SparseTIR's and ours are compared.

A program says some things twice. What it computes, and in which order, is in its loops, bindings,
conditions and stores; the rest follows from these, and is left out or made anew: see normal_form.
"""

from __future__ import annotations

from typing import TypeVar

from spcomp.dtypes import int64
from spcomp.ir.arith import simplify, simplify_stmt
from spcomp.ir.axis import Axis, SparseBuffer
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import Const, Expr, Var, const
from spcomp.ir.linear import expr_equal
from spcomp.ir.node import Node
from spcomp.ir.position import Block, BlockIter, PosFunc
from spcomp.ir.relink import relink
from spcomp.ir.stmt import Alloc, Func
from spcomp.ir.visitor import Rewriter, substitute, walk
from spcomp.passes.preprocess import axes_of, buffers_used
from spcomp.passes.scope import variables

Fn = TypeVar("Fn", bound=Func)
IMPLIED = ("global_symbol", "tir.noalias", "horizontal_fuse", "order_needed")


def normal_form(func: Fn) -> Fn:
    """Return *func* as it is compared.

    - Declarations of buffers stand in the order of the parameters, those of axes in the order of
      their use; what nothing uses goes. So do promises about the values of buffers.
    - The axis along which indices lie (SparseTIR's ``J_dense``) is the axis whose indices they are.
    - What a block calls a value stands for the value: spatial iters go, and those of a reduction
      keep what drives them, as that decides when the init runs. Regions go: they say what the
      stores and loads of the body say. So does ``root``, a block that is nothing but its body.
    - Arithmetic is simplified. Numbers that are sizes of axes have no type.
    """
    func = relink(func, axes=_sized(func))
    if isinstance(func, PosFunc):
        func = relink(func, axes=_mirrored(func))
        func = func.replace(body=simplify_stmt(_Plain().rewrite(func.body)))
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
        owner = owners.get(buffer.data)
        if owner is None or not isinstance(buffer, SparseBuffer):
            continue
        last = buffer.axes[-1]
        fixed = last.kind == "dense_fixed" and owner.kind == "sparse_fixed"
        size = (last.length, owner.nnz_cols) if fixed else (last.nnz, owner.nnz)
        if last is not owner and last.indptr is owner.indptr and None not in size:
            if expr_equal(*size):
                made[last] = owner
    return made


class _Plain(Rewriter):
    """Puts values in the place of what blocks call them."""

    def visit_Block(self, block: Block) -> Node:
        inner = self.visit_Node(block)
        assert isinstance(inner, Block)
        values = inner.values
        init, body, where = (
            None if part is None else substitute(part, values)
            for part in (inner.init, inner.body, inner.where)
        )
        assert body is not None
        driven = [x.value for x in inner.iters if x.kind == "R" and variables(x.value)]
        iters = [BlockIter(Var("r", int64), const(1), value, "R") for value in driven]
        attrs = tuple(sorted(pair for pair in inner.attrs if pair[0] != "sparse"))
        if init is None and where is None and not attrs:
            return body
        return inner.replace(
            iters=tuple(iters) if init is not None else (),
            reads=(),
            writes=(),
            init=init,
            body=body,
            where=where,
            attrs=attrs,
        )
