"""Index notation, decisions: which nests a statement becomes and how its result is stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

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
from spcomp.notation.layout import Layout
from spcomp.notation.loops import Loop, Walk, chain, is_asked, levels, order_indices
from spcomp.notation.nodes import (
    Access,
    Assignment,
    Expr,
    Op,
    Reduce,
    accesses,
    children,
    free,
)
from spcomp.notation.prepare import free_name
from spcomp.notation.results import Chooser, Output, adds_up, filters
from spcomp.notation.semiring import Semiring
from spcomp.notation.types import Types


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
    *later*: what elements are combined by when the program is over. *minus*: the value is
    subtracted, in the type of the result.
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
    later: str | None = None
    minus: bool = False

    @property
    def combines(self) -> str | None:
        """What values are combined by, here or later."""
        return self.op or self.later

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
class Plan:
    """What became of one statement; *converts* are operands that are wanted in another layout."""

    stmt: Assignment
    output: Output
    nests: tuple[Nest, ...] = ()
    converts: Mapping[str, Layout] = field(default_factory=dict)


def plan_statement(
    stmt: Assignment,
    layouts: Mapping[str, Layout],
    wanted: Layout | None,
    semiring: Semiring,
    alike: frozenset[str] = frozenset(),
    types: Types | None = None,
) -> Plan:
    """Return the decisions for *stmt*; *wanted* is the layout of the result, if it is given.

    *alike* are operands of one dtype, which can be multiplied in any order; *types*: those of
    terms, if they are known.

    Raises LoweringError for what cannot be done, with a reason and a way out.
    """
    stmt = with_reductions(stmt, semiring)
    chooser = Chooser(stmt, layouts, semiring, alike)
    output = chooser.output(wanted)
    narrow = () if types is None else types.narrow(stmt)
    planner = _Planner(stmt, layouts, semiring, chooser, narrow=bool(narrow))
    if output.storage == "dense" and any(map(adds_up, narrow)):
        output = replace(output, storage="split")
    if output.storage == "split":
        return Plan(stmt, output)
    converts, nests = planner.attempt(output)
    if nests and output.storage == "product" and not _is_one_nest(nests[0], output, layouts):
        output = chooser.by_keys()
        converts, nests = planner.attempt(output)
    if nests and output.keys is not None:
        rows = nests[0].loops[0].kind == "dense" and len(nests[0].loops) > 1
        output = replace(output, keys=replace(output.keys, rows=rows))
    return Plan(stmt, output, nests, converts)


def _is_one_nest(nest: Nest, output: Output, layouts: Mapping[str, Layout]) -> bool:
    """Whether the product *nest* is one iteration, below the levels that *output* is under."""
    whole = not any(temp.depth for temp in nest.temps)
    return whole and (output.like is None or _stands_under(nest, output, layouts))


def _stands_under(nest: Nest, output: Output, layouts: Mapping[str, Layout]) -> bool:
    """Whether the loops of *nest* go through the outer levels of the operand of *output*."""
    assert output.like is not None
    loops = {loop.index: loop for loop in nest.loops}
    outer = levels(output.like, layouts[output.like.name])[: len(output.layout.order) - 1]
    return all(
        loops[index].parts == (place,) if kind != "dense" else loops[index].kind == "dense"
        for index, kind, place in outer
    )


class _Planner:
    def __init__(
        self,
        stmt: Assignment,
        layouts: Mapping[str, Layout],
        semiring: Semiring,
        chooser: Chooser,
        *,
        narrow: bool,
    ) -> None:
        self.stmt, self.layouts, self.semiring, self.chooser = stmt, layouts, semiring, chooser
        self.narrow = narrow  # whether a sum among the addends has a type of its own
        self.sparse = chooser.sparse
        self.taken = set(layouts) | {access.name for access in accesses(stmt.value)}

    def attempt(self, output: Output) -> tuple[dict[str, Layout], tuple[Nest, ...]]:
        """Return the operands to convert first, or the nests."""
        converts = self.conversions(output)
        return converts, () if converts else self.nests(output)

    def conversions(self, output: Output) -> dict[str, Layout]:
        """Return the operands of an assembled result that are not stored in its order."""
        if not output.is_assembled:
            return {}
        outer = self._result_order(output)
        matrices = output.keys is None and output.like is None
        wrong: dict[str, Layout] = {}
        formula = self.chooser.formula(output)
        for access in leaves(formula):
            layout, rank = self.layouts[access.name], len(access.indices)
            if len(set(access.indices)) < rank or (matrices and rank != 2):
                continue
            if is_asked(access, formula, self.layouts):
                continue
            order = tuple(access.indices.index(name) for name in outer if name in access.indices)
            order += tuple(dim for dim in layout.order if dim not in order)
            tree = layout.order[: layout.depth]
            rows = ("dense", "compressed")
            if matrices and (layout.levels, layout.order) != (rows, order):
                wrong[access.name] = Layout(rows, order, layout.idtype)
            elif not matrices and tree != tuple(dim for dim in order if dim in tree):
                kinds = rows if layout.levels == rows else ("compressed",) * rank
                wrong[access.name] = Layout(kinds, order, layout.idtype)
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
        own = any(adds_up(p) and p.op != add and (split or minus) for p, minus in parts)
        if self.narrow or own:
            parts = [(value, False)]
        adds = len(parts) > 1 or self.stmt.accumulates
        made: list[Nest] = []
        for part, minus in parts:
            op, over, body = self._reduction(part, add if adds else None)
            signed = Op("neg", (body,)) if minus and not adds else body
            nest = self.nest(target, signed, op, over, ())
            made.append(replace(nest, minus=minus and adds))
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
        if output.keys is not None:
            return output.keys.indices
        *outer, last = (self.stmt.target.indices[dim] for dim in output.layout.order)
        if output.storage != "product" or not adds_up(self.stmt.value):
            return (*outer, last)
        over = self.stmt.value.indices
        if output.like is not None:
            own = chain(output.like, self.layouts[output.like.name])
            over = tuple(sorted(over, key=lambda n: own.index(n) if n in own else len(own)))
        return (*outer, *over, last)

    def _sparse_nest(self, output: Output) -> Nest:
        target, value = self.stmt.target, self.stmt.value
        formula = self.chooser.formula(output)
        if output.is_assembled:
            order = self._result_order(output)
            rows = order[0] if output.keys is None and output.like is None else ""
            if output.storage == "product":
                assert adds_up(value)
                return self.nest(target, value.body, value.op, value.indices, (order,), rows=rows)
            later = None if output.keys is None else output.keys.op
            if output.keys is not None:
                target = Access(target.name, order, at=target.at)
            if later is not None and adds_up(value):
                value = value.body
            nest = self.nest(target, value, None, (), (order,), formula=formula, rows=rows)
            nest = replace(nest, later=later)
        else:
            assert output.like is not None
            hard = chain(output.like, self.layouts[output.like.name])
            hard = tuple(name for name in hard if name in target.indices)
            add = self.semiring.add if self.stmt.accumulates else None
            op, over, body = (add, (), value) if self.narrow else self._reduction(value, add)
            if op is not None:
                nest = self.nest(target, body, op, over, (hard,))
                return replace(nest, starts=not self.stmt.accumulates)
            nest = self.nest(target, value, None, (), (hard,), formula=formula)
        return replace(nest, partial=formula != presence(nest.value, self.sparse))

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
            filters=filters(value, self.sparse),
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
    last = [walk.missing(access)[-1] for access in leaves(left)]  # it is under those before it
    unions = [set(loop.parts) for loop in walk.loops.values() if loop.kind == "union"]
    return ALWAYS if set(last) in unions else left


def _started(nests: list[Nest]) -> list[Nest]:
    """Put first what fills the result; the others add to it."""
    plain = [replace(nest, op=None, later=nest.op) for nest in nests]
    first = next((at for at, nest in enumerate(plain) if nest.fills), 0)
    head = plain[first] if plain[first].fills else nests[first]
    rest = [nest for at, nest in enumerate(nests) if at != first]
    return [head, *(replace(nest, starts=False) for nest in rest)]
