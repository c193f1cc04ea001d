"""At a call on a GPU: arguments of any library as arrays on the device; results where they are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import prod
from operator import mul
from typing import Any, Literal, TypeAlias

import numpy as np

from spcomp.arrays import Array
from spcomp.codegen.abi import pack
from spcomp.dtypes import DType
from spcomp.dtypes import dtype as dtype_of
from spcomp.errors import ArgumentError, OutOfMemoryError
from spcomp.runtime.cuda import memory
from spcomp.runtime.cuda.driver import LEGACY, current_device
from spcomp.runtime.cuda.streams import CHOSEN, current_stream, handle_of, working_on

Library: TypeAlias = Literal["torch", "cupy", "numba", "host"]
_PREFERENCE: tuple[Library, ...] = ("torch", "cupy", "numba", "host")
_FACE = "__cuda_array_interface__"
_CUDA, _MANAGED = 2, 13  # kinds of devices in DLPack


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call runs: a device, a stream (its handle), and the library of its results.

    *library* is ``torch``, ``cupy``, ``numba`` (for all others on a GPU) or ``host`` (numpy).
    """

    device: int
    stream: int
    library: Library


class OnDevice:
    """What is ours and lies on a GPU: its *device*, and the *library* that owns the memory."""

    __slots__ = ()
    device: int
    library: Library


@dataclass(frozen=True, slots=True)
class DeviceArray(OnDevice):
    """A C-contiguous array on a GPU: *strides* are bytes, *owner* keeps the memory.

    *library* is that of the owner; ``host`` if the memory is a copy of a host array.
    """

    pointer: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    owner: Any
    library: Library
    device: int

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.size * self.dtype.itemsize


def library_of(arg: Any) -> Library | None:
    """Return the library whose array on a GPU *arg* is, ``host`` off the GPU, None if no array."""
    if isinstance(arg, OnDevice):
        return arg.library
    if isinstance(arg, np.ndarray | np.generic):
        return "host"
    if _is_torch(arg):
        return "torch" if arg.is_cuda else "host"
    if is_sparse(arg):
        return "cupy"
    if hasattr(type(arg), _FACE) or hasattr(arg, _FACE):  # the first, as a property takes its time
        return "cupy" if type(arg).__module__.partition(".")[0] == "cupy" else "numba"
    if hasattr(arg, "__dlpack_device__"):
        return "numba" if arg.__dlpack_device__()[0] in (_CUDA, _MANAGED) else "host"
    return "host" if hasattr(arg, "__array__") else None


def lies_there(arg: Any) -> bool:
    """Return whether *arg* is an array or a sparse matrix on a GPU."""
    return isinstance(arg, OnDevice) or library_of(arg) not in (None, "host")


def described(who: str, arg: Any) -> Any:
    """Return *arg*, or a DeviceArray of it if it only has an interface, without dtype and shape."""
    if hasattr(arg, "dtype") or not lies_there(arg):
        return arg
    return array_of(arg, place_of((arg,)), who)


def is_sparse(arg: Any) -> bool:
    """Return whether *arg* is a sparse matrix of cupyx, or a tensor of PyTorch that is not dense.

    A layout of PyTorch other than strided is one of its sparse ones. Or it is sparse and ours.
    """
    if isinstance(arg, OnDevice):
        return not isinstance(arg, DeviceArray)
    if _is_torch(arg):
        return str(arg.layout) != "torch.strided"
    return type(arg).__module__.startswith("cupyx.scipy.sparse")


def _is_torch(arg: Any) -> bool:
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(arg, kind)


def place_of(args: Iterable[Any], stream: Any = None) -> Place:
    """Return where a call with *args*, dense or sparse, runs: on the device of the first on a GPU.

    Its stream is *stream* of any library, else that of ``chosen_stream``, else the one that the
    library of the first array on a GPU works on now. Results are arrays of PyTorch if any array on
    a GPU is, else of CuPy, else of numba.cuda; of numpy if none is on a GPU. Raises ArgumentError
    for a wrong stream.
    """
    kinds = [(arg, kind) for arg in args if (kind := library_of(arg)) is not None]
    library: Library = min((kind for _, kind in kinds), key=_PREFERENCE.index, default="host")
    found = [arg for arg, kind in kinds if kind != "host" or isinstance(arg, OnDevice)]
    device = device_of(found[0]) if found else current_device()
    chosen = CHOSEN.get() if stream is None else stream
    if chosen is not None:
        return Place(device, handle_of(chosen), library)
    streams = (_producer(arg, kind, device) for arg, kind in kinds)
    return Place(device, next((s for s in streams if s is not None), LEGACY), library)


