"""Tensors of few elements in shapes that no array has: they work, or are refused in our words."""

from __future__ import annotations

import pytest

from spcomp import Format, Tensor, convert
from spcomp.errors import ArgumentError

LONG = (1 << 63) - 1


def two_elements(shape: tuple[int, ...]) -> Tensor:
    """Return the tensor of *shape* with 1 in the first place and 2 in another."""
    return Tensor.from_coo([[0, 1]] * len(shape), [1.0, 2.0], shape)


@pytest.mark.parametrize("name", ["dia", "bsr(1,1)", "bsr(1)", "dense", "csc", "dcsr", "lil"])
@pytest.mark.parametrize("shape", [(2, LONG), (LONG, 2)])
def test_a_conversion_works_or_says_how_large_its_result_is(
    name: str, shape: tuple[int, ...]
) -> None:
    try:
        found = convert(two_elements(shape), name)
    except ArgumentError as error:
        assert error.message.startswith("argument format: would have")  # noqa: PT017
    else:
        assert convert(found, Format("coo")).values.tolist() == [1, 2]
