"""Assembled outputs beyond CSR: dense axes behind, reductions, conditions, reads of the result."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import script as T
from spcomp.compiler.pipeline import lower
from spcomp.errors import ArgumentError, LoweringError
from spcomp.ir.interpret.program import interpret
from spcomp.schedule.step import Trace
from spcomp.script.parse import parse_source
from spcomp.target import Target
from tests.layers import source
from tests.programs import BY_NAME

CPU = Target("cpu", "x86-64-v3", vector_bits=256)


def csr(seed, shape=(5, 6)):
    rng = np.random.default_rng(seed)
    dense = rng.integers(-3, 4, shape) * (rng.random(shape) < 0.4)
    return sps.csr_array(dense.astype(np.float64))


def stages_agree(func, args):
    """The assembled arrays after interpreting every stage: the same at each."""
    stages = lower(func, CPU)
    modules = (stages.coordinate, stages.position, stages.flat)
    first, *others = (interpret(module, dict(args)) for module in modules)
    for other in others:
        assert other.keys() == first.keys()
        for name, array in other.items():
            np.testing.assert_array_equal(array, first[name], err_msg=name)
    return first


def arguments(a, b, **more):
    args = {"a": a.data, "ip": a.indptr, "ii": a.indices, "b": b.data, "jp": b.indptr}
    args |= {"ji": b.indices, "m": a.shape[0], "n": a.shape[1], "p": a.nnz, "q": b.nnz}
    return {**args, **more}


@T.prim_func
def scaled_rows(
    a: T.handle,
    x: T.handle,
    c: T.handle,
    ip: T.handle,
    ii: T.handle,
    m: T.int32,
    n: T.int32,
    p: T.int32,
    f: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, p), (ip, ii))
    Z = T.sparse_variable(I, (n, None), (None, None))
    F = T.dense_fixed(f)
    A = T.match_sparse_buffer(a, (I, J), "float64")
    X = T.match_sparse_buffer(x, (F,), "float64")
    C = T.match_sparse_buffer(c, (I, Z, F), "float64")
    with T.sp_iter([I, J, F], "SSS", "scaled_rows") as [i, j, k]:
        C[i, j, k] = A[i, j] * X[k]


def test_dense_axes_may_lie_behind_an_assembled_one():
    a, x = csr(0), np.array([1.0, -2.0, 0.5])
    args = {"a": a.data, "x": x, "ip": a.indptr, "ii": a.indices}
    result = stages_agree(scaled_rows, {**args, "m": 5, "n": 6, "p": a.nnz, "f": 3})
    np.testing.assert_array_equal(result["Z_indices"], a.indices)
    np.testing.assert_array_equal(result["c"].reshape(-1, 3), np.outer(a.data, x))
    tensor = spcomp.compile(scaled_rows)(A=a, X=x)
    assert tensor.shape == (5, 6, 3)
    np.testing.assert_array_equal(tensor.to_dense(), a.toarray()[:, :, None] * x)


@T.prim_func
def positive_sum(
    a: T.handle,
    b: T.handle,
    c: T.handle,
    ip: T.handle,
    ii: T.handle,
    jp: T.handle,
    ji: T.handle,
    m: T.int32,
    n: T.int32,
    p: T.int32,
    q: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, p), (ip, ii))
    L = T.sparse_variable(I, (n, q), (jp, ji))
    Z = T.sparse_variable(I, (n, None), (None, None))
    A = T.match_sparse_buffer(a, (I, J), "float64")
    B = T.match_sparse_buffer(b, (I, L), "float64")
    C = T.match_sparse_buffer(c, (I, Z), "float64")
    with T.sp_iter([I, T.union(J, L)], "SS", "positive_sum") as [i, j]:
        if A[i, j] + B[i, j] > 0.0:
            C[i, j] = C[i, j] + A[i, j]
            C[i, j] = C[i, j] + B[i, j]


def test_a_coordinate_exists_where_it_was_written_and_reads_as_what_was_written():
    a, b = csr(1), csr(2)
    result = stages_agree(positive_sum, arguments(a, b))
    expected = np.maximum(a.toarray() + b.toarray(), 0)
    made = spcomp.compile(positive_sum)(A=a, B=b)
    np.testing.assert_array_equal(made.toarray(), expected)
    assert made.nnz == np.count_nonzero(expected) == result["Z_indptr"][-1]


@T.prim_func
def last_of_each(
    a: T.handle,
    c: T.handle,
    ip: T.handle,
    ii: T.handle,
    m: T.int32,
    n: T.int32,
    p: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, p), (ip, ii), unique=False)
    Z = T.sparse_variable(I, (n, None), (None, None))
    A = T.match_sparse_buffer(a, (I, J), "float64")
    C = T.match_sparse_buffer(c, (I, Z), "float64")
    with T.sp_iter([I, J], "SS", "last_of_each") as [i, j]:
        C[i, j] = A[i, j]


def test_every_case_of_a_union_marks_what_it_writes():
    """The second statement needs marks, then the first has them, too: a sum inside of a union."""
    rng = np.random.default_rng(0)

    def sparse(*shape):
        return np.where(rng.random(shape) < 0.4, rng.integers(1, 9, shape), 0).astype(float)

    a, b, d, m, n = (sparse(*shape) for shape in ((6, 6, 9), (17, 9), (9, 17), (17, 6), (17, 6, 9)))
    kernel = spcomp.compile(
        "S[l, k] = A[j, m, l] * B[k, l] + D[l, k]\nC[k, l, j] = M[k, j] * N[k, l, i]"
    )
    blocks = spcomp.Format(("dense", "compressed", "dense"))
    arguments = {"A": spcomp.convert(a, "coo"), "D": sps.csc_array(d), "B": sps.csr_array(b)}
    arguments |= {"M": sps.csr_array(m), "N": spcomp.convert(n, blocks)}
    for _ in range(4):
        total, product = kernel(**arguments)
        np.testing.assert_array_equal(total.toarray(), np.einsum("jml,kl->lk", a, b) + d)
        expected = np.einsum("kj,kli->klj", m, n)
        np.testing.assert_array_equal(np.asarray(spcomp.convert(product, "dense")), expected)


def test_coordinates_that_repeat_are_created_once():
    args = {"a": np.arange(1.0, 6.0), "ip": np.int32([0, 3, 5]), "ii": np.int32([1, 1, 2, 0, 0])}
    result = stages_agree(last_of_each, {**args, "m": 2, "n": 3, "p": 5})
    np.testing.assert_array_equal(result["Z_indptr"], [0, 2, 3])
    np.testing.assert_array_equal(result["Z_indices"], [1, 2, 0])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_a_sum_over_two_fibers_keeps_what_is_not_a_number(dtype):
    add = source("csr_add", dtype)
    a, b = (sps.csr_array(csr(seed, (9, 40)).toarray().astype(dtype)) for seed in (1, 2))
    if dtype != "int32":
        a.data[::5], a.data[1::7], b.data[::4] = np.nan, np.inf, -np.inf
    got = spcomp.compile(add)(A=a, B=b)
    with np.errstate(invalid="ignore"):
        want = a.toarray() + b.toarray()
    np.testing.assert_array_equal(got.toarray(), want)
    assert got.nnz == np.count_nonzero((a.toarray() != 0) | (b.toarray() != 0))


@T.prim_func
def product_rows(
    a: T.handle,
    x: T.handle,
    c: T.handle,
    ip: T.handle,
    ii: T.handle,
    m: T.int32,
    n: T.int32,
    p: T.int32,
    f: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, p), (ip, ii))
    N = T.dense_fixed(n)
    F = T.dense_fixed(f)
    Z = T.sparse_variable(I, (n, None), (None, None))
    A = T.match_sparse_buffer(a, (I, J), "float64")
    X = T.match_sparse_buffer(x, (N, F), "float64")
    C = T.match_sparse_buffer(c, (I, Z), "float64")
    with T.sp_iter([I, J, F], "SSR", "product_rows") as [i, j, k]:
        C[i, j] = C[i, j] + A[i, j] * X[j, k]


def test_a_reduction_inside_updates_the_element_it_created():
    a = csr(3)
    x = np.random.default_rng(4).integers(-2, 3, (6, 4)).astype(float)
    args = {"a": a.data, "x": x.ravel(), "ip": a.indptr, "ii": a.indices}
    result = stages_agree(product_rows, {**args, "m": 5, "n": 6, "p": a.nnz, "f": 4})
    np.testing.assert_array_equal(result["c"], a.data * x.sum(axis=1)[a.indices])
    np.testing.assert_array_equal(
        spcomp.compile(product_rows)(A=a, X=x).toarray(), a.toarray() * x.sum(axis=1)
    )


@T.prim_func
def searched_result(
    a: T.handle,
    c: T.handle,
    d: T.handle,
    ip: T.handle,
    ii: T.handle,
    m: T.int32,
    n: T.int32,
    p: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, p), (ip, ii))
    Z = T.sparse_variable(I, (n, None), (None, None))
    A = T.match_sparse_buffer(a, (I, J), "float64")
    C = T.match_sparse_buffer(c, (I, Z), "float64")
    D = T.match_sparse_buffer(d, (I, J), "float64")
    with T.sp_iter([I, J], "SS", "searched_result") as [i, j]:
        C[i, j] = A[i, j]
        D[i, j] = C[i, 0]


def test_reading_a_result_at_another_coordinate_is_refused():
    with pytest.raises(LoweringError, match="fibers are not written one by one"):
        lower(searched_result, CPU)


@T.prim_func
def shared_arrays(
    a: T.handle,
    b: T.handle,
    c: T.handle,
    ip: T.handle,
    ii: T.handle,
    m: T.int32,
    n: T.int32,
    p: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, p), (ip, ii))
    L = T.sparse_variable(I, (n, p), (ip, ii))
    A = T.match_sparse_buffer(a, (I, J), "float64")
    B = T.match_sparse_buffer(b, (I, L), "float64")
    C = T.match_sparse_buffer(c, (I,), "float64")
    with T.sp_iter([I, L], "SR", "shared_arrays") as [i, j]:
        with T.init():
            C[i] = 0.0
        C[i] = C[i] + A[i, j] * B[i, j]


def test_axes_over_the_same_arrays_share_positions_without_a_search():
    a = csr(5)
    stages = lower(shared_arrays, CPU, trace=Trace())
    assert "lower_bound" not in stages.position.funcs[0].script()
    out = np.full(5, 9.0)
    spcomp.compile(shared_arrays)(a.data, a.data, out, a.indptr, a.indices, 5, 6, a.nnz)
    np.testing.assert_array_equal(out, (a.toarray() ** 2).sum(axis=1))
    for module in (stages.coordinate, stages.position, stages.flat):
        args = {"a": a.data, "b": a.data, "c": np.full(5, 9.0), "ip": a.indptr, "ii": a.indices}
        interpret(module, {**args, "m": 5, "n": 6, "p": a.nnz})
        np.testing.assert_array_equal(args["c"], out)


@T.prim_func
def large_products(
    a: T.handle, ip: T.handle, ii: T.handle, c: T.handle, m: T.int32, n: T.int32, p: T.int32
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, p), (ip, ii))
    Z = T.sparse_variable(I, (n, None), (None, None))
    R = T.dense_fixed(2)
    A = T.match_sparse_buffer(a, (I, J), "float64")
    C = T.match_sparse_buffer(c, (I, Z), "float64")
    with T.sp_iter([I, J, R], "SSR", "large_products") as [i, j, _r]:
        with T.init():
            C[i, j] = 10.0
        if A[i, j] > 1.0:
            C[i, j] = C[i, j] * A[i, j]


def test_an_init_says_what_elements_start_with_and_creates_none():
    a = csr(8)
    args = {"a": a.data, "ip": a.indptr, "ii": a.indices, "m": 5, "n": 6, "p": a.nnz}
    stages_agree(large_products, args)
    made = spcomp.compile(large_products)(A=a)
    want = np.where(a.toarray() > 1, 10 * a.toarray() ** 2, 0)
    np.testing.assert_array_equal(made.toarray(), want)
    assert made.nnz == (want != 0).sum() > 0


@T.prim_func
def short_hops(
    x: T.handle,
    y: T.handle,
    ip: T.handle,
    ii: T.handle,
    jp: T.handle,
    ji: T.handle,
    m: T.int32,
    n: T.int32,
    k: T.int32,
    p: T.int32,
    q: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, p), (ip, ii))
    K = T.dense_fixed(k)
    L = T.sparse_variable(K, (m, q), (jp, ji))
    X = T.match_sparse_buffer(x, (I,), "float64")
    Y = T.match_sparse_buffer(y, (I,), "float64")
    with T.sp_iter([I, J, T.attach(L, J)], "SRR", "short_hops") as [i, _j, t]:
        with T.init():
            Y[i] = 0.0
        Y[i] = Y[i] + X[t]


def test_attaching_to_coordinates_beyond_the_parent_finds_empty_fibers():
    a = csr(6)
    hops = csr(7, (4, 5))  # coordinates 4 and 5 of a have no fiber here
    x = np.arange(1.0, 6.0)
    args = {"x": x, "y": np.zeros(5), "ip": a.indptr, "ii": a.indices, "jp": hops.indptr}
    args |= {"ji": hops.indices, "m": 5, "n": 6, "k": 4, "p": a.nnz, "q": hops.nnz}
    expected = ((a.toarray() != 0)[:, :4] @ (hops.toarray() != 0)) @ x
    stages = lower(short_hops, CPU)
    for module in (stages.coordinate, stages.position, stages.flat):
        mine = {**args, "y": np.full(5, 7.0)}
        interpret(module, mine)
        np.testing.assert_array_equal(mine["y"], expected)
    spcomp.compile(short_hops)(*(args[p.name] for p in short_hops.params))
    np.testing.assert_array_equal(args["y"], expected)


BELOW = """from spcomp import script as T
@T.prim_func
def f(a: T.handle, z: T.handle, x: T.handle, m: T.int32, n: T.int32, q: T.int32) -> None:
    I = T.dense_fixed(m)
    K = {axis}
    L = T.dense_fixed(q)
    Z = T.sparse_variable(K, (q, None), (None, None))
    A = T.match_sparse_buffer(a, (I, K, L), "float64")
    C = T.match_sparse_buffer(z, (I, K, Z), "float64")
    with T.sp_iter([I, K, L], "SSS", "f") as [i, k, l]:
        if A[i, k, l] != 0.0:
            C[i, k, l] = A[i, k, l] * 2.0
