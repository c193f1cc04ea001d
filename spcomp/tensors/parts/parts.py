"""At the call, formats: a matrix in a format of several parts, stored in them and read back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from spcomp.arrays import Array
from spcomp.compiler.interface import interface
from spcomp.display.html import heading, table
from spcomp.dtypes import DType, float32, handle, int32, int64
from spcomp.errors import ArgumentError
from spcomp.formats.describe import compressed, dense, description
from spcomp.formats.format import Format
from spcomp.formats.rules import ComposableFormat, FormatRewriteRule, Kept, rows_of
from spcomp.formats.sliced import SlicedDiagonal, Slices
from spcomp.ir.analysis.sizes import evaluate, solve
from spcomp.ir.axis import Axis, SparseBuffer
from spcomp.ir.expr import Expr, Var
from spcomp.tensors.arguments import storage_of
from spcomp.tensors.checks import as_index
from spcomp.tensors.conversions.elements import elements_of, from_arrays
from spcomp.tensors.conversions.levels import build
from spcomp.tensors.libraries.scipy import scipy_holds
from spcomp.tensors.parts.fill import PartData, ProgramElements, positions
from spcomp.tensors.parts.order import Order, element_numbers, gather
from spcomp.tensors.parts.placement import Placement, is_own, placement, read
from spcomp.tensors.parts.rules import convert_by_rules, refuse_repeated
from spcomp.tensors.parts.sliced import Arrays, sliced_diagonal
from spcomp.tensors.parts.slices import coordinates, slices
from spcomp.tensors.storage import Storage
from spcomp.tensors.tensor import Tensor, tensor_of_levels

if TYPE_CHECKING:
    from spcomp.compiler.interface import BufferPlan

Csr: TypeAlias = tuple[Any, Any, Any]
_CSR = ("indptr", "indices", "values")


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Parts:
    """A matrix in a format of several parts; ``spcomp.convert`` and ``kernel.convert`` return it.

    Kernels over the same format take it as it is. Others take the matrix that it holds, which is
    assembled from the parts at every call.

    Args:
        format: The format of the parts.
        shape: The number of coordinates per dimension.
        dtype: The type of the values.
        parts: The read-only arrays of each part by their names in its rule, and its ``values``.
        sizes: The other parameters of each rule.
        buffer: The declaration before the rules: along compressed rows.
        order: Where its elements went, for programs with other buffers along its axes.
        full: Whether no part holds padding.
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
        """The number of stored elements, with explicit zeros and without padding."""
        if isinstance(self.format, Kept):
            return int(self.parts["rows"]["values"].size)
        rules = _rules(self.format, self.buffer)
        return sum(len(_elements(rule, self.parts[rule.name], self.dtype)) for rule in rules)

    @property
    def nbytes(self) -> int:
        """The memory of the parts, in bytes."""
        return sum(array.nbytes for part in self.parts.values() for array in part.values())

    def to(self, format: Any, *, duplicates: Any = "sum", sort: bool = True) -> Any:  # noqa: A002
        """Return the matrix in another *format*; see :func:`spcomp.convert`."""
        from spcomp.tensors.convert import convert as to_format

        return to_format(self, format, duplicates=duplicates, sort=sort)

    def to_scipy(self) -> Any:
        """Return a scipy.sparse array: csr for two dimensions, else coo."""
        return self.to_tensor().to_scipy()

    def to_tensor(self) -> Tensor:
        """Return a Tensor of sorted compressed rows; it shares no memory with the parts."""
        if isinstance(self.format, Kept):
            return (kept := self.kept).with_values(kept.values.copy())
        numbers, places = self._read()
        values = [self.parts[name]["values"].reshape(-1)[at] for name, at in places.items()]
        return numbers.with_values(_as_type(np.concatenate(values), self.dtype)[numbers.values])

    def whole(self) -> Any:
        """Return the matrix for kernels that do not take parts: a csr array, or a Tensor."""
        tensor = self.to_tensor()
        return tensor.to_scipy() if self.ndim == 2 and scipy_holds(tensor.dtype) else tensor

    def with_order(self) -> Parts:
        """Return it with the order of its elements: the one it has, else by rows."""
        if self.order is not None or isinstance(self.format, Kept):
            return self
        tensor, places = self._read()
        count = len(tensor.values)
        rank = np.empty_like(element_numbers(count))
        rank[tensor.values] = element_numbers(count)
        numbers, begin = {}, 0
        for name, at in places.items():
            numbers[name] = np.zeros(self.parts[name]["values"].shape, rank.dtype)
            numbers[name].reshape(-1)[at] = rank[begin : begin + len(at)]
            begin += len(at)
        none = np.broadcast_to(np.dtype(self.dtype.numpy_name).type(0), count)
        style: Any = "array" if self.ndim == 2 else "tensor"
        order = Order.of(numbers, Storage(None, none, self.shape, tensor.levels, style))
        return replace(self, order=order)

    @property
    def kept(self) -> Tensor:
        """The original matrix, for a format that keeps it."""
        indptr, indices, values = (self.parts["rows"][what] for what in _CSR)
        level = ("compressed", indptr, indices)
        return Tensor(self.shape, (None, level), _as_type(values, self.dtype))

    def elements(self) -> dict[str, tuple[Array, ...]]:
        """Return the coordinates of the elements of each part: an int64 array per dimension."""
        if isinstance(self.format, Kept):
            return {"rows": self.kept.coordinates()}
        return {name: tuple(columns) for name, _, columns in self._pieces()}

    def _pieces(self) -> Iterator[tuple[str, Array, list[Array]]]:
        """Yield for each part its name, the places of its elements, and their coordinates."""
        scalars = _scalars(self.buffer, self.shape)
        for rule in _rules(self.format, self.buffer):
            arrays, sizes = self.parts[rule.name], self.sizes[rule.name]
            places = _elements(rule, arrays, self.dtype)
            if isinstance(self.format, Slices) and rule.is_stored:
                lanes = self.format.lanes_of(self.dtype)
                yield rule.name, places, coordinates(arrays, lanes, places)
                continue
            part = _Part(placement(rule, self.buffer), arrays, sizes, scalars)
            yield rule.name, places, part.coordinates(places)

    def _read(self) -> tuple[Tensor, dict[str, Array]]:
        """Return a Tensor of element numbers, counted by parts, and their places in each part."""
        pieces = list(self._pieces())
        places = {name: part for name, part, _ in pieces}
        columns = zip(*(coordinates for _, _, coordinates in pieces), strict=True)
        numbers = np.arange(sum(map(len, places.values())))
        layout = Format(rows_of(self.ndim), idtype=self.buffer.axes[-1].idtype)
        elements = from_arrays(self.shape, [*map(np.concatenate, columns)], numbers)
        return build(elements, layout, "error"), places

    def _repr_html_(self) -> str:
        rows = (
            (name, part["values"].size, sum(array.nbytes for array in part.values()))
            for name, part in self.parts.items()
        )
        title = heading(f"{self.shape} {self.dtype} in {self.format}")
        return title + table(("part", "values", "bytes"), rows)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {part['values'].size}" for name, part in self.parts.items())
        return f"<{self.shape} {self.dtype} in {self.format}: values in {sizes}>"


