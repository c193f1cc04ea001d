"""What a Tensor can do as arrays do: arithmetic, ``@``, slices, sums; all by index notation.

Each operation is a line of index notation over the operands, so presence, dtypes and the formats of
results are those of ``docs/notation.md``.
"""

from __future__ import annotations

import math
import operator
import re
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from numbers import Number
from typing import TYPE_CHECKING, Any, TypeAlias
from typing import cast as typed

import numpy as np

from spcomp.compiler.foreign import is_torch
from spcomp.errors import ArgumentError

if TYPE_CHECKING:
    from spcomp.compiler.tensor import Tensor

Shape: TypeAlias = tuple[int, ...]
Axes: TypeAlias = "int | Sequence[int] | None"
_PRODUCTS = {  # of so many dimensions each
    (2, 2): "C[i, k] = A[i, j] * B[j, k]",
    (2, 1): "C[i] = A[i, j] * B[j]",
    (1, 2): "C[k] = A[j] * B[j, k]",
    (1, 1): "C = A[j] * B[j]",
}


def _binary(sign: str) -> Callable[[Any, Any], Any]:
    return lambda self, other: _elementwise(f"{{}} {sign} {{}}", self, other)


def _reflected(sign: str) -> Callable[[Any, Any], Any]:
    return lambda self, other: _elementwise(f"{{}} {sign} {{}}", other, self)


