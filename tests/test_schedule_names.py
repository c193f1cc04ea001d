"""Names that a schedule hands out mean one thing, whatever the program called it."""

from __future__ import annotations

import numpy as np
import pytest

import spcomp
from spcomp.errors import ScheduleError
from spcomp.ir.interpret.program import interpret
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import Alloc, For
from spcomp.ir.verify.program import verify
from spcomp.ir.visitor import statements
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.steps.loops.loops import Parallel
from spcomp.script.parse import parse_source
from tests.corpus_base import fresh
from tests.layers import source
from tests.programs import PROGRAMS

TWO = """from spcomp import script as T

@T.prim_func
def two(a: T.Buffer[(128,), "float32"], b: T.Buffer[(64,), "float32"]) -> None:
    for i in T.serial(128):
        x = T.alloc_buffer((4,), "float32", scope="local")
        for j in T.serial(4):
            with T.block("fill"):
                v = T.axis.spatial(4, j)
                x[v] = 1.0
        with T.block("first"):
            v = T.axis.spatial(128, i)
            a[v] = x[2]
    for i in T.serial(64):
        x = T.alloc_buffer((4,), "float32", scope="local")
        for j in T.serial(4):
            with T.block("fill"):
                v = T.axis.spatial(4, j)
                x[v] = 2.0
        with T.block("second"):
            v = T.axis.spatial(64, i)
            b[v] = x[2]
"""
SINGLE = [program for program in PROGRAMS if not program.assembles]


def two() -> Schedule:
    return Schedule(parse_source(TWO, "two.py")[0])


def refused(act):
    with pytest.raises(ScheduleError) as caught:
        act()
    return caught.value


def called(func, kind):
    nodes = [n for n in statements(func.body) if isinstance(n, kind)]
    return [
        n.var.name if kind is For else n.buffer.name if kind is Alloc else n.name for n in nodes
    ]


def test_the_loops_of_a_block_are_those_around_it_whatever_others_are_called():
    for block, extent in (("first", 32), ("second", 16)):
        schedule = two()
        (loop,) = schedule.get_loops(block)
        split = schedule.split(loop, 4)
        (outer, _) = split.get_loops(block)
        (made,) = (
            n for n in statements(split.func.body) if getattr(n, "var", 0) and n.var.name == outer
        )
        assert f"T.serial({extent})" in split.func.script()
        assert isinstance(made, For)
        assert made.end.value == extent


def test_each_of_several_things_of_one_name_gets_a_number():
    schedule = two()
    assert schedule.loops == ("i_1", "j_1", "i_2", "j_2")
    assert called(schedule.func, Block) == ["fill_1", "first", "fill_2", "second"]
    assert called(schedule.func, Alloc) == ["x_1", "x_2"]
    assert Schedule(schedule.func).func is schedule.func


def test_a_name_that_several_things_share_is_refused_with_their_lines():
    error = refused(lambda: two().split("i", 4))
    assert error.message == "split('i', 4): no loop 'i' in two"
    assert error.hint == "loops are i_1 (line 5), j_1, i_2 (line 14), j_2"
    error = refused(lambda: two().get_block("fill"))
    assert error.hint == "blocks are fill_1 (line 8), first, fill_2 (line 17), second"
    error = refused(lambda: two().compact("x", "i_1"))
    assert error.hint == "local buffers are x_1 (line 6), x_2 (line 15)"


def test_a_step_on_a_program_that_is_in_no_schedule_takes_no_nest_by_chance():
    (func,) = parse_source(TWO, "two.py")
    error = refused(lambda: Parallel("i").apply(func))
    assert error.message == "'i' is the name of 2 loops"
    assert error.hint == "loops are i (line 5), j, i (line 14), j"


def test_a_number_is_none_that_the_program_uses():
    text = TWO.replace("x[2]", "x[2] + T.float32(i_1)").replace("b: T", "i_1: T.int32, b: T")
    assert Schedule(parse_source(text, "two.py")[0]).loops == ("i_2", "j_1", "i_3", "j_2")


def test_the_default_schedule_of_such_a_program_can_be_replayed():
    (func,) = parse_source(TWO, "two.py")
    kernel = spcomp.compile(func)
    assert len(kernel.trace)
    replayed = Schedule(func).replay(kernel.trace)
    assert replayed.func.script() == kernel.stage("position")
    assert spcomp.compile(func, trace=kernel.trace).stage("flat") == kernel.stage("flat")
    a, b = np.zeros(128, "float32"), np.zeros(64, "float32")
    kernel(a, b)
    assert (a == 1).all()
    assert (b == 2).all()


class _Alike(Rewriter):
    """Gives all loops one name, all blocks and all local buffers."""

    def visit_For(self, loop: For) -> Node:
        var = loop.var.replace(name="i")
        self.values = {**getattr(self, "values", {}), loop.var: var}
        return self.visit_Node(loop.replace(var=var))

    def visit_Var(self, var):
        return self.values.get(var, var)

    def visit_Block(self, block: Block) -> Node:
        return self.visit_Node(block.replace(name="b"))

    def visit_Buffer(self, buffer) -> Node:
        return self.visit_Node(buffer.replace(name="x"))


@pytest.mark.filterwarnings("ignore::spcomp.errors.SpcompWarning")
@pytest.mark.parametrize("program", SINGLE, ids=lambda p: p.name)
def test_a_program_whose_loops_are_all_called_alike_is_scheduled_and_means_the_same(program):
    func = Schedule(source(program.name, program.dtypes[0])).lower_sparse_iter().func
    alike = func.replace(body=_Alike().rewrite(func.body))
    schedule = Schedule(alike, lowered=True)
    verify(schedule.func, "numbering")
    kernel = spcomp.compile(schedule)
    inputs = program.inputs("random", program.dtypes[0])
    args = fresh(inputs)
    with np.errstate(all="ignore"):
        results = interpret(schedule.func, args)
    program.check(inputs, {**args, **results}, program.dtypes[0])
    args = fresh(inputs)
    kernel(*(args[param.name] for param in func.params))
    program.check(inputs, args, program.dtypes[0], "compiled")
