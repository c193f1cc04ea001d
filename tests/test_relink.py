"""Rebuilding functions on other variables, axes and buffers; specialisation."""

import numpy as np
import pytest

from spcomp.dtypes import bfloat16, bool_, float16, float32, float64, handle, int32, int64, uint8
from spcomp.errors import ArgumentError
from spcomp.ir.access import Load, Search
from spcomp.ir.axis import Axis, Buffer, BufferDomain, Fuse, SparseBuffer
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import Const, Var, const
from spcomp.ir.module import HostAlloc, Launch, Module
from spcomp.ir.node import Node
from spcomp.ir.position import Block, BlockIter, Case, Cursor, Merge, Region
from spcomp.ir.program import CoordFunc, PosFunc
from spcomp.ir.rewrite import relink
from spcomp.ir.specialize import specialize, specialize_module
from spcomp.ir.stmt import Alloc, For, Prefetch, Seq, Store
from spcomp.ir.structural import structural_equal
from spcomp.ir.visitor import walk


def program() -> CoordFunc:
    m, n, nnz = (Var(name, int32) for name in ("m", "n", "nnz"))
    a, c, p, q = (Var(name, handle) for name in "acpq")
    alpha, flag = Var("alpha", float32), Var("flag", bool_)
    rows = Axis("I", "dense_fixed", m)
    cols = Axis("J", "sparse_variable", n, rows, nnz, indptr=p, indices=q)
    A = SparseBuffer("A", a, (rows, cols), float32)
    C = SparseBuffer("C", c, (rows,), float32)
    i, j = Var("i", int64), Var("j", int64)
    body = Store(C, (i,), Load(C, (i,)) + Load(A, (i, j)) * alpha)
    it = SpIter((i, j), (Fuse((rows, cols)),), "SR", "it", None, body)
    params = (a, c, p, q, m, n, nnz, alpha, flag)
    domain = BufferDomain(A, const(0), n)
    return CoordFunc("f", params, (rows, cols), (A, C), it, (domain,))


def test_nothing_to_replace_gives_the_same_object():
    func = program()
    assert relink(func) is func
    assert relink(func, vars={Var("x", int64): const(1)}) is func


def test_a_replaced_axis_changes_whatever_refers_to_it():
    func = program()
    rows = func.axes[0]
    new = relink(func, axes={rows: rows.replace(name="R")})
    assert [axis.name for axis in new.axes] == ["R", "J"]
    row, col = new.axes
    assert col.parent is row
    assert new.buffers[0].axes == (row, col)
    assert new.body.domains[0].axes == (row, col)
    assert new.body.body.buffer is new.buffers[1]
    assert new.domains[0].buffer is new.buffers[0]
    assert new.body.body.value.lhs.buffer is new.buffers[1]


def test_what_does_not_refer_to_it_stays_the_same_object():
    func = program()
    cols, C = func.axes[1], func.buffers[1]
    new = relink(func, axes={cols: cols.replace(name="K")})
    assert new.axes[0] is func.axes[0]
    assert new.buffers[1] is C


def test_a_parameter_renamed_is_renamed_everywhere_and_keeps_its_place():
    func = program()
    mapping: dict[Var, Var] = {p: p.replace(name=p.name + "_") for p in func.params}
    new = relink(func, vars=mapping)
    assert [p.name for p in new.params] == [p.name + "_" for p in func.params]
    assert structural_equal(new, func)
    old = set(func.params)
    assert not [node for node in walk(new.body) if node in old]


def test_every_reference_of_position_and_flat_statements_is_replaced():
    x, i, j, p = (Var(name, int64) for name in "xijp")
    old, new = (Buffer(name, None, (x,), int32) for name in ("old", "new"))
    body = Store(old, (i,), Search("lower", old, const(0), x, const(1)))
    block = Block("b", (BlockIter(i, x, x),), (Region(old, (i,), (x,)),), (), None, body)
    merge = Merge("union", j, (Cursor(p, old, x, x),), (Case((True,), Prefetch(old, j)),))
    func = PosFunc("f", (x,), (), (), Alloc(old, For(Var("k", int64), x, x, Seq((block, merge)))))
    result = relink(func, buffers={old: new}, vars={p: Var("p2", int64)})
    used = [getattr(node, "buffer", new) for node in walk(result)]
    assert all(buffer is new for buffer in used)
    cursor = next(node for node in walk(result) if isinstance(node, Cursor))
    assert cursor.indices is new
    assert cursor.pos.name == "p2"


def test_specialize_fixes_parameters_by_name_and_by_variable():
    func = program()
    new = specialize(func, {"m": 4, func.params[7]: 0.5})
    assert [p.name for p in new.params] == ["a", "c", "p", "q", "n", "nnz", "flag"]
    length = new.axes[0].length
    assert isinstance(length, Const)
    assert (length.value, length.type) == (4, int32)
    constants = [node for node in walk(new) if isinstance(node, Const)]
    assert [(c.value, c.type) for c in constants] == [(0.5, float32)]


def test_specialize_takes_numpy_scalars():
    assert (
        specialize(program(), {"m": np.int64(4), "alpha": np.float32(2)}).axes[0].length.value == 4
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("m", 2**40), ("m", 1.5), ("m", True), ("m", "4"), ("flag", 2), ("alpha", 1e60)),
        *(("alpha", "1"), ("alpha", None), ("alpha", True)),
    ],
)
def test_a_value_that_does_not_fit_is_refused(name, value):
    with pytest.raises(ArgumentError, match=f"cannot specialize '{name}'.* is no "):
        specialize(program(), {name: value})


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [
        *((uint8, 255, 256), (uint8, 0, -1), (int64, 2**63 - 1, 2**63)),
        *((float16, 65504, 65536), (bfloat16, 3e38, 3.4e38), (float64, 1e308, "x")),
        *((float32, float("inf"), 2**200), (bool_, True, 3)),
    ],
)
def test_the_limits_of_each_dtype(dtype, good, bad):
    x = Var("x", dtype)
    func = CoordFunc("f", (x,), (), (), Seq(()))
    assert specialize(func, {"x": good}).params == ()
    with pytest.raises(ArgumentError):
        specialize(func, {"x": bad})


@pytest.mark.parametrize("name", ["a", "z"])
def test_only_scalar_parameters_can_be_specialized(name):
    with pytest.raises(ArgumentError) as caught:
        specialize(program(), {name: 1})
    assert "scalar parameters: m, n, nnz, alpha, flag" in str(caught.value)


def test_a_module_is_specialized_in_every_phase_and_on_the_host():
    func = program()
    m = func.params[4]
    other = Var("m", int32)
    second = PosFunc("g", (other,), (), (), For(Var("i", int64), const(0), other, Seq(())))
    array = Buffer("P", None, (m + 1,), int32)
    module = Module(func, (second,), (HostAlloc(array), Launch("g")))
    new = specialize_module(module, {"m": 3})
    assert new.funcs[0].params == ()
    assert "m" not in [p.name for p in new.source.params]
    op = new.host[0]
    assert isinstance(op, HostAlloc)
    assert not [node for node in walk(op.buffer.shape[0]) if isinstance(node, Var)]
    assert isinstance(new.funcs[0].body, Node)
