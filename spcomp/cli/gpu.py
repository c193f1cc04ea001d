"""Under ``spcomp build``, for a GPU: how kernels are launched, as JSON and as a Python module."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from spcomp.compiler.launches import as_python, number
from spcomp.errors import BackendError
from spcomp.ir.module import HostAlloc, Launch, Return, Scan, Trim
from spcomp.runtime.cuda.driver import STATIC_SHARED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spcomp.compiler.launches import KernelLaunch
    from spcomp.dtypes import DType
    from spcomp.ir.func import Func
    from spcomp.ir.module import HostOp
    from spcomp.kernels.kernel import Kernel


VERSION = 1  # of the JSON: it grows when what a reader knows changes its meaning
_NAMES = {
    *("stream", "element", "cuda", "driver", "np", "ctypes", "struct", "Path"),
    *("max", "min", "int", "float"),
}  # that the module uses


def description(name: str, kernel: Kernel) -> str:
    """Return as JSON what a program needs to launch the PTX of *kernel*, called *name*.

    ``host`` has the steps in order; sizes and numbers of blocks are expressions of Python, with
    ``element(array, index)`` for what the host reads.
    """
    launches = {launch.kernel: launch for launch in kernel.launches}
    params = kernel.signature.params
    value = {
        "version": VERSION,
        "name": name,
        "target": str(kernel.target),
        "ptx": f"{name}.ptx",
        "parameters": [
            {"name": p.handle, "argument": p.name, "kind": p.kind, "type": p.dtype}
            | ({"shape": list(p.shape), "layout": list(p.layout)} if p.shape else {})
            for p in params
        ],
        "kernels": [_kernel(launch) for launch in launches.values()],
        "host": [_step(op) for op in kernel.host],
        "deterministic": not any(launch.atomic for launch in launches.values()),
    }
    return json.dumps(value, indent=2) + "\n"


def _kernel(launch: KernelLaunch) -> dict[str, Any]:
    arguments = [
        {"name": p.name, "type": "pointer" if _is_pointer(p.dtype) else str(p.dtype)}
        | ({"element": str(p.element), "written": p.written} if p.element is not None else {})
        for p in launch.params
    ]
    return {
        "name": launch.kernel,
        "symbol": launch.symbol,
        "arguments": arguments,
        "status": launch.may_fail,
        "messages": list(launch.messages),
        "blocks": [as_python(extent) for extent in launch.blocks],
        "threads": list(launch.threads),
        "shared_bytes": launch.shared_bytes,
        "atomic_floats": list(launch.atomic),
    }


def _step(op: HostOp) -> dict[str, Any]:
    match op:
        case Launch(func=name):
            return {"step": "launch", "kernel": name}
        case HostAlloc(buffer=buffer, fill=fill):
            size, kind = as_python(buffer.shape[0]), str(buffer.dtype)
            value = None if fill is None else number(fill)
            array = {"array": buffer.name, "size": size, "type": kind, "fill": value}
            return {"step": "allocate", **array}
        case Scan(buffer=buffer):
            return {"step": "scan", "array": buffer.name}
        case Trim(buffer=buffer, size=size):
            return {"step": "trim", "array": buffer.name, "size": as_python(size)}
        case Return(buffers=buffers):
            return {"step": "return", "arrays": [buffer.name for buffer in buffers]}


def loader(name: str, kernel: Kernel, source: Func) -> str:
    """Return a Python module that launches the PTX of *kernel*; it needs numba-cuda only.

    *source* is the program. Raises BackendError for a parameter whose name the module needs.
    """
    names = [param.name for param in source.params]
    for taken in set(names) & (_NAMES | {name}):
        raise BackendError(
            f"a Python module cannot have a parameter called {taken}", hint="give it another name"
        )
    steps = list(_statements(kernel.host, {launch.kernel: launch for launch in kernel.launches}))
    kinds = {param.handle: param for param in kernel.signature.params}
    notes = [f"    {handle}: {_note(param)}" for handle, param in kinds.items()]
    atomic = {buffer for launch in kernel.launches for buffer in launch.atomic}
    if atomic:
        notes.append(f"\n    Floats are added to {', '.join(sorted(atomic))} in any order.")
    returned = [op for op in kernel.host if isinstance(op, Return)]
    result = ", ".join(f"{b.name}={b.name}" for op in returned for b in op.buffers)
    return _LOADER.format(
        name=name,
        target=kernel.target,
        params=", ".join(names),
        notes="\n".join(notes),
        steps="\n".join(f"    {step}" for step in steps),
        result=f"dict({result})" if returned else "None",
        static=STATIC_SHARED,
    )


def _note(param: Any) -> str:
    if param.kind == "scalar":
        return f"{param.dtype}, a number"
    if param.kind == "assembled":
        return f"{param.dtype} array that is made and returned: give None"
    shape = f"({', '.join(param.shape)})"
    is_dense = all("dense" in axis for axis in param.layout)
    of = f" of shape {shape}" if is_dense else f" of the values that are stored of {shape}"
    return f"{param.dtype} array{of if param.shape else ''}, {param.kind}"


def _statements(host: Sequence[HostOp], launches: dict[str, KernelLaunch]) -> Iterator[str]:
    """Yield a statement of Python for each operation of *host*."""
    for op in host:
        match op:
            case Launch(func=func):
                launch = launches[func]
                blocks = ", ".join(as_python(extent) for extent in launch.blocks)
                values = ", ".join(f'("{_code(p.dtype)}", {p.name})' for p in launch.params)
                messages = f", {list(launch.messages)!r}" if launch.may_fail else ""
                yield (
                    f'_launch("{launch.symbol}", ({blocks}), {launch.threads},'
                    f" {launch.shared_bytes}, stream, [{values}]{messages})"
                )
            case HostAlloc(buffer=buffer, fill=fill):
                size, kind = as_python(buffer.shape[0]), buffer.dtype.numpy_name
                value = None if fill is None else number(fill)
                yield f'{buffer.name} = _allocate({size}, "{kind}", {value}, stream)'
            case Scan(buffer=buffer):
                yield f"_scan({buffer.name}, stream)"
            case Trim(buffer=buffer, size=size):
                yield f"{buffer.name} = {buffer.name}[:{as_python(size)}]"


def _is_pointer(dtype: DType) -> bool:
    return dtype.kind == "handle"


def _code(dtype: DType) -> str:
    """Return the format of ``struct`` for a parameter of *dtype*."""
    if dtype.is_float:
        return {"bfloat16": "bf", "float16": "e", "float32": "f", "float64": "d"}[str(dtype)]
    if dtype.kind == "handle":
        return "P"
    letter = {1: "?", 8: "b", 16: "h", 32: "i", 64: "q"}[1 if dtype.kind == "bool" else dtype.bits]
    return letter.upper() if dtype.kind == "uint" else letter


_LOADER = '''"""Launches the kernels of {name}.ptx, for {target}, through numba-cuda."""

import ctypes
import struct
from pathlib import Path

import numpy as np
from numba import cuda
from numba.cuda.cudadrv import driver

_PTX = Path(__file__).with_name("{name}.ptx").read_text()
_loaded = {{}}


def {name}({params}, *, stream=0):
    """Launch the program on *stream*, a handle; its result is there when the stream is done.

    The host waits where a kernel may fail, and where it needs a number to go on. Arrays have
    ``__cuda_array_interface__``, are contiguous and begin at multiples of 16 bytes; None stands for
    one that is not used. What index arrays hold is not checked.

