"""What a script means: each construct of the language, as the IR that the parser makes of it."""

from __future__ import annotations

import math
import runpy
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from spcomp import script as T
from spcomp.dtypes import bool_, dtype, float32, float64, int32, int64
from spcomp.ir.axis import Attach, Flatten, Fuse, Intersect, SparseBuffer
from spcomp.ir.axis import Union as UnionOf
from spcomp.ir.coordinate import CoordFunc, SpIter
from spcomp.ir.expr import BinOp, Cast, Load
from spcomp.ir.flat import FlatFunc
from spcomp.ir.module import HostAlloc, Launch, Module, Return, Scan
from spcomp.ir.position import Block, Merge, PosFunc
from spcomp.ir.printer import print_expr, print_program
from spcomp.ir.stmt import Alloc, Evaluate, Fail, If, Let, Prefetch, Store, While
from spcomp.ir.structural import structural_equal
from spcomp.ir.visitor import walk
from spcomp.script.parse import parse_function, parse_source
from tests.layers import reparsed

SCALE, RATE, FLAG, SIZES = 4, 0.5, True, SimpleNamespace(feat=16, rate=np.float32(0.25))

HEAD = """
@T.prim_func
def f(a: T.handle, b: T.handle, ptr: T.handle, idx: T.handle, m: T.int32, n: T.int32,
      nnz: T.int32, w: T.float32, big: T.int64, ok: T.bool) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (ptr, idx))
    N = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_buffer(b, (n,), "float32")
"""


def parse(*lines, head=HEAD):
    """Return the function *head* with *lines* for its body, having checked that it prints back."""
    body = "".join(f"    {line}\n" for line in lines)
    (func,) = parse_source(f"from spcomp import script as T\n{head}{body}", "test.py")
    assert structural_equal(reparsed(func, "printed"), func)
    return func


def statement(*lines):
    return parse(*lines).body


def value(text):
    stmt = statement(f"T.evaluate({text})")
    assert isinstance(stmt, Evaluate)
    return stmt.value


# -- names from outside, decorators, spans ---------------------------------------------------


def decorated(size, factor):
    @T.prim_func
    def scaled(a: T.handle) -> None:
        A = T.match_buffer(a, (size,), "float32")
        for i in range(size):
            A[i] = A[i] * factor * SCALE + RATE

    return scaled


def test_a_decorated_function_is_a_function_of_the_ir_with_spans_of_this_file():
    func = decorated(8, 0.25)
    assert isinstance(func, FlatFunc)
    assert func.span.file == __file__
    first = decorated.__code__.co_firstlineno
    assert (func.span.line, func.span.col) == (first + 2, 4)
    store = func.body.body
    assert (store.span.line, store.span.col) == (first + 5, 12)
    assert (store.value.lhs.rhs.span.line, store.value.span.col) == (first + 5, 19)
    assert all(node.span is not None for node in walk(func.body))


def test_closures_and_globals_are_literals():
    store = decorated(8, 0.25).body.body
    assert print_expr(store.value) == "A[i] * 0.25 * 4.0 + 0.5"
    assert decorated(3, 2).body.end.value == 3


def test_dotted_names_and_numpy_numbers_are_literals():
    @T.prim_func
    def dotted(a: T.handle) -> None:
        A = T.match_buffer(a, (SIZES.feat,), "float32")
        A[0] = A[1] * SIZES.rate + math.pi

    assert print_expr(dotted.body.value) == f"A[1] * 0.25 + {math.pi!r}"
    assert dotted.buffers[0].shape[0].value == 16


def test_strings_from_outside_stand_where_a_string_does():
    kind, name = "float64", "nest"

    @T.prim_func
    def typed(a: T.handle) -> None:
        I = T.dense_fixed(4)
        A = T.match_sparse_buffer(a, (I,), kind)
        with T.sp_iter([I], "S", name) as [i]:
            T.sp_iter_attr({"tag": name})
            A[i] = T.cast(i, kind)

    assert typed.buffers[0].dtype == float64
    assert (typed.body.name, typed.body.attrs) == ("nest", (("tag", "nest"),))


