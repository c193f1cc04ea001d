"""I to II, workspaces: the coordinates of one fiber as bits, which sorts them.

A word of 64 bits stands for 64 coordinates. The words that a fiber touches are listed, so that the
time is linear in its elements, plus n / 4096 to go through them in ascending order. The position
of a coordinate is then the number of coordinates before its word, plus those before it in the word.

A fiber leaves its workspaces ready for the next: it clears the bits that it set. So
``share_workspace`` may move them out of the loop over the fibers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from spcomp.dtypes import DType, int64, uint64
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO
from spcomp.ir.analysis.names import Names
from spcomp.ir.arith.linear import variables_in
from spcomp.ir.axis import WORKSPACE, Axis, Buffer
from spcomp.ir.expr import BinOp, Call, Expr, Select, UnOp, Var, binary, cast, const
from spcomp.ir.node import Node
from spcomp.ir.stmt import Alloc, For, If, Let, Stmt, Store, While, seq
from spcomp.ir.visitor import walk
from spcomp.knobs import Knobs

BITS = 6  # a word has 2**BITS
NONE = const(0, uint64)


@dataclass(frozen=True, slots=True)
class Marks:
    """Which coordinates of a fiber occur, and the position of each among them.

    *words*: the bits; *before*: how many coordinates come before those of a word, once they are
    emitted; *listed*: the words that hold any, *count* of them, in order of first use; *tops*: a
    bit for each word, while they are sorted; if they are few, *sizes* has how many coordinates
    each word of the list holds, *ranks* how many are in lesser words.
    """

    names: Names
    knobs: Knobs
    words: Buffer
    before: Buffer
    listed: Buffer
    count: Buffer
    tops: Buffer
    sizes: Buffer
    ranks: Buffer

    @staticmethod
    def of(axis: Axis, names: Names, knobs: Knobs) -> Marks:
        """Return the marks for a fiber of *axis*."""
        size = _pieces(axis.length, BITS)

        def buffer(wish: str, *shape: Expr, dtype: DType = uint64) -> Buffer:
            return Buffer(names.unique(f"{axis.name}_{wish}"), None, shape, dtype, WORKSPACE)

        narrow = axis.idtype
        # a write may miss, lanes may look further
        listed = buffer("met", size + knobs.rank_lanes, dtype=narrow)
        count = scalar(names, f"{axis.name}_many")
        tops = buffer("tops", _pieces(axis.length, 2 * BITS))
        few = const(knobs.mark_words)
        sizes, ranks = (buffer(wish, few, dtype=narrow) for wish in ("sizes", "ranks"))
        words, before = buffer("words", size), buffer("before", size, dtype=narrow)
        return Marks(names, knobs, words, before, listed, count, tops, sizes, ranks)

    def around(self, stmt: Stmt, *, ranked: bool, ordered: bool) -> Stmt:
        """Return *stmt* inside its workspaces: *ranked* for positions, *ordered* to sort."""
        stmt = Alloc(self.count, seq(Store(self.count, (ZERO,), ZERO), stmt))
        stmt = Alloc(self.words, Alloc(self.listed, stmt))
        order = (self.tops, self.sizes, self.ranks) if ordered else ()
        order = (self.before, *order) if ranked else order
        return functools.reduce(lambda inner, buffer: Alloc(buffer, inner), order, stmt)

    def add(self, coord: Expr) -> Stmt:
        """Return the statement that marks *coord*, an int64 within the axis."""
        at, word = self.names.var("at"), self.names.var("word")
        bits = self.names.var("bits", uint64)
        position = Load(self.count, (ZERO,))
        fresh = Select(BinOp("==", bits, NONE), const(1), ZERO)
        body = seq(
            Store(self.words, (word,), binary("|", bits, _bit(at))),
            # past the end of the list, if the word is listed already
            Store(self.listed, (position,), cast(word, self.listed.dtype)),
            Store(self.count, (ZERO,), binary("+", position, fresh)),
        )
        body = Let(bits, Load(self.words, (word,)), body)
        return Let(at, coord, Let(word, _word(at), body))

    def count_and_clear(self, into: Buffer) -> Stmt:
        """Return the statement that adds the number of marks to *into*, and clears them."""
        word = self.names.var("word")
        marks = cast(Call("popcount", (Load(self.words, (word,)),)), int64)
        total = Store(into, (ZERO,), binary("+", Load(into, (ZERO,)), marks))
        return self._each_word(word, seq(total, Store(self.words, (word,), NONE)))

    def emit(self, into: Buffer, put: Callable[[Var], Stmt], *, ordered: bool) -> Stmt:
        """Return the statement that runs *put* on every marked coordinate, at the position *into*.

        At the end *into* is the number of coordinates. *ordered*: they come in ascending order.
        """
        if not ordered:
            word = self.names.var("word")
            return self._each_word(word, self._emit_word(word, into, put))
        few = BinOp("<=", Load(self.count, (ZERO,)), const(self.knobs.mark_words))
        return If(few, self._emit_few(into, put), self._sweep(into, put))

    def _emit_few(self, into: Buffer, put: Callable[[Var], Stmt]) -> Stmt:
        """As emit, word by word in list order: *ranks* has the first position of each word."""
        sized_at, put_at = self.names.var("w"), self.names.var("w")
        sized_word, word = self.names.var("word"), self.names.var("word")
        size = cast(Call("popcount", (Load(self.words, (sized_word,)),)), self.sizes.dtype)
        length, total = Load(self.count, (ZERO,)), scalar(self.names, "total")
        more = binary("+", Load(total, (ZERO,)), cast(Load(self.sizes, (sized_at,)), int64))
        note = seq(Store(self.sizes, (sized_at,), size), Store(total, (ZERO,), more))
        start = Store(into, (ZERO,), cast(Load(self.ranks, (put_at,)), int64))
        put_word = seq(start, self._emit_word(word, into, put))
        body = seq(
            Store(total, (ZERO,), ZERO),
            self._each_word(sized_word, note, sized_at),
            ranks(self.names, length, self._word_and_size, self.ranks, self.knobs.rank_lanes),
            self._each_word(word, put_word, put_at),
            Store(into, (ZERO,), Load(total, (ZERO,))),
        )
        return Alloc(total, body)

    def _word_and_size(self, place: Expr) -> tuple[Expr, Expr]:
        """Return the word at *place* of the list, and how many coordinates it holds."""
        return Load(self.listed, (place,)), Load(self.sizes, (place,))

    def _sweep(self, into: Buffer, put: Callable[[Var], Stmt]) -> Stmt:
        """As emit, in ascending order."""
        word, top = self.names.var("word"), self.names.var("top")
        low, high = (scalar(self.names, wish) for wish in ("low", "high"))

        def bound(of: Buffer, op: str) -> Stmt:
            return Store(of, (ZERO,), BinOp(op, Load(of, (ZERO,)), _word(word)))  # type: ignore[arg-type]

        note = seq(
            _or(self.tops, (_word(word),), _bit(word)), bound(low, "min"), bound(high, "max")
        )
        bits = Load(self.tops, (top,))
        step = seq(
            self._emit_word(binary("+", binary("<<", top, BITS), _lowest(bits)), into, put),
            Store(self.tops, (top,), _without_lowest(bits)),
        )
        end = binary("+", Load(high, (ZERO,)), 1)
        sweep = For(top, Load(low, (ZERO,)), end, While(_is_set(bits), step))
        start = seq(Store(low, (ZERO,), self.tops.shape[0]), Store(high, (ZERO,), const(-1)))
        return Alloc(low, Alloc(high, seq(start, self._each_word(word, note), sweep)))

    def _emit_word(self, place: Expr, into: Buffer, put: Callable[[Var], Stmt]) -> Stmt:
        word, coord = self.names.var("word"), self.names.var("coord")
        remaining = scalar(self.names, "left").replace(dtype=uint64)
        bits = Load(remaining, (ZERO,))
        step = seq(
            Let(coord, binary("+", binary("<<", word, BITS), _lowest(bits)), put(coord)),
            Store(into, (ZERO,), binary("+", Load(into, (ZERO,)), 1)),
            Store(remaining, (ZERO,), _without_lowest(bits)),
        )
        start = seq(
            Store(self.before, (word,), cast(Load(into, (ZERO,)), self.before.dtype)),
            Store(remaining, (ZERO,), Load(self.words, (word,))),
        )
        return Let(word, place, Alloc(remaining, seq(start, While(_is_set(bits), step))))

    def clear(self) -> Stmt:
        """Return the statement that clears all marks."""
        word = self.names.var("word")
        return self._each_word(word, Store(self.words, (word,), NONE))

    def _each_word(self, word: Var, body: Stmt, at: Var | None = None) -> Stmt:
        """Return the loop over the words that hold marks, *at* their places in the list."""
        at = at or self.names.var("w")
        return For(
            at,
            ZERO,
            Load(self.count, (ZERO,)),
            Let(word, cast(Load(self.listed, (at,)), int64), body),
        )

    def position(self, coord: Var) -> Expr:
        """Return how many marked coordinates, which have been emitted, precede *coord*."""
        return _rank(self.words, self.before, coord)

    def holds(self, coord: Var) -> Expr:
        """Return whether *coord*, within the axis, is marked."""
        return _is_marked(self.words, coord)

    def key(self, index: Expr) -> Var | None:
        """Return the coordinate if *index* is its position or a copy of that, else None."""
        if any(isinstance(node, Load) and node.buffer is self.before for node in walk(index)):
            (coord,) = variables_in(index)
            return coord
        return None

    def is_test(self, node: Node) -> bool:
        """Whether *node* tests for a mark: the result of holds, or a copy of it."""
        if not isinstance(node, BinOp) or node.op != "!=" or not isinstance(node.lhs, BinOp):
            return False
        return isinstance(node.lhs.lhs, Load) and node.lhs.lhs.buffer is self.words


@dataclass(frozen=True, slots=True)
class Ranks:
    """The positions of the coordinates of a fiber that is stored in ascending order.

    A bit for each coordinate; *before* has how many of the fiber precede those of a word, None if
    positions are not needed. *before* may hold anything between two uses.
    """

    names: Names
    words: Buffer
    before: Buffer | None

    @staticmethod
    def of(wish: str, length: Expr, dtype: DType, names: Names, *, ranked: bool) -> Ranks:
        """Return the marks for coordinates below *length*, *dtype* holds their positions."""
        size = (_pieces(length, BITS),)
        words = Buffer(names.unique(f"{wish}_words"), None, size, uint64, WORKSPACE)
        before = Buffer(names.unique(f"{wish}_before"), None, size, dtype, WORKSPACE)
        return Ranks(names, words, before if ranked else None)

    def around(self, stmt: Stmt, end: Expr, coord: Callable[[Expr], Expr]) -> Stmt:
        """Return *stmt* between marking ``coord(0..end-1)`` and clearing these marks."""
        at, word, clear = (self.names.var(wish) for wish in ("mark", "word", "clear"))
        coordinate = self.names.var("at")
        bits = Load(self.words, (word,))
        mark: Stmt = Store(self.words, (word,), binary("|", bits, _bit(coordinate)))
        if self.before is not None:
            so_far = Load(self.before, (word,))
            rank = Select(BinOp("==", bits, NONE), cast(at, so_far.dtype), so_far)
            mark = seq(Store(self.before, (word,), rank), mark)
        mark = Let(coordinate, coord(at), Let(word, _word(coordinate), mark))
        cleared = Store(self.words, (_word(coord(clear)),), NONE)
        body = seq(For(at, ZERO, end, mark), stmt, For(clear, ZERO, end, cleared))
        for buffer in (self.before, self.words):
            body = body if buffer is None else Alloc(buffer, body)
        return body

    def holds(self, coord: Var) -> Expr:
        """Return whether *coord* is in the fiber."""
        return _is_marked(self.words, coord)

    def position(self, coord: Var) -> Expr:
        """Return the position in the fiber of *coord*, which is in it."""
        assert self.before is not None
        return _rank(self.words, self.before, coord)


def ranks(
    names: Names,
    count: Expr,
    listed: Callable[[Expr], tuple[Expr, Expr]],
    into: Buffer,
    width: int,
) -> Stmt:
    """Return the statement that sets each of *count* elements of *into* to a sum of sizes.

    That is the sum over all items with lesser keys; *listed* gives key and size of an item. Up to
    *width* items behind the last, which is how many are compared at once, may hold anything.
    """
    first, block = (names.var(wish) for wish in ("first", "block"))
    word, size = (names.var(wish, into.dtype) for wish in ("word", "size"))
    rank = Buffer(names.unique("rank"), None, (const(width),), into.dtype, "local")
    zero = const(0, into.dtype)

    def position(lane: Var) -> Expr:
        return binary("+", binary("*", block, width), lane)

    def add(lane: Var) -> Stmt:
        more = Select(BinOp("<", word, listed(position(lane))[0]), size, zero)
        return Store(rank, (lane,), binary("+", Load(rank, (lane,)), more))

    add_all = Let(
        word, listed(first)[0], Let(size, listed(first)[1], lanes(names, const(width), add))
    )
    body = seq(
        lanes(names, const(width), lambda lane: Store(rank, (lane,), zero)),
        For(first, ZERO, count, add_all),
        lanes(
            names, const(width), lambda lane: Store(into, (position(lane),), Load(rank, (lane,)))
        ),
    )
    blocks = binary(">>", binary("+", count, width - 1), width.bit_length() - 1)
    return For(block, ZERO, blocks, Alloc(rank, body))


def lanes(names: Names, count: Expr, body: Callable[[Var], Stmt]) -> Stmt:
    """Return the loop of *body* over *count* independent lanes."""
    lane = names.var("lane")
    return For(lane, ZERO, count, body(lane))


def scalar(names: Names, wish: str) -> Buffer:
    """Return a local int64 named after *wish*."""
    return Buffer(names.unique(wish), None, (const(1),), int64, "local")


def _pieces(length: Expr, by: int) -> Expr:
    """Return how many pieces of ``2**by`` cover *length*."""
    return binary(">>", cast(length, int64) + ((1 << by) - 1), by)


def _bit(place: Expr) -> Expr:
    """A word with the bit of *place* set."""
    return binary("<<", const(1, uint64), cast(binary("&", place, 63), uint64))


def _word(place: Expr) -> Expr:
    return binary(">>", place, BITS)


def _lowest(word: Expr) -> Expr:
    """The number of the lowest bit that is set in *word*, which is not 0."""
    below = binary("&", binary("-", word, const(1, uint64)), UnOp("~", word))
    return cast(Call("popcount", (below,)), int64)


def _without_lowest(word: Expr) -> Expr:
    return binary("&", word, binary("-", word, const(1, uint64)))


def _is_set(word: Expr) -> Expr:
    return BinOp("!=", word, NONE)


def _is_marked(words: Buffer, coord: Var) -> Expr:
    return _is_set(binary("&", Load(words, (_word(coord),)), _bit(coord)))


def _rank(words: Buffer, before: Buffer, coord: Var) -> Expr:
    """Return how many coordinates are marked before *coord*; *before* has it for each word."""
    below = binary("&", Load(words, (_word(coord),)), binary("-", _bit(coord), const(1, uint64)))
    in_front = cast(Load(before, (_word(coord),)), int64)
    return binary("+", in_front, cast(Call("popcount", (below,)), int64))


def _or(words: Buffer, at: tuple[Expr, ...], bit: Expr) -> Stmt:
    return Store(words, at, binary("|", Load(words, at), bit))
