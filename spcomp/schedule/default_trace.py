"""The only place where default decisions are made: the trace of an unscheduled program."""

from __future__ import annotations

from collections.abc import Iterator

from spcomp.ir.arith import coefficient
from spcomp.ir.axis import AnyBuffer, SparseBuffer
from spcomp.ir.expr import Expr, Load, Var
from spcomp.ir.position import Block, Merge, PosFunc
from spcomp.ir.stmt import Alloc, For, Let, Seq, Stmt, Store, While
from spcomp.ir.visitor import walk
from spcomp.passes.loop_kinds import can_vectorize
from spcomp.passes.scope import variables
from spcomp.schedule.dependence import conflicts, loops_of
from spcomp.schedule.loops import Parallel, Vectorize, innermost, is_dot
from spcomp.schedule.step import Step
from spcomp.target import Target


def default_steps(func: PosFunc, target: Target) -> tuple[Step, ...]:
    """Return the default steps for *func*: parallel outer loops, vectors innermost."""
    if target.kind != "cpu" or any(loop.kind != "serial" for loop in loops_of(func.body)):
        return ()  # the program comes with decisions of its own
    steps: list[Step] = [Parallel(loop.var.name) for loop in _outermost_legal(func.body)]
    steps += [Vectorize(loop.var.name) for loop in loops_of(func.body) if _is_contiguous(loop)]
    return tuple(steps)


def _outermost_legal(stmt: Stmt) -> Iterator[For]:
    """Yield the outermost loop of each nest that may run in parallel.

    A loop inside a loop over data-dependent fibers is too short to be worth a launch.
    """
    match stmt:
        case Seq(body=body):
            for part in body:
                yield from _outermost_legal(part)
        case Let(body=inner) | Alloc(body=inner):
            yield from _outermost_legal(inner)
        case For():
            if not conflicts(stmt):
                yield stmt
            elif isinstance(stmt.body, For):
                yield from _outermost_legal(stmt.body)


def _is_contiguous(loop: For) -> bool:
    """Whether *loop* is innermost, legal to vectorize, and reads and writes memory in order."""
    if any(isinstance(n, (For, While, Merge)) for n in walk(loop.body)):
        return False
    if isinstance(loop.body, Block) and loop.body.where is not None:
        return False
    body, var = innermost(loop)
    if not can_vectorize(body, var) or not all(_in_order(n, var) for n in _accesses(body)):
        return False
    if not any(var in variables(n) for n in _accesses(body)):
        return False
    return is_dot(body, var) or not conflicts(loop)


def _accesses(body: Stmt) -> list[Load | Store]:
    return [n for n in walk(body) if isinstance(n, (Load, Store))]


def _in_order(access: Load | Store, var: Var) -> bool:
    """Whether *access* moves by one element, or not at all, when *var* moves by one."""
    last = access.indices[-1] if access.indices else None
    if any(i is not None and var in variables(i) for i in access.indices[:-1]):
        return False
    return last is None or var not in variables(last) or _unit(access.buffer, last, var)


def _unit(buffer: AnyBuffer, index: Expr, var: Var) -> bool:
    if isinstance(buffer, SparseBuffer) or buffer.strides is None:
        return coefficient(index, var) == 1
    return False
