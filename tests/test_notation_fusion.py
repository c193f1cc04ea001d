"""Statements of index notation that share rows: what is fused, what has no memory of its own."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.ir.module import single
from spcomp.kernels.notation.planned import Planned
from spcomp.knobs import CPU_KNOBS
from spcomp.passes.pipelines import to_position
from spcomp.schedule.default.rows import row_fusion
from spcomp.target import target
from tests.interpreted_notation import interpreted

RNG = np.random.default_rng(5)
ROWS, COLUMNS, WIDTH = 70, 60, 24
A = sps.random_array((ROWS, COLUMNS), density=0.15, format="csr", rng=RNG, dtype=np.float32)
A.data -= 0.5
A = sps.csr_array(sps.vstack([A, sps.csr_array((3, COLUMNS), dtype=np.float32)]))  # empty rows
ROWS += 3


def dense(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


LAYER = "T[i, k] = A[i, j] * X[j, k]; Y[i, k] = maximum(T[i, k] + b[k], 0)"
SOFTMAX = """
    m[i] = max(j, A[i, j])
    e[i, j] = exp(A[i, j] - m[i]) if A[i, j]
    s[i] = sum(j, e[i, j])
    O[i, f] = e[i, j] * V[j, f] / s[i]
"""
ATTENTION = """
    S[i, j] = A[i, j] * Q[i, f] * K[j, f]
    m[i] = max(j, S[i, j])
    e[i, j] = exp(S[i, j] - m[i]) if A[i, j]
    s[i] = sum(j, e[i, j])
    O[i, f] = e[i, j] * V[j, f] / s[i]
"""
SCORES = """
    z[i, j] = p[i] + q[j] if A[i, j]
    S[i, j] = where(z[i, j] > 0, z[i, j], 0.2 * z[i, j])
    m[i] = max(j, S[i, j])
    e[i, j] = exp(S[i, j] - m[i]) if A[i, j]
    s[i] = sum(j, e[i, j])
    O[i, f] = e[i, j] * V[j, f] / s[i]
