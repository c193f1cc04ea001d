"""Code for a GPU: trips of a loop that add up over lanes share exchanges; lanes that vote."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.codegen import nvvm
from spcomp.compiler.pipeline import lower
from spcomp.ir import stmt as st
from spcomp.ir.printer.program import print_program
from spcomp.ir.visitor import statements
from spcomp.knobs import CUDA_GRID
from spcomp.passes.grid.thread_sums import sums_of
from spcomp.script.parse import parse_source
from spcomp.target import target
from tests.emulated import EMULATED, Kernels
from tests.programs import BY_NAME

HEAD = """from spcomp import script as T


@T.prim_func
def sums(a: T.handle, c: T.handle, m: T.int64, n: T.int64) -> None:
    T.func_attr({"sparse_tir_level": 0})
    A = T.match_buffer(a, (64,), "float32")
    C = T.match_buffer(c, (32,), "float32")
"""
LOOP = """
for j in T.unroll({count}):
    if j < {end}:
        C[{place}] = 0.0
        for k in T.thread_binding({lanes}, thread="threadIdx.x"):
            C[{place}] = C[{place}] {op} {value}
"""
PLAIN = {
    "count": 4, "end": "m", "lanes": 8, "place": "j * 2", "op": "+", "value": "A[j * n + k]",
}  # fmt: skip
APART = {  # loops whose trips do not share exchanges
    "three trips": {"count": 3},
    "more trips than most": {"count": 16, "lanes": 32},
    "more trips than lanes": {"lanes": 2},
    "one element": {"place": "0"},
    "an element that is read": {"value": "C[j * 2 + 1]"},
    "places that data says": {"place": 'T.cast(A[j], "int64")'},
    "an end that depends on the trip": {"end": "m - j"},
    "an end that is written": {"end": 'T.cast(C[0], "int64")'},
    "the least": {"count": 1},
    "a product": {"op": "*"},
}


def parse(body):
    lines = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    return parse_source(HEAD + lines + "\n", "sums.py")[0]


def loop(**changes):
    func = parse(LOOP.format(**PLAIN | changes))
    return next(n for n in statements(func.body) if isinstance(n, st.For))


def sddmm(where="cuda:sm_90", **constants):
    program = BY_NAME["sddmm"].build("float32", "int32")
    return spcomp.compile(program, target=where, constants=constants)


def call(kernel, S, width=32):
    rng = np.random.default_rng(width)
    A, B = (rng.standard_normal((size, width)).astype(np.float32) for size in S.shape)
    parts = {name: getattr(S, name).astype(np.int32) for name in ("indptr", "indices")}
    pattern = {**parts, "m": S.shape[0], "n": S.shape[1]}
    return kernel(A=A, B=B, **pattern), A, B


def test_sums_of_trips_with_an_element_each_are_found():
    found = sums_of(loop(), CUDA_GRID)
    assert (found.count, found.size, found.start is not None) == (4, 8, True)
    cond = found.all_run
    assert (cond.lhs.value, cond.op, cond.rhs.name) == (3, "<", "m")


def test_sums_of_any_number_of_trips_come_in_groups():
    body = LOOP.format(**PLAIN | {"count": "m"}).replace("if j < m:", "if 0 < 1:")
    assert sums_of(loop(count="m"), CUDA_GRID) is None  # a condition would say where they end
    open_ = next(n for n in statements(parse(body).body) if isinstance(n, st.For))
    found = sums_of(open_.replace(body=open_.body.then), CUDA_GRID)
    assert (found.is_open, found.count, found.cond) == (True, 4, None)


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 8, 11])
def test_rows_of_any_length_have_all_their_sums(length):
    func = BY_NAME["sddmm"].build("float32", "int32").specialize({"feat": 16})
    sch = spcomp.Schedule(func).lower_sparse_iter()
    sch = sch.split("i", 8).bind("i_o", "blockIdx.x").bind("i_i", "threadIdx.y")
    kernel = spcomp.compile(sch.unroll("j").bind("k", "threadIdx.x"), target=EMULATED)
    assert kernel.source("ptx").count("shfl.sync") == 5 + 4  # of four sums, and of one
    rng = np.random.default_rng(length)
    A, B = (rng.integers(-4, 5, (size, 16)).astype(np.float32) for size in (9, 20))
    lengths = np.full(9, length) if length % 2 else np.arange(9) % (length + 1)
    indptr = np.append(0, lengths.cumsum()).astype(np.int32)
    indices = np.concatenate([np.sort(rng.permutation(20)[:n]) for n in lengths]).astype(np.int32)
    got = kernel(A=A, B=B, indptr=indptr, indices=indices, n=20)
    want = np.einsum("ek,ek->e", A[np.repeat(np.arange(9), lengths)], B[indices])
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("changes", APART.values(), ids=APART)
def test_other_trips_add_up_for_themselves(changes):
    assert sums_of(loop(**changes), CUDA_GRID) is None


@pytest.mark.parametrize("nonzeros", [0, 1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 511, 513])
@pytest.mark.parametrize("width", [32, 128])
def test_warps_with_some_groups_of_elements_compute_all(nonzeros, width):
    columns = np.arange(nonzeros) * 7 % 600
    coordinates = columns % 5, columns
    S = sps.csr_array((np.ones(nonzeros, np.float32), coordinates), shape=(5, 600))
    got, A, B = call(sddmm(EMULATED, feat=width), S, width)
    rows = np.repeat(np.arange(5), np.diff(S.indptr))
    want = np.einsum("ek,ek->e", A[rows], B[S.indices])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_elements_have_the_same_bits_with_exchanges_of_their_own():
    S = sps.random_array((40, 90), density=0.2, format="csr", rng=3, dtype=np.float32)
    kernel = sddmm(EMULATED, feat=32)
    whole, *_ = call(kernel, S)
    for last in range(1, 9):  # so that others are the last, whose warps have too few of them
        keep = S.nnz - last
        shorter = S.indices[:keep], np.minimum(S.indptr, keep)
        some, *_ = call(kernel, sps.csr_array((S.data[:keep], *shorter), shape=S.shape))
        np.testing.assert_array_equal(some, whole[:keep])


@pytest.mark.parametrize("scope", ["local", "shared"])
def test_sums_that_each_thread_keeps_are_known_to_all(scope):
    body = f"""
