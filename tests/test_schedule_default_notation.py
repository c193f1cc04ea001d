"""The default schedule of index notation over formats other than csr: all threads have work."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from tests.interpreted_notation import interpreted

RNG = np.random.default_rng(21)
A = sps.random_array((130, 20), density=0.2, format="csr", rng=RNG)
X, Y = RNG.random((130, 20)), RNG.random((130, 20))
x, B = RNG.random(20), RNG.random((20, 5))


def stored(form):
    return X if form == "dense" else spcomp.convert(A, spcomp.Format.parse(form, 2))


def steps(kernel, **args):
    return [str(step) for _, step in kernel.specialize(**args).trace]


def same_at_any_number_of_threads(kernel, args):
    """Return the result of *kernel*, which is close to what the interpreter says."""
    made = []
    for threads in (1, 2, 5):
        with spcomp.num_threads(threads):
            made.append(np.asarray(kernel(**args)))
    assert len({result.tobytes() for result in made}) == 1
    np.testing.assert_allclose(made[0], interpreted(kernel, args), rtol=1e-9)
    return made[0]


@pytest.mark.parametrize("form", ["ell", "dia", "bitmap", "dense", "csr", "hash"])
def test_a_sum_of_everything_is_made_in_chunks(form):
    kernel, given = spcomp.compile("s = A[i,j] * X[i,j] * Y[i,j]"), stored(form)
    dense = given if form == "dense" else A.toarray()
    args = {"A": given, "X": X, "Y": Y}
    taken = steps(kernel, **args)
    assert any(step.startswith("partial_results('i_") for step in taken)
    assert any(step.startswith("parallel('i_") for step in taken)
    total = same_at_any_number_of_threads(kernel, args)
    np.testing.assert_allclose(total, (dense * X * Y).sum(), rtol=1e-9)


def test_the_largest_of_everything_starts_from_nothing_once():
    kernel, given = spcomp.compile("s = max((i, j), A[i,j] * X[i,j])"), -stored("ell").to_dense()
    args = {"A": spcomp.convert(sps.csr_array(given), spcomp.Format.parse("ell", 2)), "X": X}
    assert "decompose_reduction('s_it0', 'i')" in steps(kernel, **args)
    largest = same_at_any_number_of_threads(kernel, args)
    np.testing.assert_allclose(largest, (given * X)[given != 0].max())


@pytest.mark.parametrize(("form", "size"), [("coo", 4096), ("dcsr", 64)])
@pytest.mark.parametrize("text", ["y[i] = A[i,j] * x[j]", "C[i,k] = A[i,j] * B[j,k]"])
def test_rows_below_a_root_are_cut_into_chunks(text, form, size):
    kernel = spcomp.compile(text)
    args = {"A": stored(form), **({"x": x} if "x" in text else {"B": B})}
    assert f"split_sorted('i', {size}, 0)" in steps(kernel, **args)
    made = same_at_any_number_of_threads(kernel, args)
    np.testing.assert_allclose(made, A @ next(iter([*args.values()][1:])), rtol=1e-9)


@pytest.mark.parametrize(
    ("text", "innermost"),
    [
        ("S[I, J, a, b] = Q[I, a, f] * K[J, b, f] if M[I, J]", "f"),
        ("O[I, a, f] = S[I, J, a, b] * V[J, b, f]", "f"),
        ("s[i] = sum(j, (D[i, j] - m[i]) ** 2)", "j"),
        ("C[i, k] = D[i, j] * E[k, j]", "j"),
        ("C[i, k] = D[i, j] * E[j, k]", "k"),
        ("C[j, i] = D[i, j] + 1", "i"),
    ],
)
def test_the_innermost_loop_crosses_the_fewest_operands(text, innermost):
    rng = np.random.default_rng(0)
    shapes = {"Q": (3, 4, 5), "K": (3, 6, 5), "V": (3, 6, 5), "D": (7, 7), "E": (7, 7), "m": (7,)}
    known = {name: rng.random(shape) for name, shape in shapes.items()}
    known["M"] = sps.csr_array(np.tril(np.ones((3, 3))))
    blocks = spcomp.compile("S[I, J, a, b] = M[I, J] * x[a] * y[b]")
    known["S"] = blocks(M=known["M"], x=np.ones(4), y=np.ones(6))
    kernel = spcomp.compile(text)
    kernel(**{name: known[name] for name in kernel.arguments})
    loops = [
        line.split()[1]
        for line in kernel.explain().splitlines()
        if line.startswith("  ") and " in " in line
    ]
    assert loops[-1] == innermost
