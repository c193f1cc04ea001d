"""I to I, parts: an iteration and its statements in the coordinates of one part of a format."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from spcomp.dtypes import int64
from spcomp.errors import FormatError
from spcomp.formats.rules import FormatRewriteRule
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, uncast, variables
from spcomp.ir.analysis.positions import is_unit
from spcomp.ir.analysis.reduction import as_reduction, guarded_step
from spcomp.ir.arith.bounds import Env
from spcomp.ir.arith.indexmap import IndexMap
from spcomp.ir.arith.injectivity import element_key
from spcomp.ir.arith.linear import Algebra
from spcomp.ir.arith.proof import Prover
from spcomp.ir.arith.simplify import injective
from spcomp.ir.axis import AnyBuffer, Axis, BufferDomain, Domain, SparseBuffer
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import BinOp, Cast, Const, Expr, Select, Var, binary, cast, const
from spcomp.ir.node import Node
from spcomp.ir.rewrite import Replace, Rewriter, substitute
from spcomp.ir.stmt import If, Let, Seq, Stmt, Store, seq
from spcomp.ir.visitor import walk


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The parameters, axes and buffers of a rule in the program, by their names in the rule.

    *beside*: for each buffer of the program beside the rewritten ones, its part. *backward*: the
    coordinates before the rewrite from those after it; *stored*: those that arrays of the part
    hold, with what the program may rely on.
    """

    rule: FormatRewriteRule
    params: Mapping[str, Var]
    axes: Mapping[str, Axis]
    buffers: Mapping[str, SparseBuffer]
    beside: Mapping[SparseBuffer, SparseBuffer]
    backward: IndexMap
    stored: tuple[BufferDomain, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class RewriteTarget:
    """What the rules rewrite: buffers with their names, and their axes.

    *beside*: other buffers along the same axes, with dense axes before or after them. They are
    split into parts in the same way.
    """

    buffers: Mapping[SparseBuffer, str]
    axes: tuple[Axis, ...]
    beside: tuple[SparseBuffer, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """One domain of an iteration with its variables and their kinds."""

    domain: Domain
    vars: tuple[Var, ...]
    kinds: str


@dataclass(frozen=True, slots=True, eq=False)
class PartIteration:
    """The iteration *it* with its *loops*, to be rewritten over the axes of one part."""

    it: SpIter
    loops: Sequence[Loop]
    part: Part
    old: RewriteTarget

    def build(self, updates: Sequence[Stmt], init: Stmt | None) -> SpIter:
        """Return the iteration with *updates* and *init* in terms of the new coordinates."""
        rule, it = self.part.rule, self.it
        place, before, values, loops = self._coordinates()
        body = _Body(self.part, self.old, values, before, place)
        runs = any(loop.domain not in self.old.axes for loop in self.loops)
        stmts = tuple(body.update(stmt, runs=runs) for stmt in updates)
        if rule.padded:
            stmts = tuple(reduce(_guard, self._inside(place, before, values), s) for s in stmts)
        kinds = "".join(loop.kinds or self._kind(loop, loops, stmts) for loop in loops)
        return SpIter(
            tuple(var for loop in loops for var in loop.vars),
            tuple(loop.domain for loop in loops),
            kinds,
            f"{it.name}_{rule.name}",
            None if init is None else body.rewrite(init),
            seq(*stmts),
            it.attrs,
            span=it.span,
        )

    def start(self, init: Stmt) -> SpIter:
        """Return the iteration that runs *init* for all elements of the part, padding included."""
        place, before, values, loops = self._coordinates()
        stmt = _Body(self.part, self.old, values, before, place).rewrite(init)
        if self.part.rule.padded:
            stmt = reduce(_guard, self._inside(place, before, values), stmt)
        needed = variables(stmt)
        kept = [loop for loop in loops if not loop.kinds or not needed.isdisjoint(loop.vars)]
        for loop in kept:
            if not isinstance(loop.domain, Axis) or (loop.kinds and loop.domain.is_sparse):
                raise wrong_shape(self.it, "its init runs over what is no dense axis")
        vars_ = tuple(var for loop in kept for var in loop.vars)
        name = f"{self.it.name}_init_{self.part.rule.name}"
        domains = tuple(loop.domain for loop in kept)
        return SpIter(vars_, domains, "S" * len(vars_), name, None, stmt, span=self.it.span)

    @property
    def needs_own_init(self) -> bool:
        """Whether init needs an iteration of its own, before that over the part.

        Init runs once per coordinate, so otherwise each must occur once, and lie in the matrix.
        """
        place, before, values, _ = self._coordinates()
        unique = all(axis.unique for axis in self.part.axes.values())
        return not unique or any(True for _ in self._inside(place, before, values))

    def _coordinates(
        self,
    ) -> tuple[dict[Axis, Var], dict[Axis, Var], dict[Var, Expr], list[Loop]]:
        """Return the new and the old variables by axis, the values of the old, the new loops."""
        rule = self.part.rule
        names = {var.name for loop in self.loops for var in loop.vars}
        new = tuple(Var(_unused_name(p.name, names), int64) for p in rule.backward.params)
        place = dict(zip((self.part.axes[a] for a in rule.axes_after_rewrite), new, strict=True))
        runs = {loop.domain: loop.vars[0] for loop in self.loops if loop.domain in self.old.axes}
        before = {axis: runs[axis] for axis in self.old.axes}
        values: dict[Var, Expr] = dict(
            zip(before.values(), self.part.backward.apply(new), strict=True)
        )
        loops: list[Loop] = []
        for loop in self.loops:
            if loop.domain not in self.old.axes:
                fresh = tuple(Var(var.name, var.type) for var in loop.vars)
                values.update(zip(loop.vars, fresh, strict=True))
                loops.append(Loop(loop.domain, fresh, loop.kinds))
            else:
                loops += [Loop(a, (v,), "") for a, v in place.items() if not _runs(loops, a)]
        return place, before, values, loops

    def _inside(
        self, place: Mapping[Axis, Var], before: Mapping[Axis, Var], values: Mapping[Var, Expr]
    ) -> Iterator[Expr]:
        """Yield the tests that the old coordinates lie in the matrix, unless that is proved."""
        ranges = {var: (ZERO, cast(axis.length, int64)) for axis, var in place.items()}
        held = {domain.buffer for domain in self.part.stored}
        pairs = [(axis, values[var]) for axis, var in before.items()]
        return _inside([(a, x) for a, x in pairs if _buffer_of(x) not in held], ranges)

    def _kind(self, loop: Loop, loops: Sequence[Loop], updates: Sequence[Stmt]) -> str:
        """Return ``S`` if a spatial axis follows from this one, and it separates all writes.

        All axes are spatial if every store is to an element of the part.
        """
        stores = [n for stmt in updates for n in walk(stmt) if isinstance(n, Store)]
        if all(store.buffer in self.part.beside.values() for store in stores):
            return "S"
        before = [x.domain for x in self.loops if x.kinds == "S" and x.domain in self.old.axes]
        axis_map = self.part.rule.axis_map
        names = {after for a in before if isinstance(a, Axis) for after in axis_map[a.name]}
        if not any(self.part.axes[name] is loop.domain for name in names):
            return "R"
        ranges = {x.vars[0]: (ZERO, _length(x.domain)) for x in loops if isinstance(x.domain, Axis)}
        (var,) = loop.vars
        axis = loop.domain
        if isinstance(axis, Axis) and not axis.unique:
            return "R"
        single = isinstance(axis, Axis) and is_unit(axis)
        keys = (element_key(store.buffer, store.indices) for store in stores)
        return "S" if single or all(injective(key, var, ranges) for key in keys) else "R"


def _buffer_of(coordinate: Expr) -> AnyBuffer | None:
    """Return the buffer of which *coordinate* is an element, or None."""
    load = uncast(coordinate)
    return load.buffer if isinstance(load, Load) else None


def _inside(
    coordinates: Sequence[tuple[Axis, Expr]], ranges: Mapping[Var, tuple[Expr, Expr]]
) -> Iterator[Expr]:
    """Yield the tests that *coordinates* lie on their axes, except those that are proved."""
    prover = Prover(Algebra(Env(), trusted=True), ranges)
    for axis, coordinate in coordinates:
        high = binary("<", coordinate, cast(axis.length, int64))
        yield from (c for c in (binary("<=", ZERO, coordinate), high) if not prover.holds(c))


def _guard(stmt: Stmt, cond: Expr) -> Stmt:
    return If(cond, stmt, span=stmt.span)


class _Body(Rewriter):
    """Rewrites statements to the coordinates of a part."""

    def __init__(
        self,
        part: Part,
        old: RewriteTarget,
        values: Mapping[Var, Expr],
        before: Mapping[Axis, Var],
        place: Mapping[Axis, Var],
    ) -> None:
        self.part, self.old, self.values = part, old, values
        self.before, self.place = before, place

    def visit_Var(self, var: Var) -> Node:
        """Return the old coordinate in terms of the new ones."""
        return self.values.get(var, var)

    def visit_Load(self, load: Load) -> Node:
        """Read the part instead of a rewritten buffer, at the current element only."""
        element = self._element(load)
        return (
            self.visit_Node(load)
            if element is None
            else load.replace(buffer=element[0], indices=element[1])
        )

    def visit_Store(self, store: Store) -> Node:
        """Write the part instead of a buffer beside the rewritten ones."""
        new, element = self.visit_Node(store), self._element(store)
        return new if element is None else new.replace(buffer=element[0], indices=element[1])

    def _element(self, node: Load | Store) -> tuple[SparseBuffer, tuple[Expr, ...]] | None:
        """Return the current element in the part, as buffer and indices; None for other buffers."""
        buffer = node.buffer
        if not isinstance(buffer, SparseBuffer):
            return None
        if buffer in self.old.buffers:
            new = self.part.buffers[self.old.buffers[buffer]]
        elif buffer in self.part.beside:
            new = self.part.beside[buffer]
        else:
            return None
        others: dict[Axis, Expr] = {}
        for axis, index in zip(buffer.axes, node.indices, strict=True):
            assert index is not None
            if axis not in self.before:
                others[axis] = self.rewrite(index)
            elif index is not self.before[axis]:
                raise used_elsewhere(buffer.name, node)
        return new, tuple({**self.place, **others}[axis] for axis in new.axes)

    def _load(self, buffer: SparseBuffer, node: Node) -> Load:
        return Load(buffer, tuple(self.place[axis] for axis in buffer.axes), span=node.span)

    def update(self, stmt: Stmt, *, runs: bool) -> Stmt:
        """Return *stmt* for the elements of the part, which does nothing for padding.

        *runs*: other loops run for each element; one branch then serves all their iterations.
        """
        new = self.rewrite(stmt)
        if not self.part.rule.padded:
            return new
        (buffer,) = self.part.buffers.values()
        value = self._load(buffer, stmt)
        cond = BinOp("!=", value, const(0, buffer.dtype))
        return _guard(new, cond) if runs else _mask(new, buffer, cond)


def _mask(stmt: Stmt, buffer: SparseBuffer, cond: Expr) -> Stmt:
    """Return *stmt* so that it does nothing unless *cond*: the element of *buffer* is not zero.

    A sum of products with the stored value needs no branch: its other factors are replaced by
    zero, so that the product is zero even if they are infinite or NaN.
    """
    reduction = as_reduction(stmt)
    if (
        reduction is not None
        and reduction.combiner == "+"
        and _is_product_with(buffer, reduction.value)
    ):
        value = _mask_factors(reduction.value, buffer, cond)
        masked = Replace(reduction.value, value).rewrite(stmt)
        if masked is not stmt or value is reduction.value:
            return masked
    return guarded_step(cond, stmt)


def _is_product_with(buffer: SparseBuffer, value: Expr) -> bool:
    """Whether *value* is an element of *buffer*, or a product with one."""
    if isinstance(value, BinOp) and value.op == "*":
        return any(_is_product_with(buffer, side) for side in (value.lhs, value.rhs))
    while isinstance(value, Cast):
        value = value.value
    return isinstance(value, Load) and value.buffer is buffer


def _mask_factors(value: Expr, buffer: SparseBuffer, cond: Expr) -> Expr:
    if isinstance(value, BinOp) and value.op == "*":
        lhs, rhs = (_mask_factors(x, buffer, cond) for x in (value.lhs, value.rhs))
        same = lhs is value.lhs and rhs is value.rhs
        return value if same else value.replace(lhs=lhs, rhs=rhs)
    finite = isinstance(value, Const) and math.isfinite(value.value)
    if _is_product_with(buffer, value) or finite or not value.dtype.is_float:
        return value
    return Select(cond, value, const(0, value.dtype), span=value.span)


def updates_of(it: SpIter, old: RewriteTarget) -> tuple[Stmt, ...]:
    """Return the statements of *it*, with the values of Lets put in.

    Raises FormatError unless each is one step of a reduction, or writes an element of its own, so
    that parts may run one after the other.
    """
    stmts = tuple(_statements(_Inline().rewrite(it.body)))
    written = {n.buffer for stmt in stmts for n in walk(stmt) if isinstance(n, Store)}
    for buffer in written & old.buffers.keys():
        raise _error(it, f"it writes {buffer.name}", it, "decompose what is only read")
    for guarded in stmts:
        conds, stmt = _conditions(guarded)
        step = as_reduction(stmt)
        if step is not None and not step.is_tuple:
            values: tuple[Expr | None, ...] = (*conds, *step.values, *step.indices)
        elif step is None and isinstance(stmt, Store) and set(it.kinds) == {"S"}:
            values = (*conds, stmt.value, *stmt.indices)
        else:
            hint = "write it as C[...] = C[...] + value (also * min max)"
            raise _error(it, "a statement is not one step of a reduction", stmt, hint)
        read = {n.buffer for v in values if v is not None for n in walk(v) if isinstance(n, Load)}
        if read & written:
            hint = "compute it in an sp_iter of its own"
            raise _error(it, "a statement reads what one of them writes", stmt, hint)
    return stmts


def _conditions(stmt: Stmt) -> tuple[list[Expr], Stmt]:
    """Return the conditions around *stmt* that are no part of a reduction, and the statement."""
    conds: list[Expr] = []
    while isinstance(stmt, If) and stmt.otherwise is None and as_reduction(stmt) is None:
        conds.append(stmt.cond)
        stmt = stmt.then
    return conds, stmt


def _statements(stmt: Stmt) -> Iterator[Stmt]:
    if isinstance(stmt, Seq):
        for part in stmt.body:
            yield from _statements(part)
    else:
        yield stmt


class _Inline(Rewriter):
    """Replaces the variables of Lets by their values."""

    def visit_Let(self, let: Let) -> Node:
        """Substitute the value."""
        return self.rewrite(substitute(let.body, {let.var: let.value}))


def _runs(loops: Sequence[Loop], axis: Axis) -> bool:
    return any(loop.domain is axis for loop in loops)


def _length(axis: Domain) -> Expr:
    assert isinstance(axis, Axis)
    return cast(axis.length, int64)


def _unused_name(wish: str, names: set[str]) -> str:
    name, count = wish, 0
    while name in names:
        count += 1
        name = f"{wish}_{count}"
    names.add(name)
    return name


def _error(it: SpIter, reason: str, node: Node, hint: str) -> FormatError:
    return FormatError(
        f"{it.name!r} cannot be decomposed: {reason}", node.span or it.span, hint=hint
    )


def wrong_shape(it: SpIter, reason: str) -> FormatError:
    """Return the error for the axes that *it* iterates over."""
    hint = "iterate over all axes of the buffer, and nothing that hangs on them, in one sp_iter"
    return _error(it, reason, it, hint)


def used_elsewhere(name: str, node: Node) -> FormatError:
    """Return the error for a use of the rewritten buffer *name* that no part can serve."""
    return FormatError(
        f"{name} is decomposed, but used other than at the element that is iterated",
        node.span,
        hint=f"read {name} only inside an sp_iter over its axes, indexed by their variables",
    )
