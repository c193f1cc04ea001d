"""III to III: running sums between kernels are computed by kernels, not by the host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from spcomp.dtypes import handle, int64
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, plus, variables
from spcomp.ir.analysis.grid import BLOCKS, THREADS
from spcomp.ir.analysis.names import Names
from spcomp.ir.arith.memory import read_by
from spcomp.ir.arith.simplify import simplify
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import Expr, Select, Var, binary, cast, const
from spcomp.ir.module import HostAlloc, HostOp, Launch, Module, Scan
from spcomp.ir.program import FlatFunc
from spcomp.ir.stmt import Alloc, Fail, For, If, Stmt, Store, seq
from spcomp.knobs import GridKnobs
from spcomp.passes.base import Pass, Stage


@dataclass(frozen=True, slots=True)
class ScanKernels(Pass):
    """``scan(x)  ->  totals of tiles of x; their running sums; the running sums of each tile``.

    A tile is what a block adds up, thousands of elements. An array whose size the host reads from
    memory is left to the host. Source: reduce-then-scan, in Merrill and Garland, Single-pass
    Parallel Prefix Scan with Decoupled Look-back, 2016, section 2.2.
    """

    name: ClassVar[str] = "scan_kernels"
    takes: ClassVar[Stage] = Stage.FLAT
    gives: ClassVar[Stage] = Stage.FLAT
    knobs: GridKnobs = field(repr=False)

    def run(self, module: Module[Any]) -> Module[Any]:
        """Return *module* with a function for each array that the host adds up."""
        scalars = frozenset(p for p in module.source.params if p.dtype != handle)
        arrays = {op.buffer.name: op.buffer for op in module.host if isinstance(op, HostAlloc)}
        taken = {func.name for func in module.funcs}
        added: dict[str, FlatFunc] = {}
        host: list[HostOp] = []
        for op in module.host:
            array = arrays.get(op.buffer.name) if isinstance(op, Scan) else None
            if array is None or not _is_known(array.shape[0], scalars):
                host.append(op)
                continue
            if array.name not in added:
                added[array.name] = _Scan(array, self.knobs, taken).func
                taken.add(added[array.name].name)
            host.append(Launch(added[array.name].name))
        if not added:
            return module
        return Module(module.source, (*module.funcs, *added.values()), tuple(host))


def _is_known(size: Expr, scalars: frozenset[Var]) -> bool:
    """Whether *size* is one number during the whole call."""
    return not any(read_by(size)) and variables(size) <= scalars


class _Scan:
    """The function that adds up *array*, in blocks of *threads*, each of so many *elements*."""

    def __init__(self, array: Buffer, knobs: GridKnobs, taken: set[str]) -> None:
        name = f"{array.name}_scan"
        while name in taken:
            name = f"{name}_"
        data = Var(array.name, handle)
        self.array = array.replace(data=data)
        self.threads, self.elements = knobs.block_threads, knobs.scan_elements
        self.tile = self.threads * self.elements
        sizes = sorted(variables(array.shape[0]), key=lambda var: var.name)
        empty = FlatFunc(name, (data, *sizes), (), (self.array,), seq())
        self.names = Names(empty)
        self.func = empty.replace(body=self._body())

    def _body(self) -> Stmt:
        count = cast(self.array.shape[0], int64)
        tiles = self._tiles(count)
        totals = Buffer(self.names.unique("totals"), None, (tiles,), int64)
        first, turn, last = (self.names.var(name) for name in ("tile", "turn", "tile"))
        total = self._total(totals, first, count)
        between = self._running(totals, turn, tiles, _last(totals, binary("*", turn, self.tile)))
        running = self._running(self.array, last, count, _last(totals, last))
        parts = (
            For(first, ZERO, tiles, total, "bound", BLOCKS[0]),
            For(turn, ZERO, self._tiles(tiles), between),  # by one block
            For(last, ZERO, tiles, running, "bound", BLOCKS[0]),
        )
        return Alloc(totals, seq(*parts))

    def _tiles(self, count: Expr) -> Expr:
        return simplify(binary("//", plus(count, const(self.tile - 1)), self.tile))

    def _total(self, totals: Buffer, tile: Var, count: Expr) -> Stmt:
        """Return the statement that stores the sum of the elements of *tile*."""
        thread, item = self.names.var("thread"), self.names.var("item")
        step = plus(binary("*", item, self.threads), thread)  # neighbours read neighbours
        element = self._element(self.array, plus(binary("*", tile, self.tile), step), count)
        sums = self._sum()
        share = Store(totals, (tile,), plus(Load(totals, (tile,)), Load(sums, (ZERO,))))
        own = seq(Store(sums, (ZERO,), ZERO), self._items(item, _add(sums, element)), share)
        return seq(Store(totals, (tile,), ZERO), self._each(thread, Alloc(sums, own)))

    def _running(self, array: Buffer, tile: Var, count: Expr, before: Expr) -> Stmt:
        """Return the statement that adds up *tile* of *array*, of *count* elements.

        *before* is the sum of the tiles before it. Each thread adds up its elements. In as many
        steps as the number of threads has binary digits, each then adds what the one at distance
        1, 2, 4, ... has; and begins again from what the thread before it has got.
        """
        size = self.threads
        twice = (const(2 * size),)
        shared = Buffer(self.names.unique("shared"), None, twice, int64, "shared")
        thread, item, sums = self.names.var("thread"), self.names.var("item"), self._sum()
        element = self._element(array, self._place(tile, thread, item), count)
        share = Store(shared, (thread,), Load(sums, (ZERO,)))
        own = seq(Store(sums, (ZERO,), ZERO), self._items(item, _add(sums, element)), share)
        stmts: list[Stmt] = [self._each(thread, Alloc(sums, own))]
        here, there, distance = 0, size, 1
        while distance < size:
            thread = self.names.var("thread")
            mine = Load(shared, (plus(thread, here),))
            other = Load(shared, (plus(thread, here - distance),))
            both = plus(mine, _or_zero(binary(">=", thread, distance), other))
            stmts.append(self._each(thread, Store(shared, (plus(thread, there),), both)))
            here, there, distance = there, here, 2 * distance
        thread, item, sums = self.names.var("thread"), self.names.var("item"), self._sum()
        earlier = Load(shared, (plus(thread, here - 1),))
        start = plus(before, _or_zero(binary("<", ZERO, thread), earlier))
        place = self._place(tile, thread, item)
        store = If(binary("<", place, count), _store(array, place, Load(sums, (ZERO,))))
        end = self._items(item, seq(_add(sums, self._element(array, place, count)), store))
        stmts.append(self._each(thread, Alloc(sums, seq(Store(sums, (ZERO,), start), end))))
        return Alloc(shared, seq(*stmts))

    def _items(self, item: Var, body: Stmt) -> Stmt:
        return For(item, ZERO, const(self.elements), body, "unroll")

    def _place(self, tile: Var, thread: Var, item: Var) -> Expr:
        own = plus(binary("*", tile, self.tile), binary("*", thread, self.elements))
        return plus(own, item)

    def _sum(self) -> Buffer:
        return Buffer(self.names.unique("sum"), None, (const(1),), int64, "local")

    def _each(self, thread: Var, body: Stmt) -> Stmt:
        return For(thread, ZERO, const(self.threads), body, "bound", THREADS[0])

    def _element(self, array: Buffer, place: Expr, count: Expr) -> Expr:
        """Return what counts at *place*: 0 outside, and for the first element of a scan."""
        inside = binary("<", place, count)
        if array is self.array:
            inside = binary("and", binary("<", ZERO, place), inside)
        return _or_zero(inside, cast(Load(array, (place,)), int64))


def _add(sums: Buffer, value: Expr) -> Stmt:
    return Store(sums, (ZERO,), plus(Load(sums, (ZERO,)), value))


def _store(array: Buffer, place: Expr, value: Expr) -> Stmt:
    """Return the statement that stores *value*, an int64, if the type of *array* holds it."""
    dtype = array.dtype
    store = Store(array, (place,), cast(value, dtype))
    if dtype.bits == int64.bits:
        return store
    most = (1 << (dtype.bits - (dtype.kind == "int"))) - 1
    message = f"the result has more elements than {dtype} index arrays can hold"
    hint = 'declare the axis with idtype="int64"'
    return If(binary("<=", value, most), store, Fail(f"{message}; {hint}"))


def _last(totals: Buffer, place: Expr) -> Expr:
    """Return the element of *totals* before *place*, 0 before the first."""
    return _or_zero(binary("<", ZERO, place), Load(totals, (binary("-", place, 1),)))


def _or_zero(cond: Expr, value: Expr) -> Expr:
    return Select(cond, value, ZERO)
