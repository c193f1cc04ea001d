"""The one legality oracle: may the iterations of a loop run in any order, or at once?"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from spcomp.dtypes import int64
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import fingerprint, variables
from spcomp.ir.analysis.reduction import as_reduction
from spcomp.ir.arith.bounds import Env
from spcomp.ir.arith.linear import Algebra, expr_equal
from spcomp.ir.arith.proof import Prover
from spcomp.ir.arith.simplify import injective
from spcomp.ir.axis import AnyBuffer, Axis, Buffer, SparseBuffer, memory_of
from spcomp.ir.expr import Cast, Const, Expr, Var, binary, cast, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, Merge
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import Alloc, For, If, Let, Stmt, Store
from spcomp.ir.visitor import Walker, gathered, statements, walk
from spcomp.schedule.legality.partition import lesser, shared_out, tile


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two iterations may touch one element of *buffer*, one of them writing."""

    buffer: str
    reason: str

    def __str__(self) -> str:
        return f"{self.reason} of {self.buffer}"


@dataclass(frozen=True, slots=True)
class Access:
    """A read or write inside a loop; *indices* in terms of loop variables.

    *update*: the combiner of the reduction it belongs to, if its block or store is atomic.
    *guards*: pairs of integers, the first of which is less than the second where it happens.
    """

    buffer: AnyBuffer
    indices: tuple[Expr | None, ...]
    writes: bool
    update: str = ""
    guards: tuple[tuple[Expr, Expr], ...] = ()


class Accesses(Walker):
    """What the body of a loop touches that exists outside it."""

    def __init__(self, ascending: Collection[str] = ()) -> None:
        self.ascending = ascending
        self.found: list[Access] = []
        self.inner: dict[Var, tuple[Expr, Expr]] = {}
        self.opaque: set[Var] = set()
        self.private: set[AnyBuffer] = set()
        self.values: dict[Var, Expr] = {}
        self.atomic = False  # whether the block at hand permits shared updates
        self.guards: tuple[tuple[Expr, Expr], ...] = ()
        self.updated: tuple[AnyBuffer, str] | None = None  # what the store at hand updates, and how

    def enter(self, node: Node) -> None:
        """Take in what *node*, around the statements to visit, binds or names."""
        match node:
            case Let():
                self._name(node)
            case Block():
                for own in node.iters:
                    self.values[own.var] = substitute(own.value, self.values)

    def _add(self, access: Access) -> None:
        indices = tuple(None if i is None else substitute(i, self.values) for i in access.indices)
        pairs = tuple(
            (substitute(a, self.values), substitute(b, self.values)) for a, b in self.guards
        )
        self.found.append(replace(access, indices=indices, guards=pairs))

    def visit_For(self, loop: For) -> None:
        """Note the range of an inner loop."""
        self.inner[loop.var] = (
            substitute(loop.begin, self.values),
            substitute(loop.end, self.values),
        )
        self.visit_Node(loop)

    def visit_Let(self, let: Let) -> None:
        """See through plain arithmetic; anything that is loaded is opaque."""
        self._name(let)
        self.visit_Node(let)

    def _name(self, let: Let) -> None:
        value = substitute(let.value, self.values)
        if (
            any(isinstance(n, (Load, Search)) for n in walk(value))
            or variables(value) & self.opaque
        ):
            self.opaque.add(let.var)
        else:
            self.values[let.var] = value

    def visit_Block(self, block: Block) -> None:
        """See through the names that a block gives to loops."""
        self.enter(block)
        for own in block.iters:
            self.visit(own)
        outer, guards = self.atomic, self.guards
        if block.where is not None:
            self.visit(block.where)
            self.guards += lesser(block.where)
        if block.init is not None:
            self.visit(block.init)
        self.atomic = is_atomic(block)
        self.visit(block.body)
        self.atomic, self.guards = outer, guards

    def visit_If(self, branch: If) -> None:
        """Note what holds in the first branch."""
        self.visit(branch.cond)
        guards, self.guards = self.guards, self.guards + lesser(branch.cond)
        self.visit(branch.then)
        self.guards = guards
        if branch.otherwise is not None:
            self.visit(branch.otherwise)

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
        """Note a write, and that it is an update which iterations may share."""
        found = as_reduction(store) if self.atomic or store.atomic else None
        update = "" if found is None else found.combiner
        self._add(Access(store.buffer, store.indices, writes=True, update=update))
        for part in (*store.indices, store.mask):
            if part is not None:
                self.visit(part)
        self.updated = (store.buffer, update)
        self.visit(store.value)
        self.updated = None

    def visit_Load(self, load: Load) -> None:
        """Note a read."""
        buffer, update = self.updated or (None, "")
        own = update if load.buffer is buffer else ""
        self._add(Access(load.buffer, load.indices, writes=False, update=own))
        self.visit_Node(load)

    def outside(self) -> Iterator[Access]:
        """Yield what exists outside, and is not allocated here."""
        return (access for access in self.found if access.buffer not in self.private)

    def visit_Search(self, search: Search) -> None:
        """A search may read anything."""
        unknown = (None,) * len(getattr(search.buffer, "axes", (None,)))
        self.found.append(Access(search.buffer, unknown, writes=False))
        self.visit_Node(search)