def test_an_enclosing_name_used_in_an_annotation_only_is_found():
    size = 5

    def local():
        @T.prim_func
        def sized(a: "T.Buffer[(size,), 'float32']") -> None:  # noqa: UP037
            A0 = T.min_value("float32")
            a[size - 1] = A0

        return sized

    assert local().buffers[0].shape[0].value == 5


def test_a_comment_or_string_at_the_margin_does_not_hide_the_source(tmp_path):
    text = """from spcomp import script as T

def nest():
    @T.prim_func
    def odd(a: T.handle) -> None:
        '''Describe
at the margin.'''
        A = T.match_buffer(a, (1,), "float32")
# at the margin
        A[0] = 1.0
    return odd
"""
    path = tmp_path / "margin.py"
    path.write_text(text)
    span = runpy.run_path(str(path))["nest"]().body.span
    assert (span.file, span.line, span.col) == (str(path), 10, 8)


def test_columns_count_characters_not_bytes():
    stmt = statement("B[0] = T.if_then_else(ok, 1.0, w)  # é", 'T.fail("é"); T.evaluate(m)')
    assert stmt.body[2].span.col == 4 + len('T.fail("é"); ')


def test_parse_function_takes_names_besides_its_own():
    def plain(a: T.handle) -> None:
        A = T.match_buffer(a, (unknown_here,), "float32")  # noqa: F821
        A[0] = 0.0

    assert parse_function(plain, {"unknown_here": 9}).buffers[0].shape[0].value == 9


def test_a_file_may_import_the_language_under_another_name_and_define_numbers():
    text = """
import spcomp.script as S
from spcomp import script
SIZE = 12

@S.prim_func
def f(a: script.Buffer[(SIZE,), "float32"]):
    for i in S.serial(SIZE):
        a[i] = script.float32(1)

def helper():
    return 1
"""
    (func,) = parse_source(text, "alias.py")
    assert func.body.end.value == 12


def test_importing_the_language_imports_no_parser():
    code = "import sys; from spcomp import script; print('spcomp.script.parse' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_every_exported_name_exists():
    from spcomp.script import syntax

    assert set(syntax.__all__) <= set(vars(T))
    assert repr(T.float32) == "T.float32"


# -- parameters and attributes ---------------------------------------------------------------


def test_parameters_have_the_types_of_their_annotations():
    names = ["int8", "uint16", "float16", "bfloat16", "float64", "bool", "handle"]
    params = ", ".join(f"p{k}: T.{name}" for k, name in enumerate(names))
    func = parse("pass", head=f"@T.prim_func\ndef f({params}):\n")
    assert [var.type for var in func.params] == [dtype(name) for name in names]


def test_buffer_annotations_take_any_parameter_and_any_spelling():
    head = """
@T.prim_func
def f(a: T.Buffer[(n, 4), "float64"], b: T.Buffer(n, "int32"), c: "T.Buffer[n]", n: T.int32):
"""
    func = parse("a[0, 1] = a[1, 0]", head=head)
    assert [b.dtype for b in func.buffers] == [float64, int32, float32]
    assert all(b.data is p for b, p in zip(func.buffers, func.params, strict=False))
    assert [len(b.shape) for b in func.buffers] == [2, 1, 1]


def test_attributes_are_kept_wherever_they_stand():
    func = parse(
        'T.func_attr({"global_symbol": "main", "tir.noalias": True})',
        'T.func_attr({"odd": {"k": [1, -2.5, None]}, "size": 2 * 3})',
        "pass",
    )
    wanted = {"global_symbol": "main", "tir.noalias": True, "odd": {"k": (1, -2.5, None)}}
    assert dict(func.attrs) == wanted | {"size": 6}


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (['with T.sp_iter([I], "S", "x") as [i]:', "    B[i] = 0.0"], CoordFunc),
        (["pass"], CoordFunc),  # declarations only: a format
        (["for i in range(4):", "    B[i] = 0.0"], PosFunc),
        (['with T.block("x"):', "    B[0] = 0.0"], PosFunc),
        (['T.func_attr({"sparse_tir_level": 2})', "B[0] = 0.0"], CoordFunc),
        (['T.func_attr({"sparse_tir_level": 1})', "pass"], PosFunc),
    ],
)
def test_the_level_follows_from_what_the_function_contains(lines, kind):
    func = parse(*lines)
    assert type(func) is kind
    assert func.attrs == ()