{notes}
    """
    def element(array, index):
        driver.driver.cuStreamSynchronize(stream or 1)
        return cuda.as_cuda_array(array)[int(index)].item()

{steps}
    return {result}


def _launch(symbol, blocks, threads, shared, stream, values, messages=None):
    if min(blocks) < 1:
        return
    context = cuda.current_context()
    key = int(context.handle), symbol
    if key not in _loaded:
        module = _loaded.get(key[0]) or context.create_module_ptx(_PTX)
        _loaded[key[0]], _loaded[key] = module, module.get_function(symbol)
        if shared > {static}:
            name = "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
            attribute = getattr(driver.binding.CUfunction_attribute, name)
            kernel = _loaded[key].handle, context.device.id
            driver.driver.cuKernelSetAttribute(attribute, shared, *kernel)
    if messages is not None:
        word = _allocate(1, "int32", -1, stream)
        values = [*values, ("P", word)]
    slots = (ctypes.c_int64 * len(values))(*(_slot(code, value) for code, value in values))
    first = ctypes.addressof(slots)
    pointers = (ctypes.c_void_p * len(values))(*range(first, first + 8 * len(values), 8))
    function = driver.binding.CUfunction(int(_loaded[key].handle))
    driver.driver.cuLaunchKernel(
        function, *map(int, blocks), *threads, shared, stream or 1, ctypes.addressof(pointers), 0
    )
    if messages is not None:
        driver.driver.cuStreamSynchronize(stream or 1)
        status = int(word.copy_to_host()[0])
        if status != -1:
            raise RuntimeError("integer division by zero" if status == -2 else messages[status])


def _slot(code, value):
    if code == "P":
        return 0 if value is None else int(value.__cuda_array_interface__["data"][0] or 0)
    if code == "bf":  # bfloat16: the upper half of a float32, rounded to even
        bits = int.from_bytes(struct.pack("<f", value), "little")
        return 0x7FC0 if value != value else bits + 0x7FFF + (bits >> 16 & 1) >> 16
    return int.from_bytes(struct.pack("<" + code, value).ljust(8, b"\\0"), "little", signed=True)


def _allocate(size, dtype, fill, stream):
    size = int(size)
    array = cuda.device_array(size, dtype)
    if fill is not None and size:
        one = np.full(1, fill, dtype).tobytes()
        if one == one[:1] * len(one):
            count = size * len(one)
            driver.driver.cuMemsetD8Async(_slot("P", array), one[0], count, stream or 1)
        else:
            _write(array, np.full(size, fill, dtype), stream)
    return array


def _write(array, host, stream):
    pointer = _slot("P", array)
    driver.driver.cuMemcpyHtoDAsync(pointer, host.ctypes.data, host.nbytes, stream or 1)
    driver.driver.cuStreamSynchronize(stream or 1)


def _scan(array, stream):
    driver.driver.cuStreamSynchronize(stream or 1)
    counts = array.copy_to_host()
    counts[:1] = 0
    sums = np.cumsum(counts, dtype=np.int64)
    if len(sums) and sums[-1] > np.iinfo(counts.dtype).max:
        raise OverflowError(f"the result has {{sums[-1]}} elements: its indices are too short")
    if len(sums):
        _write(array, sums.astype(counts.dtype), stream)
'''
