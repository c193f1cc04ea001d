"""Before the route: ``tvm.tir``: Schedules that change in place, and the transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any, Self

from spcomp.errors import ArgumentError
from spcomp.errors import ScheduleError as ScheduleError
from spcomp.ir.analysis.exprs import variables
from spcomp.ir.arith.indexmap import IndexMap as IndexMap
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import Var
from spcomp.ir.func import Func as PrimFunc
from spcomp.ir.position import Block
from spcomp.ir.stmt import For, Store
from spcomp.ir.visitor import statements
from spcomp.schedule import schedule as pure
from spcomp.schedule.nests.sites import touched
from spcomp.schedule.step import Trace
from spcomp.schedule.steps.loops.annotate import find_target
from spcomp.schedule.steps.tensor.intrinsics import register_intrinsic
from spcomp.sparsetir import transform as transform
from spcomp.sparsetir.module import IRModule, as_module
from spcomp.sparsetir.numbers import read_buffers

__all__ = ["IndexMap", "PrimFunc", "Schedule", "ScheduleError", "TensorIntrin", "transform"]


class TensorIntrin:
    """What ``tensorize`` puts in the place of a nest; see :func:`spcomp.register_intrinsic`."""

    register = staticmethod(register_intrinsic)


class IterName(str):
    """The name of a variable of a sparse iteration."""

    __slots__ = ("var",)
    var: Var

    def __new__(cls, var: Var) -> Self:
        made = super().__new__(cls, var.name)
        made.var = var
        return made

    def same_as(self, other: object) -> bool:
        """Whether *other* is this very variable."""
        return self.var is getattr(other, "var", other)


class Schedule:
    """A Schedule as TVM has it: each step changes it, and returns the names of what it made.

    Every method of :class:`spcomp.Schedule` can be called. One that returns a Schedule there
    changes this one, and returns a list of names (``split``), a name where the step made one
    thing, or None. Loops, blocks and iterations are names; :meth:`get` has what they stand for.
    *debug_mask* says how TVM checks its own tables after a step, of which there are none here.
    """

    def __init__(self, mod: IRModule | PrimFunc, *, debug_mask: str | int = "none") -> None:
        del debug_mask
        self._mod = as_module(mod).map(lambda schedule: schedule)
        self._name = "main" if "main" in self._mod else next(iter(self._mod), "main")
        self._updates: set[str] = set()  # blocks whose init stands apart
        if self._name not in self._mod:
            raise ArgumentError("argument mod: it has no function")

    def work_on(self, name: str) -> None:
        """Take *name* as the function that steps are for; raises ArgumentError."""
        if name not in self._mod:
            raise ArgumentError(f"no function {name!r}", hint=f"there are {', '.join(self._mod)}")
        self._name = name

    def get(self, name: str) -> SpIter | Block | For:
        """Return the iteration, block or loop that is called *name*, as it is now."""
        return find_target(self._now.func, name, f"get({name!r})", None)

    def get_sp_iters(self, iteration: str) -> list[IterName]:
        """Return the names of the variables of *iteration*, in its order."""
        self._now.get_sparse_iteration(iteration)
        found = self.get(iteration)
        assert isinstance(found, SpIter)
        return [IterName(var) for var in found.vars]

    @property
    def mod(self) -> IRModule:
        """The module as it is now."""
        return self._mod.map(lambda schedule: schedule)

    def show(self) -> None:
        """Write the function to stdout."""
        self._now.func.show()

    @property
    def trace(self) -> Trace:
        """The steps that were taken, of all functions."""
        return reduce(Trace.then, (s.trace for s in self._mod.schedules.values()))

    @property
    def _now(self) -> pure.Schedule:
        return self._mod.schedules[self._name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._now, name)
        return self._stepping(name, found) if callable(found) else _listed(found)

    def _stepping(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            made = method(*self._counted(name, [*map(_plain, args)]), **options)
            if not isinstance(made, pure.Schedule):
                return _listed(made)
            began = {block.name for block in self._blocks() if block.init is not None}
            self._mod.schedules[self._name] = made
            self._updates |= {b.name for b in self._blocks() if b.name in began and b.init is None}
            names = list(made.made)
            if name in ("cache_write", "reverse_cache_write"):
                return names[-1]  # the block that writes back, behind one that may load
            return names if name == "split" else names[0] if len(names) == 1 else names or None

        step.__name__, step.__doc__ = name, method.__doc__
        return step

    def rfactor(self, loop: str, factor_axis: int = 0) -> str:
        """Give each iteration of *loop* a partial result; return the block that makes them.

        See :meth:`spcomp.Schedule.rfactor`, with two whole nests. Partial results have an axis for
        each loop that picks elements; a fused one counts as several in SparseTIR, so that a
        *factor_axis* may lie behind the last.
        """
        picks: set[str] = set()
        for block in self._blocks():
            around = {*self._now.get_loops(block.name)}
            if loop in around:
                spatial = (own.value for own in block.iters if own.kind == "S")
                picks = around & {var.name for value in spatial for var in variables(value)}
                break
        step = self._stepping("rfactor", self._now.rfactor)
        made: str = step(loop, min(factor_axis, len(picks)), "global", True)
        return made

    def decompose_reduction(self, block: str, loop: str) -> str:
        """Give the init of *block* a nest before *loop*, and return its block.

        See :meth:`spcomp.Schedule.decompose_reduction`. What is updated counts as read then, first.
        """
        step = self._stepping("decompose_reduction", self._now.decompose_reduction)
        made: str = step(block, loop)
        return made

    def blockize(self, loop: str, preserve_unit_iters: bool = True) -> str:  # noqa: FBT001, FBT002
        """Make a block of what *loop* holds, and return it; see :meth:`spcomp.Schedule.blockize`.

        Iters of length 1 are kept in any case.
        """
        del preserve_unit_iters
        made = self._stepping("blockize", self._now.blockize)(loop)
        first: str = made if isinstance(made, str) else made[0]  # behind it, one of its init
        return first

    def cache_read(self, block: str, read_buffer_index: int, storage_scope: str) -> str:
        """Give what *block* reads a copy; return the block that makes it.

        See :meth:`spcomp.Schedule.cache_read`. As TVM has it, there is a loop for each axis of the
        buffer, of length 1 where the block reads one place.
        """
        step = self._stepping("cache_read", self._now.cache_read)
        made: str = step(block, read_buffer_index, storage_scope)
        (copy,) = (n for n in self._blocks() if n.name == made)
        now, anchor = self._now, made
        own = {x.var: x.value.name for x in copy.iters if isinstance(x.value, Var)}
        indices = copy.body.indices if isinstance(copy.body, Store) else ()
        for index in reversed([index for index in indices if index is not None]):
            if isinstance(index, Var) and index in own:
                anchor = own[index]
            else:
                now = now.add_unit_loop(anchor)
                anchor = now.made[0]
        self._mod.schedules[self._name] = now
        return made

    def cache_write(
        self, block: str, write_buffer_index: int = 0, storage_scope: str = "local"
    ) -> str:
        """Give what *block* writes a copy; return the block that writes back.

        See :meth:`spcomp.Schedule.cache_write`. Where the block goes on with what another began,
        as each part of a decomposition does, the copy begins anew and is added, which may be
        ``atomic``: :meth:`spcomp.Schedule.reverse_cache_write`.
        """
        begins = any(n.init is not None for n in self._blocks() if n.name == block)
        name = "cache_write" if begins else "reverse_cache_write"
        step = self._stepping(name, getattr(self._now, name))
        made: str = step(block, write_buffer_index, storage_scope)
        return made

    def bind(self, loop: str, thread: str) -> None:
        """Give *loop* to an index of the grid; see :meth:`spcomp.Schedule.bind`.

        Threads that reduce into one element share its updates, as those of TVM's cross-thread
        reductions do: the init gets a nest of its own, and the block is marked ``atomic``.
        """
        now = self._now
        for block in self._blocks():
            reduced = {v.name for x in block.iters if x.kind == "R" for v in variables(x.value)}
            if loop in reduced and thread.startswith("threadIdx"):
                if block.init is not None:
                    first = next(x for x in now.get_loops(block.name) if x in reduced)
                    now = now.decompose_reduction(block.name, first)
                now = now.annotate(block.name, "atomic", True)
        self._mod.schedules[self._name] = now.bind(loop, thread)

    def reverse_compute_at(
        self,
        block: str,
        loop: str,
        preserve_unit_loops: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        """Move *block* into *loop*; see :meth:`spcomp.Schedule.reverse_compute_at`.

        With *preserve_unit_loops*, there is a loop for each axis that the block writes along, as
        TVM has: those of reductions first, and one of length 1 for each axis above a fused one.
        """
        now = self._now.reverse_compute_at(block, loop, preserve_unit_loops)
        around = now.get_loops(block)
        self._mod.schedules[self._name] = now
        if preserve_unit_loops and loop in around:
            self._unfused(block, around[around.index(loop) + 1 :])

    def _unfused(self, name: str, own: tuple[str, ...]) -> None:
        """Put the loops *own* of a block in TVM's order, and those around that SparseTIR has."""
        (block,) = (n for n in self._blocks() if n.name == name)
        kinds = {v.name: x.kind for x in block.iters for v in variables(x.value) if v.name in own}
        order = sorted(own, key=lambda loop: kinds.get(loop) != "R")
        now = self._now if order == [*own] else self._now.reorder(*order)
        spatial = [loop for loop in order if kinds.get(loop) == "S"]
        above = sum(begin is None for region in block.writes for begin in region.begins)
        for _ in range(above if spatial else 0):
            now = now.add_unit_loop(spatial[0])
        self._mod.schedules[self._name] = now

    def _blocks(self) -> Iterator[Block]:
        return (n for n in statements(self._now.func.body) if isinstance(n, Block))

    def _counted(self, name: str, args: list[Any]) -> list[Any]:
        """Return the arguments of a step with what a block reads numbered as spcomp does.

        What is to be hidden may be no region here: copies have none.
        """
        numbered = {"cache_read": 1, "reverse_cache_read": 1, "hide_buffer_access": 2}.get(name, 0)
        if not numbered or len(args) <= numbered or args[1] == "write":
            return args
        block = next((n for n in self._blocks() if n.name == args[0]), None)
        if block is None:
            return args
        order, which = read_buffers(block, self._updates), args[numbered]
        if isinstance(which, tuple):
            hidden = {order[k] for k in which if isinstance(k, int) and 0 <= k < len(order)}
            regions = enumerate(region.buffer for region in block.reads)
            args[numbered] = tuple(k for k, buffer in regions if buffer in hidden)
        elif isinstance(which, int) and 0 <= which < len(order):
            args[numbered] = touched(block, writes=False).index(order[which])
        return args


def _listed(value: Any) -> Any:
    """Return names as a list, as they come in TVM."""
    return list(value) if isinstance(value, tuple) else value


def _plain(value: Any) -> Any:
    """Return an argument as steps have it: they are values, and lists are not."""
    return tuple(value) if isinstance(value, list) else value