@pytest.mark.parametrize(
    ("shape", "kind"), [("(4,)", FlatFunc), ("(4, 4)", PosFunc), ("4", FlatFunc)]
)
def test_a_function_of_plain_arrays_is_flat_if_they_have_one_dimension(shape, kind):
    head = f'@T.prim_func\ndef f(a: T.handle):\n    A = T.match_buffer(a, {shape}, "float32")\n'
    assert type(parse("pass", head=head)) is kind


# -- axes and buffers ------------------------------------------------------------------------


def axis(text):
    return parse(f"X = {text}", "pass").axes[-1]


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("T.dense_fixed(m, 'int64')", {"kind": "dense_fixed", "idtype": int64}),
        ("T.dense_fixed(length=m, idtype=T.int64)", {"kind": "dense_fixed", "idtype": int64}),
        (
            "T.dense_variable(I, (n, nnz), ptr, 'int64')",
            {"kind": "dense_variable", "idtype": int64},
        ),
        ("T.dense_variable(I, n, ptr)", {"nnz": None}),
        ("T.dense_variable(I, (n, None), ptr)", {"nnz": None}),
        ("T.dense_variable(parent=I, shape=n, indptr=ptr, nnz=None)", {"nnz": None}),
        ("T.sparse_fixed(I, (n, 4), idx, sorted=False)", {"sorted": False, "unique": True}),
        ("T.sparse_fixed(I, [n, 4], indices=idx, unique=False)", {"unique": False}),
        ("T.sparse_variable(J, (n, nnz), (ptr, idx), 'int64', False)", {"sorted": False}),
        ("T.sparse_variable(I, n, [ptr, idx])", {"nnz": None}),
        ("T.sparse_variable(I, (n, None), (None, None))", {"nnz": None, "indptr": None}),
    ],
)
def test_axes_in_positional_and_keyword_form(text, fields):
    made = axis(text)
    assert {name: getattr(made, name) for name in fields} == fields


def test_a_keyword_nnz_counts_like_one_in_the_shape():
    assert axis("T.dense_variable(I, n, ptr, nnz=nnz)").nnz.name == "nnz"


def test_an_axis_whose_arrays_are_null_is_assembled():
    assert axis("T.sparse_variable(I, (n, None), (None, None))").is_assembled


def test_an_axis_may_name_the_buffer_matched_to_its_array():
    func = parse('P = T.match_buffer(ptr, (m,), "int32")', "X = T.dense_variable(I, n, P)", "pass")
    assert func.axes[-1].indptr is func.params[2]


def test_a_size_may_be_computed_from_parameters():
    assert print_expr(axis("T.dense_fixed(m * 2 + n // 3)").length) == "m * 2 + n // 3"


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ('T.match_sparse_buffer(b, [I], "float16")', {"scope": "global", "fill": 0}),
        (
            'T.match_sparse_buffer(b, (I,), "float32", -1.5, 1, "shared")',
            {"fill": -1.5, "extra_storage": 1, "scope": "shared"},
        ),
        (
            'T.match_sparse_buffer(b, axes=(I,), dtype="float32", fill=T.max_value("float32"))',
            {"fill": math.inf},
        ),
        (
            "T.match_sparse_buffer(b, (I, J, N), extra_storage=2)",
            {"extra_storage": 2, "dtype": float32},
        ),
        ('T.match_buffer(b, (m, n), "int8", strides=(n, 1))', {"dtype": dtype("int8")}),
        ('T.match_buffer(b, m, T.float64, scope="")', {"dtype": float64, "scope": "global"}),
    ],
)
def test_buffers_in_positional_and_keyword_form(text, fields):
    head = HEAD.replace('    B = T.match_buffer(b, (n,), "float32")\n', "")
    made = parse(f"X = {text}", "pass", head=head).buffers[-1]
    assert {name: getattr(made, name) for name in fields} == fields
    assert made.name == "X"


