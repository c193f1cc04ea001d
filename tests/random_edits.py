"""Random edits of printed programs: what a person may do to them, and does by mistake."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

DTYPES = ("int8", "int32", "int64", "uint8", "uint32", "float16", "float32", "float64")
DTYPES = (*DTYPES, "bfloat16", "bool", "handle", "float32x4")
NUMBERS = ("0", "1", "2", "3", "-1", "7", "64", "2.5", "None", "True", "99999999999999999999")
NAME = r"\b[A-Za-z_]\w*\b"


def _lines(change: Callable[[list[str], int, int], None]) -> Callable[[str, random.Random], str]:
    def edit(text: str, rng: random.Random) -> str:
        lines = text.splitlines()
        places = [k for k, line in enumerate(lines) if line.strip() and "import" not in line]
        change(lines, rng.choice(places), rng.choice(places))
        return "\n".join(lines) + "\n"

    return edit


def _words(
    pattern: str, new: Callable[[str, list[str], random.Random], str]
) -> Callable[[str, random.Random], str]:
    def edit(text: str, rng: random.Random) -> str:
        found = list(re.finditer(pattern, text))
        if not found:
            return text
        one = rng.choice(found)
        made = new(one.group(), [other.group() for other in found], rng)
        return text[: one.start()] + made + text[one.end() :]

    return edit


def _delete(lines: list[str], one: int, _: int) -> None:
    del lines[one]


def _repeat(lines: list[str], one: int, _: int) -> None:
    lines.insert(one, lines[one])


def _exchange(lines: list[str], one: int, other: int) -> None:
    lines[one], lines[other] = lines[other], lines[one]


def _indent(lines: list[str], one: int, other: int) -> None:
    lines[one] = "    " + lines[one] if one < other else lines[one][4:]


EDITS = {
    "delete a line": _lines(_delete),
    "repeat a line": _lines(_repeat),
    "exchange lines": _lines(_exchange),
    "indent a line": _lines(_indent),
    "change a number": _words(r"\b\d+\b", lambda _, __, rng: rng.choice(NUMBERS)),
    "change a dtype": _words(rf"\b({'|'.join(DTYPES)})\b", lambda _, __, rng: rng.choice(DTYPES)),
    "change lanes": _words(r", \d+\)", lambda _, __, rng: f", {rng.choice(NUMBERS)})"),
    "change a name": _words(NAME, lambda _, others, rng: rng.choice(others)),
    "change an operator": _words(r" ([-+*/%<>]|//|<=|==|and|or) ", lambda _, o, rng: rng.choice(o)),
    "delete an argument": _words(r", [^,()\[\]]+", lambda _, __, ___: ""),
}


def edited(text: str, rng: random.Random) -> tuple[str, str]:
    """Return *text* with an edit or two, and what was done."""
    done = rng.choices(list(EDITS), k=rng.choice((1, 1, 2)))
    for kind in done:
        text = EDITS[kind](text, rng)
    return text, ", ".join(done)
