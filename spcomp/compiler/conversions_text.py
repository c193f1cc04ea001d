"""At a conversion: the programs that order elements, as text with places for types and sizes.

An element has a *key*: its coordinates side by side, the outermost in the highest bits. The lowest
``bits`` are its *minor*, the others its *major*: row and column, for a matrix by rows.

Words: VALUE is an unsigned type as wide as a value, which is only moved; ITEM its own type; WORD
one that holds a value, or a key within a bucket; INDEX the type of minors, POINTER of where majors
end, TOTAL of counters; the others are made by :func:`of_axes` and :func:`of_rows`, which say how
keys are read.
"""

from __future__ import annotations

from textwrap import indent

FEW = 40  # elements that are sorted by insertion
BLOCK = 1 << 12  # elements that are moved together
DIGIT = 9  # bits that one pass over many elements sorts by, at most

HEAD = "from spcomp import script as T\n\n\n@T.prim_func\n"
COUNT = (
    HEAD
    + """def count(PARAMS, counts: T.handle, facts: T.handle, n: T.int64, chunks: T.int64,
          buckets: T.int64, shift: T.int64, SIZES) -> None:
    DECLARED
    Counts = T.match_buffer(counts, (chunks * buckets,), "TOTAL")
    Facts = T.match_buffer(facts, (chunks * 2,), "int64")
    for c in T.parallel(chunks):
        Seen = T.alloc_buffer((3,), "int64", scope="local")
        low = c * n // chunks
        for d in T.serial(buckets):
            Counts[c * buckets + d] = 0
        Seen[0] = 0
        Seen[1] = 0
        Seen[2] = T.if_then_else(low > 0, BEFORE, T.int64(-1))
        for p in T.serial(low, (c + 1) * n // chunks):
            key = COUNTED
            Seen[0] = Seen[0] | OUTSIDE
WATCH            at = c * buckets + (key >> shift & (buckets - 1))
            Counts[at] = Counts[at] + 1
        Facts[2 * c] = Seen[0]
        Facts[2 * c + 1] = Seen[1]
"""
)
"""How many elements of each chunk go to each bucket; ``facts``: of a list, whether a coordinate is
outside (negative), and how many keys do not ascend."""

MOVE = (
    HEAD
    + f"""def move(PARAMS, values: T.handle, to: T.handle, OUTS, n: T.int64, chunks: T.int64,
         buckets: T.int64, shift: T.int64, unread: T.int64, SIZES) -> None:
    DECLARED
    Values = T.match_buffer(values, (n,), "VALUE")
    To = T.match_buffer(to, (chunks * buckets,), "TOTAL")
    MADE
    for c in T.parallel(chunks):
        Put = T.alloc_buffer(({BLOCK},), "TOTAL", scope="local")
        begin = c * n // chunks
        end = (c + 1) * n // chunks
        for b in T.serial((end - begin + {BLOCK} - 1) // {BLOCK}):
            low = begin + b * {BLOCK}
            high = T.min(low + {BLOCK}, end)
            for p in T.serial(low, high):
                at = c * buckets + ((COUNTED) >> shift - unread)
                Put[p - low] = To[at]
                To[at] = To[at] + 1
LOOP
"""
)
"""Elements moved to their buckets, in each in the order they had. A counter is not read between
writes to places that counters have said: a core would wait for these."""

PAIRS = {
    "OUTS": "pairs: T.handle",
    "MADE": 'Pairs = T.match_buffer(pairs, (2 * n,), "WORD")',
    "FIRST": 'Pairs[2 * put] = T.cast(key & (1 << shift) - 1, "WORD")',
    "SECOND": 'Pairs[2 * put + 1] = T.cast(Values[p], "WORD")',
}
"""To a bucket for each part of the majors: what is left of the key, and beside it the value: a core
writes to one line for each bucket."""

