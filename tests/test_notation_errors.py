"""What is wrong with a string of index notation is shown where it stands in it."""

from __future__ import annotations

import contextlib
import random
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError, ScriptError, SpcompError
from spcomp.kernels.notation.arguments import type_of

MATRIX = sps.csr_array(np.eye(3))

TEXTS = {
    "y[i] = A[i,j": (8, "'[' was never closed"),
    "y[i] = (x[i] if m[i]": (7, "'(' was never closed"),
    "": (0, "no statement"),
    "y[i] == 3": (0, "assigns one tensor"),
    "y[i] = z[i] = x[i]": (0, "assigns one tensor"),
    "y[i] *= x[i]": (0, "assigns one tensor"),
    "f(i) = x[i]": (None, "no index notation"),
    "y[i] = A[i] @ x[i]": (7, "@ has no meaning"),
    "y[i] = foo(x[i])": (7, "no foo is known"),
    "y[i] = exp(x[i], 2)": (7, "exp takes 1 argument, got 2"),
    "y[i] = x[i+1]": (9, "i + 1 is no index"),
    "y[i] = x[i] < z[i] < 2": (7, "do not chain"),
    "y[i] = 'a' * x[i]": (7, "is no number"),
    "y[i] = (x[i] if m[i]) @ x[i]": (7, "@ has no meaning"),
    "y[i,i] = x[i]": (0, "occurs twice in the result"),
    "y[i] = x[i(0, 4, 0)]": (9, "step of a window is not 0"),
    "y[i] = x[i(a)]": (9, "ends of a window"),
    "y[i] = x[i([1, a])]": (11, "coordinates of an index set"),
    "y[i] = x[i([-1])]": (11, "coordinates of an index set"),
    "y[i] = sum(x[i])": (7, "sum takes an index and a value"),
    "y[i] = sum(j, x[i])": (7, "sum runs over j, which is no index of anything"),
    "y[i] = sum(j, x[i]) + z[j]": (7, "j does not occur in what is reduced"),
    "y[i] = sum(i, x[i])": (7, "reduced, and an index of the result"),
    "y[i] = x[i] + x[i,j]": (14, "2 indices here, and with 1"),
    "y[i] = y[i] + x[i]": (7, "read before it is assigned"),
    "y[i] += x[i] * y[j]": (15, "read before it is assigned"),
    "i[i] = x[i]": (0, "is an index and a tensor"),
    "y[i] = lambda: 3": (7, "has no meaning here"),
    "y[i] = x[i]\nz[i] = q[i] @ x[i]": (7, "@ has no meaning"),
    "y[i] = " + "(" * 300 + "x[i]" + ")" * 300: (None, ""),
}


@pytest.mark.parametrize("text", [t for t in TEXTS if TEXTS[t][1]])
def test_an_error_points_into_the_string(text):
    column, message = TEXTS[text]
    with pytest.raises(ScriptError) as caught:
        spcomp.compile(text)(x=np.ones(3), z=np.ones(3))
    assert message in caught.value.message
    assert caught.value.span is not None
    if column is not None:
        assert caught.value.span.col == column
    if text:
        line = str(caught.value).splitlines()[1]
        assert line.endswith(text.splitlines()[caught.value.span.line - 1])


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("y[i] = A.T[i, j] * x[j]", "a transpose is read with its indices swapped: A[j, i]"),
        ("y[i] = np.exp(x[i])", "write exp(...)"),
        ("y[i] = np.sum(j, A[i, j])", "write sum(k, A[i, k])"),
        ("y[i] = np.linspace(x[i])", ""),
        ("y[i] = blend(x[i])", "functions={'blend': lambda x: ...} gives it a meaning"),
        ("y[i] = maximum(x[i])", ""),
    ],
)
def test_what_numpy_writes_in_another_way_is_translated(text, hint):
    with pytest.raises(ScriptError) as caught:
        spcomp.compile(text)
    assert caught.value.hint == hint


