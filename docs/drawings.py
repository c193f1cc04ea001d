"""The pictures of the pages on stages and schedules, drawn from the programs that they show."""

from __future__ import annotations

import difflib
import re
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sps

from spcomp.display.picture import PARTS, box, drawing, label, line
from spcomp.ir.position import Block
from spcomp.ir.printer.expr import print_expr
from spcomp.ir.stmt import Alloc, For
from spcomp.ir.visitor import children
from spcomp.schedule.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from spcomp.ir.node import Node

CELL, MARGIN, GAP, TOP, BAR = 34, 16, 40, 40, 30  # pixels
CHANGED = "#dc2626"
CAST = re.compile(r'T\.(?:cast|int64)\(([^,)]+)(?:, "int64")?\)')
PALE, MARK, PLAIN, GREEN = "#dbeafe", "#fcd34d", "#e2e8f0", "#bbf7d0"  # behind dark text
KINDS = {"serial": PLAIN, "parallel": "#bfdbfe", "vectorized": GREEN, "unroll": "#fde68a"}
MATRIX = sps.csr_array(
    np.array([[5, 0, 0, 2, 0, 0], [0, 0, 3, 0, 0, 0], [0, 4, 0, 0, 6, 1], [0, 0, 0, 7, 0, 0]])
)
ROW, AT = 2, 1  # the element that the pictures follow: the second that row 2 stores


def stages() -> dict[str, str]:
    """Return the pictures of one element of a matrix at the three stages, by path."""
    found = {"coordinate": _coordinates(), "position": _positions(), "flat": _offsets()}
    return {f"pictures/stage_{name}.svg": text for name, text in found.items()}


def _cell(x: float, y: float, text: object, fill: str) -> str:
    return box(x, y, CELL - 2, CELL - 2, fill) + (
        label(x + CELL / 2 - 1, y + CELL / 2 + 3, str(text), "on") if text != "" else ""
    )


def _fill(row: int, at: int) -> str:
    return MARK if (row, at) == (ROW, AT) else PALE


def _row(row: int) -> tuple[Sequence[int], Sequence[int]]:
    """Return the columns and the values that a row of the matrix stores."""
    piece = slice(*MATRIX.indptr[row : row + 2])
    return MATRIX.indices[piece], MATRIX.data[piece]


def _coordinates() -> str:
    """Draw the matrix as a grid: an element has a row and a column."""
    rows, cols = MATRIX.shape
    left, top = MARGIN + 70, MARGIN + 24
    shapes = [label(left + j * CELL + 12, top - 8, str(j)) for j in range(cols)]
    for i in range(rows):
        shapes.append(label(MARGIN, top + i * CELL + 20, f"row i = {i}"))
        stored = {int(j): (at, v) for at, (j, v) in enumerate(zip(*_row(i), strict=True))}
        for j in range(cols):
            at, value = stored.get(j, (-1, ""))
            fill = _fill(i, at) if j in stored else ""
            shapes.append(_cell(left + j * CELL, top + i * CELL, value, fill))
    column, value = (of[AT] for of in _row(ROW))
    x = left + cols * CELL + GAP
    shapes.append(label(x, top + ROW * CELL + 20, f"A[{ROW}, {column}] = {value}", "name"))
    title = f"The element in row {ROW} and column {column} of a matrix: A[{ROW}, {column}]"
    return drawing(title, x + 130, top + rows * CELL + MARGIN, shapes).svg


def _positions() -> str:
    """Draw what each row stores, with the columns below: an element has a place in its row."""
    rows = MATRIX.shape[0]
    height = 2 * CELL + 12
    left = MARGIN + 70
    shapes = []
    for i in range(rows):
        y = MARGIN + i * height
        shapes.append(label(MARGIN, y + 20, f"row i = {i}"))
        for at, (column, value) in enumerate(zip(*_row(i), strict=True)):
            shapes += [
                _cell(left + at * CELL, y, value, _fill(i, at)),
                _cell(left + at * CELL, y + CELL, column, MARK if _fill(i, at) == MARK else PLAIN),
            ]
    column, value = (of[AT] for of in _row(ROW))
    x, y = left + 3 * CELL + GAP, MARGIN + ROW * height
    shapes += [
        label(x, y + 20, f"A[{ROW}, {AT}] = {value}: place {AT} in row {ROW}", "name"),
        label(x, y + CELL + 20, f"J_indices[{ROW}, {AT}] = {column}: its column", "name"),
    ]
    title = f"The same element is A[{ROW}, {AT}]: place {AT} of what row {ROW} stores"
    return drawing(title, x + 230, MARGIN + rows * height, shapes).svg