LISTS = {
    "OUTS": "minors: T.handle, moved: T.handle",
    "MADE": 'Minors = T.match_buffer(minors, (n,), "INDEX")\n'
    '    Moved = T.match_buffer(moved, (n,), "VALUE")',
    "FIRST": 'Minors[put] = T.cast(minor, "INDEX")',
    "SECOND": "Moved[put] = Values[p]",
}
"""To a bucket for each major: at once to where they belong."""

ASCENDING = (
    HEAD
    + """def ascending(PARAMS, values: T.handle, ends: T.handle, minors: T.handle, moved: T.handle,
              n: T.int64, chunks: T.int64, majors: T.int64, bits: T.int64, SIZES) -> None:
    DECLARED
    Values = T.match_buffer(values, (n,), "VALUE")
    Ends = T.match_buffer(ends, (majors,), "POINTER")
    Minors = T.match_buffer(minors, (n,), "INDEX")
    Moved = T.match_buffer(moved, (n,), "VALUE")
    for c in T.parallel(chunks):
        Last = T.alloc_buffer((1,), "int64", scope="local")
        low = c * n // chunks
        high = (c + 1) * n // chunks
        Last[0] = T.if_then_else(low > 0, BEFORE, T.int64(0)) >> bits
        for p in T.serial(low, high):
            key = KEY
            for r in T.serial(Last[0], key >> bits):
                Ends[r] = T.cast(p, "POINTER")
            Last[0] = key >> bits
            Minors[p] = T.cast(key & (1 << bits) - 1, "INDEX")
            Moved[p] = Values[p]
        for r in T.serial(Last[0], T.if_then_else(high == n, majors, T.int64(0))):
            Ends[r] = T.cast(n, "POINTER")
"""
)
"""Elements that are in order already."""

SUMS = (
    HEAD
    + f"""def sums(counts: T.handle, ends: T.handle, chunks: T.int64, buckets: T.int64,
         majors: T.int64) -> None:
    Counts = T.match_buffer(counts, (chunks * buckets,), "TOTAL")
    Ends = T.match_buffer(ends, (majors,), "POINTER")
    for b in T.parallel((majors + {BLOCK} - 1) // {BLOCK}):
        Sum = T.alloc_buffer((2,), "int64", scope="local")
        first = b * {BLOCK}
        last = T.min(first + {BLOCK}, majors)
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
                    Counts[c * buckets + r] = T.cast(Sum[1], "TOTAL")
                Ends[r] = T.cast(Sum[0], "POINTER")
"""
)
"""Where the elements of each major begin for each chunk, in place of their counts, and end."""

_PASS = """
                    for d in T.serial(1 << digit):
                        Next[d] = 0
                    for p in T.serial(begin, end):
                        d = T.cast(FROM[p - AWAY], "int64") >> AT & (1 << digit) - 1
                        Next[d] = Next[d] + 1
                    Sum[1] = begin - BACK
                    for d in T.serial(1 << digit):
                        Sum[2] = Next[d]
                        Next[d] = Sum[1]
                        Sum[1] = Sum[1] + Sum[2]
                    for p in T.serial(begin, end):
                        d = T.cast(FROM[p - AWAY], "int64") >> AT & (1 << digit) - 1
                        TO[Next[d]] = T.cast(FROM[p - AWAY], "TYPE")
                        VTO[Next[d]] = VFROM[p - AWAY]
                        Next[d] = Next[d] + 1"""


def _replaced(text: str, **words: str) -> str:
    for word, value in words.items():
        text = text.replace(word, value)
    return text


