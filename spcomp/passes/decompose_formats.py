"""I to I: an iteration over a sparse buffer becomes one iteration per part of its new format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from spcomp.dtypes import int64
from spcomp.errors import FormatError
from spcomp.formats.rules import FormatRewriteRule
from spcomp.ir.arith import injective
from spcomp.ir.axis import AnyBuffer, Attach, Axis, Domain, Fuse, SparseBuffer, domain_axes
from spcomp.ir.bounds import Env
from spcomp.ir.coordinate import CoordFunc, SpIter
from spcomp.ir.expr import BinOp, Cast, Const, Expr, Load, Select, Var, binary, cast, const
from spcomp.ir.linear import Algebra
from spcomp.ir.module import Module, single
from spcomp.ir.node import Node
from spcomp.ir.proof import Prover
from spcomp.ir.reduction import as_reduction
from spcomp.ir.relink import Relink
from spcomp.ir.stmt import Func, If, Let, Seq, Stmt, Store, seq
from spcomp.ir.visitor import Rewriter, substitute, walk
from spcomp.passes.base import Pass, Stage
from spcomp.passes.names import Names
from spcomp.passes.positions import ZERO
from spcomp.passes.scope import variables


@dataclass(frozen=True, slots=True)
class DecomposeFormats(Pass):
    """``sp_iter([I, J]): init; s  ->  init over I; sp_iter([S, P]): s'; sp_iter([R, K]): s''``.

    One iteration for each rule, over the axes of its part. What is initialised is so once, over
    the domain as it was; the parts only accumulate. Rules with other buffers than the first have
    are refused. Source: SparseTIR (ASPLOS 2023), section 3.2.1, format decomposition.
    """

    name: ClassVar[str] = "decompose_formats"
    takes: ClassVar[Stage] = Stage.COORDINATE
    gives: ClassVar[Stage] = Stage.COORDINATE
    rules: tuple[FormatRewriteRule, ...] = ()

    def run(self, module: Module[Any]) -> Module[Any]:
        """Decompose the function of *module*, whose interface changes. Raises FormatError."""
        if not module.is_single:
            raise FormatError(f"{module.source.name} has several phases, it cannot be decomposed")
        return single(decompose(module.funcs[0], self.rules).func)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What a rule declares, by the names it has in the rule, as it is called in the program."""

    rule: FormatRewriteRule
    params: Mapping[str, Var]
    axes: Mapping[str, Axis]
    buffers: Mapping[str, SparseBuffer]


@dataclass(frozen=True, slots=True, eq=False)
class Decomposition:
    """The program that runs over the *parts*."""

    func: CoordFunc
    parts: tuple[Part, ...]


def decompose(func: CoordFunc, rules: Sequence[FormatRewriteRule]) -> Decomposition:
    """Return *func* with one iteration per rule instead of each over the buffers they rewrite.

    All parameters stay; ``without_unused`` drops those that nothing needs any more. Raises
    FormatError where the parts could compute something else, or a rule does not fit *func*.
    """
    names = Names(func)
    old = _Old.find(func, rules)
    parts = tuple(_instantiate(rule, func, names) for rule in rules)
    splitter = _Splitter(old, parts, names)
    body = splitter.rewrite(func.body)
    params = dict.fromkeys((*func.params, *(p for part in parts for p in part.params.values())))
    axes = (*func.axes, *splitter.axes, *(a for part in parts for a in part.axes.values()))
    buffers = (*func.buffers, *(b for part in parts for b in part.buffers.values()))
    unique = tuple(dict.fromkeys(axes))
    made = func.replace(params=tuple(params), axes=unique, buffers=buffers, body=body)
    return Decomposition(made, parts)


