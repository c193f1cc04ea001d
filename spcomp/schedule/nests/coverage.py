"""Under the steps: which elements a block stores, and whether reads touch only these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from spcomp.dtypes import int64
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, conjuncts, variables
from spcomp.ir.arith.linear import same_value
from spcomp.ir.axis import AnyBuffer
from spcomp.ir.expr import BinOp, Expr, Select, Var, binary, cast
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import If, Stmt
from spcomp.ir.visitor import below, walk
from spcomp.schedule.nests.nearby import prover_at, wide
from spcomp.schedule.nests.sites import Site, path_to
from spcomp.schedule.nests.values import path_values

Path = tuple[Node, ...]


def stored_conditions(site: Site, picks: Sequence[Var]) -> list[Expr] | None:
    """Return the conditions on *picks* for which the block at *site* stores the element they name.

    None: not known. A pick whose iter is a loop variable lies in the range of that loop, any other
    in the extent of its iter.
    """
    loops = {loop.var: loop for loop in site.loops}
    extents = {it.var: it.extent for it in site.block.iters}
    values = {pick: site.block.values.get(pick, pick) for pick in picks}
    names = {v: pick for pick, v in values.items() if isinstance(v, Var)}
    terms: list[Expr] = []
    for pick, value in values.items():
        around = loops.get(value) if isinstance(value, Var) else None
        low, high = (around.begin, around.end) if around else (ZERO, extents[pick])
        terms += [BinOp("<=", wide(low), pick), BinOp("<", pick, wide(high))]
    for term in conjuncts(site.block.where):
        if isinstance(term, BinOp):
            same = (pick for pick, value in values.items() if same_value(term.lhs, value))
            if (place := next(same, None)) is not None:
                term = BinOp(term.op, place, wide(term.rhs))
        terms.append(term)
    terms = [substitute(term, names) for term in terms]
    unknown = (site.bound | set(extents)) - set(picks)
    return None if any(unknown & variables(term) for term in terms) else terms


def reads_are_stored(
    func: Func, body: Stmt, buffer: AnyBuffer, picks: Sequence[Var], stored: Sequence[Expr]
) -> bool:
    """Whether *body* reads only elements of *buffer* whose *picks* meet the conditions *stored*."""
    for load, path in _loads(body, buffer, ()):
        stmts = tuple(node for node in path if not isinstance(node, Expr))
        at = path_to(func, stmts[-1])
        names = path_values(at)
        conds = [substitute(term, names) for term in _conditions(path)]
        holds = prover_at(func, at, names)
        indices = (cast(index, int64) for index in load.indices if index is not None)
        place = dict(zip(picks, indices, strict=True))
        for term in stored:
            goal = substitute(substitute(term, place), names)
            if not holds(goal) and not any(holds(_sufficient(goal, term)) for term in conds):
                return False
    return True


def _loads(node: Node, buffer: AnyBuffer, above: Path) -> Iterator[tuple[Load, Path]]:
    """Yield the loads of *buffer*, each with the path of nodes to it."""
    path = (*above, node)
    if isinstance(node, Load) and node.buffer is buffer:
        yield node, path
    if not any(isinstance(inner, Load) and inner.buffer is buffer for inner in walk(node)):
        return
    for item in below(node):
        yield from _loads(item, buffer, path)


def _conditions(path: Path) -> Iterator[Expr]:
    """Yield the conditions that hold at the end of *path*."""
    for outer, inner in pairwise(path):
        if isinstance(outer, Block):
            yield from conjuncts(outer.where)
        elif isinstance(outer, If | Select) and inner is outer.then:
            yield from conjuncts(outer.cond)


def _sufficient(goal: Expr, cond: Expr) -> Expr:
    """Return ``a - b <= c - d``, which with *cond* ``c < d`` implies *goal* ``a < b``."""
    match goal, cond:
        case BinOp(op="<", lhs=a, rhs=b), BinOp(op="<", lhs=c, rhs=d):
            return binary("<=", binary("+", a, d), binary("+", b, c))
    return goal
