"""At a call on a GPU: kernels check index arrays where they lie, and one word says if all pass.

Each check is one of ``tensors.checks``, and fails on a GPU for the same arrays as on the host. Only
where one fails are arrays copied to the host, where the same check says what is wrong.
"""

# ruff: noqa: N806, N812
# mypy: disable-error-code="valid-type, operator"
from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spcomp import script as T
from spcomp.compiler.programs import program
from spcomp.dtypes import dtype as dtype_of
from spcomp.errors import ArgumentError
from spcomp.runtime.residents import Resident, Residents
from spcomp.tensors import checks
from spcomp.tensors.checks import ANY, TABLES, Apart, Coordinates, Distinct, Pointers

if TYPE_CHECKING:
    from spcomp.compiler.programs import Program
    from spcomp.target import Target


@program
def between(index: str) -> Any:
    """All elements are in low..high."""

    @T.prim_func
    def between(indices: T.handle, n: T.int64, low: T.int64, high: T.int64) -> None:
        Indices = T.match_buffer(indices, (n,), index)
        for p in T.parallel(n):
            at = T.cast(Indices[p], "int64")
            if at < low or at > high:
                T.fail("out of range")

    return between


@program
def delimiting(pointer: str) -> Any:
    """Fibers begin in 0..first, end in low..high, and have at most *longest* elements."""

    @T.prim_func
    def delimiting(
        indptr: T.handle, n: T.int64, first: T.int64, low: T.int64, high: T.int64,
        longest: T.int64,
    ) -> None:  # fmt: skip
        Indptr = T.match_buffer(indptr, (n,), pointer)
        for p in T.parallel(n):
            at = T.cast(Indptr[p], "int64")
            before = T.cast(Indptr[T.max(p - 1, 0)], "int64")
            if at < before or at - before > longest:
                T.fail("out of order")
            if p == 0 and (at < 0 or at > first):
                T.fail("begins elsewhere")
            if p == n - 1 and (at < low or at > high):
                T.fail("ends elsewhere")

    return delimiting


@program
def ascending(index: str, pointer: str) -> Any:
    """All elements are in low..high, and those of each fiber ascend by *least* at least.

    A thread has an element, whatever the lengths of fibers are. Few elements descend but the first
    of a fiber, and these are looked for among the pointers, which need not be valid for that.
    """

    @T.prim_func
    def ascending(
        indices: T.handle, indptr: T.handle, n: T.int64, low: T.int64, high: T.int64,
        fibers: T.int64, least: T.int64,
    ) -> None:  # fmt: skip
        Indices = T.match_buffer(indices, (n,), index)
        Indptr = T.match_buffer(indptr, (fibers + 1,), pointer)
        for p in T.parallel(n):
            at = T.cast(Indices[p], "int64")
            before = T.cast(Indices[T.max(p - 1, 0)], "int64")
            inside = p > T.cast(Indptr[0], "int64") and p < T.cast(Indptr[fibers], "int64")
            if at < low or at > high:
                T.fail("out of range")
            if inside and at < before + least:
                Range = T.alloc_buffer((2,), "int64", scope="local")
                Range[0] = 0
                Range[1] = fibers
                while Range[0] < Range[1]:
                    middle = (Range[0] + Range[1]) // 2
                    if T.cast(Indptr[middle], "int64") < p:
                        Range[0] = middle + 1
                    else:
                        Range[1] = middle
                if T.cast(Indptr[Range[0]], "int64") != p:
                    T.fail("out of order")

    return ascending


@program
def ascending_by(index: str) -> Any:
    """All are in low..high, and those of each fiber of length *width* ascend by *least*."""

    @T.prim_func
    def ascending_by(
        indices: T.handle, n: T.int64, low: T.int64, high: T.int64, width: T.int64, least: T.int64
    ) -> None:
        Indices = T.match_buffer(indices, (n,), index)
        for p in T.parallel(n):
            at = T.cast(Indices[p], "int64")
            before = T.cast(Indices[T.max(p - 1, 0)], "int64")
            if at < low or at > high:
                T.fail("out of range")
            if p % width != 0 and at < before + least:
                T.fail("out of order")

    return ascending_by


@program
def equal(index: str) -> Any:
    """Two arrays hold the same."""

    @T.prim_func
    def equal(first: T.handle, second: T.handle, n: T.int64) -> None:
        First = T.match_buffer(first, (n,), index)
        Second = T.match_buffer(second, (n,), index)
        for p in T.parallel(n):
            if First[p] != Second[p]:
                T.fail("differ")

    return equal


@program
def converted(source: str, index: str) -> Any:
    """The elements as another type, in which all must be in low..high."""

    @T.prim_func
    def converted(
        given: T.handle, result: T.handle, n: T.int64, low: T.int64, high: T.int64
    ) -> None:
        Given = T.match_buffer(given, (n,), source)
        Result = T.match_buffer(result, (n,), index)
        for p in T.parallel(n):
            if Given[p] < low or Given[p] > high:
                T.fail("out of range")
            Result[p] = T.cast(Given[p], index)

    return converted


