"""I to II, workspaces: the coordinates of one fiber as bits, in order however they come.

A word of 64 bits stands for 64 coordinates. Those that a fiber meets are listed, so that it takes
time linear in what it holds, and n / 4096 to go through them in ascending order. The position of
a coordinate is then how many come before its word, and how many before it in the word.

A fiber leaves its workspaces so that the next can use them: it clears what it set of what must be
zero. ``share_workspace`` may then move them out of the loop over the fibers.
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

BITS = 6  # a word has 2**BITS
NONE = const(0, uint64)
FEW = 32  # words that are put in order by comparing each with each: no branch depends on the data
LANES = 8  # of them at once


@dataclass(frozen=True, slots=True)
class Marks:
    """Which coordinates of a fiber have been met, and where they stand among each other.

    *words*: the bits; *before*: how many coordinates come before those of a word, once they are
    written down; *met*: the words that hold any, *count* of them, as they came;
    *tops*: a bit for each word, while they are put in order; if they are few, *sizes* has how
    many coordinates each word of the list holds, *ranks* how many are in those before it.
    """

    names: Names
    words: Buffer
    before: Buffer
    met: Buffer
    count: Buffer
    tops: Buffer
    sizes: Buffer
    ranks: Buffer

    @staticmethod
    def of(axis: Axis, names: Names) -> Marks:
        """Return the marks for a fiber of *axis*."""
        size = _shifted(axis.length, BITS)

        def buffer(wish: str, *shape: Expr, dtype: DType = uint64) -> Buffer:
            return Buffer(names.unique(f"{axis.name}_{wish}"), None, shape, dtype, WORKSPACE)

        narrow = axis.idtype
        met = buffer("met", size + LANES, dtype=narrow)  # a write may miss, lanes may look further
        count = scalar(names, f"{axis.name}_many")
        tops = buffer("tops", _shifted(axis.length, 2 * BITS))
        sizes, ranks = (buffer(wish, const(FEW), dtype=narrow) for wish in ("sizes", "ranks"))
        words, before = buffer("words", size), buffer("before", size, dtype=narrow)
        return Marks(names, words, before, met, count, tops, sizes, ranks)

    def around(self, stmt: Stmt, *, ranked: bool, ordered: bool) -> Stmt:
        """Return *stmt* with the workspaces: it asks for positions, which may be in order."""
        stmt = Alloc(self.count, seq(Store(self.count, (ZERO,), ZERO), stmt))
        stmt = Alloc(self.words, Alloc(self.met, stmt))
        order = (self.tops, self.sizes, self.ranks) if ordered else ()
        order = (self.before, *order) if ranked else order
        return functools.reduce(lambda inner, buffer: Alloc(buffer, inner), order, stmt)

    def add(self, coord: Expr) -> Stmt:
        """Return the statement that marks *coord*, an int64 within the axis."""
        at, word = self.names.var("at"), self.names.var("word")
        bits = self.names.var("bits", uint64)
        known = Load(self.count, (ZERO,))
        fresh = Select(BinOp("==", bits, NONE), const(1), ZERO)
        body = seq(
            Store(self.words, (word,), binary("|", bits, _bit(at))),
            # past the end of the list, if it is known already
            Store(self.met, (known,), cast(word, self.met.dtype)),
            Store(self.count, (ZERO,), binary("+", known, fresh)),
        )
        body = Let(bits, Load(self.words, (word,)), body)
        return Let(at, coord, Let(word, _word(at), body))

    def count_and_clear(self, into: Buffer) -> Stmt:
        """Return what adds the number of marks to the element of *into*, and clears them."""
        word = self.names.var("word")
        marks = cast(Call("popcount", (Load(self.words, (word,)),)), int64)
        total = Store(into, (ZERO,), binary("+", Load(into, (ZERO,)), marks))
        return self._each(word, seq(total, Store(self.words, (word,), NONE)))

    def emit(self, into: Buffer, put: Callable[[Var], Stmt], *, ordered: bool) -> Stmt:
        """Return what runs *put* on every marked coordinate, *into* being its position.

        In the end that is how many there are. *ordered*: they come in ascending order.
        """
        if not ordered:
            word = self.names.var("word")
            return self._each(word, self._emit_word(word, into, put))
        few = BinOp("<=", Load(self.count, (ZERO,)), const(FEW))
        return If(few, self._emit_few(into, put), self._sweep(into, put))

    def _emit_few(self, into: Buffer, put: Callable[[Var], Stmt]) -> Stmt:
        """As emit, word by word as they came: each knows how many coordinates are before it."""
        noted, emitted = self.names.var("w"), self.names.var("w")
        counted, word = self.names.var("word"), self.names.var("word")
        size = cast(Call("popcount", (Load(self.words, (counted,)),)), self.sizes.dtype)
        total = scalar(self.names, "total")
        more = binary("+", Load(total, (ZERO,)), cast(Load(self.sizes, (noted,)), int64))
        note = seq(Store(self.sizes, (noted,), size), Store(total, (ZERO,), more))
        start = Store(into, (ZERO,), cast(Load(self.ranks, (emitted,)), int64))
        put_word = seq(start, self._emit_word(word, into, put))
        body = seq(
            Store(total, (ZERO,), ZERO),
            self._each(counted, note, noted),
            ranks(self.names, Load(self.count, (ZERO,)), self._sized, self.ranks),
            self._each(word, put_word, emitted),
            Store(into, (ZERO,), Load(total, (ZERO,))),
        )
        return Alloc(total, body)

    def _sized(self, place: Expr) -> tuple[Expr, Expr]:
        """The word at *place* of the list, and how many coordinates it holds."""
        return Load(self.met, (place,)), Load(self.sizes, (place,))

    def _sweep(self, into: Buffer, put: Callable[[Var], Stmt]) -> Stmt:
        """As emit, in ascending order."""
        word, top = self.names.var("word"), self.names.var("top")
        low, high = (scalar(self.names, wish) for wish in ("low", "high"))

        def bound(of: Buffer, op: str) -> Stmt:
            return Store(of, (ZERO,), BinOp(op, Load(of, (ZERO,)), _word(word)))  # type: ignore[arg-type]

        note = seq(
            _or(self.tops, (_word(word),), _bit(word)), bound(low, "min"), bound(high, "max")
        )
        here = Load(self.tops, (top,))
        step = seq(
            self._emit_word(binary("+", binary("<<", top, BITS), _lowest(here)), into, put),
            Store(self.tops, (top,), _without_lowest(here)),
        )
        end = binary("+", Load(high, (ZERO,)), 1)
        sweep = For(top, Load(low, (ZERO,)), end, While(_is_set(here), step))
        start = seq(Store(low, (ZERO,), self.tops.shape[0]), Store(high, (ZERO,), const(-1)))
        return Alloc(low, Alloc(high, seq(start, self._each(word, note), sweep)))

    def _emit_word(self, place: Expr, into: Buffer, put: Callable[[Var], Stmt]) -> Stmt:
        word, coord = self.names.var("word"), self.names.var("coord")
        left = scalar(self.names, "left").replace(dtype=uint64)
        bits = Load(left, (ZERO,))
        each = seq(
            Let(coord, binary("+", binary("<<", word, BITS), _lowest(bits)), put(coord)),
            Store(into, (ZERO,), binary("+", Load(into, (ZERO,)), 1)),
            Store(left, (ZERO,), _without_lowest(bits)),
        )
        start = seq(
            Store(self.before, (word,), cast(Load(into, (ZERO,)), self.before.dtype)),
            Store(left, (ZERO,), Load(self.words, (word,))),
        )
        return Let(word, place, Alloc(left, seq(start, While(_is_set(bits), each))))

    def clear(self) -> Stmt:
        """Return what clears all marks."""
        word = self.names.var("word")
        return self._each(word, Store(self.words, (word,), NONE))

    def _each(self, word: Var, body: Stmt, at: Var | None = None) -> Stmt:
        """Return the loop over the words that hold marks, *at* their places in the list."""
        at = at or self.names.var("w")
        return For(
            at, ZERO, Load(self.count, (ZERO,)), Let(word, cast(Load(self.met, (at,)), int64), body)
        )

    def position(self, coord: Var) -> Expr:
        """Return how many marked coordinates, which have been emitted, precede *coord*."""
        return _rank(self.words, self.before, coord)

    def holds(self, coord: Var) -> Expr:
        """Return whether *coord*, within the axis, is marked."""
        return _is_marked(self.words, coord)

    def key(self, index: Expr) -> Var | None:
        """Return the coordinate whose position *index* is, or None; of copies of it, too."""
        if any(isinstance(node, Load) and node.buffer is self.before for node in walk(index)):
            (coord,) = variables_in(index)
            return coord
        return None

    def is_asked(self, node: Node) -> bool:
        """Whether *node* is what holds returns, or a copy of it."""
        if not isinstance(node, BinOp) or node.op != "!=" or not isinstance(node.lhs, BinOp):
            return False
        return isinstance(node.lhs.lhs, Load) and node.lhs.lhs.buffer is self.words


@dataclass(frozen=True, slots=True)
class Ranks:
    """Where the coordinates of a fiber, which are known and ascend, stand in it.

    A bit for each coordinate; *before* has how many of the fiber precede those of a word, None if
    nobody asks. All but the bits may hold anything between two uses.
    """

    names: Names
    words: Buffer
    before: Buffer | None

    @staticmethod
    def of(wish: str, length: Expr, dtype: DType, names: Names, *, ranked: bool) -> Ranks:
        """Return the marks for coordinates below *length*, *dtype* holds their positions."""
        size = (_shifted(length, BITS),)
        words = Buffer(names.unique(f"{wish}_words"), None, size, uint64, WORKSPACE)
        before = Buffer(names.unique(f"{wish}_before"), None, size, dtype, WORKSPACE)
        return Ranks(names, words, before if ranked else None)

    def around(self, stmt: Stmt, end: Expr, coord: Callable[[Expr], Expr]) -> Stmt:
        """Return *stmt* between marking, and clearing, *coord* of 0 up to *end*."""
        at, known, clear = (self.names.var(wish) for wish in ("mark", "word", "clear"))
        here = self.names.var("at")
        bits = Load(self.words, (known,))
        mark: Stmt = Store(self.words, (known,), binary("|", bits, _bit(here)))
        if self.before is not None:
            so_far = Load(self.before, (known,))
            rank = Select(BinOp("==", bits, NONE), cast(at, so_far.dtype), so_far)
            mark = seq(Store(self.before, (known,), rank), mark)
        mark = Let(here, coord(at), Let(known, _word(here), mark))
        gone = Store(self.words, (_word(coord(clear)),), NONE)
        body = seq(For(at, ZERO, end, mark), stmt, For(clear, ZERO, end, gone))
        for buffer in (self.before, self.words):
            body = body if buffer is None else Alloc(buffer, body)
        return body

    def holds(self, coord: Var) -> Expr:
        """Return whether *coord* is in the fiber."""
        return _is_marked(self.words, coord)

    def position(self, coord: Var) -> Expr:
        """Return where *coord*, which is in the fiber, stands in it."""
        assert self.before is not None
        return _rank(self.words, self.before, coord)


def ranks(
    names: Names, many: Expr, listed: Callable[[Expr], tuple[Expr, Expr]], into: Buffer
) -> Stmt:
    """Return what writes into *into*, for each of *many*, the sizes of those with lesser keys.

    *listed* gives key and size of each; there may be LANES more that hold anything.
    """
    first, block = (names.var(wish) for wish in ("first", "block"))
    word, size = (names.var(wish, into.dtype) for wish in ("word", "size"))
    rank = Buffer(names.unique("rank"), None, (const(LANES),), into.dtype, "local")
    zero = const(0, into.dtype)

    def own(lane: Var) -> Expr:
        return binary("+", binary("*", block, LANES), lane)

    def add(lane: Var) -> Stmt:
        more = Select(BinOp("<", word, listed(own(lane))[0]), size, zero)
        return Store(rank, (lane,), binary("+", Load(rank, (lane,)), more))

    each = Let(word, listed(first)[0], Let(size, listed(first)[1], lanes(names, const(LANES), add)))
    body = seq(
        lanes(names, const(LANES), lambda lane: Store(rank, (lane,), zero)),
        For(first, ZERO, many, each),
        lanes(names, const(LANES), lambda lane: Store(into, (own(lane),), Load(rank, (lane,)))),
    )
    blocks = binary(">>", binary("+", many, LANES - 1), LANES.bit_length() - 1)
    return For(block, ZERO, blocks, Alloc(rank, body))


def lanes(names: Names, many: Expr, body: Callable[[Var], Stmt]) -> Stmt:
    """Return the loop over *many* lanes that do not depend on each other."""
    lane = names.var("lane")
    return For(lane, ZERO, many, body(lane))


def scalar(names: Names, wish: str) -> Buffer:
    """Return a local int64 named after *wish*."""
    return Buffer(names.unique(wish), None, (const(1),), int64, "local")


def _shifted(length: Expr, by: int) -> Expr:
    """How many pieces of ``2**by`` cover *length*."""
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
    """How many are marked before *coord*: *before* has it for each word."""
    below = binary("&", Load(words, (_word(coord),)), binary("-", _bit(coord), const(1, uint64)))
    in_front = cast(Load(before, (_word(coord),)), int64)
    return binary("+", in_front, cast(Call("popcount", (below,)), int64))


def _or(words: Buffer, at: tuple[Expr, ...], bit: Expr) -> Stmt:
    return Store(words, at, binary("|", Load(words, at), bit))
