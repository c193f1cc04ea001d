"""II to II: co-iteration becomes a while loop that advances every cursor without branches."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.ir.axis import AnyBuffer, Buffer
from spcomp.ir.expr import BinOp, BinOpKind, Cast, Expr, Load, Select, Var, binary, cast, const
from spcomp.ir.node import Node
from spcomp.ir.position import Cursor, Merge, PosFunc
from spcomp.ir.stmt import Alloc, For, If, Let, Seq, Stmt, Store, While, seq
from spcomp.ir.visitor import Rewriter, walk
from spcomp.passes.base import FuncPass, Stage
from spcomp.passes.blend import blended
from spcomp.passes.copies import Fresh
from spcomp.passes.names import Names
from spcomp.passes.positions import ZERO

LAST = const(2**63 - 1)  # the coordinate of a cursor that has run out


@dataclass(frozen=True, slots=True)
class LowerMerge(FuncPass):
    """``merge(union, a, b): cases  ->  while any left: j = min(...); if ...: case; advance``.

    A union of two runs while both are left, without branches where the cases differ in the values
    that they store only, and then along the rest of each.
    """

    name: ClassVar[str] = "lower_merge"
    takes: ClassVar[Stage] = Stage.POSITION
    gives: ClassVar[Stage] = Stage.POSITION

    def run_func(self, func: PosFunc) -> PosFunc:
        """Return *func* without merges."""
        body = _LowerMerge(Names(func)).rewrite(func.body)
        return func if body is func.body else func.replace(body=body)


class _LowerMerge(Rewriter):
    def __init__(self, names: Names) -> None:
        self.names = names

    def visit_Merge(self, merge: Merge) -> Node:
        new = self.visit_Node(merge)
        assert isinstance(new, Merge)
        ends = [self.names.var(f"{c.pos.name}_end") for c in new.cursors]
        states = [
            Buffer(self.names.unique(f"{c.pos.name}_at"), None, (const(1),), int64, "local")
            for c in new.cursors
        ]
        coords = [self.names.var(f"{c.pos.name}_crd") for c in new.cursors]
        run = self._pair if _is_pair(new) else self._loop
        stmt = run(new, states, ends, coords)
        for cursor, state in zip(new.cursors, states, strict=True):
            stmt = seq(Store(state, (ZERO,), cursor.begin), stmt)
        for state in reversed(states):
            stmt = Alloc(state, stmt)
        for cursor, end in zip(reversed(new.cursors), reversed(ends), strict=True):
            stmt = Let(end, cursor.end, stmt, span=merge.span)
        return stmt

    def _pair(self, merge: Merge, states: list[Buffer], ends: list[Var], coords: list[Var]) -> Stmt:
        """Return a union of two as a loop while both are left, then one over the rest of each.

        In the first no cursor has run out, so that what all cases load is there: where they differ
        in what they store only, that is selected.
        """
        bodies = {case.present: case.body for case in merge.cases}
        cases = [bodies.get(present) for present in ((True, True), (True, False), (False, True))]
        here = [BinOp("==", crd, merge.coordinate) for crd in coords]
        conds = [_all_of("and", here), here[0]]
        known = [case for case in cases if case is not None]
        body = blended(known, conds, self.names) if len(known) == len(cases) else None
        stmts = [self._loop(merge, states, ends, coords, body or self._choice(merge, here))]
        for k, rest in enumerate(cases[1:]):
            if rest is not None:
                at, pos, crd = (
                    self.names.var(f"{v.name}_rest")
                    for v in (merge.coordinate, merge.cursors[k].pos, coords[k])
                )
                values: dict[Var, Expr] = {merge.coordinate: at, merge.cursors[k].pos: pos}
                copy = Fresh(self.names, "_rest", values).rewrite(rest)
                cursor = merge.cursors[k].replace(pos=pos)
                alone = merge.replace(coordinate=at, cursors=(cursor,))
                stmts.append(self._loop(alone, [states[k]], [ends[k]], [crd], copy))
        return seq(*stmts)

    def _loop(
        self,
        merge: Merge,
        states: list[Buffer],
        ends: list[Var],
        coords: list[Var],
        inner: Stmt | None = None,
    ) -> Stmt:
        """Return the loop that runs the cases, or *inner* as long as all cursors are left."""
        joint: BinOpKind = "or" if merge.kind == "union" and inner is None else "and"
        more = _all_of(
            joint, [BinOp("<", _at(s), end) for s, end in zip(states, ends, strict=True)]
        )
        here = [BinOp("==", crd, merge.coordinate) for crd in coords]
        advance = [
            Store(s, (ZERO,), binary("+", _at(s), Cast(h, int64)))
            for s, h in zip(states, here, strict=True)
        ]
        body = seq(inner or self._choice(merge, here), *advance)
        body = Let(merge.coordinate, _all_of("min", coords), body)
        for k in range(len(coords) - 1, -1, -1):
            cursor, end = merge.cursors[k], ends[k]
            value = _coordinate(cursor)
            if joint == "or":
                value = Select(BinOp("<", cursor.pos, end), value, LAST)
            body = Let(cursor.pos, _at(states[k]), Let(coords[k], value, body))
        return While(more, body, span=merge.span)

    def _choice(self, merge: Merge, here: list[BinOp]) -> Stmt:
        """Return the case that fits which cursors are *here*; nothing if there is none."""
        chain: Stmt | None = None
        for case in reversed(merge.cases):
            cond = _all_of(
                "and", [h for h, present in zip(here, case.present, strict=True) if present]
            )
            whole = merge.kind == "union" and chain is None and len(merge.cases) > 1
            body = case.body
            chain = body if whole and _complete(merge) else If(cond, body, chain, span=case.span)
        return chain or Seq(())


def _is_pair(merge: Merge) -> bool:
    """Whether *merge* is a union of two, with little to do for each coordinate."""
    loops = (For, While, Merge)
    few = not any(isinstance(n, loops) for case in merge.cases for n in walk(case.body, skip=Expr))
    return merge.kind == "union" and len(merge.cursors) == 2 and few


def _complete(merge: Merge) -> bool:
    """Whether the cases cover all combinations, so that the last needs no test."""
    return len(merge.cases) + 1 == 1 << len(merge.cursors)


def _at(state: Buffer) -> Expr:
    return Load(state, (ZERO,))


def _all_of(op: BinOpKind, parts: Sequence[Expr]) -> Expr:
    """Return *parts* combined by *op*, from the left."""
    return functools.reduce(lambda a, b: BinOp(op, a, b), parts)


def _coordinate(cursor: Cursor) -> Expr:
    if cursor.indices is None:
        return binary("-", cursor.pos, cursor.begin)
    return cast(Load(cursor.indices, _absolute(cursor.indices, cursor.pos)), int64)


def _absolute(buffer: AnyBuffer, pos: Expr) -> tuple[Expr | None, ...]:
    count = len(buffer.axes) if not isinstance(buffer, Buffer) else 1
    return (*(None for _ in range(count - 1)), pos)
