"""For the explorer: the text that a program was written in, as rows that other stages link to."""

from __future__ import annotations

import linecache
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spcomp.errors import Span

_HEAD = re.compile(r"\s*(@|def\b|class\b)")
AROUND = 400  # lines of a file that are shown before and behind those that are linked to


@dataclass(frozen=True, slots=True)
class Source:
    """Rows of text: lines of a script, or of index notation the terms, which share a line.

    *rows* are (label, text); *starts* has, by file and line, where in the line its rows begin and
    the number of each.
    """

    rows: tuple[tuple[str, str], ...]
    starts: dict[tuple[str, int], tuple[tuple[int, int], ...]]

    @classmethod
    def of(cls, spans: Iterable[Span]) -> Source:
        """Return the text around *spans*, file by file in the order of their appearance."""
        rows: list[tuple[str, str]] = []
        starts: dict[tuple[str, int], tuple[tuple[int, int], ...]] = {}
        files: dict[str, set[tuple[int, int]]] = {}
        for span in spans:
            files.setdefault(span.file, set()).add((span.line, span.col))
        for file, places in files.items():
            for number, pieces in _pieces(linecache.getlines(file), places):
                label = str(number) if len(files) == 1 else f"{_short(file)}:{number}"
                begin = len(rows)
                rows += [(label if k == 0 else "", text) for k, (_, text) in enumerate(pieces)]
                columns = (column for column, _ in pieces)
                starts[file, number] = tuple((col, begin + k) for k, col in enumerate(columns))
        return cls(tuple(rows), starts)

    def numbers(self, spans: Iterable[Span]) -> tuple[int, ...]:
        """Return the numbers of the rows that *spans* lie in, each once."""
        found: dict[int, None] = {}
        for span in spans:
            starts = self.starts.get((span.file, span.line), ())
            if before := [number for column, number in starts if column <= span.col]:
                found[before[-1]] = None
        return tuple(found)


def _pieces(
    lines: list[str], places: set[tuple[int, int]]
) -> Iterator[tuple[int, list[tuple[int, str]]]]:
    """Yield the number of each line to show, with its pieces: where each begins, and its text."""
    if not lines:
        return
    terms = not any(_HEAD.match(line) for line in lines)  # index notation has no function
    numbers = sorted({line for line, _ in places})
    first, last = numbers[0], numbers[-1]
    while first > 1 and (lines[first - 2].startswith("@") or _indented(lines, first)):
        first -= 1
    while last < len(lines) and last - numbers[-1] < AROUND and _indented(lines, last + 1):
        last += 1
    for number in range(first, min(last, len(lines)) + 1):
        text = lines[number - 1].rstrip("\n")
        cuts = sorted({0, *(col for line, col in places if terms and line == number)})
        yield number, [(a, text[a:b]) for a, b in zip(cuts, [*cuts[1:], len(text)], strict=True)]


def _indented(lines: list[str], number: int) -> bool:
    """Whether the line *number* stands inside of something."""
    return (
        1 <= number <= len(lines)
        and lines[number - 1][:1].isspace()
        and bool(lines[number - 1].strip())
    )


def _short(file: str) -> str:
    return file.replace("\\", "/").rpartition("/")[2]
