"""Index notation, after coordinate IR: temporaries that need no memory of their own.

A statement that reads a temporary only at the element it assigns, and is the last to read it, can
overwrite it: ``T[i, k] = A[i, j] * X[j, k]; Y[i, k] = maximum(T[i, k], 0)`` needs no memory for T.
If it is the only one, and the temporary is one value for each element, it can compute that itself:
``t[i] = 2 * x[i]; y[i] = t[i] + z[i]`` is one loop.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from spcomp.ir.access import Load, Stored
from spcomp.ir.axis import Axis, SparseBuffer
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import Call, Expr, Var
from spcomp.ir.node import Node
from spcomp.ir.program import CoordFunc
from spcomp.ir.rewrite import Rewriter, relink, substitute
from spcomp.ir.stmt import Alloc, Seq, Stmt, Store, seq
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import walk

MOST = 200  # nodes of an expression, of which each merged temporary adds some


@dataclass(frozen=True, slots=True)
class Temporary:
    """The decision about the memory of the temporary *name*.

    *place*: the tensor in whose place it is computed; empty if it has memory of its own. *why*: the
    reason for that. *merged*: the statement that assigns *place* computes it, element by element.
    *owned*: the program allocates its memory, so no call has an array for it.
    """

    name: str
    place: str
    why: str = ""
    merged: bool = False
    owned: bool = False

    def __str__(self) -> str:
        if self.merged:
            return f"{self.name}: computed where it is read"
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
        body = _merged(func.body, buffer)
        decisions.append(Temporary(name, place.name, merged=body is not None))
        func = func.replace(
            params=tuple(param for param in func.params if param is not buffer.data),
            buffers=tuple(other for other in func.buffers if other is not buffer),
            body=_InPlace(buffer, place).rewrite(func.body) if body is None else body,
        )
    return func, tuple(_followed(decisions))


def owned(
    func: CoordFunc, temporaries: Sequence[Temporary]
) -> tuple[CoordFunc, tuple[Temporary, ...]]:
    """Return *func*, which allocates those of *temporaries* that have memory of their own."""
    without = {temporary.name for temporary in temporaries if not temporary.place}
    domains = {domain.buffer for domain in func.domains}
    for buffer in [b for b in func.buffers if b.name in without and b not in domains]:
        local = buffer.replace(data=None)
        func = relink(func, buffers={buffer: local})
        func = func.replace(
            params=tuple(param for param in func.params if param is not buffer.data),
            buffers=tuple(other for other in func.buffers if other is not local),
            body=Alloc(local, func.body),
        )
        temporaries = [replace(t, owned=t.owned or t.name == buffer.name) for t in temporaries]
    return func, tuple(temporaries)


def _followed(decisions: list[Temporary]) -> list[Temporary]:
    """Return *decisions* with the last place of each temporary, if places are temporaries, too."""
    places = {decision.name: decision.place for decision in decisions}
    result: list[Temporary] = []
    for decision in decisions:
        place = decision.place
        while places.get(place):
            place = places[place]
        result.append(replace(decision, place=place))
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


def _merged(body: Stmt, buffer: SparseBuffer) -> Stmt | None:
    """Return *body* with the temporary *buffer* computed where it is read; None if that is worse.

    The statement that reads it last has been found to read only its own element.
    """
    stmts = body.body if isinstance(body, Seq) else (body,)
    touching = [stmt for stmt in stmts if _touches(stmt, buffer)]
    if len(touching) != 2 or (buffer.dtype.is_float and buffer.dtype.bits < 32):
        return None  # 16-bit floats are rounded where they are stored
    maker, reader = touching
    if not isinstance(maker, SpIter) or not isinstance(maker.body, Store) or maker.init is not None:
        return None
    assert isinstance(reader, SpIter)
    store, final = maker.body, reader.body
    assert isinstance(final, Store)
    if not _is_whole(maker, store) or any(isinstance(n, Stored) for n in walk(final.value)):
        return None
    reads = {n.buffer for n in walk(store.value) if isinstance(n, Load)}
    between = stmts[stmts.index(maker) + 1 : stmts.index(reader) + 1]
    written = {n.buffer for stmt in between for n in walk(stmt) if isinstance(n, Store)}
    calls = any(isinstance(n, Call) for n in walk(final.value))
    if buffer in reads or reads & written or (calls and _gathers(maker, store.value)):
        return None  # functions are computed in vectors, which do not gather
    uses = sum(isinstance(n, Load) and n.buffer is buffer for n in walk(final.value))
    if uses * _size(store.value) + _size(final.value) > MOST:
        return None
    names = dict(zip(store.indices, final.indices, strict=True))
    values = {v: e for v, e in names.items() if isinstance(v, Var) and isinstance(e, Expr)}
    value = _Value(buffer, substitute(store.value, values)).rewrite(final.value)
    new = reader.replace(body=final.replace(value=value))
    return seq(*(new if stmt is reader else stmt for stmt in stmts if stmt is not maker))


def _size(value: Expr) -> int:
    return sum(1 for _ in walk(value))


def _gathers(loops: SpIter, value: Expr) -> bool:
    """Whether *value* reads elements that are not neighbours where *loops* go from one to the next.

    They are picked by stored coordinates, or by the values of an array.
    """
    axes = dict(zip(loops.vars, loops.domains, strict=True))
    for load in (n for n in walk(value) if isinstance(n, Load)):
        own = load.buffer.axes if isinstance(load.buffer, SparseBuffer) else ()
        for index, axis in zip(load.indices, own, strict=False):
            domain = axes.get(index) if isinstance(index, Var) else None
            if domain is not axis and not (isinstance(domain, Axis) and not domain.is_sparse):
                return True
    return False


class _Value(Rewriter):
    """Replaces what is read of *buffer* by *value*."""

    def __init__(self, buffer: SparseBuffer, value: Expr) -> None:
        self.buffer, self.value = buffer, value

    def visit_Load(self, load: Load) -> Node:
        """Return the value, or the load of another buffer."""
        return self.value if load.buffer is self.buffer else self.visit_Node(load)


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
