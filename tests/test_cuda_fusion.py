"""Statements that share rows on a GPU: one kernel, a group of threads for each row."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.codegen import nvvm
from spcomp.compiler.pipeline import lower
from spcomp.runtime.cuda.ptxas import assemble
from spcomp.schedule.default.facts import UNKNOWN, Facts
from spcomp.target import target
from tests.emulated import EMULATED, ORDERS, order

RNG = np.random.default_rng(3)
COLUMNS = 70
LAYER = "T[i, k] = A[i, j] * X[j, k]; Y[i, k] = maximum(T[i, k] + b[k], 0)"
DEGREE = "d[i] = sum(j, A[i, j] * A[i, j]); Y[i, k] = A[i, j] * X[j, k] / d[i]"
WEIGHTS = """
    m[i] = max(j, A[i, j])
    e[i, j] = exp(A[i, j] - m[i]) if A[i, j]
    P[i, j] = e[i, j] / sum(k, e[i, k])
"""
ATTENTION = """
    S[i, j] = A[i, j] * Q[i, f] * K[j, f]
    m[i] = max(j, S[i, j])
    e[i, j] = exp(S[i, j] - m[i]) if A[i, j]
    s[i] = sum(j, e[i, j])
    w[i, j] = e[i, j] / s[i]
    O[i, f] = w[i, j] * V[j, f]
"""
EDGES = """
    z[i, j] = p[i] + q[j] if A[i, j]
    S[i, j] = where(z[i, j] > 0, z[i, j], 0.2 * z[i, j])
    m[i] = max(j, S[i, j])
    e[i, j] = exp(S[i, j] - m[i]) if A[i, j]
    s[i] = sum(j, e[i, j])
    O[i, f] = e[i, j] * X[j, f] / s[i]
