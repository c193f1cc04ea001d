"""At all levels: the steps annotate and unannotate, for blocks, loops and iterations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar, TypeAlias

from spcomp.ir.coordinate import SpIter
from spcomp.ir.func import Func
from spcomp.ir.position import Block
from spcomp.ir.stmt import MOST_TRIPS, For
from spcomp.ir.visitor import statements
from spcomp.schedule.legality.dependence import conflicts, is_atomic, loops_of
from spcomp.schedule.nests.claims import updates_elements
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


def _permission_problem(node: Target, value: Value) -> str | None:
    if not isinstance(node, Block) or not isinstance(value, bool):
        return "atomic is True or False for a block"
    return None if updates_elements(node) else "the block updates no element"


def _at_least(value: Value, least: int) -> bool:
    return isinstance(value, int) and value >= least


def _number(value: Value) -> float:
    return 0.0 if isinstance(value, str) else value