def without_unused(func: CoordFunc, before: CoordFunc) -> CoordFunc:
    """Return *func* without the buffers, axes and parameters that only *before* had a use for."""
    gone = _used(before)[0] - _used(func)[0]
    buffers = tuple(b for b in func.buffers if b not in gone)
    domains = tuple(d for d in func.domains if d.buffer not in gone)
    func = func.replace(buffers=buffers, domains=domains)
    lost = _used(before)[1] - _used(func)[1]
    func = func.replace(axes=tuple(a for a in func.axes if a not in lost))
    needless = _used(before)[2] - _used(func)[2]
    return func.replace(params=tuple(p for p in func.params if p not in needless))


def _used(func: CoordFunc) -> tuple[set[AnyBuffer], set[Axis], set[Var]]:
    """The buffers that *func* accesses, the axes that they or iterations need, and variables."""
    nodes = list(walk(func.body))
    buffers = {n.buffer for n in nodes if isinstance(n, (Load, Store))}
    along = [a for b in func.buffers if isinstance(b, SparseBuffer) for a in b.axes]
    for it in nodes:
        if isinstance(it, SpIter):
            along += [a for d in it.domains for a in _mentioned(d)]
    axes = {above for axis in along for above in axis.path()}
    roots: list[Expr | None] = [b.data for b in func.buffers]
    for buffer in func.buffers:
        roots += getattr(buffer, "shape", ())
    for axis in func.axes:
        roots += [axis.length, axis.nnz, axis.nnz_cols, axis.indptr, axis.indices]
    found = {n for root in roots if root is not None for n in walk(root) if isinstance(n, Var)}
    return buffers, axes, found | {n for n in nodes if isinstance(n, Var)}


def _mentioned(domain: Domain) -> tuple[Axis, ...]:
    return (*domain_axes(domain), domain.to) if isinstance(domain, Attach) else domain_axes(domain)


def _instantiate(rule: FormatRewriteRule, func: CoordFunc, names: Names) -> Part:
    """Return what *rule* declares under names of its own; what *func* has as well is shared."""
    desc = rule.new_format_desc
    params = {p.name: p for p in desc.params if p in func.params}
    for param in desc.params:
        if param.name not in params:
            params[param.name] = names.var(f"{param.name}_{rule.name}", param.type)
    link = Relink({p: params[p.name] for p in desc.params}, {a: a for a in func.axes}, {})
    axes: dict[str, Axis] = {}
    for axis in desc.axes:
        if axis not in link.made:
            wish = names.unique(f"{axis.name}_{rule.name}")
            link.made[axis] = link.visit_Node(axis).replace(name=wish)
        made = link.made[axis]
        assert isinstance(made, Axis)
        axes[axis.name] = made
    buffers: dict[str, SparseBuffer] = {}
    for buffer in desc.buffers:
        if buffer.name in rule.buffers_to_rewrite and isinstance(buffer, SparseBuffer):
            wish = names.unique(f"{buffer.name}_{rule.name}")
            new = link.visit_Node(buffer).replace(name=wish)
            assert isinstance(new, SparseBuffer)
            buffers[buffer.name] = new
    return Part(rule, params, axes, buffers)


