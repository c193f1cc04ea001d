"""In position space: the step blockize, which makes a nest of loops one block."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import ClassVar

from spcomp.ir.analysis.exprs import from_zero, plus, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.arith.bounds import Env, Interval
from spcomp.ir.arith.linear import ONE, Algebra, Linear, mentions, same_value
from spcomp.ir.arith.simplify import simplify
from spcomp.ir.expr import Const, Expr, Var, binary, const
from spcomp.ir.func import Func
from spcomp.ir.position import Block, BlockIter, IterKind
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import For, Stmt
from spcomp.schedule.nests.nests import chain, find_loop, nest, replace_stmt
from spcomp.schedule.nests.sites import path_to
from spcomp.schedule.steps.base import Makes, Step
from spcomp.schedule.steps.blocks.decompose_reduction import Start, bound_vars, variables_of


@dataclass(frozen=True, slots=True)
class Blockize(Step):
    """``for i: for k: block(v=i * 4 + k): s  ->  for i: block_o(vi=i): for k: block(v=k): s``.

    The nest from *loop* inwards becomes a block, named like the block in it with ``_o`` added. The
    value of each iter of the inner block is divided: the part made of loops around, without its
    common factor, becomes an iter of the new block, and the inner block keeps the other part, so
    that ``v`` becomes ``vi * 4 + v`` in its body. Where that is not possible, the loops around
    become iters. A reduction that loops around continue starts in the new block. Legal for a
    perfect nest around one block, if no loop around both reduces and picks the element. Source:
    TVM's blockize.
    """

    name: ClassVar[str] = "blockize"
    makes: ClassVar[Makes] = "blocks"
    loop: str

    def plan(self, func: Func) -> _Nest:
        """Return the nest, and where the init of its reduction goes."""
        loop = find_loop(func, self.loop, self)
        loops, block = chain(loop)
        if not isinstance(block, Block):
            raise self.error("it is not nested perfectly around a block", loop)
        outside = loops_around(func, loop)
        reduced = variables_of(it.value for it in block.iters if it.kind == "R")
        self._check(func, outside, loop, block)
        start: Start | None = None
        reducing = reduced & {x.var for x in outside}
        if block.init is not None and reducing:
            start = Start.of(block, (*loops, block), reducing)
            if (why := start.reason(func)) is not None:
                raise self.error(why, loop)
        return _Nest(tuple(loops), block, tuple(outside), frozenset(reduced), start)

    def rewrite(self, func: Func, plan: _Nest) -> Func:
        """Return *func* with the nest as a block."""
        (loop, *_), block, outside, reduced = plan.loops, plan.block, plan.outside, plan.reduced
        names = Names(func)
        name = names.unique(f"{block.name}_o")
        init: Stmt | None = None
        if plan.start is not None:
            init, block = plan.start.build(names), block.replace(init=None)
        outer_iters = _Outer(names, outside)
        body = outer_iters.divide(nest(plan.loops, block))
        first = None if init is None else outer_iters.divide(init)
        for x in outside:  # loops that conditions and ranges still use
            used = variables(body) | (set() if first is None else variables(first))
            if x.var in used:
                calls = outer_iters.iter_of(x.var, x.end, "R" if x.var in reduced else "S")
                body = substitute(body, {x.var: calls})
                first = None if first is None else substitute(first, {x.var: calls})
        outer = Block(name, tuple(outer_iters.iters), (), (), first, body, span=loop.span)
        return replace_stmt(func, loop, annotate_regions(outer))

    def _check(self, func: Func, outside: list[For], loop: For, block: Block) -> None:
        spatial, reduced = (
            variables_of(it.value for it in block.iters if it.kind == kind) for kind in "SR"
        )
        for x in outside:
            if x.var in spatial & reduced:
                raise self.error(f"{x.var.name} reduces and picks the element", loop)
            if x.var in variables(loop) and not from_zero(x):
                raise self.error(f"loop {x.var.name} does not begin at 0", loop)
        visible = {x.var for x in (*outside, *chain(loop)[0])}
        if block.init is not None and reduced & (bound_vars(func) - visible):
            raise self.error("what drives its reduction is computed outside", loop)


@dataclass(frozen=True, slots=True)
class _Nest:
    """The *loops* around *block* and those *outside* of them.

    *reduced*: the variables that drive the reduction of *block*; *start*: where its init goes, if
    loops outside continue it.
    """

    loops: tuple[For, ...]
    block: Block
    outside: tuple[For, ...]
    reduced: frozenset[Var]
    start: Start | None


class _Outer:
    """The iters of the new block, which stand for the loops *outside* of it."""

    def __init__(self, names: Names, outside: tuple[For, ...]) -> None:
        self.names, self.iters = names, list[BlockIter]()
        self.outside = {x.var: x for x in outside}

    def iter_of(self, value: Expr, extent: Expr, kind: IterKind) -> Var:
        """Return the variable of the iter with *value*; adds one if there is none."""
        for it in self.iters:
            if it.kind == kind and same_value(it.value, value):
                return it.var
        name = (
            value.name
            if isinstance(value, Var)
            else "_".join(sorted(var.name for var in variables(value)))
        )
        it = BlockIter(self.names.var(f"v{name}"), extent, value, kind)
        self.iters.append(it)
        return it.var

    def divide(self, stmt: Stmt) -> Stmt:
        """Return the nest *stmt* with the iters of its block divided between it and the new one."""
        loops, block = chain(stmt) if isinstance(stmt, For) else ([], stmt)
        assert isinstance(block, Block)
        ranges = {
            x.var: Interval(0, int(x.end.value) - 1) if isinstance(x.end, Const) else Interval(0)
            for x in loops
            if from_zero(x)
        }
        algebra = Algebra(Env(ranges), trusted=True)
        iters: list[BlockIter] = []
        values: dict[Var, Expr] = {}
        for it in block.iters:
            parts = self._parts(algebra, it.value, {x.var for x in loops})
            extent = None if parts is None else self._extent(parts[0])
            if parts is None or extent is None:
                iters.append(it)
                continue
            outer, step, inner, most = parts
            var = self.iter_of(outer.expr(), extent, it.kind)
            base = var if step == 1 else binary("*", var, step)
            if most > 0:
                iters.append(it.replace(extent=const(most + 1), value=simplify(inner)))
            values[it.var] = base if most == 0 else plus(base, it.var)
        init, body, where = (
            None if part is None else substitute(part, values)
            for part in (block.init, block.body, block.where)
        )
        assert body is not None
        return nest(loops, block.replace(iters=tuple(iters), init=init, body=body, where=where))

    def _extent(self, outer: Linear) -> Expr | None:
        """Return an upper bound of the values of *outer*; None if it is no plain sum of loops."""
        last: Expr = const(1)
        for term in outer.terms.values():
            loop = self.outside.get(term.atoms[0]) if isinstance(term.atoms[0], Var) else None
            if loop is None or len(term.atoms) > 1 or term.factor < 0:
                return None
            if not from_zero(loop) or variables(loop.end) & {*self.outside}:
                return None
            last = last + (loop.end - 1) * term.factor
        return simplify(last)

    def _parts(
        self, algebra: Algebra, value: Expr, inside: set[Var]
    ) -> tuple[Linear, int, Expr, int] | None:
        """Return o, c, i, m with ``value == o * c + i``: o of loops outside, i in ``0..m``, m < c.

        None if *value* has no such form, or no loop outside is in it.
        """
        form = algebra.of(value)
        outer, inner = form.split(
            lambda key, term: key != ONE and mentions(term.atoms, self.outside)
        )
        if not outer.terms or mentions(outer.atoms, inside):
            return None
        step = gcd(*(term.factor for term in outer.terms.values()))
        bounds = algebra.interval(inner)
        if bounds.low is None or bounds.high is None or not 0 <= bounds.low <= bounds.high < step:
            return None
        quotient = Linear(
            {k: type(t)(t.factor // step, t.atoms) for k, t in outer.terms.items()}, outer.dtype
        )
        return quotient, step, inner.expr(), bounds.high


def loops_around(func: Func, loop: For) -> list[For]:
    """Return the loops around *loop* within the block that encloses it, outermost first."""
    loops: list[For] = []
    for node in path_to(func, loop)[:-1]:
        match node:
            case Block():
                loops = []
            case For():
                loops.append(node)
    return loops
