"""At a conversion: the programs that order elements, as scripts over types and constants.

An element has a *key*: its coordinates side by side, the outermost in the highest bits. The lowest
``bits`` are its *minor*, the others its *major*: column and row, for a matrix by rows. Types:
*value* is an unsigned integer as wide as a value, for moves; *item* is the type of the value;
*word* holds a value, or a key within a bucket; *index* is that of minors, *pointer* that of the
ends of majors, *total* that of counters.
"""

# ruff: noqa: ANN001, ANN201, FBT001, N803, N806, N812
# mypy: disable-error-code="valid-type, operator, no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from spcomp import script as T
from spcomp.compiler.programs import computed, program
from spcomp.dtypes import dtype, handle, int64
from spcomp.ir.access import Load
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import Expr, Var, binary, cast
from spcomp.ir.visitor import walk

FEW = 40  # elements that are sorted by insertion
BLOCK = 1 << 12  # elements that are moved together
DIGIT = 9  # bits that one pass over many elements sorts by, at most


# -- keys ----------------------------------------------------------------------------------------


def over_axes(func: Any, rank: int, kind: str) -> Any:
    """Return *func* with *rank* arrays of coordinates of the type *kind*, in place of ``Keys``.

    Then follow, for each coordinate but the last, the number of key bits below it, and if *func*
    reads ``Outside``, the extents. ``Outside`` is negative where a coordinate is out of range.
    """
    (n,) = (param for param in func.params if param.name == "n")
    axes = [Buffer(f"Axis{k}", Var(f"axis{k}", handle), (n,), dtype(kind)) for k in range(rank)]
    shifts = [Var(f"shift{k}", int64) for k in range(rank - 1)]
    sizes = [Var(f"size{k}", int64) for k in range(rank)]

    def read(at: Expr) -> list[Expr]:
        return [cast(Load(axis, (at,)), int64) for axis in axes]

    def key(at: Expr) -> Expr:
        *high, low = read(at)
        parts = [
            binary("<<", coordinate, shift) for coordinate, shift in zip(high, shifts, strict=True)
        ]
        return _union([*parts, low])

    def outside(at: Expr) -> Expr:
        pairs = zip(sizes, read(at), strict=True)
        return _union(
            [
                *read(at),
                *(binary("-", binary("-", size, 1), coordinate) for size, coordinate in pairs),
            ]
        )

    watched = any(isinstance(part, Load) and part.buffer.name == "Outside" for part in walk(func))
    return computed(func, {"Keys": key, "Outside": outside}, axes, [*shifts, *sizes * watched])


def _union(parts: Sequence[Expr]) -> Expr:
    return reduce(lambda a, b: binary("|", a, b), parts)


