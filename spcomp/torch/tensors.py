"""Above the compiler: what a tensor of PyTorch holds, and the one that a tensor of ours becomes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import torch

from spcomp.compiler import validate
from spcomp.compiler.conversions import convert
from spcomp.compiler.foreign import outputs
from spcomp.compiler.outputs import Results
from spcomp.compiler.tensor import Tensor
from spcomp.dtypes import DType, bfloat16, promote
from spcomp.dtypes import dtype as dtype_of
from spcomp.errors import ArgumentError, expect
from spcomp.formats.format import Format

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
_ORDERS = {"sparse_csr": (0, 1), "sparse_csc": (1, 0)}
_BLOCKED = {"sparse_bsr": (0, 1), "sparse_bsc": (1, 0)}


def from_torch(tensor: Any, format: str | Format | None = None) -> Any:  # noqa: A002
    """Return the torch *tensor*, on the CPU, in *format*, as :func:`spcomp.convert` does.

    None: a :class:`spcomp.Tensor` in the format that it has, whose values it may share, and its
    repeated elements (coo) added up. Raises ArgumentError for another device, batches, dense
    dimensions inside of sparse ones, and types of values that numpy has not.
    """
    if format is None:
        kind = _layout(tensor)
        name = {"strided": "dense", **dict.fromkeys(_BLOCKED, "bsr")}.get(kind, kind)
        if kind in _BLOCKED:
            name = f"bsr({', '.join(map(str, tensor.values().shape[1:]))})"
        format = Format.parse(name.removeprefix("sparse_"), tensor.ndim)  # noqa: A001
    return convert(tensor, format)


def to_torch(x: Any) -> torch.Tensor:
    """Return *x*, anything that :func:`spcomp.convert` takes, as a torch tensor on the CPU.

    A matrix by rows, columns or blocks has that layout, a dense array is strided, all else is coo.
    Values may be shared. Raises ArgumentError for types of values that torch has not.
    """
    if isinstance(x, torch.Tensor):
        return x
    kind = str(getattr(x, "format", ""))
    if isinstance(x, np.ndarray):
        return _from_array(x)
    if not isinstance(x, Tensor):
        name = {"bsr": f"bsr{getattr(x, 'blocksize', '')}"}.get(kind, kind)
        x = convert(x, Format.parse(name if kind in ("csr", "csc", "bsr") else "coo", x.ndim))
    kind = x.layout.name.partition("(")[0]
    if kind == "dense":
        return _from_array(np.asarray(x.values).reshape(x.shape))
    if kind not in _MAKE or not x.is_compact:
        kind, x = "coo", convert(x, Format.parse("coo", x.ndim))
    return _MAKE[kind](x)


def _from_array(array: Array) -> torch.Tensor:
    """Return the tensor over *array*, over a copy where torch cannot have it as it is."""
    fits = array.flags.writeable and all(stride >= 0 for stride in array.strides)
    try:
        return torch.from_numpy(array if fits else array.copy())
    except TypeError as error:
        raise ArgumentError(f"argument x: torch has no {array.dtype}: {error}") from None


def _coo(x: Tensor) -> torch.Tensor:
    coordinates, places = x.elements()
    values = _from_array(np.asarray(x.values).reshape(-1)[places])
    at = torch.from_numpy(np.stack(coordinates))
    return torch.sparse_coo_tensor(at, values, x.shape, is_coalesced=True, check_invariants=False)


def _rows(x: Tensor) -> torch.Tensor:
    level = x.levels[1]
    assert level is not None
    assert level.indptr is not None
    assert level.indices is not None
    arrays = [_from_array(array) for array in (level.indptr, level.indices)]
    blocks = tuple(part.size for part in x.levels[2:] if part is not None)
    values = _from_array(np.asarray(x.values).reshape(-1, *blocks))
    if blocks:
        return torch.sparse_bsr_tensor(*arrays, values, x.shape, check_invariants=False)
    make = torch.sparse_csr_tensor if x.is_plain else torch.sparse_csc_tensor
    return make(*arrays, values, x.shape, check_invariants=False)  # a Tensor keeps them


_MAKE: Mapping[str, Callable[[Tensor], torch.Tensor]] = {
    "csr": _rows,
    "csc": _rows,
    "bsr": _rows,
    "coo": _coo,
}


# -- for spcomp.convert --------------------------------------------------------------------------


def array_of(tensor: torch.Tensor, who: str = "x") -> Array:
    """Return the numpy array over the memory of a strided *tensor*, the argument *who*."""
    if tensor.requires_grad or tensor.is_neg() or tensor.is_conj():
        tensor = tensor.detach().resolve_conj().resolve_neg()
    try:
        return np.asarray(tensor.numpy())
    except TypeError as error:
        raise ArgumentError(
            f"argument {who}: numpy has no {tensor.dtype}: {error}", hint="convert it with .float()"
        ) from None
    except RuntimeError as error:
        raise ArgumentError(f"argument {who}: the tensor gives no array: {error}") from None


def compressed(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Return shape, pointers, indices, values and order of a matrix by rows or columns, or None."""
    order = _ORDERS.get(_layout(tensor))
    if order is None:
        return None
    pointers, indices = _index_arrays(tensor, order)
    return tuple(tensor.shape), pointers, indices, array_of(tensor.values()), order


