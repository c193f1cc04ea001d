"""Under the steps: the loops whose iterations a running sum counts, which no step may regroup."""

from __future__ import annotations

from collections.abc import Iterator

from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.stmt import For, Prefix
from spcomp.ir.structural import fingerprint
from spcomp.ir.visitor import children, collector


def counted_loops(func: Func) -> tuple[object, ...]:
    """Return a key of the loops around each ``T.prefix`` of *func*, outer ones first.

    It is empty if there are none. A step leaves sums as they are if the key is the same after it.
    """
    return tuple(_loops(func.body, ())) if _prefixes(func.body) else ()


@collector
def _prefixes(node: Node) -> tuple[Prefix, ...]:
    return (node,) if isinstance(node, Prefix) else ()


def _loops(node: Node, around: tuple[object, ...]) -> Iterator[tuple[object, ...]]:
    if isinstance(node, Prefix):
        yield around
    if isinstance(node, For):
        around = (*around, (node.var, fingerprint(node.begin), fingerprint(node.end)))
    for child in children(node):
        yield from _loops(child, around)
