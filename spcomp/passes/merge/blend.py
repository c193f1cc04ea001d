"""Beside the route, for merges: statements that differ in values only become one, by a table."""

from __future__ import annotations

from collections.abc import Sequence

from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import fingerprint, may_fail
from spcomp.ir.analysis.names import Names
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import BinOp, Cast, Const, Expr, Select, UnOp, Var, const
from spcomp.ir.position import Block
from spcomp.ir.stmt import Alloc, Seq, Stmt, Store, seq
from spcomp.ir.visitor import walk

CHEAP = (Var, Const, BinOp, UnOp, Cast, Load, Select)  # as good as free beside a branch not taken


def blended(bodies: Sequence[Stmt], which: Expr, names: Names) -> Stmt | None:
    """Return one statement that does what the one of *bodies* with the number *which* does.

    None if they differ in more than the values they store. These are all evaluated, so what they
    load must be there in any case.
    """
    parts = [_plain(body) for body in bodies]
    if all(isinstance(part, Seq) for part in parts):
        lists = [part.body for part in parts if isinstance(part, Seq)]
        if len({len(items) for items in lists}) != 1:
            return None
        made = [blended(items, which, names) for items in zip(*lists, strict=True)]
        return seq(*made) if None not in made else None
    stores = [part for part in parts if isinstance(part, Store)]
    targets = {fingerprint((store.buffer, store.indices)) for store in stores}
    if len(stores) != len(parts) or len(targets) != 1 or not all(map(_is_cheap, stores)):
        return None
    return _store(stores, which, names)


def _plain(body: Stmt) -> Stmt:
    """Return what a block that only stands around its body holds."""
    while isinstance(body, Block) and not body.iters and body.init is None and body.where is None:
        body = body.body
    return body


def _is_cheap(store: Store) -> bool:
    return all(isinstance(n, CHEAP) for n in walk(store.value) if isinstance(n, Expr)) and not (
        may_fail(store.value)
    )


def _store(stores: Sequence[Store], which: Expr, names: Names) -> Stmt:
    """Return the store of the value that is asked for.

    They are written down and one is read: a select of floats would become a branch.
    """
    first = stores[0]
    if len({fingerprint(store.value) for store in stores}) == 1:
        return first
    dtype, size = first.buffer.dtype, const(len(stores))
    table = Buffer(names.unique("values"), None, (size,), dtype, "local")
    written = (Store(table, (const(k),), store.value) for k, store in enumerate(stores))
    return Alloc(table, seq(*written, first.replace(value=Load(table, (which,)))))