def device_of(arg: Any) -> int:
    """Return the device on which the array *arg* of any library lies."""
    if isinstance(arg, OnDevice):
        return arg.device
    library = library_of(arg)
    if library == "torch":
        return int(arg.device.index)
    if library == "cupy":
        return int((arg.data if is_sparse(arg) else arg).device.id)
    if (face := _interface(arg)) is not None:
        return _device_at(face["data"][0])
    return int(arg.__dlpack_device__()[1])


def _device_at(pointer: int) -> int:
    return memory.device_of(pointer) if pointer else current_device()


def _interface(arg: Any) -> Any:
    return getattr(arg, _FACE, None)


def _producer(arg: Any, library: Library, device: int) -> int | None:
    """Return the stream on which the content of *arg* may still be computed, if one is known."""
    if library in ("torch", "cupy"):
        return current_stream(library, device)
    given = (_interface(arg) or {}).get("stream") if library == "numba" else None
    return None if given is None else handle_of(given)


def array_of(arg: Any, place: Place, who: str = "x", *, written: bool = False) -> DeviceArray:
    """Return the array *arg* on the device of *place*; a host array is copied there.

    Work on the stream of *place* from now on sees what *arg* holds now. Raises ArgumentError for
    what is no array or not C-contiguous, lies on another GPU, or cannot be *written*.
    """
    library = library_of(arg)
    if library is None or is_sparse(arg):
        raise ArgumentError(f"argument {who}: got {type(arg).__name__}, expected a dense array")
    if library == "host" and not isinstance(arg, DeviceArray):
        return _upload(arg, place, who)
    array = _read(arg, library, place, who, written=written)
    if array.device != place.device:
        raise ArgumentError(
            f"argument {who}: lies on GPU {array.device}, and other arguments on {place.device}"
        )
    producer = _producer(arg, library, place.device)
    if producer is not None:
        memory.wait(place.stream, producer, place.device)
    return array


def _read(
    arg: Any, library: Library, place: Place, who: str, *, written: bool = False
) -> DeviceArray:
    if isinstance(arg, DeviceArray):
        return arg
    if library == "torch":
        if written:
            note_write(arg)
        return _of_torch(arg, who)
    if (face := _interface(arg)) is not None:
        return _of_interface(arg, face, library, who, written=written)
    return _of_dlpack(arg, place, who, written=written)


def note_write(arg: Any) -> None:
    """Tell torch that the elements of *arg* change, if it is a tensor, on a GPU or the host.

    It then keeps no gradient of the old ones.
    """
    if _is_torch(arg):
        sys.modules["torch"].autograd.graph.increment_version(arg)


def _upload(arg: Any, place: Place, who: str) -> DeviceArray:
    """Return a copy on the device of *place* of the array *arg*, of any library, on the host."""
    bits = _is_torch(arg) and str(arg.dtype) == "torch.bfloat16"
    if _is_torch(arg):
        if arg.device.type != "cpu":
            raise ArgumentError(f"argument {who}: lies on {arg.device}, expected the CPU or a GPU")
        _require_plain(arg, who)
        array = np.asarray((arg.view(sys.modules["torch"].int16) if bits else arg).numpy())
    else:
        array = np.asarray(arg) if hasattr(arg, "__array__") else np.from_dlpack(arg)
    bits = bits or array.dtype.name == "bfloat16"
    array = np.ascontiguousarray(array.view(np.uint16) if bits else array).reshape(array.shape)
    dtype = dtype_of("bfloat16") if bits else _dtype(array.dtype, who)
    copy = memory.upload(array, place.device, place.stream)
    pointer = int(copy.__cuda_array_interface__["data"][0])
    return _array(who, pointer, dtype, array.shape, None, copy, "host", place.device)


