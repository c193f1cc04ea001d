"""At the call, formats: keys sorted by digits, and where groups of them begin, in parallel."""

from __future__ import annotations

from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from spcomp.compiler.kernel import Kernel

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
DIGIT = 11  # bits; their counts stay in the cache
CHUNK = 1 << 16  # keys that one iteration counts, or more
MOST = 64  # chunks of a sort, each with counts of its own
FEW = 32  # keys of a group that are sorted by insertion
SMALL = 1 << 12  # keys that numpy sorts as fast

_SORT = """from spcomp import script as T


@T.prim_func
def count_digits(keys: T.handle, counts: T.handle, n: T.int64, chunks: T.int64, shift: T.int64,
                 ) -> None:
    Keys = T.match_buffer(keys, (n,), "int64")
    Counts = T.match_buffer(counts, (chunks * DIGITS,), "int64")
    for c in T.parallel(chunks):
        for p in T.serial(c * n // chunks, (c + 1) * n // chunks):
            d = c * DIGITS + (Keys[p] >> shift & (DIGITS - 1))
            Counts[d] = Counts[d] + 1


@T.prim_func
def move_digits(keys: T.handle, ids: T.handle, to: T.handle, keys_out: T.handle, ids_out: T.handle,
                n: T.int64, chunks: T.int64, shift: T.int64) -> None:
    Keys = T.match_buffer(keys, (n,), "int64")
    Ids = T.match_buffer(ids, (n,), "NUMBER")
    To = T.match_buffer(to, (chunks * DIGITS,), "int64")
    KeysOut = T.match_buffer(keys_out, (n,), "int64")
    IdsOut = T.match_buffer(ids_out, (n,), "NUMBER")
    for c in T.parallel(chunks):
        for p in T.serial(c * n // chunks, (c + 1) * n // chunks):
            d = c * DIGITS + (Keys[p] >> shift & (DIGITS - 1))
            KeysOut[To[d]] = Keys[p]
            IdsOut[To[d]] = Ids[p]
            To[d] = To[d] + 1
"""
_PASS = """
            for b in T.serial(256):
                Next[b] = 0
            for p in T.serial(FIRST, FIRST + high - low):
                d = FROM[p] - base >> shift + AT & 255
                Next[d] = Next[d] + 1
            Sum[0] = low - FIRST
            for b in T.serial(256):
                Sum[1] = Next[b]
                Next[b] = Sum[0]
                Sum[0] = Sum[0] + Sum[1]
            for p in T.serial(FIRST, FIRST + high - low):
                d = FROM[p] - base >> shift + AT & 255
                TO[Next[d]] = FROM[p]
                IdsTO[Next[d]] = IdsFROM[p]
                Next[d] = Next[d] + 1"""


def _pass(**words: str) -> str:
    return reduce(lambda done, word: done.replace(*word), words.items(), _PASS)


_GROUPS = (
    """from spcomp import script as T


@T.prim_func
def sort_groups(begin: T.handle, given: T.handle, given_ids: T.handle, keys: T.handle,
                ids: T.handle, n: T.int64, groups: T.int64, rounds: T.int64,
                within: T.int64) -> None:
    Begin = T.match_buffer(begin, (groups + 1,), "int64")
    Given = T.match_buffer(given, (n,), "int64")
    GivenIds = T.match_buffer(given_ids, (n,), "NUMBER")
    Keys = T.match_buffer(keys, (n,), "int64")
    IdsKeys = T.match_buffer(ids, (n,), "NUMBER")
    for g in T.parallel(groups):
        low = Begin[g]
        high = Begin[g + 1]
        base = Given[low] // within * within
        for p in T.serial(low, high):
            Keys[p] = Given[p]
            IdsKeys[p] = WHICH
        Spare = T.alloc_buffer((high - low,), "int64", scope="local")
        IdsSpare = T.alloc_buffer((high - low,), "NUMBER", scope="local")
        Next = T.alloc_buffer((256,), "int64", scope="local")
        Sum = T.alloc_buffer((2,), "int64", scope="local")
        for r in T.serial(T.if_then_else(high - low > FEW, rounds, T.int64(0))):
            shift = r * 16"""
    + _pass(FROM="Keys", TO="Spare", AT="0", FIRST="low")
    + _pass(FROM="Spare", TO="Keys", AT="8", FIRST="T.int64(0)")
    + """
        if high - low <= FEW:
            for p in T.serial(low + 1, high):
                Sum[0] = Keys[p]
                Sum[1] = T.cast(IdsKeys[p], "int64")
                Next[0] = p
                while Next[0] > low and Keys[T.max(Next[0] - 1, 0)] > Sum[0]:
                    Keys[Next[0]] = Keys[Next[0] - 1]
                    IdsKeys[Next[0]] = IdsKeys[Next[0] - 1]
                    Next[0] = Next[0] - 1
                Keys[Next[0]] = Sum[0]
                IdsKeys[Next[0]] = T.cast(Sum[1], "NUMBER")
"""
)
_STARTS = """from spcomp import script as T


@T.prim_func
def count_starts(keys: T.handle, counts: T.handle, n: T.int64, chunks: T.int64, by: T.int64,
                 ) -> None:
    Keys = T.match_buffer(keys, (n,), "int64")
    Counts = T.match_buffer(counts, (chunks,), "int64")
    for c in T.parallel(chunks):
        Base = T.alloc_buffer((1,), "int64", scope="local")
        Found = T.alloc_buffer((1,), "int64", scope="local")
        Found[0] = 0
        before = T.max(c * n // chunks - 1, 0)
        Base[0] = T.if_then_else(c > 0, FLOOR(before), -by)
        for p in T.serial(c * n // chunks, (c + 1) * n // chunks):
            if T.cast(Keys[p] - Base[0], "uint64") >= T.cast(by, "uint64"):
                Found[0] = Found[0] + 1
                Base[0] = FLOOR(p)
        Counts[c] = Found[0]


@T.prim_func
def fill_starts(keys: T.handle, first: T.handle, starts: T.handle, n: T.int64, chunks: T.int64,
                by: T.int64, found: T.int64) -> None:
    Keys = T.match_buffer(keys, (n,), "int64")
    First = T.match_buffer(first, (chunks + 1,), "int64")
    Starts = T.match_buffer(starts, (found,), "int64")
    for c in T.parallel(chunks):
        Base = T.alloc_buffer((1,), "int64", scope="local")
        At = T.alloc_buffer((1,), "int64", scope="local")
        At[0] = First[c]
        before = T.max(c * n // chunks - 1, 0)
        Base[0] = T.if_then_else(c > 0, FLOOR(before), -by)
        for p in T.serial(c * n // chunks, (c + 1) * n // chunks):
            if T.cast(Keys[p] - Base[0], "uint64") >= T.cast(by, "uint64"):
                Starts[At[0]] = p
                At[0] = At[0] + 1
                Base[0] = FLOOR(p)
"""


