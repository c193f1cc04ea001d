"""After the call of an index notation kernel: results as the user knows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np

from spcomp.compiler.conversions import convert
from spcomp.compiler.conversions_build import from_ascending, frozen, index_type_of
from spcomp.compiler.conversions_small import changes, pointers_of
from spcomp.compiler.conversions_sort import split
from spcomp.compiler.convert import scipy_holds
from spcomp.compiler.notation_args import turned
from spcomp.compiler.notation_stored import in_order, unrooted
from spcomp.compiler.tensor import Tensor, put_together
from spcomp.compiler.tensor_levels import Level
from spcomp.errors import ArgumentError
from spcomp.formats.format import Format
from spcomp.formats.rules import ComposableFormat
from spcomp.notation.algebra import Windowed
from spcomp.notation.layout import Layout
from spcomp.notation.nodes import accesses
from spcomp.notation.plan import Plan
from spcomp.notation.prepare import Prepared
from spcomp.notation.results import Keys, same
from spcomp.notation.windows import Windows, coordinates

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
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
    """How the results of a program are given and returned: *formats* of them as they are asked for.

    *wanted* are the same as layouts.
    """

    prepared: Prepared
    formats: Mapping[str, str | Format | ComposableFormat]
    wanted: Mapping[str, Layout]

    def given(self, kernel: str, out: Any, named_args: dict[str, Any]) -> dict[str, Any]:
        """Return the arrays given for results, by name; those added to are put in *named_args*."""
        given = by_name(self.prepared.results, out)
        for name in given:
            if name not in self.prepared.targets:
                raise ArgumentError(f"argument out: {name} is no output of {kernel}")
        for name in self.prepared.accumulated:
            if name in given:
                named_args[name] = given[name]
            elif name not in named_args:
                raise ArgumentError(
                    f"missing argument {name} of {kernel}, which adds to it",
                    hint=f"give it by name, {name}=..., or as out",
                )
            given = {**given, name: named_args[name]}
        return given

    def check(
        self, plans: Sequence[Plan], arguments: Mapping[str, Any], given: Mapping[str, Any]
    ) -> None:
        """Refuse arrays for results that are not written in place, and too many coordinates."""
        for plan in plans:
            name, output = plan.stmt.target.name, plan.output
            wanted = self.wanted.get(name, output.layout)
            if name in given and (output.keys is not None or not same(wanted, output.layout)):
                raise ArgumentError(
                    f"argument out: {name} is assembled, so it has no array to write in place",
                    hint="leave it out: it is returned",
                )
            if name in given and not output.layout.is_dense and isinstance(given[name], np.ndarray):
                raise ArgumentError(
                    f"argument out: {name} has the pattern of {output.like}, an array has none",
                    hint=f'leave it out, or ask for an array, formats={{"{name}": "dense"}}',
                )
            if output.keys is not None:
                indices = plan.stmt.target.indices
                check_keys(name, output.keys, self._lengths(plan, arguments), indices)

    def results(
        self,
        plans: Sequence[Plan],
        made: Any,
        arguments: Mapping[str, Any],
        given: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return the results by name, as the user knows them; *made* is what the kernel returns."""
        names = self.prepared.targets
        found = {n: getattr(made, n) if len(names) > 1 else made for n in names}
        for plan in plans:
            name, output = plan.stmt.target.name, plan.output
            found[name] = (
                given[name] if name in given else self._result(plan, found[name], arguments)
            )
            wanted = self.wanted.get(name)
            if wanted is not None and name not in given and not same(wanted, output.layout):
                found[name] = convert(found[name], self.formats[name])
        return found

    def _result(self, plan: Plan, made: Any, arguments: Mapping[str, Any]) -> Any:
        output = plan.output
        if output.keys is None:
            return handed_back(made, output.layout)
        lengths, indices = self._lengths(plan, arguments), plan.stmt.target.indices
        return from_keys(made, output.keys, lengths, indices, output.layout)

    def _lengths(self, plan: Plan, arguments: Mapping[str, Any]) -> dict[str, int]:
        """The lengths of the indices of a statement, in a call with these *arguments*."""
        found: dict[str, int] = {}
        for access in accesses(plan.stmt.value):
            part = self.prepared.parts.get(access.name, Windowed(access.name, ()))
            if access.indices and part.name in arguments:
                own = extents(part.name, arguments[part.name].shape, part.windows)
                found |= zip(access.indices, own, strict=True)
        return found


