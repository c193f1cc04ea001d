"""At the call of an index notation kernel: results at index vectors, whose places are sorted once.

``Y[dst[e], f] = x`` is computed row by row: an operand has for each row the positions at which dst
has its number, in ascending order. It is made of dst by a stable sorting, and kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import ArgumentError, OutOfMemoryError
from spcomp.kernels.notation.arguments import CallArgument, CallArguments, kind_of
from spcomp.notation.vectors import Scattered, check_type
from spcomp.runtime.cuda.arrays import array_of, lies_there, place_of, to_host
from spcomp.tensors import checks as validate
from spcomp.tensors.cache import Cache
from spcomp.tensors.conversions.levels import LARGEST
from spcomp.tensors.device_tensor import DeviceTensor
from spcomp.tensors.libraries.foreign import hint_about
from spcomp.tensors.tensor import Tensor

Sizes = Mapping[str, int]  # the lengths of results along the dimension of an index vector, by name
Rows: TypeAlias = Tensor | DeviceTensor
_ROWS: Cache[Tensor] = Cache()


def sorted_rows(numbers: Array, count: int) -> Tensor:
    """Return a csr matrix of *count* rows: row n has the positions at which *numbers* has n."""
    places = (numbers, np.arange(len(numbers)))
    return Tensor.from_coo(places, np.ones(len(numbers), np.int32), (count, len(numbers)), "csr")


def rows_of(who: str, vector: Array, count: int) -> Tensor:
    """Return a csr matrix of *count* rows: row n has the positions at which *vector* has n.

    Sorted once: a later call with the same contents gets the same matrix. Raises ArgumentError
    about the argument *who* where a number is no row, OutOfMemoryError for too many rows.
    """

    def make() -> Tensor:
        numbers = np.ascontiguousarray(vector)
        validate.in_range(who, numbers, 0, count - 1)
        return sorted_rows(numbers, count)

    try:
        return _ROWS.get(count, (vector,), make)
    except MemoryError as error:
        raise OutOfMemoryError(
            f"argument {who}: {count} rows take more memory than there is: {error}",
            hint="sizes, out or another argument says how many there are",
        ) from None


@dataclass(frozen=True, slots=True)
class Scatters:
    """Makes the operands *rows* of a program from the index vectors of a call.

    *operands*: all operands, some of which may be index vectors, too. *there*: vectors on a GPU are
    sorted there.
    """

    rows: Mapping[str, Scattered]
    operands: Collection[str]
    there: bool = False

    def named(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the arguments *names* as the user knows them: vectors in the place of rows."""
        return tuple(dict.fromkeys(self.rows[n].vector if n in self.rows else n for n in names))

    def with_rows(
        self,
        arguments: CallArguments,
        outputs: Mapping[str, Any],
        sizes: Sizes,
        fixed: Collection[str] = (),
        kept: dict[str, Rows] | None = None,
    ) -> CallArguments:
        """Return the *arguments* of a call with the rows of its index vectors.

        Results have the length of the array among *outputs*, or that in *sizes*. Rows of the
        vectors *fixed* are *kept*, by operand. Raises ArgumentError.
        """
        self._check_names(arguments, sizes)
        found = dict(arguments)
        for name, scattered in self.rows.items():
            vector = scattered.vector
            if vector not in arguments:
                raise ArgumentError(f"missing argument {vector}, an index vector")
            count = self._count(scattered, arguments, outputs, sizes)
            known = kept if kept is not None and vector in fixed else {}
            rows = known.get(name)
            if rows is None or rows.shape[0] != count:
                rows = self._sorted(vector, arguments[vector].value, count)
                known[name] = rows
            found[name] = CallArgument(name, kind_of(rows), rows)
        for vector in {s.vector for s in self.rows.values()} - {*self.operands}:
            found.pop(vector)
        return found

    def like(self, arguments: CallArguments) -> CallArguments:
        """Return *arguments* with rows of the same kind as in any call."""
        sizes = {
            scattered.places[0][0]: 1 + _largest(arguments[scattered.vector].value)
            for scattered in self.rows.values()
            if not scattered.known and scattered.vector in arguments
        }
        return self.with_rows(arguments, {}, sizes) if self.rows else arguments

    def _sorted(self, who: str, vector: Any, count: int) -> Rows:
        if self.there and lies_there(vector):
            from spcomp.tensors.conversions import device  # programs, which no other call needs

            check_type(who, str(vector.dtype).removeprefix("torch."))
            return device.rows_of(who, vector, count)
        return rows_of(who, _vector(who, vector), count)

    def _check_names(self, arguments: CallArguments, sizes: Sizes) -> None:
        for name in self.rows:
            if name in arguments:
                raise ArgumentError(
                    f"unexpected argument {name}: rows are made of {self.rows[name].vector}"
                )
        if not isinstance(sizes, Mapping):
            got = type(sizes).__name__
            raise ArgumentError(f"argument sizes: got {got}, expected lengths by names of results")
        results = [name for scattered in self.rows.values() for name, _ in scattered.places]
        for name, size in sizes.items():
            if name not in results:
                raise ArgumentError(
                    f"argument sizes: {name} is no result at an index vector",
                    hint=f"these are {', '.join(results)}" if results else "",
                )
            if not isinstance(size, (int, np.integer)) or isinstance(size, bool) or size < 0:
                raise ArgumentError(
                    f"argument sizes: got {size!r} for {name}, expected a length",
                    hint=f'that of the dimension with the index vector: sizes={{"{name}": 10}}',
                )
            if size > LARGEST:
                raise ArgumentError(
                    f"argument sizes: got {size} for {name}, expected {LARGEST} at the most",
                    hint="no array is as long",
                )

    def _count(
        self,
        scattered: Scattered,
        arguments: CallArguments,
        outputs: Mapping[str, Any],
        sizes: Sizes,
    ) -> int:
        """Return how many rows there are; raises ArgumentError if that is unknown."""
        counts = {name: int(sizes[name]) for name, _ in scattered.places if name in sizes}
        for name, dim in scattered.places:
            if name in outputs:
                length = _length(outputs[name], dim)
                if counts.setdefault(name, length) != length >= 0:
                    raise ArgumentError(
                        f"argument sizes: got {sizes[name]} for {name}, expected {length} as its"
                        " array is so long",
                        hint="leave sizes out: the array says how long it is",
                    )
        for name, dim in scattered.known:
            if name in arguments:
                counts.setdefault(name, _length(arguments[name].whole, dim))
        for name, dim in () if counts else scattered.read:
            if name in arguments:
                counts.setdefault(name, _length(arguments[name].whole, dim))
        counts = {name: count for name, count in counts.items() if count >= 0}
        if not counts:
            name = scattered.places[-1][0]
            raise ArgumentError(
                f"no argument says how long {name} is, which is written at {scattered.vector}",
                hint=f'give its length, sizes={{"{name}": n}}, or its array, out=...',
            )
        if len({*counts.values()}) > 1:
            shown = ", ".join(f"{name} is {count}" for name, count in counts.items())
            raise ArgumentError(
                f"argument {scattered.vector}: its numbers are coordinates of different lengths",
                hint=f"{shown}: what is written at one index vector has one length",
            )
        return next(iter(counts.values()))


def _length(array: Any, dim: int) -> int:
    """Return the length of dimension *dim* of *array*; -1 if it has none (refused later)."""
    shape = getattr(array, "shape", ())
    return int(shape[dim]) if dim < len(shape) else -1


def _largest(vector: Any) -> int:
    """Return the largest number of *vector*, wherever it lies; 0 if there is none."""
    if lies_there(vector):
        place = place_of([vector])
        vector = to_host(array_of(vector, place), place.stream)
    return int(np.max(vector, initial=0))


def _vector(who: str, arg: Any) -> Array:
    """Return the argument *who* as an array of one dimension; raises ArgumentError."""
    if lies_there(arg):
        raise ArgumentError(
            f"argument {who}: lies on a GPU, and is sorted on the host",
            hint="copy it to the host; it is sorted once",
        )
    if not isinstance(arg, np.ndarray):
        hint = hint_about(arg, "give an array of integers")
        raise ArgumentError(
            f"argument {who}: got {type(arg).__name__}, expected an array", hint=hint
        )
    if arg.ndim != 1:
        raise ArgumentError(f"argument {who}: got {arg.ndim} dimensions, but 1 index stands at it")
    check_type(who, arg.dtype.name)
    return validate.native(who, arg)
