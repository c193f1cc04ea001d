"""Under the oracle: loops whose iterations divide the range of the loop inside them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from spcomp.dtypes import int64
from spcomp.ir.access import Search
from spcomp.ir.analysis.exprs import variables
from spcomp.ir.arith.bounds import Env
from spcomp.ir.arith.linear import Algebra, mentions, same_value
from spcomp.ir.arith.memory import are_constant
from spcomp.ir.arith.proof import prove
from spcomp.ir.arith.simplify import simplify
from spcomp.ir.expr import BinOp, Expr, Var, binary, const
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import For
from spcomp.ir.structural import expr_equal


def disjoint_inner(loop: For) -> For | None:
    """Return the loop directly inside *loop*, if its range is disjoint in all iterations of *loop*.

    Proved for ``for c: for i in range(search(key(c)), search(key(c + 1)))`` with a key linear in c.
    A binary search for a greater key never ends at a smaller position, whatever the buffer holds
    (where two searches part, the greater key goes right), so the ranges are disjoint.
    """
    inner = loop.body
    if not isinstance(inner, For):
        return None
    begin, end = inner.begin, inner.end
    if not isinstance(begin, Search) or not isinstance(end, Search):
        return None
    if begin.kind not in ("lower", "upper"):
        return None
    if not expr_equal(_at(begin, loop.var, 1), end) or not _is_linear(begin.key, loop.var):
        return None
    if loop.var in variables(begin.begin) | variables(begin.end) | variables(inner.body):
        return None
    return inner if are_constant((begin,), inner.body) else None


def _at(search: Search, var: Var, ahead: int) -> Search:
    """Return *search* as it is *ahead* iterations later."""
    later: Search = substitute(search, {var: binary("+", var, ahead)})
    return later


def _is_linear(key: Expr, var: Var) -> bool:
    """Whether *key* changes by the same amount from each iteration to the next."""
    if key.dtype != int64:
        return False
    now, then, later = (substitute(key, {var: binary("+", var, k)}) for k in range(3))
    return same_value(binary("+", now, later), binary("+", then, then))


def tiles(
    index: Expr,
    var: Var,
    ranges: Mapping[Var, tuple[Expr, Expr]],
    guards: Collection[tuple[Expr, Expr]],
) -> Iterator[Expr]:
    """Yield what tells the tiles of *index* apart, of which each value of *var* has one.

    This is the length in ``length * var + rest``, if the rest is proved to be from 0 to below the
    length for all values of the variables in *ranges*, and the length does not depend on these. It
    is ``length * var + base`` if that holds for the rest of ``length * var + base + rest``, with a
    base that does not depend on them. *guards*: pairs of which the first is known to be less than
    the second. A loop inside that begins at *var* is taken as one that begins at 0.
    """
    index, ranges = _from_zero(index, var, ranges)
    later = substitute(index, {var: binary("+", var, 1)})
    length = simplify(binary("-", later, index))
    offset = simplify(binary("-", index, binary("*", length, var)))
    if var in variables(length) | variables(offset) or variables(length) & ranges.keys():
        return
    facts = _behind(variables(index) | variables(length), ranges)

    def fits(rest: Expr) -> bool:
        if not prove(binary("<=", const(0), rest), facts):
            return False
        bounded = any(_same_difference((rest, length), pair) for pair in guards)
        return bounded or prove(binary("<", rest, length), facts)

    if fits(offset):
        yield length
    inner = set(ranges)
    rest, base = (
        Algebra(Env())
        .of(offset)
        .split(lambda _, term: not term.atoms or mentions(term.atoms, inner))
    )
    if base.terms and fits(rest.expr()):
        yield simplify(binary("+", binary("*", length, var), base.expr()))


def _from_zero(
    index: Expr, var: Var, ranges: Mapping[Var, tuple[Expr, Expr]]
) -> tuple[Expr, Mapping[Var, tuple[Expr, Expr]]]:
    """Return *index*, which has *var* only through the loops in it, in terms of trips of these."""
    used = variables(index)
    begun = {v: ends for v, ends in ranges.items() if v in used and var in variables(ends[0])}
    if not begun or var in used:
        return index, ranges
    trips = {v: Var(v.name, v.dtype) for v in begun}
    counts = {trips[v]: (const(0), binary("-", high, low)) for v, (low, high) in begun.items()}
    places = {v: binary("+", low, trips[v]) for v, (low, _) in begun.items()}
    return substitute(index, places), {**ranges, **counts}


def _behind(
    names: Collection[Var], ranges: Mapping[Var, tuple[Expr, Expr]]
) -> dict[Var, tuple[Expr, Expr]]:
    """Return the *ranges* of *names*, and of the variables that these are made of."""
    needed = set(names)
    for var, (low, high) in reversed(list(ranges.items())):  # outer loops come first
        if var in needed:
            needed |= variables(low) | variables(high)
    return {var: ends for var, ends in ranges.items() if var in needed}


def less_pairs(cond: Expr) -> tuple[tuple[Expr, Expr], ...]:
    """Return the pairs (a, b) for which *cond* says ``a < b``."""
    match cond:
        case BinOp(op="and", lhs=lhs, rhs=rhs):
            return less_pairs(lhs) + less_pairs(rhs)
        case BinOp(op="<", lhs=lhs, rhs=rhs) if lhs.dtype == int64:
            return ((lhs, rhs),)
    return ()


def _same_difference(pair: tuple[Expr, Expr], other: tuple[Expr, Expr]) -> bool:
    """Whether the integers of *pair* differ by as much as those of *other*."""
    return same_value(binary("-", *pair), binary("-", *other))


def chunk_loop(loop: For, chunk: Var, chunks: Expr, cut: Search) -> For:
    """Return *loop* cut into chunks: a loop over *chunks* chunks around it, of its kind.

    *cut*: where the chunk *chunk* begins. A thread takes one chunk at a time (``grain`` 1).
    """
    inner = loop.replace(begin=cut, end=_at(cut, chunk, 1), kind="serial", attrs=())
    grain = (("grain", 1),)
    return For(chunk, const(0), chunks, inner, loop.kind, attrs=grain, span=loop.span)
