"""Searches that run first, in blocks of their own: the same results as where they are needed."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import script as T
from spcomp.errors import SpcompError
from spcomp.ir.interpret.program import interpret
from spcomp.ir.position import Block
from spcomp.ir.structural import structural_equal
from spcomp.ir.verify.program import verify
from spcomp.ir.visitor import walk
from spcomp.passes.decompose.preprocess import extract_preprocess, remove_preprocess
from spcomp.schedule.schedule import Schedule
from tests.layers import interpreted, reparsed, source
from tests.programs import PROGRAMS, fresh


def _searches(program):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return not program.assembles and bool(searching(lowered(program.build("float32", "int32"))))


def searching(func):
    """The names of the blocks that search in *func*."""
    blocks = (n.name for n in walk(func.body) if isinstance(n, Block))
    return [name for name in blocks if name.startswith("binary_search_block")]


def lowered(func):
    return spcomp.lower_sparse_iter(func, search_blocks=True)


SEARCHING = [program for program in PROGRAMS if _searches(program)]


@pytest.mark.parametrize("program", SEARCHING, ids=lambda p: p.name)
@pytest.mark.filterwarnings("ignore::spcomp.errors.SpcompWarning")
def test_a_program_means_the_same_with_search_blocks(program):
    func = lowered(source(program.name))
    verify(func, "lower_iterations")
    assert structural_equal(reparsed(func, program.name), func)
    for case in program.cases:
        inputs = program.inputs(case, "float32", "int32")
        results = interpreted(func, fresh(inputs))
        program.check(inputs, results, "float32", f"interpreted, {case}")


@pytest.mark.parametrize("program", SEARCHING, ids=lambda p: p.name)
@pytest.mark.filterwarnings("ignore::spcomp.errors.SpcompWarning")
def test_the_compiled_program_means_the_same_with_search_blocks(program):
    sch = Schedule(source(program.name)).lower_sparse_iter(search_blocks=True)
    kernel = spcomp.compile(sch)
    for case in program.cases:
        inputs = program.inputs(case, "float32", "int32")
        results = fresh(inputs)
        kernel(*(results[param.name] for param in sch.func.params))
        program.check(inputs, results, "float32", f"compiled, {case}")


@T.prim_func
def banded(
    a: T.handle,
    b: T.handle,
    indptr: T.handle,
    indices: T.handle,
    n: T.int32,
    nnz: T.int32,
) -> None:
    I = T.dense_fixed(n)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    D = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (I, D), "float32")
    with T.sp_iter([I, D], "SS", "copy") as [i, d]:
        B[i, d] = A[i, n - 1 - d]
    with T.sp_iter([I, D], "SS", "copy_back") as [i, d]:
        B[i, d] = B[i, d] + A[i, d]


def matrix(n=7):
    return sps.random_array((n, n), density=0.4, rng=np.random.default_rng(0), format="csr")


def arguments(csr):
    return {
        "a": csr.data.astype(np.float32),
        "b": np.zeros(csr.shape, np.float32).reshape(-1),
        "indptr": csr.indptr.astype(np.int32),
        "indices": csr.indices.astype(np.int32),
        "n": csr.shape[0],
        "nnz": csr.nnz,
    }


def test_searches_are_numbered_and_their_results_are_kept_by_the_axes_they_depend_on():
    func = lowered(banded)
    assert searching(func) == ["binary_search_block_0_0", "binary_search_block_1_0"]
    sch = Schedule(func)
    assert len(sch.get_loops("binary_search_block_0_0")) == 2
    text = func.script()
    for k in range(2):
        assert f'mid_{k} = T.alloc_sparse_buffer((I, D), "int32")' in text
    assert text.count("T.lower_bound") == 2


@T.prim_func
def from_rows_of_one_width(a: T.handle, c: T.handle, idx: T.handle, m: T.int32, n: T.int32):
    I = T.dense_fixed(m)
    J = T.dense_fixed(n)
    F = T.sparse_fixed(I, (n, 3), idx)
    A = T.match_sparse_buffer(a, (I, F), "float32")
    C = T.match_sparse_buffer(c, (I, J), "float32")
    with T.sp_iter([I, J], "SS", "copy") as [i, j]:
        C[i, j] = A[i, j]


def test_places_that_no_index_array_counts_are_kept_as_64_bit_numbers():
    func = lowered(from_rows_of_one_width)
    assert 'mid_0 = T.alloc_sparse_buffer((I, J), "int64")' in func.script()
    args = {"a": np.arange(1, 7, dtype="f4"), "c": np.zeros(8, "f4"), "m": 2, "n": 4}
    interpret(func, {**args, "idx": np.array([0, 1, 3, 1, 2, 3], "int32")})
    assert args["c"].tolist() == [1, 2, 0, 3, 0, 4, 5, 6]


def test_what_one_function_finds_the_other_takes():
    csr = matrix()
    given = arguments(csr)
    first, second = extract_preprocess(lowered(banded)), remove_preprocess(lowered(banded))
    names = ["mid_0_ptr", "mid_1_ptr"]
    assert [p.name for p in second.params] == [*given, *names]
    assert [p.name for p in first.params][-2:] == names
    assert not searching(second)
    given |= {name: np.full(csr.shape[0] ** 2, -5, np.int32) for name in names}
    for func in (first, second):
        spcomp.compile(func)(*(given[param.name] for param in func.params))
    dense = csr.toarray().astype(np.float32)
    assert np.array_equal(given["b"].reshape(dense.shape), dense[:, ::-1] + dense)


def test_a_place_that_no_search_finds_is_not_read():
    func, csr = remove_preprocess(lowered(banded)), matrix()
    kernel = spcomp.compile(func)
    for wrong, raises in ((-7, True), (10**9, False)):
        given = arguments(csr)
        mids = np.full(csr.shape[0] ** 2, wrong, np.int32)
        given |= {"mid_0_ptr": mids, "mid_1_ptr": mids.copy()}
        values = [given[param.name] for param in func.params]
        if raises:
            with pytest.raises(SpcompError):
                kernel(*values)
        else:  # behind the end of the row: the element is not stored
            kernel(*values)
            assert not given["b"].any()


@T.prim_func
def chained(
    a: T.handle,
    b: T.handle,
    indptr_j: T.handle,
    indptr_k: T.handle,
    m: T.int32,
    n: T.int32,
    nnz_j: T.int32,
    nnz_k: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.dense_variable(I, (n, nnz_j), indptr_j)
    K = T.dense_variable(J, (n, nnz_k), indptr_k)
    A = T.match_sparse_buffer(a, (I, J, K), "float32")
    B = T.match_sparse_buffer(b, (I,), "float32")
    with T.sp_iter([T.fuse(I, J, K)], "SSS", "scale") as [i, j, k]:
        A[i, j, k] = A[i, j, k] * B[i]


def test_of_three_fused_axes_one_search_begins_where_another_ended():
    func = lowered(chained)
    assert searching(func) == ["binary_search_block_0_0", "binary_search_block_1_0"]
    given = {
        "a": np.ones(6, np.float32),
        "b": np.array([1, 2, 3], np.float32),
        "indptr_j": np.array([0, 2, 2, 4], np.int32),
        "indptr_k": np.array([0, 1, 3, 3, 6], np.int32),
        "m": 3, "n": 9, "nnz_j": 4, "nnz_k": 6,
    }  # fmt: skip
    results = interpret(func, {**given, "a": given["a"].copy()})
    kernel = spcomp.compile(Schedule(chained).lower_sparse_iter(search_blocks=True))
    kernel(*(given[param.name] for param in func.params))
    assert given["a"].tolist() == [1, 1, 1, 3, 3, 3]
    assert "a" not in results or results["a"].tolist() == given["a"].tolist()


@T.prim_func
def bsr(
    a: T.handle, indptr: T.handle, indices: T.handle, mb: T.int32, nb: T.int32, nnzb: T.int32
) -> None:
    IO = T.dense_fixed(mb)
    JO = T.sparse_variable(IO, (nb, nnzb), (indptr, indices), "int32")
    II = T.dense_fixed(2)
    JI = T.dense_fixed(2)
    A = T.match_sparse_buffer(a, (IO, JO, II, JI), "float32")  # noqa: F841
    T.evaluate(0)


def test_the_searches_of_a_copy_are_a_nest_of_blocks_and_stay_inside():
    rule = spcomp.FormatRewriteRule(
        "bsr", bsr, ["A"], ["I", "J"], ["IO", "JO", "II", "JI"],
        {"I": ["IO", "II"], "J": ["JO", "JI"]},
        lambda i, j: (i // 2, j // 2, i % 2, j % 2),
        lambda io, jo, ii, ji: (io * 2 + ii, jo * 2 + ji),
    )  # fmt: skip
    fill = extract_preprocess(spcomp.format_decompose(row_sums, [rule]))
    sch = Schedule(fill).lower_sparse_iter(search_blocks=True)
    assert searching(sch.func) == ["binary_search_block_0_0", "binary_search_block_0_1"]
    (i,) = sch.get_loops("binary_search_block_0_0")
    sch = sch.split(i, [None, 32]).bind(f"{i}_i", "threadIdx.x").bind(f"{i}_o", "blockIdx.x")
    assert not any(param.name.startswith("mid") for param in sch.func.params)
    csr = matrix(6)
    blocks = csr.tobsr((2, 2))
    given = {
        "a": csr.data.astype(np.float32), "indptr": csr.indptr, "indices": csr.indices,
        "m": 6, "n": 6, "nnz": csr.nnz, "a_bsr": np.zeros(blocks.data.size, np.float32),
        "indptr_bsr": blocks.indptr, "indices_bsr": blocks.indices,
        "mb_bsr": 3, "nb_bsr": 3, "nnzb_bsr": len(blocks.data),
    }  # fmt: skip
    spcomp.compile(sch)(*(given[param.name] for param in sch.func.params))
    assert np.array_equal(given["a_bsr"], blocks.data.astype(np.float32).reshape(-1))


@T.prim_func
def row_sums(
    a: T.handle, c: T.handle, indptr: T.handle, indices: T.handle,
    m: T.int32, n: T.int32, nnz: T.int32,
) -> None:  # fmt: skip
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    A = T.match_sparse_buffer(a, (I, J), "float32")
    C = T.match_sparse_buffer(c, (I,), "float32")
    with T.sp_iter([I, J], "SR", "rows") as [i, j]:
        with T.init():
            C[i] = 0.0
        C[i] = C[i] + A[i, j]
