"""Index notation, decisions: the nests of a statement, and how its result is stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from spcomp.dtypes import DType
from spcomp.notation.algebra import (
    ALWAYS,
    Either,
    Presence,
    Stored,
    addends,
    keep,
    leaves,
    masked_addends,
    presence,
    rebuilt,
    required,
    with_reductions,
)
from spcomp.notation.layout import Layout
from spcomp.notation.loops import Loop, Walk, chain, is_probed, levels, order_indices
from spcomp.notation.nodes import (
    Access,
    Assignment,
    Expr,
    Op,
    Reduce,
    accesses,
    children,
    free,
    walk,
)
from spcomp.notation.prepare import free_name
from spcomp.notation.reason import Reason
from spcomp.notation.results import Chooser, Output, adds_up, core, filters
from spcomp.notation.semiring import Semiring
from spcomp.notation.types import Types


@dataclass(frozen=True, slots=True)
class Temp:
    """A reduction inside a term: a scalar that is computed inside the first *depth* loops."""

    name: str
    depth: int
    nest: Nest


@dataclass(frozen=True, slots=True)
class Nest:
    """Loops around ``target = value``, or ``target = target op value``.

    *present*: the part of the presence of *value* that the body checks; *unsure*: the accesses that
    may be absent there. *filters*: values decide, too. *partial*: some elements are stored
    although *value* is absent. *starts*: the nest gives the target its first value, everywhere.
    *later*: the operator that combines elements after the program. *minus*: the value is
    subtracted, in the type of the result. *over*: the indices that are reduced.
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
        """The operator that combines values, here or later."""
        return self.op or self.later

    @property
    def fills(self) -> bool:
        """Whether the loops write every element of a dense target."""
        plain = all(loop.kind in ("dense", "along") for loop in self.loops)
        return plain and self.op is None and self.is_sure and not self.over

    @property
    def is_sure(self) -> bool:
        """Whether the value is present wherever the loops go."""
        return self.present == ALWAYS and not self.filters


@dataclass(frozen=True, slots=True)
class Plan:
    """The decisions for one statement.

    *dtype*: the type of the result. *converts*: the operands that need another layout. *widens*:
    whether the parts of a statement that is split have to be of the type of its result.
    """

    stmt: Assignment
    output: Output
    dtype: DType
    nests: tuple[Nest, ...] = ()
    converts: Mapping[str, Layout] = field(default_factory=dict)
    widens: bool = False

    @property
    def needs_other_layouts(self) -> Reason | None:
        """The reason that an operand has to be converted first; None if there is none."""
        for name, layout in self.converts.items():
            return Reason(f"{name} would have to be stored as {layout}")
        return None


def plan_statement(
    stmt: Assignment,
    layouts: Mapping[str, Layout],
    wanted: Layout | None,
    semiring: Semiring,
    alike: frozenset[str],
    types: Types,
) -> Plan | Reason:
    """Return the decisions for *stmt*, or why there are none over these *layouts*.

    *wanted*: the layout of the result, if one is requested. *alike*: operands of one dtype, which
    can be multiplied in any order. *types*: the types of terms.
    Raises ScriptError where these do not go together.
    """
    stmt = _with_masked_addends(with_reductions(stmt, semiring), layouts, semiring)
    widens = types.widens(stmt)
    stmt = types.widened(stmt)
    chooser = Chooser(stmt, layouts, semiring, alike)
    output = chooser.output(wanted)
    if isinstance(output, Reason):
        return output
    narrow, dtype = types.narrow(stmt), types.result(stmt)
    planner = _Planner(stmt, layouts, semiring, chooser, narrow=bool(narrow))
    if output.storage == "dense" and any(map(adds_up, narrow)):
        output = replace(output, storage="split")
    if output.storage == "split":
        return Plan(stmt, output, dtype, widens=widens)
    converts, nests = planner.attempt(output)
    if nests and output.storage == "product" and not _is_one_nest(nests[0], output, layouts):
        output = chooser.by_keys()
        converts, nests = planner.attempt(output)
    if nests and output.keys is not None:
        rows = nests[0].loops[0].kind == "dense" and len(nests[0].loops) > 1
        output = replace(output, keys=replace(output.keys, rows=rows))
    return Plan(stmt, output, dtype, nests, converts)


def _with_masked_addends(
    stmt: Assignment, layouts: Mapping[str, Layout], semiring: Semiring
) -> Assignment:
    """Return *stmt*, in which addends are masked one by one if they, not the mask, are sparse."""
    sparse = frozenset(name for name, layout in layouts.items() if not layout.is_dense)
    value = masked_addends(stmt.value, semiring)
    if value is stmt.value or presence(stmt.value, sparse) != ALWAYS:
        return stmt
    changed = replace(stmt, value=value)
    return stmt if presence(core(value, semiring), sparse) == ALWAYS else changed


def _is_one_nest(nest: Nest, output: Output, layouts: Mapping[str, Layout]) -> bool:
    """Whether the product *nest* is one iteration, below the outer levels of *output*."""
    whole = not any(temp.depth for temp in nest.temps)
    return whole and (output.like is None or _is_below(nest, output, layouts))


