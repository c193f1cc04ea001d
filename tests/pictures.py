"""Screenshots as arrays: PNG files of 8 bits, without other libraries."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np

from spcomp.arrays import Array


def pixels(path: Path) -> Array:
    """Return the colours in the PNG file *path*: (height, width, 3) of uint8. Source: RFC 2083."""
    data, at, parts = path.read_bytes(), 8, []
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
        parts += [body] if kind == b"IDAT" else []
        at += 12 + length
    channels = {2: 3, 6: 4}[colour]
    assert depth == 8
    lines = np.frombuffer(zlib.decompress(b"".join(parts)), np.uint8)
    lines = lines.reshape(height, 1 + width * channels)
    above, rows = np.zeros((width, channels), np.uint8), []
    for kind, line in zip(lines[:, 0], lines[:, 1:].reshape(height, width, channels), strict=True):
        above = _restored(kind, line, above)
        rows.append(above)
    return np.stack(rows)[..., :3]


def _restored(kind: int, line: Array, above: Array) -> Array:
    """Return a *line* of pixels, of which a filter of this *kind* has kept differences."""
    if kind == 0:
        return line
    if kind == 1:
        return np.cumsum(line, axis=0, dtype=np.uint8)
    if kind == 2:
        return line + above
    found, left, corner = np.empty_like(line), [0] * line.shape[1], [0] * line.shape[1]
    for place, (now, up) in enumerate(zip(line.tolist(), above.tolist(), strict=True)):
        if kind == 3:
            left = [n + (a + b) // 2 & 255 for n, a, b in zip(now, left, up, strict=True)]
        else:
            near = [_nearest(*abc) for abc in zip(left, up, corner, strict=True)]
            left = [n + p & 255 for n, p in zip(now, near, strict=True)]
        found[place], corner = left, up
    return found


def _nearest(a: int, b: int, c: int) -> int:
    return min((a, b, c), key=lambda x: abs(a + b - c - x))
