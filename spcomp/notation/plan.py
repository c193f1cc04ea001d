"""Index notation, decisions: which nests a statement becomes and how its result is stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, TypeGuard

from spcomp.errors import LoweringError
from spcomp.notation.algebra import (
    ALWAYS,
    Either,
    Presence,
    Stored,
    addends,
    keep,
    leaves,
    presence,
    rebuilt,
    required,
    with_reductions,
)
from spcomp.notation.layout import Layout, dense
from spcomp.notation.loops import Loop, Walk, chain, levels, order_indices
from spcomp.notation.nodes import (
    ARGUMENTS,
    Access,
    Assignment,
    Expr,
    Masked,
    Op,
    Reduce,
    accesses,
    children,
    free,
)
from spcomp.notation.prepare import free_name
from spcomp.notation.semiring import Semiring

Storage: TypeAlias = Literal["dense", "shared", "assembled", "product"]


@dataclass(frozen=True, slots=True)
class Temp:
    """A reduction inside a term: a scalar, computed inside the first *depth* loops."""

    name: str
    depth: int
    nest: Nest


@dataclass(frozen=True, slots=True)
class Nest:
    """Loops around ``target = value``, or ``target = target op value``.

    *present*: what of the presence of *value* is still to be asked in the body; *unsure*: the
    accesses that may meet nothing. *filters*: values decide, too. *partial*: elements are stored
    for which *value* is absent. *starts*: the target is given its first value here, everywhere.
    """

    target: Access
    value: Expr
    op: str | None
    loops: tuple[Loop, ...]
    present: Presence
    temps: tuple[Temp, ...] = ()
    starts: bool = True
    over: tuple[str, ...] = ()
    unsure: frozenset[Access] = frozenset()
    filters: bool = False
    partial: bool = False

    @property
    def fills(self) -> bool:
        """Whether the loops write every element of a dense target, so that none is left over."""
        plain = all(loop.kind in ("dense", "along") for loop in self.loops)
        return plain and self.op is None and self.is_sure and not self.over

    @property
    def is_sure(self) -> bool:
        """Whether the value is present wherever the loops go."""
        return self.present == ALWAYS and not self.filters


@dataclass(frozen=True, slots=True)
class Output:
    """How a result is stored: ``shared`` has the pattern of the operand of *like*."""

    layout: Layout
    storage: Storage = "dense"
    like: Access | None = None
    why: str = "it is asked for"


@dataclass(frozen=True, slots=True)
class Plan:
    """What became of one statement; *converts* are operands that are wanted in another layout."""

    stmt: Assignment
    output: Output
    nests: tuple[Nest, ...] = ()
    converts: Mapping[str, Layout] = field(default_factory=dict)


def plan_statement(
    stmt: Assignment, layouts: Mapping[str, Layout], wanted: Layout | None, semiring: Semiring
) -> Plan:
    """Return the decisions for *stmt*; *wanted* is the layout of the result, if it is given.

    Raises LoweringError for what cannot be done, with a reason and a way out.
    """
    stmt = with_reductions(stmt, semiring)
    planner = _Planner(stmt, layouts, semiring)
    output = planner.output(wanted)
    converts = planner.conversions(output)
    if converts:
        return Plan(stmt, output, (), converts)
    return Plan(stmt, output, planner.nests(output))


class _Planner:
    def __init__(self, stmt: Assignment, layouts: Mapping[str, Layout], semiring: Semiring) -> None:
        self.stmt, self.layouts, self.semiring = stmt, layouts, semiring
        self.sparse = frozenset(n for n, layout in layouts.items() if not layout.is_dense)
        self.taken = set(layouts) | {access.name for access in accesses(stmt.value)}

    # -- the result ---------------------------------------------------------------------------

    def output(self, wanted: Layout | None) -> Output:
        """Choose how the result is stored: as asked for, else dense if an addend is."""
        target = self.stmt.target
        plain = dense(len(target.indices))
        if wanted is not None and wanted.is_dense:
            return Output(plain)
        formula, product = self._pattern()
        if wanted is None and formula == ALWAYS and not product:
            return Output(plain, why="it is present everywhere")
        if product and adds_up(self.stmt.value) and len(target.indices) == 2:
            return self._product(wanted)
        if product:
            raise LoweringError(
                f"the pattern of {target} is that of a product of sparse operands, which is not"
                " assembled yet",
                self.stmt.at,
                hint=f'ask for a dense result, formats={{"{target.name}": "dense"}}, or mask it:'
                f" {target} = (...) if M[...]",
            )
        if formula == ALWAYS:
            raise LoweringError(
                f"{target} is present everywhere, but is to be stored as {wanted}",
                self.stmt.at,
                hint=f'leave formats out, or ask for "dense", for {target.name}',
            )
        return self._sparse_output(formula, wanted)

    def _pattern(self) -> tuple[Presence, bool]:
        """Return where the result is present, as operands with all its sparse indices say.

        The second: whether it is instead a product of operands with some of them each.
        """
        out = self.stmt.target.indices
        core = _core(self.stmt.value, self.semiring)
        formula = presence(core, self.sparse)
        every = leaves(formula)
        covered = {i for a in every for i in a.indices} & set(out)
        whole = frozenset(a for a in every if covered and covered <= self._outer(a))
        kept = keep(formula, whole)
        parts = [presence(part, self.sparse) for part, _ in addends(core, self.semiring)]
        needed = [required(part) for part in parts]
        product = (
            kept == ALWAYS
            and len(out) > 1
            and all({i for a in own for i in a.indices} >= set(out) for own in needed)
            and any(len({a.name for a in own}) > 1 for own in needed)
        )
        return kept, product

    def _outer(self, access: Access) -> set[str]:
        """The indices of the levels of *access* above the first that is reduced.

        One level of several is no pattern: which rows of a matrix are empty is not kept.
        """
        names = [name for name, _, _ in levels(access, self.layouts[access.name])]
        inner = [at for at, name in enumerate(names) if name not in self.stmt.target.indices]
        own = names[: inner[0]] if inner else names
        if len(own) == 1 and inner:
            return set()
        has_sparse = any(k != "dense" for k in self.layouts[access.name].levels[: len(own)])
        return set(own) if has_sparse and len(set(names)) == len(names) else set()

    def _sparse_output(self, formula: Presence, wanted: Layout | None) -> Output:
        target, every = self.stmt.target, leaves(formula)
        first = every[0]
        if len(every) == 1 and not _filters(self.stmt.value, self.sparse):
            layout = self._like(first)
            if wanted is None or (wanted.levels, wanted.order) == (layout.levels, layout.order):
                return Output(layout, "shared", first, f"its pattern is that of {first}")
        if self.stmt.accumulates:
            raise LoweringError(f"{target} += needs a dense {target.name}", self.stmt.at)
        if len(target.indices) != 2 or set(first.indices) != set(target.indices):
            raise LoweringError(
                f"the pattern of {target} is not known before, and it is no matrix",
                self.stmt.at,
                hint=f'ask for a dense result: formats={{"{target.name}": "dense"}}',
            )
        outer = first.indices[self.layouts[first.name].order[0]]
        order = (0, 1) if outer == target.indices[0] else (1, 0)
        layout = Layout(("dense", "compressed"), order, self.layouts[first.name].idtype)
        if wanted is not None and wanted.levels != layout.levels:
            raise LoweringError(
                f"{target} cannot be assembled as {wanted}",
                self.stmt.at,
                hint="assembled results are csr or csc",
            )
        layout = layout if wanted is None else wanted
        idtypes = [self.layouts[a.name].idtype for a in every]
        idtype = max((layout.idtype, *idtypes), key=lambda t: t.bits)
        why = f"its pattern is {formula}"
        return Output(replace(layout, idtype=idtype), "assembled", None, why)

    def _product(self, wanted: Layout | None) -> Output:
        """The output of a product of sparse operands: row by row, in any order."""
        every = leaves(presence(_core(self.stmt.value, self.semiring), self.sparse))
        idtype = max((self.layouts[a.name].idtype for a in every), key=lambda t: t.bits)
        layout = wanted or Layout(("dense", "compressed"), (0, 1))
        if layout.levels != ("dense", "compressed"):
            raise LoweringError(
                f"{self.stmt.target} cannot be assembled as {layout}",
                self.stmt.at,
                hint="assembled results are csr or csc",
            )
        why = f"its pattern is that of {' * '.join(map(str, every))}"
        return Output(replace(layout, idtype=idtype), "product", None, why)

    def _like(self, access: Access) -> Layout:
        """The layout of a result along the outer levels of *access*, then along dense indices."""
        out, source = self.stmt.target.indices, self.layouts[access.name]
        own = [name for name, _, _ in levels(access, source)]
        count = next((at for at, name in enumerate(own) if name not in out), len(own))
        rest = [name for name in out if name not in own[:count]]
        order = tuple(out.index(name) for name in (*own[:count], *rest))
        return Layout((*source.levels[:count], *("dense",) * len(rest)), order, source.idtype)

    def conversions(self, output: Output) -> dict[str, Layout]:
        """Return the operands of an assembled result that are not stored in its order."""
        if output.storage not in ("assembled", "product"):
            return {}
        outer = self._result_order(output)
        wrong: dict[str, Layout] = {}
        formula, _ = self._pattern()
        if output.storage == "product":
            formula = presence(_core(self.stmt.value, self.semiring), self.sparse)
        for access in leaves(formula):
            layout = self.layouts[access.name]
            if len(access.indices) != 2 or len(set(access.indices)) < 2:
                continue
            order = tuple(access.indices.index(name) for name in outer if name in access.indices)
            if layout.levels != ("dense", "compressed") or layout.order != order:
                wrong[access.name] = Layout(("dense", "compressed"), order, layout.idtype)
        return wrong

    # -- the nests ----------------------------------------------------------------------------

    def nests(self, output: Output) -> tuple[Nest, ...]:
        """Return the nests that compute the result, in order."""
        target, value = self.stmt.target, self.stmt.value
        if output.storage != "dense":
            return (self._sparse_nest(output),)
        add = self.semiring.add
        parts = addends(value, self.semiring)
        split = len(parts) > 1 or self.stmt.accumulates
        if split and any(adds_up(p) and p.op != add for p, _ in parts):
            parts = [(value, False)]
        adds = len(parts) > 1 or self.stmt.accumulates
        made: list[Nest] = []
        for part, minus in parts:
            op, over, body = self._reduction(part, add if adds else None)
            signed = Op("neg", (body,)) if minus else body
            made.append(self.nest(target, signed, op, over, ()))
        if self.stmt.accumulates:
            return tuple(replace(nest, starts=False) for nest in made)
        return tuple(_started(made))

    def _reduction(self, part: Expr, op: str | None) -> tuple[str | None, tuple[str, ...], Expr]:
        """How *part* is combined into the result, by *op* if it does not say: op, indices, term."""
        if adds_up(part) and op in (None, part.op):
            return part.op, part.indices, part.body
        return op, (), part

    def _result_order(self, output: Output) -> tuple[str, ...]:
        """The indices in the order in which an assembled result is computed."""
        first, *rest = (self.stmt.target.indices[dim] for dim in output.layout.order)
        over = self.stmt.value.indices if adds_up(self.stmt.value) else ()
        return (first, *over, *rest) if output.storage == "product" else (first, *rest)

    def _sparse_nest(self, output: Output) -> Nest:
        target, value = self.stmt.target, self.stmt.value
        if output.storage == "product":
            assert adds_up(value)
            order = (self._result_order(output),)
            return self.nest(target, value.body, value.op, value.indices, order, rows=order[0][0])
        if output.like is not None:
            layout = self.layouts[output.like.name]
            hard = chain(output.like, layout)
            hard = tuple(name for name in hard if name in target.indices)
            add = self.semiring.add if self.stmt.accumulates else None
            op, over, body = self._reduction(value, add)
            if op is not None:
                nest = self.nest(target, body, op, over, (hard,))
                return replace(nest, starts=not self.stmt.accumulates)
        else:
            hard = tuple(target.indices[dim] for dim in output.layout.order)
        formula = self._pattern()[0]
        rows = hard[0] if output.like is None else ""
        nest = self.nest(target, value, None, (), (hard,), formula=formula, rows=rows)
        return replace(nest, partial=formula != presence(value, self.sparse))

    def nest(
        self,
        target: Access,
        value: Expr,
        op: str | None,
        over: tuple[str, ...],
        hard: tuple[tuple[str, ...], ...],
        outer: Walk | None = None,
        formula: Presence | None = None,
        rows: str = "",
    ) -> Nest:
        """Return the nest that puts *value*, reduced by *op* over the indices *over*, in *target*.

        *hard*: chains of indices that must be kept. *formula*: where the target is present, if
        that is not where *value* is. *rows*: an index that takes every coordinate.
        """
        walk = Walk(self.layouts) if outer is None else outer.inside()
        formula = presence(value, self.sparse) if formula is None else formula
        indices = (*target.indices, *over)
        chains = [*hard, *(chain(a, self.layouts[a.name]) for a in _by_need(formula))]
        operands = (target, *accesses(value))
        asked = [a for a in _read_here(value) if a.name in self.sparse]
        order = order_indices(indices, chains, operands)
        loops: list[Loop] = []
        stages = [walk.inside()]
        for name in order:
            loops.append(walk.open(name, formula, asked) if name != rows else walk.all(name))
            stages.append(walk.inside())
        value, temps = self._hoist(value, order, stages)
        unsure = frozenset(a for a in asked if walk.missing(a))
        return Nest(
            target,
            value,
            op,
            tuple(loops),
            _remaining(formula, walk, unsure),
            temps,
            over=over,
            unsure=unsure,
            filters=_filters(value, self.sparse),
        )

    def _hoist(
        self, value: Expr, order: tuple[str, ...], stages: list[Walk]
    ) -> tuple[Expr, tuple[Temp, ...]]:
        """Return *value* with its reductions replaced by scalars, and these."""
        temps: list[Temp] = []

        def rewrite(term: Expr) -> Expr:
            if not isinstance(term, Reduce):
                return rebuilt(term, rewrite)
            name = free_name(self.stmt.target.name, self.taken)
            depth = max((order.index(n) + 1 for n in free(term) if n in order), default=0)
            own = Access(name, ())
            nest = self.nest(own, term.body, term.op, term.indices, (), stages[depth])
            temps.append(Temp(name, depth, nest))
            return own

        done = rewrite(value)
        return done, tuple(temps)


def adds_up(value: Expr) -> TypeGuard[Reduce]:
    """Whether *value* can be reduced in place, into the result."""
    return isinstance(value, Reduce) and value.op not in ARGUMENTS


def _core(value: Expr, semiring: Semiring) -> Expr:
    """*value* with the reductions of its addends opened: their operands speak for the pattern."""
    if adds_up(value):
        return value.body
    if isinstance(value, Op) and value.op in ("+", "-", "neg"):
        return replace(value, args=tuple(_core(arg, semiring) for arg in value.args))
    return value


def _filters(term: Expr, sparse: frozenset[str]) -> bool:
    """Whether values decide where *term* is present."""
    if isinstance(term, Masked):
        pattern = isinstance(term.cond, Access) and term.cond.name in sparse
        if not pattern or term.other is not None:
            return True
    return any(_filters(child, sparse) for child in children(term) if not isinstance(term, Reduce))


def _read_here(term: Expr) -> tuple[Access, ...]:
    """The accesses of *term* outside the reductions in it."""
    if isinstance(term, Access):
        return (term,)
    below = () if isinstance(term, Reduce) else children(term)
    return tuple(dict.fromkeys(access for child in below for access in _read_here(child)))


def _by_need(formula: Presence) -> tuple[Access, ...]:
    """The accesses of *formula*, those first that are always needed."""
    return tuple(dict.fromkeys((*required(formula), *leaves(formula))))


def _remaining(formula: Presence, walk: Walk, unsure: frozenset[Access]) -> Presence:
    """What of *formula* the loops do not make sure."""
    left = keep(formula, unsure)
    if not isinstance(left, Either) or not all(isinstance(part, Stored) for part in left.parts):
        return left
    missing = [walk.missing(access) for access in leaves(left)]
    one = {places[0] for places in missing if len(places) == 1}
    unions = [set(loop.parts) for loop in walk.loops.values() if loop.kind == "union"]
    exact = all(len(places) == 1 for places in missing) and one in unions
    return ALWAYS if exact else left


def _started(nests: list[Nest]) -> list[Nest]:
    """Put first what fills the result; the others add to it."""
    plain = [replace(nest, op=None) for nest in nests]
    first = next((at for at, nest in enumerate(plain) if nest.fills), 0)
    head = plain[first] if plain[first].fills else nests[first]
    rest = [nest for at, nest in enumerate(nests) if at != first]
    return [head, *(replace(nest, starts=False) for nest in rest)]
