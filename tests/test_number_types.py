"""Which type numbers have that meet: numpy's rule, wherever the expression stands."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.compiler.pipeline import lower
from spcomp.errors import ArgumentError, ScriptError
from spcomp.ir.interpret.program import interpret
from spcomp.script.parse import parse_source
from tests.layers import TARGET

WHOLE = ("bool", "uint8", "int8", "uint32", "int64", "uint64")
FLOATS = ("float16", "float32", "float64")
OPS: dict[str, Callable[[Any, Any], Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "//": np.floor_divide,
    "%": np.mod,
    "<": np.less,
    "==": np.equal,
    "&": np.bitwise_and,
}
COUNTS = ("+", "-", "*", "//", "%")  # in which two bools are 0 and 1
PLACES = {
    "{}": lambda x: x,
    "({}) * c[i]": lambda x: x * np.ones(6, np.int8),
    "abs({})": lambda x: np.abs(count(x)),
    "where({}, 1, 0)": lambda x: (x != 0).astype(np.int64),
    "({}) if c[i] > 0 else 0": lambda x: x if x.dtype != bool else x.astype(np.int64),
    "sum(i, {})": lambda x: np.add.reduce(count(x), dtype=count(x).dtype),
    "max(i, {})": lambda x: count(x).max(),
}


def count(x: Any) -> Any:
    """Bools as numbers."""
    return x.astype(np.int64) if x.dtype == bool else x


def values(dtype: str) -> np.ndarray:
    """The ends of a type, and what lies between; no zero."""
    if dtype == "bool":
        return np.array([1, 1, 1, 1, 1, 1], bool)
    if dtype in FLOATS:
        return np.array([1.5, 2, -3, 4, 0.5, 7], dtype)
    ends = np.iinfo(dtype)
    return np.array([ends.max, 3, 1, 2, ends.min or 5, 7], dtype)


def meet(op: str, a: np.ndarray, b: np.ndarray) -> Any:
    """What numpy gives, with the exceptions that are documented; None: it is refused."""
    if a.dtype == b.dtype == bool and op in COUNTS:
        a, b = count(a), count(b)
    whole = [x.dtype.kind != "f" for x in (a, b)]
    if any(whole) and not all(whole):  # a float's type holds for integers that meet it
        common = b.dtype if whole[0] else a.dtype
        a, b = a.astype(common), b.astype(common)
    with np.errstate(all="ignore"):
        try:
            return OPS[op](a, b)
        except TypeError:
            return None


def cases(first: str, second: str) -> Iterator[tuple[str, str, Any]]:
    """Operator, program and result, of every operator in every place."""
    a, b = values(first), np.roll(values(second), 1)
    for op, place in product(OPS, PLACES):
        want = meet(op, a, b)
        yield op, place.format(f"a[i] {op} b[i]"), None if want is None else PLACES[place](want)


@pytest.mark.parametrize(
    ("first", "second"), [*combinations_with_replacement(WHOLE, 2), ("uint64", "int64")]
)
@pytest.mark.sample(16, long=6)
def test_whole_numbers_meet_as_numpys_do_in_every_place(first, second):
    args = {"a": values(first), "b": np.roll(values(second), 1), "c": np.ones(6, np.int8)}
    texts, wanted = [], []
    for op, text, want in cases(first, second):
        target = f"C{len(texts)}" if text.startswith(("sum", "max")) else f"C{len(texts)}[i]"
        if want is None:
            kernel = spcomp.compile(f"{target} = {text}")
            with pytest.raises(ScriptError, match=re.escape(op)):
                kernel(**{name: args[name] for name in kernel.arguments})
            continue
        texts.append(f"{target} = {text}")
        wanted.append(want)
    for text, made, want in zip(
        texts, spcomp.compile("\n".join(texts))(**args), wanted, strict=True
    ):
        exact = text.count("sum") == 0 or np.asarray(want).dtype.kind != "f"  # the order is ours
        rtol = 0 if exact else 1e-14
        np.testing.assert_allclose(made, want, rtol=rtol, err_msg=text, strict=True)
        assert made.dtype == want.dtype, text


@pytest.mark.parametrize(
    ("whole", "floating"),
    [*product(["bool", "uint8", "int64", "uint64"], FLOATS[1:]), ("uint8", "float16")],
)
def test_a_float_gives_its_type_to_the_integers_it_meets(whole, floating):
    a, b = values(whole), values(floating)
    for op in ("+", "*", "/"):
        for one, other in ((a, b), (b, a)):
            made = spcomp.compile(f"C[i] = a[i] {op} b[i]")(a=one, b=other)
            np.testing.assert_array_equal(made, meet(op, one, other))
            assert made.dtype == floating


SCRIPT = """from spcomp import script as T
@T.prim_func
def f(a: T.handle, b: T.handle, c: T.handle, n: T.int32) -> None:
    I = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I,), "{first}")
    B = T.match_sparse_buffer(b, (I,), "{second}")
    C = T.match_sparse_buffer(c, (I,), "{result}")
    with T.sp_iter([I], "S", "it") as [i]:
        C[i] = {value}
