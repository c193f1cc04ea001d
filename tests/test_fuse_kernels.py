"""Horizontal fusion: nests that follow each other as one parallel loop, and what is refused."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import script as T
from spcomp.compiler.pipeline import lower
from spcomp.errors import ArgumentError, ScheduleError
from spcomp.formats import FormatRewriteRule
from spcomp.ir.interpret.program import interpret
from spcomp.ir.module import single
from spcomp.ir.printer.program import print_program
from spcomp.ir.rewrite import relink
from spcomp.ir.stmt import For
from spcomp.ir.structural import structural_equal
from spcomp.ir.verify.program import verify
from spcomp.passes.decompose.decompose_formats import decompose, without_unused
from spcomp.schedule.default.scatter import outermost
from spcomp.schedule.legality.dependence import conflicts_between, coordinate_conflicts, loops_of
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.steps.sharing.horizontal import HorizontalFuse
from spcomp.script.parse import parse_source
from tests import format_helpers
from tests.corpus_base import fresh
from tests.layers import TARGET
from tests.programs import BY_NAME

WIDTHS = (1, 2, 4)


@T.prim_func
def csrmm(
    a: T.handle,
    b: T.handle,
    c: T.handle,
    indptr: T.handle,
    indices: T.handle,
    m: T.int32,
    n: T.int32,
    feat: T.int32,
    nnz: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    J_detach = T.dense_fixed(n)
    K = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (J_detach, K), "float32")
    C = T.match_sparse_buffer(c, (I, K), "float32")
    with T.sp_iter([I, J, K], "SRS", "csrmm") as [i, j, k]:
        with T.init():
            C[i, k] = 0.0
        C[i, k] = C[i, k] + A[i, j] * B[j, k]


@T.prim_func
def ell(
    a: T.handle,
    indptr_i: T.handle,
    indices_i: T.handle,
    indices_j: T.handle,
    m: T.int32,
    n: T.int32,
    num_rows: T.int32,
    nnz_cols: T.int32,
) -> None:
    O = T.dense_fixed(1)
    I = T.sparse_variable(O, (m, num_rows), (indptr_i, indices_i), "int32", unique=False)
    J = T.sparse_fixed(I, (n, nnz_cols), indices_j, "int32", unique=False)
    A = T.match_sparse_buffer(a, (O, I, J), "float32")  # noqa: F841
    T.evaluate(0)


def rules():
    own = {p.name: p for p in csrmm.params}
    desc = relink(ell, vars={p: own[p.name] for p in ell.params if p.name in ("m", "n")})
    return [
        FormatRewriteRule(
            str(width),
            desc.specialize({"nnz_cols": width}),
            ["A"],
            ["I", "J"],
            ["O", "I", "J"],
            {"I": ["O", "I"], "J": ["J"]},
            lambda i, j: (0, i, j),
            lambda o, i, j: (i, j),
        )
        for width in WIDTHS
    ]


@cache
def parts():
    """CSR SpMM over three buckets of rows of one width; longer rows are in pieces in the last."""
    return without_unused(decompose(csrmm, rules()).func, csrmm)


@cache
def position(feat=None):
    func = parts() if feat is None else parts().specialize({"feat": feat})
    return Schedule(func).lower_sparse_iter().func


def tops(func):
    return tuple(loop.var.name for loop in outermost(func.body))


def buckets(matrix):
    """The arrays of the parts: each row in the narrowest bucket, or in pieces in the last."""
    made, lengths = {}, np.diff(matrix.indptr)
    for before, width in zip((0, *WIDTHS), WIDTHS, strict=False):
        longest = WIDTHS[-1] if width < WIDTHS[-1] else np.inf
        fits = (lengths > before) & (lengths <= (width if longest != np.inf else np.inf))
        rows, cols, vals = [], [], []
        for row in np.flatnonzero(fits):
            stored = slice(matrix.indptr[row], matrix.indptr[row + 1])
            for at in range(stored.start, stored.stop, width):
                own = np.arange(at, min(at + width, stored.stop))
                rows.append(row)
                pad = width - len(own)
                cols.append(np.pad(matrix.indices[own], (0, pad), mode="edge"))
                vals.append(np.pad(matrix.data[own], (0, pad)))
        made |= {
            f"indptr_i_{width}": np.array([0, len(rows)], np.int32),
            f"indices_i_{width}": np.array(rows, np.int32),
            f"indices_j_{width}": np.array(cols, np.int32).reshape(-1),
            f"a_{width}": np.array(vals, np.float32).reshape(-1),
            f"num_rows_{width}": len(rows),
        }
    return made


def inputs(matrix, feat, seed=0):
    rng = np.random.default_rng(seed)
    b = rng.standard_normal((matrix.shape[1], feat)).astype(np.float32)
    sizes = {"m": matrix.shape[0], "n": matrix.shape[1], "feat": feat}
    c = np.full(matrix.shape[0] * feat, np.nan, np.float32)
    return {"b": b.reshape(-1), "c": c, **buckets(matrix), **sizes}


def named(given):
    """*given*, by handle, as a Kernel takes it; what it can infer is left out."""
    buffers = {name: name.replace("a_", "A_", 1) for name in given if name.startswith("a_")}
    kept = {name: given[name] for name in given.keys() - {"b", "c", "n", "feat"}}
    made = {buffers.get(name, name): value for name, value in kept.items()}
    return {**made, "B": given["b"].reshape(given["n"], given["feat"])}


def random(m, n, density, seed=0):
    made = sps.random_array(
        (m, n), density=density, format="csr", dtype=np.float32, rng=np.random.default_rng(seed)
    )
    made.indices, made.indptr = made.indices.astype(np.int32), made.indptr.astype(np.int32)
    return made


def one_hub():
    made = random(40, 60, 0.03).toarray()
    made[7] = 1.5
    return as_csr(made)


def as_csr(dense):
    made = sps.csr_array(dense.astype(np.float32))
    made.indices, made.indptr = made.indices.astype(np.int32), made.indptr.astype(np.int32)
    return made


MATRICES = {
    "rows of many lengths": lambda: random(50, 40, 0.08),
    "only short rows": lambda: as_csr(np.eye(20, 30)),
    "a row of most elements": one_hub,
    "no elements": lambda: as_csr(np.zeros((9, 5))),
    "one row": lambda: random(1, 30, 0.5),
    "no rows": lambda: as_csr(np.zeros((0, 5))),
}
every_matrix = pytest.mark.parametrize("matrix", MATRICES)


def fused(func, size=4):
    return HorizontalFuse(tops(func), size).apply(func)


def run(func, given):
    given = fresh(given)
    interpret(func, given)
    return given["c"]


@every_matrix
def test_fused_parts_compute_what_the_program_does_bit_by_bit(matrix):
    given = inputs(MATRICES[matrix](), 3)
    apart, together = position(), fused(position())
    expected = run(apart, given)
    np.testing.assert_array_equal(run(together, given), expected)
    flat = lower(together, TARGET, trusted=True).flat.funcs[0]
    np.testing.assert_array_equal(run(flat, given), expected)


@every_matrix
def test_the_compiled_parts_compute_the_product_with_the_same_bits_at_any_number_of_threads(
    matrix, monkeypatch
):
    a = MATRICES[matrix]()
    given = named(inputs(a, 40))
    kernel = spcomp.compile(parts())
    results = []
    for count in (1, 2, 5):
        monkeypatch.setenv("SPCOMP_NUM_THREADS", str(count))
        results.append(kernel(**given))
    np.testing.assert_allclose(results[0], a @ given["B"], rtol=1e-5, atol=1e-5)
    assert len({made.tobytes() for made in results}) == 1


def test_the_parts_of_a_format_are_one_launch_by_default():
    stages = lower(parts().specialize({"feat": 40}), TARGET)
    (func,) = stages.flat.funcs
    assert [loop.kind for loop in outermost(func.body)] == ["parallel"]
    assert sum(loop.kind == "parallel" for loop in loops_of(func.body)) == 1
    assert "horizontal_fuse" in [step.name for _, step in stages.trace]


def test_a_program_without_the_attribute_keeps_its_launches():
    func = parts().with_attr("horizontal_fuse", False).specialize({"feat": 40})
    steps = [step.name for _, step in lower(func, TARGET).trace]
    assert "horizontal_fuse" not in steps


def test_the_trace_of_fused_parts_replays_to_the_same_program():
    stages = lower(parts().specialize({"feat": 8}), TARGET)
    again = type(stages.trace).from_json_lines(stages.trace.to_json_lines())
    replayed = lower(parts().specialize({"feat": 8}), TARGET, trace=again)
    assert structural_equal(replayed.flat.funcs[0], stages.flat.funcs[0])


def test_fused_parts_are_printed_as_they_are_parsed():
    func = fused(position(feat=8))
    verify(single(func), "horizontal_fuse")
    (parsed,) = parse_source(print_program(single(func)), "fused.py")
    assert structural_equal(parsed, func)


def test_rows_that_do_not_ascend_are_refused_at_the_call():
    given = inputs(random(50, 40, 0.08), 8)
    given["indices_i_4"] = given["indices_i_4"][::-1].copy()
    with pytest.raises(ArgumentError, match="ascend"):
        spcomp.compile(parts())(**named(given))


PAIRS = """from spcomp import script as T

