"""Above a Tensor: its arithmetic, ``@``, slices and sums, compiled from index notation.

Each operation is a line of index notation over the operands, so ``docs/notation.md`` says which
elements, dtypes and formats the results have.
"""

from __future__ import annotations

import math
import operator
import re
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import zip_longest
from numbers import Number
from typing import Any, Self, TypeAlias
from typing import cast as typed

import numpy as np

from spcomp.errors import ArgumentError
from spcomp.notation.subscripts import access_text
from spcomp.target import environment
from spcomp.tensors.libraries.foreign import is_torch

Shape: TypeAlias = tuple[int, ...]
Axes: TypeAlias = "int | Sequence[int] | None"
_PRODUCTS = {  # by the numbers of dimensions
    (2, 2): "C[i, k] = A[i, j] * B[j, k]",
    (2, 1): "C[i] = A[i, j] * B[j]",
    (1, 2): "C[k] = A[j] * B[j, k]",
    (1, 1): "C = A[j] * B[j]",
}


def _binary(sign: str) -> Callable[[Any, Any], Any]:
    return lambda self, other: _elementwise(f"{{}} {sign} {{}}", self, other)


def _reflected(sign: str) -> Callable[[Any, Any], Any]:
    return lambda self, other: _elementwise(f"{{}} {sign} {{}}", other, self)


