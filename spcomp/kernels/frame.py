"""At the call: arguments are unified with the sizes and index arrays of the program."""

from __future__ import annotations

import operator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import ArgumentError
from spcomp.ir.analysis.sizes import evaluate, solve, text
from spcomp.ir.arith.bounds import dtype_range
from spcomp.ir.expr import Const, Expr, Var
from spcomp.ir.visitor import walk
from spcomp.tensors import checks
from spcomp.tensors.arguments import index_storage_of, raw_storage_of, storage_of
from spcomp.tensors.device_tensor import DeviceTensor
from spcomp.tensors.libraries.foreign import bridge, is_torch
from spcomp.tensors.storage import Storage, Style
from spcomp.tensors.tensor import Level, Tensor

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from spcomp.compiler.interface import AxisPlan, BufferPlan, Interface
    from spcomp.dtypes import DType

_Equation: TypeAlias = tuple[Expr, int, str, str]  # size, its number, the argument, what it counts


class Frame:
    """The parameters of one call, found from its arguments: sizes are unified, arrays checked.

    *values*: scalars and arrays by the names of the parameters; *origin*: the argument that each
    came from; *bound*: the names in *values* that were known before the call. *arguments*: the
    arguments taken apart, by name, without numbers, and the buffer or index array that each is for;
    *given*: the arguments of buffers as they came. *checks*: those that the arrays have passed;
    *checked*: the axes whose arrays, and the arrays whose values, need no further check. *fixed*:
    the axes whose arrays are bound, and checked even if those of calls are not. *patterns*: for
    results along an axis, their style, the level of the axis, and the argument that has it.
    """

    __slots__ = (
        *("arguments", "bound", "checked", "checks", "fixed", "given", "interface"),
        *("origin", "patterns", "pending", "values"),
    )

    def __init__(self, interface: Interface, constants: dict[str, int | float]) -> None:
        self.interface = interface
        self.values: dict[str, Any] = dict(constants)
        self.arguments: dict[str, tuple[BufferPlan | str, Storage]] = {}
        self.bound: tuple[str, ...] = ()
        self.origin: dict[str, str] = dict.fromkeys(constants, "constants")
        self.pending: list[_Equation] = []
        self.checked: set[str] = set()
        self.fixed: frozenset[str] = frozenset()
        self.checks: list[checks.Condition] = []
        self.given: dict[str, Any] = {}
        self.patterns: dict[str, tuple[Style, Level | None, Any]] = {}

    def copy(self) -> Frame:
        """Return a copy, whose values count as bound."""
        frame = self._new()
        frame.values, frame.origin = dict(self.values), dict(self.origin)
        frame.pending, frame.checked = list(self.pending), set(self.checked)
        frame.given, frame.patterns = dict(self.given), dict(self.patterns)
        frame.bound, frame.fixed = tuple(self.values), self.fixed
        return frame

    def _new(self) -> Frame:
        """Return an empty frame of the same kind."""
        return Frame(self.interface, {})

    def freeze(self, how: str) -> None:
        """Make the index arrays private, as they are not checked again and results share them.

        Values that nobody can change are checked now, if the program promises something of them;
        *how* ``"bind"``: all values are, as no call will; ``"off"``: none are. Raises
        ArgumentError.
        """
        for handle in self.interface.index_of:
            if isinstance(array := self.values.get(handle), np.ndarray):
                self.values[handle] = checks.private(array)
        for name, (style, level, owner) in self.patterns.items():
            if level is not None:
                parts = (level.indptr, level.indices)
                self.patterns[name] = style, Level(level.kind, *map(checks.private, parts)), owner
        if how == "off":
            return
        self._check_bound()
        for handle, array in self.values.items():
            if isinstance(array, np.ndarray) and (how == "bind" or checks.is_private(array)):
                self._check_once(handle)

    def _check_bound(self) -> None:
        """Check the index arrays that are bound, as far as the sizes that limit them are known."""
        axes = self.interface.sparse_axes
        self.fixed = frozenset(a.name for a in axes if all(n in self.values for n in a.arrays))
        for axis in axes:
            if axis.name in self.fixed - self.checked and self._is_limited(axis):
                for check in self._axis_checks(axis):
                    self._run(check)
                self.checked.add(axis.name)

    def _is_limited(self, axis: AxisPlan) -> bool:
        """Return whether all sizes are known that limit the index arrays of *axis*."""
        sizes = axis.fibers, axis.length, axis.positions, axis.nnz_cols, axis.least
        try:
            for size in filter(None, sizes):
                self.size_of(size)
        except KeyError:
            return False
        return True

    def _check_once(self, handle: str) -> None:
        """Check what the program promises of the array *handle*, if its limits are known."""
        try:
            promises = list(self._promises({handle}))
        except KeyError:  # a size that other arguments say: calls check what depends on it
            return
        for check in promises:
            self._run(check)
            self.checked.add(handle)

    def take(self, name: str, arg: Any, *, verify: bool, raw: bool = False) -> None:
        """Bind the argument called *name*; raises ArgumentError.

        *raw*: *name* is a parameter, and *arg* a number, or an array of the right size and any
        shape.
        """
        face = self.interface
        if name in face.scalars:
            self._scalar(name, arg)
            return
        plan = (face.by_handle if raw else face.by_name).get(name)
        index = None if raw and name not in face.index_of else face.index_names.get(name)
        if plan is not None:
            if plan.is_assembled and plan.handle:
                raise ArgumentError(
                    f"argument {name}: its pattern is a result of {face.name}, it cannot be given"
                )
            if plan.handle and plan.handle in self.given:
                raise ArgumentError(f"argument {name}: given twice (parameter {plan.handle})")
            storage = self._storage(plan, arg, verify=verify, raw=raw)
            self.arguments[name] = plan, storage
            self.unify_storage(plan, storage)
        elif index is not None:
            storage = self._index_storage(index, arg, verify=verify)
            self.arguments[name] = index, storage
            self._array(index, storage.values.reshape(-1), index)  # type: ignore[union-attr]
        elif raw:
            self.arguments[name] = "", Storage(arg, None, source="stands for nothing")
        else:
            raise ArgumentError(
                f"unexpected argument {name} of {face.name}",
                hint=f"its arguments are {', '.join(face.names)}",
            )

    def _storage(self, plan: BufferPlan, arg: Any, *, verify: bool, raw: bool) -> Storage:
        """Return *arg* taken apart for the buffer of *plan*."""
        if raw:
            return raw_storage_of(plan, arg)
        return storage_of(arg, plan, verify=verify, any_shape=self.interface.any_shape)

    def _index_storage(self, handle: str, arg: Any, *, verify: bool) -> Storage:  # noqa: ARG002
        """Return *arg* taken apart for the index array *handle*."""
        return index_storage_of(handle, self.interface.index_of[handle][0].idtype, arg)

    def _scalar(self, name: str, arg: Any) -> None:
        dtype = self.interface.scalars[name]
        value = number_of(name, arg, dtype)
        previous = self.values.setdefault(name, value)
        if previous != value and not (previous != previous and value != value):
            raise ArgumentError(
                f"argument {name}: got {value}, expected {previous} as {self.origin[name]} says"
            )
        self.origin.setdefault(name, name)

    def _unify_length(self, axis: AxisPlan, handle: str, array: Array) -> None:
        """Unify the size of an index array of *axis* with those of the axis."""
        if handle == axis.indptr and axis.fibers is not None:
            if not array.size:
                raise ArgumentError(
                    f"argument {handle}: is empty, expected one element more than fibers"
                )
            self.unify(axis.fibers, array.size - 1, handle, "number of fibers")
        elif axis.entries is not None:
            self.unify(axis.entries, array.size, handle, "number of elements")

    def unify_storage(self, plan: BufferPlan, storage: Storage) -> None:
        """Bind the arrays of the argument for the buffer of *plan*; raises ArgumentError."""
        who = plan.name
        self.checks += storage.checks
        if storage.shape is not None:
            for at, extent in enumerate(storage.shape):
                self.unify(plan.shape[at], extent, who, f"dimension {at}")
        if storage.levels is not None:
            for at, (axis, level) in enumerate(zip(plan.axes, storage.levels, strict=True)):
                if level is not None:
                    self._level(axis, level, who, storage, at)
        if plan.handle and storage.values is not None:
            if plan.size is not None and (storage.shape is None or plan.layout != "dense"):
                what = "room" if plan.strided else "number of elements"
                self.unify(plan.size, storage.values.size, who, what)
            self.values[plan.handle] = storage.values
            self.origin[plan.handle] = who
            self.given[plan.handle] = storage.argument
            self._unify_room(plan.handle, storage.values)

    def _level(self, axis: AxisPlan, level: Level, who: str, storage: Storage, at: int) -> None:
        self.patterns.setdefault(axis.name, (storage.style, level, storage.argument))
        if level.indptr is not None and axis.indptr is not None:
            array = checks.as_index(f"{who}.indptr", level.indptr, axis.idtype)
            self._array(axis.indptr, array, who, axis)
            if axis.fibers is not None:
                self.unify(axis.fibers, array.size - 1, who, f"number of fibers of {axis.name}")
        if level.indices is not None and axis.indices is not None:
            array = checks.as_index(f"{who}.indices", level.indices, axis.idtype)
            self._array(axis.indices, array.reshape(-1), who, axis)
            if level.kind == "fixed" and axis.nnz_cols is not None:
                self.unify(axis.nnz_cols, array.shape[-1], who, f"width of {axis.name}")
        if axis.entries is not None:
            last = level.indices.size if level.indices is not None else int(level.indptr[-1])  # type: ignore[index]
            self.unify(axis.entries, last, who, f"number of positions of {axis.name}")
        if storage.checked:
            relied_on = axis.name in self.interface.order_needed
            arg = storage.argument
            if relied_on and isinstance(arg, Tensor | DeviceTensor) and level.kind != "hashed":
                checks.require_order(who, arg.ascending(at, unique=axis.unique), axis.unique)
            self.checked.add(axis.name)

    def _array(self, handle: str, array: Array, who: str, measured: AxisPlan | None = None) -> None:
        """Bind an index array; two arguments that share an axis must agree.

        Its size is unified for every axis that has it, except *measured*.
        """
        previous = self.values.setdefault(handle, array)
        if previous is not array and not self._same(previous, array):
            raise ArgumentError(
                f"argument {who}: its {handle} differs from that of {self.origin[handle]},"
                " expected the same pattern"
            )
        self.origin.setdefault(handle, who)
        self._unify_room(handle, array)
        for axis in self.interface.index_of[handle]:
            if axis is not measured:
                self._unify_length(axis, handle, array)

    def _same(self, a: Array, b: Array) -> bool:
        """Return whether two index arrays hold the same."""
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            first, second = (array.__array_interface__["data"][0] for array in (a, b))
            if first == second:
                return True
        return bool(np.array_equal(a, b))

    def _unify_room(self, handle: str, array: Array) -> None:
        """Note that *array* must have room for the other buffers that are matched to it."""
        for name, size in self.interface.shared.get(handle, ()):
            self.pending.append((size, array.size, name, "room"))

    def unify(self, size: Expr, got: int, who: str, what: str) -> None:
        """Make *size* equal to *got*, found in the argument *who*: bind it, compare it, or wait."""
        if isinstance(size, Var):
            previous = self.values.setdefault(size.name, got)
            if previous is got:
                _fits(size.name, got, self.interface.scalars[size.name], who)
                self.origin.setdefault(size.name, who)
            elif previous != got:
                self._conflict(size, previous, got, who, what)
        elif isinstance(size, Const):
            if size.value != got:
                self._conflict(size, size.value, got, who, what)
        else:
            self.pending.append((size, got, who, what))

    def _conflict(self, size: Expr, previous: Any, got: int, who: str, what: str) -> NoReturn:
        sources = {self.origin[n.name] for n in walk(size) if isinstance(n, Var)} - {who}
        said = f" as {' and '.join(sorted(sources))} says" if sources else ""
        shown = "" if isinstance(size, Const) else f" ({text(size)})"
        most = "at least " if what == "room" else ""
        raise ArgumentError(
            f"argument {who}: {what}{shown} is {got}, expected {most}{previous}{said}"
        )

    def resolve_sizes(self) -> None:
        """Solve the pending sizes, until no further one can be solved."""
        while self.pending:
            waiting: list[_Equation] = []
            for size, got, who, what in self.pending:
                try:
                    previous = self.size_of(size)
                except KeyError:
                    solution = None if what == "room" else solve(size, got, self.values)
                    if solution is None:
                        waiting.append((size, got, who, what))
                    else:
                        self.unify(*solution, who, what)
                    continue
                if previous > got or (previous != got and what != "room"):
                    self._conflict(size, previous, got, who, what)
            if len(waiting) == len(self.pending):
                return
            self.pending = waiting

    def size_of(self, size: Expr) -> int:
        """Return the number that *size* is; raises KeyError while something in it is unknown."""
        try:
            return int(evaluate(size, self.values))
        except ZeroDivisionError:
            raise ArgumentError(f"the size {text(size)} divides by zero") from None

    def require(self) -> None:
        """Raise ArgumentError if a parameter is still unknown, or a computed size does not fit.

        A size that the program computes in 32 bits could wrap around there.
        """
        face = self.interface
        for size in face.computed:
            with suppress(KeyError):
                if (number := self.size_of(size)) not in dtype_range(size.dtype):
                    raise ArgumentError(
                        f"the size {text(size)} is {number}, which {size.dtype} does not hold",
                        hint="declare the parameters in it as T.int64",
                    )
        for name in face.needed:
            plan = face.by_handle.get(name)
            if name in self.values or (plan is not None and plan.role == "out"):
                continue  # it is there, or will be allocated
            if name in face.scalars:
                raise ArgumentError(
                    f"missing argument {name} of {face.name}: no array says what it is",
                    hint=f"give the result that has it as out=, or {name}=... if it is a parameter,"
                    f" --const {name}=... on the command line",
                )
            if name in face.index_of:
                axis = face.index_of[name][0].name
                raise ArgumentError(
                    f"missing argument {name} of {face.name}: an index array of the axis {axis}",
                    hint=f"give a sparse array along {axis}, {axis}=pattern, or {name}=array",
                )
            shown = face.by_handle[name].name
            raise ArgumentError(f"missing argument {shown} of {face.name}")

    def check(self, *, verify: bool) -> None:
        """Run the checks that were not made before; *verify*: also those of what arrays hold.

        Raises ArgumentError.
        """
        for check in self._checks(verify=verify):
            self._run(check)
            self.checks.append(check)

    def check_order(self, needed: frozenset[str], *, verify: bool) -> None:
        """Check that coordinates ascend along the axes *needed* by a version, and not by all.

        *verify*: also those of arrays that are not bound. Raises ArgumentError.
        """
        more = needed - self.interface.order_needed
        more = more if verify else more & self.fixed
        for axis in self.interface.sparse_axes if more else ():
            for check in self._axis_checks(axis, ordered=True) if axis.name in more else ():
                self._run(check)
                self.checks.append(check)

    def _run(self, check: checks.Check) -> None:
        check.run(self.values, self.shown)

    def _checks(self, *, verify: bool) -> Iterator[checks.Check]:
        """Yield the checks of index arrays, of values that the program promises, and of outputs."""
        face = self.interface
        for axis in face.sparse_axes if verify or self.fixed else ():
            if axis.name not in self.checked and (verify or axis.name in self.fixed):
                yield from self._axis_checks(axis)
                self.checked.add(axis.name)
        if verify:
            yield from self._promises(self.values.keys() - self.checked)
        for plan in face.outputs:
            if plan.handle in self.given:
                yield from self._apart(plan.handle)

    def _promises(self, handles: Collection[str]) -> Iterator[checks.Coordinates | checks.Distinct]:
        """Yield the checks of what the program promises of the values of the arrays *handles*."""
        for domain in self.interface.domains:
            data = domain.buffer.data
            plan = None if data is None else self.interface.by_handle.get(data.name)
            if plan is not None and plan.role == "in" and plan.handle in handles:
                limits = self.size_of(domain.low), self.size_of(domain.high)
                yield checks.Coordinates(plan.handle, *limits)
        for plan in self.interface.buffers:
            if plan.distinct and plan.handle in handles:
                yield checks.Distinct(plan.handle)

    def _apart(self, handle: str) -> Iterator[checks.Check]:
        """Yield the check that the output *handle* shares memory with nothing else."""
        arrays = [name for name, v in self.values.items() if isinstance(v, np.ndarray)]
        arrays.remove(handle)
        yield checks.Apart(handle, tuple(arrays))

    def _axis_checks(self, axis: AxisPlan, *, ordered: bool = False) -> Iterator[checks.Check]:
        fibers, length = self.size_of(axis.fibers), self.size_of(axis.length)  # type: ignore[arg-type]
        if axis.indptr:
            limit = self.size_of(axis.positions)  # type: ignore[arg-type]
            longest = checks.ANY if axis.indices else length
            yield checks.Pointers(axis.indptr, fibers, checks.ANY, 0, limit, longest)
        if axis.indices:
            needed = ordered or axis.name in self.interface.order_needed
            order = 0 if not needed else checks.TABLES if axis.hashed else 2 if axis.unique else 1
            indptr = axis.indptr or "" if order else ""
            width = self.size_of(axis.nnz_cols) if order and axis.nnz_cols is not None else 0
            least = self.size_of(axis.least)
            yield checks.Coordinates(axis.indices, least, length - 1, order, indptr, width)

    def shown(self, handle: str) -> str:
        """Return the name of the array of *handle* in a message."""
        if (plan := self.interface.by_handle.get(handle)) is not None:
            return plan.name
        source = self.origin[handle]
        return handle if source == handle else f"{source} ({handle})"