def _as_type(values: Array, dtype: DType) -> Array:
    """Return *values*, with bfloat16 passed as bits, as an array of their own dtype."""
    if dtype.kind != "bfloat":
        return values
    try:
        return values.view(np.dtype("bfloat16"))
    except TypeError:
        raise ArgumentError(
            "the values are bfloat16, which numpy does not know", hint="import ml_dtypes first"
        ) from None


# -- into parts ------------------------------------------------------------------------------------


def parts_of(
    layout: ComposableFormat,
    rules: Sequence[FormatRewriteRule],
    buffer: SparseBuffer,
    plan: BufferPlan,
    storage: Storage,
    *,
    with_order: bool,
) -> Parts:
    """Return *storage*, declared as *buffer*, in the parts that the *rules* of *layout* describe.

    *with_order*: with the order of its elements. Raises ArgumentError, FormatError.
    """
    carried = with_order and not isinstance(layout, (Kept, SlicedDiagonal, Slices))
    data = _part_data(layout, rules, buffer, plan, storage, with_order=carried)
    order = _order(data, storage) if carried else None
    for part in data.values():
        for array in part.arrays.values():
            array.flags.writeable = False
    parts = {name: part.arrays for name, part in data.items()}
    sizes = {name: part.sizes for name, part in data.items()}
    full = all(part.full for part in data.values())
    shape = storage.shape or ()
    result = Parts(layout, shape, plan.dtype, parts, sizes, buffer, order, full)
    return result.with_order() if with_order else result


