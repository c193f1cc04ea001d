"""At a conversion: elements put in the order of their coordinates, on all threads.

Elements are moved to buckets of majors that lie next to each other, and each bucket is put in order
inside a core's own cache: a radix sort from the top, then from the bottom. What comes out depends
on the elements only; equal ones stay in the order they had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from spcomp.compiler import conversions_small as small
from spcomp.compiler import conversions_text as text
from spcomp.compiler import validate
from spcomp.compiler.formats_sort import running
from spcomp.dtypes import DType, float32
from spcomp.errors import ArgumentError
from spcomp.runtime.host import launch
from spcomp.runtime.recycle import empty

if TYPE_CHECKING:
    from spcomp.compiler.compile import Compiled
    from spcomp.ir.func import Func

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
CHUNK = 1 << 16  # elements that one iteration counts, or more
MOST = 64  # chunks, each with counts of its own
BUCKET = 1 << 13  # elements of a bucket, about: they and what they become fit into a core's cache
BUCKETS = 1 << 8  # lines that a core can write to in turn without losing them
WINDOW, WINDOWS = 1 << 11, 8  # elements that a sample looks at, and at how many such places
NEAR = 32  # of 512 blocks of majors: elements near each other are in no more, on the average
SPARSE = 16  # rows per element, from which on an array as long as the rows is too much
BITS = 62  # of a key
INT32 = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True, eq=False)
class Ordered:
    """Elements by their majors, and in each, if they were sorted, by their minors.

    ``pointers[r] : pointers[r + 1]`` are those of major r. *repeated*: how many have the major and
    minor of the element before.
    """

    pointers: Array
    minors: Array
    values: Array
    repeated: int

    @property
    def arrays(self) -> tuple[Array, Array, Array]:
        """The pointers, minors and values."""
        return self.pointers, self.minors, self.values

    @property
    def majors(self) -> int:
        """How many majors there are, empty ones included."""
        return len(self.pointers) - 1


@lru_cache(maxsize=256)
def _compiled(program: str, words: tuple[tuple[str, str], ...]) -> tuple[Func, Compiled]:
    from spcomp.compiler.compile import compile as compile_program

    func = parsed(program, words)
    code = compile_program(func, check="off")._compiled  # noqa: SLF001 (what is relied on holds)
    return next(iter(code.funcs.values())), code


def parsed(program: str, words: Sequence[tuple[str, str]]) -> Func:
    """Return the function that a text is with *words* put in, each also in those before it."""
    from spcomp.script.parse import parse_source

    for word, value in words:
        program = program.replace(word, value)
    return cast("Func", parse_source(program, "conversions.py")[0])


def run(program: str, words: dict[str, str], *args: Any) -> None:
    """Run the *program*, a text for :func:`parsed`, on arrays and sizes in its order.

    Arrays that it writes are new ones.
    """
    func, code = _compiled(program, tuple(words.items()))
    plain = (np.require(x, None, ("C", "A")) if isinstance(x, np.ndarray) else x for x in args)
    launch(func, code, {p.name: x for p, x in zip(func.params, plain, strict=True)})


def bits_of(extent: int) -> int:
    """Return how many bits a coordinate below *extent* has, at least 1."""
    return max(extent - 1, 1).bit_length()


def shifts_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Return where each coordinate begins in a key: how many bits are below it."""
    every = [bits_of(extent) for extent in shape]
    return tuple(sum(every[at + 1 :]) for at in range(len(every)))


def index_type(*most: int) -> np.dtype[Any]:
    """Return the type of index arrays that hold numbers up to each of *most*."""
    return np.dtype(np.int32 if max(most, default=0) <= INT32 else np.int64)


def moved_as(values: Array) -> Array:
    """Return *values* as bits, which is how they are moved."""
    return values.view(f"uint{8 * values.itemsize}")


