"""What compute_at and reverse_compute_at share: a nest, and the loop beside it that it goes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise

from spcomp.dtypes import int64
from spcomp.errors import ScheduleError, Span
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, fingerprint
from spcomp.ir.arith.bounds import Env
from spcomp.ir.arith.linear import Algebra, mentions
from spcomp.ir.arith.simplify import prove, simplify
from spcomp.ir.expr import BinOp, BinOpKind, Cast, Const, Expr, Var, binary, cast, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, If, Let, Seq, Stmt, While
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import Accesses, depends
from spcomp.schedule.nests.sites import Site, path_to, refusal
from spcomp.schedule.steps.base import Step

NO_NAMES: Mapping[Var, Expr] = {}


class Move:
    """A block, its nest, and the loop that it goes to: neighbours in one list of statements."""

    def __init__(
        self,
        step: Step,
        func: Func,
        site: Site,
        loop: For,
        span: Span | None,
        *,
        keeps_units: bool,
    ) -> None:
        self.keeps_units = keeps_units
        self.step, self.func, self.site, self.loop, self.span = step, func, site, loop, span
        self._check_nest()
        path = path_to(func, loop)
        own = (*site.above, site.root)
        common = [k for k, (a, b) in enumerate(zip(path, own, strict=False)) if a is b]
        last = common[-1]
        meeting = path[last]
        if not isinstance(meeting, Seq) or len(own) <= last + 1 or len(path) <= last + 1:
            raise self.error(f"the block and {loop.var.name!r} are not in nests side by side")
        for node in own[last + 1 : -1]:
            if isinstance(node, Alloc | Block | For | While | If | Seq):
                raise self.error(f"the block would leave {_called(node)}")
        # names that stand above the nest, beside the loop, go along
        self.site = replace(site, above=own[: last + 1], path=(*own[last + 1 : -1], *site.path))
        self.target_root = path[last + 1]
        self.shared, self.inside = path[: last + 1], path[last + 1 :]
        order = list(meeting.body)
        self.places = order.index(self.site.root), order.index(self.target_root)  # type: ignore[arg-type]
        low, high = sorted(self.places)
        self.between = order[low + 1 : high]
        lanes = any(isinstance(node, For) and node.kind == "vectorized" for node in path)
        if lanes or any(isinstance(node, While) for node in self.inside):
            raise self.error(f"{loop.var.name!r} runs in vector lanes, or in a while")
        self.outer = [node for node in self.inside if isinstance(node, For)]  # the loop is the last
        self.body = self._accesses(loop.body, path)
        self.own = self._accesses(self.site.root, self.site.above)

    def error(self, why: str, hint: str = "") -> ScheduleError:
        """Return the error for *why*."""
        return refusal(self.step, why, self.span, hint)

    def _check_nest(self) -> None:
        chain = (*self.site.path, self.site.block)
        for outer, inner in pairwise(chain):
            if not isinstance(outer, For | Let) or outer.body is not inner:
                raise self.error(f"the nest of {self.site.block.name} holds more than the block")

    @staticmethod
    def _accesses(stmt: Stmt, path: tuple[Node, ...]) -> Accesses:
        """What *stmt* touches; indices in terms of the variables of loops."""
        found = Accesses()
        for node in path:
            found.enter(node)
        found.visit(stmt)
        return found

    def facts(self) -> dict[Var, tuple[Expr, Expr]]:
        """The ranges of the loops around the new place, outer ones first."""
        return ranges_of((*self.shared, *self.inside))

    def proves(self, op: BinOpKind, a: Expr, b: Expr, loops: Iterable[For] = ()) -> bool:
        """Whether ``a op b`` follows from ranges of loops around the new place, *loops* inside it.

        And from what is promised of the values in buffers.
        """
        holds = follows(self.func, (*self.shared, *self.inside, *loops))
        return holds(binary(op, a, b))

    def check_between(self) -> None:
        """Raise if what stands between the nests depends on the block."""
        for stmt in self.between:
            if found := depends(stmt, self.site.root):
                raise self.error(f"what stands between them touches {found}")


def _called(node: Alloc | Block | For | While | If | Seq) -> str:
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


def follows(
    func: Func, path: tuple[Node, ...], names: Mapping[Var, Expr] = NO_NAMES
) -> Callable[[Expr], bool]:
    """Return what tells whether a condition holds inside *path*.

    It follows from the ranges of its loops and from what is promised of the values in buffers.
    *names*: what stands for variables in the condition, and so in the ranges.
    """
    ranges = ranges_of(path).items()
    facts = {v: (substitute(x, names), substitute(y, names)) for v, (x, y) in ranges}

    def holds(cond: Expr) -> bool:
        given = _Given(func)
        cond = given.rewrite(simplify(cond))
        known = {v: (given.rewrite(x), given.rewrite(y)) for v, (x, y) in facts.items()}
        return prove(cond, given.facts | known)

    return holds


class _Given(Rewriter):
    """Puts variables with *facts* in the place of loads from buffers whose values are promised."""

    def __init__(self, func: Func) -> None:
        self.domains = {domain.buffer: domain for domain in func.domains}
        self.known: dict[object, Var] = {}
        self.facts: dict[Var, tuple[Expr, Expr]] = {}

    def visit_Cast(self, expr: Cast) -> Node:
        """Return a variable for the value of a load, the same one for the same load."""
        load = expr.value
        domain = self.domains.get(load.buffer) if isinstance(load, Load) else None
        if domain is None or expr.type != int64:
            return self.visit_Node(expr)
        key = fingerprint(load)
        if key not in self.known:
            var = self.known[key] = Var("value", int64)
            self.facts[var] = wide(domain.low), simplify(binary("+", wide(domain.high), 1))
        return self.known[key]


def wide(end: Expr) -> Expr:
    """Return an end of a domain as an int64; sizes do not wrap around."""
    match end:
        case BinOp(op="+" | "-" as op, lhs=lhs, rhs=rhs):
            return BinOp(op, wide(lhs), wide(rhs))
        case Cast(value=BinOp() as value) if not any(isinstance(n, Load) for n in walk(value)):
            return wide(value)
    return cast(end, int64)


def ranges_of(path: tuple[Node, ...]) -> dict[Var, tuple[Expr, Expr]]:
    """Return ``low <= var < high`` for what the loops and blocks of *path* bind."""
    found: dict[Var, tuple[Expr, Expr]] = {}
    for node in path:
        if isinstance(node, For):
            found[node.var] = node.begin, node.end
        elif isinstance(node, Block):
            for own in node.iters:
                found[own.var] = ZERO, own.extent
    return found


def covers(
    value: Expr, digits: dict[Var, Expr], own: For, facts: dict[Var, tuple[Expr, Expr]]
) -> bool:
    """Whether *value* takes all of ``own.begin .. own.end - 1``; *digits* run from 0 to their ends.

    They are digits of a number, each step of one being at most what the finer ones can count.
    """
    form = Algebra(Env(), trusted=True).of(value)
    steps: list[tuple[int, Var]] = []
    rest = form
    for var in digits:
        part, rest = rest.split(lambda _, term, var=var: term.atoms == (var,))  # type: ignore[misc]
        steps += [(term.factor, var) for term in part.terms.values()]
    if mentions(rest.atoms, set(digits)) or len(steps) != len(digits):
        return False
    reach: Expr = const(1)
    for factor, var in sorted(steps, key=lambda step: step[0]):
        if factor < 1 or not isinstance(reach, Const) or factor > reach.value:
            return False
        reach = simplify(binary("*", digits[var], factor))
    start = rest.expr()
    known = {var: ends for var, ends in facts.items() if var not in digits}
    above = BinOp("<=", own.end, simplify(binary("+", start, reach)))
    return prove(BinOp("<=", start, own.begin), known) and prove(above, known)


def absolute(indices: tuple[Expr | None, ...]) -> tuple[bool, ...]:
    """Return which of *indices* are left out, so that positions below them are absolute."""
    return tuple(index is None for index in indices)
