"""In position space: the step split_hubs, which shares very long rows among all threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

from spcomp.errors import ScheduleError
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, from_zero, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.positions import Auxiliary, parent_at
from spcomp.ir.analysis.reduction import Reduction, accumulator, as_reduction, combine, identity
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.axis import AnyBuffer, Buffer, memory_of
from spcomp.ir.expr import BinOp, Cast, Expr, Var, binary, cast, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import Alloc, For, If, Let, Seq, Stmt, Store, seq
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import conflicts
from spcomp.schedule.nests.nests import Fresh, chain, find_loop, replace_stmt
from spcomp.schedule.nests.sites import refusal
from spcomp.schedule.nests.values import binding_values, ceil_div, starts_inside
from spcomp.schedule.steps.base import Step
from spcomp.schedule.steps.sharing.split_nnz import MAX_CHUNKS, row_pointer

PIECES = 4  # a row that is worth splitting makes at least so many
SHARE = 32  # and holds more than a 32nd of all elements
Place: TypeAlias = tuple[Expr, ...]


class SizedStep(Protocol):
    """A step that cuts into pieces of some size; its text names it in errors."""

    @property
    def size(self) -> int:
        """About how many elements a piece has."""


@dataclass(frozen=True, slots=True)
class SplitHubs(Step):
    """``for i: for j in row(i): W[i] op= x  ->  for i: if short(i): ...; for each hub r: ...``.

    *inner* runs over the fiber of the row of *loop*. Rows of more than ``4 * size`` elements, and
    more than a 32nd of all, are left out and done afterwards, one by one. Each is cut into at most
    256 pieces of about *size* elements; their sums are made in parallel in ``P[piece]`` and then
    added in order, so that the result depends on the data only. Legal where each row only updates
    its own elements by one associative operation. Where instead each iteration of *inner* writes
    its own elements (a sampled product), pieces of *size* elements write them directly.
    """

    name: ClassVar[str] = "split_hubs"
    loop: str
    inner: str
    size: int

    def plan(self, func: Func) -> Hub:
        """Return how a long row is done in pieces."""
        loop, inner = (find_loop(func, name, self) for name in (self.loop, self.inner))
        kind = RowSum if conflicts(inner) else Hub
        return kind(self, func, loop, inner)

    def rewrite(self, func: Func, plan: Hub) -> Func:
        """Return *func* with long rows done afterwards, in pieces."""
        return replace_stmt(func, plan.loop, plan.build(Names(func)))


class Row:
    """A row of *loop*, whose elements, those of *inner*, are independent; for steps to change it.

    *axis*: its fiber is along; *indptr*: where that begins; *values*: of the names in the row.
    """

    def __init__(self, step: object, func: Func, loop: For, inner: For) -> None:
        self.step, self.loop, self.inner = step, loop, inner
        self.values = binding_values(loop.body)
        self._check_loops(func)
        self._check_body()

    def error(self, why: str) -> ScheduleError:
        """Return the error that says *why* the step is not legal."""
        return refusal(self.step, why, self.loop.span)

    # -- legality -----------------------------------------------------------------------------

    def _check_loops(self, func: Func) -> None:
        """Raise unless the loops go over all rows and their fibers, and rows are independent."""
        indptr = row_pointer(func, self.loop)
        if indptr is None:
            raise self.error(f"{self.loop.var.name!r} is no loop over all rows of a variable axis")
        self.arrays = Auxiliary.of(func)
        self.axis = next(axis for axis in func.axes if axis.indptr is indptr.data)
        self.indptr = indptr
        fiber = self.length(self.loop.var)
        end = substitute(self.inner.end, self.values)
        around = any(node is self.inner for node in walk(self.loop.body))
        if not around or not from_zero(self.inner) or not expr_equal(end, fiber):
            raise self.error(f"{self.inner.var.name!r} does not run over the fiber of the row")
        if starts_inside(func, self.loop):
            raise self.error("a reduction goes on outside the loop, and starts there")
        if clashes := conflicts(self.loop):
            raise self.error(str(clashes[0]))

    def length(self, row: Expr) -> Expr:
        """Return the number of elements of *row*."""
        return self.arrays.size(self.axis, parent_at(self.axis, (row,)))

    def begin(self, row: Expr) -> Expr:
        """Return the position in the array at which *row* begins."""
        return self.arrays.begin(self.axis, parent_at(self.axis, (row,)))

    def _check_body(self) -> None:
        """Raise unless a row does nothing outside its loop over the elements of the fiber."""
        body = self.loop.body
        while body is not self.inner:
            plain = isinstance(body, For) or (
                isinstance(body, Block) and body.init is None and body.where is None
            )
            if not plain:
                raise self.error("a row does more than write one element at a time")
            assert isinstance(body, (For, Block))
            body = body.body


class Hub(Row):
    """A long row whose elements are independent, and the nest that does it in pieces."""

    step: SizedStep

    def __init__(self, step: SizedStep, func: Func, loop: For, inner: For) -> None:
        super().__init__(step, func, loop, inner)
        if step.size < 1:
            raise self.error("the size must be at least 1")

    def build(self, names: Names) -> Stmt:
        """Return the loop without long rows, followed by the loop over these."""
        loop, size = self.loop, self.step.size
        name = loop.var.name
        stored, longest = (names.var(f"{name}_{what}") for what in ("stored", "longest"))
        first = self.begin(ZERO)
        element_count = binary("-", self.begin(loop.end), first)
        limit = BinOp("max", const(PIECES * size), ceil_div(stored, const(SHARE)))
        short = If(BinOp("<=", self.length(loop.var), longest), loop.body, span=loop.span)
        at, hub, length = (names.var(f"{name}_{what}") for what in ("at", "hub", "length"))
        begins = binary("-", self.begin(hub), first)
        # look at the row of every longest-th element: a longer row holds at least one of these
        holder = self.arrays.holder(self.axis, first + at * longest, ZERO, loop.end)
        new = BinOp("<", (at - 1) * longest, begins)
        cond = BinOp("and", BinOp("<", longest, length), new)
        body: Stmt = If(cond, self._pieces(names, hub, length))
        body = Let(hub, holder, Let(length, self.length(hub), body))
        hubs = For(at, ZERO, ceil_div(stored, longest), body, span=loop.span)
        both = seq(loop.replace(body=short), hubs)
        return Let(stored, element_count, Let(longest, limit, both), span=loop.span)

    def _pieces(self, names: Names, hub: Var, length: Var) -> Stmt:
        """Return the nest that does the row *hub*, of *length* elements."""
        piece, size = names.var(f"{self.loop.var.name}_piece"), self.step.size
        begin = piece * size
        copy = _Part(names, self, hub, (begin, BinOp("min", length, begin + size)))
        work = annotate_regions(copy.rewrite(self.loop.body))
        return self._piece_loop(piece, ceil_div(length, const(size)), work)

    def _piece_loop(self, piece: Var, pieces: Expr, work: Stmt) -> For:
        grain = (("grain", 1),)
        return For(piece, ZERO, pieces, work, "parallel", attrs=grain, span=self.loop.span)


class RowSum(Hub):
    """A row that is reduced: the nests that reduce its pieces, and combine the results."""

    def __init__(self, step: SizedStep, func: Func, loop: For, inner: For) -> None:
        self.clears: Stmt | None = None
        super().__init__(step, func, loop, inner)
        self.reduction = self._reduction()
        self.target: AnyBuffer = self.store.buffer
        self.spatial = self._spatial()
        self.start = self._start()

    # -- legality -----------------------------------------------------------------------------

    def _check_body(self) -> None:
        self.store, self.init = self._stores()

    def _stores(self) -> tuple[Store, Store | None]:
        """Return the store that updates, and the one that is its init, or None."""
        blocks = [n for n in walk(self.loop.body) if isinstance(n, Block)]
        inits = [block.init for block in blocks if block.init is not None]
        init_nodes = {node for init in inits for node in walk(init)}
        stmts = [n for n in walk(self.loop.body) if isinstance(n, Stmt) and n not in init_nodes]
        if any(not isinstance(n, (For, Block, Let, Store, Seq)) for n in stmts):
            raise self.error("a row does more than update one element at a time")
        if any(block.where is not None for block in blocks):
            raise self.error("a block inside is guarded")
        seqs = [n for n in stmts if isinstance(n, Seq)]
        stores = [n for n in stmts if isinstance(n, Store)]
        if len(seqs) == 1 and len(seqs[0].body) == len(stores) == 2:
            self.clears = seqs[0].body[0]  # a nest of its own starts the reduction
            inits.append(stores.pop(0))
        if len(stores) != 1 or len(inits) > 1 or len(seqs) != bool(self.clears):
            raise self.error("a row does more than update one element at a time")
        if all(node is not stores[0] for node in walk(self.inner.body)):
            raise self.error(f"the update is not inside {self.inner.var.name!r}")
        init = inits[0] if inits else None
        if init is not None and not isinstance(init, Store):
            raise self.error("its init does more than store one element")
        return stores[0], init

    def _reduction(self) -> Reduction:
        """Return the update by + * min max and or; raises if there is none, or other reads."""
        reduction = as_reduction(self.store)
        value = self.store.value
        value = value.value if isinstance(value, Cast) else value
        if reduction is None or not isinstance(value, BinOp):
            raise self.error(f"{self.store.buffer.name} is not updated by + * min max and or")
        reads = [n for n in walk(self.loop.body) if isinstance(n, Load)]
        if sum(memory_of(n.buffer) is memory_of(self.store.buffer) for n in reads) != 1:
            raise self.error(f"{self.store.buffer.name} is read elsewhere too")
        return reduction

    def _spatial(self) -> list[For]:
        """Return the loops inside that pick the element; sets *axis_of*, the index of each."""
        loops = {n.var: n for n in walk(self.loop.body) if isinstance(n, For)}
        self.axis_of: dict[For, int] = {}
        for axis, index in enumerate(self._place(self.store)):
            used = variables(index) & set(loops)
            if used and not (isinstance(index, Var) and index is not self.inner.var):
                raise self.error(f"which element of {self.target.name} it updates is not simple")
            self.axis_of |= {loops[var]: axis for var in used}
        for loop in self.axis_of:
            used_vars = variables(substitute(loop.end, self.values))
            if not from_zero(loop) or used_vars & {self.loop.var, *loops}:
                raise self.error(f"the range of {loop.var.name!r} is not the same throughout")
        return list(self.axis_of)

    def _place(self, store: Store) -> list[Expr]:
        """Return the indices of *store* in terms of loops; raises if it is to a sparse buffer."""
        place = [substitute(i, self.values) for i in store.indices if i is not None]
        if len(place) < len(store.indices):
            raise self.error(f"{store.buffer.name} is not dense")
        return place

    def _start(self) -> Expr:
        """Return the value to which the sums of the pieces are added, in loop variables."""
        place = self._place(self.store)
        if self.init is None:
            return Load(self.target, tuple(place))
        if self.init.buffer is not self.target:
            raise self.error("its init is of another buffer")
        init_place = self._place(self.init)
        same = self._same_loops(init_place)
        init_place = [substitute(index, same) for index in init_place]
        value = substitute(substitute(self.init.value, self.values), same)
        inside = {n.var for n in walk(self.loop.body) if isinstance(n, For)}
        starts = self.clears if self.clears is not None else self.init
        if any(not self._once(node, starts) for node in walk(self.loop.body)):
            raise self.error("its init is run again and again")
        unknown = variables(value) & (inside - {loop.var for loop in self.spatial})
        if unknown or not all(map(expr_equal, place, init_place)):
            raise self.error("its init is of other elements")
        return value

    def _once(self, node: Node, starts: Stmt) -> bool:
        """Whether *node* is no loop that runs the init *starts* of an element several times."""
        if not isinstance(node, For) or node in self.axis_of:
            return True
        _, block = chain(node)
        if isinstance(block, Block) and block.init is starts:
            reduced = [i.value for i in block.iters if i.kind == "R"]
            return any(node.var in variables(value) for value in reduced)
        return all(n is not starts for n in walk(node.body))

    def _same_loops(self, place: list[Expr]) -> dict[Var, Expr]:
        """Return the loops that pick the element, by those that clear it at *place*."""
        clearing = [n for n in walk(self.clears) if isinstance(n, For)] if self.clears else []
        same: dict[Var, Expr] = {}
        for loop, axis in self.axis_of.items():
            for other in clearing:
                ends = (substitute(x.end, self.values) for x in (loop, other))
                if place[axis] is other.var and from_zero(other) and expr_equal(*ends):
                    same[other.var] = loop.var
        if len(same) < len(clearing):
            raise self.error("its init is of other elements")
        return same

    # -- construction -------------------------------------------------------------------------

    def _pieces(self, names: Names, hub: Var, length: Var) -> Stmt:
        """Return the nests that reduce the row *hub*, of *length* elements."""
        name, op = self.loop.var.name, self.reduction.combiner
        pieces, share, piece, other = (
            names.var(f"{name}_{what}") for what in ("pieces", "share", "piece", "other")
        )
        shape = (pieces, *(substitute(loop.end, self.values) for loop in self.spatial))
        dtype = accumulator(self.target.dtype)
        parts = Buffer(names.unique(f"{self.target.name}_parts"), None, shape, dtype)
        begin = piece * share
        copy = Piece(names, self, hub, piece, parts, (begin, BinOp("min", length, begin + share)))
        neutral = identity(op, dtype)

        def part(which: Expr, at: Place) -> Load:
            return Load(parts, (which, *at))

        def add(at: Place) -> Stmt:
            total = combine(op, part(ZERO, at), part(other, at))
            return Store(parts, (ZERO, *at), total)

        clear = self.over_row(names, lambda at: Store(parts, (piece, *at), neutral))
        work = seq(clear, annotate_regions(copy.rewrite(self.loop.body)))
        nests = seq(
            self._piece_loop(piece, pieces, work),
            For(other, const(1), pieces, self.over_row(names, add)),
            self.over_row(names, lambda at: self.store_total(hub, at, part(ZERO, at))),
        )
        count = BinOp("min", ceil_div(length, const(self.step.size)), const(MAX_CHUNKS))
        return Let(pieces, count, Let(share, ceil_div(length, pieces), Alloc(parts, nests)))

    def place_at(self, row: Expr, at: Place) -> Place:
        """Return the indices of the element of *row* at *at*."""
        values = {self.loop.var: row, **{x.var: v for x, v in zip(self.spatial, at, strict=True)}}
        return tuple(substitute(index, values) for index in self._place(self.store))

    def store_total(self, hub: Var, at: Place, total: Expr) -> Stmt:
        """Return the store of *total* to the element of row *hub* at *at*."""
        values = {self.loop.var: hub, **{x.var: v for x, v in zip(self.spatial, at, strict=True)}}
        start = cast(substitute(self.start, values), total.dtype)
        value = cast(combine(self.reduction.combiner, start, total), self.target.dtype)
        return Store(self.target, self.place_at(hub, at), value, span=self.store.span)

    def over_row(self, names: Names, body: Callable[[Place], Stmt]) -> Stmt:
        """Return *body* in loops over the elements of a row."""
        fresh = tuple(names.var(loop.var.name) for loop in self.spatial)
        stmt = body(fresh)
        for var, loop in reversed(list(zip(fresh, self.spatial, strict=True))):
            stmt = For(var, ZERO, substitute(loop.end, self.values), stmt, span=loop.span)
        return stmt


class _Part(Fresh):
    """Copies the body of the loop for the row *hub* and the part *fiber* of its fiber."""

    def __init__(self, names: Names, row: Row, hub: Expr, fiber: tuple[Expr, Expr]) -> None:
        super().__init__(names, "_hub", {row.loop.var: hub})
        self.inner, self.fiber = row.inner, fiber

    def visit_For(self, loop: For) -> Node:
        """Run over the part of the fiber."""
        new = super().visit_For(loop)
        if loop is not self.inner:
            return new
        assert isinstance(new, For)
        return new.replace(begin=self.fiber[0], end=self.fiber[1])


class Piece(_Part):
    """Copies the body of the loop for a part of the row *hub*, reducing into *parts*."""

    def __init__(
        self,
        names: Names,
        row: RowSum,
        hub: Expr,
        piece: Var,
        parts: Buffer,
        fiber: tuple[Expr, Expr],
    ) -> None:
        super().__init__(names, row, hub, fiber)
        self.row, self.piece, self.parts = row, piece, parts

    def visit_Seq(self, stmt: Seq) -> Node:
        """Leave out the nest that clears: the sums start from the neutral element."""
        return seq(*(self.rewrite(part) for part in stmt.body if part is not self.row.clears))

    def visit_Block(self, block: Block) -> Node:
        """Leave out the init: the sums start from the neutral element."""
        return super().visit_Block(block.replace(init=None))

    def visit_Load(self, load: Load) -> Node:
        """Read the sum of the piece."""
        if load.buffer is not self.row.target:
            return self.visit_Node(load)
        return cast(Load(self.parts, self._place()), load.buffer.dtype)

    def visit_Store(self, store: Store) -> Node:
        """Write the sum of the piece."""
        value = cast(self.rewrite(store.value), self.parts.dtype)
        return Store(self.parts, self._place(), value, span=store.span)

    def _place(self) -> Place:
        indices = (self.row.store.indices[axis] for axis in self.row.axis_of.values())
        return (self.piece, *(self.rewrite(i) for i in indices if i is not None))


def longest_row(size: int, stored: int, rows: int = 0, share: int = SHARE) -> int:
    """Return the length up to which split_hubs leaves a row whole, of *stored* elements in all.

    *size*: of its pieces. *share*: a longer row has more than one of so many parts. *rows*: the
    number of rows, if a row costs several elements: a row with fewer elements than that is better
    left to one thread, while others do the other rows.
    """
    return max(PIECES * size, -(-stored // share), rows)


def hub_split(func: Func, loop: str, inner: str, size: int) -> SplitHubs | None:
    """Return the step that splits the long rows of *loop*; None where it is not legal."""
    step = SplitHubs(loop, inner, size)
    return step if step.is_legal(func) else None
