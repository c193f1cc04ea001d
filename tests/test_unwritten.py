"""Reductions that are not written stand around products; where they could stand in two places they
are refused, with both ways to write them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import notation as N
from spcomp.errors import ScriptError

RNG = np.random.default_rng(3)
A, B, X = ((RNG.integers(1, 5, (4, 4)) * (RNG.random((4, 4)) < 0.6)) * 1.0 for _ in range(3))
X += 1
x, z = np.arange(1.0, 5.0), np.array([2.0, 0.0, 1.0, 3.0])
GIVEN = {"A": A, "B": B, "X": X, "x": x, "z": z, "b": x, "c": x > 2, "d": z, "alpha": 2.0}

# What is refused: where, and how it can be written with the sum outside, and inside.
UNCLEAR = {
    "Y[i, k] = maximum(A[i, j] * X[j, k] + b[k], 0)": (
        10,
        "sum(j, maximum(A[i, j] * X[j, k] + b[k], 0))",
        "maximum(sum(j, A[i, j] * X[j, k]) + b[k], 0)",
    ),
    "Y[i, k] = tanh(A[i, j] * X[j, k])": (
        10,
        "sum(j, tanh(A[i, j] * X[j, k]))",
        "tanh(sum(j, A[i, j] * X[j, k]))",
    ),
    "s = sqrt(x[i] * x[i])": (4, "sum(i, sqrt(x[i] * x[i]))", "sqrt(sum(i, x[i] * x[i]))"),
    "s = exp(x[i])": (4, "sum(i, exp(x[i]))", "exp(sum(i, x[i]))"),
    "s = x[i] ** 2": (4, "sum(i, x[i] ** 2)", "sum(i, x[i]) ** 2"),
    "y[i] = maximum(A[i, j] * x[j], 0) * z[i]": (
        7,
        "sum(j, maximum(A[i, j] * x[j], 0) * z[i])",
        "maximum(sum(j, A[i, j] * x[j]), 0) * z[i]",
    ),
    "y[i] = -float32(exp(A[i, j])) / z[i]": (
        16,
        "sum(j, -float32(exp(A[i, j])) / z[i])",
        "-float32(exp(sum(j, A[i, j]))) / z[i]",
    ),
    "y[i] = exp(A[i, j]) if A[i, j]": (
        7,
        "sum(j, exp(A[i, j]) if A[i, j])",
        "exp(sum(j, A[i, j] if A[i, j]))",
    ),
    "y[i] = exp(A[i, j]) if z[i]": (
        7,
        "sum(j, exp(A[i, j]) if z[i])",
        "exp(sum(j, A[i, j])) if z[i]",
    ),
    "y[i] = z[i] + abs(A[i, j] * x[j] - B[i, j])": (
        14,
        "sum(j, abs(A[i, j] * x[j] - B[i, j]))",
        "abs(sum(j, A[i, j] * x[j]) - sum(j, B[i, j]))",
    ),
    "y[i] = A[i, j] > 0": (7, "sum(j, A[i, j] > 0)", "sum(j, A[i, j]) > 0"),
    "y[i] = A[i, j] if c[i] else 0": (
        7,
        "sum(j, A[i, j] if c[i] else 0)",
        "sum(j, A[i, j]) if c[i] else 0",
    ),
    "y[i] = where(c[i], A[i, j], 1)": (
        7,
        "sum(j, where(c[i], A[i, j], 1))",
        "where(c[i], sum(j, A[i, j]), 1)",
    ),
    "y[i] = z[i] / x[j]": (7, "sum(j, z[i] / x[j])", "z[i] / sum(j, x[j])"),
    "C[i, j] = A[i, j] / A[i, k]": (10, "sum(k, A[i, j] / A[i, k])", "A[i, j] / sum(k, A[i, k])"),
    "y[i] = 2 * (A[i, j] * x[j] + b[i])": (
        12,
        "sum(j, 2 * (A[i, j] * x[j] + b[i]))",
        "2 * (sum(j, A[i, j] * x[j]) + b[i])",
    ),
    "y[i] = exp(A[i, j] * B[j, k]) * x[k]": (
        7,
        "sum((j, k), exp(A[i, j] * B[j, k]) * x[k])",
        "sum(k, exp(sum(j, A[i, j] * B[j, k])) * x[k])",
    ),
    "y[i] = max(k, A[i, j] * B[j, k])": (
        7,
        "sum(j, max(k, A[i, j] * B[j, k]))",
        "max(k, sum(j, A[i, j] * B[j, k]))",
    ),
    "y[i] = sum(k, exp(A[i, j] * B[j, k]))": (
        14,
        "sum(j, sum(k, exp(A[i, j] * B[j, k])))",
        "sum(k, exp(sum(j, A[i, j] * B[j, k])))",
    ),
    "y[i] = A[i, j] and B[i, j]": (
        7,
        "sum(j, A[i, j] and B[i, j])",
        "sum(j, A[i, j]) and sum(j, B[i, j])",
    ),
    "y[i] = (exp(x[j]) + A[i, j]) * z[i]": (
        8,
        "sum(j, (exp(x[j]) + A[i, j]) * z[i])",
        "(exp(sum(j, x[j])) + sum(j, A[i, j])) * z[i]",
    ),
}


@pytest.mark.parametrize("text", UNCLEAR)
@pytest.mark.sample(8)
def test_a_sum_that_could_stand_in_two_places_is_refused_with_both(text):
    column, outside, inside = UNCLEAR[text]
    with pytest.raises(ScriptError) as caught:
        spcomp.compile(text)
    assert "is not written, and could stand around" in caught.value.message
    assert caught.value.hint == f"write {outside}, or {inside}"
    assert caught.value.span is not None
    assert caught.value.span.col == column
    for written in (outside, inside):  # both can be written where it stood
        kernel = spcomp.compile(f"{text.split(' = ')[0]} = {written}")
        kernel(**{name: GIVEN[name] for name in kernel.arguments})


def relu(values: np.ndarray) -> np.ndarray:
    return np.maximum(values, 0)


CLEAR = {  # an index stands in an operand, or in two factors
    "y[i] = A[i, j] * exp(x[j])": A @ np.exp(x),
    "Y[i, k] = tanh(A[i, j]) * X[j, k]": np.tanh(A) @ X,
    "s = x[i] * sqrt(x[i])": (x * np.sqrt(x)).sum(),
    "y[i] = A[i, j] * exp(z[i])": A.sum(1) * np.exp(z),
    "y[i] = A[i, j] * maximum(z[i], 1) / x[i]": A.sum(1) * np.maximum(z, 1) / x,
    "y[i] = A[i, j] / x[j]": (A / x).sum(1),
    "y[i] = A[i, j] * (x[j] + 1)": A @ (x + 1),
    "y[i] = A[i, j] * (i < j)": np.triu(A, 1).sum(1),
    "y[i] = -float32(A[i, j] * x[j])": -(A @ x),
    "y[i] = A[i, j] if B[i, j] > 1": (A * (B > 1)).sum(1),
    "y[i] = (x[j] - z[i]) if B[i, j] > 1": ((x - z[:, None]) * (B > 1)).sum(1),
    "y[i] = 2 * (A[i, j] * x[j] + B[i, j])": 2 * (A @ x + B.sum(1)),
    "y[i] = sum(k, A[i, j] * B[j, k])": (A @ B).sum(1),
    "y[i] = A[i, j] * x[j] + exp(z[i])": A @ x + np.exp(z),
    "y[i] = A[i, j] * x[j] + z[i] if c[i]": (A @ x + z) * (x > 2),
    "y[i] = sum(j, relu(A[i, j] * x[j])) + A[i, j]": relu(A * x).sum(1) + A.sum(1),
}


@pytest.mark.parametrize("text", CLEAR)
def test_a_sum_around_a_product_need_not_be_written(text):
    positive = spcomp.Function(lambda value: N.maximum(value, 0))
    kernel = spcomp.compile(text, functions={"relu": positive})
    for layout in ("dense", "csr", "csc"):
        if layout != "dense" and "X[j" in text:
            continue
        own = {n: GIVEN[n] for n in kernel.arguments}
        matrices = own.keys() & {"A", "B"} if layout != "dense" else set()
        own |= {n: spcomp.convert(own[n], layout) for n in matrices}
        np.testing.assert_allclose(kernel(**own), CLEAR[text], rtol=1e-6)


def test_the_product_of_a_semiring_is_one_and_its_sum_is_called_by_its_name():
    both = spcomp.compile("y[i] = A[i, j] and B[i, j]", semiring="or_and")
    np.testing.assert_array_equal(both(A=A > 0, B=B > 0), ((A > 0) & (B > 0)).any(1))
    least = spcomp.compile("y[i] = maximum(A[i, j], x[j])", semiring="min_max")
    np.testing.assert_array_equal(least(A=X, x=x), np.maximum(X, x).min(1))
    for semiring, text, word in (
        ("min_plus", "y[i] = exp(A[i, j] * x[j])", "min"),
        ("or_and", "y[i] = A[i, j] or x[j]", "any"),
    ):
        with pytest.raises(ScriptError, match=f"the {word} over j is not written") as caught:
            spcomp.compile(text, semiring=semiring)
        assert caught.value.hint.startswith(f"write {word}(j, ")
    least = spcomp.compile("y[i] = A[i, j] * x[j] + x[i]", semiring="min_plus")
    np.testing.assert_array_equal(least(A=X, x=x), np.minimum((X + x).min(1), x))


def test_a_function_of_the_users_and_an_expression_of_objects_are_refused_alike():
    twice = spcomp.Function(lambda value: 2 * value)
    with pytest.raises(ScriptError) as caught:
        spcomp.compile("y[i] = f(A[i, j])", functions={"f": twice})
    assert caught.value.hint == "write sum(j, f(A[i, j])), or f(sum(j, A[i, j]))"
    i, j = spcomp.indices("i j")
    a, y = spcomp.symbols("A y")
    y[i] = N.exp(a[i, j])
    with pytest.raises(ScriptError, match=r"could stand around exp\(A\[i, j\]\) or inside"):
        spcomp.compile(y)


# -- over everything beside a sparse operand -------------------------------------------------------

DENSELY = {
    "y[i] = (A[i, j] + x[j]) * z[i]": (8, "(A[i, j] + x[j]) * z[i]"),
    "Y[i, k] = (A[i, j] + (i == j)) * X[j, k]": (11, "(A[i, j] + (i == j)) * X[j, k]"),
    "y[i] = x[j] * (A[i, j] - 1)": (15, "x[j] * (A[i, j] - 1)"),
    "y[i] = exp(A[i, j] - X[i, j]) * x[j]": (11, "exp(A[i, j] - X[i, j]) * x[j]"),
}


@pytest.mark.parametrize("text", DENSELY)
def test_a_sum_that_would_leave_the_pattern_of_an_operand_is_refused(text):
    column, body = DENSELY[text]
    kernel = spcomp.compile(text)
    given = {name: GIVEN[name] for name in kernel.arguments}
    dense = kernel(**given)
    for layout in ("csr", "csc", "coo", "hash"):
        given |= {"A": spcomp.convert(A, layout)}
        with pytest.raises(ScriptError) as caught:
            kernel(**given)
        assert "would run over every j, not over what A[i, j] stores" in caught.value.message
        assert (
            caught.value.hint == f"write sum(j, {body}) for every j, or sum(j, {body} if A[i, j])"
        )
        assert caught.value.span is not None
        assert caught.value.span.col == column
    target = text.split(" = ")[0]
    every = spcomp.compile(f"{target} = sum(j, {body})")(**given)
    np.testing.assert_allclose(every, dense)
    spcomp.compile(f"{target} = sum(j, {body} if A[i, j])")(**given)


@pytest.mark.parametrize(
    "text",
    [
        "y[i] = A[i, j] * (x[j] + 1)",
        "y[i] = (A[i, j] + B[i, j]) * x[j]",
        "Y[i, k] = (A[i, j] + x[j]) * B[j, k]",
        "y[i] = (A[i, j] + x[j]) if B[i, j]",
        "y[i] = sum(j, (A[i, j] + x[j]) * z[i])",
    ],
)
def test_a_sum_that_keeps_to_what_is_stored_or_is_written_is_not(text):
    kernel = spcomp.compile(text)
    given = {name: GIVEN[name] for name in kernel.arguments}
    sparse = {n: sps.csr_array(v) if n in ("A", "B") else v for n, v in given.items()}
    if "if" in text:
        given["x"] = GIVEN["x"]
        want = ((A + x) * (B != 0)).sum(1)
    else:
        want = kernel(**given)
    np.testing.assert_allclose(kernel(**sparse), want)


@pytest.mark.parametrize("semiring", ["min_plus", "max_min"])
def test_what_is_negated_is_reduced_outside_or_inside_of_a_semiring_that_is_no_sum(semiring):
    add = semiring[:3]
    for text in ("y[i] = -A[i, j]", "y[i] = z[i] + (-A[i, j] if x[i])"):
        with pytest.raises(ScriptError, match=f"the {add} over j .* around -A") as caught:
            spcomp.compile(text, semiring=semiring)
        outside, inside = caught.value.hint.removeprefix("write ").split(", or ")
        assert outside.startswith(f"{add}(j, -A[i, j]")
        assert inside.startswith(f"-{add}(j, A[i, j])")
    kernel = spcomp.compile(f"y[i] = z[i] + {add}(j, -A[i, j])", semiring=semiring)
    empty = sps.csr_array((4, 4))
    np.testing.assert_array_equal(kernel(A=empty, z=z), z)  # nothing takes no part