def _part_data(
    layout: ComposableFormat,
    rules: Sequence[FormatRewriteRule],
    buffer: SparseBuffer,
    plan: BufferPlan,
    storage: Storage,
    *,
    with_order: bool,
) -> dict[str, PartData]:
    name, idtype = buffer.name, np.dtype(plan.axes[-1].idtype)
    if isinstance(layout, Kept):
        copies = map(np.array, _csr(name, storage, idtype))
        return {"rows": PartData(dict(zip(_CSR, copies, strict=True)), {})}
    if isinstance(layout, SlicedDiagonal | Slices):
        csr = _csr(name, storage, idtype)
        assert storage.shape is not None  # it has a pattern
        m, n = storage.shape
        if isinstance(layout, Slices):
            return slices(layout, (m, n), csr, plan.dtype)
        segments = sliced_diagonal(layout, (m, n), csr, plan.dtype)
        return {part: PartData(arrays, {}, full=False) for part, arrays in segments.items()}
    return convert_by_rules(rules, buffer, _elements_of(name, storage, plan, with_order=with_order))


def _elements_of(
    name: str, storage: Storage, plan: BufferPlan, *, with_order: bool
) -> ProgramElements:
    """Return the elements of the argument *name*; *with_order*: parts will hold their numbers.

    Raises ArgumentError if the index type of the program is too narrow for the coordinates.
    """
    if storage.levels is None or storage.shape is None or storage.values is None:
        raise no_pattern(name)
    values = storage.values.reshape(-1)
    whole = tensor_of_levels(storage.shape, storage.levels, values)
    elements = elements_of(whole)
    idtype = np.result_type(*(axis.idtype for axis in plan.axes if axis.arrays))
    return ProgramElements(
        elements.shape,
        tuple(as_index(f"{name}.indices", x, idtype) for x in elements.coordinates),
        elements.values,
        plan.dtype,
        sizes_of(name, plan.shape, elements.shape, {}),
        elements_of(whole.with_values(element_numbers(len(values)))).values if with_order else None,
    )


def _order(data: Mapping[str, PartData], storage: Storage) -> Order:
    """Replace the element numbers in the parts by values; return the order with the numbers."""
    assert storage.values is not None
    numbers = {rule: part.arrays["values"] for rule, part in data.items()}
    for rule, part in data.items():
        part.arrays["values"] = gather(numbers[rule], storage.values)
    return Order.of(numbers, storage)


def _csr(name: str, storage: Storage, idtype: np.dtype[Any]) -> Csr:
    """Return indptr, indices and values of *storage*, with index arrays as *idtype*."""
    level = storage.levels[1] if storage.levels is not None else None
    if level is None or level.indices is None or level.indptr is None or storage.values is None:
        raise no_pattern(name)
    return (
        as_index(f"{name}.indptr", level.indptr, idtype),
        as_index(f"{name}.indices", level.indices, idtype),
        storage.values.reshape(-1),
    )


def no_pattern(name: str) -> ArgumentError:
    """Return the error for an argument without a pattern, of which only values are known."""
    return ArgumentError(
        f"argument {name}: got an array, expected a csr array",
        hint="its pattern is needed to convert it; or give what .convert returned",
    )


def sizes_of(
    name: str, sizes: Sequence[Expr], shape: tuple[int, ...], known: Mapping[str, int]
) -> dict[str, int]:
    """Return the scalar parameters in the *sizes* of the argument *name*, solved for its *shape*.

    Raises ArgumentError if they contradict the *known* ones.
    """
    solved: dict[str, int] = {}
    for at, (size, extent) in enumerate(zip(sizes, shape, strict=True)):
        so_far = {**known, **solved}
        answer = solve(size, extent, so_far)
        if answer is not None:
            solved[answer[0].name] = answer[1]
            continue
        try:
            expected = evaluate(size, so_far)
        except KeyError:
            continue
        if expected != extent:
            raise ArgumentError(f"argument {name}: dimension {at} is {extent}, expected {expected}")
    return solved


def put_in_parts(x: Tensor, dtype: DType, layout: ComposableFormat) -> Parts:
    """Return *x*, with the levels of ``rows_of`` and values of *dtype*, in the format *layout*.

    Raises ArgumentError, and FormatError if it does not fit.
    """
    refuse_rank(layout, len(x.shape))
    buffer, plan = _declared(len(x.shape), dtype, x.layout.idtype)
    storage = storage_of(x, plan, verify=False)
    refuse_repeated(buffer.name, x, storage)
    level = x.levels[1]
    assert level is not None
    assert level.indptr is not None
    chosen = layout.chosen(np.diff(level.indptr), x.shape[1])
    return parts_of(chosen, _rules(chosen, buffer), buffer, plan, storage, with_order=False)


