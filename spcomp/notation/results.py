"""Index notation, results: how the result of a statement is stored, and why, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations
from typing import Literal, TypeAlias, TypeGuard
from typing import cast as typed

from spcomp.dtypes import DType, int32
from spcomp.notation.algebra import (
    ALWAYS,
    Presence,
    addends,
    asked_of,
    keep,
    leaves,
    presence,
    required,
)
from spcomp.notation.layout import Layout, dense
from spcomp.notation.loops import chain, levels, order_indices, too_many_cases
from spcomp.notation.nodes import (
    ARG_REDUCTIONS,
    Access,
    Assignment,
    Call,
    Expr,
    Masked,
    Number,
    Op,
    Reduce,
    Scalar,
    accesses,
    children,
    free,
)
from spcomp.notation.reason import Reason
from spcomp.notation.semiring import Semiring

DISTRIBUTIVE = frozenset(
    {("+", "*"), ("min", "+"), ("max", "+"), ("min", "max"), ("max", "min"), ("or", "and")}
)
Storage: TypeAlias = Literal["dense", "shared", "assembled", "product", "split"]

ROWS = (("dense", "compressed"), ("dense", "compressed(unordered)"))  # assembled as they are


@dataclass(frozen=True, slots=True)
class Keys:
    """Numbers that are assembled in the place of the coordinates of a result that is no matrix.

    A number has the coordinates of *indices* as digits, in the order of the loops; if *rows*, it is
    kept under the first of them. *op* combines the values of an element, one for each coordinate of
    the reduced indices; None: no index is reduced.
    """

    indices: tuple[str, ...]
    op: str | None = None
    rows: bool = False

    @property
    def digits(self) -> tuple[str, ...]:
        """The indices that make up the number."""
        return self.indices[1:] if self.rows else self.indices


@dataclass(frozen=True, slots=True)
class Output:
    """How a result is stored.

    ``dense``; ``shared``: with the pattern of the operand of *like*; ``assembled``: at ascending
    coordinates; ``product``: row by row in any order, below the levels of the operand of *like* if
    there is one; ``split``: the statement has to be split. *keys*: what the program assembles in
    its place. *why*: the reason, for the user.
    """

    layout: Layout
    storage: Storage = "dense"
    like: Access | None = None
    why: str = "it is asked for"
    keys: Keys | None = None

    @property
    def is_assembled(self) -> bool:
        """Whether the program that computes it also finds its pattern."""
        return self.storage in ("assembled", "product")


class Chooser:
    """Chooses how the result of *stmt*, whose reductions are written out, is stored.

    *alike*: operands of one dtype, which can be multiplied in any order.
    """

    def __init__(
        self,
        stmt: Assignment,
        layouts: Mapping[str, Layout],
        semiring: Semiring,
        alike: frozenset[str] = frozenset(),
    ) -> None:
        self.stmt, self.layouts, self.semiring, self.alike = stmt, layouts, semiring, alike
        self.sparse = frozenset(n for n, layout in layouts.items() if not layout.is_dense)
        self.core = core(stmt.value, semiring)

    def output(self, wanted: Layout | None) -> Output | Reason:
        """Return the output in the layout *wanted*; by default dense if an addend is, else sparse.

        A Reason if the result cannot be stored as *wanted*.
        """
        plain = dense(len(self.stmt.target.indices))
        if (wanted is not None and wanted.is_dense) or not plain.order:
            return Output(plain)
        if self.stmt.is_dense:
            return Output(plain, why="a reduction inside a value is present everywhere")
        formula, product = self.pattern()
        if formula != ALWAYS and not self.stmt.is_exact:
            return self._of_whole_operands(formula, wanted)
        if formula == ALWAYS and wanted is None and not product:
            return Output(plain, why="it is present everywhere")
        return self._of_several_operands(wanted)

    # -- where it is present ------------------------------------------------------------------

    def pattern(self) -> tuple[Presence, bool]:
        """Return where the result is present, as operands with all its sparse indices say.

        And whether it is instead a product of operands that have some of these indices each.
        """
        out = self.stmt.target.indices
        formula = presence(self.core, self.sparse)
        operands = leaves(formula)
        covered = {i for a in operands for i in a.indices} & set(out)
        exact = self.stmt.is_exact
        whole = frozenset(a for a in operands if exact or (covered and covered <= self._outer(a)))
        kept = keep(formula, whole)
        parts = [presence(part, self.sparse) for part, _ in addends(self.core, self.semiring)]
        needed = [required(part) for part in parts]
        product = (
            kept == ALWAYS
            and len(out) > 1
            and all({i for a in factors for i in a.indices} >= set(out) for factors in needed)
            and any(len({(a.name, a.indices) for a in factors}) > 1 for factors in needed)
        )
        return kept, product

    def _outer(self, access: Access) -> set[str]:
        """Return the indices of the levels of *access* above the first that is reduced.

        A single level of several gives none: a result does not keep which rows are empty.
        """
        names = [name for name, _, _ in levels(access, self.layouts[access.name])]
        inner = [at for at, name in enumerate(names) if name not in self.stmt.target.indices]
        outer_names = names[: inner[0]] if inner else names
        if len(outer_names) == 1 and inner:
            return set()
        has_sparse = any(k != "dense" for k in self.layouts[access.name].levels[: len(outer_names)])
        return set(outer_names) if has_sparse and len(set(names)) == len(names) else set()

    def formula(self, output: Output) -> Presence:
        """Return where elements of *output* are stored."""
        kept, _ = self.pattern()
        return kept if kept != ALWAYS and output.storage != "product" else self.full()

    def full(self) -> Presence:
        """Return where the result is present, as all operands say; reductions where a term is."""
        return presence(self.core, self.sparse)

    # -- operands with all indices decide -----------------------------------------------------

    def _of_whole_operands(self, formula: Presence, wanted: Layout | None) -> Output:
        operands = leaves(formula)
        if len(operands) == 1 and not filters(self.stmt.value, self.sparse):
            layout, why = self._like(operands[0]), f"its pattern is that of {operands[0]}"
            if not self.stmt.accumulates or wanted is None or same(layout, wanted):
                return Output(layout, "shared", operands[0], why)
        if self.stmt.accumulates or self._is_wide(operands):
            return self._split()
        if not self._is_matrix(operands):
            return self._keys(formula, None)
        first = operands[0]
        outer = first.indices[self.layouts[first.name].order[0]]
        order = (0, 1) if outer == self.stmt.target.indices[0] else (1, 0)
        kinds = ROWS[0]
        if wanted is not None and wanted.levels in ROWS:
            kinds, order = wanted.levels, (wanted.order[0], wanted.order[1])
        layout = Layout(kinds, order, self._idtype(operands))
        return Output(layout, "assembled", None, f"its pattern is {formula}")

    def _is_wide(self, operands: tuple[Access, ...]) -> bool:
        """Whether the result has too many addends for one merge, so that it is split."""
        depths = [sum(k != "dense" for k in self.layouts[a.name].levels) for a in operands]
        return (
            too_many_cases(len(operands), max(depths, default=0))
            and widest(self.stmt.value) is not None
        )

    def _is_matrix(self, operands: tuple[Access, ...]) -> bool:
        """Whether the result is assembled as csr or csc from *operands*, all matrices."""
        out = set(self.stmt.target.indices)
        if len(out) != 2 or any(set(a.indices) != out or len(a.indices) != 2 for a in operands):
            return False
        return any(self.layouts[a.name].levels[0] == "dense" for a in operands)

    def _like(self, access: Access) -> Layout:
        """Return the layout of a result along the outer levels of *access*, then dense ones."""
        out, source = self.stmt.target.indices, self.layouts[access.name]
        level_names = [name for name, _, _ in levels(access, source)]
        count = next(
            (at for at, name in enumerate(level_names) if name not in out), len(level_names)
        )
        rest = [name for name in out if name not in level_names[:count]]
        order = tuple(out.index(name) for name in (*level_names[:count], *rest))
        return Layout((*source.levels[:count], *("dense",) * len(rest)), order, source.idtype)

    def _idtype(self, operands: tuple[Access, ...]) -> DType:
        return max(
            (self.layouts[a.name].idtype for a in operands), key=lambda t: t.bits, default=int32
        )

    # -- products -----------------------------------------------------------------------------

    def _of_several_operands(self, wanted: Layout | None) -> Output | Reason:
        """Return the output of what several operands decide, with some of the indices each."""
        value, formula = self.stmt.value, self.full()
        target = self.stmt.target
        if formula == ALWAYS and not filters(self.core, self.sparse):
            return Reason(
                f"{target} is present everywhere, but is to be stored as {wanted}",
                self.stmt.at,
                hint=f'leave formats out, or ask for "dense", for {target.name}',
            )
        if self.stmt.accumulates:
            return self._split()
        if self.core is value:
            wide = self._is_wide(leaves(formula))
            return self._split() if wide else self._keys(formula, None)
        sparse = self.sparse & self.alike
        if not adds_up(value) or first_pair(value, self.semiring, sparse) is not None:
            return self._split()
        return self._product(value, formula, wanted) or self._keys(formula, value)

    def by_keys(self) -> Output:
        """Return the output of a product that cannot be assembled fiber by fiber."""
        value = self.stmt.value
        return self._keys(self.full(), value if adds_up(value) else None)

    def _split(self) -> Output:
        """Return the output of a statement that is split: its addends are computed one by one."""
        layout = self._natural(leaves(self.full()))
        return Output(layout, "split", why="its addends are computed one by one")

    def _product(self, value: Reduce, formula: Presence, wanted: Layout | None) -> Output | None:
        """Return the output of a product that is assembled fiber by fiber, if it can be."""
        target, operands = self.stmt.target, leaves(formula)
        idtype = self._idtype(operands)
        why = f"its pattern is that of {' * '.join(map(str, operands))}"
        if len(target.indices) == 2:
            layout = Layout(ROWS[0], (0, 1), idtype)
            if wanted is not None and wanted.levels in ROWS:
                layout = replace(layout, levels=wanted.levels, order=wanted.order)
            outer, inner = (target.indices[dim] for dim in layout.order)
            order = (outer, *value.indices, inner)
            fits = all(len(a.indices) == 2 or self._follows(a, order) for a in operands)
            return Output(layout, "product", None, why) if fits else None
        for access in required(formula):
            source = self.layouts[access.name]
            path = chain(access, source)
            last = set(target.indices) - set(path)
            count = len(target.indices) - 1
            outside = set(path[:count]) <= set(target.indices)
            inside = set(path[count:]) <= set(value.indices)
            if len(last) == 1 and outside and inside and count:
                dims = tuple(target.indices.index(name) for name in (*path[:count], *last))
                layout = Layout((*source.levels[:count], "compressed"), dims, idtype)
                return Output(layout, "product", access, why)
        return None

    def _follows(self, access: Access, order: tuple[str, ...]) -> bool:
        """Whether the levels of *access* can be gone through by loops in this order.

        The first loop takes every coordinate: an operand with this index in its first level needs a
        dense one.
        """
        layout = self.layouts[access.name]
        path = chain(access, layout)
        ordered = len(set(path)) < len(path) or list(path) == [
            name for name in order if name in path
        ]
        return ordered and (layout.levels[0] == "dense" or path[:1] != order[:1])

    # -- anything else ------------------------------------------------------------------------

    def _keys(self, formula: Presence, reduced: Reduce | None) -> Output:
        """Return the output whose coordinates are assembled as numbers."""
        target, operands = self.stmt.target, leaves(formula)
        over = () if reduced is None else reduced.indices
        chains = [chain(a, self.layouts[a.name]) for a in (*required(formula), *operands)]
        order = order_indices((*target.indices, *over), chains, (target, *operands), self.layouts)
        keys = Keys(order, None if reduced is None else reduced.op)
        return Output(self._natural(operands), "assembled", None, f"its pattern is {formula}", keys)

    def _natural(self, operands: tuple[Access, ...]) -> Layout:
        """Return the default format of a result of *operands*."""
        rank = len(self.stmt.target.indices)
        plain, idtype = tuple(range(rank)), self._idtype(operands)
        rooted = [self.layouts[a.name].is_rooted for a in operands if len(a.indices) > 1]
        if rank == 2 and (any(rooted) or not rooted):
            return Layout(("dense", "compressed"), plain, idtype)
        return Layout(("compressed",) * rank, plain, idtype)


def widest(value: Expr) -> Expr | None:
    """Return the side of a sum that adds up more; None if *value* is not a sum of three.

    A side that may be a Python number stays, as it has its type from the other one.
    """
    if not isinstance(value, Op) or value.op not in ("+", "-") or len(value.args) < 2:
        return None
    sides = [arg for arg in value.args if not _is_number(arg)]
    side = max(sides, key=lambda arg: len(accesses(arg)), default=None)
    return None if isinstance(side, Access) else side


def _is_number(term: Expr) -> bool:
    """Whether *term* has values of numbers and arguments without indices only."""
    match term:
        case Number() | Scalar():
            return True
        case Masked(value=value, other=other):
            return _is_number(value) and (other is None or _is_number(other))
        case Op(args=args) | Call(args=args):
            return all(map(_is_number, args))
    return False


def same(a: Layout, b: Layout) -> bool:
    """Return whether *a* and *b* are the same levels of the same dimensions."""
    return (a.levels, a.order) == (b.levels, b.order)


def adds_up(value: Expr) -> TypeGuard[Reduce]:
    """Whether *value* can be reduced in place, into the result."""
    return isinstance(value, Reduce) and value.op not in ARG_REDUCTIONS


def core(value: Expr, semiring: Semiring) -> Expr:
    """Return *value* without the reductions whose operands decide the pattern.

    These are a reduction of the whole value, or a sum of the semiring that is an addend: where it
    is empty, it adds nothing.
    """
    if adds_up(value):
        return value.body
    return _without_sums(value, semiring)


def _without_sums(value: Expr, semiring: Semiring) -> Expr:
    if isinstance(value, Reduce) and value.op == semiring.add:
        return value.body
    if isinstance(value, Op) and value.op in ("+", "-", "neg"):
        args = tuple(_without_sums(arg, semiring) for arg in value.args)
        same = all(a is b for a, b in zip(args, value.args, strict=True))
        return value if same else replace(value, args=args)
    return value


@dataclass(frozen=True, slots=True)
class Pair:
    """A product of several operands: the sum over the *first* two of them, then the *others*.

    *access*: the result of the first. *over*: the indices still to be reduced.
    """

    access: Access
    first: Reduce
    over: tuple[str, ...]
    others: tuple[Expr, ...]

    def rest(self, access: Access) -> Expr:
        """Return the sum over the product of *access* and the others."""
        body = reduce(lambda a, b: Op("*", (a, b), at=a.at), self.others, typed("Expr", access))
        if not self.over:
            return body
        return Reduce(self.first.op, self.over, body, at=self.first.at)


def first_pair(value: Expr, semiring: Semiring, names: frozenset[str]) -> Pair | None:
    """Return the first two operands in *value* with a reduced index that no other has.

    Their product has to be a matrix. None if there are no two; if not all operands, three at least,
    are in *names*; or if the semiring does not let sums move inside products.
    """
    adds = (semiring.add, semiring.mul) in DISTRIBUTIVE
    if not isinstance(value, Reduce) or value.op != semiring.add or not adds:
        return None
    factors = _factors(value.body)
    operands = [f for f in factors if isinstance(f, Access) and f.name in names]
    if len(operands) < 3 or any(a.name not in names for f in factors for a in accesses(f)):
        return None
    for a, b in combinations(operands, 2):
        others = tuple(f for f in factors if f is not a and f is not b)
        elsewhere = {name for f in others for name in free(f)}
        both = [n for n in value.indices if n in a.indices and n in b.indices]
        alone = tuple(n for n in both if n not in elsewhere)
        remaining = tuple(n for n in dict.fromkeys((*a.indices, *b.indices)) if n not in alone)
        if alone and len(remaining) == 2:
            product = Op("*", (a, b), at=value.at)
            first = Reduce(value.op, alone, product, at=value.at)
            over = tuple(n for n in value.indices if n not in alone)
            return Pair(Access(a.name, remaining, at=value.at), first, over, others)
    return None


def _factors(term: Expr) -> list[Expr]:
    if isinstance(term, Op) and term.op == "*":
        return [factor for arg in term.args for factor in _factors(arg)]
    return [term]


def filters(term: Expr, sparse: frozenset[str]) -> bool:
    """Return whether values decide where *term* is present."""
    if isinstance(term, Masked) and (term.other is not None or asked_of(term.cond, sparse) is None):
        return True
    return any(filters(child, sparse) for child in children(term) if not isinstance(term, Reduce))
