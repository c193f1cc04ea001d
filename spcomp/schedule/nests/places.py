"""Under the steps: the one element of a buffer that a block touches, and local copies of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from spcomp.dtypes import int64
from spcomp.errors import ScheduleError
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, conjunction, conjuncts, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.positions import longest_fiber, positions
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.arith.bounds import Env, bounds_of
from spcomp.ir.arith.injectivity import element_key
from spcomp.ir.arith.memory import read_by, reads_of, writes_of
from spcomp.ir.arith.simplify import injective
from spcomp.ir.axis import AnyBuffer, Axis, Buffer, SparseBuffer
from spcomp.ir.expr import BinOp, Expr, Select, Var, cast, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, BlockIter
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import For, If, Let, Stmt, Store, While
from spcomp.ir.structural import fingerprint
from spcomp.ir.visitor import below, walk
from spcomp.schedule.nests.nearby import prover_at
from spcomp.schedule.nests.sites import (
    PathCopy,
    Site,
    bound_in,
    buffer_name,
    ends_of,
    parts_of,
    refusal,
)
from spcomp.schedule.nests.values import path_values

Index: TypeAlias = tuple[Expr | None, ...]
Transfer: TypeAlias = Callable[[Load, Load], Store]  # between an element and its local copy


@dataclass(frozen=True, slots=True)
class Pick:
    """A variable that picks the element: an iter of the block, or a loop that an index names."""

    var: Var
    value: Expr
    extent: Expr


class Place:
    """The element of *buffer* at *indices* that the block at *site* touches, once per iteration.

    *picks* say which element; a local copy has a dimension for each. Raises ScheduleError where
    the block may touch other elements, or this one under a condition only.
    """

    def __init__(self, step: object, func: Func, site: Site, buffer: AnyBuffer) -> None:
        self.step, self.func, self.site, self.buffer = step, func, site, buffer
        self.indices = self._indices()
        self.picks = tuple(self._picks())
        used = [pick.value for pick in self.picks] + [i for i in self.indices if i is not None]
        outside = {var for expr in used for var in variables(expr)} & site.bound
        self._outer_vars = sorted(outside, key=lambda var: var.name)
        copies = PathCopy.of(site.path, self._outer_vars, Names(func))
        self.kept = tuple(node for node in copies.originals if isinstance(node, For))
        self.dropped = tuple(loop for loop in site.loops if loop not in self.kept)
        self.direct = outside | _through_lets(site, outside)
        self._check_conditions({node.var for node in copies.originals})

    @property
    def index(self) -> tuple[Expr, ...]:
        """The index of the element in a local copy."""
        return tuple(pick.var for pick in self.picks) or (ZERO,)

    def reordered(self, dims: tuple[int, ...]) -> None:
        """Give the local copy its dimensions in the order of *dims*, numbers of block iters."""
        iters = self.site.block.iters
        numbers = {k: pick for k, i in enumerate(iters) for pick in self.picks if pick.var is i.var}
        if sorted(dims) != sorted(numbers) or len(numbers) != len(self.picks):
            raise self.error(f"the element is picked by iters {sorted(numbers)}")
        self.picks = tuple(numbers[k] for k in dims)

    def error(self, why: str, hint: str = "") -> ScheduleError:
        """Return the error for *why*."""
        return refusal(self.step, why, self.site.block.span, hint)

    def _indices(self) -> Index:
        """Return the indices of the accesses; raises ScheduleError unless all have the same."""
        block = self.site.block
        touching = [n for n in parts_of(block) if isinstance(n, Load | Store | Search)]
        accessing = [n for n in touching if n.buffer is self.buffer]
        accesses: list[Index] = [n.indices for n in accessing if not isinstance(n, Search)]
        if len(accesses) < len(accessing):
            raise self.error(f"{self.buffer.name} is searched")
        if len({fingerprint(indices) for indices in accesses}) != 1:
            raise self.error(f"{self.buffer.name} is accessed at another place too")
        inside = {v for part in (block.init, block.body) if part for v in bound_in(part)}
        if any(variables(i) & inside for i in accesses[0] if i is not None):
            raise self.error(
                f"block {block.name} picks the element of {self.buffer.name} by loops inside it"
            )
        sure = (n for part in (block.init, block.body) if part for n in unconditional_nodes(part))
        if not any(getattr(node, "buffer", None) is self.buffer for node in sure):
            raise self.error(f"{self.buffer.name} is accessed under a condition only")
        return accesses[0]

    def _picks(self) -> Iterator[Pick]:
        used = {v for index in self.indices if index is not None for v in variables(index)}
        for it in self.site.block.iters:
            if it.var in used:
                yield Pick(it.var, it.value, self._size(it.var, it.extent))
        for loop in self.site.loops:
            if loop.var in used | _through_lets(self.site, used):
                yield Pick(loop.var, loop.var, self._size(loop.var, loop.end))

    def _size(self, var: Var, extent: Expr) -> Expr:
        """Return *extent*, or an upper bound of it, computed from parameters only."""
        if variables(extent) <= set(self.func.params) and not any(read_by(extent)):
            return cast(extent, int64)
        for index in self.indices:
            for node in () if index is None else walk(Load(self.buffer, self.indices)):
                if isinstance(node, Load) and isinstance(node.buffer, SparseBuffer):
                    indices = tuple(self._offset(at, var) for at in node.indices)
                    if (bound := _longest(node.buffer.axes, indices, var)) is not None:
                        return bound
        raise self.error(
            f"the extent of {var.name} is not known where {self.buffer.name} is copied"
        )

    def _offset(self, index: Expr | None, var: Var) -> Expr | None:
        """Return *var* if *index* is *var* plus something that is not negative, else *index*."""
        match index:
            case BinOp(op="+", lhs=lhs, rhs=rhs) if lhs is var or rhs is var:
                env = Env.of({}, self.func.domains)
                low = bounds_of(rhs if lhs is var else lhs, env).low
                return var if low is not None and low >= 0 else index
        return index

    def _check_conditions(self, copied: set[Var]) -> None:
        """Raise unless the copies, in their own loops, touch the same elements as the block."""
        site, values = self.site, self.site.block.values
        dropped = site.bound - copied
        for term in conjuncts(site.block.where):
            if variables(substitute(term, values)) & dropped:
                raise self.error("the condition of the block depends on other loops")
        for loop in self.dropped:
            if any(isinstance(n, Select) for end in ends_of(loop) for n in walk(end)):
                raise self.error(f"whether {loop.var.name!r} runs at all is a condition")
        parts = [i for i in self.indices if i is not None] + [pick.value for pick in self.picks]
        parts += conjuncts(site.block.where)
        parts += [end for n in site.path if isinstance(n, For | Let) for end in ends_of(n)]
        written = writes_of(site.root)
        for part in parts:
            if clashes := reads_of(part) & written:
                what = buffer_name(clashes, part)
                raise self.error(f"where it is, or a range, depends on {what}, written here")

    def check_reached(self) -> None:
        """Raise if copies might touch an element where the block, in its loops, touches none.

        Where the loops that the copies do not have are empty, indices may be no places at all.
        """
        parts = (*self.indices, *(pick.value for pick in self.picks))
        path = (*self.site.above, *self.site.path)
        if not are_checked(self.func, parts) and may_be_empty(self.func, path, self.dropped):
            raise self.error(f"an index of {self.buffer.name} may be wrong where no iteration runs")

    def is_injective(self) -> bool:
        """Whether all iterations of the loops kept are proved to touch different elements."""
        return self._apart(element_key(self.buffer, self.indices))

    def picks_apart(self) -> bool:
        """Whether all iterations of the loops kept have different places in a local copy."""
        return self._apart(tuple(pick.var for pick in self.picks))

    def _apart(self, indices: Index) -> bool:
        values = site_values(self.site)
        place = tuple(None if i is None else substitute(i, values) for i in indices)
        ranges = {x.var: (x.begin, x.end) for x in self.kept}
        return all(injective(place, loop.var, ranges) for loop in self.kept)

    def local(self, names: Names, scope: str) -> Buffer:
        """Return a new buffer for the local copy."""
        shape = tuple(pick.extent for pick in self.picks) or (const(1),)
        name = names.unique(f"{self.buffer.name}_{scope.replace('.', '_')}")
        return Buffer(name, None, shape, self.buffer.dtype, scope)

    def copy(self, names: Names, suffix: str, local: Buffer, move: Transfer) -> Stmt:
        """Return the nest that does *move* for every element, in copies of the kept loops."""
        copies = PathCopy.of(self.site.path, self._outer_vars, names)
        block = self.site.block
        iters: list[BlockIter] = []
        place: dict[Var, Expr] = {}
        for pick in self.picks:
            var = names.var(pick.var.name if pick.var in block.values else f"v{pick.var.name}")
            iters.append(BlockIter(var, pick.extent, copies(pick.value)))
            place[pick.var] = var
        index = tuple(None if i is None else copies(substitute(i, place)) for i in self.indices)
        values = {**block.values, **place}
        where = conjunction(copies(substitute(term, values)) for term in conjuncts(block.where))
        local_index = tuple(it.var for it in iters) or (ZERO,)
        stmt = move(Load(self.buffer, index), Load(local, local_index))
        name = names.unique(f"{block.name}{suffix}")
        copy_block = Block(name, tuple(iters), (), (), None, stmt, where, span=block.span)
        return copies.around(annotate_regions(copy_block))


def _through_lets(site: Site, used: Iterable[Var]) -> set[Var]:
    """Return the variables in the values of those lets of the nest that *used* needs."""
    inputs: set[Var] = set()
    used_vars = set(used)
    for node in reversed(site.path):
        if isinstance(node, Let) and node.var in used_vars:
            inputs |= variables(node.value)
            used_vars |= variables(node.value)
    return inputs


def site_values(site: Site) -> dict[Var, Expr]:
    """Return the values of the iters and lets of the nest, in its loop variables."""
    return path_values((*site.path, site.block))


def _longest(axes: tuple[Axis, ...], indices: Index, var: Var) -> Expr | None:
    """Return an upper bound of *var*, one of *indices* along *axes*; None: not known."""
    for axis, index in zip(axes, indices, strict=True):
        if index is var:
            absolute = axis.parent in axes and indices[axes.index(axis.parent)] is None
            return positions(axis) if absolute else longest_fiber(axis)
    return None


def are_checked(func: Func, exprs: Iterable[Expr | None]) -> bool:
    """Whether all that *exprs* read has a domain, so that they are places in any case."""
    checked = {domain.buffer for domain in func.domains}
    nodes = (n for expr in exprs if expr is not None for n in walk(expr))
    return all(n.buffer in checked for n in nodes if isinstance(n, Load | Search))


def may_be_empty(func: Func, path: tuple[Node, ...], loops: Iterable[For]) -> bool:
    """Whether one of *loops*, which are on *path*, may not run at all."""
    above = ((loop, path[: path.index(loop)]) for loop in loops)
    return not all(prover_at(func, way)(BinOp("<", x.begin, x.end)) for x, way in above)


def unconditional_nodes(node: Node) -> Iterator[Node]:
    """Yield the nodes in *node* that always run, or are always evaluated, when it is."""
    yield node
    for child in surely_below(node):
        yield from unconditional_nodes(child)


def surely_below(node: Node) -> Iterator[Node]:
    """Yield the children of *node* that always run, or are always evaluated, when it is."""
    match node:
        case If() | Select():
            yield node.cond
        case While() | For():
            return
        case Block(where=where) if where is not None:
            yield where
        case BinOp(op="and" | "or"):
            yield node.lhs
        case Load(mask=mask) | Store(mask=mask) if mask is not None:
            return
        case _:
            yield from below(node)
