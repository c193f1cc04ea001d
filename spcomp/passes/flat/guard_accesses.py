"""III to III, for programs written below coordinate space: no access leaves its buffer.

Indices that a person wrote may be wrong: an access that is not proved to be inside is checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from spcomp.dtypes import bool_, int64
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, both, may_fail
from spcomp.ir.analysis.names import Names
from spcomp.ir.arith.memory import read_by, reads_of
from spcomp.ir.arith.simplify import prove
from spcomp.ir.axis import AnyBuffer, Buffer, memory_of
from spcomp.ir.expr import BinOp, Expr, Reduce, Select, UnOp, Var, binary, cast, const
from spcomp.ir.node import Node
from spcomp.ir.program import FlatFunc
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import (
    Evaluate,
    Fail,
    For,
    If,
    Let,
    Prefetch,
    Prefix,
    Print,
    Stmt,
    Store,
    While,
    seq,
)
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import walk
from spcomp.passes.base import FuncPass, Stage

_NEVER = const(False, bool_)
MOST = 1 << 8  # nodes of the value of a variable, for a proof to use it


@dataclass(frozen=True, slots=True)
class GuardAccesses(FuncPass):
    """``A[i] = B[j]  ->  if j is outside: fail; if i is inside: A[i] = B[j] else: fail``."""

    name: ClassVar[str] = "guard_accesses"
    takes: ClassVar[Stage] = Stage.FLAT
    gives: ClassVar[Stage] = Stage.FLAT

    def run_func(self, func: FlatFunc) -> FlatFunc:
        """Return *func* with every access proved or guarded."""
        body = _Guard(Names(func)).rewrite(func.body)
        return func if body is func.body else func.replace(body=body)


class _Guard(Rewriter):
    """Adds the checks; *ranges* and *values* of variables are what proofs may use.

    *misses*: for each buffer that a load of the current statement may miss, the condition of that;
    and the variables for values that are read once, before the statement, as checks need them too.
    *reached*: the condition under which the current expression is evaluated (None: always);
    *active*: the lanes of a vector in which it is.
    """

    def __init__(self, names: Names) -> None:
        self.names = names
        self.ranges: dict[Var, tuple[Expr, Expr]] = {}
        self.values: dict[Var, Expr] = {}
        self.misses: list[tuple[AnyBuffer | Var, Expr]] = []
        self.reached: Expr | None = None
        self.active: Expr | None = None
        self.ahead = True  # whether values may be read before the current statement
        self.stored: tuple[Store, Expr] | None = None  # what the statement stores, and its index

    # -- expressions --------------------------------------------------------------------------

    def visit_Load(self, load: Load) -> Node:
        if self.stored is not None and _is_update(self.stored[0], load):
            return load.replace(indices=(self.stored[1],))  # guarded with the store
        index, mask = self._part(load.indices[0]), self._part(load.mask)
        index = None if index is None else self._hoist(index)
        if self.active is not None and load.dtype.lanes > 1:
            mask = both(self.active, mask)
        mask = None if mask is None else self._hoist(mask)
        inside = self._inside(load.buffer, index, mask)
        new = load.replace(indices=(index,), mask=mask)
        if inside is None:
            return new
        self._miss(load.buffer, inside)
        if load.dtype.lanes == 1:
            return Select(inside, new, const(0, load.dtype))
        lanes = cast(inside, bool_.with_lanes(load.dtype.lanes))
        return new.replace(mask=lanes if mask is None else BinOp("and", mask, lanes))

    def visit_Search(self, search: Search) -> Node:
        begin, end = (self._hoist(cast(self.rewrite(x), int64)) for x in (search.begin, search.end))
        new = search.replace(begin=begin, end=end, key=self.rewrite(search.key))
        size = _size(search.buffer)
        empty = BinOp(">=", begin, end)
        fits = BinOp("and", BinOp("<=", ZERO, begin), BinOp("<=", end, size))
        if self._is_proved(fits):
            return new
        self._miss(search.buffer, BinOp("or", empty, fits))
        return Select(BinOp("or", empty, fits), new, begin)

    def visit_Select(self, select: Select) -> Node:
        cond = self._hoist(self.rewrite(select.cond))
        then = self._where(cond, select.then)
        otherwise = self._where(UnOp("not", cond), select.otherwise)
        return select.replace(cond=cond, then=then, otherwise=otherwise)

    def visit_BinOp(self, op: BinOp) -> Node:
        if op.op not in ("and", "or"):
            return self.visit_Node(op)
        lhs = self._hoist(self.rewrite(op.lhs))
        return op.replace(
            lhs=lhs, rhs=self._where(lhs if op.op == "and" else UnOp("not", lhs), op.rhs)
        )

    def _where(self, cond: Expr, expr: Expr) -> Expr:
        outer = self.reached, self.active
        if cond.dtype.lanes > 1:
            self.active = both(self.active, cond)
            cond = Reduce("max", cond)
        self.reached = both(self.reached, cond)
        result = self.rewrite(expr)
        self.reached, self.active = outer
        return result

    def _hoist(self, value: Expr) -> Expr:
        """Return *value*; if it reads memory, a variable read before the statement, for reuse.

        Its own accesses are guarded, so that it may be read even where it is not needed. An element
        that the statement updates is read in it: threads may update it together.
        """
        read = reads_of(value)
        if not read or not self.ahead or may_fail(value):
            return value
        if self.stored is not None and memory_of(self.stored[0].buffer) in read:
            return value
        var = self.names.var("at", value.dtype)
        self.misses.append((var, value))
        return var

    def _part(self, expr: Expr | None) -> Expr | None:
        return None if expr is None else self.rewrite(expr)

    def _miss(self, buffer: AnyBuffer, inside: Expr) -> None:
        outside = UnOp("not", inside)
        reached = self.reached
        self.misses.append((buffer, outside if reached is None else BinOp("and", reached, outside)))

    def _inside(self, buffer: AnyBuffer, index: Expr | None, mask: Expr | None) -> Expr | None:
        """Return the condition that *index*, under *mask*, is in *buffer*; None if it is proved."""
        if index is None:
            return _NEVER
        low = high = index
        if index.dtype.lanes > 1:
            if mask is not None:
                low, high = (Select(mask, index, cast(const(x), index.dtype)) for x in (0, -1))
            low, high = Reduce("min", low), Reduce("max", high)
        low, high = cast(low, int64), cast(high, int64)
        inside = BinOp("and", BinOp("<=", ZERO, low), BinOp("<", high, _size(buffer)))
        return None if index.dtype.lanes == 1 and self._is_proved(inside) else inside

    def _is_proved(self, cond: Expr) -> bool:
        return prove(substitute(cond, self.values), self.ranges)

    # -- statements ---------------------------------------------------------------------------

    def _with_checks(self, stmt: Stmt) -> Stmt:
        """Return *stmt* after the checks of its loads, which fail the call."""
        misses, self.misses = self.misses, []
        for target, value in reversed(misses):
            if isinstance(target, Var):
                stmt = Let(target, value, stmt, span=stmt.span)
            else:
                stmt = seq(If(value, _fail(target), span=stmt.span), stmt)
        return stmt

    def visit_Store(self, store: Store) -> Node:
        index, mask = self._part(store.indices[0]), self._part(store.mask)
        index = None if index is None else self._hoist(index)
        self.stored = None if index is None else (store, index)
        new = store.replace(indices=(index,), mask=mask, value=self.rewrite(store.value))
        self.stored = None
        inside = self._inside(store.buffer, index, mask)
        if inside is None:
            return self._with_checks(new)
        return self._with_checks(If(inside, new, _fail(store.buffer), span=store.span))

    def visit_Prefetch(self, stmt: Prefetch) -> Node:
        """Guard the loads of the address; a hint never fails."""
        misses, self.misses, self.ahead = self.misses, [], False
        new = self.visit_Node(stmt)
        self.misses, self.ahead = misses, True
        return new

    def visit_Prefix(self, stmt: Prefix) -> Node:
        amount = self.rewrite(stmt.amount)
        misses, self.misses = self.misses, []
        body = self.rewrite(stmt.body)
        self.misses = misses
        return self._with_checks(stmt.replace(amount=amount, body=body))

    def visit_Evaluate(self, stmt: Evaluate) -> Node:
        return self._with_checks(stmt.replace(value=self.rewrite(stmt.value)))

    def visit_Fail(self, stmt: Fail) -> Node:
        return self._with_checks(stmt.replace(values=tuple(map(self.rewrite, stmt.values))))

    def visit_Print(self, stmt: Print) -> Node:
        return self._with_checks(stmt.replace(values=tuple(map(self.rewrite, stmt.values))))

    def visit_Let(self, let: Let) -> Node:
        value = self.rewrite(let.value)
        misses, self.misses = self.misses, []
        inlined = substitute(value, self.values)
        nodes = list(islice(walk(inlined), MOST + 1))  # a chain of lets may double it each time
        if len(nodes) <= MOST and not any(isinstance(n, (Load, Search)) for n in nodes):
            self.values[let.var] = inlined
        body = self.rewrite(let.body)
        self.misses = misses
        return self._with_checks(let.replace(value=value, body=body))

    def visit_If(self, stmt: If) -> Node:
        cond = self.rewrite(stmt.cond)
        misses, self.misses = self.misses, []
        then = self.rewrite(stmt.then)
        otherwise = None if stmt.otherwise is None else self.rewrite(stmt.otherwise)
        self.misses = misses
        return self._with_checks(stmt.replace(cond=cond, then=then, otherwise=otherwise))

    def visit_For(self, loop: For) -> Node:
        begin, end = self.rewrite(loop.begin), self.rewrite(loop.end)
        misses, self.misses = self.misses, []
        ends = tuple(substitute(x, self.values) for x in (begin, end))
        if not any(read_by(*ends)):
            self.ranges[loop.var] = ends[0], ends[1]
        body = self.rewrite(loop.body)
        self.ranges.pop(loop.var, None)
        self.misses = misses
        return self._with_checks(loop.replace(begin=begin, end=end, body=body))

    def visit_While(self, loop: While) -> Node:
        self.ahead = False  # it is computed before each iteration
        cond = self.rewrite(loop.cond)
        self.ahead = True
        misses, self.misses = self.misses, []
        body = self.rewrite(loop.body)
        self.misses = list(misses)
        checks = self._with_checks(seq())
        self.misses = misses
        return self._with_checks(loop.replace(cond=cond, body=seq(body, checks)))


def _size(buffer: AnyBuffer) -> Expr:
    """Return the number of elements of a flat buffer, an int64."""
    assert isinstance(buffer, Buffer)
    (size,) = buffer.shape
    return cast(size, int64) if buffer.data is None else _wide(size)


def _wide(size: Expr) -> Expr:
    """Return *size* computed in 64 bits, as calls do: products may pass 2**31."""
    if isinstance(size, BinOp) and size.op in ("+", "-", "*"):
        return binary(size.op, _wide(size.lhs), _wide(size.rhs))
    return cast(size, int64)


def _is_update(store: Store, load: Load) -> bool:
    """Whether *load* reads the one element that *store* writes."""
    index = load.indices[0]
    if load.buffer is not store.buffer or index is None or index.dtype.lanes > 1:
        return False
    return store.mask is None and load.mask is None and expr_equal(index, store.indices[0])


def _fail(buffer: AnyBuffer) -> Fail:
    return Fail(f"an index is outside {buffer.name}")
