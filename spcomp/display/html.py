"""Below the route: programs, tables and lists as HTML that notebooks show beside their own."""

from __future__ import annotations

import keyword
import sys
import tokenize
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Colours that can be read on light and on dark pages; names have the colour of the page's text.
KEYWORD = "#b45fc4"
COLOURS = {tokenize.NUMBER: "#2b8fb0", tokenize.STRING: "#3f9142", tokenize.COMMENT: "#7c8796"}
_PRE = "margin:0;line-height:1.35;overflow-x:auto;background:none"


def code(text: str) -> str:
    """Return *text*, Python, as a coloured listing."""
    lines, pieces, at = text.splitlines(keepends=True) or [""], list[str](), (1, 0)
    for token in tokenize.generate_tokens(iter(lines).__next__):
        if (colour := _colour(token)) is not None:
            before, own = _between(lines, at, token.start), _between(lines, token.start, token.end)
            pieces += [escape(before), f'<span style="color:{colour}">{escape(own)}</span>']
            at = token.end
    pieces.append(escape(_between(lines, at, (len(lines), sys.maxsize))))
    return f'<pre style="{_PRE}"><code>{"".join(pieces).rstrip()}</code></pre>'


def _colour(token: tokenize.TokenInfo) -> str | None:
    if token.type == tokenize.NAME:
        return KEYWORD if keyword.iskeyword(token.string) else None
    return COLOURS.get(token.type)


def _between(lines: Sequence[str], begin: tuple[int, int], end: tuple[int, int]) -> str:
    """Return the text from *begin* to *end*, lines (from 1) and columns."""
    (row, column), (last, until) = begin, end
    if row == last:
        return lines[row - 1][column:until]
    return "".join([lines[row - 1][column:], *lines[row : last - 1], lines[last - 1][:until]])


def heading(text: str) -> str:
    """Return *text* as the first line of what is shown."""
    return f"<p style='margin:0 0 4px'><b>{escape(text)}</b></p>"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table with a row of headings; cells are text."""
    top = "".join(f'<th scope="col" style="text-align:left">{escape(name)}</th>' for name in head)
    body = "".join(
        "<tr>"
        + "".join(f'<td style="text-align:left">{escape(str(cell))}</td>' for cell in row)
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def folded(summary: str, inside: str) -> str:
    """Return *inside*, HTML, which unfolds where the line *summary* is clicked."""
    return f"<details><summary>{escape(summary)}</summary>{inside}</details>"


def numbered(items: Iterable[str]) -> str:
    """Return *items*, HTML, as a numbered list."""
    return f"<ol>{''.join(f'<li>{item}</li>' for item in items)}</ol>"
