"""Classes of functions with a host program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import script as T
from spcomp.errors import ArgumentError, ScriptError
from spcomp.ir.module import HostAlloc, Launch, Module, Return, Scan
from spcomp.ir.program import PosFunc
from spcomp.ir.structural import structural_equal
from spcomp.script.parse import parse_source
from tests.layers import reparsed, source


@T.ir_module
class Phases:
    @T.prim_func
    def total(a: T.handle, ptr: T.handle, m: T.int32) -> None:
        A = T.match_buffer(a, (m,), "float32")
        A[0] = 1.0

    @T.prim_func
    def count(m: T.int32, ptr: T.handle) -> None:
        P = T.match_buffer(ptr, (m,), "int32")
        P[0] = 1

    @T.prim_func
    def total(a: T.handle, m: T.int32) -> None:  # noqa: F811 - it has the name of the source
        A = T.match_buffer(a, (m,), "float32")
        A[0] = 2.0

    @T.host
    def main(a: T.handle, ptr: T.handle, m: T.int32) -> None:
        """Count, then fill."""
        ptr = T.host_alloc(m + 1, "int32")
        T.launch("count")
        T.scan(ptr)
        extra = T.host_alloc(ptr[m], "float32", fill=-1)
        T.launch("total")
        T.host_return(ptr, extra)


def test_a_class_is_a_module_and_keeps_functions_of_one_name():
    assert isinstance(Phases, Module)
    assert [func.name for func in Phases.funcs] == ["count", "total"]
    assert Phases.source.name == "total"
    assert [type(op) for op in Phases.host] == [HostAlloc, Launch, Scan, HostAlloc, Launch, Return]
    assert structural_equal(reparsed(Phases, "phases"), Phases)


def test_the_arrays_of_a_host_program_are_bound_by_name():
    first, second = (op for op in Phases.host if isinstance(op, HostAlloc))
    assert first.buffer.data is Phases.source.params[1]
    assert (second.buffer.data.name, second.fill) == ("extra", -1)
    assert [b.name for b in Phases.host[-1].buffers] == ["ptr", "extra"]


def test_a_module_of_one_function_needs_no_host_program():
    @T.ir_module
    class Alone:
        @T.prim_func
        def main(a: T.handle) -> None:
            A = T.match_buffer(a, (1,), "float32")
            A[0] = 1.0

    assert Alone.is_single
    assert Alone["main"].name == "main"


def test_a_module_may_be_its_source_alone():
    text = """
@T.ir_module
class C:
    @T.prim_func
    def f(a: T.handle):
        pass
    @T.host
    def main(a: T.handle):
        T.launch("f")
        T.launch("f")
