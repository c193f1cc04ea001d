"""Beside the route: the simplifier folds, cancels and decides; what a program computes stays.

It is built on, and re-exports, intervals (bounds), canonical sums (linear), proofs (proof,
injectivity) and index maps (indexmap).
"""

from __future__ import annotations

from operator import is_not
from typing import TYPE_CHECKING, Any, TypeVar, cast

from spcomp.dtypes import wrap
from spcomp.ir.access import Load
from spcomp.ir.arith.alike import Named, pattern
from spcomp.ir.arith.bounds import Env, Interval, as_env, bounds_of, dtype_range, hull
from spcomp.ir.arith.fold import RULES
from spcomp.ir.arith.indexmap import IndexMap
from spcomp.ir.arith.injectivity import injective
from spcomp.ir.arith.linear import Algebra, is_integer, key_of
from spcomp.ir.arith.memory import are_constant
from spcomp.ir.arith.proof import coefficient, decide, divides, prove
from spcomp.ir.axis import Axis, BufferDomain, domain_axes, domain_width
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import COMPARISONS, NEGATED, BinOp, Cast, Const, Expr, Select, UnOp, Var, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, Merge
from spcomp.ir.rewrite import Rewriter, rename
from spcomp.ir.stmt import Alloc, Evaluate, For, If, Let, Seq, Stmt, While, is_empty
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spcomp.dtypes import DType
    from spcomp.ir.position import Cursor

__all__ = [
    "Env",
    "IndexMap",
    "Interval",
    "Simplify",
    "bounds_of",
    "coefficient",
    "divides",
    "injective",
    "prove",
    "simplify",
    "simplify_stmt",
]

N = TypeVar("N", bound=Node)
ALIKE = 4  # a list of at least so many loops is searched for loops that differ only in names
MAX_TRIPS = 1 << 48  # no loop that ever ends runs longer


def simplify(expr: Expr, bounds: Env | Mapping[Var, Interval] | None = None) -> Expr:
    """Return *expr* in fewer operations, with the same value for all that *bounds* allow.

    Integers wrap around, floats keep every bit, a division that may fail stays. The same object
    comes back if there is nothing to do.
    """
    return Simplify(as_env(bounds)).rewrite(expr)


def simplify_stmt(node: N, bounds: Env | Mapping[Var, Interval] | None = None) -> N:
    """Return the statement or function *node* with its expressions simplified.

    Loops that never run and branches that are never taken go; loops that run once stay. Variables
    of loops and blocks are bounded by their ranges, values in buffers by the function's domains.
    """
    return Simplify(as_env(bounds)).rewrite(node)


