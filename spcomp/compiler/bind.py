"""At the call: arguments unified with what the program says of sizes and index arrays."""

from __future__ import annotations

import operator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from spcomp.compiler import validate
from spcomp.compiler.convert import Storage, Style, as_values, convert
from spcomp.compiler.foreign import bridge, is_torch
from spcomp.compiler.tensor import Level, Tensor
from spcomp.errors import ArgumentError
from spcomp.ir.analysis.sizes import evaluate, solve, text
from spcomp.ir.arith.bounds import dtype_range
from spcomp.ir.expr import Const, Expr, Var
from spcomp.ir.visitor import walk
from spcomp.runtime.host import span

if TYPE_CHECKING:
    from spcomp.compiler.signature import AxisPlan, BufferPlan, Interface
    from spcomp.dtypes import DType

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
_Equation: TypeAlias = tuple[
    Expr, int, str, str
]  # size, what it is, whose argument says so, of what


class Frame:
    """The state of one call: what each parameter is, and who said so.

    *values* has scalars and arrays by the names of the parameters; *checked* the axes whose
    arrays need no further look; *inspected* those that this call looked at; *given* the buffers'
    arguments, as they came; *patterns* how the results along an axis should look; *bound* the
    names in *values* that were known before the call.
    """

    __slots__ = (
        *("bound", "checked", "given", "inspected", "interface"),
        *("origin", "patterns", "pending", "values"),
    )

    def __init__(self, interface: Interface, constants: dict[str, int | float]) -> None:
        self.interface = interface
        self.values: dict[str, Any] = dict(constants)
        self.bound: tuple[str, ...] = ()
        self.origin: dict[str, str] = dict.fromkeys(constants, "constants")
        self.pending: list[_Equation] = []
        self.checked: set[str] = set()
        self.inspected: list[AxisPlan] = []
        self.given: dict[str, Any] = {}
        self.patterns: dict[str, tuple[Style, Level | None, Any]] = {}

    def copy(self) -> Frame:
        """Return a frame that starts from here."""
        made = Frame(self.interface, {})
        made.values, made.origin = dict(self.values), dict(self.origin)
        made.pending, made.checked = list(self.pending), set(self.checked)
        made.given, made.patterns = dict(self.given), dict(self.patterns)
        made.bound = tuple(self.values)
        return made

    def freeze(self) -> None:
        """Make the index arrays private: they are not checked again, and results share them."""
        for handle in self.interface.index_of:
            if isinstance(array := self.values.get(handle), np.ndarray):
                self.values[handle] = validate.private(array)
        for name, (style, level, given) in self.patterns.items():
            if level is not None:
                parts = (level.indptr, level.indices)
                own = (None if part is None else validate.private(part) for part in parts)
                self.patterns[name] = style, Level(level.kind, *own), given

    def take(self, name: str, arg: Any, *, verify: bool) -> None:
        """Bind the argument called *name*; raises ArgumentError."""
        face = self.interface
        if name in face.scalars:
            self._scalar(name, arg)
        elif name in face.by_name:
            plan = face.by_name[name]
            if plan.is_assembled and plan.handle:
                raise ArgumentError(
                    f"argument {name}: its pattern is a result of {face.name}, it cannot be given"
                )
            if plan.handle and plan.handle in self.given:
                raise ArgumentError(f"argument {name}: given twice (parameter {plan.handle})")
            storage = convert(arg, plan, verify=verify, any_shape=face.any_shape)
            self._storage(plan, storage)
        elif name in face.index_names:
            self._index(face.index_names[name], arg)
        else:
            raise ArgumentError(
                f"unexpected argument {name} of {face.name}",
                hint=f"its arguments are {', '.join(face.names)}",
            )

    def take_raw(self, name: str, arg: Any) -> None:
        """Bind the parameter *name* to a scalar or to an array of the right size, of any shape."""
        face = self.interface
        if name in face.scalars:
            self._scalar(name, arg)
        elif name in face.index_of:
            self._index(name, arg)
        elif (plan := face.by_handle.get(name)) is not None:
            if not isinstance(arg, np.ndarray):
                raise ArgumentError(f"argument {name}: got {type(arg).__name__}, expected an array")
            if plan.role == "in" and not (arg.flags.c_contiguous and arg.flags.aligned):
                raise ArgumentError(f"argument {name}: is not C-contiguous")
            self._storage(plan, Storage(arg, as_values(plan, arg)))

    def _scalar(self, name: str, arg: Any) -> None:
        dtype = self.interface.scalars[name]
        value = number_of(name, arg, dtype)
        known = self.values.setdefault(name, value)
        if known != value and not (known != known and value != value):
            raise ArgumentError(
                f"argument {name}: got {value}, expected {known} as {self.origin[name]} says"
            )
        self.origin.setdefault(name, name)

    def _index(self, handle: str, arg: Any) -> None:
        users = self.interface.index_of[handle]
        idtype = users[0].idtype
        if not isinstance(arg, np.ndarray):
            raise ArgumentError(f"argument {handle}: got {type(arg).__name__}, expected an array")
        arg = validate.native(handle, arg)
        if arg.dtype != idtype:
            raise ArgumentError(
                f"argument {handle}: got {arg.dtype}, expected {idtype}",
                hint=f"convert it with .astype({str(idtype)!r})",
            )
        plain = arg.flags.c_contiguous and arg.flags.aligned
        array = (arg if plain else np.array(arg, order="C")).reshape(-1)
        self._array(handle, array, handle)

    def _measure(self, axis: AxisPlan, handle: str, array: Array) -> None:
        """Take in what the size of an index array of *axis* says."""
        if handle == axis.indptr and axis.fibers is not None:
            if not array.size:
                raise ArgumentError(
                    f"argument {handle}: is empty, expected one element more than fibers"
                )
            self.unify(axis.fibers, array.size - 1, handle, "number of fibers")
        elif axis.entries is not None:
            self.unify(axis.entries, array.size, handle, "number of elements")

    def _storage(self, plan: BufferPlan, storage: Storage) -> None:
        who = plan.name
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
            self.given[plan.handle] = storage.given
            self._share(plan.handle, storage.values)

    def _level(self, axis: AxisPlan, level: Level, who: str, storage: Storage, at: int) -> None:
        self.patterns.setdefault(axis.name, (storage.style, level, storage.given))
        if level.indptr is not None and axis.indptr is not None:
            array = as_index(f"{who}.indptr", level.indptr, axis.idtype)
            self._array(axis.indptr, array, who, axis)
            if axis.fibers is not None:
                self.unify(axis.fibers, array.size - 1, who, f"number of fibers of {axis.name}")
        if level.indices is not None and axis.indices is not None:
            array = as_index(f"{who}.indices", level.indices, axis.idtype)
            self._array(axis.indices, array.reshape(-1), who, axis)
            if level.kind == "fixed" and axis.nnz_cols is not None:
                self.unify(axis.nnz_cols, array.shape[-1], who, f"width of {axis.name}")
        if axis.entries is not None:
            last = level.indices.size if level.indices is not None else int(level.indptr[-1])  # type: ignore[index]
            self.unify(axis.entries, last, who, f"number of positions of {axis.name}")
        if storage.checked:
            relied_on = axis.name in self.interface.order_needed
            given = storage.given
            if relied_on and isinstance(given, Tensor) and level.kind != "hashed":
                validate.require_order(who, given.ascending(at, unique=axis.unique), axis.unique)
            self.checked.add(axis.name)

    def _array(self, handle: str, array: Array, who: str, own: AxisPlan | None = None) -> None:
        """Bind an index array; two arguments that share an axis must agree.

        It is measured for every axis that has it, but for *own*.
        """
        known = self.values.setdefault(handle, array)
        if known is not array and not _same_array(known, array):
            raise ArgumentError(
                f"argument {who}: its {handle} differs from that of {self.origin[handle]},"
                " expected the same pattern"
            )
        self.origin.setdefault(handle, who)
        self._share(handle, array)
        for axis in self.interface.index_of[handle]:
            if axis is not own:
                self._measure(axis, handle, array)

    def _share(self, handle: str, array: Array) -> None:
        """Measure *array* against the other buffers that are matched to it."""
        for name, size in self.interface.shared.get(handle, ()):
            self.pending.append((size, array.size, name, "room"))

    def unify(self, size: Expr, got: int, who: str, what: str) -> None:
        """Make *size* equal *got*, which the argument *who* says: bind it, compare it, or wait."""
        if isinstance(size, Var):
            known = self.values.setdefault(size.name, got)
            if known is got:
                _fits(size.name, got, self.interface.scalars[size.name], who)
                self.origin.setdefault(size.name, who)
            elif known != got:
                self._conflict(size, known, got, who, what)
        elif isinstance(size, Const):
            if size.value != got:
                self._conflict(size, size.value, got, who, what)
        else:
            self.pending.append((size, got, who, what))

    def _conflict(self, size: Expr, known: Any, got: int, who: str, what: str) -> NoReturn:
        sources = {self.origin[n.name] for n in walk(size) if isinstance(n, Var)} - {who}
        said = f" as {' and '.join(sorted(sources))} says" if sources else ""
        shown = "" if isinstance(size, Const) else f" ({text(size)})"
        most = "at least " if what == "room" else ""
        raise ArgumentError(f"argument {who}: {what}{shown} is {got}, expected {most}{known}{said}")

    def settle(self) -> None:
        """Solve the sizes that wait for others, until nothing new follows."""
        while self.pending:
            waiting: list[_Equation] = []
            for size, got, who, what in self.pending:
                try:
                    known = self.size_of(size)
                except KeyError:
                    found = None if what == "room" else solve(size, got, self.values)
                    if found is None:
                        waiting.append((size, got, who, what))
                    else:
                        self.unify(*found, who, what)
                    continue
                if known > got or (known != got and what != "room"):
                    self._conflict(size, known, got, who, what)
            if len(waiting) == len(self.pending):
                return
            self.pending = waiting

    def size_of(self, size: Expr) -> int:
        """Return the number that *size* is; KeyError while something in it is unknown."""
        try:
            return int(evaluate(size, self.values))
        except ZeroDivisionError:
            raise ArgumentError(f"the size {text(size)} divides by zero") from None

    def require(self) -> None:
        """Raise ArgumentError if a parameter is still unknown, or a size that the program computes.

        What the program computes in 32 bits may be another number there.
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
            if name in self.values or name in face.allocated:
                continue
            if name in face.scalars:
                raise ArgumentError(
                    f"missing argument {name} of {face.name}: no array says what it is",
                    hint=f"give the result that has it as out=, or {name}=... if it is a parameter",
                )
            if name in face.index_of:
                axis = face.index_of[name][0].name
                raise ArgumentError(
                    f"missing argument {name} of {face.name}: an index array of the axis {axis}",
                    hint=f"give a sparse array along {axis}, {axis}=pattern, or {name}=array",
                )
            shown = face.by_handle[name].name
            raise ArgumentError(f"missing argument {shown} of {face.name}")

    def check_arrays(self) -> None:
        """Check the index arrays that no verdict covers yet, and the promised value domains."""
        for axis in self.interface.axes:
            if axis.arrays and axis.name not in self.checked:
                self._check_axis(axis)
                self.checked.add(axis.name)
                self.inspected.append(axis)
        for domain in self.interface.domains:
            data = domain.buffer.data
            plan = None if data is None else self.interface.by_handle.get(data.name)
            if plan is not None and plan.role == "in" and plan.handle in self.values:
                low, high = self.size_of(domain.low), self.size_of(domain.high)
                validate.in_range(plan.name, self.values[plan.handle], low, high)

    def _check_axis(self, axis: AxisPlan) -> None:
        fibers, length = self.size_of(axis.fibers), self.size_of(axis.length)  # type: ignore[arg-type]
        indptr = self.values[axis.indptr] if axis.indptr else None
        indices = self.values[axis.indices] if axis.indices else None
        who = {name: self.shown(name) for name in axis.arrays}
        if indptr is not None:
            limit = self.size_of(axis.positions)  # type: ignore[arg-type]
            validate.pointers(who[axis.indptr], indptr, fibers, limit)  # type: ignore[index]
            if indices is None:
                validate.fits(who[axis.indptr], indptr, length)  # type: ignore[index]
        if indices is not None and axis.indices:
            needed, name = axis.name in self.interface.order_needed, who[axis.indices]
            if needed and indptr is not None and not axis.hashed:
                rises = validate.ordered(name, indptr, indices, length - 1, strict=axis.unique)
                validate.require_order(name, rises, axis.unique)
                return
            validate.in_range(name, indices, self.size_of(axis.least), length - 1)
            if needed and axis.hashed:
                validate.tables(name, indptr, indices)  # type: ignore[arg-type]
            elif needed:
                width = self.size_of(axis.nnz_cols) if axis.nnz_cols is not None else 0
                rises = validate.ascends(indptr, indices, width, strict=axis.unique)
                validate.require_order(name, rises, axis.unique)

    def shown(self, handle: str) -> str:
        """Return how a message should call the index array *handle*."""
        source = self.origin[handle]
        return handle if source == handle else f"{source} ({handle})"


def as_index(who: str, array: Array, idtype: np.dtype[np.generic]) -> Array:
    """Return *array* in *idtype* and contiguous; raises ArgumentError if a value does not fit."""
    if array.dtype != idtype:
        limit = np.iinfo(idtype)  # type: ignore[type-var]
        if array.size and not limit.min <= int(array.min()) <= int(array.max()) <= limit.max:
            raise ArgumentError(
                f"argument {who}: got {array.max()}, expected values that {idtype} holds",
                hint='declare the axis with idtype="int64"',
            )
        return array.astype(idtype)
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _same_array(a: Array, b: Array) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return span(a) == span(b) or bool(np.array_equal(a, b))


def number_of(name: str, arg: Any, dtype: DType) -> int | float:
    """Return *arg* as a Python number of *dtype*; raises ArgumentError."""
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
