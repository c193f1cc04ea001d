"""At a call on a GPU: arguments that lie there, taken apart; index arrays are checked there.

All arrays stay where they are. Those on the GPU are read on the host where the choice of a version
depends on what they hold, and where a check fails.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.codegen.nvvm import ALIGN
from spcomp.dtypes import dtype as dtype_of
from spcomp.errors import ArgumentError
from spcomp.kernels.frame import Frame
from spcomp.runtime.cuda.arrays import DeviceArray, apart, array_of, is_sparse, lies_there
from spcomp.runtime.cuda.sparse import DeviceSparse, sparse_of
from spcomp.runtime.residents import Resident, Residents, aligned, memory_of
from spcomp.tensors import checks
from spcomp.tensors.arguments import require_levels
from spcomp.tensors.checks import Coordinates, Pointers
from spcomp.tensors.device_tensor import DeviceTensor
from spcomp.tensors.storage import Storage
from spcomp.tensors.tensor import Level
from spcomp.tensors.verdict import Verdict, arrays_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spcomp.compiler.interface import BufferPlan, Interface
    from spcomp.compiler.options import Options
    from spcomp.dtypes import DType

_HINT = "make one with .tocsr() of CuPy or .to_sparse_csr() of PyTorch"


class DeviceFrame(Frame):
    """The parameters of a call on a GPU, in *memory*.

    *patterns_there*: by the name of an axis, the argument on the GPU that has its arrays. *keep*:
    index arrays are copied, so that nobody changes them, and checked now (``bind``). *verdict*:
    the checks of what arrays on the GPU hold; *verify*: those asked for by the call.
    """

    __slots__ = ("keep", "memory", "options", "patterns_there", "verdict", "verify")

    def __init__(
        self, interface: Interface, options: Options, memory: Residents, *, keep: bool = False
    ) -> None:
        super().__init__(interface, options.constants)
        self.options, self.memory, self.keep = options, memory, keep
        self.patterns_there: dict[str, DeviceSparse] = {}
        self.verdict, self.verify = Verdict(memory, options.target), False

    @property
    def held(self) -> list[DeviceArray]:
        """One of the arrays on the GPU, if there are any."""
        there = filter(None, map(self._there, self.values.values()))
        return [array for array, _ in zip(there, range(1), strict=False)]

    def _new(self) -> DeviceFrame:
        frame = DeviceFrame(self.interface, self.options, self.memory)
        frame.patterns_there = dict(self.patterns_there)
        return frame

    def at(self, memory: Residents) -> None:
        """Let the call run in *memory*, where nothing was checked yet."""
        self.memory, self.verdict = memory, Verdict(memory, self.options.target)
        stream = memory.place.stream
        for name, value in self.values.items():
            if isinstance(value, Resident):
                self.values[name] = Resident(value.array, stream, value.copy)

    def take(self, name: str, arg: Any, *, verify: bool, raw: bool = False) -> None:
        """Bind the argument called *name*, as ``Frame.take``."""
        self.verify |= verify
        super().take(name, arg, verify=verify, raw=raw)

    def freeze(self, how: str) -> None:
        """Put what the host has on the GPU, to stay: index arrays and inputs.

        What the kernels read of index arrays is checked as far as their sizes are known, values
        if *how* is ``"bind"``, as calls check them else.
        """
        self._check_bound()
        if how == "bind":
            for plan in self.interface.buffers:
                if plan.handle in self.values:
                    self._check_once(plan.handle)
            self.verdict.read()
        for handle in self.interface.index_of:
            if isinstance(array := self.values.get(handle), np.ndarray):
                if memory_of(array) not in self.memory.known:
                    self.values[handle] = array = checks.private(array)
                self.memory.put(array)
        for plan in self.interface.buffers:
            array = self.values.get(plan.handle)
            if plan.role == "in" and isinstance(array, np.ndarray):
                copy = array_of(array, self.memory.place)  # not put(): the user may change his own
                self.values[plan.handle] = self.memory.resident(copy)

    def _check_bound(self) -> None:
        """Check the index arrays that are bound; the host reads those that decide a version."""
        if self.verify:
            super()._check_bound()
        self.verdict.read()
        for axis in self.interface.sparse_axes:
            if axis.indptr in self.values:
                np.asarray(self.values[axis.indptr])  # which decides a version: no call waits

    def _storage(self, plan: BufferPlan, arg: Any, *, verify: bool, raw: bool) -> Storage:
        if not lies_there(arg):
            return super()._storage(plan, arg, verify=verify, raw=raw)
        if isinstance(arg, DeviceTensor):
            return self._tensor(plan, arg)
        if is_sparse(arg):
            return self._sparse(plan, arg, verify=verify, raw=raw)
        if not plan.handle:
            raise _unlike(plan, arg, "a sparse matrix with the pattern of the axis")
        array = self._array_of(plan.name, arg, plan.dtype, written=plan.role != "in")
        if raw or self.interface.any_shape:
            return Storage(arg, self._value(array), array.shape if not raw else None)
        shape = array.shape if plan.layout == "dense" else None
        expected = len(plan.shape) if plan.layout == "dense" else 1
        if len(array.shape) != expected:
            wanted = f"{expected} dimensions" if shape is not None else "its values, 1 dimension"
            raise _unlike(plan, arg, wanted, f"shape {array.shape}")
        return Storage(arg, self._value(array), shape)

    def _index_storage(self, handle: str, arg: Any, *, verify: bool) -> Storage:
        if not lies_there(arg):
            return super()._index_storage(handle, arg, verify=verify)
        dtype = self.interface.index_of[handle][0].idtype
        array = array_of(arg, self.memory.place, handle)
        if array.dtype.numpy_name != dtype:
            raise ArgumentError(f"argument {handle}: got {array.dtype}, expected {dtype}")
        aligned(array, handle, ALIGN)
        return Storage(arg, self._value(self.memory.clone(array) if self.keep else array))

    def _value(self, array: DeviceArray) -> Any:
        return self.memory.resident(array)

    def _array_of(self, who: str, arg: Any, dtype: DType, *, written: bool) -> DeviceArray:
        """Return the array *arg* of the GPU; raises ArgumentError unless it holds *dtype*."""
        array = array_of(arg, self.memory.place, who, written=written)
        same = array.dtype == dtype or (dtype.kind == "bfloat" and str(array.dtype) == "uint16")
        if not same:
            raise ArgumentError(f"argument {who}: got {array.dtype}, expected {dtype}")
        return aligned(array, who, ALIGN)

    def _tensor(self, plan: BufferPlan, tensor: DeviceTensor) -> Storage:
        """Return *tensor*, whose index arrays nobody changes, in the layout of *plan*."""
        who = plan.name
        if self.interface.any_shape:
            raise _unlike(plan, tensor, "its values")
        require_levels(tensor, plan)
        levels: list[Any] = []
        for axis, level in zip(plan.axes, tensor.levels, strict=True):
            arrays = {name: getattr(level, name, None) for name in ("indptr", "indices")}
            found = {
                name: self._as_index(f"{who}.{name}", self._there_now(array, who), axis.idtype)
                for name, array in arrays.items()
                if array is not None
            }
            levels.append(Level(level.kind, **found) if level and found else None)  # type: ignore[arg-type]
        values = None
        if plan.handle:
            values = self._value(self._array_of(who, tensor.data, plan.dtype, written=False))
        return Storage(tensor, values, tensor.shape, tuple(levels), "tensor", True)

    def _there_now(self, array: DeviceArray, who: str) -> Resident:
        """Return *array* after what computes it."""
        return self.memory.resident(array_of(array, self.memory.place, who))

    def _sparse(self, plan: BufferPlan, arg: Any, *, verify: bool, raw: bool) -> Storage:
        """Return the sparse matrix *arg*, in the layout of *plan*, as arrays."""
        who = plan.name
        matrix = sparse_of(arg, self.memory.place, who, written=plan.role != "in")
        if raw or self.interface.any_shape or plan.layout not in ("csr", "bsr"):
            raise _unlike(plan, arg, "a dense array" if plan.layout == "dense" else "its values")
        if matrix.format != plan.layout or matrix.indptr is None:
            raise _unlike(plan, arg, f"{plan.layout}, as the buffer is laid out", matrix.format)
        block = matrix.data.shape[1:] or (1, 1)
        rows, columns = (n // b for n, b in zip(matrix.shape, block, strict=True))
        if self.keep:
            parts = (self.memory.clone(part) for part in (matrix.indptr, *matrix.indices))
            indptr, indices = parts
            matrix = replace(matrix, indptr=indptr, indices=(indices,))
        level = self._level_of(plan, matrix, rows, columns, verify=verify)
        self.patterns_there.setdefault(plan.axes[1].name, matrix)
        values = (
            self._array_of(who, matrix.data, plan.dtype, written=False) if plan.handle else None
        )
        shape = (rows, columns, *block) if plan.layout == "bsr" else (rows, columns)
        levels = (None, level, None, None) if plan.layout == "bsr" else (None, level)
        resident = None if values is None else self._value(values)
        return Storage(arg, resident, shape, levels, "raw", verify)

    def _level_of(
        self, plan: BufferPlan, matrix: DeviceSparse, rows: int, columns: int, *, verify: bool
    ) -> Level:
        """Return the index arrays of *matrix*; *verify*: after a check of what they hold."""
        who, axis = plan.name, plan.axes[1]
        assert matrix.indptr is not None
        given = {"indptr": matrix.indptr, "indices": matrix.indices[0]}
        arrays = {f"{who}.{part}": array for part, array in given.items()}
        indptr, indices = (
            self._as_index(name, self._value(aligned(array, name, ALIGN)), axis.idtype)
            for name, array in arrays.items()
        )
        stored = indices.size
        if len(matrix.data.shape) and matrix.data.shape[0] != stored:
            raise ArgumentError(
                f"argument {who}: has {matrix.data.shape[0]} values and {stored} indices"
            )
        begins, coordinates = arrays
        levels = {begins: indptr, coordinates: indices}
        self._run(Pointers(begins, rows, 0, stored, stored), levels)
        if verify:
            self._run(Coordinates(coordinates, 0, columns - 1, 2, begins), levels)
        return Level("compressed", indptr, indices)  # type: ignore[arg-type]

    def _as_index(self, who: str, array: Resident, idtype: np.dtype[Any]) -> Resident:
        """Return an index *array* as *idtype*, converted on the GPU."""
        same = array.dtype == idtype
        return array if same else self.verdict.converted(who, array, np.dtype(idtype).name)

    def _run(self, check: checks.Check, arrays: Mapping[str, Any] | None = None) -> None:
        """Run *check*; of arrays on the GPU, which are those of the frame or *arrays*, there."""
        given, names = (self.values, self.shown) if arrays is None else (arrays, str)
        if self.verdict.takes(check, given):
            self.verdict.ask(check, given, names)
            return
        if not isinstance(check, checks.Apart):
            given = {name: np.asarray(given[name]) for name in arrays_of(check)}
        check.run(given, names)

    def require(self) -> None:
        """Raise ArgumentError if a parameter is unknown, as ``Frame.require``; or for an array."""
        super().require()
        self.verdict.read()

    def check(self, *, verify: bool) -> None:
        """Run the checks that were not made before, as ``Frame.check``."""
        super().check(verify=verify)
        self.verdict.read()

    def check_order(self, needed: frozenset[str], *, verify: bool) -> None:
        """Check what a version relies on, as ``Frame.check_order``."""
        super().check_order(needed, verify=verify)
        self.verdict.read()

    def _same(self, a: Any, b: Any) -> bool:
        there = isinstance(a, Resident) and isinstance(b, Resident)
        return self.verdict.same(a, b) if there else super()._same(a, b)

    def _apart(self, handle: str) -> Iterator[checks.Check]:
        output = self.values[handle]
        if isinstance(output, np.ndarray):
            yield from super()._apart(handle)
            return
        for name, other in self.values.items():
            there = self._there(other)
            if name != handle and there and not apart(output.array, there):
                raise ArgumentError(
                    f"argument {self.shown(handle)}: shares memory with {self.shown(name)}, and the"
                    " program writes it",
                    hint="give an array of its own, or leave it out",
                )

    def _there(self, value: Any) -> DeviceArray | None:
        """Return where *value* lies on the GPU, if it lies there already."""
        if isinstance(value, Resident):
            return value.array
        known = self.memory.known.get(memory_of(value)) if isinstance(value, np.ndarray) else None
        return None if known is None else known[1].array

    def on_device(self) -> dict[str, Any]:
        """Return the values of all parameters, with all arrays on the GPU."""
        result = {}
        for name, value in self.values.items():
            if isinstance(value, np.ndarray):
                plan = self.interface.by_handle.get(name)
                fresh = plan is not None and plan.role == "out" and is_overwritten(plan)
                put = self._room if fresh else self.memory.put
                result[name] = put(value)
            else:
                result[name] = value
        return result

    def _room(self, array: Any) -> Resident:
        """Return an array of the GPU like *array*, which is not read."""
        return self.memory.output(array.shape, dtype_of(array.dtype.name), None)


def is_overwritten(plan: BufferPlan) -> bool:
    """Return whether a call writes every element of *plan*; fibers may begin behind the first."""
    return plan.full and all(axis.indptr is None for axis in plan.axes)


def _unlike(plan: BufferPlan, arg: Any, expected: str, got: str = "") -> ArgumentError:
    what = f"{type(arg).__name__} of {got}" if got else type(arg).__name__
    hint = _HINT if plan.layout == "csr" else ""
    return ArgumentError(f"argument {plan.name}: got {what}, expected {expected}", hint=hint)
