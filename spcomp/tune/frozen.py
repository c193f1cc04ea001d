"""Beside the tuner: matrices that cannot change, so that stored winners may convert them."""

from __future__ import annotations

from typing import Any

import numpy as np

from spcomp.errors import ArgumentError, front_door
from spcomp.tensors.libraries.scipy import is_scipy, scipy_of_arrays
from spcomp.tensors.tensor import Tensor


@front_door
def frozen(matrix: Any) -> Any:
    """Return a copy of *matrix* whose arrays nobody can change: scipy's csr, csc, bsr, or a Tensor.

    Kernels may convert such a matrix to another format once and keep the result. Raises
    ArgumentError for others.
    """
    if isinstance(matrix, Tensor):  # its levels cannot change
        return matrix.with_values(_copied(matrix.values))
    if is_scipy(matrix) and matrix.format in ("csr", "csc", "bsr"):
        arrays = (_copied(array) for array in (matrix.data, matrix.indices, matrix.indptr))
        return scipy_of_arrays(type(matrix), matrix.shape, *arrays)
    raise ArgumentError(
        f"argument matrix: {type(matrix).__name__} cannot be frozen",
        hint="give csr, csc or bsr of scipy, or a Tensor; bind(A=..., calls=...) copies any matrix",
    )


def _copied(array: Any) -> Any:
    """Return a read-only copy of *array*, and not a view, which changes with what it views."""
    copy = np.array(array)
    copy.flags.writeable = False
    return copy
