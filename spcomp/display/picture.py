"""Below the route: a Picture, the text of an SVG document that notebooks show."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from spcomp.errors import ArgumentError, FileError

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

PARTS = ("#2563eb", "#d97706", "#059669", "#c026d3", "#dc2626", "#0891b2", "#65a30d", "#7c3aed")
INK, GRID = "#475569", "#94a3b8"  # readable on light and dark pages
_STYLE = (
    f"text{{font:12px system-ui,sans-serif;fill:{INK}}}.name{{font-weight:bold}}"
    f".on{{font-family:monospace;text-anchor:middle}}.number{{text-anchor:end}}"
    f"path,line,.frame{{stroke:{INK};stroke-width:1;fill:none}}image{{image-rendering:pixelated}}"
    "@media(prefers-color-scheme:dark){text{fill:#cbd5e1}path,line,.frame{stroke:#94a3b8}}"
    "text.on{fill:#0f172a}"
)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write *text* to *path*; raises FileError if that fails."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing: notebooks show it, ``save`` writes it, ``svg`` is its text."""

    svg: str
    title: str

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to *path* as an SVG document.

        Raises ArgumentError for a name that says it is something else, FileError if that fails.
        """
        if Path(path).suffix.lower() not in ("", ".svg"):
            hint = "name it .svg; spy(matrix, ax=...) and roofline(..., ax=...) draw on matplotlib"
            raise ArgumentError(f"argument path: {path} is no name of an SVG file", hint=hint)
        write_text(path, self.svg)

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<Picture: {self.title}>"


def drawing(title: str, width: float, height: float, shapes: Sequence[str]) -> Picture:
    """Return the *shapes*, SVG elements, as a picture of *width* by *height* pixels."""
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    lines = [head, f"<title>{escape(title)}</title>", f"<style>{_STYLE}</style>", *shapes]
    return Picture("\n".join([*lines, "</svg>\n"]), title)


def label(x: float, y: float, content: str, kind: str = "") -> str:
    """Return *content* as a line of text that begins at *x*, *y*.

    *kind*: ``name`` (bold), ``number`` (ends there) or ``on`` (in the middle of a coloured box).
    """
    of = f' class="{kind}"' if kind else ""
    return f'<text{of} x="{x:g}" y="{y:g}">{escape(content)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str = "") -> str:
    """Return a rectangle with a colour, or an empty frame."""
    look = f'fill="{fill}"' if fill else 'class="frame"'
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" {look}/>'


def line(x: float, y: float, to_x: float, to_y: float, colour: str = "") -> str:
    """Return a straight line; without a *colour* it has that of text."""
    look = f' style="stroke:{colour};stroke-width:2"' if colour else ""
    return f'<line x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}"{look}/>'
