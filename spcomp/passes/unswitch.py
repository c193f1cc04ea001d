"""Under loop_kinds: what all iterations of a loop ask first is asked once, before the loop."""

from __future__ import annotations

from functools import reduce
from itertools import takewhile

from spcomp.ir.access import Load, Search
from spcomp.ir.arith.simplify import prove
from spcomp.ir.axis import memory_of
from spcomp.ir.expr import BinOp, Expr, Var
from spcomp.ir.stmt import For, If, Stmt, Store
from spcomp.ir.visitor import walk
from spcomp.passes.positions import both, conjuncts
from spcomp.passes.scope import may_fail, variables


def asked(stmt: Stmt) -> tuple[list[Expr], Stmt]:
    """Return the conditions under which *stmt* does anything, as they are asked, and what it does.

    ``if a and b: if c: s  ->  [a, b, c], s``.
    """
    terms: list[Expr] = []
    while isinstance(stmt, If) and stmt.otherwise is None:
        terms += conjuncts(stmt.cond)
        stmt = stmt.then
    return terms, stmt


def unswitched(loop: For) -> tuple[Expr | None, For]:
    """``for k: if a: if b(k): s  ->  if a: for k: if b(k): s``: the condition *a*, and the loop.

    None where the first thing that *loop* asks may differ from one iteration to the next. Where
    the condition reads memory, it asks first whether the loop runs at all.
    """
    terms, body = asked(loop.body)
    if not terms:
        return None, loop
    known = list(takewhile(lambda term: is_same(term, loop.var, body), terms))
    rest = reduce(both, terms[len(known) :], None)
    runs = BinOp("<", loop.begin, loop.end)
    if _reads(known) and not prove(runs, {}):
        known.insert(0, runs)
    inner = body if rest is None else If(rest, body, span=loop.body.span)
    return reduce(both, known, None), loop.replace(body=inner)


def is_same(cond: Expr, var: Var, body: Stmt) -> bool:
    """Whether *cond* has one value for all *var*, whatever *body* does, and cannot fail."""
    written = {memory_of(n.buffer) for n in walk(body) if isinstance(n, Store)}
    reads = (n.buffer for n in walk(cond) if isinstance(n, (Load, Search)))
    moves = var in variables(cond) or any(memory_of(buffer) in written for buffer in reads)
    return not moves and not may_fail(cond)


def _reads(terms: list[Expr]) -> bool:
    return any(isinstance(n, (Load, Search)) for term in terms for n in walk(term))
