"""III to III: the threads of a block wait for each other; what is done once, one of them does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.errors import LoweringError
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import conjuncts, from_zero, trip_count, variables
from spcomp.ir.analysis.fragments import is_fragment, role_of
from spcomp.ir.analysis.grid import THREADS, grid_of
from spcomp.ir.analysis.names import Names
from spcomp.ir.arith.memory import read_by, reads_of, writes_of
from spcomp.ir.axis import WARP, AnyBuffer, memory_of
from spcomp.ir.expr import Const, Expr, Var, const
from spcomp.ir.node import Node
from spcomp.ir.program import FlatFunc
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import (
    WARPS,
    Alloc,
    Barrier,
    Evaluate,
    For,
    If,
    Let,
    Seq,
    Stmt,
    Store,
    While,
    seq,
)
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import below, statements, walk
from spcomp.passes.base import FuncPass, Stage
from spcomp.passes.grid.places import injective_under

_INDEX = {thread: Var(thread, int64) for thread in THREADS}  # one for all loops over it
PRIVATE = ("local", WARP)  # scopes of buffers that threads do not read of each other in memory


@dataclass(frozen=True, slots=True)
class Synchronize(FuncPass):
    """``for t in threads: s[t] = a; for t in threads: b = s[7 - t]  ->  a barrier between``.

    What a block does outside its loops over threads, one thread does, if it writes memory that
    others see; what it writes for itself, each does. Raises LoweringError where some threads would
    wait for others that never come.
    """

    name: ClassVar[str] = "synchronize"
    takes: ClassVar[Stage] = Stage.FLAT
    gives: ClassVar[Stage] = Stage.FLAT

    def run_func(self, func: FlatFunc) -> FlatFunc:
        """Return *func* with barriers."""
        sizes = dict(zip(THREADS, grid_of(func).threads, strict=True))
        sizes = {thread: size for thread, size in sizes.items() if size > 1}
        if not sizes:
            return func
        names = Names(func)
        body = _Once(tuple(sizes), names).rewrite(func.body)
        return func.replace(body=_Barriers(sizes, names).rewrite(body))


class _Once(Rewriter):
    """Lets one thread store what no loop over threads stores."""

    def __init__(self, indices: tuple[str, ...], names: Names) -> None:
        self.indices, self.names = indices, names
        self.open: tuple[str, ...] = ()

    def visit_For(self, loop: For) -> Node:
        before = self.open
        if role_of(loop) is not None:  # all lanes of a warp do it together
            self.open = (*before, THREADS[0])
        elif loop.thread in self.indices:
            self.open = (*before, loop.thread)
        new = self.visit_Node(loop)
        self.open = before
        return new

    def visit_Store(self, store: Store) -> Node:
        if _is_private(store.buffer):
            return store
        stmt: Stmt = store
        for index in reversed([index for index in self.indices if index not in self.open]):
            var = self.names.var("one")
            stmt = For(var, const(0), const(1), stmt, "bound", index, span=store.span)
        return stmt


def _is_private(buffer: AnyBuffer) -> bool:
    return buffer.scope in PRIVATE or is_fragment(buffer)


@dataclass(frozen=True, slots=True)
class _Accesses:
    """What a statement reads and writes of memory that threads share, and by which threads."""

    reads: tuple[_Access, ...]
    writes: tuple[_Access, ...]

    @classmethod
    def of(cls, stmt: Stmt, private: set[AnyBuffer]) -> _Accesses:
        """Return the accesses in *stmt* but those to *private* buffers."""
        found = [
            access
            for access in _accesses(stmt, frozenset())
            if access.node.buffer.scope not in PRIVATE and access.node.buffer not in private
        ]
        writes = tuple(access for access in found if isinstance(access.node, Store))
        return cls(tuple(access for access in found if access not in writes), writes)

    def meets(self, later: _Accesses, alike: _Alike) -> bool:
        """Whether a thread may touch what another thread writes, here and in *later*."""
        pairs = [(w, x) for w in self.writes for x in (*later.reads, *later.writes)]
        pairs += [(w, r) for w in later.writes for r in self.reads]
        return any(
            memory_of(w.node.buffer) is memory_of(x.node.buffer) and not alike.same(w, x)
            for w, x in pairs
        )


@dataclass(frozen=True, slots=True)
class _Access:
    """An access; *first*: the indices of threads that are 0 where *conditions* let it be made."""

    node: Load | Search | Store
    first: frozenset[str]
    conditions: tuple[Expr, ...] = ()


def _accesses(
    node: Node, first: frozenset[str], conditions: tuple[Expr, ...] = ()
) -> Iterator[_Access]:
    if isinstance(node, For) and node.kind == "bound" and from_zero(node):
        first |= {node.thread} if isinstance(node.end, Const) and node.end.value == 1 else set()
    if isinstance(node, Load | Search | Store):
        yield _Access(node, first, conditions)
    for item in below(node):
        more = (node.cond,) if isinstance(node, If) and item is node.then else ()
        yield from _accesses(item, first, (*conditions, *more))


class _Alike:
    """Tells accesses by the same thread from others: no two threads have the same place.

    *sizes* are those of the indices of threads, *needed* the indices of which the threads differ;
    *again* is the loop of which the accesses are in different iterations.
    """

    def __init__(
        self,
        threads: dict[Var, str],
        sizes: dict[str, int],
        needed: frozenset[str],
        again: For | While | None = None,
    ) -> None:
        self.threads, self.needed = threads, needed
        self.ranges: dict[Var, tuple[Expr, Expr]] = {
            _INDEX[t]: (const(0), const(size)) for t, size in sizes.items()
        }
        self.other: frozenset[Var] = frozenset()  # other variables that differ, of any value
        self.written: set[object] = set()  # memory of which they may read different content
        if again is not None:
            nodes = list(statements(again))
            loops = [n for n in nodes if isinstance(n, For) and n.var not in threads]
            self.ranges |= {n.var: (n.begin, n.end) for n in loops}
            self.other = frozenset(n.var for n in nodes if isinstance(n, Let))
            self.written = writes_of(again)

    def same(self, write: _Access, access: _Access) -> bool:
        """Whether one thread alone makes both accesses where they meet."""
        if self.needed <= write.first & access.first:
            return True
        one, other = write.node, access.node
        if one.buffer is not other.buffer or isinstance(other, Search) or isinstance(one, Search):
            return False
        a, b = self._place(one), self._place(other)
        if a is None or b is None or not expr_equal(a, b):
            return False
        conditions, others = (
            [self._of(term) for cond in x.conditions for term in conjuncts(cond)]
            for x in (write, access)
        )
        both = [x for x in conditions if any(expr_equal(x, y) for y in others)]
        return self._is_own(a, both)

    def _is_own(self, place: Expr, conditions: list[Expr]) -> bool:
        """Whether no other thread has *place*, which is touched under *conditions*."""
        used, reads = variables(place), set(read_by(place))
        if used & self.other or any(b.scope in PRIVATE for b in reads):
            return False
        if reads_of(place) & self.written:
            return False
        indices = [_INDEX[thread] for thread in self.needed]
        if reads and not used & (self.ranges.keys() - {*_INDEX.values()}):
            return used >= {*indices}  # such coordinates have been checked to be different
        return all(injective_under(place, index, self.ranges, conditions) for index in indices)

    def _place(self, access: Load | Store) -> Expr | None:
        index = access.indices[0]
        if index is None or index.dtype.lanes > 1:
            return None
        return self._of(index)

    def _of(self, value: Expr) -> Expr:
        values = {v: _INDEX[self.threads[v]] for v in variables(value) if v in self.threads}
        return substitute(value, values)


class _Barriers(Rewriter):
    """Places barriers between statements of which one reads what other threads write before."""

    def __init__(self, sizes: dict[str, int], names: Names) -> None:
        self.sizes, self.names = sizes, names
        self.open: dict[str, For] = {}
        self.around: list[Node] = []  # loops and conditions around, outermost first
        self.threads: dict[Var, str] = {}
        self.varying: set[Var] = set()  # variables that differ between threads
        self.private: set[AnyBuffer] = set()

    def visit_Let(self, let: Let) -> Node:
        if self._varies(let.value):
            self.varying.add(let.var)
        new = self.visit_Node(let)
        assert isinstance(new, Let)
        barrier = self._between((new.value,), new.body)
        return new if barrier is None else new.replace(body=seq(barrier, new.body))

    def _between(self, values: tuple[Expr, ...], body: Stmt) -> Stmt | None:
        """Return the barrier between *values* and *body* if that writes what they read, or None."""
        if not self._missing:
            return None
        before = _Accesses.of(seq(*map(Evaluate, values)), self.private)
        later = _Accesses.of(body, self.private | _allocated(body))
        return self._barrier(body) if before.meets(later, self._alike(body)) else None

    def _kept(self, node: For | If, names: tuple[str, ...], body: Stmt) -> Stmt:
        """Return *node*, after its expressions *names* if *body*, inside, writes what they read."""
        values = tuple(getattr(node, name) for name in names)
        barrier = self._between(values, body)
        if barrier is None:
            return node
        kept = [self.names.var("before", value.dtype) for value in values]
        result = seq(barrier, node.replace(**dict(zip(names, kept, strict=True))))
        for var, value in zip(kept, values, strict=True):
            result = Let(var, value, result, span=node.span)
        return result

    def visit_Alloc(self, alloc: Alloc) -> Node:
        if self.sizes.keys() <= self.open.keys():
            self.private.add(alloc.buffer)
        return self.visit_Node(alloc)

    def visit_For(self, loop: For) -> Node:
        if loop.thread in self.sizes:
            self.threads[loop.var] = loop.thread
            self.varying.add(loop.var)
            self.open[loop.thread] = loop
            new = self._inside(loop)
            del self.open[loop.thread]
            return new
        if loop.thread:  # over blocks, which are independent
            return self.visit_Node(loop)
        if role_of(loop) is not None:
            self._check_warp(loop)
            return loop
        new = self._inside(loop)
        assert isinstance(new, For)
        new = new.replace(body=self._closed(new, new.body))
        return self._kept(new, ("begin", "end"), new.body)

    def _check_warp(self, loop: For) -> None:
        """Raise LoweringError unless the lanes of a warp all run *loop*."""
        lanes = {var for var in self.varying if self.threads.get(var, THREADS[0]) == THREADS[0]}
        for node in self.around:
            apart = isinstance(node, For) and node.thread == THREADS[0]
            conds = (node.begin, node.end) if isinstance(node, For) else (node.cond,)  # type: ignore[attr-defined]
            if apart or any(variables(cond) & lanes for cond in conds):
                raise LoweringError(
                    "what a warp does together is inside what each of its threads does",
                    loop.span,
                    hint=f"no loop bound to {THREADS[0]} may be around tensor cores",
                )

    def visit_While(self, loop: While) -> Node:
        new = self._inside(loop)
        assert isinstance(new, While)
        if self._between((new.cond,), new.body) is not None:
            raise LoweringError(
                "threads read the condition of a loop where another one changes it",
                loop.span,
                hint="copy what the condition reads before it changes",
            )
        return new.replace(body=self._closed(new, new.body))

    def visit_If(self, stmt: If) -> Node:
        new = self._inside(stmt)
        assert isinstance(new, If)
        return self._kept(new, ("cond",), seq(*filter(None, (new.then, new.otherwise))))

    def _inside(self, node: Node) -> Node:
        self.around.append(node)
        new = self.visit_Node(node)
        self.around.pop()
        return new

    def _closed(self, loop: For | While, body: Stmt) -> Stmt:
        """Return *body*, the body of *loop*, ended by a barrier if the next iteration needs it."""
        once = isinstance(loop, For) and trip_count(loop) in (0, 1)
        if once or not self._missing:
            return body
        accesses = _Accesses.of(body, self.private | _allocated(body))
        reused = not self.open and _reuses_arena(body)
        if not reused and not accesses.meets(accesses, self._alike(body, loop)):
            return body
        self.around.append(loop)
        barrier = self._barrier(body)
        self.around.pop()
        return seq(body, barrier)

    def visit_Seq(self, stmts: Seq) -> Node:
        parts = [self.rewrite(stmt) for stmt in stmts.body]
        if not self._missing:
            return seq(*parts)
        result: list[Stmt] = []
        since: list[Stmt] = []  # the last barrier
        for part in parts:
            alike = self._alike(part)
            later = _Accesses.of(part, self.private | _allocated(part))
            for before in since:
                earlier = _Accesses.of(before, self.private | _allocated(before))
                reused = _has_arena(before) and _has_arena(part)
                if reused or earlier.meets(later, alike):
                    result.append(self._barrier(seq(*since, part)))
                    since = []
                    break
            result.append(part)
            since.append(part)
        return seq(*result)

    @property
    def _missing(self) -> frozenset[str]:
        """The indices of threads whose loops are not around."""
        return frozenset(self.sizes.keys() - self.open.keys())

    def _alike(self, stmt: Stmt, again: For | While | None = None) -> _Alike:
        loops = (n for n in statements(stmt) if isinstance(n, For) and n.thread in self.sizes)
        threads = self.threads | {n.var: n.thread for n in loops}
        return _Alike(threads, self.sizes, self._missing, again)

    def _barrier(self, stmt: Stmt) -> Stmt:
        """Return the barrier for the threads of *stmt*, which all run it; raises LoweringError."""
        size = self.sizes.get(THREADS[0], 0)
        if self._missing == {THREADS[0]} and size in WARPS:
            return Barrier(size, span=stmt.span)
        for node in self.around:
            why = self._divergence(node)
            if why is not None:
                raise LoweringError(
                    f"some threads would wait for others that never come: {why}",
                    node.span,
                    hint="threads that share memory run loops and conditions alike; 2, 4, 8, 16 or"
                    " 32 neighbours along threadIdx.x may do so by themselves",
                )
        return Barrier(span=stmt.span)

    def _divergence(self, node: Node) -> str | None:
        """Return why not all threads of a block run what is inside *node*, or None."""
        if isinstance(node, For) and node.thread:
            extent = node.end
            full = isinstance(extent, Const) and extent.value == self.sizes[node.thread]
            return None if full else f"{node.var.name} has fewer threads than the block"
        conds = (node.begin, node.end) if isinstance(node, For) else (node.cond,)  # type: ignore[attr-defined]
        if any(map(self._varies, conds)):
            what = f"loop {node.var.name}" if isinstance(node, For) else "a condition"
            return f"{what} depends on the thread"
        return None

    def _varies(self, value: Expr) -> bool:
        """Whether *value* may differ between the threads of a block."""
        own = (n for n in walk(value) if isinstance(n, Load))
        mine = any(_is_private(n.buffer) or n.buffer in self.private for n in own)
        return mine or bool(variables(value) & self.varying)


def _allocated(stmt: Stmt) -> set[AnyBuffer]:
    """Return the buffers that live inside one thread of *stmt*."""
    loops = [n for n in statements(stmt) if isinstance(n, For) and n.thread.startswith("threadIdx")]
    return {
        n.buffer
        for loop in loops
        for n in statements(loop.body)
        if isinstance(n, Alloc) and n.buffer.scope != "shared"
    }


def _reuses_arena(stmt: Stmt) -> bool:
    """Whether parts of *stmt* that follow each other have the same memory of the block."""
    sequences = (n for n in statements(stmt) if isinstance(n, Seq))
    return any(sum(map(_has_arena, sequence.body)) > 1 for sequence in sequences)


def _has_arena(stmt: Stmt) -> bool:
    """Whether *stmt* has memory of the block that exists only while it runs."""
    allocs = (n for n in statements(stmt) if isinstance(n, Alloc))
    return any(alloc.buffer.scope == "shared" for alloc in allocs)