def test_a_length_that_no_argument_has_comes_with_the_result():
    kernel = spcomp.compile("y[i, k] = x[i] * k")
    with pytest.raises(ArgumentError, match="no argument gives k a length") as caught:
        kernel(x=np.ones(2))
    assert "out=" in caught.value.hint
    assert kernel(x=np.ones(2), out=np.zeros((2, 3))).tolist() == [[0, 1, 2]] * 2
    kernel = spcomp.compile("C[i, j, k] = A[i, j] * (k > 1)")
    given = spcomp.compile("C[i, j, k] = A[i, j] * B[k]")(A=sps.csr_array(np.eye(2)), B=np.ones(3))
    made = kernel(A=sps.csr_array(np.eye(2)), out=given)
    np.testing.assert_array_equal(made.to_dense(), np.einsum("ij,k->ijk", np.eye(2), [0, 0, 1]))


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("C[i, j, k] = A[i, j] * (k != d[i])", 24),
        ("C[i, j, k] = A[i, j] * A[j, i] * (k > 1)", 34),
        ("C[i, j, k] = A[i, j] * d[i]", 0),
        ("W[i, k] = d[i] * k\nC[i] = W[i, k] + sum(j, A[i, j])", 17),
        ("C[i, k] = sum(j, A[i, j] * A[j, i]) * k", 38),
    ],
)
def test_an_index_that_only_stands_as_a_number_has_no_length(text, column):
    args = {"A": sps.csr_array(np.eye(3)), "d": np.ones(3)}
    kernel = spcomp.compile(text)
    with pytest.raises(ArgumentError, match="no argument gives k a length") as caught:
        kernel(**{name: args[name] for name in kernel.arguments})
    assert caught.value.span.col == column


def test_a_column_behind_an_inserted_else_is_the_users():
    with pytest.raises(ScriptError) as caught:
        spcomp.compile("y[i] = (x[i] if m[i]) + (z[i] if m[i]) + foo(x[i])")
    assert caught.value.span.col == 41
    lines = str(caught.value).splitlines()
    assert lines[1][lines[2].index("^") :] == "foo(x[i])"


def test_deep_nests_are_refused_or_taken():
    for depth in (50, 400):
        text = "y[i] = " + " + ".join(["x[i]"] * depth)
        try:
            result = spcomp.compile(text)(x=np.ones(3))
        except SpcompError:
            continue
        np.testing.assert_array_equal(result, np.full(3, float(depth)))


