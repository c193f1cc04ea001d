"""Steps of all stages that write notes on blocks, loops and iterations: annotate, unannotate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar, TypeAlias

from spcomp.errors import ScheduleError, Span
from spcomp.ir.analysis.reduction import as_reduction
from spcomp.ir.coordinate import SpIter
from spcomp.ir.func import Func
from spcomp.ir.position import Block
from spcomp.ir.stmt import For, Store
from spcomp.ir.visitor import statements, walk
from spcomp.schedule.legality.dependence import ascending_axes, conflicts, is_atomic, loops_of
from spcomp.schedule.nests.nests import replaced
from spcomp.schedule.steps.base import Step, known, the_one

Value: TypeAlias = int | float | str | bool
Target: TypeAlias = Block | For | SpIter
PRAGMAS = ("pragma_unroll_explicit", "pragma_auto_unroll_max_step")


@dataclass(frozen=True, slots=True)
class Annotate(Step):
    """``block s  ->  block s {key: value}``, the same for a loop or a sparse iteration.

    Keys with a meaning: ``atomic`` (a block): iterations around it may update one element, in any
    order, so that loops over them may be parallel or bound; a CPU runs a loop that needs this
    serially, for the same bits at any number of threads. ``pragma_unroll_explicit`` and
    ``pragma_auto_unroll_max_step`` (a loop): how a GPU unrolls. ``grain`` (a loop): iterations
    that a thread takes at once. Others are kept, and ignored. Source: TVM's annotate.
    """

    name: ClassVar[str] = "annotate"
    target: str
    key: str
    value: Value

    def fits(self, func: Func) -> bool:
        """Whether *func* has what the note is for: every level has something of the kind."""
        return any(name == self.target for name, _ in targets(func))

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the note; it replaces one of the same key."""
        node = find_target(func, self.target, self, span)
        if (why := self._refusal(node)) is not None:
            raise ScheduleError(f"{self}: {why}", span or node.span)
        attrs = dict(node.attrs) | {self.key: self.value}
        new = replaced(func, node, node.replace(attrs=tuple(attrs.items())))
        check_permissions(self, node, func, new, span)
        return new

    def _refusal(self, node: Target) -> str | None:
        """Say what is wrong with the note, None if nothing."""
        value = self.value
        if not isinstance(self.key, str) or not self.key:
            return "a key is a string"
        if not isinstance(value, (int, float, str)) or not isfinite(_number(value)):
            return "a value is a finite number, a string or a bool"
        if self.key == "atomic":
            return _no_permission(node, value)
        if self.key in PRAGMAS and not (isinstance(node, For) and _at_least(value, 0)):
            return f"{self.key} is an integer from 0 for a loop"
        if self.key == "grain" and not (isinstance(node, For) and _at_least(value, 1)):
            return "grain is an integer from 1 for a loop"
        return None


@dataclass(frozen=True, slots=True)
class Unannotate(Step):
    """``block s {key: value}  ->  block s``, the same for a loop or a sparse iteration.

    Legal where the key is there, and no loop needs what it permits. Source: TVM's unannotate.
    """

    name: ClassVar[str] = "unannotate"
    target: str
    key: str

    def fits(self, func: Func) -> bool:
        """Whether *func* has what the note is for: every level has something of the kind."""
        return any(name == self.target for name, _ in targets(func))

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* without the note."""
        node = find_target(func, self.target, self, span)
        attrs = dict(node.attrs)
        if self.key not in attrs:
            raise ScheduleError(
                f"{self}: {self.target!r} has no such annotation",
                span or node.span,
                hint=known(attrs, "its annotations"),
            )
        del attrs[self.key]
        new = replaced(func, node, node.replace(attrs=tuple(attrs.items())))
        check_permissions(self, node, func, new, span)
        return new


def targets(func: Func) -> Iterator[tuple[str, Target]]:
    """Yield what a note can be written on, with its name."""
    for node in statements(func.body):
        match node:
            case Block() | SpIter():
                yield node.name, node
            case For():
                yield node.var.name, node


def find_target(func: Func, name: str, step: object, span: Span | None) -> Target:
    """Return the block, loop or iteration called *name*; raises ScheduleError if it is not one."""
    none = f"{step}: nothing is called {name!r} in {func.name}"
    return the_one(targets(func), name, none, "blocks, loops and iterations", span)


def check_permissions(step: Step, node: Target, old: Func, new: Func, span: Span | None) -> None:
    """Raise if a parallel or bound loop of *new* needs a permission that the block *node* lost."""
    if not isinstance(node, Block) or not is_atomic(node) or old is new:
        return
    for loop in loops_of(new.body):
        if loop.kind in ("parallel", "bound") and (found := conflicts(loop, atomic=True)):
            raise ScheduleError(
                f"{step}: loop {loop.var.name!r} is {loop.kind} by this permission: {found[0]}",
                span or node.span,
            )


def sharing(func: Func, loop: For) -> For:
    """Return *loop* of *func* with a note that it needs the permission of a block, if it does.

    The note stays with the loop whatever later steps make of the block.
    """
    attrs = tuple(pair for pair in loop.attrs if pair[0] != "atomic")
    if conflicts(loop, ascending=ascending_axes(func)):
        attrs = (*attrs, ("atomic", True))
    return loop.replace(attrs=attrs)


def _no_permission(node: Target, value: Value) -> str | None:
    if not isinstance(node, Block) or not isinstance(value, bool):
        return "atomic is True or False for a block"
    if not any(isinstance(n, Store) and as_reduction(n) for n in walk(node.body)):
        return "the block updates no element"
    return None


def _at_least(value: Value, least: int) -> bool:
    return isinstance(value, int) and value >= least


def _number(value: Value) -> float:
    return 0.0 if isinstance(value, str) else value
