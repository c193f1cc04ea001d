"""At the call, formats: a matrix in a format as a value, put in its parts and read from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from spcomp.compiler.convert import Storage, convert
from spcomp.compiler.formats_beside import Order, counted, gathered
from spcomp.compiler.formats_convert import convert_by_rules, coordinates, refuse_repeated
from spcomp.compiler.formats_fill import Elements, PartData, Program, positions
from spcomp.compiler.formats_sliced import Arrays, sliced_diagonal
from spcomp.compiler.signature import interface
from spcomp.compiler.tensor import Tensor
from spcomp.dtypes import DType, float32, handle, int32, int64
from spcomp.errors import ArgumentError
from spcomp.formats.describe import compressed, dense, description
from spcomp.formats.format import Format
from spcomp.formats.rules import ComposableFormat, FormatRewriteRule, Kept, rows_of
from spcomp.formats.sliced import SlicedDiagonal
from spcomp.ir.analysis.sizes import evaluate, solve
from spcomp.ir.axis import Axis, SparseBuffer
from spcomp.ir.expr import Expr, Var
from spcomp.passes.convert_format import Placement, is_own, placement, read_source

if TYPE_CHECKING:
    from spcomp.compiler.signature import BufferPlan

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Csr: TypeAlias = tuple[Any, Any, Any]
_CSR = ("indptr", "indices", "values")


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Parts:
    """A matrix in a format of several parts; made by ``spcomp.convert`` and ``kernel.convert``.

    Kernels over the same format take it as it is. All others take it as the matrix that it holds,
    which they put together at every call.

    Args:
        format: What it is stored in.
        shape: The number of coordinates per dimension.
        dtype: The type of the values.
        parts: For each part its arrays, read-only, by their names in its rule; its ``values``.
        sizes: What else is a parameter of each rule.
        buffer: What it was declared as before: along compressed rows.
        order: Where its elements went, for programs that have other buffers along it.
        full: No part holds padding.
    """

    format: ComposableFormat
    shape: tuple[int, ...]
    dtype: DType
    parts: Mapping[str, Arrays]
    sizes: Mapping[str, Mapping[str, int]]
    buffer: SparseBuffer
    order: Order | None = None
    full: bool = False

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def types(self) -> tuple[DType, np.dtype[Any]]:
        """The types of the values and of the index arrays."""
        return self.dtype, np.dtype(self.buffer.axes[-1].idtype.numpy_name)

    @property
    def nnz(self) -> int:
        """The number of stored elements, explicit zeros included and padding not."""
        if isinstance(self.format, Kept):
            return int(self.parts["rows"]["values"].size)
        rules = _rules(self.format, self.buffer)
        return sum(len(_elements(rule, self.parts[rule.name], self.dtype)) for rule in rules)

    @property
    def nbytes(self) -> int:
        """How much memory the parts take."""
        return sum(array.nbytes for part in self.parts.values() for array in part.values())

    def to(self, format: Any, *, duplicates: Any = "sum", sort: bool = True) -> Any:  # noqa: A002
        """Return it in another format; takes, returns and raises as :func:`spcomp.convert`."""
        from spcomp.compiler.conversions import convert as to_format

        return to_format(self, format, duplicates=duplicates, sort=sort)

    def to_scipy(self) -> Any:
        """Return a scipy.sparse array, csr, or coo if there are not two dimensions."""
        return self.to_tensor().to_scipy()

    def to_tensor(self) -> Tensor:
        """Return a Tensor of compressed rows that ascend; it shares no memory with the parts."""
        if isinstance(self.format, Kept):
            return (kept := self.kept).with_values(kept.values.copy())
        numbers, places = self._read()
        met = [self.parts[name]["values"].reshape(-1)[at] for name, at in places.items()]
        return numbers.with_values(_as_type(np.concatenate(met), self.dtype)[numbers.values])

    def whole(self) -> Any:
        """Return what a kernel takes that knows no parts: a csr array, or a Tensor."""
        return self.to_scipy() if self.ndim == 2 else self.to_tensor()

    def with_order(self) -> Parts:
        """Return it with the order of its elements, in which rows ascend if it has none yet."""
        if self.order is not None or isinstance(self.format, Kept):
            return self
        found, places = self._read()
        count = len(found.values)
        rank = np.empty_like(counted(count))
        rank[found.values] = counted(count)
        numbers, begin = {}, 0
        for name, at in places.items():
            numbers[name] = np.zeros(self.parts[name]["values"].shape, rank.dtype)
            numbers[name].reshape(-1)[at] = rank[begin : begin + len(at)]
            begin += len(at)
        none = np.broadcast_to(np.dtype(self.dtype.numpy_name).type(0), count)
        style: Any = "array" if self.ndim == 2 else "tensor"
        order = Order.of(numbers, Storage(None, none, self.shape, found.levels, style))
        return replace(self, order=order)

    @property
    def kept(self) -> Tensor:
        """The matrix, if its format keeps what it was."""
        indptr, indices, values = (self.parts["rows"][what] for what in _CSR)
        level = ("compressed", indptr, indices)
        return Tensor(self.shape, (None, level), _as_type(values, self.dtype))

    def _read(self) -> tuple[Tensor, dict[str, Array]]:
        """Return a Tensor of the elements' numbers in order of the parts, and where they lie."""
        from spcomp.compiler.conversions_build import build
        from spcomp.compiler.conversions_source import from_arrays

        places: dict[str, Array] = {}
        found: list[list[Array]] = [[] for _ in self.shape]
        scalars = _scalars(self.buffer, self.shape)
        for rule in _rules(self.format, self.buffer):
            places[rule.name] = _elements(rule, self.parts[rule.name], self.dtype)
            arrays, sizes = self.parts[rule.name], self.sizes[rule.name]
            own = _Part(placement(rule, self.buffer), arrays, sizes, scalars)
            for every, one in zip(found, own.coordinates(places[rule.name]), strict=True):
                every.append(one)
        numbers = np.arange(sum(map(len, places.values())))
        layout = Format(rows_of(self.ndim), idtype=self.buffer.axes[-1].idtype)
        elements = from_arrays(self.shape, [np.concatenate(one) for one in found], numbers)
        return build(elements, layout, "error"), places

    def __repr__(self) -> str:
        held = ", ".join(f"{name} {part['values'].size}" for name, part in self.parts.items())
        return f"<{self.shape} {self.dtype} in {self.format}: values in {held}>"