CALLS = {
    "missing": ({"A": MATRIX}, "missing argument x of y"),
    "surplus": ({"A": MATRIX, "x": np.ones(3), "q": 1}, "unexpected argument q of y"),
    "rank": ({"A": MATRIX, "x": np.ones((3, 1))}, "got 2 dimensions, but 1 index stands"),
    "shape": ({"A": MATRIX, "x": np.ones(4)}, "is 4, expected 3"),
    "list": ({"A": MATRIX, "x": [1, 2, 3]}, "got list"),
    "string": ({"A": MATRIX, "x": "abc"}, "got str"),
    "complex": ({"A": MATRIX, "x": np.ones(3, complex)}, "got dtype complex128"),
    "objects": ({"A": MATRIX, "x": np.ones(3, object)}, "got dtype object"),
    "number": ({"A": 3.0, "x": np.ones(3)}, "got float"),
    "none": ({"A": MATRIX, "x": None}, "got NoneType"),
    "out": ({"A": MATRIX, "x": np.ones(3), "out": np.ones(4)}, "is 4, expected 3"),
    "out dtype": ({"A": MATRIX, "x": np.ones(3), "out": np.ones(3, int)}, "got int64"),
    "two outs": ({"A": MATRIX, "x": np.ones(3), "out": {"z": np.ones(3)}}, "z is no output"),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_call_is_told_what_is_wrong_with_an_argument(case):
    args, message = CALLS[case]
    kernel = spcomp.compile("y[i] = A[i,j] * x[j]")
    with pytest.raises(ArgumentError, match=message):
        kernel(**args)


def test_calls_by_position_are_refused():
    with pytest.raises(ArgumentError, match="by position"):
        spcomp.compile("y[i] = x[i]")(np.ones(3))


def test_options_that_do_not_exist_are_refused():
    with pytest.raises(ArgumentError, match="no Q"):
        spcomp.compile("y[i] = x[i]", formats={"Q": "csr"})
    with pytest.raises(ArgumentError, match="no format of 2 dimensions"):
        spcomp.compile("C[i,j] = A[i,j]", formats={"C": "fancy"})
    with pytest.raises(ArgumentError, match="semiring"):
        spcomp.compile("y[i] = x[i]", semiring="max_min_plus")
    with pytest.raises(ArgumentError, match="fromats: is none of"):
        spcomp.compile("y[i] = x[i]", fromats={})
    with pytest.raises(ArgumentError, match="index notation only"):
        spcomp.compile(spcomp.script, formats={})


def test_windows_outside_of_an_argument_are_refused():
    kernel = spcomp.compile("y[j] = A[7, j]")
    with pytest.raises(ArgumentError, match="no coordinate 7"):
        kernel(A=MATRIX)


def test_a_read_only_argument_with_wrong_index_arrays_is_refused():
    broken = MATRIX.copy()
    broken.indices[0] = 9
    with pytest.raises(ArgumentError, match="expected"):
        spcomp.compile("y[i] = A[i,j] * x[j]")(A=broken, x=np.ones(3))
    turned = sps.csc_array(MATRIX)
    turned.indices[0] = -1
    with pytest.raises(ArgumentError, match="expected"):
        spcomp.compile("y[i] = A[i,j] * x[j]")(A=turned, x=np.ones(3))


def test_arithmetic_that_a_dtype_lacks_is_refused_where_it_stands():
    with pytest.raises(ScriptError, match="needs integers") as caught:
        spcomp.compile("y[i] = x[i] + (x[i] & z[i])")(x=np.ones(3), z=np.ones(3))
    assert caught.value.span.col == 15


PROGRAMS = (
    "y[i] = alpha * A[j, i] * x[j] + beta * z[i]",
    "C[i, k] = (A[i, j] * B[j, k]) if M[i, k]",
    "m[i] = max(j, A[i, j]); C[i, j] = exp(A[i, j] - m[i]) / sum(k, A[i, k]) if A[i, j]",
    "C[:, j] = A[::2, j] + B[1::2, j]",
    "s = sum((i, j), abs(A[i(0, 10, 2), j]) ** 2)",
    "a[i] = argmax(j, where(A[i, j] > 0, A[i, j], -1.5e3))",
    "C[i, j] += float32(A[i, j] // 2) & ~B[i, j] | (i < j)\nd = C[0, 3]",
)
PIECES = (
    *"ijkABxy0123456789.()[]=+-*/%&|^~<>!:;,@#\"'\\ \n\t{}_`$?\u00e9\u00b2\0",
    *("if ", "else ", "and ", "not ", "lambda ", "in ", "sum(", ":=", "**", "->", "1e999", "1j"),
    *("...", "None", "yield ", "await ", "f'", "rb''", "import ", "i(", "[i", "]]"),
)


def refused(text: str) -> ScriptError | None:
    """What is wrong with *text*; nothing if it is index notation."""
    try:
        spcomp.compile(text)
    except ScriptError as error:
        return error
    return None


def typo(pick: random.Random, text: str) -> str:
    """*text* with something put in, left out, replaced or repeated."""
    kind, at = pick.randrange(4), pick.randrange(len(text) + 1)
    if kind == 3:
        end = pick.randrange(at, len(text) + 1)
        return text[:end] + text[at:end] + text[end:]
    new = "" if kind == 1 else pick.choice(PIECES)
    return text[:at] + new + text[at + (0 if kind == 0 else pick.randint(1, 3)) :]


@pytest.mark.parametrize("text", PROGRAMS)
def test_typos_are_shown_where_they_stand_or_mean_something(text):
    pick, fine = random.Random(text), 0
    for _ in range(600):
        wrong = text
        for _ in range(pick.choice((1, 1, 2, 4))):
            wrong = typo(pick, wrong)
        error = refused(wrong)
        if error is None:
            fine += 1
            continue
        assert error.span is not None, wrong
        assert error.span.col >= 0, wrong
        assert str(error).splitlines()[2].strip().startswith("^"), wrong
    assert 0 < fine < 300


@pytest.mark.parametrize("text", PROGRAMS)
def test_a_typo_that_parses_is_compiled_or_refused(text):
    pick = random.Random(text)
    for _ in range(40):
        wrong = typo(pick, text)
        if refused(wrong) is not None:
            continue
        kernel = spcomp.compile(wrong)
        ranks = kernel._runner.planner.prepared.ranks
        args = {n: np.ones((4,) * ranks[n]) if ranks[n] else 2 for n in kernel.arguments}
        with contextlib.suppress(SpcompError):
            kernel.planned(args)


def test_arrays_of_bfloat16_are_refused():
    """Their results travel as bits, which a next step would take for integers."""
    known = SimpleNamespace(name="bfloat16")  # numpy knows it by ml_dtypes only
    with pytest.raises(ArgumentError, match="argument A: got dtype bfloat16"):
        type_of("A", known)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("y(i) = A(i, j) * x(j)", "an element is written with brackets"),
        ("y[i] += A[i, j] * y[j]", "+= reads y[i] itself: give other elements as another array"),
        ("y[i] = A[i, j] ^ 2", "a power is written with **"),
        ("y[i] = sum((j, j), A[i, j])", "write each once: j"),
        ("y[i] = sum(j, sum(j, A[i, j]))", "a reduction inside has j of its own"),
    ],
)
def test_a_hint_is_about_what_was_written(text, hint):
    with pytest.raises(ScriptError) as caught:
        spcomp.compile(text)(A=MATRIX)
    assert hint in caught.value.hint
    assert "==" not in caught.value.message


