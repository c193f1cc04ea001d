"""Under reverse_compute_at: a consumer in a loop of its producer, run for complete elements."""

from __future__ import annotations

from itertools import pairwise

from spcomp.ir.analysis.exprs import ZERO, conjunction, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.arith.memory import read_by, reads_of, writes_of
from spcomp.ir.arith.simplify import injective
from spcomp.ir.axis import AnyBuffer, memory_of
from spcomp.ir.expr import BinOp, Const, Expr, Var, const
from spcomp.ir.func import Func
from spcomp.ir.position import Block
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import For, If, Let, Seq, Stmt, Store, seq
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import conflicts, depends
from spcomp.schedule.legality.reductions import only_reduces
from spcomp.schedule.nests.carried import carries
from spcomp.schedule.nests.nearby import Move, absolute, covers
from spcomp.schedule.nests.nests import find_loop, replace_stmt, runs_once
from spcomp.schedule.nests.sinking import sink_alloc, sole_writer
from spcomp.schedule.nests.sites import check_concurrent, ends_of


class Consumer(Move):
    """A block that follows the loop, to run in it for the elements that are complete there."""

    def build(self) -> Func:
        """Return the function with the block at the end of the loop."""
        if self.places[0] < self.places[1]:
            raise self.error("the block stands before the loop", hint="compute_at moves it there")
        if any(isinstance(node, If) for node in self.inside) or any(
            isinstance(node, Block) and node.where is not None for node in self.inside
        ):
            raise self.error("the loop runs under a condition")
        self.renamed: dict[Var, Expr] = {}
        self.parts: set[Var] = set()  # loops that only together pick the element that is read
        self.names = Names(self.func)
        values, loops, terms = self._mapping()
        self._check_once(values, loops)
        nest = self._nest(values, loops, terms)
        self._check_init(nest)
        target = self.loop.replace(body=seq(self.loop.body, nest))
        func = replace_stmt(self.func, self.site.root, seq())
        after = replace_stmt(func, self.loop, target)
        self._check_order(after, nest)
        for buffer in self._inputs():
            writer = sole_writer(after.body, buffer)
            if writer is not None and not carries(after, buffer, writer):
                after = sink_alloc(after, buffer, self.loop.var.name)
        return check_concurrent(self.step, self.func, after, self.site.block.span)

    def _inputs(self) -> list[AnyBuffer]:
        """Return the buffers that the loop writes and the block reads."""
        memory = writes_of(self.loop.body)
        buffers = [
            a.buffer
            for a in self.block_accesses.accesses
            if not a.writes and memory_of(a.buffer) in memory
        ]
        return list(dict.fromkeys(buffers))

    def _mapping(self) -> tuple[dict[Var, Expr], list[For], list[Expr]]:
        """Return the values that replace the block's loops, the new loops, and the conditions.

        A loop that picks the element read is replaced by the index at which that is written.
        """
        values = self._unify_indices()
        loops: list[For] = []
        terms: list[Expr] = []
        for loop in self.site.loops:
            if loop.var in values:
                self._rename(loop, values, loops)
        for loop in self.site.loops:
            if loop.var in values:
                terms += self._in_range(loop, values, loops)
        return values, loops, terms

    def _unify_indices(self) -> dict[Var, Expr]:
        """Return, for each loop that picks an element read, the index at which that is written."""
        values: dict[Var, Expr] = {}
        for buffer in self._inputs():
            read = next(
                a for a in self.block_accesses.accesses if a.buffer is buffer and not a.writes
            )
            write = next(
                (a for a in self.loop_accesses.accesses if a.writes and a.buffer is buffer), None
            )
            if write is None:
                continue
            if absolute(read.indices) != absolute(write.indices):
                continue
            for at, target in zip(read.indices, write.indices, strict=True):
                attempt = dict(values)
                if at is not None and target is not None and self._unify(at, target, attempt):
                    if not isinstance(at, Var):
                        self.parts |= attempt.keys() - values.keys()
                    values = attempt
        if not values:
            raise self.error(f"it reads nothing that {self.loop.var.name!r} computes, one by one")
        return values

    def _unify(self, index: Expr, target: Expr, values: dict[Var, Expr]) -> bool:
        """Whether *index* is *target* for some *values* of the block's loops; adds these values."""
        if isinstance(index, Var) and any(x.var is index for x in self.site.loops):
            return expr_equal(values.setdefault(index, target), target)
        if isinstance(index, Var) or type(index) is not type(target):
            return index is target
        if not index.CHILDREN:
            return expr_equal(index, target)
        alike = all(
            getattr(index, name) == getattr(target, name)
            for name in index.FIELDS
            if name not in (*index.CHILDREN, "span")
        )
        children = [(getattr(index, name), getattr(target, name)) for name in index.CHILDREN]
        return alike and all(
            isinstance(a, Expr) and isinstance(b, Expr) and self._unify(a, b, values)
            for a, b in children
        )

    def _rename(self, loop: For, values: dict[Var, Expr], loops: list[For]) -> None:
        """Replace inner loops in the value of *loop*'s variable by copies, named after *loop*."""
        value, inner = values[loop.var], self.loop_accesses.inner
        if variables(value) & self.loop_accesses.opaque:
            raise self.error(f"where {loop.var.name!r} is then depends on data")
        digits = [var for var in inner if var in variables(value)]
        new = [var for var in digits if var not in self.renamed]
        if not digits and self.keeps_units:
            loops.append(For(loop.var, ZERO, const(1), seq(), span=loop.span))
        for digit in new:
            begin, end = (substitute(e, self.renamed) for e in inner[digit])
            if (variables(begin) | variables(end)) & set(inner):
                raise self.error(f"the range of {digit.name!r} depends on loops inside")
            var = loop.var if len(digits) == 1 else self.names.var(f"{loop.var.name}_{digit.name}")
            loops.append(For(var, begin, end, seq(), span=loop.span))
            self.renamed[digit] = var
        values[loop.var] = substitute(value, self.renamed)

    def _in_range(self, loop: For, values: dict[Var, Expr], loops: list[For]) -> list[Expr]:
        """Return the conditions for the new value of *loop*'s variable to be in its range."""
        value = values[loop.var]
        outer = {var: new for var, new in values.items() if var is not loop.var}
        low, high = (substitute(end, outer) for end in (loop.begin, loop.end))
        terms: list[Expr] = []
        if not self.proves("<=", low, value, loops):
            terms.append(BinOp("<=", low, value))
        if not self.proves("<", value, high, loops):
            terms.append(BinOp("<", value, high))
        return terms

    def _check_once(self, values: dict[Var, Expr], loops: list[For]) -> None:
        """Raise unless the new loops run every iteration of the block exactly once."""
        around = {x.var: (x.begin, x.end) for x in (*self.outer, *loops) if not runs_once(x)}
        picks = tuple(values.values())
        for var in around:
            if not injective(picks, var, around):
                raise self.error(f"iterations of {var.name!r} compute the same elements")
        if not self._whole_writers():
            around = {x.var: (x.begin, x.end) for x in (*self.outer, *loops)}
            for loop in self.site.loops:
                if loop.var in values and not self._covers(loop, values, around):
                    raise self.error(
                        f"{self.loop.var.name!r} may not reach all of {loop.var.name!r}"
                    )

    def _whole_writers(self) -> bool:
        """Whether only the loop writes the buffers that the block reads from it."""
        everywhere = [n for n in walk(self.func.body) if isinstance(n, Store)]
        inside = {n for n in walk(self.loop.body) if isinstance(n, Store)}
        for buffer in self._inputs():
            if buffer.data is not None:
                return False
            if any(n.buffer is buffer and n not in inside for n in everywhere):
                return False
        return True

    def _covers(
        self, loop: For, values: dict[Var, Expr], around: dict[Var, tuple[Expr, Expr]]
    ) -> bool:
        """Whether the new value takes every integer in the range of *loop* by itself."""
        value = values[loop.var]
        others = {v for var, e in values.items() if var is not loop.var for v in variables(e)}
        digits = [var for var in around if var in variables(value)]
        starts = [around[var][0] for var in digits]
        if others & set(digits) or any(not isinstance(x, Const) or x.value != 0 for x in starts):
            return False
        return covers(value, {var: around[var][1] for var in digits}, loop, self.facts())

    def _nest(self, values: dict[Var, Expr], loops: list[For], terms: list[Expr]) -> Stmt:
        """Return the nest of the block as it stands in the loop."""
        remaining = [node for node in self.site.path if getattr(node, "var", None) not in values]
        ends = [end for node in remaining if isinstance(node, For | Let) for end in ends_of(node)]
        if terms and any(read_by(*ends)):
            raise self.error("a range in its nest may not be computed where there are no elements")
        moved = {var for var in values if values[var] is not var}
        final = {var: values[var] for var in moved}
        block = substitute(self.site.block, final)
        body: Stmt = block.replace(where=conjunction((*terms, block.where))) if terms else block
        for node in reversed(remaining):
            assert isinstance(node, For | Let)
            body = substitute(node.replace(body=seq()), final).replace(body=body)
        for loop in reversed(loops):
            body = loop.replace(body=body)
        return body

    def _check_init(self, nest: Stmt) -> None:
        block = next(node for node in walk(nest, skip=Expr) if isinstance(node, Block))
        loop_vars = {node.var for node in walk(nest, skip=Expr) if isinstance(node, For)}
        if block.init is None:
            return
        for it in block.iters:
            if it.kind == "R" and variables(it.value) - loop_vars - set(self.func.params):
                raise self.error(f"the reduction over {it.var.name!r} would start more than once")

    def _check_order(self, func: Func, nest: Stmt) -> None:
        """Raise if the block would now run before something that it has to follow."""
        self.check_between()
        for stmt in self._later():
            if conflict := depends(stmt, nest):
                raise self.error(f"what follows the loop touches {conflict}")
        reads = reads_of(nest) & writes_of(self.target_root)
        updates = only_reduces(self.site.block) and self.site.block.init is None
        target_touches = reads_of(self.target_root) | writes_of(self.target_root)
        if updates and writes_of(nest) & target_touches:
            updates = False
        memory = reads if updates else reads | writes_of(nest)
        for outer in (outer for outer in self.outer if not runs_once(outer)):
            loop = find_loop(func, outer.var.name, self.step)
            serial = loop.kind in ("serial", "unroll")
            shared = loop.kind in ("bound", "parallel")  # which may share updates
            clashes = conflicts(loop, memory if serial else None, atomic=shared)
            if clashes:
                raise self.error(f"across {loop.var.name!r}, {clashes[0]}")

    def _later(self) -> list[Stmt]:
        """Return the statements that run after the loop in the nest around it."""
        stmts: list[Stmt] = []
        for node, inner in pairwise(self.inside):
            if isinstance(node, Seq):
                k = next(k for k, stmt in enumerate(node.body) if stmt is inner)
                stmts += node.body[k + 1 :]
        return stmts
