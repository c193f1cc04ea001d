"""Beside the route: what a rule says of where elements go, and the programs that put them there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from spcomp.dtypes import int64
from spcomp.formats.rules import FormatRewriteRule
from spcomp.ir.analysis.exprs import ZERO
from spcomp.ir.arith.bounds import Env
from spcomp.ir.arith.indexmap import IndexMap
from spcomp.ir.arith.linear import Algebra
from spcomp.ir.arith.proof import Prover
from spcomp.ir.axis import Axis, SparseBuffer
from spcomp.ir.expr import Const, Expr, Var, binary, cast
from spcomp.ir.interpret.storage import layout
from spcomp.ir.printer.expr import print_expr
from spcomp.ir.rewrite import substitute
from spcomp.ir.visitor import walk
from spcomp.locks import cached_property


@dataclass(frozen=True, eq=False)
class Placement:
    """Where a rule puts elements.

    *chain*: the axes of the part from the root to the last that has a parent; an element lies at a
    position on each. *beside*: dense axes that have none. *results*: the coordinate on each axis,
    in terms of *given*, those before, and *named*, what *scalars* of the program are called.
    *conds*: what must hold of an element that the part can store.
    """

    rule: FormatRewriteRule
    buffer: SparseBuffer
    chain: tuple[Axis, ...]
    beside: tuple[Axis, ...]
    given: tuple[Var, ...]
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
        """Whether a fiber under *axis* that is too long is cut, into several positions on it."""
        if axis is self.leaf or self.chain[self.chain.index(axis) + 1].kind != "sparse_fixed":
            return False
        return axis.name in self.rule.free or (axis.is_sparse and not axis.unique)

    @property
    def width(self) -> int | None:
        """How many coordinates a fiber of the leaf holds; None if as many as there are."""
        width = self.leaf.nnz_cols
        return int(width.value) if isinstance(width, Const) else None

    def taken(self, count: Any, *, last: bool) -> Any:
        """Return how many coordinates of fibers that have *count*, an array, the part takes.

        *last*: no other rule follows that differs in the width only.
        """
        if (width := self.width) is None:
            return count
        cuts = len(self.chain) > 1 and self.cuts(self.chain[-2])
        if not self.rule.padded:
            return count // width * width if cuts else count * (count == width)
        return count if cuts and last else count * (count <= width)

    @property
    def is_alone(self) -> bool:
        """Whether the leaf orders memory by itself: its fibers are all of one size."""
        return self.leaf.kind == "sparse_fixed" and len(self.chain) > 1

    @cached_property
    def sizes(self) -> dict[Axis, str]:
        """How many positions each axis has that orders memory, outermost first: a scalar's name."""
        ends = (places[-1] for places in layout(self.buffer.axes).chains)
        return {self.buffer.axes[at]: f"size{at}" for at in ends}

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal for rules that differ in nothing but their width: one is a bucket of the other."""
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

    Raises FormatError for axes that elements cannot be put along: several chains of sparse axes,
    or one with a dense axis inside.
    """
    (buffer,) = (b for b in rule.new_format_desc.buffers if b.name == before.name)
    assert isinstance(buffer, SparseBuffer)
    deep = max(buffer.axes, key=lambda axis: len(axis.path()))
    chain = deep.path()
    beside = tuple(axis for axis in buffer.axes if axis not in chain)
    if any(a.kind != "dense_fixed" for a in beside) or layout(buffer.axes).interleaved:
        message = f"{buffer.name} lies along several sparse axes that do not hang on each other"
        raise rule.error(message, "convert the matrix yourself, or write one rule for each")
    given = tuple(Var(f"x{k}", int64) for k in range(len(rule.axes_before_rewrite)))
    scalars = _scalars(rule, before)
    named = {var: Var(f"z{k}", var.type) for k, var in enumerate(scalars)}
    results = dict(zip(rule.axes_after_rewrite, (_on(rule.forward, given, named)), strict=True))
    axes = {axis.name: axis for axis in buffer.axes}
    order = {axes[name]: value for name, value in results.items()}
    conds = tuple(_conditions(rule, before, axes, given, named))
    return Placement(
        rule,
        buffer,
        chain,
        beside,
        given,
        scalars,
        tuple(named.values()),
        {a: order[a] for a in buffer.axes},
        conds,
    )


def _on(made: IndexMap, given: Sequence[Var], named: dict[Var, Var]) -> list[Expr]:
    return [substitute(result, named) for result in made.apply(given)]


