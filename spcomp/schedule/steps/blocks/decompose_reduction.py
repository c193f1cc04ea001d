"""Steps of stage II on reductions: decompose_reduction, rfactor."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import ClassVar

from spcomp.errors import Span
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import both, conjuncts, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.axis import memory_of
from spcomp.ir.expr import Expr, Var, const
from spcomp.ir.func import Func
from spcomp.ir.position import Block
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import Alloc, Evaluate, For, If, Let, Seq, Stmt, Store, seq
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import ascending_axes, conflicts
from spcomp.schedule.nests.nests import find_block, find_loop, replaced, way_to
from spcomp.schedule.steps.base import Makes, Step

ACCESSES = (Load, Store, Search)
NOTHING = Evaluate(const(0))


@dataclass(frozen=True, slots=True)
class DecomposeReduction(Step):
    """``for k: for j: (init; W[k] op= x)  ->  for k: init; for k: for j: W[k] op= x``.

    The init of *block* becomes a block of its own, in copies of the loops that pick the element,
    before *loop*; inside it, where what is started is allocated there. A block that only
    accumulates, as those of a decomposed format do, gets a nest that does nothing, and no code.
    Legal where *loop* has inside all loops that drive the reduction, and until these begin nothing
    else in it touches what is started. Source: TVM's decompose_reduction.
    """

    name: ClassVar[str] = "decompose_reduction"
    makes: ClassVar[Makes] = "blocks"
    block: str
    loop: str

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the init in a nest of its own."""
        loop = find_loop(func, self.loop, self, span)
        block = find_block(func, self.block, self, span)
        way = way_to(loop, block)
        if not way or any(isinstance(node, If) for node in way):
            raise self._error(
                f"{self.loop!r} is not around the block, or more is between", loop, span
            )
        start = Start(block, way)
        if (why := start.refused(func)) is not None:
            raise self._error(why, loop, span)
        made = seq(start.build(Names(func)), start.top)
        return replaced(replaced(func, start.top, made), block, block.replace(init=None))