def _is_below(nest: Nest, output: Output, layouts: Mapping[str, Layout]) -> bool:
    """Whether the loops of *nest* go through the outer levels that *output* takes."""
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
            if is_probed(access, formula, self.layouts):
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
        target = self.stmt.target
        if output.storage != "dense":
            return (self._sparse_nest(output),)
        add = self.semiring.add
        parts = addends(self.stmt.value, self.semiring)
        split = len(parts) > 1 or self.stmt.accumulates
        mixed = any(adds_up(p) and p.op != add and (split or minus) for p, minus in parts)
        if self.narrow or mixed or all(self._is_dense(part) for part, _ in parts):
            parts = [self.stmt.addend]
        adds = len(parts) > 1 or self.stmt.accumulates
        nests: list[Nest] = []
        for part, minus in parts:
            op, over, body = self._reduction(part, add if adds else None)
            signed = Op("neg", (body,)) if minus and not adds else body
            nest = self.nest(target, signed, op, over, ())
            nests.append(replace(nest, minus=minus and adds))
        if self.stmt.accumulates:
            return tuple(replace(nest, starts=False) for nest in nests)
        return tuple(_filling_first(nests))

    def _is_dense(self, part: Expr) -> bool:
        """Whether *part* has a value everywhere that needs no loops of its own."""
        plain = not any(isinstance(node, Reduce) for node in walk(part))
        return plain and presence(part, self.sparse) == ALWAYS and not filters(part, self.sparse)

    def _reduction(self, part: Expr, op: str | None) -> tuple[str | None, tuple[str, ...], Expr]:
        """Return how *part* is put in the result: its operator, else *op*; indices; term."""
        if adds_up(part) and op in (None, part.op):
            return part.op, part.indices, part.body
        return op, (), part

    def _result_order(self, output: Output) -> tuple[str, ...]:
        """Return the indices in the order in which an assembled result is computed."""
        if output.keys is not None:
            return output.keys.indices
        *outer, last = (self.stmt.target.indices[dim] for dim in output.layout.order)
        if output.storage != "product" or not adds_up(self.stmt.value):
            return (*outer, last)
        over = self.stmt.value.indices
        if output.like is not None:
            path = chain(output.like, self.layouts[output.like.name])
            over = tuple(sorted(over, key=lambda n: path.index(n) if n in path else len(path)))
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
            value, minus = self.stmt.addend
            op, over, body = (add, (), value) if self.narrow else self._reduction(value, add)
            if op is not None:
                nest = self.nest(target, body, op, over, (hard,))
                return replace(nest, starts=not self.stmt.accumulates, minus=minus)
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

        *hard*: chains of indices whose order is fixed. *outer*: the loops around it. *formula*:
        where the target is present, by default where *value* is. *rows*: an index whose loop takes
        every coordinate.
        """
        walk = Walk(self.layouts) if outer is None else outer.inside()
        formula = presence(value, self.sparse) if formula is None else formula
        indices = (*target.indices, *over)
        chains = [*hard, *(chain(a, self.layouts[a.name]) for a in _needed_first(formula))]
        operands = (target, *accesses(value, vectors=False))
        asked = [a for a in _outer_accesses(value) if a.name in self.sparse]
        order = order_indices(indices, chains, operands, self.layouts)
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
        """Return *value* with its reductions replaced by scalars, and the scalars."""
        temps: list[Temp] = []

        def rewrite(term: Expr) -> Expr:
            if not isinstance(term, Reduce):
                return rebuilt(term, rewrite)
            name = free_name(self.stmt.target.name, self.taken)
            depth = max((order.index(n) + 1 for n in free(term) if n in order), default=0)
            scalar = Access(name, ())
            nest = self.nest(scalar, term.body, term.op, term.indices, (), stages[depth])
            temps.append(Temp(name, depth, nest))
            return scalar

        value = rewrite(value)
        return value, tuple(temps)


def _outer_accesses(term: Expr) -> tuple[Access, ...]:
    """Return the accesses of *term* outside the reductions in it."""
    if isinstance(term, Access):
        return (term,)
    below = () if isinstance(term, Reduce) else children(term)
    return tuple(dict.fromkeys(access for child in below for access in _outer_accesses(child)))


def _needed_first(formula: Presence) -> tuple[Access, ...]:
    """Return the accesses of *formula*, those first that are always needed."""
    return tuple(dict.fromkeys((*required(formula), *leaves(formula))))


def _remaining(formula: Presence, walk: Walk, unsure: frozenset[Access]) -> Presence:
    """Return the part of *formula* that the loops do not ensure."""
    rest = keep(formula, unsure)
    if not isinstance(rest, Either) or not all(isinstance(part, Stored) for part in rest.parts):
        return rest
    last = [walk.missing(access)[-1] for access in leaves(rest)]  # it is below the others
    unions = [set(loop.parts) for loop in walk.loops.values() if loop.kind == "union"]
    return ALWAYS if set(last) in unions else rest


def _filling_first(nests: list[Nest]) -> list[Nest]:
    """Return *nests* with one that fills the result first; the others add to it."""
    plain = [replace(nest, op=None, later=nest.op) for nest in nests]
    first = next((at for at, nest in enumerate(plain) if nest.fills), 0)
    head = plain[first] if plain[first].fills else nests[first]
    rest = [nest for at, nest in enumerate(nests) if at != first]
    return [head, *(replace(nest, starts=False) for nest in rest)]