def _scalars(rule: FormatRewriteRule, before: SparseBuffer) -> tuple[Var, ...]:
    """The parameters of the program that the maps, and the lengths of the axes after, mention."""
    maps = [rule.forward, rule.backward] + ([] if rule.within is None else [rule.within])
    own = {param for made in maps for param in made.params} | {*rule.new_format_desc.params}
    roots = [result for made in maps for result in made.results]
    roots += [axis.length for b in rule.new_format_desc.buffers for axis in getattr(b, "axes", ())]
    roots += [axis.length for axis in before.axes]
    found = (n for root in roots for n in walk(root) if isinstance(n, Var) and n not in own)
    return tuple(dict.fromkeys(found))


def _conditions(
    rule: FormatRewriteRule,
    before: SparseBuffer,
    axes: dict[str, Axis],
    given: Sequence[Var],
    named: dict[Var, Var],
) -> Iterator[Expr]:
    """Yield what must hold of coordinates that the part can store, where it is not proved."""
    lengths = {axis.name: substitute(cast(axis.length, int64), named) for axis in before.axes}
    ranges = {
        var: (ZERO, lengths[name])
        for var, name in zip(given, rule.axes_before_rewrite, strict=True)
    }
    prover = Prover(Algebra(Env(), trusted=True), ranges)
    after = _on(rule.forward, given, named)
    asked: list[Expr] = [] if rule.within is None else _on(rule.within, given, named)
    for name, result in zip(rule.axes_after_rewrite, after, strict=True):
        if name in rule.free or is_own(rule, axes[name].length):
            continue
        high = substitute(cast(axes[name].length, int64), named)
        asked += [binary("<=", ZERO, result), binary("<", result, high)]
    back = [substitute(r, dict(zip(rule.backward.params, after, strict=True))) for r in
            rule.backward.results]  # fmt: skip
    again = (substitute(value, named) for value in back)
    asked += [binary("==", value, var) for value, var in zip(again, given, strict=True)]
    yield from (cond for cond in asked if not prover.holds(cond))


def is_own(rule: FormatRewriteRule, length: Expr) -> bool:
    """Whether *length* is found by converting: it mentions a parameter of the description."""
    own = set(rule.new_format_desc.params)
    return any(n in own for n in walk(length) if isinstance(n, Var))


_HEAD = """from spcomp import script as T


@T.prim_func
def {name}({handles}: T.handle, {sizes}) -> None:
"""


def _program(name: str, arrays: dict[str, tuple[str, str]], scalars: dict[str, str],
             body: list[str]) -> str:  # fmt: skip
    """Return the source of a function of *arrays* (size, dtype), *scalars* and lines of *body*."""
    sizes = ", ".join(f"{key}: T.{dtype}" for key, dtype in scalars.items())
    handles = ": T.handle, ".join(key.lower() for key in arrays)
    lines = [_HEAD.format(name=name, handles=handles, sizes=sizes)]
    lines += [
        f'    {key} = T.match_buffer({key.lower()}, ({size},), "{dtype}")\n'
        for key, (size, dtype) in arrays.items()
    ]
    return "".join(lines) + "".join(f"    {line}\n" for line in body)


@dataclass(frozen=True, slots=True)
class Types:
    """The dtypes that a conversion works with: of index arrays, values, and element numbers."""

    index: str
    value: str
    number: str


@lru_cache(maxsize=512)
def place_source(made: Placement, types: Types, *, some: bool) -> str:
    """Return the program that computes the key of each element, and whether the part stores it.

    The key orders elements as the part does: the coordinates on the chain, the last lowest.
    *some*: it is asked about the elements *Ids*, not about all.
    """
    arrays = {f"Axis{k}": ("total", types.index) for k in range(len(made.given))}
    if made.rule.padded:
        arrays["Stored"] = ("total", types.value)
    if some:
        arrays["Ids"] = ("count", types.number)
    arrays["Keys"] = ("count", "int64")
    conds = [print_expr(cond) for cond in made.conds]
    if made.rule.padded:
        conds.append("Stored[e] != 0")
    if conds:
        arrays["Mine"] = ("count", "uint8")
    scalars = {"total": "int64", "count": "int64"}
    scalars |= {f"z{k}": str(var.type) for k, var in enumerate(made.scalars)}
    key = "T.int64(0)"
    for at, axis in enumerate(made.sorts_by):
        scalars[f"length{at}"] = "int64"
        key = f"({key}) * length{at} + ({print_expr(made.results[axis])})"
    body = ["for p in T.parallel(count):", f"    e = {'Ids[p]' if some else 'p'}"]
    body += [f'    x{k} = T.cast(Axis{k}[e], "int64")' for k in range(len(made.given))]
    body.append(f"    Keys[p] = {key}")
    if conds:
        all_ = " and ".join(f"({cond})" for cond in conds)
        body.append(f"    Mine[p] = T.if_then_else({all_}, T.uint8(1), T.uint8(0))")
    return _program("place", arrays, scalars, body)


