"""Nodes, visitors and dtypes: what the frame of the IR promises."""

from __future__ import annotations

import pytest

from spcomp.dtypes import (
    bfloat16,
    bool_,
    dtype,
    float16,
    float32,
    float64,
    handle,
    int8,
    int32,
    int64,
    promote,
    uint8,
    uint64,
)
from spcomp.errors import BackendError, InternalError, ScriptError, Span
from spcomp.ir.expr import BinOp, Const, Var, binary, const
from spcomp.ir.module import single
from spcomp.ir.position import Case
from spcomp.ir.program import FlatFunc
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Evaluate, For, Seq, Stmt, seq
from spcomp.ir.visitor import Visitor, statements, walk
from spcomp.schedule.schedule import Schedule
from spcomp.target import Target, target
from tests.layers import STAGES, source, stages
from tests.programs import PROGRAMS

X, Y = Var("x", int64), Var("y", int64)


def test_nodes_cannot_be_written_to_under_test():
    with pytest.raises(AttributeError):
        X.name = "z"


def test_a_rewriter_gives_back_the_same_object_where_nothing_changes():
    body = Seq((Evaluate(binary("+", X, 1)), Evaluate(Y)))
    assert Rewriter().visit(body) is body
    changed = substitute(body, {Y: X})
    assert changed is not body
    assert changed.body[0] is body.body[0]


def test_walking_meets_parents_first():
    kinds = [type(node) for node in walk(binary("+", binary("*", X, 2), Y))]
    assert kinds == [BinOp, BinOp, Var, Const, Var]


def test_a_visitor_method_for_no_node_is_found_when_the_class_is_made():
    with pytest.raises(TypeError, match="visit_Foor names no IR node"):

        class Typo(Visitor[None]):
            def visit_Foor(self, node):
                pass


def test_a_visitor_must_handle_all_it_covers():
    with pytest.raises(TypeError, match="has no visit_For"):

        class Partial(Visitor[None]):
            COVERS = (For,)


def test_a_node_that_nobody_handles_is_named():
    with pytest.raises(TypeError, match="cannot visit Var"):
        Visitor[None]().visit(X)


def test_a_sequence_of_one_is_itself_and_none_is_dropped():
    one = Evaluate(X)
    assert seq(None, one) is one
    assert seq(Seq((one, one)), one).body == (one, one, one)


def test_a_program_is_shown_by_its_name_and_printed_as_its_script():
    schedule = Schedule(source("spmv"))
    for made in (schedule, schedule.lower_sparse_iter(), schedule.lower_sparse_buffer()):
        assert repr(made.func).startswith(f"<{type(made.func).__name__} spmv(a, ")
        assert str(made.func) == made.func.script()


def test_a_module_finds_functions_by_name_and_the_first_as_main():
    func = FlatFunc("f", (), (), (), Seq(()))
    module = single(func)
    assert module["f"] is func
    assert module["main"] is func
    assert module.is_single
    with pytest.raises(KeyError, match="g"):
        module["g"]


@pytest.mark.parametrize(
    ("a", "b", "both"),
    [
        (int32, int64, int64),
        (int32, float32, float32),
        (int64, float16, float16),
        (float16, bfloat16, float32),
        (bfloat16, float64, float64),
        (bool_, int8, int8),
        (int8, uint8, dtype("int16")),
        (int64, uint64, float64),
        (float32.with_lanes(8), float64, float64.with_lanes(8)),
    ],
)
def test_promotion_loses_nothing_that_can_be_kept(a, b, both):
    assert promote(a, b) == both
    assert promote(b, a) == both


def test_there_is_no_arithmetic_on_handles():
    with pytest.raises(ValueError, match="no arithmetic on handle"):
        promote(handle, int32)


@pytest.mark.parametrize("name", ["float33", "quux", "float32x", "x8"])
def test_an_unknown_dtype_is_refused(name):
    with pytest.raises(ValueError, match="unknown dtype"):
        dtype(name)


def test_a_dtype_is_its_name():
    for name in ("int32", "float32x8", "bool", "bfloat16", "handle"):
        assert str(dtype(name)) == name
    assert dtype(float32) is float32
    assert bfloat16.numpy_name == "uint16"
    assert bool_.itemsize == 1


def test_targets_are_parsed_and_unknown_ones_refused():
    assert target("cpu") == Target()
    assert str(target("cpu:x86-64-v3")) == "cpu:x86-64-v3"
    assert target("cuda:sm_90").kind == "cuda"
    assert target("cuda") == target("cuda:sm_80")
    assert (
        target("cuda,emulate")
        == target("cuda:sm_80,emulate")
        == Target("cuda", "sm_80", emulate=True)
    )
    assert target(Target()) is not None
    assert Target(vector_bits=256).lanes(32) == 8
    with pytest.raises(BackendError, match="unknown target 'tpu'"):
        target("tpu")
    for wrong in ("cuda,fast", "cpu,emulate", "cpu:x86-64,emulate"):
        with pytest.raises(BackendError, match="unknown target"):
            target(wrong)


def test_an_error_shows_the_line_with_a_caret_and_what_to_do(tmp_path):
    file = tmp_path / "k.py"
    file.write_text("a = 1\nb = a + c\n")
    error = ScriptError("unknown name 'c'", Span(str(file), 2, 8), hint="define it")
    assert str(error).splitlines() == [
        f"{file}:2:9: unknown name 'c'",
        "    2 | b = a + c",
        "                ^",
        "hint: define it",
    ]


def test_an_internal_error_names_the_pass():
    assert "after flatten: lost" in str(InternalError("flatten", "lost"))


def test_a_literal_takes_the_dtype_it_is_given():
    assert const(1, float32).value == 1.0
    assert const(0, bool_).value is False
    assert (X + 1).rhs.dtype == int64


@pytest.mark.parametrize("name", [program.name for program in PROGRAMS])
def test_statements_come_in_the_order_in_which_they_are_walked(name):
    made = stages(name)
    modules = [module for level in STAGES if (module := getattr(made, level)) is not None]
    for func in (func for module in modules for func in module.funcs):
        kept = [node for node in walk(func.body) if isinstance(node, (Stmt, Case))]
        assert list(statements(func.body)) == kept
