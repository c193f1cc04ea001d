"""What SparseTIR's own programs and tests ask of the shim: listings, comparisons, transforms."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import sparsetir as tvm
from spcomp.errors import FormatError, ScheduleError, ScriptError
from spcomp.ir.interpret.program import interpret
from spcomp.ir.program import PosFunc
from spcomp.script.parse import parse_source
from spcomp.sparsetir import testing, tir
from spcomp.sparsetir.script import tir as T
from spcomp.sparsetir.sparse import (
    FormatRewriteRule,
    format_decompose,
    lower_sparse_buffer,
    lower_sparse_iter,
    specialize_buffer,
)
from tests.shim_helpers import HEAD, nest, rowsum

# -- text ---------------------------------------------------------------------------------------


def test_a_program_is_read_again_from_its_text():
    for func in (rowsum, lower_sparse_iter(tvm.IRModule.from_expr(rowsum))["main"]):
        again = tvm.script.from_source(func.script(show_meta=True))
        assert type(again) is type(func)
        tvm.ir.assert_structural_equal(func, again, True)
    mod = tvm.IRModule.from_expr(rowsum)
    assert mod.script(show_meta=True) == rowsum.script()


def test_a_text_of_two_programs_is_refused():
    text = rowsum.script()
    with pytest.raises(ScriptError, match="defines 2 programs"):
        tvm.script.from_source(text + text.split("\n\n\n", 1)[1])
    with pytest.raises(ScriptError, match="defines 0 programs"):
        tvm.script.from_source("x = 1\n")


@T.prim_func
def siblings(x: T.handle, p: T.handle, q: T.handle, m: T.int32, n: T.int32, k: T.int32) -> None:
    B = T.dense_fixed(m)
    I = T.dense_variable(B, (8, n), p, "int32")
    J = T.dense_variable(B, (8, k), q, "int32")
    X = T.match_sparse_buffer(x, (B, I, J), "float32")
    with T.sp_iter([B, I, J], "SSS", "one") as [vb, vi, vj]:
        X[vb, vi, vj] = 1.0


@pytest.mark.parametrize(
    "act",
    [
        lambda mod: lower_sparse_iter(mod),
        lambda mod: tvm.build(mod),
        lambda mod: spcomp.compile(mod["main"]),
        lambda mod: spcomp.Schedule(mod["main"]).lower_sparse_buffer(),
    ],
)
def test_a_buffer_without_addresses_is_declared_and_refused_where_it_is_lowered(act):
    mod = tvm.IRModule.from_expr(siblings)
    assert tvm.ir.structural_equal(tvm.script.from_source(mod.script()), siblings)
    with pytest.raises((FormatError, ScriptError), match="I and J: two variable sib") as caught:
        act(mod)
    assert "X = T.match_sparse_buffer(x, (B, I, J)" in str(caught.value)
    with pytest.raises(FormatError, match="two variable siblings"):
        parse_source(siblings.script(), "strict.py")


@T.prim_func
def flat_rowsum(a: T.handle, b: T.handle, p: T.handle, m: T.int32, n: T.int32,
                nnz: T.int32) -> None:  # fmt: skip
    T.func_attr({"global_symbol": "main", "sparse_tir_level": 0})
    A = T.match_buffer(a, [nnz], dtype="float32", strides=[1])
    B = T.match_buffer(b, [m], dtype="float32", strides=[1])
    P = T.match_buffer(p, [m + 1], dtype="int32", strides=[1])
    for i in T.serial(m):
        with T.block("outer"):
            vi = T.axis.spatial(m, i)
            T.reads(P[0 : m + 1], A[0:nnz])
            T.writes(B[vi])
            T.block_attr({"sparse": True})
            for j in T.serial(P[vi + 1] - P[vi]):
                with T.block("inner"):
                    vj = T.axis.reduce(n, j)
                    T.reads(A[vj + P[vi]])
                    T.writes(B[vi])
                    with T.init():
                        B[vi] = T.float32(0)
                    B[vi] = B[vi] + A[vj + P[vi]]


def test_a_flat_listing_keeps_its_blocks_and_computes():
    assert isinstance(flat_rowsum, PosFunc)
    csr = sps.random_array((6, 9), density=0.4, rng=np.random.default_rng(0), format="csr")
    csr = csr.astype(np.float32)
    b = np.full(6, 7, np.float32)
    tvm.build(flat_rowsum)(csr.data, b, csr.indptr.astype(np.int32), 6, 9, csr.nnz)
    assert np.allclose(b, csr.sum(1))


# -- parts of a format --------------------------------------------------------------------------


PARTS = """def parts(
    c: T.handle, b: T.handle, a_x: T.handle, i_x: T.handle, p_x: T.handle,
    a_y: T.handle, i_y: T.handle, p_y: T.handle, m: T.int32, n_x: T.int32, n_y: T.int32
) -> None:
    T.func_attr({"sparse_tir_level": 2, "composable": 1})
    M = T.dense_fixed(m)
    O_x = T.dense_fixed(1)
    I_x = T.sparse_variable(O_x, (m, n_x), (p_x, i_x), "int32")
    O_y = T.dense_fixed(1)
    I_y = T.sparse_variable(O_y, (m, n_y), (p_y, i_y), "int32")
    C = T.match_sparse_buffer(c, (M,), "float32")
    B = T.match_sparse_buffer(b, (M,), "float32")
    A_x = T.match_sparse_buffer(a_x, (O_x, I_x), "float32")
    A_y = T.match_sparse_buffer(a_y, (O_y, I_y), "float32")
    with T.sp_iter([O_x, I_x], "RS", "scale_x") as [o, i]:
        with T.init():
            C[i] = 0.0
        C[i] = C[i] + A_x[o, i] * B[i]
    with T.sp_iter([O_y, I_y], "RS", "scale_y") as [o, i]:
        with T.init():
            C[i] = 0.0
        C[i] = C[i] + A_y[o, i] * B[i]
