"""Gradients under masks: a tensor masks where it is stored, whatever it stores there."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp


@pytest.mark.parametrize("values", ["zeros", "ones", "dense"])
@pytest.mark.parametrize("op", ["prod", "max", "min", "sum"])
def test_a_mask_that_stores_zeros_masks_where_it_is_stored(op, values):
    rng = np.random.default_rng(0)
    mask = sps.random_array((4, 5), density=0.6, format="csr", rng=rng)
    mask.data[:] = values != "zeros"
    given = mask.toarray() if values == "dense" else mask
    text = f"Y[n, f] = {op}(e, X[e, f] if P[n, e])"
    forward = spcomp.compile(text)
    X = rng.random((5, 3)) + 0.5
    found = spcomp.compile(spcomp.adjoint(text, "X"))(X=X, P=given, grad_Y=np.ones((4, 3)))
    step = 1e-6
    for place in np.ndindex(*X.shape):
        sides = []
        for sign in (1, -1):
            moved = X.copy()
            moved[place] += sign * step
            result = forward(X=moved, P=given)
            sides.append(result[np.isfinite(result)].sum())
        np.testing.assert_allclose(found[place], (sides[0] - sides[1]) / (2 * step), atol=1e-6)
