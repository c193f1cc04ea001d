"""Fast part of reading: checks in one pass that every byte of a body fits its columns.

The grammar of a line is a table, ``state, byte -> state``; a compiled program of ours walks the
blocks of a file through it, several stretches of lines at a time. The table accepts numbers as most
programs write them, which every reader understands in the same way. That is less than what is
legal: a file that it does not accept is read line by line.
"""

# ruff: noqa: N806, N812
# mypy: disable-error-code="valid-type, operator"
from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from spcomp.arrays import Array
from spcomp.io.source import BLOCK, LONGEST

if TYPE_CHECKING:
    from collections.abc import Callable

    from spcomp.compiler.programs import Program
    from spcomp.io.source import Source

Column: TypeAlias = Literal["index", "integer", "real"]
BYTES = {"digit": b"0123456789", "sign": b"-", "plus": b"+", "dot": b".", "e": b"eE",
         "blank": b" \t", "cr": b"\r", "end": b"\n"}  # fmt: skip
WRONG, START = 0, 256  # the states of a wrong line, and of the beginning of a line
WORD: dict[Column, dict[str, dict[str, str]]] = {
    "index": {"before": {"digit": "digits"}, "digits": {"digit": "digits"}},
    "integer": {
        "before": {"digit": "digits", "sign": "signed"},
        "signed": {"digit": "digits"},
        "digits": {"digit": "digits"},
    },
    "real": {
        "before": {"digit": "digits", "sign": "signed", "dot": "pointed"},
        "signed": {"digit": "digits", "dot": "pointed"},
        "pointed": {"digit": "decimals"},
        "digits": {"digit": "digits", "dot": "decimals", "e": "scaled"},
        "decimals": {"digit": "decimals", "e": "scaled"},
        "scaled": {"digit": "exponent", "sign": "lifted", "plus": "lifted"},
        "lifted": {"digit": "exponent"},
        "exponent": {"digit": "exponent"},
    },
}  # for each kind of column, the next states in a word; it may end in the states of WHOLE
WHOLE = {"digits", "decimals", "exponent"}

PARTS, WAYS = 16, 4  # parts of a block, in parallel; stretches of lines of a part, interleaved


@functools.cache
def table(columns: tuple[Column, ...], *, empty: bool) -> Array:
    """Return the next state by state and byte, for lines of *columns* and, if *empty*, blank ones.

    The number of a state is the place in the flat table where its row of 256 begins.
    """
    moves: dict[tuple[int, str], dict[str, tuple[int, str]]] = {}
    last, start, finish = len(columns) - 1, (0, "before"), (len(columns), "done")
    for at, column in enumerate(columns):
        for state, letters in WORD[column].items():
            row_moves = moves[at, state] = {kind: (at, to) for kind, to in letters.items()}
            if state == "before":
                row_moves["blank"] = (at, state)
            elif state in WHOLE:
                row_moves["blank"] = finish if at == last else (at + 1, "before")
                if at == last:
                    row_moves |= {"end": start, "cr": (at, "cr")}
    moves[finish] = {"blank": finish, "end": start, "cr": (last, "cr")}
    moves[last, "cr"] = {"end": start}
    if empty:
        moves[start] |= {"end": start, "cr": (last, "cr")}
    states = [start, *(state for state in moves if state != start)]
    cells = np.full((len(states) + 1, 256), WRONG, np.uint16)
    for row, place in enumerate(states, 1):
        for kind, target in moves[place].items():
            cells[row, list(BYTES[kind])] = START * (1 + states.index(target))
    return cells.reshape(-1)


@functools.cache
def _walker() -> Program:
    """Return the program that walks each stretch of a text through a table, to its last state.

    A step has to wait for the one before, so each thread walks several stretches at a time.
    """
    from spcomp import script as T
    from spcomp.compiler.programs import Program

    @T.prim_func
    def walk(
        text: T.handle, begins: T.handle, table: T.handle, states: T.handle, size: T.int64,
        parts: T.int64, cells: T.int64,
    ) -> None:  # fmt: skip
        Text = T.match_buffer(text, (size,), "uint8")
        Begins = T.match_buffer(begins, (parts * WAYS + 1,), "int64")
        Table = T.match_buffer(table, (cells,), "uint16")
        Ends = T.match_buffer(states, (parts * WAYS,), "int64")
        for c in T.parallel(parts):
            States = T.alloc_buffer((WAYS,), "int64", scope="local")
            Firsts = T.alloc_buffer((WAYS,), "int64", scope="local")
            Shortest = T.alloc_buffer((1,), "int64", scope="local")
            Shortest[0] = size
            for w in T.unroll(WAYS):
                States[w] = START
                Firsts[w] = Begins[c * WAYS + w]
                Shortest[0] = T.min(Shortest[0], Begins[c * WAYS + w + 1] - Firsts[w])
            for p in T.serial(Shortest[0]):
                for w in T.unroll(WAYS):
                    byte = T.cast(Text[Firsts[w] + p], "int64")
                    States[w] = T.cast(Table[States[w] + byte], "int64")
            for w in T.unroll(WAYS):
                for q in T.serial(Firsts[w] + Shortest[0], Begins[c * WAYS + w + 1]):
                    States[w] = T.cast(Table[States[w] + T.cast(Text[q], "int64")], "int64")
                Ends[c * WAYS + w] = States[w]

    return Program.of(walk)


def conforms(
    source: Source,
    offset: int,
    columns: tuple[Column, ...],
    *,
    empty: bool = True,
    most: int = sys.maxsize,
    sink: Callable[[bytes], object] | None = None,
) -> bool:
    """Whether the file, from the byte *offset* on, consists of lines of *columns*.

    A file with more than *most* bytes of them is not accepted. *sink* gets the bytes that were
    accepted, a few lines at a time; if the file conforms, all of them.
    """
    rules = table(columns, empty=empty)
    block = bytearray(BLOCK + LONGEST)
    view, tail = memoryview(block), 0
    with source.opened() as file:
        file.seek(offset)
        while got := file.readinto(view[tail:]):  # type: ignore[attr-defined]
            end = tail + got
            cut = block.rfind(b"\n", 0, end) + 1
            most -= got
            if most < 0 or end - cut >= LONGEST or not _accepts(view[:cut], rules):
                return False
            if sink:
                sink(bytes(view[:cut]))
            tail = end - cut
            view[:tail] = view[cut:end]
            source.report(file.tell())
    last = bytes(view[:tail])
    if last.endswith((b" ", b"\t", b"\r")):
        return False  # scipy looks for the line end after the end of the file, and crashes
    last += b"\n" * bool(last)
    if not _accepts(memoryview(last), rules):
        return False
    if sink:
        sink(last)
    return True


def _accepts(lines: memoryview, rules: Array) -> bool:
    """Whether whole *lines* are in the grammar."""
    if not lines:
        return True
    text, count = np.frombuffer(lines, np.uint8), PARTS * WAYS
    begins = np.arange(count + 1) * len(text) // count
    for way in range(1, count):
        begins[way] = max(begins[way - 1], _line_end(lines, int(begins[way])))
    states = np.empty(count, np.int64)
    _walker()(text, begins, rules, states, len(text), PARTS, len(rules))
    return bool((states == START).all())


def _line_end(lines: memoryview, at: int) -> int:
    """Return the byte after the line that contains byte *at*."""
    return at + bytes(lines[at : at + LONGEST]).find(b"\n") + 1
