"""During a call: the host program of a Module, run between its compiled functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from spcomp.arrays import Array
from spcomp.codegen.abi import OUT_OF_MEMORY, pack
from spcomp.errors import ArgumentError, OutOfMemoryError
from spcomp.ir.analysis.sizes import evaluate
from spcomp.ir.axis import Buffer
from spcomp.ir.module import MEASURED, HostAlloc, Launch, Return, Scan, Trim
from spcomp.runtime.recycle import empty

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from spcomp.dtypes import DType
    from spcomp.ir.func import Func
    from spcomp.ir.module import HostOp


class Code(Protocol):
    """Compiled functions, by name."""

    def launch(self, func: Func, values: Mapping[str, Any]) -> int:
        """Run *func* with its parameters from *values*; return its status."""

    def message(self, name: str, status: int) -> str:
        """Return what a *status* of the function *name* other than 0 means."""


class Memory(Protocol):
    """The memory that arrays of a host program lie in: what it does to them."""

    def allocate(self, size: int, dtype: DType, fill: float | None) -> Any:
        """Return a new array of *size* elements of *fill*, or of anything if that is None."""

    def scan(self, array: Any) -> Any:
        """Return *array* as running sums from 0; ArgumentError if its dtype cannot hold them."""

    def trim(self, array: Any, size: int) -> Any:
        """Return the first *size* elements of *array*, which has as many, and free the rest."""


class HostMemory:
    """Memory of this process: arrays of numpy."""

    def allocate(self, size: int, dtype: DType, fill: float | None) -> Array:
        """Return a new array of *size* elements of *fill*, or of anything if that is None."""
        kind = np.dtype(dtype.numpy_name)
        if fill is None:
            return empty(size, kind)
        return np.full(size, fill, kind) if fill else np.zeros(size, kind)

    def scan(self, array: Array) -> Array:
        """Return *array* as running sums from 0; ArgumentError if its dtype cannot hold them."""
        array[:1] = 0
        total = np.cumsum(array, dtype=np.int64)
        if array.size and int(total[-1]) > np.iinfo(array.dtype).max:
            raise ArgumentError(
                f"the result has {total[-1]} elements, more than {array.dtype} index arrays can"
                " hold",
                hint='declare the axis with idtype="int64"',
            )
        array[:] = total
        return array

    def trim(self, array: Array, size: int) -> Array:
        """Return the first *size* elements of *array*, which nobody else uses."""
        if size < array.size and array.flags.owndata:
            array.resize(size, refcheck=False)
        return array[:size]


HOST = HostMemory()


def run(
    host: Sequence[HostOp],
    funcs: Mapping[str, Func],
    code: Code,
    values: dict[str, Any],
    memory: Memory = HOST,
) -> dict[str, Any]:
    """Run *host* and return the arrays that it returns, by name.

    *values* has the scalars and arrays of the source's parameters; arrays that the host program
    allocates are added. All arrays lie in *memory*. Raises ArgumentError if a function fails.
    """
    results: dict[str, Any] = {}
    allocated = {op.buffer.name for op in host if isinstance(op, HostAlloc)}
    for op in host:
        match op:
            case Launch(func=name):
                _check_sizes(funcs[name], allocated, values)
                launch(funcs[name], code, values)
            case Return(buffers=buffers):
                results |= {b.name: values[b.name] for b in buffers}
            case _:
                values[op.buffer.name] = array_of(op, values, memory)
    return results


def array_of(op: HostAlloc | Scan | Trim, values: Mapping[str, Any], memory: Memory = HOST) -> Any:
    """Return the array that *op* makes of *values*, in *memory*; raises ArgumentError."""
    match op:
        case HostAlloc(buffer=buffer, fill=fill):
            return _alloc(buffer, fill, values, memory)
        case Scan(buffer=buffer):
            return memory.scan(values[buffer.name])
        case Trim(buffer=buffer, size=size):
            return _trim(values[buffer.name], int(evaluate(size, values)), memory)


def launch(func: Func, code: Code, values: Mapping[str, Any]) -> None:
    """Run the compiled *func* with its parameters from *values*; raises ArgumentError."""
    status = code.launch(func, values)
    if status:
        raise failure(func.name, code.message(func.name, status))


def scalar(func: Func, name: str, values: Mapping[str, Any]) -> Any:
    """Return the number that the parameter *name* of *func* is; ArgumentError if none is known."""
    if (value := values.get(name)) is None:
        raise ArgumentError(
            f"argument {name}: missing, and {func.name} takes it",
            hint="no other argument tells it: give it by name",
        )
    return value


def slots(func: Func, values: Mapping[str, Any]) -> list[int]:
    """Return one 8-byte slot for each parameter of *func*; raises ArgumentError."""
    result = []
    for param in func.params:
        if param.dtype.kind != "handle":
            result.append(pack(param.dtype, scalar(func, param.name, values)))
        else:
            array = values.get(param.name)
            result.append(0 if array is None else array.__array_interface__["data"][0])
    return result


def failure(name: str, message: str) -> ArgumentError:
    """Return the error of the function *name* that failed with *message*."""
    kind = OutOfMemoryError if message == OUT_OF_MEMORY else ArgumentError
    return kind(f"{name}: {message}")


def _check_sizes(func: Func, allocated: Collection[str], values: Mapping[str, Any]) -> None:
    """Raise ArgumentError for an array that is smaller than *func* declares.

    This checks the arrays *allocated* by the host program, or all if a person wrote the function.
    """
    checks_all = func.attr(MEASURED, False)
    for buffer in func.buffers if checks_all or allocated else ():
        name = buffer.data.name if buffer.data is not None else ""
        if (
            not (checks_all or name in allocated)
            or not isinstance(buffer, Buffer)
            or name not in values
        ):
            continue
        size, array = int(evaluate(buffer.shape[0], values)), values[name]
        there = 0 if array is None else array.size
        if there < size:
            who = "the host program made" if name in allocated else "there are"
            raise ArgumentError(f"{func.name} takes {size} elements of {name}, {who} {there}")


def _trim(array: Any, size: int, memory: Memory) -> Any:
    """Return the first *size* elements of *array*; raises ArgumentError if it has fewer."""
    if not 0 <= size <= array.size:
        raise ArgumentError(f"the host program keeps {size} elements of {array.size}")
    return memory.trim(array, size)


def _alloc(buffer: Buffer, fill: float | None, values: Mapping[str, Any], memory: Memory) -> Any:
    size = int(evaluate(buffer.shape[0], values))
    if size < 0:
        raise ArgumentError(f"the host program makes {buffer.name} with {size} elements")
    return memory.allocate(size, buffer.dtype, fill)
