"""Around the route: sums of products by their subscripts, as index notation."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from spcomp.errors import ArgumentError, expect
from spcomp.notation.semiring import ORDINARY, Semiring, as_semiring

if TYPE_CHECKING:
    from spcomp.compiler.notation import NotationKernel
    from spcomp.formats.format import Format


def einsum(
    subscripts: str,
    *operands: Any,
    out: Any = None,
    format: str | Format | None = None,  # noqa: A002
    semiring: Semiring | str = ORDINARY,
) -> Any:
    """Return the sum of products that *subscripts* say, as ``numpy.einsum`` does.

    Args:
        subscripts: ``"ij,jk->ik"``; without ``->``, the result has the letters that occur once,
            in alphabetical order.
        *operands: Dense or sparse arrays of as many dimensions.
        out: An array for the result.
        format: The format of the result, ``"csr"`` or a :class:`spcomp.Format`; see the notation's
            rule for what it is otherwise.
        semiring: What is meant by sum and product.

    Raises:
        SpcompError: as a NotationKernel does, and for subscripts that are none.
    """
    expect("subscripts", subscripts, str, "letters", hint='write "ij,jk->ik"')
    terms = subscripts.replace(" ", "").partition("->")[0].split(",")
    if len(terms) != len(operands):
        raise ArgumentError(
            f"argument subscripts: {len(terms)} operands are named, {len(operands)} given"
        )
    formats = () if format is None else (("out", format),)
    kernel = _einsum(subscripts.replace(" ", ""), formats, as_semiring(semiring))
    return kernel(**{f"operand{at}": x for at, x in enumerate(operands)}, out=out)


@lru_cache(maxsize=256)
def _einsum(
    subscripts: str, formats: tuple[tuple[str, str | Format], ...], semiring: Semiring
) -> NotationKernel:
    from spcomp.compiler.compile import compile as compile_program

    left, arrow, right = subscripts.partition("->")
    terms = left.split(",")
    letters = left.replace(",", "")
    if not re.fullmatch(r"[A-Za-z]*(,[A-Za-z]*)*", left) or not re.fullmatch("[A-Za-z]*", right):
        raise ArgumentError(
            f"argument subscripts: got {subscripts!r}", hint='write letters, as "ij,jk->ik"'
        )
    target = right if arrow else "".join(sorted(c for c in letters if letters.count(c) == 1))
    if len(set(target)) < len(target) or not set(target) <= set(letters):
        raise ArgumentError(f"argument subscripts: {target!r} cannot be the result of {left!r}")
    shown = " * ".join(_bracketed(f"operand{at}", term) for at, term in enumerate(terms))
    text = f"{_bracketed('out', target)} = {shown}"
    return compile_program(text, formats=dict(formats), semiring=semiring)


def _bracketed(name: str, letters: str) -> str:
    return f"{name}[{', '.join(letters)}]" if letters else name