for i in T.thread_binding(1, thread="blockIdx.x"):
    S = T.alloc_buffer((4,), "float32", scope="{scope}")
    for j in T.unroll(4):
        S[j] = 0.0
        for k in T.thread_binding(8, thread="threadIdx.x"):
            S[j] = S[j] + A[j * 8 + k]
    for t in T.thread_binding(8, thread="threadIdx.x"):
        C[t] = S[0] + S[1] * 2.0 + S[2] * 3.0 + S[3] * 5.0"""
    arrays = {"a": np.arange(64, dtype=np.float32), "c": np.zeros(32, np.float32)}
    got = Kernels(parse(body))({**arrays, "m": 1, "n": 1})["c"]
    sums = arrays["a"].reshape(8, 8).sum(axis=1)[:4]
    np.testing.assert_array_equal(got[:8], np.full(8, sums @ [1, 2, 3, 5]))


@pytest.mark.parametrize("alone", [True, False])
def test_trips_that_other_buffers_may_follow_add_up_one_by_one(alone):
    body = """
for i in T.thread_binding(8, thread="blockIdx.x"):
    C[i] = 0.0
    for o in T.serial(2):
        for k in T.thread_binding(4, thread="threadIdx.x"):
            C[i] = C[i] + A[i * 8 + o * 4 + k]"""
    head = HEAD.replace('level": 0', f'level": 0, "tir.noalias": {alone}')
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    kernels = Kernels(parse_source(head + lines + "\n", "sums.py")[0])
    arrays = {"a": np.arange(64, dtype=np.float32), "c": np.ones(32, np.float32)}
    got = kernels({**arrays, "m": 1, "n": 1})["c"]
    np.testing.assert_array_equal(got[:8], arrays["a"].reshape(8, 8).sum(axis=1))


def test_whole_warps_exchange_without_asking_who_is_there():
    text = sddmm(feat=32).source("ptx")
    text = text[text.index(".visible .entry sddmm_1") :]
    first, _, rest = text.partition("vote.sync.all.pred")
    assert "shfl" not in first
    masks = re.findall(r"shfl\.sync\.bfly\.b32 .*, (\S+);", rest)
    assert masks[:4] == ["-1"] * 4  # three sums share the exchanges of one
    assert "-1" not in masks[4:]


def test_blocks_that_are_no_whole_warps_ask_who_is_there():
    body = """
