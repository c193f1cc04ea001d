"""Rival: MKL's inspector-executor interface through ctypes, with and without the inspector."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_double, c_float, c_int, c_void_p
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sps

from benchmarks.contenders import MissingError, Prepared, contender, need
from benchmarks.elementwise import spelled
from spcomp.cli.peers import find_mkl

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.problem import Array, Problem

NORMAL, TRANSPOSED, ROW_MAJOR, GENERAL = 10, 11, 101, 20  # of mkl_spblas.h
EXPECTED_CALLS = 1000


class _Description(ctypes.Structure):
    _fields_ = (("type", c_int), ("mode", c_int), ("diagonal", c_int))


_PLAIN = _Description(GENERAL, 0, 0)


@cache
def _library() -> Any:
    """Load libmkl_rt; a process that has no MKL raises MissingError."""
    place = find_mkl()
    try:
        return ctypes.CDLL(place or "libmkl_rt.so")
    except OSError as error:
        raise MissingError("libmkl_rt is not installed (package mkl)") from error


def set_threads(count: int) -> None:
    """Let MKL use *count* threads, also where PyTorch has set a number for this thread."""
    _library().MKL_Set_Num_Threads_Local(0)
    _library().MKL_Set_Num_Threads(count)


class Handle:
    """An MKL matrix over the arrays of a csr_matrix."""

    def __init__(self, csr: Any) -> None:
        self.csr, self.letter = csr, "d" if csr.data.itemsize == 8 else "s"
        self.real = c_double if csr.data.itemsize == 8 else c_float
        self.pointer = c_void_p()
        create = getattr(_library(), f"mkl_sparse_{self.letter}_create_csr")
        begins = csr.indptr.ctypes.data
        arrays = (begins, begins + 4, csr.indices.ctypes.data, csr.data.ctypes.data)
        _checked(create(byref(self.pointer), 0, *csr.shape, *map(c_void_p, arrays)))

    def optimize(self, operation: int, columns: int) -> None:
        """Let MKL inspect the matrix for many products with *columns* columns (0: a vector)."""
        mkl = _library()
        calls: tuple[int, ...] = (EXPECTED_CALLS,)
        if columns:
            calls = (ROW_MAJOR, columns, EXPECTED_CALLS)
        hint = mkl.mkl_sparse_set_mm_hint if columns else mkl.mkl_sparse_set_mv_hint
        _checked(hint(self.pointer, operation, _PLAIN, *calls))
        _checked(mkl.mkl_sparse_optimize(self.pointer))

    def product(self, b: Array, out: Array, operation: int = NORMAL) -> Callable[[], Array]:
        """Return a call that writes the product with *b* to *out*."""
        mkl, one, zero = _library(), self.real(1), self.real(0)
        arguments: tuple[Any, ...]
        operands = c_void_p(b.ctypes.data), c_void_p(out.ctypes.data)
        if b.ndim == 1:
            run = getattr(mkl, f"mkl_sparse_{self.letter}_mv")
            arguments = (operation, one, self.pointer, _PLAIN, operands[0], zero, operands[1])
        else:
            run, width = getattr(mkl, f"mkl_sparse_{self.letter}_mm"), b.shape[1]
            arguments = (
                *(operation, one, self.pointer, _PLAIN, ROW_MAJOR, operands[0], width, width),
                *(zero, operands[1], width),
            )

        def call() -> Array:
            _checked(run(*arguments))
            return out

        return call

    def close(self) -> None:
        """Free what MKL has allocated."""
        _library().mkl_sparse_destroy(self.pointer)


def _operands(problem: Problem) -> tuple[Array, int]:
    transposed = problem.case.operator == "csrmm_t"
    return problem.dense["X" if transposed else "B"], TRANSPOSED if transposed else NORMAL


@contender("mkl_ie", "spmm", "spmm_hub", "spmv", "spmv_compressed", "csrmm_t", handle=True)
def _inspected(problem: Problem) -> Prepared:
    b, operation = _operands(problem)
    handle = Handle(problem.sparse)
    handle.optimize(operation, b.shape[1] if b.ndim == 2 else 0)
    return Prepared(handle.product(b, problem.out, operation), close=handle.close)


@contender("mkl", "spmm", "spmm_hub", "spmv", "csrmm_t")
def _plain(problem: Problem) -> Callable[[], object]:
    b, operation = _operands(problem)
    csr, out = problem.sparse, problem.out

    def call() -> object:
        handle = Handle(csr)
        try:
            return handle.product(b, out, operation)()
        finally:
            handle.close()

    return call


@contender("mkl_sparse_dot", "spmm", "spmm_hub", "spmv")
def _sparse_dot(problem: Problem) -> Callable[[], object]:
    _library()
    dot = need("sparse_dot_mkl").dot_product_mkl
    csr, b, out = problem.sparse, problem.dense["B"], problem.out
    if b.ndim == 1:
        return lambda: dot(csr, b)
    return lambda: dot(csr, b, out=out, out_scalar=0.0)


@contender("mkl", "spadd", handle=True)
def _sum(problem: Problem) -> Prepared:
    a, b = Handle(problem.sparse), Handle(problem.dense["B"])
    add = getattr(_library(), f"mkl_sparse_{a.letter}_add")
    return _made(lambda made: add(NORMAL, a.pointer, a.real(1), b.pointer, byref(made)), a, b)


@contender("mkl", "csr_csc")
def _converted(problem: Problem) -> Prepared:
    """As the rows of the transpose."""
    a, convert = Handle(problem.sparse), _library().mkl_sparse_convert_csr
    return _made(lambda made: convert(a.pointer, TRANSPOSED, byref(made)), a)


def _made(make: Callable[[c_void_p], int], *operands: Handle) -> Prepared:
    """What *make* makes stays in MKL's own memory, and is freed within a call, as others free."""
    made = c_void_p()

    def drop() -> None:
        if made:
            _library().mkl_sparse_destroy(made)
            made.value = None

    def call() -> c_void_p:
        drop()
        _checked(make(made))
        return made

    def value(result: c_void_p) -> Array:
        return spelled(_exported(result, operands[0]))

    def close() -> None:
        drop()
        for operand in operands:
            operand.close()

    return Prepared(call, value, close)


def _exported(made: c_void_p, like: Handle) -> Any:
    """Return a copy of an MKL matrix, a csr_matrix of the kind of *like*."""
    base, rows, columns = c_int(), c_int(), c_int()
    begins, ends, indices, values = (c_void_p() for _ in range(4))
    export = getattr(_library(), f"mkl_sparse_{like.letter}_export_csr")
    sizes = byref(base), byref(rows), byref(columns)
    _checked(export(made, *sizes, *map(byref, (begins, ends, indices, values))))
    starts = np.ctypeslib.as_array(ctypes.cast(begins, POINTER(c_int)), (rows.value,))
    stops = np.ctypeslib.as_array(ctypes.cast(ends, POINTER(c_int)), (rows.value,))
    indptr = np.append(starts, stops[-1:])
    found = np.ctypeslib.as_array(ctypes.cast(indices, POINTER(c_int)), (int(indptr[-1]),))
    data = np.ctypeslib.as_array(ctypes.cast(values, POINTER(like.real)), (int(indptr[-1]),))
    return sps.csr_matrix((data.copy(), found.copy(), indptr), (rows.value, columns.value))


def _checked(status: int) -> None:
    if status:
        raise MissingError(f"MKL returns status {status}")
