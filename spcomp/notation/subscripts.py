"""Beside the route: the subscripts of einsum, ``"ij,jk->ik"``, as a statement."""

from __future__ import annotations

import re
from collections.abc import Sequence

from spcomp.errors import ArgumentError

_SUBSCRIPTS = re.compile(r"[A-Za-z]*(,[A-Za-z]*)*(->[A-Za-z]*)?")


def is_subscripts(text: str) -> bool:
    """Whether *text* is written as subscripts: it assigns nothing, and has a comma or an arrow."""
    return "=" not in text and ("->" in text or re.fullmatch(r"[\sA-Za-z,]+", text) is not None)


def operands_and_result(subscripts: str, who: str) -> tuple[list[str], str]:
    """Return the letters of each operand in *subscripts*, and those of the result.

    Raises ArgumentError, about the argument *who*.
    """
    written = subscripts.replace(" ", "")
    if _SUBSCRIPTS.fullmatch(written) is None:
        hint = 'write letters, as "ij,jk->ik"'
        hint = f"{hint}; dots only mean something for operands" if "." in written else hint
        raise ArgumentError(f"argument {who}: got {subscripts!r}", hint=hint)
    left, arrow, right = written.partition("->")
    result = right if arrow else implied_result(left)
    if len({*result}) < len(result) or not {*result} <= {*left}:
        raise ArgumentError(f"argument {who}: {result!r} cannot be the result of {left!r}")
    return left.split(","), result


def implied_result(left: str) -> str:
    """Return the letters of the result of *left*, operands without an arrow."""
    return "".join(sorted(c for c in left if c.isalpha() and left.count(c) == 1))


def access_text(name: str, indices: Sequence[str]) -> str:
    """Return the text of index notation that reads *name* at *indices*; alone if there are none."""
    return f"{name}[{', '.join(indices)}]" if indices else name


def statement_of(subscripts: str) -> str:
    """Return the statement ``out[i, k] = operand0[i, j] * operand1[j, k]`` that *subscripts* mean.

    Raises ArgumentError.
    """
    operands, result = operands_and_result(subscripts, "program")
    factors = (_access(f"operand{at}", letters) for at, letters in enumerate(operands))
    over = [f"{c}_" for c in dict.fromkeys("".join(operands)) if c not in result]
    value = " * ".join(factors)
    if over:
        value = f"sum(({', '.join(over)},), {value})"
    return f"{_access('out', result)} = {value}"


def _access(name: str, letters: str) -> str:
    return access_text(name, [f"{c}_" for c in letters])
