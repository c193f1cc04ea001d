"""At a call on a GPU: arguments that lie there, taken apart; index arrays are checked on the host.

Index arrays in a frame are arrays of the host, also those of arguments on the GPU: they are copied
from there once, as sizes, checks and the choice of a version depend on what they hold. Values stay
where they are.
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
from spcomp.tensors.checks import Coordinates, Pointers
from spcomp.tensors.storage import Storage
from spcomp.tensors.tensor import Level

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spcomp.compiler.interface import BufferPlan, Interface
    from spcomp.dtypes import DType

_HINT = "make one with .tocsr() of CuPy or .to_sparse_csr() of PyTorch"


class DeviceFrame(Frame):
    """The parameters of a call on a GPU, in *memory*.

    *patterns_there*: by the name of an axis, the argument on the GPU that has its arrays. *keep*:
    index arrays are copied, so that nobody changes them (``bind``).
    """

    __slots__ = ("keep", "memory", "patterns_there")

    def __init__(
        self,
        interface: Interface,
        constants: dict[str, int | float],
        memory: Residents,
        *,
        keep: bool = False,
    ) -> None:
        super().__init__(interface, constants)
        self.memory, self.keep = memory, keep
        self.patterns_there: dict[str, DeviceSparse] = {}

    @property
    def held(self) -> list[DeviceArray]:
        """One of the arrays on the GPU, if there are any."""
        there = filter(None, map(self._there, self.values.values()))
        return [array for array, _ in zip(there, range(1), strict=False)]

    def _new(self) -> DeviceFrame:
        frame = DeviceFrame(self.interface, {}, self.memory)
        frame.patterns_there = dict(self.patterns_there)
        return frame

    def freeze(self) -> None:
        """Put what the host has on the GPU, to stay: index arrays and inputs."""
        for handle in self.interface.index_of:
            if isinstance(array := self.values.get(handle), np.ndarray):
                if memory_of(array) not in self.memory.known:
                    self.values[handle] = array = checks.private(array)
                self.memory.put(array)
        for plan in self.interface.buffers:
            array = self.values.get(plan.handle)
            if plan.role == "in" and isinstance(array, np.ndarray):
                self.values[plan.handle] = self.memory.put(array)

    def _storage(self, plan: BufferPlan, arg: Any, *, verify: bool, raw: bool) -> Storage:
        if not lies_there(arg):
            return super()._storage(plan, arg, verify=verify, raw=raw)
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
        pointers = any(axis.indptr == handle for axis in self.interface.index_of[handle])
        return Storage(arg, self._index(handle, array, read=verify or pointers))

    def _value(self, array: DeviceArray) -> Any:
        return self.memory.resident(array)

    def _array_of(self, who: str, arg: Any, dtype: DType, *, written: bool) -> DeviceArray:
        """Return the array *arg* of the GPU; raises ArgumentError unless it holds *dtype*."""
        array = arg
        if not isinstance(arg, DeviceArray):
            array = array_of(arg, self.memory.place, who, written=written)
        same = array.dtype == dtype or (dtype.kind == "bfloat" and str(array.dtype) == "uint16")
        if not same:
            raise ArgumentError(f"argument {who}: got {array.dtype}, expected {dtype}")
        return aligned(array, who, ALIGN)

    def _index(self, who: str, array: DeviceArray, *, read: bool = True) -> Any:
        """Return an index array as the frame has it; *read*: its content is asked for."""
        aligned(array, who, ALIGN)
        if self.keep:
            array = self.memory.clone(array)
        return self.memory.fetch(array) if read or self.keep else self._value(array)

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
        read = verify or self.keep or matrix.indices[0].dtype.numpy_name != axis.idtype
        indptr = self.memory.fetch(aligned(matrix.indptr, f"{who}.indptr", ALIGN))
        place = aligned(matrix.indices[0], f"{who}.indices", ALIGN)
        indices = self.memory.fetch(place) if read else self._value(place)
        arrays = {f"{who}.indptr": indptr, f"{who}.indices": indices}
        stored = len(indices)
        if len(matrix.data.shape) and matrix.data.shape[0] != stored:
            raise ArgumentError(
                f"argument {who}: has {matrix.data.shape[0]} values and {stored} indices"
            )
        begins, coordinates = arrays
        Pointers(begins, rows, 0, stored, stored).run(arrays, str)
        if verify:
            Coordinates(coordinates, 0, columns - 1, 2, begins).run(arrays, str)
        return Level("compressed", indptr, indices)

    def check(self, *, verify: bool) -> None:
        """Run the checks that were not made before, as ``Frame.check``."""
        for check in self._checks(verify=verify):
            names = {check.array, getattr(check, "indptr", "")} - {""}
            arrays = self.values
            if not isinstance(check, checks.Apart):
                arrays = {name: np.asarray(self.values[name]) for name in names}
            check.run(arrays, self.shown)
            self.checks.append(check)

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
                fresh = plan is not None and plan.role == "out" and plan.full
                put = self._room if fresh else self.memory.put
                result[name] = put(value)
            else:
                result[name] = value
        return result

    def _room(self, array: Any) -> Resident:
        """Return an array of the GPU like *array*, which is not read."""
        return self.memory.output(array.shape, dtype_of(array.dtype.name), None)


def _unlike(plan: BufferPlan, arg: Any, expected: str, got: str = "") -> ArgumentError:
    what = f"{type(arg).__name__} of {got}" if got else type(arg).__name__
    hint = _HINT if plan.layout == "csr" else ""
    return ArgumentError(f"argument {plan.name}: got {what}, expected {expected}", hint=hint)
