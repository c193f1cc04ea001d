"""Under the steps, the one legality oracle: may a loop run in any order, or in parallel?"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from spcomp.dtypes import int64
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import variables
from spcomp.ir.analysis.reduction import as_reduction
from spcomp.ir.arith.bounds import Env
from spcomp.ir.arith.injectivity import element_key
from spcomp.ir.arith.linear import Algebra
from spcomp.ir.arith.memory import read_by, reads_of, writes_of
from spcomp.ir.arith.proof import Prover
from spcomp.ir.arith.simplify import injective
from spcomp.ir.axis import AnyBuffer, Axis, Buffer, SparseBuffer, memory_of
from spcomp.ir.expr import Const, Expr, Var, binary, plain
from spcomp.ir.node import Node
from spcomp.ir.position import Block, Cursor, Merge
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import Alloc, For, If, Let, Prefix, Stmt, Store
from spcomp.ir.structural import expr_equal, fingerprint
from spcomp.ir.visitor import Walker, collector, walk
from spcomp.schedule.legality.partition import disjoint_inner, less_pairs, tiles


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why two iterations are not independent: both may touch an element of *buffer*."""

    buffer: str
    reason: str

    def __str__(self) -> str:
        return f"{self.reason} of {self.buffer}"


@dataclass(frozen=True, slots=True)
class Access:
    """A read or write inside a loop; *indices* in terms of loop variables.

    *update*: the combiner of the reduction it belongs to, if its block or store is atomic.
    *guards*: pairs of integers; where the access happens, the first is less than the second.
    """

    buffer: AnyBuffer
    indices: tuple[Expr | None, ...]
    writes: bool
    update: str = ""
    guards: tuple[tuple[Expr, Expr], ...] = ()