class Start:
    """Where the init of *block* goes: before *top*, which is on the *way* that leads to it.

    *needed*: the loops and lets whose values init depends on; *lost*: what drives the reduction,
    also outside the way, so that init does not know it.
    """

    def __init__(self, block: Block, way: tuple[Stmt, ...], lost: Collection[Var] = ()) -> None:
        self.block = block
        self.touched = {
            memory_of(n.buffer)
            for n in (walk(block.init) if block.init is not None else ())
            if isinstance(n, ACCESSES)
        }
        inside = [k for k, n in enumerate(way) if isinstance(n, Alloc) and n.buffer in self.touched]
        first = next(k for k, n in enumerate(way) if k >= max(inside, default=-1) + 1 and _runs(n))
        self.way, self.top = way[first:], way[first]
        reduced = variables_of(own.value for own in block.iters if own.kind == "R")
        self.drivers = _feeding(self.way, reduced, ranges=False)
        self.outside = {*lost}
        self.lost = {own.var for own in block.iters if own.kind == "R"} | self.outside
        for node in self.way:
            if isinstance(node, For) and node.var in self.drivers:
                self.lost.add(node.var)
            if isinstance(node, Let) and variables(node.value) & self.lost:
                self.lost.add(node.var)
        self.where = [t for t in conjuncts(block.where) if not variables(t) & self.lost]
        spatial = [own.value for own in block.iters if own.kind == "S"]
        used = variables_of([*spatial, *self.where])
        used |= variables(block.init) if block.init is not None else set()
        self.needed = _feeding(self.way, used)

    def refused(self, func: Func) -> str | None:
        """Return why init may not go there; None if it may."""
        block = self.block
        if block.init is None:
            made = f"{block.name}_init"
            if any(isinstance(n, Block) and n.name == made for n in walk(func.body)):
                return f"block {block.name} has no init any more: {made} is it"
            if not any(own.kind == "R" for own in block.iters):
                return f"block {block.name} has no init, and does not reduce"
        inside = {n.var for n in self.way if isinstance(n, (For, Let))}
        outside = bound(func) - inside
        reduced = variables_of(own.value for own in block.iters if own.kind == "R")
        if block.init is not None and reduced & (outside - self.outside):
            return "a loop around it drives the reduction too"
        if clash := self.needed & self.lost:
            names = ", ".join(sorted(var.name for var in clash))
            return f"what {names} drives picks the element too"
        return self._moves(ascending_axes(func))

    def _moves(self, ascending: Collection[str]) -> str | None:
        """Return what stands against running init before all that precedes it now."""
        for node, below in zip(self.way, self.way[1:], strict=False):
            if isinstance(node, For) and node.var in self.drivers:
                break
            if isinstance(node, For):
                found = conflicts(node, self.touched, ascending=ascending)
                if found:
                    return str(found[0])
            if isinstance(node, Seq):
                before = node.body[: node.body.index(below)]
                if (name := self._uses(before)) is not None:
                    return f"{name} is used before it is started"
        return self._changed()

    def _changed(self) -> str | None:
        """Return what the nest of init would read that is written, or made, after it."""
        exprs = [*self.where, *(own.value for own in self.block.iters if own.kind == "S")]
        for node in self.way:
            if isinstance(node, (For, Let)) and node.var in self.needed:
                exprs += [node.value] if isinstance(node, Let) else [node.begin, node.end]
        changed = {memory_of(n.buffer) for n in walk(self.top) if isinstance(n, (Store, Alloc))}
        for access in (n for expr in exprs for n in walk(expr)):
            if isinstance(access, (Load, Search)) and memory_of(access.buffer) in changed:
                return f"{access.buffer.name}, on which the init depends, is written there"
        return None

    def _uses(self, before: Iterable[Stmt]) -> str | None:
        """Return the name of a buffer that init and a statement of *before* use."""
        for access in (n for stmt in before for n in walk(stmt)):
            if isinstance(access, ACCESSES) and memory_of(access.buffer) in self.touched:
                return access.buffer.name
        return None

    def build(self, names: Names) -> Stmt:
        """Return the nest that starts the reduction for each element."""
        around = [n for n in self.way if isinstance(n, (For, Let)) and n.var in self.needed]
        fresh: dict[Var, Expr] = {n.var: names.var(n.var.name, n.var.dtype) for n in around}
        spatial = [own for own in self.block.iters if own.kind == "S"]
        iters = tuple(
            own.replace(var=names.var(own.var.name), value=substitute(own.value, fresh))
            for own in spatial
        )
        values: dict[Var, Expr] = dict(fresh)
        values |= {old.var: new.var for old, new in zip(spatial, iters, strict=True)}
        where: Expr | None = None
        for term in self.where:
            where = both(where, substitute(term, values))
        init = NOTHING if self.block.init is None else substitute(self.block.init, values)
        name = names.unique(f"{self.block.name}_init")
        body: Stmt = Block(name, iters, (), (), None, init, where)
        for node in reversed(around):
            var = fresh[node.var]
            assert isinstance(var, Var)
            if isinstance(node, Let):
                body = Let(var, substitute(node.value, fresh), body)
            else:
                begin, end = substitute(node.begin, fresh), substitute(node.end, fresh)
                body = node.replace(var=var, begin=begin, end=end, body=body)
        return body


def _runs(node: Stmt) -> bool:
    return isinstance(node, (For, Block))


def bound(func: Func) -> set[Var]:
    """Return the variables of all loops and lets."""
    return {n.var for n in walk(func.body, skip=Expr) if isinstance(n, (For, Let))}


def variables_of(exprs: Iterable[Expr]) -> set[Var]:
    """Return the variables used in *exprs*."""
    return {var for expr in exprs for var in variables(expr)}


def _feeding(way: tuple[Stmt, ...], used: set[Var], *, ranges: bool = True) -> set[Var]:
    """Return *used*, and what those bound on *way* depend on: values of lets, and *ranges* too."""
    found = set(used)
    for node in reversed(way):
        if isinstance(node, Let) and node.var in found:
            found |= variables(node.value)
        if isinstance(node, For) and node.var in found and ranges:
            found |= variables(node.begin) | variables(node.end)
    return found
