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
PROGRAMS = {"layer": LAYER, "degree": DEGREE, "weights": WEIGHTS}


def matrix():
    """Rows: empty, of one element, of any number, at multiples of 32, and full."""
    lengths = [0, 1, 5, 31, 32, 33, COLUMNS, 64, 0, 2]
    a = sps.lil_array((len(lengths), COLUMNS), dtype=np.float32)
    for row, count in enumerate(lengths):
        a[row, RNG.choice(COLUMNS, count, replace=False)] = RNG.standard_normal(count)
    return sps.csr_array(a)


A = matrix()


def operands(names, feat, **others):
    shapes = {"X": (COLUMNS, feat), "b": (feat,)}
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


@pytest.mark.parametrize("feat", [1, 31, 32, 33])
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
    for name, text in PROGRAMS.items():
        for feat in (32, 128):
            goal = nvvm.resolve(target(f"cuda:{arch}"))
            emitted = nvvm.emit(stages(text, {"n_k": feat}, Facts(row=32), arch).flat, goal)
            ptx = nvvm.ptx(emitted.llvm_ir, goal)
            usage = assemble(ptx, arch).usage
            assert ".local" not in ptx
            for abi in emitted.functions:
                assert usage[abi.symbol].spilled == 0
                lines.append(f"{name} {feat} {usage[abi.symbol].registers}")
    golden(f"registers_fused.{arch}.txt", "\n".join(lines) + "\n")