"""


def test_the_parts_of_a_published_decomposition_are_one_computation():
    func = tvm.script.from_source(HEAD + PARTS)
    c, b = np.full(5, 9, np.float32), np.arange(5, dtype=np.float32)
    ones = np.ones(2, np.float32)
    rows = np.array([1, 2], np.int32), np.array([2, 4], np.int32)
    indptr = np.array([0, 2], np.int32)
    tvm.build(func)(c, b, ones, rows[0], indptr, ones, rows[1], indptr, 5, 2, 2)
    assert c.tolist() == [0, 1, 4, 0, 4]
    assert func.attr("composable") is None


def test_parts_that_begin_with_different_numbers_are_refused():
    second = PARTS.rindex("C[i] = 0.0")
    with pytest.raises(FormatError, match="begin C with different numbers"):
        tvm.script.from_source(HEAD + PARTS[:second] + "C[i] = 1.0" + PARTS[second + 10 :])
    with pytest.raises(FormatError, match="scale and other both begin C"):
        tvm.script.from_source(HEAD + PARTS.replace("scale_y", "other_y"))
    dense = 'C = T.match_buffer(c, (m,), "float32")'
    with pytest.raises(FormatError, match="some of C, not all"):
        tvm.script.from_source(
            HEAD + PARTS.replace('C = T.match_sparse_buffer(c, (M,), "float32")', dense)
        )
    with pytest.raises(FormatError, match="some of C, not all"):
        tvm.script.from_source(HEAD + PARTS.replace("C[i] = 0.0", "C[0] = 0.0"))
    with pytest.raises(FormatError, match="stores numbers"):
        tvm.script.from_source(HEAD + PARTS.replace("C[i] = 0.0", "C[i] = B[i]"))


def test_parts_that_are_lowered_are_refused():
    lowered = lower_sparse_iter(tvm.IRModule.from_expr(rowsum))["main"]
    text = lowered.with_attr("composable", 1).script()
    with pytest.raises(FormatError, match="each begins anew"):
        tvm.script.from_source(text)


def test_parts_in_a_class_are_read_alike():
    @T.ir_module
    class Both:
        @T.prim_func
        def run(c: T.handle, m: T.int32) -> None:
            T.func_attr({"composable": 1})
            M = T.dense_fixed(m)
            N = T.dense_fixed(3)
            C = T.match_sparse_buffer(c, (M,), "float32")
            with T.sp_iter([M, N], "SR", "both_1") as [i, _]:
                with T.init():
                    C[i] = 0.0
                C[i] = C[i] + 1.0
            with T.sp_iter([M, N], "SR", "both_2") as [i, _]:
                with T.init():
                    C[i] = 0.0
                C[i] = C[i] + 2.0

    c = np.full(2, 7, np.float32)
    spcomp.compile(Both)(c=c, m=2)
    assert c.tolist() == [9, 9]


@T.prim_func
def blocks(a: T.handle, p: T.handle, j: T.handle, m: T.int32, n: T.int32, nnz: T.int32,
           size: T.int32) -> None:  # fmt: skip
    IO = T.dense_fixed(m)
    JO = T.sparse_variable(IO, (n, nnz), (p, j), "int32")
    II = T.dense_fixed(size)
    JI = T.dense_fixed(size)
    A = T.match_sparse_buffer(a, (IO, JO, II, JI), "float32")  # noqa: F841
    T.evaluate(0)


def block_rule(size: int) -> FormatRewriteRule:
    return FormatRewriteRule(
        str(size), blocks.specialize({blocks.params[-1]: size}), ["A"], ["I", "J"],
        ["IO", "JO", "II", "JI"], {"I": ["IO", "II"], "J": ["JO", "JI"]},
        lambda i, j: (i // size, j // size, i % size, j % size),
        lambda io, jo, ii, ji: (io * size + ii, jo * size + ji),
    )  # fmt: skip


def test_iterations_of_a_part_come_in_the_order_of_those_before():
    mod = format_decompose(tvm.IRModule.from_expr(rowsum), [block_rule(2), block_rule(4)])
    sch = tir.Schedule(mod)
    assert sch.get_sp_iters("rowsum_4") == ["io", "ii", "jo", "ji"]
    assert mod["main"].script().count("T.init()") == 0


def test_a_single_rule_keeps_the_init_with_the_update():
    mod = format_decompose(tvm.IRModule.from_expr(rowsum), [block_rule(2)], False)
    assert "rowsum_init" not in mod["main"].script()
    assert mod["main"].script().count("T.init()") == 1
    mod = tvm.tir.transform.RemoveUnusedArgs()(mod)
    dense = np.arange(24, dtype=np.float32).reshape(4, 6)
    bsr = sps.bsr_array(dense, blocksize=(2, 2))
    b = np.full(4, 5, np.float32)
    arguments = {"b": b, "m": 4, "a_2": bsr.data.reshape(-1), "p_2": bsr.indptr, "j_2": bsr.indices}
    arguments |= {"m_2": 2, "n_2": 3, "nnz_2": len(bsr.indices)}
    args = [arguments[param.name] for param in mod["main"].params]
    tvm.build(mod)(*args)
    assert np.allclose(b, dense.sum(1))


# -- schedules ----------------------------------------------------------------------------------


def test_a_schedule_gives_the_nodes_of_its_program():
    sch = tir.Schedule(rowsum, debug_mask="all")
    name = sch.get_sparse_iteration("rowsum")
    assert sch.get(name).same_as(rowsum.body.block.body)
    i, j = sch.get_sp_iters(name)
    own = rowsum.body.block.body.sp_iter_vars
    assert [i.same_as(own[0]), j.same_as(own[1]), i.same_as(own[1])] == [True, True, False]
    sch.annotate(name, "guard", True)
    assert sch.get(name).annotations == {"guard": True}
    sch.sparse_fuse(name, [i, j])
    with pytest.raises(ScheduleError, match="nothing is called"):
        sch.get("other")


def test_steps_are_written_down_and_taken_again():
    mod = lower_sparse_iter(tvm.IRModule.from_expr(rowsum))
    sch = tir.Schedule(mod)
    sch.split(sch.get_loops("rowsum0")[0], [None, 4])
    again = testing.verify_trace_roundtrip(sch=sch, mod=mod)
    tvm.ir.assert_structural_equal(again.mod, sch.mod)
    text = rowsum.script().replace("0.0", "1.0")
    other = lower_sparse_iter(tvm.IRModule.from_expr(tvm.script.from_source(text)))
    with pytest.raises(ValueError, match="differ"):
        testing.verify_trace_roundtrip(sch=sch, mod=other)


def test_transforms_lower_a_module_and_simplify_it():
    mod = tvm.IRModule.from_expr(rowsum)
    for step in (
        tvm.tir.transform.LowerSparseIter(check_invalid_binary_search=True),
        tvm.tir.transform.LowerSparseBuffer(),
        tvm.tir.transform.Simplify(),
    ):
        mod = step(mod)
    assert mod.schedules["main"].lowered
    csr = sps.csr_array(np.eye(4, 5, dtype=np.float32))
    b = np.zeros(4, np.float32)
    tvm.build(mod)(csr.data, b, csr.indptr, csr.indices, 4, 5, 4)
    assert b.tolist() == [1, 1, 1, 1]
    simple = tvm.tir.transform.Simplify()(tvm.IRModule.from_expr(nest("Z[0, n * 0 + 1] = 1.0")))
    assert "n *" not in simple.script()


def test_what_is_read_of_a_buffer_is_computed():
    mod = lower_sparse_iter(tvm.IRModule.from_expr(nest("Z[n, 1] = X[n, 2]")))
    result = specialize_buffer(mod, "X", lambda i, j: (i + j,))
    z = np.zeros((8, 8), np.float32)
    x = np.zeros_like(z)
    tvm.build(result)(x, x.copy(), z, 3)
    assert z[3, 1] == 5


@T.prim_func
def product(x: T.handle, y: T.handle, z: T.handle) -> None:
    X = T.match_buffer(x, (8, 4), "float32")
    Y = T.match_buffer(y, (4, 8), "float32")
    Z = T.match_buffer(z, (8, 8), "float32")
    for i, j, k in T.grid(8, 8, 4):
        with T.block("product"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                Z[vi, vj] = T.float32(0)
            Z[vi, vj] = Z[vi, vj] + X[vi, vk] * Y[vk, vj]


def test_a_block_in_a_block_keeps_what_the_loops_inside_make_up():
    sch = tir.Schedule(product)
    i, j, k = sch.get_loops("product")
    jo, ji = sch.split(j, [None, 4])
    sch.reorder(i, jo, k, ji)
    assert sch.blockize(ji) == "product_o"
    # as in TVM, what is updated is read first once the init stands in another block
    assert sch.reverse_cache_read("product", 2, "shared") == "product_load"
    assert sch.reverse_cache_read("product", 2, "local") == "product_load_1"
    text = sch.mod["main"].script()
    assert 'Y_shared = T.alloc_buffer((4,), "float32", scope="shared")' in text
    assert 'Y_shared_local = T.alloc_buffer((4,), "float32", scope="local")' in text
    rng = np.random.default_rng(0)
    x, y = rng.random((8, 4), np.float32), rng.random((4, 8), np.float32)
    z = np.full((8, 8), 3, np.float32)
    tvm.build(sch.mod)(x, y, z)
    assert np.allclose(z, x @ y, rtol=1e-5)


@T.prim_func
def layer(y: T.handle, w: T.handle, e: T.handle, x: T.handle, p: T.handle, j: T.handle,
          m: T.int32, n: T.int32, nnz: T.int32) -> None:  # fmt: skip
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (p, j), "int32")
    N = T.dense_fixed(n)
    F = T.dense_fixed(4)
    G = T.dense_fixed(4)
    E = T.match_sparse_buffer(e, (I, J), "float32")
    W = T.match_sparse_buffer(w, (I, F, G), "float32")
    X = T.match_sparse_buffer(x, (N, G), "float32")
    Y = T.match_sparse_buffer(y, (I, F), "float32")
    with T.sp_iter([I, J, F, G], "SRSR", "layer") as [i, v, f, g]:
        with T.init():
            Y[i, f] = 0.0
        Y[i, f] = Y[i, f] + E[i, v] * W[i, f, g] * X[v, g]


@pytest.mark.parametrize(("number", "name"), [(1, "E"), (2, "W"), (3, "X")])
def test_what_an_outer_block_reads_is_numbered_as_what_the_blocks_in_it_read(number, name):
    """Its fibers first, then the values; indices behind what they pick; no output."""
    mod = lower_sparse_iter(tvm.IRModule.from_expr(layer))
    sch = tir.Schedule(mod)
    result = sch.cache_read("layer0", number, "local")
    assert f"{name}_local" in sch.mod["main"].script()
    assert len(sch.get_loops(result)) == {"E": 2, "W": 3, "X": 2}[name]


def test_a_copy_has_a_loop_for_each_axis_of_what_it_copies():
    sch = tir.Schedule(lower_sparse_iter(tvm.IRModule.from_expr(layer)))
    result = sch.cache_read("layer1", 1, "local")  # W[i], of the row around
    first, *rest = sch.get_loops(result)
    assert "W_local" in sch.mod["main"].script()
    assert f"for {first} in T.serial(1)" in sch.mod["main"].script()
    assert len(rest) == 2


# -- one launch of several ----------------------------------------------------------------------


LAUNCHES = """
T.func_attr({"horizontal_fuse": 1})
for b in T.thread_binding(8, thread="blockIdx.x"):
    for t in T.thread_binding(8, thread="threadIdx.x"):
        with T.block("double"):
            vb, vt = T.axis.remap("SS", [b, t])
            Y[vb, vt] = X[vb, vt] * T.float32(2)
