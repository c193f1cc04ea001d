"""At a conversion on a GPU: the programs of a stable sort by digits, and of what is made of it.

A key is a major and a minor side by side, the minor in the lowest ``bits``; *number* is the type of
positions of elements, *pointer* and *index* those of the results. A thread takes a chunk of
elements in order, so that equal keys keep theirs, and no thread waits for another.
"""

# ruff: noqa: N806, N812
# mypy: disable-error-code="valid-type, operator, no-untyped-def"
from __future__ import annotations

from typing import Any

from spcomp import script as T
from spcomp.compiler.programs import program

DIGIT = 8  # bits that one pass sorts by
CHUNK = 256  # elements of a thread in a pass, counters of a thread in a scan
VALUES = 1 << DIGIT


@program
def keys(index: str) -> Any:
    """The keys of elements; it fails if a coordinate is outside of its extent."""

    @T.prim_func
    def keys(
        majors: T.handle, minors: T.handle, result: T.handle, n: T.int64, rows: T.int64,
        columns: T.int64, bits: T.int64,
    ) -> None:  # fmt: skip
        Majors = T.match_buffer(majors, (n,), index)
        Minors = T.match_buffer(minors, (n,), index)
        Keys = T.match_buffer(result, (n,), "int64")
        for p in T.parallel(n):
            row = T.cast(Majors[p], "int64")
            column = T.cast(Minors[p], "int64")
            if row < 0 or row >= rows or column < 0 or column >= columns:
                T.fail("outside")
            Keys[p] = row << bits | column

    return keys


@program
def majors(pointer: str, index: str) -> Any:
    """The major of each element, from where majors begin."""

    @T.prim_func
    def majors(pointers: T.handle, result: T.handle, n: T.int64, count: T.int64) -> None:
        Pointers = T.match_buffer(pointers, (count + 1,), pointer)
        Majors = T.match_buffer(result, (n,), index)
        for p in T.parallel(n):
            Majors[p] = T.cast(T.upper_bound(Pointers, 0, count + 1, p) - 1, index)

    return majors


@program
def rising() -> Any:
    """It fails unless each key is greater than the one before."""

    @T.prim_func
    def rising(keys: T.handle, n: T.int64) -> None:
        Keys = T.match_buffer(keys, (n,), "int64")
        for p in T.parallel(n):
            if p > 0 and Keys[p] <= Keys[T.max(p - 1, 0)]:
                T.fail("descends")

    return rising


@program
def count(number: str) -> Any:
    """How many keys of each chunk have each value of a digit."""

    @T.prim_func
    def count(
        keys: T.handle, counts: T.handle, n: T.int64, chunks: T.int64, shift: T.int64
    ) -> None:
        Keys = T.match_buffer(keys, (n,), "int64")
        Counts = T.match_buffer(counts, (chunks * VALUES,), number)
        for c in T.parallel(chunks):
            for d in T.serial(VALUES):
                Counts[d * chunks + c] = T.cast(0, number)
            for p in T.serial(c * CHUNK, T.min((c + 1) * CHUNK, n)):
                at = (Keys[p] >> shift & (VALUES - 1)) * chunks + c
                Counts[at] = Counts[at] + T.cast(1, number)

    return count


@program
def move(number: str, first: bool) -> Any:  # noqa: FBT001
    """Keys and the numbers of their elements in the order of a digit; *first*: these are 0, 1, ...

    ``To`` says where the next key of a chunk with a value of the digit belongs.
    """

    @T.prim_func
    def move(
        keys: T.handle, ids: T.handle, to: T.handle, keys_to: T.handle, ids_to: T.handle,
        n: T.int64, chunks: T.int64, shift: T.int64,
    ) -> None:  # fmt: skip
        Keys = T.match_buffer(keys, (n,), "int64")
        Ids = T.match_buffer(ids, (n,), number)
        To = T.match_buffer(to, (chunks * VALUES,), number)
        KeysTo = T.match_buffer(keys_to, (n,), "int64")
        IdsTo = T.match_buffer(ids_to, (n,), number)
        for c in T.parallel(chunks):
            for p in T.serial(c * CHUNK, T.min((c + 1) * CHUNK, n)):
                at = (Keys[p] >> shift & (VALUES - 1)) * chunks + c
                put = T.cast(To[at], "int64")
                To[at] = To[at] + T.cast(1, number)
                KeysTo[put] = Keys[p]
                IdsTo[put] = T.cast(p, number) if first else Ids[p]

    return move


@program
def totals(number: str) -> Any:
    """The sum of each chunk of counts."""

    @T.prim_func
    def totals(counts: T.handle, sums: T.handle, n: T.int64, chunks: T.int64) -> None:
        Counts = T.match_buffer(counts, (n,), number)
        Sums = T.match_buffer(sums, (chunks,), number)
        for c in T.parallel(chunks):
            Sum = T.alloc_buffer((1,), number, scope="local")
            Sum[0] = T.cast(0, number)
            for p in T.serial(c * CHUNK, T.min((c + 1) * CHUNK, n)):
                Sum[0] = Sum[0] + Counts[p]
            Sums[c] = Sum[0]

    return totals


