"""II to II: rows of products are computed once, a block of rows at a time, and put in place.

Counting the elements of a product takes as long as computing them. A bound, the number of
products, follows from the lengths of rows alone. Blocks of rows with about as many products each
are computed into local memory, and then put in place as in pack_results.
Source: Gustavson (TOMS 1978); bounds for counts as in Nagasaka et al. (ICPP Workshops 2018).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from spcomp.dtypes import int64
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, from_zero, plus
from spcomp.ir.analysis.names import Names
from spcomp.ir.axis import WORKSPACE, AnyBuffer, Axis, Buffer, SparseBuffer
from spcomp.ir.expr import BinOp, Cast, Const, Expr, Select, Var, binary, cast, const
from spcomp.ir.func import Func
from spcomp.ir.module import HostAlloc, HostOp, Launch, Module, Return, Scan, Trim
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.program import CoordFunc, PosFunc
from spcomp.ir.rewrite import Relink, Rewriter
from spcomp.ir.stmt import Alloc, Fail, For, If, Let, Prefix, Stmt, Store, seq
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import walk
from spcomp.knobs import Knobs
from spcomp.passes.assembly.assemble import ONE_PASS
from spcomp.passes.assembly.marks import BITS, scalar
from spcomp.passes.assembly.write_order import Value
from spcomp.passes.pack.row_work import row_work

Pair: TypeAlias = tuple[Buffer, Buffer]  # an array of the result, and a block's local part of it


@dataclass(frozen=True, slots=True)
class Products:
    """A function that fills rows of a result by marks, each on its own, in the parallel *loop*.

    *stored* are the coordinates and the values along *axis*; *count* counts the elements of a row,
    which is short with at most *limit* of them.
    """

    func: PosFunc
    loop: For
    axis: Axis
    stored: tuple[SparseBuffer, ...]
    count: Buffer
    limit: int


def find_products(func: Func) -> Products | None:
    """Return the parts of *func* if its rows may be computed in blocks; else None."""
    loop = func.body
    match func.attr(ONE_PASS):
        case (str() as name, str() as counter, int() as limit) if isinstance(loop, For):
            pass
        case _:
            return None
    if not isinstance(func, PosFunc):
        return None
    axis = next((a for a in func.axes if a.name == name and a.is_below_root and a.indices), None)
    counts = [n.buffer for n in walk(loop) if isinstance(n, Alloc) and n.buffer.name == counter]
    if axis is None or axis.parent is None or len(counts) != 1:
        return None
    is_whole = from_zero(loop) and expr_equal(loop.end, cast(axis.parent.length, int64))
    along = [b for b in func.buffers if isinstance(b, SparseBuffer) and b.axes[-1] is axis]
    (count,) = counts
    if loop.kind != "parallel" or not is_whole or not isinstance(count, Buffer):
        return None
    products = Products(func, loop, axis, tuple(along), count, limit)
    return products if _are_rows_separate(products) else None


def unclaimed(func: Func) -> Func:
    """Return *func* without the claim that its rows may be computed in blocks."""
    attrs = tuple(pair for pair in func.attrs if pair[0] != ONE_PASS)
    return func if len(attrs) == len(func.attrs) else func.replace(attrs=attrs)


def _are_rows_separate(products: Products) -> bool:
    """Whether each iteration only reads and writes its own row of the result."""
    blocks = [n for n in walk(products.loop) if isinstance(n, Block)]
    iters = {
        item.var for block in blocks for item in block.iters if item.value is products.loop.var
    }
    rows, sizes = {products.loop.var, *iters}, products.axis.indptr
    uses = [n for n in walk(products.loop.body) if isinstance(n, Load | Store | Search)]
    accesses = [n for n in uses if n.buffer in products.stored]
    in_row = (
        isinstance(n, Load | Store) and len(n.indices) == 2 and n.indices[0] in rows
        for n in accesses
    )
    read_only = all(isinstance(n, Load) for n in uses if n.buffer.data is sizes)
    return all(in_row) and read_only


def pack_rows(module: Module[Any], knobs: Knobs) -> Module[Any] | None:
    """Return *module* with one pass over blocks, if it counts, scans and fills rows by marks."""
    match module.host:
        case (
            HostAlloc(buffer=indptr),
            Launch(),
            Scan(),
            *ops,
            Launch(func=name),
            Return(),
        ) if isinstance(module.source, CoordFunc):
            products = find_products(module[name])
            allocs = {op.buffer.name: op for op in ops if isinstance(op, HostAlloc)}
            if (
                products is None
                or products.axis.indptr is None
                or products.axis.indptr.name != indptr.name
            ):
                return None
            if {b.data.name for b in products.stored if b.data} != allocs.keys():
                return None
            starts = {b: allocs[b.data.name].fill for b in products.stored if b.data}
            return _pack(module.source, products, indptr, starts, knobs.block_products)
    return None


def _pack(
    source: CoordFunc,
    products: Products,
    indptr: Buffer,
    starts: Mapping[SparseBuffer, Value | None],
    size: int,
) -> Module[Any]:
    """Return the program with a bound for each row in place of a count, and blocks of rows."""
    axis, fill = products.axis, products.func
    result_axis = next(a for a in source.axes if a.is_assembled and a.name == axis.name)
    bounds, handle = row_work(source, result_axis)
    assert axis.parent is not None
    rows = cast(axis.parent.length, int64)
    work = Buffer(handle.name, handle, (binary("+", rows, 1),), int64)
    most, total = Load(work, (rows,)), cast(Load(indptr, (rows,)), int64)
    arrays = tuple(Buffer(b.data.name, b.data, (most,), b.dtype) for b in products.stored if b.data)
    others = [b for b in fill.buffers if axis not in getattr(b, "axes", ())]
    func = unclaimed(fill).replace(
        name=f"{source.name}_pack",
        params=(*fill.params, handle),
        axes=tuple(a for a in fill.axes if a is not axis),
        buffers=(*others, work, *arrays),
        body=_Blocks(products, Names(fill), work, arrays, tuple(starts.values()), size).build(),
        domains=tuple(d for d in fill.domains if d.buffer in others),
    )
    host: tuple[HostOp, ...] = (
        HostAlloc(work),
        Launch(bounds.name),
        Scan(work),
        HostAlloc(indptr),
        *(HostAlloc(array, None) for array in arrays),
        Launch(func.name),
        *(Trim(array, total) for array in arrays),
        Return((indptr, *arrays)),
    )
    return Module(source, (bounds, func), host)


class _Blocks:
    """The loop over blocks of rows: *work* is the running sum of the products of rows.

    *arrays* are those of the result, with room for all, *starts* their initial values; *size* is
    the least number of products of a block.
    """

    def __init__(
        self,
        products: Products,
        names: Names,
        work: Buffer,
        arrays: tuple[Buffer, ...],
        starts: tuple[Value | None, ...],
        size: int,
    ) -> None:
        self.products, self.names, self.work, self.arrays = products, names, work, arrays
        self.starts, self.size = starts, size
        assert products.axis.parent is not None
        self.rows = cast(products.axis.parent.length, int64)
        wishes = ("block", "from", "to", "room", "share", "longest")
        self.block, self.first, self.last, self.room, self.share, self.longest = (
            names.var(f"{products.loop.var.name}_{wish}") for wish in wishes
        )
        self.indptr = next(b for b in products.func.buffers if b.data is products.axis.indptr)

    def build(self) -> Stmt:
        """Return the loop, after the store that lets the first row begin at 0."""
        last = self._row(binary("+", self.block, 1))
        body = Let(self.first, self._row(self.block), Let(self.last, last, self._body()))
        path = binary("+", Load(self.work, (self.rows,)), self.rows)
        trips = binary("//", binary("+", path, binary("-", self.share, 1)), self.share)
        loop = For(self.block, ZERO, trips, body, "parallel", attrs=(("grain", 1),))
        # words that each block has to clear
        words = binary(">>", cast(self.products.axis.length, int64), BITS)
        blocks = Let(self.share, binary("max", const(self.size), words), loop)
        return seq(Store(self.indptr, (ZERO,), cast(ZERO, self.indptr.dtype)), blocks)

    def _row(self, block: Expr) -> Expr:
        """Return the first row of *block*; a row counts as much as a product."""
        key = binary("*", block, self.share)
        return Search("lower", self.work, ZERO, self.rows, key, 1)

    def _size(self, first: Expr, last: Expr) -> Expr:
        """Return how many products there are in rows ``first..last-1``."""
        return binary("-", Load(self.work, (last,)), Load(self.work, (first,)))

    def _body(self) -> Stmt:
        """Return the statement that computes the rows of a block, and puts them in place."""
        names, count, loop = self.names, self.products.count, self.products.loop
        local = tuple(
            Buffer(names.unique(f"{array.name}_kept"), None, (self.room,), array.dtype, "local")
            for array in self.arrays
        )
        height = binary("-", self.last, self.first)
        ends = Buffer(names.unique("ends"), None, (height,), int64, "local")
        count_so_far, begin, end = scalar(names, "made"), names.var("begin"), names.var("end")
        row = _Row(self.products, local, begin, self.work)
        note = seq(
            Store(ends, (binary("-", loop.var, self.first),), end),
            Store(count_so_far, (ZERO,), end),
        )
        note = Let(end, binary("+", begin, Load(count, (ZERO,))), note)
        row_body = Let(begin, Load(count_so_far, (ZERO,)), seq(row.rewrite(loop.body), note))
        row_loop = loop.replace(
            begin=self.first, end=self.last, body=row_body, kind="serial", attrs=()
        )
        pairs = tuple(zip(self.arrays, local, strict=True))
        placement = put_in_place(
            names, self.indptr, pairs, ends, (self.first, self.last), count_so_far
        )
        rows = self._with_workspaces(row_loop, row.workspaces)
        stmt = seq(Store(count_so_far, (ZERO,), ZERO), *self._start(local), rows, placement)
        for buffer in (*local, ends, count_so_far, count):
            stmt = Alloc(buffer, stmt)
        return Let(self.room, self._size(self.first, self.last), stmt)

    def _start(self, local: tuple[Buffer, ...]) -> Iterator[Stmt]:
        """Yield the loops that set the values to their initial ones."""
        for buffer, stored, start in zip(local, self.products.stored, self.starts, strict=True):
            if stored.data is not self.products.axis.indices:
                at = self.names.var("q")
                first = Store(buffer, (at,), const(start or 0, buffer.dtype))
                yield For(at, ZERO, self.room, first, "vectorized")

    def _with_workspaces(self, rows: Stmt, workspaces: list[Buffer]) -> Stmt:
        """Return *rows* with their workspaces; those of long rows are empty if all are short."""
        at, most = self.names.var("row"), scalar(self.names, "most")
        more = binary("max", Load(most, (ZERO,)), self._size(at, plus(at, 1)))
        measure = For(at, self.first, self.last, Store(most, (ZERO,), more))
        long = BinOp(">", self.longest, const(self.products.limit))
        resized: dict[AnyBuffer, AnyBuffer] = {
            b: b.replace(shape=tuple(Select(long, cast(n, int64), ZERO) for n in b.shape))
            for b in workspaces
            if not all(isinstance(n, Const) for n in b.shape)
        }
        stmt: Stmt = Relink({}, {}, resized).rewrite(rows)
        for buffer in workspaces:
            stmt = Alloc(resized.get(buffer, buffer), stmt)
        stmt = Let(self.longest, Load(most, (ZERO,)), stmt)
        return Alloc(most, seq(Store(most, (ZERO,), ZERO), measure, stmt))


class _Row(Rewriter):
    """Redirects a row into *local*, from *begin* on; *work* bounds its size.

    The count and the *workspaces* are allocated outside.
    """

    def __init__(
        self, products: Products, local: tuple[Buffer, ...], begin: Var, work: Buffer
    ) -> None:
        self.count, self.sizes = products.count, products.axis.indptr
        self.local = dict(zip(products.stored, local, strict=True))
        self.begin, self.work = begin, work
        self.workspaces: list[Buffer] = []

    def visit_Alloc(self, alloc: Alloc) -> Node:
        buffer = alloc.buffer
        if buffer.scope == WORKSPACE and isinstance(buffer, Buffer):
            self.workspaces.append(buffer)
        elif buffer is not self.count:
            return self.visit_Node(alloc)
        return self.rewrite(alloc.body)

    def visit_Cast(self, expr: Cast) -> Node:
        """Leave out a cast that no longer changes anything."""
        return cast(self.rewrite(expr.value), expr.type)

    def visit_Load(self, load: Load) -> Node:
        if load.buffer.data is self.sizes:
            return load.replace(buffer=self.work)
        return self._redirect(load)

    def visit_Store(self, store: Store) -> Node:
        return self._redirect(store)

    def visit_Block(self, block: Block) -> Node:
        return block.replace(reads=(), writes=(), body=self.rewrite(block.body))

    def _redirect(self, access: Load | Store) -> Node:
        """Return *access* to an element of the row in its local buffer."""
        new: Any = self.visit_Node(access)
        local = self.local.get(new.buffer)
        if local is None:
            return new  # type: ignore[no-any-return]
        return new.replace(buffer=local, indices=(binary("+", self.begin, new.indices[1]),))  # type: ignore[no-any-return]


def put_in_place(
    names: Names,
    indptr: AnyBuffer,
    pairs: tuple[Pair, ...],
    ends: Buffer,
    rows: tuple[Expr, Expr],
    count: AnyBuffer,
) -> Stmt:
    """Return the statement that copies the rows of a block behind those of earlier blocks.

    *count* holds their number of elements, *ends* where each of the *rows*, a range, ends among
    them.
    """
    base, total, row = names.var("base"), names.var("total"), names.var("row")
    first, last = rows
    dtype = indptr.dtype
    end = cast(binary("+", base, Load(ends, (row,))), dtype)
    note = Store(indptr, (plus(plus(first, row), 1),), end)
    copies = [_copy(names, *pair, base, total) for pair in pairs]
    body: Stmt = seq(*copies, For(row, ZERO, binary("-", last, first), note, "vectorized"))
    if dtype != int64:
        fits = BinOp("<=", binary("+", base, total), const((1 << (dtype.bits - 1)) - 1))
        body = If(
            fits, body, Fail(f"the result has more elements than {dtype} index arrays can hold")
        )
    return Let(total, Load(count, (ZERO,)), Prefix(base, total, body))


def _copy(names: Names, target: Buffer, source: Buffer, base: Var, count: Var) -> Stmt:
    q = names.var(f"{target.name}_q")
    store = Store(target, (binary("+", base, q),), Load(source, (q,)))
    return For(q, ZERO, count, store, "vectorized")
