"""II to II, on GPUs: a short row of a product of matrices is a thread's, a long one a warp's.

First come the numbers of products of all rows, which bound their elements. See ``thread_rows`` and
``warp_rows``. Sources: Gustavson (TOMS 1978); rows told apart by their number of products as in
Nagasaka et al. (ICPP Workshops 2018).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from spcomp.dtypes import handle, int64
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, from_zero, plus
from spcomp.ir.analysis.grid import BLOCKS, THREADS
from spcomp.ir.analysis.memory import Layout
from spcomp.ir.analysis.names import Names
from spcomp.ir.axis import Axis, Buffer, SparseBuffer, domain_axes, domain_width
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import BinOp, Expr, Select, Var, binary, cast, const
from spcomp.ir.module import HostAlloc, HostOp, Launch, Module, Return, Scan
from spcomp.ir.program import CoordFunc, PosFunc
from spcomp.ir.rewrite import relink
from spcomp.ir.stmt import Alloc, For, If, Let, Stmt, Store, seq
from spcomp.ir.visitor import walk
from spcomp.knobs import GridKnobs, Knobs
from spcomp.passes.assembly.assemble import ONE_PASS, Assembly
from spcomp.passes.assembly.marks import scalar
from spcomp.passes.assembly.write_order import without_inits
from spcomp.passes.base import Pass, Stage
from spcomp.passes.iterations.lower_iterations import lower_function
from spcomp.passes.pack.pack_rows import find_products
from spcomp.passes.pack.row_work import row_work
from spcomp.passes.pack.thread_rows import ThreadRows
from spcomp.passes.pack.warp_rows import WARP, WarpRows, of_lanes, on_lanes

ANY_ROWS = "any_rows"  # attribute of functions that suit rows of all lengths


@dataclass(frozen=True, slots=True)
class GroupRows(Pass):
    """``count; scan; fill  ->  bound; count short; count long; scan; fill short; fill long``.

    Nothing changes unless all writes are those of a product, whose last index picks elements of a
    fiber, and nobody has decided how its loops run.
    """

    name: ClassVar[str] = "group_rows"
    takes: ClassVar[Stage] = Stage.POSITION
    gives: ClassVar[Stage] = Stage.POSITION
    knobs: Knobs = field(repr=False)
    grid: GridKnobs = field(repr=False)

    def run(self, module: Module[Any]) -> Module[Any]:
        """Return *module* with two functions in place of each phase, where that is possible."""
        match module.host:
            case (HostAlloc(), Launch(), Scan(), *_, Launch(func=name), Return()):
                if isinstance(module.source, CoordFunc) and find_products(module[name]):
                    product = _product_of(module.source)
                    made = product and _Groups(product, self.knobs, self.grid).module()
                    return made or module
        return module


@dataclass(frozen=True, slots=True)
class _Product:
    """A program that only assembles results along *axis*, at the coordinates of *inner*."""

    source: CoordFunc
    axis: Axis
    inner: Axis


def _product_of(source: CoordFunc) -> _Product | None:
    """Return *source* as a product if its last index picks different elements of each result."""
    it, axes = source.body, [axis for axis in source.axes if axis.is_assembled]
    if not isinstance(it, SpIter) or len(axes) != 1 or len(it.domains) < 2:
        return None
    (axis,), domain = axes, it.domains[-1]
    inner = domain_axes(domain)
    stores = [n for n in walk(it.body) if isinstance(n, Store)]
    results = {b for b in source.buffers if axis in getattr(b, "axes", ())}
    is_apart = domain_width(domain) == 1 and len(inner) == 1 and inner[0].unique and inner[0].sorted
    if not is_apart or any(isinstance(n, SpIter | Alloc) for n in walk(it.body)):
        return None
    if any(s.buffer not in results or s.indices[-1] is not it.vars[-1] for s in stores):
        return None
    return _Product(source, axis, inner[0])


class _Groups:
    """The functions that make a *product*, and the host program of them."""

    def __init__(self, product: _Product, knobs: Knobs, grid: GridKnobs) -> None:
        self.product, self.knobs, self.grid = product, knobs, grid
        axis, source = product.axis, product.source
        self.indptr, self.indices = (
            Var(f"{axis.name}_{part}", handle) for part in ("indptr", "indices")
        )
        self.axis = axis.replace(indptr=self.indptr, indices=self.indices)
        full = relink(source, vars={}, axes={axis: self.axis}, buffers={})
        self.full, starts = without_inits(full, {self.axis})
        self.results = [
            b for b in full.buffers if isinstance(b, SparseBuffer) and self.axis in b.axes
        ]
        self.starts = {b: starts.get(b, b.fill) for b in self.results}
        self.bounds, self.handle = row_work(source, axis)
        assert self.axis.parent is not None
        self.fibers = Layout().total(self.axis.parent)
        self.work = Buffer(self.handle.name, self.handle, (plus(self.fibers, 1),), int64)

    def module(self) -> Module[Any] | None:
        """Return the program, None if its loops have another form."""
        phases = [
            self._short_rows("count"),
            self._long_rows("count"),
            self._short_rows("fill"),
            self._long_rows("fill"),
        ]
        funcs = [func for func in phases if func is not None]
        if len(funcs) != len(phases):
            return None
        return Module(
            self.product.source, (self.bounds, *funcs), self._host([f.name for f in funcs])
        )

    def _host(self, names: list[str]) -> tuple[HostOp, ...]:
        """Return the host program; *names* are the functions that count, then those that fill."""
        axis = self.axis
        indptr = Buffer(self.indptr.name, self.indptr, (plus(self.fibers, 1),), axis.idtype)
        total = cast(Load(indptr, (self.fibers,)), int64)
        arrays = [Buffer(self.indices.name, self.indices, (total,), axis.idtype)]
        arrays += [Buffer(b.data.name, b.data, (total,), b.dtype) for b in self.results if b.data]
        return (
            HostAlloc(self.work, None),
            Launch(self.bounds.name),
            HostAlloc(indptr, None),
            *map(Launch, names[:2]),
            Scan(indptr),
            *(HostAlloc(array, None) for array in arrays),
            *map(Launch, names[2:]),
            Return((indptr, *arrays)),
        )

    def _phase(self, phase: str, which: str) -> CoordFunc:
        """Return the function to lower for one *phase*, ``count`` or ``fill``."""
        full = self.full
        data = {b.data for b in self.results}
        params = tuple(p for p in full.params if phase == "fill" or p not in data)
        params = (*params, self.indptr, *((self.indices,) if phase == "fill" else ()))
        return full.replace(name=f"{self.product.source.name}_{phase}_{which}", params=params)

    def _lowered(self, func: CoordFunc, assembly: Assembly) -> PosFunc | None:
        """Return *func* in position space, with the numbers of products of its rows."""
        lowered = lower_function(func, assembly)
        if not isinstance(lowered.body, For) or not from_zero(lowered.body):
            return None
        attrs = {name: value for name, value in lowered.attrs if name != ONE_PASS}
        # lanes of a warp have different elements only if a call checks that none comes twice
        checked = {*attrs.get("order_needed", ()), self.product.inner.name}
        attrs |= {ANY_ROWS: True, "order_needed": tuple(sorted(checked))}
        return lowered.replace(
            params=(*lowered.params, self.handle),
            buffers=(*lowered.buffers, self.work),
            attrs=tuple(attrs.items()),
        )

    def _short_rows(self, phase: Any) -> PosFunc | None:
        """Return the function for short rows: each is a thread's."""
        limit, axes = self.grid.few_products, frozenset({self.axis})
        short = ThreadRows(
            phase, axes, knobs=self.knobs, limit=limit, work=self.work, starts=self.starts
        )
        func = self._lowered(self._phase(phase, "short"), short)
        if func is None or short.opened is None or not isinstance(func.body, For):
            return None
        sizes = self.grid.product_threads, WARP
        size = next((n for n in sizes if n * short.bytes <= self.grid.block_bytes), None)
        if size is None:
            return None
        names, row = Names(func), func.body
        block, thread = names.var(f"{row.var.name}_o"), names.var(f"{row.var.name}_i")
        index = plus(binary("*", block, size), thread)
        body: Stmt = Let(row.var, index, If(BinOp("<", row.var, row.end), row.body))
        body = For(thread, ZERO, const(size), body, "bound", THREADS[0])
        blocks = binary("//", plus(row.end, size - 1), size)
        return func.replace(body=For(block, ZERO, blocks, body, "bound", BLOCKS[0]))

    def _long_rows(self, phase: Any) -> PosFunc | None:
        """Return the function for longer rows: warps take turns at some rows that are neighbours.

        A warp looks at the numbers of products of all its next rows at once.
        """
        axes = frozenset({self.axis})
        counts = phase == "count"
        long = WarpRows(
            phase,
            axes if counts else frozenset(),
            frozenset() if counts else axes,
            knobs=self.knobs,
            starts=self.starts,
            mark_lanes=self.grid.mark_lanes,
        )
        func = self._lowered(self._phase(phase, "long"), long)
        if func is None or long.failed or long.partial is None or not isinstance(func.body, For):
            return None
        names, row, marks = Names(func), func.body, long.marks[self.axis]
        own = (long.partial, *(() if counts else (marks.before,)), marks.words)
        return func.replace(body=_turns(names, row, self.work, marks.words, own, self.grid))