def _as_type(values: Array, dtype: DType) -> Array:
    """Return *values*, as they travel, as an array whose type says what they are."""
    if dtype.kind != "bfloat":
        return values
    try:
        return values.view(np.dtype("bfloat16"))
    except TypeError:
        raise ArgumentError(
            "the values are bfloat16, which numpy does not know", hint="import ml_dtypes first"
        ) from None


# -- into parts ------------------------------------------------------------------------------------


def stored(
    layout: ComposableFormat,
    rules: Sequence[FormatRewriteRule],
    buffer: SparseBuffer,
    plan: BufferPlan,
    storage: Storage,
    *,
    noted: bool,
) -> Parts:
    """Return *storage*, of what is declared as *buffer*, in the parts that *rules* of *layout* say.

    *noted*: with the order of its elements. Raises ArgumentError, FormatError.
    """
    carried = noted and not isinstance(layout, (Kept, SlicedDiagonal))
    made = _made(layout, rules, buffer, plan, storage, noted=carried)
    order = _order(made, storage) if carried else None
    for part in made.values():
        for array in part.arrays.values():
            array.flags.writeable = False
    parts = {name: part.arrays for name, part in made.items()}
    sizes = {name: part.sizes for name, part in made.items()}
    full = all(part.full for part in made.values())
    shape = storage.shape or ()
    found = Parts(layout, shape, plan.dtype, parts, sizes, buffer, order, full)
    return found.with_order() if noted else found


def _made(
    layout: ComposableFormat,
    rules: Sequence[FormatRewriteRule],
    buffer: SparseBuffer,
    plan: BufferPlan,
    storage: Storage,
    *,
    noted: bool,
) -> dict[str, PartData]:
    name, idtype = buffer.name, np.dtype(plan.axes[-1].idtype)
    if isinstance(layout, Kept):
        copies = map(np.array, _csr(name, storage, idtype))
        return {"rows": PartData(dict(zip(_CSR, copies, strict=True)), {})}
    if isinstance(layout, SlicedDiagonal):
        arrays = _csr(name, storage, idtype)
        assert storage.shape is not None
        m, n = storage.shape
        found = sliced_diagonal(layout, (m, n), arrays, plan.dtype)
        return {part: PartData(arrays, {}, full=False) for part, arrays in found.items()}
    if storage.levels is None or storage.shape is None or storage.values is None:
        raise no_pattern(name)
    elements = Elements(
        coordinates(name, storage, plan),
        values := storage.values.reshape(-1),
        plan.dtype,
        storage.shape,
        sizes_of(name, plan.shape, storage.shape, {}),
        counted(len(values)) if noted else None,
    )
    return convert_by_rules(rules, buffer, elements)


