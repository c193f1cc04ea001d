"""Beside the route: the subscripts of einsum, ``"ij,jk->ik"``, as a statement."""

from __future__ import annotations

import re

from spcomp.errors import ArgumentError

_SUBSCRIPTS = re.compile(r"[A-Za-z]*(,[A-Za-z]*)*(->[A-Za-z]*)?")


def is_subscripts(text: str) -> bool:
    """Whether *text* is written as subscripts: it assigns nothing, and has a comma or an arrow."""
    return "=" not in text and ("->" in text or re.fullmatch(r"[\sA-Za-z,]+", text) is not None)


def statement_of(subscripts: str) -> str:
    """Return the statement ``out[i, k] = operand0[i, j] * operand1[j, k]`` that *subscripts* mean.

    Raises ArgumentError.
    """
    written = subscripts.replace(" ", "")
    if _SUBSCRIPTS.fullmatch(written) is None:
        raise ArgumentError(
            f"argument program: got the subscripts {subscripts!r}",
            hint='write letters, as "ij,jk->ik"; dots only mean something for operands',
        )
    left, arrow, right = written.partition("->")
    letters = left.replace(",", "")
    target = right if arrow else "".join(sorted(c for c in letters if letters.count(c) == 1))
    if len({*target}) < len(target) or not {*target} <= {*letters}:
        raise ArgumentError(f"argument program: {target!r} cannot be the result of {left!r}")
    factors = (_access(f"operand{at}", term) for at, term in enumerate(left.split(",")))
    over = [f"{c}_" for c in dict.fromkeys(letters) if c not in target]
    value = " * ".join(factors)
    if over:
        value = f"sum(({', '.join(over)},), {value})"
    return f"{_access('out', target)} = {value}"


def _access(name: str, indices: str) -> str:
    return f"{name}[{', '.join(f'{c}_' for c in indices)}]" if indices else name