class Arithmetic:
    """Operators of sparse tensors, element by element, and ``@``; also of distributed ones."""

    __slots__ = ()
    __array_ufunc__ = None  # numpy, and Dask, leave ``array + tensor`` to the tensor

    __add__, __radd__ = _binary("+"), _reflected("+")
    __sub__, __rsub__ = _binary("-"), _reflected("-")
    __mul__, __rmul__ = _binary("*"), _reflected("*")
    __truediv__, __rtruediv__ = _binary("/"), _reflected("/")
    __floordiv__, __rfloordiv__ = _binary("//"), _reflected("//")
    __mod__, __rmod__ = _binary("%"), _reflected("%")
    __pow__, __rpow__ = _binary("**"), _reflected("**")
    __lt__, __le__ = _binary("<"), _binary("<=")
    __gt__, __ge__ = _binary(">"), _binary(">=")

    def __matmul__(self, other: Any) -> Any:
        return _product(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return _product(other, self)

    def __neg__(self) -> Any:
        return _elementwise("-{}", self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return _elementwise("abs({})", self)


class Operators(Arithmetic):
    """The operators of :class:`spcomp.Tensor`; the other operand may be an array of any library.

    ``==`` and ``!=`` compare identity, as for any other object, and refuse numbers and arrays.
    """

    __slots__ = ()
    __iter__ = None  # slices do not make it a sequence

    def __eq__(self, other: object) -> bool:
        """Whether *other* is this Tensor; raises ArgumentError for numbers and arrays."""
        if isinstance(other, (Number, np.ndarray)) or hasattr(other, "tocoo"):
            raise ArgumentError(
                "== and != ask whether two Tensors are one object, not about their elements",
                hint='spcomp.compile("C[i, j] = A[i, j] == 0") compares those that are stored',
            )
        return self is other

    __hash__ = object.__hash__

    def __getitem__(self, key: Any) -> Any:
        """Return the part at *key*: integers, slices with positive steps, one ``...``.

        It is a Tensor, in the same format if all keys are slices, else of compressed levels; a
        number if all are integers, 0 where nothing is stored. Raises ArgumentError.
        """
        from spcomp.tensors.indexing import part_of  # it stands above this module

        return part_of(self, key)

    @property
    def T(self) -> Self:  # noqa: N802
        """The tensor with its dimensions in reverse; nothing is copied."""
        return self.transpose()

    def transpose(self, axes: Sequence[int] | None = None) -> Self:
        """Return the tensor with its dimensions permuted by *axes*, by default reversed.

        Levels and values are shared. Raises ArgumentError.
        """
        tensor: Any = self
        dimensions = range(tensor.ndim)
        chosen = tuple(reversed(dimensions)) if axes is None else _axes(axes, tensor.ndim)
        if sorted(chosen) != list(dimensions):
            raise ArgumentError(f"argument axes: got {axes}, expected each of {tensor.ndim} once")
        result: Self = tensor.with_dimensions(chosen)
        return result

    def reshape(self, *shape: Any, order: str = "C") -> Self:
        """Return the same elements in another *shape*; one extent may be -1.

        The format is the same if the rank is, else of compressed levels. Raises ArgumentError.
        """
        from spcomp.tensors.indexing import reshaped

        if order != "C":
            raise ArgumentError(f"argument order: got {order!r}, elements are taken by rows, 'C'")
        result: Self = reshaped(self, shape)
        return result

    @property
    def size(self) -> int:
        """The number of elements, stored or not."""
        return math.prod(_shape(self))

    def toarray(self) -> Any:
        """Return ``to_dense()``."""
        return typed("Any", self).to_dense()

    def todense(self) -> Any:
        """Return ``to_dense()``."""
        return self.toarray()

    def __array__(self, dtype: Any = None, copy: object = None) -> Any:
        """Raise ArgumentError: a small tensor may be a very large array."""
        caller = sys._getframe(1)  # noqa: SLF001
        is_scipy = caller.f_globals["__name__"].startswith("scipy.sparse")
        if is_scipy and caller.f_code.co_name != "__init__":
            boxed = np.empty((), object)  # then scipy leaves ``matrix @ tensor`` to us
            boxed[()] = self
            return boxed
        raise ArgumentError(
            f"a Tensor of {self.size} coordinates is not made an array by itself",
            hint="A.to_dense() and A.to_scipy() make one; operators, A.sum, A.max... need none",
        )

    def sum(
        self, axis: Axes = None, dtype: Any = None, out: None = None, *, keepdims: bool = False
    ) -> Any:
        """Return the sums along *axis*, one or several, by default all: an array, or a number.

        Integers and bools are added in 64 bits, as in numpy. Raises ArgumentError.
        """
        kind = typed("Any", self).dtype
        wide = np.dtype(dtype or {"b": "int64", "i": "int64", "u": "uint64"}.get(kind.kind, kind))
        text = "C = A" if wide == kind else f"C = {wide.name}(A)"
        return self._reduced(text, self._axes(axis), out, keepdims=keepdims)

    def mean(
        self, axis: Axes = None, dtype: Any = None, out: None = None, *, keepdims: bool = False
    ) -> Any:
        """Return the means along *axis* over all elements, stored or not."""
        stored = typed("Any", self).dtype
        kind = np.dtype(dtype or (np.float64 if stored.kind in "biu" else stored))
        total = self.sum(axis, np.float32 if kind.itemsize == 2 else kind, out, keepdims=keepdims)
        count = math.prod(_shape(self)[dim] for dim in self._axes(axis))
        return np.true_divide(total, count).astype(kind)

    def max(self, axis: Axes = None, out: None = None, *, keepdims: bool = False) -> Any:
        """Return the maximum along *axis*; absent elements are 0. Raises ArgumentError."""
        return self._extreme("max", axis, out, keepdims=keepdims)

    def min(self, axis: Axes = None, out: None = None, *, keepdims: bool = False) -> Any:
        """Return the minimum along *axis*; absent elements are 0. Raises ArgumentError."""
        return self._extreme("min", axis, out, keepdims=keepdims)

    def _extreme(self, name: str, axis: Axes, out: None, *, keepdims: bool) -> Any:
        over = self._axes(axis)
        count = math.prod(_shape(self)[dim] for dim in over)
        if not count:
            raise ArgumentError(f"there is no {name} of no elements")
        if not over:
            return self.toarray()[()]
        text = f"C = {name}(_, A)\nN = sum(_, int64(1) if A)"
        extreme, stored = self._reduced(text, over, out, keepdims=keepdims)
        zero = getattr(np, f"{name}imum")(extreme, extreme.dtype.type(0))
        kind = typed("Any", self).dtype
        return np.where(stored < count, zero, extreme).astype(kind)[()]

    def _axes(self, axis: Axes) -> tuple[int, ...]:
        rank = len(_shape(self))
        axes = tuple(range(rank)) if axis is None else _axes(axis, rank)
        if len(set(axes)) < len(axes):
            raise ArgumentError(f"argument axis: got {axis}, expected each once")
        return axes

    def _reduced(self, text: str, over: tuple[int, ...], out: None, *, keepdims: bool) -> Any:
        """Return the results of *text*, C and maybe N, reduced over the axes *over*, written _."""
        if out is not None:
            raise ArgumentError("argument out: a sum makes a new array", hint="out[...] = A.sum(0)")
        names = [f"i{dim}" for dim in range(len(_shape(self)))]
        kept = [name for dim, name in enumerate(names) if dim not in over]
        spelled = {name: access_text(name, kept) for name in "CN"} | {"A": access_text("A", names)}
        spelled["_"] = f"({', '.join(names[dim] for dim in over)})"
        text = re.sub(r"\b[ACN_]\b", lambda word: spelled[word[0]], text)
        formats = tuple((name, "dense") for name in "CN" if kept and f"{name}[" in text)
        results = _kernel(text, formats)(A=self)
        if not keepdims:
            return results
        shape = [1 if dim in over else extent for dim, extent in enumerate(_shape(self))]
        several = isinstance(results, tuple)
        return (
            tuple(np.reshape(r, shape) for r in results) if several else np.reshape(results, shape)
        )

    def astype(self, dtype: Any) -> Self:
        """Return the tensor with its values converted to *dtype*; raises ArgumentError."""
        tensor: Any = self
        try:
            np.dtype(dtype)
        except TypeError:
            hint = "import ml_dtypes first" if "bfloat16" in str(dtype) else "a dtype of numpy"
            raise ArgumentError(f"argument dtype: numpy does not know {dtype}", hint=hint) from None
        result: Self = tensor.with_values(tensor.values.astype(dtype))
        return result


def _elementwise(expression: str, *operands: Any) -> Any:
    """Return *expression* of the *operands*, broadcast as in numpy."""
    if not all(map(_is_operand, operands)):
        return NotImplemented
    shapes = [_shape(operand) for operand in operands]
    shape = _broadcast(shapes)
    names = [f"i{dim}" for dim in range(len(shape))]
    accesses = []
    for name, extents in zip("AB", shapes, strict=False):
        last = list(zip(names, shape, strict=True))[len(shape) - len(extents) :]
        spread = (
            "0" if n == 1 != extent else i for (i, extent), n in zip(last, extents, strict=True)
        )
        accesses.append(access_text(name, list(spread)))
    run = _kernel(f"{access_text('C', names)} = {expression.format(*accesses)}")
    return run(**dict(zip("AB", operands, strict=False)))


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the shape that *shapes* have together, which numpy does not say for very large ones.

    Raises ArgumentError.
    """
    shape: Shape = ()
    for extents in zip_longest(*(reversed(extents) for extents in shapes), fillvalue=1):
        longer = set(extents) - {1}
        if len(longer) > 1:
            shown = " and ".join(map(str, shapes))
            raise ArgumentError(f"shapes {shown} do not go together")
        shape = (*(longer or {1}), *shape)
    return shape


def _product(a: Any, b: Any) -> Any:
    """Return the matrix product of operands of one or two dimensions."""
    if not (_is_operand(a) and _is_operand(b)):
        return NotImplemented
    shapes = _shape(a), _shape(b)
    text = _PRODUCTS.get((len(shapes[0]), len(shapes[1])))
    if text is None or shapes[0][-1] != shapes[1][0]:
        raise ArgumentError(
            f"shapes {shapes[0]} and {shapes[1]} have no matrix product",
            hint='spcomp.einsum("bij,bjk->bik", A, B) multiplies tensors of more dimensions',
        )
    return _kernel(text)(A=a, B=b)


def _kernel(text: str, formats: tuple[tuple[str, str], ...] = ()) -> Any:
    return _compiled(text, formats, environment())


@lru_cache(maxsize=256)
def _compiled(text: str, formats: tuple[tuple[str, str], ...], _: tuple[str | None, ...]) -> Any:
    from spcomp.kernels.compile import compile as compiled  # which imports Tensor

    return compiled(text, formats=dict(formats))


def _is_operand(arg: Any) -> bool:
    if isinstance(arg, (Arithmetic, np.ndarray, np.generic, int, float)):
        return True
    return hasattr(type(arg), "nnz") or is_torch(arg) or hasattr(arg, "__dask_graph__")


def _shape(arg: Any) -> Shape:
    return tuple(getattr(arg, "shape", ()))


def _axes(axis: Any, rank: int) -> tuple[int, ...]:
    """Return the dimensions *axis*, where -1 is the last; raises ArgumentError."""
    try:
        axes = tuple(map(operator.index, axis if isinstance(axis, (tuple, list)) else (axis,)))
    except TypeError:
        raise ArgumentError(f"argument axis: got {axis!r}, expected integers") from None
    for dim in axes:
        if not -rank <= dim < rank:
            raise ArgumentError(f"argument axis: got {dim} for {rank} dimensions")
    return tuple(dim % rank for dim in axes)