def _dtype(given: Any, who: str) -> DType:
    """Return the dtype of numpy *given*; raises ArgumentError if no program has it."""
    dtype = np.dtype(given)
    if not dtype.isnative:
        raise ArgumentError(f"argument {who}: got {dtype}, which is not in native byte order")
    return _dtype_named(dtype.name, who)


def _dtype_named(name: str, who: str) -> DType:
    try:
        return dtype_of(name)
    except ValueError:
        raise ArgumentError(f"argument {who}: got {name}, which no program computes with") from None


def _array(
    who: str,
    pointer: int,
    dtype: DType,
    shape: Sequence[int],
    strides: Sequence[int] | None,
    owner: Any,
    library: Library,
    device: int,
) -> DeviceArray:
    """Return a DeviceArray; raises ArgumentError if *strides*, in bytes, are not C-contiguous."""
    expected, step = [], dtype.itemsize
    for extent in reversed(shape):
        expected.append(step)
        step *= extent
    ordered = tuple(expected[::-1])
    if strides is not None and step:
        pairs = zip(shape, strides, ordered, strict=True)
        if any(got != right for extent, got, right in pairs if extent > 1):
            copy = {"torch": ".contiguous()", "cupy": "cupy.ascontiguousarray(...)"}
            raise ArgumentError(
                f"argument {who}: is not C-contiguous",
                hint=f"copy it with {copy.get(library, 'its library')}",
            )
    if pointer % dtype.itemsize:
        raise ArgumentError(f"argument {who}: is not aligned to its {dtype}")
    return DeviceArray(pointer, dtype, tuple(shape), ordered, owner, library, device)


def _require_plain(tensor: Any, who: str) -> None:
    """Raise ArgumentError for a tensor of PyTorch that is more than the numbers in its memory."""
    if tensor.requires_grad:
        raise ArgumentError(
            f"argument {who}: requires gradients, which are not followed here",
            hint="give what it holds with .detach()",
        )
    if tensor.is_neg() or tensor.is_conj():
        raise ArgumentError(
            f"argument {who}: is negated or conjugated where it is read",
            hint="compute it with .resolve_neg() or .resolve_conj()",
        )


def _of_torch(tensor: Any, who: str) -> DeviceArray:
    """Return the memory of a strided *tensor*; its CUDA array interface refuses bfloat16."""
    _require_plain(tensor, who)
    dtype = _dtype_named(str(tensor.dtype).removeprefix("torch."), who)
    strides = [step * dtype.itemsize for step in tensor.stride()]
    shape, device = tuple(map(int, tensor.shape)), int(tensor.device.index)
    return _array(who, int(tensor.data_ptr()), dtype, shape, strides, tensor, "torch", device)


def _of_interface(arg: Any, face: Any, library: Library, who: str, *, written: bool) -> DeviceArray:
    if face.get("mask") is not None:
        raise ArgumentError(f"argument {who}: has a mask", hint="give its data and mask apart")
    pointer, read_only = int(face["data"][0] or 0), face["data"][1]
    _require_writable(who, written=written, read_only=read_only)
    dtype, shape = _dtype(face["typestr"], who), tuple(map(int, face["shape"]))
    device = device_of(arg) if library == "cupy" else _device_at(pointer)
    return _array(who, pointer, dtype, shape, face.get("strides"), arg, library, device)


def _require_writable(who: str, *, written: bool, read_only: bool) -> None:
    if written and read_only:
        raise ArgumentError(f"argument {who}: is read-only, and the program writes it")