class Operators:
    """The operators of :class:`spcomp.Tensor`, whose other side may be an array of any library.

    ``==`` and ``!=`` ask whether two Tensors are the same object, as for any other object, and are
    refused with numbers and arrays.
    """

    __slots__ = ()
    __array_ufunc__ = None  # numpy leaves ``array + tensor`` to the tensor
    __iter__ = None  # slices do not make it a sequence

    __add__, __radd__ = _binary("+"), _reflected("+")
    __sub__, __rsub__ = _binary("-"), _reflected("-")
    __mul__, __rmul__ = _binary("*"), _reflected("*")
    __truediv__, __rtruediv__ = _binary("/"), _reflected("/")
    __floordiv__, __rfloordiv__ = _binary("//"), _reflected("//")
    __mod__, __rmod__ = _binary("%"), _reflected("%")
    __pow__, __rpow__ = _binary("**"), _reflected("**")
    __lt__, __le__ = _binary("<"), _binary("<=")
    __gt__, __ge__ = _binary(">"), _binary(">=")

    def __eq__(self, other: object) -> bool:
        """Whether *other* is this Tensor; refuses numbers and arrays, which mean their elements."""
        if isinstance(other, (Number, np.ndarray)) or hasattr(other, "tocoo"):
            raise ArgumentError(
                "== and != ask whether two Tensors are one object, not about their elements",
                hint='spcomp.compile("C[i, j] = A[i, j] == 0") compares those that are stored',
            )
        return self is other

    __hash__ = object.__hash__

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

    def __getitem__(self, key: Any) -> Any:
        """Return the part at *key*: integers, slices with positive steps, one ``...``.

        A Tensor, in the same format if no dimension goes, else of compressed levels; a number if
        all go, 0 where nothing is stored. Raises ArgumentError.
        """
        from spcomp.compiler.tensor_parts import part_of  # which converts: it stands above us

        return part_of(self, key)

    @property
    def T(self) -> Tensor:  # noqa: N802
        """The tensor with its dimensions in reverse; nothing is copied."""
        return self.transpose()

    def transpose(self, axes: Sequence[int] | None = None) -> Tensor:
        """Return the tensor whose dimensions are *axes* of this one, by default all in reverse.

        Levels and values are shared. Raises ArgumentError.
        """
        own: Any = self
        every = range(own.ndim)
        chosen = tuple(reversed(every)) if axes is None else _axes(axes, own.ndim)
        if sorted(chosen) != list(every):
            raise ArgumentError(f"argument axes: got {axes}, expected each of {own.ndim} once")
        made: Tensor = own.with_dimensions(chosen)
        return made

    def reshape(self, *shape: Any, order: str = "C") -> Tensor:
        """Return the same elements in another *shape*, one extent of which may be -1.

        In the same format if the rank stays, else of compressed levels. Raises ArgumentError.
        """
        from spcomp.compiler.tensor_parts import reshaped

        if order != "C":
            raise ArgumentError(f"argument order: got {order!r}, elements are taken by rows, 'C'")
        made: Tensor = reshaped(self, shape)
        return made

    @property
    def size(self) -> int:
        """The number of coordinates, whatever is stored."""
        return math.prod(_shape(self))

    def toarray(self) -> Any:
        """Return what ``to_dense`` does."""
        return typed("Tensor", self).to_dense()

    def todense(self) -> Any:
        """Return what ``to_dense`` does."""
        return self.toarray()

    def __array__(self, dtype: Any = None, copy: object = None) -> Any:
        """Refuse to become an array unasked: a small tensor may be a very large one.

        Raises ArgumentError.
        """
        caller = sys._getframe(1)  # noqa: SLF001
        is_scipy = caller.f_globals["__name__"].startswith("scipy.sparse")
        if is_scipy and caller.f_code.co_name != "__init__":
            found = np.empty((), object)  # by which scipy leaves ``matrix @ tensor`` to us
            found[()] = self
            return found
        raise ArgumentError(
            f"a Tensor of {self.size} coordinates is not made an array by itself",
            hint="A.to_dense() and A.to_scipy() make one; operators, A.sum, A.max... need none",
        )

    def sum(
        self, axis: Axes = None, dtype: Any = None, out: None = None, *, keepdims: bool = False
    ) -> Any:
        """Return the sums along *axis*, one or several, by default all: an array, or a number.

        Integers and bools are added in 64 bits, as numpy does it. Raises ArgumentError.
        """
        own = typed("Tensor", self).dtype
        wide = np.dtype(dtype or {"b": "int64", "i": "int64", "u": "uint64"}.get(own.kind, own))
        text = "C = A" if wide == own else f"C = {wide.name}(A)"
        return self._reduced(text, self._axes(axis), out, keepdims=keepdims)

    def mean(
        self, axis: Axes = None, dtype: Any = None, out: None = None, *, keepdims: bool = False
    ) -> Any:
        """Return the sums along *axis* over the number of coordinates, stored or not."""
        own = typed("Tensor", self).dtype
        kind = np.dtype(dtype or (np.float64 if own.kind in "biu" else own))
        total = self.sum(axis, np.float32 if kind.itemsize == 2 else kind, out, keepdims=keepdims)
        count = math.prod(_shape(self)[dim] for dim in self._axes(axis))
        return np.true_divide(total, count).astype(kind)

    def max(self, axis: Axes = None, out: None = None, *, keepdims: bool = False) -> Any:
        """Return the largest along *axis*; what is not stored is 0. Raises ArgumentError."""
        return self._extreme("max", axis, out, keepdims=keepdims)

    def min(self, axis: Axes = None, out: None = None, *, keepdims: bool = False) -> Any:
        """Return the smallest along *axis*; what is not stored is 0. Raises ArgumentError."""
        return self._extreme("min", axis, out, keepdims=keepdims)

    def _extreme(self, name: str, axis: Axes, out: None, *, keepdims: bool) -> Any:
        over = self._axes(axis)
        count = math.prod(_shape(self)[dim] for dim in over)
        if not count:
            raise ArgumentError(f"there is no {name} of no elements")
        if not over:
            return self.toarray()[()]
        text = f"C = {name}(_, A)\nN = sum(_, int64(1) if A)"
        found, stored = self._reduced(text, over, out, keepdims=keepdims)
        zero = getattr(np, f"{name}imum")(found, found.dtype.type(0))
        own = typed("Tensor", self).dtype
        return np.where(stored < count, zero, found).astype(own)[()]

    def _axes(self, axis: Axes) -> tuple[int, ...]:
        rank = len(_shape(self))
        found = tuple(range(rank)) if axis is None else _axes(axis, rank)
        if len(set(found)) < len(found):
            raise ArgumentError(f"argument axis: got {axis}, expected each once")
        return found

    def _reduced(self, text: str, over: tuple[int, ...], out: None, *, keepdims: bool) -> Any:
        """Return the results of *text*, C and maybe N, without the axes *over*, which are _."""
        if out is not None:
            raise ArgumentError("argument out: a sum makes a new array", hint="out[...] = A.sum(0)")
        names = [f"i{dim}" for dim in range(len(_shape(self)))]
        left = [name for dim, name in enumerate(names) if dim not in over]
        spelled = {name: _access(name, left) for name in "CN"} | {"A": _access("A", names)}
        spelled["_"] = f"({', '.join(names[dim] for dim in over)})"
        text = re.sub(r"\b[ACN_]\b", lambda word: spelled[word[0]], text)
        formats = tuple((name, "dense") for name in "CN" if left and f"{name}[" in text)
        found = _kernel(text, formats)(A=self)
        if not keepdims:
            return found
        shape = [1 if dim in over else extent for dim, extent in enumerate(_shape(self))]
        several = isinstance(found, tuple)
        return tuple(np.reshape(r, shape) for r in found) if several else np.reshape(found, shape)

    def astype(self, dtype: Any) -> Tensor:
        """Return the tensor with its values as *dtype*, in the same places."""
        own: Any = self
        made: Tensor = own.with_values(own.values.astype(dtype))
        return made


