"""Beside the route: where a rule puts elements, and the programs that put them there."""

# ruff: noqa: FBT001, N806, N812
# mypy: disable-error-code="valid-type, operator"
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from typing import Any

from spcomp import script as T
from spcomp.compiler.programs import Program, computed, program
from spcomp.dtypes import bool_, dtype, handle, int64
from spcomp.formats.rules import FormatRewriteRule
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO
from spcomp.ir.arith.bounds import Env
from spcomp.ir.arith.indexmap import IndexMap
from spcomp.ir.arith.linear import Algebra
from spcomp.ir.arith.proof import Prover
from spcomp.ir.axis import Axis, Buffer, SparseBuffer
from spcomp.ir.expr import Const, Expr, Var, binary, cast, const
from spcomp.ir.interpret.storage import layout
from spcomp.ir.printer.expr import print_expr
from spcomp.ir.program import FlatFunc
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import For, Store, seq
from spcomp.ir.visitor import walk
from spcomp.locks import cached_property


@dataclass(frozen=True, eq=False)
class Placement:
    """Where a rule puts elements.

    *chain*: the axes of the part from the root to the deepest; an element has a position on each.
    *beside*: the other axes, all dense. *results*: the coordinate on each axis, as an expression in
    *inputs*, the coordinates before, and *named*, the variables for the *scalars* of the program.
    *conds*: the conditions on elements that the part can store.
    """

    rule: FormatRewriteRule
    buffer: SparseBuffer
    chain: tuple[Axis, ...]
    beside: tuple[Axis, ...]
    inputs: tuple[Var, ...]
    scalars: tuple[Var, ...]
    named: tuple[Var, ...]
    results: dict[Axis, Expr]
    conds: tuple[Expr, ...]

    @property
    def leaf(self) -> Axis:
        """The last axis of the chain."""
        return self.chain[-1]

    @property
    def sorts_by(self) -> tuple[Axis, ...]:
        """The axes of the chain whose coordinates order the elements."""
        return tuple(axis for axis in self.chain if axis.name not in self.rule.free)

    def cuts(self, axis: Axis) -> bool:
        """Whether a fiber under *axis* that is too long is cut into several positions of *axis*."""
        if axis is self.leaf or self.chain[self.chain.index(axis) + 1].kind != "sparse_fixed":
            return False
        return axis.name in self.rule.free or (axis.is_sparse and not axis.unique)

    @property
    def width(self) -> int | None:
        """The number of coordinates that a fiber of the leaf holds; None for any number."""
        width = self.leaf.nnz_cols
        return int(width.value) if isinstance(width, Const) else None

    def taken(self, count: Any, *, last: bool) -> Any:
        """Return how many of the *count* coordinates of each fiber the part takes.

        *last*: no rule follows that differs only in the width.
        """
        if (width := self.width) is None:
            return count
        cuts = len(self.chain) > 1 and self.cuts(self.chain[-2])
        if not self.rule.padded:
            return count // width * width if cuts else count * (count == width)
        return count if cuts and last else count * (count <= width)

    @property
    def is_alone(self) -> bool:
        """Whether the leaf is an order of memory by itself: its fibers all have one size."""
        return self.leaf.kind == "sparse_fixed" and len(self.chain) > 1

    @cached_property
    def sizes(self) -> dict[Axis, str]:
        """The scalar for the positions of each axis that orders memory, outermost first."""
        ends = (places[-1] for places in layout(self.buffer.axes).chains)
        return {self.buffer.axes[at]: f"size{at}" for at in ends}

    @cached_property
    def key(self) -> tuple[object, ...]:
        """A key that is equal for rules that differ only in their width: buckets of one format."""
        axes = [
            (a.kind, print_expr(a.length), a.name in self.rule.free, a.idtype)
            for a in self.buffer.axes
        ]
        maps = tuple(print_expr(e) for e in (*self.results.values(), *self.conds))
        order = tuple(self.buffer.axes.index(axis) for axis in (*self.chain, *self.beside))
        return tuple(axes), order, maps, self.rule.padded