def _order(made: Mapping[str, PartData], storage: Storage) -> Order:
    """Put values into parts that hold numbers of elements; return these."""
    assert storage.values is not None
    numbers = {rule: part.arrays["values"] for rule, part in made.items()}
    for rule, part in made.items():
        part.arrays["values"] = gathered(numbers[rule], storage.values)
    return Order.of(numbers, storage)


def _csr(name: str, storage: Storage, idtype: np.dtype[Any]) -> Csr:
    """Return indptr, indices and values of *storage*, with index arrays of *idtype*."""
    level = storage.levels[1] if storage.levels is not None else None
    if level is None or level.indices is None or level.indptr is None or storage.values is None:
        raise no_pattern(name)
    from spcomp.compiler.bind import as_index

    return (
        as_index(f"{name}.indptr", level.indptr, idtype),
        as_index(f"{name}.indices", level.indices, idtype),
        storage.values.reshape(-1),
    )


def no_pattern(name: str) -> ArgumentError:
    """Return the error for an argument of which only the values are known."""
    return ArgumentError(
        f"argument {name}: got an array, expected a csr array",
        hint="its pattern is needed to convert it; or give what .convert returned",
    )


def sizes_of(
    name: str, sizes: Sequence[Expr], shape: tuple[int, ...], known: Mapping[str, int]
) -> dict[str, int]:
    """Return the scalar parameters among the *sizes* of the argument *name*, as its *shape* says.

    Raises ArgumentError where *known* ones disagree.
    """
    found: dict[str, int] = {}
    for at, (size, extent) in enumerate(zip(sizes, shape, strict=True)):
        so_far = {**known, **found}
        answer = solve(size, extent, so_far)
        if answer is not None:
            found[answer[0].name] = answer[1]
            continue
        try:
            expected = evaluate(size, so_far)
        except KeyError:
            continue
        if expected != extent:
            raise ArgumentError(f"argument {name}: dimension {at} is {extent}, expected {expected}")
    return found


def put_in_parts(x: Tensor, dtype: DType, layout: ComposableFormat) -> Parts:
    """Return *x*, of the levels ``rows_of`` says and values of *dtype*, in the format *layout*.

    Raises ArgumentError, and FormatError for what has no place in it.
    """
    refuse_rank(layout, len(x.shape))
    buffer, plan = _declared(len(x.shape), dtype, x.layout.idtype)
    storage = convert(x, plan, verify=False)
    refuse_repeated(buffer.name, x, storage)
    level = x.levels[1]
    assert level is not None
    assert level.indptr is not None
    chosen = layout.chosen(np.diff(level.indptr), x.shape[1])
    return stored(chosen, _rules(chosen, buffer), buffer, plan, storage, noted=False)


def refuse_rank(layout: ComposableFormat, rank: int) -> None:
    """Raise FormatError if *layout* is none for tensors of *rank* dimensions."""
    if not isinstance(layout.filled(), Kept):
        layout.filled().rules(_declared(max(rank, 1), float32, int32)[0])


@lru_cache(maxsize=128)
def _declared(rank: int, dtype: DType, idtype: DType) -> tuple[SparseBuffer, BufferPlan]:
    """Return the buffer of *rank* axes whose parts are made, and what is known of it at a call."""
    lengths = [Var(f"n{at}", int64) for at in range(rank)]
    axes = [dense("I0", lengths[0])]
    for at in range(1, rank):
        axes.append(compressed(f"I{at}", axes[-1], lengths[at], idtype))
    buffer = SparseBuffer("A", Var("A_values", handle), tuple(axes), dtype)
    func = description(buffer, tuple(axes))
    face = interface(func.replace(params=(*func.params, *lengths)))
    return buffer, face.by_name["A"]


