"""A matrix stored in another way: our conversion and those of the rivals."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import scipy.sparse as sps

import spcomp
from benchmarks.contenders import OURS, Prepared, contender, need
from benchmarks.elementwise import spelled

if TYPE_CHECKING:
    from benchmarks.problem import Problem


def _listed(problem: Problem) -> Any:
    dense = problem.dense
    at = dense["rows"], dense["columns"]
    return sps.coo_array((dense["values"], at), shape=problem.sparse.shape)


@contender("spcomp", "coo_csr", "csr_csc", library=OURS)
def _spcomp(problem: Problem) -> Prepared:
    if problem.case.operator == "coo_csr":
        coo = _listed(problem)
        return Prepared(lambda: spcomp.convert(coo, "csr"), spelled)
    csr = problem.sparse
    return Prepared(lambda: spcomp.convert(csr, "csc"), spelled)


@contender("scipy", "coo_csr", "csr_csc")
def _scipy(problem: Problem) -> Prepared:
    if problem.case.operator == "coo_csr":
        coo = _listed(problem)
        return Prepared(coo.tocsr, spelled)
    return Prepared(problem.sparse.tocsc, spelled)


@contender("torch", "coo_csr", "csr_csc")
def _torch(problem: Problem) -> Prepared:
    torch, shape = need("torch"), problem.sparse.shape
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that its CSR support is in beta
        if problem.case.operator == "coo_csr":
            rows, columns, values = map(torch.from_numpy, problem.dense.values())
            coo = torch.sparse_coo_tensor(torch.stack([rows, columns]), values, shape)
            coo.coalesce().to_sparse_csr()  # it warns once
            return Prepared(lambda: coo.coalesce().to_sparse_csr(), _of_torch)
        arrays = problem.sparse.indptr, problem.sparse.indices, problem.sparse.data
        csr = torch.sparse_csr_tensor(*map(torch.from_numpy, arrays), shape)
    return Prepared(csr.to_sparse_csc, _of_torch)


def _of_torch(made: Any) -> Any:
    rows = "csr" in str(made.layout)
    pointers = made.crow_indices() if rows else made.ccol_indices()
    indices = made.col_indices() if rows else made.row_indices()
    parts = tuple(part.numpy() for part in (made.values(), indices, pointers))
    return spelled((sps.csr_matrix if rows else sps.csc_matrix)(parts, tuple(made.shape)))


@contender("graphblas", "coo_csr")
def _graphblas(problem: Problem) -> Prepared:
    need("graphblas.core")
    gb, dense = need("graphblas"), problem.dense
    rows, columns = problem.sparse.shape
    parts = dense["rows"], dense["columns"], dense["values"]

    def call() -> Any:
        made = gb.Matrix.from_coo(*parts, nrows=rows, ncols=columns)
        made.wait("complete")
        return made

    return Prepared(call, lambda made: spelled(gb.io.to_scipy_sparse(made, "csr")))
