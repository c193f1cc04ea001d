"""After a call: its record becomes the Plan that repeats the next such call.

A Plan only says "the same again": arguments of the same types, dtypes and extents, the same
numbers, and arrays that pass the checks in the record. A call that this cannot describe takes the
full way every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.arrays import Array
from spcomp.codegen.abi import pack
from spcomp.compiler.variants import samples
from spcomp.errors import BackendError
from spcomp.ir.access import Load
from spcomp.ir.analysis.sizes import array_name
from spcomp.ir.arith.memory import read_by
from spcomp.ir.module import HostAlloc, Launch, Return, Scan, Trim, returned
from spcomp.ir.visitor import walk
from spcomp.kernels.results import new_array
from spcomp.knobs import knobs_of
from spcomp.runtime import host
from spcomp.runtime.native.entry_ir import Op
from spcomp.runtime.replay.entry import reach, width
from spcomp.runtime.replay.plan import Instruction, Plan, Words
from spcomp.schedule.steps.sharing.hubs import longest_row
from spcomp.tensors.checks import TABLES, Apart, Condition, Coordinates, Distinct, Element, Pointers
from spcomp.tensors.storage import AttributeNames

if TYPE_CHECKING:
    from spcomp.ir.expr import Expr, Var
    from spcomp.ir.func import Func
    from spcomp.kernels.call import CallRecord

SAMPLES = 16  # parts of a large matrix, which must begin where they did in the first call


def learn(record: CallRecord) -> Plan | str:
    """Return the plan that repeats the call of *record*, or why there is none."""
    for obstacle in _obstacles(record):
        return obstacle
    plan = _Transcript(record).plan
    return plan if plan.fits else "it has too many arguments"


def _obstacles(record: CallRecord) -> Iterator[str]:
    """Yield why the call of *record* cannot be repeated; later reasons rely on earlier ones."""
    frame, code = record.frame, record.code
    abis = [code.emitted[op.func] for op in code.host if isinstance(op, Launch)]
    if any(abi.grid is not None for abi in abis):
        yield "its code is not of this machine's processor"
    if any(abi.prints for abi in abis):
        yield "it prints"
    if isinstance(code.executable, BackendError):
        yield str(code.executable)
    if code.is_measured:
        yield "a person wrote its function, whose arrays are measured at every call"
    reasons = (_argument_obstacle(record, name, arg) for name, arg in record.named.items())
    yield from filter(None, reasons)
    yield from _result_obstacles(record)
    for handle, array in frame.values.items():
        if isinstance(array, np.ndarray) and array.dtype is not np.dtype(array.dtype.type):
            yield f"{handle} has metadata"
    missing = (check for check in _checks(record) if not _is_machine_check(check, frame.values))
    yield from (f"no machine code makes the check {check}" for check in missing)


def _argument_obstacle(record: CallRecord, name: str, arg: Any) -> str | None:
    if name in record.frame.arguments:
        source = record.frame.arguments[name][1].source
        return f"{name} {source}" if isinstance(source, str) else None
    if type(arg) in (bool, int):
        return None
    names = {n.name for size in _sizes(record) for n in walk(size) if hasattr(n, "name")}
    flows = type(arg) is float and record.frame.origin[name] == name not in names
    if flows and record.frame.interface.scalars[name].bits in (32, 64):
        return None
    return f"{name} is a {type(arg).__name__} that decides more than a value, or is converted"


def _result_obstacles(record: CallRecord) -> Iterator[str]:
    dense, outputs = (np.ndarray, int, float), record.frame.interface.outputs
    are_assembled = bool(returned(record.code.host))
    for plan, wrap in zip(outputs, record.wraps, strict=True):
        if plan.is_assembled != are_assembled:
            yield "some results are assembled, others are not"
        if plan.is_assembled and any(a.arrays or a.nnz_cols is not None for a in plan.axes):
            yield f"{plan.name} is assembled below levels of an argument"
        if wrap is None or plan.is_assembled:
            continue
        owners = [name for name, arg in record.named.items() if arg is wrap.owner]
        kinds = {type(arg) for arg in record.named.values() if not isinstance(arg, dense)}
        if len(owners) > 1 or len(kinds) > 1:
            yield f"whose pattern {plan.name} has may depend on the order of the arguments"
        if wrap.found() is None:
            yield f"{plan.name} is made of levels of several arrays"


def _sizes(record: CallRecord) -> Iterator[Expr]:
    """Yield the expressions for the size of something."""
    face = record.frame.interface
    for axis in face.axes:
        sizes = (axis.length, axis.fibers, axis.positions, axis.nnz_cols)
        yield from (size for size in sizes if size is not None)
    for plan in face.buffers:
        yield from (size for size in (*plan.shape, plan.size) if size is not None)
    for domain in face.domains:
        yield from (domain.low, domain.high)


def _loads(record: CallRecord) -> Iterator[Load]:
    loads = (node for size in _sizes(record) for node in walk(size) if isinstance(node, Load))
    return (load for load in loads if len(load.indices) == 1)  # others are no sizes of a call


def _checks(record: CallRecord) -> Iterator[Condition]:
    """Yield the checks that arrays must pass so that the call of *record* can be repeated."""
    yield from record.frame.checks
    yield from _same_version(record)
    for load in _loads(record):  # sizes that index arrays say are as they were
        handle = load.buffer.name if load.buffer.data is None else load.buffer.data.name
        yield _element(record, handle, record.frame.size_of(load.indices[0]))  # type: ignore[arg-type]


def _same_version(record: CallRecord) -> Iterator[Condition]:
    """Yield the conditions under which the version that ran is the right one again.

    It may be for matrices without long rows: then the matrix must have none. It may be for
    coordinates without long runs: then those that were sampled must be the same. It may be for rows
    as uneven as these: then a large matrix must begin some rows where this one does. Only speed
    depends on the conditions.
    """
    frame, code, knobs = record.frame, record.code, knobs_of(record.code.target)
    for keys in code.keys:
        if keys in frame.values:
            yield from (
                _element(record, keys, at) for at in samples(frame.values[keys].size, knobs)
            )
    for axis in frame.interface.axes:
        handle, parent = axis.indptr, axis.parent
        if handle is None or parent is None or parent.parent:
            continue
        array = frame.values[handle]
        fibers, first, last = array.size - 1, int(array[0]), int(array[-1])
        limit = code.longest_row(last - first, fibers)
        uneven = code.is_chosen and last - first > longest_row(knobs.hub_piece, 0)
        if limit is not None or uneven:
            parts = SAMPLES if uneven else 1
            places = sorted({i * fibers // parts for i in range(parts + 1)})
            yield from (_element(record, handle, at) for at in places)
        if limit is not None and last - first > limit:  # else no row is longer
            yield Pointers(handle, fibers, first, last, last, limit)


def _element(record: CallRecord, handle: str, at: int) -> Element:
    return Element(handle, at, int(record.frame.values[handle].flat[at]))


def _is_machine_check(check: Condition, arrays: Mapping[str, Array]) -> bool:
    """Whether the machine code of an entry can make *check*."""
    array = arrays[check.array]
    if isinstance(check, Apart | Distinct) or not width(array):
        return isinstance(check, Apart)
    if isinstance(check, Element):
        return 0 <= check.at < array.size
    if isinstance(check, Pointers):
        return True
    delimited = not check.order or bool(check.indptr or check.width or not array.size)
    same = not check.indptr or arrays[check.indptr].dtype == array.dtype
    within = not array.size or reach(width(array), check.low, check.high) is not None
    return check.order != TABLES and delimited and same and within


class _Transcript:
    """Writes the *plan* of a call, step by step.

    *where*: the number of the object that holds the array of each handle, or a float. *constant*:
    the handles whose arrays cannot change. *guards* are repeated where Python has run meanwhile.
    """

    def __init__(self, record: CallRecord) -> None:
        self.record, self.frame, self.plan = record, record.frame, Plan()
        self.where: dict[str, int] = {}
        self.outputs: dict[str, int] = {}  # the object returned for an output, by handle
        self.guards: list[Instruction] = []
        self.checks: list[Instruction] = []
        self.constant: set[str] = set()
        self._bound()
        for name in record.named:
            self._argument(name)
        self._write(self.guards)
        for plan in record.allocated:
            array = self.frame.values[plan.handle]
            k = self._apply(partial(new_array, array.shape, plan))
            self.outputs[plan.handle] = self._array(k, plan.handle, array)
        for check in _checks(record):
            if not {check.array, getattr(check, "indptr", "") or check.array} <= self.constant:
                self.checks += getattr(self, f"_{type(check).__name__.lower()}")(check)
        self._host_program()
        if assembled := returned(record.code.host):
            results = [self.where[buffer.name] for buffer in assembled]
        else:
            results = [self.outputs[plan.handle] for plan in self.frame.interface.outputs]
        self.plan.add(Op.RETURN, len(results), Words(results))

    def _host_program(self) -> None:
        """Write the checks, and then what the host program does."""
        code, checks = self.record.code, self.checks
        for op in code.host:
            if isinstance(op, Launch):
                self._launch(code.funcs[op.func], checks)
                checks = []
            elif not isinstance(op, Return):
                self.where[op.buffer.name] = self._fresh(op)

    def _launch(self, func: Func, checks: list[Instruction]) -> None:
        """Write a call of *func*, and before it *checks*, without the GIL."""
        self._write(self.guards)
        first = self.plan.slots
        for slot, param in enumerate(func.params, first):
            if param.name in self.where:
                self.plan.add(Op.COPY, self.where[param.name], slot)
            else:
                self.plan.add(Op.SLOT, slot, self._constant(param))
        self.plan.slots += len(func.params)
        self.plan.add(Op.UNLOCK)
        self._write(checks)
        address = self.record.code.executable.address(func.name)  # type: ignore[union-attr]
        self.plan.add(Op.CALL, address, first, len(self.plan.functions))
        self.plan.functions.append(func.name)
        self.plan.add(Op.LOCK)

    def _constant(self, param: Var) -> int:
        """Return the slot of *param*, which no argument fills."""
        value = self.frame.values.get(param.name, 0)
        if param.dtype.kind != "handle":
            return pack(param.dtype, value)
        made = (op.buffer.name for op in self.record.code.host if isinstance(op, HostAlloc))
        assert not isinstance(value, np.ndarray) or param.name in made, param.name  # unknown source
        return 0  # of an array that is not accessed, or not there yet

    def _fresh(self, op: HostAlloc | Scan | Trim) -> int:
        """Write what the host program does to an array; return the number of what it makes."""
        sizes = () if isinstance(op, Scan) else (op.size,)
        changed = () if isinstance(op, HostAlloc) else (op.buffer,)
        read = (array_name(b, self.where) for b in (*read_by(*sizes), *changed))
        names = tuple(dict.fromkeys(read))
        numbers = {n: v for n, v in self.frame.values.items() if not isinstance(v, np.ndarray)}
        k = self._apply(partial(_array_of, op, names, numbers), *names)
        self.plan.add(Op.ADDRESS, k)
        return k

    def _apply(self, function: Callable[..., Any], *names: str) -> int:
        """Write that *function* gets the arrays called *names*; return the number of its result."""
        numbers = Words([self.where[name] for name in names])
        return self.plan.fetch(Op.APPLY, function, len(numbers), numbers)

    def _write(self, instructions: list[Instruction]) -> None:
        for op, operands in dict.fromkeys(instructions):
            self.plan.add(op, *operands)

    def _bound(self) -> None:
        """Take what was bound before the call: arrays that stay, as long as nobody resizes them."""
        for handle in self.frame.bound:
            value = self.frame.values[handle]
            if not isinstance(value, np.ndarray):
                continue
            k = self._array(self.plan.fetch(Op.CONST, value), handle, value)
            if handle in self.frame.interface.index_of:
                self.constant.add(handle)
            output = self.frame.given.get(handle, value)
            self.outputs[handle] = k if output is value else self.plan.fetch(Op.CONST, output)

    def _argument(self, name: str) -> None:
        k, arg = self.plan.take(name), self.record.named[name]
        if name not in self.frame.arguments:
            self._number(name, k, arg)
            return
        plan, storage = self.frame.arguments[name]
        source = storage.source
        assert isinstance(source, AttributeNames)
        if source.values:
            self.plan.add(Op.TYPED, k, type(arg))
        if source.extents:
            pair = getattr(arg, source.extents)
            inner = f"_{source.extents}"  # the attribute behind the property is faster
            faster = inner if getattr(arg, inner, None) is pair else source.extents
            at = self.plan.fetch(Op.ATTR, k, faster)
            self._write([(Op.TYPED, (at, tuple)), (Op.LIKE, (at, pair))])
        for part in source.same:
            self.plan.add(Op.SAME, self.plan.fetch(Op.ATTR, k, part), getattr(arg, part))
        if isinstance(plan, str):
            self._array(k, plan, arg)
            return
        values = getattr(arg, source.values) if source.values else arg
        at = self.plan.fetch(Op.ATTR, k, source.values) if source.values else k
        self._array(at, plan.handle, values)
        self.outputs[plan.handle] = k
        for axis, level in zip(plan.axes, storage.levels or (), strict=storage.levels is not None):
            if level is not None:
                self._index(k, source.indptr, axis.indptr, level.indptr)
                self._index(k, source.indices, axis.indices, level.indices)

    def _index(self, k: int, source: str, handle: str | None, array: Array | None) -> None:
        """Take an index array of object *k*; one that cannot change was converted once."""
        if handle is None or array is None:
            return
        if source:
            self._array(self.plan.fetch(Op.ATTR, k, source), handle, array)
            return
        if handle not in self.where:
            self.constant.add(handle)
        used = self.frame.values[handle]
        array = array.astype(used.dtype, copy=False) if handle in self.where else used
        self._array(self.plan.fetch(Op.CONST, array), handle, array)

    def _array(self, k: int, handle: str, array: Array) -> int:
        """Check that object *k* is like *array*, the one of *handle* in the call; "": of none."""
        plan, first = self.frame.interface.by_handle.get(handle), self.where.get(handle)
        written = plan is not None and plan.role != "in"
        self.guards.append(Plan.guard(k, array, written=written))
        if first is not None:  # two arguments share a pattern
            self.checks.append((Op.EQUAL, (first, k, array.nbytes)))
        elif handle:
            self.where[handle] = k
        return k

    def _number(self, name: str, k: int, arg: Any) -> None:
        self.plan.add(Op.TYPED, k, type(arg))
        if type(arg) is not float:
            self.plan.add(Op.LIKE, k, arg)
            return
        self.where[name] = k
        self.plan.add(Op.FLOAT, k, self.frame.interface.scalars[name].bits)

    def _pointers(self, check: Pointers) -> Iterator[Instruction]:
        yield self._of_width(Op.POINTERS32, check.array), (self.where[check.array], *check[1:])

    def _coordinates(self, check: Coordinates) -> Iterator[Instruction]:
        array, begins, fibers = self.frame.values[check.array], 0, 0
        if check.indptr:
            begins, fibers = self.where[check.indptr], self.frame.values[check.indptr].size - 1
        elif check.order:
            starts = np.arange(0, array.size + 1, max(check.width, 1)).astype(array.dtype)
            begins, fibers = self.plan.fetch(Op.CONST, starts), starts.size - 1
            op, operands = Plan.guard(begins, starts)
            self.plan.add(op, *operands)
        distance = reach(width(array), check.low, check.high)
        span = -1 if distance is None else distance
        operands = (self.where[check.array], array.size, check.low, span, check.order)
        yield self._of_width(Op.INDICES32, check.array), (*operands, begins, fibers)

    def _apart(self, check: Apart) -> Iterator[Instruction]:
        size = self.frame.values[check.array].nbytes
        for handle in check.others:
            other = self.frame.values[handle].nbytes
            if size and other:
                yield Op.APART, (self.where[check.array], size, self.where[handle], other)

    def _element(self, check: Element) -> Iterator[Instruction]:
        yield self._of_width(Op.ELEMENT32, check.array), (self.where[check.array], *check[1:])

    def _of_width(self, op: Op, handle: str) -> Op:
        """Return *op*, which is for 32-bit integers, for the width of the array of *handle*."""
        return op if width(self.frame.values[handle]) == 32 else Op(op + 1)


def _array_of(
    op: HostAlloc | Scan | Trim,
    names: tuple[str, ...],
    numbers: Mapping[str, Any],
    *arrays: Array,
) -> Array:
    """Return the array that *op* makes, where *arrays* have these *names*."""
    array: Array = host.array_of(op, {**numbers, **dict(zip(names, arrays, strict=True))})
    return array