class Simplify(Rewriter):
    """The rewriter behind simplify and simplify_stmt."""

    COVERS = (SpIter, Block, Merge)

    def __init__(self, env: Env) -> None:
        self.vars = dict(env.vars)
        self.env = Env(self.vars, env.buffers)
        self.facts: dict[Var, tuple[Expr, Expr]] = {}
        self.algebra = Algebra(self.env)

    # Expressions

    def visit_BinOp(self, op: BinOp) -> Node:
        """Fold constants, then apply what holds for the operator and dtype."""
        op = cast("BinOp", self.visit_Node(op))
        if (folded := _fold(op)) is not None:
            return folded
        if op.op in ("and", "or"):
            return self._logic(op)
        if op.op in COMPARISONS:
            return self._comparison(op)
        if not is_integer(op):
            return _float_identity(op)
        if op.op in ("min", "max"):
            return self._choice(op)
        return self._sum(op) if op.op in ("+", "-", "*", "//", "%") else self._pinned(op)

    def visit_UnOp(self, op: UnOp) -> Node:
        """Undo a double operator, fold a constant, turn a comparison around."""
        op = cast("UnOp", self.visit_Node(op))
        match op.value:
            case UnOp(op=inner, value=value) if inner == op.op:
                return value
            case Const(value=value) if op.op == "not":
                return const(not value, op.dtype).replace(span=op.span)
            case Const(value=int(value)) if is_integer(op):
                new = -value if op.op == "-" else ~value
                return const(wrap(new, op.dtype), op.dtype).replace(span=op.span)
            case BinOp(op=inner, lhs=lhs) if op.op == "not" and inner in NEGATED:
                if lhs.dtype.is_integer:
                    return op.value.replace(op=NEGATED[inner])
        return self._sum(op) if op.op == "-" and is_integer(op) else op

    def visit_Cast(self, cast_: Cast) -> Node:
        """Fold a constant; leave out a cast that changes nothing."""
        cast_ = cast("Cast", self.visit_Node(cast_))
        value, to = cast_.value, cast_.type
        if value.dtype == to:
            return value
        if isinstance(value, Const) and (folded := _fold_cast(value, to)) is not None:
            return folded.replace(span=cast_.span)
        if isinstance(value, Cast) and all(map(is_integer, (value.value, value, cast_))):
            # the inner cast is dropped if it keeps the value, or all bits that count
            interval = bounds_of(value.value, self.env)
            if interval in dtype_range(value.type) or to.bits <= value.type.bits:
                inner = value.value
                return inner if inner.dtype == to else cast_.replace(value=inner)
        return cast_

    def visit_Select(self, select: Select) -> Node:
        """Take the chosen side if the condition is known."""
        select = cast("Select", self.visit_Node(select))
        if isinstance(select.cond, Const):
            return select.then if select.cond.value else select.otherwise
        if expr_equal(select.then, select.otherwise) and self._droppable(select.cond):
            return select.then
        return select

    def _logic(self, op: BinOp) -> Expr:
        decides = op.op == "or"  # the left value that decides the result
        if isinstance(op.lhs, Const):
            return op.lhs if op.lhs.value == decides else op.rhs
        if isinstance(op.rhs, Const):
            if op.rhs.value != decides:
                return op.lhs
            return op.rhs if self._droppable(op.lhs) else op
        return op.lhs if expr_equal(op.lhs, op.rhs) else op

    def _comparison(self, op: BinOp) -> Expr:
        if op.lhs.dtype.lanes > 1 or op.lhs.dtype.is_float or not self._droppable(op):
            return op
        truth = bounds_of(op, self.env).value
        if truth is None and is_integer(op.lhs):
            truth = decide(op, self.facts, self.env)
        return op if truth is None else const(truth, op.dtype).replace(span=op.span)

    def _choice(self, op: BinOp) -> Expr:
        below = decide(BinOp("<=", op.lhs, op.rhs), self.facts, self.env)
        if below is None or not self._droppable(op):
            return op.lhs if expr_equal(op.lhs, op.rhs) else op
        return op.lhs if below == (op.op == "min") else op.rhs

    def _sum(self, op: Expr) -> Expr:
        """Return the canonical form of *op* if that takes fewer nodes."""
        if not self._may_shrink(op):
            return op
        if (value := self._pinned(op)) is not op:
            return value
        new = self.algebra.of(op).expr()
        if _size(new) >= _size(op):
            return op
        failing = {key_of(part) for part in self._failing(new)}
        if any(key_of(part) not in failing for part in self._failing(op)):
            return op
        is_new = new.span is None and isinstance(new, (BinOp, UnOp, Const))
        return new.replace(span=op.span) if is_new else new

    def _may_shrink(self, op: Expr) -> bool:
        """Say whether the canonical form can be shorter: an atom repeats, or a value is known.

        Quick and generous: two loads from one buffer count as the same atom.
        """
        seen: set[object] = set()
        stack = [op]
        while stack:
            match stack.pop():
                case BinOp(op="+" | "-" | "*", lhs=lhs, rhs=rhs) as part:
                    unit = 1 if part.op == "*" else 0
                    if any(isinstance(x, Const) and x.value in (0, unit) for x in (lhs, rhs)):
                        return True
                    stack += [lhs, rhs]
                case BinOp() | UnOp():
                    return True
                case Cast(value=value):
                    stack.append(value)
                case other:
                    mark: object = other.buffer if isinstance(other, Load) else other
                    mark = Const if isinstance(other, Const) else mark
                    if mark in seen or (isinstance(other, Var) and self._is_pinned(other)):
                        return True
                    seen.add(mark)
        return False

    def _is_pinned(self, var: Var) -> bool:
        return var in self.vars and self.vars[var].value is not None

    def _pinned(self, op: Expr) -> Expr:
        value = bounds_of(op, self.env).value
        return op if value is None or not self._droppable(op) else const(value, op.dtype)

    def _droppable(self, expr: Expr) -> bool:
        return not self._failing(expr)

    def _failing(self, expr: Expr) -> list[BinOp]:
        """Return the divisions in *expr* that are not proved to succeed."""
        return [
            node
            for node in walk(expr)
            if isinstance(node, BinOp)
            and node.op in ("//", "%")
            and not node.dtype.is_float
            and 0 in bounds_of(node.rhs, self.env)
        ]

    # Statements

    def visit_Func(self, func: Func) -> Node:
        """Simplify the body under what the function's domains promise."""
        buffers = {**self.env.buffers, **_values(func.domains, self.env)}
        self.env = Env(self.vars, buffers)
        return self.visit_Node(func)

    def visit_Seq(self, stmts: Seq) -> Node:
        """Flatten; of many loops that differ only in names, simplify one."""
        many = sum(isinstance(stmt, For) for stmt in stmts.body) >= ALIKE
        body = tuple(self._alike(stmts.body) if many else map(self.rewrite, stmts.body))
        nested = len(body) == 1 or any(isinstance(stmt, Seq) for stmt in body)
        changed = nested or any(map(is_not, body, stmts.body))
        return stmts.rebuilt(body=body) if changed else stmts

    def _alike(self, stmts: tuple[Stmt, ...]) -> Iterator[Stmt]:
        """Yield *stmts* simplified; those that differ only in names are copies of the first."""
        results: dict[object, tuple[Named, Stmt | None]] = {}
        for stmt in stmts:
            key, names = pattern((stmt, tuple(self.facts.items())), self.env, spans=True)
            if key in results:
                others, result = results[key]
                substitution = dict(zip(others, names, strict=True))
                yield stmt if result is None else rename(result, substitution)
                continue
            yield (new := self.rewrite(stmt))
            if {*pattern(new, self.env)[1]} <= {*names}:
                results[key] = names, None if new is stmt else new

    def visit_Let(self, let: Let) -> Node:
        """Bound the variable by its value."""
        value = cast("Expr", self.visit(let.value))
        self.vars[let.var] = bounds_of(value, self.env)
        body = cast("Stmt", self.visit(let.body))
        same = value is let.value and body is let.body
        return let if same else let.replace(value=value, body=body)

    def visit_If(self, branch: If) -> Node:
        """Take the branch if the condition is known."""
        new = cast("If", self.visit_Node(branch))
        if isinstance(new.cond, Const):
            return (new.then if new.cond.value else new.otherwise) or Seq((), span=new.span)
        if new.otherwise is not None and is_empty(new.otherwise):
            new = new.replace(otherwise=None)
        if is_empty(new.then) and new.otherwise is None and self._droppable(new.cond):
            return Seq((), span=new.span)
        return new

    def visit_While(self, loop: While) -> Node:
        """Drop a loop whose condition is false."""
        new = cast("While", self.visit_Node(loop))
        false = isinstance(new.cond, Const) and not new.cond.value
        return Seq((), span=new.span) if false else new

    def visit_For(self, loop: For) -> Node:
        """Drop a loop that never runs; else bound its variable."""
        begin = cast("Expr", self.visit(loop.begin))
        end = cast("Expr", self.visit(loop.end))
        algebra = Algebra(self.env)
        first, last = algebra.of(begin), algebra.of(end)
        trips = algebra.interval(last - first).high
        never = trips is not None and trips <= 0 and algebra.exact(first) and algebra.exact(last)
        if never and self._droppable(begin) and self._droppable(end):
            return Seq((), span=loop.span)
        self._range(loop.var, begin, end, loop.body)
        body = cast("Stmt", self.visit(loop.body))
        self.facts.pop(loop.var, None)
        same = begin is loop.begin and end is loop.end and body is loop.body
        return loop if same else loop.replace(begin=begin, end=end, body=body)

    def visit_Alloc(self, alloc: Alloc) -> Node:
        """Drop an allocation with an empty body."""
        new = cast("Alloc", self.visit_Node(alloc))
        return new.body if is_empty(new.body) else new

    def visit_Evaluate(self, stmt: Evaluate) -> Node:
        """Drop the evaluation of a constant."""
        new = cast("Evaluate", self.visit_Node(stmt))
        return Seq((), span=new.span) if isinstance(new.value, Const) else new

    def visit_Block(self, block: Block) -> Node:
        """Bound the block's variables by their extents and values, where the guard holds."""
        for it in block.iters:
            self.vars[it.var] = bounds_of(it.value, self.env)
        where = block.where and cast("Expr", self.visit(block.where))
        for it in block.iters:
            interval = self.vars[it.var]
            extent = cast("Expr", self.visit(it.extent))
            self._range(it.var, const(0), extent, block.body)
            self.vars[it.var] &= interval
        inside = block if block.where is None else block.replace(where=None)
        new = cast("Block", self.visit_Node(inside))
        for it in block.iters:
            self.facts.pop(it.var, None)
        if new is inside and where is block.where:
            return block
        return new.replace(where=None if isinstance(where, Const) and where.value else where)

    def visit_SpIter(self, it: SpIter) -> Node:
        """Bound the coordinates by the lengths of their axes."""
        at = 0
        for domain in it.domains:
            lengths = [axis.length for axis in domain_axes(domain)]
            for k in range(domain_width(domain)):
                if isinstance(domain, Axis):
                    self._range(it.vars[at + k], const(0), lengths[k], it.body)
                else:
                    self.vars[it.vars[at + k]] = Interval(0, None)
            at += domain_width(domain)
        new = self.visit_Node(it)
        for var in it.vars:
            self.facts.pop(var, None)
        return new

    def visit_Merge(self, merge: Merge) -> Node:
        """Bound the coordinate, and the positions by their cursors."""
        self.vars[merge.coordinate] = dtype_range(merge.coordinate.type)
        for cursor in merge.cursors:
            self._cursor(cursor)
        return self.visit_Node(merge)

    def _cursor(self, cursor: Cursor) -> None:
        begin, end = (bounds_of(e, self.env) for e in (cursor.begin, cursor.end))
        self.vars[cursor.pos] = hull(begin, end + Interval(-1, -1)) | begin

    def _range(self, var: Var, begin: Expr, end: Expr, body: Stmt) -> None:
        """Note that *var* is at least *begin* and less than *end* in *body*.

        The ends themselves are no facts there if it writes what they read.
        """
        low, high = bounds_of(begin, self.env), bounds_of(end, self.env)
        within = Interval(low.low, None if high.high is None else high.high - 1)
        self.vars[var] = within & Interval(None, (low.high or 0) + MAX_TRIPS)
        if are_constant((begin, end), body):
            self.facts[var] = begin, end


