"""Newton's method for -u'' + u^3 = f in a square: each step adds a diagonal to a sparse matrix."""

import numpy as np
import scipy.sparse as sps
from scipy.sparse.linalg import spsolve

import spcomp

SIDE = 24  # inner points in each direction


def laplacian(side: int) -> sps.csr_array:
    """The five-point stencil on a square of *side* times *side* points, of width 1."""
    line = sps.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(side, side))
    one = sps.eye_array(side)
    return sps.csr_array((sps.kron(line, one) + sps.kron(one, line)) * (side + 1) ** 2)


def main() -> None:
    """Solve for a known solution and compare with it."""
    stencil = laplacian(SIDE)
    points = np.linspace(0, 1, SIDE + 2)[1:-1]
    known = 3 * np.outer(np.sin(np.pi * points), np.sin(2 * np.pi * points)).ravel()
    force = stencil @ known + known**3
    residual = spcomp.compile("r[i] = L[i, j] * u[j] + u[i] ** 3 - f[i]")
    jacobian = spcomp.compile("J[i, j] = L[i, j] + 3 * u[i] ** 2 * D[i, j]")
    norm = spcomp.compile("s = r[i] * r[i]")
    diagonal = sps.eye_array(SIDE * SIDE, format="csr")
    guess, steps = np.zeros(SIDE * SIDE), 0
    left = residual(L=stencil, u=guess, f=force)
    while norm(r=left) > 1e-16 * norm(r=force):
        matrix = jacobian(L=stencil, D=diagonal, u=guess)  # csr: the stencil or the diagonal
        guess, steps = guess - spsolve(matrix.tocsc(), left), steps + 1
        left = residual(L=stencil, u=guess, f=force)
    error = np.abs(guess - known).max()
    print(f"{steps} steps, {matrix.nnz} elements in the matrix: max error {error:.1e}")
    if not (error < 1e-8 and steps < 10):
        raise SystemExit("Newton's method did not find the solution")


if __name__ == "__main__":
    main()