@dataclass(frozen=True, slots=True, eq=False)
class _Old:
    """What the rules rewrite: buffers, and the axes before; *stored* are those with arrays."""

    buffers: Mapping[SparseBuffer, str]
    axes: tuple[Axis, ...]
    stored: frozenset[Axis]

    @staticmethod
    def find(func: CoordFunc, rules: Sequence[FormatRewriteRule]) -> _Old:
        """Return what *rules* are about in *func*; raises FormatError."""
        if not rules:
            raise FormatError("no rules are given", hint="give at least one")
        first = rules[0]
        for rule in rules:
            for name in ("buffers_to_rewrite", "axes_before_rewrite"):
                if tuple(getattr(rule, name)) != tuple(getattr(first, name)):
                    raise rule.error(f"its {name} differ from the first rule's", "decompose twice")
        axes = {axis.name: axis for axis in func.axes}
        buffers = {b.name: b for b in func.buffers if isinstance(b, SparseBuffer)}
        for what, wanted, known in (
            ("sparse buffer", first.buffers_to_rewrite, set(buffers)),
            ("axis", first.axes_before_rewrite, set(axes)),
        ):
            for name in wanted:
                if name not in known:
                    listed = ", ".join(sorted(known))
                    raise first.error(f"{func.name} has no {what} {name!r}", f"it has {listed}")
        before = tuple(axes[name] for name in first.axes_before_rewrite)
        for name in first.buffers_to_rewrite:
            if set(buffers[name].axes) != set(before):
                along = ", ".join(axis.name for axis in buffers[name].axes)
                raise first.error(f"{name} lies along {along}", "rewrite exactly these axes")
        stored = frozenset(axis for axis in before if axis.kind != "dense_fixed")
        return _Old({buffers[n]: n for n in first.buffers_to_rewrite}, before, stored)

    def concerns(self, stmt: Stmt) -> bool:
        """Whether *stmt* reads a buffer, or iterates an axis, that is stored anew."""
        for node in walk(stmt):
            if isinstance(node, (Load, Store)):
                buffer = node.buffer
                along = buffer.axes if isinstance(buffer, SparseBuffer) else ()
                if buffer in self.buffers or not self.stored.isdisjoint(along):
                    return True
            elif isinstance(node, SpIter):
                for domain in node.domains:
                    if any(not self.stored.isdisjoint(a.path()) for a in _mentioned(domain)):
                        return True
        return False


@dataclass(frozen=True, slots=True, eq=False)
class _Loop:
    """One domain of an iteration with its variables and their kinds."""

    domain: Domain
    vars: tuple[Var, ...]
    kinds: str


