"""Before the route: ``tvm.tir``, with Schedules that change in place, and the transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any, Self

from spcomp.errors import ArgumentError
from spcomp.errors import ScheduleError as ScheduleError
from spcomp.ir.analysis.exprs import variables
from spcomp.ir.arith.indexmap import IndexMap as IndexMap
from spcomp.ir.axis import SparseBuffer
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import Var
from spcomp.ir.func import Func as PrimFunc
from spcomp.ir.position import Block
from spcomp.ir.stmt import For, Store
from spcomp.ir.visitor import statements
from spcomp.schedule import schedule as pure
from spcomp.schedule.nests.sites import site_of, touched_buffers
from spcomp.schedule.step import Trace
from spcomp.schedule.steps.blocks.compact import Compact
from spcomp.schedule.steps.loops.annotate import find_target
from spcomp.sparsetir import transform as transform
from spcomp.sparsetir.module import IRModule, as_module
from spcomp.sparsetir.numbers import iters_of, read_buffers
from spcomp.sparsetir.warps import register

__all__ = ["IndexMap", "PrimFunc", "Schedule", "ScheduleError", "TensorIntrin", "transform"]


class TensorIntrin:
    """The replacement of a nest by ``tensorize``; see :func:`spcomp.register_intrinsic`."""

    register = staticmethod(register)


class IterName(str):
    """The name of a variable of a sparse iteration."""

    __slots__ = ("var",)
    var: Var

    def __new__(cls, var: Var) -> Self:
        name = super().__new__(cls, var.name)
        name.var = var
        return name

    def same_as(self, other: object) -> bool:
        """Whether *other* is this very variable."""
        return self.var is getattr(other, "var", other)


class Schedule:
    """A Schedule as in TVM: each step changes it and returns the names of new loops and blocks.

    It has every method of :class:`spcomp.Schedule`. One that returns a Schedule there changes this
    one, and returns a list of names (``split``), a name if the step made one thing, or None. Loops,
    blocks and iterations are names; :meth:`get` returns their nodes. *debug_mask*, which says how
    TVM checks its own tables after a step, has no effect.
    """

    def __init__(self, mod: IRModule | PrimFunc, *, debug_mask: str | int = "none") -> None:
        del debug_mask
        self._mod = as_module(mod).map(lambda schedule: schedule)
        self._name = "main" if "main" in self._mod else next(iter(self._mod), "main")
        self._updates: set[str] = set()  # blocks whose init is a separate block
        self._sums: set[str] = set()  # blocks that add up partial results of rfactor
        self._first = dict(self._mod.schedules)
        if self._name not in self._mod:
            raise ArgumentError("argument mod: it has no function")

    def work_on(self, name: str) -> None:
        """Apply the next steps to the function *name*; raises ArgumentError if there is none."""
        if name not in self._mod:
            raise ArgumentError(f"no function {name!r}", hint=f"there are {', '.join(self._mod)}")
        self._name = name

    def set_block_filter(self, name: str) -> None:
        """Do nothing: in SparseTIR only blocks annotated with *name* then read copies.

        Here a copy is read by the block that it is made for, and by no other.
        """

    def unset_block_filter(self) -> None:
        """Do nothing; see :meth:`set_block_filter`."""

    def get(self, name: str) -> SpIter | Block | For:
        """Return the current iteration, block or loop with the name *name*."""
        return find_target(self._current.func, name, f"get({name!r})")

    def get_sp_iters(self, iteration: str) -> list[IterName]:
        """Return the names of the variables of *iteration*, in order."""
        self._current.get_sparse_iteration(iteration)
        node = self.get(iteration)
        assert isinstance(node, SpIter)
        return [IterName(var) for var in node.vars]

    @property
    def mod(self) -> IRModule:
        """The module as it is now."""
        return self._mod.map(lambda schedule: schedule)

    def show(self) -> None:
        """Write the function to stdout."""
        self._current.func.show()

    @property
    def trace(self) -> Trace:
        """The steps so far, of all functions."""
        return reduce(Trace.then, (s.trace for s in self._mod.schedules.values()))

    @property
    def _current(self) -> pure.Schedule:
        return self._mod.schedules[self._name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        attribute = getattr(self._current, name)
        return self._step_method(name, attribute) if callable(attribute) else _as_list(attribute)

    def _step_method(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            now = getattr(self._current, name)  # arguments may have changed the schedule
            result = now(*self._with_buffer_numbers(name, [*map(_as_tuple, args)]), **options)
            if not isinstance(result, pure.Schedule):
                return _as_list(result)
            began = {block.name for block in self._blocks() if block.init is not None}
            self._mod.schedules[self._name] = result
            self._updates |= {b.name for b in self._blocks() if b.name in began and b.init is None}
            names = list(result.made)
            if name in ("cache_write", "reverse_cache_write"):
                return names[-1]  # the block that writes back, after one that may load
            return names if name == "split" else names[0] if len(names) == 1 else names or None

        step.__name__, step.__doc__ = name, method.__doc__
        return step

    def rfactor(self, loop: str, factor_axis: int = 0) -> str:
        """Give each iteration of *loop* a partial result; return the block that computes them.

        See :meth:`spcomp.Schedule.rfactor`, with two complete nests. Partial results have an axis
        for each loop that chooses elements. A fused loop counts as several in SparseTIR, so
        *factor_axis* may be beyond the last axis.
        """
        picks: set[str] = set()
        for block in self._blocks():
            around = {*self._current.get_loops(block.name)}
            if loop in around:
                spatial = (iter_.value for iter_ in block.iters if iter_.kind == "S")
                picks = around & {var.name for value in spatial for var in variables(value)}
                self._sums.add(block.name)
                break
        step = self._step_method("rfactor", self._current.rfactor)
        partial: str = step(loop, min(factor_axis, len(picks)), "global", True)
        return partial

    def decompose_reduction(self, block: str, loop: str) -> str:
        """Move the init of *block* into a nest before *loop*, and return its block.

        See :meth:`spcomp.Schedule.decompose_reduction`. From then on, the buffer that is updated
        counts as the first that the block reads.
        """
        step = self._step_method("decompose_reduction", self._current.decompose_reduction)
        init: str = step(block, loop)
        return init

    def blockize(self, loop: str, preserve_unit_iters: bool = True) -> str:  # noqa: FBT001, FBT002
        """Make a block of *loop* and its body, and return it; see :meth:`spcomp.Schedule.blockize`.

        Block iterators of length 1 are always kept.
        """
        del preserve_unit_iters
        names = self._step_method("blockize", self._current.blockize)(loop)
        first: str = names if isinstance(names, str) else names[0]  # one for its init may follow
        return first

    def cache_read(self, block: str, read_buffer_index: int, storage_scope: str) -> str:
        """Copy a buffer that *block* reads; return the block that copies.

        See :meth:`spcomp.Schedule.cache_read`. As in TVM, there is a loop for each axis of the
        buffer, of length 1 where the block reads one place.
        """
        step = self._step_method("cache_read", self._current.cache_read)
        name: str = step(block, read_buffer_index, storage_scope)
        (copy,) = (n for n in self._blocks() if n.name == name)
        now, anchor = self._current, name
        loops = {x.var: x.value.name for x in copy.iters if isinstance(x.value, Var)}
        indices = copy.body.indices if isinstance(copy.body, Store) else ()
        for index in reversed([index for index in indices if index is not None]):
            if isinstance(index, Var) and index in loops:
                anchor = loops[index]
            else:
                now = now.add_unit_loop(anchor)
                anchor = now.made[0]
        self._mod.schedules[self._name] = now
        return name

    def cache_write(
        self, block: str, write_buffer_index: int = 0, storage_scope: str = "local"
    ) -> str:
        """Let *block* write a copy; return the block that writes back.

        See :meth:`spcomp.Schedule.cache_write`. A block without an init, such as a part of a
        decomposition, accumulates into a new copy that is then added, which may be ``atomic``: see
        :meth:`spcomp.Schedule.reverse_cache_write`.
        """
        begins = any(n.init is not None for n in self._blocks() if n.name == block)
        name = "cache_write" if begins else "reverse_cache_write"
        try:
            step = self._step_method(name, getattr(self._current, name))
            copy: str = step(block, write_buffer_index, storage_scope)
        except ScheduleError:
            earlier = self._write_before_copies(block, write_buffer_index, storage_scope)
            if earlier is None:
                raise
            copy, self._mod.schedules[self._name] = earlier
        return copy

    def _write_before_copies(
        self, block: str, index: int, scope: str
    ) -> tuple[str, pure.Schedule] | None:
        """Return the copy of what *block* writes and the schedule, made before copies it reads.

        TVM takes the two in any order; here copies that stand in a nest hide the start of a
        reduction. The steps since the first schedule are taken again after the copy.
        """
        first = self._first[self._name]
        steps = self._current.trace.steps[len(first.trace.steps) :]
        copying = ("cache_read", "reverse_cache_read", "compute_at", "add_unit_loop", "compact")
        count = next((k for k, s in enumerate(reversed(steps)) if s[1].name not in copying), 0)
        if not count:
            return None
        before = first.replay(Trace(steps[:-count])).cache_write(block, index, scope)
        return before.made[-1], before.replay(Trace(steps[-count:]))

    def bind(self, loop: str, thread: str) -> None:
        """Bind *loop* to an index of the grid; see :meth:`spcomp.Schedule.bind`.

        Threads may reduce into one element, as in TVM's cross-thread reductions: the init then gets
        a nest of its own, and the block is marked ``atomic``. So is one that only adds, by blocks.
        """
        now = self._current
        for block in self._blocks():
            reduced = {v.name for x in block.iters if x.kind == "R" for v in variables(x.value)}
            adds = block.init is None and thread.startswith("blockIdx")
            if loop in reduced and (adds or thread.startswith("threadIdx")):
                if block.init is not None:
                    first = next(x for x in now.get_loops(block.name) if x in reduced)
                    now = now.decompose_reduction(block.name, first)
                now = now.annotate(block.name, "atomic", True)
        self._mod.schedules[self._name] = now.bind(loop, thread)

    def compute_at(
        self,
        block: str,
        loop: str,
        preserve_unit_loops: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        """Move *block* into *loop*; see :meth:`spcomp.Schedule.compute_at`.

        As in TVM, what it fills there is as small as *loop* allows, also below sparse axes, and
        there is a loop for each axis that it fills. A copy may be made in *loop* to begin with.
        """
        around = self._current.get_loops(block)
        outside = loop in around
        self._one_per_axis(block, around[around.index(loop) + 1 if outside else 0 :])
        now = self._current
        if not outside:
            now = now.compute_at(block, loop, preserve_unit_loops)
        (copy,) = (n for n in statements(now.func.body) if isinstance(n, Block) and n.name == block)
        filled = copy.body.buffer if isinstance(copy.body, Store) else None
        if isinstance(filled, SparseBuffer) and filled.data is None:
            compacted = Compact(filled.name, loop)
            if compacted.is_legal(now.func):
                now = now.apply(compacted)
        self._mod.schedules[self._name] = now

    def reverse_compute_at(
        self,
        block: str,
        loop: str,
        preserve_unit_loops: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        """Move *block* into *loop*; see :meth:`spcomp.Schedule.reverse_compute_at`.

        With *preserve_unit_loops*, there is a loop for each axis that the block writes along, as in
        TVM: in the order of the axes of the block, that of an rfactor first, and one of length 1
        for each axis above a fused one. What a loop only adds to is written back behind it, not in
        each of its iterations.
        """
        loop = self._around_reduction(block, loop)
        now = self._current
        if loop not in now.get_loops(block):
            now = now.reverse_compute_at(block, loop, preserve_unit_loops)
        around = now.get_loops(block)
        self._mod.schedules[self._name] = now
        if loop not in around:
            return
        loops = self._one_per_axis(block, around[around.index(loop) + 1 :])
        if preserve_unit_loops:
            self._order_loops(block, loops)

    def _around_reduction(self, name: str, loop: str) -> str:
        """Return *loop*, or the loop around it in which what block *name* reads is whole."""
        (block,) = (n for n in self._blocks() if n.name == name)
        reads = touched_buffers(block, writes=False)
        for other in self._blocks():
            loops = self._current.get_loops(other.name)
            drivers = [x.value for x in other.iters if x.kind == "R"]
            reduced = {var.name for value in drivers for var in variables(value)}
            if loop in reduced & {*loops} and {*touched_buffers(other, writes=True)} & {*reads}:
                outer = [x for x in loops[: loops.index(loop)] if x not in reduced]
                return outer[-1] if outer and outer[-1] == loops[len(outer) - 1] else loop
        return loop

    def _order_loops(self, name: str, loops: tuple[str, ...]) -> None:
        """Put the *loops* of a block into TVM's order, and add SparseTIR's unit loops around."""
        (block,) = (n for n in self._blocks() if n.name == name)
        kinds = {v.name: x.kind for x in block.iters for v in variables(x.value) if v.name in loops}
        rank = {v.name: k for k, x in enumerate(block.iters) for v in variables(x.value)}
        if name in self._sums:
            rank |= {loop: -1 for loop in loops if kinds.get(loop) == "R"}
        order = sorted(loops, key=lambda loop: rank.get(loop, -1))
        now = self._current if order == [*loops] else self._current.reorder(*order)
        spatial = [loop for loop in order if kinds.get(loop) == "S"]
        above = sum(begin is None for region in block.writes for begin in region.begins)
        for _ in range(above if spatial else 0):
            now = now.add_unit_loop(spatial[0])
        self._mod.schedules[self._name] = now

    def _one_per_axis(self, name: str, loops: tuple[str, ...]) -> tuple[str, ...]:
        """Fuse those of *loops* that together run along an axis of a block; return all."""
        site = site_of(self._current.func, name, ())
        own = {loop.var.name for loop in site.loops}
        block, loops = site.block, tuple(loop for loop in loops if loop in own)
        names = [{v.name for v in variables(item.value)} for item in block.iters]
        used = [[loop for loop in loops if loop in own] for own in names]
        digits = [loop for group in used for loop in group]
        if all(len(group) < 2 for group in used) or len({*digits}) < len(digits):
            return loops
        rest = [loop for loop in loops if loop not in digits]
        now = self._current.reorder(*rest, *digits)
        result = list(rest)
        for group in used:
            if len(group) > 1:
                now = now.fuse(*group)
                result += now.made
            else:
                result += group
        self._mod.schedules[self._name] = now
        return tuple(result)

    def _blocks(self) -> Iterator[Block]:
        return (n for n in statements(self._current.func.body) if isinstance(n, Block))

    def _with_buffer_numbers(self, name: str, args: list[Any]) -> list[Any]:
        """Return the arguments of a step with TVM's numbers of read buffers changed to spcomp's.

        A buffer to be hidden may have no region here, as copies have none.
        """
        numbered = {"cache_read": 1, "reverse_cache_read": 1, "hide_buffer_access": 2}.get(name, 0)
        if not numbered or len(args) <= numbered or args[1] == "write":
            return args
        block = next((n for n in self._blocks() if n.name == args[0]), None)
        if block is None:
            return args
        blocks = list(self._blocks())
        args[3:] = [iters_of(block, x, blocks) if isinstance(x, tuple) else x for x in args[3:]]
        order, which = read_buffers(block, self._updates), args[numbered]
        if isinstance(which, tuple):
            hidden = {order[k] for k in which if isinstance(k, int) and 0 <= k < len(order)}
            regions = enumerate(region.buffer for region in block.reads)
            args[numbered] = tuple(k for k, buffer in regions if buffer in hidden)
        elif isinstance(which, int) and 0 <= which < len(order):
            args[numbered] = touched_buffers(block, writes=False).index(order[which])
        return args


def _as_list(value: Any) -> Any:
    """Return a tuple of names as a list, as TVM returns them."""
    return list(value) if isinstance(value, tuple) else value


def _as_tuple(value: Any) -> Any:
    """Return a list as a tuple, since the arguments of steps are immutable."""
    return tuple(value) if isinstance(value, list) else value
