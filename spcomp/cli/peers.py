"""Under ``spcomp bench``: the library functions that compute the same as a program."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from spcomp.ir.access import Load
from spcomp.ir.analysis.reduction import Reduction, as_reduction
from spcomp.ir.axis import SparseBuffer
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import BinOp, Cast, Expr, Var
from spcomp.ir.func import Func
from spcomp.ir.program import CoordFunc
from spcomp.ir.stmt import Seq, Stmt

Call: TypeAlias = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Product:
    """The program multiplies the matrix *sparse*, or its transpose, by the array *dense*."""

    sparse: str
    dense: str
    transposed: bool

    def __str__(self) -> str:
        return f"{self.sparse}{'.T' if self.transposed else ''} @ {self.dense}"


def product_of(func: Func) -> Product | None:
    """Return the product of a sparse matrix and a dense array that *func* computes, or None."""
    body = _unwrap(func.body)
    if not isinstance(func, CoordFunc) or not isinstance(body, SpIter):
        return None
    reduction = as_reduction(body.body)
    if reduction is None or reduction.combiner != "+" or reduction.is_tuple:
        return None
    return _from_factors(reduction, _factors(reduction.value))


def rival(library: str, product: Product, operands: Mapping[str, Any], threads: int) -> Call:
    """Return a function that computes *product* by *library* on *threads* threads.

    The operands are a csr matrix and a numpy array, by name. Raises ImportError, KeyError.
    """
    matrix = operands[product.sparse]
    matrix = matrix.T.tocsr() if product.transposed else matrix
    return RIVALS[library](matrix, operands[product.dense], threads)


def find_mkl() -> str | None:
    """Return the path of libmkl_rt, and set ``MKL_RT``: no loader looks where pip installs it."""
    if "MKL_RT" not in os.environ:
        prefix = Path(sys.prefix)
        paths = [*prefix.glob("lib/libmkl_rt.*"), *prefix.glob("Library/bin/mkl_rt.*")]
        if paths:
            os.environ["MKL_RT"] = str(paths[0])
    return os.environ.get("MKL_RT")


def _scipy(matrix: Any, dense: Any, _threads: int) -> Call:
    return lambda: matrix @ dense


def _mkl(matrix: Any, dense: Any, threads: int) -> Call:
    find_mkl()
    mkl = import_module("sparse_dot_mkl")
    mkl.mkl_set_num_threads_local(0)  # PyTorch may have set it for this thread
    mkl.mkl_set_num_threads(threads)
    return lambda: mkl.dot_product_mkl(matrix, dense)


def _torch(matrix: Any, dense: Any, threads: int) -> Call:
    torch = import_module("torch")
    torch.set_num_threads(threads)
    arrays = (torch.from_numpy(a) for a in (matrix.indptr, matrix.indices, matrix.data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about CSR support being in beta
        a, b = torch.sparse_csr_tensor(*arrays, size=matrix.shape), torch.from_numpy(dense)
    return lambda: a @ b


RIVALS: dict[str, Callable[[Any, Any, int], Call]] = {
    "scipy": _scipy,
    "torch": _torch,
    "mkl": _mkl,
}  # PyTorch before MKL: it sets MKL's threads too


def _unwrap(stmt: Stmt) -> Stmt:
    while isinstance(stmt, Seq) and len(stmt.body) == 1:
        stmt = stmt.body[0]
    return stmt


def _factors(value: Expr) -> list[Expr]:
    match value:
        case Cast(value=inner):
            return _factors(inner)
        case BinOp(op="*", lhs=lhs, rhs=rhs):
            return _factors(lhs) + _factors(rhs)
    return [value]


def _from_factors(reduction: Reduction, factors: list[Expr]) -> Product | None:
    loads = [factor for factor in factors if isinstance(factor, Load)]
    if len(factors) != 2 or len(loads) != 2:
        return None
    loads.sort(key=lambda load: not _is_sparse(load))
    sparse, dense = loads
    out, indices = _names(reduction.indices), [_names(load.indices) for load in loads]
    if not _is_sparse(sparse) or _is_sparse(dense) or None in (out, *indices):
        return None
    (row, column), (inner, *tail) = indices[0], indices[1]  # type: ignore[misc]
    if out == [row, *tail] and inner == column:
        return Product(sparse.buffer.name, dense.buffer.name, transposed=False)
    if out == [column, *tail] and inner == row:
        return Product(sparse.buffer.name, dense.buffer.name, transposed=True)
    return None


def _is_sparse(load: Load) -> bool:
    buffer = load.buffer
    return isinstance(buffer, SparseBuffer) and [a.kind for a in buffer.axes] == [
        "dense_fixed",
        "sparse_variable",
    ]


def _names(indices: tuple[Expr | None, ...]) -> list[str] | None:
    names = [index.name for index in indices if isinstance(index, Var)]
    return names if 1 <= len(names) == len(indices) <= 2 else None