@lru_cache(maxsize=16)
def _programs(source: str, number: str, *more: tuple[str, str]) -> tuple[Kernel, ...]:
    from spcomp.compiler.compile import compile as compile_program
    from spcomp.script.parse import parse_source

    words = (("DIGITS", str(1 << DIGIT)), ("NUMBER", number), ("FEW", str(FEW)), *more)
    text = reduce(lambda done, word: done.replace(*word), words, source)
    return tuple(compile_program(f, check="off") for f in parse_source(text, "convert_format.py"))


def sorted_by(
    keys: Array, ids: Array | None, number: Any, within: int = 0
) -> tuple[Array, Array | None]:
    """Return *keys*, from 0 on, in ascending order, and *ids* in theirs; equal ones stay in order.

    *ids* None stands for 0, 1, ..., and comes back where nothing has moved; *number* is the dtype
    of what is made of it. Where ``keys // within`` ascends already, groups of equal ones are sorted
    each by itself, in cache. Time is linear in keys and digits: a radix sort, the counts of chunks
    summed in order, so that it depends on the keys only.
    """
    if not len(keys) or not (keys[1:] < keys[:-1]).any():
        return keys, ids
    if len(keys) <= SMALL:
        order = np.argsort(keys, kind="stable")
        return keys[order], order.astype(number) if ids is None else ids[order]
    if within > 1:
        begin = bounds(keys, within)
        groups = keys[begin[:-1]] // within
        if len(groups) > MOST and (groups[1:] > groups[:-1]).all():
            return _sorted_groups(keys, ids, number, begin, within)
    return _sorted_all(keys, np.arange(len(keys), dtype=number) if ids is None else ids)


def _sorted_groups(
    keys: Array, ids: Array | None, number: Any, begin: Array, within: int
) -> tuple[Array, Array]:
    made = np.empty_like(keys), np.empty(len(keys), number if ids is None else ids.dtype)
    kind = str(made[1].dtype)
    which = f'T.cast(p, "{kind}")' if ids is None else "GivenIds[p]"
    (sort,) = _programs(_GROUPS, kind, ("WHICH", which))
    rounds = -(-(within - 1).bit_length() // 16)
    ids = keys.view(kind)[: len(keys)] if ids is None else ids  # a stand-in, not read
    sort(begin, keys, ids, *made, len(keys), len(begin) - 1, rounds, within)
    return made


def _sorted_all(keys: Array, given: Array) -> tuple[Array, Array]:
    chunks = min(MOST, -(-len(keys) // CHUNK))
    count, move = _programs(_SORT, str(given.dtype))
    for shift in range(0, int(keys.max()).bit_length(), DIGIT):
        counts = np.zeros((chunks, 1 << DIGIT), np.int64)
        count(keys, counts.reshape(-1), len(keys), chunks, shift)
        if (counts.sum(0) == len(keys)).any():
            continue  # they do not differ in this digit
        to = running(counts.T.reshape(-1))[:-1].reshape(1 << DIGIT, chunks).T.reshape(-1)
        moved = np.empty_like(keys), np.empty_like(given)
        move(keys, given, np.ascontiguousarray(to), *moved, len(keys), chunks, shift)
        keys, given = moved
    return keys, given


def starts(keys: Array, by: int) -> Array:
    """Return where ``keys // by`` differs from the one before, for ascending *keys*; 0 is first."""
    return bounds(keys, by)[:-1]


def bounds(keys: Array, by: int) -> Array:
    """Return what :func:`starts` does, and behind it the number of keys."""
    chunks = -(-len(keys) // CHUNK)
    floor = [(f"FLOOR({at})", f"Keys[{at}]" + " // by * by" * (by > 1)) for at in ("before", "p")]
    count, fill = _programs(_STARTS, "int64", *floor)
    counts = np.zeros(chunks, np.int64)
    count(keys, counts, len(keys), chunks, by)
    first = running(counts)
    found = np.empty(int(first[-1]) + 1, np.int64)
    found[-1] = len(keys)
    fill(keys, first, found[:-1], len(keys), chunks, by, len(found) - 1)
    return found


def running(counts: Array) -> Array:
    """Return 0 and the running sums of *counts*."""
    sums = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=sums[1:])
    return sums