def _offsets() -> str:
    """Draw the three arrays: an element has an offset."""
    begin = int(MATRIX.indptr[ROW])
    arrays = (
        ("J_indptr", MATRIX.indptr, ROW),
        ("J_indices", MATRIX.indices, begin + AT),
        ("A", MATRIX.data, begin + AT),
    )
    left = MARGIN + 80
    shapes = [label(left + at * CELL + 12, MARGIN + 8, str(at)) for at in range(MATRIX.nnz)]
    for number, (name, values, marked) in enumerate(arrays):
        y = MARGIN + 18 + number * (CELL + 10)
        shapes.append(label(MARGIN, y + 20, name))
        for at, value in enumerate(values):
            fill = MARK if at == marked else (PALE if name == "A" else PLAIN)
            shapes.append(_cell(left + at * CELL, y, value, fill))
    x, y = left + MATRIX.nnz * CELL + 20, MARGIN + 18
    value = MATRIX.data[begin + AT]
    shapes += [
        label(x, y + 20, f"row {ROW} begins at {begin}", "name"),
        label(
            x,
            y + 2 * (CELL + 10) + 20,
            f"A[J_indptr[{ROW}] + {AT}] = A[{begin + AT}] = {value}",
            "name",
        ),
    ]
    title = f"The same element is A[{begin + AT}]: offset {AT} from where row {ROW} begins"
    return drawing(title, x + 220, y + 3 * (CELL + 10) + 6, shapes).svg


A_HAS, B_HAS = {1, 3, 4, 8}, {0, 3, 7, 8}  # the coordinates of the two fibers of a merge


def merge() -> str:
    """Draw two fibers above each other, and the case of each coordinate."""
    left, count = MARGIN + 60, 10
    shapes = [label(left + c * CELL + 12, MARGIN + 8, str(c)) for c in range(count)]
    lines = (("A", A_HAS, PARTS[0]), ("B", B_HAS, PARTS[1]))
    for number, (name, has, _) in enumerate(lines):
        y = MARGIN + 18 + number * CELL
        shapes.append(label(MARGIN, y + 20, name, "name"))
        shapes += [
            _cell(left + c * CELL, y, name.lower() if c in has else "", PALE if c in has else "")
            for c in range(count)
        ]
    y = MARGIN + 18 + 2 * CELL + 10
    for row, (name, has) in enumerate((("A + B", A_HAS | B_HAS), ("A * B", A_HAS & B_HAS))):
        top = y + row * CELL
        shapes.append(label(MARGIN, top + 20, name, "name"))
        for c in sorted(has):
            case = "ab" if c in A_HAS & B_HAS else "a" if c in A_HAS else "b"
            fill = MARK if case == "ab" else PLAIN
            shapes.append(_cell(left + c * CELL, top, case, fill))
    x = left + count * CELL + GAP
    return drawing(
        "Two fibers, their sum and their product",
        x + 230,
        y + 2 * CELL + MARGIN,
        [*shapes, *_lattice(x, MARGIN + 20)],
    ).svg


def _lattice(x: float, y: float) -> list[str]:
    """Draw the lattice of a sum: what is left to do when a fiber ends."""
    places = {
        "A and B": (x + 60, y),
        "only A": (x, y + 60),
        "only B": (x + 120, y + 60),
        "done": (x + 60, y + 120),
    }
    shapes = [
        line(places[a][0] + 40, places[a][1] + 28, places[b][0] + 40, places[b][1])
        for a, b in (
            ("A and B", "only A"),
            ("A and B", "only B"),
            ("only A", "done"),
            ("only B", "done"),
        )
    ]
    for name, (left, top) in places.items():
        fill = MARK if name == "A and B" else PLAIN
        shapes += [box(left, top, 80, 28, fill), label(left + 40, top + 18, name, "on")]
    shapes += [label(x + 6, y + 40, "B ends"), label(x + 152, y + 40, "A ends")]
    return shapes


def assembly() -> str:
    """Draw how a sparse result of unknown size is made: counted, added up, filled."""
    counts = [2, 1, 0, 3]
    ends = np.cumsum([0, *counts])
    left = MARGIN + 130
    lines = (("1. count each row", counts, PLAIN), ("2. add up: indptr", ends, PALE))
    shapes = []
    for number, (name, values, fill) in enumerate(lines):
        y = MARGIN + number * (CELL + 12)
        shapes.append(label(MARGIN, y + 20, name))
        shapes += [_cell(left + at * CELL, y, v, fill) for at, v in enumerate(values)]
    y = MARGIN + 2 * (CELL + 12)
    shapes.append(label(MARGIN, y + 20, "3. fill, at once"))
    for row, (begin, end) in enumerate(pairwise(ends)):
        shapes += [
            _cell(left + at * CELL, y, f"r{row}", (PALE, MARK, PLAIN, GREEN)[row])
            for at in range(begin, end)
        ]
    return drawing(
        "A sparse result: counted, added up, filled", left + 6 * CELL + MARGIN, y + CELL + 6, shapes
    ).svg


