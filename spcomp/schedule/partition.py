"""Under the oracle: loops whose iterations share out the range of the loop inside them."""

from __future__ import annotations

from spcomp.dtypes import int64
from spcomp.ir.arith import simplify
from spcomp.ir.axis import memory_of
from spcomp.ir.expr import Const, Expr, Load, Search, Var, binary, const
from spcomp.ir.linear import expr_equal
from spcomp.ir.stmt import For, Stmt, Store
from spcomp.ir.visitor import substitute, walk
from spcomp.passes.scope import variables


def shared_out(loop: For) -> For | None:
    """Return the loop directly inside *loop* of which each iteration of *loop* runs other values.

    Understood: ``for c: for i in range(search(key(c)), search(key(c + 1)))`` where the key is
    linear in c. A binary search for a greater key never ends at a smaller position, whatever the
    buffer holds (where two searches part, the greater key goes right), so the ranges are disjoint.
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
    read = {memory_of(n.buffer) for n in walk(begin) if isinstance(n, (Load, Search))}
    return None if read & _written(inner.body) else inner


def _at(search: Search, var: Var, ahead: int) -> Search:
    """Return *search* as it is *ahead* iterations later."""
    later: Search = substitute(search, {var: binary("+", var, ahead)})
    return later


def _is_linear(key: Expr, var: Var) -> bool:
    """Whether *key* changes by the same amount from each iteration to the next."""
    if key.dtype != int64:
        return False
    now, then, later = (substitute(key, {var: binary("+", var, k)}) for k in range(3))
    bend = simplify(binary("-", binary("+", now, later), binary("+", then, then)))
    return isinstance(bend, Const) and bend.value == 0


def _written(body: Stmt) -> set[object]:
    return {memory_of(n.buffer) for n in walk(body) if isinstance(n, Store)}


def chunked(loop: For, chunk: Var, chunks: Expr, cut: Search) -> For:
    """Return *loop* inside a loop over *chunks* chunks, which takes its kind.

    *cut*: where the chunk *chunk* begins. Each chunk is taken by itself (``grain`` 1).
    """
    inner = loop.replace(begin=cut, end=_at(cut, chunk, 1), kind="serial", attrs=())
    grain = (("grain", 1),)
    return For(chunk, const(0), chunks, inner, loop.kind, attrs=grain, span=loop.span)