def test_a_name_that_no_argument_has_is_answered_with_arguments_and_results():
    with pytest.raises(ArgumentError, match="unexpected argument Out") as caught:
        spcomp.compile("y[i] = A[i, j] * x[j]")(A=MATRIX, x=np.ones(3), Out=np.ones(3))
    assert caught.value.hint == "its arguments are A, x; out= is for y"


HUGE = "1" + "0" * 400


@pytest.mark.parametrize("text", [f"y[i] = x[i] * {HUGE}", f"y[i] = x[i] if x[i] > {HUGE}"])
def test_a_literal_that_no_float_holds_is_refused(text):
    with pytest.raises(SpcompError, match="fit"):
        spcomp.compile(text)(x=np.ones(3))
    of_constant = text.replace(HUGE, "a")
    with pytest.raises(SpcompError, match="fit"):
        spcomp.compile(of_constant, constants={"a": int(HUGE)})(x=np.ones(3))


def test_a_literal_that_no_float_holds_is_refused_in_a_script():
    text = f"""
@T.prim_func
def f(b: T.handle, n: T.int64) -> None:
    B = T.match_buffer(b, (n,), "float64")
    for i in T.serial(n):
        B[i] = {HUGE}
"""
    with pytest.raises(ScriptError, match="fit"):
        spcomp.parse(text)


@pytest.mark.parametrize("number", ["9**9**9", "1 << 9**9", "10 ** 10000", "(-9) ** 9**9"])
def test_a_literal_that_takes_long_to_compute_is_refused(number):
    with pytest.raises(ScriptError, match="more than 4096 bits") as caught:
        spcomp.compile(f"y[i] = x[i] * ({number})")(x=np.ones(3))
    assert caught.value.span is not None
    text = f"""
@T.prim_func
def f(b: T.handle, n: T.int64) -> None:
    B = T.match_buffer(b, (n,), "float64")
    for i in T.serial(n):
        B[i] = {number}
"""
    with pytest.raises(ScriptError, match="more than 4096 bits"):
        spcomp.parse(text)


def test_powers_of_literals_are_computed():
    found = spcomp.compile("y[i] = x[i] * (2.0 ** 1000 / 2 ** 999 + 1 ** 10 ** 1000)")(x=np.ones(3))
    np.testing.assert_array_equal(found, [3, 3, 3])


@pytest.mark.parametrize("read", [spcomp.compile, spcomp.parse])
def test_half_a_character_is_refused(read):
    with pytest.raises(ScriptError, match="no character"):
        read("y[i] = x[i]  # \ud800")


def test_an_argument_may_be_called_self():
    x = np.ones(3)
    kernel = spcomp.compile("y[i] = x[i] * self")
    np.testing.assert_array_equal(kernel(x=x, self=2), 2 * x)
    np.testing.assert_array_equal(kernel.bind(self=2)(x=x), 2 * x)
    np.testing.assert_array_equal(kernel.specialize(x=x, self=2)(x=x, self=2), 2 * x)
    assert "self" in kernel.explain(x=x, self=2)


def test_an_argument_that_a_call_cannot_be_given_is_refused():
    for text in ("y[i] = out[i] * 2", "y[i] = out * x[i]", "y[out[i]] = x[i]"):
        with pytest.raises(ScriptError, match="out is what a call is given") as caught:
            spcomp.compile(text)
        assert caught.value.span is not None
    with pytest.raises(ScriptError, match="out is what a call is given"):
        spcomp.adjoint("y[i] = out[i] * 2", wrt="out")
    x, y = np.ones(3), np.ones(3)
    np.testing.assert_array_equal(spcomp.compile("out[i] = x[i] * 2")(x=x), 2 * x)
    assert spcomp.compile("out[i] += x[i] * 2")(x=x, out=y) is y
    np.testing.assert_array_equal(y, 3 * x)
    number = spcomp.compile("y[i] = x[i] * out", constants={"out": 3})
    np.testing.assert_array_equal(number(x=x), 3 * x)
    adjoint = spcomp.adjoint("out[i] = exp(x[i])\nz[i] = out[i] * out[i]", wrt="x")
    found = spcomp.compile(adjoint)(x=x, grad_z=np.ones(3))
    np.testing.assert_allclose(found, 2 * np.exp(2 * x))


def test_a_tensor_that_is_assigned_twice_has_no_adjoint():
    with pytest.raises(ScriptError, match="C is assigned twice"):
        spcomp.adjoint("C[i] = x[i] * 2; C[i] = y[i] * 3", wrt=["x", "y"])
