"""Before code for a GPU: what trips of an unrolled loop do before lanes exchange values.

Where lanes of a warp may be in different trips, no load is moved before an exchange by those that
assemble the code: memory is waited for in each trip. So loads of several trips are written first.
"""

from __future__ import annotations

from dataclasses import dataclass

from spcomp.ir import stmt as st
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import from_zero
from spcomp.ir.analysis.fragments import is_fragment
from spcomp.ir.axis import WARP, AnyBuffer
from spcomp.ir.expr import BinOp, Const
from spcomp.ir.visitor import walk

_ORDERED = (st.Fail, st.While, st.Barrier, st.Prefix, st.Let, st.Evaluate, Search)


@dataclass(frozen=True, slots=True)
class Turn:
    """A trip in two parts: *allocs* without their bodies, what comes *first*, and the *rest*."""

    allocs: tuple[st.Alloc, ...]
    first: st.Seq
    rest: st.Seq


def turn_of(body: st.Stmt) -> Turn | None:
    """Return *body*, of a loop, in two parts, of which the first of each trip may come earlier.

    The first part writes memory of its own, and reads nothing that the rest writes. None if there
    is none, or nothing is gained.
    """
    if any(isinstance(node, _ORDERED) for node in walk(body)):
        return None
    allocs: list[st.Alloc] = []
    steps = list(_steps(body, allocs))
    count = next((k for k, step in enumerate(steps) if _exchanges(step)), len(steps))
    first, rest = steps[:count], steps[count:]
    own = {node.buffer for node in walk(body) if isinstance(node, st.Alloc)}
    if any(buffer.scope not in ("local", WARP) or is_fragment(buffer) for buffer in own):
        return None
    loads = {node.buffer for step in first for node in walk(step) if isinstance(node, Load)} - own
    if not rest or not loads or loads & _written(rest) or not _written(first) <= own:
        return None
    return Turn(tuple(allocs), st.Seq(tuple(first)), st.Seq(tuple(rest)))


def most_trips(loop: st.For) -> int | None:
    """Return a number of trips that *loop*, from 0 to the least of numbers, never exceeds."""
    if not from_zero(loop) or not isinstance(loop.end, BinOp) or loop.end.op != "min":
        return None
    ends = (end.value for end in (loop.end.lhs, loop.end.rhs) if isinstance(end, Const))
    return min(map(int, ends), default=None)


def _steps(body: st.Stmt, allocs: list[st.Alloc]) -> list[st.Stmt]:
    """Return the statements of *body* in order, outside of the *allocs* around them."""
    if isinstance(body, st.Alloc):
        allocs.append(body.replace(body=st.Seq(())))
        return _steps(body.body, allocs)
    if isinstance(body, st.Seq):
        return [step for part in body.body for step in _steps(part, allocs)]
    return [body]


def _exchanges(step: st.Stmt) -> bool:
    return any(isinstance(n, Load | st.Store) and n.buffer.scope == WARP for n in walk(step))


def _written(steps: list[st.Stmt]) -> set[AnyBuffer]:
    return {node.buffer for step in steps for node in walk(step) if isinstance(node, st.Store)}
