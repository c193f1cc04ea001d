"""What the statements of a script mean: each as the IR that the parser makes of it."""

from __future__ import annotations

import pytest

from spcomp.dtypes import bool_, int64
from spcomp.ir.access import Load
from spcomp.ir.axis import Attach, Flatten, Fuse, Intersect
from spcomp.ir.axis import Union as UnionOf
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import BinOp, Cast
from spcomp.ir.position import Block, Merge
from spcomp.ir.printer.program import print_expr
from spcomp.ir.stmt import Alloc, Evaluate, Fail, If, Let, Prefetch, Store, While
from tests.script_helpers import HEAD, parse, statement


def test_a_new_name_is_a_let_around_the_rest():
    body = statement("x = w * 2", "y: T.int64 = m", "B[y] = x")
    assert isinstance(body, Let)
    assert body.body.var.type == int64
    assert isinstance(body.body.body, Store)


def test_a_scoped_let_and_a_scoped_allocation_end_with_their_suite():
    body = statement(
        "with T.let(w * 2) as x:",
        "    B[0] = x",
        'with T.alloc_buffer((1,), "float32", scope="local") as X:',
        "    X[0] = 1.0",
        "B[1] = 2.0",
    )
    assert [type(s) for s in body.body] == [Let, Alloc, Store]


@pytest.mark.parametrize("op", ["+", "-", "*", "/", "**"])
def test_an_augmented_assignment_loads_and_stores(op):
    store = statement(f"B[m] {op}= 2")
    load = store.value.args[0] if op == "**" else store.value.lhs
    assert isinstance(load, Load)
    assert load.indices == store.indices


def test_branches_chain_as_elif():
    stmt = statement("if ok:", "    pass", "elif m:", "    B[0] = 1.0", "else:", "    B[0] = 2.0")
    assert isinstance(stmt, If)
    assert isinstance(stmt.otherwise, If)
    assert stmt.otherwise.cond.dtype == bool_
    assert isinstance(stmt.otherwise.otherwise, Store)
    assert stmt.then.body == ()


def test_while_and_the_calls_that_stand_alone():
    body = statement(
        '"""a docstring"""',
        "while B[0] < w:",
        "    B[0] += 1",
        "T.evaluate(0)",
        'T.fail("no such element")',
        "T.prefetch(B, m + 16)",
        "T.store(B, m, w, mask=ok, atomic=True)",
        "T.store(A, (m, n), w)",
        "pass",
    )
    assert [type(s) for s in body.body] == [While, Evaluate, Fail, Prefetch, Store, Store]
    assert (body.body[4].atomic, body.body[5].atomic) == (True, False)
    assert len(body.body[5].indices) == 2


@pytest.mark.parametrize(
    ("loop", "kind", "bounds"),
    [
        ("T.serial(n)", "serial", ("0", "n")),
        ("T.serial(2, n)", "serial", ("2", "n")),
        ("T.serial(begin=2, end=n)", "serial", ("2", "n")),
        ("range(n)", "serial", ("0", "n")),
        ("range(1, n)", "serial", ("1", "n")),
        ("T.parallel(n)", "parallel", ("0", "n")),
        ("T.vectorized(8)", "vectorized", ("0", "8")),
        ("T.unroll(0, 4)", "unroll", ("0", "4")),
        ('T.thread_binding(8, "threadIdx.x")', "bound", ("0", "8")),
        ('T.thread_binding(0, 8, thread="threadIdx.x")', "bound", ("0", "8")),
        ('T.thread_binding(0, 8, "threadIdx.x")', "bound", ("0", "8")),
    ],
)
def test_loops_of_every_kind(loop, kind, bounds):
    stmt = statement(f"for i in {loop}:", "    B[i] = 0.0")
    assert (stmt.kind, stmt.var.dtype, stmt.end.dtype) == (kind, int64, int64)
    begin, end = (e.value if isinstance(e, Cast) else e for e in (stmt.begin, stmt.end))
    assert (print_expr(begin), print_expr(end)) == bounds
    assert stmt.thread == ("threadIdx.x" if kind == "bound" else "")


def test_a_grid_is_nested_loops_and_annotations_are_kept():
    stmt = statement("for i, j in T.grid(m, 4):", "    A[i, j] = 0.0")
    assert (stmt.var.name, stmt.body.var.name) == ("i", "j")
    one = statement("for i in T.grid(m):", "    B[i] = 0.0")
    assert isinstance(one.body, Store)
    stmt = statement('for i in T.serial(4, annotations={"pragma_unroll": 1}):', "    pass")
    assert stmt.attrs == (("pragma_unroll", 1),)


def test_an_underscore_is_a_variable_nobody_reads():
    stmt = statement("for _ in range(3):", "    for _ in range(2):", "        B[0] += 1.0")
    assert stmt.var is not stmt.body.var


def test_an_iteration_has_its_parts():
    it = statement(
        'with T.iter([I, J], "SR", "x") as [i, j]:',
        '    T.sp_iter_attr({"tag": 1})',
        "    with T.init():",
        "        B[i] = 0.0",
        "    B[i] = B[i] + A[i, j]",
    )
    assert isinstance(it, SpIter)
    assert (it.kinds, it.name, it.attrs) == ("SR", "x", (("tag", 1),))
    assert isinstance(it.init, Store)
    assert it.vars[1].dtype == int64


