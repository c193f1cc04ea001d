"""Fast part of reading: whether every byte of a body is as its columns say, in one pass.

The grammar of a line is a table, ``state, byte -> state``; a program of ours, compiled once, walks
the blocks of a file through it, several stretches of lines at a time. What the table accepts is
written as most programs write it, and no reader understands it in two ways. It is narrower than
what is legal: what it does not accept, the careful reading decides.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from spcomp.io.source import BLOCK, LONGEST

if TYPE_CHECKING:
    from collections.abc import Callable

    from spcomp.compiler.kernel import Kernel
    from spcomp.io.source import Source

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Column: TypeAlias = Literal["index", "integer", "real"]
BYTES = {"digit": b"0123456789", "sign": b"-", "plus": b"+", "dot": b".", "e": b"eE",
         "blank": b" \t", "cr": b"\r", "end": b"\n"}  # fmt: skip
WRONG, START = 0, 256  # the states of a line that is wrong, and of one that has nothing yet
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
}  # per kind of column, what follows in a word; it may end in the states of WHOLE
WHOLE = {"digits", "decimals", "exponent"}

PARTS, WAYS = 16, 4  # of a block, in parallel; of a part, stretches of lines side by side
WALK = """\
@T.prim_func
def walk(text: T.handle, begins: T.handle, table: T.handle, states: T.handle,
         size: T.int64, parts: T.int64, cells: T.int64) -> None:
    T.func_attr({{"sparse_tir_level": 0, "tir.noalias": True}})
    X = T.match_buffer(text, (size,), "uint8")
    B = T.match_buffer(begins, (parts * {ways} + 1,), "int64")
    N = T.match_buffer(table, (cells,), "uint16")
    E = T.match_buffer(states, (parts * {ways},), "int64")
    for c in T.parallel(parts):
{starts}
        for p in T.serial({shortest}):
{steps}
{ends}
"""
START_WAY = """\
        S{w} = T.alloc_buffer((1,), "int64", scope="local")
        S{w}[0] = {start}
        b{w} = B[c * {ways} + {w}]
        n{w} = B[c * {ways} + {w} + 1] - b{w}"""
STEP = "            S{w}[0] = T.cast(N[S{w}[0] + T.cast(X[b{w} + p], 'int64')], 'int64')"
END_WAY = """\
        for p in T.serial({shortest}, n{w}):
{step}
        E[c * {ways} + {w}] = S{w}[0]"""


@functools.cache
def table(columns: tuple[Column, ...], *, empty: bool) -> Array:
    """Return the next state by state and byte, for lines of *columns* and, if *empty*, of nothing.

    A state is where its row of 256 begins in the flat table.
    """
    moves: dict[tuple[int, str], dict[str, tuple[int, str]]] = {}
    last, start, done = len(columns) - 1, (0, "before"), (len(columns), "done")
    for at, column in enumerate(columns):
        for state, letters in WORD[column].items():
            found = moves[at, state] = {kind: (at, to) for kind, to in letters.items()}
            if state == "before":
                found["blank"] = (at, state)
            elif state in WHOLE:
                found["blank"] = done if at == last else (at + 1, "before")
                if at == last:
                    found |= {"end": start, "cr": (at, "cr")}
    moves[done] = {"blank": done, "end": start, "cr": (last, "cr")}
    moves[last, "cr"] = {"end": start}
    if empty:
        moves[start] |= {"end": start, "cr": (last, "cr")}
    states = [start, *(state for state in moves if state != start)]
    made = np.full((len(states) + 1, 256), WRONG, np.uint16)
    for row, place in enumerate(states, 1):
        for kind, target in moves[place].items():
            made[row, list(BYTES[kind])] = START * (1 + states.index(target))
    return made.reshape(-1)


@functools.cache
def _walker() -> Kernel:
    """The program that walks each stretch of a text through a table, to its last state.

    A step waits for the one before, so each thread walks several stretches at a time.
    """
    from spcomp.compiler.compile import compile  # noqa: A004
    from spcomp.script.parse import parse_source

    shortest = functools.reduce("T.min({}, {})".format, (f"n{w}" for w in range(WAYS)))
    text = WALK.format(
        ways=WAYS,
        shortest=shortest,
        starts=_each(START_WAY),
        steps=_each(STEP),
        ends=_each(END_WAY.format(step=STEP, shortest=shortest, ways=WAYS, w="{w}")),
    )
    (program,) = parse_source(text, "<grammar>")
    return compile(program, check="off")


def _each(text: str) -> str:
    """One *text* per way."""
    return "\n".join(text.format(w=way, ways=WAYS, start=START) for way in range(WAYS))


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

    More than *most* bytes of them are not looked at.

    *sink* gets the bytes that have been found good, a few lines at a time, all of them if so.
    """
    rules = table(columns, empty=empty)
    block = bytearray(BLOCK + LONGEST)
    view, kept = memoryview(block), 0
    with source.opened() as file:
        file.seek(offset)
        while got := file.readinto(view[kept:]):  # type: ignore[attr-defined]
            end = kept + got
            cut = block.rfind(b"\n", 0, end) + 1
            most -= got
            if most < 0 or end - cut >= LONGEST or not _good(view[:cut], rules):
                return False
            if sink:
                sink(bytes(view[:cut]))
            kept = end - cut
            view[:kept] = view[cut:end]
            source.report(file.tell())
    last = bytes(view[:kept])
    if last.endswith((b" ", b"\t", b"\r")):
        return False  # scipy looks for the end of the line behind the end of the file, and crashes
    last += b"\n" * bool(last)
    if not _good(memoryview(last), rules):
        return False
    if sink:
        sink(last)
    return True


def _good(lines: memoryview, rules: Array) -> bool:
    """Whether whole *lines* are in the grammar."""
    if not lines:
        return True
    text, count = np.frombuffer(lines, np.uint8), PARTS * WAYS
    begins = np.arange(count + 1) * len(text) // count
    for way in range(1, count):
        begins[way] = max(begins[way - 1], _behind(lines, int(begins[way])))
    states = np.empty(count, np.int64)
    _walker()(text=text, begins=begins, table=rules, states=states)
    return bool((states == START).all())


def _behind(lines: memoryview, at: int) -> int:
    """Where the line ends that byte *at* is in."""
    return at + bytes(lines[at : at + LONGEST]).find(b"\n") + 1