@lru_cache(maxsize=512)
def placement(rule: FormatRewriteRule, before: SparseBuffer) -> Placement:
    """Return where *rule* puts the elements of *before*.

    Raises FormatError for axes that cannot hold elements: several chains of sparse axes, or
    one with a dense axis inside.
    """
    if rule.is_stored:
        message = f"stored coordinates say where elements of {before.name} lie, and no map"
        raise rule.error(message, "fill the arrays of the part yourself, for the kernel over them")
    (buffer,) = (b for b in rule.new_format_desc.buffers if b.name == before.name)
    assert isinstance(buffer, SparseBuffer)
    deep = max(buffer.axes, key=lambda axis: len(axis.path()))
    chain = deep.path()
    beside = tuple(axis for axis in buffer.axes if axis not in chain)
    if any(a.kind != "dense_fixed" for a in beside) or layout(buffer.axes).interleaved:
        message = f"{buffer.name} lies along several sparse axes that do not hang on each other"
        raise rule.error(message, "convert the matrix yourself, or write one rule for each")
    inputs = tuple(Var(f"x{k}", int64) for k in range(len(rule.axes_before_rewrite)))
    scalars = _scalars(rule, before)
    named = {var: Var(f"z{k}", var.type) for k, var in enumerate(scalars)}
    results = dict(zip(rule.axes_after_rewrite, (_on(rule.forward, inputs, named)), strict=True))
    axes = {axis.name: axis for axis in buffer.axes}
    order = {axes[name]: value for name, value in results.items()}
    conds = tuple(_conditions(rule, before, axes, inputs, named))
    return Placement(
        rule,
        buffer,
        chain,
        beside,
        inputs,
        scalars,
        tuple(named.values()),
        {a: order[a] for a in buffer.axes},
        conds,
    )


def _on(index_map: IndexMap, inputs: Sequence[Var], named: dict[Var, Var]) -> list[Expr]:
    return [substitute(result, named) for result in index_map.apply(inputs)]


def _scalars(rule: FormatRewriteRule, before: SparseBuffer) -> tuple[Var, ...]:
    """The parameters of the program in the maps and in the lengths of the axes."""
    maps = [rule.forward, rule.backward] + ([] if rule.within is None else [rule.within])
    parameters = {param for index_map in maps for param in index_map.params}
    parameters |= {*rule.new_format_desc.params}
    roots = [result for index_map in maps for result in index_map.results]
    roots += [axis.length for b in rule.new_format_desc.buffers for axis in getattr(b, "axes", ())]
    roots += [axis.length for axis in before.axes]
    variables = (n for root in roots for n in walk(root) if isinstance(n, Var))
    return tuple(dict.fromkeys(n for n in variables if n not in parameters))


def _conditions(
    rule: FormatRewriteRule,
    before: SparseBuffer,
    axes: dict[str, Axis],
    inputs: Sequence[Var],
    named: dict[Var, Var],
) -> Iterator[Expr]:
    """Yield the conditions on coordinates that the part can store, except proved ones."""
    lengths = {axis.name: substitute(cast(axis.length, int64), named) for axis in before.axes}
    ranges = {
        var: (ZERO, lengths[name])
        for var, name in zip(inputs, rule.axes_before_rewrite, strict=True)
    }
    prover = Prover(Algebra(Env(), trusted=True), ranges)
    after = _on(rule.forward, inputs, named)
    asked: list[Expr] = [] if rule.within is None else _on(rule.within, inputs, named)
    for name, result in zip(rule.axes_after_rewrite, after, strict=True):
        if name in rule.free or is_own(rule, axes[name].length):
            continue
        high = substitute(cast(axes[name].length, int64), named)
        asked += [binary("<=", ZERO, result), binary("<", result, high)]
    back = [substitute(r, dict(zip(rule.backward.params, after, strict=True))) for r in
            rule.backward.results]  # fmt: skip
    again = (substitute(value, named) for value in back)
    asked += [binary("==", value, var) for value, var in zip(again, inputs, strict=True)]
    yield from (cond for cond in asked if not prover.holds(cond))


