"""What a script declares: names from outside, parameters, axes and buffers, their spans."""

from __future__ import annotations

import math
import runpy
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from spcomp import script as T
from spcomp.dtypes import dtype, float32, float64, int32, int64
from spcomp.errors import ScriptError
from spcomp.ir.axis import SparseBuffer
from spcomp.ir.printer.program import print_expr
from spcomp.ir.program import CoordFunc, FlatFunc, PosFunc
from spcomp.ir.stmt import Alloc, Store
from spcomp.ir.visitor import walk
from spcomp.script.parse import parse_function, parse_source
from tests.script_helpers import HEAD, parse, statement

COUNT = np.int32(6)
SCALE, RATE, FLAG, SIZES = 4, 0.5, True, SimpleNamespace(feat=16, rate=np.float32(0.25))


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


def test_names_that_have_no_value_yet_are_unknown():
    def early():
        @T.prim_func
        def scaled(a: T.handle) -> None:
            A = T.match_buffer(a, (1,), "float32")
            A[0] = later

        later = 2.0
        return scaled, later

    with pytest.raises(ScriptError, match="unknown name 'later'"):
        early()


@T.prim_func
def at_the_margin(a: T.handle) -> None:
    A = T.match_buffer(a, (COUNT,), "float32")
    A[0] = 0.0


def test_a_function_of_a_module_and_a_numpy_integer():
    assert at_the_margin.span.col == 0
    assert at_the_margin.buffers[0].shape[0].value == 6


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
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"


def test_every_exported_name_exists():
    from spcomp.script import syntax

    assert set(syntax.__all__) <= set(vars(T))
    assert repr(T.float32) == "T.float32"


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
    expected = {"global_symbol": "main", "tir.noalias": True, "odd": {"k": (1, -2.5, None)}}
    assert dict(func.attrs) == expected | {"size": 6}


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


@pytest.mark.parametrize(
    "line",
    ['B = T.match_buffer(b, (2,), "int32", strides=(2,))', 'B = T.alloc_buffer((2, 2), "int32")'],
)
def test_views_and_local_arrays_of_several_dimensions_have_no_place_in_flat_space(line):
    head = "@T.prim_func\ndef f(a: T.handle, b: T.handle):\n"
    head += '    A = T.match_buffer(a, (4,), "int32")\n'
    assert type(parse(line, "A[0] = 1", head=head)) is PosFunc
    flat = '    T.func_attr({"sparse_tir_level": 0})\n'
    with pytest.raises(ScriptError, match="no meaning in a function of flat space"):
        parse(line, "A[0] = 1", head=head + flat)


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
    result = axis(text)
    assert {name: getattr(result, name) for name in fields} == fields


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
    result = parse(f"X = {text}", "pass", head=head).buffers[-1]
    assert {name: getattr(result, name) for name in fields} == fields
    assert result.name == "X"


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


def test_a_function_may_be_decorated_where_no_module_has_a_name(tmp_path):
    path = tmp_path / "nameless.py"
    path.write_text("@T.prim_func\ndef f(n: T.int32) -> None:\n    T.evaluate(n)\n")
    names: dict[str, object] = {"T": T}
    exec(compile(path.read_text(), str(path), "exec"), names)
    assert names["f"].name == "f"
