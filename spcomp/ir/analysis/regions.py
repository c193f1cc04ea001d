"""I to II, regions: what each block reads and writes, widened over the loops inside it."""

from __future__ import annotations

from collections.abc import Iterable

from spcomp.dtypes import int64
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import bound_by, variables
from spcomp.ir.axis import AnyBuffer, SparseBuffer
from spcomp.ir.expr import Expr, Var, cast, const
from spcomp.ir.node import Node
from spcomp.ir.position import Block, Region
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import Stmt, Store
from spcomp.ir.structural import fingerprint
from spcomp.ir.visitor import walk


def annotate_regions(stmt: Stmt) -> Stmt:
    """Return *stmt* with the read and write regions of every block."""
    return _Annotate().rewrite(stmt)


class _Annotate(Rewriter):
    def visit_Block(self, block: Block) -> Node:
        inner = self.visit_Node(block)
        assert isinstance(inner, Block)
        nodes = [n for part in (inner.init, inner.body) if part is not None for n in walk(part)]
        bound = {var for node in nodes for var in bound_by(node)}  # no value outside the block
        reads = _regions((n for n in nodes if isinstance(n, (Load, Search))), bound)
        writes = _regions((n for n in nodes if isinstance(n, Store)), bound)
        return inner.replace(reads=reads, writes=writes)


def _regions(accesses: Iterable[Node], bound: set[Var]) -> tuple[Region, ...]:
    regions: dict[object, Region] = {}
    for access in accesses:
        buffer: AnyBuffer = access.buffer  # type: ignore[attr-defined]
        if buffer.data is None:  # allocated inside: private to the block
            continue
        region = _region(buffer, access, bound)
        regions.setdefault(
            (buffer, fingerprint(region.begins), fingerprint(region.extents)), region
        )
    return tuple(regions.values())


def _region(buffer: AnyBuffer, access: Node, bound: set[Var]) -> Region:
    """One element where the index has a value outside the block, else the whole axis."""
    sizes = _sizes(buffer)
    indices = (None,) * len(sizes) if isinstance(access, Search) else access.indices  # type: ignore[attr-defined]
    begins: list[Expr | None] = []
    extents: list[Expr | None] = []
    for index, size in zip(indices, sizes, strict=True):
        is_outer = index is not None and not _depends(index, bound)
        if index is None and not isinstance(access, Search):
            begins.append(None)
            extents.append(None)
        else:
            begins.append(index if is_outer else const(0))
            extents.append(const(1) if is_outer else size)
    return Region(buffer, tuple(begins), tuple(extents))


def _depends(index: Expr, bound: set[Var]) -> bool:
    """Whether *index* has no value outside the block: it uses names bound or allocated in it."""
    private = any(isinstance(n, Load) and n.buffer.data is None for n in walk(index))
    return private or bool(variables(index) & bound)


def _sizes(buffer: AnyBuffer) -> list[Expr]:
    """An upper bound of each index."""
    if isinstance(buffer, SparseBuffer):
        return [cast(axis.width, int64) for axis in buffer.axes]
    return [cast(extent, int64) for extent in buffer.shape]
