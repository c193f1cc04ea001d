"""At a conversion: programs that find where groups of equal sorted keys begin."""

# ruff: noqa: FBT001, N806, N812
# mypy: disable-error-code="valid-type, operator"
from __future__ import annotations

from typing import Any

import numpy as np

from spcomp import script as T
from spcomp.arrays import Array
from spcomp.compiler.programs import program
from spcomp.runtime.recycle import empty
from spcomp.tensors.conversions import small
from spcomp.tensors.conversions.small import running

CHUNK = 1 << 16  # least number of keys that one iteration counts
PIECE = 1 << 13  # keys that one iteration splits; with the results they fit into a core's cache


def split(keys: Array, length: int, kind: Any) -> tuple[Array, Array, Array]:
    """Return digits, starts and rests of ascending *keys*.

    The digits are ``keys % length``; the rests are the different ``keys // length``, in order. The
    starts say where each rest begins, and where the last ends. Digits and starts are of type
    *kind*.
    """
    n = len(keys)
    if n <= small.SMALL:
        return small.split(keys, length, kind)
    digits, starts, rest = empty(n, kind), empty(n + 1, kind), empty(n, keys.dtype)
    total, chunks = np.empty(1, np.int64), -(-n // PIECE)
    _split(str(starts.dtype))(keys, digits, starts, rest, total, n, chunks, length)
    count = int(total[0])
    starts[count] = n
    return digits, starts[: count + 1].copy(), rest[:count]


def bounds(keys: Array, by: int) -> Array:
    """Return 0, where ``keys // by`` changes, and the number of keys."""
    n = len(keys)
    if n <= small.SMALL:
        return small.split(keys, by, np.int64)[1]
    chunks = -(-n // CHUNK)
    counts = np.empty(chunks, np.int64)
    _starts(by == 1, False)(keys, counts, keys[:0], n, chunks, by, 0)
    first = running(counts)
    starts = np.empty(int(first[-1]) + 1, np.int64)
    starts[-1] = n
    _starts(by == 1, True)(keys, first[:-1], starts, n, chunks, by, len(starts) - 1)
    return starts


@program
def _split(index: str) -> Any:
    """The digits of ascending keys below ``length``, the different rests, and their starts.

    See :func:`split`.
    """

    @T.prim_func
    def split(
        keys: T.handle, digits: T.handle, starts: T.handle, left: T.handle, total: T.handle,
        n: T.int64, chunks: T.int64, length: T.int64,
    ) -> None:  # fmt: skip
        Keys = T.match_buffer(keys, (n,), "int64")
        Digits = T.match_buffer(digits, (n,), index)
        Starts = T.match_buffer(starts, (n + 1,), index)
        Left = T.match_buffer(left, (n,), "int64")
        Total = T.match_buffer(total, (1,), "int64")
        for c in T.parallel(chunks):
            Sum = T.alloc_buffer((2,), "int64", scope="local")
            low = c * n // chunks
            high = (c + 1) * n // chunks
            Firsts = T.alloc_buffer((high - low,), index, scope="local")
            Rest = T.alloc_buffer((high - low,), "int64", scope="local")
            Sum[0] = 0
            behind = Keys[T.max(low - 1, 0)] // length + 1
            Sum[1] = T.if_then_else(low > 0, behind, T.int64(0)) * length
            for p in T.serial(low, high):
                if Keys[p] >= Sum[1]:
                    Firsts[Sum[0]] = T.cast(p, index)
                    Rest[Sum[0]] = Keys[p] // length
                    Sum[1] = (Rest[Sum[0]] + 1) * length
                    Sum[0] = Sum[0] + 1
                Digits[p] = T.cast(Keys[p] - Sum[1] + length, index)
            with T.prefix(Sum[0]) as before:
                for q in T.serial(Sum[0]):
                    Starts[before + q] = Firsts[q]
                    Left[before + q] = Rest[q]
                if c == chunks - 1:
                    Total[0] = before + Sum[0]

    return split


@program
def _starts(single: bool, filled: bool) -> Any:
    """Where ``keys // by`` changes: counted for each chunk, or *filled* in.

    When filled in, ``First`` says where the results of each chunk belong. *single*: ``by`` is 1.
    """

    @T.prim_func
    def starts(
        keys: T.handle, first: T.handle, starts: T.handle, n: T.int64, chunks: T.int64,
        by: T.int64, found: T.int64,
    ) -> None:  # fmt: skip
        Keys = T.match_buffer(keys, (n,), "int64")
        First = T.match_buffer(first, (chunks,), "int64")
        Starts = T.match_buffer(starts, (found,), "int64")
        for c in T.parallel(chunks):
            Base = T.alloc_buffer((1,), "int64", scope="local")
            At = T.alloc_buffer((1,), "int64", scope="local")
            At[0] = First[c] if filled else T.int64(0)
            last = Keys[T.max(c * n // chunks - 1, 0)]
            Base[0] = T.if_then_else(c > 0, last if single else last // by * by, -by)
            for p in T.serial(c * n // chunks, (c + 1) * n // chunks):
                if T.cast(Keys[p] - Base[0], "uint64") >= T.cast(by, "uint64"):
                    if filled:
                        Starts[At[0]] = p
                    At[0] = At[0] + 1
                    Base[0] = Keys[p] if single else Keys[p] // by * by
            if not filled:
                First[c] = At[0]

    return starts
