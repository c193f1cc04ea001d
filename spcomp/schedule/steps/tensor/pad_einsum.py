"""In position space: the step pad_einsum, which rounds up the extents of a dense contraction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from spcomp.errors import ScheduleError
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, conjunction, from_zero, may_fail, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import Reduction, as_reduction, identity
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.arith.memory import read_by
from spcomp.ir.arith.simplify import divides, simplify
from spcomp.ir.axis import AnyBuffer, Buffer, memory_of
from spcomp.ir.expr import BinOp, Cast, Const, Expr, Select, UnOp, Var, binary, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, BlockIter
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, Stmt, Store, seq
from spcomp.ir.structural import fingerprint
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import is_atomic, loops_of
from spcomp.schedule.nests.nests import chain, find_block, nest, replace_stmt
from spcomp.schedule.nests.places import unconditional_nodes
from spcomp.schedule.steps.base import Makes, Step

JOINS = {"+": "*", "*": "*", "min": "+", "max": "+", "and": "and", "or": "and"}


@dataclass(frozen=True, slots=True)
class PadEinsum(Step):
    """``for i in n: W[i] op= x[i]  ->  X = x, neutral; for i in N: Y[i] op= X[i]; W = Y[:n]``.

    Each extent is rounded up to a multiple; *padding* has one for each iter of *block*, in order.
    Operands along rounded axes are copied, and padded with values that do not change the result. A
    result along such axes is computed in a new buffer and copied back. Legal for an associative
    update of products, whose operands are read without a condition, in a perfect nest with one
    loop for each iter, if the extents are known at the call. Source: TVM's pad_einsum.
    """

    name: ClassVar[str] = "pad_einsum"
    makes: ClassVar[Makes] = "blocks"
    block: str
    padding: tuple[int, ...]

    def plan(self, func: Func) -> _Plan:
        """Return the loops and operands to pad."""
        block = find_block(func, self.block, self)
        plan = _Plan(self, func, block)
        if plan.padded:
            plan.check()
        return plan

    def rewrite(self, func: Func, plan: _Plan) -> Func:
        """Return *func* with the contraction over rounded extents."""
        if not plan.padded:
            return func
        return replace_stmt(func, plan.loops[0], plan.build(Names(func)))


@dataclass(frozen=True, slots=True)
class _Operand:
    """An element read or written, the loops along its *axes*, and its *padded* copy."""

    buffer: AnyBuffer
    indices: tuple[Expr | None, ...]
    axes: tuple[Var, ...]
    padded: Buffer


class _Plan:
    """The contraction to pad: *of_iter* has the loop of each iter, *trips* the new extents.

    *padded*: the loops whose extents change.
    """

    def __init__(self, step: PadEinsum, func: Func, block: Block) -> None:
        self.step, self.func, self.block = step, func, block
        nests = (chain(x) for x in loops_of(func.body))
        self.loops: list[For] = next((loops for loops, inner in nests if inner is block), [])
        iters = block.iters
        if len(step.padding) != len(iters):
            raise self.error(f"{block.name} has {len(iters)} iters")
        if any(not isinstance(p, int) or p < 1 for p in step.padding):
            raise self.error("extents are rounded up to multiples of at least 1")
        by_var = {loop.var: loop for loop in self.loops}
        drives = [by_var.get(i.value) if isinstance(i.value, Var) else None for i in iters]
        if None in drives or len({*drives}) < len(self.loops) or block.where is not None:
            raise self.error("it is no plain nest of one loop for each iter")
        self.of_iter = {i.var: loop for i, loop in zip(iters, drives, strict=True) if loop}
        multiples = {x.var: p for x, p in zip(drives, step.padding, strict=True) if x}
        self.trips = {x.var: _round_up(x.end, multiples[x.var]) for x in self.loops}
        self.padded = {x.var for x in self.loops if not divides(multiples[x.var], x.end)}

    def error(self, why: str) -> ScheduleError:
        """Return the error that says *why*."""
        return self.step.error(why, self.block)

    def check(self) -> None:
        """Raise unless all extents are known, and padding leaves the result as it is."""
        for x in self.loops:
            if (
                not from_zero(x)
                or any(read_by(x.end))
                or not variables(x.end) <= {*self.func.params}
            ):
                raise self.error(f"how often {x.var.name!r} runs is not known at the call")
        reduction = as_reduction(self.block.body)
        if reduction is None or reduction.is_tuple or not isinstance(self.block.body, Store):
            raise self.error("it is no associative update of one element")
        if is_atomic(self.block) or self.block.body.atomic:
            raise self.error("other iterations may update its elements at the same time")
        self.reduction: Reduction = reduction
        self.kinds = {self.of_iter[it.var].var: it.kind for it in self.block.iters}
        self.fill = self._neutral()
        self.target = self._axes(reduction.buffer, reduction.indices)
        spatial = {var for var, kind in self.kinds.items() if kind == "S"}
        if {*self.target} != spatial:
            raise self.error("its spatial iters do not pick the element")
        self._check_init()
        if may_fail(reduction.value):
            raise self.error("a division by what operands are filled up with would fail")
        sure = set(unconditional_nodes(reduction.value))
        for load in self._loads():
            if memory_of(load.buffer) is memory_of(reduction.buffer):
                raise self.error(f"{load.buffer.name} is read and updated")
            if self.padded & {*self._axes(load.buffer, load.indices)} and load not in sure:
                raise self.error(f"{load.buffer.name} is read under a condition only")

    def _loads(self) -> Iterator[Load]:
        return (n for n in walk(self.reduction.value) if isinstance(n, Load))

    def _check_init(self) -> None:
        init = self.block.init
        if init is None:
            return
        starts = isinstance(init, Store) and init.buffer is self.reduction.buffer
        same = starts and fingerprint(init.indices) == fingerprint(self.reduction.indices)  # type: ignore[attr-defined]
        if not same or any(isinstance(n, Load) for n in walk(init)):
            raise self.error("its init is more than a constant stored")

    def _axes(self, buffer: AnyBuffer, indices: tuple[Expr | None, ...]) -> tuple[Var, ...]:
        """Return the loops along the axes of *buffer*; no loop of the nest is in other indices."""
        inner = {*self.of_iter} | {x.var for x in self.loops}
        axes: list[Var] = []
        for index in indices:
            if isinstance(index, Var) and index in self.of_iter:
                axes.append(self.of_iter[index].var)
            elif index is not None and variables(index) & inner:
                raise self.error(f"an index of {buffer.name} is no iter of the block")
        if len({*axes}) < len(axes):
            raise self.error(f"two indices of {buffer.name} are one iter")
        return tuple(axes)

    def _neutral(self) -> Const | None:
        """Return the value to pad operands with, which does not change the reduction."""
        lost = {x for x in self.padded if self.kinds[x] == "R"}
        if not lost:
            return None
        reduction = self.reduction
        join = JOINS[reduction.combiner]
        fill = identity(reduction.combiner, reduction.value.dtype)
        leaves = list(_leaves(reduction.value, join, signed=fill.value == 0))
        exact = reduction.value.dtype.is_float or len(leaves) == 1 or join == "*"
        for leaf in leaves:
            inner = leaf.value if isinstance(leaf, Cast) and leaf.dtype.is_float else leaf
            if isinstance(leaf, Const) and join == "*" and fill.value == 0:
                continue
            if not isinstance(inner, Load) or inner.dtype.is_float != leaf.dtype.is_float:
                raise self.error("what it adds up is not made of products of elements")
            if not lost <= {*self._axes(inner.buffer, inner.indices)}:
                raise self.error(
                    f"{inner.buffer.name} is not padded along all that is reduced: infinities in it"
                    " would show"
                )
        if not exact:
            raise self.error("nothing fills up integers that are added before they are compared")
        return fill

    def build(self, names: Names) -> Stmt:
        """Return the copies, the contraction, and the copy of the result."""
        reduction = self.reduction
        before: list[Stmt] = []
        operands: dict[object, _Operand] = {}
        for load in self._loads():
            axes = self._axes(load.buffer, load.indices)
            key = (load.buffer, fingerprint(load.indices))
            if key not in operands and self.padded & {*axes}:
                operands[key] = self._operand(names, load, axes)
                before.append(self._fill_nest(names, operands[key], self.fill))
        after: Stmt | None = None
        if self.padded & {*self.target}:
            result = self._operand(names, Load(reduction.buffer, reduction.indices), self.target)
            operands[reduction.buffer, fingerprint(reduction.indices)] = result
            if self.block.init is None:
                before.append(self._fill_nest(names, result, None))
            after = self._copy_back(names, result)
        use = _UsePadded(operands, {var: loop.var for var, loop in self.of_iter.items()})
        block = self.block
        inner = block.replace(
            iters=tuple(i.replace(extent=self.trips[self.of_iter[i.var].var]) for i in block.iters),
            init=None if block.init is None else use.rewrite(block.init),
            body=use.rewrite(block.body),
        )
        loops = [x.replace(end=self.trips[x.var]) for x in self.loops]
        stmt = seq(*before, nest(loops, inner), after)
        for operand in reversed(operands.values()):
            stmt = Alloc(operand.padded, stmt)
        return annotate_regions(stmt)

    def _operand(self, names: Names, access: Load, axes: tuple[Var, ...]) -> _Operand:
        buffer, indices = access.buffer, access.indices
        shape = tuple(self.trips[var] for var in axes)
        name = names.unique(f"{buffer.name}_pad")
        return _Operand(buffer, indices, axes, Buffer(name, None, shape, buffer.dtype))

    def _nest(
        self, names: Names, operand: _Operand, suffix: str, *, original: bool
    ) -> tuple[list[For], tuple[BlockIter, ...], tuple[Expr | None, ...], str]:
        """Return loops over the padded or *original* extents, the iters, indices, block name."""
        of_loop = {loop.var: loop for loop in self.loops}
        loops, iters = [], []
        values: dict[Var, Expr] = {}
        for var in operand.axes:
            old = of_loop[var]
            fresh, iter_var = names.var(var.name), names.var(f"v{var.name}")
            end = old.end if original else self.trips[var]
            loops.append(For(fresh, ZERO, end, seq(), span=old.span))
            iters.append(BlockIter(iter_var, end, fresh))
            values |= {k: iter_var for k, loop in self.of_iter.items() if loop is old}
        place = tuple(None if i is None else substitute(i, values) for i in operand.indices)
        name = names.unique(f"{self.block.name}_{operand.buffer.name}{suffix}")
        return loops, tuple(iters), place, name

    def _fill_nest(self, names: Names, operand: _Operand, fill: Const | None) -> Stmt:
        """Return the nest that copies an operand and pads it with *fill*."""
        loops, iters, place, name = self._nest(names, operand, "_pad", original=False)
        ends = {loop.var: loop.end for loop in self.loops}
        inside = conjunction(
            binary("<", it.var, ends[var])
            for it, var in zip(iters, operand.axes, strict=True)
            if var in self.padded
        )
        dtype = operand.buffer.dtype
        value: Expr = Load(operand.buffer, place)
        if inside is not None:
            value = Select(inside, value, const(fill.value if fill else 0, dtype))
        store = Store(operand.padded, tuple(it.var for it in iters), value)
        return nest(loops, Block(name, iters, (), (), None, store))

    def _copy_back(self, names: Names, operand: _Operand) -> Stmt:
        """Return the nest that copies the result back."""
        loops, iters, place, name = self._nest(names, operand, "_unpad", original=True)
        value = Load(operand.padded, tuple(it.var for it in iters))
        return nest(loops, Block(name, iters, (), (), None, Store(operand.buffer, place, value)))


def _round_up(extent: Expr, multiple: int) -> Expr:
    if divides(multiple, extent):
        return extent
    up = binary("//", binary("+", extent, multiple - 1), multiple)
    return simplify(binary("*", up, multiple))


def _leaves(expr: Expr, join: str, *, signed: bool) -> Iterator[Expr]:
    """Yield the operands that *join* combines in *expr*; *signed*: a sign changes nothing."""
    match expr:
        case BinOp(op=op, lhs=a, rhs=b) if op == join:
            yield from _leaves(a, join, signed=signed)
            yield from _leaves(b, join, signed=signed)
        case UnOp(op="-", value=value) if signed:
            yield from _leaves(value, join, signed=signed)
        case _:
            yield expr


class _UsePadded(Rewriter):
    """Replaces reads and writes by those of the padded copies."""

    def __init__(self, operands: dict[object, _Operand], loop_of: dict[Var, Var]) -> None:
        self.operands = operands
        self.iters = {loop: iter_var for iter_var, loop in loop_of.items()}

    def _of(self, node: Load | Store) -> _Operand | None:
        return self.operands.get((node.buffer, fingerprint(node.indices)))

    def visit_Load(self, load: Load) -> Node:
        operand = self._of(load)
        if operand is None:
            return load
        return Load(operand.padded, tuple(self.iters[var] for var in operand.axes))

    def visit_Store(self, store: Store) -> Node:
        operand = self._of(store)
        value = self.rewrite(store.value)
        if operand is None:
            return store.replace(value=value)
        place = tuple(self.iters[var] for var in operand.axes)
        return store.replace(buffer=operand.padded, indices=place, value=value)