def is_atomic(block: Block) -> bool:
    """Whether iterations around *block* may share the elements that it updates."""
    return bool(dict(block.attrs).get("atomic"))


def conflicts(
    loop: For,
    among: Collection[object] | None = None,
    *,
    atomic: bool = False,
    ascending: Collection[str] = (),
) -> tuple[Conflict, ...]:
    """Return what keeps the iterations of *loop* from being independent; empty if they are.

    *among*: only what they do to this memory counts (see memory_of); its range must not change.
    *atomic*: updates that they are permitted to share do not; they commute, up to rounding.
    *ascending*: the names of axes whose coordinates a call checks (``order_needed``).
    """
    loop = shared_out(loop) or loop  # each iteration has values of the inner loop to itself
    body = Accesses(ascending)
    body.visit(loop.body)
    written: dict[object, list[Access]] = {}
    for access in body.found:
        if access.buffer not in body.private:
            written.setdefault(memory_of(access.buffer), []).append(access)
    changed = changes_range(loop)
    found: list[Conflict] = [] if changed is None else [changed]
    for where, accesses in written.items():
        if atomic and _commute(accesses):
            continue
        if any(a.writes for a in accesses) and (among is None or where in among):
            found.extend(_conflicts_in(accesses, loop, body))
    return tuple(found)


def at_most_once(loop: For) -> bool:
    """Whether *loop* has no two iterations, whatever the arguments."""
    ends = loop.begin, loop.end
    low, high = (end.value if isinstance(end, Const) else None for end in ends)
    return low is not None and high is not None and high - low <= 1


def meetings(first: Stmt, second: Stmt) -> tuple[Conflict, ...]:
    """Return what *first* and *second* both touch, one of them writing; empty if nothing.

    Elements are apart where the values of one of their indices are, all over both statements.
    """
    bodies = _accesses_of(first), _accesses_of(second)
    ranges = {**bodies[0].inner, **bodies[1].inner}
    prover = Prover(Algebra(Env(), trusted=True), ranges)
    found: dict[str, Conflict] = {}
    for ours in bodies[0].outside():
        for other in bodies[1].outside():
            same = memory_of(ours.buffer) is memory_of(other.buffer)
            if same and (ours.writes or other.writes) and not _apart(ours, other, bodies, prover):
                name = ours.buffer.name
                found[name] = Conflict(name, "both may touch an element that one writes")
    return tuple(found.values())


def _apart(ours: Access, other: Access, bodies: tuple[Accesses, Accesses], prover: Prover) -> bool:
    """Whether an index of *ours* is below, or above, that of *other*, all over both."""
    if ours.buffer is not other.buffer or getattr(ours.buffer, "strides", None) is not None:
        return False
    for place, (a, b) in enumerate(zip(ours.indices, other.indices, strict=True)):
        known = a is not None and b is not None and _tells_apart(ours.buffer, place)
        if not known or _is_opaque(a, bodies[0]) or _is_opaque(b, bodies[1]):  # type: ignore[arg-type]
            continue
        assert a is not None
        assert b is not None
        if prover.holds(binary("<", a, b)) or prover.holds(binary("<", b, a)):
            return True
    return False


def strays(nests: Sequence[tuple[Stmt, Expr]]) -> tuple[Conflict, ...]:
    """Return what keeps *nests* from being independent where their coordinates differ.

    Each comes with an integer expression in the names it binds. Elements of an array that is
    written are told apart if one index is that expression in every access of every nest.
    """
    places: dict[object, set[tuple[AnyBuffer, int]]] = {}
    written: dict[object, str] = {}
    for nest, coordinate in nests:
        body = _accesses_of(nest)
        row = substitute(coordinate, body.values)
        for access in body.outside():
            memory, buffer = memory_of(access.buffer), access.buffer
            here = {
                (buffer, place)
                for place, index in enumerate(access.indices)
                if index is not None and _tells_apart(buffer, place)
                if expr_equal(plain(index), row)
            }
            places[memory] = places[memory] & here if memory in places else here
            if access.writes:
                written[memory] = buffer.name
    reason = "elements are not told apart by a coordinate that all nests run over"
    return tuple(Conflict(name, reason) for m, name in written.items() if not places[m])


