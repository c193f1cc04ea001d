"""Beside flat IR: the axes of a program and what each touches, counted as AutoTVM counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spcomp.ir.arith.simplify import simplify
from spcomp.ir.expr import BinOp, Const, Expr, Var
from spcomp.ir.node import Node
from spcomp.ir.stmt import For, While
from spcomp.ir.visitor import Walker, below

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spcomp.ir.access import Load, Search
    from spcomp.ir.axis import AnyBuffer
    from spcomp.ir.func import Func
    from spcomp.ir.stmt import Let, Prefetch, Store

ANNOTATIONS = (  # the order of AutoTVM's one-hot code
    *("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z"),
    *("unroll", "vectorize", "parallel", "serial", "vthread"),
)
UNKNOWN_LENGTH = -1  # of a loop whose extent is no constant: AutoTVM's number
_COUNTED = {"+": "add", "-": "add", "*": "mul", "/": "div", "//": "div", "%": "div"}


@dataclass(slots=True)
class Touch:
    """How one access moves with one axis, and how often, for each run of the axis.

    *count*: by the axes inside (and this one) whose variable the index has; *reuse*: by the others.
    *thread_count*, *thread_reuse*: the part of both that the threads of this level contribute.
    *mod* is always infinite (-1): AutoTVM never finds another.
    """

    stride: int
    mod: int = -1
    count: int = 1
    reuse: int = 1
    thread_count: int = 0
    thread_reuse: int = 0


@dataclass(slots=True, eq=False)
class Axis:
    """A loop, or an index of the grid. *topdown*: iterations of it and of all axes around it.

    *bottomup*: accesses for each run, of the access that runs most often; -1 if there is none.
    *add*, *mul*, *div*: operations on floats whose innermost axis is this one.
    """

    name: str
    length: int
    nest_level: int
    annotation: str
    topdown: int
    bottomup: int = -1
    add: int = 0
    mul: int = 0
    div: int = 0
    touches: dict[str, Touch] = field(default_factory=dict)

    @property
    def parallel_level(self) -> int:
        """2 for blocks of a grid, 1 for threads and parallel loops, 0 for what one thread runs."""
        if self.annotation.startswith("blockIdx"):
            return 2
        return int(self.annotation == "parallel" or self.annotation.startswith("threadIdx"))


def axes_of(func: Func, extents: Mapping[str, int]) -> tuple[Axis, ...]:
    """Return the axes of the flat function *func*, outer ones first.

    *extents*, by name of a loop, count for those whose extent is no constant.
    """
    finder = _AxisFinder(extents)
    finder.visit(func.body)
    return tuple(finder.axes)


class _AxisFinder(Walker):
    """Visits in AutoTVM's order: a store before its value, a load before its index."""

    def __init__(self, extents: Mapping[str, int]) -> None:
        self.extents = extents
        self.axes: list[Axis] = []
        self.stack: list[tuple[Var | None, Axis]] = []
        self.topdown = 1
        self.known: set[Var] = set()
        self.lets: dict[Var, Expr] = {}
        self.numbers: Counter[str] = Counter()

    def visit_For(self, loop: For) -> None:
        annotation = _annotation(loop)
        if annotation == "vthread" and loop.var in self.known:  # already an axis
            self.visit_Node(loop)
            return
        self.known.add(loop.var)
        extent = simplify(loop.end - loop.begin)
        length = self.extents.get(loop.var.name, UNKNOWN_LENGTH)
        if isinstance(extent, Const):
            length = max(int(extent.value), 0)
        self._enter(loop.var, loop.var.name, length, annotation)
        self.visit_Node(loop)  # as in AutoTVM, what the extent reads is inside
        self._leave()

    def visit_While(self, loop: While) -> None:
        self._enter(None, "while", self.extents.get("while", UNKNOWN_LENGTH), "serial")
        self.visit_Node(loop)
        self._leave()

    def visit_Let(self, let: Let) -> None:
        self.lets[let.var] = let.value
        self.visit_Node(let)

    def visit_Prefetch(self, prefetch: Prefetch) -> None:
        """A hint touches nothing."""

    def visit_Store(self, store: Store) -> None:
        self._touch(store.buffer, store.indices)
        for part in (store.value, *store.indices, store.mask):
            if part is not None:
                self.visit(part)

    def visit_Load(self, load: Load) -> None:
        self._touch(load.buffer, load.indices)
        self.visit_Node(load)

    def visit_Search(self, search: Search) -> None:
        self._touch(search.buffer, (search.begin,))
        self.visit_Node(search)

    def visit_BinOp(self, op: BinOp) -> None:
        kind = _COUNTED.get(op.op)
        if kind is not None and self.stack and op.dtype.is_float:
            axis = self.stack[-1][1]
            setattr(axis, kind, getattr(axis, kind) + 1)
        self.visit_Node(op)

    def _touch(self, buffer: AnyBuffer, indices: Sequence[Expr | None]) -> None:
        name = f"{buffer.name}_{self.numbers[buffer.name]}"
        self.numbers[buffer.name] += 1
        strides = _strides(indices, self.lets)
        for var, axis in self.stack:
            axis.touches[name] = Touch(0 if var is None else strides.get(var, 0))

    def _enter(self, var: Var | None, name: str, length: int, annotation: str) -> None:
        self.topdown *= length
        axis = Axis(name, length, len(self.stack) + 1, annotation, self.topdown)
        self.stack.append((var, axis))
        self.axes.append(axis)

    def _leave(self) -> None:
        _, axis = self.stack[-1]
        for name, touch in axis.touches.items():
            if touch.stride:
                for _, around in self.stack:
                    around.touches[name].count *= axis.length
            else:
                for _, around in self.stack:
                    around.touches[name].reuse *= axis.length
        self.stack.pop()
        if axis.length:
            self.topdown = _quotient(self.topdown, axis.length)
        touched = axis.touches.values()
        axis.bottomup = max((-1, *(touch.count * touch.reuse for touch in touched)))
        self._share(axis)

    def _share(self, axis: Axis) -> None:
        """Note the counts of *axis* as the base of the threads around it; settle its own.

        A base is negative until the axis that it belongs to is left.
        """
        outer = axis.parallel_level + 1
        if self.stack and self.stack[-1][1].parallel_level == outer:
            for _, around in self.stack:
                if around.parallel_level == outer:
                    for name, touch in axis.touches.items():
                        base = around.touches[name]
                        base.thread_count, base.thread_reuse = -touch.count, -touch.reuse
        for touch in axis.touches.values():
            if touch.thread_count < 0:
                touch.thread_count = _quotient(touch.count, -touch.thread_count)
                touch.thread_reuse = _quotient(touch.reuse, -touch.thread_reuse)


