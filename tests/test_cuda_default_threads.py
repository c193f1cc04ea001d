"""The default schedule on GPUs leaves no loop over data to a single thread."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp

ROWS, COLUMNS, FEATURES, EDGES = 30, 40, 5, 60
RNG = np.random.default_rng(0)
SPARSE = sps.random_array((ROWS, COLUMNS), density=0.2, format="csr", dtype=np.float32, rng=RNG)
SQUARE = sps.random_array((ROWS, ROWS), density=0.2, format="csr", dtype=np.float32, rng=RNG)
ARRAYS = {
    "A": SPARSE,
    "S": SQUARE,
    "src": RNG.integers(COLUMNS, size=EDGES),
    "dst": RNG.integers(ROWS, size=EDGES),
    **{
        name: RNG.random(shape, np.float32)
        for name, shape in {
            "D": (ROWS, COLUMNS),
            "E": (ROWS, COLUMNS),
            "H": (ROWS, FEATURES),
            "X": (COLUMNS, FEATURES),
            "W": (FEATURES, 7),
            "b": (FEATURES,),
            "w": (EDGES,),
            "x": (COLUMNS,),
            "z": (ROWS,),
            "v": (1000,),
            "U": (6, 7, 8),
            "K": (ROWS, FEATURES),
        }.items()
    },
}
PROGRAMS = """
y[i] = sum(j, D[i, j] * x[j])
y[j] = sum(i, D[i, j] * z[i])
C[i, k] = D[i, j] * X[j, k]
m[i] = max(j, D[i, j]); Q[i, j] = exp(D[i, j] - m[i]); V[i, j] = Q[i, j] / sum(k, Q[i, k])
m[i] = sum(j, D[i, j]) / 40; s[i] = sum(j, (D[i, j] - m[i]) ** 2); N[i, j] = (D[i, j] - m[i]) / s[i]
m[j] = sum(i, D[i, j]) / 30; s[j] = sum(i, (D[i, j] - m[j]) ** 2); N[i, j] = (D[i, j] - m[j]) / s[j]
l = sum((i, j), (D[i, j] - E[i, j]) ** 2)
l = sum((i, j), A[i, j] * A[i, j])
l = sqrt(sum(i, v[i] * v[i]))
c = sum(i, v[i] * v[i]); Z[i] = v[i] / sqrt(c)
Y[dst[e], k] = X[src[e], k] * w[e]
y[dst[e]] = w[e]
Y[dst[e], k] = max(e, X[src[e], k])
y[e] = sum(k, X[src[e], k] * H[dst[e], k])
T[i, k] = A[i, j] * X[j, k]; R[i, k] = maximum(T[i, k] + b[k], 0)
T[i, k] = A[i, j] * X[j, k]; R[i, l] = T[i, k] * W[k, l]
B[i, j] = A[i, j] * sum(k, H[i, k] * X[j, k])
s[i] = sum(j, A[i, j]); B[i, j] = A[i, j] / s[i]
y[j] = A[i, j] * z[i]
t = sum((i, j, k), U[i, j, k])
t[k] = sum((i, j), U[i, j, k])
t[j] = sum((i, k), U[i, j, k])
t[i] = max((j, k), U[i, j, k])
C[i, k] = S[i, j] * S[j, k]
C[i, j] = S[i, j] + S[j, i]
p[i] = argmax(j, D[i, j])
p = argmax(i, v[i])
p[j] = argmax(i, D[i, j])
q[i] = any(j, A[i, j] > 0.5)
o[i, k] = sum(j, exp(sum(f, H[i, f] * X[j, f])) * X[j, k]) if stored(A[i, j])
G[k, l] = sum(i, H[i, k] * K[i, l])
t = sum(i, S[i, i])
c[k] = sum((i, j), A[i, j] * X[j, k])
y[i] = sum(j, where(D[i, j] > x[j], D[i, j], 0))
n = sum((i, j), A[i, j] * D[i, j]); y[i] = n * z[i]
l = sum(e, log(1 + exp(-w[e] * sum(k, X[src[e], k] * H[dst[e], k]))))
""".strip().splitlines()


def lonely(flat: str) -> list[str]:
    """The loops of a kernel, printed, in no loop over threads and around none."""
    found: list[str] = []
    around: list[tuple[int, str]] = []  # loops around a line that may be some of them
    threads = None  # the indent of the loop over threads around a line
    for line in (*filter(str.strip, flat.splitlines()), "end"):
        indent = len(line) - len(line.lstrip())
        if threads is not None and indent > threads:
            continue
        threads = None
        while around and around[-1][0] >= indent:
            found.insert(0, around.pop()[1])
        if re.search(r"for .* in T\.(thread_binding|parallel)", line):
            threads, around = indent, []
        elif re.search(r"for .* in T\.(serial|unroll)|^ *while ", line):
            around.append((indent, line.strip()))
    return found


@pytest.mark.parametrize("text", PROGRAMS)
def test_loops_over_data_run_on_many_threads(text):
    args = {name: a for name, a in ARRAYS.items() if re.search(rf"\b{name}\b[\[\]]", text)}
    kernel = spcomp.compile(text, target="cuda:sm_90").specialize(**args)
    kernels = [part.stage("flat") for part in kernel.kernels()]
    assert kernels
    functions = [f for flat in kernels for f in flat.split("@T.prim_func")]
    assert not [loop for f in functions if '_level": 0' in f for loop in lonely(f)]


def test_such_loops_are_found():
    on_threads = "for i in T.parallel(9):\n    for j in T.serial(9):\n        y[0] = 1\n"
    alone = on_threads.replace("parallel", "serial")
    in_turns = "for turn in T.serial(3):\n    for i in T.thread_binding(9):\n        y[0] = 1\n"
    assert not lonely(on_threads + in_turns)
    assert len(lonely(in_turns + alone + on_threads + alone + in_turns)) == 4


BATCHES = {
    "Y[h, i, f] = A[i, j] * X[h, j, f]": "ij,hjf->hif",
    "Y[b, h, i, f] = A[i, j] * Z[b, h, j, f]": "ij,bhjf->bhif",
    "Y[i, f, h] = A[i, j] * X[h, j, f]": "ij,hjf->ifh",
}


@pytest.mark.parametrize("features", [1, 3, 6, 31, 33, 40, 128])
@pytest.mark.parametrize("text", BATCHES)
def test_batches_of_rows_run_for_any_number_of_columns(text, features):
    """Also where the threads of a group are no power of two."""
    rng = np.random.default_rng(1)
    Z = rng.random((2, 3, COLUMNS, features), np.float32)
    kernel = spcomp.compile(text, target="cuda:sm_90,emulate")
    known = {"A": SPARSE, "X": Z[0], "Z": Z}
    made = kernel(**{name: known[name] for name in kernel.arguments})
    dense = [known[name] if name != "A" else SPARSE.toarray() for name in kernel.arguments]
    np.testing.assert_allclose(made, np.einsum(BATCHES[text], *dense), rtol=1e-4)


def test_rows_below_a_root_run_on_many_blocks():
    rng = np.random.default_rng(1)
    dense = rng.random((40, 8, 9)) * (rng.random((40, 8, 9)) < 0.2)
    T, C = spcomp.convert(dense.astype(np.float32), "csf"), rng.random((9, 32), np.float32)
    kernel = spcomp.compile("Y[i, j, f] = T[i, j, k] * C[k, f]", target="cuda:sm_90,emulate")
    np.testing.assert_allclose(kernel(T=T, C=C).to_dense(), dense @ C, rtol=1e-4, atol=1e-6)
    assert "split('i', (65536, None))" in kernel.explain()