"""


def run(func: Any, **arrays: np.ndarray) -> np.ndarray:
    """What a script makes of *c*, the same at every stage."""
    stages = lower(func, TARGET)
    found = []
    for module in (stages.coordinate, stages.position, stages.flat):
        own = {name: array.copy() for name, array in arrays.items()}
        interpret(module, {**own, "n": len(arrays["a"])})
        found.append(own["c"])
    spcomp.compile(func)(*arrays.values(), len(arrays["a"]))
    for other in found:
        np.testing.assert_array_equal(other, arrays["c"])
    return arrays["c"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("uint64", "int8"),
        ("int64", "uint64"),
        ("uint8", "int8"),
        ("bool", "uint8"),
        ("int32", "uint32"),
    ],
)
def test_whole_numbers_meet_as_numpys_do_in_scripts(first, second):
    a, b = values(first), np.roll(values(second), 1)
    for op in OPS:
        want = meet(op, a, b)
        result = "int64" if want is None else str(want.dtype)
        text = SCRIPT.format(first=first, second=second, result=result, value=f"A[i] {op} B[i]")
        if want is None:
            with pytest.raises(ScriptError, match="no integer type holds both"):
                parse_source(text, "types.py")
            continue
        made = run(parse_source(text, "types.py")[0], a=a, b=b, c=np.zeros(6, want.dtype))
        np.testing.assert_array_equal(made, want, err_msg=op)


LITERALS = {
    "u[i] < -1": False,
    "-1 < u[i]": True,
    "u[i] == 256": False,
    "256 != u[i]": True,
    "u[i] <= 256": True,
    "300 <= u[i]": False,
    "(u[i] + b[i]) * 2 < 1": True,
    "u[i] + (3 - 1)": 1,
    "u[i] + 2 ** 3": 7,
    "u[i] + True": 0,
    "u[i] + (b[i] if u[i])": 0,
    "u[i] + (1 if u[i])": 0,
    "fma(b[i], u[i], b[i])": 0,
}


@pytest.mark.parametrize("text", LITERALS)
def test_literals_take_the_type_of_what_they_meet(text):
    kernel = spcomp.compile(f"C[i] = {text}")
    args = {"u": np.array([255], np.uint8), "b": np.array([True])}
    made = kernel(**{name: args[name] for name in kernel.arguments})
    assert made[0] == LITERALS[text]
    assert made.dtype == (bool if isinstance(LITERALS[text], bool) else np.uint8)


@pytest.mark.parametrize(
    "text",
    ["u[i] + 300", "u[i] * (1 - 3)", "maximum(u[i], -1)", "u[i] + (1 - 3)", "i - (u[i] + 300)"],
)
def test_a_literal_that_its_type_does_not_hold_is_refused(text):
    with pytest.raises(ScriptError, match=r"literal -?[0-9]+ does not fit uint8"):
        spcomp.compile(f"C[i] = {text}")(u=np.array([255], np.uint8))


def test_what_python_cannot_compute_of_literals_is_refused():
    with pytest.raises(ScriptError, match="1 / 0 cannot be computed: division by zero"):
        spcomp.compile("C[i] = x[i] * (1 / 0)")(x=np.ones(2))
    with pytest.raises(ScriptError, match=r"acos\(2.5\) cannot be computed: "):
        spcomp.compile("C[i] = x[i] * acos(2.5)")(x=np.ones(2))
    with np.errstate(invalid="ignore"):
        assert np.isnan(spcomp.compile("C[i] = x[i] * acos(a)")(x=np.ones(2), a=2.5)).all()
    assert spcomp.compile("C[i] = x[i] * exp(1)")(x=np.ones(1))[0] == math.e


@pytest.mark.parametrize("value", ["A[i] < -1", "A[i] != 256", "256 > A[i]"])
def test_scripts_compare_literals_by_value(value):
    text = SCRIPT.format(first="uint8", second="uint8", result="bool", value=value)
    arrays = {"a": values("uint8"), "b": values("uint8"), "c": np.zeros(6, bool)}
    assert run(parse_source(text, "types.py")[0], **arrays).tolist() == ["<" not in value] * 6


def stored_as(x: np.ndarray, how: str) -> Any:
    return x if how == "dense" else spcomp.convert(x, spcomp.Format(how))


@pytest.mark.parametrize("how", ["dense", "csr", "csc", "dcsr", "hash"])
@pytest.mark.parametrize("sums", ["D[j, i]", "sum(j, D[j, i])"])
def test_a_sum_has_the_type_of_its_terms_where_it_is_an_addend(how, sums):
    d = np.array([[5, 65534, 0], [65535, 1, 3], [0, 4, 2]], "uint16")
    f = np.array([[0.5, 1], [2, 3], [-1, 0.25]])
    own = d.sum(0, dtype="uint16")[:, None]
    given = {"D": stored_as(d, how), "F": f}
    for text, wanted in (
        (f"C[i, l] = {sums} + F[i, l]", own + f),
        (f"C[i, l] = F[i, l] - {sums}", f - own),
        (f"C[i, l] = F[i, l] - {sums} - {sums}", f - own - own),
    ):
        np.testing.assert_array_equal(spcomp.compile(text)(**given), wanted)
    for sign in (1, -1):
        c = np.array([0.5, 2, 1])
        text = f"C[i] {'+' if sign > 0 else '-'}= {sums}"
        assert spcomp.compile(text)(D=given["D"], C=c) is c
        np.testing.assert_array_equal(c, np.array([0.5, 2, 1]) + sign * own[:, 0].astype(float))


@pytest.mark.parametrize("how", ["dense", "csr", "csc", "dcsr", "hash"])
def test_a_product_that_a_semiring_adds_by_has_the_type_of_its_terms(how):
    d = np.array([[2, 100], [30, 10], [200, 2]], "uint8")
    f = np.array([0.5, 2.0, 1.0])
    own = d.prod(1, dtype="uint8")
    given = {"D": stored_as(d, how), "F": f, "M": spcomp.convert(f[::-1] * (f > 0.5), "sparse")}
    times = spcomp.Semiring("*", "+")
    for text, wanted in (
        ("C[i] = D[i, j] + F[i]", own * f),
        ("C[i] = prod(j, D[i, j]) + prod(j, D[i, j]) + F[i]", own * own * f),
        ("C[i] = D[i, 0] + D[i, 1] + F[i]", own * f),
        ("C[i] = (D[i, j] + F[i]) if M[i]", own * f * (f > 0.5)),
    ):
        names = {name: x for name, x in given.items() if f"{name}[" in text}
        got = spcomp.compile(text, semiring=times)(**names)
        dense = got.to_dense() if isinstance(got, spcomp.Tensor) else got
        np.testing.assert_array_equal(dense, wanted, text)
    spcomp.compile("F[i] += D[i, j]", semiring=times)(D=given["D"], F=(c := f.copy()))
    np.testing.assert_array_equal(c, own * f)


TAKEN = {
    "A[i, k]": lambda a, b: a,
    "A[i, k] - B[i, k]": lambda a, b: a - b,
    "A[i, k] + A[i, k] * B[i, k]": lambda a, b: a + a * b,
    "sum(j, A[i, j] * B[j, k])": lambda a, b: a @ b,
    "A[i, j] * B[j, k] + A[i, k]": lambda a, b: a @ b + a,
    "A[i, k] * prod(j, B[j, j])": lambda a, b: a * b.diagonal().prod(dtype=a.dtype),
    "maximum(A[i, k], B[i, k])": np.maximum,
}


@pytest.mark.parametrize("text", TAKEN)
@pytest.mark.parametrize("how", ["dense", "csr", "hash"])
@pytest.mark.parametrize("dtype", ["uint8", "int64"])
@pytest.mark.sample(8, long=2)
def test_what_is_taken_away_from_a_given_result_is_negated_in_its_type(text, how, dtype):
    least = np.iinfo(dtype).min  # of which the negative is itself, or 255 of 1
    a, b = (np.array([[x, 100], [30, y]], dtype) for x, y in ((least or 1, 3), (1, 5)))
    c = np.array([[0.5, 1.0], [0.0, 2.0]])
    with np.errstate(over="ignore"):
        wanted = c - TAKEN[text](a, b)
    kernel = spcomp.compile(f"C[i, k] -= {text}")
    given = {name: stored_as(x, how) for name, x in (("A", a), ("B", b)) if f"{name}[" in text}
    full = sps.csr_array(np.ones((2, 2)))
    full.data[:] = c.ravel()
    for result in (c,) if how == "dense" else (c, full, sps.csr_array(c)):
        got = kernel(**given, C=result.copy())
        dense = got if isinstance(got, np.ndarray) else got.toarray()
        np.testing.assert_array_equal(dense, wanted)


def test_a_number_that_is_summed_has_the_type_of_its_terms():
    a, b = np.array([-128, -3], "i1"), np.array([0.5, 0.5, 0.5])
    assert spcomp.compile("C = sum(i, A[i]) - sum(j, B[j])")(A=a, B=b) == 125 - 1.5
    counted = spcomp.compile("C = A[i, j] + x")
    assert counted(A=np.ones((300, 2), bool), x=0.5) == 600.5


@pytest.mark.parametrize(
    "text",
    [
        "A[i] - B[i] - E[i]",
        "E[i] + (A[i] - B[i])",
        "E[i] - (A[i] - B[i])",
        "A[i] - E[i] - B[i]",
        "E[i] - -A[i] + B[i]",
        "maximum(A[i] - B[i] - E[i], -1000)",
        "A[i] + B[i] + 250 + E[i]",
    ],
)
@pytest.mark.parametrize("how", ["dense", "sparse"])
def test_addends_are_combined_in_pairs_as_numpy_does(text, how):
    vectors = {
        "A": np.array([2, 3], "u1"),
        "B": np.array([4, 5], "u1"),
        "E": np.array([-1.25, 0.5]),
    }
    names = {"maximum": np.maximum, **vectors}
    with np.errstate(over="ignore"):
        wanted = eval(text.replace("[i]", ""), names)
    given = vectors if how == "dense" else {n: spcomp.convert(x, how) for n, x in vectors.items()}
    found = spcomp.compile(f"y[i] = {text}")(**given)
    dense = found.to_dense() if isinstance(found, spcomp.Tensor) else found
    np.testing.assert_array_equal(dense, wanted)


PAIRS = {  # with a Python float a, int8 n, int64 p, uint64 q, float32 x, bool b
    "a + n[i] + x[i]": "float64",
    "n[i] + a + x[i]": "float64",
    "x[i] + n[i] + a": "float32",
    "a + (n[i] + x[i])": "float32",
    "x[i] - (n[i] - a)": "float64",
    "-n[i] - a + x[i]": "float64",
    "p[i] + q[i] + x[i]": "float64",
    "x[i] + p[i] + q[i]": "float32",
    "x[i] + (p[i] - q[i])": "float64",
    "b[i] + b[i] + n[i]": "int64",
    "a + (n[i] if x[i] > 0) + x[i]": "float64",
}


@pytest.mark.parametrize("text", PAIRS)
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.sample(8, long=2)
def test_a_sum_has_the_type_of_its_pairs_whatever_the_formats(text, fixed):
    n, x = np.int8([2, 0, -3, 0]), np.float32([0.5, 3, 0, 0])
    vectors = {"n": n, "p": n.astype("i8"), "q": np.uint64([0, 4, 5, 0]), "x": x, "b": n > 0}
    names = [name for name in vectors if f"{name}[" in text]
    number = {"a": 0.25} if "a" in re.findall("[a-z]+", text) else {}
    for program in (f"y[i] = {text}", f"y = {text}"):
        kernel = spcomp.compile(program, constants=number if fixed else {})
        for hows in product(("dense", "sparse"), repeat=len(names)):
            given = {k: stored_as(vectors[k], how) for k, how in zip(names, hows, strict=True)}
            found = kernel(**given, **({} if fixed else number))
            bound = kernel.bind(**given)(**({} if fixed else number))
            assert found.dtype == bound.dtype == PAIRS[text], (program, hows)


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint64"])
def test_a_pair_is_an_int64_whatever_it_meets(dtype):
    kernel = spcomp.compile("C[i, j] = A[i] * A[j] - U[i, j]", semiring="plus_pair")
    found = kernel(A=np.ones(2, dtype), U=np.full((2, 2), 4, "uint8"))
    assert found.dtype == np.int64
    assert np.all(found == -3)


NUMBERS = {  # with float32 x, float64 z, uint8 u
    "a * x[i]": (2, "float32"),
    "(1 - a) * x[i]": (0.5, "float32"),
    "a * b * x[i]": (0.5, "float32"),
    "exp(a) * x[i]": (1, "float32"),
    "(a if x[i] > b else -b) * x[i]": (0.5, "float32"),
    "a * u[i] + a * z[i]": (3, "float64"),
    "a + u[i]": (True, "uint8"),
    "a / 2 * u[i]": (3, "float64"),
    "a / 2 * x[i]": (3, "float32"),
    "(a + 1) * u[i]": (3, "uint8"),
    "a * u[i]": (0.5, "float64"),
    "(a > 1) + u[i]": (2, "uint8"),
    "u[i] * (u[i] < a)": (300, "uint8"),
}


@pytest.mark.parametrize("text", NUMBERS)
@pytest.mark.sample(8, long=2)
def test_a_python_number_gives_way_wherever_it_stands(text):
    """As numpy's do, whatever else a program has, and whether it is an argument or a constant."""
    number, dtype = NUMBERS[text]
    own = {"x": np.float32([3, 0.25]), "z": np.array([0.5, 2]), "u": np.uint8([2, 7])}
    given = {"a": number, "b": 0.5, **own}
    kernel = spcomp.compile(f"y[i] = {text}\nt[j] = c[j] * a")
    used = {name: given[name] for name in kernel.arguments if name in given}
    scope = {"exp": lambda a: math.exp(a), **given}
    for c in (np.ones(3, "f4"), np.ones(3), np.ones(3, "i8")):
        found = kernel(**used, c=c).y
        if " if " not in text:
            wanted = eval(text.replace("[i]", ""), scope)
            np.testing.assert_array_equal(found, wanted)
        assert found.dtype == dtype
        both = {name: value for name, value in used.items() if name in "ab"}
        folded = spcomp.compile(str(kernel.program), constants=both)
        same = folded(**{name: used[name] for name in used if name not in both}, c=c).y
        np.testing.assert_array_equal(same, found)
        assert same.dtype == dtype


