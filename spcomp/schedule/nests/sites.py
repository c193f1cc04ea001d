"""Under the steps on blocks: where a block stands, what it touches, and copies of its loops."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from spcomp.errors import ScheduleError, Span
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import bound_by, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.axis import AnyBuffer, memory_of
from spcomp.ir.expr import Expr, Var
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, BlockIter
from spcomp.ir.program import PosFunc
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import Alloc, For, Let, Stmt, Store
from spcomp.ir.visitor import below, walk
from spcomp.schedule.legality.dependence import Conflict, conflicts, loops_of
from spcomp.schedule.legality.order import ascending_axes
from spcomp.schedule.legality.reductions import innermost, is_dot, reduces_over_threads
from spcomp.schedule.nests.nests import find_block
from spcomp.schedule.steps.base import names_hint

Scoped: TypeAlias = For | Let

SCOPES = frozenset({"global", "local", "shared", "shared.dyn", "warp"}) | {
    f"wmma.{part}" for part in ("matrix_a", "matrix_b", "accumulator")
}
"""The kinds of memory for a buffer; on a CPU all of them are memory of the function."""


def refusal(step: object, why: str, span: Span | None = None, hint: str = "") -> ScheduleError:
    """Return the error that says why *step* is not legal."""
    return ScheduleError(f"{step}: {why}", span, hint=hint)


def check_scope(step: object, scope: str) -> None:
    """Raise ScheduleError unless *scope* is the name of a kind of memory."""
    if scope not in SCOPES:
        raise refusal(step, f"unknown scope {scope!r}", hint=names_hint(SCOPES, "scopes"))


@dataclass(frozen=True, slots=True)
class Site:
    """Where *block* stands: *above* leads to its nest, *path* from the nest's root down to it.

    The nest is the block with the loops and lets that hold nothing else; *path* is empty where the
    nest is the block itself.
    """

    block: Block
    above: tuple[Node, ...]
    path: tuple[Node, ...]

    @property
    def root(self) -> Stmt:
        """The whole nest."""
        root = self.path[0] if self.path else self.block
        assert isinstance(root, Stmt)
        return root

    @property
    def loops(self) -> tuple[For, ...]:
        """The loops of the nest around the block, outermost first."""
        return tuple(node for node in self.path if isinstance(node, For))

    @property
    def bound(self) -> set[Var]:
        """The variables that the nest binds around the block."""
        return {node.var for node in self.path if isinstance(node, For | Let)}

    @property
    def goes_on(self) -> bool:
        """Whether a loop outside the nest, but in the same block, drives the block's reduction.

        The init then runs before that loop.
        """
        return self.drives(i for i in self.block.iters if i.kind == "R")

    def drives(self, iters: Iterable[BlockIter]) -> bool:
        """Whether a loop outside the nest, but in the same block, drives one of *iters*."""
        begin = 1 + max((k for k, n in enumerate(self.above) if isinstance(n, Block)), default=-1)
        outside: set[Var] = set()
        for node in self.above[begin:]:
            outside |= bound_by(node)
        return any(variables(i.value) & outside for i in iters)


def site_of(func: Func, name: str, step: object) -> Site:
    """Return where the block called *name* stands; raises ScheduleError if there is none."""
    if not isinstance(func, PosFunc):
        raise refusal(
            step,
            f"{func.name} has no blocks at this level",
            hint="blocks exist in position space: lower the sparse iterations first",
        )
    block = find_block(func, name, step)
    return _site(block, path_to(func, block)[:-1])


def path_to(func: Func, stmt: Node) -> tuple[Node, ...]:
    """Return the nodes from the body of *func* down to *stmt*, both included."""
    return next(path for path in _paths(func.body, ()) if path[-1] is stmt)


def _paths(node: Node, above: tuple[Node, ...]) -> Iterator[tuple[Node, ...]]:
    path = (*above, node)
    yield path
    for item in below(node):
        if not isinstance(item, Expr):
            yield from _paths(item, path)


def _site(block: Block, around: tuple[Node, ...]) -> Site:
    inside = 1 + max((k for k, n in enumerate(around) if not isinstance(n, For | Let)), default=-1)
    while inside < len(around) and isinstance(around[inside], Let):
        inside += 1
    return Site(block, around[:inside], around[inside:])


def parts_of(block: Block) -> Iterator[Node]:
    """Yield the nodes of the init and the body of *block*."""
    for part in (block.init, block.body):
        if part is not None:
            yield from walk(part)


def touched_buffers(block: Block, *, writes: bool) -> tuple[AnyBuffer, ...]:
    """Return the buffers from outside *block* that it writes, or reads, in order of first use."""
    kinds = (Store,) if writes else (Load, Search)
    private = {node.buffer for node in parts_of(block) if isinstance(node, Alloc)}
    buffers = (node.buffer for node in parts_of(block) if isinstance(node, kinds))
    return tuple(buffer for buffer in dict.fromkeys(buffers) if buffer not in private)


def buffer_name(memory: Collection[object], node: Node) -> str:
    """Return the name of the first buffer in *node* that lies in *memory*."""
    buffers = (n.buffer for n in walk(node) if isinstance(n, Load | Search | Store))
    return next(buffer.name for buffer in buffers if memory_of(buffer) in memory)


def nth_buffer(
    step: object, block: Block, index: int, span: Span | None = None, *, writes: bool
) -> AnyBuffer:
    """Return buffer number *index* of those that *block* writes, or reads."""
    buffers = touched_buffers(block, writes=writes)
    if not isinstance(index, int):
        why = f"which buffer of {block.name} is a number, not {index!r}"
        raise refusal(step, why, span, hint="at= names the loop of a cache_write")
    if not 0 <= index < len(buffers):
        verb = "writes" if writes else "reads"
        names = ", ".join(buffer.name for buffer in buffers) or "nothing"
        raise refusal(step, f"block {block.name} {verb} {names}: there is no {index}", span)
    return buffers[index]


def bound_in(node: Node) -> set[Var]:
    """Return the variables that *node*, or a statement in it, binds."""
    return {var for inner in walk(node, skip=Expr) for var in bound_by(inner)}


@dataclass(slots=True)
class PathCopy:
    """Copies of loops and lets, under new names.

    *originals*: the loops and lets that are copied, outermost first; *values*: the variable of the
    copy for that of each original.
    """

    originals: list[Scoped] = field(default_factory=list)
    copies: list[Scoped] = field(default_factory=list)
    values: dict[Var, Expr] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Iterable[Node], exprs: Iterable[Expr], names: Names) -> PathCopy:
        """Return copies of the loops and lets of *path* that *exprs* need; the loops are serial."""
        needed = {var for expr in exprs for var in variables(expr)}
        copy = cls()
        for node in reversed(tuple(path)):
            if isinstance(node, For | Let) and node.var in needed:
                copy.originals.insert(0, node)
                for end in ends_of(node):
                    needed |= variables(end)
        for node in copy.originals:
            var = names.var(node.var.name, node.var.dtype)
            if isinstance(node, Let):
                new: Scoped = Let(var, copy(node.value), node.body, span=node.span)
            else:
                new = For(var, copy(node.begin), copy(node.end), node.body, span=node.span)
            copy.copies.append(new)
            copy.values[node.var] = var
        return copy

    def __call__(self, expr: Expr) -> Expr:
        """Return *expr* with the variables of the copies."""
        return substitute(expr, self.values)

    def around(self, body: Stmt) -> Stmt:
        """Return *body* inside the copies."""
        for node in reversed(self.copies):
            body = node.replace(body=body)
        return body


def ends_of(node: Scoped) -> tuple[Expr, ...]:
    """Return the expressions that a loop or let evaluates before its body."""
    return (node.value,) if isinstance(node, Let) else (node.begin, node.end)


def check_concurrent(step: object, before: Func, after: Func, span: Span | None) -> Func:
    """Return *after*; raises ScheduleError if a concurrent loop has a conflict that is new.

    *after* is *before* with *step* applied; concurrent loops are parallel, bound and vectorized.
    """
    old = {loop.var.name: loop for loop in loops_of(before.body)}
    for loop in loops_of(after.body):
        old_loop = old.get(loop.var.name)
        if old_loop is loop or loop.kind not in ("parallel", "bound", "vectorized"):
            continue
        clashes = _clashes(after, loop)
        if clashes and (old_loop is None or not _clashes(before, old_loop)):
            raise refusal(step, f"{loop.var.name!r} is {loop.kind}, and {clashes[0]}", span)
    return after


def _clashes(func: Func, loop: For) -> tuple[Conflict, ...]:
    """Return why the iterations of *loop* may not run at once; uses permissions for atomics."""
    if reduces_over_threads(loop) or (loop.kind == "vectorized" and is_dot(*innermost(loop))):
        return ()
    atomic = loop.kind != "vectorized"
    return conflicts(loop, atomic=atomic, ascending=ascending_axes(func))