def number_of(name: str, arg: Any, dtype: DType) -> int | float:
    """Return *arg* as a Python number of *dtype*; raises ArgumentError."""
    if type(arg) is int and dtype.is_integer:
        _fits(name, arg, dtype, name)
        return arg
    if is_torch(arg):
        arg = bridge().number(name, arg)
    if isinstance(arg, np.ndarray) and arg.ndim == 0:
        arg = arg[()]
    boolean = isinstance(arg, (bool, np.bool_))
    if dtype.kind == "bool" and boolean:
        return bool(arg)
    if dtype.is_float and isinstance(arg, (int, float, np.integer, np.floating)) and not boolean:
        try:
            return float(arg)
        except OverflowError:
            raise ArgumentError(f"argument {name}: got an integer beyond every {dtype}") from None
    if dtype.is_integer and isinstance(arg, (int, np.integer)) and not boolean:
        value = operator.index(arg)
        _fits(name, value, dtype, name)
        return value
    raise ArgumentError(f"argument {name}: got {type(arg).__name__}, expected {dtype}")


def _fits(name: str, value: int, dtype: DType, who: str) -> None:
    low = -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
    high = (1 << (dtype.bits - (dtype.kind == "int"))) - 1
    if not low <= value <= high:
        shown = "" if who == name else f"{name} is "
        raise ArgumentError(f"argument {who}: {shown}{value}, expected a value that {dtype} holds")
