"""Structural equality and content hash."""

import time

import pytest

from spcomp.dtypes import float32, handle, int32, int64
from spcomp.errors import Span
from spcomp.ir.access import Load
from spcomp.ir.analysis.names import Names
from spcomp.ir.arith.linear import same_value
from spcomp.ir.axis import Attach, Axis, BufferDomain, Fuse, SparseBuffer, Union
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import BinOp, Const, Expr, Var, cast, const
from spcomp.ir.module import HostAlloc, Launch, Module, Scan, single
from spcomp.ir.program import CoordFunc
from spcomp.ir.stmt import For, Store, seq
from spcomp.ir.structural import content_hash, expr_equal, fingerprint, structural_equal
from spcomp.ir.visitor import walk
from spcomp.passes.merge.blend import blend


def var(name: str, dtype=int64) -> Var:
    return Var(name, dtype)


def spmv(names: str = "mnij", axis: str = "J", span: Span | None = None, **changes) -> CoordFunc:
    m, n, i, j = (var(name) for name in names)
    a, b, c, p, q = (var(name, handle) for name in "abcpq")
    rows = Axis("I", "dense_fixed", m)
    cols = Axis(axis, "sparse_variable", n, rows, n, indptr=p, indices=q)
    dense = Axis("J_", "dense_fixed", n)
    A = SparseBuffer("A", a, (rows, cols), float32)
    B = SparseBuffer("B", b, (dense,), float32)
    C = SparseBuffer("C", c, (rows,), float32)
    body = Store(C, (i,), Load(C, (i,)) + Load(A, (i, j)) * Load(B, (j,)), span=span)
    init = Store(C, (i,), const(0, float32))
    it = SpIter((i, j), (rows, cols), "SR", "spmv", init, body)
    fields = {"name": "f", "params": (a, b, c, p, q, m, n), "axes": (rows, cols, dense)}
    return CoordFunc(**(fields | {"buffers": (A, B, C), "body": it} | changes))


def same(a: object, b: object) -> bool:
    equal = structural_equal(a, b)
    assert structural_equal(b, a) == equal
    assert (content_hash(a) == content_hash(b)) == equal
    return equal


def test_names_of_variables_and_spans_do_not_count():
    assert same(spmv(), spmv("wxyz", span=Span("k.py", 3)))


def test_names_of_functions_axes_and_iterations_count():
    assert not same(spmv(), spmv(name="g"))
    assert not same(spmv(), spmv(axis="Q"))
    func = spmv()
    assert not same(func, func.replace(body=func.body.replace(name="other")))


def test_renaming_is_a_bijection_in_both_directions():
    x, y, z = var("x"), var("y"), var("z")
    assert same(x + y, y + z)
    assert not same(x + y, z + z)
    assert not same(x + y + x, x + y + y)


def test_dtypes_and_operators_and_constants_count():
    x, narrow = var("x"), var("x", int32)
    assert not same(x, narrow)
    assert not same(x + 1, x - 1)
    assert not same(x + 1, x + 2)
    assert not same(Const(1, int64), Const(1, int32))


@pytest.mark.parametrize(("a", "b"), [(0.0, -0.0), (1, 1.0), (True, 1), (1.0, float("inf"))])
def test_constants_that_python_mixes_up_differ(a, b):
    assert not same(Const(a, float32), Const(b, float32))


def test_not_a_number_equals_itself():
    assert same(Const(float("nan"), float32), Const(float("nan"), float32))


def test_which_of_two_like_axes_is_meant_counts():
    m = var("m")
    i, j = Axis("I", "dense_fixed", m), Axis("J", "dense_fixed", m)
    assert same(Fuse((i, j)), Fuse((i, j)))
    assert not same((i, j, Fuse((i, j))), (i, j, Fuse((j, i))))
    assert not same(Fuse((i, j)), Union((i, j)))
    assert not same((i, j, Attach(i, j)), (i, j, Attach(i, i)))


def test_one_axis_used_twice_differs_from_two_equal_axes():
    m = var("m")
    i, twin = Axis("I", "dense_fixed", m), Axis("I", "dense_fixed", m)
    assert same((i, i), (twin, twin))
    assert not same((i, i), (i, twin))


def test_attributes_and_domains_count():
    func = spmv()
    assert not same(func, func.with_attr("noalias", True))
    assert same(func.with_attr("a", {"b": [1, 2]}), func.with_attr("a", {"b": [1, 2]}))
    assert not same(func.with_attr("a", {"b": [1, 2]}), func.with_attr("a", {"b": [1, 3]}))
    buffer = func.buffers[0]
    low, high = (BufferDomain(buffer, const(0), const(high)) for high in (1, 2))
    assert not same(func.replace(domains=(low,)), func.replace(domains=(high,)))