class _Splitter(Rewriter):
    """Replaces iterations by their parts; *axes* are those that the inits needed."""

    def __init__(self, old: _Old, parts: tuple[Part, ...], names: Names) -> None:
        self.old, self.parts, self.names = old, parts, names
        self.axes: list[Axis] = []

    def visit_Expr(self, expr: Expr) -> Node:
        """Leave expressions outside iterations alone; they must not read what is rewritten."""
        for node in walk(expr):
            if isinstance(node, Load) and node.buffer in self.old.buffers:
                raise _outside(node.buffer.name, node)
        return expr

    def visit_Store(self, store: Store) -> Node:
        """Refuse to write what is rewritten outside an iteration."""
        if store.buffer in self.old.buffers:
            raise _outside(store.buffer.name, store)
        return self.visit_Node(store)

    def visit_SpIter(self, it: SpIter) -> Node:
        """Return the inits and one iteration per part."""
        if not self.old.concerns(it):
            return it
        loops = list(self._loops(it))
        updates = _updates(it)
        new: list[Stmt] = []
        head: Stmt | None = None
        if it.init is not None:
            covered = self._covered(loops, self.parts[0])
            head = it.init if covered is not None else None
            if covered is None or covered[1] is not None:
                new.append(self._init(it, it.init, loops, covered))
        for part in self.parts:
            new.append(_Iteration(it, loops, part, self.old).build(updates, head))
            head = None
        return seq(*new)

    def _loops(self, it: SpIter) -> Iterator[_Loop]:
        """Yield the domains of *it*, fused axes one by one; raises FormatError."""
        found: list[Axis] = []
        at = 0
        for domain in it.domains:
            axes = domain_axes(domain)
            width = len(axes) if isinstance(domain, Fuse) else 1
            own, kinds = it.vars[at : at + width], it.kinds[at : at + width]
            at += width
            if set(axes).isdisjoint(self.old.axes):
                if any(not set(self.old.axes).isdisjoint(a.path()) for a in _mentioned(domain)):
                    raise _shape(it, f"{axes[0].name} hangs on an axis that is rewritten")
                yield _Loop(domain, own, kinds)
            elif isinstance(domain, (Axis, Fuse)):
                found += axes
                for axis, var, kind in zip(axes, own, kinds, strict=True):
                    yield _Loop(axis, (var,), kind)
            else:
                raise _shape(it, f"{axes[0].name} is iterated as {type(domain).__name__.lower()}")
        if set(found) & set(self.old.axes) != set(self.old.axes):
            names = ", ".join(axis.name for axis in self.old.axes)
            raise _shape(it, f"it does not iterate over all of {names}")

    def _covered(self, loops: list[_Loop], part: Part) -> tuple[Axis, Expr | None] | None:
        """Say which elements the axes of *part* that are dense reach, each of them once.

        That is, on the one spatial axis before that is rewritten: the axis, and how many of its
        first coordinates (None: all). The init of these can run with the part. None: not known.
        """
        spatial = [x.domain for x in loops if x.kinds == "S" and x.domain in self.old.axes]
        if len(spatial) != 1 or not isinstance(axis := spatial[0], Axis):
            return None
        rule = part.rule
        own = [part.axes[name] for name in rule.axis_map[axis.name]]
        if axis.kind != "dense_fixed" or any(a.kind != "dense_fixed" for a in own):
            return None
        index = rule.backward.results[self.old.axes.index(axis)]
        by_name = dict(zip(rule.axes_after_rewrite, rule.backward.params, strict=True))
        ranges = {by_name[n]: (ZERO, _wide(part.axes[n].length)) for n in rule.axis_map[axis.name]}
        count: Expr = const(1)
        for _, extent in ranges.values():
            count = binary("*", count, extent)
        prover = Prover(Algebra(Env(), trusted=True), ranges)
        inside = BinOp("<=", ZERO, index), BinOp("<", index, count)
        onto = variables(index) <= set(ranges) and all(map(prover.holds, inside))
        if not onto or not all(injective((index,), var, ranges) for var in ranges):
            return None
        algebra = Algebra(Env(), trusted=True)
        left = algebra.of(count) - algebra.of(_wide(axis.length))
        return axis, (None if not left.terms else algebra.of(count).expr())

    def _init(
        self, it: SpIter, init: Stmt, loops: list[_Loop], covered: tuple[Axis, Expr | None] | None
    ) -> SpIter:
        """Return the iteration that runs *init* over all that the first part does not cover."""
        used = variables(init)
        domains: list[Domain] = []
        own: list[Var] = []
        values: dict[Var, Expr] = {}
        for loop in loops:
            if loop.kinds != "S" or used.isdisjoint(loop.vars):
                continue
            (var,), domain = loop.vars, loop.domain
            if not isinstance(domain, Axis):
                raise _shape(it, f"its init runs over a {type(domain).__name__.lower()} domain")
            new = Var(var.name, var.type)
            values[var] = new
            if covered is not None and domain is covered[0] and covered[1] is not None:
                count = covered[1]
                size = binary("-", _wide(domain.length), count)
                domain = self._axis(f"{domain.name}_tail", size)
                values[var] = binary("+", count, new)
            elif domain.kind != "dense_fixed":
                domain = self._axis(f"{domain.name}_all", domain.length)
            domains.append(domain)
            own.append(new)
        body = substitute(init, values)
        kinds, name = "S" * len(own), f"{it.name}_init"
        return SpIter(tuple(own), tuple(domains), kinds, name, None, body, span=it.span)

    def _axis(self, wish: str, length: Expr) -> Axis:
        axis = Axis(self.names.unique(wish), "dense_fixed", length)
        self.axes.append(axis)
        return axis


