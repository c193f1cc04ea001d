"""Beside the route: which loops can run in vectors, which conditions agree in every lane."""

from __future__ import annotations

from itertools import dropwhile

from spcomp.dtypes import DType
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import conjuncts, may_fail, variables
from spcomp.ir.arith.memory import are_constant
from spcomp.ir.axis import AnyBuffer
from spcomp.ir.expr import BinOp, Call, Cast, Const, Expr, Select, UnOp, Var
from spcomp.ir.stmt import For, If, Seq, Stmt, Store
from spcomp.ir.visitor import walk


def conditions_of(stmt: Stmt) -> tuple[list[Expr], Stmt]:
    """Return the conditions around *stmt*, in order, and the statement inside them.

    ``if a and b: if c: s  ->  [a, b, c], s``.
    """
    terms: list[Expr] = []
    while isinstance(stmt, If) and stmt.otherwise is None:
        terms += conjuncts(stmt.cond)
        stmt = stmt.then
    return terms, stmt


def is_invariant(cond: Expr, var: Var, body: Stmt) -> bool:
    """Whether *cond* has the same value for every *var*, whatever *body* does, and cannot fail."""
    moves = var in variables(cond) or not are_constant((cond,), body)
    return not moves and not may_fail(cond)


def lane_bits(dtype: DType) -> int:
    """Return the bits of a lane that computes with *dtype*: 32 for 16-bit floats."""
    return 32 if dtype.is_float and dtype.bits < 32 else dtype.itemsize * 8


def can_vectorize(body: Stmt, var: Var) -> bool:
    """Say whether *body* is straight-line stores that can be computed in vectors over *var*.

    Conditions may stand around all of it: they become a mask, or are tested before the loop.
    """
    terms, inner = conditions_of(body)
    if not all(map(_is_mask, dropwhile(lambda term: is_invariant(term, var, inner), terms))):
        return False
    if terms and may_fail(inner):  # it would fail where no lane runs
        return False
    body = inner
    if any(not isinstance(n, (Seq, Store)) for n in walk(body) if isinstance(n, Stmt)):
        return False
    for node in walk(body):
        if isinstance(node, Expr) and not isinstance(
            node, (Var, Const, BinOp, UnOp, Cast, Call, Load, Select)
        ):
            return False
        if isinstance(node, BinOp) and node.op in ("//", "%") and var in variables(node):
            return False
    return True


def _is_mask(cond: Expr) -> bool:
    """Whether *cond* compares indices, so that all lanes of it may be evaluated."""
    for node in walk(cond):
        if isinstance(node, BinOp):
            if node.op in ("//", "%") and not (isinstance(node.rhs, Const) and node.rhs.value):
                return False
        elif not isinstance(node, (Var, Const, Cast)):
            return False
    return True


def gathered(loop: For) -> list[AnyBuffer]:
    """Return what the body of *loop* reads at indices that it loads from an array."""
    loads = [n for n in walk(loop.body) if isinstance(n, Load)]
    moving = {load for load in loads if loop.var in variables(load)}
    found = [
        load.buffer
        for load in loads
        if any(not moving.isdisjoint(walk(index)) for index in load.indices if index is not None)
    ]
    return list(dict.fromkeys(found))


def adds_local(loop: For) -> bool:
    """Whether *loop* reads in local memory, and what it updates is there if it does not run."""
    loads = [n for n in walk(loop.body) if isinstance(n, Load) and loop.var in variables(n)]
    stores = (n for n in walk(loop.body) if isinstance(n, Store))
    places = (x for n in stores for i in n.indices if i is not None for x in walk(i))
    is_local = (getattr(n.buffer, "scope", "") == "local" for n in loads)
    return bool(loads) and all(is_local) and not any(isinstance(x, Load) for x in places)
