"""Before PTX is loaded: its kernels, and the sizes of their parameters, from the text."""

from __future__ import annotations

import re
from math import prod

_ENTRY = re.compile(r"\.entry\s+([\w$%]+)\s*(?:\(([^)]*)\))?")
_TYPE = re.compile(r"\.[busf](8|16|32|64)\b")
_COUNT = re.compile(r"\[(\d+)\]")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def entries(ptx: str) -> dict[str, tuple[int, ...]]:
    """Return the bytes of each parameter of the kernels in *ptx*, by name."""
    text = _COMMENT.sub("", ptx)
    return {name: _sizes(parameters) for name, parameters in _ENTRY.findall(text)}


def _sizes(parameters: str) -> tuple[int, ...]:
    each = [p for p in parameters.split(",") if p.strip()]
    types = [_TYPE.search(p) for p in each]
    bits = [int(found[1]) if found else 0 for found in types]
    return tuple(
        b // 8 * prod(map(int, _COUNT.findall(p))) for b, p in zip(bits, each, strict=True)
    )
