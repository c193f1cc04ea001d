"""I to II, translation: coordinates of an access to positions, by the cheapest way that is sound.

In this order: the iteration runs over that very axis; the axis is dense; another axis with the same
arrays is iterated; a search, whose outcome guards the access.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spcomp.dtypes import bool_, int64
from spcomp.errors import LoweringError
from spcomp.ir.access import Load, Search, Stored
from spcomp.ir.analysis.exprs import ZERO, both, conjunction, conjuncts, guarded, may_fail
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.positions import Auxiliary, Pos, is_unit, path_indices
from spcomp.ir.arith.linear import same_value
from spcomp.ir.axis import AnyBuffer, Axis, Buffer, BufferDomain, SparseBuffer
from spcomp.ir.expr import BinOp, Const, Expr, SearchKind, Select, Var, binary, cast, const, plain
from spcomp.ir.node import Node
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import Let, Stmt
from spcomp.ir.structural import expr_equal, fingerprint
from spcomp.ir.visitor import walk
from spcomp.passes.assembly.assemble import Assembly, Place
from spcomp.passes.iterations.scope import Lookup, Scope

if TYPE_CHECKING:
    from spcomp.passes.iterations.search_blocks import SearchBlocks


@dataclass(frozen=True, slots=True)
class Access:
    """Positions of an element, and when it exists: *guard* None is always, *absent* never.

    *is_conditional*: it may not exist where the conditions of the current statement do not hold.
    """

    indices: tuple[Expr | None, ...]
    guard: Expr | None = None
    absent: bool = False
    is_conditional: bool = False


class Locator:
    """Translates the expressions of one function; keeps the searches that statements need.

    *written* are the buffers that the function stores to: values read from them are not moved.
    """

    def __init__(
        self,
        aux: Auxiliary,
        names: Names,
        written: frozenset[AnyBuffer],
        assembly: Assembly,
        promises: tuple[BufferDomain, ...] = (),
    ) -> None:
        self.promises = promises
        self.aux, self.names, self.written, self.assembly = aux, names, written, assembly
        self.local: list[Lookup] = []  # lookups that stay in the current statement
        self.hoists = True  # whether lookups may move out of the current statement
        self.conditional = False  # whether the current expression may not be evaluated
        self.order_needed: set[str] = set()  # names of axes whose order is relied upon
        self.sure: object = None  # the element, by fingerprint, that an earlier phase has created
        self.holds: frozenset[object] = frozenset()  # fingerprints of the statement's conditions
        self.conditional_loads: set[Node] = set()  # of elements that may not exist without these
        self.blocks: SearchBlocks | None = None  # the results of searches, if they are kept

    # -- lookups ------------------------------------------------------------------------------

    def lookup(self, scope: Scope, wish: str, value: Expr, *, fails: bool | None = None) -> Expr:
        """Return a variable that holds *value*, computed as far out as its operands allow.

        A value that may fail stays in its statement, under the same condition.
        """
        fails = may_fail(value) if fails is None else fails
        if isinstance(value, (Var, Const)) or (fails and self.conditional):
            return value
        moves = self.hoists and not fails and not any(map(self._stays, walk(value)))
        key = fingerprint(value)
        if moves and (variable := scope.lookup_of(key)) is not None:
            return variable
        if moves and self.blocks and (loaded := self.blocks.keep(scope, value)) is not None:
            return loaded
        var = self.names.var(wish, value.dtype)
        place = scope.owner(value) if moves else None
        if place is None:
            self.local.append(Lookup(var, value, 0))
        else:
            segment, level = place
            segment.lookups.append(Lookup(var, value, level))
            segment.levels[var] = level
            segment.by_value[key] = var
        return var

    def _stays(self, node: Node) -> bool:
        """Whether *node* is a load that must not be moved."""
        return isinstance(node, Load) and (
            node.buffer in self.written or node in self.conditional_loads
        )

    def with_local(self, stmt: Stmt, mark: int) -> Stmt:
        """Return *stmt* inside the local lookups from number *mark* on, which are removed."""
        for lookup in reversed(self.local[mark:]):
            stmt = Let(lookup.var, lookup.value, stmt, span=stmt.span)
        del self.local[mark:]
        return stmt

    def refuse_local(self, mark: int, place: str, node: Node) -> None:
        """Raise if there are local lookups from number *mark* on: *place* cannot hold them."""
        if self.local[mark:]:
            raise LoweringError(
                f"{place} needs a search",
                node.span,
                hint="assign the value to a variable before the loop",
            )

    def rely_on_order(self, axis: Axis, node: Node) -> None:
        """Record that the coordinates of *axis* must ascend; raises if it is not sorted."""
        if not axis.is_sparse:
            return
        if not axis.sorted:
            raise LoweringError(
                f"{axis.name} is not sorted, so it cannot be merged with another axis",
                node.span,
                hint="sort the coordinates and declare the axis with sorted=True",
            )
        self.order_needed.add(axis.name)

    # -- expressions --------------------------------------------------------------------------

    def translate(self, expr: Expr, scope: Scope) -> Expr:
        """Return *expr* with coordinates turned into positions."""
        return _Translate(self, scope).rewrite(expr)

    def load(self, load: Load, scope: Scope) -> Expr:
        """Return the guarded load of an element; one that is not stored reads as the fill."""
        buffer = load.buffer
        if isinstance(buffer, Buffer):
            access, fill = self.dense_access(buffer, load.indices, scope), const(0, buffer.dtype)
        elif self.assembly.axis_of(buffer) is not None:
            place = self.assembled_place(buffer, load.indices, scope, load)
            return self.assembly.load(buffer, place, const(buffer.fill, buffer.dtype))
        else:
            access = self.access(buffer, load.indices, scope)
            fill = const(buffer.fill, buffer.dtype)
        if access.absent:
            return fill
        element = load.replace(indices=access.indices)
        self.conditional_loads |= {element} if access.is_conditional else set()
        return guarded(access.guard, element, fill)

    def stored(self, load: Load, scope: Scope) -> Expr:
        """Return the condition that the element is stored."""
        buffer = load.buffer
        if isinstance(buffer, SparseBuffer) and self.assembly.axis_of(buffer) is not None:
            raise LoweringError(f"what {buffer.name} stores is a result of this program", load.span)
        if isinstance(buffer, Buffer):
            access = self.dense_access(buffer, load.indices, scope)
        else:
            access = self.access(buffer, load.indices, scope)
        if access.absent:
            return const(False, bool_)
        return const(True, bool_) if access.guard is None else access.guard

    def dense_access(self, buffer: Buffer, coords: tuple[Expr | None, ...], scope: Scope) -> Access:
        """Return the position of the element of a plain array, guarded by its shape."""
        indices = tuple(self.translate(i, scope) for i in coords if i is not None)
        pairs = zip(indices, buffer.shape, strict=True)
        return Access(indices, conjunction(inside(index, extent) for index, extent in pairs))

    def assembled_place(
        self, buffer: SparseBuffer, coords: tuple[Expr | None, ...], scope: Scope, node: Node
    ) -> Place:
        """Return the place of an element of an assembled buffer; opens its fiber if it is new."""
        axis = self.assembly.axis_of(buffer)
        assert axis is not None
        path = axis.path()
        order = [
            v
            for v, b in scope.bindings.items()
            if b.absent or (b.positions and (v in coords or not all(map(is_unit, b.positions))))
        ]
        depth = len(path) - 1
        if self.assembly.ascending and (isinstance(node, Load) or isinstance(coords[depth], Var)):
            depth += 1  # else the coordinate is a number that ascends: see write_order.digits
        parent, place = None, None
        if buffer.axes[: len(path)] == path and tuple(order[:depth]) == coords[:depth]:
            parent = scope.bindings[order[len(path) - 2]].positions.get(path[-2])
        if parent is not None and parent.relative is not None:
            place = scope.owner(parent.relative)
        if parent is None or place is None:
            raise LoweringError(
                f"{buffer.name} is assembled, but its fibers are not written one by one",
                node.span,
                hint=f"iterate over {', '.join(a.name for a in path[:-1])} first, and index"
                f" {buffer.name} by these variables",
            )
        coord, within = self._created(axis, coords[len(path) - 1], scope)
        trailing = []
        for dense, index in zip(buffer.axes[len(path) :], coords[len(path) :], strict=True):
            assert index is not None
            position = self._locate(dense, None, index, scope)
            assert position is not None
            trailing.append(self.aux.relative(position))
        element = Place(axis, parent, coord, tuple(trailing), within)
        if not self.assembly.is_open(element, node):
            segment, level = place
            segment.put_around(level, self.assembly.open(element, self.names, self.aux))
        return element

    def _created(self, axis: Axis, coord: Expr | None, scope: Scope) -> tuple[Expr, Expr | None]:
        """Return the coordinate on *axis* to be created, and whether it lies in the axis."""
        assert coord is not None
        binding = scope.bindings.get(coord) if isinstance(coord, Var) else None
        value = binding.coordinate() if binding else self.translate(coord, scope)
        value = cast(value, int64)
        over = [*binding.positions, *binding.absent] if binding else []
        if any(spans_axis(axis, other) for other in over):
            return value, None
        if scope.proves_inside(coord, cast(axis.length, int64)):
            return value, None
        return value, inside(value, axis.length)

    def access(self, buffer: SparseBuffer, coords: tuple[Expr | None, ...], scope: Scope) -> Access:
        """Return the position of the element of *buffer* at *coords*."""
        places: dict[Axis, Pos] = {}
        for axis, coord in zip(buffer.axes, coords, strict=True):
            assert coord is not None
            parent = places.get(axis.parent) if axis.parent else None
            position = self._locate(axis, parent, coord, scope)
            if position is None:
                return Access((), absent=True)
            places[axis] = position
        sure = self.sure is not None and self.sure == fingerprint((buffer, *coords))
        guard = None if sure else _guard_of(places)
        terms = conjuncts(guard) if self.holds else []
        unknown = [part for part in terms if fingerprint(part) not in self.holds]
        is_conditional = len(unknown) < len(terms)
        guard = conjunction(unknown) if is_conditional else guard
        return Access(path_indices(buffer, places), guard, is_conditional=is_conditional)

    def _locate(self, axis: Axis, parent: Pos | None, coord: Expr, scope: Scope) -> Pos | None:
        """Return the position of *coord* on *axis* under *parent*; None if known to be absent."""
        binding = scope.bindings.get(coord) if isinstance(coord, Var) else None
        if binding is not None:
            if axis in binding.absent and binding.absent[axis] is parent:
                return None
            for other, pos in binding.positions.items():
                if _same_fiber(other, pos, axis, parent):
                    if other is axis:
                        return pos
                    return Pos(axis, parent, pos.relative, pos.absolute, pos.guard)
        runs_over = tuple(binding.positions) if binding else ()
        value = binding.coordinate() if binding else self.translate(coord, scope)
        if axis.is_sparse:
            return self._search(axis, parent, cast(value, int64), scope)
        size = cast(axis.length, int64) if parent is None else self.aux.size(axis, parent)
        guard = binding.present if binding else None
        if parent is None and (
            scope.proves_inside(coord, size) or self._is_promised(coord, value, size)
        ):
            return Pos(axis, None, cast(value, int64))
        if parent is not None or not any(spans_axis(axis, other) for other in runs_over):
            value = self.lookup(scope, f"{axis.name}_at", value)
            guard = inside(value, size)
            if guard is not None:
                guard = self.lookup(scope, f"{axis.name}_in", guard)
        return Pos(axis, parent, value, guard=both(parent.guard if parent else None, guard))

    def _is_promised(self, coord: Expr, value: Expr, size: Expr) -> bool:
        """Whether *coord* is read, as *value*, where promised values lie in ``0..size-1``."""
        coord, value = plain(coord), plain(value)
        if not isinstance(coord, Load) or not isinstance(value, Load):
            return False  # a guarded element reads as 0, which may be outside
        if coord.buffer in self.written:
            return False
        return any(
            isinstance(domain.low, Const)
            and domain.low.value >= 0
            and same_value(binary("+", domain.high, 1), size)
            for domain in self.promises
            if domain.buffer is coord.buffer
        )

    def _search(self, axis: Axis, parent: Pos | None, key: Expr, scope: Scope) -> Pos:
        if axis.indices is None:
            raise LoweringError(f"the coordinates of {axis.name} are a result of this program")
        if parent is not None and self._is_marked(axis, parent, key, scope):
            key_var = self.names.var(f"{axis.name}_key")
            self.local.append(Lookup(key_var, key, 0))
            position, holds = self.assembly.position(axis, key_var)
            return Pos(axis, parent, position, guard=both(inside(key_var, axis.length), holds))
        if axis.shifted:
            raise LoweringError(
                f"{axis.name} is shifted: iterate over it, nothing finds its places"
            )
        buffer = self.aux.buffers[axis.indices]
        begin = self.lookup(scope, f"{axis.name}_begin", self.aux.begin(axis, parent))
        end = self.lookup(scope, f"{axis.name}_end", self.aux.end(axis, parent))
        key = self.lookup(scope, f"{axis.name}_key", key)
        if axis.sorted or axis.hashed:
            self.order_needed.add(axis.name)
        kind: SearchKind = "lower" if axis.sorted else "probe" if axis.hashed else "linear"
        search = Search(kind, buffer, begin, end, key)
        at = self.lookup(scope, f"{axis.name}_at", search)
        is_found: Expr = BinOp("<", at, end)
        if axis.sorted:
            outer: tuple[None, ...] = (None,) * (len(buffer.axes) - 1)
            value = cast(Load(buffer, (*outer, at)), int64)
            is_found = BinOp("and", is_found, BinOp("==", value, key))
        elif axis.padded and not axis.hashed:
            is_found = BinOp("and", BinOp("<=", ZERO, key), is_found)
        guard = self.lookup(scope, f"{axis.name}_found", is_found)
        return Pos(axis, parent, absolute=at, guard=guard)

    def _is_marked(self, axis: Axis, parent: Pos, key: Expr, scope: Scope) -> bool:
        """Whether marks locate the coordinates of the fiber; a write to it opens it."""
        if axis not in self.assembly.marked or parent.relative is None:
            return False
        place = Place(axis, parent, key, ())
        if self.sure is None:
            return self.assembly.has_open(place)
        owner = scope.owner(parent.relative)
        if owner is not None and not self.assembly.is_open(place, parent.relative):
            segment, level = owner
            segment.put_around(level, self.assembly.open(place, self.names, self.aux))
        return owner is not None


def inside(value: Expr, size: Expr) -> Expr | None:
    """Return ``0 <= value < size``, or None where it holds for constants."""
    value, size = cast(value, int64), cast(size, int64)
    if isinstance(value, Const) and isinstance(size, Const):
        if 0 <= value.value < size.value:
            return None
        return const(False, bool_)
    if isinstance(value, Const) and value.value >= 0:
        return BinOp("<", value, size)
    return BinOp("and", BinOp("<=", ZERO, value), BinOp("<", value, size))


def _guard_of(places: dict[Axis, Pos]) -> Expr | None:
    parents = {axis.parent for axis in places}
    # the guard of the deepest axis implies those above
    return conjunction(pos.guard for axis, pos in places.items() if axis not in parents)


def _same_fiber(other: Axis, pos: Pos, axis: Axis, parent: Pos | None) -> bool:
    """Say whether *pos* on *other* is also the position on *axis* under *parent*."""
    if pos.parent is not parent and not _same_root(pos.parent, parent):
        return False
    if other is axis:
        return True
    same_arrays = other.indptr is axis.indptr and other.indices is axis.indices
    sizes = expr_equal(other.nnz_cols, axis.nnz_cols)
    return same_arrays and sizes and other.kind == axis.kind and other.kind != "dense_fixed"


def _same_root(a: Pos | None, b: Pos | None) -> bool:
    """Say whether two positions on a dense root are the same, as for an attached fiber."""
    if a is None or b is None or a.axis is not b.axis or a.parent is not None:
        return False
    return a.relative is not None and expr_equal(a.relative, b.relative)


def spans_axis(axis: Axis, other: Axis) -> bool:
    """Say whether every coordinate of *other* lies in the dense axis *axis*."""
    if axis is other:
        return True
    if isinstance(axis.length, Const) and isinstance(other.length, Const):
        return bool(other.length.value <= axis.length.value)
    return expr_equal(axis.length, other.length)


class _Translate(Rewriter):
    def __init__(self, locator: Locator, scope: Scope) -> None:
        self.locator, self.scope = locator, scope

    def visit_Var(self, var: Var) -> Node:
        binding = self.scope.bindings.get(var)
        return var if binding is None else cast(binding.coordinate(), int64)

    def visit_Select(self, select: Select) -> Node:
        return Select(
            self.rewrite(select.cond),
            self._conditional(select.then),
            self._conditional(select.otherwise),
            span=select.span,
        )

    def visit_BinOp(self, op: BinOp) -> Node:
        if op.op not in ("and", "or"):
            return self.visit_Node(op)
        return op.replace(lhs=self.rewrite(op.lhs), rhs=self._conditional(op.rhs))

    def _conditional(self, expr: Expr) -> Expr:
        outer, self.locator.conditional = self.locator.conditional, True
        result = self.rewrite(expr)
        self.locator.conditional = outer
        return result

    def visit_Load(self, load: Load) -> Node:
        return self.locator.load(load, self.scope)

    def visit_Stored(self, stored: Stored) -> Node:
        assert isinstance(stored.element, Load)
        return self.locator.stored(stored.element, self.scope)