def test_a_buffer_may_take_the_name_of_its_handle():
    head = '@T.prim_func\ndef f(a: T.handle):\n    a = T.match_buffer(a, (4,), "float32")\n'
    func = parse("a[0] = a[1]", head=head)
    assert func.buffers[0].data is func.params[0]


def test_promises_about_values_are_kept():
    func = parse("T.assume_buffer_domain(B, [0, n - 1])", "pass")
    (promise,) = func.domains
    assert (promise.buffer.name, print_expr(promise.high)) == ("B", "n - 1")


def test_an_allocation_is_in_force_for_the_rest_of_the_list():
    body = statement(
        "B[0] = 1.0",
        'X = T.alloc_buffer((2 * n,), "float32", scope="local")',
        'Y = T.alloc_sparse_buffer([I,], "float32", "shared")',
        "X[0] = Y[0]",
    )
    store, alloc = body.body
    assert isinstance(store, Store)
    assert isinstance(alloc, Alloc)
    assert (alloc.buffer.data, alloc.buffer.scope) == (None, "local")
    assert alloc.body.buffer.scope == "shared"
    assert isinstance(alloc.body.buffer, SparseBuffer)
    assert isinstance(alloc.body.body, Store)


# -- types -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "printed", "kind"),
    [
        ("1", "1", "int64"),
        ("1.5", "1.5", "float64"),
        ("True", "True", "bool"),
        ("w + 1", "w + 1.0", "float32"),
        ("w * 0.1", "w * 0.1", "float32"),
        ("m + 1", "m + 1", "int32"),
        ("m + 0.5", "m + 0.5", "float64"),
        ("m + big", "m + big", "int64"),
        ("m * w", "m * w", "float32"),
        ("m / n", "m / n", "float64"),
        ("m / 2", "m / 2.0", "float64"),
        ("m // 2", "m // 2", "int32"),
        ("ok + 1", "ok + 1", "int64"),
        ("w * (1 / 4)", "w * 0.25", "float32"),
        ("2 ** 10 // 3 + 1 % 2", "342", "int64"),
        ("-(-3) + (not False)", "4", "int64"),
        ("~5 & 0xFF | 1 << 3 ^ 1", "251", "int64"),
        ("T.sqrt(64) * w", "8.0 * w", "float32"),
        ("T.max(1, 2, 3)", "3", "int64"),
        ("T.exp(m)", "T.exp(m)", "float64"),
        ("T.exp(w)", "T.exp(w)", "float32"),
        ('T.exp(w, dtype="float32")', 'T.cast(T.exp(w), "float32")', "float32"),
        ("T.abs(m)", "T.abs(m)", "int32"),
        ("T.pow(w, 2)", "T.pow(w, 2.0)", "float32"),
        ("w ** 2", "T.pow(w, 2.0)", "float32"),
        ("T.fma(w, m, 1)", "T.fma(w, m, 1.0)", "float32"),
        ("T.isnan(w)", "T.isnan(w)", "bool"),
        ("T.popcount(m)", "T.popcount(m)", "int32"),
        ("T.min(m, n, big)", "T.min(T.min(m, n), big)", "int64"),
        ("min(m, n)", "T.min(m, n)", "int32"),
        ("abs(w) + round(w) + pow(w, 2)", "T.abs(w) + T.round(w) + T.pow(w, 2.0)", "float32"),
        ("T.floordiv(m, 2) + T.floormod(m, 2)", "m // 2 + m % 2", "int32"),
        ("1.0 if ok else w", "T.if_then_else(ok, 1.0, w)", "float32"),
        ("T.Select(m < n, 1, 0)", "T.if_then_else(m < n, 1, 0)", "int64"),
        ("w * T.if_then_else(ok, 1, 0)", "w * T.if_then_else(ok, 1.0, 0.0)", "float32"),
        ("T.if_then_else(m, 1.0, 0)", "T.if_then_else(m, 1.0, 0.0)", "float64"),
        ("T.float32(1)", "T.float32(1.0)", "float32"),
        ('T.float32("nan")', 'T.float32("nan")', "float32"),
        ('T.float64("-inf")', 'T.min_value("float64")', "float64"),
        ("T.int64(m)", 'T.cast(m, "int64")', "int64"),
        ("T.int32(m)", "m", "int32"),
        ('T.cast(m, "float32")', 'T.cast(m, "float32")', "float32"),
        ('T.cast("float32", m)', 'T.cast(m, "float32")', "float32"),
        ('T.Cast("int32", w)', 'T.cast(w, "int32")', "int32"),
        ("T.cast(m, T.float32)", 'T.cast(m, "float32")', "float32"),
        ('T.cast(1, "float32")', "T.float32(1.0)", "float32"),
        ('T.cast(1.5, "int32")', 'T.cast(T.float64(1.5), "int32")', "int32"),
        (
            'T.cast(T.Select(ok, 1, 2.5), "int32")',
            'T.cast(T.if_then_else(ok, 1.0, T.float64(2.5)), "int32")',
            "int32",
        ),
        ('T.min_value("float32")', 'T.min_value("float32")', "float32"),
        ('T.max_value("int8")', "T.int8(127)", "int8"),
        ('T.min_value("uint8")', "T.uint8(0)", "uint8"),
        ('T.min_value("int32")', "T.int32(-2147483648)", "int32"),
        ('T.max_value("bool")', "True", "bool"),
        ("m < n and n < 3 or not ok", "m < n and n < 3 or not ok", "bool"),
        ("m and w", "m and w", "bool"),
        ("m < n and (ok and True)", "m < n and (ok and True)", "bool"),
        ("-m + ~n", "-m + ~n", "int32"),
        ("+m", "m", "int32"),
        ("B[m]", "B[m]", "float32"),
        ("A[m, n - 1]", "A[m, n - 1]", "float32"),
        ("T.ramp(m, 1, 4)", "T.ramp(m, 1, 4)", "int32x4"),
        (
            "B[T.ramp(m, 1, 4)] * 2",
            "B[T.ramp(m, 1, 4)] * T.broadcast(T.float32(2.0), 4)",
            "float32x4",
        ),
        ("T.broadcast(w, 2)", "T.broadcast(w, 2)", "float32x2"),
        ('T.cast(T.ramp(m, 1, 4), "float32")', 'T.cast(T.ramp(m, 1, 4), "float32x4")', "float32x4"),
        (
            'T.vector_reduce("max", T.broadcast(w, 2))',
            'T.vector_reduce("max", T.broadcast(w, 2))',
            "float32",
        ),
        ("T.masked_load(B, m, ok)", "T.masked_load(B, m, ok)", "float32"),
        ("T.lower_bound(B, 0, m, w)", "T.lower_bound(B, 0, m, w)", "int64"),
    ],
)
def test_an_expression_has_the_type_its_operands_call_for(text, printed, kind):
    made = value(text)
    assert print_expr(made) == printed
    assert str(made.dtype) == kind