class Holds(NamedTuple):
    """A check: *idtype* holds all elements."""

    array: str
    idtype: str

    def run(self, arrays: checks.Arrays, names: checks.Names) -> None:
        """Raise ArgumentError unless *arrays* pass."""
        checks.as_index(names(self.array), arrays[self.array], np.dtype(self.idtype))


class Verdict:
    """Checks that kernels for *target* make of arrays on the GPU; nothing waits before ``read``."""

    def __init__(self, memory: Residents, target: Target) -> None:
        self.memory, self.target = memory, target
        self._asked: list[tuple[checks.Check | Holds, checks.Arrays, checks.Names]] = []
        self._started: set[tuple[Any, ...]] = set()
        self._word: Resident | None = None

    @staticmethod
    def takes(check: checks.Check, arrays: checks.Arrays) -> bool:
        """Whether *check* is of *arrays* on the GPU whose content is not known on the host."""
        if isinstance(check, Apart | Distinct) or (
            isinstance(check, Coordinates) and check.order == TABLES
        ):
            return False
        there = [arrays[name] for name in arrays_of(check)]
        if isinstance(check, Pointers) and there[0].size != check.fibers + 1:
            return False  # the host says so without reading it
        return all(isinstance(array, Resident) and array.copy is None for array in there)

    def ask(self, check: checks.Check, arrays: checks.Arrays, names: checks.Names) -> None:
        """Start the kernels of *check*, which is one that it ``takes``."""
        array = arrays[check.array]
        there = (arrays[name].array for name in (check.array, getattr(check, "indptr", "")) if name)
        limits = (part for part in check if not isinstance(part, str))
        asked = type(check), *limits, *((x.pointer, x.shape, x.dtype) for x in there)
        if asked in self._started:
            return  # for an operand that is the same matrix
        self._started.add(asked)
        self._asked.append((check, arrays, names))
        kind, n = str(array.array.dtype), array.size
        if isinstance(check, Pointers):
            ends = check.first, check.low, check.high, check.longest
            self._start(delimiting(kind, target=self.target), array, n, *ends)
            return
        assert isinstance(check, Coordinates)
        least, within = check.order - 1, (check.low, check.high)
        if not check.order or n <= 1:
            self._start(between(kind, target=self.target), array, n, *within)
        elif check.indptr:
            indptr = arrays[check.indptr]
            kinds, fibers = (kind, str(indptr.array.dtype)), indptr.size - 1
            order = ascending(*kinds, target=self.target)
            self._start(order, array, indptr, n, *within, fibers, least)
        else:
            order = ascending_by(kind, target=self.target)
            self._start(order, array, n, *within, check.width, least)

    def converted(self, who: str, array: Resident, idtype: str) -> Resident:
        """Return index *array* as *idtype*; a check, if it may not hold all elements."""
        kind, limits = str(array.array.dtype), np.iinfo(idtype)
        if kind not in ("int32", "int64"):
            raise ArgumentError(f"argument {who}: got {kind}, expected integers")
        result = self.memory.output(array.shape, dtype_of(idtype), None)
        self._asked.append((Holds(who, idtype), {who: array}, str))
        ends = max(int(limits.min), -ANY), int(limits.max)
        start = converted(kind, idtype, target=self.target)
        self._start(start, array, result, array.size, *ends)
        return result

    def same(self, first: Resident, second: Resident) -> bool:
        """Return whether two index arrays hold the same; it waits."""
        if first.shape != second.shape or first.dtype != second.dtype:
            return False
        if first.array.pointer == second.array.pointer:
            return True
        other = Verdict(self.memory, self.target)
        program = equal(str(first.array.dtype), target=self.target)
        other._start(program, first, second, first.size)
        return other._passes()

    def _start(self, program: Program, *args: Any) -> None:
        if self._word is None:
            self._word = self.memory.output((1,), dtype_of("int32"), -1)
        program.start(args, self.memory, self._word.array.pointer)

    def _passes(self) -> bool:
        return self._word is None or int(np.asarray(self._word)[0]) == -1

    def read(self) -> None:
        """Wait for the kernels; raises ArgumentError, as the host does, if a check fails."""
        asked, passes = self._asked, self._passes()
        self._asked, self._started, self._word = [], set(), None
        if passes:
            return
        for check, arrays, names in asked:
            host = {name: np.asarray(arrays[name]) for name in arrays_of(check)}
            check.run(host, names)
        raise ArgumentError(
            "index arrays changed while a call checked them",
            hint="let the stream of the call wait for what writes them",
        )


def arrays_of(check: checks.Check | Holds) -> set[str]:
    """Return the names of the arrays that *check* reads."""
    return {check.array, getattr(check, "indptr", "")} - {""}
