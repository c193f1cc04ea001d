"""Index notation, after coordinate IR: temporaries that are computed in the place of a result.

A statement that reads a temporary only at the element it assigns, and is the last to read it, can
overwrite it: ``T[i, k] = A[i, j] * X[j, k]; Y[i, k] = maximum(T[i, k], 0)`` needs no memory for T.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from spcomp.ir.access import Load
from spcomp.ir.axis import SparseBuffer
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import Expr, Var
from spcomp.ir.node import Node
from spcomp.ir.program import CoordFunc
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import Seq, Stmt, Store
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import walk


@dataclass(frozen=True, slots=True)
class Temporary:
    """The decision about the memory of the temporary *name*.

    *place*: the tensor in whose place it is computed; empty if it has memory of its own. *why*: the
    reason for that.
    """

    name: str
    place: str
    why: str = ""

    def __str__(self) -> str:
        if self.place:
            return f"{self.name}: computed in the place of {self.place}"
        return f"{self.name}: has memory of its own, {self.why}"


def in_place(func: CoordFunc, names: Collection[str]) -> tuple[CoordFunc, tuple[Temporary, ...]]:
    """Return *func* with temporaries in the place of results, and the decision about each.

    *names*: the tensors that no caller sees. The order of the statements stays.
    """
    decisions: list[Temporary] = []
    for name in names:
        buffer = next((b for b in func.buffers if b.name == name), None)
        if not isinstance(buffer, SparseBuffer):
            continue
        place = _place(func.body, buffer)
        if any(domain.buffer is buffer for domain in func.domains):
            place = "its values are coordinates"
        if isinstance(place, str):
            decisions.append(Temporary(name, "", place))
            continue
        decisions.append(Temporary(name, place.name))
        func = func.replace(
            params=tuple(param for param in func.params if param is not buffer.data),
            buffers=tuple(other for other in func.buffers if other is not buffer),
            body=_InPlace(buffer, place).rewrite(func.body),
        )
    return func, tuple(_followed(decisions))


def _followed(decisions: list[Temporary]) -> list[Temporary]:
    """Return *decisions* with the last place of each temporary, if places are temporaries, too."""
    places = {decision.name: decision.place for decision in decisions}
    result: list[Temporary] = []
    for decision in decisions:
        place = decision.place
        while places.get(place):
            place = places[place]
        result.append(Temporary(decision.name, place, decision.why))
    return result


def _place(body: Stmt, buffer: SparseBuffer) -> SparseBuffer | str:
    """Return the tensor that can overwrite the temporary *buffer*, or why there is none."""
    stmts = body.body if isinstance(body, Seq) else (body,)
    readers = [stmt for stmt in stmts if _touches(stmt, buffer)]
    last = readers[-1] if readers else None
    if not isinstance(last, SpIter) or not isinstance(last.body, Store) or last.init is not None:
        return "its last reader does not just assign each element once"
    store = last.body
    target = store.buffer
    if not isinstance(target, SparseBuffer) or _traits(target) != _traits(buffer):
        return f"{target.name} has another format or type"
    if target is buffer or any(_touches(s, target) for s in stmts[: stmts.index(last)]):
        return f"{target.name} has a value before"
    if not _is_whole(last, store):
        return f"{target.name} is not assigned element by element"
    for node in walk(store.value):
        if isinstance(node, Load) and node.buffer is target:
            return f"{target.name} is read as well"
        if isinstance(node, Load) and node.buffer is buffer and not _same(node, store):
            return f"{target.name} reads it at other elements than its own"
    return target


def _touches(stmt: Stmt, buffer: SparseBuffer) -> bool:
    return any(isinstance(n, (Load, Store)) and n.buffer is buffer for n in walk(stmt))


def _traits(buffer: SparseBuffer) -> tuple[object, ...]:
    """Return all that two buffers must have in common to be one."""
    shape = buffer.axes, buffer.dtype, buffer.scope, buffer.fill, buffer.extra_storage
    return (*shape, buffer.data is not None)


def _is_whole(loops: SpIter, store: Store) -> bool:
    """Whether *loops* run once over all that *store*'s buffer stores, and store each element."""
    assert isinstance(store.buffer, SparseBuffer)
    spans = dict(zip(loops.vars, loops.domains, strict=True))
    axes = [spans.get(i) if isinstance(i, Var) else None for i in store.indices]
    whole = len(axes) == len(spans) and len({*axes}) == len(axes) and store.mask is None
    return whole and tuple(axes) == store.buffer.axes and set(loops.kinds) <= {"S"}


def _same(load: Load, store: Store) -> bool:
    """Whether *load* reads the element that *store* assigns."""
    pairs = zip(load.indices, store.indices, strict=True)
    return all(isinstance(a, Expr) and isinstance(b, Expr) and expr_equal(a, b) for a, b in pairs)


class _InPlace(Rewriter):
    """Replaces *buffer* by *place*."""

    def __init__(self, buffer: SparseBuffer, place: SparseBuffer) -> None:
        self.buffer, self.place = buffer, place

    def visit_Load(self, load: Load) -> Node:
        """Return the load from the place."""
        new = self.visit_Node(load)
        return new.replace(buffer=self.place) if load.buffer is self.buffer else new

    def visit_Store(self, store: Store) -> Node:
        """Return the store to the place."""
        new = self.visit_Node(store)
        return new.replace(buffer=self.place) if store.buffer is self.buffer else new