def test_a_python_number_has_its_types_however_a_program_is_cut():
    texts = "t[k, l] = (B * D[l]) * E[k]", "C[i, l] += F[i, j] * G[l]"
    first = {"B": 0.1, "D": np.float32([3, 7]), "E": np.float32([0.3, 11])}
    second = {"F": np.ones((2, 3)), "G": np.array([0.1, 2])}
    alone = spcomp.compile(texts[0])(**first)
    made = spcomp.compile("; ".join(texts))(**first, **second, C=np.zeros((2, 2)))
    assert made.t.dtype == alone.dtype == np.float32
    np.testing.assert_array_equal(made.t, alone)


@pytest.mark.parametrize(
    "text", ["C[i, j] = a * A[i, j] + B[i, j] * b", "C[i, k] = a * A[i, j] * B[j, k] + b * D[i, k]"]
)
def test_programs_of_several_steps_take_python_numbers_as_one_does(text):
    a, b = np.float32([[0.3, 0], [0, 7]]), np.float32([[0, 3], [0.7, 0]])
    d = np.array([[0.1, 2], [3, 0]])
    kernel = spcomp.compile(text)
    given = {"A": a, "B": b, "D": d, "a": 0.1, "b": 3}
    given = {name: given[name] for name in kernel.arguments}
    dense = kernel(**given)
    stored = {n: spcomp.convert(x, "csr") if np.ndim(x) else x for n, x in given.items()}
    found = spcomp.compile(text)(**stored)
    assert found.dtype == dense.dtype
    np.testing.assert_allclose(found.toarray(), dense, rtol=1e-6)