def _accesses_of(stmt: Stmt) -> Accesses:
    body = Accesses()
    body.visit(stmt)
    return body


def _tells_apart(buffer: AnyBuffer, place: int) -> bool:
    """Whether elements with another index at *place* are others, whatever their other indices."""
    if isinstance(buffer, Buffer):
        return buffer.strides is None
    return buffer.axes[place].parent is None


def plain(index: Expr) -> Expr:
    """Return *index* without casts that keep its value."""
    while isinstance(index, Cast) and index.dtype == int64 and index.value.dtype.is_integer:
        index = index.value
    return index


def _commute(accesses: list[Access]) -> bool:
    """Whether all accesses to an array are permitted updates of one kind."""
    kinds = {(a.buffer, a.update) for a in accesses}
    return len(kinds) == 1 and all(a.update for a in accesses)


def changes_range(loop: For) -> Conflict | None:
    """Return what *loop* writes of what its range is computed from; None if nothing."""
    reads = [n for e in (loop.begin, loop.end) for n in walk(e) if isinstance(n, (Load, Search))]
    written = writes_of(loop.body) if reads else ()
    for node in reads:
        if memory_of(node.buffer) in written:
            return Conflict(node.buffer.name, "iterations may change the range")
    return None


def _conflicts_in(accesses: list[Access], loop: For, body: Accesses) -> Iterator[Conflict]:
    name = accesses[0].buffer.name
    keys = [_key(a, loop, body) for a in accesses]
    if set.intersection(*map(set, keys)) or set.intersection(*_tiles(accesses, loop, body)):
        return
    for key, access in zip(keys, accesses, strict=True):
        if not key:
            verb = "may write the same element" if access.writes else "may read what others write"
            yield Conflict(name, f"iterations {verb}")
            return
    yield Conflict(name, "iterations may read or write different parts for one iteration")


def _tiles(accesses: list[Access], loop: For, body: Accesses) -> Iterator[set[object]]:
    """The tiles of each access that an iteration has to itself: places, and fingerprints."""
    for access in accesses:
        found: set[object] = set()
        if getattr(access.buffer, "strides", None) is None:
            kind = (access.buffer, tuple(index is None for index in access.indices))
            for place, index in enumerate(access.indices):
                if index is not None and not _is_opaque(index, body, loop):
                    length = tile(index, loop.var, body.inner, access.guards)
                    found |= set() if length is None else {(place, kind, fingerprint(length))}
        yield found


def _key(access: Access, loop: For, body: Accesses) -> list[object]:
    """What tells the iterations apart in *access*: fingerprints of sets of indices that do.

    An access is told apart by one index that is injective in *var* alone, or by all together;
    inner loop variables are replaced by their ranges, so that an init and an update compare.
    """
    var, buffer = loop.var, access.buffer
    if isinstance(buffer, Buffer) and buffer.strides is not None:
        return _strided_key(access, buffer, loop, body)
    kind = (buffer, tuple(index is None for index in access.indices))  # what positions count from
    usable: list[tuple[object, Expr]] = []
    for k, index in enumerate(access.indices):
        if index is not None:
            at, value = _distinct(index, body.ascending)
            if not _is_opaque(value, body, loop):
                usable.append(((k, at), value))
    keys: list[object] = [
        (k, kind, fingerprint(i))
        for k, i in usable
        if i is var or (not variables(i) & set(body.inner) and injective((i,), var, {}))
    ]
    ranges = {var: (loop.begin, loop.end), **body.inner}
    if not keys and injective(tuple(i for _, i in usable), var, ranges):
        places = tuple(k for k, _ in usable)
        keys.append((kind, places, _by_ranges(tuple(i for _, i in usable), body.inner)))
    return keys


def _distinct(index: Expr, ascending: Collection[str]) -> tuple[AnyBuffer | None, Expr]:
    """Return *index*, or the position it is the coordinate at, and of which array.

    Where the coordinates along an axis ascend, they are told apart by their positions.
    """
    load = plain(index)
    if not isinstance(load, Load) or (axis := single_fiber(load.buffer)) is None:
        return None, index
    place = load.indices[-1]
    return (load.buffer, place) if axis.name in ascending and place is not None else (None, index)


def single_fiber(buffer: AnyBuffer) -> Axis | None:
    """Return the axis that *buffer* has the coordinates of, if these are distinct all over it.

    That is a claim: of a sorted sparse_fixed axis, without repetitions, under a root of length 1.
    """
    axis = buffer.axes[-1] if isinstance(buffer, SparseBuffer) else None
    if axis is None or axis.indices is None or axis.indices is not buffer.data:
        return None
    root = axis.parent
    length = root.length if root is not None and root.kind == "dense_fixed" else None
    one = isinstance(length, Const) and length.value == 1
    claims = axis.kind == "sparse_fixed" and axis.sorted and axis.unique
    return axis if one and claims else None


