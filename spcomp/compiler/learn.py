"""After a call: what the full way accepted, as a Plan by which the next such call is repeated.

``compiler.bind`` alone decides what is acceptable. A plan only says "the same again": every
argument of the same type, dtype and extents, the same numbers, index arrays that pass the same
checks. What cannot be put that way gets no plan and takes the full way every time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from spcomp.codegen.abi import pack
from spcomp.codegen.cpu.entry import LIMIT, Op
from spcomp.compiler.convert import put_together
from spcomp.compiler.outputs import (
    Results,
    extents,
    has_levels_of,
    new_array,
    pattern_of,
    scipy_class,
)
from spcomp.compiler.tensor import Tensor
from spcomp.compiler.validate import ANY
from spcomp.compiler.variants import samples
from spcomp.errors import BackendError
from spcomp.ir.access import Load
from spcomp.ir.expr import Expr
from spcomp.ir.module import MEASURED, Launch, Return
from spcomp.ir.visitor import walk
from spcomp.runtime.entry import reach, width
from spcomp.runtime.host import span
from spcomp.runtime.plan import Plan
from spcomp.schedule.steps.sharing.hubs import longest_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spcomp.compiler.bind import Frame
    from spcomp.compiler.compile import Compiled
    from spcomp.compiler.signature import AxisPlan, BufferPlan
    from spcomp.ir.func import Func

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
SAMPLES = 16  # parts of a large matrix that must begin where those of the one learnt do
Finish: TypeAlias = Callable[[Mapping[str, Any], Any], Any]


class _CannotSay(Exception):  # noqa: N818
    """The call is not one that a plan can repeat."""


def learn(
    frame: Frame,
    named: Mapping[str, Any],
    fresh: tuple[BufferPlan, ...],
    code: Compiled,
    *,
    verify: bool,
) -> tuple[Plan, Finish | None] | None:
    """Return how to repeat the call of *code* on *named* that *frame* has accepted, or None.

    *fresh* are the outputs that the call allocated; *verify*: index arrays are checked. With the
    plan comes what makes the results that the caller knows of what it returns, where they differ.
    """
    launches = [op.func for op in code.host if isinstance(op, Launch)]
    if len(launches) != 1 or not all(isinstance(op, (Launch, Return)) for op in code.host):
        return None
    if isinstance(code.executable, BackendError) or code.funcs[launches[0]].attr(MEASURED, False):
        return None
    address = code.executable.address(launches[0])
    try:
        learner = _Learner(frame, code, code.funcs[launches[0]], verify=verify)
        plan = learner.plan_of(named, fresh, address)
        finish = _finish(frame, named, fresh)
    except _CannotSay:
        return None
    return (plan, finish) if plan.fits else None


def _finish(frame: Frame, named: Mapping[str, Any], fresh: tuple[BufferPlan, ...]) -> Finish | None:
    """Return what to do with the arrays that a plan returns; None if they are the results."""
    outputs = frame.interface.outputs
    wraps = [_wrap(frame, named, plan) if plan in fresh else None for plan in outputs]
    if len(outputs) < 2:
        return wraps[0] if wraps else None
    fields = tuple(plan.name for plan in outputs)

    def several(args: Mapping[str, Any], arrays: Any) -> Any:
        pairs = zip(wraps, arrays, strict=True)
        values = tuple(array if wrap is None else wrap(args, array) for wrap, array in pairs)
        return Results.of(fields, values)

    return several


def _wrap(frame: Frame, named: Mapping[str, Any], plan: BufferPlan) -> Finish | None:
    """Return what makes the result of *plan* of its values: it looks like what gave the pattern."""
    style, level, given = pattern_of(frame, plan)
    if style == "raw":
        return None
    sources = [name for name, arg in named.items() if arg is given]
    dense = (np.ndarray, int, float)
    types = {type(arg) for arg in named.values() if not isinstance(arg, dense)}
    if len(sources) > 1 or len(types) > 1 or level is None:
        raise _CannotSay  # whose pattern it is may depend on the order of the arguments

    # what was bound: its level, as the object may be unsorted; what was not is not kept alive
    held = None if sources else given if isinstance(given, Tensor) else level

    def source(args: Mapping[str, Any]) -> Any:
        return args[sources[0]] if held is None else held

    if has_levels_of(given, frame, plan):
        return lambda args, values: source(args).with_values(values)
    if style == "tensor" or given.format != plan.layout:
        raise _CannotSay
    shape = tuple(extents(frame, plan))
    make, canonical = scipy_class(plan, style), plan.axes[1].name in frame.checked

    def like(args: Mapping[str, Any], values: Array) -> Any:
        arg = source(args)
        made = put_together(make, shape, values, arg.indices, arg.indptr)
        if canonical:
            made.has_canonical_format = True
        return made

    return like


class _Learner:
    """Writes the plan of one call; *where* says which object holds the array of each handle."""

    def __init__(self, frame: Frame, code: Compiled, func: Func, *, verify: bool) -> None:
        self.frame, self.face, self.verify = frame, frame.interface, verify
        self.code = code
        self.params = func.params
        self.slots = {param.name: number for number, param in enumerate(func.params)}
        self.plan = Plan(func.name)
        self.where: dict[str, int] = {}
        self.given: dict[str, int] = {}  # what was given for an output, by handle
        self.arrays: list[tuple[Op, tuple[Any, ...]]] = []  # guards, to be repeated
        self.checks: list[tuple[Op, tuple[Any, ...]]] = []
        self.flowing: set[str] = set()  # scalars that may differ from call to call
        self.constant: set[str] = set()  # handles whose arrays cannot

    def plan_of(
        self, named: Mapping[str, Any], fresh: tuple[BufferPlan, ...], address: int
    ) -> Plan:
        """Return the plan; raises _CannotSay."""
        if len(self.params) > LIMIT:
            raise _CannotSay
        self._bound()
        for name, arg in named.items():
            self._argument(name, arg)
        for plan in fresh:
            self._make(plan)
        if fresh or not self.verify:  # making an array, scipy's verdict: other threads may have run
            for guard in self.arrays:
                self.plan.add(guard[0], *guard[1])
        self._scalars()
        self._apart()
        self._version()
        self._inspected()
        self._domains()
        self._loads()
        self.plan.add(Op.UNLOCK)
        for check in self.checks:
            self.plan.add(check[0], *check[1])
        self.plan.add(Op.CALL, address)
        self._results()
        return self.plan

    def _argument(self, name: str, arg: Any) -> None:
        face = self.face
        if name in face.scalars:
            self._scalar(name, arg)
        elif type(arg) is np.ndarray:
            index = face.index_names.get(name) if name not in face.by_name else None
            handle = index or face.by_name[name].handle
            k = self._array(self.plan.take(name), handle, arg)
            self.given[handle] = k
        elif type(arg) is Tensor:
            self._tensor(name, arg)
        elif str(type(arg).__module__).startswith("scipy.sparse."):
            self._scipy(name, arg)
        else:
            raise _CannotSay

    def _array(self, k: int, handle: str, array: Array) -> int:
        """Guard that object *k* is like *array*, and that it is what the call used as *handle*."""
        used = self.frame.values.get(handle)
        if used is None or (used.size, used.dtype) != (array.size, array.dtype):
            raise _CannotSay
        if span(used) != span(array) and handle not in self.where:
            raise _CannotSay
        self._guard(k, handle, array)
        if self.where.setdefault(handle, k) != k:  # two arguments share a pattern
            self.checks.append((Op.EQUAL, (self.where[handle], k, array.nbytes)))
        return k

    def _guard(self, k: int, handle: str, array: Array) -> None:
        """Guard that object *k* is like *array*; the first one for *handle* goes to its slot."""
        if array.dtype is not np.dtype(array.dtype.type):
            raise _CannotSay  # of another byte order, or with metadata
        plan = self.face.by_handle.get(handle)
        written = plan is not None and plan.role != "in"
        slot = self.slots.get(handle, -1) if handle not in self.where else -1
        guard = Plan.guard(k, array.dtype, array.shape, slot, written=written)
        self.arrays.append(guard)
        self.plan.add(guard[0], *guard[1])

    def _scalar(self, name: str, arg: Any) -> None:
        dtype, k = self.face.scalars[name], self.plan.take(name)
        if type(arg) is bool:
            self.plan.add(Op.SAME, k, arg)
        elif type(arg) is int and -ANY <= arg <= ANY:
            self.plan.add(Op.INT, k, arg)
        elif type(arg) is float and name not in self._sizes() and dtype.bits in (32, 64):
            self.plan.add(Op.TYPED, k, float)
            if self.frame.origin.get(name) != name:
                raise _CannotSay  # it must equal what somebody else says
            if name in self.slots:
                self.plan.add(Op.FLOAT, k, self.slots[name], dtype.bits)
            self.flowing.add(name)
        else:
            raise _CannotSay

    def _sizes(self) -> set[str]:
        """The names in the expressions that say how large something is."""
        return {n.name for expr in self._expressions() for n in walk(expr) if hasattr(n, "name")}

    def _expressions(self) -> Iterator[Expr]:
        for axis in self.face.axes:
            sizes = (axis.length, axis.fibers, axis.positions, axis.nnz_cols)
            yield from (size for size in sizes if size is not None)
        for plan in self.face.buffers:
            yield from (size for size in (*plan.shape, plan.size) if size is not None)
        for domain in self.face.domains:
            yield from (domain.low, domain.high)

    def _tensor(self, name: str, arg: Tensor) -> None:
        """A Tensor's index arrays cannot change: the same levels again are right again."""
        plan, k = self.face.by_name[name], self.plan.take(name)
        self.plan.add(Op.TYPED, k, Tensor)
        for part in ("_levels", "_shape"):
            self.plan.add(Op.SAME, self.plan.fetch(Op.ATTR, k, part), getattr(arg, part))
        if plan.handle:
            self._array(self.plan.fetch(Op.ATTR, k, "values"), plan.handle, arg.values)
            self.given[plan.handle] = k
        for axis, level in zip(plan.axes, arg.levels, strict=True):
            if level is not None:
                self._constant(axis.indptr, level.indptr)
                self._constant(axis.indices, level.indices)

    def _constant(self, handle: str | None, array: Array | None) -> None:
        """An index array that cannot change; it may have been converted, once and for all."""
        if handle is not None and array is not None:
            if handle not in self.where:
                array = self.frame.values[handle]
                self.constant.add(handle)
            self._array(self.plan.fetch(Op.CONST, array), handle, array)

    def _scipy(self, name: str, arg: Any) -> None:
        plan, k = self.face.by_name[name], self.plan.take(name)
        axis = plan.axes[1] if plan.layout in ("csr", "bsr") else None
        if axis is None or axis.indptr is None or axis.indices is None or arg.format != plan.layout:
            raise _CannotSay
        nnz, shape = len(arg.indices), arg.shape
        if not all(type(extent) is int for extent in shape):
            raise _CannotSay
        if not len(arg.data) == nnz == int(arg.indptr[-1]) or int(arg.indptr[0]):
            raise _CannotSay
        self.plan.add(Op.TYPED, k, type(arg))
        inner = "_shape" if getattr(arg, "_shape", None) is shape else "shape"
        self.plan.add(Op.PAIR, self.plan.fetch(Op.ATTR, k, inner), *shape)
        if not self.verify:
            self._canonical(k, arg)
        data = self.plan.fetch(Op.ATTR, k, "data")
        if plan.handle:
            self._array(data, plan.handle, arg.data)
            self.given[plan.handle] = k
        else:
            self._guard(data, "", arg.data)
        indptr = self._array(self.plan.fetch(Op.ATTR, k, "indptr"), axis.indptr, arg.indptr)
        indices = self._array(self.plan.fetch(Op.ATTR, k, "indices"), axis.indices, arg.indices)
        columns = shape[1] // (arg.blocksize[1] if plan.layout == "bsr" else 1)
        if self.verify:
            self._pointers(indptr, arg.indptr, (0, nnz, nnz, ANY))
            self._indices(indices, arg.indices, (0, columns - 1), 2, (indptr, arg.indptr))
        else:
            self._element(indptr, arg.indptr, 0)
            self._element(indptr, arg.indptr, len(arg.indptr) - 1)

    def _canonical(self, k: int, arg: Any) -> None:
        """Where index arrays are not looked at, scipy's word for their order counts."""
        verdict = arg.has_canonical_format
        if verdict is not True and verdict is not np.True_:
            raise _CannotSay
        self.plan.add(Op.SAME, self.plan.fetch(Op.ATTR, k, "has_canonical_format"), verdict)

    def _bound(self) -> None:
        """What was bound before this call: arrays that stay, as long as nobody resizes them."""
        for handle in self.frame.bound:
            value = self.frame.values[handle]
            if not isinstance(value, np.ndarray):
                continue
            k = self._array(self.plan.fetch(Op.CONST, value), handle, value)
            if handle in self.face.index_of:
                self.constant.add(handle)
            given = self.frame.given.get(handle, value)
            self.given[handle] = k if given is value else self.plan.fetch(Op.CONST, given)

    def _make(self, plan: BufferPlan) -> None:
        """Allocate the output of *plan* as the full way did."""
        array = self.frame.values[plan.handle]
        k = self.plan.fetch(Op.MAKE, partial(new_array, array.shape, plan))
        self.given[plan.handle] = self._array(k, plan.handle, array)

    def _scalars(self) -> None:
        for name, slot in self.slots.items():
            if isinstance(self.frame.values.get(name), np.ndarray):
                if name not in self.where:
                    raise _CannotSay
                continue
            if name in self.flowing:
                continue
            dtype = self.params[slot].dtype
            if dtype.kind == "handle":
                self.plan.add(Op.SLOT, slot, 0)
            else:
                self.plan.add(Op.SLOT, slot, pack(dtype, self.frame.values[name]))

    def _apart(self) -> None:
        """What was given to be written shares memory with nothing else."""
        for output in self.face.outputs:
            mine = self.frame.values.get(output.handle)
            if output.handle not in self.frame.given or mine is None:
                continue
            for handle, k in self.where.items():
                other = self.frame.values[handle]
                if handle != output.handle and mine.nbytes and other.nbytes:
                    a = self.where[output.handle]
                    self.plan.add(Op.APART, a, mine.nbytes, k, other.nbytes)

    def _version(self) -> None:
        """The code that ran may be for matrices without long rows: this must be one again.

        It may be for coordinates without long runs: those that tell must be the same. It may be for
        rows as uneven as these, too: a large matrix must begin some rows where this one does. Only
        speed depends on that.
        """
        for keys in self.code.keys:
            if keys in self.where and keys not in self.constant:
                array = self.frame.values[keys]
                for at in samples(array.size):
                    self._element(self.where[keys], array, at)
        for axis in self.face.axes:
            handle, parent = axis.indptr, axis.parent
            if handle is None or handle in self.constant or parent is None or parent.parent:
                continue
            array = self.frame.values[handle]
            k, first, last = self.where[handle], int(array[0]), int(array[-1])
            limit = self.code.longest_row(last - first, array.size - 1)
            uneven = self.code.is_chosen and last - first > longest_row(0)
            if limit is not None or uneven:
                parts = SAMPLES if uneven else 1
                for at in sorted({i * (array.size - 1) // parts for i in range(parts + 1)}):
                    self._element(k, array, at)
            if limit is not None and last - first > limit:  # else no row is longer
                self._pointers(k, array, (first, last, last, limit))

    def _inspected(self) -> None:
        """The axes of which this call checked the arrays, as ``Frame.check_arrays`` does."""
        for axis in self.frame.inspected:
            length = self.frame.size_of(axis.length)
            if axis.indptr:
                limit = self.frame.size_of(axis.positions)  # type: ignore[arg-type]
                longest = ANY if axis.indices else length
                array = self.frame.values[axis.indptr]
                self._pointers(self.where[axis.indptr], array, (ANY, 0, limit, longest))
            if axis.indices:
                self._coordinates(axis, length)

    def _coordinates(self, axis: AxisPlan, length: int) -> None:
        order, indptr = 0, None
        indices = axis.indices or ""
        array = self.frame.values[indices]
        if axis.name in self.face.order_needed:
            if axis.hashed:
                raise _CannotSay  # no machine code checks tables
            order = 2 if axis.unique else 1
            indptr = self._fibers(axis, array)
        limits = self.frame.size_of(axis.least), length - 1
        self._indices(self.where[indices], array, limits, order, indptr)

    def _fibers(self, axis: AxisPlan, indices: Array) -> tuple[int, Array]:
        """The object that says where the fibers of *axis* begin, and its array."""
        if axis.indptr is not None:
            return self.where[axis.indptr], self.frame.values[axis.indptr]
        if axis.nnz_cols is None:
            raise _CannotSay
        starts = np.arange(0, indices.size + 1, max(self.frame.size_of(axis.nnz_cols), 1))
        starts = starts.astype(indices.dtype)
        k = self.plan.fetch(Op.CONST, starts)
        self._guard(k, "", starts)
        return k, starts

    def _domains(self) -> None:
        if not self.verify:
            return
        for domain in self.face.domains:
            data = domain.buffer.data
            plan = None if data is None else self.face.by_handle.get(data.name)
            if plan is not None and plan.role == "in" and plan.handle in self.where:
                low, high = self.frame.size_of(domain.low), self.frame.size_of(domain.high)
                array = self.frame.values[plan.handle]
                self._indices(self.where[plan.handle], array, (low, high), 0, None)

    def _loads(self) -> None:
        """Sizes that index arrays say are as they were."""
        for expr in self._expressions():
            for load in (node for node in walk(expr) if isinstance(node, Load)):
                data, index = load.buffer.data, load.indices[0]
                handle = load.buffer.name if data is None else data.name
                if handle not in self.where or index is None or len(load.indices) != 1:
                    raise _CannotSay
                at = self.frame.size_of(index)
                self._element(self.where[handle], self.frame.values[handle], at)

    def _pointers(self, k: int, array: Array, limits: tuple[int, int, int, int]) -> None:
        first, low, high, longest = limits
        op = _of_width(Op.POINTERS32, array)
        self.checks.append((op, (k, array.size - 1, first, low, high, longest)))

    def _indices(
        self,
        k: int,
        array: Array,
        limits: tuple[int, int],
        order: int,
        indptr: tuple[int, Array] | None,
    ) -> None:
        op, length = _of_width(Op.INDICES32, array), reach(width(array), *limits)
        if length is None and array.size:
            raise _CannotSay
        where, fibers = (0, 0) if indptr is None else (indptr[0], indptr[1].size - 1)
        if indptr is not None and indptr[1].dtype != array.dtype:
            raise _CannotSay
        reached = -1 if length is None else length
        self.checks.append((op, (k, array.size, limits[0], reached, order, where, fibers)))

    def _element(self, k: int, array: Array, at: int) -> None:
        op = _of_width(Op.ELEMENT32, array)
        if not 0 <= at < array.size:
            raise _CannotSay
        self.checks.append((op, (k, at, int(array.reshape(-1)[at]))))

    def _results(self) -> None:
        handles = [plan.handle for plan in self.face.outputs]
        if len(handles) > 6 or not all(handle in self.given for handle in handles):
            raise _CannotSay
        self.plan.add(Op.RETURN, len(handles), *(self.given[handle] for handle in handles))


def _of_width(op: Op, array: Array) -> Op:
    """Return *op*, which is for 32-bit integers, for those of *array*."""
    bits = width(array)
    if not bits:
        raise _CannotSay
    return op if bits == 32 else Op(op + 1)
