"""Merge lattices: plain data that prints."""

from __future__ import annotations

import doctest

import pytest

from spcomp.compiler.pipeline import lower
from spcomp.ir.position import Merge
from spcomp.ir.visitor import walk
from spcomp.passes.merge import lattice
from spcomp.passes.merge.lattice import Lattice
from spcomp.target import Target
from tests.layers import source


def test_a_lattice_prints_its_points():
    assert doctest.testmod(lattice).failed == 0
    three = Lattice("union", ("A", "B", "D"))
    assert str(three) == "{A, B, D} {A, B} {A, D} {A} {B, D} {B} {D}"


def test_what_is_left_when_operands_run_out_lies_below():
    three = Lattice("union", ("A", "B", "D"))
    assert three.below((True, False, True)) == ((True, False, False), (False, False, True))
    assert len(three.below((True, True, True))) == 6
    assert three.below((False, True, False)) == ()
    assert Lattice("intersect", ("A", "B")).below((True, True)) == ()


@pytest.mark.parametrize(("name", "kind"), [("csr_add", "union"), ("csr_mul", "intersect")])
def test_a_merge_has_a_case_for_each_point(name, kind):
    target = Target("cpu", "x86-64-v3", vector_bits=256)
    func = lower(source(name, "float32"), target).position.funcs[-1]
    (merge,) = (n for n in walk(func.body) if isinstance(n, Merge))
    assert tuple(case.present for case in merge.cases) == Lattice(kind, ("JA", "JB")).points