for y in T.thread_binding(3, thread="threadIdx.y"):
    for j in T.unroll(2):
        C[y * 2 + j] = 0.0
        for k in T.thread_binding(8, thread="threadIdx.x"):
            C[y * 2 + j] = C[y * 2 + j] + A[(y * 2 + j) * 8 + k]"""
    for rows, together in ((3, False), (4, True)):
        func = parse(body.replace("binding(3", f"binding({rows}"))
        flat = lower(func, nvvm.resolve(target("cuda:sm_90"))).flat
        ptx = nvvm.ptx(nvvm.emit(flat, target("cuda:sm_90")).llvm_ir, target("cuda:sm_90"))
        masks = set(re.findall(r"shfl\.sync\.bfly\.b32 .*, (\S+);", ptx))
        assert (masks == {"-1"}) is together


def test_a_uniform_condition_is_printed_and_read():
    body = """
for i in T.serial(m):
    if T.uniform(i + 1 < n):
        C[i] = 1.0
    else:
        C[i] = 1.0"""
    func = parse(body)
    (branch,) = (n for n in statements(func.body) if isinstance(n, st.If))
    assert branch.uniform
    text = str(print_program(func))
    assert "if T.uniform(i + 1 < n):" in text
    assert str(print_program(parse_source(text, "again.py")[0])) == text


ALL_OF = """
@T.prim_func
def all_of(x: T.handle, w: T.handle) -> None:
    W = T.match_buffer(w, (4,), "bool")
    X = T.match_buffer(x, (4, 64), "float32")
    for i in range(4):
        for j in range(64):
            with T.block("q"):
                vi = T.axis.spatial(4, i)
                vj = T.axis.reduce(64, j)
                with T.init():
                    W[vi] = True
                W[vi] = W[vi] and X[vi, vj] > -4.0
"""
ANY_AT = """
@T.prim_func
def any_at(x: T.handle, w: T.handle, p: T.handle) -> None:
    W = T.match_buffer(w, (4,), "bool")
    X = T.match_buffer(x, (256,), "int32")
    P = T.match_buffer(p, (256,), "int32")
    for i in range(256):
        with T.block("q"):
            vi = T.axis.spatial(256, i)
            T.block_attr({"atomic": True})
            W[P[vi]] = W[P[vi]] or X[vi] > 5
"""


def test_a_condition_that_threads_update_is_read_where_it_is_updated():
    x = np.zeros((4, 64), "float32")
    x[1, 40] = x[3, 0] = -9
    w = np.zeros(4, bool)
    spcomp.compile(spcomp.parse(ALL_OF), target=EMULATED)(x=x, w=w)
    assert w.tolist() == [True, False, True, False]
    rng, x, w = np.random.default_rng(3), np.zeros(256, "int32"), np.zeros(4, bool)
    p, at = rng.integers(0, 4, 256).astype("int32"), [3, 40, 100, 200]
    x[at] = 9
    schedule = spcomp.Schedule(spcomp.parse(ANY_AT)).split("i", 32)
    schedule = schedule.bind("i_o", "blockIdx.x").bind("i_i", "threadIdx.x")
    spcomp.compile(schedule, target=EMULATED)(x=x, w=w, p=p)
    assert set(np.flatnonzero(w)) == set(p[at])


def test_sums_of_halves_are_of_floats_between_threads():
    kernel = spcomp.compile("y[i] = A[i, j]", target=EMULATED)
    a = np.tile(np.float16([60000, 60000, -60000, -60000]), (3, 32))
    np.testing.assert_array_equal(kernel(A=a), np.zeros(3))
    text = ALL_OF.replace("bool", "float16").replace("float32", "float16").replace("True", "0.0")
    text = text.replace("W[vi] and X[vi, vj] > -4.0", "W[vi] + X[vi, vj]")
    schedule = spcomp.Schedule(spcomp.parse(text)).bind("i", "blockIdx.x").bind("j", "threadIdx.x")
    x, w = np.tile(np.float16([60000, 60000, -60000, -60000]), (4, 16)), np.ones(4, np.float16)
    spcomp.compile(schedule, target=EMULATED)(x=x, w=w)
    np.testing.assert_array_equal(w, np.zeros(4))
