"""After a call on a GPU: results, on the GPU or the host, of the library of the operands."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.kernels.results import as_results, result_wrap, verify_assembled
from spcomp.runtime.cuda.arrays import to_host
from spcomp.runtime.cuda.sparse import sparse_from, with_data
from spcomp.tensors.device_tensor import DeviceTensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spcomp.arrays import Array
    from spcomp.compiler.interface import BufferPlan
    from spcomp.kernels.gpu.frame import DeviceFrame
    from spcomp.runtime.cuda.arrays import Library
    from spcomp.runtime.cuda.sparse import DeviceSparse
    from spcomp.runtime.residents import Resident


def library_of_result(frame: DeviceFrame, plan: BufferPlan) -> Library:
    """Return the library of the result of *plan*: that of its pattern, else of the operands."""
    pattern = _pattern(frame, plan)
    return frame.memory.place.library if pattern is None else pattern.data.library


def deliver(
    frame: DeviceFrame,
    values: Mapping[str, Any],
    arrays: Mapping[str, Resident],
    *,
    verify: bool,
) -> Any:
    """Return the outputs of a call, whose parameters are *values* on the GPU.

    *arrays*: those of assembled outputs. An output that was given comes back as it is, with the
    result in it. A result with the pattern of an operand lies where the operand does. *verify*:
    check that assembled results make tensors. What the host gets is waited for.
    """
    results = []
    for plan in frame.interface.outputs:
        if plan.handle in frame.given:
            target = frame.values[plan.handle]
            if isinstance(target, np.ndarray):
                to_host(values[plan.handle].array, frame.memory.place.stream, target)
            results.append(frame.given[plan.handle])
        else:
            there = _there(frame, plan, values, arrays)
            results.append(_here(frame, plan, values, arrays) if there is None else there)
    if verify:
        verify_assembled(frame.interface, results)
    return as_results(frame.interface, results)


def _pattern(frame: DeviceFrame, plan: BufferPlan) -> DeviceSparse | None:
    """Return the sparse matrix on the GPU whose pattern the result of *plan* has."""
    if plan.layout not in ("csr", "bsr") or plan.is_assembled:
        return None
    return frame.patterns_there.get(plan.axes[1].name)


def _unshared(frame: DeviceFrame, plan: BufferPlan, pattern: DeviceSparse) -> DeviceSparse:
    """Return *pattern* with copies of index arrays that are bound: users may change a result."""
    assert pattern.indptr is not None
    if plan.axes[1].indptr not in frame.bound:
        return pattern
    indptr, *indices = map(frame.memory.clone, (pattern.indptr, *pattern.indices))
    return replace(pattern, indptr=indptr, indices=tuple(indices))


def _there(
    frame: DeviceFrame,
    plan: BufferPlan,
    values: Mapping[str, Resident],
    arrays: Mapping[str, Resident],
) -> Any:
    """Return the result of *plan* on the GPU, or None if it belongs on the host."""
    if (pattern := _pattern(frame, plan)) is not None:
        return with_data(_unshared(frame, plan, pattern), values[plan.handle].array)
    leaf = plan.leaf
    pattern_of = ("raw", None, None) if leaf is None else frame.patterns.get(leaf.name, ("raw",))
    if isinstance(pattern_of[-1], DeviceTensor):
        return pattern_of[-1].with_values(values[plan.handle].array)
    library = frame.memory.place.library
    if library == "host":
        return None
    if plan.is_assembled:
        return _assembled(frame, plan, arrays, library) if plan.layout == "csr" else None
    if pattern_of[0] != "raw":
        return None
    return values[plan.handle].array.owner


def _assembled(
    frame: DeviceFrame, plan: BufferPlan, arrays: Mapping[str, Resident], library: Library
) -> Any:
    """Return the csr matrix of *library* that *arrays* are, or None if it has none."""
    axis = plan.axes[1].name
    names = f"{axis}_indptr", f"{axis}_indices", plan.handle
    indptr, indices, data = (arrays[name].array for name in names)
    if library not in ("torch", "cupy"):
        return None
    shape = tuple(frame.size_of(extent) for extent in plan.shape)
    return sparse_from("csr", indptr, indices, data, shape)


def _here(
    frame: DeviceFrame,
    plan: BufferPlan,
    values: Mapping[str, Resident],
    arrays: Mapping[str, Resident],
) -> Any:
    """Return the result of *plan* on the host, as a call on the host does."""
    for name in frame.interface.index_of:
        if name in frame.values:
            frame.values[name] = np.asarray(frame.values[name])
    host: dict[str, Array] = {name: np.asarray(array) for name, array in arrays.items()}
    if not plan.is_assembled:
        host[plan.handle] = np.asarray(values[plan.handle])
    wrap = result_wrap(frame, plan, host)
    result = host[plan.handle]
    return result if wrap is None else wrap.of(result, wrap.pattern)
