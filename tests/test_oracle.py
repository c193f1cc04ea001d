"""The oracles themselves, against scipy and loops written from the mathematics."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps
from hypothesis import given
from hypothesis import strategies as st

from tests import oracle
from tests.programs import BY_NAME, PROGRAMS
from tests.strategies import csf_structures, csr_structures, ell_structures, ragged_structures

CASES = ("random", "empty_rows", "full_row", "nnz0", "one")


def _csr(x, a="a", indptr="indptr", indices="indices"):
    return sps.csr_array((x[a], x[indices], x[indptr]), shape=(x["m"], x["n"]))


@pytest.mark.parametrize("case", CASES)
def test_products_agree_with_scipy(case):
    x = BY_NAME["csrmm"].inputs(case, "float64")
    product = _csr(x) @ x["b"].reshape(x["n"], -1)
    np.testing.assert_allclose(BY_NAME["csrmm"].expected(x)["c"], product)
    x = BY_NAME["csrmm_t"].inputs(case, "float64")
    scattered = _csr(x).T @ x["x"].reshape(x["m"], -1)
    np.testing.assert_allclose(BY_NAME["csrmm_t"].expected(x)["y"], scattered)


@pytest.mark.parametrize("case", CASES)
def test_block_products_agree_with_scipy(case):
    x = BY_NAME["bsrmm"].inputs(case, "float64")
    blocks = x["a"].reshape(-1, 2, 2)
    shape = (2 * x["nb"], 2 * x["mb"])
    matrix = sps.bsr_array((blocks, x["indices"], x["indptr"]), shape=shape)
    product = matrix @ x["b"].reshape(shape[1], -1)
    np.testing.assert_allclose(BY_NAME["bsrmm"].expected(x)["c"], product)


@pytest.mark.parametrize("case", CASES)
def test_conversion_to_blocks_agrees_with_scipy(case):
    x = BY_NAME["csr2bsr"].inputs(case, "float64")
    blocks = x["b"].reshape(-1, 2, 2) * 0
    shape = (x["m"], x["n"])
    pattern = sps.bsr_array((blocks, x["b_indices"], x["b_indptr"]), shape=shape)
    x["b"][:] = 0
    pattern.data[:] = BY_NAME["csr2bsr"].expected(x)["b"]
    np.testing.assert_allclose(pattern.toarray(), _csr(x).toarray())


@pytest.mark.parametrize("case", CASES)
def test_sums_and_products_of_two_matrices_agree_with_scipy(case):
    x = BY_NAME["csr_add"].inputs(case, "float64")
    left, right = _csr(x, "a", "a_indptr", "a_indices"), _csr(x, "b", "b_indptr", "b_indices")
    for name, result in (("csr_add", left + right), ("csr_mul", left * right)):
        want = BY_NAME[name].expected(x)
        np.testing.assert_array_equal(want["JC_indptr"], result.indptr)
        np.testing.assert_array_equal(want["JC_indices"], result.indices)
        np.testing.assert_allclose(want["c"], result.data)


def test_softmax_rows_sum_to_one():
    x = BY_NAME["sparse_softmax"].inputs("random", "float64")
    result = BY_NAME["sparse_softmax"].expected(x)["b"]
    totals = [np.sum(result[p:q]) for p, q in zip(x["indptr"], x["indptr"][1:], strict=False)]
    assert np.allclose([t for t in totals if t], 1)


def test_relational_layers_agree_with_loops_over_dense_tensors():
    x = BY_NAME["rgcn_hetero_forward"].inputs("random", "float64")
    full = np.zeros((x["rels"], x["m"], x["n"]))
    for r in range(x["rels"]):
        for p in range(x["indptr_i"][r], x["indptr_i"][r + 1]):
            for q in range(x["indptr_j"][p], x["indptr_j"][p + 1]):
                full[r, x["indices_i"][p], x["indices_j"][q]] += x["a"][q]
    weights = x["w"].reshape(x["rels"], x["fout"], x["fin"])
    want = np.einsum("rij,rof,jf->io", full, weights, x["x"].reshape(x["n"], -1))
    np.testing.assert_allclose(BY_NAME["rgcn_hetero_forward"].expected(x)["y"], want)


def test_ragged_product_agrees_with_loops_over_positions():
    x = BY_NAME["bmm"].inputs("random", "float64", seed=5)
    want = np.zeros_like(x["z"])
    for b in range(x["batch"]):
        for i, gi in enumerate(range(x["indptr_i"][b], x["indptr_i"][b + 1])):
            assert i < x["longest"]
            for j, gj in enumerate(range(x["indptr_j"][b], x["indptr_j"][b + 1])):
                for k in range(x["indptr_k"][b + 1] - x["indptr_k"][b]):
                    left = x["x"][x["indptr_ij"][gi] + j]
                    right = x["y"][x["indptr_jk"][gj] + k]
                    want[x["indptr_ik"][gi] + k] += left * right
    np.testing.assert_allclose(BY_NAME["bmm"].expected(x)["z"], want)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_a_wrong_element_is_noticed(program):
    dtype = program.dtypes[0]
    x = program.inputs("one", dtype)
    results = program.expected(x)
    program.check(x, results, dtype)
    for name, values in results.items():
        wrong = {**results, name: np.asarray(values) + 2}
        with pytest.raises(AssertionError, match=rf"{program.name} .*{name}|not equal"):
            program.check(x, wrong, dtype)


@pytest.mark.parametrize("value", [0.0, 1.0, -2.5, 77.0, 3.140625])
def test_bfloat16_bits_round_trip(value):
    bits = oracle.to_bfloat16(np.array([value]))
    assert oracle.from_bfloat16(bits)[0] == value


@given(csr=csr_structures(), ell=ell_structures(), ragged=ragged_structures(), csf=csf_structures())
def test_structures_are_legal(csr, ell, ragged, csf):
    for axis, (rows, length) in ((csr.axis, csr.shape), (csf.rows, csf.shape[:2])):
        assert len(axis.indptr) == rows + 1
        assert len(axis.indices) == axis.nnz
        assert all(0 <= j < length for j in axis.indices)
        for p, q in zip(axis.indptr, axis.indptr[1:], strict=False):
            assert np.all(np.diff(axis.indices[p:q]) > 0)
    assert len(ell.indices) == ell.shape[0] * ell.columns
    assert np.all(np.diff(ragged.indptr) >= 0)
    assert len(csf.tubes.indptr) == csf.rows.nnz + 1


@given(data=st.data())
def test_inputs_can_be_drawn_for_every_program(data):
    from tests.strategies import DrawnByHypothesis

    program = data.draw(st.sampled_from(PROGRAMS))
    inputs = program.make(DrawnByHypothesis(data, program.dtypes[0]))
    program.check(inputs, program.expected(inputs), program.dtypes[0])
