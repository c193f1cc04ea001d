"""Beside the kernels: whether the arguments of a launch fit the kernel."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from spcomp.errors import ArgumentError
from spcomp.runtime.emulator.faults import Extent
from spcomp.runtime.emulator.text import Operand
from spcomp.runtime.emulator.translate import Kernel

_MOST_GRID = (2**31 - 1, 65535, 65535)
_MOST_BLOCK = (1024, 1024, 64)


def check_extents(kernel: Kernel, grid: Extent, block: Extent) -> None:
    """Raise ArgumentError unless *kernel* can be launched with *grid* and *block*."""
    for what, extent, most, least in (
        ("grid", grid, _MOST_GRID, 0),
        ("block", block, _MOST_BLOCK, 1),
    ):
        if not isinstance(extent, Sequence) or len(extent) != 3:
            raise ArgumentError(f"{what} is {extent}: give three extents (x, y, z)")
        if not all(
            isinstance(n, int | np.integer) and least <= n <= limit
            for n, limit in zip(extent, most, strict=True)
        ):
            raise ArgumentError(f"{what} is {extent}, at most {most} is possible")
    if prod(block) > kernel.most_threads:
        raise ArgumentError(
            f"a block has {prod(block)} threads, {kernel.name} may have {kernel.most_threads}"
        )


_KINDS = {"float": "f4", "double": "f8", "half": "f2", "bfloat": "i2"}
_KINDS |= {"i64": "i8", "i32": "i4", "i16": "i2", "i8": "i1", "i1": "i1"}

_NAMES = {"f": "float", "i": "int"}  # of numpy, by the first letter of a kind


def arguments(
    kernel: Kernel, args: Sequence[Any], names: Sequence[str], *, check: bool
) -> list[tuple[str, Any]]:
    """Return the name and value of each argument; raises ArgumentError unless they fit *kernel*.

    Without *check*, arrays that must not be written have to be parameters declared so.
    """
    if len(args) != len(kernel.params):
        raise ArgumentError(f"{kernel.name} takes {len(kernel.params)} arguments, got {len(args)}")
    result = []
    for k, (param, value) in enumerate(zip(kernel.params, args, strict=True)):
        name = names[k] if k < len(names) else param.value[1:]
        if param.kind.startswith("ptr"):
            _check_array(name, param, value, check=check)
        else:
            _check_number(name, param.kind, value)
        result.append((name, value))
    return result


def _check_array(name: str, param: Operand, value: Any, *, check: bool) -> None:
    if not isinstance(value, np.ndarray) or not value.flags.c_contiguous:
        raise ArgumentError(f"argument {name}: expected a C-contiguous numpy array")
    align = int((re.search(r"align (\d+)", param.attributes) or "01")[1])
    if value.ctypes.data % align:
        raise ArgumentError(f"argument {name}: its address is no multiple of {align} bytes")
    if not (check or value.flags.writeable or "readonly" in param.attributes):
        raise ArgumentError(f"argument {name}: the kernel may write it, but the array is read-only")


def _check_number(name: str, kind: str, value: Any) -> None:
    dtype = value.dtype if isinstance(value, np.generic) else None
    wanted = _KINDS[kind]
    if (
        dtype is None
        or (dtype.kind == "f") != (wanted[0] == "f")
        or dtype.itemsize != int(wanted[1])
    ):
        got = type(value).__name__ if dtype is None else dtype
        number = f"np.{_NAMES[wanted[0]]}{8 * int(wanted[1])}"
        raise ArgumentError(f"argument {name}: got {got}, expected {number} for {kind}")
