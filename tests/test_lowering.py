"""Lowering to position space: where inits go, what is searched, and what is refused."""

from __future__ import annotations

import textwrap

import pytest

from spcomp.errors import LoweringError, SpcompWarning
from spcomp.ir.access import Load, Search
from spcomp.ir.axis import Axis
from spcomp.ir.coordinate import SpIter
from spcomp.ir.module import HostAlloc, Launch, Return, Scan, single
from spcomp.ir.position import Block, Merge
from spcomp.ir.stmt import Fail, For
from spcomp.ir.visitor import walk
from spcomp.knobs import CPU_KNOBS
from spcomp.passes.base import Pipeline, Stage
from spcomp.passes.flat.cleanup import Cleanup
from spcomp.passes.flat.loop_kinds import LoopKinds
from spcomp.passes.iterations.iteration_plan import plan_iteration
from spcomp.passes.iterations.lower_iterations import LowerIterations
from spcomp.script.parse import parse_source

PARAMS = "a: T.handle, b: T.handle, c: T.handle, ip: T.handle, ii: T.handle, jp: T.handle,"
PARAMS += " ji: T.handle, m: T.int32, n: T.int32, f: T.int32, p: T.int32, q: T.int32"


def parsed(body):
    """Return the program with *body*; its first line is line 4 of the source."""
    text = "from spcomp import script as T\n@T.prim_func\n"
    text += f"def func({PARAMS}) -> None:\n" + textwrap.indent(
        textwrap.dedent(body).strip(), "    "
    )
    (func,) = parse_source(text + "\n", "lowered.py")
    return func


def lowered(body):
    return LowerIterations(CPU_KNOBS).run(single(parsed(body)))


def plan(body):
    it = next(node for node in walk(parsed(body).body) if isinstance(node, SpIter))
    return plan_iteration(it)


def refused(body):
    with pytest.raises(LoweringError) as caught:
        lowered(body)
    return caught.value


CSR = """
I = T.dense_fixed(m)
J = T.sparse_variable(I, (n, p), (ip, ii))
N = T.dense_fixed(n)
K = T.dense_fixed(f)
A = T.match_sparse_buffer(a, (I, J), "float32")
B = T.match_sparse_buffer(b, (N, K), "float32")
"""
PAIR = """
I = T.dense_fixed(m)
J = T.sparse_variable(I, (n, p), (ip, ii){flags})
L = T.sparse_variable(I, (n, q), (jp, ji))
Z = T.sparse_variable(I, (n, None), (None, None))
A = T.match_sparse_buffer(a, (I, J), "float32")
B = T.match_sparse_buffer(b, (I, L), "float32")
C = T.match_sparse_buffer(c, (I, Z), "float32")
"""


# -- decisions ----------------------------------------------------------------------------------


def test_an_init_over_rows_that_are_all_visited_goes_before_the_reduction():
    found = plan(
        CSR
        + """
C = T.match_sparse_buffer(c, (I, K), "float32")
with T.sp_iter([I, J, K], "SRS", "f") as [i, j, k]:
    with T.init():
        C[i, k] = 0.0
    C[i, k] += A[i, j] * B[j, k]
"""
    )
    assert found.init == "inside"
    assert found.first_reduction == 1
    assert [axis.name for axis in found.init_domains] == ["K"]


def test_an_init_of_rows_that_are_only_scattered_to_goes_outside_over_their_full_length():
    found = plan(
        CSR
        + """
C = T.match_sparse_buffer(c, (N, K), "float32")
with T.sp_iter([I, J, K], "RSS", "f") as [i, j, k]:
    with T.init():
        C[j, k] = 0.0
    C[j, k] += A[i, j] * B[i, k]
"""
    )
    assert found.init == "outside"
    over, features = found.init_domains
    assert isinstance(over, Axis)
    assert (over.kind, over.length.name) == ("dense_fixed", "n")
    assert features.name == "K"


def test_the_innermost_block_carries_the_init_where_the_reduction_starts_in_it():
    blocks = [
        node
        for node in walk(
            lowered(
                CSR
                + """
C = T.match_sparse_buffer(c, (I, K), "float32")
with T.sp_iter([I, J, K], "SRS", "f") as [i, j, k]:
    with T.init():
        C[i, k] = 0.0
    C[i, k] += A[i, j] * B[j, k]
"""
            )
            .funcs[0]
            .body
        )
        if isinstance(node, Block)
    ]
    assert [(b.name, b.init is not None) for b in blocks] == [("f0", False), ("f1", True)]
    assert [(i.kind) for b in blocks for i in b.iters] == ["S", "R", "S"]


def test_a_reduction_that_spans_blocks_gets_a_nest_of_its_own_for_the_init():
    func = lowered(
        CSR
        + """
L = T.sparse_variable(J, (f, q), (jp, ji))
D = T.match_sparse_buffer(c, (I, J, L), "float32")
C = T.alloc_sparse_buffer((I,), "float32")
with T.sp_iter([I, J, L], "SRR", "f") as [i, j, k]:
    with T.init():
        C[i] = 0.0
    C[i] += D[i, j, k]
"""
    ).funcs[0]
    names = [node.name for node in walk(func.body) if isinstance(node, Block)]
    assert names == ["f0", "f_init0", "f1", "f2"]


