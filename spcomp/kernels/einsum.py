"""Around the route: einsum, which writes its subscripts as index notation."""

from __future__ import annotations

from functools import lru_cache
from string import ascii_letters
from types import NoneType
from typing import TYPE_CHECKING, Any

from spcomp.errors import ArgumentError, expect
from spcomp.formats.format import Format
from spcomp.kernels.opaque import opaque
from spcomp.notation.semiring import ORDINARY, Semiring, as_semiring
from spcomp.notation.subscripts import access_text, implied_result, operands_and_result
from spcomp.target import Target, environment
from spcomp.target import target as as_target

if TYPE_CHECKING:
    from spcomp.kernels.notation.kernel import NotationKernel


@opaque
def einsum(
    subscripts: str,
    *operands: Any,
    out: Any = None,
    format: str | Format | None = None,  # noqa: A002
    semiring: Semiring | str = ORDINARY,
    optimize: Any = False,
    target: str | Target = "cpu",
) -> Any:
    """Return the sum of products that *subscripts* say, as ``numpy.einsum`` does.

    Args:
        subscripts: ``"ij,jk->ik"``; without ``->``, the result has the letters that occur once,
            in alphabetical order. ``...`` stands for all dimensions of an operand that have no
            letter. Those of several operands are matched from the last one on; length 1 is
            broadcast. Without ``->`` they come first.
        *operands: Dense or sparse arrays of as many dimensions.
        out: An array for the result.
        format: The format of the result, ``"csr"`` or a :class:`spcomp.Format`; see the notation's
            rule for what it is otherwise.
        semiring: What is meant by sum and product.
        optimize: What numpy takes: True, False, ``"greedy"``, ``"optimal"`` or a path. It changes
            nothing: there is one nest of loops, in the order that the formats ask for.
        target: The machine, as for ``compile``.

    Raises:
        SpcompError: as a NotationKernel does, and for wrong subscripts.
    """
    path = optimize[:1] if isinstance(optimize, (tuple, list)) else optimize
    if path not in (True, False, "greedy", "optimal", ["einsum_path"], ("einsum_path",)):
        hint = 'it is True, False, "greedy", "optimal" or what numpy.einsum_path returns'
        raise ArgumentError(f"argument optimize: got {optimize!r}", hint=hint)
    expect("subscripts", subscripts, str, "letters", hint='write "ij,jk->ik"')
    written = subscripts.replace(" ", "")
    terms = written.partition("->")[0].split(",")
    if len(terms) != len(operands):
        raise ArgumentError(
            f"argument subscripts: {len(terms)} operands are named, {len(operands)} given"
        )
    expect("format", format, (str, Format, NoneType), "the name of a format, or a Format")
    chosen = as_target(target)  # here, as the environment has a say that the cache would miss
    formats = () if format is None else (("out", format),)
    shapes = tuple(tuple(getattr(operand, "shape", ())) for operand in operands)
    broadcast: tuple[tuple[int, ...], ...] = ()
    if "." in written:
        written, broadcast = _spelled(written, shapes)
    kernel = _einsum(written, formats, as_semiring(semiring), broadcast, chosen, environment())
    return kernel(**{f"operand{at}": x for at, x in enumerate(operands)}, out=out)


@lru_cache(maxsize=256)
def _einsum(
    subscripts: str,
    formats: tuple[tuple[str, str | Format], ...],
    semiring: Semiring,
    broadcast: tuple[tuple[int, ...], ...],
    target: Target,
    _: tuple[str | None, ...],
) -> NotationKernel:
    from spcomp.kernels.compile import compile as compile_program

    terms, result = operands_and_result(subscripts, "subscripts")
    single = broadcast or ((),) * len(terms)
    shown = " * ".join(
        access_text(f"operand{at}", ["0" if k in single[at] else c for k, c in enumerate(term)])
        for at, term in enumerate(terms)
    )
    text = f"{access_text('out', result)} = {shown}"
    return compile_program(text, formats=dict(formats), semiring=semiring, target=target)


def _spelled(
    subscripts: str, shapes: tuple[tuple[int, ...], ...]
) -> tuple[str, tuple[tuple[int, ...], ...]]:
    """Return *subscripts* with letters for the dots, and the broadcast dimensions of each operand.

    These have length 1 where another operand has another length. Raises ArgumentError.
    """
    left, arrow, right = subscripts.partition("->")
    terms = left.split(",")
    if any("." in term.replace("...", "", 1) for term in (*terms, right)):
        hint = 'dots are three, and once: "...ij,jk->...ik"'
        raise ArgumentError(f"argument subscripts: got {subscripts!r}", hint=hint)
    counts: list[int] = []
    for at, (term, shape) in enumerate(zip(terms, shapes, strict=True)):
        counts.append(len(shape) - len(term) + 3 if "..." in term else 0)
        if counts[-1] < 0:
            has = f"{len(shape)} dimensions for {term!r}"
            raise ArgumentError(f"argument operand{at}: got {has}")
    most = max(counts)
    names = "".join(c for c in ascii_letters if c not in subscripts)[:most]
    if len(names) < most:
        raise ArgumentError(f"argument subscripts: no letters are left for {most} dimensions")
    if arrow and most and "..." not in right:
        raise ArgumentError(
            f"argument subscripts: the result of {subscripts!r} lacks the dots",
            hint="what is summed has letters",
        )
    spelled = [t.replace("...", names[most - n :]) for t, n in zip(terms, counts, strict=True)]
    extents: dict[str, set[int]] = {name: set() for name in names}
    for term, shape in zip(spelled, shapes, strict=True):
        for name, extent in zip(term, shape, strict=False):
            extents.get(name, set()).add(extent)
    broadcast = tuple(
        tuple(
            k
            for k, (name, extent) in enumerate(zip(term, shape, strict=False))
            if extent == 1 and extents.get(name, {1}) != {1}
        )
        for term, shape in zip(spelled, shapes, strict=True)
    )
    if not arrow:
        right = f"...{implied_result(left)}"
    return f"{','.join(spelled)}->{right.replace('...', names)}", broadcast
