"""I to I, before lowering: an iteration that scatters by rows runs over the transpose instead."""

from __future__ import annotations

from dataclasses import dataclass

from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import as_reduction
from spcomp.ir.axis import AnyBuffer, Axis, SparseBuffer
from spcomp.ir.coordinate import SpIter
from spcomp.ir.node import Node
from spcomp.ir.program import CoordFunc
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import Store


@dataclass(frozen=True, slots=True)
class TransposedScatter:
    """The program *func*, which takes the transpose of *matrix*; index arrays keep their names."""

    func: CoordFunc
    matrix: SparseBuffer


def transpose_scatter(func: CoordFunc) -> TransposedScatter | None:
    """Return *func* over the transpose of a matrix along whose rows it scatters; None if none.

    ``for i, j in A: Y[j] op= s(A[i, j], i)  ->  for j, i in A.T: Y[j] op= s(A.T[j, i], i)``: no two
    rows then update the same element, and each element adds its terms in the same order.
    """
    it = func.body
    if not isinstance(it, SpIter) or not isinstance(it.body, Store) or it.attrs:
        return None
    if not all(isinstance(domain, Axis) for domain in it.domains):
        return None
    if any(axis.is_assembled for axis in func.axes):
        return None
    candidates = (
        _transpose(func, it, it.body, b) for b in func.buffers if isinstance(b, SparseBuffer)
    )
    return next(filter(None, candidates), None)


def _transpose(
    func: CoordFunc, it: SpIter, store: Store, matrix: SparseBuffer
) -> TransposedScatter | None:
    if not _is_csr(matrix) or matrix.axes[1] not in it.domains or store.buffer is matrix:
        return None
    rows, columns = matrix.axes
    at = it.domains.index(columns)
    if not at or it.domains[at - 1] is not rows:
        return None  # a reduction between the two would run in another order
    i, j = it.vars[at - 1 : at + 1]
    used = {v for index in store.indices if index is not None for v in variables(index)}
    if i in used or j not in used or it.kinds[at - 1 : at + 1] != "RS":
        return None
    if as_reduction(store) is None or not _is_own(func, matrix):
        return None
    names = Names(func)
    outer = Axis(names.unique(f"{columns.name}_all"), "dense_fixed", columns.length)
    inner = columns.replace(
        name=names.unique(f"{rows.name}_of_{columns.name}"), length=rows.length, parent=outer
    )
    transposed = matrix.replace(axes=(outer, inner))
    kinds = f"{it.kinds[: at - 1]}SR{it.kinds[at + 1 :]}"
    domains = (*it.domains[: at - 1], outer, inner, *it.domains[at + 1 :])
    loop_vars = (*it.vars[: at - 1], j, i, *it.vars[at + 1 :])
    rewriter = _ReadTranspose(matrix, transposed)
    init = None if it.init is None else rewriter.rewrite(it.init)
    body = rewriter.rewrite(store)
    iteration = it.replace(vars=loop_vars, domains=domains, kinds=kinds, init=init, body=body)
    axes = tuple(axis for axis in func.axes if axis is not columns)
    buffers = tuple(transposed if buffer is matrix else buffer for buffer in func.buffers)
    return TransposedScatter(
        func.replace(axes=(*axes, outer, inner), buffers=buffers, body=iteration), matrix
    )


def _is_csr(matrix: SparseBuffer) -> bool:
    if len(matrix.axes) != 2 or matrix.data is None or matrix.extra_storage:
        return False
    rows, columns = matrix.axes
    is_compressed = columns.kind == "sparse_variable" and columns.indptr is not None
    return (
        is_compressed and columns.sorted and rows.kind == "dense_fixed" and columns.parent is rows
    )


def _is_own(func: CoordFunc, matrix: SparseBuffer) -> bool:
    """Whether no other buffer or axis uses the column axis or the arrays of *matrix*."""
    columns = matrix.axes[1]
    others: list[AnyBuffer | Axis] = [b for b in func.buffers if b is not matrix]
    others += [axis for axis in func.axes if axis is not columns]
    for other in others:
        along = other.path() if isinstance(other, Axis) else getattr(other, "axes", ())
        handles = (getattr(other, part, None) for part in ("data", "indptr", "indices"))
        if columns in along or {columns.indptr, columns.indices, matrix.data} & {*handles} - {None}:
            return False
    return not any(d.buffer is matrix for d in func.domains)


class _ReadTranspose(Rewriter):
    """Reads the transpose *new* instead of *old*."""

    def __init__(self, old: SparseBuffer, new: SparseBuffer) -> None:
        self.old, self.new = old, new

    def visit_Node(self, node: Node) -> Node:
        new = super().visit_Node(node)
        if isinstance(new, Load) and new.buffer is self.old:
            return new.replace(buffer=self.new, indices=new.indices[::-1])
        return new