def test_strings_cannot_be_taken_for_structure():
    assert not same(("a", "b"), ("a\n'b'",))
    assert not same((("a",), "b"), (("a", "b"),))


def test_a_module_compares_functions_apart_and_parameters_by_name():
    assert same(single(spmv()), single(spmv()))
    assert not same(single(spmv()), single(spmv("wxyz")))
    shared, other = spmv(), spmv()
    launch = (Launch("f"),)
    assert same(Module(shared, (shared,), launch), Module(shared, (other,), launch))
    assert not same(Module(shared, (shared,), launch), Module(shared, (shared,), launch * 2))


def test_the_host_program_of_a_module_counts():
    func = spmv()
    size, other = func.params[5], func.params[6]
    arrays = [HostAlloc(SparseBuffer("P", None, func.axes[:1], int32), fill) for fill in (0, 1)]
    modules = [Module(func, (func,), (array, Scan(array.buffer))) for array in arrays]
    assert not same(*modules)
    by_size = [Module(func, (func,), (Launch("f"), n)) for n in (size, other)]
    assert not same(*by_size)


def test_the_hash_is_stable():
    x = var("x")
    assert content_hash(x + 1) == content_hash(var("y") + 1)
    assert content_hash(x + 1) == (
        "90cbe6e58dc4da15f93f2becef1c2a1432dde5930c51eaf54ba188022834d933"
    )


def test_hashing_is_linear_and_fast():
    x = var("x")
    total: Expr = x
    for _ in range(5000):
        total = BinOp("+", total, x)  # deeper than Python's recursion limit
    loop = seq(*[For(var("i"), const(0), total, Store(spmv().buffers[2], (x,), x))])
    start = time.perf_counter()
    content_hash(loop)
    assert time.perf_counter() - start < 0.25


ALIKE = [
    (lambda x, y: x + 1, lambda x, y: x + 1, True),
    (lambda x, y: x + 1, lambda x, y: y + 1, False),
    (lambda x, y: x + y, lambda x, y: y + x, False),
    (lambda x, y: Load(C, (x, None)), lambda x, y: Load(C, (x, None)), True),
    (lambda x, y: Load(C, (x, None)), lambda x, y: Load(C.replace(name="C"), (x, None)), False),
    (lambda x, y: Const(0.0, float32), lambda x, y: Const(-0.0, float32), False),
    (lambda x, y: Const(float("nan"), float32), lambda x, y: Const(float("nan"), float32), True),
    (lambda x, y: Const(1, int64), lambda x, y: Const(1, int32), False),
    (lambda x, y: Const(1, int64), lambda x, y: Const(True, int64), False),
    (lambda x, y: x, lambda x, y: None, False),
]
C = SparseBuffer("C", None, (Axis("I", "dense_fixed", const(4)),), float32)


@pytest.mark.parametrize(("first", "second", "equal"), ALIKE)
def test_expressions_are_equal_and_have_one_fingerprint_over_the_very_same_names(
    first, second, equal
):
    x, y = var("x"), var("y")
    a, b = first(x, y), second(x, y)
    assert expr_equal(a, b) is expr_equal(b, a) is equal
    assert (fingerprint(a) == fingerprint(b)) is equal
    assert (fingerprint((C, (a, None))) == fingerprint((C, (b, None)))) is equal


def test_stores_of_zeros_of_either_sign_are_not_one():
    stores = [Store(C, (const(0),), Const(value, float32)) for value in (0.0, -0.0)]
    blended = blend(stores, var("case"), Names(spmv()))
    assert {str(n.value) for n in walk(blended) if isinstance(n, Const)} >= {"0.0", "-0.0"}


VALUES = [
    (lambda x, y: x + y, lambda x, y: y + x, True),
    (lambda x, y: (x + 1) * 4 - x * 4, lambda x, y: const(4), True),
    (lambda x, y: (x * 8 + y * 4) // const(4), lambda x, y: (x * 8 + y * 4) // const(4), True),
    (lambda x, y: x // const(4) * 4 + x % const(4), lambda x, y: x, True),
    (lambda x, y: x, lambda x, y: y, False),
    (lambda x, y: x * 2 // const(2), lambda x, y: x, False),  # x * 2 may wrap around
    (lambda x, y: Load(C, (x + y,)), lambda x, y: Load(C, (y + x,)), True),
    (lambda x, y: cast(x, int32), lambda x, y: x, False),
    (lambda x, y: Const(0.0, float32), lambda x, y: Const(-0.0, float32), False),
    (lambda x, y: x, lambda x, y: None, False),
]


@pytest.mark.parametrize(("first", "second", "equal"), VALUES)
def test_values_are_equal_where_that_is_proved(first, second, equal):
    x, y = var("x"), var("y")
    a, b = first(x, y), second(x, y)
    assert same_value(a, b) is same_value(b, a) is equal
    assert not expr_equal(a, b) or equal
