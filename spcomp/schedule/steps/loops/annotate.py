"""At all levels: the steps annotate and unannotate, for blocks, loops and iterations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar, TypeAlias

from spcomp.ir.analysis.reduction import as_reduction
from spcomp.ir.coordinate import SpIter
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import MOST_TRIPS, For, Store
from spcomp.ir.visitor import statements, walk
from spcomp.schedule.legality.dependence import conflicts, is_atomic, loops_of
from spcomp.schedule.legality.order import ascending_axes
from spcomp.schedule.nests.nests import replace_stmt
from spcomp.schedule.steps.base import Step, find_named, names_hint

Value: TypeAlias = int | float | str | bool
Target: TypeAlias = Block | For | SpIter
PRAGMAS = ("pragma_unroll_explicit", MOST_TRIPS)


@dataclass(frozen=True, slots=True)
class Annotate(Step):
    """``block s  ->  block s {key: value}``, the same for a loop or a sparse iteration.

    Keys with a meaning: ``atomic`` (a block): iterations around it may update one element, in any
    order, so that loops over them may be parallel or bound; a CPU runs a loop that needs this
    serially, for the same bits at any number of threads. ``pragma_auto_unroll_max_step`` (an
    unrolled loop): trips that a GPU has on their way at once. ``grain`` (a loop): iterations that a
    thread takes at once. Other keys are kept, but have no effect. Source: TVM's annotate.
    """

    name: ClassVar[str] = "annotate"
    target: str
    key: str
    value: Value

    def fits(self, func: Func) -> bool:
        """Whether *func* has what the note is for: every level has something of the kind."""
        return any(name == self.target for name, _ in targets(func))

    def plan(self, func: Func) -> Func:
        """Return *func* with the annotation; only that shows whether loops lose a permission."""
        node = find_target(func, self.target, self)
        if (why := self._refusal(node)) is not None:
            raise self.error(why, node)
        attrs = dict(node.attrs) | {self.key: self.value}
        new = replace_stmt(func, node, node.replace(attrs=tuple(attrs.items())))
        check_permissions(self, node, func, new)
        return new

    def _refusal(self, node: Target) -> str | None:
        """Return what is wrong with the annotation; None if nothing is."""
        value = self.value
        if not isinstance(self.key, str) or not self.key:
            return "a key is a string"
        if not isinstance(value, (int, float, str)) or not isfinite(_number(value)):
            return "a value is a finite number, a string or a bool"
        if self.key == "atomic":
            return _permission_problem(node, value)
        if self.key in PRAGMAS and not (isinstance(node, For) and _at_least(value, 0)):
            return f"{self.key} is an integer from 0 for a loop"
        if self.key == "grain" and not (isinstance(node, For) and _at_least(value, 1)):
            return "grain is an integer from 1 for a loop"
        return None


@dataclass(frozen=True, slots=True)
class Unannotate(Step):
    """``block s {key: value}  ->  block s``, the same for a loop or a sparse iteration.

    Legal where the key exists, and no loop needs what it permits. Source: TVM's unannotate.
    """

    name: ClassVar[str] = "unannotate"
    target: str
    key: str

    def fits(self, func: Func) -> bool:
        """Whether *func* has what the note is for: every level has something of the kind."""
        return any(name == self.target for name, _ in targets(func))

    def plan(self, func: Func) -> Func:
        """Return *func* without the annotation; only that shows whether loops need it."""
        node = find_target(func, self.target, self)
        attrs = dict(node.attrs)
        if self.key not in attrs:
            hint = names_hint(attrs, "its annotations")
            raise self.error(f"{self.target!r} has no such annotation", node, hint)
        del attrs[self.key]
        new = replace_stmt(func, node, node.replace(attrs=tuple(attrs.items())))
        check_permissions(self, node, func, new)
        return new


def targets(func: Func) -> Iterator[tuple[str, Target]]:
    """Yield the blocks, loops and iterations, which can have annotations, with their names."""
    for node in statements(func.body):
        match node:
            case Block() | SpIter():
                yield node.name, node
            case For():
                yield node.var.name, node


def find_target(func: Func, name: str, step: object) -> Target:
    """Return the block, loop or iteration called *name*; raises ScheduleError unless one is."""
    none = f"{step}: nothing is called {name!r} in {func.name}"
    return find_named(targets(func), name, none, "blocks, loops and iterations")


def check_permissions(step: Step, node: Target, old: Func, new: Func) -> None:
    """Raise if a parallel or bound loop of *new* needs a permission that the block *node* lost."""
    if not isinstance(node, Block) or not is_atomic(node) or old is new:
        return
    for loop in loops_of(new.body):
        if loop.kind in ("parallel", "bound") and (clashes := conflicts(loop, atomic=True)):
            why = f"loop {loop.var.name!r} is {loop.kind} by this permission: {clashes[0]}"
            raise step.error(why, node)


def note_permission(func: Func, loop: For) -> For:
    """Return *loop* of *func*, annotated as ``atomic`` if it needs the permission of a block.

    The annotation stays with the loop, whatever later steps do to the block.
    """
    attrs = tuple(pair for pair in loop.attrs if pair[0] != "atomic")
    if conflicts(loop, ascending=ascending_axes(func)):
        attrs = (*attrs, ("atomic", True))
    return loop.replace(attrs=attrs)


def permission_hint(func: Func, loop: For) -> str:
    """Return how *loop* of *func* may be bound nevertheless: by permissions, if they are enough."""
    blocks = [b for b in statements(loop.body) if isinstance(b, Block) and _may_permit(b)]
    permitted = _Permitting().rewrite(loop)
    if not blocks or conflicts(permitted, atomic=True, ascending=ascending_axes(func)):
        return ""
    steps = ", ".join(f"annotate({block.name!r}, 'atomic', True)" for block in blocks)
    return (
        f"if the order of updates does not matter, {steps} permits to share them: in a script of"
        ' the position stage, T.block_attr({"atomic": True}) in the block'
    )


class _Permitting(Rewriter):
    """Makes all blocks that may permit shared updates do so."""

    def visit_Block(self, block: Block) -> Node:
        new = self.visit_Node(block)
        assert isinstance(new, Block)
        return new.replace(attrs=(*new.attrs, ("atomic", True))) if _may_permit(block) else new


def _may_permit(block: Block) -> bool:
    """Whether *block*, without blocks inside, updates elements and has no permission yet."""
    inner = any(isinstance(n, Block) for n in statements(block.body))
    return not (inner or is_atomic(block) or _permission_problem(block, value=True))


def _permission_problem(node: Target, value: Value) -> str | None:
    if not isinstance(node, Block) or not isinstance(value, bool):
        return "atomic is True or False for a block"
    if not any(isinstance(n, Store) and as_reduction(n) for n in walk(node.body)):
        return "the block updates no element"
    return None


def _at_least(value: Value, least: int) -> bool:
    return isinstance(value, int) and value >= least


def _number(value: Value) -> float:
    return 0.0 if isinstance(value, str) else value
