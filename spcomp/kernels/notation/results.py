"""After the call of an index notation kernel: results as the user knows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import ArgumentError
from spcomp.formats.format import Format
from spcomp.formats.rules import ComposableFormat
from spcomp.kernels.notation.arguments import CallArguments, transposed
from spcomp.kernels.notation.planned import Planned
from spcomp.kernels.notation.stored import in_order, unrooted
from spcomp.notation.algebra import Windowed
from spcomp.notation.layout import Layout
from spcomp.notation.nodes import Access, accesses
from spcomp.notation.plan import Plan
from spcomp.notation.prepare import Prepared
from spcomp.notation.results import Keys, same
from spcomp.notation.windows import Windows, coordinates
from spcomp.tensors.conversions.levels import from_ascending, frozen, index_type_of
from spcomp.tensors.conversions.runs import split
from spcomp.tensors.conversions.small import changes, pointers_of
from spcomp.tensors.convert import convert
from spcomp.tensors.levels import Level
from spcomp.tensors.libraries.scipy import is_matrix, scipy_holds
from spcomp.tensors.tensor import Tensor, tensor_of_levels

Lengths: TypeAlias = Mapping[str, int]
_COMBINE: Mapping[str, np.ufunc] = {
    "+": np.add,
    "*": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.logical_and,
    "or": np.logical_or,
}
_ROWS = ("dense", "compressed")
DENSE = 1 << 34  # elements of a dense result that may be advised


@dataclass(frozen=True, slots=True)
class Delivery:
    """Checks and returns the results of a program, in the *formats* that are asked for.

    *wanted*: the same as layouts.
    """

    prepared: Prepared
    formats: Mapping[str, str | Format | ComposableFormat]
    wanted: Mapping[str, Layout]

    def check(
        self, plans: Sequence[Plan], arguments: CallArguments, outputs: Mapping[str, Any]
    ) -> None:
        """Raise ArgumentError for an array that a result cannot be written to, or too many keys."""
        for plan in plans:
            name, output = plan.stmt.target.name, plan.output
            wanted = self.wanted.get(name, output.layout)
            if name in outputs and (output.keys is not None or not same(wanted, output.layout)):
                raise ArgumentError(
                    f"argument out: {name} is assembled, so it has no array to write in place",
                    hint="leave it out: it is returned",
                )
            if (
                name in outputs
                and not output.layout.is_dense
                and isinstance(outputs[name], np.ndarray)
            ):
                raise ArgumentError(
                    f"argument out: {name} has {_pattern(output.like)}, an array has none",
                    hint=f'leave it out, or ask for an array, formats={{"{name}": "dense"}}',
                )
            if output.keys is not None:
                indices = plan.stmt.target.indices
                check_keys(name, output.keys, self._lengths(plan, arguments), indices)

    def is_plain(self, planned: Planned) -> bool:
        """Whether the kernel returns the user's results alone, in their formats and orders."""
        if planned.unbound or planned.returned != tuple(self.prepared.results):
            return False
        outputs = [(plan.stmt.target.name, plan.output) for plan in planned.plans]
        return all(
            output.keys is None
            and bool(output.layout.order)
            and [*output.layout.order] == sorted(output.layout.order)
            and same(self.wanted.get(name, output.layout), output.layout)
            for name, output in outputs
        )

    def is_number(self, planned: Planned) -> bool:
        """Whether the kernel returns an array of one element, which is the user's only result."""
        alone = not planned.unbound and planned.returned == tuple(self.prepared.results)
        ranks = [self.prepared.ranks[name] for name in planned.returned]
        return alone and ranks == [0] and all(plan.output.keys is None for plan in planned.plans)

    def results(
        self,
        planned: Planned,
        returned: Any,
        arguments: CallArguments,
        outputs: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return what the kernel *returned* as the results for the user, by name."""
        names = planned.returned
        results = {n: getattr(returned, n) if len(names) > 1 else returned for n in names}
        plans = {plan.stmt.target.name: plan for plan in planned.plans}
        for name in names:
            plan = plans[name]
            if name in outputs:
                results[name] = outputs[name]
                continue
            results[name] = self._result(plan, results[name], arguments)
            wanted = self.wanted.get(name)
            if wanted is not None and not same(wanted, plan.output.layout):
                results[name] = convert(results[name], self.formats[name])
        return results

    def _result(self, plan: Plan, returned: Any, arguments: CallArguments) -> Any:
        output = plan.output
        if output.keys is None:
            return as_user_result(returned, output.layout)
        lengths, indices = self._lengths(plan, arguments), plan.stmt.target.indices
        return from_keys(returned, output.keys, lengths, indices, output.layout)

    def _lengths(self, plan: Plan, arguments: CallArguments) -> dict[str, int]:
        """Return the lengths of the indices of a statement in a call with these *arguments*."""
        lengths: dict[str, int] = {}
        for access in accesses(plan.stmt.value):
            part = self.prepared.parts.get(access.name, Windowed(access.name, ()))
            if access.indices and part.name in arguments:
                shape = arguments[part.name].value.shape
                lengths |= zip(
                    access.dimensions, extents(part.name, shape, part.windows), strict=True
                )
        return lengths


def _pattern(like: Access | None) -> str:
    return "a pattern of its own" if like is None else f"the pattern of {like}"


def as_kernel_argument(arg: Any, layout: Layout) -> Any:
    """Return *arg*, an array given for a result, as the kernel takes it, which checks it."""
    if not layout.order and isinstance(arg, np.ndarray) and arg.ndim == 0:
        return arg.reshape(1)
    if getattr(arg, "format", None) == "csc" and layout.order == (1, 0):
        return transposed(arg)
    return in_order(arg) if isinstance(arg, Tensor) else arg


def stores_as(output: Any, pattern: Any) -> bool:
    """Return whether *output* has the arrays of the outer levels of *pattern*."""
    stored, wanted = _index_arrays(output), _index_arrays(pattern)
    return 0 < len(stored) <= len(wanted) and all(
        a is b or np.array_equal(a, b) for a, b in zip(stored, wanted, strict=False)
    )


def _index_arrays(stored: Any) -> list[Array]:
    if isinstance(stored, Tensor):
        return [array for level in stored.levels if level for array in level.arrays]
    if getattr(stored, "format", "") in ("csr", "csc"):
        return [stored.indptr, stored.indices]
    return []


def as_user_result(returned: Any, layout: Layout) -> Any:
    """Return what the kernel *returned*, stored in *layout*, with the dimensions in order."""
    if not layout.order:
        return returned[0]
    if getattr(returned, "format", None) == "bsr":
        returned = Tensor.from_scipy(returned)
    if isinstance(returned, Tensor):
        plain = returned if layout.is_rooted else unrooted(returned)
        shape = tuple(plain.shape[layout.order.index(dim)] for dim in range(plain.ndim))
        return tensor_of_levels(shape, plain.levels, plain.values, layout.order)
    if not layout.is_dense and layout.order == (1, 0):
        return returned.T
    return returned


# -- results that are assembled as numbers ---------------------------------------------------------


def extents(who: str, shape: tuple[int, ...], windows: Windows) -> list[int]:
    """Return the number of coordinates in each dimension of the *windows* of a *shape*."""
    kept = coordinates(who, windows or (None,) * len(shape), shape)
    return [len(dim) for dim in kept if not isinstance(dim, int)]


def check_keys(name: str, keys: Keys, lengths: Lengths, indices: tuple[str, ...]) -> None:
    """Raise ArgumentError if the numbers of *keys*, of a result with *indices*, need over 64 bits.

    The hint is a dense result where that is small, as only reduced indices are long; and a mask
    where something is reduced, as the result then has the pattern of the mask.
    """
    if prod(lengths[index] for index in keys.digits) > np.iinfo(np.int64).max:
        extents = " * ".join(str(lengths[index]) for index in keys.digits)
        mask = f", or mask it: (...) if M[{', '.join(indices)}]" if keys.op else ""
        other = "number the coordinates that occur, np.unique(..., return_inverse=True)"
        if prod(lengths[index] for index in indices) <= DENSE:
            other = f'ask for a dense {name}, formats={{"{name}": "dense"}}'
        raise ArgumentError(
            f"{name} is assembled over {extents} coordinates, which 64 bits do not number",
            hint=other + mask,
        )


def from_keys(
    assembled: Any, keys: Keys, lengths: Lengths, indices: tuple[str, ...], layout: Layout
) -> Any:
    """Return the result with *indices*, in *layout*, from the *assembled* keys."""
    shape = tuple(lengths[index] for index in indices)
    in_order = tuple(indices[dim] for dim in layout.order) == keys.indices
    values, numbers, indptr = _rows_of(assembled)
    if in_order and not keys.rows and set(layout.levels) == {"compressed"}:
        return tensor_of_levels(shape, _nested(numbers, shape, layout), values, layout.order)
    coords: dict[str, Array] = {}
    for index in reversed(keys.digits[1:]):
        numbers, coords[index] = np.divmod(numbers, lengths[index])
    coords[keys.digits[0]] = numbers
    if keys.rows:
        coords[keys.indices[0]] = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    places = [coords[indices[dim]] for dim in layout.order]
    if not in_order:
        places, values = _combined(places, [shape[dim] for dim in layout.order], values, keys.op)
    return compressed(shape, places, values, layout, is_matrix(assembled))


def _rows_of(assembled: Any) -> tuple[Array, Array, Array]:
    """Return the values, indices and pointers of *assembled*, a csr array or a Tensor like one."""
    if not isinstance(assembled, Tensor):
        return (
            np.asarray(assembled.data),
            np.asarray(assembled.indices),
            np.asarray(assembled.indptr),
        )
    level = assembled.levels[1]
    assert level is not None
    indptr, indices = level.arrays
    return assembled.values, indices, indptr


def _nested(keys: Array, shape: tuple[int, ...], layout: Layout) -> tuple[Level, ...]:
    """Return compressed levels of elements whose *keys* ascend.

    They are built from the innermost one out: each splits off the last digit of the keys, and the
    level above has each of the shorter keys once.
    """
    idtype = index_type_of(layout, len(keys), *shape)
    levels: list[Level] = []
    for dim in reversed(layout.order[1:]):
        last, starts, keys = split(keys, shape[dim], idtype)
        levels.append(frozen(Level("compressed", starts, last), idtype))
    levels.append(frozen(Level("compressed", np.array([0, len(keys)]), keys), idtype))
    return tuple(reversed(levels))


def _combined(
    coords: list[Array], lengths: list[int], values: Array, op: str | None
) -> tuple[list[Array], Array]:
    """Return the elements in ascending order; those of one place are combined in their order."""
    if prod(lengths) > np.iinfo(np.int64).max:
        order = np.lexsort(coords[::-1])
    else:
        order = np.argsort(np.ravel_multi_index(tuple(coords), lengths), kind="stable")
    coords, values = [c[order] for c in coords], values[order]
    if op is None or not len(values):
        return coords, values
    first = np.flatnonzero(changes(coords))
    total = _COMBINE[op].reduceat(values, first, dtype=values.dtype)
    return [c[first] for c in coords], total


# -- formats ---------------------------------------------------------------------------------------


def compressed(
    shape: tuple[int, ...],
    coords: list[Array],
    values: Array,
    layout: Layout,
    matrix: bool = False,  # noqa: FBT001, FBT002
) -> Any:
    """Return the elements at *coords*, which ascend by level, as a Tensor, csr or csc array.

    The last level of *layout* is compressed.
    """
    if layout.levels != _ROWS or not scipy_holds(values.dtype):
        return from_ascending(shape, coords, values, layout)
    import scipy.sparse as sps

    idtype = index_type_of(layout, len(values), *shape)
    indptr = pointers_of(coords[0], shape[layout.order[0]], idtype)
    kind = f"{'csr' if layout.order == (0, 1) else 'csc'}_{'matrix' if matrix else 'array'}"
    array = getattr(sps, kind)((values, coords[1].astype(idtype), indptr), shape=shape)
    array.has_canonical_format = True
    return array
