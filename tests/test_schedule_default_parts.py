"""The default schedule of the parts of a format: tiles and prefetches, whatever their width."""

from __future__ import annotations

import pytest

from spcomp.compiler.pipeline import lower
from spcomp.ir.access import Load
from spcomp.ir.stmt import For, Prefetch, Store
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import loops_of
from tests.layers import TARGET
from tests.test_fuse_kernels import WIDTHS, parts


def default(feat=64):
    return lower(parts().specialize({"feat": feat}), TARGET)


def loops_over_elements(func):
    """The loops over the elements of a row, one for each part: those that ask for rows ahead."""
    return [loop for loop in loops_of(func.body) if loop.var.name.startswith("j_")]


def test_each_part_reduces_in_registers_and_writes_a_row_once():
    (func,) = default().flat.funcs
    reductions = loops_over_elements(func)
    assert [int(loop.end.value) for loop in reductions] == list(WIDTHS)
    for loop in reductions:
        stored = {n.buffer.scope for n in walk(loop.body) if isinstance(n, Store)}
        assert stored == {"local"}
        assert all(n.buffer.name != "C" for n in walk(loop.body) if isinstance(n, Load))


def test_rows_that_may_repeat_are_tiled_too():
    names = [str(step) for _, step in default().trace]
    assert sum(name.startswith("cache_write") for name in names) == len(WIDTHS)


@pytest.mark.parametrize("feat", [32, 128])
def test_rows_of_the_operand_are_asked_for_ahead(feat):
    (func,) = default(feat).flat.funcs
    for loop in loops_over_elements(func):
        hints = [n for n in walk(loop.body) if isinstance(n, Prefetch)]
        assert [hint.buffer.name for hint in hints] == ["B"]


def test_chunks_stand_outside_and_run_every_part():
    (func,) = default().flat.funcs
    (chunks,) = (loop for loop in loops_of(func.body) if loop.kind == "parallel")
    inside = list(walk(chunks.body))
    assert all(loop in inside for loop in loops_over_elements(func))
    assert isinstance(chunks, For)
    assert dict(chunks.attrs)["grain"] == 1
