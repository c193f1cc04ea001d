"""Parts of arguments and of results: windows, steps backwards, index sets, what lies outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import notation as N
from spcomp.errors import ArgumentError, ScriptError
from tests.interpreted_notation import interpreted
from tests.level_tensors import full

VECTOR = np.arange(1.0, 6.0)
MATRIX = np.arange(20.0).reshape(4, 5) * (np.arange(20).reshape(4, 5) % 3 != 0)
CUBE = np.arange(24.0).reshape(2, 3, 4) % 5
KEPT: dict[Any, Callable[[Any], Any]] = {
    "array": np.asarray,
    "csr": sps.csr_array,
    "csc": sps.csc_array,
    "coo": sps.coo_array,
    "dcsr": lambda x: spcomp.convert(x, "dcsr"),
    "hash": lambda x: spcomp.convert(x, "hash"),
    "bitmap": lambda x: spcomp.convert(x, "bitmap"),
}
PARTS = {
    "C[i, j] = M[i([3, 1, 1]), j]": MATRIX[[3, 1, 1]],
    "C[i, j] = M[i, j([0, 4, 0, 2])]": MATRIX[:, [0, 4, 0, 2]],
    "C[i, j] = M[i({3, 1}), j([4, 2, 1])]": MATRIX[np.ix_([1, 3], [4, 2, 1])],
    "C[i, j] = M[i([]), j]": MATRIX[[]],
    "C[:, j] = M[::-1, j]": MATRIX[::-1],
    "C[i, j] = M[i(1, 4), j(4, -1, -2)]": MATRIX[1:4, ::-2],
    "C[i, j] = M[i(1, None), j(None, None, -1)]": MATRIX[1:, ::-1],
    "C[:, :] = M[-3:-1, :0:-2]": MATRIX[-3:-1, :0:-2],
    "C[i, j] = M[i(2, 2), j]": MATRIX[2:2],
    "C[i] = M[i([3, 0]), -1]": MATRIX[[3, 0], -1],
    "C = M[2, 3]": MATRIX[2, 3],
    "C[i] = sum(j, M[i, j(3, 0, -1)] * v[j(0, 3)])": MATRIX[:, 3:0:-1] @ VECTOR[:3],
}


@pytest.mark.parametrize("kind", KEPT)
@pytest.mark.parametrize("text", PARTS)
def test_parts_of_a_matrix_are_those_of_numpy(text, kind):
    args = {"M": KEPT[kind](MATRIX), "v": VECTOR}
    kernel = spcomp.compile(text)
    args = {name: args[name] for name in kernel.arguments}
    for made in (kernel(**args), kernel(**args), kernel(**args), interpreted(kernel, args)):
        shown = made if np.isscalar(made) else full(made)
        np.testing.assert_array_equal(shown, PARTS[text])


@pytest.mark.parametrize("form", ["dense", "csf", "coo", "hash"])
def test_parts_of_a_tensor_are_those_of_numpy(form):
    tensor = CUBE if form == "dense" else spcomp.convert(CUBE, form)
    made = spcomp.compile("C[i, k] = T[i(1, -1, -1), 1, k([2, 0, 2])]")(T=tensor)
    np.testing.assert_array_equal(full(made), CUBE[::-1, 1][:, [2, 0, 2]])


BEYOND = {
    "y[i] = a[i(0, 10)]": 9,
    "y[i] = a[i(-1, 4)]": 9,
    "y[i] = a[i(3, 1)]": 9,
    "y[i] = a[i(5, -1, -1)]": 9,
    "y[i] = a[i(4, -2, -1)]": 9,
    "y[:] = 2 * a[0:10]": 13,
    "y[:] = a[-6:]": 9,
    "y[:] = a[3:1]": 9,
    "y[:] = a[5::-1]": 9,
    "y[i] = a[i([0, 5])]": 11,
}


@pytest.mark.parametrize("kind", [np.asarray, sps.coo_array])
@pytest.mark.parametrize("text", BEYOND)
def test_a_part_that_is_not_inside_is_refused_at_the_call(text, kind):
    kernel = spcomp.compile(text)
    if "0, 10" in text:
        assert kernel(a=kind(np.arange(20.0))).shape == (10,)
    with pytest.raises(
        ArgumentError, match=r"^.*argument a: .* no part of dimension 0.* 5"
    ) as caught:
        kernel(a=kind(VECTOR))
    assert caught.value.span.col == BEYOND[text]


def test_parts_are_made_of_objects_too():
    i, j = spcomp.indices("i j")
    A, C = spcomp.symbols("A C")
    C[i, j] = A[i([3, 1]), j(4, -1, -2)]
    np.testing.assert_array_equal(spcomp.compile(C)(A=MATRIX), MATRIX[[3, 1], ::-2])
    rows = spcomp.symbols("rows")
    rows[i] = N.sum(j, A[i(np.array([2, 0])), j])
    np.testing.assert_array_equal(spcomp.compile(rows)(A=MATRIX), MATRIX[[2, 0]].sum(1))
    with pytest.raises(ScriptError, match="index set are whole"):
        A[i([0.5]), j]
    with pytest.raises(ScriptError, match="index set are whole"):
        A[i([-1]), j]


WRITTEN: dict[str, Callable[[Any, Any], Any]] = {
    "C[i(2, 6), j] = A[i, j]": lambda C, A: C.__setitem__(slice(2, 6), A),
    "C[2:, j] = 2 * A[:, j]": lambda C, A: C.__setitem__(slice(2, None), 2 * A),
    "C[0:2, j] += sum(k, A[k, j])": lambda C, A: C[:2].__iadd__(A.sum(0)),
    "C[3, j] = A[0, j]": lambda C, A: C.__setitem__(3, A[0]),
    "C[i, 1] -= C2[i] * 2": lambda C, A: C[:, 1].__isub__(2 * np.arange(6)),
    "C[i(3, -1, -1), j(0, 2)] = A[i, j(3, 5)]": lambda C, A: C.__setitem__(
        (slice(3, None, -1), slice(0, 2)), A[:, 3:]
    ),
    "C[i([5, 0, 2, 1]), j] = A[i, j]": lambda C, A: C.__setitem__([5, 0, 2, 1], A),
    "C[0:2, j] = A[0:2, j]; C[2:5, j] = A[1:4, j]; C[5, 4] = 7.0": lambda C, A: (
        C.__setitem__(slice(0, 2), A[:2]),
        C.__setitem__(slice(2, 5), A[1:]),
        C.__setitem__((5, 4), 7),
    ),
}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("text", WRITTEN)
def test_a_part_of_a_given_result_is_assigned(text, sparse):
    kernel = spcomp.compile(text)
    for as_out in (True, False, True):
        args = {"A": sps.csr_array(MATRIX) if sparse else MATRIX, "C2": np.arange(6.0)}
        args = {name: args[name] for name in kernel.arguments if name != "C"}
        given, want = (np.arange(30.0).reshape(6, 5) for _ in range(2))
        made = kernel(**args, out=given) if as_out else kernel(**args, C=given)
        WRITTEN[text](want, MATRIX)
        np.testing.assert_array_equal(given, want)
        assert made is given


def test_a_part_is_one_of_several_results():
    kernel = spcomp.compile("C[0, j] = A[1, j]; D[i] = sum(j, A[i, j])")
    given = np.zeros((2, 5))
    made = kernel(A=MATRIX, out={"C": given})
    assert made.C is given
    np.testing.assert_array_equal(given, [MATRIX[1], np.zeros(5)])
    np.testing.assert_array_equal(made.D, MATRIX.sum(1))
    bound = kernel.bind(A=MATRIX)
    np.testing.assert_array_equal(bound(C=np.zeros((1, 5))).C, MATRIX[[1]])


PLACES = {
    "C[0, j] = A[1, j]; C[1, j] = C[0, j]": "C is read, and assigned in part",
    "C[0, j] = A[1, j]; C[i, j] = A[i, j]": "C is assigned in part, and as a whole",
    "C[i([0, 0]), j] = A[i, j]": "a coordinate occurs twice",
}


@pytest.mark.parametrize("text", PLACES)
def test_parts_of_results_that_mean_nothing_are_refused(text):
    with pytest.raises(ScriptError, match=PLACES[text]):
        spcomp.compile(text)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "missing argument C .* a part of which is assigned"),
        (sps.csr_array((4, 5)), "got csr_array, expected an array"),
        (np.zeros((1, 5)), r"i\(1, 3, 1\) is no part of dimension 0, which is 1"),
        (np.zeros((4, 6)), "argument C"),
        (np.zeros(4), "argument C: got 1 dimensions, expected 2"),
    ],
)
def test_a_part_needs_an_array_that_has_it(given, message):
    kernel = spcomp.compile("C[i(1, 3), j] = A[i(0, 2), j]")
    with pytest.raises(ArgumentError, match=message):
        kernel(A=MATRIX, C=given)
    locked = np.zeros((4, 5))
    locked.flags.writeable = False
    with pytest.raises(ArgumentError, match="cannot be written"):
        kernel(A=MATRIX, out=locked)
    with pytest.raises(ArgumentError, match="calls take it"):
        spcomp.compile("C[0, j] += A[0, j]").bind(C=np.zeros((4, 5)))


def test_parts_of_a_result_are_made_of_objects_too():
    i, j = spcomp.indices("i j")
    A, B, C, D = spcomp.symbols("A B C D")
    C[i, 1] += A[i] * 2
    c = np.ones((3, 3))
    assert spcomp.compile(C)(A=np.arange(3.0), C=c) is c
    np.testing.assert_array_equal(c, [[1, 1, 1], [1, 3, 1], [1, 5, 1]])
    D[i(0, 3), j] = B[i, j]
    d = np.zeros((4, 2))
    spcomp.compile(D)(B=np.ones((3, 2)), out=d)
    np.testing.assert_array_equal(d, [[1, 1], [1, 1], [1, 1], [0, 0]])