"""
PROGRAMS = {"layer": LAYER, "degree": DEGREE, "weights": WEIGHTS}
LONG = pytest.mark.long
WIDTHS = [1, pytest.param(31, marks=LONG), pytest.param(32, marks=LONG), 33]
SOFTMAX = {"attention": ATTENTION, "edges": EDGES}


def matrix():
    """Rows: empty, of one element, of any number, at multiples of 32, and full."""
    lengths = [0, 1, 5, 31, 32, 33, COLUMNS, 64, 0, 2]
    a = sps.lil_array((len(lengths), COLUMNS), dtype=np.float32)
    for row, count in enumerate(lengths):
        a[row, RNG.choice(COLUMNS, count, replace=False)] = RNG.standard_normal(count)
    return sps.csr_array(a)


A = matrix()


def operands(names, feat, **others):
    shapes = {"X": (COLUMNS, feat), "b": (feat,), "p": (A.shape[0],), "q": (COLUMNS,)}
    shapes |= {"Q": (A.shape[0], feat), "K": (COLUMNS, feat), "V": (COLUMNS, feat)}
    rng = np.random.default_rng(feat)
    known = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    known |= {"A": A, **others}
    return {name: known[name] for name in names}


def of_statements(text, arguments):
    """The result of *text* on a CPU, each statement a kernel of its own."""
    values = dict(arguments)
    for statement in filter(None, (s.strip() for s in text.replace("\n", ";").split(";"))):
        kernel, name = spcomp.compile(statement), statement.split("[")[0]
        values[name] = kernel(**{n: values[n] for n in kernel.arguments})
    return values[name]


def plain(result):
    return result.data if sps.issparse(result) else result


def stages(text, constants=None, facts=UNKNOWN, arch="sm_80"):
    kernel = spcomp.compile(text, target=f"cuda:{arch},emulate")
    func = kernel.planned(operands(kernel.arguments, 32)).func
    known = {
        name: size for name, size in (constants or {}).items() if name in map(str, names(func))
    }
    return lower(func, nvvm.resolve(target(f"cuda:{arch}")), known, facts=facts)


def names(func):
    return (param.name for param in func.params)


@pytest.mark.parametrize("feat", WIDTHS)
@pytest.mark.parametrize("name", ["layer", "degree"])
def test_a_product_and_what_is_around_it_is_one_kernel(name, feat):
    kernel = spcomp.compile(PROGRAMS[name], target=EMULATED)
    arguments = operands(kernel.arguments, feat)
    np.testing.assert_allclose(
        kernel(**arguments), of_statements(PROGRAMS[name], arguments), rtol=1e-5, atol=1e-6
    )
    assert kernel.explain().count("\nlaunch ") == 1


def test_results_have_the_same_bits_in_any_order_of_threads():
    kernel = spcomp.compile(WEIGHTS, target=EMULATED)
    results = []
    for seed in ORDERS:
        with order(seed):
            results.append(plain(kernel(A=A)))
    np.testing.assert_allclose(results[0], plain(of_statements(WEIGHTS, {"A": A})), rtol=1e-5)
    assert len({result.tobytes() for result in results}) == 1


def test_each_thread_has_neighbours_of_a_row_in_all_statements():
    lowered = stages(LAYER, {"n_k": 64})
    assert str(lowered.trace).count("(None, 16, 4)") == 2
    (kernel,) = lowered.flat.funcs
    assert kernel.script().count("T.unroll(A_j_indptr") == 1  # several non-zeros in flight


@pytest.mark.sample(3, long=2)
@pytest.mark.parametrize("feat", WIDTHS)
@pytest.mark.parametrize("name", SOFTMAX)
def test_attention_is_one_kernel_without_memory_for_scores(name, feat):
    kernel = spcomp.compile(SOFTMAX[name], target=EMULATED)
    arguments = operands(kernel.arguments, feat)
    expected = of_statements(SOFTMAX[name], arguments)
    np.testing.assert_allclose(kernel(**arguments), expected, rtol=1e-4, atol=1e-5)
    said = kernel.explain()
    assert said.count("\nlaunch ") == 1
    assert "softmax: s and O in the loop i, with the maximum m so far; no memory for" in said
    assert "online_softmax('i', 32)" in said


@pytest.mark.parametrize("rows", ["none", "empty", pytest.param("one element", marks=LONG)])
def test_attention_over_rows_of_few_elements(rows):
    a = {"none": A[:0], "empty": A[8:9], "one element": A[1:2]}[rows]
    kernel = spcomp.compile(ATTENTION, target=EMULATED)
    q = np.ones((a.shape[0], 8), np.float32)
    arguments = operands(kernel.arguments, 8, A=a, Q=q)
    np.testing.assert_allclose(kernel(**arguments), of_statements(ATTENTION, arguments), rtol=1e-5)


def test_attention_has_the_same_bits_in_any_order_of_threads():
    kernel = spcomp.compile(ATTENTION, target=EMULATED)
    arguments, results = operands(kernel.arguments, 32), set()
    for seed in ORDERS:
        with order(seed):
            results.add(kernel(**arguments).tobytes())
    assert len(results) == 1


def test_scores_that_the_caller_gets_are_stored():
    kernel = spcomp.compile(EDGES, target=EMULATED)
    arguments = operands(kernel.arguments, 4)
    e = A.copy()
    result = kernel(**arguments, out={"e": e})
    np.testing.assert_allclose(result, of_statements(EDGES, arguments), rtol=1e-4, atol=1e-5)
    assert e.data.max() == 1  # the power of 0
    assert "softmax: not in the loop i: e is an argument or a result" in kernel.explain()


def test_explain_says_which_statements_share_rows():
    kernel = spcomp.compile(DEGREE, target=EMULATED)
    kernel(**operands(kernel.arguments, 4))
    assert "rows: Y in the loop i" in kernel.explain()


def test_with_a_very_long_row_statements_are_kernels_of_their_own():
    lowered = stages(LAYER, facts=Facts(hubs=True, row=8))
    assert "split_rows" in str(lowered.trace)
    assert "reverse_compute_at" not in str(lowered.trace)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.ptxas
def test_kernels_of_several_statements_do_not_spill(arch, golden):
    lines = []
    for name, text in {**PROGRAMS, **SOFTMAX}.items():
        for feat in (32, 0) if arch == "sm_90" else (128,):
            goal = nvvm.resolve(target(f"cuda:{arch}"))
            known = dict.fromkeys(("n_k", "n_f", "n_f_2"), feat) if feat else None
            emitted = nvvm.emit(stages(text, known, Facts(row=32), arch).flat, goal)
            ptx = nvvm.ptx(emitted.llvm_ir, goal)
            usage = assemble(ptx, arch).usage
            assert ".local" not in ptx
            for abi in emitted.functions:
                assert usage[abi.symbol].spilled == 0
                lines.append(f"{name} {feat} {usage[abi.symbol].registers}")
    golden(f"registers_fused.{arch}.txt", "\n".join(lines) + "\n")