def test_an_iteration_without_a_name_takes_that_of_the_function():
    assert statement('with T.sp_iter([I], "S") as i:', "    B[i] = 0.0").name == "f"


def test_iterations_nest_and_siblings_share_names():
    outer = statement(
        'with T.sp_iter([I], "S", "x") as [i]:',
        '    with T.sp_iter([J], "R", "y") as [j]:',
        "        B[i] += A[i, j]",
        '    with T.sp_iter([J], "S", "z") as [j]:',
        "        A[i, j] = A[i, j] / B[i]",
    )
    assert [inner.name for inner in outer.body.body] == ["y", "z"]


@pytest.mark.parametrize(
    ("domains", "bound", "kind"),
    [
        ("T.fuse(I, J)", "i, j", Fuse),
        ("T.flatten(I, J)", "p", Flatten),
        ("I, T.attach(J, I)", "i, j", Attach),
        ("I, T.union(J, N)", "i, j", UnionOf),
        ("I, T.intersect(J, N)", "i, j", Intersect),
    ],
)
def test_domains_combine_axes(domains, bound, kind):
    names = bound.split(", ")
    it = statement(
        f'with T.sp_iter([{domains}], "{"S" * len(names)}", "x") as [{bound}]:',
        f"    T.evaluate({names[-1]})",
    )
    assert type(it.domains[-1]) is kind


def test_an_index_is_read_from_a_buffer():
    head = HEAD.replace('b, (n,), "float32"', 'b, (n,), "int32"')
    func = parse("A[B[0], B[B[1]]] = 1.0", head=head)
    assert all(isinstance(index, Load) for index in func.body.indices)


def test_a_block_has_its_parts_in_any_order():
    block = statement(
        "for i, j in T.grid(m, n):",
        '    with T.block("x"):',
        "        vi = T.axis.spatial((0, m), i)",
        "        vj = T.axis.reduce(n, j)",
        "        B[vi] = B[vi] + A[vi, vj]",
        "        with T.init():",
        "            B[vi] = 0.0",
        "        T.reads([A[vi, vj], B[vi]])",
        "        T.writes(B[vi])",
        "        T.where(vi < vj)",
        '        T.block_attr({"a": 1})',
        '        T.block_attr({"b": 2})',
    ).body.body
    assert isinstance(block, Block)
    assert [(it.kind, print_expr(it.extent.value)) for it in block.iters] == [
        ("S", "m"),
        ("R", "n"),
    ]
    assert (len(block.reads), len(block.writes), block.attrs) == (2, 1, (("a", 1), ("b", 2)))
    assert isinstance(block.where, BinOp)
    assert isinstance(block.init, Store)
    assert isinstance(block.body, Store)


def test_remap_takes_the_extents_of_the_loops():
    block = statement(
        "for i in T.serial(m):",
        "    for j in T.serial(2, n):",
        "        with T.block():",
        '            vi, vj = T.axis.remap("SR", [i, j])',
        "            B[vi] = A[vi, vj]",
    ).body.body
    first, second = block.iters
    assert (first.kind, second.kind) == ("S", "R")
    assert isinstance(first.extent, Cast)
    assert print_expr(second.extent) == "n - T.int64(2)"


@pytest.mark.parametrize(
    ("text", "begins", "extents"),
    [
        ("A[i, 0:n]", ["i", "0"], ["1", 'T.cast(n, "int64")']),
        ("A[i, i : i + n]", ["i", "i"], ["1", 'T.cast(n, "int64")']),
        ("A[i, i * 2 : i * 2 + (i + 1)]", ["i", "i * 2"], ["1", "i + 1"]),
        ("A[i, i:n]", ["i", "i"], ["1", "n - i"]),
        ("A[:, 1]", ["0", "1"], ['T.cast(m, "int64")', "1"]),
        ("B[i:]", ["i"], ["n - i"]),
        ("B[:]", ["0"], ['T.cast(n, "int64")']),
    ],
)
def test_regions_have_begins_and_extents(text, begins, extents):
    block = statement("for i in range(m):", "    with T.block():", f"        T.reads({text})").body
    (region,) = block.reads
    assert [print_expr(e) for e in region.begins] == begins
    assert [print_expr(e) for e in region.extents] == extents


def test_an_absolute_position_leaves_its_ancestors_open():
    block = statement("with T.block():", "    T.reads(A[_, m])", "    A[_, m] = A[_, n]")
    assert block.reads[0].begins[0] is None
    assert block.body.indices[0] is None


def test_a_merge_has_cursors_and_cases():
    merge = statement(
        'with T.merge("intersect", T.cursor(B, 0, m), T.cursor(None, m, n)) as [c, p, q]:',
        "    with T.case(1, True):",
        "        B[p] = B[q]",
        "    with T.case(0, 1):",
        "        pass",
    )
    assert isinstance(merge, Merge)
    assert [case.present for case in merge.cases] == [(True, True), (False, True)]
    assert merge.cursors[1].indices is None
    assert merge.cases[0].body.indices[0] is merge.cursors[0].pos