@lru_cache(maxsize=128)
def _rules(layout: ComposableFormat, buffer: SparseBuffer) -> tuple[FormatRewriteRule, ...]:
    return layout.rules(buffer)


# -- and back --------------------------------------------------------------------------------------


def _elements(rule: FormatRewriteRule, arrays: Arrays, dtype: DType) -> Array:
    """Return which values of a part are elements: of a padded one, those that are not zero."""
    values = arrays["values"].reshape(-1)
    if not rule.padded:
        return np.arange(len(values))
    bits = values & 0x7FFF if dtype.kind == "bfloat" else values  # -0.0 is a zero
    return np.flatnonzero(bits)


def _scalars(buffer: SparseBuffer, shape: tuple[int, ...]) -> dict[str, int]:
    return sizes_of(buffer.name, [axis.length for axis in buffer.axes], shape, {})


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The *arrays* of a part and how they are read; *sizes* are its own, *scalars* the buffer's."""

    made: Placement
    arrays: Arrays
    sizes: Mapping[str, int]
    scalars: Mapping[str, int]

    def coordinates(self, places: Array) -> list[Array]:
        """Return the coordinates of the values at *places*, in the dimensions of the matrix."""
        made, after = self.made, self._after(places)
        arrays = {f"after{k}": own.astype(np.int64, copy=False) for k, own in enumerate(after)}
        found = [np.empty(len(places), np.int64) for _ in made.rule.backward.results]
        if len(places):
            arrays |= {f"axis{k}": own for k, own in enumerate(found)}
            sizes = {f"z{k}": self.scalars[var.name] for k, var in enumerate(made.scalars)}
            Program.of(read_source(made)).run(arrays, {"count": len(places), **sizes})
        return found

    def _after(self, places: Array) -> list[Array]:
        """Return the coordinate on each axis of the part, as its rule counts them."""
        made, chain = self.made, self._along()
        count = len(chain[made.leaf])
        width = count // max(self._above(), 1)
        extents = [self._extent(axis, count, width) for axis in made.sizes]
        rest, at = places, dict[Axis, Array]()
        for axis, extent in zip(reversed(list(made.sizes)), reversed(extents), strict=True):
            rest, at[axis] = np.divmod(rest, max(extent, 1))
        leaf = at[made.leaf]
        if made.is_alone:
            above = [axis for axis in made.sizes if axis in chain and axis is not made.leaf]
            leaf = sum((at[axis] * width for axis in above), start=leaf)
        axes = {axis.name: axis for axis in made.buffer.axes}
        names = made.rule.axes_after_rewrite
        return [chain[axis][leaf] if (axis := axes[name]) in chain else at[axis] for name in names]

    def _extent(self, axis: Axis, count: int, width: int) -> int:
        if axis in self.made.beside:
            return self._length(axis)
        if not self.made.is_alone:
            return count
        return width if axis is self.made.leaf else count // max(width, 1)

    def _above(self) -> int:
        """How many positions the axis above the leaf has."""
        return len(self._along(-1)[self.made.chain[-2]]) if self.made.is_alone else 1

    def _along(self, last: int | None = None) -> dict[Axis, Array]:
        """Return the coordinates on the chain, up to its axis *last*, at each position of that."""
        found: dict[Axis, Array] = {}
        count = 1
        for axis in self.made.chain[:last]:
            held, own = self._fibers(axis, count)
            found = {above: np.repeat(array, held) for above, array in found.items()}
            found[axis], count = own, len(own)
        return found

    def _fibers(self, axis: Axis, count: int) -> tuple[Any, Array]:
        """Return how many positions each fiber of *axis* has, and the coordinate of each."""
        indices = None if axis.indices is None else self.arrays[axis.indices.name].reshape(-1)
        if axis.indptr is not None:
            held = np.diff(self.arrays[axis.indptr.name])
            none = np.zeros(len(held), np.int64)
            return held, positions(none, held) if indices is None else indices
        if indices is not None:
            return len(indices) // max(count, 1), indices
        return 1, np.arange(self._length(axis))

    def _length(self, axis: Axis) -> int:
        known = self.sizes if is_own(self.made.rule, axis.length) else self.scalars
        return max(int(evaluate(axis.length, known)), 0)
