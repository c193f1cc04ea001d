"""Tensors of few elements in shapes that no array has: they work, or are refused in our words."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from spcomp import Format, Tensor, convert
from spcomp.errors import ArgumentError, OutOfMemoryError

LONG = (1 << 63) - 1
SHAPES = [(1 << 40, 1 << 34), (2, LONG), (1 << 32, 1 << 32, 1 << 32)]


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


@pytest.mark.parametrize("shape", SHAPES)
def test_an_array_that_cannot_be_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(OutOfMemoryError, match="takes too much memory"):
        two_elements(shape).to_dense()


@pytest.mark.torch
@pytest.mark.parametrize("shape", SHAPES)
def test_a_tensor_that_torch_cannot_count_is_refused(shape: tuple[int, ...]) -> None:
    pytest.importorskip("torch")
    with pytest.raises(ArgumentError, match="torch counts to"):
        two_elements(shape).to_torch()


@pytest.mark.parametrize("shape", SHAPES[:2])
def test_operators_need_no_number_for_each_coordinate(shape: tuple[int, ...]) -> None:
    tensor = two_elements(shape).to(Format("dcsr"))
    for result, values in ((tensor * 2, [2, 4]), (tensor > 1, [False, True]), (-tensor, [-1, -2])):
        assert result.shape == shape
        assert [part.tolist() for part in result.coordinates()] == [[0, 1]] * len(shape)
        assert result.values.tolist() == values
    with pytest.raises(ArgumentError, match="which 64 bits do not number"):
        tensor + tensor
    with pytest.raises(ArgumentError, match="do not go together"):
        tensor + tensor.T


def test_elements_are_numbered_beyond_64_bits_in_another_shape() -> None:
    tensor = two_elements((1 << 40, 1 << 34))
    found = tensor.reshape(1 << 34, -1)
    assert found.shape == (1 << 34, 1 << 40)
    assert [part.tolist() for part in found.coordinates()] == [[0, 0], [0, (1 << 34) + 1]]
    assert found.reshape(tensor.shape).coordinates()[0].tolist() == [0, 1]
    with pytest.raises(ArgumentError, match="is too large"):
        tensor.reshape(-1)


def test_a_bitmap_of_a_few_elements_takes_little_more_than_its_mask() -> None:
    mask = np.zeros((1, 1 << 26), bool)
    mask[0, [3, 5]] = True
    tensor = Tensor(mask.shape, (None, ("bitmap", mask)), np.broadcast_to(1.0, mask.shape))
    tracemalloc.start()
    try:
        coordinates, places = tensor.elements()
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()
    assert [part.tolist() for part in (*coordinates, places)] == [[0, 0], [3, 5], [3, 5]]
