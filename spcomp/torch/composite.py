"""For graph learning: softmax, its kin, and deviations over the segments of a scatter."""

from __future__ import annotations

from functools import cache
from math import inf
from typing import Any

import torch

from spcomp.errors import ArgumentError
from spcomp.kernels.compile import compile as compile_program
from spcomp.kernels.opaque import opaque
from spcomp.torch import segments
from spcomp.torch.segments import Places
from spcomp.torch.shapes import length_along, result_into

# Element e of the rows X goes to segment d[e]; m is the greatest of each segment, which changes
# rounding only, and has no gradient.
_LINES = {
    "softmax": """
        p[e, f] = exp(X[e, f] - m[d[e], f])
        s[d[e], f] = p[e, f]
        Y[e, f] = p[e, f] / s[d[e], f]
    """,
    "log_softmax": """
        s[d[e], f] = exp(X[e, f] - m[d[e], f])
        Y[e, f] = X[e, f] - m[d[e], f] - log(s[d[e], f] + eps)
    """,
    "logsumexp": """
        s[d[e], f] = exp(X[e, f] - m[d[e], f])
        Y[n, f] = nothing if s[n, f] == 0 else log(s[n, f] + eps) + m[n, f]
    """,
    "std": """
        t[d[e], f] = X[e, f]
        v[d[e], f] = (X[e, f] - t[d[e], f] / c[d[e]]) ** 2
        Y[n, f] = 0 if v[n, f] == 0 else sqrt(1 if v[n, f] == 0 else v[n, f] / b[n])
    """,
}
_compiled = cache(compile_program)


@opaque
def scatter_softmax(
    src: torch.Tensor, index: torch.Tensor, dim: int = -1, dim_size: int | None = None
) -> torch.Tensor:
    """Return the softmax of *src* over the elements along *dim* that have the same *index*.

    The arguments are those of :func:`scatter`. Raises ArgumentError.
    """
    return _elements("softmax", src, Places.of(_floats(src), index, dim, dim_size))


@opaque
def scatter_log_softmax(
    src: torch.Tensor,
    index: torch.Tensor,
    dim: int = -1,
    eps: float = 1e-12,
    dim_size: int | None = None,
) -> torch.Tensor:
    """Return the logarithm of :func:`scatter_softmax`; *eps* is added to each sum in it."""
    return _elements("log_softmax", src, Places.of(_floats(src), index, dim, dim_size), eps=eps)


@opaque
def scatter_logsumexp(
    src: torch.Tensor,
    index: torch.Tensor,
    dim: int = -1,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
    eps: float = 1e-12,
) -> torch.Tensor:
    """Return the logarithm of the sum of ``exp(src)`` by *index*.

    It is 0 where no element goes, or none above -inf, as pytorch_scatter's. *out* is one more
    element of each segment, and overwritten; *eps* is added to the sums.
    """
    places = Places.of(_floats(src), index, dim, length_along(dim, out, src, dim_size))
    nothing = 0.0 if out is None else -inf
    found = _segments("logsumexp", src, places, eps=eps, nothing=nothing)
    if out is not None:
        found = torch.logaddexp(out.clone(), found)  # a gradient needs what out was
    return result_into(out, found)


@opaque
def scatter_std(
    src: torch.Tensor,
    index: torch.Tensor,
    dim: int = -1,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
    unbiased: bool = True,  # noqa: FBT001, FBT002 (pytorch_scatter's)
) -> torch.Tensor:
    """Return the standard deviation of the elements of *src* with the same *index*; 0 of none.

    It is that of a sample if *unbiased*. *out* is overwritten. Raises ArgumentError.
    """
    places = Places.of(_floats(src), index, dim, length_along(dim, out, src, dim_size))
    count = segments.counts(places.pattern())
    fewer = (count - 1 if unbiased else count).clamp(min=1)
    found = _segments("std", src, places, c=count.clamp(min=1), b=fewer)
    return result_into(out, found)


def _elements(name: str, src: torch.Tensor, places: Places, **more: Any) -> torch.Tensor:
    """Return what the program *name* makes of each element of *src*."""
    return places.rows.back(_run(name, src, places, **more), places.rows.size)


def _segments(name: str, src: torch.Tensor, places: Places, **more: Any) -> torch.Tensor:
    """Return what the program *name* makes of each segment of *src*."""
    return places.rows.back(_run(name, src, places, **more), places.count)


def _run(name: str, src: torch.Tensor, places: Places, **more: Any) -> torch.Tensor:
    rows, numbers = places.rows.adjacent(src), places.numbers
    if name != "std":
        largest = segments.kernel("largest")(X=rows.detach(), P=places.pattern())
        # with an infinity a softmax is NaN, as torch's, and the logarithm of a sum is infinite
        kept = largest.isfinite() if name == "logsumexp" else largest != -inf
        more["m"] = torch.where(kept, largest, 0)
    found: torch.Tensor = _compiled(_LINES[name])(X=rows, d=numbers, **more)
    return found.to(src.dtype)


def _floats(src: torch.Tensor) -> torch.Tensor:
    """Return *src*; raises ArgumentError unless it has floats."""
    if not src.is_floating_point():
        raise ArgumentError(
            f"argument src: got {src.dtype}, expected floats", hint="convert it with .float()"
        )
    return src
