"""III to III: bounds on the index of a loop stand around its body, or become its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.ir.analysis.exprs import from_zero, may_fail, trip_count, variables
from spcomp.ir.arith.memory import are_constant, read_by
from spcomp.ir.arith.simplify import coefficient, simplify
from spcomp.ir.expr import BinOp, Const, Expr, Var, binary, cast, const
from spcomp.ir.node import Node
from spcomp.ir.program import FlatFunc
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import (
    Alloc,
    Barrier,
    Fail,
    For,
    If,
    Let,
    Prefix,
    Seq,
    Stmt,
    Store,
    While,
)
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import children, statements
from spcomp.passes.base import FuncPass, Stage


@dataclass(frozen=True, slots=True)
class GatherGuards(FuncPass):
    """``for i: (if i < n: t[0] = a; if i < n: b[i] = t[0])  ->  for i: if i < n: (...)``.

    A condition under which all that others see of an iteration happens stands around all of it.
    """

    name: ClassVar[str] = "gather_guards"
    takes: ClassVar[Stage] = Stage.FLAT
    gives: ClassVar[Stage] = Stage.FLAT

    def run_func(self, func: FlatFunc) -> FlatFunc:
        """Return *func* with such conditions once in each loop."""
        body = _Gather().rewrite(func.body)
        return func if body is func.body else func.replace(body=body)


class _Gather(Rewriter):
    def visit_For(self, loop: For) -> Node:
        new = self.visit_Node(loop)
        assert isinstance(new, For)
        cond = _common_guard(new.body)
        if cond is None or isinstance(new.body, If) or loop.var not in variables(cond):
            return new
        return new.replace(body=If(cond, _Strip(cond).rewrite(new.body), span=loop.span))


def _common_guard(body: Stmt) -> Expr | None:
    """Return the condition under which *body* stores what outlives it, the same everywhere."""
    private = {n.buffer for n in statements(body) if isinstance(n, Alloc)}
    bound = {v for n in statements(body) if isinstance(n, For | Let) for v in (n.var,)}
    guard: Expr | None = None
    for store, conds in _guarded_effects(body, ()):
        if isinstance(store, Store) and store.buffer in private:
            continue
        plain = (c for c in conds if _is_plain(c) or _is_evaluated(body, c))
        found = next((c for c in plain if not variables(c) & bound), None)
        if found is None or (guard is not None and not expr_equal(guard, found)):
            return None
        guard = found
    return guard if guard is not None and are_constant((guard,), body) else None


def _is_plain(cond: Expr) -> bool:
    """Whether *cond* can be evaluated anywhere: others may guard what it reads."""
    return isinstance(cond, BinOp) and not any(read_by(cond)) and not may_fail(cond)


def _is_evaluated(stmt: Stmt, cond: Expr) -> bool:
    """Whether *stmt* evaluates *cond*, whatever else it does."""
    match stmt:
        case If():
            return isinstance(cond, BinOp) and expr_equal(stmt.cond, cond)
        case Seq():
            return any(_is_evaluated(part, cond) for part in stmt.body)
        case Alloc():
            return _is_evaluated(stmt.body, cond)
        case For():
            return bool(trip_count(stmt)) and _is_evaluated(stmt.body, cond)
    return False


def _guarded_effects(
    stmt: Stmt, conds: tuple[Expr, ...]
) -> Iterator[tuple[Stmt, tuple[Expr, ...]]]:
    """Yield the statements with an effect in *stmt*, each with the conditions around it."""
    if isinstance(stmt, Store | Fail | While | Barrier | Prefix):
        yield stmt, conds
    if isinstance(stmt, If):
        yield from _guarded_effects(stmt.then, (*conds, stmt.cond))
        if stmt.otherwise is not None:
            yield from _guarded_effects(stmt.otherwise, conds)
        return
    for child in children(stmt):
        assert isinstance(child, Stmt)
        yield from _guarded_effects(child, conds)


class _Strip(Rewriter):
    """Takes away a condition that is known to hold."""

    def __init__(self, cond: Expr) -> None:
        self.cond = cond

    def visit_If(self, stmt: If) -> Node:
        new = self.visit_Node(stmt)
        assert isinstance(new, If)
        return new.then if expr_equal(new.cond, self.cond) else new


@dataclass(frozen=True, slots=True)
class ExactTrips(FuncPass):
    """``for o in ceil(n / 8): if o * 8 + t < n: s  ->  for o in min(., (n - t + 7) // 8): s``.

    So the iterations that a thread shares with others are not checked one by one.
    """

    name: ClassVar[str] = "exact_trips"
    takes: ClassVar[Stage] = Stage.FLAT
    gives: ClassVar[Stage] = Stage.FLAT

    def run_func(self, func: FlatFunc) -> FlatFunc:
        """Return *func* with such bounds in the ends of loops."""
        body = _Exact().rewrite(func.body)
        return func if body is func.body else func.replace(body=body)


class _Exact(Rewriter):
    def __init__(self) -> None:
        self.threads: set[Var] = set()  # indices that are never negative

    def visit_For(self, loop: For) -> Node:
        if loop.kind == "bound" and from_zero(loop):
            self.threads.add(loop.var)
        new = self.visit_Node(loop)
        assert isinstance(new, For)
        if new.kind not in ("serial", "unroll") or not from_zero(new):
            return new
        end = self._end(new)
        return new if end is None else new.replace(end=end, body=new.body.then)  # type: ignore[attr-defined]

    def _end(self, loop: For) -> Expr | None:
        """Return where *loop* ends if it only runs where its body does something; None if not."""
        body = loop.body
        if not isinstance(body, If) or body.otherwise is not None:
            return None
        cond = body.cond
        if not isinstance(cond, BinOp) or cond.op != "<" or loop.var in variables(cond.rhs):
            return None
        step = coefficient(cond.lhs, loop.var)
        if step is None or step < 1 or not are_constant((cond,), body.then):
            return None
        first = simplify(substitute(cond.lhs, {loop.var: const(0)}))
        bound, first = cast(cond.rhs, int64), cast(first, int64)
        needed = binary("//", binary("+", binary("-", bound, first), step - 1), step)
        whole = binary("//", binary("+", bound, step - 1), step)
        if self._is_positive(first) and expr_equal(simplify(loop.end), simplify(whole)):
            return needed
        return binary("min", loop.end, needed)

    def _is_positive(self, value: Expr) -> bool:
        if isinstance(value, Const):
            return value.value >= 0
        return value in self.threads