@dataclass(frozen=True, slots=True, eq=False)
class _Iteration:
    """The iteration *it* over the axes of one part."""

    it: SpIter
    loops: list[_Loop]
    part: Part
    old: _Old

    def build(self, updates: Stmt, init: Stmt | None) -> SpIter:
        """Return it with *updates* and *init* in terms of the new coordinates."""
        rule, it = self.part.rule, self.it
        taken = {var.name for loop in self.loops for var in loop.vars}
        new = tuple(Var(_free(p.name, taken), int64) for p in rule.backward.params)
        runs = {loop.domain: loop.vars[0] for loop in self.loops if loop.domain in self.old.axes}
        before = tuple(runs[axis] for axis in self.old.axes)
        values: dict[Var, Expr] = dict(zip(before, rule.backward.apply(new), strict=True))
        inserted = False
        domains: list[Domain] = []
        own: list[Var] = []
        kinds = ""
        for loop in self.loops:
            if loop.domain not in self.old.axes:
                fresh = tuple(Var(var.name, var.type) for var in loop.vars)
                values.update(zip(loop.vars, fresh, strict=True))
                domains.append(loop.domain)
                own, kinds = [*own, *fresh], kinds + loop.kinds
            elif not inserted:
                inserted = True
                domains += [self.part.axes[name] for name in rule.axes_after_rewrite]
                own, kinds = [*own, *new], kinds + self._kinds()
        after = dict(zip(rule.axes_after_rewrite, new, strict=True))
        place = {self.part.axes[name]: var for name, var in after.items()}
        body = _Body(self, values, dict(zip(self.old.axes, before, strict=True)), place)
        return SpIter(
            *(tuple(own), tuple(domains), kinds, f"{it.name}_{rule.name}"),
            *(None if init is None else body.rewrite(init), body.updates(updates), it.attrs),
            span=it.span,
        )

    def _kinds(self) -> str:
        """A new axis is spatial if a spatial one is made of it."""
        rule = self.part.rule
        spatial = {
            after
            for loop in self.loops
            if loop.kinds == "S" and isinstance(loop.domain, Axis) and loop.domain in self.old.axes
            for after in rule.axis_map[loop.domain.name]
        }
        return "".join("S" if name in spatial else "R" for name in rule.axes_after_rewrite)


class _Body(Rewriter):
    """Rewrites statements to the coordinates of a part."""

    def __init__(
        self,
        iteration: _Iteration,
        values: Mapping[Var, Expr],
        before: Mapping[Axis, Var],
        place: Mapping[Axis, Var],
    ) -> None:
        self.it, self.part, self.old = iteration.it, iteration.part, iteration.old
        self.values, self.before, self.place = values, before, place

    def visit_Var(self, var: Var) -> Node:
        """Return what the coordinate is now."""
        return self.values.get(var, var)

    def visit_Load(self, load: Load) -> Node:
        """Read the part where the buffer is rewritten; only the element iterated is known."""
        if load.buffer not in self.old.buffers:
            return self.visit_Node(load)
        buffer = load.buffer
        assert isinstance(buffer, SparseBuffer)
        for axis, index in zip(buffer.axes, load.indices, strict=True):
            if index is not self.before[axis]:
                raise _outside(buffer.name, load)
        new = self.part.buffers[self.old.buffers[buffer]]
        return Load(new, tuple(self.place[axis] for axis in new.axes), span=load.span)

    def updates(self, stmt: Stmt) -> Stmt:
        """Return *stmt* for what the part stores, leaving out what pads it."""
        new = self.rewrite(stmt)
        if not self.part.rule.padded:
            return new
        (buffer,) = self.part.buffers.values()
        stored = Load(buffer, tuple(self.place[axis] for axis in buffer.axes), span=stmt.span)
        cond = BinOp("!=", stored, const(0, buffer.dtype))
        parts = new.body if isinstance(new, Seq) else (new,)
        return seq(*(_masked(part, buffer, cond) for part in parts))


