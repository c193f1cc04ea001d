"""In position space: the step split_nnz, which cuts a loop over rows into equal work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, from_zero
from spcomp.ir.analysis.names import Names
from spcomp.ir.arith.memory import writes_of
from spcomp.ir.axis import SparseBuffer
from spcomp.ir.expr import BinOp, binary, cast, const
from spcomp.ir.func import Func
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import For, Let, Stmt
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import walk
from spcomp.knobs import Knobs
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.legality.partition import chunk_loop
from spcomp.schedule.nests.nests import find_loop, replace_stmt
from spcomp.schedule.nests.values import binding_values, ceil_div, starts_inside
from spcomp.schedule.steps.base import Step

MAX_CHUNKS = 256
ROW = (
    2  # what a row costs besides its elements, in elements: its result is written, its loop starts
)


@dataclass(frozen=True, slots=True)
class SplitNnz(Step):
    """``for i in n: s  ->  for c in chunks: for i in range(cut(c), cut(c + 1)): s``.

    For a loop over all rows of a variable axis. A row weighs 2 and each of its elements 1. There
    are at most 256 chunks of at least *size* each, which differ in weight by one row at most. They
    depend on the data only, and each row, even an empty one, belongs to one chunk. The new loop
    takes the kind of the old one. Legal unless it, or a loop around it, drives a reduction that
    starts inside. Source: merge-based SpMV (Merrill and Garland, SC 2016), with whole rows.
    """

    name: ClassVar[str] = "split_nnz"
    loop: str
    size: int

    def plan(self, func: Func) -> tuple[For, SparseBuffer]:
        """Return the loop, and the indptr array of the fibers of its rows."""
        loop = find_loop(func, self.loop, self)
        if self.size < 1:
            raise self.error("the size must be at least 1", loop)
        indptr = row_pointer(func, loop)
        if indptr is None:
            why = f"{self.loop!r} is no loop over all rows of a variable axis"
            raise self.error(why, loop, "no loop inside it runs over the fiber of its row")
        if starts_inside(func, loop):
            raise self.error("a reduction goes on outside the loop, and starts there", loop)
        return loop, indptr

    def rewrite(self, func: Func, plan: tuple[For, SparseBuffer]) -> Func:
        """Return *func* with the loop cut into chunks."""
        loop, indptr = plan
        names = Names(func)
        chunk = names.var(f"{self.loop}_c")
        chunks = names.var(f"{self.loop}_chunks")
        share = names.var(f"{self.loop}_share")
        first = Load(indptr, (ZERO,))
        stored = cast(binary("-", Load(indptr, (loop.end,)), first), int64)
        weight = names.var(f"{self.loop}_weight")
        # one more than the total weight, so that the last cut is after the last row, empty or not
        total = stored + loop.end * ROW + 1
        key = cast(first, int64) + chunk * share
        cut = Search("lower", indptr, ZERO, loop.end, key, ROW, span=loop.span)
        stmt: Stmt = chunk_loop(loop, chunk, chunks, cut)
        stmt = Let(share, ceil_div(weight, chunks), stmt)
        count = BinOp(
            "min", BinOp("max", ceil_div(weight, const(self.size)), const(1)), const(MAX_CHUNKS)
        )
        stmt = Let(weight, total, Let(chunks, count, stmt))
        return replace_stmt(func, loop, stmt)


def row_pointer(func: Func, loop: For) -> SparseBuffer | None:
    """Return the indptr whose rows *loop* runs over; None if there is none.

    The loop must run over all rows, serially or in parallel, and load where the fiber of its row
    begins and ends.
    """
    handles = {axis.indptr for axis in func.axes if axis.is_variable} - writes_of(loop.body)
    values = binding_values(loop.body)
    shifts_of: dict[SparseBuffer, set[int]] = {}
    for node in walk(loop.body):
        if not isinstance(node, Load) or not isinstance(node.buffer, SparseBuffer):
            continue
        buffer, index = node.buffer, node.indices[-1] if len(node.indices) == 1 else None
        if buffer.data not in handles or index is None:
            continue
        index = substitute(index, values)
        for shift in (0, 1):
            if expr_equal(index, binary("+", loop.var, shift) if shift else loop.var):
                shifts_of.setdefault(buffer, set()).add(shift)
    if loop.kind not in ("serial", "parallel"):
        return None
    for buffer, shifts in shifts_of.items():
        rows = cast(buffer.axes[0].length, int64)
        if shifts == {0, 1} and from_zero(loop) and expr_equal(rows, loop.end):
            return buffer
    return None


def nnz_chunks(func: Func, loop: str, size: int) -> SplitNnz | None:
    """Return the step that cuts *loop* by elements; None where it is not legal."""
    step = SplitNnz(loop, size)
    return step if step.is_legal(func) else None


def chunk_size(func: Func, loop: str, knobs: Knobs) -> int:
    """Return the number of elements in a chunk of *loop*: fewer where each is a loop."""
    node = next((x for x in loops_of(func.body) if x.var.name == loop), None)
    inner = loops_of(node.body) if node is not None else ()
    nested = any(True for x in inner for _ in loops_of(x.body))
    return knobs.chunk_nested if nested else knobs.chunk_elements