def _of_dlpack(arg: Any, place: Place, who: str, *, written: bool) -> DeviceArray:
    try:
        view = memory.view(arg, place.stream)
    except (BufferError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(f"argument {who}: gives no array of DLPack: {error}") from error
    _require_writable(who, written=written, read_only=view.readonly)
    dtype = _dtype(view.dtype, who)
    strides = None if view.strides is None else [step * dtype.itemsize for step in view.strides]
    owner, device = (view, arg), int(view.device_id)
    return _array(who, int(view.ptr), dtype, view.shape, strides, owner, "numba", device)


def wait_for(args: Iterable[Any], place: Place) -> None:
    """Let the stream of *place* wait for what computes the content of *args* on a GPU."""
    for producer in producers_of(args, place.device):
        memory.wait(place.stream, producer(), place.device)


def producers_of(args: Iterable[Any], device: int) -> tuple[Callable[[], int], ...]:
    """Return functions that return the streams on which *args* may still be computed, in order."""
    found: dict[object, Callable[[], int]] = {}
    for arg in args:
        library = library_of(arg)
        stream = None if library is None else _producer(arg, library, device)
        if library in ("torch", "cupy"):  # whose current stream changes
            found.setdefault(library, partial(_current, library, device))
        elif stream is not None:
            found.setdefault(stream, partial(int, stream))
    return tuple(found.values())


def _current(library: str, device: int) -> int:
    return current_stream(library, device) or LEGACY


def apart(first: DeviceArray, second: DeviceArray) -> bool:
    """Return whether two arrays share no memory."""
    if not (first.size and second.size):
        return True
    begin, end = first.pointer, first.pointer + first.nbytes
    return end <= second.pointer or second.pointer + second.nbytes <= begin


def empty(shape: Sequence[int], dtype: DType, place: Place) -> DeviceArray:
    """Return a new array of *place* with any content; its ``owner`` is the result for the user.

    Where the library is the host's, ``to_host`` makes the result of it. bfloat16 is uint16, its
    bits, except in PyTorch. Raises OutOfMemoryError.
    """
    shape = tuple(map(int, shape))
    try:
        owner = _new(shape, dtype, place)
    except OutOfMemoryError:
        raise
    except (RuntimeError, MemoryError) as error:  # of torch, of cupy
        if "out of memory" not in str(error).lower():
            raise
        raise OutOfMemoryError(f"an array of shape {shape}: the GPU is out of memory") from error
    is_torch = place.library == "torch"
    pointer = int(owner.data_ptr() if is_torch else _interface(owner)["data"][0] or 0)
    steps = accumulate(reversed(shape[1:]), mul, initial=dtype.itemsize)
    strides = tuple(steps)[::-1] if shape else ()
    return DeviceArray(pointer, dtype, shape, strides, owner, place.library, place.device)


def full(shape: Sequence[int], dtype: DType, value: float, place: Place) -> DeviceArray:
    """Return a new array of *place* whose elements are *value*; see ``empty``."""
    array = empty(shape, dtype, place)
    bits = (pack(dtype, value) % (1 << 64)).to_bytes(8, "little")[: dtype.itemsize]
    half = bits[: max(1, dtype.itemsize // 2)]
    if dtype.itemsize == 8 and bits != half + half:  # longer than what the driver repeats
        host = np.full(array.shape, value, dtype.numpy_name)
        memory.write(array.pointer, host, place.device, place.stream)
        return array
    pattern = half if dtype.itemsize == 8 else bits
    count = array.nbytes // len(pattern)
    memory.fill(array.pointer, pattern, count, place.device, place.stream)
    return array


def zeros(shape: Sequence[int], dtype: DType, place: Place) -> DeviceArray:
    """Return a new array of zeros of *place*; see ``empty``."""
    return full(shape, dtype, 0, place)


def _new(shape: tuple[int, ...], dtype: DType, place: Place) -> Any:
    """Return a new array of the library of *place*, with any content."""
    if place.library in ("numba", "host"):
        return memory.allocate(shape, dtype.numpy_name, place.device)
    module = sys.modules[place.library]
    if place.library == "torch":
        with working_on("torch", place.stream, place.device):
            kind = getattr(module, str(dtype))
            return module.empty(shape, dtype=kind, device=f"cuda:{place.device}")
    with module.cuda.Device(place.device), working_on("cupy", place.stream, place.device):
        return module.empty(shape, dtype=dtype.numpy_name)


def to_host(array: DeviceArray, stream: int, out: Array | None = None) -> Array:
    """Return the content of *array* after what *stream* was given, in *out* if it is an array.

    It waits. bfloat16 comes as uint16, its bits.
    """
    dtype = np.dtype(array.dtype.numpy_name)
    fits = out is not None and out.flags.c_contiguous and out.dtype == dtype
    host = out if out is not None and fits else np.empty(array.shape, dtype)
    memory.download(array.pointer, host, array.device, stream)
    if out is not None and not fits:
        np.copyto(out, host)
    return host if out is None else out
