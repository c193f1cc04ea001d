"""Under compute_at: a producer in a loop of its consumer, run for what an iteration reads."""

from __future__ import annotations

from collections.abc import Iterator

from spcomp.dtypes import int64
from spcomp.errors import ScheduleError
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, both, conjunction, variables
from spcomp.ir.arith.bounds import Env
from spcomp.ir.arith.linear import Algebra, Linear, mentions
from spcomp.ir.arith.memory import are_constant, reads_of, writes_of
from spcomp.ir.arith.proof import Prover
from spcomp.ir.arith.simplify import simplify
from spcomp.ir.axis import AnyBuffer
from spcomp.ir.expr import BinOp, Const, Expr, Select, Var, binary, cast
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, Merge
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import For, If, Let, Stmt, Store, While, seq
from spcomp.ir.structural import fingerprint
from spcomp.ir.visitor import below, walk
from spcomp.schedule.legality.dependence import depends
from spcomp.schedule.nests.carried import carries
from spcomp.schedule.nests.nearby import Move, absolute
from spcomp.schedule.nests.nests import replace_stmt
from spcomp.schedule.nests.sinking import sink_alloc
from spcomp.schedule.nests.sites import check_concurrent


class Producer(Move):
    """A block that precedes the loop, to compute in it what an iteration reads."""

    guard: Expr | None = None  # under which the nest runs

    def build(self) -> Func:
        """Return the function with the block at the start of the loop."""
        if self.places[0] > self.places[1]:
            raise self.error(
                "the block stands after the loop", hint="reverse_compute_at moves it there"
            )
        buffer = self._output_buffer()
        self._check_users(buffer)
        self._check_again(buffer)
        self.check_between()
        nest = self._nest(self._regions(buffer))
        func = replace_stmt(self.func, self.site.root, seq())
        after = replace_stmt(func, self.loop, self.loop.replace(body=seq(nest, self.loop.body)))
        after = sink_alloc(after, buffer, self.loop.var.name)
        return check_concurrent(self.step, self.func, after, self.site.block.span)

    def _output_buffer(self) -> AnyBuffer:
        """Return the only buffer that the block writes; raises unless it is a local one."""
        buffers = list(dict.fromkeys(a.buffer for a in self.block_accesses.accesses if a.writes))
        if len(buffers) != 1 or buffers[0].data is not None:
            raise self.error("it does not write just one buffer that is allocated here")
        return buffers[0]

    def _check_users(self, buffer: AnyBuffer) -> None:
        """Raise unless the loop alone reads the buffer, and the block alone writes it."""
        inside = {n for stmt in (self.loop.body, self.site.root) for n in walk(stmt)}
        for node in walk(self.func.body):
            touches = isinstance(node, Load | Search | Store) and node.buffer is buffer
            if touches and node not in inside:
                raise self.error(f"{buffer.name} is touched outside {self.loop.var.name!r} too")
        if buffer in writes_of(self.loop.body):
            raise self.error(f"{buffer.name} is written in {self.loop.var.name!r} too")
        if carries(self.func, buffer, self.site.block):
            raise self.error(
                f"{self.loop.var.name!r} may read what {self.site.block.name} stored earlier"
            )
        for block in (n for n in walk(self.loop.body, skip=Expr) if isinstance(n, Block)):
            if block.init is not None and buffer in reads_of(block.init):
                raise self.error(f"an init that may run before the loop reads {buffer.name}")

    def _check_again(self, buffer: AnyBuffer) -> None:
        """Raise unless computing an element again, in the loop, gives the same value."""
        if conflict := depends(self.site.root, self.target_root):
            changed = (writes_of(self.target_root) | writes_of(seq(*self.between))) & reads_of(
                self.site.root
            )
            if changed:
                raise self.error(f"the loop writes what the block reads: {conflict}")
        loop_vars = {n.var for n in walk(self.site.root, skip=Expr) if isinstance(n, For)}
        steady = loop_vars | set(self.func.params)
        for block in (n for n in walk(self.site.root, skip=Expr) if isinstance(n, Block)):
            nested = any(isinstance(n, Block) for n in walk(block.body, skip=Expr))
            if nested or (buffer not in reads_of(block) and block.init is None):
                continue
            drivers = {v for it in block.iters if it.kind == "R" for v in variables(it.value)}
            drivers = {v for d in drivers for v in variables(self.block_accesses.values.get(d, d))}
            if block.init is None or not drivers <= steady:
                raise self.error(f"it goes on from what {buffer.name} holds")

    def _regions(self, buffer: AnyBuffer) -> dict[Var, tuple[Expr, Expr]]:
        """Return the range that an iteration needs of each loop that picks an element."""
        writes = [a.indices for a in self.block_accesses.accesses if a.writes]
        reads = [a.indices for a in self.loop_accesses.accesses if a.buffer is buffer]
        regions: dict[Var, tuple[Expr, Expr]] = {}
        if len({absolute(indices) for indices in (*writes, *reads)}) > 1:
            raise self.error(f"{buffer.name} is read by positions that count from elsewhere")
        for k, index in enumerate(writes[0]):
            digit = None if index is None else simplify(index)
            loop = next((x for x in self.site.loops if x.var is digit), None)
            same = all(indices[k] is index for indices in writes)
            if loop is None or not same or loop.var in regions:
                continue
            ends = [self._bounds(buffer, indices[k]) for indices in reads]
            region = _hull(ends)
            if region is not None:
                regions[loop.var] = region
        if not regions:
            raise self._unbounded(buffer)
        return regions

    def _unbounded(self, buffer: AnyBuffer) -> ScheduleError:
        return self.error(f"what {self.loop.var.name!r} needs of {buffer.name} has no bounds")

    def _bounds(self, buffer: AnyBuffer, index: Expr | None) -> tuple[Linear, Linear] | None:
        """Return the least and the greatest value of *index* in an iteration; None: not known."""
        if index is None:
            return None
        inner = dict(self.loop_accesses.inner)
        reads = [n for n in walk(index) if isinstance(n, Load | Search)]
        if reads and not self._guarded(buffer):
            return None  # where a condition is false, what the index reads may not exist
        if any(mentions((n,), {*inner, *self.loop_accesses.opaque}) for n in reads):
            return None
        if not are_constant((index,), self.loop.body):
            return None
        if variables(index) & self.loop_accesses.opaque:
            return None
        prover = Prover(Algebra(Env(), trusted=True), inner)
        least = most = prover.form(cast(index, int64))
        for var in reversed(tuple(inner)):
            if least is not None and mentions(least.atoms, {var}):
                least = prover.least(least, var)
            if most is not None and mentions(most.atoms, {var}):
                low = prover.least(most.scale(-1), var)
                most = None if low is None else low.scale(-1)
        if least is None or most is None or mentions((*least.atoms, *most.atoms), set(inner)):
            return None
        return Linear(least.terms, int64), Linear(most.terms, int64)

    def _guarded(self, buffer: AnyBuffer) -> bool:
        """Whether all reads of *buffer* in the loop run under one condition, known before it.

        The nest then runs under this condition, too.
        """
        inside = self.loop_accesses
        paths = list(_conditions(self.loop.body, buffer, inside.values))
        if len({fingerprint(tuple(path)) for path in paths}) != 1:
            return False
        for cond in paths[0]:
            if cond is None or reads_of(cond) & writes_of(self.loop.body):
                return False
            if variables(cond) & ({*inside.inner} | inside.opaque):
                return False
        self.guard = conjunction(paths[0])
        return True

    def _nest(self, regions: dict[Var, tuple[Expr, Expr]]) -> Stmt:
        """Return the nest of the block over *regions*."""
        values: dict[Var, Expr] = {}
        nodes: list[For | Let] = []
        for node in self.site.path:
            assert isinstance(node, For | Let)
            if node.var not in regions:
                nodes.append(substitute(node.replace(body=seq()), values))
                continue
            assert isinstance(node, For)
            low, high = self._clip(regions[node.var], node, values)
            count = _distance(low, high)
            is_unit = isinstance(count, Const) and count.value == 1
            if self.guard is not None and any(isinstance(n, Load) for n in walk(count)):
                raise self._unbounded(self._output_buffer())  # the loop is outside the guard
            if is_unit and not self.keeps_units:
                values[node.var] = low
                continue
            nodes.append(For(node.var, ZERO, count, seq(), span=node.span))
            values[node.var] = low if is_unit else simplify(binary("+", low, node.var))
        block = substitute(self.site.block, values)
        if self.guard is not None:  # evaluated first, as what the block reads depends on it
            block = block.replace(where=both(self.guard, block.where))
        body: Stmt = block
        for around in reversed(nodes):
            body = around.replace(body=body)
        return body

    def _clip(
        self, region: tuple[Expr, Expr], loop: For, values: dict[Var, Expr]
    ) -> tuple[Expr, Expr]:
        """Return the part of *region* that lies in the range of *loop*."""
        low, high = region
        begin, end = (substitute(x, values) for x in (loop.begin, loop.end))
        if not self.proves("<=", begin, low):
            low = simplify(binary("max", begin, low))
        if not self.proves("<=", high, end):
            high = simplify(binary("min", end, high))
        return low, high


