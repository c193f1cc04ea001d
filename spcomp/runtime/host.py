"""During a call: the host program of a Module, run between its compiled functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from spcomp.codegen.abi import OUT_OF_MEMORY, pack
from spcomp.errors import ArgumentError, OutOfMemoryError
from spcomp.ir.analysis.sizes import evaluate
from spcomp.ir.axis import Buffer
from spcomp.ir.module import MEASURED, HostAlloc, Launch, Return, Scan, Trim
from spcomp.runtime.recycle import empty

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spcomp.ir.func import Func
    from spcomp.ir.module import HostOp

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class Code(Protocol):
    """Compiled functions, by name."""

    def call(self, name: str, slots: Sequence[int]) -> int:
        """Run the function *name* on one 8-byte slot per parameter; return its status."""

    def message(self, name: str, status: int) -> str:
        """Return what a *status* of the function *name* other than 0 means."""


def run(
    host: Sequence[HostOp],
    funcs: Mapping[str, Func],
    code: Code,
    values: dict[str, Any],
) -> dict[str, Array]:
    """Run *host* and return the arrays that it returns, by name.

    *values* has the scalars and arrays of the source's parameters; what the host makes is added.
    Raises ArgumentError where a function fails.
    """
    results: dict[str, Array] = {}
    for op in host:
        match op:
            case Launch(func=name):
                _measure(funcs[name], host, values)
                launch(funcs[name], code, values)
            case Scan(buffer=buffer):
                array = values[buffer.name]
                values[buffer.name] = _scan(array)
            case HostAlloc(buffer=buffer, fill=fill):
                values[buffer.name] = _alloc(buffer, fill, values)
            case Trim(buffer=buffer, size=size):
                values[buffer.name] = _trim(values[buffer.name], int(evaluate(size, values)))
            case Return(buffers=buffers):
                results |= {b.name: values[b.name] for b in buffers}
    return results


def launch(func: Func, code: Code, values: Mapping[str, Any]) -> None:
    """Call the compiled *func* with its parameters out of *values*; raises what it fails with."""
    slots = []
    for param in func.params:
        value = values.get(param.name)
        if param.dtype.kind != "handle":
            if value is None:
                raise ArgumentError(
                    f"argument {param.name}: missing, and {func.name} takes it",
                    hint="no other argument tells it: give it by name",
                )
            slots.append(pack(param.dtype, value))
        else:
            slots.append(0 if value is None else span(value)[0])
    status = code.call(func.name, slots)
    if status:
        raise failure(func.name, code.message(func.name, status))


def failure(name: str, message: str) -> ArgumentError:
    """Return the error of the function *name*, whose status means *message*."""
    kind = OutOfMemoryError if message == OUT_OF_MEMORY else ArgumentError
    return kind(f"{name}: {message}")


def _measure(func: Func, host: Sequence[HostOp], values: Mapping[str, Any]) -> None:
    """Refuse arrays that are smaller than *func* declares them.

    Those that the host program made; of a function that a person wrote, all.
    """
    made = {op.buffer.name for op in host if isinstance(op, HostAlloc)}
    every = func.attr(MEASURED, False)
    for buffer in func.buffers:
        name = buffer.data.name if buffer.data is not None else ""
        if not (every or name in made) or not isinstance(buffer, Buffer) or name not in values:
            continue
        size, array = int(evaluate(buffer.shape[0], values)), values[name]
        there = 0 if array is None else array.size
        if there < size:
            who = "the host program made" if name in made else "there are"
            raise ArgumentError(f"{func.name} takes {size} elements of {name}, {who} {there}")


def _scan(array: Array) -> Array:
    """Running sums in the array's own dtype; refused where they do not fit."""
    array[:1] = 0
    total = np.cumsum(array, dtype=np.int64)
    if array.size and int(total[-1]) > np.iinfo(array.dtype).max:
        raise ArgumentError(
            f"the result has {total[-1]} elements, more than {array.dtype} index arrays can hold",
            hint='declare the axis with idtype="int64"',
        )
    array[:] = total
    return array


def _trim(array: Array, size: int) -> Array:
    """Return the first *size* elements of *array*, which nobody else has; the rest is given back.

    Raises ArgumentError if it has fewer.
    """
    if not 0 <= size <= array.size:
        raise ArgumentError(f"the host program keeps {size} elements of {array.size}")
    if size < array.size and array.flags.owndata:
        array.resize(size, refcheck=False)
    return array[:size]


def _alloc(buffer: Buffer, fill: float | None, values: Mapping[str, Any]) -> Array:
    size = int(evaluate(buffer.shape[0], values))
    if size < 0:
        raise ArgumentError(f"the host program makes {buffer.name} with {size} elements")
    dtype = np.dtype(buffer.dtype.numpy_name)
    if fill is None:
        return empty(size, dtype)
    return np.full(size, fill, dtype) if fill else np.zeros(size, dtype)


def span(array: Array) -> tuple[int, int]:
    """Return the addresses of the first byte of a contiguous *array* and of the one after it."""
    begin = int(array.__array_interface__["data"][0])
    return begin, begin + array.nbytes