for b in T.thread_binding(4, thread="blockIdx.x"):
    for t in T.thread_binding(6, thread="threadIdx.x"):
        with T.block("add"):
            vb, vt = T.axis.remap("SS", [b, t])
            Z[vb, vt] = X[vb, vt] + T.float32(1)
"""
LAUNCHED = """
for b in T.thread_binding(12, thread="blockIdx.x"):
    for t in T.thread_binding(8, thread="threadIdx.x"):
        if b < 8:
            with T.block("double"):
                vb, vt = T.axis.remap("SS", [b, t])
                Y[vb, vt] = X[vb, vt] * T.float32(2)
        else:
            if b < 12:
                if t < 6:
                    with T.block("add"):
                        vb = T.axis.spatial(4, b - 8)
                        vt = T.axis.spatial(6, t)
                        Z[vb, vt] = X[vb, vt] + T.float32(1)
"""


def test_nests_that_are_launched_become_one_launch_of_all_their_blocks():
    mod = tvm.tir.transform.HorizontalFusion()(tvm.IRModule.from_expr(nest(LAUNCHES)))
    tvm.ir.assert_structural_equal(mod["main"], nest(LAUNCHED))
    other = nest(LAUNCHED.replace("b - 8", "b - 7"))
    assert not tvm.ir.structural_equal(mod["main"], other)
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    expected = np.zeros((8, 8), np.float32)
    expected[:4, :6] = x[:4, :6] + 1
    y, z = np.zeros_like(x), np.zeros_like(x)
    tvm.build(mod)(x, y, z, 0)
    assert np.array_equal(y, 2 * x)
    assert np.array_equal(z, expected)


def test_a_function_that_does_not_ask_is_not_fused_and_one_that_cannot_be_is_refused():
    quiet = tvm.IRModule.from_expr(nest(LAUNCHES.replace("1})", "0})")))
    assert tvm.tir.transform.HorizontalFusion()(quiet)["main"] is quiet["main"]
    for old, new, message in (
        ('T.thread_binding(4, thread="blockIdx.x")', "T.serial(4)", "not bound to blockIdx.x"),
        ("T.thread_binding(6", "T.thread_binding(n", "from 0 to a number"),
        ('6, thread="threadIdx.x"', '6, thread="vthread.x"', "from 0 to a number"),
    ):
        mod = tvm.IRModule.from_expr(nest(LAUNCHES.replace(old, new)))
        with pytest.raises(ScheduleError, match=message):
            tvm.tir.transform.HorizontalFusion()(mod)


def test_the_interpreter_agrees_with_a_fused_launch():
    func = tvm.tir.transform.HorizontalFusion()(tvm.IRModule.from_expr(nest(LAUNCHES)))["main"]
    low = lower_sparse_buffer(tvm.IRModule.from_expr(func))["main"]
    x = np.arange(64, dtype=np.float32)
    arguments = {"x": x, "y": np.zeros_like(x), "z": np.zeros_like(x), "n": 0}
    interpret(low, arguments)
    assert np.array_equal(arguments["y"], 2 * x)
    assert arguments["z"].reshape(8, 8)[:4, :6].sum() == (x.reshape(8, 8)[:4, :6] + 1).sum()