def test_a_search_is_done_outside_the_loops_it_does_not_depend_on():
    func = lowered(
        CSR
        + """
C = T.match_sparse_buffer(c, (I, K), "float32")
with T.sp_iter([I, N, K], "SRS", "f") as [i, j, k]:
    C[i, k] += A[i, j] * B[j, k]
"""
    ).funcs[0]
    inner = next(n for n in walk(func.body) if isinstance(n, For) and n.var.name == "k")
    assert not any(isinstance(n, Search) for n in walk(inner))
    assert sum(isinstance(n, Search) for n in walk(func.body)) == 1


def test_searching_a_sorted_axis_is_noted_as_a_reliance_on_its_order():
    body = """
C = T.match_sparse_buffer(c, (I,), "float32")
with T.sp_iter([I, N], "SR", "f") as [i, j]:
    C[i] += A[i, j]
"""
    assert lowered(CSR + body).funcs[0].attr("order_needed") == ("J",)
    unsorted = CSR.replace("(ip, ii))", "(ip, ii), sorted=False)")
    func = lowered(unsorted + body).funcs[0]
    assert func.attr("order_needed") is None
    assert [n.kind for n in walk(func.body) if isinstance(n, Search)] == ["linear"]


def test_axes_over_the_same_arrays_need_no_search():
    func = parsed(
        """
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, p), (ip, ii))
    A = T.match_sparse_buffer(a, (I, J), "float32")
    C = T.match_sparse_buffer(c, (I,), "float32")
    with T.sp_iter([I, J], "SR", "f") as [i, j]:
        C[i] += A[i, j]
    """
    )
    assert not any(
        isinstance(n, Search)
        for n in walk(LowerIterations(CPU_KNOBS).run(single(func)).funcs[0].body)
    )


def test_a_read_that_is_in_range_by_its_axis_is_not_guarded():
    func = lowered(
        CSR
        + """
C = T.match_sparse_buffer(c, (I, K), "float32")
with T.sp_iter([I, J, K], "SRS", "f") as [i, j, k]:
    C[i, k] += A[i, j] * B[j, k]
"""
    ).funcs[0]
    assert not any(type(n).__name__ == "Select" for n in walk(func.body))


def test_a_write_that_may_miss_is_guarded_by_a_failure_that_names_the_buffer():
    func = lowered(
        CSR
        + """
C = T.match_sparse_buffer(c, (I, J), "float32")
with T.sp_iter([I, N], "SS", "f") as [i, j]:
    C[i, j] = 1.0
"""
    ).funcs[0]
    (fail,) = [n for n in walk(func.body) if isinstance(n, Fail)]
    assert fail.message == "write to a coordinate that is not stored in C"


def test_a_false_spatial_axis_is_a_reduction_and_warned_about():
    body = """
C = T.match_sparse_buffer(c, (K,), "float32")
with T.sp_iter([I, K], "SS", "f") as [i, k]:
    C[k] += B[i, k]
"""
    with pytest.warns(SpcompWarning, match=r"lowered\.py:12:5: axis I is declared spatial in 'f'"):
        assert plan(CSR + body).first_reduction == 0


@pytest.mark.parametrize(
    ("loops", "names"),
    [
        ('[K, T.flatten(I, J)], "SR"', "k, p_"),
        ('[I, K, T.union(J, W)], "RSR"', "i, k, p_"),
    ],
)
def test_a_position_is_not_bounded_by_the_length_of_an_axis(loops, names):
    """Or k * 4 + p would be told apart by k where p < 4, as it is not where there are more."""
    with pytest.warns(SpcompWarning, match="axis K is declared spatial"):
        lowered(f"""
            I = T.dense_fixed(4)
            J = T.sparse_variable(I, (4, p), (ip, ii))
            W = T.sparse_variable(I, (9, q), (jp, ji))
            K = T.dense_fixed(f)
            O = T.dense_fixed(m)
            Y = T.match_sparse_buffer(b, (O,), "float32")
            with T.sp_iter({loops}, "x") as [{names}]:
                Y[k * 4 + p_] = Y[k * 4 + p_] + 1.0
            """)


def test_an_axis_of_length_one_may_be_called_spatial():
    found = plan(
        """
    O = T.dense_fixed(1)
    K = T.dense_fixed(f)
    B = T.match_sparse_buffer(b, (K,), "float32")
    C = T.match_sparse_buffer(c, (K,), "float32")
    with T.sp_iter([O, K], "SS", "f") as [o, k]:
        C[k] = B[k]
    """
    )
    assert found.first_reduction == 2


# -- merges and assembly ------------------------------------------------------------------------

ADD = """
with T.sp_iter([I, T.union(J, L)], "SS", "add") as [i, j]:
    C[i, j] = A[i, j] + B[i, j]
"""