@dataclass(frozen=True, slots=True)
class Plan:
    """How *n* elements with *majors* of some *bits* each are cut into chunks and buckets."""

    n: int
    majors: int
    bits: int
    chunks: int
    wide: int  # bits of a major that are the same bucket's

    @classmethod
    def of(cls, n: int, majors: int, bits: int) -> Plan:
        """Return the plan that depends on these alone, so that results do."""
        top = bits_of(majors)
        some = min(top, min(BUCKETS, max(n // BUCKET, 1)).bit_length())
        return cls(n, majors, bits, min(MOST, max(-(-n // CHUNK), 1)), top - some)

    def spread(self) -> Plan:
        """Return the plan with a bucket for each major, and few chunks."""
        from spcomp.runtime.pool import get_num_threads

        chunks = max(min(get_num_threads(), self.n // self.majors), 1)
        return replace(self, chunks=chunks, wide=0)

    @property
    def buckets(self) -> int:
        """How many buckets there are; the last may be past all majors."""
        return 1 << (bits_of(self.majors) - self.wide)

    @property
    def shift(self) -> int:
        """How many bits of a key do not say which bucket it is for."""
        return self.bits + self.wide

    @property
    def digits(self) -> tuple[int, int]:
        """How many bits one pass sorts by, and how many pairs of passes there are."""
        rounds = -(-self.bits // (2 * text.DIGIT))
        return -(-self.bits // (2 * rounds)), rounds


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    """Where keys come from: the words of the programs, their arrays, and the sizes they take.

    *unread*: how many bits at the end of a key are not read when elements are counted.
    """

    words: dict[str, str]
    arrays: tuple[Array, ...]
    sizes: tuple[int, ...]
    unread: int = 0


def are_in_order(axes: Sequence[Array], shape: Sequence[int]) -> bool:
    """Whether elements with coordinates *axes* are in order, none twice, and all in *shape*.

    False also where that is not known: for few elements, and keys of more than 62 bits.
    """
    n, shifts = len(axes[0]), shifts_of(shape)
    if n <= small.SMALL or sum(map(bits_of, shape)) > BITS:
        return False
    if not validate.rise([own[: small.SMALL] for own in axes]):
        return False
    words = text.of_axes(len(axes), str(axes[0].dtype))
    source = _Source(words, tuple(axes), (*shifts[:-1], *shape))
    _, facts = _counted(source, Plan.of(n, shape[0], shifts[0]))
    return bool((facts[::2] >= 0).all()) and not facts[1::2].any()


def put_in_order(
    axes: Sequence[Array],
    values: Array,
    shape: Sequence[int],
    *,
    bits: int | None = None,
    idtype: Any = None,
    sort: bool = True,
) -> Ordered:
    """Return the elements with coordinates *axes*, of one type and one array each, in order.

    The lowest *bits* of a key (see :func:`shifts_of`) are its minor; None: all but the first
    coordinate's. *idtype*: of minors and pointers, else int32 where it holds them. Keys of more
    than 62 bits are no case for this.

    Raises:
        ArgumentError: for a coordinate that is outside of *shape*.
    """
    shifts = shifts_of(shape)
    if bits is None:
        bits, majors = shifts[0], shape[0]
    else:
        last = sum(max(extent - 1, 0) << by for extent, by in zip(shape, shifts, strict=True))
        majors = (last >> bits) + 1
    n = len(values)
    minor = index_type((1 << bits) - 1) if idtype is None or bits > 31 else np.dtype(idtype)
    pointer = index_type(n) if idtype is None else np.dtype(idtype)
    is_matrix = bits == shifts[0] and len(axes) == 2 and max(shape) <= SPARSE * n
    if n <= (small.MATRIX if is_matrix else small.SMALL):
        if not all(map(small.inside, axes, shape)):
            _refuse_outside(axes, shape)
        if is_matrix:
            return _small(axes, values, (shape[0], shape[1]), minor, sort=sort)
        order, major, low, repeated = small.ordered(axes, shifts, bits, sort=sort)
        pointers = small.pointers_of(major, majors, pointer)
        return Ordered(pointers, low.astype(minor), values[order], repeated)
    words = text.of_axes(len(axes), str(axes[0].dtype))
    source = _Source(words, tuple(axes), (*shifts[:-1], *shape))
    plan = Plan.of(n, majors, bits)
    if is_matrix and _ascends(axes[1]):
        sort = False  # those of a major stay in the order they had
    if near := is_matrix and not sort and _is_near(axes[0], majors):
        plan = plan.spread()
    counts, facts = _counted(source, plan, index_type(n) if near else np.int64)
    if (facts[::2] < 0).any():
        _refuse_outside(axes, shape)
    made = _room(plan, values, minor, pointer)
    if not facts[1::2].any():
        _ascending(source, plan, moved_as(values), made)
        return made
    if near:
        return _spread(source, plan, counts, values, made)
    return _settled(source, plan, counts, values, made, sort=sort)


def _ascends(own: Array) -> bool:
    """Whether a list of coordinates never decreases, most others being known by how they begin."""
    if (own[1 : small.SMALL] < own[: small.SMALL][:-1]).any():
        return False
    whole = np.array([0, len(own)], np.promote_types(own.dtype, index_type(len(own))))
    return validate.ascends(whole, own, 0, strict=False)


def _small(
    axes: Sequence[Array], values: Array, shape: tuple[int, int], kind: Any, *, sort: bool
) -> Ordered:
    """Return the elements of a matrix by rows; *sort*: first by columns, to have these in order."""
    rows, columns = axes
    given = moved_as(values)
    if sort:
        by_columns = small.by_majors(columns, rows, given, shape[::-1], kind)
        made = small.turned(by_columns, shape[0], kind)
    else:
        made = small.by_majors(rows, columns, given, shape, kind)
    return _of_small(made, values)


def _of_small(made: small.Compressed, values: Array) -> Ordered:
    pointers, minors, bits = made
    repeated = small.repeated(pointers, minors)
    return Ordered(pointers, minors, bits.view(values.dtype), repeated)


def transposed(
    pointers: Array, indices: Array, values: Array, columns: int, idtype: Any
) -> Ordered:
    """Return compressed rows as compressed columns, whose rows ascend.

    Raises ArgumentError for an index that is no column.
    """
    rows = len(pointers) - 1
    if len(values) <= small.MATRIX:
        if not small.inside(indices, columns):
            _refuse_outside([indices], [columns])
        given = pointers, indices, moved_as(values)
        return _of_small(small.turned(given, columns, idtype), values)
    bits = bits_of(rows)
    source = _Source(
        text.of_rows(str(indices.dtype), str(pointers.dtype)),
        (indices, pointers),
        (bits, columns, rows),
        unread=bits,
    )
    plan = Plan.of(len(values), columns, bits)
    distinct = validate.ordered("indices", pointers, indices, columns - 1, strict=True)
    if near := distinct and _is_near(indices, columns):
        plan = plan.spread()
    counts, _ = _counted(source, plan, index_type(plan.n) if near else np.int64)
    made = _room(plan, values, idtype, idtype)
    if near:
        return _spread(source, plan, counts, values, made, distinct=True)
    return _settled(source, plan, counts, values, made, sort=False, distinct=distinct)


def _is_near(indices: Array, columns: int) -> bool:
    """Whether elements that are near each other have columns that are: a sample says so."""
    if not max(columns, WINDOW) <= len(indices) or columns > INT32:
        return False
    starts = np.linspace(0, len(indices) - WINDOW, WINDOWS, dtype=np.int64)
    found = indices[starts[:, None] + np.arange(WINDOW)] >> max(bits_of(columns) - 9, 0) & 511
    seen = np.zeros((WINDOWS, 512), bool)
    seen[np.arange(WINDOWS)[:, None], found] = True
    return int(seen.sum()) <= NEAR * WINDOWS


def _spread(
    source: _Source,
    plan: Plan,
    counts: Array,
    values: Array,
    made: Ordered,
    *,
    distinct: bool = False,
) -> Ordered:
    """Do what :func:`_settled` does at once: lines that are written to are few anyway."""
    words = {"POINTER": str(made.pointers.dtype), "TOTAL": str(counts.dtype)}
    run(text.SUMS, words, counts, made.pointers[1:], plan.chunks, plan.buckets, plan.majors)
    outs = made.minors, moved_as(made.values)
    _moved(source, plan, values, counts, {**text.LISTS, **_types(made)}, outs)
    if distinct or validate.ascends(made.pointers, made.minors, 0, strict=True):
        return made
    return replace(made, repeated=small.repeated(made.pointers, made.minors))


def _counted(source: _Source, plan: Plan, kind: Any = np.int64) -> tuple[Array, Array]:
    counts = empty(plan.chunks * plan.buckets, np.dtype(kind))
    facts = np.zeros(plan.chunks * 2, np.int64)
    shift = plan.shift - source.unread
    sizes = plan.n, plan.chunks, plan.buckets, shift, *source.sizes
    words = {**source.words, "TOTAL": str(counts.dtype)}
    run(text.COUNT, words, *source.arrays, counts, facts, *sizes)
    return counts, facts


def _moved(
    source: _Source,
    plan: Plan,
    values: Array,
    to: Array,
    words: dict[str, str],
    outs: tuple[Array, ...],
) -> None:
    sizes = plan.n, plan.chunks, plan.buckets, plan.shift, source.unread, *source.sizes
    words = {**source.words, **words, "TOTAL": str(to.dtype)}
    run(text.MOVE, words, *source.arrays, moved_as(values), to, *outs, *sizes)


def _room(plan: Plan, values: Array, minor: Any, pointer: Any) -> Ordered:
    pointers = np.empty(plan.majors + 1, pointer)
    pointers[0] = 0
    return Ordered(pointers, empty(plan.n, minor), empty(plan.n, values.dtype), 0)


def _types(made: Ordered) -> dict[str, str]:
    return {
        "POINTER": str(made.pointers.dtype),
        "INDEX": str(made.minors.dtype),
        "VALUE": str(moved_as(made.values).dtype),
    }


def _ascending(source: _Source, plan: Plan, values: Array, made: Ordered) -> None:
    arrays = made.pointers[1:], made.minors, moved_as(made.values)
    sizes = plan.n, plan.chunks, plan.majors, plan.bits, *source.sizes
    words = {**source.words, **_types(made)}
    run(text.ASCENDING, words, *source.arrays, values, *arrays, *sizes)


def _settled(
    source: _Source,
    plan: Plan,
    counts: Array,
    values: Array,
    made: Ordered,
    *,
    sort: bool,
    distinct: bool = False,
) -> Ordered:
    chunks, buckets = plan.chunks, plan.buckets
    to = running(counts.reshape(chunks, buckets).T.reshape(-1))
    starts = np.append(to[:-1:chunks], plan.n)
    to = np.ascontiguousarray(to[:-1].reshape(buckets, chunks).T).reshape(-1)
    repeated, bits = np.zeros(buckets, np.int64), moved_as(made.values)
    word = np.dtype(np.uint32 if max(8 * bits.itemsize, plan.shift) <= 32 else np.uint64)
    pairs = empty(2 * plan.n, word)
    words = {**text.PAIRS, "VALUE": str(bits.dtype), "WORD": str(word)}
    _moved(source, plan, values, to, words, (pairs,))
    check = "" if distinct else text.REPEATED
    words = {"SORT": text.SORT if sort else "", "CHECK": check, "WORD": str(word), **_types(made)}
    arrays = made.pointers[1:], made.minors, bits, repeated
    sizes = plan.n, buckets, plan.majors, plan.wide, plan.bits, *plan.digits
    run(text.SETTLE, words, starts, pairs, *arrays, *sizes)
    return Ordered(made.pointers, made.minors, made.values, int(repeated.sum()))


def rows_in_order(pointers: Array, indices: Array, values: Array, columns: int) -> Ordered:
    """Return compressed rows whose columns are in range with the columns of each in order."""
    n, majors = len(values), len(pointers) - 1
    if n <= small.MATRIX:
        axes = small.majors_of(pointers, indices.dtype), indices
        return put_in_order(axes, values, (majors, columns), idtype=indices.dtype)
    made = Ordered(pointers, indices.copy(), values.copy(), 0)
    plan = Plan.of(n, majors, bits_of(columns))
    repeated = np.zeros(plan.buckets, np.int64)
    bits = moved_as(made.values)
    sizes = n, plan.buckets, majors, plan.wide, *plan.digits
    run(text.ROWS, _types(made), pointers[1:], made.minors, bits, repeated, *sizes)
    return Ordered(pointers, made.minors, made.values, int(repeated.sum()))


def added_up(given: Ordered, item: DType) -> Ordered:
    """Return *given*, sorted elements of type *item*, with those at one place added up.

    Floats of 16 bits are added in float32; booleans by "or".
    """
    if not given.repeated:
        return given
    if len(given.minors) <= small.MATRIX and item.kind != "bfloat":
        return Ordered(*small.added(given.arrays, item), 0)
    plan = Plan.of(len(given.minors), given.majors, 1)
    lengths = np.empty(given.majors, given.pointers.dtype)
    size = plan.buckets, plan.majors, plan.wide
    words = _types(given)
    run(text.UNIQUE, words, given.pointers[1:], given.minors, lengths, plan.n, *size)
    ends = running(lengths).astype(given.pointers.dtype)
    left = int(ends[-1])
    made = Ordered(ends, np.empty(left, given.minors.dtype), np.empty(left, given.values.dtype), 0)
    is_bool = item.kind == "bool"
    words |= {
        "ITEM": "uint8" if is_bool else str(item),
        "WIDER": "uint8"
        if is_bool
        else str(float32 if item.is_float and item.bits == 16 else item),
        "PLUS": "|" if is_bool else "+",
    }
    values = [x.view(np.uint8 if is_bool else item.numpy_name) for x in (given.values, made.values)]
    arrays = given.minors, values[0], ends[1:], made.minors, values[1]
    run(text.ADD, words, given.pointers[1:], *arrays, plan.n, left, *size)
    return made


def majors_of(pointers: Array, count: int, kind: Any) -> Array:
    """Return the major of each of *count* elements, as *kind*."""
    if count <= small.MATRIX:
        return small.majors_of(pointers, kind)
    found = np.empty(count, kind)
    plan = Plan.of(count, len(pointers) - 1, 1)
    words = {"POINTER": str(pointers.dtype), "INDEX": str(found.dtype)}
    run(text.EXPAND, words, pointers[1:], found, count, plan.buckets, plan.majors, plan.wide)
    return found


def split(keys: Array, length: int, kind: Any) -> tuple[Array, Array, Array]:
    """Return the last digits of ascending *keys*, below *length*, and what is left, once each.

    Between them: where each that is left begins, and the end of the last. Those are of type *kind*.
    """
    n = len(keys)
    if n <= small.SMALL:
        return small.split(keys, length, kind)
    digits, starts, left = empty(n, kind), empty(n + 1, kind), empty(n, keys.dtype)
    total, chunks = np.empty(1, np.int64), -(-n // BUCKET)
    run(text.SPLIT, {"INDEX": str(kind)}, keys, digits, starts, left, total, n, chunks, length)
    count = int(total[0])
    starts[count] = n
    return digits, starts[: count + 1].copy(), left[:count]


def keys_of(given: Ordered, bits: int) -> Array:
    """Return the keys of elements whose minors have *bits*, as int64."""
    keys = majors_of(given.pointers, len(given.minors), np.int64)
    keys <<= bits
    keys |= given.minors
    return keys


def _refuse_outside(axes: Sequence[Array], shape: Sequence[int]) -> None:
    for dim, (own, extent) in enumerate(zip(axes, shape, strict=True)):
        wrong = np.flatnonzero((own < 0) | (own >= extent))
        if len(wrong):
            at = int(wrong[0])
            expected = f"0..{extent - 1}" if extent else "none (the extent is 0)"
            raise ArgumentError(
                f"coordinates of axis {dim}: got {own[at]} at position {at}, expected {expected}"
            )