def elements(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[Array, ...], Array]:
    """Return the shape, the coordinates by dimension, and the values of the stored elements."""
    kind, shape = _layout(tensor), tuple(tensor.shape)
    if kind == "strided":
        array = array_of(tensor)
        found = array.nonzero() if array.ndim else ()
        return shape, found, array[found]
    if kind == "sparse_coo":
        at = array_of(tensor._indices())  # noqa: SLF001 (what is repeated is not added up here)
        return shape, tuple(at), array_of(tensor._values())  # noqa: SLF001
    order = {**_ORDERS, **_BLOCKED}[kind]
    pointers, indices = _index_arrays(tensor, order)
    values = array_of(tensor.values())
    major = np.repeat(np.arange(len(pointers) - 1), np.diff(pointers))
    pair = [(major, indices)[order.index(dim)].astype(np.int64) for dim in (0, 1)]
    if kind in _BLOCKED:
        block = values.shape[1:]
        inner = np.indices(block).reshape(2, 1, -1)
        pair = [
            (p[:, None] * b + i).reshape(-1) for p, b, i in zip(pair, block, inner, strict=True)
        ]
    return shape, tuple(pair), values.reshape(-1)


def _index_arrays(tensor: torch.Tensor, order: tuple[int, int]) -> tuple[Array, Array]:
    by_rows = order == (0, 1)
    pointers = tensor.crow_indices() if by_rows else tensor.ccol_indices()
    indices = tensor.col_indices() if by_rows else tensor.row_indices()
    found = array_of(pointers), array_of(indices)
    blocks = tensor.values().shape[1:] or (1, 1)
    rows, columns = (tensor.shape[dim] // blocks[dim] for dim in order)
    validate.pointers("x", found[0], rows, len(found[1]), exact=True)
    validate.in_range("x", found[1], 0, columns - 1)
    return found


def _layout(tensor: torch.Tensor, who: str = "x") -> str:
    """Return the name of the layout; raises ArgumentError for tensors that we have no use for."""
    expect("tensor", tensor, torch.Tensor, "a tensor of torch")
    if tensor.layout is torch.strided and tensor.is_cpu and not tensor.requires_grad:
        return "strided"
    kind = str(tensor.layout).removeprefix("torch.")
    if tensor.device.type != "cpu":
        raise ArgumentError(
            f"argument {who}: lies on {tensor.device}, expected the CPU", hint="move it with .cpu()"
        )
    if tensor.requires_grad:
        raise ArgumentError(
            f"argument {who}: requires gradients, which are not followed here",
            hint="give what it holds with .detach()",
        )
    known = {"strided", "sparse_coo", *_ORDERS, *_BLOCKED}
    if kind not in known:
        raise ArgumentError(
            f"argument {who}: got the layout {kind}, expected {', '.join(sorted(known))}"
        )
    plain = (
        tensor.dense_dim() == 0 if kind == "sparse_coo" else kind == "strided" or tensor.ndim == 2
    )
    if not plain:
        raise ArgumentError(
            f"argument {who}: has dense dimensions inside of sparse ones, or batches",
            hint="give its parts one by one",
        )
    return kind


# -- for calls of kernels --------------------------------------------------------------------------


def array_for(who: str, tensor: torch.Tensor, dtype: DType, *, written: bool) -> Array:
    """Return the array over the memory of a strided *tensor*, for a buffer of type *dtype*.

    bfloat16 travels as its bits. *written*: the memory itself is needed. Raises ArgumentError.
    """
    if written:
        _require_memory(who, tensor)
    _require_strided(who, tensor)
    return _bits(tensor) if dtype == bfloat16 and _is_halves(tensor) else array_of(tensor, who)


def number(who: str, tensor: torch.Tensor) -> Any:
    """Return the Python number that a *tensor* without dimensions is; raises ArgumentError."""
    _require_strided(who, tensor)
    if tensor.ndim:
        raise ArgumentError(f"argument {who}: got {tensor.ndim} dimensions, expected a number")
    return array_of(tensor.float() if _is_halves(tensor) else tensor, who).item()


def argument(who: str, tensor: torch.Tensor) -> Any:
    """Return what index notation takes for *tensor*: an array over the memory of a strided one.

    Of bfloat16 it takes a copy as float32, which holds the same numbers. Raises ArgumentError.
    """
    kind = _layout(tensor, who)
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return array_of(tensor, who) if kind == "strided" else tensor


def called(
    run: Callable[[Any, dict[str, Any]], Any],
    named: Mapping[str, Any],
    out: Any,
    added: Collection[str],
    bound: Iterable[Any] = (),
) -> Any:
    """Return what *run* makes of *out* and the arguments *named*, some of which are tensors.

    *added*: the arguments that it adds to; *bound*: what it has besides. Results are tensors, of
    bfloat16 where all arguments together are; numbers, and what was given, stay what they are.
    Raises ArgumentError.
    """
    inputs = [*named.values(), *bound]
    call = _Call([*inputs, *outputs(out)], _is_half(inputs))
    arguments = {name: call.taken(name, one, name in added) for name, one in named.items()}
    if isinstance(out, dict):
        out = {name: call.place(name, one) for name, one in out.items()}
    elif isinstance(out, (list, tuple)):
        out = tuple(call.place("out", one) for one in out)
    else:
        out = call.place("out", out)
    if call.places and call.half:
        call.require_apart()
    made = run(out, arguments)
    call.write_back()
    if isinstance(made, Results):
        return Results.of(made._fields, tuple(map(call.alike, made)))
    return call.alike(made)


class _Call:
    """What a kernel takes for the tensors among *given*, and the tensors that its results are.

    *half*: the numbers are bfloat16, of which the kernel sees float32.
    """

    def __init__(self, given: Sequence[Any], half: bool) -> None:  # noqa: FBT001
        self.given, self.half = given, half
        self.places: list[tuple[torch.Tensor, Array]] = []  # what is written, and in whose place

    def taken(self, who: str, one: Any, added: bool) -> Any:  # noqa: FBT001
        """Return what the kernel takes as the argument *one*; *added*: it may write it."""
        if not isinstance(one, torch.Tensor):
            return one
        written = added and one.layout == torch.strided
        return self.place(who, one) if written else argument(who, one)

    def place(self, who: str, one: Any) -> Any:
        """Return the array that is written for *one*; raises ArgumentError."""
        if not isinstance(one, torch.Tensor):
            return one
        _require_memory(who, one)
        is_half = one.dtype == torch.bfloat16
        if is_half and not self.half:
            raise ArgumentError(
                f"argument {who}: got {one.dtype}, but not all arguments are of that type",
                hint="leave it out, and convert the result with .bfloat16()",
            )
        self.places.append((one, array_of(one.float() if is_half else one, who)))
        return self.places[-1][1]

    def require_apart(self) -> None:
        """Refuse bfloat16 tensors that share memory: of these the kernel sees copies."""
        tensors = [one for one in self.given if isinstance(one, torch.Tensor)]
        views = [_bits(one) for one in tensors if _is_halves(one)]
        for own in (_bits(tensor) for tensor, _ in self.places if _is_halves(tensor)):
            if sum(np.may_share_memory(own, view) for view in views) > 1:
                raise ArgumentError(
                    "argument out: shares memory with another argument, and the program writes it",
                    hint="give a tensor of its own, or leave it out",
                )

    def write_back(self) -> None:
        """Round what was written to the bfloat16 tensors that it is for."""
        for tensor, array in self.places:
            if _is_halves(tensor):
                _bits(tensor)[...] = _bits(torch.from_numpy(array).bfloat16())

    def alike(self, one: Any) -> Any:
        """Return the result *one* as a tensor; numbers and what was given as they are."""
        for tensor, array in self.places:
            if one is array:
                return tensor
        if any(one is own for own in self.given) or not getattr(one, "shape", ()):
            return one
        found = to_torch(one)
        return found.to(torch.bfloat16) if self.half and found.dtype == torch.float32 else found


def _is_halves(tensor: torch.Tensor) -> bool:
    return bool(tensor.dtype == torch.bfloat16 and tensor.layout == torch.strided)


def _bits(tensor: torch.Tensor) -> Array:
    """The numpy array over the memory of a strided bfloat16 *tensor*, of its bits."""
    return array_of(tensor.detach().view(torch.int16)).view(np.uint16)


def _is_half(given: Iterable[Any]) -> bool:
    """Whether *given*, with a bfloat16 tensor among them, is bfloat16 when it is combined."""
    types = [one.dtype for one in given if hasattr(one, "dtype")]
    if all(one is not torch.bfloat16 for one in types):
        return False
    names = (str(one).removeprefix("torch.") for one in types)
    try:
        return reduce(promote, map(dtype_of, names)) == bfloat16
    except ValueError:  # a type that the kernel refuses
        return False


def _require_strided(who: str, tensor: torch.Tensor) -> None:
    kind = _layout(tensor, who)
    if kind != "strided":
        raise ArgumentError(
            f"argument {who}: got a tensor of layout {kind}, expected a strided one",
            hint=f'spcomp.convert({who}, "csr") makes a scipy array of it',
        )


def _require_memory(who: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor whose elements are not what lies in its memory, in that order."""
    strided = _layout(tensor, who) == "strided"
    if not strided or not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
        raise ArgumentError(
            f"argument {who}: is {'not contiguous' if strided else 'sparse'},"
            " and the program writes it",
            hint="give a tensor made by torch.empty, or leave it out",
        )
