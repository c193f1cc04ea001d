"""The one legality oracle: may the iterations of a loop run in any order, or at once?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spcomp.dtypes import int64
from spcomp.ir.arith import injective
from spcomp.ir.axis import AnyBuffer, Buffer, memory_of
from spcomp.ir.expr import Expr, Load, Search, Var, binary, cast, const
from spcomp.ir.node import Node
from spcomp.ir.position import Block, Merge
from spcomp.ir.stmt import Alloc, For, Let, Store
from spcomp.ir.visitor import Walker, substitute, walk
from spcomp.passes.scope import fingerprint, variables
from spcomp.schedule.partition import shared_out


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two iterations may touch one element of *buffer*, one of them writing."""

    buffer: str
    reason: str

    def __str__(self) -> str:
        return f"{self.reason} of {self.buffer}"


@dataclass(frozen=True, slots=True)
class Access:
    """A read or write inside a loop; *indices* in terms of loop variables."""

    buffer: AnyBuffer
    indices: tuple[Expr | None, ...]
    writes: bool
    atomic: bool = False


class Accesses(Walker):
    """What the body of a loop touches that exists outside it."""

    def __init__(self) -> None:
        self.found: list[Access] = []
        self.inner: dict[Var, tuple[Expr, Expr]] = {}
        self.opaque: set[Var] = set()
        self.private: set[AnyBuffer] = set()
        self.values: dict[Var, Expr] = {}

    def _add(self, access: Access) -> None:
        indices = tuple(None if i is None else substitute(i, self.values) for i in access.indices)
        self.found.append(Access(access.buffer, indices, access.writes, access.atomic))

    def visit_For(self, loop: For) -> None:
        """Note the range of an inner loop."""
        self.inner[loop.var] = (
            substitute(loop.begin, self.values),
            substitute(loop.end, self.values),
        )
        self.visit_Node(loop)

    def visit_Let(self, let: Let) -> None:
        """See through plain arithmetic; anything that is loaded is opaque."""
        value = substitute(let.value, self.values)
        if (
            any(isinstance(n, (Load, Search)) for n in walk(value))
            or variables(value) & self.opaque
        ):
            self.opaque.add(let.var)
        else:
            self.values[let.var] = value
        self.visit_Node(let)

    def visit_Block(self, block: Block) -> None:
        """See through the names that a block gives to loops."""
        for own in block.iters:
            self.values[own.var] = substitute(own.value, self.values)
            self.visit(own)
        for part in (block.where, block.init, block.body):
            if part is not None:
                self.visit(part)

    def visit_Merge(self, merge: Merge) -> None:
        """Where cursors stand depends on data."""
        self.opaque.add(merge.coordinate)
        self.opaque.update(c.pos for c in merge.cursors)
        self.visit_Node(merge)

    def visit_Alloc(self, alloc: Alloc) -> None:
        """What is allocated inside belongs to the iteration."""
        self.private.add(alloc.buffer)
        self.visit_Node(alloc)

    def visit_Store(self, store: Store) -> None:
        """Note a write."""
        self._add(Access(store.buffer, store.indices, writes=True, atomic=store.atomic))
        self.visit_Node(store)

    def visit_Load(self, load: Load) -> None:
        """Note a read."""
        self._add(Access(load.buffer, load.indices, writes=False))
        self.visit_Node(load)

    def visit_Search(self, search: Search) -> None:
        """A search may read anything."""
        unknown = (None,) * len(getattr(search.buffer, "axes", (None,)))
        self.found.append(Access(search.buffer, unknown, writes=False))
        self.visit_Node(search)


def conflicts(loop: For) -> tuple[Conflict, ...]:
    """Return what keeps the iterations of *loop* from being independent; empty if they are."""
    loop = shared_out(loop) or loop  # each iteration has values of the inner loop to itself
    body = Accesses()
    body.visit(loop.body)
    written: dict[object, list[Access]] = {}
    for access in body.found:
        if access.buffer not in body.private:
            written.setdefault(memory_of(access.buffer), []).append(access)
    changed = changes_range(loop)
    found: list[Conflict] = [] if changed is None else [changed]
    for accesses in written.values():
        if any(a.writes for a in accesses):
            found.extend(_conflicts_in(accesses, loop, body))
    return tuple(found)


