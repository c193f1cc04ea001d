"""Under compute_at and reverse_compute_at: a nest that moves into a loop beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise

from spcomp.dtypes import int64
from spcomp.errors import ScheduleError
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO
from spcomp.ir.arith.bounds import Env
from spcomp.ir.arith.linear import Algebra, mentions
from spcomp.ir.arith.memory import are_constant
from spcomp.ir.arith.simplify import prove, simplify
from spcomp.ir.expr import BinOp, BinOpKind, Cast, Const, Expr, Var, binary, cast, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, If, Let, Seq, Stmt, While
from spcomp.ir.structural import fingerprint
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import Accesses, depends
from spcomp.schedule.nests.sites import Site, path_to, refusal
from spcomp.schedule.steps.base import Step

NO_NAMES: Mapping[Var, Expr] = {}


class Move:
    """A block with its nest, and the loop beside it into which the nest moves."""

    def __init__(self, step: Step, func: Func, site: Site, loop: For, *, keeps_units: bool) -> None:
        self.keeps_units = keeps_units
        self.step, self.func, self.site, self.loop = step, func, site, loop
        self._check_nest()
        path = path_to(func, loop)
        nest = (*site.above, site.root)
        common = [k for k, (a, b) in enumerate(zip(path, nest, strict=False)) if a is b]
        last = common[-1]
        meeting = path[last]
        if not isinstance(meeting, Seq) or len(nest) <= last + 1 or len(path) <= last + 1:
            raise self.error(f"the block and {loop.var.name!r} are not in nests side by side")
        for node in nest[last + 1 : -1]:
            if isinstance(node, Alloc | Block | For | While | If | Seq):
                raise self.error(f"the block would leave {_describe(node)}")
        # lets above the nest move with it
        self.site = replace(site, above=nest[: last + 1], path=(*nest[last + 1 : -1], *site.path))
        self.target_root = path[last + 1]
        self.shared, self.inside = path[: last + 1], path[last + 1 :]
        order = list(meeting.body)
        self.places = order.index(self.site.root), order.index(self.target_root)  # type: ignore[arg-type]
        low, high = sorted(self.places)
        self.between = order[low + 1 : high]
        lanes = any(isinstance(node, For) and node.kind == "vectorized" for node in path)
        if lanes or any(isinstance(node, While) for node in self.inside):
            raise self.error(f"{loop.var.name!r} runs in vector lanes, or in a while")
        self.outer = [node for node in self.inside if isinstance(node, For)]  # ends with the loop
        self.loop_accesses = self._accesses(loop.body, path)
        self.block_accesses = self._accesses(self.site.root, self.site.above)

    def error(self, why: str, hint: str = "") -> ScheduleError:
        """Return the error for *why*."""
        return refusal(self.step, why, self.site.block.span, hint)

    def _check_nest(self) -> None:
        chain = (*self.site.path, self.site.block)
        for outer, inner in pairwise(chain):
            if not isinstance(outer, For | Let) or outer.body is not inner:
                raise self.error(f"the nest of {self.site.block.name} holds more than the block")

    @staticmethod
    def _accesses(stmt: Stmt, path: tuple[Node, ...]) -> Accesses:
        """The accesses of *stmt*, with indices in terms of loop variables."""
        accesses = Accesses()
        for node in path:
            accesses.enter(node)
        accesses.visit(stmt)
        return accesses

    def facts(self) -> dict[Var, tuple[Expr, Expr]]:
        """The ranges of the loops around the new place, outer ones first."""
        return ranges_of((*self.shared, *self.inside))

    def proves(self, op: BinOpKind, a: Expr, b: Expr, loops: Iterable[For] = ()) -> bool:
        """Whether ``a op b`` is proved inside *loops* at the new place.

        It may follow from the ranges of loops and from the declared values of buffers.
        """
        holds = prover_at(self.func, (*self.shared, *self.inside, *loops))
        return holds(binary(op, a, b))

    def check_between(self) -> None:
        """Raise if a statement between the nests depends on the block."""
        for stmt in self.between:
            if conflict := depends(stmt, self.site.root):
                raise self.error(f"what stands between them touches {conflict}")


def _describe(node: Alloc | Block | For | While | If | Seq) -> str:
    match node:
        case Block(name=name):
            return name
        case Alloc(buffer=buffer):
            return buffer.name
        case For(var=var):
            return f"the loop {var.name!r}"
        case Seq():
            return "statements that stand beside it"
    return "a condition"


def prover_at(
    func: Func, path: tuple[Node, ...], names: Mapping[Var, Expr] = NO_NAMES
) -> Callable[[Expr], bool]:
    """Return a function that tells whether a condition is proved inside *path*.

    It may follow from the ranges of the loops of *path* and from the declared values of buffers.
    *names*: expressions that the condition has in place of variables, put into the ranges too.
    """
    ranges = ranges_of(path).items()
    facts = {v: (substitute(x, names), substitute(y, names)) for v, (x, y) in ranges}

    def holds(cond: Expr) -> bool:
        rewriter = _Promises(func)
        cond = rewriter.rewrite(simplify(cond))
        ends = {v: (rewriter.rewrite(x), rewriter.rewrite(y)) for v, (x, y) in facts.items()}
        return prove(cond, rewriter.facts | ends)

    return holds


class _Promises(Rewriter):
    """Replaces loads from buffers with declared values by variables; *facts*: their ranges."""

    def __init__(self, func: Func) -> None:
        self.domains = {domain.buffer: domain for domain in func.domains}
        self.variables: dict[object, Var] = {}
        self.facts: dict[Var, tuple[Expr, Expr]] = {}

    def visit_Cast(self, expr: Cast) -> Node:
        """Return a variable for the value of a load, the same one for the same load."""
        load = expr.value
        domain = self.domains.get(load.buffer) if isinstance(load, Load) else None
        if domain is None or expr.type != int64:
            return self.visit_Node(expr)
        key = fingerprint(load)
        if key not in self.variables:
            var = self.variables[key] = Var("value", int64)
            self.facts[var] = wide(domain.low), simplify(binary("+", wide(domain.high), 1))
        return self.variables[key]


def wide(end: Expr) -> Expr:
    """Return *end*, an end of a domain, computed in int64; of sizes, which do not wrap."""
    match end:
        case BinOp(op="+" | "-" as op, lhs=lhs, rhs=rhs):
            return BinOp(op, wide(lhs), wide(rhs))
        case Cast(value=BinOp() as value) if not any(isinstance(n, Load) for n in walk(value)):
            return wide(value)
    return cast(end, int64)


def ranges_of(path: tuple[Node, ...]) -> dict[Var, tuple[Expr, Expr]]:
    """Return (low, high) with ``low <= var < high`` for each variable that *path* binds.

    Not where the body of a loop writes what the ends of its range read.
    """
    ranges: dict[Var, tuple[Expr, Expr]] = {}
    for node in path:
        if isinstance(node, For):
            if are_constant((node.begin, node.end), node.body):
                ranges[node.var] = node.begin, node.end
        elif isinstance(node, Block):
            for it in node.iters:
                if are_constant((it.extent,), node.body):
                    ranges[it.var] = ZERO, it.extent
    return ranges


def covers(
    value: Expr, digits: dict[Var, Expr], loop: For, facts: dict[Var, tuple[Expr, Expr]]
) -> bool:
    """Whether *value* takes all integers of ``loop.begin .. loop.end - 1``.

    *digits*: the variables in *value* with their ends; each runs from 0. Like digits of a number,
    the step of one must be at most what the finer ones can count.
    """
    form = Algebra(Env(), trusted=True).of(value)
    steps: list[tuple[int, Var]] = []
    remainder = form
    for var in digits:
        part, remainder = remainder.split(lambda _, term, var=var: term.atoms == (var,))  # type: ignore[misc]
        steps += [(term.factor, var) for term in part.terms.values()]
    if mentions(remainder.atoms, set(digits)) or len(steps) != len(digits):
        return False
    reach: Expr = const(1)
    for factor, var in sorted(steps, key=lambda step: step[0]):
        if factor < 1 or not isinstance(reach, Const) or factor > reach.value:
            return False
        reach = simplify(binary("*", digits[var], factor))
    start = remainder.expr()
    outer_ranges = {var: ends for var, ends in facts.items() if var not in digits}
    above = BinOp("<=", loop.end, simplify(binary("+", start, reach)))
    return prove(BinOp("<=", start, loop.begin), outer_ranges) and prove(above, outer_ranges)


def absolute(indices: tuple[Expr | None, ...]) -> tuple[bool, ...]:
    """Return for each index whether it is left out, so that positions below it are absolute."""
    return tuple(index is None for index in indices)
