"""What a consumer computes in a loop of its producer: all that is complete there."""

from __future__ import annotations

from itertools import pairwise

from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, both, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.arith.linear import expr_equal
from spcomp.ir.arith.simplify import injective
from spcomp.ir.axis import AnyBuffer, memory_of
from spcomp.ir.expr import BinOp, Const, Expr, Var, const
from spcomp.ir.func import Func
from spcomp.ir.position import Block
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import For, If, Let, Seq, Stmt, Store, seq
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import conflicts, depends, reads_of, writes_of
from spcomp.schedule.legality.reductions import only_reduces
from spcomp.schedule.nests.nearby import Move, absolute, covers
from spcomp.schedule.nests.nests import find_loop, replaced, runs_once
from spcomp.schedule.nests.sinking import sunk
from spcomp.schedule.nests.sites import ends_of, kept_apart


class Consumer(Move):
    """A block that follows the loop: runs in it for the elements that are then complete."""

    def moved(self) -> Func:
        """Return the function with the block at the end of the loop."""
        if self.places[0] < self.places[1]:
            raise self.error("the block stands before the loop", hint="compute_at moves it there")
        if any(isinstance(node, If) for node in self.inside) or any(
            isinstance(node, Block) and node.where is not None for node in self.inside
        ):
            raise self.error("the loop runs under a condition")
        self.renamed: dict[Var, Expr] = {}
        self.parts: set[Var] = set()  # loops of which only several together pick what is read
        self.names = Names(self.func)
        values, loops, terms = self._mapping()
        self._check_once(values, loops)
        nest = self._nest(values, loops, terms)
        self._check_init(nest)
        target = self.loop.replace(body=seq(self.loop.body, nest))
        func = replaced(self.func, self.site.root, seq())
        after = replaced(func, self.loop, target)
        self._check_order(after, nest)
        for buffer in self._inputs():
            after = sunk(after, buffer, self.loop.var.name)
        return kept_apart(self.step, self.func, after, self.span)

    def _inputs(self) -> list[AnyBuffer]:
        """What the block reads of what the loop writes."""
        made = writes_of(self.loop.body)
        found = [a.buffer for a in self.own.found if not a.writes and memory_of(a.buffer) in made]
        return list(dict.fromkeys(found))

    def _mapping(self) -> tuple[dict[Var, Expr], list[For], list[Expr]]:
        """What the loops of the block become, the loops that are new, and what must hold.

        A loop that picks what is read becomes the index at which it is written.
        """
        values = self._unified()
        loops: list[For] = []
        terms: list[Expr] = []
        for own in self.site.loops:
            if own.var in values:
                self._rename(own, values, loops)
        for own in self.site.loops:
            if own.var in values:
                terms += self._in_range(own, values, loops)
        return values, loops, terms

    def _unified(self) -> dict[Var, Expr]:
        """What the loops that pick what is read are where that is written."""
        values: dict[Var, Expr] = {}
        for buffer in self._inputs():
            read = next(a for a in self.own.found if a.buffer is buffer and not a.writes)
            made = next((a for a in self.body.found if a.writes and a.buffer is buffer), None)
            if made is None:
                continue
            if absolute(read.indices) != absolute(made.indices):
                continue
            for at, there in zip(read.indices, made.indices, strict=True):
                found = dict(values)
                if at is not None and there is not None and self._unify(at, there, found):
                    if not isinstance(at, Var):
                        self.parts |= found.keys() - values.keys()
                    values = found
        if not values:
            raise self.error(f"it reads nothing that {self.loop.var.name!r} computes, one by one")
        return values

    def _unify(self, at: Expr, there: Expr, values: dict[Var, Expr]) -> bool:
        """Whether *at* is *there* for some *values* of the block's loops, which are then found."""
        if isinstance(at, Var) and any(x.var is at for x in self.site.loops):
            return expr_equal(values.setdefault(at, there), there)
        if isinstance(at, Var) or type(at) is not type(there):
            return at is there
        if not at.CHILDREN:
            return expr_equal(at, there)
        alike = all(
            getattr(at, name) == getattr(there, name)
            for name in at.FIELDS
            if name not in (*at.CHILDREN, "span")
        )
        children = [(getattr(at, name), getattr(there, name)) for name in at.CHILDREN]
        return alike and all(
            isinstance(a, Expr) and isinstance(b, Expr) and self._unify(a, b, values)
            for a, b in children
        )

    def _rename(self, own: For, values: dict[Var, Expr], loops: list[For]) -> None:
        """Let copies of inner loops, named after *own*, drive the value of its variable."""
        value, inner = values[own.var], self.body.inner
        if variables(value) & self.body.opaque:
            raise self.error(f"where {own.var.name!r} is then depends on data")
        digits = [var for var in inner if var in variables(value)]
        new = [var for var in digits if var not in self.renamed]
        if not digits and self.keeps_units:
            loops.append(For(own.var, ZERO, const(1), seq(), span=own.span))
        for digit in new:
            begin, end = (substitute(e, self.renamed) for e in inner[digit])
            if (variables(begin) | variables(end)) & set(inner):
                raise self.error(f"the range of {digit.name!r} depends on loops inside")
            var = own.var if len(digits) == 1 else self.names.var(f"{own.var.name}_{digit.name}")
            loops.append(For(var, begin, end, seq(), span=own.span))
            self.renamed[digit] = var
        values[own.var] = substitute(value, self.renamed)

    def _in_range(self, own: For, values: dict[Var, Expr], loops: list[For]) -> list[Expr]:
        """Return what must hold for the new value of *own*'s variable to be in its range."""
        value = values[own.var]
        outer = {var: new for var, new in values.items() if var is not own.var}
        low, high = (substitute(end, outer) for end in (own.begin, own.end))
        terms: list[Expr] = []
        if not self.proves("<=", low, value, loops):
            terms.append(BinOp("<=", low, value))
        if not self.proves("<", value, high, loops):
            terms.append(BinOp("<", value, high))
        return terms

    def _check_once(self, values: dict[Var, Expr], loops: list[For]) -> None:
        """Raise unless every iteration of the block is run by one iteration of the new loops."""
        around = {x.var: (x.begin, x.end) for x in (*self.outer, *loops) if not runs_once(x)}
        picks = tuple(values.values())
        for var in around:
            if not injective(picks, var, around):
                raise self.error(f"iterations of {var.name!r} compute the same elements")
        if not self._whole_writers():
            for own in self.site.loops:
                if own.var in values and not self._covers(own, values, around):
                    raise self.error(
                        f"{self.loop.var.name!r} may not reach all of {own.var.name!r}"
                    )

    def _whole_writers(self) -> bool:
        """Whether all that the block reads, and the loop writes, is written in the loop alone."""
        everywhere = [n for n in walk(self.func.body) if isinstance(n, Store)]
        inside = {n for n in walk(self.loop.body) if isinstance(n, Store)}
        for buffer in self._inputs():
            if buffer.data is not None:
                return False
            if any(n.buffer is buffer and n not in inside for n in everywhere):
                return False
        return True

    def _covers(
        self, own: For, values: dict[Var, Expr], around: dict[Var, tuple[Expr, Expr]]
    ) -> bool:
        """Whether the value takes every integer in the range of *own*, whatever the others do."""
        value = values[own.var]
        others = {v for var, e in values.items() if var is not own.var for v in variables(e)}
        digits = [var for var in around if var in variables(value)]
        starts = [around[var][0] for var in digits]
        if others & set(digits) or any(not isinstance(x, Const) or x.value != 0 for x in starts):
            return False
        return covers(value, {var: around[var][1] for var in digits}, own, self.facts())

    def _nest(self, values: dict[Var, Expr], loops: list[For], terms: list[Expr]) -> Stmt:
        """Return the nest of the block as it is in the loop."""
        rest = [node for node in self.site.path if getattr(node, "var", None) not in values]
        where: Expr | None = None
        for term in terms:
            where = both(where, term)
        ends = [end for node in rest if isinstance(node, For | Let) for end in ends_of(node)]
        if terms and any(isinstance(n, Load | Search) for end in ends for n in walk(end)):
            raise self.error("a range in its nest may not be computed where there are no elements")
        moved = {var for var in values if values[var] is not var}
        final = {var: values[var] for var in moved}
        block = substitute(self.site.block, final)
        body: Stmt = block if where is None else block.replace(where=both(where, block.where))
        for node in reversed(rest):
            assert isinstance(node, For | Let)
            body = substitute(node.replace(body=seq()), final).replace(body=body)
        for loop in reversed(loops):
            body = loop.replace(body=body)
        return body

    def _check_init(self, nest: Stmt) -> None:
        block = next(node for node in walk(nest, skip=Expr) if isinstance(node, Block))
        own = {node.var for node in walk(nest, skip=Expr) if isinstance(node, For)}
        if block.init is None:
            return
        for it in block.iters:
            if it.kind == "R" and variables(it.value) - own - set(self.func.params):
                raise self.error(f"the reduction over {it.var.name!r} would start more than once")

    def _check_order(self, func: Func, nest: Stmt) -> None:
        """Raise if the block now runs before something it has to follow."""
        self.check_between()
        for stmt in self._later():
            if found := depends(stmt, nest):
                raise self.error(f"what follows the loop touches {found}")
        reads = reads_of(nest) & writes_of(self.target_root)
        updates = only_reduces(self.site.block) and self.site.block.init is None
        target_touches = reads_of(self.target_root) | writes_of(self.target_root)
        if updates and writes_of(nest) & target_touches:
            updates = False
        asked = reads if updates else reads | writes_of(nest)
        for outer in self.outer:
            loop = find_loop(func, outer.var.name, self.step, self.span)
            serial = loop.kind in ("serial", "unroll")
            shared = conflicts(loop, asked if serial else None)
            if shared:
                raise self.error(f"across {loop.var.name!r}, {shared[0]}")

    def _later(self) -> list[Stmt]:
        """What runs after the loop in the nest around it."""
        found: list[Stmt] = []
        for node, inner in pairwise(self.inside):
            if isinstance(node, Seq):
                k = next(k for k, stmt in enumerate(node.body) if stmt is inner)
                found += node.body[k + 1 :]
        return found