def _turns(
    names: Names, row: For, work: Buffer, words: Buffer, own: tuple[Buffer, ...], grid: GridKnobs
) -> For:
    """Return the loop *row* over long rows, on warps that take turns at groups of neighbours.

    Each warp has its *own* memory, with its marks, the *words*. It looks at the numbers of products
    of a group, which *work* has, before it goes through its rows.
    """
    block, side, warp, turn, at, lane, other, first, size, power, warps = (
        names.var(f"{row.var.name}_{wish}")
        for wish in (
            *("b", "y", "w", "turn", "at", "lane", "other"),
            *("first", "size", "power", "warps"),
        )
    )
    limit, sides = const(grid.few_products), max(1, grid.block_threads // WARP)
    most, top = of_lanes(names, "most"), scalar(names, "top")
    place = plus(first, lane)
    is_own = binary("and", binary("<", lane, size), binary("<", place, row.end))
    products = Select(is_own, Load(work, (plus(place, 1),)), ZERO)
    look = on_lanes(lane, Store(most, (lane,), products))
    larger = binary("max", Load(top, (ZERO,)), Load(most, (other,)))
    find = For(other, ZERO, const(WARP), Store(top, (ZERO,), larger), "unroll")
    is_long = BinOp(">", Load(most, (at,)), limit)
    each = For(at, ZERO, size, If(is_long, Let(row.var, plus(first, at), row.body)))
    any_long = If(BinOp(">", Load(top, (ZERO,)), limit), each)
    body: Stmt = seq(look, Alloc(top, seq(Store(top, (ZERO,), ZERO), find, any_long)))
    begin = binary("<<", plus(binary("*", turn, warps), warp), power)
    body = Let(first, begin, Let(size, binary("<<", const(1), power), body))
    groups = binary(">>", plus(row.end, binary("-", binary("<<", const(1), power), 1)), power)
    last = binary("-", plus(groups, binary("-", warps, 1)), warp)
    blocks, digits = _warps(words, sides, grid)
    body = For(turn, ZERO, binary(">>", last, digits), body)
    body = Let(warps, binary("*", blocks, sides), Let(power, _neighbours(row, warps, grid), body))
    body = Let(warp, plus(binary("*", block, sides), side), body)
    for buffer in (most, *own):
        body = Alloc(buffer, body)
    body = For(side, ZERO, const(sides), body, "bound", THREADS[1])
    return For(block, ZERO, blocks, body, "bound", BLOCKS[0])


def _warps(words: Buffer, sides: int, grid: GridKnobs) -> tuple[Expr, Expr]:
    """Return how many blocks of *sides* warps there are, and the binary logarithm of all warps.

    The warps are a power of two, as nothing then divides by their number: as many as there is
    memory for, with the *words* of marks that each has.
    """
    least, most, room = (
        n.bit_length() - 1 for n in (grid.warps_least, grid.warps_most, grid.mark_words)
    )
    blocks: Expr = const((1 << least) // sides)
    digits: Expr = const(least)
    for k in range(least + 1, most + 1):
        fits = BinOp("<=", words.shape[0], const(1 << room - k))
        blocks = Select(fits, const((1 << k) // sides), blocks)
        digits = Select(fits, const(k), digits)
    return blocks, digits


def _neighbours(row: For, warps: Expr, grid: GridKnobs) -> Expr:
    """Return the binary logarithm of how many rows are a group: more, where there are many rows."""
    power: Expr = ZERO
    for k in range(1, WARP.bit_length()):
        enough = BinOp(">=", row.end, binary("*", warps, grid.warp_turns << k))
        power = Select(enough, const(k), power)
    return power