def refuse_rank(layout: ComposableFormat, rank: int) -> None:
    """Raise FormatError if *layout* does not fit tensors of *rank* dimensions."""
    if not isinstance(layout.filled(), Kept):
        layout.filled().rules(_declared(max(rank, 1), float32, int32)[0])


@lru_cache(maxsize=128)
def _declared(rank: int, dtype: DType, idtype: DType) -> tuple[SparseBuffer, BufferPlan]:
    """Return the buffer of *rank* axes that is split into parts, and its plan for a call."""
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
    """Return the places of a part's elements: all, or the nonzero ones if it is padded."""
    values = arrays["values"].reshape(-1)
    if not rule.padded:
        return np.arange(len(values))
    bits = values & 0x7FFF if dtype.kind == "bfloat" else values  # -0.0 is a zero
    return np.flatnonzero(bits)


def _scalars(buffer: SparseBuffer, shape: tuple[int, ...]) -> dict[str, int]:
    return sizes_of(buffer.name, [axis.length for axis in buffer.axes], shape, {})


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The *arrays* of a part and how to read them; its own *sizes*, the buffer's *scalars*."""

    placement: Placement
    arrays: Arrays
    sizes: Mapping[str, int]
    scalars: Mapping[str, int]

    def coordinates(self, places: Array) -> list[Array]:
        """Return the coordinates of the values at *places* by dimension of the matrix."""
        placement, after = self.placement, self._after(places)
        arrays = {f"after{k}": axis.astype(np.int64, copy=False) for k, axis in enumerate(after)}
        columns = [np.empty(len(places), np.int64) for _ in placement.rule.backward.results]
        if len(places):
            arrays |= {f"axis{k}": axis for k, axis in enumerate(columns)}
            sizes = {f"z{k}": self.scalars[var.name] for k, var in enumerate(placement.scalars)}
            read(placement).run({**arrays, "count": len(places), **sizes})
        return columns

    def _after(self, places: Array) -> list[Array]:
        """Return the coordinates of the values at *places* by axis of the part."""
        placement, chain = self.placement, self._along()
        count = len(chain[placement.leaf])
        width = count // max(self._above(), 1)
        extents = [self._extent(axis, count, width) for axis in placement.sizes]
        rest, at = places, dict[Axis, Array]()
        for axis, extent in zip(reversed(list(placement.sizes)), reversed(extents), strict=True):
            rest, at[axis] = np.divmod(rest, max(extent, 1))
        leaf = at[placement.leaf]
        if placement.is_alone:
            ordering = [axis for axis in placement.sizes if axis in chain]
            above = [axis for axis in ordering if axis is not placement.leaf]
            leaf = sum((at[axis] * width for axis in above), start=leaf)
        axes = {axis.name: axis for axis in placement.buffer.axes}
        names = placement.rule.axes_after_rewrite
        return [chain[axis][leaf] if (axis := axes[name]) in chain else at[axis] for name in names]

    def _extent(self, axis: Axis, count: int, width: int) -> int:
        if axis in self.placement.beside:
            return self._length(axis)
        if not self.placement.is_alone:
            return count
        return width if axis is self.placement.leaf else count // max(width, 1)

    def _above(self) -> int:
        """The number of positions of the axis above the leaf."""
        return len(self._along(-1)[self.placement.chain[-2]]) if self.placement.is_alone else 1

    def _along(self, last: int | None = None) -> dict[Axis, Array]:
        """Return the coordinates on each axis of ``chain[:last]``, at positions of the last."""
        coordinates: dict[Axis, Array] = {}
        count = 1
        for axis in self.placement.chain[:last]:
            counts, along = self._fibers(axis, count)
            coordinates = {above: np.repeat(array, counts) for above, array in coordinates.items()}
            coordinates[axis], count = along, len(along)
        return coordinates

    def _fibers(self, axis: Axis, count: int) -> tuple[Any, Array]:
        """Return the number of positions of each fiber of *axis*, and their coordinates."""
        indices = None if axis.indices is None else self.arrays[axis.indices.name].reshape(-1)
        if axis.indptr is not None:
            counts = np.diff(self.arrays[axis.indptr.name])
            none = np.zeros(len(counts), np.int64)
            return counts, positions(none, counts) if indices is None else indices
        if indices is not None:
            return len(indices) // max(count, 1), indices
        return 1, np.arange(self._length(axis))

    def _length(self, axis: Axis) -> int:
        scalars = self.sizes if is_own(self.placement.rule, axis.length) else self.scalars
        return max(int(evaluate(axis.length, scalars)), 0)