def _annotation(loop: For) -> str:
    if loop.kind == "bound":
        return "vthread" if loop.thread.startswith("vthread") else loop.thread
    return "vectorize" if loop.kind == "vectorized" else loop.kind


def _quotient(number: int, divisor: int) -> int:
    """Return ``number / divisor`` rounded towards zero, as in C; zero where that is undefined."""
    if not divisor:
        return 0
    quotient = abs(number) // abs(divisor)
    return quotient if (number < 0) == (divisor < 0) else -quotient


def _strides(indices: Iterable[Expr | None], lets: Mapping[Var, Expr]) -> dict[Var, int]:
    """Return the stride of every variable of *indices*, as AutoTVM reads an index.

    It is the constant in ``var * constant``, else 1. As there, a variable that occurs again leaves
    its constant to the next one. A variable of *lets* stands for its value.
    """
    strides: dict[Var, int] = {}
    following = 1
    stack: list[Node] = [index for index in reversed(tuple(indices)) if index is not None]
    while stack:
        expr = stack.pop()
        match expr:
            case Var() if expr in strides:
                continue
            case Var() if expr in lets:
                strides[expr] = 0
                stack.append(lets[expr])
                continue
            case Var():
                strides[expr], following = following, 1
            case BinOp(op="*", lhs=Var(), rhs=Const(value=int(stride))):
                following = stride
        stack += reversed(below(expr))
    return strides
