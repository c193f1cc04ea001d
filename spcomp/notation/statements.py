"""Index notation to coordinate IR: the nests of one statement as sparse iterations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING
from typing import cast as typed

from spcomp.dtypes import bool_, int64
from spcomp.errors import ScriptError
from spcomp.ir.access import Load
from spcomp.ir.access import Stored as StoredExpr
from spcomp.ir.analysis.reduction import Combiner, combine, identity
from spcomp.ir.axis import (
    AnyBuffer,
    Attach,
    Axis,
    Buffer,
    Domain,
    Fuse,
    Intersect,
    Union,
    domain_axes,
)
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import (
    BinOp,
    BinOpKind,
    Call,
    Expr,
    Select,
    UnOp,
    Var,
    binary,
    cast,
    const,
)
from spcomp.ir.promotion import Value, implicit, resolve
from spcomp.ir.stmt import Alloc, If, Let, Stmt, Store, seq
from spcomp.notation.algebra import Both, Either, Presence, Stored
from spcomp.notation.arg_reductions import NOWHERE, repeats, same
from spcomp.notation.layout import Layout
from spcomp.notation.loops import Loop, OperandLevel, levels
from spcomp.notation.nodes import ARG_REDUCTIONS, Access, accesses
from spcomp.notation.plan import Nest, Plan
from spcomp.notation.results import Keys, Output
from spcomp.notation.terms import Cond, Terms, condition, number

if TYPE_CHECKING:
    from spcomp.notation.declare import Emitter

ZERO, ONE = const(0), const(1)
SCALAR = Output(Layout((), ()))


@dataclass(slots=True)
class Statement:
    """Builds the iterations of one statement."""

    emitter: Emitter
    plan: Plan

    def build(self) -> Stmt:
        """Return the statements, in order."""
        scopes = [Scope(self.emitter, nest) for nest in self.plan.nests]
        keys = self.plan.output.keys
        self._refuse_results()
        for scope in scopes:
            scope.under_root = keys is not None and not keys.rows
            scope.prepare()
        target = self.emitter.result(self.plan)
        return seq(*(scope.build(self.plan.output, target) for scope in scopes))

    def _refuse_results(self) -> None:
        target = self.plan.stmt.target
        for access in accesses(self.plan.stmt.value):
            if access.name == target.name:
                raise ScriptError(
                    f"{target.name} is read and assigned in one statement",
                    access.at,
                    hint=f"call the result something else, or write {target} += ...",
                )


class Scope:
    """Builds the statements of one nest; the nests of its inner reductions see its variables."""

    def __init__(
        self, emitter: Emitter, nest: Nest, outer: Scope | None = None, depth: int = 0
    ) -> None:
        self.emitter, self.nest, self.outer, self.depth = emitter, nest, outer, depth
        self.variables: dict[str, Expr] = dict(outer.variables) if outer else {}
        self.unit: Expr = outer.units[depth] if outer else ZERO
        self.units: list[Expr] = [self.unit]  # by depth: the coordinate on the axis of one
        self.temps: dict[str, Buffer] = dict(outer.temps) if outer else {}
        self.inner: list[tuple[int, Scope, Buffer]] = []
        self.domains: list[list[tuple[Domain, Var]]] = []
        self.value, self.cond = Value(ZERO), typed("Cond", None)
        self.under_root = False  # whether the result lies along the axis of one
        self.best: Buffer | None = None  # of argmax and argmin, the value at the coordinate
        self.is_known = False  # the best value, before the loops

    # -- values -------------------------------------------------------------------------------

    def prepare(self) -> Value:
        """Choose variables and domains; return the value, and keep when it is present."""
        for loop in self.nest.loops:
            self.domains.append(self._open(loop))
            self.units.append(self.unit)
        for temp in self.nest.temps:
            scope = Scope(self.emitter, temp.nest, self, temp.depth)
            value = scope.prepare()
            dtype = bool_ if temp.nest.op in ("and", "or") else number(value).dtype
            if temp.nest.op in ARG_REDUCTIONS:
                dtype = int64
            buffer = Buffer(self.emitter.unique(temp.name), None, (ONE,), dtype, "local")
            self.temps[temp.name] = buffer
            self.inner.append((temp.depth, scope, buffer))
        sparse = frozenset(n for n, la in self.emitter.layouts.items() if not la.is_dense)
        terms = Terms(
            self._load,
            self._mask,
            self.emitter.scalar,
            lambda name: self.variables[name],
            self.nest.unsure,
            sparse,
            self.emitter.semiring,
        )
        self.value, self.cond = terms.term(self.nest.value)
        if self.nest.combines in ("and", "or"):
            self.value = Value(condition(self.value))
        elif self.nest.over:
            self.value = Value(resolve(number(self.value)))
        return self.value

    def _load(self, access: Access) -> Load:
        if access.name in self.temps:
            return Load(self.temps[access.name], (ZERO,))
        return self.emitter.load(access, self.variables, self.unit)

    def _mask(self, access: Access) -> Expr | None:
        return self.emitter.mask(access, self.variables)

    # -- loops --------------------------------------------------------------------------------

    def _open(self, loop: Loop) -> list[tuple[Domain, Var]]:
        """Return the domain of *loop*, after that of the axis of one if its levels need that."""
        var = Var(loop.index, int64)
        self.variables[loop.index] = var
        parts = tuple(self.emitter.axes[place] for place in loop.parts)
        opened: list[tuple[Domain, Var]] = []
        unit = self.emitter.axes.get("unit")
        if self.unit is ZERO and (self.under_root or any(p.parent is unit for p in parts)):
            root = Var("root", int64)
            self.unit = root
            opened.append((self.emitter.unit_axis(), root))
        return [*opened, (self._domain(loop, parts), var)]

    def _domain(self, loop: Loop, axes: tuple[Axis, ...]) -> Domain:
        parts = tuple(
            axis if to is None else Attach(axis, self.emitter.axes[to])
            for axis, to in zip(axes, loop.to, strict=True)
        )
        match loop.kind:
            case "dense":
                return self._dense(loop)
            case "one":
                return parts[0]
            case "union":
                return Union(parts)
            case "along":
                return Union((*parts, self._dense(loop)))
        return Intersect(parts)

    def _dense(self, loop: Loop) -> Axis:
        """Return the axis of all coordinates: the parent of an inner level if there is one."""
        plain = self.emitter.dense_axis(loop.index)
        for other in list(self._all_loops()):
            for place, to in zip(other.parts, other.to, strict=True):
                parent = self.emitter.axes[place].parent
                if to is None and parent is not None and place.level == 1:
                    layout = self.emitter.layouts[place.name]
                    index = self._index_of(place.name, layout.order[0])
                    if index == loop.index and layout.levels[0] == "dense":
                        return parent
        return plain

    def _all_loops(self) -> Iterator[Loop]:
        def below(nest: Nest) -> Iterator[Loop]:
            yield from nest.loops
            for temp in nest.temps:
                yield from below(temp.nest)

        yield from below(self.nest)

    def _index_of(self, name: str, dim: int) -> str | None:
        def find(nest: Nest) -> Access | None:
            for access in accesses(nest.value):
                if access.name == name:
                    return access
            return next((a for t in nest.temps if (a := find(t.nest)) is not None), None)

        access = find(self.nest)
        return None if access is None else access.indices[dim]

    # -- statements ---------------------------------------------------------------------------

    def build(self, output: Output, target: AnyBuffer) -> Stmt:
        """Return the nest, with what gives *target* its first value."""
        nest = self.nest
        cuts = sorted({depth for depth, _, _ in self.inner if depth})
        before, init = self._start(output, target, split=bool(cuts))
        stmt = self._body(output, target)
        name = nest.target.name
        for at, low in reversed(list(enumerate((0, *cuts)))):
            high = (*cuts, len(self.domains))[at]
            stmt = self._iterate(low, high, stmt, init if high == len(self.domains) else None, name)
            stmt = self._with_temps(low, stmt)
        return seq(before, stmt)

    def _with_temps(self, depth: int, stmt: Stmt) -> Stmt:
        for inner_depth, scope, buffer in reversed(self.inner):
            if inner_depth == depth:
                stmt = seq(scope.reduction(buffer), stmt)
        for inner_depth, _, buffer in reversed(self.inner):
            if inner_depth == depth:
                stmt = Alloc(buffer, stmt)
        return stmt

    def reduction(self, buffer: Buffer) -> Stmt:
        """Return the statement that computes the scalar *buffer*."""
        nest = self.nest
        if nest.op in ARG_REDUCTIONS:
            return self._arg_reduction(buffer, typed("Combiner", ARG_REDUCTIONS[nest.op]))
        start = Store(buffer, (ZERO,), identity(typed("Combiner", nest.op), buffer.dtype))
        return seq(start, self.build(SCALAR, buffer))

    def _arg_reduction(self, buffer: Buffer, op: Combiner) -> Stmt:
        """Return the search for the least coordinate of the best value; -1 if there is none."""
        value = resolve(self.value)
        name = self.emitter.unique(f"{buffer.name}_best")
        best = self.best = Buffer(name, None, (ONE,), value.dtype, "local")
        repeatable = repeats(value, exact=self.emitter.exact)
        self.is_known = repeatable and self._is_simple() and self._is_in_order()
        if not self.is_known:
            start = Store(best, (ZERO,), identity(op, best.dtype))
            nowhere = Store(buffer, (ZERO,), const(-1))
            return Alloc(best, seq(start, nowhere, self.build(SCALAR, buffer)))
        extreme = Scope(self.emitter, replace(self.nest, op=op), self.outer, self.depth)
        extreme.prepare()
        found = Load(buffer, (ZERO,))
        return Alloc(
            best,
            seq(
                extreme.reduction(best),
                Store(buffer, (ZERO,), NOWHERE),
                self.build(SCALAR, buffer),
                Store(buffer, (ZERO,), Select(BinOp("==", found, NOWHERE), const(-1), found)),
            ),
        )

    def _is_simple(self) -> bool:
        """Whether the nest is one loop without a search, and all that it meets counts."""
        is_plain = all(loop.kind in ("dense", "one") for loop in self.nest.loops)
        return is_plain and len(self.domains) == 1 and not self.inner and self._guard() is None

    def _is_in_order(self) -> bool:
        """Whether the loop loads vectors of all operands: in order, or at coordinates at once."""
        (index,), (loop,) = self.nest.over, self.nest.loops
        apart = loop.kind == "one" and self.emitter.loads_apart
        for access in accesses(self.nest.value):
            layout = self.emitter.layouts.get(access.name)  # None: an inner reduction's
            if layout is not None and layout.is_dense:
                slow = layout.order if apart else layout.order[:-1]
                if any(access.indices[dim] == index for dim in slow):
                    return False
        return True

    def _improve(self, buffer: Buffer, best: Buffer) -> Stmt:
        """Return one step of the search: a better value replaces the *best* one."""
        value, coordinate = resolve(self.value), self.variables[self.nest.over[0]]
        best_coordinate, best_value = Load(buffer, (ZERO,)), Load(best, (ZERO,))
        if self.is_known:
            place = Select(same(value, best_value), coordinate, NOWHERE)
            return Store(buffer, (ZERO,), BinOp("min", best_coordinate, place))
        var = Var(self.emitter.unique(f"{buffer.name}_value"), value.dtype)
        op: BinOpKind = ">" if self.nest.op == "argmax" else "<"
        wins: Expr = BinOp(op, var, best_value)
        if value.dtype.is_float:  # the first NaN is what max and min are
            is_nan, was_nan = Call("isnan", (var,)), Call("isnan", (best_value,))
            wins = BinOp("or", wins, BinOp("and", is_nan, UnOp("not", was_nan)))
        earlier = BinOp("and", same(var, best_value), BinOp("<", coordinate, best_coordinate))
        better = BinOp("or", wins, earlier)
        cond = _joined("and", [self._guard(), BinOp("or", binary("<", best_coordinate, 0), better)])
        update = seq(Store(best, (ZERO,), var), Store(buffer, (ZERO,), coordinate))
        return Let(var, value, If(typed("Expr", cond), update))

    def _iterate(self, low: int, high: int, stmt: Stmt, init: Stmt | None, name: str) -> Stmt:
        pairs = [pair for group in self.domains[low:high] for pair in group]
        if not pairs:
            return seq(init, stmt)
        kinds = "".join(
            "R" if loop.index in self.nest.over else "S"
            for loop, group in zip(self.nest.loops[low:high], self.domains[low:high], strict=True)
            for _ in group
        )
        kinds = "".join(
            "S" if domain_axes(d)[0] is self.emitter.axes.get("unit") else kind
            for (d, _), kind in zip(pairs, kinds, strict=True)
        )
        variables = tuple(var for _, var in pairs)
        domains = tuple(domain for domain, _ in pairs)
        return SpIter(variables, domains, kinds, self.emitter.unique(f"{name}_it"), init, stmt)

    def _start(
        self, output: Output, target: AnyBuffer, *, split: bool
    ) -> tuple[Stmt | None, Stmt | None]:
        """Return what gives *target* its first value: a nest before the loops, or their init."""
        nest = self.nest
        if not nest.starts or isinstance(target, Buffer) or output.storage == "assembled":
            return None, None
        if output.storage == "dense" and nest.fills:
            return None, None
        reaches = self._reaches(output)
        if output.storage == "shared" and nest.op is None and reaches:
            return None, None
        op = typed("Combiner", nest.op or self.emitter.semiring.add)
        value = identity(op, target.dtype)
        if reaches and not split:
            return None, Store(target, self._place(output), value)
        axes = target.axes
        variables = tuple(Var(axis.name.lower(), int64) for axis in axes)
        name = self.emitter.unique(f"{nest.target.name}_start")
        store = Store(target, variables, value)
        kinds = "S" * len(axes)
        return SpIter(variables, _as_stored(axes), kinds, name, None, store), None

    def _reaches(self, output: Output) -> bool:
        """Whether the loops reach each element of the result, so that they can have an init."""
        loops = {loop.index: loop for loop in self.nest.loops}
        places = (
            {} if output.like is None else {index: place for index, _, place in self._like(output)}
        )
        return bool(loops) and all(
            index in loops
            and (
                output.storage != "shared"
                or loops[index].kind == "dense"
                or (loops[index].kind == "one" and loops[index].parts == (places.get(index),))
            )
            for index in self.nest.target.indices
        )

    def _like(self, output: Output) -> list[tuple[str, str, OperandLevel]]:
        assert output.like is not None
        return levels(output.like, self.emitter.layouts[output.like.name])

    def _place(self, output: Output) -> tuple[Expr, ...]:
        """Return the coordinates of the target's element."""
        if output.keys is not None:
            return self._key(output.keys)
        target, layout = self.nest.target, output.layout
        where = tuple(self.variables[target.indices[dim]] for dim in layout.order)
        return where if layout.order and layout.is_rooted else (self.unit, *where)

    def _key(self, keys: Keys) -> tuple[Expr, Expr]:
        """Return the row, and the coordinates as one number."""
        first, *rest = keys.digits
        number = self.variables[first]
        for index in rest:
            number = binary("*", number, self.emitter.sizes.of(index))
            number = binary("+", number, self.variables[index])
        return (self.variables[keys.indices[0]] if keys.rows else self.unit, number)

    def _body(self, output: Output, target: AnyBuffer) -> Stmt:
        if self.best is not None and isinstance(target, Buffer):
            return self._improve(target, self.best)
        nest, value, cond = self.nest, self.value, self._guard()
        place = (ZERO,) if isinstance(target, Buffer) else self._place(output)
        at = nest.value.at
        try:
            new = implicit(value, target.dtype)
        except ValueError as error:
            raise ScriptError(str(error), at) from None
        if nest.minus:  # in the type of the result: a narrow one may not hold the negative
            new = UnOp("-", new)
        neutral = nest.op or self.emitter.semiring.add
        if nest.partial and not nest.filters and self.cond is not None:
            new = Select(self.cond, new, identity(typed("Combiner", neutral), target.dtype))
        stored = {"dense": nest.op is not None, "shared": nest.op is None}  # at every coordinate
        if cond is not None and stored.get(output.storage, False):
            new = Select(cond, new, identity(typed("Combiner", neutral), target.dtype))
            cond = None
        if nest.op is not None:
            new = _combined(typed("Combiner", nest.op), Load(target, place), new)
        store = Store(target, place, new, span=at)
        return store if cond is None else If(cond, store, span=at)

    def _guard(self) -> Cond:
        """Return the condition to check before the value is stored."""
        asked = self._asked(self.nest.present)
        if not self.nest.filters or self.cond is None:
            return asked
        return self.cond if asked is None else BinOp("and", asked, self.cond)

    def _asked(self, formula: Presence) -> Cond:
        match formula:
            case Stored(access=access):
                return self._mask(access) or StoredExpr(self._load(access))
            case Both(parts=parts):
                return _joined("and", [self._asked(part) for part in parts])
            case Either(parts=parts):
                return _joined("or", [self._asked(part) for part in parts])
        return None


def _as_stored(axes: tuple[Axis, ...]) -> tuple[Domain, ...]:
    """Return domains over all elements along *axes*, fused where the lengths of fibers differ."""
    last = next((k for k in reversed(range(len(axes))) if axes[k].is_variable), 0)
    if not last or axes[last].path() != axes[: last + 1]:
        return axes
    return (Fuse(axes[: last + 1]), *axes[last + 1 :])


def _joined(op: Combiner, conds: Sequence[Cond]) -> Cond:
    return reduce(lambda a, b: combine(op, a, b), [c for c in conds if c is not None])


def _combined(op: Combiner, old: Expr, new: Expr) -> Expr:
    if op in ("and", "or"):
        return cast(combine(op, cast(old, bool_), cast(new, bool_)), new.dtype)
    return binary(op, old, new)
