"""Beside distributed tensors: an order of rows and columns that cuts what blocks need."""

from __future__ import annotations

from typing import Any

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import ArgumentError
from spcomp.tensors.convert import convert


def ordering(matrix: Any) -> Array:
    """Return the reverse Cuthill-McKee order of a square sparse matrix, as numbers of rows.

    ``A[p][:, p]`` has its elements near the diagonal where the graph of the matrix is a mesh or a
    road network, so that a block of its rows needs few columns of other blocks. It helps little for
    graphs whose nodes have very different degrees.

    Source: A. George, *Computer implementation of the finite element method*, Stanford, 1971;
    computed by scipy on the pattern of ``A + A.T``.

    Raises:
        ArgumentError: for another argument.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    found = convert(matrix, "csr")
    if found.shape[0] != found.shape[1]:
        raise ArgumentError(f"argument matrix: got the shape {found.shape}, expected a square")
    ones = csr_array((np.ones(len(found.indices)), found.indices, found.indptr), found.shape)
    order: Array = reverse_cuthill_mckee(csr_array(ones + ones.T), symmetric_mode=True)
    return order
