"""The step that cuts a loop over rows so that its parts hold equally many elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.errors import ScheduleError, Span
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, from_zero, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.arith.linear import expr_equal
from spcomp.ir.axis import SparseBuffer
from spcomp.ir.expr import BinOp, Expr, Var, binary, cast, const
from spcomp.ir.func import Func
from spcomp.ir.position import Block
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import For, Let, Stmt, Store
from spcomp.ir.visitor import statements, walk
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.legality.partition import chunked
from spcomp.schedule.nests.nests import find_loop, replaced
from spcomp.schedule.steps.base import Step

MAX_CHUNKS = 256
SMALL, LARGE = 4096, 8192  # elements in a chunk: each with a loop inside, or by itself
ROW = (
    2  # what a row costs besides its elements, in elements: its result is written, its loop starts
)


@dataclass(frozen=True, slots=True)
class SplitNnz(Step):
    """``for i in n: s  ->  for c in chunks: for i in range(cut(c), cut(c + 1)): s``.

    For a loop over all rows of a variable axis. A row weighs 2 and each of its elements 1; the
    chunks, at most 256 of at least *size* each, weigh the same but for one row. They depend on the
    data only, and each row belongs to one, empty ones too. Always legal; the new loop takes the
    kind of the old one. Source: merge-based SpMV (Merrill and Garland, SC 2016), rows kept whole.
    """

    name: ClassVar[str] = "split_nnz"
    loop: str
    size: int

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the loop cut into chunks."""
        loop = find_loop(func, self.loop, self, span)
        if self.size < 1:
            raise ScheduleError(f"{self}: the size must be at least 1", span or loop.span)
        indptr = row_pointer(func, loop)
        if indptr is None:
            raise ScheduleError(
                f"{self}: {self.loop!r} is no loop over all rows of a variable axis",
                span or loop.span,
                hint="no loop inside it runs over the fiber of its row",
            )
        if starts_inside(func, loop):
            raise ScheduleError(
                f"{self}: a reduction goes on outside the loop, and starts there", span or loop.span
            )
        names = Names(func)
        chunk = names.var(f"{self.loop}_c")
        chunks = names.var(f"{self.loop}_chunks")
        share = names.var(f"{self.loop}_share")
        first = Load(indptr, (ZERO,))
        stored = cast(binary("-", Load(indptr, (loop.end,)), first), int64)
        weight = names.var(f"{self.loop}_weight")
        # one more than all weighs, so that the last cut is behind the last row, empty or not
        total = stored + loop.end * ROW + 1
        key = cast(first, int64) + chunk * share
        cut = Search("lower", indptr, ZERO, loop.end, key, ROW, span=loop.span)
        made: Stmt = chunked(loop, chunk, chunks, cut)
        made = Let(share, ceil_div(weight, chunks), made)
        count = BinOp(
            "min", BinOp("max", ceil_div(weight, const(self.size)), const(1)), const(MAX_CHUNKS)
        )
        made = Let(weight, total, Let(chunks, count, made))
        return replaced(func, loop, made)


def ceil_div(a: Expr, b: Expr) -> Expr:
    """Return ``a / b`` rounded up, of positive int64."""
    return binary("//", a + b - 1, b)


def row_pointer(func: Func, loop: For) -> SparseBuffer | None:
    """Return the indptr of the fibers that *loop* runs over the rows of; None if there is none.

    The loop must run over all rows, serially or in parallel, and load where the fiber of its row
    begins and ends.
    """
    handles = {axis.indptr for axis in func.axes if axis.is_variable}
    written = {n.buffer.data for n in walk(loop.body) if isinstance(n, Store)}
    values = named(loop.body)
    found: dict[SparseBuffer, set[int]] = {}
    for node in walk(loop.body):
        if not isinstance(node, Load) or not isinstance(node.buffer, SparseBuffer):
            continue
        buffer, index = node.buffer, node.indices[-1] if len(node.indices) == 1 else None
        if buffer.data not in handles - written or index is None:
            continue
        index = substitute(index, values)
        for shift in (0, 1):
            if expr_equal(index, binary("+", loop.var, shift) if shift else loop.var):
                found.setdefault(buffer, set()).add(shift)
    if loop.kind not in ("serial", "parallel"):
        return None
    for buffer, shifts in found.items():
        rows = cast(buffer.axes[0].length, int64)
        if shifts == {0, 1} and from_zero(loop) and expr_equal(rows, loop.end):
            return buffer
    return None


def named(body: Stmt) -> dict[Var, Expr]:
    """Return what the iters of blocks in *body*, and its lets, stand for."""
    values: dict[Var, Expr] = {}
    for node in statements(body):
        match node:
            case Block(iters=iters):
                values |= {i.var: substitute(i.value, values) for i in iters}
            case Let(var=var, value=value):
                values[var] = substitute(value, values)
    return values


def starts_inside(func: Func, loop: For) -> bool:
    """Whether a block in *loop* starts a reduction that *loop*, or a loop around it, drives."""
    known = {n.var for n in walk(loop.body) if isinstance(n, (For, Let))} | {*func.params}
    values = named(loop.body)
    for node in walk(loop.body):
        if isinstance(node, Block) and node.init is not None:
            for own in node.iters:
                if own.kind == "R" and variables(substitute(own.value, values)) - known:
                    return True
    return False


def nnz_chunks(func: Func, loop: str, size: int | None = None) -> SplitNnz | None:
    """Return the step that cuts *loop* by elements, or None where that is not legal.

    By default chunks are small where an element is a loop, and larger where it is one operation:
    to find where a chunk begins costs as much as some hundred of these.
    """
    found = next((x for x in loops_of(func.body) if x.var.name == loop), None)
    inner = loops_of(found.body) if found is not None else ()
    nested = any(True for x in inner for _ in loops_of(x.body))
    step = SplitNnz(loop, size or (SMALL if nested else LARGE))
    return step if step.is_legal(func) else None