SORT = (
    f"""
        Keys = T.alloc_buffer((high - low,), "INDEX", scope="local")
        VKeys = T.alloc_buffer((high - low,), "VALUE", scope="local")
        Next = T.alloc_buffer(({1 << DIGIT},), "int64", scope="local")
        Sum[0] = low
        for r in T.serial(first, last):
            begin = Sum[0]
            end = T.cast(Ends[r], "int64")
            Sum[0] = end
            if end - begin <= {FEW}:
                for p in T.serial(begin + 1, end):
                    own = Minors[p]
                    if own < Minors[p - 1]:
                        value = VMinors[p]
                        Minors[p] = Minors[p - 1]
                        VMinors[p] = VMinors[p - 1]
                        Sum[1] = p - 1
                        while Sum[1] > begin and Minors[T.max(Sum[1] - 1, 0)] > own:
                            Minors[Sum[1]] = Minors[Sum[1] - 1]
                            VMinors[Sum[1]] = VMinors[Sum[1] - 1]
                            Sum[1] = Sum[1] - 1
                        Minors[Sum[1]] = own
                        VMinors[Sum[1]] = value
            else:
                for s in T.serial(rounds):"""
    + _replaced(
        _PASS, FROM="Minors", TO="Keys", AT="(2 * s * digit)", TYPE="INDEX", AWAY="0", BACK="low"
    )
    + _replaced(
        _PASS,
        FROM="Keys",
        TO="Minors",
        AT="((2 * s + 1) * digit)",
        TYPE="INDEX",
        AWAY="low",
        BACK="0",
    )
)
"""A part of the next two: the elements of each major by their minors, equal ones as they were."""

_BUCKETS = """    Ends = T.match_buffer(ends, (majors,), "POINTER")
    Minors = T.match_buffer(minors, (n,), "INDEX")
    VMinors = T.match_buffer(values, (n,), "VALUE")
    Repeated = T.match_buffer(repeated, (buckets,), "int64")
    for b in T.parallel(buckets):
        Sum = T.alloc_buffer((3,), "int64", scope="local")
        first = T.min(b << wide, majors)
        last = T.min(first + (1 << wide), majors)
"""
REPEATED = """
        Sum[0] = low
        Sum[1] = 0
        for r in T.serial(first, last):
            end = T.cast(Ends[r], "int64")
            for p in T.serial(Sum[0] + 1, end):
                Sum[1] = Sum[1] + T.cast(Minors[p] == Minors[p - 1], "int64")
            Sum[0] = end
        Repeated[b] = Sum[1]
"""
"""A part of them: how many elements have the major and minor of the one before."""

SETTLE = (
    HEAD
    + """def settle(starts: T.handle, pairs: T.handle, ends: T.handle, minors: T.handle,
           values: T.handle, repeated: T.handle, n: T.int64, buckets: T.int64, majors: T.int64,
           wide: T.int64, bits: T.int64, digit: T.int64, rounds: T.int64) -> None:
    Starts = T.match_buffer(starts, (buckets + 1,), "int64")
    Pairs = T.match_buffer(pairs, (2 * n,), "WORD")
"""
    + _BUCKETS
    + """        low = Starts[b]
        high = Starts[b + 1]
        After = T.alloc_buffer((high - low,), "POINTER", scope="local")
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
            Ends[r] = T.cast(Sum[0], "POINTER")
        for p in T.serial(low, high):
            key = T.cast(Pairs[2 * p], "int64")
            to = T.cast(Ends[first + (key >> bits)] - After[p - low] - 1, "int64")
            Minors[to] = T.cast(key & (1 << bits) - 1, "INDEX")
            VMinors[to] = T.cast(Pairs[2 * p + 1], "VALUE")
SORT
CHECK"""
)
"""The elements of each bucket by their majors, and where each major ends."""

ROWS = (
    HEAD
    + """def rows(ends: T.handle, minors: T.handle, values: T.handle, repeated: T.handle,
         n: T.int64, buckets: T.int64, majors: T.int64, wide: T.int64, digit: T.int64,
         rounds: T.int64) -> None:
"""
    + _BUCKETS
    + """        low = T.if_then_else(b > 0, T.cast(Ends[T.max(first - 1, 0)], "int64"), T.int64(0))
        high = T.if_then_else(last > first, T.cast(Ends[T.max(last - 1, 0)], "int64"), low)
"""
    + SORT
    + REPEATED
)
"""The elements of each row by their columns."""

