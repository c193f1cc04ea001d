"""II to II: blocks dissolve into loops; an init goes before the loop that starts to reduce."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from spcomp.errors import LoweringError
from spcomp.ir.analysis.exprs import conjuncts, may_fail, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import as_reduction
from spcomp.ir.arith.memory import reads_of, writes_of
from spcomp.ir.axis import memory_of
from spcomp.ir.expr import Expr, UnOp, Var
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.program import PosFunc
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, If, Let, Stmt, Store, While, seq
from spcomp.ir.visitor import walk
from spcomp.passes.base import FuncPass, Stage


@dataclass(frozen=True, slots=True)
class LowerBlocks(FuncPass):
    """``for j, k: block(S k, R j, init, s)  ->  for k: init; for j, k: s``."""

    name: ClassVar[str] = "lower_blocks"
    takes: ClassVar[Stage] = Stage.POSITION
    gives: ClassVar[Stage] = Stage.POSITION

    def run_func(self, func: PosFunc) -> PosFunc:
        """Return *func* without blocks."""
        body = _LowerBlocks(Names(func)).rewrite(func.body)
        return func if body is func.body else func.replace(body=body)


@dataclass(eq=False, slots=True)
class _Around:
    """What is around the current statement, an if by one side; *inits* go before a loop."""

    node: For | While | Let | If | Alloc
    inits: list[Stmt] = field(default_factory=list)
    holds: bool = True  # whether it is the side where the condition holds


class _AllowAtomic(Rewriter):
    """Lets iterations share the elements that stores update."""

    def visit_Store(self, store: Store) -> Node:
        return store if as_reduction(store) is None else store.replace(atomic=True)


class _LowerBlocks(Rewriter):
    def __init__(self, names: Names) -> None:
        self.names = names
        self.around: list[_Around] = []  # since the enclosing block, outermost first

    def visit_For(self, loop: For) -> Node:
        return self._loop(loop)

    def visit_While(self, loop: While) -> Node:
        return self._loop(loop)

    def _loop(self, loop: For | While) -> Stmt:
        self.around.append(_Around(loop))
        new = self.visit_Node(loop)
        inits = self.around.pop().inits
        assert isinstance(new, Stmt)
        return seq(*inits, new)

    def visit_Let(self, let: Let) -> Node:
        self.around.append(_Around(let))
        new = self.visit_Node(let)
        self.around.pop()
        return new

    def visit_Alloc(self, alloc: Alloc) -> Node:
        self.around.append(_Around(alloc))
        new = self.visit_Node(alloc)
        self.around.pop()
        return new

    def visit_If(self, stmt: If) -> Node:
        sides: list[Stmt | None] = []
        for side, holds in ((stmt.then, True), (stmt.otherwise, False)):
            self.around.append(_Around(stmt, holds=holds))
            sides.append(None if side is None else self.rewrite(side))
            self.around.pop()
        if sides == [stmt.then, stmt.otherwise]:
            return stmt
        return stmt.replace(then=sides[0], otherwise=sides[1])

    def visit_Block(self, block: Block) -> Node:
        outer, self.around = self.around, []
        body = self.rewrite(block.body)
        if dict(block.attrs).get("atomic"):
            body = _AllowAtomic().rewrite(body)
        init = None if block.init is None else self.rewrite(block.init)
        self.around = outer
        values = block.values
        quotients = self._divisions(block)
        body = substitute(body, {**values, **quotients})
        for var, let in quotients.items():
            body = Let(let, values[var], body)
        if init is not None:
            body = self._place(block, substitute(init, values), body)
        if block.where is not None:
            body = If(substitute(block.where, values), body, span=block.span)
        return body

    def _divisions(self, block: Block) -> dict[Var, Var]:
        """Return variables for iters of *block* with divisions, lest its loops repeat them.

        The divisions may fail, so they are not moved out of a loop that may run zero times.
        """
        if not any(isinstance(n, (For, While)) for n in walk(block.body, skip=Expr)):
            return {}
        dividing = (item for item in block.iters if may_fail(item.value))
        return {item.var: self.names.var(item.var.name) for item in dividing}

    def _place(self, block: Block, init: Stmt, body: Stmt) -> Stmt:
        """Put *init* before the outermost loop that drives a reduction; before *body* if none."""
        drivers = self._drivers([i.value for i in block.iters if i.kind == "R"])
        places = range(self._existence(init), len(self.around))
        start = next((k for k in places if self._changing(k) & drivers), None)
        if start is None:
            return seq(init, body)
        inside = self.around[start:]
        needed = self._needed_vars(block, init, inside)
        lost = {
            var
            for k in range(start, len(self.around))
            for var in self._changing(k)
            if var in drivers or var not in needed or isinstance(self.around[k].node, While)
        }
        nest = init
        if block.where is not None:
            guards = conjuncts(substitute(block.where, block.values))
            self._check_guards(block, init, self.around[places.start : start], lost, guards)
            nest = self._guard(self._without(lost, guards), nest, needed)
        for around in reversed(inside):
            if isinstance(around.node, If):
                nest = self._guard(
                    self._side_terms(around.node, lost, holds=around.holds), nest, needed
                )
            elif isinstance(around.node, (For, Let)):
                nest = self._copy(around.node, nest, needed, lost)
        if variables(nest) & lost:
            raise LoweringError(
                f"where block {block.name} starts its reduction depends on what it reduces over",
                block.span,
            )
        self.around[start].inits.append(nest)
        return body

    def _check_guards(
        self, block: Block, init: Stmt, outside: list[_Around], lost: set[Var], guards: list[Expr]
    ) -> None:
        """Raise LoweringError if only *guards* with *lost* say in which trip outside init runs.

        A loop that says which element is set, or in which trips, repeats nothing.
        """
        loops = {around.node.var for around in outside if isinstance(around.node, For)}
        picking = self._drivers([*(i.value for i in block.iters), *_places(init)])
        self._add_ranges(picking, outside)
        repeats = loops - picking
        for used in (self._drivers([guard]) for guard in guards):
            if used & lost and used & repeats:
                raise LoweringError(
                    f"where block {block.name} starts its reduction depends on loops inside it",
                    block.span,
                    hint="reorder loops that pick nothing: all outside the reduction, or none",
                )

    def _existence(self, init: Stmt) -> int:
        """Return the first place where all that *init* stores to is allocated."""
        stored = writes_of(init)
        allocs = (
            k
            for k, around in enumerate(self.around)
            if isinstance(around.node, Alloc) and memory_of(around.node.buffer) in stored
        )
        return max(allocs, default=-1) + 1

    def _needed_vars(self, block: Block, init: Stmt, inside: list[_Around]) -> set[Var]:
        """Return the variables behind the elements that *init* sets, and behind their ranges."""
        needed = self._drivers([i.value for i in block.iters if i.kind == "S"]) | variables(init)
        self._add_ranges(needed, inside)
        return needed

    def _add_ranges(self, needed: set[Var], around: list[_Around]) -> None:
        """Add to *needed* what the ranges of loops *around* depend on whose variables it has."""
        for each in reversed(around):
            if isinstance(each.node, For) and each.node.var in needed:
                needed |= self._drivers([each.node.begin, each.node.end])

    def _without(self, lost: set[Var], terms: list[Expr]) -> list[Expr]:
        """Return the *terms* that depend on no variable of *lost*."""
        return [term for term in terms if not self._drivers([term]) & lost]

    def _side_terms(self, branch: If, lost: set[Var], *, holds: bool) -> list[Expr]:
        """Return terms that hold on a side of *branch* and use no variable of *lost*."""
        terms = conjuncts(branch.cond)
        computable = self._without(lost, terms)
        if holds:
            return computable
        return [UnOp("not", branch.cond)] if len(computable) == len(terms) else []

    def _guard(self, terms: list[Expr], nest: Stmt, needed: set[Var]) -> Stmt:
        """Return *nest* under *terms*, and add their variables to *needed*."""
        for term in reversed(terms):
            nest = If(term, nest)
        needed |= self._drivers(terms)
        return nest

    def _copy(self, node: For | Let, nest: Stmt, needed: set[Var], lost: set[Var]) -> Stmt:
        """Return *nest* inside a copy of *node* if it depends on it."""
        if node.var in lost or node.var not in needed:
            return nest
        var = self.names.var(node.var.name, node.var.dtype)
        nest = substitute(nest, {node.var: var})
        if isinstance(node, Let):
            return Let(var, node.value, nest, span=node.span)
        return node.replace(var=var, body=nest)

    def _changing(self, place: int) -> set[Var]:
        """Return the variables that change between iterations of the loop at *place*."""
        loop = self.around[place].node
        if isinstance(loop, For):
            return {loop.var}
        variables_: set[Var] = set()
        if isinstance(loop, While):
            stored = writes_of(loop)
            for around in self.around[place + 1 :]:
                if isinstance(around.node, Let) and _depends(around.node.value, variables_, stored):
                    variables_.add(around.node.var)
        return variables_

    def _drivers(self, values: list[Expr]) -> set[Var]:
        """Return the variables that *values* depend on, also through lets."""
        drivers: set[Var] = set()
        for value in values:
            drivers |= variables(value)
        for around in reversed(self.around):
            if isinstance(around.node, Let) and around.node.var in drivers:
                drivers |= variables(around.node.value)
        return drivers


def _places(init: Stmt) -> list[Expr]:
    """Return the indices of the elements that *init* sets."""
    stores = (node for node in walk(init) if isinstance(node, Store))
    return [index for store in stores for index in store.indices if index is not None]


def _depends(value: Expr, changing: set[Var], stored: set[object]) -> bool:
    """Whether *value* uses a variable of *changing*, or reads memory in *stored*."""
    return bool(variables(value) & changing or reads_of(value) & stored)
