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
from spcomp.ir.analysis.exprs import ZERO, variables
from spcomp.ir.analysis.reduction import as_reduction, under
from spcomp.ir.arith.bounds import Env
from spcomp.ir.arith.linear import Algebra
from spcomp.ir.arith.proof import Prover
from spcomp.ir.arith.simplify import injective
from spcomp.ir.axis import Axis, Domain, SparseBuffer
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import BinOp, Cast, Const, Expr, Select, Var, binary, cast, const
from spcomp.ir.node import Node
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import If, Let, Seq, Stmt, Store, seq
from spcomp.ir.visitor import walk


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What a rule declares, by the names it has in the rule, as it is called in the program.

    *beside*: for each buffer of the program that lies along what is rewritten, its part.
    """

    rule: FormatRewriteRule
    params: Mapping[str, Var]
    axes: Mapping[str, Axis]
    buffers: Mapping[str, SparseBuffer]
    beside: Mapping[SparseBuffer, SparseBuffer]


@dataclass(frozen=True, slots=True, eq=False)
class Rewritten:
    """What the rules rewrite: buffers with their names, and their axes.

    *beside*: the other buffers that lie along these, and dense axes before or behind them. What
    they hold is stored as the buffers are.
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
    """The iteration *it*, which has *loops*, over the axes of one part."""

    it: SpIter
    loops: Sequence[Loop]
    part: Part
    old: Rewritten

    def build(self, updates: Sequence[Stmt], init: Stmt | None) -> SpIter:
        """Return it with *updates* and *init* in terms of the new coordinates."""
        rule, it = self.part.rule, self.it
        place, before, values, loops = self._coordinates()
        body = _Body(self.part, self.old, values, before, place)
        runs = any(loop.domain not in self.old.axes for loop in self.loops)
        made = tuple(body.update(stmt, runs=runs) for stmt in updates)
        if rule.padded:
            made = tuple(reduce(_guarded, self._inside(place, before, values), s) for s in made)
        kinds = "".join(loop.kinds or self._kind(loop, loops, made) for loop in loops)
        return SpIter(
            tuple(var for loop in loops for var in loop.vars),
            tuple(loop.domain for loop in loops),
            kinds,
            f"{it.name}_{rule.name}",
            None if init is None else body.rewrite(init),
            seq(*made),
            it.attrs,
            span=it.span,
        )

    def start(self, init: Stmt) -> SpIter:
        """Return the iteration that runs *init* for all that the part stores, padding included."""
        place, before, values, loops = self._coordinates()
        stmt = _Body(self.part, self.old, values, before, place).rewrite(init)
        if self.part.rule.padded:
            stmt = reduce(_guarded, self._inside(place, before, values), stmt)
        used = variables(stmt)
        some = [loop for loop in loops if not loop.kinds or not used.isdisjoint(loop.vars)]
        for loop in some:
            if not isinstance(loop.domain, Axis) or (loop.kinds and loop.domain.is_sparse):
                raise wrong_shape(self.it, "its init runs over what is no dense axis")
        own = tuple(var for loop in some for var in loop.vars)
        name = f"{self.it.name}_init_{self.part.rule.name}"
        domains = tuple(loop.domain for loop in some)
        return SpIter(own, domains, "S" * len(own), name, None, stmt, span=self.it.span)

    @property
    def starts_apart(self) -> bool:
        """Whether an init has no place in the iteration over the part.

        It goes by coordinates, so each must be there once, and lie in the matrix.
        """
        place, before, values, _ = self._coordinates()
        unique = all(axis.unique for axis in self.part.axes.values())
        return not unique or any(True for _ in self._inside(place, before, values))

    def _coordinates(
        self,
    ) -> tuple[dict[Axis, Var], dict[Axis, Var], dict[Var, Expr], list[Loop]]:
        """Return the new variables by axis, the old ones, what each is now, and the new loops."""
        rule = self.part.rule
        taken = {var.name for loop in self.loops for var in loop.vars}
        new = tuple(Var(_free(p.name, taken), int64) for p in rule.backward.params)
        place = dict(zip((self.part.axes[a] for a in rule.axes_after_rewrite), new, strict=True))
        runs = {loop.domain: loop.vars[0] for loop in self.loops if loop.domain in self.old.axes}
        before = {axis: runs[axis] for axis in self.old.axes}
        values: dict[Var, Expr] = dict(zip(before.values(), rule.backward.apply(new), strict=True))
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
        """Yield what must be asked for the coordinates before to lie in the matrix."""
        ranges = {var: (ZERO, cast(axis.length, int64)) for axis, var in place.items()}
        return _inside(self.old.axes, [values[var] for var in before.values()], ranges)

    def _kind(self, loop: Loop, loops: Sequence[Loop], updates: Sequence[Stmt]) -> str:
        """``S`` where a spatial axis is made of this one, which tells apart what is written.

        That is so of all axes where each iteration has an element of the part.
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
        single = isinstance(axis, Axis) and _is_one(axis.length)
        return "S" if single or all(injective(s.indices, var, ranges) for s in stores) else "R"


def _inside(
    axes: Sequence[Axis], coordinates: Sequence[Expr], ranges: Mapping[Var, tuple[Expr, Expr]]
) -> Iterator[Expr]:
    """Yield what must be asked for *coordinates* to lie on *axes*: what is not proved of them."""
    prover = Prover(Algebra(Env(), trusted=True), ranges)
    for axis, coordinate in zip(axes, coordinates, strict=True):
        high = binary("<", coordinate, cast(axis.length, int64))
        yield from (c for c in (binary("<=", ZERO, coordinate), high) if not prover.holds(c))


def _guarded(stmt: Stmt, cond: Expr) -> Stmt:
    return If(cond, stmt, span=stmt.span)


class _Body(Rewriter):
    """Rewrites statements to the coordinates of a part."""

    def __init__(
        self,
        part: Part,
        old: Rewritten,
        values: Mapping[Var, Expr],
        before: Mapping[Axis, Var],
        place: Mapping[Axis, Var],
    ) -> None:
        self.part, self.old, self.values = part, old, values
        self.before, self.place = before, place

    def visit_Var(self, var: Var) -> Node:
        """Return what the coordinate is now."""
        return self.values.get(var, var)

    def visit_Load(self, load: Load) -> Node:
        """Read the part where the buffer is rewritten; only the element iterated is known."""
        made = self._placed(load)
        return (
            self.visit_Node(load) if made is None else load.replace(buffer=made[0], indices=made[1])
        )

    def visit_Store(self, store: Store) -> Node:
        """Write the part."""
        new, made = self.visit_Node(store), self._placed(store)
        return new if made is None else new.replace(buffer=made[0], indices=made[1])

    def _placed(self, node: Load | Store) -> tuple[SparseBuffer, tuple[Expr, ...]] | None:
        """Return where the element that is iterated lies in the part; None if it is not there."""
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

    def _stored(self, buffer: SparseBuffer, node: Node) -> Load:
        return Load(buffer, tuple(self.place[axis] for axis in buffer.axes), span=node.span)

    def update(self, stmt: Stmt, *, runs: bool) -> Stmt:
        """Return *stmt* for what the part stores, leaving out what pads it.

        *runs*: loops run for each element; one branch then serves all that they do.
        """
        new = self.rewrite(stmt)
        if not self.part.rule.padded:
            return new
        (buffer,) = self.part.buffers.values()
        stored = self._stored(buffer, stmt)
        cond = BinOp("!=", stored, const(0, buffer.dtype))
        return _guarded(new, cond) if runs else _masked(new, buffer, cond)


def _masked(stmt: Stmt, buffer: SparseBuffer, cond: Expr) -> Stmt:
    """Return *stmt* so that it does nothing unless *cond*, which says that *buffer* is not zero.

    A sum of products with the stored value needs no branch: its other factors are made zero, so
    that the product is, whatever they would be (infinite, NaN).
    """
    found = as_reduction(stmt)
    if found is not None and found.combiner == "+" and _is_product_with(buffer, found.value):
        value = _mask_factors(found.value, buffer, cond)
        made = _Replace(found.value, value).rewrite(stmt)
        if made is not stmt or value is found.value:
            return made
    return under(cond, stmt)


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


class _Replace(Rewriter):
    def __init__(self, old: Expr, new: Expr) -> None:
        self.old, self.new = old, new

    def visit_Expr(self, expr: Expr) -> Node:
        """Put the new expression in the place of the old one."""
        return self.new if expr is self.old else self.visit_Node(expr)


def updates_of(it: SpIter, old: Rewritten) -> tuple[Stmt, ...]:
    """Return the statements of *it*, values in place of their names.

    Raises FormatError unless each is one step of a reduction, or writes an element of its own, so
    that parts may run one after the other.
    """
    found = tuple(_statements(_Inline().rewrite(it.body)))
    written = {n.buffer for stmt in found for n in walk(stmt) if isinstance(n, Store)}
    for buffer in written & old.buffers.keys():
        raise _refused(it, f"it writes {buffer.name}", it, "decompose what is only read")
    for whole in found:
        conds, stmt = _conditions(whole)
        step = as_reduction(stmt)
        if step is not None and not step.is_tuple:
            values: tuple[Expr | None, ...] = (*conds, *step.values, *step.indices)
        elif step is None and isinstance(stmt, Store) and set(it.kinds) == {"S"}:
            values = (*conds, stmt.value, *stmt.indices)
        else:
            hint = "write it as C[...] = C[...] + value (also * min max)"
            raise _refused(it, "a statement is not one step of a reduction", stmt, hint)
        read = {n.buffer for v in values if v is not None for n in walk(v) if isinstance(n, Load)}
        if read & written:
            hint = "compute it in an sp_iter of its own"
            raise _refused(it, "a statement reads what one of them writes", stmt, hint)
    return found


def _conditions(stmt: Stmt) -> tuple[list[Expr], Stmt]:
    """Return the conditions around *stmt* that are no part of a reduction, and what they guard."""
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
    """Puts values in the place of the names that a body gives them."""

    def visit_Let(self, let: Let) -> Node:
        """Substitute the value."""
        return self.rewrite(substitute(let.body, {let.var: let.value}))


def _runs(loops: Sequence[Loop], axis: Axis) -> bool:
    return any(loop.domain is axis for loop in loops)


def _length(axis: Domain) -> Expr:
    assert isinstance(axis, Axis)
    return cast(axis.length, int64)


def _is_one(length: Expr) -> bool:
    return isinstance(length, Const) and length.value == 1


def _free(wish: str, taken: set[str]) -> str:
    name, count = wish, 0
    while name in taken:
        count += 1
        name = f"{wish}_{count}"
    taken.add(name)
    return name


def _refused(it: SpIter, reason: str, node: Node, hint: str) -> FormatError:
    return FormatError(
        f"{it.name!r} cannot be decomposed: {reason}", node.span or it.span, hint=hint
    )


def wrong_shape(it: SpIter, reason: str) -> FormatError:
    """Return the error for the axes that *it* iterates over."""
    hint = "iterate over all axes of the buffer, and nothing that hangs on them, in one sp_iter"
    return _refused(it, reason, it, hint)


def used_elsewhere(name: str, node: Node) -> FormatError:
    """Return the error for a use of the rewritten buffer *name* that no part can serve."""
    return FormatError(
        f"{name} is decomposed, but used other than at the element that is iterated",
        node.span,
        hint=f"read {name} only inside an sp_iter over its axes, indexed by their variables",
    )
