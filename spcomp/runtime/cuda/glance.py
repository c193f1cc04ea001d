"""At a repeated call on a GPU: what its arguments are, as a key, and where their memory begins."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, TypeAlias

from spcomp.runtime.cuda.memory import device_of

Key: TypeAlias = tuple[Hashable, ...]
Look: TypeAlias = Callable[[Any], tuple[Key, int] | None]
_LOOKS: dict[type, Look] = {}  # by the type of an argument; what it is depends on nothing else


class Glance(NamedTuple):
    """Arguments: *key* is all that decides how they are used; *begins*: 0 for a number."""

    key: Key
    begins: list[int]


def glance(named: Mapping[Any, Any]) -> Glance | None:
    """Return what *named* are; None unless all are dense arrays on a GPU and numbers."""
    key: list[Any] = []
    begins: list[int] = []
    for name, arg in named.items():
        kind = type(arg)
        seen = (_LOOKS.get(kind) or _look_at(kind))(arg)
        if seen is None:
            return None
        key += (name, kind, seen[0])
        begins.append(seen[1])
    return Glance(tuple(key), begins)


def _look_at(kind: type) -> Look:
    """Return the function that looks at arguments of *kind*."""
    look = _LOOKS[kind] = _new_look(kind)
    return look


def _new_look(kind: type) -> Look:
    if kind in (int, bool):
        return lambda number: ((number,), 0)
    if kind is float:
        return lambda number: ((number.hex(),), 0)  # 0.0 == -0.0
    torch, cupy = map(sys.modules.get, ("torch", "cupy"))
    if torch is not None and issubclass(kind, torch.Tensor):
        return _torch_look(torch.strided)
    if cupy is not None and kind is getattr(cupy, "ndarray", None):
        return _cupy_look
    return _numba_look if hasattr(kind, "__cuda_ndarray__") else _interface_look


def _torch_look(strided: Any) -> Look:
    def look(arg: Any) -> tuple[Key, int] | None:
        if arg.layout != strided or not arg.is_cuda:
            return None
        flags = arg.is_contiguous(), arg.requires_grad, arg.is_neg()
        return (arg.shape, arg.dtype, arg.device, *flags), arg.data_ptr()

    return look


def _cupy_look(arg: Any) -> tuple[Key, int]:
    data = arg.data
    return (arg.shape, arg.dtype, data.device_id, arg.flags.c_contiguous), data.ptr


def _numba_look(arg: Any) -> tuple[Key, int]:
    """Look at an array of numba.cuda, which makes its interface anew each time it is asked."""
    pointer, stream = arg.device_ctypes_pointer.value or 0, arg.stream
    device = device_of(pointer) if pointer else None
    return (arg.shape, arg.dtype, arg.strides, stream and int(stream), device), pointer


def _interface_look(arg: Any) -> tuple[Key, int] | None:
    face = getattr(arg, "__cuda_array_interface__", None)
    if face is None or face.get("mask") is not None:
        return None
    (pointer, read_only), strides = face["data"], face.get("strides")
    device = device_of(pointer) if pointer else None
    steps = None if strides is None else tuple(strides)
    facts = tuple(face["shape"]), face["typestr"], steps, read_only, face.get("stream"), device
    return facts, pointer or 0
