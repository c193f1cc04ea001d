"""A matrix stored in another way: the problem, its right answer, its traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sps

from benchmarks.elementwise import spelled
from benchmarks.problem import Case, Problem, Traffic

if TYPE_CHECKING:
    from collections.abc import Callable


def _from_coordinates(case: Case, csr: Any) -> Problem:
    """Its elements in no order, each once."""
    order = np.random.default_rng(12).permutation(csr.nnz)
    coo = csr.tocoo()
    listed = {"rows": coo.row[order], "columns": coo.col[order], "values": coo.data[order]}
    return _problem(case, csr, listed, sps.csr_matrix(csr))


def _by_columns(case: Case, csr: Any) -> Problem:
    return _problem(case, csr, {}, csr.tocsc())


def _problem(case: Case, csr: Any, dense: dict[str, Any], found: Any) -> Problem:
    """The result is compared as ``elementwise.spelled`` writes it, exactly."""
    want = spelled(found)
    given = (csr.indptr, csr.indices, csr.data) if not dense else dense.values()
    size = sum(part.nbytes for part in (*given, found.indptr, found.indices, found.data))
    traffic, out = Traffic(size, footprint=found.indices.nbytes), np.zeros(0, case.dtype)
    return Problem(case, csr, dense, out, want, np.zeros_like(want), 1, traffic)


CONVERSIONS: dict[str, tuple[Callable[[Case, Any], Problem], str]] = {
    "coo_csr": (_from_coordinates, "coordinates in any order to CSR with sorted columns"),
    "csr_csc": (_by_columns, "CSR to CSC with sorted rows"),
}
