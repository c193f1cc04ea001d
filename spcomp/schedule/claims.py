"""What a program written below coordinate space says of its loops, checked by the one oracle."""

from __future__ import annotations

from spcomp.errors import ScheduleError, warn
from spcomp.ir.expr import Var
from spcomp.ir.flat import FlatFunc
from spcomp.ir.position import Block
from spcomp.ir.stmt import Func, Stmt
from spcomp.ir.visitor import walk
from spcomp.passes.loop_kinds import can_vectorize
from spcomp.schedule.dependence import conflicts, loops_of
from spcomp.schedule.nests import replaced
from spcomp.schedule.reductions import innermost, is_dot


def _runs_serially(body: Stmt, var: Var) -> bool:
    """Whether the claim that *body* runs in vectors over *var* has no effect."""
    blocks = any(isinstance(node, Block) for node in walk(body))  # what they become is not known
    return not blocks and not can_vectorize(body, var)


def without_false_claims(func: Func) -> Func:
    """Return *func* with no loop that claims to be parallel or vectorized and is not.

    In position space such a claim raises ScheduleError at the loop's line; in flat buffers, where
    much of what would prove it is gone, the loop runs serially, with a warning.
    """
    while True:
        for loop in loops_of(func.body):
            if loop.kind not in ("parallel", "vectorized"):
                continue
            body, var = innermost(loop)
            if loop.kind == "vectorized" and (is_dot(body, var) or _runs_serially(body, var)):
                continue
            if not (found := conflicts(loop)):
                continue
            if not isinstance(func, FlatFunc):
                message = f"loop {loop.var.name} cannot be {loop.kind}: {found[0]}"
                raise ScheduleError(message, loop.span)
            where = f"{loop.span}: " if loop.span else ""
            warn(
                f"{where}loop {loop.var.name} is not proved to be {loop.kind}, so it runs"
                f" serially: {found[0]}"
            )
            func = replaced(func, loop, loop.replace(kind="serial"))
            break
        else:
            return func