@program
def count(rank: int, kind: str, total: str, watched: bool) -> Any:
    """How many elements of each chunk go to each bucket.

    *watched*: ``facts`` has for each chunk a negative number if a coordinate is out of range, and
    how many keys do not ascend.
    """

    @T.prim_func
    def count(
        keys: T.handle, outside: T.handle, counts: T.handle, facts: T.handle,
        n: T.int64, chunks: T.int64, buckets: T.int64, shift: T.int64,
    ) -> None:  # fmt: skip
        Keys = T.match_buffer(keys, (n,), "int64")
        Outside = T.match_buffer(outside, (n,), "int64")
        Counts = T.match_buffer(counts, (chunks * buckets,), total)
        Facts = T.match_buffer(facts, (chunks * 2,), "int64")
        for c in T.parallel(chunks):
            Seen = T.alloc_buffer((3,), "int64", scope="local")
            low = c * n // chunks
            for d in T.serial(buckets):
                Counts[c * buckets + d] = 0
            Seen[0] = 0
            Seen[1] = 0
            if watched:
                Seen[2] = T.if_then_else(low > 0, Keys[T.max(low - 1, 0)], T.int64(-1))
            for p in T.serial(low, (c + 1) * n // chunks):
                key = Keys[p]
                if watched:
                    Seen[0] = Seen[0] | Outside[p]
                    Seen[1] = Seen[1] + T.cast(key <= Seen[2], "int64")
                    Seen[2] = key
                at = c * buckets + (key >> shift & (buckets - 1))
                Counts[at] = Counts[at] + 1
            Facts[2 * c] = Seen[0]
            Facts[2 * c + 1] = Seen[1]

    return over_axes(count, rank, kind)


@program
def move(
    rank: int,
    kind: str,
    rows_type: str,
    value: str,
    total: str,
    index: str,
    paired: bool,
) -> Any:
    """Elements moved to their buckets; those of a bucket keep their order.

    *paired*: a bucket holds several majors; the rest of the key, as *index*, and the value lie side
    by side, so that a core writes to one cache line per bucket. Otherwise a bucket is a major, and
    elements go to their final places. A key is that of ``Keys`` with the row in the lowest
    ``unread`` bits.

    Counters of a block are all read before elements are written, because a core would wait for a
    write before it reads the next counter.
    """

    @T.prim_func
    def move(
        keys: T.handle, rows_of: T.handle, values: T.handle, to: T.handle, minors: T.handle,
        moved: T.handle, n: T.int64, chunks: T.int64, buckets: T.int64, shift: T.int64,
        unread: T.int64, rows: T.int64,
    ) -> None:  # fmt: skip
        Keys = T.match_buffer(keys, (n,), "int64")
        Rows = T.match_buffer(rows_of, (rows + 1,), rows_type)
        Values = T.match_buffer(values, (n,), value)
        To = T.match_buffer(to, (chunks * buckets,), total)
        Minors = T.match_buffer(minors, ((2 if paired else 1) * n,), index)
        Moved = T.match_buffer(moved, (n,), value)
        for c in T.parallel(chunks):
            Put = T.alloc_buffer((BLOCK,), total, scope="local")
            begin = c * n // chunks
            end = (c + 1) * n // chunks
            for b in T.serial((end - begin + BLOCK - 1) // BLOCK):
                low = begin + b * BLOCK
                high = T.min(low + BLOCK, end)
                for p in T.serial(low, high):
                    at = c * buckets + (Keys[p] >> shift - unread)
                    Put[p - low] = To[at]
                    To[at] = To[at] + 1
                for r in T.serial(T.upper_bound(Rows, 0, rows + 1, low) - 1,
                                  T.upper_bound(Rows, 0, rows + 1, high - 1)):  # fmt: skip
                    for p in T.serial(T.max(low, T.cast(Rows[r], "int64")),
                                      T.min(high, T.cast(Rows[r + 1], "int64"))):  # fmt: skip
                        rest = (Keys[p] << unread | r) & (1 << shift) - 1
                        put = T.cast(Put[p - low], "int64")
                        if paired:
                            Minors[2 * put] = T.cast(rest, index)
                            Minors[2 * put + 1] = T.cast(Values[p], index)
                        else:
                            Minors[put] = T.cast(rest, index)
                            Moved[put] = Values[p]

    return over_axes(move, rank, kind)


@program
def ascending(rank: int, kind: str, pointer: str, index: str, value: str) -> Any:
    """Elements that are sorted already: minors, values and ends of majors."""

    @T.prim_func
    def ascending(
        keys: T.handle, values: T.handle, ends: T.handle, minors: T.handle, moved: T.handle,
        n: T.int64, chunks: T.int64, majors: T.int64, bits: T.int64,
    ) -> None:  # fmt: skip
        Keys = T.match_buffer(keys, (n,), "int64")
        Values = T.match_buffer(values, (n,), value)
        Ends = T.match_buffer(ends, (majors,), pointer)
        Minors = T.match_buffer(minors, (n,), index)
        Moved = T.match_buffer(moved, (n,), value)
        for c in T.parallel(chunks):
            Last = T.alloc_buffer((1,), "int64", scope="local")
            low = c * n // chunks
            high = (c + 1) * n // chunks
            Last[0] = T.if_then_else(low > 0, Keys[T.max(low - 1, 0)], T.int64(0)) >> bits
            for p in T.serial(low, high):
                key = Keys[p]
                for r in T.serial(Last[0], key >> bits):
                    Ends[r] = T.cast(p, pointer)
                Last[0] = key >> bits
                Minors[p] = T.cast(key & (1 << bits) - 1, index)
                Moved[p] = Values[p]
            for r in T.serial(Last[0], T.if_then_else(high == n, majors, T.int64(0))):
                Ends[r] = T.cast(n, pointer)

    return over_axes(ascending, rank, kind)


# -- elements by their majors --------------------------------------------------------------------


@program
def sums(total: str, pointer: str) -> Any:
    """Where the elements of each major begin for each chunk, and where they end, from counts."""

    @T.prim_func
    def sums(
        counts: T.handle, ends: T.handle, chunks: T.int64, buckets: T.int64, majors: T.int64
    ) -> None:
        Counts = T.match_buffer(counts, (chunks * buckets,), total)
        Ends = T.match_buffer(ends, (majors,), pointer)
        for b in T.parallel((majors + BLOCK - 1) // BLOCK):
            Sum = T.alloc_buffer((2,), "int64", scope="local")
            first = b * BLOCK
            last = T.min(first + BLOCK, majors)
            Sum[0] = 0
            for c in T.serial(chunks):
                for r in T.serial(first, last):
                    Sum[0] = Sum[0] + T.cast(Counts[c * buckets + r], "int64")
            with T.prefix(Sum[0]) as before:
                Sum[0] = before
                for r in T.serial(first, last):
                    for c in T.serial(chunks):
                        Sum[1] = Sum[0]
                        Sum[0] = Sum[0] + T.cast(Counts[c * buckets + r], "int64")
                        Counts[c * buckets + r] = T.cast(Sum[1], total)
                    Ends[r] = T.cast(Sum[0], pointer)

    return sums


@T.macro
def sort_by_digit(
    keys, values, away, to, values_to, back, begin, end, base, shift, digit, Next, Sum, index
):
    """Elements from *begin* to *end* sorted by one digit.

    *away* is subtracted from the positions that are read, *back* from those that are written.
    """
    for d in T.serial(1 << digit):
        Next[d] = 0
    for p in T.serial(begin, end):
        d = T.cast(keys[p - away], "int64") - base >> shift & (1 << digit) - 1
        Next[d] = Next[d] + 1
    Sum[1] = begin - back
    for d in T.serial(1 << digit):
        Sum[2] = Next[d]
        Next[d] = Sum[1]
        Sum[1] = Sum[1] + Sum[2]
    for p in T.serial(begin, end):
        d = T.cast(keys[p - away], "int64") - base >> shift & (1 << digit) - 1
        to[Next[d]] = T.cast(keys[p - away], index)
        values_to[Next[d]] = values[p - away]
        Next[d] = Next[d] + 1


@T.macro
def insert(Minors, Values, begin, end, Sum):
    """A few elements sorted by insertion."""
    for p in T.serial(begin + 1, end):
        minor = Minors[p]
        if minor < Minors[p - 1]:
            value = Values[p]
            Minors[p] = Minors[p - 1]
            Values[p] = Values[p - 1]
            Sum[1] = p - 1
            while Sum[1] > begin and Minors[T.max(Sum[1] - 1, 0)] > minor:
                Minors[Sum[1]] = Minors[Sum[1] - 1]
                Values[Sum[1]] = Values[Sum[1] - 1]
                Sum[1] = Sum[1] - 1
            Minors[Sum[1]] = minor
            Values[Sum[1]] = value


@T.macro
def sort_majors(
    Ends, Minors, Values, Sum, first, last, low, high, within, digit, rounds, index, value, keyed
):
    """The elements of each major sorted by minor; equal ones keep their order.

    *keyed*: minors are keys; those of a major lie in one interval of length ``within`` that begins
    at a multiple of it.
    """
    Keys = T.alloc_buffer((high - low,), index, scope="local")
    VKeys = T.alloc_buffer((high - low,), value, scope="local")
    Next = T.alloc_buffer((1 << DIGIT,), "int64", scope="local")
    Sum[0] = low
    for r in T.serial(first, last):
        begin = Sum[0]
        end = T.cast(Ends[r], "int64")
        Sum[0] = end
        if end - begin <= FEW:
            insert(Minors, Values, begin, end, Sum)
        else:
            base = Minors[begin] // within * within if keyed else T.int64(0)
            for s in T.serial(rounds):
                sort_by_digit(Minors, Values, 0, Keys, VKeys, low, begin, end, base,
                              2 * s * digit, digit, Next, Sum, index)  # fmt: skip
                sort_by_digit(Keys, VKeys, low, Minors, Values, 0, begin, end, base,
                              (2 * s + 1) * digit, digit, Next, Sum, index)  # fmt: skip


@T.macro
def count_repeated(Ends, Minors, Sum, first, last, low, Repeated, b):
    """How many elements have the major and minor of their predecessor."""
    Sum[0] = low
    Sum[1] = 0
    for r in T.serial(first, last):
        end = T.cast(Ends[r], "int64")
        for p in T.serial(Sum[0] + 1, end):
            Sum[1] = Sum[1] + T.cast(Minors[p] == Minors[p - 1], "int64")
        Sum[0] = end
    Repeated[b] = Sum[1]


@program
def sort_buckets(
    word: str, pointer: str, index: str, value: str, sort: bool, distinct: bool
) -> Any:
    """The elements of each bucket grouped by major, and where each major ends."""

    @T.prim_func
    def sort_buckets(
        starts: T.handle, pairs: T.handle, ends: T.handle, minors: T.handle, values: T.handle,
        repeated: T.handle, n: T.int64, buckets: T.int64, majors: T.int64, wide: T.int64,
        bits: T.int64, digit: T.int64, rounds: T.int64,
    ) -> None:  # fmt: skip
        Starts = T.match_buffer(starts, (buckets + 1,), "int64")
        Pairs = T.match_buffer(pairs, (2 * n,), word)
        Ends = T.match_buffer(ends, (majors,), pointer)
        Minors = T.match_buffer(minors, (n,), index)
        Values = T.match_buffer(values, (n,), value)
        Repeated = T.match_buffer(repeated, (buckets,), "int64")
        for b in T.parallel(buckets):
            Sum = T.alloc_buffer((3,), "int64", scope="local")
            first = T.min(b << wide, majors)
            last = T.min(first + (1 << wide), majors)
            low = Starts[b]
            high = Starts[b + 1]
            After = T.alloc_buffer((high - low,), pointer, scope="local")
            for r in T.serial(first, last):
                Ends[r] = 0
            for k in T.serial(high - low):
                p = high - 1 - k
                r = first + (T.cast(Pairs[2 * p], "int64") >> bits)
                After[p - low] = Ends[r]
                Ends[r] = Ends[r] + 1
            Sum[0] = low
            for r in T.serial(first, last):
                Sum[0] = Sum[0] + T.cast(Ends[r], "int64")
                Ends[r] = T.cast(Sum[0], pointer)
            for p in T.serial(low, high):
                key = T.cast(Pairs[2 * p], "int64")
                to = T.cast(Ends[first + (key >> bits)] - After[p - low] - 1, "int64")
                Minors[to] = T.cast(key & (1 << bits) - 1, index)
                Values[to] = T.cast(Pairs[2 * p + 1], value)
            if sort:
                sort_majors(Ends, Minors, Values, Sum, first, last, low, high, 0, digit, rounds,
                            index, value, False)  # fmt: skip
            if not distinct:
                count_repeated(Ends, Minors, Sum, first, last, low, Repeated, b)

    return sort_buckets


@program
def sort_rows(pointer: str, index: str, value: str, keyed: bool) -> Any:
    """The elements of each row sorted by column, and how many repeat; *keyed*: see sort_majors."""

    @T.prim_func
    def sort_rows(
        ends: T.handle, minors: T.handle, values: T.handle, repeated: T.handle, n: T.int64,
        buckets: T.int64, majors: T.int64, wide: T.int64, within: T.int64, digit: T.int64,
        rounds: T.int64,
    ) -> None:  # fmt: skip
        Ends = T.match_buffer(ends, (majors,), pointer)
        Minors = T.match_buffer(minors, (n,), index)
        Values = T.match_buffer(values, (n,), value)
        Repeated = T.match_buffer(repeated, (buckets,), "int64")
        for b in T.parallel(buckets):
            Sum = T.alloc_buffer((3,), "int64", scope="local")
            first = T.min(b << wide, majors)
            last = T.min(first + (1 << wide), majors)
            low = T.if_then_else(b > 0, T.cast(Ends[T.max(first - 1, 0)], "int64"), T.int64(0))
            high = T.if_then_else(last > first, T.cast(Ends[T.max(last - 1, 0)], "int64"), low)
            sort_majors(Ends, Minors, Values, Sum, first, last, low, high, within, digit, rounds,
                        index, value, keyed)  # fmt: skip
            if not keyed:
                count_repeated(Ends, Minors, Sum, first, last, low, Repeated, b)

    return sort_rows


# -- sorted elements -----------------------------------------------------------------------------


@program
def unique(pointer: str, index: str) -> Any:
    """How many different minors each major has."""

    @T.prim_func
    def unique(
        ends: T.handle, minors: T.handle, lengths: T.handle, n: T.int64, buckets: T.int64,
        majors: T.int64, wide: T.int64,
    ) -> None:  # fmt: skip
        Ends = T.match_buffer(ends, (majors,), pointer)
        Minors = T.match_buffer(minors, (n,), index)
        Lengths = T.match_buffer(lengths, (majors,), pointer)
        for b in T.parallel(buckets):
            first = T.min(b << wide, majors)
            Sum = T.alloc_buffer((2,), "int64", scope="local")
            Sum[0] = T.if_then_else(b > 0, T.cast(Ends[T.max(first - 1, 0)], "int64"), T.int64(0))
            for r in T.serial(first, T.min(first + (1 << wide), majors)):
                end = T.cast(Ends[r], "int64")
                Sum[1] = T.cast(end > Sum[0], "int64")
                for p in T.serial(Sum[0] + 1, end):
                    Sum[1] = Sum[1] + T.cast(Minors[p] != Minors[p - 1], "int64")
                Lengths[r] = T.cast(Sum[1], pointer)
                Sum[0] = end

    return unique


@program
def add(pointer: str, index: str, item: str, wider: str) -> Any:
    """The sums of elements with one major and minor, added in order as *wider*."""
    is_bool = item == "bool"
    stored_type = "uint8" if is_bool else item
    sum_type = "uint8" if is_bool else wider

    @T.prim_func
    def add(
        ends: T.handle, minors: T.handle, values: T.handle, ends_out: T.handle,
        minors_out: T.handle, values_out: T.handle, n: T.int64, left: T.int64, buckets: T.int64,
        majors: T.int64, wide: T.int64,
    ) -> None:  # fmt: skip
        Ends = T.match_buffer(ends, (majors,), pointer)
        Minors = T.match_buffer(minors, (n,), index)
        Values = T.match_buffer(values, (n,), stored_type)
        EndsOut = T.match_buffer(ends_out, (majors,), pointer)
        MinorsOut = T.match_buffer(minors_out, (left,), index)
        ValuesOut = T.match_buffer(values_out, (left,), stored_type)
        for b in T.parallel(buckets):
            first = T.min(b << wide, majors)
            Sum = T.alloc_buffer((2,), "int64", scope="local")
            Sum[0] = T.if_then_else(b > 0, T.cast(Ends[T.max(first - 1, 0)], "int64"), T.int64(0))
            for r in T.serial(first, T.min(first + (1 << wide), majors)):
                end = T.cast(Ends[r], "int64")
                Total = T.alloc_buffer((1,), sum_type, scope="local")
                Sum[1] = T.if_then_else(
                    r > 0, T.cast(EndsOut[T.max(r - 1, 0)], "int64"), T.int64(0)
                )
                for p in T.serial(Sum[0], end):
                    value = T.cast(Values[p], sum_type)
                    if p > Sum[0] and Minors[p] == Minors[T.max(p - 1, 0)]:
                        Total[0] = Total[0] | value if is_bool else Total[0] + value
                    else:
                        Total[0] = value
                        Sum[1] = Sum[1] + 1
                    MinorsOut[Sum[1] - 1] = Minors[p]
                    ValuesOut[Sum[1] - 1] = T.cast(Total[0], stored_type)
                Sum[0] = end

    return add


@program
def expand(pointer: str, index: str) -> Any:
    """The major of every element."""

    @T.prim_func
    def expand(
        ends: T.handle, found: T.handle, n: T.int64, buckets: T.int64, majors: T.int64,
        wide: T.int64,
    ) -> None:  # fmt: skip
        Ends = T.match_buffer(ends, (majors,), pointer)
        Found = T.match_buffer(found, (n,), index)
        for b in T.parallel(buckets):
            first = T.min(b << wide, majors)
            Sum = T.alloc_buffer((1,), "int64", scope="local")
            Sum[0] = T.if_then_else(b > 0, T.cast(Ends[T.max(first - 1, 0)], "int64"), T.int64(0))
            for r in T.serial(first, T.min(first + (1 << wide), majors)):
                end = T.cast(Ends[r], "int64")
                for p in T.serial(Sum[0], end):
                    Found[p] = T.cast(r, index)
                Sum[0] = end

    return expand