@pytest.mark.parametrize("number", ["a", "0.5", "k", "2"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_sum_of_python_numbers_under_masks_is_not_cut_from_what_gives_it_its_type(number, dtype):
    masks = {name: np.eye(5, k=k) for k, name in enumerate("MNOP")}
    x = np.eye(5, k=1).astype(dtype)
    terms = [f"({number} if {name}[i, j])" for name in masks]
    given = {name: spcomp.convert(one, "csr") for name, one in {**masks, "X": x}.items()}
    numbers = {"a": 0.5, "k": 2}
    kernel = spcomp.compile(f"C[i, j] = {' + '.join(terms)} + X[i, j]")
    found = kernel(**given, **{name: numbers[name] for name in numbers if name == number})
    value = eval(number, numbers)
    assert found.dtype == (value + x).dtype
    np.testing.assert_array_equal(found.toarray(), value * sum(masks.values()) + x)


@pytest.mark.parametrize("text", ["a * u[i]", "(a - 1) * u[i]", "a * u[i] + a * z[i]"])
def test_a_python_number_that_its_type_does_not_hold_is_refused(text):
    kernel = spcomp.compile(f"y[i] = {text}")
    given = {"u": np.ones(2, "u1"), "z": np.ones(2)}
    with pytest.raises(ArgumentError, match="argument a: 300, expected a value that uint8 holds"):
        kernel(**{name: given[name] for name in kernel.arguments if name != "a"}, a=300)


def test_what_no_type_holds_of_python_numbers_is_refused():
    with pytest.raises(ScriptError, match="- of Python numbers does not fit uint8"):
        spcomp.compile("y[i] = -a * u[i]")(a=3, u=np.ones(2, "u1"))
    with pytest.raises(ArgumentError, match="beyond every float64"):
        spcomp.compile("y[i] = a * x[i]")(a=10**400, x=np.ones(2))


def test_a_product_of_narrow_integers_and_a_literal_is_not_summed_in_them():
    a = np.full((3, 3), 100, "i1")
    found = spcomp.compile("C[i, l] = 0.5 * A[i, j] * B[j, k] * D[k, l]")(
        A=spcomp.convert(a, "csr"), B=spcomp.convert(a, "csr"), D=spcomp.convert(a, "csr")
    )
    np.testing.assert_array_equal(found.toarray(), np.full((3, 3), 0.5 * 9 * 100.0**3))


def test_a_sum_of_literals_has_their_type():
    m, x = spcomp.convert(np.ones((2, 200)), "csr"), np.ones(2, "i1")
    found = spcomp.compile("y[i] = x[i] + sum(j, 1 if M[i, j])")(M=m, x=x)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, [201, 201])
