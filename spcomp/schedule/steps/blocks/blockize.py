"""The step of stage II that makes one block of a nest of loops: blockize."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import ClassVar

from spcomp.errors import Span
from spcomp.ir.analysis.exprs import from_zero, plus, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.arith.bounds import Env, Interval
from spcomp.ir.arith.linear import ONE, Algebra, Linear, key_of, mentions
from spcomp.ir.arith.simplify import simplify
from spcomp.ir.expr import Const, Expr, Var, binary, const
from spcomp.ir.func import Func
from spcomp.ir.position import Block, BlockIter, IterKind
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import For, Stmt
from spcomp.schedule.nests.nests import chain, find_loop, nest, replaced
from spcomp.schedule.nests.sites import path_to
from spcomp.schedule.steps.base import Makes, Step
from spcomp.schedule.steps.blocks.decompose_reduction import Start, bound, variables_of


@dataclass(frozen=True, slots=True)
class Blockize(Step):
    """``for i: for k: block(v=i * 4 + k): s  ->  for i: block_o(vi=i): for k: block(v=k): s``.

    The nest from *loop* inwards becomes a block, called as the one in it and ``_o``. Its iters are
    what is left of those of the block without the loops inside: the part of each value that the
    loops around make up, divided by what all of it is a multiple of; else these loops. The block in
    it keeps the rest: what was ``v`` is ``vi * 4 + v`` in its body. A reduction that loops around
    go on with starts in the new block. Legal for a perfect nest around one block, if no loop around
    both reduces and picks the element. Source: TVM's blockize.
    """

    name: ClassVar[str] = "blockize"
    makes: ClassVar[Makes] = "blocks"
    loop: str

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the nest as a block."""
        loop = find_loop(func, self.loop, self, span)
        loops, block = chain(loop)
        if not isinstance(block, Block):
            raise self._error("it is not nested perfectly around a block", loop, span)
        names, outside = Names(func), around(func, loop)
        name = names.unique(f"{block.name}_o")
        reduced = variables_of(own.value for own in block.iters if own.kind == "R")
        self._check(func, outside, loop, block, span)
        init: Stmt | None = None
        reducing = reduced & {x.var for x in outside}
        if block.init is not None and reducing:
            start = Start(block, (*loops, block), lost=reducing)
            if (why := start.refused(func)) is not None:
                raise self._error(why, loop, span)
            init = start.build(names)
            block = block.replace(init=None)
        made = _Outer(names, outside)
        body = made.divided(nest(loops, block))
        first = None if init is None else made.divided(init)
        for x in outside:  # what is left of the loops, in conditions and ranges
            used = variables(body) | (set() if first is None else variables(first))
            if x.var in used:
                calls = made.called(x.var, x.end, "R" if x.var in reduced else "S")
                body = substitute(body, {x.var: calls})
                first = None if first is None else substitute(first, {x.var: calls})
        outer = Block(name, tuple(made.iters), (), (), first, body, span=loop.span)
        return replaced(func, loop, annotate_regions(outer))

    def _check(
        self, func: Func, outside: list[For], loop: For, block: Block, span: Span | None
    ) -> None:
        spatial, reduced = (
            variables_of(own.value for own in block.iters if own.kind == kind) for kind in "SR"
        )
        for x in outside:
            if x.var in spatial & reduced:
                raise self._error(f"{x.var.name} reduces and picks the element", loop, span)
            if x.var in variables(loop) and not from_zero(x):
                raise self._error(f"loop {x.var.name} does not begin at 0", loop, span)
        known = {x.var for x in (*outside, *chain(loop)[0])}
        if block.init is not None and reduced & (bound(func) - known):
            raise self._error("what drives its reduction is computed outside", loop, span)


class _Outer:
    """The iters of the new block: what the loops *outside* are inside it."""

    def __init__(self, names: Names, outside: list[For]) -> None:
        self.names, self.iters = names, list[BlockIter]()
        self.outside = {x.var: x for x in outside}

    def called(self, value: Expr, extent: Expr, kind: IterKind) -> Var:
        """Return the iter that is *value*; a new one if there is none."""
        for own in self.iters:
            if key_of(own.value) == key_of(value) and own.kind == kind:
                return own.var
        name = (
            value.name
            if isinstance(value, Var)
            else "_".join(sorted(var.name for var in variables(value)))
        )
        own = BlockIter(self.names.var(f"v{name}"), extent, value, kind)
        self.iters.append(own)
        return own.var

    def divided(self, stmt: Stmt) -> Stmt:
        """Return the nest *stmt* with the iters of its block in terms of those of the new one."""
        loops, block = chain(stmt) if isinstance(stmt, For) else ([], stmt)
        assert isinstance(block, Block)
        ranges = {
            x.var: Interval(0, int(x.end.value) - 1) if isinstance(x.end, Const) else Interval(0)
            for x in loops
            if from_zero(x)
        }
        algebra = Algebra(Env(ranges), trusted=True)
        made: list[BlockIter] = []
        meant: dict[Var, Expr] = {}
        for own in block.iters:
            parts = self._parts(algebra, own.value, {x.var for x in loops})
            extent = None if parts is None else self._extent(parts[0])
            if parts is None or extent is None:
                made.append(own)
                continue
            outer, step, inner, most = parts
            var = self.called(outer.expr(), extent, own.kind)
            base = var if step == 1 else binary("*", var, step)
            if most > 0:
                made.append(own.replace(extent=const(most + 1), value=simplify(inner)))
            meant[own.var] = base if most == 0 else plus(base, own.var)
        init, body, where = (
            None if part is None else substitute(part, meant)
            for part in (block.init, block.body, block.where)
        )
        assert body is not None
        return nest(loops, block.replace(iters=tuple(made), init=init, body=body, where=where))

    def _extent(self, outer: Linear) -> Expr | None:
        """Return how many values *outer* takes at most; None if it is no plain sum of loops."""
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
        """Return o, c, i and m with ``value == o * c + i``: o is outside, i in ``0..m``, m below c.

        None if there are none, or nothing in *value* is outside.
        """
        form = algebra.of(value)
        outer, inner = form.split(
            lambda key, term: key != ONE and mentions(term.atoms, self.outside)
        )
        if not outer.terms or mentions(outer.atoms, inside):
            return None
        step = gcd(*(term.factor for term in outer.terms.values()))
        where = algebra.interval(inner)
        if where.low is None or where.high is None or not 0 <= where.low <= where.high < step:
            return None
        whole = Linear(
            {k: type(t)(t.factor // step, t.atoms) for k, t in outer.terms.items()}, outer.dtype
        )
        return whole, step, inner.expr(), where.high


def around(func: Func, loop: For) -> list[For]:
    """Return the loops around *loop* within the block that encloses it, outermost first."""
    found: list[For] = []
    for node in path_to(func, loop)[:-1]:
        match node:
            case Block():
                found = []
            case For():
                found.append(node)
    return found
