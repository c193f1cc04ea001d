"""Index maps and their inverses."""

import itertools
import math

import pytest

from spcomp.dtypes import int64
from spcomp.ir.arith.simplify import IndexMap
from spcomp.ir.expr import Const, Var, const
from tests.test_arith import evaluate

m = Var("m", int64)


def values(index_map, point):
    env = dict(zip(index_map.params, point, strict=True))
    return tuple(evaluate(result, env) for result in index_map.results)


@pytest.mark.parametrize(
    ("func", "extents"),
    [
        (lambda i, j: (i // 2, j // 2, i % 2, j % 2), (6, 4)),
        (lambda i, j: (j, i), (3, 5)),
        (lambda i, j: i * 4 + j, (3, 4)),
        (lambda i, j: [j * 3 + i], (3, 4)),
        (lambda i: (i // 6, i // 2 % 3, i % 2), (24,)),
        (lambda a, b, c: a * 6 + b * 2 + c, (4, 3, 2)),
        (lambda i, j: (i // 4, j * 4 + i % 4), (8, 3)),
        (lambda i: i + 5, (4,)),
        (lambda i, j: ((i * 4 + j) // 2, j % 2), (3, 4)),
        (lambda i: (i // 8, 0, i % 8), (16,)),
    ],
)
def test_the_inverse_takes_every_point_back(func, extents):
    index_map = IndexMap.from_func(func)
    inverse = index_map.inverse(extents)
    assert inverse is not None
    points = list(itertools.product(*map(range, extents)))
    images = [values(index_map, point) for point in points]
    assert len(set(images)) == math.prod(extents)
    assert [values(inverse, image) for image in images] == points


def test_symbolic_extents_invert_too():
    inverse = IndexMap.from_func(lambda i, j: (i // 2, i % 2, j)).inverse((m, const(3)))
    assert inverse is not None
    assert values(inverse, (5, 1, 2)) == (11, 2)


@pytest.mark.parametrize(
    ("func", "extents"),
    [
        (lambda i, j: i + j, (3, 4)),
        (lambda i, j: i * 3 + j, (3, 4)),
        (lambda i: i // 2, (4,)),
        (lambda i, j: (i, i + j), (3, 4)),  # the image is no box
        (lambda i: i * i, (4,)),
        (lambda i: i * 2, (4,)),  # the image has gaps
    ],
)
def test_what_is_no_bijection_has_no_inverse(func, extents):
    assert IndexMap.from_func(func).inverse(extents) is None


def test_parameters_are_named_after_the_function():
    index_map = IndexMap.from_func(lambda row, col: (row, 3))
    assert [p.name for p in index_map.params] == ["row", "col"]
    assert isinstance(index_map.results[1], Const)
    (first, _) = index_map.apply((m + 1, m))
    assert evaluate(first, {m: 4}) == 5
    assert [p.name for p in index_map.renamed(["a", "b"]).params] == ["a", "b"]