@lru_cache(maxsize=512)
def fill_source(made: Placement, types: Types, *, some: bool) -> str:
    """Return the program that writes the coordinates of the leaf, and the values.

    For each fiber q: how many coordinates (*Held*) it has, the first of them in the order of
    elements (*First*), the position of that (*Base*), and for how many there is room (*Room*); what
    is left is padded with the last. *Starts*: the elements of each coordinate, where there are
    several. *some*: elements are *Ids*, in the order of their keys.
    """
    leaf, several = made.leaf, bool(made.beside)
    arrays = dict.fromkeys(("First", "Held", "Base"), ("fibers", "int64"))
    arrays["Keys"] = ("count", "int64")
    if several:
        arrays["Starts"] = ("entries + 1", "int64")
        arrays |= {f"Axis{k}": ("total", types.index) for k in range(len(made.given))}
    if some:
        arrays["Ids"] = ("count", types.number)
    arrays["Source"] = ("total", types.value)
    scalars = dict.fromkeys(("fibers", "count", "entries", "total", "last", "stored"), "int64")
    scalars |= {f"z{k}": str(var.type) for k, var in enumerate(made.scalars)}
    coordinate = f"Keys[{'Starts[r]' if several else 'r'}] % last"
    at = f"Base[q] + {'s' if leaf.is_sparse else coordinate}"
    body = ["for q in T.parallel(fibers):", "    for s in T.serial(Held[q]):"]
    body += ["        r = First[q] + s", f"        at = {at}"]
    if leaf.is_sparse:
        arrays["Indices"] = ("places", types.index)
        scalars["places"] = "int64"
        body.append(f'        Indices[at] = T.cast({coordinate}, "{types.index}")')
    arrays["Values"] = ("stored", types.value)
    if several:
        body.append("        for p in T.serial(Starts[r], Starts[r + 1]):")
        body += [f"            {line}" for line in _value(made, "Ids[p]" if some else "p", scalars)]
    else:
        body.append(f"        Values[at] = Source[{'Ids[r]' if some else 'r'}]")
    if leaf.kind == "sparse_fixed":
        arrays["Room"] = ("fibers", "int64")
        body += [
            "    for s in T.serial(Room[q] - Held[q]):",
            "        Indices[Base[q] + Held[q] + s] = Indices[Base[q] + Held[q] - 1]",
        ]
    return _program("fill", arrays, scalars, body)


@lru_cache(maxsize=512)
def read_source(made: Placement) -> str:
    """Return the program that computes the coordinates before from those after, of each element."""
    rule = made.rule
    after = [Var(f"y{k}", int64) for k in range(len(rule.axes_after_rewrite))]
    results = _on(rule.backward, after, dict(zip(made.scalars, made.named, strict=True)))
    arrays = {f"After{k}": ("count", "int64") for k in range(len(after))}
    arrays |= {f"Axis{k}": ("count", "int64") for k in range(len(results))}
    scalars = {"count": "int64"} | {f"z{k}": str(var.type) for k, var in enumerate(made.scalars)}
    body = ["for p in T.parallel(count):"]
    body += [f"    {var.name} = After{k}[p]" for k, var in enumerate(after)]
    body += [f"    Axis{k}[p] = {print_expr(result)}" for k, result in enumerate(results)]
    return _program("read", arrays, scalars, body)


def _value(made: Placement, element: str, scalars: dict[str, str]) -> Iterator[str]:
    """Yield the lines that copy *element* to its place under the position ``at`` of the chain."""
    yield f"e = {element}"
    yield from (f'x{k} = T.cast(Axis{k}[e], "int64")' for k in range(len(made.given)))
    offset = ""
    for axis, size in zip(made.sizes, made.sizes.values(), strict=True):
        scalars[size] = "int64"
        if axis in made.beside:
            at = print_expr(made.results[axis])
        elif not made.is_alone:
            at = "at"
        else:
            inner = made.sizes[made.leaf]
            at = f"at % {inner}" if axis is made.leaf else f"at // {inner}"
        offset = f"({offset}) * {size} + ({at})" if offset else f"({at})"
    yield f"Values[{offset}] = Source[e]"