def changes_range(loop: For) -> Conflict | None:
    """Return what *loop* writes of what its range is computed from; None if nothing."""
    written = {memory_of(n.buffer) for n in walk(loop.body) if isinstance(n, Store)}
    for end in (loop.begin, loop.end):
        for node in walk(end):
            if isinstance(node, (Load, Search)) and memory_of(node.buffer) in written:
                return Conflict(node.buffer.name, "iterations may change the range")
    return None


def _conflicts_in(accesses: list[Access], loop: For, body: Accesses) -> Iterator[Conflict]:
    name = accesses[0].buffer.name
    keys = [_key(a, loop, body) for a in accesses]
    for key, access in zip(keys, accesses, strict=True):
        if not key:
            verb = "may write the same element" if access.writes else "may read what others write"
            yield Conflict(name, f"iterations {verb}")
            return
    if not set.intersection(*(set(key) for key in keys)):
        yield Conflict(name, "iterations may read or write different parts for one iteration")


def _key(access: Access, loop: For, body: Accesses) -> list[object]:
    """What tells the iterations apart in *access*: fingerprints of sets of indices that do.

    An access is told apart by one index that is injective in *var* alone, or by all together;
    inner loop variables are replaced by their ranges, so that an init and an update compare.
    """
    var, buffer = loop.var, access.buffer
    if isinstance(buffer, Buffer) and buffer.strides is not None:
        return _strided_key(access, buffer, loop, body)
    usable: list[tuple[int, Expr]] = []
    for k, index in enumerate(access.indices):
        if index is not None and not _is_opaque(index, body):
            usable.append((k, index))
    keys: list[object] = [
        (k, buffer, fingerprint(i))
        for k, i in usable
        if i is var or (not variables(i) & set(body.inner) and injective((i,), var, {}))
    ]
    if not keys and injective(tuple(i for _, i in usable), var, body.inner):
        keys.append((access.buffer, _by_ranges(tuple(i for _, i in usable), body.inner)))
    return keys


def _strided_key(access: Access, buffer: Buffer, loop: For, body: Accesses) -> list[object]:
    """The same for a view, whose strides may let elements with other indices be one."""
    offset: Expr = const(0)
    for index, stride in zip(access.indices, buffer.strides or (), strict=True):
        assert index is not None
        offset = binary("+", offset, binary("*", cast(index, int64), cast(stride, int64)))
    ranges = {loop.var: (loop.begin, loop.end), **body.inner}
    if _is_opaque(offset, body) or not injective((offset,), loop.var, ranges):
        return []
    return [(buffer, _by_ranges((offset,), body.inner))]


def _is_opaque(index: Expr, body: Accesses) -> bool:
    return bool(variables(index) & body.opaque) or any(
        isinstance(n, (Load, Search)) for n in walk(index)
    )


def _by_ranges(indices: tuple[Expr, ...], inner: Mapping[Var, tuple[Expr, Expr]]) -> object:
    order: dict[Var, Var] = {}
    ranges = []
    for index in indices:
        for node in walk(index):
            if isinstance(node, Var) and node in inner and node not in order:
                order[node] = _SLOTS[min(len(order), len(_SLOTS) - 1)]
                ranges.append((fingerprint(inner[node][0]), fingerprint(inner[node][1])))
    return (tuple(fingerprint(substitute(i, order)) for i in indices), tuple(ranges))


_SLOTS = tuple(Var(f"slot{k}", int64) for k in range(16))


def loops_of(node: Node) -> Iterator[For]:
    """Yield the loops below *node*, outer ones first."""
    return (n for n in walk(node, skip=Expr) if isinstance(n, For))