def by_name(names: tuple[str, ...], out: Any) -> dict[str, Any]:
    """Return the arrays given as *out* for results called *names*; raises ArgumentError."""
    if out is None:
        return {}
    if isinstance(out, dict):
        return dict(out)
    if isinstance(out, (tuple, list)) and len(out) == len(names):
        return {n: o for n, o in zip(names, out, strict=True) if o is not None}
    if len(names) == 1:
        return {names[0]: out}
    raise ArgumentError(
        f"argument out: expected {len(names)} outputs ({', '.join(names)})",
        hint="give a dict by name, or a tuple",
    )


def handed_out(arg: Any, layout: Layout) -> Any:
    """Return an output that was given as the kernel knows it; the kernel checks it."""
    if not layout.order and isinstance(arg, np.ndarray) and arg.ndim == 0:
        return arg.reshape(1)
    if getattr(arg, "format", None) == "csc" and layout.order == (1, 0):
        return turned(arg)
    return in_order(arg) if isinstance(arg, Tensor) else arg


def stores_as(given: Any, like: Any) -> bool:
    """Return whether the outer levels of *like* are stored in the arrays that *given* has, too."""
    own, other = _index_arrays(given), _index_arrays(like)
    return 0 < len(own) <= len(other) and all(
        a is b or np.array_equal(a, b) for a, b in zip(own, other, strict=False)
    )


def _index_arrays(stored: Any) -> list[Array]:
    if isinstance(stored, Tensor):
        return [array for level in stored.levels if level for array in level.arrays]
    if getattr(stored, "format", "") in ("csr", "csc"):
        return [stored.indptr, stored.indices]
    return []


def handed_back(made: Any, layout: Layout) -> Any:
    """Return a result of the kernel, stored in *layout*, by its own dimensions."""
    if not layout.order:
        return made[0]
    if getattr(made, "format", None) == "bsr":
        made = Tensor.from_scipy(made)
    if isinstance(made, Tensor):
        plain = made if layout.is_rooted else unrooted(made)
        shape = tuple(plain.shape[layout.order.index(dim)] for dim in range(plain.ndim))
        return put_together(shape, plain.levels, plain.values, layout.order)
    if not layout.is_dense and layout.order == (1, 0):
        return made.T
    return made


# -- results that are assembled as numbers ---------------------------------------------------------


def extents(who: str, shape: tuple[int, ...], windows: Windows) -> list[int]:
    """Return the number of coordinates of each dimension that *windows* of a *shape* leave."""
    found = coordinates(who, windows or (None,) * len(shape), shape)
    return [len(own) for own in found if not isinstance(own, int)]


def check_keys(name: str, keys: Keys, lengths: Lengths, indices: tuple[str, ...]) -> None:
    """Raise ArgumentError if the numbers of *keys*, of a result with *indices*, need over 64 bits.

    A dense result is a way out where it is small, as only indices that are reduced are long; a
    mask is one for what is reduced, which then has its pattern.
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
    made: Any, keys: Keys, lengths: Lengths, indices: tuple[str, ...], layout: Layout
) -> Any:
    """Return the result with *indices*, in *layout*, of what was assembled as *keys*."""
    shape = tuple(lengths[index] for index in indices)
    in_order = tuple(indices[dim] for dim in layout.order) == keys.indices
    values, left, indptr = _rows_of(made)
    if in_order and not keys.rows and set(layout.levels) == {"compressed"}:
        return put_together(shape, _nested(left, shape, layout), values, layout.order)
    coords: dict[str, Array] = {}
    for index in reversed(keys.digits[1:]):
        left, coords[index] = np.divmod(left, lengths[index])
    coords[keys.digits[0]] = left
    if keys.rows:
        coords[keys.indices[0]] = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    own = [coords[indices[dim]] for dim in layout.order]
    if not in_order:
        own, values = _combined(own, [shape[dim] for dim in layout.order], values, keys.op)
    return compressed(shape, own, values, layout, _is_matrix(made))


def _rows_of(made: Any) -> tuple[Array, Array, Array]:
    """Return the values, indices and pointers of *made*, a csr array or a Tensor like one."""
    if not isinstance(made, Tensor):
        return np.asarray(made.data), np.asarray(made.indices), np.asarray(made.indptr)
    level = made.levels[1]
    assert level is not None
    indptr, indices = level.arrays
    return made.values, indices, indptr


def _nested(keys: Array, shape: tuple[int, ...], layout: Layout) -> tuple[Level, ...]:
    """Return compressed levels of elements whose *keys* ascend, from the innermost one outwards.

    Each splits off the last digit of what is left, which the level above has once.
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
    """The elements in ascending order, those of one place combined, in the order they came in."""
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
    found = getattr(sps, kind)((values, coords[1].astype(idtype), indptr), shape=shape)
    found.has_canonical_format = True
    return found


def _is_matrix(made: Any) -> bool:
    import scipy.sparse as sps

    return isinstance(made, sps.spmatrix)
