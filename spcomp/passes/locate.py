"""I to II, translation: coordinates of an access to positions, by the cheapest way that is sound.

In this order: the iteration runs over that very axis; the axis is dense; another axis with the same
arrays is iterated; a search, whose outcome guards the access.
"""

from __future__ import annotations

from dataclasses import dataclass

from spcomp.dtypes import bool_, int64
from spcomp.errors import LoweringError
from spcomp.ir.axis import AnyBuffer, Axis, Buffer, SparseBuffer
from spcomp.ir.expr import BinOp, Const, Expr, Load, Search, Select, Var, cast, const
from spcomp.ir.node import Node
from spcomp.ir.stmt import Let, Stmt
from spcomp.ir.visitor import Rewriter, walk
from spcomp.passes.assemble import Assembly, Place
from spcomp.passes.names import Names
from spcomp.passes.positions import ZERO, Auxiliary, Pos, both, guarded
from spcomp.passes.scope import Lookup, Scope, fingerprint, may_fail


@dataclass(frozen=True, slots=True)
class Access:
    """Positions of an element, and when it exists: *guard* None is always, *absent* never."""

    indices: tuple[Expr | None, ...]
    guard: Expr | None = None
    absent: bool = False


class Locator:
    """Translates the expressions of one function; keeps the searches that statements need.

    *written* are the buffers that the function stores to: what depends on them stays in its place.
    """

    def __init__(
        self, aux: Auxiliary, names: Names, written: frozenset[AnyBuffer], assembly: Assembly
    ) -> None:
        self.aux, self.names, self.written, self.assembly = aux, names, written, assembly
        self.local: list[Lookup] = []  # lookups that only the statement at hand can make
        self.hoists = True  # whether lookups may move out of the statement at hand
        self.conditional = False  # whether what is translated may not be evaluated at all
        self.searched: set[str] = set()  # names of axes whose order is relied upon

    # -- lookups ------------------------------------------------------------------------------

    def lookup(self, scope: Scope, wish: str, value: Expr, *, fails: bool | None = None) -> Expr:
        """Return a variable that holds *value*, computed as far out as its operands allow.

        What may fail stays in its statement, and there under the condition that it stands under.
        """
        fails = may_fail(value) if fails is None else fails
        if isinstance(value, (Var, Const)) or (fails and self.conditional):
            return value
        moves = (
            self.hoists
            and not fails
            and not any(isinstance(n, Load) and n.buffer in self.written for n in walk(value))
        )
        key = fingerprint(value)
        if moves and (known := scope.known(key)) is not None:
            return known
        var = self.names.var(wish, value.dtype)
        place = scope.owner(value) if moves else None
        if place is None:
            self.local.append(Lookup(var, value, 0))
        else:
            segment, level = place
            segment.lookups.append(Lookup(var, value, level))
            segment.levels[var] = level
            segment.known[key] = var
        return var

    def with_local(self, stmt: Stmt, mark: int) -> Stmt:
        """Return *stmt* inside the lookups made since there were *mark* of them."""
        for lookup in reversed(self.local[mark:]):
            stmt = Let(lookup.var, lookup.value, stmt, span=stmt.span)
        del self.local[mark:]
        return stmt

    def refuse_local(self, mark: int, where: str, node: Node) -> None:
        """Raise if lookups were made since there were *mark*: they cannot stand in *where*."""
        if self.local[mark:]:
            raise LoweringError(
                f"{where} needs a search",
                node.span,
                hint="assign the value to a variable before the loop",
            )

    def rely_on_order(self, axis: Axis, node: Node) -> None:
        """Note that the coordinates of *axis* must ascend; raises if it says they do not."""
        if not axis.is_sparse:
            return
        if not axis.sorted:
            raise LoweringError(
                f"{axis.name} is not sorted, so it cannot be merged with another axis",
                node.span,
                hint="sort the coordinates and declare the axis with sorted=True",
            )
        self.searched.add(axis.name)

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
            return self.assembly.load(buffer, place, const(buffer.fill, buffer.dtype), load)
        else:
            access = self.access(buffer, load.indices, scope)
            fill = const(buffer.fill, buffer.dtype)
        if access.absent:
            return fill
        return guarded(access.guard, load.replace(indices=access.indices), fill)

    def dense_access(self, buffer: Buffer, coords: tuple[Expr | None, ...], scope: Scope) -> Access:
        """Return where the element of a plain array stands, guarded by its shape."""
        indices = tuple(self.translate(i, scope) for i in coords if i is not None)
        guard: Expr | None = None
        for index, extent in zip(indices, buffer.shape, strict=True):
            guard = both(guard, inside(index, extent))
        return Access(indices, guard)

    def assembled_place(
        self, buffer: SparseBuffer, coords: tuple[Expr | None, ...], scope: Scope, node: Node
    ) -> Place:
        """Return where an element of an assembled buffer is made; opens its fiber if need be."""
        axis = self.assembly.axis_of(buffer)
        assert axis is not None
        path = axis.path()
        order = [v for v, b in scope.bindings.items() if b.positions or b.absent]
        ascending = all(a.sorted for v in order[: len(path)] for a in scope.bindings[v].positions)
        if buffer.axes[: len(path)] != path or tuple(order[: len(path)]) != coords[: len(path)]:
            ascending = False
        parent = scope.bindings[order[len(path) - 2]].positions.get(path[-2]) if ascending else None
        place = scope.owner(parent.relative) if parent and parent.relative is not None else None
        if parent is None or place is None:
            raise LoweringError(
                f"{buffer.name} is assembled, but its coordinates are not written in their order",
                node.span,
                hint=f"iterate over {', '.join(a.name for a in path[:-1])} first, then over the"
                f" coordinates of {axis.name}, and index {buffer.name} by these variables",
            )
        coord = scope.bindings[order[len(path) - 1]].coordinate()
        trailing = []
        for dense, index in zip(buffer.axes[len(path) :], coords[len(path) :], strict=True):
            assert index is not None
            found = self._locate(dense, None, index, scope)
            assert found is not None
            trailing.append(self.aux.relative(found))
        made = Place(axis, parent, cast(coord, int64), tuple(trailing))
        if self.assembly.fiber(made, node) is None:
            wishes = (
                self.names.unique(f"{axis.name}_count"),
                self.names.unique(f"{axis.name}_last"),
            )
            segment, level = place
            segment.wraps[level] = self.assembly.open(made, wishes, self.aux)
        return made

    def access(self, buffer: SparseBuffer, coords: tuple[Expr | None, ...], scope: Scope) -> Access:
        """Return where the element of *buffer* at *coords* stands."""
        places: dict[Axis, Pos] = {}
        for axis, coord in zip(buffer.axes, coords, strict=True):
            assert coord is not None
            parent = places.get(axis.parent) if axis.parent else None
            found = self._locate(axis, parent, coord, scope)
            if found is None:
                return Access((), absent=True)
            places[axis] = found
        return Access(path_indices(buffer, places), _guard_of(places))

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
        guard = None
        if parent is None and scope.proves_inside(coord, size):
            return Pos(axis, None, value)
        if parent is not None or not any(spans_axis(axis, other) for other in runs_over):
            value = self.lookup(scope, f"{axis.name}_at", value)
            guard = inside(value, size)
        if guard is not None:
            guard = self.lookup(scope, f"{axis.name}_in", guard)
        return Pos(axis, parent, value, guard=both(parent.guard if parent else None, guard))

    def _search(self, axis: Axis, parent: Pos | None, key: Expr, scope: Scope) -> Pos:
        if axis.indices is None:
            raise LoweringError(f"the coordinates of {axis.name} are a result of this program")
        buffer = self.aux.buffers[axis.indices]
        begin = self.lookup(scope, f"{axis.name}_begin", self.aux.begin(axis, parent))
        end = self.lookup(scope, f"{axis.name}_end", self.aux.end(axis, parent))
        key = self.lookup(scope, f"{axis.name}_key", key)
        if axis.sorted:
            self.searched.add(axis.name)
        search = Search("lower" if axis.sorted else "linear", buffer, begin, end, key)
        at = self.lookup(scope, f"{axis.name}_at", search)
        found: Expr = BinOp("<", at, end)
        if axis.sorted:
            outer: tuple[None, ...] = (None,) * (len(buffer.axes) - 1)
            value = cast(Load(buffer, (*outer, at)), int64)
            found = BinOp("and", found, BinOp("==", value, key))
        guard = self.lookup(scope, f"{axis.name}_found", found)
        return Pos(axis, parent, absolute=at, guard=guard)


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


