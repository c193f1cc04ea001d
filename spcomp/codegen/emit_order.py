"""Flat IR to LLVM IR, running sums over the iterations of a loop, which other threads may run."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spcomp.codegen.emit import STATUS
from spcomp.dtypes import int64
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import const
from spcomp.ir.stmt import For, Prefix, prefixes

if TYPE_CHECKING:
    from spcomp.codegen.emit_stmt import Stmts


@dataclass(frozen=True, slots=True)
class Turn:
    """Where the iterations of *loop* hand on a sum: whose turn it is, and the sum so far."""

    cell: Buffer
    loop: For


def open_turns(stmts: Stmts, loop: For) -> None:
    """Let the running sums of *loop* begin."""
    code = stmts.code
    for prefix in prefixes(loop.body):
        turn = Turn(Buffer(f"{prefix.var.name}_turn", None, (const(2),), int64, "local"), loop)
        cell = code.alloca("[2 x i64]", 64)
        first = stmts.exprs.converted(loop.begin, int64)
        code.do(f"store i64 {first}, ptr {cell}, align 8")
        code.do(f"store i64 0, ptr {_sum(stmts, cell)}, align 8")
        stmts.scope[turn.cell] = cell
        stmts.turns[prefix] = turn


def prefix_sum(stmts: Stmts, node: Prefix) -> None:
    """Wait for one's turn, hand on the sum, and run the body; nothing once the call has failed.

    Chunks are taken in order, so that the iteration waited for is being run.
    """
    code, turn = stmts.code, stmts.turns[node]
    cell, status = stmts.scope[turn.cell], stmts.scope[STATUS]
    own = stmts.scope[turn.loop.var]
    amount = stmts.exprs.converted(node.amount, int64)
    wait, late, again, go, done = (code.label(x) for x in ("wait", "late", "again", "go", "done"))
    code.jump(wait)
    code.start(wait)
    seen = code.value(f"load atomic i64, ptr {cell} acquire, align 8")
    code.branch(code.value(f"icmp eq i64 {seen}, {own}"), go, late)
    code.start(late)
    word = code.value(f"load atomic i32, ptr {status} monotonic, align 4")
    code.branch(code.value(f"icmp ne i32 {word}, -1"), done, again)
    code.start(again)
    if sys.platform != "win32":  # where the pool has one thread, which never waits
        code.do(f"call i32 {code.unit.declare('sched_yield', 'i32', '')}()")
    code.jump(wait)
    code.start(go)
    sum_ = _sum(stmts, cell)
    base = code.value(f"load i64, ptr {sum_}, align 8")
    code.do(f"store i64 {code.value(f'add i64 {base}, {amount}')}, ptr {sum_}, align 8")
    after = code.value(f"add i64 {own}, 1")
    code.do(f"store atomic i64 {after}, ptr {cell} release, align 8")
    stmts.scope[node.var] = base
    stmts.visit(node.body)
    code.jump(done)
    code.start(done)


def _sum(stmts: Stmts, cell: str) -> str:
    return stmts.code.value(f"getelementptr inbounds i64, ptr {cell}, i64 1")