class Accesses(Walker):
    """The reads and writes of the statements visited, and what is known of their variables."""

    def __init__(self, ascending: Collection[str] = ()) -> None:
        self.ascending = ascending
        self.accesses: list[Access] = []
        self.inner: dict[Var, tuple[Expr, Expr]] = {}
        self.opaque: set[Var] = set()
        self.private: set[AnyBuffer] = set()
        self.values: dict[Var, Expr] = {}
        self.atomic = False  # whether the current block permits shared updates
        self.guards: tuple[tuple[Expr, Expr], ...] = ()
        self.updated: tuple[AnyBuffer, str] | None = None  # buffer and combiner of the store

    def enter(self, node: Node) -> None:
        """Note the values of the variables that *node*, around the statements to visit, binds."""
        match node:
            case Let():
                self._name(node)
            case Block():
                for it in node.iters:
                    self.values[it.var] = substitute(it.value, self.values)

    def _add(self, access: Access) -> None:
        indices = tuple(None if i is None else substitute(i, self.values) for i in access.indices)
        pairs = tuple(
            (substitute(a, self.values), substitute(b, self.values)) for a, b in self.guards
        )
        self.accesses.append(replace(access, indices=indices, guards=pairs))

    def visit_For(self, loop: For) -> None:
        """Note the range of an inner loop."""
        self.inner[loop.var] = (
            substitute(loop.begin, self.values),
            substitute(loop.end, self.values),
        )
        self.visit_Node(loop)

    def visit_Let(self, let: Let) -> None:
        """Replace the variable by its value if that is plain arithmetic; a loaded one is opaque."""
        self._name(let)
        self.visit_Node(let)

    def _name(self, let: Let) -> None:
        value = substitute(let.value, self.values)
        if any(read_by(value)) or variables(value) & self.opaque:
            self.opaque.add(let.var)
        else:
            self.values[let.var] = value

    def visit_Block(self, block: Block) -> None:
        """Replace the iters of a block by the loops that they stand for."""
        self.enter(block)
        for it in block.iters:
            self.visit(it)
        outer, guards = self.atomic, self.guards
        if block.where is not None:
            self.visit(block.where)
            self.guards += less_pairs(block.where)
        if block.init is not None:
            self.visit(block.init)
        self.atomic = is_atomic(block)
        self.visit(block.body)
        self.atomic, self.guards = outer, guards

    def visit_If(self, branch: If) -> None:
        """Note the condition that holds in the first branch."""
        self.visit(branch.cond)
        guards, self.guards = self.guards, self.guards + less_pairs(branch.cond)
        self.visit(branch.then)
        self.guards = guards
        if branch.otherwise is not None:
            self.visit(branch.otherwise)

    def visit_Merge(self, merge: Merge) -> None:
        """The positions of cursors depend on data."""
        self.opaque.add(merge.coordinate)
        self.opaque.update(c.pos for c in merge.cursors)
        for buffer in (c.indices for c in merge.cursors):
            if buffer is not None:
                self._read_anywhere(buffer)
        self.visit_Node(merge)

    def visit_Prefix(self, prefix: Prefix) -> None:
        """The sum over earlier iterations depends on data."""
        self.opaque.add(prefix.var)
        self.visit_Node(prefix)

    def visit_Alloc(self, alloc: Alloc) -> None:
        """A buffer that is allocated inside belongs to the iteration."""
        self.private.add(alloc.buffer)
        self.visit_Node(alloc)

    def visit_Store(self, store: Store) -> None:
        """Note a write, and whether it is an update that iterations may share."""
        reduction = as_reduction(store) if self.atomic or store.atomic else None
        update = "" if reduction is None else reduction.combiner
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
        combiner = update if load.buffer is buffer else ""
        self._add(Access(load.buffer, load.indices, writes=False, update=combiner))
        self.visit_Node(load)

    def outside(self) -> Iterator[Access]:
        """Yield the accesses to buffers that exist outside the statements visited."""
        return (access for access in self.accesses if access.buffer not in self.private)

    def visit_Search(self, search: Search) -> None:
        """A search may read anything."""
        self._read_anywhere(search.buffer)
        self.visit_Node(search)

    def _read_anywhere(self, buffer: AnyBuffer) -> None:
        unknown = (None,) * len(getattr(buffer, "axes", (None,)))
        self.accesses.append(Access(buffer, unknown, writes=False))


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
    """Return why the iterations of *loop* are not independent; empty if they are.

    *among*: look only at this memory (see memory_of), and at the range of the loop, which must not
    change. *atomic*: ignore updates that the iterations are permitted to share; these commute, up
    to rounding. *ascending*: the names of axes whose coordinates a call checks (``order_needed``).
    """
    loop = disjoint_inner(loop) or loop  # the inner loop has other values in each iteration
    body = Accesses(ascending)
    body.visit(loop.body)
    written: dict[object, list[Access]] = {}
    for access in body.accesses:
        if access.buffer not in body.private:
            written.setdefault(memory_of(access.buffer), []).append(access)
    range_clash = changes_range(loop)
    clashes: list[Conflict] = [] if range_clash is None else [range_clash]
    for where, accesses in written.items():
        if atomic and _commute(accesses):
            continue
        if any(a.writes for a in accesses) and (among is None or where in among):
            clashes.extend(_conflicts_in(accesses, loop, body))
    return tuple(clashes)


def conflicts_between(first: Stmt, second: Stmt) -> tuple[Conflict, ...]:
    """Return the buffers of which *first* and *second* may touch one element that one writes.

    Two accesses are apart where some index of one is always less than that of the other.
    """
    bodies = _accesses_of(first), _accesses_of(second)
    ranges = {**bodies[0].inner, **bodies[1].inner}
    prover = Prover(Algebra(Env(), trusted=True), ranges)
    clashes: dict[str, Conflict] = {}
    for ours in bodies[0].outside():
        for other in bodies[1].outside():
            same = memory_of(ours.buffer) is memory_of(other.buffer)
            if same and (ours.writes or other.writes) and not _apart(ours, other, bodies, prover):
                name = ours.buffer.name
                clashes[name] = Conflict(name, "both may touch an element that one writes")
    return tuple(clashes.values())