def test_a_union_of_two_has_three_cases_and_an_intersection_one():
    union = lowered(PAIR.format(flags="") + ADD)
    merges = [n for n in walk(union["func_fill"].body) if isinstance(n, Merge)]
    assert [c.present for c in merges[0].cases] == [(True, True), (True, False), (False, True)]
    both = lowered(PAIR.format(flags="") + ADD.replace("union", "intersect"))
    merges = [n for n in walk(both["func_fill"].body) if isinstance(n, Merge)]
    assert [c.present for c in merges[0].cases] == [(True, True)]


def test_an_assembled_output_is_counted_scanned_and_filled():
    module = lowered(PAIR.format(flags="") + ADD)
    assert [type(op) for op in module.host] == [
        *(HostAlloc, Launch, Scan, HostAlloc, HostAlloc),
        *(Launch, Return),
    ]
    assert [f.name for f in module.funcs] == ["func_count", "func_fill"]
    assert [b.name for b in module.host[-1].buffers] == ["Z_indptr", "Z_indices", "c"]
    assert not any(
        isinstance(n, Load) and n.buffer.name == "C" for n in walk(module["func_count"].body)
    )


# -- refusals -----------------------------------------------------------------------------------


def test_a_fiber_whose_parent_is_not_iterated_is_refused():
    error = refused(
        CSR
        + """
C = T.match_sparse_buffer(c, (K,), "float32")
with T.sp_iter([J, K], "RS", "f") as [j, k]:
    C[k] += B[j, k]
"""
    )
    assert "J runs over the fibers of I, which is not iterated around it in 'f'" in error.message
    assert error.hint == "put I before J in the sp_iter, or use T.attach"
    assert error.span.line == 12


def test_attaching_to_an_axis_that_is_not_iterated_is_refused():
    error = refused(
        """
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, p), (ip, ii))
    N = T.dense_fixed(n)
    L = T.sparse_variable(N, (m, q), (jp, ji))
    C = T.match_sparse_buffer(c, (I,), "float32")
    with T.sp_iter([I, T.attach(L, J)], "SR", "f") as [i, k]:
        C[i] += 1.0
    """
    )
    assert error.message == "L is attached to J, which is not iterated"
    assert error.hint == "iterate over J before the attached axis"
    assert error.span.line == 9


def test_merging_an_unsorted_axis_is_refused():
    error = refused(PAIR.format(flags=", sorted=False") + ADD)
    assert error.message == "J is not sorted, so it cannot be merged with another axis"
    assert error.span.line == 12


def test_iterating_over_a_result_is_refused():
    error = refused(
        PAIR.format(flags="")
        + """
with T.sp_iter([I, Z], "SS", "f") as [i, j]:
    C[i, j] = A[i, j]
"""
    )
    assert error.message == "'f' runs over Z, whose coordinates are its result"


def test_a_result_whose_fibers_come_several_times_is_refused():
    error = refused(
        PAIR.format(flags="")
        + """
K = T.dense_fixed(f)
with T.sp_iter([K, I, J], "RSS", "f") as [k, i, j]:
    C[i, j] += A[i, j]
"""
    )
    assert error.message == "C is assembled, but its fibers are not written one by one"
    assert error.hint.startswith("iterate over I first")


def test_a_result_written_by_two_iterations_is_refused():
    one = """
with T.sp_iter([I, J], "SS", "one") as [i, j]:
    C[i, j] = A[i, j]
with T.sp_iter([I, L], "SS", "two") as [i, j]:
    C[i, j] = B[i, j]
"""
    error = refused(PAIR.format(flags="") + one)
    assert error.message == "Z is assembled by two iterations"


def test_a_result_below_a_result_is_refused():
    error = refused(
        """
    I = T.dense_fixed(m)
    Y = T.sparse_variable(I, (n, None), (None, None))
    Z = T.sparse_variable(Y, (f, None), (None, None))
    C = T.match_sparse_buffer(c, (I, Y, Z), "float32")
    with T.sp_iter([I], "S", "f") as [i]:
        C[i, 0, 0] = 1.0
    """
    )
    assert error.message == "Z is assembled below another assembled axis"


def test_a_search_in_the_condition_of_a_while_is_refused():
    error = refused(
        CSR
        + """
C = T.match_sparse_buffer(c, (I,), "float32")
with T.sp_iter([I], "S", "f") as [i]:
    while C[i] < A[i, i]:
        C[i] += 1.0
"""
    )
    assert error.message == "the condition of a while loop needs a search"
    assert error.span.line == 13


# -- passes as values ---------------------------------------------------------------------------


def test_a_pipeline_refuses_neighbours_whose_levels_do_not_meet():
    with pytest.raises(ValueError, match="cleanup takes FLAT but lower_iterations gives POSITION"):
        Pipeline((LowerIterations(CPU_KNOBS), Cleanup()))


def test_a_pass_prints_its_options_that_are_not_the_default():
    pipeline = Pipeline((LoopKinds(CPU_KNOBS, 256), LoopKinds(CPU_KNOBS), Cleanup()))
    assert str(pipeline) == "loop_kinds{vector_bits=256},loop_kinds,cleanup"
    assert LoopKinds.takes is Stage.FLAT