def ascending_axes(func: Func) -> set[str]:
    """Return the names of axes whose coordinates a call of *func* checks, and nothing changes."""
    needed = {*func.attr("order_needed", ())}
    written = writes_of(func.body) if needed else set()
    return {axis.name for axis in func.axes if axis.name in needed and axis.indices not in written}


def promised(func: Func, loop: For, *, atomic: bool = False) -> tuple[Func, tuple[Conflict, ...]]:
    """Return *func* with what it must promise for *loop* to be independent, and what is left.

    The promise is that the coordinates that *loop* writes at are distinct; a call checks it. It is
    made only where nothing else is in the way; *func* comes back as it was where none is needed.
    """
    found = conflicts(loop, atomic=atomic, ascending=ascending_axes(func))
    if not found:
        return func, ()
    more = _with_order_of(func, loop)
    left = conflicts(loop, atomic=atomic, ascending=ascending_axes(more))
    return (func, found) if left else (more, ())


def _with_order_of(func: Func, loop: For) -> Func:
    """Return *func* with the promise that the coordinates that *loop* writes at are distinct."""
    stores = [n for n in walk(loop.body) if isinstance(n, Store)]
    loads = (n for s in stores for i in s.indices if i is not None for n in walk(i))
    found = (single_fiber(n.buffer) for n in loads if isinstance(n, Load))
    names = {axis.name for axis in found if axis is not None} | {*func.attr("order_needed", ())}
    return func.with_attr("order_needed", tuple(sorted(names)))


def _strided_key(access: Access, buffer: Buffer, loop: For, body: Accesses) -> list[object]:
    """The same for a view, whose strides may let elements with other indices be one."""
    offset: Expr = const(0)
    for index, stride in zip(access.indices, buffer.strides or (), strict=True):
        assert index is not None
        offset = binary("+", offset, binary("*", cast(index, int64), cast(stride, int64)))
    ranges = {loop.var: (loop.begin, loop.end), **body.inner}
    if _is_opaque(offset, body, loop) or not injective((offset,), loop.var, ranges):
        return []
    return [(buffer, _by_ranges((offset,), body.inner))]


def _is_opaque(index: Expr, body: Accesses, loop: For | None = None) -> bool:
    """Whether nothing is known of *index*; what all of *loop* reads alike is a constant."""
    loads = [n for n in walk(index) if isinstance(n, (Load, Search))]
    alike = loop is not None and all(_reads_alike(load, loop, body) for load in loads)
    return bool(variables(index) & body.opaque) or bool(loads and not alike)


def _reads_alike(load: Load | Search, loop: For, body: Accesses) -> bool:
    """Whether *load* is one element, with one value, in all iterations of *loop*."""
    if isinstance(load, Search) or load.buffer in body.private:
        return False
    written = {memory_of(access.buffer) for access in body.found if access.writes}
    moving = {loop.var, *body.inner, *body.opaque}
    return memory_of(load.buffer) not in written and not variables(load) & moving


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
    return iter(_loops(node))


def loop_named(node: Node, name: str) -> For | None:
    """Return the loop below *node* that is called *name*; the last one of several."""
    return next((loop for loop in reversed(_loops(node)) if loop.var.name == name), None)


@gathered
def _loops(node: Node) -> tuple[For, ...]:
    return (node,) if isinstance(node, For) else ()


def writes_of(node: Node) -> set[object]:
    """Return the memory that *node* writes."""
    return {memory_of(n.buffer) for n in statements(node) if isinstance(n, Store)}


def reads_of(node: Node) -> set[object]:
    """Return the memory that *node* reads."""
    return {memory_of(n.buffer) for n in walk(node) if isinstance(n, (Load, Search))}


def depends(first: Node, second: Node) -> Conflict | None:
    """Return why *second* may not change places with *first*; None if they share no memory.

    Memory that one of them writes and the other one touches.
    """
    inner = {n.buffer for part in (first, second) for n in walk(part) if isinstance(n, Alloc)}
    writes, others = writes_of(first), writes_of(second)
    both = writes & (others | reads_of(second)) | others & reads_of(first)
    for node in walk(second):
        if isinstance(node, (Load, Search, Store)) and memory_of(node.buffer) in both - inner:
            verb = "writes" if memory_of(node.buffer) in writes else "reads"
            return Conflict(node.buffer.name, f"what the other one {verb}")
    return None