def shared() -> str:
    """Draw rows of different length, cut into chunks of equal numbers of elements."""
    lengths = [9, 2, 1, 4, 1, 1, 3, 3]
    size, tall = 20, 22
    left, done, shapes = MARGIN + 60, 0, []
    for row, length in enumerate(lengths):
        y = MARGIN + row * tall
        shapes.append(label(MARGIN, y + 14, f"row {row}"))
        shapes += [
            box(left + at * size, y, size - 2, tall - 4, PARTS[(done + at) // 8])
            for at in range(length)
        ]
        done += length
    x = left + max(lengths) * size + GAP
    for chunk in range(3):
        y = MARGIN + chunk * 28
        shapes += [
            box(x, y, 18, 18, PARTS[chunk]),
            label(x + 28, y + 14, f"chunk {chunk}: 8 elements"),
        ]
    return drawing(
        "Rows cut into chunks of 8 elements, one for each thread in turn",
        x + 180,
        MARGIN + len(lengths) * tall + 6,
        shapes,
    ).svg


Nest = tuple[str, str, tuple["Nest", ...]]  # a line of text, its colour, what is inside
Line = tuple[str, str, int]  # a line of text, its colour, how deep it lies


def steps(sch: Schedule) -> dict[str, str]:
    """Return a picture for each step of *sch* behind its first, by path."""
    found: dict[str, str] = {}
    after = Schedule(sch.source).lower_sparse_iter()
    for step in sch.trace.of(sch.func.name):
        before, after = after, after.apply(step)
        found[f"pictures/step_{len(found) + 1}_{step.name}.svg"] = beside(str(step), before, after)
    return found


def beside(name: str, before: Schedule, after: Schedule) -> str:
    """Draw the loops of a program before and after a step, with a frame around what differs."""
    old, new = (list(_flat(_nests(sch.func.body), 0)) for sch in (before, after))
    texts = [[text for text, *_ in lines] for lines in (old, new)]
    same = difflib.SequenceMatcher(None, *texts, autojunk=False).get_matching_blocks()
    left, width = _bars(old, MARGIN, {m.a + at for m in same for at in range(m.size)})
    x = MARGIN + width + GAP
    right, more = _bars(new, x, {m.b + at for m in same for at in range(m.size)})
    heads = [label(MARGIN, TOP - 12, "before", "name"), label(x, TOP - 12, f"after {name}", "name")]
    wide, high = x + more + MARGIN, TOP + BAR * max(len(old), len(new)) + 8
    return drawing(f"The loops before and after {name}", wide, high, [*heads, *left, *right]).svg


def _nests(node: Node) -> Iterator[Nest]:
    """Yield the loops, copies and innermost blocks in *node*, with what is inside of each."""
    inside = tuple(nest for child in children(node) for nest in _nests(child))
    if isinstance(node, For):
        kind = node.kind if node.kind in KINDS else "serial"
        text = f"for {node.var.name} in {_count(node)}" + ("" if kind == "serial" else f": {kind}")
        yield text, KINDS[kind], inside
    elif isinstance(node, Alloc):
        yield f"{node.buffer.name} in registers", "#f5d0fe", ()
        yield from inside
    elif isinstance(node, Block) and not inside:
        yield f"block {node.name}", MARK, ()
    else:
        yield from inside


def _count(loop: For) -> str:
    """Return how often *loop* runs, in words where it is the length of a row."""
    text = print_expr(loop.end)
    return "the elements of row i" if "indptr" in text else CAST.sub(r"\1", text)


def _flat(nests: Iterable[Nest], depth: int) -> Iterator[Line]:
    """Yield the lines of *nests*, with how deep each lies."""
    for text, fill, inside in nests:
        yield text, fill, depth
        yield from _flat(inside, depth + 1)


def _bars(lines: Sequence[Line], x: float, kept: set[int]) -> tuple[list[str], float]:
    """Return *lines* as bars, those not in *kept* with a frame, and how wide they are."""
    width = max(depth * 22 + 7.4 * len(text) + 20 for text, _, depth in lines)
    shapes = []
    for at, (text, fill, depth) in enumerate(lines):
        left, top, long = x + depth * 22, TOP + BAR * at, width - depth * 22
        shapes.append(box(left, top, long, BAR - 4, fill))
        if at not in kept:
            corners = (left, top), (left + long, top), (left + long, top + 26), (left, top + 26)
            shapes += [line(*a, *b, CHANGED) for a, b in pairwise((*corners, corners[0]))]
        shapes.append(label(left + long / 2, top + 17, text, "on" if fill else ""))
    return shapes, width
