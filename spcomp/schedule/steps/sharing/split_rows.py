"""In position space: the step split_rows, which cuts long rows where a multiple of a size lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, plus
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.positions import positions
from spcomp.ir.analysis.reduction import accumulator, combine, identity
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import BinOp, Expr, Select, Var, binary, cast, const
from spcomp.ir.func import SHARE_GRID, Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, BlockIter
from spcomp.ir.rewrite import Replace, substitute
from spcomp.ir.stmt import Alloc, For, Stmt, Store, seq
from spcomp.ir.visitor import walk
from spcomp.schedule.nests.nests import find_loop, nest, replace_stmt
from spcomp.schedule.nests.values import ceil_div
from spcomp.schedule.steps.base import Step
from spcomp.schedule.steps.sharing.hubs import Piece, RowSum


@dataclass(frozen=True, slots=True)
class SplitRows(Step):
    """``for i: for j in row(i): W[i] op= x  ->  for i: ...; for p: P[p] op= x; for i: W[i] op= P``.

    *inner* runs over the fiber of the row of *loop*. A row of more than *size* elements is cut at
    each position that is a multiple of *size*. The loop does what is before the first cut, and
    whole rows; each piece ``p`` behind a cut has a partial sum, and each row adds up those of its
    pieces in order. So no iteration has more than *size* elements, and the result depends on the
    data only. All new loops are nested perfectly, with trip counts that the parameters tell, as a
    GPU needs them: bind or split them like the loop itself. Pieces and beginnings, which come after
    them, may share a grid. Legal where each row only updates its own elements by one associative
    operation. Source: RoDe (Pang et al., PPoPP 2024).
    """

    name: ClassVar[str] = "split_rows"
    loop: str
    inner: str
    size: int

    def plan(self, func: Func) -> _Cut:
        """Return how rows are cut, and how their pieces are added up."""
        loop, inner = (find_loop(func, name, self) for name in (self.loop, self.inner))
        cut = _Cut(self, func, loop, inner)
        if positions(cut.axis) is None:
            raise cut.error(f"no parameter says how many elements {cut.axis.name} has")
        return cut

    def rewrite(self, func: Func, plan: _Cut) -> Func:
        """Return *func* with the loop over the beginnings of rows, and those over pieces."""
        func = replace_stmt(func, plan.loop, plan.build(Names(func)))
        return func.with_attr(SHARE_GRID, True)


class _Cut(RowSum):
    """A row that is reduced: the nests that do its beginning, its other pieces, and their sum."""

    def build(self, names: Names) -> Stmt:
        """Return the four nests, and the memory between them."""
        name, loop = self.loop.var.name, self.loop
        total = positions(self.axis)
        assert total is not None  # the axis is variable
        some = BinOp("min", loop.end, const(1))  # without rows there is nothing to look at
        pieces = ceil_div(binary("*", total, some), const(self.step.size))
        rows = Buffer(names.unique(f"{name}_of"), None, (pieces,), self.axis.idtype)
        shape = (pieces, *(substitute(x.end, self.values) for x in self.spatial))
        dtype = accumulator(self.target.dtype)
        parts = Buffer(names.unique(f"{self.target.name}_parts"), None, shape, dtype)
        nests = seq(
            self._find(names, rows, pieces),
            self._pieces_of(names, rows, parts),  # the longest first
            loop.replace(body=Replace(self.inner, self._beginning()).rewrite(loop.body)),
            self._add(names, parts),
        )
        return Alloc(rows, Alloc(parts, annotate_regions(nests)))

    def starting_block(self) -> Block | None:
        """Return the block that starts the sum of a piece; None if that needs a nest of its own.

        A block knows of the loops around that reduce, up to the next block.
        """
        blocks = [n for n in walk(self.inner.body) if isinstance(n, Block)]
        block = blocks[0] if len(blocks) == 1 and blocks[0].body is self.store else None
        driven = (i for i in block.iters if i.kind == "R") if block is not None else ()
        return block if any(i.value is self.inner.var for i in driven) else None

    def _ends(self, row: Expr) -> tuple[Expr, Expr, Expr]:
        """Return where *row* begins and ends, and whether it is cut."""
        begin, length = self.begin(row), self.length(row)
        return begin, self.begin(plus(row, 1)), BinOp("<", const(self.step.size), length)

    def _beginning(self) -> For:
        """Return the loop over the elements of a row before the first cut."""
        size = const(self.step.size)
        begin, _, is_cut = self._ends(self.loop.var)
        first = binary("-", size, binary("%", begin, size))
        return self.inner.replace(end=Select(is_cut, first, self.length(self.loop.var)))

    def _find(self, names: Names, rows: Buffer, pieces: Expr) -> For:
        """Return the loop that finds the row at each cut, or some row if there is none."""
        piece = names.var(f"{self.loop.var.name}_cut")
        at = binary("*", piece, const(self.step.size))
        row = BinOp("max", self.arrays.holder(self.axis, at, ZERO, self.loop.end), ZERO)
        store = Store(rows, (piece,), cast(row, rows.dtype))
        return For(piece, ZERO, pieces, store, span=self.loop.span)

    def _pieces_of(self, names: Names, rows: Buffer, parts: Buffer) -> For:
        """Return the nest that adds up the elements behind each cut."""
        piece, size = names.var(f"{self.loop.var.name}_piece"), const(self.step.size)
        row, at = cast(Load(rows, (piece,)), int64), binary("*", piece, size)
        begin, end, is_cut = self._ends(row)
        inside = BinOp("and", BinOp("<", begin, at), BinOp("<", at, end))
        is_piece = BinOp("and", inside, is_cut)
        count = Select(is_piece, BinOp("min", binary("-", end, at), size), ZERO)
        work = _Piece(names, self, row, piece, parts, (at, count)).rewrite(self.loop.body)
        if self.starting_block() is None:
            neutral = identity(self.reduction.combiner, parts.dtype)
            work = seq(
                self.over_row(names, lambda place: Store(parts, (piece, *place), neutral)), work
            )
        return For(piece, ZERO, parts.shape[0], work, span=self.loop.span)

    def _add(self, names: Names, parts: Buffer) -> Stmt:
        """Return the nest that adds to each row the sums of its pieces, in order."""
        name, size = self.loop.var.name, const(self.step.size)
        row, other = names.var(f"{name}_sum"), names.var(f"{name}_part")
        begin, end, is_cut = self._ends(row)
        first = binary("//", begin, size)
        count = binary("-", binary("//", binary("-", end, const(1)), size), first)
        ends = [substitute(x.end, self.values) for x in self.spatial]
        loops = [
            For(other, ZERO, count, seq(), span=self.loop.span),
            *(
                For(names.var(f"{x.var.name}_sum"), ZERO, end, seq(), span=x.span)
                for x, end in zip(self.spatial, ends, strict=True)
            ),
        ]
        iters = tuple(
            BlockIter(names.var(f"v{x.var.name}"), x.end, x.var, "R" if x.var is other else "S")
            for x in loops
        )
        mine = BlockIter(names.var(f"v{row.name}"), self.loop.end, row)
        which, *at = (it.var for it in iters)
        place = self.place_at(mine.var, tuple(at))
        begin_of_mine = binary("//", self.begin(mine.var), size)
        part = Load(parts, (plus(binary("+", begin_of_mine, which), 1), *at))
        so_far = cast(Load(self.target, place), parts.dtype)
        value = cast(combine(self.reduction.combiner, so_far, part), self.target.dtype)
        update = Store(self.target, place, value, span=self.store.span)
        sums = Block(names.unique(f"{name}_sums"), iters, (), (), None, update)
        cut = Block(names.unique(f"{name}_cuts"), (mine,), (), (), None, nest(loops, sums), is_cut)
        return For(row, ZERO, self.loop.end, cut, span=self.loop.span)


class _Piece(Piece):
    """Copies the body of the loop for a piece: where in the array it begins, and its length."""

    row: _Cut
    places: frozenset[Var] = frozenset()  # what stands for a position in the fiber
    own: Expr = ZERO  # what stands for the position in the piece

    def visit_For(self, loop: For) -> Node:
        """Let the loop over the fiber begin at 0."""
        if loop is not self.inner:
            return super().visit_For(loop)
        self.places = frozenset((loop.var,))
        self.own = var = self._fresh(loop.var)
        return loop.replace(var=var, begin=ZERO, end=self.fiber[1], body=self.rewrite(loop.body))

    def visit_Block(self, block: Block) -> Node:
        """Let the sum start from the neutral element where the sum of a row starts.

        A block around the fiber has a name for where the piece begins. Blocks inside have one for
        the position in the piece.
        """
        at, count = self.fiber
        begin: tuple[BlockIter, ...] = ()
        if any(node is self.inner for node in walk(block.body)):
            name = self.names.var(f"v{self.piece.name}_begin")
            extent = binary("*", self.parts.shape[0], const(self.row.step.size))
            begin, self.fiber = (BlockIter(name, extent, at),), (name, count)
        placed = [item.value in self.places for item in block.iters]
        self.places |= {item.var for item in block.iters if item.value in self.places}
        new = super().visit_Block(block)
        assert isinstance(new, Block)
        both = zip(new.iters, placed, strict=True)
        iters = (item.replace(value=self.own) if its else item for item, its in both)
        new = new.replace(iters=(*iters, *begin))
        if block is not self.row.starting_block():
            return new
        neutral = identity(self.row.reduction.combiner, self.parts.dtype)
        return new.replace(init=Store(self.parts, self._place(), neutral))

    def _fresh(self, var: Var) -> Var:
        new = super()._fresh(var)
        if var in self.places:
            before = binary("-", self.fiber[0], self.row.begin(self.values[self.row.loop.var]))
            self.values[var] = binary("+", before, new)
        return new


def split_rows(func: Func, loop: str, inner: str, size: int) -> SplitRows | None:
    """Return the step that cuts the long rows of *loop*; None where it is not legal."""
    step = SplitRows(loop, inner, size)
    return step if step.is_legal(func) else None