_ROWS_OF = """    for b in T.parallel(buckets):
        first = T.min(b << wide, majors)
        Sum = T.alloc_buffer((2,), "int64", scope="local")
        Sum[0] = T.if_then_else(b > 0, T.cast(Ends[T.max(first - 1, 0)], "int64"), T.int64(0))
        for r in T.serial(first, T.min(first + (1 << wide), majors)):
            end = T.cast(Ends[r], "int64")
"""
UNIQUE = (
    HEAD
    + """def unique(ends: T.handle, minors: T.handle, lengths: T.handle, n: T.int64,
           buckets: T.int64, majors: T.int64, wide: T.int64) -> None:
    Ends = T.match_buffer(ends, (majors,), "POINTER")
    Minors = T.match_buffer(minors, (n,), "INDEX")
    Lengths = T.match_buffer(lengths, (majors,), "POINTER")
"""
    + _ROWS_OF
    + """            Sum[1] = T.cast(end > Sum[0], "int64")
            for p in T.serial(Sum[0] + 1, end):
                Sum[1] = Sum[1] + T.cast(Minors[p] != Minors[p - 1], "int64")
            Lengths[r] = T.cast(Sum[1], "POINTER")
            Sum[0] = end
"""
)
"""How many different minors each major has."""

ADD = (
    HEAD
    + """def add(ends: T.handle, minors: T.handle, values: T.handle, ends_out: T.handle,
        minors_out: T.handle, values_out: T.handle, n: T.int64, left: T.int64, buckets: T.int64,
        majors: T.int64, wide: T.int64) -> None:
    Ends = T.match_buffer(ends, (majors,), "POINTER")
    Minors = T.match_buffer(minors, (n,), "INDEX")
    Values = T.match_buffer(values, (n,), "ITEM")
    EndsOut = T.match_buffer(ends_out, (majors,), "POINTER")
    MinorsOut = T.match_buffer(minors_out, (left,), "INDEX")
    ValuesOut = T.match_buffer(values_out, (left,), "ITEM")
"""
    + _ROWS_OF
    + """            Total = T.alloc_buffer((1,), "WIDER", scope="local")
            Sum[1] = T.if_then_else(r > 0, T.cast(EndsOut[T.max(r - 1, 0)], "int64"), T.int64(0))
            for p in T.serial(Sum[0], end):
                own = T.cast(Values[p], "WIDER")
                if p > Sum[0] and Minors[p] == Minors[T.max(p - 1, 0)]:
                    Total[0] = Total[0] PLUS own
                else:
                    Total[0] = own
                    Sum[1] = Sum[1] + 1
                MinorsOut[Sum[1] - 1] = Minors[p]
                ValuesOut[Sum[1] - 1] = T.cast(Total[0], "ITEM")
            Sum[0] = end
"""
)
"""Elements of one major and minor added up, in the order they have."""

EXPAND = (
    HEAD
    + """def expand(ends: T.handle, found: T.handle, n: T.int64, buckets: T.int64, majors: T.int64,
           wide: T.int64) -> None:
    Ends = T.match_buffer(ends, (majors,), "POINTER")
    Found = T.match_buffer(found, (n,), "INDEX")
"""
    + _ROWS_OF
    + """            for p in T.serial(Sum[0], end):
                Found[p] = T.cast(r, "INDEX")
            Sum[0] = end
"""
)
"""The major of every element."""

