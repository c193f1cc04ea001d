"""In position space: the steps parallel, vectorize, unroll and add_unit_loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.ir.analysis.exprs import ZERO, trip_count, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.vectors import can_vectorize
from spcomp.ir.arith.bounds import Env, Interval
from spcomp.ir.arith.linear import Algebra
from spcomp.ir.arith.simplify import simplify_stmt
from spcomp.ir.axis import AnyBuffer
from spcomp.ir.expr import BinOp, Const, Var, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.rewrite import Rewriter, rename
from spcomp.ir.stmt import Alloc, For, LoopKind
from spcomp.ir.visitor import statements, walk
from spcomp.schedule.legality.dependence import conflicts
from spcomp.schedule.legality.order import with_order
from spcomp.schedule.legality.reductions import innermost, is_dot
from spcomp.schedule.nests.claims import note_permission
from spcomp.schedule.nests.nests import find_loop, replace_stmt
from spcomp.schedule.steps.base import Step
from spcomp.schedule.steps.loops.annotate import find_target


def set_kind(func: Func, loop: For, kind: LoopKind) -> Func:
    """Return *func* with the kind of *loop* changed."""
    return replace_stmt(func, loop, loop.replace(kind=kind, thread=""))


@dataclass(frozen=True, slots=True)
class Parallel(Step):
    """``for i in serial(n): s  ->  for i in parallel(n): s``.

    Legal where no two iterations touch an element that one of them writes, or where they share
    only what an ``atomic`` block updates; a loop that needs this permission runs serially on a CPU.
    Also legal where iterations write at coordinates of a sorted axis without repetitions; each
    call then checks these.
    """

    name: ClassVar[str] = "parallel"
    loop: str

    def plan(self, func: Func) -> tuple[Func, For]:
        """Return *func* with the promise that the loop needs, if any, and the loop."""
        loop = find_loop(func, self.loop, self)
        func, clashes = with_order(func, loop, atomic=True)
        if clashes:
            raise self.error(str(clashes[0]), loop)
        return func, loop

    def rewrite(self, func: Func, plan: tuple[Func, For]) -> Func:
        """Return *func* with the loop run on all threads."""
        func, loop = plan
        return replace_stmt(
            func, loop, note_permission(func, loop).replace(kind="parallel", thread="")
        )


@dataclass(frozen=True, slots=True)
class Vectorize(Step):
    """``for k in serial(n): s  ->  for k in vectorized(n): s``.

    Legal for an innermost loop of straight-line stores whose iterations are independent, or that
    updates one element by an associative operation. A loop inside one without iterations may stay.
    """

    name: ClassVar[str] = "vectorize"
    loop: str

    def plan(self, func: Func) -> Func:
        """Return *func* with the loop in vectors, simplified first if it needs that."""
        loop = find_loop(func, self.loop, self)
        if not can_vectorize(*innermost(loop)):
            func, loop = _simplify(func, loop)
        body, var = innermost(loop)
        if not can_vectorize(body, var):
            if _never_runs(func, loop):  # which no analysis of its indices gets to know
                return func
            raise self.error("the body is not straight-line arithmetic and stores", loop)
        if not is_dot(body, var) and (clashes := conflicts(loop)):
            raise self.error(str(clashes[0]), loop)
        return set_kind(func, loop, "vectorized")


def _never_runs(func: Func, loop: For) -> bool:
    """Return whether a loop around *loop* has no iterations, as that over an empty bucket."""
    empty = (n for n in statements(func.body) if isinstance(n, For) and trip_count(n) == 0)
    return any(inner is loop for outer in empty for inner in statements(outer))


def _simplify(func: Func, loop: For) -> tuple[Func, For]:
    """Return *func* with *loop* simplified: for instance without the ``//`` of fuse and split.

    Unchanged if that would remove loops or blocks, as an init must run even where its reduction has
    no iterations.
    """
    simplified = simplify_stmt(func.body)
    loops = (n for n in statements(simplified) if isinstance(n, For))
    simpler = next((n for n in loops if n.var is loop.var and _nest(n) == _nest(loop)), loop)
    declared = _allocated(func.body)  # as they stay outside the loop, with the shapes they have
    simpler = rename(simpler, {b: declared[name] for name, b in _allocated(simplified).items()})
    ranges = {
        n.var: Interval(int(n.begin.value), int(n.end.value) - 1)
        for n in statements(func.body)
        if isinstance(n, For) and isinstance(n.begin, Const) and isinstance(n.end, Const)
    }
    digits = _Digits(loop.var, Env({v: r for v, r in ranges.items() if r.low <= r.high}))  # type: ignore[operator]
    simpler = simpler.replace(body=digits.rewrite(simpler.body))
    return replace_stmt(func, loop, simpler), simpler


def _allocated(body: Node) -> dict[str, AnyBuffer]:
    return {n.buffer.name: n.buffer for n in statements(body) if isinstance(n, Alloc)}


class _Digits(Rewriter):
    """Takes *var* out of remainders: ``(i * 8 + var) % 16  ->  i % 2 * 8 + var`` for var < 8."""

    def __init__(self, var: Var, env: Env) -> None:
        self.var, self.env = var, env

    def visit_BinOp(self, op: BinOp) -> Node:
        new = self.visit_Node(op)
        if not isinstance(new, BinOp) or new.op != "%" or self.var not in variables(new):
            return new
        form = Algebra(self.env).of(new).expr()
        inside = (n for n in walk(form) if isinstance(n, BinOp) and n.op in ("//", "%"))
        return new if any(self.var in variables(n) for n in inside) else form


def _nest(loop: For) -> list[object]:
    """The variables of loops and the names of blocks in *loop*, in order."""
    return [
        n.var if isinstance(n, For) else n.name
        for n in statements(loop)
        if isinstance(n, (For, Block))
    ]


@dataclass(frozen=True, slots=True)
class Unroll(Step):
    """``for i in serial(n): s  ->  for i in unroll(n): s``; always legal."""

    name: ClassVar[str] = "unroll"
    loop: str

    def plan(self, func: Func) -> For:
        """Return the loop."""
        return find_loop(func, self.loop, self)

    def rewrite(self, func: Func, plan: For) -> Func:
        """Return *func* with the loop marked for unrolling."""
        return set_kind(func, plan, "unroll")


@dataclass(frozen=True, slots=True)
class AddUnitLoop(Step):
    """``s  ->  for s_u in 1: s`` around the block or loop *target*; always legal.

    Source: TVM's add_unit_loop.
    """

    name: ClassVar[str] = "add_unit_loop"
    target: str

    def plan(self, func: Func) -> Block | For:
        """Return the target."""
        node = find_target(func, self.target, self)
        if not isinstance(node, (Block, For)):
            raise self.error(f"{self.target!r} is no block or loop", node)
        return node

    def rewrite(self, func: Func, plan: Block | For) -> Func:
        """Return *func* with a loop that runs once around the target."""
        var = Names(func).var(f"{self.target}_u")
        return replace_stmt(func, plan, For(var, ZERO, const(1), plan, span=plan.span))
