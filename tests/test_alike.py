"""Questions and loops that differ only in names: looked at once, each with names of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spcomp import decompose
from spcomp.compiler.pipeline import lower
from spcomp.dtypes import bool_, float32, int32, int64
from spcomp.errors import Span
from spcomp.formats.hyb import hyb
from spcomp.ir.access import Load
from spcomp.ir.arith import alike, injectivity, proof
from spcomp.ir.arith.alike import pattern, up_to_names
from spcomp.ir.arith.bounds import Env
from spcomp.ir.arith.proof import decide
from spcomp.ir.arith.simplify import Interval, simplify_stmt
from spcomp.ir.axis import Axis, Buffer, SparseBuffer
from spcomp.ir.expr import BinOp, Cast, Const, Var, const
from spcomp.ir.printer.program import print_program
from spcomp.ir.stmt import Alloc, For, If, Seq, Store
from spcomp.ir.structural import structural_equal
from tests.layers import TARGET
from tests.programs import BY_NAME

i, j, k, m, n = (Var(name, int64) for name in "ijkmn")
B, C = (Buffer(name, None, (m,), float32) for name in "BC")
NOTHING = Env()


def alike_in(first, second, env=NOTHING):
    return pattern(first, env)[0] == pattern(second, env)[0]


def test_the_names_of_a_question_do_not_count():
    assert alike_in((i * 4 + m, (i, (const(0), m))), (j * 4 + n, (j, (const(0), n))))
    assert alike_in(Load(B, (i,)), Load(C, (j,)))
    assert pattern(j * 4 + n, NOTHING)[1] == (j, n)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (i + i, i + j),
        (i + j, i - j),
        ((i, j), ((i, j),)),
        (i + 1, i + 2),
        (Cast(i, int32), Cast(i, float32)),
        (i, Var("i", int32)),
        (Const(True, bool_), Const(1, bool_)),
        (Const(0.0, float32), Const(-0.0, float32)),
        (Load(B, (i,)), Load(B.replace(dtype=int32), (i,))),
        (Load(B, (i,)), Load(B, (i,), i < 3)),
        ((Load(B, (i,)), Load(B, (i,))), (Load(B, (i,)), Load(C, (i,)))),
    ],
)
def test_how_a_question_is_built_counts(first, second):
    assert not alike_in(first, second)


def test_what_is_known_of_a_name_counts():
    axis = Axis("I", "dense_fixed", m)
    one, other = (SparseBuffer("E", None, (axis,), int32, fill=fill) for fill in (0, 1))
    assert not alike_in(i, j, Env({i: Interval(0, 4)}))
    assert alike_in(i, j, Env({i: Interval(0, 4), j: Interval(0, 4)}))
    assert not alike_in(Load(B, (i,)), Load(C, (i,)), Env({}, {B: Interval(0, 4)}))
    assert not alike_in(Load(one, (i,)), Load(other, (i,)))


def test_where_it_was_written_counts_if_asked():
    here, there = ((i + 1).replace(span=Span("f.py", line)) for line in (1, 2))
    assert alike_in(here, there)
    assert pattern(here, NOTHING, spans=True)[0] != pattern(there, NOTHING, spans=True)[0]


def test_an_answer_is_found_once_and_forgotten_when_there_are_many(monkeypatch):
    asked = []

    @up_to_names
    def answer(question, env):
        asked.append(question)
        return len(asked)

    assert [answer(q, NOTHING) for q in (i + 1, j + 1, i + 2, i + 1)] == [1, 1, 2, 1]
    monkeypatch.setattr(alike, "ANSWERS", 2)
    assert [answer(q, NOTHING) for q in (i + 3, i + 1)] == [3, 4]


def test_a_comparison_is_decided_by_what_is_related_to_it_only():
    near = {k: (const(0), m), i: (const(0), k), j: (const(0), n)}
    assert decide(BinOp("<", i, m), near, NOTHING) is True
    assert decide(BinOp(">=", i, m), near, NOTHING) is False
    assert decide(BinOp("<", i, n), near, NOTHING) is None
    assert proof._related(near, BinOp("<", i, m)) == tuple(near.items())[:2]


# -- loops that follow each other --------------------------------------------------------------


def loop(name, *, width=8, shape=None):
    """A loop of names of its own, of which a good deal can be simplified."""
    var, out = Var(name, int64), Buffer(f"{name}_out", None, (m,), int64)
    inside = If(BinOp("<", var, const(width)), Store(out, (var * 1 + 0,), var // width))
    body = Alloc(Buffer(f"{name}_tile", None, shape, float32, "local"), inside) if shape else inside
    return For(var, const(0), const(8), body)


def test_loops_that_differ_in_names_are_simplified_each_with_its_own():
    loops = [loop("a"), loop("b"), loop("c", width=6), loop("d"), loop("e")]
    made = simplify_stmt(Seq(tuple(loops)))
    for before, after in zip(loops, made.body, strict=True):
        assert after.var is before.var
        assert structural_equal(after, simplify_stmt(before))
    assert made.body[1].body.buffer.name == "b_out"
    assert isinstance(made.body[2].body, If)


def test_loops_with_nothing_to_simplify_come_back_as_they_are():
    rows = [For(v, const(0), m, Store(B, (v,), Load(C, (v,)))) for v in (i, j, k, n)]
    stmts = Seq(tuple(rows))
    assert simplify_stmt(stmts) is stmts


def test_loops_have_buffers_of_their_own_where_their_shapes_are_simplified():
    loops = [loop(name, shape=(const(4) * 2,)) for name in "abcd"]
    made = simplify_stmt(Seq(tuple(loops)))
    assert [one.body.buffer.name for one in made.body] == [f"{name}_tile" for name in "abcd"]
    assert all(one.body.buffer.shape[0].value == 8 for one in made.body)


# -- programs ----------------------------------------------------------------------------------


def lowered(parts):
    func = BY_NAME["csrmm"].build()
    return lower(decompose(func, A=hyb(parts, [1, 4])).func, TARGET)


def test_more_parts_of_a_format_need_no_more_proofs(monkeypatch):
    two = lowered(2)
    proofs = []

    class Counted(injectivity._Collision):
        def is_impossible(self):
            proofs.append(self)
            return super().is_impossible()

    monkeypatch.setattr(injectivity, "_Collision", Counted)
    five = lowered(5)
    assert not proofs
    assert len(print_program(five.flat.funcs[0])) > 2 * len(print_program(two.flat.funcs[0]))


def test_a_program_compiles_without_the_steps_that_only_users_take():
    code = (
        "import sys, spcomp\n"
        "from spcomp.schedule.step import Trace\n"
        "kernel = spcomp.compile('y[i] = A[i, j] * x[j]', formats={'A': 'csr'})\n"
        "assert 'spcomp.schedule.primitives_blocks' not in sys.modules\n"
        """line = '{"func": "f", "step": "add_unit_loop", "target": "b"}'\n"""
        "assert str(Trace.from_json_lines(line)) == \"f: add_unit_loop('b')\"\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