def _elementwise(expression: str, *operands: Any) -> Any:
    """Return what *expression* is of the *operands*, spread over each other as numpy does it."""
    if not all(map(_is_operand, operands)):
        return NotImplemented
    shapes = [_shape(one) for one in operands]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        shown = " and ".join(map(str, shapes))
        raise ArgumentError(f"shapes {shown} do not go together") from None
    names = [f"i{dim}" for dim in range(len(shape))]
    accesses = []
    for name, own in zip("AB", shapes, strict=False):
        last = list(zip(names, shape, strict=True))[len(shape) - len(own) :]
        spread = ("0" if n == 1 != extent else i for (i, extent), n in zip(last, own, strict=True))
        accesses.append(_access(name, list(spread)))
    run = _kernel(f"{_access('C', names)} = {expression.format(*accesses)}")
    return run(**dict(zip("AB", operands, strict=False)))


def _product(a: Any, b: Any) -> Any:
    """Return the matrix product of operands with one or two dimensions."""
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


@lru_cache(maxsize=256)
def _kernel(text: str, formats: tuple[tuple[str, str], ...] = ()) -> Any:
    from spcomp.compiler.compile import compile as compiled  # which is made of Tensors

    return compiled(text, formats=dict(formats))


def _is_operand(one: Any) -> bool:
    if isinstance(one, (Operators, np.ndarray, np.generic, int, float)):
        return True
    return hasattr(type(one), "nnz") or is_torch(one)


def _shape(one: Any) -> Shape:
    return tuple(getattr(one, "shape", ()))


def _access(name: str, indices: Sequence[str]) -> str:
    return f"{name}[{', '.join(indices)}]" if indices else name


def _axes(given: Any, rank: int) -> tuple[int, ...]:
    """Return the dimensions *given*, which may count from the last; raises ArgumentError."""
    try:
        found = tuple(map(operator.index, given if isinstance(given, (tuple, list)) else (given,)))
    except TypeError:
        raise ArgumentError(f"argument axis: got {given!r}, expected integers") from None
    for axis in found:
        if not -rank <= axis < rank:
            raise ArgumentError(f"argument axis: got {axis} for {rank} dimensions")
    return tuple(axis % rank for axis in found)
