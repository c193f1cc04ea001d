"""Below the features of a candidate: how often its loops, accesses and operations run, expected.

Position space is walked once with expected values in place of variables. A pointer array is taken
to rise evenly, so that a row has the mean length; coordinates are taken to be independent.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import log2, prod
from typing import TYPE_CHECKING, NamedTuple

from spcomp.errors import ArgumentError
from spcomp.ir.access import Load
from spcomp.ir.axis import SparseBuffer
from spcomp.ir.expr import BinOp, Call, Cast, Const, Expr, UnOp, Var
from spcomp.ir.position import Block
from spcomp.ir.visitor import Visitor, below, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spcomp.ir.access import Search
    from spcomp.ir.axis import AnyBuffer, Axis
    from spcomp.ir.func import Func
    from spcomp.ir.node import Node
    from spcomp.ir.position import Cursor, Merge
    from spcomp.ir.stmt import Alloc, For, If, Let, Prefetch, Prefix, Store, While

_ARITHMETIC = frozenset(("+", "-", "*", "/", "min", "max"))


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A loop: it is started *runs* times, for *trips* iterations each.

    *varies*: whether data decide how many. *fibers*: the axes whose fibers its bounds delimit.
    """

    name: str
    kind: str
    trips: float
    runs: float
    varies: bool
    fibers: frozenset[Axis]


class Known(NamedTuple):
    """What is known of an expression: its mean value, and what it depends on.

    *loops*: those it changes with. *gathered*: the axes whose stored coordinates it depends on.
    *fibers*: the axes whose pointers it reads. *reads*: whether it reads memory.
    """

    value: float
    loops: frozenset[Loop] = frozenset()
    gathered: frozenset[Axis] = frozenset()
    fibers: frozenset[Axis] = frozenset()
    reads: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """A load or store that runs *runs* times, within the loops *path*, outer ones first.

    *loops*: those on which its place depends; *gathering*, those through stored coordinates of
    *axis* (None if through none).
    """

    buffer: AnyBuffer
    path: tuple[Loop, ...]
    runs: float
    loops: frozenset[Loop]
    gathering: frozenset[Loop]
    axis: Axis | None


@dataclass(slots=True, eq=False)
class Expected:
    """What happens in a call. *elements*: of the buffers that are accessed.

    *operations* are on floats; *vectorized*, those in vector loops; *vectors*, the instructions
    that all of them take. *merge_steps*, *matches*: iterations of all merges, and those where every
    cursor has an element.
    """

    loops: list[Loop] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    elements: dict[AnyBuffer, float] = field(default_factory=dict)
    operations: float = 0.0
    vectorized: float = 0.0
    vectors: float = 0.0
    prefetches: float = 0.0
    prefetch_distance: int = 0
    merges: int = 0
    merge_steps: float = 0.0
    matches: float = 0.0


NOTHING = Known(0.0)


def expected(func: Func, sizes: Mapping[Var, float], vector_bits: int) -> Expected:
    """Return what happens in a call of *func*, which is in position space.

    *sizes*: values of its scalar parameters. *vector_bits*: of a vector register. Raises
    ArgumentError if a size is not known.
    """
    walker = _Walk(func, sizes, vector_bits)
    walker.visit(func.body)
    found = walker.found
    found.elements = {a.buffer: walker.elements(a.buffer) for a in found.accesses}
    return found


