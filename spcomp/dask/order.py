"""Beside distributed tensors: an order of rows and columns that cuts what blocks need."""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple

import numpy as np

from spcomp.arrays import Array
from spcomp.dask.chunks import Chunks, by_elements
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
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    graph = _graph(matrix)
    if not graph.shape[0]:
        return np.zeros(0, np.int32)
    order: Array = reverse_cuthill_mckee(graph, symmetric_mode=True)
    return order


def _graph(matrix: Any) -> Any:
    """Return the pattern of ``A + A.T`` in csr; raises ArgumentError if *matrix* is no square."""
    from scipy.sparse import csr_array

    found = convert(matrix, "csr")
    if found.shape[0] != found.shape[1]:
        raise ArgumentError(f"argument matrix: got the shape {found.shape}, expected a square")
    ones = csr_array((np.ones(len(found.indices)), found.indices, found.indptr), found.shape)
    return csr_array(ones + ones.T)


class Partition(NamedTuple):
    """An *order* of the rows and columns of a matrix, and how many *rows* each block then has.

    *method*: what found it, ``metis`` or ``rcm``.
    """

    order: Array
    rows: Chunks
    method: str


def partition(matrix: Any, parts: int, method: str | None = None) -> Partition:
    """Return an order of a square sparse matrix, cut into blocks that need little of each other.

    Blocks have about as many elements. ``A[p.order][:, p.order]`` in ``(p.rows, p.rows)`` or rows
    of ``p.rows`` is the matrix in blocks.

    Args:
        matrix: A sparse matrix that is here.
        parts: The number of blocks.
        method: ``metis`` cuts as few edges of the graph as it can, any graph (G. Karypis, V. Kumar,
            *A fast and high quality multilevel scheme for partitioning irregular graphs*, 1998;
            needs pymetis); ``rcm`` is ``ordering``, cut by elements. None: METIS if it is there.

    Raises:
        ArgumentError: for other arguments, and METIS where pymetis is not installed.
    """
    if not isinstance(parts, int) or parts < 1:
        raise ArgumentError(f"argument parts: got {parts!r}, expected a number above 0")
    has_metis = importlib.util.find_spec("pymetis") is not None
    chosen = method or ("metis" if has_metis else "rcm")
    if chosen not in ("metis", "rcm") or (chosen == "metis" and not has_metis):
        hint = "pip install pymetis" if chosen == "metis" else "give metis or rcm"
        raise ArgumentError(f"argument method: there is no {chosen!r} here", hint=hint)
    graph = _graph(matrix)
    if chosen == "metis":
        member = _metis(graph, parts)
        order = np.argsort(member, kind="stable")
        rows = tuple(np.bincount(member, minlength=parts).tolist())
    else:
        order = ordering(matrix)
        counts = np.diff(convert(matrix, "csr").indptr)[order]
        rows = by_elements(np.concatenate([[0], np.cumsum(counts)]), parts)
    return Partition(order, rows, chosen)


def _metis(graph: Any, parts: int) -> Array:
    """Return the part of each node; nodes weigh as much as they have elements."""
    import pymetis
    from scipy.sparse import csr_array, diags_array

    loose = csr_array(graph - diags_array(graph.diagonal()))
    loose.eliminate_zeros()
    if parts == 1 or not loose.nnz:
        even: Array = np.arange(loose.shape[0]) * parts // max(loose.shape[0], 1)
        return even
    weights = np.maximum(np.diff(graph.indptr), 1).tolist()
    edges = pymetis.CSRAdjacency(loose.indptr.tolist(), loose.indices.tolist())
    _, member = pymetis.part_graph(parts, edges, vweights=weights)
    parts_of: Array = np.asarray(member, np.int64)
    return parts_of