def _masked(stmt: Stmt, buffer: SparseBuffer, cond: Expr) -> Stmt:
    """Return *stmt* so that it does nothing unless *cond*, which says that *buffer* is not zero.

    A sum of products with the stored value needs no branch: its other factors are zero then, so
    that the product is, whatever they are elsewhere (infinite, NaN).
    """
    found = as_reduction(stmt)
    if isinstance(stmt, Store) and found is not None and found.combiner == "+":
        if any(_is_stored(x, buffer) for x in _factors(found.value)):
            value = found.value
            masked = _mask_factors(value, buffer, cond)
            return _ReplaceExpr(value, masked).rewrite(stmt)
    return If(cond, stmt, span=stmt.span)


def _factors(value: Expr) -> Iterator[Expr]:
    if isinstance(value, BinOp) and value.op == "*":
        yield from _factors(value.lhs)
        yield from _factors(value.rhs)
    else:
        yield value


def _is_stored(factor: Expr, buffer: SparseBuffer) -> bool:
    while isinstance(factor, Cast):
        factor = factor.value
    return isinstance(factor, Load) and factor.buffer is buffer


def _mask_factors(value: Expr, buffer: SparseBuffer, cond: Expr) -> Expr:
    if isinstance(value, BinOp) and value.op == "*":
        lhs, rhs = (_mask_factors(x, buffer, cond) for x in (value.lhs, value.rhs))
        return value.replace(lhs=lhs, rhs=rhs)
    if _is_stored(value, buffer) or isinstance(value, Const) or not value.dtype.is_float:
        return value
    return Select(cond, value, const(0, value.dtype), span=value.span)


class _ReplaceExpr(Rewriter):
    def __init__(self, old: Expr, new: Expr) -> None:
        self.old, self.new = old, new

    def visit_Expr(self, expr: Expr) -> Node:
        """Put the new expression in the place of the old one."""
        return self.new if expr is self.old else self.visit_Node(expr)


def _updates(it: SpIter) -> Stmt:
    """Return the body of *it* without names for values; raises unless its order is free."""
    body = _Inline().rewrite(it.body)
    parts = body.body if isinstance(body, Seq) else (body,)
    written = {n.buffer for n in walk(body) if isinstance(n, Store)}
    for part in parts:
        found = as_reduction(part)
        plain = found is None and isinstance(part, Store) and set(it.kinds) == {"S"}
        if found is not None and not found.is_tuple:
            values: tuple[Expr | None, ...] = (*found.values, *found.indices)
        elif plain and isinstance(part, Store):
            values = (part.value, *part.indices)
        else:
            raise FormatError(
                f"{it.name!r} cannot be decomposed: a statement is not one step of a reduction",
                part.span or it.span,
                hint="write it as C[...] = C[...] + value (also * min max)",
            )
        read = {n.buffer for v in values if v is not None for n in walk(v) if isinstance(n, Load)}
        if read & written:
            raise FormatError(
                f"{it.name!r} cannot be decomposed: a statement reads what another writes",
                part.span or it.span,
                hint="compute it in an sp_iter of its own",
            )
    return body


class _Inline(Rewriter):
    """Puts values in the place of the names that a body gives them."""

    def visit_Let(self, let: Let) -> Node:
        """Substitute the value."""
        return self.rewrite(substitute(let.body, {let.var: let.value}))


def _wide(length: Expr) -> Expr:
    return cast(length, int64)


def _free(wish: str, taken: set[str]) -> str:
    name, count = wish, 0
    while name in taken:
        count += 1
        name = f"{wish}_{count}"
    taken.add(name)
    return name


def _outside(name: str, node: Node) -> FormatError:
    return FormatError(
        f"{name} is decomposed, but used other than at the element that is iterated",
        node.span,
        hint=f"read {name} only inside an sp_iter over its axes, indexed by their variables",
    )


def _shape(it: SpIter, reason: str) -> FormatError:
    return FormatError(
        f"{it.name!r} cannot be decomposed: {reason}",
        it.span,
        hint="iterate over all axes of the buffer, and nothing that hangs on them, in one sp_iter",
    )


__all__ = ["DecomposeFormats", "Decomposition", "Func", "Part", "decompose", "without_unused"]
