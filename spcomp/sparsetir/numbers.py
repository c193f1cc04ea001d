"""Beside the route: the buffers that a block reads, in the order in which TVM numbers them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from spcomp.ir.access import Load, Search
from spcomp.ir.axis import AnyBuffer
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.stmt import Alloc, Store
from spcomp.ir.visitor import statements


def read_buffers(block: Block, updating: Collection[str]) -> list[AnyBuffer]:
    """Return what *block* reads, in the order of its list of regions in TVM.

    A buffer comes before what picks its element, a value before where it is stored, and what a
    block in it reads in the order of that block. What a reduction updates is not read, except by
    the blocks called *updating*, whose init stands apart.
    """
    made = {node.buffer for node in statements(block) if isinstance(node, Alloc)}
    return [b for b in dict.fromkeys(_reads(block, updating)) if b not in made]


def _reads(block: Block, updating: Collection[str]) -> Iterator[AnyBuffer]:
    reduces = any(own.kind == "R" for own in block.iters) and block.name not in updating
    updated: set[AnyBuffer] = set()
    if block.init is not None or reduces:
        updated = {node.buffer for node in _inside(block) if isinstance(node, Store)}
    for part in (block.init, block.body):
        if part is not None:
            yield from (buffer for buffer in _met(part, updating) if buffer not in updated)


def _inside(block: Block) -> Iterator[Node]:
    return (node for part in (block.init, block.body) if part for node in statements(part))


def _met(node: Node, updating: Collection[str]) -> Iterator[AnyBuffer]:
    if isinstance(node, Block):
        yield from _reads(node, updating)
        return
    if isinstance(node, Load | Search):
        yield node.buffer
    names = ("value", "indices", "mask") if isinstance(node, Store) else node.CHILDREN
    for name in names:
        child = getattr(node, name)
        for item in child if isinstance(child, tuple) else (child,):
            if item is not None:
                yield from _met(item, updating)
