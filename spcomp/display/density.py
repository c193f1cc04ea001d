"""Below the route: where the elements of a matrix lie, counted in a grid and drawn as pixels."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.display.picture import PARTS, Picture, box, drawing, label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spcomp.arrays import Array

CELLS = 256  # at most, along a side of a grid
SIDE = 256.0  # pixels of the longer side of a drawing
SLENDER = 8  # times longer than wide, at most, is a drawing
FAINT = 0.3  # opacity of a cell with one element of many
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Density:
    """How many elements of a matrix of *shape* lie in each cell of a grid.

    *counts*: an int64 array of parts, rows and columns of the grid; a part is drawn in a colour of
    its own. All cells stand for as many rows and columns, *cell*, but the last ones.
    """

    counts: Array
    shape: tuple[int, int]
    cell: tuple[int, int]

    @property
    def stored(self) -> int:
        """The number of elements."""
        return int(self.counts.sum())

    def pixels(self) -> Array:
        """Return a uint8 array [rows, columns, 4]: colours of parts, opaque where it is dense."""
        total = self.counts.sum(axis=0)
        colours = np.array([_rgb(PARTS[at % len(PARTS)]) for at in range(len(self.counts))])
        mixed = np.tensordot(self.counts, colours, axes=(0, 0)) / np.maximum(total, 1)[..., None]
        fullest = max(int(total.max(initial=0)), 1)
        share = np.sqrt(total / fullest)
        alpha = np.where(total > 0, 255 * (FAINT + (1 - FAINT) * share), 0)
        image: Array = np.concatenate([mixed, alpha[..., None]], axis=2).round().astype(np.uint8)
        return image

    def title(self) -> str:
        """Return the extents and the share of elements as a line."""
        places = self.shape[0] * self.shape[1]
        share = f" ({100 * self.stored / places:.2g} %)" if places else ""
        return f"{self.shape[0]:,} x {self.shape[1]:,}, {self.stored:,} stored{share}"

    def shapes(self, x: float, y: float, side: float = SIDE) -> tuple[list[str], float, float]:
        """Return SVG elements of the grid in a frame at *x*, *y*, and its width and height."""
        longest = max(*self.shape, 1)
        height, width = (max(side * extent / longest, side / SLENDER) for extent in self.shape)
        parts = [box(x, y, width, height)]
        if self.counts.size:
            data = b64encode(png(self.pixels())).decode()
            place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
            fit = f'{place} preserveAspectRatio="none"'
            parts.append(f'<image {fit} href="data:image/png;base64,{data}"/>')
        return parts, width, height

    def picture(self, name: str = "", side: float = SIDE) -> Picture:
        """Return the grid with a line of text below it, which begins with *name*."""
        shapes, width, height = self.shapes(1, 1, side)
        title = f"{name}: {self.title()}" if name else self.title()
        shapes.append(label(1, height + 18, title))
        return drawing(title, max(width, 7.0 * len(title)) + 2, height + 26, shapes)


def density(parts: Sequence[Sequence[Any]], shape: tuple[int, int], most: int = CELLS) -> Density:
    """Return the density of *parts*, arrays of row and column indices of elements, for each part.

    *most*: the cells along a side of the grid, at most. Indices lie inside of *shape*.
    """
    cell = (max(-(-shape[0] // most), 1), max(-(-shape[1] // most), 1))
    high, wide = -(-shape[0] // cell[0]), -(-shape[1] // cell[1])
    counts = np.zeros((len(parts), high * wide), np.int64)
    for total, (rows, columns) in zip(counts, parts, strict=True):
        for begin in range(0, len(rows), _CHUNK):
            chunk = slice(begin, begin + _CHUNK)
            cells = (rows[chunk] // cell[0]).astype(np.int64) * wide + columns[chunk] // cell[1]
            total += np.bincount(cells, minlength=high * wide)
    return Density(counts.reshape(len(parts), high, wide), shape, cell)


def png(pixels: Array) -> bytes:
    """Return *pixels*, uint8 [rows, columns, 4], as a PNG file."""
    high, wide, _ = pixels.shape
    rows = np.zeros((high, 1 + 4 * wide), np.uint8)  # each row begins with its filter: none
    rows[:, 1:] = pixels.reshape(high, 4 * wide)
    header = struct.pack(">IIBBBBB", wide, high, 8, 6, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
