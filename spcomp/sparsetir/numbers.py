"""Beside the route: the buffers that a block reads, in the order in which TVM numbers them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import takewhile

from spcomp.ir.access import Load, Search
from spcomp.ir.axis import AnyBuffer
from spcomp.ir.expr import Expr, Var
from spcomp.ir.node import Node
from spcomp.ir.position import Block, Region
from spcomp.ir.stmt import Alloc, Store
from spcomp.ir.visitor import statements


def read_buffers(block: Block, updating: Collection[str]) -> list[AnyBuffer]:
    """Return the buffers that *block* reads, in the order of its list of regions in TVM.

    A buffer comes before the buffers of its index, those of a stored value before those of the
    place where it is stored, and those of an inner block in the order of that block. The buffer
    that a reduction updates counts as read only in the blocks named in *updating*, whose init is a
    separate block.
    """
    local = {node.buffer for node in statements(block) if isinstance(node, Alloc)}
    return [b for b in dict.fromkeys(_reads(block, updating)) if b not in local]


def iters_of(block: Block, numbers: Collection[int], blocks: Collection[Block]) -> tuple[int, ...]:
    """Return the iterators of *block* that have *numbers* in SparseTIR, in that order.

    One of a fused iteration counts there as one for each axis that is fused: see the regions of
    *blocks*, which are all blocks of the program.
    """
    above: dict[Expr, int] = {}
    for each in blocks:
        for item in each.iters:
            fused = (_axes_above(r, item.var) for r in each.reads if item.var in r.begins)
            above[item.value] = max(above.get(item.value, 0), *fused, 0)
    owners = [at for at, i in enumerate(block.iters) for _ in range(1 + above.get(i.value, 0))]
    return tuple(dict.fromkeys(owners[k] if k < len(owners) else k for k in numbers))


def _axes_above(region: Region, var: Var) -> int:
    """Return how many axes of a region have no position, since *var* is one in all fibers."""
    above = region.begins[: region.begins.index(var)]
    return len(list(takewhile(lambda begin: begin is None, reversed(above))))


def _reads(block: Block, updating: Collection[str]) -> Iterator[AnyBuffer]:
    reduces = any(iter_.kind == "R" for iter_ in block.iters) and block.name not in updating
    updated: set[AnyBuffer] = set()
    if block.init is not None or reduces:
        updated = {node.buffer for node in _inner_nodes(block) if isinstance(node, Store)}
    for part in (block.init, block.body):
        if part is not None:
            yield from (
                buffer for buffer in _reads_of_node(part, updating) if buffer not in updated
            )


def _inner_nodes(block: Block) -> Iterator[Node]:
    return (node for part in (block.init, block.body) if part for node in statements(part))


def _reads_of_node(node: Node, updating: Collection[str]) -> Iterator[AnyBuffer]:
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
                yield from _reads_of_node(item, updating)
