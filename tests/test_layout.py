"""Layouts that few programs use: interleaved dense axes, strides, and sizes that are computed."""

from __future__ import annotations

import numpy as np
import pytest

import spcomp
from spcomp import script as T
from spcomp.compiler.pipeline import lower
from spcomp.errors import ArgumentError
from spcomp.ir.interpret.program import interpret
from spcomp.target import Target

CPU = Target("cpu", "x86-64-v3", vector_bits=256)


@T.prim_func
def between(
    a: T.handle,
    c: T.handle,
    indptr: T.handle,
    indices: T.handle,
    m: T.int32,
    n: T.int32,
    f: T.int32,
    nnz: T.int32,
) -> None:
    I = T.dense_fixed(m)
    F = T.dense_fixed(f)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices))
    A = T.match_sparse_buffer(a, (I, F, J), "float64")
    C = T.match_sparse_buffer(c, (I, J, F), "float64")
    with T.sp_iter([I, F, J], "SSS", "between") as [i, k, j]:
        C[i, j, k] = A[i, k, j]


@T.prim_func
def around(
    a: T.handle,
    c: T.handle,
    p1: T.handle,
    i1: T.handle,
    p2: T.handle,
    i2: T.handle,
    m: T.int32,
    n: T.int32,
    l: T.int32,
    f: T.int32,
    g: T.int32,
    nnz1: T.int32,
    nnz2: T.int32,
) -> None:
    G = T.dense_fixed(g)
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz1), (p1, i1))
    F = T.dense_fixed(f)
    L = T.sparse_variable(J, (l, nnz2), (p2, i2))
    A = T.match_sparse_buffer(a, (G, I, J, F, L), "float64")
    C = T.match_sparse_buffer(c, (I, J, L, F, G), "float64")
    with T.sp_iter([G, I, J, F, L], "SSSSS", "around") as [q, i, j, k, r]:
        C[i, j, r, k, q] = A[q, i, j, k, r]


def run(func, args, out):
    """The array *out* after the interpreter at each stage and the machine code ran on *args*."""
    stages = lower(func, CPU)
    results = []
    for module in (stages.coordinate, stages.position, stages.flat):
        mine = {**args, out: args[out].copy()}
        interpret(module, mine)
        results.append(mine[out])
    mine = {**args, out: args[out].copy()}
    spcomp.compile(func)(*(mine[param.name] for param in func.params))
    results.append(mine[out])
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
    return results[0]


def test_a_dense_axis_may_stand_between_a_parent_and_its_fibers():
    indptr = np.array([0, 2, 2, 5], np.int32)
    indices = np.array([1, 3, 0, 1, 2], np.int32)
    f = 3
    blocks = [
        np.arange(f * k, dtype=float).reshape(f, k) + 100 * row for row, k in enumerate((2, 0, 3))
    ]
    args = {"a": np.concatenate([b.ravel() for b in blocks]), "c": np.zeros(5 * f)}
    args |= {"indptr": indptr, "indices": indices, "m": 3, "n": 4, "f": f, "nnz": 5}
    expected = np.concatenate([b.T for b in blocks])
    np.testing.assert_array_equal(run(between, args, "c").reshape(5, f), expected)


def test_dense_axes_may_stand_before_between_and_behind_the_members_of_a_chain():
    p1, i1 = np.array([0, 2, 3], np.int32), np.array([0, 2, 1], np.int32)
    p2, i2 = np.array([0, 1, 3, 5], np.int32), np.array([1, 0, 2, 1, 2], np.int32)
    f, g, nnz2 = 2, 3, 5
    rng = np.random.default_rng(0)
    whole = rng.integers(0, 100, (g, f, nnz2)).astype(float)  # by leaf position
    laid = [whole[q, :, p2[j] : p2[j + 1]].ravel() for q in range(g) for j in range(3)]
    args = {"a": np.concatenate(laid), "c": np.zeros(nnz2 * f * g)}
    args |= {"p1": p1, "i1": i1, "p2": p2, "i2": i2, "m": 2, "n": 3, "l": 3, "f": f, "g": g}
    result = run(around, {**args, "nnz1": 3, "nnz2": nnz2}, "c").reshape(nnz2, f, g)
    np.testing.assert_array_equal(result, whole.transpose(2, 1, 0))


@T.prim_func
def columns(a: T.handle, c: T.handle, m: T.int32, n: T.int32) -> None:
    A = T.match_buffer(a, (m, n), "float64", strides=(1, m))
    C = T.match_buffer(c, (m, n), "float64")
    for i in T.serial(m):
        for j in T.serial(n):
            C[i, j] = A[i, j]


def test_strides_address_an_array_by_columns():
    matrix = np.arange(12.0).reshape(3, 4)
    result = np.zeros(12)
    spcomp.compile(columns)(matrix.T.ravel().copy(), result, 3, 4)
    np.testing.assert_array_equal(result.reshape(3, 4), matrix)


@T.prim_func
def odd_size(c: T.handle, m: T.int32) -> None:
    I = T.dense_fixed(T.abs(m))
    C = T.match_sparse_buffer(c, (I,), "float64")
    with T.sp_iter([I], "S", "odd_size") as [i]:
        C[i] = 1.0


def test_a_size_that_calls_a_function_is_refused_by_name():
    with pytest.raises(ArgumentError, match="a size is a Call, which the arguments do not give"):
        spcomp.compile(odd_size)(np.zeros(3), -3)
