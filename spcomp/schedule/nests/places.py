"""The one element of a buffer that a block touches, by its iters; local copies of such elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from spcomp.dtypes import int64
from spcomp.errors import ScheduleError, Span
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, both, conjuncts, fingerprint, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.arith.bounds import Env, bounds_of
from spcomp.ir.arith.simplify import injective
from spcomp.ir.axis import AnyBuffer, Axis, Buffer, SparseBuffer
from spcomp.ir.expr import BinOp, Const, Expr, Select, Var, binary, cast, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, BlockIter
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import For, If, Let, Stmt, Store, While
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import reads_of, writes_of
from spcomp.schedule.nests.sites import Again, Site, bound_in, ends_of, named, parts_of, refusal

Index: TypeAlias = tuple[Expr | None, ...]
Move: TypeAlias = Callable[[Load, Load], Store]  # of the element there, and its copy here


@dataclass(frozen=True, slots=True)
class Pick:
    """What helps to pick the element: an iter of the block, or a loop that the index names."""

    var: Var
    value: Expr
    extent: Expr


class Place:
    """The element of *buffer* at *indices* that the block at *site* touches, once per iteration.

    *picks* say which element; a local copy has a dimension for each. Raises ScheduleError where
    the block may touch other elements, or this one under a condition only.
    """

    def __init__(
        self, step: object, func: Func, site: Site, buffer: AnyBuffer, span: Span | None
    ) -> None:
        self.step, self.func, self.site, self.buffer, self.span = step, func, site, buffer, span
        self.indices = self._indices()
        self.picks = tuple(self._picks())
        used = [pick.value for pick in self.picks] + [i for i in self.indices if i is not None]
        outside = {var for expr in used for var in variables(expr)} & site.bound
        self._needed = sorted(outside, key=lambda var: var.name)
        again = Again.of(site.path, self._needed, Names(func))
        self.kept = tuple(node for node in again.kept if isinstance(node, For))
        self.dropped = tuple(loop for loop in site.loops if loop not in self.kept)
        self.direct = outside | _through_lets(site, outside)
        self._check_conditions({node.var for node in again.kept})

    @property
    def index(self) -> tuple[Expr, ...]:
        """Where the element is in a local copy."""
        return tuple(pick.var for pick in self.picks) or (ZERO,)

    def reordered(self, dims: tuple[int, ...]) -> None:
        """Give the local copy its dimensions in the order of *dims*, numbers of block iters."""
        own = self.site.block.iters
        numbers = {k: pick for k, i in enumerate(own) for pick in self.picks if pick.var is i.var}
        if sorted(dims) != sorted(numbers) or len(numbers) != len(self.picks):
            raise self.error(f"the element is picked by iters {sorted(numbers)}")
        self.picks = tuple(numbers[k] for k in dims)

    def error(self, why: str, hint: str = "") -> ScheduleError:
        """Return the error for *why*."""
        return refusal(self.step, why, self.span, hint)

    def _indices(self) -> Index:
        """The indices of every access, if they are the same ones."""
        block = self.site.block
        nodes = [n for n in parts_of(block) if isinstance(n, Load | Store | Search)]
        found = [n for n in nodes if n.buffer is self.buffer]
        accesses: list[Index] = [n.indices for n in found if not isinstance(n, Search)]
        if len(accesses) < len(found):
            raise self.error(f"{self.buffer.name} is searched")
        if len({fingerprint(indices) for indices in accesses}) != 1:
            raise self.error(f"{self.buffer.name} is accessed at another place too")
        inside = {v for part in (block.init, block.body) if part for v in bound_in(part)}
        if any(variables(i) & inside for i in accesses[0] if i is not None):
            raise self.error(
                f"block {block.name} picks the element of {self.buffer.name} by loops inside it"
            )
        sure = (n for part in (block.init, block.body) if part for n in unconditional(part))
        if not any(getattr(node, "buffer", None) is self.buffer for node in sure):
            raise self.error(f"{self.buffer.name} is accessed under a condition only")
        return accesses[0]

    def _picks(self) -> Iterator[Pick]:
        used = {v for index in self.indices if index is not None for v in variables(index)}
        for own in self.site.block.iters:
            if own.var in used:
                yield Pick(own.var, own.value, self._size(own.var, own.extent))
        for loop in self.site.loops:
            if loop.var in used | _through_lets(self.site, used):
                yield Pick(loop.var, loop.var, self._size(loop.var, loop.end))

    def _size(self, var: Var, extent: Expr) -> Expr:
        """Return *extent*, or a bound of it that is known when the function begins."""
        if variables(extent) <= set(self.func.params) and not _reads(extent):
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
        """Return *var* if *index* is that plus what is not negative, else *index*."""
        match index:
            case BinOp(op="+", lhs=lhs, rhs=rhs) if lhs is var or rhs is var:
                env = Env.of({}, self.func.domains)
                low = bounds_of(rhs if lhs is var else lhs, env).low
                return var if low is not None and low >= 0 else index
        return index

    def _check_conditions(self, kept: set[Var]) -> None:
        """Raise unless the element exists, and the same one, for all that the copies run over."""
        site, values = self.site, self.site.block.values
        dropped = site.bound - kept
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
            if found := reads_of(part) & written:
                what = named(found, part)
                raise self.error(f"where it is, or a range, depends on {what}, written here")

    def is_injective(self) -> bool:
        """Whether no two iterations of the loops kept are proved to touch one element."""
        return self._apart(self.indices)

    def picks_apart(self) -> bool:
        """Whether every iteration of the loops kept has its own place in a local copy."""
        return self._apart(tuple(pick.var for pick in self.picks))

    def _apart(self, indices: Index) -> bool:
        values = resolved(self.site)
        place = tuple(None if i is None else substitute(i, values) for i in indices)
        ranges = {x.var: (x.begin, x.end) for x in self.kept}
        return all(injective(place, loop.var, ranges) for loop in self.kept)

    def local(self, names: Names, scope: str) -> Buffer:
        """Return a buffer for the copies."""
        shape = tuple(pick.extent for pick in self.picks) or (const(1),)
        name = names.unique(f"{self.buffer.name}_{scope.replace('.', '_')}")
        return Buffer(name, None, shape, self.buffer.dtype, scope)

    def copy(self, names: Names, suffix: str, local: Buffer, move: Move) -> Stmt:
        """Return the nest that does *move* for every element, in copies of the loops kept."""
        again = Again.of(self.site.path, self._needed, names)
        block = self.site.block
        iters: list[BlockIter] = []
        place: dict[Var, Expr] = {}
        for pick in self.picks:
            var = names.var(pick.var.name if pick.var in block.values else f"v{pick.var.name}")
            iters.append(BlockIter(var, pick.extent, again(pick.value)))
            place[pick.var] = var
        there = tuple(None if i is None else again(substitute(i, place)) for i in self.indices)
        where: Expr | None = None
        values = {**block.values, **place}
        for term in conjuncts(block.where):
            where = both(where, again(substitute(term, values)))
        here = tuple(own.var for own in iters) or (ZERO,)
        stmt = move(Load(self.buffer, there), Load(local, here))
        name = names.unique(f"{block.name}{suffix}")
        made = Block(name, tuple(iters), (), (), None, stmt, where, span=block.span)
        return again.around(annotate_regions(made))


def _through_lets(site: Site, used: Iterable[Var]) -> set[Var]:
    """The variables that the lets among *used* need."""
    found: set[Var] = set()
    needed = set(used)
    for node in reversed(site.path):
        if isinstance(node, Let) and node.var in needed:
            found |= variables(node.value)
            needed |= variables(node.value)
    return found


def resolved(site: Site) -> dict[Var, Expr]:
    """Return what iters and lets of the nest stand for, in its loop variables."""
    return meanings((*site.path, site.block))


def meanings(path: Iterable[Node]) -> dict[Var, Expr]:
    """Return what iters and lets along *path* stand for, in the variables of its loops."""
    values: dict[Var, Expr] = {}
    for node in path:
        if isinstance(node, Let):
            values[node.var] = substitute(node.value, values)
        elif isinstance(node, Block):
            values |= {own.var: substitute(own.value, values) for own in node.iters}
    return values


def _longest(axes: tuple[Axis, ...], indices: Index, var: Var) -> Expr | None:
    """Return what *var* stays below, being one of *indices* along *axes*; None: not known."""
    for axis, index in zip(axes, indices, strict=True):
        if index is var:
            absolute = axis.parent in axes and indices[axes.index(axis.parent)] is None
            return positions(axis) if absolute else longest_fiber(axis)
    return None


def positions(axis: Axis) -> Expr | None:
    """Return how many positions *axis* has over all fibers, of parameters only; None: not known."""
    if axis.parent is None:
        return cast(axis.length, int64)
    if axis.nnz is not None:
        return cast(axis.nnz, int64)
    above = positions(axis.parent)
    if above is None or axis.nnz_cols is None:
        return None
    return binary("*", above, cast(axis.nnz_cols, int64))


def longest_fiber(axis: Axis) -> Expr | None:
    """Return a bound of how long a fiber of *axis* is, of parameters only; None: not known.

    All fibers together have nnz elements. Coordinates that are checked to ascend strictly are at
    most as many as there are.
    """
    if not axis.is_variable:
        return cast(axis.length if axis.nnz_cols is None else axis.nnz_cols, int64)
    total = None if axis.nnz is None else cast(axis.nnz, int64)
    if not (axis.is_sparse and axis.sorted and axis.unique):
        return total
    length = cast(axis.length, int64)
    return length if total is None or isinstance(length, Const) else binary("min", length, total)


def _reads(expr: Expr) -> bool:
    return any(isinstance(node, Load | Search) for node in walk(expr))


def unconditional(node: Node) -> Iterator[Node]:
    """Yield what runs, or is evaluated, whenever *node* is."""
    yield node
    match node:
        case If() | Select():
            yield from unconditional(node.cond)
        case While() | For():
            return
        case Block(where=where) if where is not None:
            yield from unconditional(where)
        case BinOp(op="and" | "or"):
            yield from unconditional(node.lhs)
        case Load(mask=mask) | Store(mask=mask) if mask is not None:
            return
        case _:
            for name in node.CHILDREN:
                child = getattr(node, name)
                for item in child if isinstance(child, tuple) else (child,):
                    if isinstance(item, Node):
                        yield from unconditional(item)
