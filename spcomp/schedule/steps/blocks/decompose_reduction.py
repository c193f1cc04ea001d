"""In position space: the step decompose_reduction, which gives an init its own nest."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import ClassVar

from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import conjunction, conjuncts, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.arith.memory import read_by
from spcomp.ir.axis import memory_of
from spcomp.ir.expr import Expr, Var, const
from spcomp.ir.func import Func
from spcomp.ir.position import Block
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import Alloc, Evaluate, For, If, Let, Seq, Stmt, Store, seq
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import conflicts
from spcomp.schedule.legality.order import ascending_axes
from spcomp.schedule.nests.nests import find_block, find_loop, path_down, replace_stmt
from spcomp.schedule.steps.base import Makes, Step

ACCESSES = (Load, Store, Search)
NOTHING = Evaluate(const(0))


@dataclass(frozen=True, slots=True)
class DecomposeReduction(Step):
    """``for k: for j: (init; W[k] op= x)  ->  for k: init; for k: for j: W[k] op= x``.

    The init of *block* becomes a block of its own, in copies of the loops that pick the element. It
    stands before *loop*, or inside it if the buffer is allocated there. A block that only
    accumulates, like those of a decomposed format, gets a nest that does nothing, and no code.
    Legal where all loops that drive the reduction are *loop* or inside it, and before these nothing
    else in it touches the element. Source: TVM's decompose_reduction.
    """

    name: ClassVar[str] = "decompose_reduction"
    makes: ClassVar[Makes] = "blocks"
    block: str
    loop: str

    def plan(self, func: Func) -> Start:
        """Return where the init goes."""
        loop = find_loop(func, self.loop, self)
        block = find_block(func, self.block, self)
        way = path_down(loop, block)
        if not way or any(isinstance(node, If) for node in way):
            raise self.error(f"{self.loop!r} is not around the block, or more is between", loop)
        start = Start.of(block, way)
        if (why := start.reason(func)) is not None:
            raise self.error(why, loop)
        return start

    def rewrite(self, func: Func, plan: Start) -> Func:
        """Return *func* with the init in a nest of its own."""
        start, block = plan, plan.block
        stmt = seq(start.build(Names(func)), start.top)
        return replace_stmt(replace_stmt(func, start.top, stmt), block, block.replace(init=None))


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """Where the init of *block* goes: before the first statement of *way*, the path to the block.

    *touched*: the memory that the init accesses; *drivers*: the variables of the path that drive
    the reduction, and *outside*: those of loops outside that do; *lost*: the variables that the
    init cannot use, as they depend on these; *where*: its conditions; *needed*: the variables of
    loops and lets that it depends on.
    """

    block: Block
    way: tuple[Stmt, ...]
    touched: set[object]
    drivers: set[Var]
    outside: set[Var]
    lost: set[Var]
    where: list[Expr]
    needed: set[Var]

    @classmethod
    def of(cls, block: Block, way: tuple[Stmt, ...], outside: Collection[Var] = ()) -> Start:
        """Return where the init of *block* goes on the *way* that leads to it."""
        touched = {
            memory_of(n.buffer)
            for n in (walk(block.init) if block.init is not None else ())
            if isinstance(n, ACCESSES)
        }
        inside = [k for k, n in enumerate(way) if isinstance(n, Alloc) and n.buffer in touched]
        first = next(k for k, n in enumerate(way) if k >= max(inside, default=-1) + 1 and _runs(n))
        way = way[first:]
        reduced = variables_of(it.value for it in block.iters if it.kind == "R")
        drivers = _dependencies(way, reduced, ranges=False)
        lost = {it.var for it in block.iters if it.kind == "R"} | {*outside}
        for node in way:
            if isinstance(node, For) and node.var in drivers:
                lost.add(node.var)
            if isinstance(node, Let) and variables(node.value) & lost:
                lost.add(node.var)
        where = [term for term in conjuncts(block.where) if not variables(term) & lost]
        spatial = [it.value for it in block.iters if it.kind == "S"]
        used = variables_of([*spatial, *where])
        used |= variables(block.init) if block.init is not None else set()
        return cls(block, way, touched, drivers, {*outside}, lost, where, _dependencies(way, used))

    @property
    def top(self) -> Stmt:
        """The statement before which the init stands."""
        return self.way[0]

    def reason(self, func: Func) -> str | None:
        """Return why the init may not go there; None if it may."""
        block = self.block
        if block.init is None:
            init_name = f"{block.name}_init"
            if any(isinstance(n, Block) and n.name == init_name for n in walk(func.body)):
                return f"block {block.name} has no init any more: {init_name} is it"
            if not any(it.kind == "R" for it in block.iters):
                return f"block {block.name} has no init, and does not reduce"
        inside = {n.var for n in self.way if isinstance(n, (For, Let))}
        outside = bound_vars(func) - inside
        reduced = variables_of(it.value for it in block.iters if it.kind == "R")
        if block.init is not None and reduced & (outside - self.outside):
            return "a loop around it drives the reduction too"
        if clash := self.needed & self.lost:
            names = ", ".join(sorted(var.name for var in clash))
            return f"what {names} drives picks the element too"
        return self._order_clash(ascending_axes(func))

    def _order_clash(self, ascending: Collection[str]) -> str | None:
        """Return why the init may not run before all that now precedes it; None if it may."""
        for node, below in zip(self.way, self.way[1:], strict=False):
            if isinstance(node, For) and node.var in self.drivers:
                break
            if isinstance(node, For):
                clashes = conflicts(node, self.touched, ascending=ascending)
                if clashes:
                    return str(clashes[0])
            if isinstance(node, Seq):
                before = node.body[: node.body.index(below)]
                if (name := self._uses(before)) is not None:
                    return f"{name} is used before it is started"
        return self._input_clash()

    def _input_clash(self) -> str | None:
        """Return why the nest of the init may not run first: it reads what is written later."""
        exprs = [*self.where, *(it.value for it in self.block.iters if it.kind == "S")]
        for node in self.way:
            if isinstance(node, (For, Let)) and node.var in self.needed:
                exprs += [node.value] if isinstance(node, Let) else [node.begin, node.end]
        changed = {memory_of(n.buffer) for n in walk(self.top) if isinstance(n, (Store, Alloc))}
        for buffer in read_by(*exprs):
            if memory_of(buffer) in changed:
                return f"{buffer.name}, on which the init depends, is written there"
        return None

    def _uses(self, before: Iterable[Stmt]) -> str | None:
        """Return the name of a buffer that the init and a statement of *before* use, or None."""
        for access in (n for stmt in before for n in walk(stmt)):
            if isinstance(access, ACCESSES) and memory_of(access.buffer) in self.touched:
                return access.buffer.name
        return None

    def build(self, names: Names) -> Stmt:
        """Return the nest that starts the reduction for each element."""
        around = [n for n in self.way if isinstance(n, (For, Let)) and n.var in self.needed]
        fresh: dict[Var, Expr] = {n.var: names.var(n.var.name, n.var.dtype) for n in around}
        spatial = [it for it in self.block.iters if it.kind == "S"]
        iters = tuple(
            it.replace(var=names.var(it.var.name), value=substitute(it.value, fresh))
            for it in spatial
        )
        values: dict[Var, Expr] = dict(fresh)
        values |= {old.var: new.var for old, new in zip(spatial, iters, strict=True)}
        where = conjunction(substitute(term, values) for term in self.where)
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


def bound_vars(func: Func) -> set[Var]:
    """Return the variables of all loops and lets of *func*."""
    return {n.var for n in walk(func.body, skip=Expr) if isinstance(n, (For, Let))}


def variables_of(exprs: Iterable[Expr]) -> set[Var]:
    """Return the variables used in *exprs*."""
    return {var for expr in exprs for var in variables(expr)}


def _dependencies(way: tuple[Stmt, ...], used: set[Var], *, ranges: bool = True) -> set[Var]:
    """Return *used* and the variables that these depend on along *way*, the path to a block.

    They depend on the values of lets and, with *ranges*, on the ranges of loops.
    """
    needed = set(used)
    for node in reversed(way):
        if isinstance(node, Let) and node.var in needed:
            needed |= variables(node.value)
        if isinstance(node, For) and node.var in needed and ranges:
            needed |= variables(node.begin) | variables(node.end)
    return needed
