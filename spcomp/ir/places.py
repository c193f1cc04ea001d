"""For every level: where in the user's source a node comes from, through all passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spcomp.ir.expr import Const, Expr, Var
from spcomp.ir.stmt import Seq, Stmt
from spcomp.ir.visitor import holds, statements, walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spcomp.errors import Span
    from spcomp.ir.node import Node

_SHARED = (Var, Const)  # one node stands in many places


def inherit(new: Node, old: Node) -> None:
    """Give *new*, which a rewriter made of *old* and which has no place, the place of *old*.

    Nothing that a pass decides depends on a place, so that *new* need not be copied for it. The
    value of a variable was not made of it, and has a place of its own or none.
    """
    if isinstance(old, Var) or isinstance(new, _SHARED) or not isinstance(new, Stmt | Expr):
        return
    object.__setattr__(new, "span", old.span)
    if isinstance(new, Seq):
        for part in new.body:
            if part.span is None:
                inherit(part, old)


def at_place(stmt: Stmt, span: Span | None) -> Stmt:
    """Return *stmt*, which was just made; the statements in it that have no place get *span*."""
    for part in statements(stmt):
        if part.span is None:
            object.__setattr__(part, "span", span)
    return stmt


def places(node: Node) -> tuple[Span, ...]:
    """Return the places that *node* comes from, without the statements in it; its own first."""
    found = [part.span for part in _own(node) if part.span is not None]
    return tuple(dict.fromkeys(found))


def place(node: Node) -> Span | None:
    """Return the place of *node*: its own, or that of the first expression in it that has one."""
    return next((part.span for part in _own(node) if part.span is not None), None)


def all_places(roots: Iterable[Node]) -> tuple[str, ...]:
    """Return the place of each node in *roots*, as text; equal for the same text at one place."""
    return tuple(str(node.span) for root in roots for node in walk(root))


def _own(node: Node) -> Iterator[Node]:
    """Yield *node* and the expressions in it, without its statements and what is shared."""
    if not isinstance(node, _SHARED):
        yield node
    names = () if isinstance(node, Expr) else holds(node)
    for name in node.CHILDREN:
        child = getattr(node, name)
        if name not in names and child is not None:
            for part in child if isinstance(child, tuple) else (child,):
                if part is not None:
                    yield from (x for x in walk(part) if not isinstance(x, _SHARED))
