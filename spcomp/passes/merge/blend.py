"""Beside the route, for merges: statements that differ only in values become one, by a table."""

from __future__ import annotations

from collections.abc import Sequence

from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import may_fail
from spcomp.ir.analysis.names import Names
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import BinOp, Cast, Const, Expr, Select, UnOp, Var, const
from spcomp.ir.position import Block
from spcomp.ir.stmt import Alloc, Seq, Stmt, Store, seq
from spcomp.ir.structural import fingerprint
from spcomp.ir.visitor import walk

CHEAP = (Var, Const, BinOp, UnOp, Cast, Load, Select)  # cost little next to a mispredicted branch


def blend(bodies: Sequence[Stmt], number: Expr, names: Names) -> Stmt | None:
    """Return one statement with the effect of ``bodies[number]``.

    None if they differ in more than the values they store. These are all evaluated, so the
    elements that they load must always exist.
    """
    parts = [_plain(body) for body in bodies]
    if all(isinstance(part, Seq) for part in parts):
        lists = [part.body for part in parts if isinstance(part, Seq)]
        if len({len(items) for items in lists}) != 1:
            return None
        merged = [blend(items, number, names) for items in zip(*lists, strict=True)]
        return seq(*merged) if None not in merged else None
    stores = [part for part in parts if isinstance(part, Store)]
    targets = {fingerprint((store.buffer, store.indices)) for store in stores}
    if len(stores) != len(parts) or len(targets) != 1 or not all(map(_is_cheap, stores)):
        return None
    return _store(stores, number, names)


def _plain(body: Stmt) -> Stmt:
    """Return *body* without blocks around it that have no iters, init or guard."""
    while isinstance(body, Block) and not body.iters and body.init is None and body.where is None:
        body = body.body
    return body


def _is_cheap(store: Store) -> bool:
    return all(isinstance(n, CHEAP) for n in walk(store.value) if isinstance(n, Expr)) and not (
        may_fail(store.value)
    )


def _store(stores: Sequence[Store], number: Expr, names: Names) -> Stmt:
    """Return the store of the value of that *number*.

    All values go into a table, from which one is read: a select of floats would be a branch.
    """
    first = stores[0]
    if len({fingerprint(store.value) for store in stores}) == 1:
        return first
    dtype, size = first.buffer.dtype, const(len(stores))
    table = Buffer(names.unique("values"), None, (size,), dtype, "local")
    written = (Store(table, (const(k),), store.value) for k, store in enumerate(stores))
    return Alloc(table, seq(*written, first.replace(value=Load(table, (number,)))))