"""
    (module,) = parse_source(text, "class.py")
    assert module.funcs == (module.source,)
    (single,) = parse_source(text[: text.index("    @T.host")], "class2.py")
    assert single.is_single


# -- printed programs ----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.* is not proved to be parallel:spcomp.errors.SpcompWarning")
@pytest.mark.parametrize("stage", ["position", "flat"])
def test_a_printed_stage_is_parsed_and_compiled_again(stage):
    kernel = spcomp.compile("C[i, j] = A[i, j] + B[i, j]", formats={"A": "csr", "B": "csr"})
    A = sps.random_array((6, 7), density=0.5, format="csr", rng=np.random.default_rng(0))
    text = kernel.specialize(A=A, B=A).stage(stage)
    program = spcomp.parse(text)
    assert isinstance(program, Module)
    again = spcomp.compile(program)(A=A, B=A)
    np.testing.assert_array_equal(again.toarray(), 2 * A.toarray())


def transposed() -> Any:
    return source("csrmm_t"), np.ones((6, 3), np.float32)


def copied() -> Any:
    schedule = spcomp.Schedule(source("spmv")).lower_sparse_iter()
    return schedule.cache_write("spmv1", 0, "local"), np.ones(7, np.float32)


@pytest.mark.filterwarnings("ignore:.* is not proved to be parallel:spcomp.errors.SpcompWarning")
@pytest.mark.parametrize("make", [transposed, copied])
def test_a_result_of_a_printed_stage_is_still_one(make):
    """What a reduction updates, or a step copies in, is no argument that has to be given."""
    program, x = make()
    kernel = spcomp.compile(program)
    flat, again = (spcomp.compile(spcomp.parse(kernel.stage(s))) for s in ("flat", "position"))
    for one in (flat, again):
        assert [p.name for p in one.signature.params if p.kind == "out"] == ["Y"]
    A = sps.random_array((6, 7), density=0.5, format="csr", rng=0, dtype=np.float32)
    np.testing.assert_array_equal(again(A=A, X=x), kernel(A=A, X=x))


def test_a_function_is_parsed_from_what_it_prints():
    assert structural_equal(spcomp.parse(Phases.source.script()), Phases.source)


def test_a_text_without_a_program_or_with_several_is_refused():
    text = Phases.source.script()
    two = text + text.replace("def total", "def other").split("\n\n\n", 1)[1]
    for wrong, count in (("x = 1\n", "no programs"), (two, "2 programs")):
        with pytest.raises(ScriptError, match=f"the text has {count}"):
            spcomp.parse(wrong)
    with pytest.raises(ArgumentError, match="argument text: got NoneType"):
        spcomp.parse(None)


def test_a_script_given_as_index_notation_is_told_how_it_is_compiled():
    with pytest.raises(ScriptError) as caught:
        spcomp.compile(Phases.source.script())
    assert caught.value.message == "this is a script, no index notation"
    assert "spcomp.parse" in caught.value.hint
    assert caught.value.span.line == 4


BLOCKS = """from spcomp import script as T

@T.prim_func
def scale(a: T.handle, n: T.int32) -> None:
    T.func_attr({"sparse_tir_level": 0})
    A = T.match_buffer(a, (n,), "float32")
    for i in T.serial(n):
        with T.block("scale0"):
            vi = T.axis.spatial(n, i)
            A[vi] = A[vi] * 2.0
"""


def test_blocks_make_a_program_of_position_space_whatever_level_it_says_as_sparsetir_prints_it():
    func = spcomp.parse(BLOCKS)
    assert isinstance(func, PosFunc)
    assert structural_equal(spcomp.parse(func.script()), func)
    a = np.ones(5, "float32")
    spcomp.compile(func)(a, 5)
    assert (a == 2).all()
    for wrong in ("for j in T.serial(n):", 'with T.sp_iter([I], "S", "f") as [j]:'):
        text = BLOCKS.replace("for i in T.serial(n):", "I = T.dense_fixed(n)\n    " + wrong)
        text = text.replace('with T.block("scale0"):', "if True:").replace("spatial(n, i)", "")
        with pytest.raises(ScriptError) as caught:
            spcomp.parse(text.replace("vi = T.axis.", "").replace("vi", "j"))
        assert caught.value.hint == 'the function says "sparse_tir_level": 0; leave that out'


def test_what_is_assumed_of_a_local_buffer_is_no_promise_of_the_callers():
    text = """from spcomp import script as T

@T.prim_func
def f(b: T.handle, n: T.int32) -> None:
    T.func_attr({"sparse_tir_level": 1})
    I = T.dense_fixed(n)
    B = T.match_sparse_buffer(b, (I,), "int32")
    mid = T.alloc_sparse_buffer((I,), "int32")
    T.assume_buffer_domain(mid, [0, n - 1])
    T.assume_buffer_domain(B, [0, n])
    for i in T.serial(n):
        mid[i] = i + 1
        B[i] = mid[i] if mid[i] < n else 0
"""
    func = spcomp.parse(text)
    assert [domain.buffer.name for domain in func.domains] == ["B"]
    assert structural_equal(spcomp.parse(func.script()), func)
    b = np.zeros(4, "int32")
    spcomp.compile(func)(b, 4)
    assert b.tolist() == [1, 2, 3, 0]