def is_own(rule: FormatRewriteRule, length: Expr) -> bool:
    """Whether a conversion determines *length*: it has a parameter of the description."""
    parameters = set(rule.new_format_desc.params)
    return any(n in parameters for n in walk(length) if isinstance(n, Var))


# -- programs --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Types:
    """The dtypes of a conversion: of index arrays, values, and element numbers."""

    index: str
    value: str
    number: str


@program
def place(placement: Placement, types: Types, by_ids: bool) -> Any:
    """The key of each element, and whether the part stores it.

    Keys order elements as the part does: the coordinates on the chain, the last one lowest.
    *by_ids*: for the elements ``Ids``, not for all.
    """
    padded = placement.rule.padded
    asked = bool(placement.conds or padded)

    @T.prim_func
    def place(
        key: T.handle, holds: T.handle, stored: T.handle, ids: T.handle, keys: T.handle,
        mine: T.handle, total: T.int64, count: T.int64,
    ) -> None:  # fmt: skip
        Key = T.match_buffer(key, (total,), "int64")
        Holds = T.match_buffer(holds, (total,), "bool")
        Stored = T.match_buffer(stored, (total,), types.value)
        Ids = T.match_buffer(ids, (count,), types.number)
        Keys = T.match_buffer(keys, (count,), "int64")
        Mine = T.match_buffer(mine, (count,), "uint8")
        for p in T.parallel(count):
            e = Ids[p] if by_ids else p
            Keys[p] = Key[e]
            if asked:
                mine_ = Holds[e] and Stored[e] != 0 if padded else Holds[e]
                Mine[p] = T.if_then_else(mine_, T.uint8(1), T.uint8(0))

    lengths = [Var(f"length{at}", int64) for at in range(len(placement.sorts_by))]
    key = _offset(dict(zip(placement.sorts_by, lengths, strict=True)), placement.results)
    always: Expr = const(True, bool_)
    holds = reduce(lambda one, other: binary("and", one, other), placement.conds, always)
    return _over_elements(place, placement, types, {"Key": key, "Holds": holds}, lengths)


def fill(placement: Placement, types: Types, by_ids: bool) -> Program:
    """Return the program that writes the coordinates of the leaf, and the values.

    A fiber q has ``Counts`` coordinates. ``First`` is the first of them in the order of elements,
    ``Base`` its position, and ``Room`` the number of positions; the rest is padded with the last
    coordinate. ``Starts``: where the elements of each coordinate begin, if there are several.
    *by_ids*: elements are ``Ids``, in the order of their keys.
    """
    leaf = placement.leaf
    several = placement if placement.beside else None
    return _fill(types, by_ids, leaf.is_sparse, leaf.kind == "sparse_fixed", several)


@program
def _fill(
    types: Types, by_ids: bool, listed: bool, is_fixed: bool, several: Placement | None
) -> Any:
    is_one = several is None

    @T.prim_func
    def fill(
        first: T.handle, counts: T.handle, base: T.handle, room: T.handle, keys: T.handle,
        starts: T.handle, ids: T.handle, source: T.handle, indices: T.handle, values: T.handle,
        chain: T.handle, beside: T.handle, fibers: T.int64, count: T.int64, entries: T.int64,
        total: T.int64, last: T.int64, stored: T.int64, places: T.int64,
    ) -> None:  # fmt: skip
        First = T.match_buffer(first, (fibers,), "int64")
        Counts = T.match_buffer(counts, (fibers,), "int64")
        Base = T.match_buffer(base, (fibers,), "int64")
        Room = T.match_buffer(room, (fibers,), "int64")
        Keys = T.match_buffer(keys, (count,), "int64")
        Starts = T.match_buffer(starts, (entries + 1,), "int64")
        Ids = T.match_buffer(ids, (count,), types.number)
        Source = T.match_buffer(source, (total,), types.value)
        Indices = T.match_buffer(indices, (places,), types.index)
        Values = T.match_buffer(values, (stored,), types.value)
        Chain = T.match_buffer(chain, (places,), "int64")
        Beside = T.match_buffer(beside, (total,), "int64")
        for q in T.parallel(fibers):
            for s in T.serial(Counts[q]):
                r = First[q] + s
                coordinate = Keys[r if is_one else Starts[r]] % last
                at = Base[q] + (s if listed else coordinate)
                if listed:
                    Indices[at] = T.cast(coordinate, types.index)
                if is_one:
                    Values[at] = Source[Ids[r] if by_ids else r]
                else:
                    for p in T.serial(Starts[r], Starts[r + 1]):
                        e = Ids[p] if by_ids else p
                        Values[Chain[at] + Beside[e]] = Source[e]
            if is_fixed:
                for s in T.serial(Room[q] - Counts[q]):
                    Indices[Base[q] + Counts[q] + s] = Indices[Base[q] + Counts[q] - 1]

    if several is None:
        return computed(fill, {}, (), ())
    sizes = {axis: Var(name, int64) for axis, name in several.sizes.items()}
    values: dict[str, Expr | Callable[[Expr], Expr]] = {
        "Beside": _offset(sizes, {axis: several.results[axis] for axis in several.beside}),
        "Chain": partial(_offset_of_chain, several, sizes),
    }
    return _over_elements(fill, several, types, values, list(sizes.values()))