@T.prim_func
def pair(x: T.handle, y: T.handle, z: T.handle, n: T.int32, m: T.int32) -> None:
    N = T.dense_fixed(n)
    M = T.dense_fixed(m)
    X = T.match_sparse_buffer(x, (N,), "float32")
    Y = T.match_sparse_buffer(y, (N,), "float32")
    Z = T.match_sparse_buffer(z, (M,), "float32")
    with T.sp_iter([N], "S", "first") as [i]:
        Y[i] = {first}
    with T.sp_iter([{axis}], "S", "second") as [i]:
        {second}
"""


def pair(first="X[i] + 1.0", axis="M", second="Z[i] = 2.0"):
    (func,) = parse_source(PAIRS.format(first=first, axis=axis, second=second), "pair.py")
    return Schedule(func).lower_sparse_iter().func


def nests(func):
    return tuple(outermost(func.body))


def test_nests_over_other_arrays_share_their_ranges_out():
    func = HorizontalFuse(tops(pair()), 4).apply(pair())
    (loop,) = outermost(func.body)
    assert loop.kind == "parallel"
    given = {"x": np.arange(5, dtype=np.float32), "y": np.zeros(5, np.float32), "n": 5, "m": 3}
    given["z"] = np.zeros(3, np.float32)
    interpret(func, given)
    np.testing.assert_array_equal(given["y"], np.arange(5) + 1)
    np.testing.assert_array_equal(given["z"], [2, 2, 2])


def test_a_nest_that_reads_the_rows_another_wrote_runs_behind_it_in_each_chunk():
    func = pair(axis="N", second="X[i] = Y[i] * 2.0")
    made = HorizontalFuse(tops(func), 1).apply(func)
    given = {"x": np.arange(700, dtype=np.float32), "y": np.zeros(700, np.float32)}
    given |= {"z": np.zeros(3, np.float32), "n": 700, "m": 3}
    interpret(made, given)
    np.testing.assert_array_equal(given["x"], (np.arange(700) + 1) * 2)


@pytest.mark.parametrize(
    ("second", "reason"),
    [("X[n - 1 - i] = Y[i]", "of X"), ("X[i] = Y[n - 1 - i]", "of Y")],
)
def test_nests_that_touch_what_others_write_stay_apart(second, reason):
    func = pair(axis="N", second=second)
    with pytest.raises(ScheduleError, match=reason):
        HorizontalFuse(tops(func), 4).apply(func)
    marked = func.with_attr("horizontal_fuse", True)
    stages = lower(marked, TARGET, trusted=True)
    assert "horizontal_fuse" not in [step.name for _, step in stages.trace]


def test_loops_that_are_not_neighbours_are_refused():
    func = position(feat=8)
    first, second, third, *_ = tops(func)
    for names in ((first, third), (second, first), (first, "k")):
        with pytest.raises(ScheduleError, match="directly after"):
            HorizontalFuse(names, 4).apply(func)
    with pytest.raises(ScheduleError, match="at least 1"):
        HorizontalFuse((first, second), 0).apply(func)


def test_a_nest_that_is_bound_to_threads_is_refused():
    schedule = Schedule(csrmm).lower_sparse_iter().bind("i", "blockIdx.x")
    with pytest.raises(ScheduleError, match="'i' is bound to blockIdx"):
        schedule.horizontal_fuse(["i"], 4)


def test_the_oracle_tells_statements_apart_by_array_or_by_range():
    first, second = nests(pair())
    assert conflicts_between(first, second) == ()
    first, second = nests(pair(axis="N", second="Y[i + n] = 1.0"))
    assert conflicts_between(first, second) == ()
    first, second = nests(pair(axis="N", second="Y[i + n - 1] = 1.0"))
    assert [found.buffer for found in conflicts_between(first, second)] == ["Y"]
    first, second = nests(pair(axis="N", second="X[n - 1 - i] = 1.0"))
    assert [found.buffer for found in conflicts_between(first, second)] == ["X"]


def test_the_oracle_tells_nests_apart_by_the_coordinate_they_share():
    first, second = nests(pair(axis="N", second="X[i] = Y[i]"))
    assert isinstance(first, For)
    assert coordinate_conflicts([(first, first.var), (second, second.var)]) == ()
    first, second = nests(pair(axis="N", second="X[i] = Y[0]"))
    assert [
        found.buffer for found in coordinate_conflicts([(first, first.var), (second, second.var)])
    ] == ["Y"]


def test_a_number_of_rows_that_is_known_only_inside_a_nest_is_no_share_of_all():
    sizes = dict.fromkeys(("m", "n", "feat", "nnz"), 0)
    schedule = Schedule(BY_NAME["coo_spmm"].build("float32").specialize(sizes)).lower_sparse_iter()
    nothing = schedule.unroll("k_1").decompose_reduction("coo_spmm1", "k_1")
    fused = nothing.loop_partition("k_1", 4).horizontal_fuse(("i", "o"), 5)
    assert "ranges_share" in fused.func.script()
    verify(fused.func, "fused")


def test_parts_that_come_to_the_same_code_share_one_function():
    program = format_helpers.program("spmv")
    kernel = spcomp.decompose(program, A=spcomp.formats.hyb(3, [1, 2])).compile()
    text = kernel.source("llvm")
    assert len(re.findall(r"call void @\w+[.]loop\d+", text)) == 6
    assert len(re.findall(r"define internal void @\w+[.]loop\d+", text)) == 2  # one per width
    csr = sps.random_array((50, 40), density=0.1, format="csr", dtype=np.float32, rng=3)
    b = np.arange(80, dtype=np.float32).reshape(40, 2)
    np.testing.assert_allclose(kernel(A=csr, B=b), csr @ b, rtol=1e-5)