"""


@pytest.mark.parametrize(
    ("axis", "x"),
    [
        ("T.sparse_fixed(I, (n, 3), x)", [0, 1, 3, 0, 2, 4]),
        ("T.dense_variable(I, (n, None), x)", [0, 2, 6]),
    ],
)
@pytest.mark.parametrize("n", [5, 9])
def test_there_is_a_fiber_of_the_result_for_each_position_above_it(axis, x, n):
    (func,) = parse_source(BELOW.format(axis=axis), "below.py")
    a = np.array([1, 0, 2, 0, 0, 3, 4, 5, 0, 0, 0, 0, 0, 7, 0, 8, 0, 9.0])
    args = {"a": a, "x": np.array(x, "int32"), "m": 2, "n": n, "q": 3}
    expected = stages_agree(func, args)
    assert expected["Z_indptr"].tolist() == [0, 2, 3, 5, 5, 6, 8]
    assert expected["z"].tolist() == (2 * a[a != 0]).tolist()
    got = spcomp.compile(func)(**args)
    np.testing.assert_array_equal(got["z"] if isinstance(got, dict) else got.values, expected["z"])


@pytest.mark.parametrize(
    ("made", "instead", "message"),
    [
        ('"int64")], "int32"', '"int64")] - 1, "int32"', "positive_sum_fill takes"),
        ("m + T.int64(1)", "m - 9", "the host program makes Z_indptr with -4 elements"),
    ],
)
def test_a_host_program_that_makes_too_little_is_refused(made, instead, message):
    a, b = csr(1), csr(2)
    text = spcomp.compile(positive_sum).stage("position")
    lines = [
        line.replace(made, instead, 1) if "host_alloc" in line else line
        for line in text.splitlines()
    ]
    (module,) = parse_source("\n".join(lines) + "\n", "edited.py")
    assert lines != text.splitlines()
    with pytest.raises(ArgumentError, match=message):
        spcomp.compile(module)(A=a, B=b)


@pytest.mark.parametrize("taken", ["b_indptr", "b_indices", "nnz_a"])
@pytest.mark.parametrize("name", ["JC_indptr", "JC_indices"])
def test_a_parameter_with_the_name_of_a_result_is_refused(taken, name):
    """Both would be one array of the host program."""
    text = f"from spcomp import script as T\n{BY_NAME['spgemm'].source.replace(taken, name)}"
    (func,) = parse_source(text, "spgemm.py")
    with pytest.raises(LoweringError, match=f"the parameter {name} has the name of a result"):
        lower(func, CPU)
