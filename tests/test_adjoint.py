"""Adjoints of index notation: gradients against differences, patterns, refusals, printed text."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError, ScriptError, SpcompError
from spcomp.ir.analysis.derivatives import FLAT, RULES, WITHOUT_RULE
from spcomp.ir.expr import CALLS
from spcomp.kernels.adjoint.kernel import AdjointKernel
from spcomp.notation.adjoint import derive
from tests.interpreted_notation import interpreted
from tests.random_adjoints import FORMATS, case, check, dense, pattern_of

RNG = np.random.default_rng(11)
SPMM = "C[i, k] = A[i, j] * B[j, k]"
SOFTMAX = """m[i] = max(j, A[i, j])
e[i, j] = exp(A[i, j] - m[i]) if A[i, j]
C[i, j] = e[i, j] / sum(k, e[i, k])"""
ATTENTION = """s[i, j] = Q[i, d] * K[j, d] if stored(A[i, j])
m[i] = max(j, s[i, j])
e[i, j] = exp(s[i, j] - m[i]) if stored(s[i, j])
y[i, f] = e[i, j] / sum(k, e[i, k]) * V[j, f]"""
PROGRAMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "spmm": (SPMM, ("A", "B")),
    "spmv": ("y[i] = alpha * A[i, j] * x[j] + 0.5 * z[i]", ("x", "A", "alpha", "z")),
    "sddmm": ("C[i, j] = A[i, j] * sum(k, X[i, k] * B[j, k])", ("A", "X", "B")),
    "softmax": (SOFTMAX, ("A",)),
    "product": ("y[i] = prod(j, A[i, j])", ("A",)),
    "union": ("C[i, j] = A[i, j] * 2 + S[i, j]", ("S", "A")),
    "intersection": ("C[i, j] = A[i, j] * S[i, j]", ("S", "A")),
    "spgemm": ("C[i, k] = A[i, j] * R[j, k]", ("A", "R")),
    "mask": ("C[i, j] = x[j] * A[i, j] ** 3 if A[i, j] > 0.6 else S[i, j]", ("A", "S", "x")),
    "diagonal": ("y[i] = Q[i, i] * z[i] + sum(j, Q[i, j])", ("Q", "z")),
    "added": ("y[i] = z[i]\ny[i] += A[i, j] * x[j]\nw[i] = exp(y[i] * 0.1)", ("A", "x", "z")),
    "least": ("y[j] = min(i, A[i, j] * z[i])", ("A", "z")),
    "transposed": ("C[j, i] = sin(A[i, j])", ("A",)),
    "several": ("C[i, j] = A[i, j] * x[j]\ny[i] = S[i, j] * x[j]", ("x", "A", "S")),
    "inner": ("y[i] = sum(j, A[i, j] * sum(k, X[i, k] * B[j, k]))", ("A", "X", "B")),
    "total": ("s = sum((i, j), A[i, j] * A[i, j])", ("A",)),
    "einsum": ("ij,jk->ik", ("operand0", "operand1")),
}
SHAPES = {
    "A": (5, 6),
    "S": (5, 6),
    "R": (6, 4),
    "B": (6, 4),
    "X": (5, 4),
    "x": (6,),
    "z": (5,),
    "Q": (5, 5),
    "operand0": (5, 6),
    "operand1": (6, 4),
    "alpha": (),
}
SPARSE = {"A", "S", "R"}


def operand(name: str, kind: str, density: float = 0.5) -> Any:
    values = RNG.uniform(0.4, 1.4, SHAPES[name])
    if name not in SPARSE or kind == "dense":
        return float(values) if not values.shape else values
    values[RNG.random(values.shape) > density] = 0
    matrix = sps.csr_array(values)
    if kind == "dcsr":
        return spcomp.convert(matrix, spcomp.Format("dcsr"))
    return matrix.asformat(kind)


def text_of(program: str) -> str:
    einsum = "out[i, k] = sum(j, operand0[i, j] * operand1[j, k])"
    return einsum if program == "ij,jk->ik" else program


def arguments_of(kernel: Any, kind: str, density: float = 0.5) -> dict[str, Any]:
    return {name: operand(name, kind, density) for name in kernel.arguments}


def incoming(adjoint: Any, forward: Any, arguments: Any) -> tuple[dict[str, Any], list[Any]]:
    """Gradients for the results of *forward*, by name, and as arrays in the order of results."""
    results = forward(**arguments)
    results = results if isinstance(results, tuple) else (results,)
    names = forward._runner.planner.prepared.results
    weights = [RNG.uniform(-1, 1, dense(y).shape) for y in results]
    pairs = dict(zip(names, weights, strict=True))
    return {
        adjoint.names[name]: pairs[name] if pairs[name].shape else float(pairs[name])
        for name in adjoint.results
    }, weights


def as_tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def verify(program: str, wrt: tuple[str, ...], arguments: dict[str, Any]) -> None:
    forward = spcomp.compile(text_of(program))
    adjoint = spcomp.adjoint(program, wrt)
    grads, weights = incoming(adjoint, forward, arguments)
    found = as_tuple(spcomp.compile(adjoint)(**arguments, **grads))
    named = dict(zip(wrt, found, strict=True))
    check(forward, named, arguments, weights, np.random.default_rng(3))
    for name, grad in named.items():
        assert pattern_of(grad) == pattern_of(arguments[name]), name


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sample(8, long=4)
def test_gradients_are_those_of_differences(name, kind):
    program, wrt = PROGRAMS[name]
    verify(program, wrt, arguments_of(spcomp.compile(text_of(program)), kind))


@pytest.mark.parametrize("density", [0, 0.2, 1])
@pytest.mark.parametrize("name", ["spmm", "softmax", "sddmm", "union", "spgemm", "product", "mask"])
def test_matrices_without_elements_and_full_ones(name, density):
    program, wrt = PROGRAMS[name]
    verify(program, wrt, arguments_of(spcomp.compile(program), "csr", density))


def verify_random(seed: int) -> bool:
    """Check the program of *seed*; return False if it is none, or has no derivative."""
    given = case(seed)
    try:
        kernel = spcomp.compile(given.text)
        results = as_tuple(kernel(**given.arguments))
    except SpcompError:
        return False
    if not all(np.isfinite(dense(y)).all() for y in results):
        return False
    try:
        spcomp.adjoint(given.text, given.wrt)
    except ScriptError as error:
        if "by a derivative" in str(error):
            return False
        raise
    verify(given.text, given.wrt, given.arguments)
    return True


def test_some_random_programs():
    assert sum(map(verify_random, range(10))) >= 5, "most are programs"


@pytest.mark.long
@pytest.mark.parametrize("chunk", range(10))
@pytest.mark.sample(10, long=10)
def test_random_programs(chunk):
    done = sum(verify_random(seed) for seed in range(chunk * 40, chunk * 40 + 40))
    assert done >= 25, "most are programs"


@pytest.mark.parametrize("func", sorted({*RULES} & CALLS))
def test_every_function_has_its_derivative(func):
    args = {"fma": "x[j], 0.7, x[j]", "pow": "x[j], y[j]"}.get(func, "x[j]")
    args = {"atan2": "x[j], y[j]", "hypot": "x[j], y[j]"}.get(func, args)
    forward = spcomp.compile(f"z[j] = {func}({args})")
    low, high = (1.1, 2.0) if func == "acosh" else (0.1, 0.9)
    arguments = {name: RNG.uniform(low, high, 9) for name in forward.arguments}
    weights = RNG.uniform(-1, 1, 9)
    wrt = forward.arguments
    found = spcomp.compile(spcomp.adjoint(f"z[j] = {func}({args})", wrt))(
        **arguments, grad_z=weights
    )
    named = dict(zip(wrt, as_tuple(found), strict=True))
    check(forward, named, arguments, [weights], np.random.default_rng(1))


def test_no_function_lacks_a_rule():
    assert not WITHOUT_RULE
    assert not FLAT & RULES.keys()


# -- what is given, what is returned ---------------------------------------------------------------


def test_types_follow_the_operands():
    a = sps.random_array((5, 6), density=0.5, format="csr", rng=0, dtype=np.float32)
    kernel = spcomp.compile(spcomp.adjoint(SPMM, ("A", "B")))
    grad_a, grad_b = kernel(A=a, B=np.ones((6, 2)), grad_C=np.ones((5, 2)))
    assert (grad_a.dtype, grad_b.dtype) == (np.float32, np.float64)
    np.testing.assert_array_equal(grad_a.toarray(), 2 * (a.toarray() != 0))


def test_sums_of_halves_are_sums_of_floats():
    n = 5000
    kernel = spcomp.compile(spcomp.adjoint("y[i] = X[i, j] * x[j]", "x"))
    x = np.ones((n, 2), np.float16)
    grad = kernel(X=x, x=np.ones(2, np.float16), grad_y=np.ones(n, np.float16))
    assert grad.dtype == np.float16
    np.testing.assert_array_equal(grad, n)
    a = spcomp.Tensor.from_scipy(sps.eye_array(4, format="csr")).astype(np.float16)
    kernel = spcomp.compile(spcomp.adjoint(SPMM, ("A", "B")))
    got = kernel(A=a, B=np.ones((4, n), np.float16), grad_C=np.ones((4, n), np.float16))
    assert all(grad.dtype == np.float16 for grad in got)
    np.testing.assert_array_equal(got[0].values, n)


def test_a_sparse_gradient_counts_where_it_is_stored():
    a = sps.random_array((5, 6), density=0.5, format="csr", rng=0)
    s = sps.random_array((5, 6), density=0.5, format="csr", rng=1)
    g = sps.random_array((5, 6), density=0.3, format="csr", rng=2)
    grad = spcomp.compile(spcomp.adjoint("C[i, j] = A[i, j] * 2 + S[i, j]", "A"))(
        A=a, S=s, grad_C=g
    )
    np.testing.assert_array_equal(grad.toarray(), 2 * g.toarray() * (a.toarray() != 0))
    assert grad.nnz == a.nnz


def test_ties_share_a_gradient_evenly():
    a = np.array([[1.0, 3, 3], [2, 2, 2], [5, 1, 0]])
    g = np.array([6.0, 6, 6])
    grad = spcomp.compile(spcomp.adjoint("m[i] = max(j, A[i, j])", "A"))(A=a, grad_m=g)
    np.testing.assert_array_equal(grad, [[0, 3, 3], [2, 2, 2], [6, 0, 0]])


def test_products_with_zeros():
    a = np.array([[2.0, 0, 3], [0, 0, 3], [2, 3, 4]])
    adjoint = spcomp.adjoint("y[i] = prod(j, A[i, j])", "A")
    grad = spcomp.compile(adjoint)(A=a, grad_y=np.ones(3))
    np.testing.assert_array_equal(grad, [[0, 6, 0], [0, 0, 0], [12, 8, 6]])
    again = spcomp.compile(spcomp.adjoint(adjoint, "A"))  # of the sum of these
    second = again(A=a, grad_y=np.ones(3), grad_grad_A=np.ones((3, 3)))
    np.testing.assert_array_equal(second, [[3, 5, 2], [3, 3, 0], [7, 6, 5]])


def test_a_gradient_that_is_not_given_is_zero():
    text, wrt = PROGRAMS["several"]
    a = operand("A", "csr")
    kernel = spcomp.compile(spcomp.adjoint(text, wrt))
    x, s = operand("x", ""), operand("S", "csr")
    grad_x, grad_a, grad_s = kernel(A=a, S=s, x=x, grad_y=np.ones(5))
    np.testing.assert_allclose(grad_x, s.toarray().sum(0))
    assert grad_a.nnz == a.nnz
    assert not grad_a.toarray().any()
    np.testing.assert_allclose(grad_s.toarray(), (s.toarray() != 0) * x)


def test_what_is_not_needed_can_be_left_out():
    a, g = operand("A", "csr"), RNG.random((5, 4))
    kernel = spcomp.compile(spcomp.adjoint(SPMM, "B"))
    np.testing.assert_allclose(kernel(A=a, grad_C=g), a.T @ g)
    assert "no values needed: B" in kernel.explain()


def test_saved_values_are_not_computed_again():
    adjoint = spcomp.adjoint(SOFTMAX, "A")
    assert adjoint.saves == ("m", "sum_2")
    assert adjoint.recomputes == ("e",)
    a, g = operand("A", "csr"), RNG.random((5, 6))
    kernel = spcomp.compile(adjoint)
    forward = spcomp.compile(adjoint.forward_and_saves)
    results = forward(A=a)
    saved = {name: getattr(results, f"saved_{name}") for name in adjoint.saves}
    whole, part = kernel(A=a, grad_C=g), kernel(A=a, grad_C=g, **saved)
    np.testing.assert_array_equal(whole.data, part.data)
    np.testing.assert_allclose(results.C.toarray(), spcomp.compile(SOFTMAX)(A=a).toarray())
    assert "m[i] = max" not in kernel.explain(A=a, grad_C=g, **saved)


def test_extremes_of_computed_terms_are_found_again():
    """A term that is computed twice may be rounded in two ways."""
    text = "y[i] = max(j, A[i, j] * x[j] + B[i, j])"
    adjoint = spcomp.adjoint(text, "A")
    assert not adjoint.saves
    rng = np.random.default_rng(0)
    a, b = rng.random((200, 50)), rng.random((200, 50))
    grad = spcomp.compile(adjoint)(A=a, B=b, x=np.pi * np.ones(50), grad_y=np.ones(200))
    np.testing.assert_allclose(grad.sum(1), np.pi)


# -- order, threads, stages ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["spmm", "softmax", "mask", "sddmm", "total"])
def test_the_second_order(name):
    program, wrt = PROGRAMS[name]
    first = spcomp.adjoint(program, wrt)
    forward = spcomp.compile(first)
    arguments = arguments_of(spcomp.compile(program), "csr")
    grads, _ = incoming(first, spcomp.compile(program), arguments)
    arguments |= grads
    found = as_tuple(forward(**arguments))
    more = (*wrt, *(n for n in grads if np.ndim(arguments[n])))
    second = spcomp.adjoint(first, more)
    weights = [RNG.uniform(-1, 1, dense(y).shape) * (dense(y) != 0) for y in found]
    named = {second.names[f"grad_{n}"]: w for n, w in zip(wrt, weights, strict=True)}
    named = {n: w for n, w in named.items() if n in second.arguments}
    got = as_tuple(spcomp.compile(second)(**arguments, **named))
    pairs = dict(zip(more, got, strict=True))
    check(forward, pairs, arguments, weights, np.random.default_rng(2))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_bits_in_every_run_and_at_any_number_of_threads(name):
    program, wrt = PROGRAMS[name]
    forward, adjoint = spcomp.compile(text_of(program)), spcomp.adjoint(program, wrt)
    arguments = arguments_of(forward, "csr")
    arguments |= incoming(adjoint, forward, arguments)[0]
    kernel = spcomp.compile(adjoint)
    runs = []
    for threads in (1, 2, 2, 3):
        with spcomp.num_threads(threads):
            runs.append([dense(x).tobytes() for x in as_tuple(kernel(**arguments))])
    assert all(run == runs[0] for run in runs)


@pytest.mark.parametrize("stage", ["coordinate", "position", "flat"])
@pytest.mark.parametrize("name", ["spmm", "softmax", "sddmm", "mask", "product", "union"])
def test_the_interpreter_agrees_at_every_stage(name, stage):
    program, wrt = PROGRAMS[name]
    forward, adjoint = spcomp.compile(program), spcomp.adjoint(program, wrt)
    arguments = arguments_of(forward, "csr")
    arguments |= incoming(adjoint, forward, arguments)[0]
    kernel = spcomp.compile(adjoint)
    version = kernel.version(arguments)
    handed = version.arguments(arguments, kernel._columns)
    want = as_tuple(kernel(**arguments))
    for a, b in zip(as_tuple(interpreted(version.kernel, handed, stage)), want, strict=True):
        np.testing.assert_allclose(dense(a), dense(b), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["spmm", "softmax", "sddmm", "product", "mask"])
def test_the_text_of_an_adjoint(name, golden):
    adjoint = spcomp.adjoint(*PROGRAMS[name])
    golden(f"adjoint_{name}.notation.txt", f"{adjoint.explain()}\n")
    spcomp.compile(str(adjoint))  # it is a program of index notation


# -- patterns that are turned ----------------------------------------------------------------------


def test_a_matrix_is_read_by_its_columns():
    """The pattern is turned once; other values, other patterns and other shapes are seen."""
    kernel = spcomp.compile(spcomp.adjoint(SPMM, "B"))
    for shape, seed in (((40, 30), 0), ((40, 30), 1), ((20, 30), 2)):
        a = sps.random_array(shape, density=0.2, format="csr", rng=seed)
        g = np.random.default_rng(seed).random((shape[0], 3))
        for each in (a, a * 2, a.tocsc(), spcomp.Tensor.from_scipy(a)):
            want = (each.to_scipy() if isinstance(each, spcomp.Tensor) else each).T @ g
            np.testing.assert_allclose(kernel(A=each, grad_C=g), want)
    assert "stored by its columns" in kernel.explain(A=a, grad_C=g)


def test_repeated_elements_are_summed():
    a = sps.csr_array((np.ones(3), [1, 1, 0], [0, 2, 3]), (2, 2))
    kernel = spcomp.compile(spcomp.adjoint("y[i] = A[i, j] * x[j]", "x"))
    np.testing.assert_array_equal(kernel(A=a, grad_y=np.ones(2)), [1, 2])


def test_wrong_index_arrays_are_refused():
    a = sps.csr_array((np.ones(3), [1, 1, 0], [0, 2, 3]), (2, 2))
    a.indices = np.array([1, 7, 0], np.int32)
    kernel = spcomp.compile(spcomp.adjoint("y[i] = A[i, j] * x[j]", "x"))
    with pytest.raises(ArgumentError):
        kernel(A=a, grad_y=np.ones(2))


def test_bound_operands_follow_their_values():
    a, b = operand("A", "csr"), operand("B", "")
    g = RNG.random((5, 4))
    kernel = spcomp.compile(spcomp.adjoint(SPMM, ("A", "B")))
    bound = kernel.bind(A=a, B=b)
    for _ in range(2):
        for got, want in zip(bound(grad_C=g), kernel(A=a, B=b, grad_C=g), strict=True):
            np.testing.assert_array_equal(dense(got), dense(want))
        a.data *= 3


def test_index_arrays_are_those_at_bind():
    a, g = operand("A", "csr"), RNG.random((5, 4))
    kernel = spcomp.compile(spcomp.adjoint(SPMM, "B"))
    want, bound = kernel(A=a, grad_C=g), kernel.bind(A=a)
    a.indices[...] = 0
    np.testing.assert_array_equal(bound(grad_C=g), want)
    src = np.array([1, 0, 1])
    kernel = spcomp.compile(spcomp.adjoint("Z[e] = x[src[e]]", "x"))
    bound = kernel.bind(src=src)
    src[...] = 0
    np.testing.assert_array_equal(bound(x=np.ones(2), grad_Z=np.ones(3)), [1, 2])
    with pytest.raises(ArgumentError, match="argument src: got -1"):
        kernel.bind(src=src - 1)


def test_a_program_is_derived_once(monkeypatch):
    adjoint, runs = spcomp.adjoint(SOFTMAX, "A"), []
    run = derive.Backward.run
    monkeypatch.setattr(derive.Backward, "run", lambda self: runs.append(self) or run(self))
    assert adjoint.saves
    assert adjoint.recomputes
    assert adjoint.needed
    assert adjoint.explain()
    assert adjoint.forward_and_saves
    assert not runs


def test_an_adjoint_and_its_kernel_can_be_pickled():
    adjoint = spcomp.adjoint(SOFTMAX, "A")
    assert pickle.loads(pickle.dumps(adjoint)) == adjoint
    a, g = operand("A", "csr"), RNG.random((5, 6))
    kernel = spcomp.compile(adjoint)
    copy = pickle.loads(pickle.dumps(kernel))
    assert isinstance(copy, AdjointKernel)
    np.testing.assert_array_equal(copy(A=a, grad_C=g).data, kernel(A=a, grad_C=g).data)


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wrt", "says"),
    [
        ("y[i] = sum(j, floor(A[i, j]))", "A", "by a derivative"),
        ("p[i] = argmax(j, A[i, j])", "A", "by a derivative"),
        ("y[i] = sum(j, A[i, j] > 0)", "A", "by a derivative"),
        ("y[j] = A[3, j] * 2", "A", "gradient of a part, A"),
        ("C[0:2, j] = A[0:2, j] * x[j]", "x", "through a part of C"),
        ("y[i] = x[i]\nz[i] = y[i]\ny[i] += x[i]", "x", "added to after it was read"),
    ],
)
def test_what_has_no_derivative_is_refused(text, wrt, says):
    with pytest.raises(ScriptError, match=says) as caught:
        spcomp.adjoint(text, wrt)
    assert caught.value.span is not None


@pytest.mark.parametrize(
    ("wrt", "says"),
    [("D", "D is no operand"), ((), "expected different"), (3, "names of operands")],
)
def test_wrong_operands_are_refused(wrt, says):
    with pytest.raises(ArgumentError, match=says):
        spcomp.adjoint(SPMM, wrt)


def test_wrong_calls_are_refused():
    kernel = spcomp.compile(spcomp.adjoint(SPMM, ("A", "B")))
    a, b, g = operand("A", "csr"), operand("B", ""), RNG.random((5, 4))
    with pytest.raises(ArgumentError, match="missing argument grad_C"):
        kernel(A=a, B=b)
    with pytest.raises(ArgumentError, match="unexpected argument D"):
        kernel(A=a, B=b, D=b, grad_C=g)
    two = spcomp.compile(spcomp.adjoint("y[j] = A[i, j] * x[i]; z[i] = A[i, j] * w[j]", "w"))
    with pytest.raises(ArgumentError, match="unexpected argument grad_y") as caught:
        two(A=a, x=g[:, 0], w=b[:, 0], grad_y=b[:, 0], grad_z=g[:, 0])
    assert caught.value.hint.startswith("y does not depend on w")
    with pytest.raises(ArgumentError, match="by position"):
        kernel(a, b)
    with pytest.raises(ArgumentError, match="whole numbers"):
        kernel(A=a.astype(np.int64), B=b, grad_C=g)
    with pytest.raises(ArgumentError, match="missing argument B"):
        kernel(A=a, grad_C=g)
    with pytest.raises(ArgumentError, match="grad_C"):
        kernel(A=a, B=b, grad_C=g[:, :2])
    with pytest.raises(ArgumentError, match="no tensor of"):
        spcomp.compile(spcomp.adjoint(SPMM, "A"), formats={"Z": "csr"})
