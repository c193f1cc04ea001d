"""Stage II, position space: loops and blocks over positions, indptr and indices explicit."""

from __future__ import annotations

from typing import Literal, TypeAlias

from spcomp.ir.axis import AnyBuffer
from spcomp.ir.expr import Expr, Var
from spcomp.ir.node import Node, attr, binder, node
from spcomp.ir.stmt import Attrs, Stmt

IterKind: TypeAlias = Literal["S", "R"]
MergeKind: TypeAlias = Literal["union", "intersect"]


@node
class BlockIter(Node):
    """``var = T.axis.spatial(extent, value)``: a block's name for a loop or a function of loops.

    *var* is int64, in ``0..extent-1``; *kind* R says that iterations accumulate into one element.
    The variable is bound in the block, not in *value*.
    """

    var: Var = attr()
    extent: Expr
    value: Expr
    kind: IterKind = attr(default="S")


@node
class Region(Node):
    """``buffer[begin : begin + extent, ...]`` in positions, one pair per axis.

    As in Load, the ancestors of an axis indexed by absolute position have None in both.
    """

    buffer: AnyBuffer = attr()
    begins: tuple[Expr | None, ...]
    extents: tuple[Expr | None, ...]


@node
class Block(Stmt):
    """A unit of computation that loops may not be reordered across.

    *init* runs once for each value of the spatial iters: before the outermost loop, inside the
    enclosing block, that drives a reduction iter, even if that loop is empty; right before *body*
    if no iter is a reduction. *where* guards the body (``T.where``).
    """

    name: str = attr()
    iters: tuple[BlockIter, ...]
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    init: Stmt | None
    body: Stmt
    where: Expr | None = None
    attrs: Attrs = attr(default=())

    @property
    def values(self) -> dict[Var, Expr]:
        """What the variables of the iters stand for outside the block."""
        return {item.var: item.value for item in self.iters}


@node
class Cursor(Node):
    """One operand of a merge: absolute positions ``begin..end-1`` of *indices*, ascending values.

    *indices* None: a dense fiber, whose coordinate is its position minus *begin*.
    """

    pos: Var = attr()
    indices: AnyBuffer | None = attr()
    begin: Expr
    end: Expr


@node
class Case(Node):
    """The *body* for coordinates at which exactly the cursors marked in *present* stand."""

    present: tuple[bool, ...] = attr()
    body: Stmt


@node
class Merge(Stmt):
    """Co-iteration: *coordinate* takes every value in the union or intersection, ascending.

    Each cursor's ``pos`` is its absolute position, which only has meaning in cases where the
    cursor is present. A combination of cursors without a case runs nothing. All variables are
    int64.
    """

    kind: MergeKind = attr()
    coordinate: Var = binder()
    cursors: tuple[Cursor, ...]
    cases: tuple[Case, ...]