def _values(domains: tuple[BufferDomain, ...], env: Env) -> Mapping[Any, Interval]:
    return Env.of(env.vars, domains).buffers


def _size(expr: Expr) -> int:
    return sum(1 for _ in walk(expr))


def _fold(op: BinOp) -> Const | None:
    """Return the value of an operation on two integer constants; None if it has none."""
    a, b = op.lhs, op.rhs
    if not isinstance(a, Const) or not isinstance(b, Const) or a.type.is_float or a.type.lanes > 1:
        return None
    if op.op in ("//", "%") and b.value == 0:
        return None
    if op.op in ("<<", ">>") and not 0 <= b.value < a.type.bits:
        return None
    if op.op == "/" or (a.type.kind == "bool" and op.op not in COMPARISONS):
        return None
    value = RULES[op.op](a.value, b.value)
    return const(value if op.op in COMPARISONS else wrap(value, op.dtype), op.dtype).replace(
        span=op.span
    )


def _float_identity(op: BinOp) -> Expr:
    """``x * 1.0`` and ``x / 1.0`` are x, bit for bit; ``x + 0.0`` is not (x = -0.0)."""
    is_one = [isinstance(x, Const) and x.type.is_float and x.value == 1 for x in (op.lhs, op.rhs)]
    if is_one[1] and op.op in ("*", "/"):
        return op.lhs
    return op.rhs if is_one[0] and op.op == "*" else op


def _fold_cast(value: Const, to: DType) -> Const | None:
    """Return the constant that *value* is cast to, if no rounding is involved."""
    digits = {"bfloat": 8}.get(to.kind, {16: 11, 32: 24, 64: 53}.get(to.bits, 0))
    if value.type.is_float:
        small = to.is_integer and 0 <= value.value < 128 and value.value == int(value.value)
        return const(value.value, to) if small else None
    if to.is_float:
        return const(value.value, to) if abs(value.value) <= 1 << digits else None
    if to.kind == "bool":
        return const(value.value != 0, to)
    return const(wrap(int(value.value), to), to) if to.is_integer else None
