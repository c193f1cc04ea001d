"""Beside the route, under the position interpreter: where the init of every block runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from spcomp.ir.analysis.exprs import conjuncts, variables
from spcomp.ir.expr import Expr, Var
from spcomp.ir.node import Node
from spcomp.ir.position import Block, Merge
from spcomp.ir.stmt import For, Let, Stmt
from spcomp.ir.visitor import Walker

Loop: TypeAlias = For | Merge


@dataclass(frozen=True, slots=True)
class Nest:
    """The init of *block*, to run before the first loop of *path*, which drives its reduction.

    *path* leads from that loop down to the block. The loops of *kept* give values to variables
    that init needs: they run, the others are left out. The variables of *lost* then have no value.
    """

    block: Block
    path: tuple[Node, ...]
    kept: frozenset[Loop]
    lost: frozenset[Var]

    def computable(self, cond: Expr | None) -> tuple[list[Expr], bool]:
        """Return the terms of the conjunction *cond* without lost variables; and if that is all."""
        terms = conjuncts(cond)
        computable = [term for term in terms if self.lost.isdisjoint(variables(term))]
        return computable, len(computable) == len(terms)


def init_plan(body: Stmt) -> dict[Loop, list[Nest]]:
    """Return for each loop the inits that run before it; other blocks run init before the body."""
    planner = _Planner()
    planner.visit(body)
    return planner.plan


class _Planner(Walker):
    """Walks one scope (a function, or a block's body) at a time, with the path that led here."""

    def __init__(self) -> None:
        self.plan: dict[Loop, list[Nest]] = {}
        self.path: list[Node] = []
        self.feeds: dict[Var, frozenset[Loop]] = {}  # the loops of this scope behind a variable

    def visit_Node(self, node: Node) -> None:
        self.path.append(node)
        super().visit_Node(node)
        self.path.pop()

    def visit_Expr(self, node: Expr) -> None:
        """Expressions hold no statement."""

    def visit_For(self, node: For) -> None:
        self.feeds[node.var] = frozenset({node})
        self.visit_Node(node)

    def visit_Merge(self, node: Merge) -> None:
        for var in (node.coordinate, *(cursor.pos for cursor in node.cursors)):
            self.feeds[var] = frozenset({node})
        self.path.append(node)
        for case in node.cases:
            self.visit(case)
        self.path.pop()

    def visit_Let(self, node: Let) -> None:
        self.feeds[node.var] = self._loops(variables(node.value))
        self.visit_Node(node)

    def visit_Block(self, node: Block) -> None:
        for it in node.iters:
            self.feeds[it.var] = self._loops(variables(it.value))
        if node.init is not None:
            self._place(node, node.init)
        outer = self.path, self.feeds
        self.path, self.feeds = [], {}
        self.visit(node.body)
        self.path, self.feeds = outer

    def _place(self, block: Block, init: Stmt) -> None:
        """Plan *init* before the outermost loop of this scope that drives a reduction iter."""
        drivers = self._loops(it.var for it in block.iters if it.kind == "R")
        loops = [(k, x) for k, x in enumerate(self.path) if isinstance(x, For | Merge)]
        start = next(((k, loop) for k, loop in loops if loop in drivers), None)
        if start is None:
            return
        path, loop = tuple(self.path[start[0] :]), start[1]
        spatial = {it.var for it in block.iters if it.kind == "S"}
        kept = self._loops(spatial | variables(init))
        for _, inner in reversed(loops):  # their begin and end may depend on loops around them
            if inner in kept and isinstance(inner, For):
                kept |= self._loops(variables(inner.begin) | variables(inner.end))
        skipped = {inner for k, inner in loops if k >= start[0]} - kept
        lost = {var for var, loops in self.feeds.items() if not skipped.isdisjoint(loops)}
        lost |= {it.var for it in block.iters if it.kind == "R"}
        nest = Nest(block, path, kept, frozenset(lost))
        self.plan.setdefault(loop, []).append(nest)

    def _loops(self, used: Iterable[Var]) -> frozenset[Loop]:
        return frozenset[Loop]().union(*(self.feeds.get(var, frozenset()) for var in used))