class _Walk(Visitor[Known]):
    def __init__(self, func: Func, sizes: Mapping[Var, float], vector_bits: int) -> None:
        self.found = Expected()
        self.known: dict[Var, Known] = {var: Known(value) for var, value in sizes.items()}
        self.pointers = {axis.indptr: axis for axis in func.axes if axis.indptr is not None}
        self.indices = {axis.indices: axis for axis in func.axes if axis.indices is not None}
        self.vector_bits = vector_bits
        self.runs = 1.0
        self.path: tuple[Loop, ...] = ()
        self.recording = True

    # Sizes

    def size(self, expr: Expr | None) -> float:
        """Return the expected value of *expr*, which does not run here."""
        if expr is None:
            return 0.0
        before, self.recording = self.recording, False
        value = self.visit(expr).value
        self.recording = before
        return value

    def positions(self, axis: Axis) -> float:
        """Return the number of positions over all fibers of *axis*."""
        if axis.nnz is not None:
            return self.size(axis.nnz)
        return self.size(axis.width) * (1.0 if axis.parent is None else self.positions(axis.parent))

    def elements(self, buffer: AnyBuffer) -> float:
        """Return the number of elements of *buffer*."""
        if not isinstance(buffer, SparseBuffer):
            return prod(map(self.size, buffer.shape))
        above = {parent for axis in buffer.axes for parent in axis.ancestors()}
        return prod(self.positions(axis) for axis in buffer.axes if axis not in above)

    def mean_length(self, axis: Axis) -> float:
        """Return the mean length of the fibers of *axis*, which has pointers."""
        fibers = 1.0 if axis.parent is None else self.positions(axis.parent)
        return self.positions(axis) / max(fibers, 1.0)

    # Expressions: visiting one runs it

    def all_of(self, parts: Iterable[Node | None]) -> Known:
        """Run *parts*; the value is the last one's."""
        total = NOTHING
        for part in parts:
            if part is not None:
                known = self.visit(part)
                total = _joined(known.value, total, known)
        return total

    def visit_Node(self, node: Node) -> Known:
        """Run the children of a node that means nothing else here."""
        for part in below(node):
            self.visit(part)
        return NOTHING

    def visit_Expr(self, expr: Expr) -> Known:
        """Run the operands: a Select, a vector."""
        return self.all_of(below(expr))

    def visit_Const(self, number: Const) -> Known:
        return Known(float(number.value))

    def visit_Var(self, var: Var) -> Known:
        known = self.known.get(var)
        if known is None:
            raise ArgumentError(
                f"the size {var.name} is not known", hint=f"sizes={{{var.name!r}: ...}}"
            )
        return known

    def visit_Cast(self, cast: Cast) -> Known:
        return self.visit(cast.value)

    def visit_UnOp(self, op: UnOp) -> Known:
        known = self.visit(op.value)
        return known._replace(value=-known.value) if op.op == "-" else known

    def visit_Call(self, call: Call) -> Known:
        self._operate(call)
        return self.all_of(call.args)

    def visit_BinOp(self, op: BinOp) -> Known:
        if op.op in _ARITHMETIC:
            self._operate(op)
        a, b = self.visit(op.lhs), self.visit(op.rhs)
        value = _computed(op.op, a.value, b.value)
        return _joined(value, a, b)

    def visit_Load(self, load: Load) -> Known:
        at = self._access(load.buffer, load.indices)
        data = load.buffer.data
        if data is not None and (axis := self.pointers.get(data)) is not None:
            value = at.value * self.mean_length(axis)
            return Known(value, at.loops, at.gathered, at.fibers | {axis}, reads=True)
        if data is not None and (axis := self.indices.get(data)) is not None:
            value = self.size(axis.length) / 2
            return Known(value, at.loops, at.gathered | {axis}, at.fibers, reads=True)
        return at._replace(value=0.0, reads=True)

    def visit_Search(self, search: Search) -> Known:
        begin, end, key = map(self.visit, (search.begin, search.end, search.key))
        steps = max(log2(max(end.value - begin.value, 2.0)), 1.0)
        loops = begin.loops | end.loops | key.loops
        self._record(search.buffer, self.runs * steps, loops, frozenset(), None)
        axis = self.pointers.get(search.buffer.data) if search.buffer.data is not None else None
        if axis is None:
            return Known((begin.value + end.value) / 2, loops, reads=True)
        value = key.value / max(self.mean_length(axis) + search.slope, 1e-9)
        return Known(min(max(value, begin.value), end.value), loops, reads=True)

    def _access(self, buffer: AnyBuffer, indices: Iterable[Expr | None]) -> Known:
        """Run *indices* and record an access there."""
        at, gathering = NOTHING, NOTHING
        for index in indices:
            if index is not None:
                known = self.visit(index)
                at = _joined(known.value, at, known)
                if known.gathered:
                    gathering = _joined(0.0, gathering, known)
        axis = min(at.gathered, key=lambda axis: axis.name, default=None)
        self._record(buffer, self.runs, at.loops, gathering.loops, axis)
        return at

    def _record(
        self,
        buffer: AnyBuffer,
        runs: float,
        loops: frozenset[Loop],
        gathering: frozenset[Loop],
        axis: Axis | None,
        path: tuple[Loop, ...] | None = None,
    ) -> None:
        if self.recording and buffer.scope != "local":
            access = Access(buffer, path or self.path, runs, loops, gathering, axis)
            self.found.accesses.append(access)

    def _operate(self, expr: Expr) -> None:
        """Count an operation on floats."""
        if not (self.recording and expr.dtype.is_float):
            return
        lanes = 1.0
        if self.path and self.path[-1].kind == "vectorized":
            trips = max(self.path[-1].trips, 1.0)
            lanes = trips / -(-trips // max(self.vector_bits // expr.dtype.bits, 1))
            self.found.vectorized += self.runs
        self.found.operations += self.runs
        self.found.vectors += self.runs / lanes

    # Statements

    def visit_Store(self, store: Store) -> Known:
        self._access(store.buffer, store.indices)
        self.all_of((store.value, store.mask))
        return NOTHING

    def visit_Alloc(self, alloc: Alloc) -> Known:
        return self.visit(alloc.body)

    def visit_Let(self, let: Let) -> Known:
        self.known[let.var] = self.visit(let.value)
        return self.visit(let.body)

    def visit_Prefix(self, prefix: Prefix) -> Known:
        self.known[prefix.var] = self.visit(prefix.amount)
        return self.visit(prefix.body)

    def visit_If(self, stmt: If) -> Known:
        """Both sides, if there are two, run equally often."""
        self.visit(stmt.cond)
        with self._times(1.0 if stmt.otherwise is None else 0.5):
            self.visit(stmt.then)
            if stmt.otherwise is not None:
                self.visit(stmt.otherwise)
        return NOTHING

    def visit_Prefetch(self, prefetch: Prefetch) -> Known:
        loads = [
            n for i in prefetch.indices if i is not None for n in walk(i) if isinstance(n, Load)
        ]
        ahead = [
            int(op.rhs.value)
            for load in loads
            for op in walk(load)
            if isinstance(op, BinOp) and op.op == "+" and isinstance(op.rhs, Const)
        ]
        self.found.prefetch_distance = max(self.found.prefetch_distance, *ahead, 0)
        self.found.prefetches += self.runs
        return NOTHING

    def visit_For(self, loop: For) -> Known:
        begin, end = self.visit(loop.begin), self.visit(loop.end)
        new = self._loop(loop.var.name, loop.kind, max(end.value - begin.value, 0.0), begin, end)
        middle = (begin.value + end.value) / 2
        self.known[loop.var] = Known(middle, begin.loops | {new}, begin.gathered)
        with self._inside(new):
            return self.visit(loop.body)

    def visit_While(self, loop: While) -> Known:
        """A loop of which nothing is known; it is taken to run once."""
        with self._inside(self._loop("while", "serial", 1.0, NOTHING._replace(reads=True))):
            self.visit(loop.cond)
            return self.visit(loop.body)

    def visit_Merge(self, merge: Merge) -> Known:
        """Each cursor stands at a coordinate with the share of coordinates that its fiber has."""
        ranges = [(self.visit(c.begin), self.visit(c.end)) for c in merge.cursors]
        lengths = [max(end.value - begin.value, 0.0) for begin, end in ranges]
        extent = max([1.0, *lengths, *map(self._extent, merge.cursors)])
        shares = [length / extent for length in lengths]
        matches = extent * prod(shares)
        steps = sum(lengths) - matches * (len(lengths) - 1)
        if merge.kind == "union":
            steps = extent * (1 - prod(1 - share for share in shares))
        new = self._loop(merge.coordinate.name, "serial", steps, *(k for r in ranges for k in r))
        self.found.merges += 1
        self.found.merge_steps += self.runs * steps
        self.found.matches += self.runs * matches
        self.known[merge.coordinate] = Known(extent / 2, frozenset((new,)))
        for cursor, (begin, end) in zip(merge.cursors, ranges, strict=True):
            middle = (begin.value + end.value) / 2
            self.known[cursor.pos] = at = Known(middle, begin.loops | {new})
            if cursor.indices is not None:
                runs = self.runs * (end.value - begin.value)
                self._record(cursor.indices, runs, at.loops, frozenset(), None, (*self.path, new))
        for case in merge.cases:
            chances = (s if there else 1 - s for s, there in zip(shares, case.present, strict=True))
            with self._inside(new), self._times(extent * prod(chances) / max(steps, 1e-9)):
                self.visit(case.body)
        return NOTHING

    def _extent(self, cursor: Cursor) -> float:
        data = None if cursor.indices is None else cursor.indices.data
        return (
            0.0
            if data is None or data not in self.indices
            else self.size(self.indices[data].length)
        )

    def visit_Block(self, block: Block) -> Known:
        reducing: set[Loop] = set()
        for item in block.iters:
            self.known[item.var] = known = self.visit(item.value)
            if item.kind == "R":
                reducing |= known.loops & frozenset(self.path)
        if block.init is not None:
            with self._times(1 / max(prod(loop.trips for loop in reducing), 1e-9)):
                self.visit(block.init)
        if block.where is not None:
            self.visit(block.where)
        return self.visit(block.body)

    def _loop(self, name: str, kind: str, trips: float, *bounds: Known) -> Loop:
        fibers = frozenset(axis for bound in bounds for axis in bound.fibers)
        varies = any(bound.reads for bound in bounds)
        loop = Loop(name, kind, trips, self.runs, varies, fibers)
        self.found.loops.append(loop)
        return loop

    @contextmanager
    def _inside(self, loop: Loop) -> Iterator[None]:
        outside = self.path
        self.path = (*outside, loop)
        with self._times(loop.trips):
            yield
        self.path = outside

    @contextmanager
    def _times(self, factor: float) -> Iterator[None]:
        before = self.runs
        self.runs = before * factor
        yield
        self.runs = before


def _joined(value: float, a: Known, b: Known) -> Known:
    """Return what is known of a *value* computed from *a* and *b*."""
    if not (b.loops or b.reads):
        return a._replace(value=value)
    sets = a.loops | b.loops, a.gathered | b.gathered, a.fibers | b.fibers
    return Known(value, *sets, a.reads or b.reads)


def _computed(op: str, a: float, b: float) -> float:
    """Return ``a op b``; for what is no arithmetic, *a*."""
    match op:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "/":
            return a / b if b else 0.0
        case "//":
            return a // b if b else 0.0
        case "%":
            return min(a, b / 2)
        case "min":
            return min(a, b)
        case "max":
            return max(a, b)
    return a