@program
def running(number: str, whole: bool) -> Any:  # noqa: FBT001
    """Counts replaced by what comes before them; ``Sums`` is that of chunks, 0 of the *whole*."""

    @T.prim_func
    def running(counts: T.handle, sums: T.handle, n: T.int64, chunks: T.int64) -> None:
        Counts = T.match_buffer(counts, (n,), number)
        Sums = T.match_buffer(sums, (chunks,), number)
        for c in T.parallel(chunks):
            Sum = T.alloc_buffer((2,), number, scope="local")
            Sum[0] = T.cast(0, number) if whole else Sums[c]
            for p in T.serial(c * CHUNK, T.min((c + 1) * CHUNK, n)):
                Sum[1] = Counts[p]
                Counts[p] = Sum[0]
                Sum[0] = Sum[0] + Sum[1]

    return running


@program
def firsts(number: str) -> Any:
    """1 for each key that differs from the one before, and 0 behind the last."""

    @T.prim_func
    def firsts(keys: T.handle, result: T.handle, n: T.int64) -> None:
        Keys = T.match_buffer(keys, (n,), "int64")
        First = T.match_buffer(result, (n + 1,), number)
        for p in T.parallel(n + 1):
            at = T.min(p, n - 1)
            new = p < n and (p == 0 or Keys[at] != Keys[T.max(p - 1, 0)])
            First[p] = T.cast(new, number)

    return firsts


@program
def summed(number: str, item: str, wider: str, either: bool) -> Any:  # noqa: FBT001
    """The sum of the values of equal keys, added in order as *wider*, and these keys.

    *either*: the greatest value instead, of booleans.
    """

    @T.prim_func
    def summed(
        keys: T.handle, values: T.handle, place: T.handle, keys_to: T.handle, sums: T.handle,
        n: T.int64, count: T.int64,
    ) -> None:  # fmt: skip
        Keys = T.match_buffer(keys, (n,), "int64")
        Values = T.match_buffer(values, (n,), item)
        Place = T.match_buffer(place, (n + 1,), number)
        KeysTo = T.match_buffer(keys_to, (count,), "int64")
        Sums = T.match_buffer(sums, (count,), item)
        for p in T.parallel(n):
            if Place[p] != Place[p + 1]:
                Sum = T.alloc_buffer((1,), wider, scope="local")
                At = T.alloc_buffer((1,), "int64", scope="local")
                Sum[0] = T.cast(Values[p], wider)
                At[0] = p + 1
                while At[0] < n and Place[T.min(At[0] + 1, n)] == Place[p + 1]:
                    value = T.cast(Values[T.min(At[0], n - 1)], wider)
                    Sum[0] = T.max(Sum[0], value) if either else Sum[0] + value
                    At[0] = At[0] + 1
                KeysTo[T.cast(Place[p], "int64")] = Keys[p]
                Sums[T.cast(Place[p], "int64")] = T.cast(Sum[0], item)

    return summed


@program
def taken(number: str, value: str) -> Any:
    """Values in the order of ``Ids``."""

    @T.prim_func
    def taken(values: T.handle, ids: T.handle, result: T.handle, n: T.int64) -> None:
        Values = T.match_buffer(values, (n,), value)
        Ids = T.match_buffer(ids, (n,), number)
        Taken = T.match_buffer(result, (n,), value)
        for p in T.parallel(n):
            Taken[p] = Values[T.cast(Ids[p], "int64")]

    return taken


@program
def pointers(pointer: str) -> Any:
    """Where the elements of each major begin, and where the last end, from sorted keys."""

    @T.prim_func
    def pointers(
        keys: T.handle, result: T.handle, n: T.int64, majors: T.int64, bits: T.int64
    ) -> None:
        Keys = T.match_buffer(keys, (n,), "int64")
        Pointers = T.match_buffer(result, (majors + 1,), pointer)
        for r in T.parallel(majors + 1):
            Pointers[r] = T.cast(T.lower_bound(Keys, 0, n, r << bits), pointer)

    return pointers


@program
def slots(pointer: str, value: str) -> Any:
    """Minors and values of sorted keys by rows of *width* places; -1 and 0 where there is none."""

    @T.prim_func
    def slots(
        keys: T.handle, values: T.handle, pointers: T.handle, minors: T.handle, items: T.handle,
        n: T.int64, majors: T.int64, width: T.int64, count: T.int64, bits: T.int64,
    ) -> None:  # fmt: skip
        Keys = T.match_buffer(keys, (n,), "int64")
        Values = T.match_buffer(values, (n,), value)
        Pointers = T.match_buffer(pointers, (majors + 1,), pointer)
        Minors = T.match_buffer(minors, (count,), pointer)
        Items = T.match_buffer(items, (count,), value)
        for q in T.parallel(count):
            at = T.cast(Pointers[q // width], "int64") + q % width
            if at < T.cast(Pointers[q // width + 1], "int64"):
                Minors[q] = T.cast(Keys[at] & ((1 << bits) - 1), pointer)
                Items[q] = Values[at]
            else:
                Minors[q] = T.cast(-1, pointer)
                Items[q] = T.cast(0, value)

    return slots


@program
def parts(index: str, high: bool) -> Any:  # noqa: FBT001
    """The minors of keys, or their majors if *high*."""

    @T.prim_func
    def parts(keys: T.handle, result: T.handle, n: T.int64, bits: T.int64) -> None:
        Keys = T.match_buffer(keys, (n,), "int64")
        Part = T.match_buffer(result, (n,), index)
        for p in T.parallel(n):
            Part[p] = T.cast(Keys[p] >> bits if high else Keys[p] & ((1 << bits) - 1), index)

    return parts