def _apart(ours: Access, other: Access, bodies: tuple[Accesses, Accesses], prover: Prover) -> bool:
    """Whether an index of *ours* is always less, or always greater, than that of *other*."""
    if ours.buffer is not other.buffer or getattr(ours.buffer, "strides", None) is not None:
        return False
    for place, (a, b) in enumerate(zip(ours.indices, other.indices, strict=True)):
        comparable = a is not None and b is not None and _tells_apart(ours.buffer, place)
        if not comparable or _is_opaque(a, bodies[0]) or _is_opaque(b, bodies[1]):  # type: ignore[arg-type]
            continue
        assert a is not None
        assert b is not None
        if prover.holds(binary("<", a, b)) or prover.holds(binary("<", b, a)):
            return True
    return False


def coordinate_conflicts(nests: Sequence[tuple[Stmt, Expr]]) -> tuple[Conflict, ...]:
    """Return why *nests* are not independent where their coordinates differ; empty if they are.

    Each comes with its coordinate, an integer expression in the variables it binds. An array that
    is written is no conflict if the same one of its indices is that coordinate in all accesses.
    """
    places: dict[object, set[tuple[AnyBuffer, int]]] = {}
    written: dict[object, str] = {}
    for nest, coordinate in nests:
        body = _accesses_of(nest)
        row = substitute(coordinate, body.values)
        for access in body.outside():
            memory, buffer = memory_of(access.buffer), access.buffer
            matches = {
                (buffer, place)
                for place, index in enumerate(access.indices)
                if index is not None and _tells_apart(buffer, place)
                if expr_equal(plain(index), row)
            }
            places[memory] = places[memory] & matches if memory in places else matches
            if access.writes:
                written[memory] = buffer.name
    reason = "elements are not told apart by a coordinate that all nests run over"
    return tuple(Conflict(name, reason) for m, name in written.items() if not places[m])


def _accesses_of(stmt: Stmt) -> Accesses:
    body = Accesses()
    body.visit(stmt)
    return body


def _tells_apart(buffer: AnyBuffer, place: int) -> bool:
    """Whether two elements with different indices at *place* are always different elements."""
    if isinstance(buffer, Buffer):
        return buffer.strides is None
    return buffer.axes[place].parent is None


def _commute(accesses: list[Access]) -> bool:
    """Whether all accesses to an array are permitted updates of one kind."""
    kinds = {(a.buffer, a.update) for a in accesses}
    return len(kinds) == 1 and all(a.update for a in accesses)


def changes_range(loop: For) -> Conflict | None:
    """Return the conflict of *loop* with its own range: it writes what that reads; None: none."""
    reads = [*read_by(loop.begin, loop.end)]
    written = writes_of(loop.body) if reads else ()
    for buffer in reads:
        if memory_of(buffer) in written:
            return Conflict(buffer.name, "iterations may change the range")
    return None


def _conflicts_in(accesses: list[Access], loop: For, body: Accesses) -> Iterator[Conflict]:
    name = accesses[0].buffer.name
    keys = [_key(a, loop, body) for a in accesses]
    if set.intersection(*map(set, keys)) or _share_tiles(accesses, loop, body):
        return
    for key, access in zip(keys, accesses, strict=True):
        if not key:
            verb = "may write the same element" if access.writes else "may read what others write"
            yield Conflict(name, f"iterations {verb}")
            return
    yield Conflict(name, "iterations may read or write different parts for one iteration")


def _share_tiles(accesses: list[Access], loop: For, body: Accesses) -> bool:
    """Whether there is a tile that an iteration has to itself, and all *accesses* are in it."""
    shared: set[object] | None = None
    for access in accesses:
        found = _tiles(access, loop, body)
        shared = found if shared is None else shared & found
        if not shared:
            return False
    return True


def _tiles(access: Access, loop: For, body: Accesses) -> set[object]:
    """The tiles of *access* that an iteration has to itself: index places with fingerprints."""
    found: set[object] = set()
    if getattr(access.buffer, "strides", None) is None:
        kind = (access.buffer, tuple(index is None for index in access.indices))
        for place, index in enumerate(access.indices):
            if index is not None and not _is_opaque(index, body, loop):
                apart = tiles(index, loop.var, body.inner, access.guards)
                found |= {(place, kind, fingerprint(each)) for each in apart}
    return found