def _conditions(
    node: Node, buffer: AnyBuffer, values: dict[Var, Expr]
) -> Iterator[list[Expr | None]]:
    """Yield the conditions under which each load of *buffer* runs; None: one of another kind."""
    own: list[Expr | None] = []
    match node:
        case Load() if node.buffer is buffer:
            yield []
        case While() | Merge() | Select():
            own = [None]
        case If(cond=cond, otherwise=otherwise):
            own = [None if otherwise is not None else substitute(cond, values)]
        case Block(where=Expr() as where):
            own = [substitute(where, values)]
        case BinOp(op="and" | "or", lhs=lhs, rhs=rhs):
            yield from _conditions(lhs, buffer, values)
            yield from ([None, *path] for path in _conditions(rhs, buffer, values))
            return
    for part in below(node):
        yield from ([*own, *path] for path in _conditions(part, buffer, values))


def _hull(ends: list[tuple[Linear, Linear] | None]) -> tuple[Expr, Expr] | None:
    """Return the least range with all of *ends*, pairs of first and last; None: not known."""
    low: Expr | None = None
    high: Expr | None = None
    for pair in ends:
        if pair is None:
            return None
        first, last = (simplify(form.expr()) for form in (pair[0], pair[1].shift(1)))
        low = first if low is None else _extreme("min", low, first)
        high = last if high is None else _extreme("max", high, last)
    return None if low is None or high is None else (low, high)


def _extreme(op: str, a: Expr, b: Expr) -> Expr:
    """Return the minimum or maximum of *a* and *b*, by *op*; simplified where it is known."""
    algebra = Algebra(Env(), trusted=True)
    gap = algebra.of(a) - algebra.of(b)
    if gap.is_constant:
        return a if (gap.constant < 0) == (op == "min") else b
    return simplify(BinOp("min" if op == "min" else "max", a, b))


def _distance(low: Expr, high: Expr) -> Expr:
    """Return ``high - low`` with common terms cancelled, on each side of a ``min``."""
    algebra = Algebra(Env(), trusted=True)
    match high:
        case BinOp(op="min", lhs=a, rhs=b):
            return simplify(BinOp("min", _distance(low, a), _distance(low, b)))
    return simplify((algebra.of(high) - algebra.of(low)).expr())