"""
DEGREE = "d[i] = sum(j, A[i, j] * A[i, j]); Y[i, k] = A[i, j] * X[j, k] / d[i]"
ARGUMENTS = {
    "A": A,
    "X": dense(COLUMNS, WIDTH),
    "V": dense(COLUMNS, WIDTH),
    "K": dense(COLUMNS, WIDTH),
    "Q": dense(ROWS, WIDTH),
    "b": dense(WIDTH),
    "p": dense(ROWS),
    "q": dense(COLUMNS),
}
PROGRAMS = {
    "layer": LAYER,
    "softmax": SOFTMAX,
    "attention": ATTENTION,
    "scores": SCORES,
    "degree": DEGREE,
}


def arguments(kernel):
    return {name: ARGUMENTS[name] for name in kernel.arguments}


def planned(text, **others):
    kernel = spcomp.compile(text)
    plan = kernel.planned({**arguments(kernel), **others})
    assert isinstance(plan, Planned)
    return plan


def fusion(text):
    (func,) = to_position(target("cpu")).run(single(planned(text).func)).funcs
    return row_fusion(func, CPU_KNOBS)


def loops(text):
    """Return what each loop over rows assigns."""
    result = {}
    for nest in fusion(text).nests:
        result.setdefault(nest.loop, []).extend(nest.names)
    return list(result.values())


def unfused(text, args):
    """Return the result of *text*, each statement a kernel of its own."""
    values = dict(args)
    for statement in text.replace("\n", ";").split(";"):
        if statement.strip():
            kernel = spcomp.compile(statement)
            name = statement.split("[")[0].strip()
            values[name] = kernel(**{n: values[n] for n in kernel.arguments})
    return values[name]


@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS)
def test_results_are_those_of_statements_that_run_alone(text):
    kernel = spcomp.compile(text)
    args = arguments(kernel)
    expected = unfused(text, args)
    results = []
    for threads in (1, 2, 5):
        with spcomp.num_threads(threads):
            results.append(kernel(**args))
    assert len({result.tobytes() for result in results}) == 1
    np.testing.assert_allclose(results[0], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(results[0], interpreted(kernel, args), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS)
def test_fused_loops_are_steps_of_the_trace(text):
    kernel = spcomp.compile(text)
    taken = [step for _, step in kernel.specialize(**arguments(kernel)).trace]
    wanted = fusion(text).steps
    assert wanted
    assert tuple(taken[: len(wanted)]) == wanted


def test_an_epilogue_runs_in_the_loop_of_its_product():
    assert loops(LAYER) == [["Y", "Y"]]


def test_a_softmax_and_its_product_are_one_loop():
    assert loops(SOFTMAX) == [["m", "e", "s", "O"]]
    assert loops(SCORES) == [["e", "m", "e", "s", "O"]]


def test_two_products_over_rows_of_different_arrays_are_apart():
    assert loops(ATTENTION) == [["e", "m", "e", "s"], ["O"]]
    last = fusion(ATTENTION).nests[-1]
    assert "rows of K and of V" in last.why
    assert loops(ATTENTION.replace("V", "K")) == [["e", "m", "e", "s", "O"]]


def test_statements_without_a_common_value_are_apart():
    assert loops("Y[i, k] = A[i, j] * X[j, k]; Z[i, k] = A[i, j] * V[j, k]") == [["Y"], ["Z"]]


def test_loops_over_single_elements_stay_vectors():
    assert loops("t[i] = p[i] * 2; Y[i] = int32(t[i])") == [["t"], ["Y"]]
    assert loops("t[i] = A[i, j] * q[j]; Y[i] = int32(t[i])") == [["t", "Y"]]
    assert loops("t[i] = p[i] * 2; Y[i, k] = A[i, j] * X[j, k] * t[i]") == [["t", "Y"]]


def test_a_sum_over_all_rows_is_apart():
    text = "y[i] = A[i, j] * q[j]; n = sum(i, y[i] * y[i]); x[i] = y[i] / n"
    assert loops(text) == [["x"], ["n"], ["x"]]  # y is computed in the place of x
    np.testing.assert_allclose(
        spcomp.compile(text)(A=A, q=ARGUMENTS["q"]), unfused_norm(), rtol=1e-5
    )


def unfused_norm():
    y = A @ ARGUMENTS["q"]
    return y / (y * y).sum()


def test_a_statement_that_reads_other_rows_is_apart():
    square = A[:COLUMNS]
    text = "T[i, k] = A[i, j] * X[j, k]; Y[i, k] = A[i, j] * T[j, k]"
    X = ARGUMENTS["X"]
    np.testing.assert_allclose(
        spcomp.compile(text)(A=square, X=X), square @ (square @ X), rtol=1e-4, atol=1e-5
    )
    kernel = spcomp.compile(text)
    taken = [str(step) for _, step in kernel.specialize(A=square, X=X).trace]
    assert not any(step.startswith("reverse_compute_at") for step in taken)


def test_one_statement_is_not_touched():
    text = "Y[i, k] = A[i, j] * X[j, k] + b[k]"  # two nests
    assert not planned(text).func.attrs
    assert not fusion(text).nests


# -- memory ----------------------------------------------------------------------------------------


def places(text, **others):
    return {t.name: t.place for t in planned(text, **others).temporaries}


def test_a_temporary_that_its_last_reader_overwrites_has_no_memory():
    assert places(LAYER) == {"T": "Y"}
    assert places(SCORES) == {"z": "e", "S": "e", "m": "", "e": "", "s": ""}
    names = {buffer.name for buffer in planned(LAYER).func.buffers}
    assert names == {"A", "X", "b", "Y"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("T[i, k] = A[i, j] * X[j, k]; Y[i] = sum(k, T[i, k])", "assign each element"),
        ("t[i] = A[i, j] * q[j]; Y[i, j] = A[i, j] * t[i]", "another format or type"),
        ("t[i] = A[i, j] * q[j]; Y[i] = int32(t[i])", "another format or type"),
    ],
)
def test_why_a_temporary_has_memory_of_its_own(text, why):
    (temporary,) = planned(text).temporaries
    assert not temporary.place
    assert why in temporary.why


def test_a_temporary_that_is_read_transposed_has_memory_of_its_own():
    X = ARGUMENTS["X"][:WIDTH]
    text = "T[i, k] = X[i, k] * 2; Y[i, k] = T[i, k] + T[k, i]"
    assert places(text, X=X) == {"T": ""}
    np.testing.assert_array_equal(spcomp.compile(text)(X=X), X * 2 + X.T * 2)


def test_a_temporary_that_the_call_asks_for_is_returned():
    kernel = spcomp.compile(LAYER)
    args = arguments(kernel)
    plain = kernel(**args)
    T, Y = (np.full((ROWS, WIDTH), 7, np.float32) for _ in range(2))
    kernel(**args, out={"T": T, "Y": Y})
    np.testing.assert_allclose(T, A @ args["X"], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(Y, plain)
    T[:] = 7
    kernel(**args, out={"T": T})
    np.testing.assert_allclose(T, A @ args["X"], rtol=1e-5, atol=1e-6)
    Y[:] = 7
    kernel(**args, out=Y)
    np.testing.assert_array_equal(Y, plain)


def test_several_results_and_one_temporary():
    text = LAYER + "; Z[i, k] = Y[i, k] * 2; W[i] = sum(k, Y[i, k])"
    kernel = spcomp.compile(text)
    Z, W = kernel(**arguments(kernel))
    Y = np.maximum(A @ ARGUMENTS["X"] + ARGUMENTS["b"], 0)
    np.testing.assert_allclose(Z, Y * 2, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(W, Y.sum(axis=1), rtol=1e-5, atol=1e-5)


def test_a_matrix_in_parts_has_all_temporaries():
    kernel = spcomp.compile(LAYER, formats={"A": "hyb"})
    assert not kernel.planned(arguments(kernel)).temporaries
    expected = unfused(LAYER, arguments(kernel))
    np.testing.assert_allclose(kernel(**arguments(kernel)), expected, rtol=1e-5, atol=1e-6)


def merged(text, **others):
    return [t.name for t in planned(text, **others).temporaries if t.merged]


def test_a_temporary_that_one_statement_reads_is_computed_there():
    assert merged(SCORES) == ["z"]
    assert merged("t[i] = p[i] * 2; Y[i] = exp(t[i])") == ["t"]
    assert merged("t[i] = p[i] * 2; u[i] = t[i] * t[i]; Y[i] = exp(u[i])") == ["t", "u"]
    kernel = spcomp.compile("t[i] = p[i] * 2; u[i] = t[i] * t[i]; Y[i] = exp(u[i])")
    p = ARGUMENTS["p"]
    np.testing.assert_allclose(kernel(p=p), np.exp(4 * p * p), rtol=1e-6)
    assert "memory: t: computed where it is read" in kernel.explain(p=p)


@pytest.mark.parametrize(
    "text",
    [
        LAYER,  # a reduction
        "t[i] = p[i] * 2; u[i] = t[i] + 1; Y[i] = t[i] * u[i]",  # two statements read it
        "t[i, j] = q[j] if A[i, j]; Y[i, j] = exp(t[i, j])",  # a gather before a function
    ],
)
def test_other_temporaries_are_computed_before(text):
    assert "t" not in merged(text)
    kernel = spcomp.compile(text)
    result, expected = kernel(**arguments(kernel)), unfused(text, arguments(kernel))
    if sps.issparse(result):
        result, expected = result.toarray(), expected.toarray()
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_a_value_of_16_bits_is_rounded_where_it_is_assigned():
    p, text = ARGUMENTS["p"].astype(np.float16), "t[i] = p[i] * p[i]; Y[i] = t[i] * 3"
    assert not merged(text, p=p)
    np.testing.assert_array_equal(spcomp.compile(text)(p=p), (p * p) * np.float16(3))


def test_long_chains_of_statements_do_not_grow_without_bound():
    lines = ["t0[i] = p[i]"]
    lines += [f"t{k}[i] = t{k - 1}[i] * t{k - 1}[i] - t{k - 1}[i]" for k in range(1, 40)]
    kernel = spcomp.compile("; ".join(lines))
    p = ARGUMENTS["p"] * 0.1
    expected = p.astype(np.float64)
    for _ in range(39):
        expected = expected * expected - expected
    np.testing.assert_allclose(kernel(p=p), expected, rtol=1e-3, atol=1e-6)


def test_temporaries_on_a_gpu():
    for text in (LAYER, SCORES):
        kernel = spcomp.compile(text, target="cuda:sm_90,emulate")
        result = kernel(**arguments(kernel))
        expected = unfused(text, arguments(kernel))
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


# -- values ----------------------------------------------------------------------------------------


def test_the_softmax_of_rows_with_infinities_and_nan():
    values = A.copy()
    begins = values.indptr
    values.data[begins[0] : begins[1]] = -np.inf
    values.data[begins[1]] = np.nan
    values.data[begins[2]] = np.inf
    values.data[begins[3]] = 3e38
    values.data[begins[4]] = -3e38
    args = {"A": values, "V": ARGUMENTS["V"]}
    kernel = spcomp.compile(SOFTMAX)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(kernel(**args), unfused(SOFTMAX, args), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("text", [LAYER, SOFTMAX], ids=["layer", "softmax"])
def test_no_rows_and_rows_of_one_element(text, rows):
    kernel = spcomp.compile(text)
    one = sps.csr_array(([2.0], ([0], [3])), shape=(1, COLUMNS), dtype=np.float32)[:rows]
    result = kernel(**{**arguments(kernel), "A": sps.csr_array(one)})
    assert result.shape == (rows, WIDTH)
    args = {**arguments(kernel), "A": sps.csr_array(one)}
    np.testing.assert_allclose(result, unfused(text, args), rtol=1e-6)


@pytest.mark.parametrize("text", [LAYER, SOFTMAX], ids=["layer", "softmax"])
def test_rows_of_very_different_lengths(text):
    rows = np.concatenate([np.zeros(9000, int), RNG.integers(0, 4000, 9000)])
    columns = np.concatenate([np.arange(9000), RNG.integers(0, 9000, 9000)])
    matrix = sps.csr_array(
        (RNG.random(18000, dtype=np.float32), (rows, columns)), shape=(4000, 9000)
    )
    kernel = spcomp.compile(text)
    args = {"A": matrix, "X": dense(9000, 8), "V": dense(9000, 8), "b": dense(8)}
    args = {name: args[name] for name in kernel.arguments}
    results = []
    for threads in (1, 2, 3):
        with spcomp.num_threads(threads):
            results += [kernel(**args), kernel(**args)]
    assert len({result.tobytes() for result in results}) == 1
    np.testing.assert_allclose(results[0], unfused(text, args), rtol=1e-4, atol=1e-5)


# -- explain ---------------------------------------------------------------------------------------


def test_explain_says_what_shares_loops_and_memory():
    kernel = spcomp.compile(ATTENTION)
    text = kernel.explain(**arguments(kernel))
    assert "memory: S: computed in the place of e" in text
    assert "memory: s: has memory of its own, its last reader does" in text
    assert "rows: m in the loop i\n" in text
    assert "rows: O in the loop i_4: rows of K and of V" in text
    assert "rows:" not in spcomp.compile("y[i] = A[i, j] * q[j]").explain(A=A, q=ARGUMENTS["q"])
