"""Beside the route, for steps: where a block stores, and whether what is read was stored there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from spcomp.dtypes import int64
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, conjuncts, fingerprint, variables
from spcomp.ir.arith.simplify import simplify
from spcomp.ir.axis import AnyBuffer
from spcomp.ir.expr import BinOp, Expr, Select, Var, binary, cast
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import If, Stmt
from spcomp.ir.visitor import walk
from spcomp.schedule.nests.nearby import follows, wide
from spcomp.schedule.nests.places import meanings
from spcomp.schedule.nests.sites import Site, path_to

Path = tuple[Node, ...]


def stored_where(site: Site, picks: Sequence[Var]) -> list[Expr] | None:
    """Return what holds of *picks*, the element, where the block at *site* stores; None: unknown.

    An element is one of a loop where its iter is the loop's variable, else one of its iter's.
    """
    loops = {loop.var: loop for loop in site.loops}
    extents = {own.var: own.extent for own in site.block.iters}
    values = {pick: site.block.values.get(pick, pick) for pick in picks}
    names = {v: pick for pick, v in values.items() if isinstance(v, Var)}
    found: list[Expr] = []
    for pick, value in values.items():
        own = loops.get(value) if isinstance(value, Var) else None
        low, high = (own.begin, own.end) if own else (ZERO, extents[pick])
        found += [BinOp("<=", wide(low), pick), BinOp("<", pick, wide(high))]
    spelled = {fingerprint(simplify(value)): pick for pick, value in values.items()}
    for term in conjuncts(site.block.where):
        if isinstance(term, BinOp) and (one := fingerprint(simplify(term.lhs))) in spelled:
            term = BinOp(term.op, spelled[one], wide(term.rhs))
        found.append(term)
    found = [substitute(term, names) for term in found]
    gone = (site.bound | set(extents)) - set(picks)
    return None if any(gone & variables(term) for term in found) else found


def reads_stay(
    func: Func, body: Stmt, buffer: AnyBuffer, picks: Sequence[Var], stored: Sequence[Expr]
) -> bool:
    """Whether each read of *buffer* in *body* is of an element where *stored* holds of *picks*."""
    for load, given in _loads(body, buffer, ()):
        stmts = tuple(node for node in given if not isinstance(node, Expr))
        at = path_to(func, stmts[-1])
        names = meanings(at)
        known = [substitute(term, names) for term in _conditions(given)]
        holds = follows(func, at, names)
        indices = (cast(index, int64) for index in load.indices if index is not None)
        place = dict(zip(picks, indices, strict=True))
        for term in stored:
            wanted = substitute(substitute(term, place), names)
            if not holds(wanted) and not any(holds(_less(wanted, term)) for term in known):
                return False
    return True


def _loads(node: Node, buffer: AnyBuffer, above: Path) -> Iterator[tuple[Load, Path]]:
    """Yield the loads of *buffer*, and what leads to each."""
    path = (*above, node)
    if isinstance(node, Load) and node.buffer is buffer:
        yield node, path
    if not any(isinstance(inner, Load) and inner.buffer is buffer for inner in walk(node)):
        return
    for name in node.CHILDREN:
        child = getattr(node, name)
        for item in child if isinstance(child, tuple) else (child,):
            if isinstance(item, Node):
                yield from _loads(item, buffer, path)


def _conditions(path: Path) -> Iterator[Expr]:
    """Yield what holds at the end of *path*."""
    for outer, inner in pairwise(path):
        if isinstance(outer, Block):
            yield from conjuncts(outer.where)
        elif isinstance(outer, If | Select) and inner is outer.then:
            yield from conjuncts(outer.cond)


def _less(wanted: Expr, given: Expr) -> Expr:
    """Return what *wanted*, ``a < b``, follows from if ``c < d`` is *given*: ``a - b <= c - d``."""
    match wanted, given:
        case BinOp(op="<", lhs=a, rhs=b), BinOp(op="<", lhs=c, rhs=d):
            return binary("<=", binary("+", a, d), binary("+", b, c))
    return wanted