def _key(access: Access, loop: For, body: Accesses) -> list[object]:
    """What tells the iterations apart in *access*: the fingerprints of such sets of indices.

    One index does that is injective in the loop variable alone, or all of them together do. Inner
    loop variables are replaced by their ranges, so that those of an init and an update compare.
    """
    var, buffer = loop.var, access.buffer
    if isinstance(buffer, Buffer) and buffer.strides is not None:
        return _strided_key(access, buffer, loop, body)
    kind = (buffer, tuple(index is None for index in access.indices))  # what positions count from
    usable: list[tuple[object, Expr]] = []
    for k, index in enumerate(access.indices):
        if index is not None:
            at, values = _distinct(index, body.ascending)
            for n, value in enumerate(values):
                if value is not None and not _is_opaque(value, body, loop):
                    usable.append(((k, n, at), value))
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


def _distinct(
    index: Expr, ascending: Collection[str]
) -> tuple[AnyBuffer | None, tuple[Expr | None, ...]]:
    """Return None and *index*; or, of a coordinate that is loaded, the array and the position.

    The latter where coordinates along the axis ascend, or values in the array are distinct:
    distinct positions have distinct ones.
    """
    load = plain(index)
    if not isinstance(load, Load):
        return None, (index,)
    if load.buffer.distinct:
        return load.buffer, load.indices
    axis, place = single_fiber(load.buffer), load.indices[-1]
    ascends = axis is not None and axis.name in ascending and place is not None
    return (load.buffer, (place,)) if ascends else (None, (index,))


def single_fiber(buffer: AnyBuffer) -> Axis | None:
    """Return the axis whose coordinates *buffer* holds, if it claims that they are all distinct.

    So does a sorted and unique sparse_fixed axis under a root of length 1.
    """
    axis = buffer.axes[-1] if isinstance(buffer, SparseBuffer) else None
    if axis is None or axis.indices is None or axis.indices is not buffer.data:
        return None
    root = axis.parent
    length = root.length if root is not None and root.kind == "dense_fixed" else None
    has_one_fiber = isinstance(length, Const) and length.value == 1
    claims = axis.kind == "sparse_fixed" and axis.sorted and axis.unique
    return axis if has_one_fiber and claims else None


def _strided_key(access: Access, buffer: Buffer, loop: For, body: Accesses) -> list[object]:
    """The key of a view: by its strides, elements with different indices may be the same."""
    (offset,) = element_key(buffer, access.indices)
    assert offset is not None
    ranges = {loop.var: (loop.begin, loop.end), **body.inner}
    if _is_opaque(offset, body, loop) or not injective((offset,), loop.var, ranges):
        return []
    return [(buffer, _by_ranges((offset,), body.inner))]


def _is_opaque(index: Expr, body: Accesses, loop: For | None = None) -> bool:
    """Whether *index* depends on data, apart from elements that are the same in all of *loop*."""
    loads = [n for n in walk(index) if isinstance(n, (Load, Search))]
    alike = loop is not None and all(_reads_alike(load, loop, body) for load in loads)
    return bool(variables(index) & body.opaque) or bool(loads and not alike)


def _reads_alike(load: Load | Search, loop: For, body: Accesses) -> bool:
    """Whether *load* is one element, with one value, in all iterations of *loop*."""
    if isinstance(load, Search) or load.buffer in body.private:
        return False
    written = {memory_of(access.buffer) for access in body.accesses if access.writes}
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


@collector
def _loops(node: Node) -> tuple[For, ...]:
    return (node,) if isinstance(node, For) else ()


def depends(first: Node, second: Node) -> Conflict | None:
    """Return why *second* may not change places with *first*; None if it may.

    It may unless one of them writes memory that the other one touches.
    """
    inner = {n.buffer for part in (first, second) for n in walk(part) if isinstance(n, Alloc)}
    writes, others = writes_of(first), writes_of(second)
    both = writes & (others | reads_of(second)) | others & reads_of(first)
    for node in walk(second):
        buffer = node.buffer if isinstance(node, (Load, Search, Store)) else None
        buffer = node.indices if isinstance(node, Cursor) else buffer
        if buffer is not None and memory_of(buffer) in both - inner:
            verb = "writes" if memory_of(buffer) in writes else "reads"
            return Conflict(buffer.name, f"what the other one {verb}")
    return None