def path_indices(buffer: SparseBuffer, places: dict[Axis, Pos]) -> tuple[Expr | None, ...]:
    """Return one index per axis; ancestors of an absolute position are None."""
    result: dict[Axis, Expr | None] = {}
    for axis in reversed(buffer.axes):  # the deepest axis of a chain speaks for its ancestors
        if axis not in result:
            result.update(zip(axis.path(), places[axis].indices(), strict=True))
    return tuple(result[axis] for axis in buffer.axes)


def _guard_of(places: dict[Axis, Pos]) -> Expr | None:
    parents = {axis.parent for axis in places}
    guard: Expr | None = None
    for axis, pos in places.items():
        if axis not in parents:  # the guard of the deepest implies those above it
            guard = both(guard, pos.guard)
    return guard


def _same_fiber(other: Axis, pos: Pos, axis: Axis, parent: Pos | None) -> bool:
    """Say whether *pos* on *other* is also the position on *axis* under *parent*."""
    if pos.parent is not parent:
        return False
    if other is axis:
        return True
    same_arrays = other.indptr is axis.indptr and other.indices is axis.indices
    sizes = fingerprint(other.nnz_cols) == fingerprint(axis.nnz_cols)
    return same_arrays and sizes and other.kind == axis.kind and other.kind != "dense_fixed"


def spans_axis(axis: Axis, other: Axis) -> bool:
    """Say whether every coordinate of *other* lies in the dense axis *axis*."""
    if axis is other:
        return True
    if isinstance(axis.length, Const) and isinstance(other.length, Const):
        return bool(other.length.value <= axis.length.value)
    return fingerprint(axis.length) == fingerprint(other.length)


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