SPLIT = (
    HEAD
    + """def split(keys: T.handle, digits: T.handle, starts: T.handle, left: T.handle,
          total: T.handle, n: T.int64, chunks: T.int64, length: T.int64) -> None:
    Keys = T.match_buffer(keys, (n,), "int64")
    Digits = T.match_buffer(digits, (n,), "INDEX")
    Starts = T.match_buffer(starts, (n + 1,), "INDEX")
    Left = T.match_buffer(left, (n,), "int64")
    Total = T.match_buffer(total, (1,), "int64")
    for c in T.parallel(chunks):
        Sum = T.alloc_buffer((2,), "int64", scope="local")
        low = c * n // chunks
        high = (c + 1) * n // chunks
        Firsts = T.alloc_buffer((high - low,), "INDEX", scope="local")
        Rest = T.alloc_buffer((high - low,), "int64", scope="local")
        Sum[0] = 0
        Sum[1] = T.if_then_else(low > 0, Keys[T.max(low - 1, 0)] // length + 1, T.int64(0)) * length
        for p in T.serial(low, high):
            if Keys[p] >= Sum[1]:
                Firsts[Sum[0]] = T.cast(p, "INDEX")
                Rest[Sum[0]] = Keys[p] // length
                Sum[1] = (Rest[Sum[0]] + 1) * length
                Sum[0] = Sum[0] + 1
            Digits[p] = T.cast(Keys[p] - Sum[1] + length, "INDEX")
        with T.prefix(Sum[0]) as before:
            for q in T.serial(Sum[0]):
                Starts[before + q] = Firsts[q]
                Left[before + q] = Rest[q]
            if c == chunks - 1:
                Total[0] = before + Sum[0]
"""
)
"""The last digits of ascending keys, below ``length``; what is left of them, once each, and where
that is first."""


_WATCH = """            Seen[1] = Seen[1] + T.cast(key <= Seen[2], "int64")
            Seen[2] = key
"""
_ONE = """key = KEY
minor = MINOR
put = T.cast(Put[p - low], "int64")
FIRST
SECOND"""


def of_axes(count: int, kind: str) -> dict[str, str]:
    """Return the words for elements that have *count* arrays of coordinates of the type *kind*."""
    every = range(count)
    terms = [
        f'T.cast(Axis{k}[AT], "int64")' + (f" << shift{k}" if k < count - 1 else "") for k in every
    ]
    key = " | ".join(f"({term})" for term in terms)
    own = [f'T.cast(Axis{k}[p], "int64")' for k in every]
    outside = " | ".join(f"{x} | (size{k} - 1 - {x})" for k, x in enumerate(own))
    lines = [f'Axis{k} = T.match_buffer(axis{k}, (n,), "{kind}")' for k in every]
    sizes = [f"shift{k}: T.int64" for k in every[:-1]] + [f"size{k}: T.int64" for k in every]
    read = key.replace("AT", "p")
    return {
        "LOOP": indent("for p in T.serial(low, high):\n" + indent(_ONE, "    "), " " * 12),
        "PARAMS": ", ".join(f"axis{k}: T.handle" for k in every),
        "SIZES": ", ".join(sizes),
        "DECLARED": "\n    ".join(lines),
        "BEFORE": key.replace("AT", "T.max(low - 1, 0)"),
        "OUTSIDE": f"({outside})",
        "COUNTED": read,
        "WATCH": _WATCH,
        "MINOR": "key & (1 << shift) - 1",
        "KEY": read,
    }


def of_rows(kind: str, pointer: str) -> dict[str, str]:
    """Return the words for compressed rows whose columns are to become the majors."""
    own = 'T.cast(Axis0[p], "int64")'
    loop = """for r in T.serial(T.upper_bound(Rows, 0, rows + 1, low) - 1,
                  T.upper_bound(Rows, 0, rows + 1, high - 1)):
    for p in T.serial(T.max(low, T.cast(Rows[r], "int64")),
                      T.min(high, T.cast(Rows[r + 1], "int64"))):
"""
    return {
        "LOOP": indent(loop + indent(_ONE, " " * 8), " " * 12),
        "PARAMS": "axis0: T.handle, rows_of: T.handle",
        "SIZES": "shift0: T.int64, size0: T.int64, rows: T.int64",
        "DECLARED": f'Axis0 = T.match_buffer(axis0, (n,), "{kind}")\n'
        f'    Rows = T.match_buffer(rows_of, (rows + 1,), "{pointer}")',
        "BEFORE": "T.int64(-1)",
        "OUTSIDE": "T.int64(0)",
        "COUNTED": own,
        "WATCH": "",
        "MINOR": "r",
        "KEY": f"({own} << shift0) | r",
    }