@program
def read(placement: Placement) -> Any:
    """The coordinates of each element before the rule, from those after."""
    count, p = Var("count", int64), Var("p", int64)
    after = [Var(f"y{k}", int64) for k in range(len(placement.rule.axes_after_rewrite))]
    named = dict(zip(placement.scalars, placement.named, strict=True))
    results = _on(placement.rule.backward, after, named)
    sources, axes = (
        [Buffer(f"{name}{k}", Var(f"{name}{k}".lower(), handle), (count,), int64) for k in range(n)]
        for name, n in (("After", len(after)), ("Axis", len(results)))
    )
    values = {var: Load(source, (p,)) for var, source in zip(after, sources, strict=True)}
    stores = [
        Store(axis, (p,), cast(substitute(result, values), int64))
        for axis, result in zip(axes, results, strict=True)
    ]
    body = For(p, ZERO, count, seq(*stores), kind="parallel")
    buffers = (*sources, *axes)
    handles = tuple(buffer.data for buffer in buffers if buffer.data)
    return FlatFunc("read", (*handles, count, *placement.named), (), buffers, body)


def _over_elements(
    func: Any,
    placement: Placement,
    types: Types,
    values: Mapping[str, Expr | Callable[[Expr], Expr]],
    scalars: Sequence[Var],
) -> Any:
    """Return *func* with its reads of the buffers named in *values* computed.

    An expression in *values* is over the coordinates of the element that is read.
    """
    (total,) = (param for param in func.params if param.name == "total")
    axes = [
        Buffer(f"Axis{k}", Var(f"axis{k}", handle), (total,), dtype(types.index))
        for k in range(len(placement.inputs))
    ]

    def of_element(value: Expr, e: Expr) -> Expr:
        coordinates = (cast(Load(axis, (e,)), int64) for axis in axes)
        return substitute(value, dict(zip(placement.inputs, coordinates, strict=True)))

    reads = {
        name: value if callable(value) else partial(of_element, value)
        for name, value in values.items()
    }
    return computed(func, reads, axes, [*placement.named, *scalars])


def _offset_of_chain(placement: Placement, sizes: Mapping[Axis, Var], at: Expr) -> Expr:
    """Return the offset in memory of the position *at* on the chain."""
    if not placement.is_alone:
        return _offset(sizes, dict.fromkeys(placement.chain, at))
    parts = {axis: binary("//", at, sizes[placement.leaf]) for axis in placement.chain}
    return _offset(sizes, parts | {placement.leaf: binary("%", at, sizes[placement.leaf])})


def _offset(sizes: Mapping[Axis, Var], coordinates: Mapping[Axis, Expr]) -> Expr:
    """Return the offset in memory of *coordinates* on some of the axes that order it."""
    place: Expr = ZERO
    stride: Expr = const(1, int64)
    for axis, size in reversed([*sizes.items()]):
        if axis in coordinates:
            place = binary("+", place, binary("*", coordinates[axis], stride))
        stride = binary("*", stride, size)
    return place