def test_names_of_the_script_hide_those_of_python():
    stmt = statement("max = m + 1", "T.evaluate(max)")
    assert stmt.body.value is stmt.var


@pytest.mark.parametrize(
    ("kind", "text", "printed"),
    [
        ("float32", "m", "m"),
        ("float32", "0", "0.0"),
        ("int8", "-128", "-128"),
        ("int32", "big", "big"),
        ("float16", "w", "w"),
        ("bool", "m < n", "m < n"),
        ("int32", "ok", "ok"),
        ("int32", 'T.cast(w, "int32")', 'T.cast(w, "int32")'),
        ("int8", "T.int64(300)", "T.int64(300)"),
        ("float32", "T.if_then_else(ok, 1, 0)", "T.if_then_else(ok, 1.0, 0.0)"),
    ],
)
def test_a_stored_value_is_cast_to_the_type_of_its_buffer(kind, text, printed):
    head = HEAD.replace('b, (n,), "float32"', f'b, (n,), "{kind}"')
    func = parse(f"B[0] = {text}", head=head)
    assert str(func.body.value.dtype) == kind
    assert f"B[0] = {printed}\n" in print_program(func)


# -- statements ------------------------------------------------------------------------------


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


# -- sparse iterations -----------------------------------------------------------------------


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


# -- blocks and merges -----------------------------------------------------------------------


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


# -- modules ---------------------------------------------------------------------------------


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
