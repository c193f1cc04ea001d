"""What a producer computes in a loop of its consumer: just what an iteration reads."""

from __future__ import annotations

from spcomp.dtypes import int64
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, variables
from spcomp.ir.arith.bounds import Env
from spcomp.ir.arith.linear import Algebra, Linear, mentions
from spcomp.ir.arith.proof import Prover
from spcomp.ir.arith.simplify import simplify
from spcomp.ir.axis import AnyBuffer, memory_of
from spcomp.ir.expr import BinOp, Const, Expr, Select, Var, binary, cast
from spcomp.ir.func import Func
from spcomp.ir.position import Block, Merge
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import For, If, Let, Stmt, Store, While, seq
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import depends, reads_of, writes_of
from spcomp.schedule.nests.nearby import Move, absolute
from spcomp.schedule.nests.nests import replaced
from spcomp.schedule.nests.sinking import sunk
from spcomp.schedule.nests.sites import kept_apart


class Producer(Move):
    """A block that precedes the loop: computes in it what an iteration reads."""

    def moved(self) -> Func:
        """Return the function with the block at the start of the loop."""
        if self.places[0] > self.places[1]:
            raise self.error(
                "the block stands after the loop", hint="reverse_compute_at moves it there"
            )
        buffer = self._made()
        self._check_needed(buffer)
        self._check_again(buffer)
        self.check_between()
        nest = self._nest(self._regions(buffer))
        func = replaced(self.func, self.site.root, seq())
        after = replaced(func, self.loop, self.loop.replace(body=seq(nest, self.loop.body)))
        after = sunk(after, buffer, self.loop.var.name)
        return kept_apart(self.step, self.func, after, self.span)

    def _made(self) -> AnyBuffer:
        """The one buffer that the block writes."""
        made = list(dict.fromkeys(a.buffer for a in self.own.found if a.writes))
        if len(made) != 1 or made[0].data is not None:
            raise self.error("it does not write just one buffer that is allocated here")
        return made[0]

    def _check_needed(self, buffer: AnyBuffer) -> None:
        """Raise unless the loop alone reads the buffer, and the block alone writes it."""
        inside = {n for stmt in (self.loop.body, self.site.root) for n in walk(stmt)}
        for node in walk(self.func.body):
            touches = isinstance(node, Load | Search | Store) and node.buffer is buffer
            if touches and node not in inside:
                raise self.error(f"{buffer.name} is touched outside {self.loop.var.name!r} too")
        if buffer in writes_of(self.loop.body):
            raise self.error(f"{buffer.name} is written in {self.loop.var.name!r} too")
        for block in (n for n in walk(self.loop.body, skip=Expr) if isinstance(n, Block)):
            if block.init is not None and buffer in reads_of(block.init):
                raise self.error(f"an init that may run before the loop reads {buffer.name}")

    def _check_again(self, buffer: AnyBuffer) -> None:
        """Raise unless computing an element again, in the loop, gives the same."""
        if found := depends(self.site.root, self.target_root):
            changed = (writes_of(self.target_root) | writes_of(seq(*self.between))) & reads_of(
                self.site.root
            )
            if changed:
                raise self.error(f"the loop writes what the block reads: {found}")
        own = {n.var for n in walk(self.site.root, skip=Expr) if isinstance(n, For)}
        steady = own | set(self.func.params)
        for block in (n for n in walk(self.site.root, skip=Expr) if isinstance(n, Block)):
            nested = any(isinstance(n, Block) for n in walk(block.body, skip=Expr))
            if nested or (buffer not in reads_of(block) and block.init is None):
                continue
            drivers = {v for it in block.iters if it.kind == "R" for v in variables(it.value)}
            drivers = {v for d in drivers for v in variables(self.own.values.get(d, d))}
            if block.init is None or not drivers <= steady:
                raise self.error(f"it goes on from what {buffer.name} holds")

    def _regions(self, buffer: AnyBuffer) -> dict[Var, tuple[Expr, Expr]]:
        """What an iteration needs of each loop of the block that picks an element."""
        writes = [a.indices for a in self.own.found if a.writes]
        reads = [a.indices for a in self.body.found if a.buffer is buffer]
        found: dict[Var, tuple[Expr, Expr]] = {}
        if len({absolute(indices) for indices in (*writes, *reads)}) > 1:
            raise self.error(f"{buffer.name} is read by positions that count from elsewhere")
        for k, index in enumerate(writes[0]):
            own = next((x for x in self.site.loops if x.var is index), None)
            same = all(indices[k] is index for indices in writes)
            if own is None or not same or own.var in found:
                continue
            ends = [self._needed(indices[k]) for indices in reads]
            region = _hull(ends)
            if region is not None:
                found[own.var] = region
        if not found:
            raise self.error(f"what {self.loop.var.name!r} needs of {buffer.name} has no bounds")
        return found

    def _needed(self, index: Expr | None) -> tuple[Linear, Linear] | None:
        """The least and the greatest value of *index* in an iteration; None: not known."""
        if index is None:
            return None
        inner = dict(self.body.inner)
        changed = writes_of(self.loop.body)
        reads = [n for n in walk(index) if isinstance(n, Load | Search)]
        if reads and _decides(self.loop.body):
            return None  # where nothing is read, what the index reads may not exist
        if any(mentions((n,), {*inner, *self.body.opaque}) for n in reads) or any(
            memory_of(n.buffer) in changed for n in reads
        ):
            return None
        if variables(index) & self.body.opaque:
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

    def _nest(self, regions: dict[Var, tuple[Expr, Expr]]) -> Stmt:
        """Return the nest of the block over *regions*."""
        values: dict[Var, Expr] = {}
        made: list[For | Let] = []
        for node in self.site.path:
            assert isinstance(node, For | Let)
            if node.var not in regions:
                made.append(substitute(node.replace(body=seq()), values))
                continue
            assert isinstance(node, For)
            low, high = self._clipped(regions[node.var], node, values)
            count = _distance(low, high)
            one = isinstance(count, Const) and count.value == 1
            if one and not self.keeps_units:
                values[node.var] = low
                continue
            made.append(For(node.var, ZERO, count, seq(), span=node.span))
            values[node.var] = low if one else simplify(binary("+", low, node.var))
        body: Stmt = substitute(self.site.block, values)
        for around in reversed(made):
            body = around.replace(body=body)
        return body

    def _clipped(
        self, region: tuple[Expr, Expr], own: For, values: dict[Var, Expr]
    ) -> tuple[Expr, Expr]:
        """Return *region* as far as it lies in the range of *own*."""
        low, high = region
        begin, end = (substitute(x, values) for x in (own.begin, own.end))
        if not self.proves("<=", begin, low):
            low = simplify(binary("max", begin, low))
        if not self.proves("<=", high, end):
            high = simplify(binary("min", end, high))
        return low, high


def _decides(stmt: Stmt) -> bool:
    """Whether something in *stmt* runs, or is evaluated, under a condition."""
    return any(
        isinstance(n, If | While | Merge | Select) or (isinstance(n, Block) and n.where is not None)
        for n in walk(stmt)
    )


def _hull(ends: list[tuple[Linear, Linear] | None]) -> tuple[Expr, Expr] | None:
    """The least range that holds all *ends*, which are both included; None: not known."""
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
    """Return the smaller (``min``) or greater of *a* and *b*; one of them where that is known."""
    algebra = Algebra(Env(), trusted=True)
    gap = algebra.of(a) - algebra.of(b)
    if gap.is_constant:
        return a if (gap.constant < 0) == (op == "min") else b
    return simplify(BinOp("min" if op == "min" else "max", a, b))


def _distance(low: Expr, high: Expr) -> Expr:
    """Return ``high - low`` with what they have in common left out, at each side of a ``min``."""
    algebra = Algebra(Env(), trusted=True)
    match high:
        case BinOp(op="min", lhs=a, rhs=b):
            return simplify(BinOp("min", _distance(low, a), _distance(low, b)))
    return simplify((algebra.of(high) - algebra.of(low)).expr())
