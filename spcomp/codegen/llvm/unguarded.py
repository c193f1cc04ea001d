"""Flat IR to LLVM IR: the loads in the sides of a selection of vectors that need no mask.

A side under a mask shares nothing with what is computed without it, for LLVM. So a load has none
where an element at its place in a buffer of its size is read in any case.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from spcomp.ir import expr as ex
from spcomp.ir.access import Load
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import Const, Expr
from spcomp.ir.structural import fingerprint
from spcomp.ir.visitor import below

Places = Collection[object]  # what is read: indices, masks and the sizes of buffers


def places_read(node: Expr) -> frozenset[object]:
    """Return the places that are read whenever *node* is evaluated."""
    return frozenset(_reads(node))


def need_no_guard(select: ex.Select, known: Places) -> bool:
    """Whether all loads in the sides of *select* may run in any lane.

    *known*: the places that are read whenever *select* is evaluated. What a load needs whose own
    mask is the condition of *select* is computed in any case, here as elsewhere.
    """
    cond = fingerprint(select.cond)
    loads = [load for side in (select.then, select.otherwise) for load in _loads(side, cond)]
    return all(place_of(load) in known or _is_constant(load) for load in loads)


def _loads(node: Expr, cond: object) -> Iterator[Load]:
    """Yield the loads in *node* but those under the mask *cond*, and what these need."""
    if isinstance(node, Load):
        if node.mask is not None and fingerprint(node.mask) == cond:
            return
        yield node
    for child in below(node):
        if isinstance(child, Expr):
            yield from _loads(child, cond)


def _reads(node: Expr) -> Iterator[object]:
    if isinstance(node, ex.Select):
        yield from _reads(node.cond)
        yield from places_read(node.then) & places_read(node.otherwise)
        return
    if isinstance(node, ex.BinOp) and node.op in ("and", "or"):
        yield from _reads(node.lhs)
        return
    if isinstance(node, Load):
        yield place_of(node)
    for child in below(node):
        if isinstance(child, Expr):
            yield from _reads(child)


def place_of(load: Load) -> object:
    """Return what tells the place of *load* from others: index, mask and size of the buffer."""
    return fingerprint(load.indices), fingerprint((load.mask,)), fingerprint(_sizes(load))


def _is_constant(load: Load) -> bool:
    """Whether *load* is at a constant index inside a buffer of constant size."""
    index, *more = load.indices
    size, *_ = _sizes(load)
    if more or not isinstance(index, Const) or not isinstance(size, Const):
        return False
    return 0 <= int(index.value) < int(size.value)


def _sizes(load: Load) -> tuple[Expr, ...]:
    """Return the size of the flat buffer that *load* reads, and its strides."""
    assert isinstance(load.buffer, Buffer)
    return (*load.buffer.shape, *(load.buffer.strides or ()))
