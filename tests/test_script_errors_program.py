"""Wrong programs: each error by its class, its place (the ``«`` in the text) and its message."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap

import pytest

from spcomp import script as T
from spcomp.errors import FormatError, ScriptError
from spcomp.script.parse import parse_source
from tests.conftest import ROOT
from tests.script_helpers import body, cases, check_error


@cases(
    ("«I = T.dense_fixed(m)", "I is declared already, as an axis", ""),
    ("«X.y = T.dense_fixed(m)", "a declaration is assigned to a plain name", ""),
    ("X = T.dense_fixed(«w)", "an integer is needed here, not float32", ""),
    ("X = T.dense_fixed(«a)", "a is a handle, not a value", ""),
    ("X = T.dense_fixed(m, «'float32')", "an idtype is int32 or int64", ""),
    ("X = T.dense_fixed(«B_)", "unknown name 'B_'", ""),
    ("X = T.dense_variable(«IJ, (n, nnz), ptr)", "unknown axis 'IJ'", "did you mean"),
    ("X = T.dense_variable(«m, (n, nnz), ptr)", "m is a scalar, not an axis", ""),
    ("X = T.dense_variable(«I.x, (n, nnz), ptr)", "an axis is given by its name", ""),
    ("X = T.dense_variable(I, (n, nnz), «m)", "m is not a handle", "T.handle"),
    ("X = T.dense_variable(I, (n, nnz), «ptrr)", "unknown name 'ptrr'", "did you mean 'ptr'?"),
    ("X = T.dense_variable(I, (n, nnz), «B[0])", "a handle is given by its name", ""),
    (
        "X = T.dense_variable(I, «(n, nnz, m), ptr)",
        "the shape of an axis is a pair",
        "(length, count)",
    ),
    ("X = T.sparse_variable(I, (n, nnz), «(ptr,))", "the arrays of an axis is a pair", ""),
    ("X = T.match_buffer(«I, (n,))", "I is not a handle", ""),
    ("X = T.match_sparse_buffer(ptr, (I, «m))", "m is a scalar, not an axis", ""),
    ("X = T.match_sparse_buffer(ptr, (I,), 'float32', scope=«3)", "a scope is a string", ""),
    (
        "X = T.match_sparse_buffer(ptr, (I,), 'uint8', fill=«300)",
        "fill is 300, which is no uint8",
        "",
    ),
    (
        "X = T.match_sparse_buffer(ptr, (I,), 'int32', fill=«2.7)",
        "fill is 2.7, which is no int32",
        "",
    ),
    ("X = T.match_buffer(ptr, (n, m), strides=«(1,))", "X needs a stride per dimension", ""),
    ("T.assume_buffer_domain(B, «[0])", "a domain is [low, high]", ""),
    ("«T.match_buffer(ptr, (n,))", "T.match_buffer has no meaning here", ""),
    ("T.func_attr(«3)", "attributes are a dict with strings for keys", ""),
    ("«T.func_attr({'sparse_tir_level': 7})", "sparse_tir_level is 2, 1 or 0, not 7", ""),
)
def test_a_wrong_declaration_is_refused_where_it_stands(text, message, hint):
    check_error(body(text), message, hint=hint)


def test_a_size_is_made_of_parameters():
    check_error(
        body("x = m * 2", "X = T.dense_fixed(«x + 1)"),
        "a size is made of parameters, and x is none",
    )


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("X = «T.dense_variable(I, (n, nnz), None)", "a dense_variable axis needs its indptr", ""),
        ("X = «T.sparse_fixed(I, (n, 4), None)", "a sparse_fixed axis needs its indices", ""),
        (
            "X = «T.sparse_fixed(I, n, idx)",
            "a sparse_fixed axis needs the number of elements per fiber",
            "(length, nnz_cols)",
        ),
        (
            "X = T.sparse_variable(I, (n, nnz), (None, «idx))",
            "indices without an indptr",
            "(None, None)",
        ),
        (
            "X = T.sparse_variable(I, (n, None), («ptr, None))",
            "an indptr without indices",
            "(None, None)",
        ),
        (
            "X = T.sparse_variable(I, (n, «nnz), (None, None))",
            "an axis whose arrays are results has no nnz yet",
            "write None for it",
        ),
        ("X = T.sparse_variable(I, «(None, nnz), (ptr, idx))", "an axis needs its length", ""),
    ],
)
def test_an_axis_that_describes_no_storage_is_a_format_error(text, message, hint):
    check_error(body(text), message, FormatError, hint)


@pytest.mark.parametrize(
    ("axes", "message", "hint"),
    [
        ("J", "J hangs on I, which is not an axis of the buffer", "root down: I, J"),
        ("J, I", "J hangs on I, which comes after it", "root down: I, J"),
        ("I, I", "I occurs twice in one buffer", "a second axis of the same length"),
        (
            "I, J, V",
            "J and V: two variable siblings in one buffer have no addressable layout",
            "declare it with J as its parent, T.dense_variable(J, ...)",
        ),
        (
            "I, J, E, V2",
            "J and V2: two variable siblings in one buffer have no addressable layout",
            "",
        ),
    ],
)
def test_a_buffer_that_cannot_be_addressed_is_a_format_error(axes, message, hint):
    lines = [
        "V = T.dense_variable(I, (n, nnz), ptr)",
        "E = T.sparse_fixed(I, (n, 4), idx)",
        "V2 = T.dense_variable(E, (n, nnz), ptr)",
    ]
    text = body(*lines, f'X = «T.match_sparse_buffer(ptr, ({axes}), "float32")')
    check_error(text, message, FormatError, hint)
    check_error(body(*lines, f"X = «T.alloc_sparse_buffer(({axes}))"), message, FormatError)


def test_the_published_ragged_product_says_how_to_declare_its_axes():
    text = """
from spcomp import script as T
@T.prim_func
def bmm(x: T.handle, p: T.handle, q: T.handle, n: T.int32, l: T.int32, s: T.int32):
    B = T.dense_fixed(n)
    I = T.dense_variable(B, (l, s), p)
    IJ = T.dense_variable(B, (l, s), q)
    X = «T.match_sparse_buffer(x, (B, I, IJ), "float32")
"""
    check_error(
        text,
        "I and IJ: two variable siblings in one buffer have no addressable layout",
        FormatError,
        "declare it with I as its parent, T.dense_variable(I, ...)",
    )


@pytest.mark.parametrize("axes", ["I, J, E", "I, N, J", "N, I, J", "I, J, K, L"])
def test_fixed_siblings_and_other_trees_may_stand_in_one_buffer(axes):
    lines = [
        "E = T.sparse_fixed(I, (n, 4), idx)",
        "K = T.dense_fixed(m)",
        "L = T.sparse_variable(K, (n, nnz), (ptr, idx))",
        f'X = T.match_sparse_buffer(ptr, ({axes}), "float32")',
    ]
    parse_source(body(*lines), "layout.py")


def iteration(text):
    return f"with {text}:", "    pass"


@cases(
    ("T.sp_iter([«Q], 'S', 'x') as [i]", "unknown axis 'Q'", ""),
    ("T.sp_iter([«B], 'S', 'x') as [i]", "B is a buffer, not an axis", ""),
    ("T.sp_iter([I], «S, 'x') as [i]", "the kinds is a string", ""),
    ("T.sp_iter([I, J], «'S', 'x') as [i, j]", "2 variables need 2 kinds, not 1", ""),
    ("T.sp_iter([I], «'X', 'x') as [i]", "there is no kind 'X'", "S is spatial"),
    ("T.sp_iter([I, J], 'SR', 'x') as «[i]", "the domains bind 2 variables, not 1", ""),
    ("T.sp_iter([T.fuse(I, J)], 'SR', 'x') as «i", "the domains bind 2 variables, not 1", ""),
    ("T.sp_iter([I, J], 'SR', 'x') as [i, «i]", "i is declared already, as a scalar", ""),
    (
        "T.sp_iter([T.fuse(I, «N)], 'SS', 'x') as [i, j]",
        "N is not a child of I",
        "T.fuse takes a chain of axes",
    ),
    ("T.sp_iter([T.flatten(J, «I)], 'S', 'x') as [i]", "I is not a child of J", "T.flatten"),
    ("T.sp_iter([«T.union(J)], 'S', 'x') as [i]", "T.union takes at least two axes", ""),
    ("T.sp_iter([«T.fuse()], '', 'x') as []", "T.fuse takes at least one axis", ""),
    ("T.sp_iter([«T.attach(I, J)], 'S', 'x') as [i]", "I has no parent to attach in place of", ""),
    ("T.sp_iter([«T.exp(I)], 'S', 'x') as [i]", "an axis is given by its name", ""),
    ("T.block('x') as «b", "a block binds no name here", ""),
    ("T.merge(«'both', T.cursor(B, 0, m)) as [c, p]", "there is no merge 'both'", "union"),
    ("T.merge('union', T.cursor(B, 0, m)) as «[c]", "1 cursors bind 2 variables", "coordinate"),
    ("T.merge('union', «B) as [c, p]", "a merge takes T.cursor(indices, begin, end)", ""),
    ("T.merge('union', T.cursor(«m, 0, m)) as [c, p]", "m is a scalar, not a buffer", ""),
)
def test_a_wrong_with_is_refused_where_it_stands(text, message, hint):
    check_error(body(*iteration(text)), message, hint=hint)


@cases(
    (["«with T.sp_iter([I], 'S', 'x'):", "    pass"], "an sp_iter binds variables", "as [i, j]"),
    (["with «T.merge('union') as [c]:", "    pass"], "a merge takes cursors", "T.cursor"),
    (
        ["with T.merge('union', T.cursor(B, 0, m)) as [c, p]:", "    «pass"],
        "a merge holds cases only",
        "T.case",
    ),
    (
        [
            "with T.merge('union', T.cursor(B, 0, m)) as [c, p]:",
            "    with «T.case(1, 1):",
            "        pass",
        ],
        "a case of 1 cursors has 1 marks, not 2",
        "",
    ),
    (
        [
            "with T.sp_iter([I], 'S', 'x') as [i]:",
            "    with T.init():",
            "        pass",
            "    «with T.init():",
            "        pass",
        ],
        "one T.sp_iter has one T.init",
        "",
    ),
    (
        [
            "with T.sp_iter([I, J], 'SR', 'x') as [i, j]:",
            "    with T.init():",
            "        B[«j] = 0.0",
            "    B[j] = A[i, j]",
        ],
        "j is reduced, and what is reduced has no value in T.init",
        "declare it S",
    ),
    (
        ["with T.sp_iter([I], 'S', 'x') as [i]:", "    «T.reads(B[i])"],
        "T.reads has no meaning here",
        "T.block",
    ),
    (["with T.block():", "    «T.sp_iter_attr({})"], "T.sp_iter_attr has no meaning here", ""),
    (
        ["with T.block():", "    if ok:", "        with «T.init():", "            pass"],
        "T.init has no meaning here",
        "",
    ),
    (
        ["with T.block():", "    v = T.axis.spatial(«(1, m), n)"],
        "the domain of a block variable is (0, extent)",
        "",
    ),
    (
        ["with T.block():", "    v = T.axis.spatial(m, «w)"],
        "a value of float32 does not become an int64 by itself",
        "",
    ),
    (
        ["with T.block():", "    «m = T.axis.spatial(m, n)"],
        "m is declared already, as a scalar",
        "",
    ),
    (["with T.block():", "    v = «T.axis.scan(m, n)"], "T has no function 'axis.scan'", ""),
    (
        ["for i in range(m):", "    with T.block():", "        v = «T.axis.remap('SS', [i])"],
        "1 variables, 2 kinds and 1 loops",
        "",
    ),
    (
        ["for i in range(m):", "    with T.block():", "        v = T.axis.remap(«'X', [i])"],
        "there is no kind 'X'",
        "",
    ),
    (
        ["with T.block():", "    v = T.axis.remap('S', [«m])"],
        "T.axis.remap takes loop variables",
        "T.axis.spatial",
    ),
    (["with T.block():", "    T.reads(«B)"], "a region is A[index or slice, ...]", ""),
    (["with T.block():", "    T.reads(«A[m])"], "A takes 2 indices, not 1", ""),
    (["with T.block():", "    T.reads(B[0:4:«2])"], "a region has no step", ""),
    (["with T.block():", "    T.reads(A[m, «:])"], "a slice along J needs its end", ""),
    (["with T.block():", "    T.where(«a)"], "a is a handle, not a value", ""),
)
def test_a_wrong_part_of_an_iteration_is_refused_where_it_stands(text, message, hint):
    check_error(body(*text), message, hint=hint)


@cases(
    (
        [
            "T.func_attr({'sparse_tir_level': 1})",
            "with «T.sp_iter([I], 'S', 'x') as i:",
            "    pass",
        ],
        "T.sp_iter has no meaning in a function of position space",
        "leave that out",
    ),
    (
        ["with T.sp_iter([I], 'S', 'x') as i:", "    with «T.block():", "        pass"],
        "T.block has no meaning in a function of coordinate space",
        "without T.sp_iter",
    ),
    (
        [
            "with T.sp_iter([I], 'S', 'x') as i:",
            "    with «T.merge('union', T.cursor(B, 0, m)) as [c, p]:",
            "        with T.case(True):",
            "            pass",
        ],
        "T.merge has no meaning in a function of coordinate space",
        "",
    ),
    (
        ["with T.sp_iter([I], 'S', 'x') as i:", "    A[«_, i] = 0.0"],
        "an absolute position has no meaning in a function of coordinate space",
        "",
    ),
    (
        ["X = T.match_buffer(«b, (n,))"],
        "a handle matched twice has no meaning in a function of coordinate space",
        "a handle of its own",
    ),
)
def test_what_belongs_to_another_level_is_refused(text, message, hint):
    check_error(body(*text), message, hint=hint)


def test_a_flat_function_has_no_sparse_buffers():
    text = body("T.func_attr({'sparse_tir_level': 0})", "pass")
    before, _, after = text.partition("T.match_sparse_buffer")
    message = "a sparse buffer has no meaning in a function of flat space"
    check_error(f"{before}«T.match_sparse_buffer{after}", message)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ("«a", "a needs a type"),
        ("a: «int", "int is no type of a parameter"),
        ("a: «'T.'", "'T.' is no type"),
        ("a: T.int32 = «3", "a parameter is a name and its type, nothing else"),
        ("*«args", "a parameter is a name and its type, nothing else"),
        ("*, a: T.int32 = «3", "a parameter is a name and its type, nothing else"),
        ("**«args", "a parameter is a name and its type, nothing else"),
        ("a: T.Buffer[(«x,), 'float32']", "unknown name 'x'"),
        ("a: T.Buffer[4, «'float33']", "unknown dtype 'float33'"),
    ],
)
def test_a_wrong_parameter_is_refused_where_it_stands(params, message):
    check_error(
        f"from spcomp import script as T\n@T.prim_func\ndef f({params}):\n    pass\n", message
    )


def test_text_that_is_not_python_is_refused():
    check_error("@T.prim_func\ndef f(a:«:\n    pass\n", "this is not Python: invalid syntax")


MODULE = """from spcomp import script as T
@T.ir_module
class M:
    @T.prim_func
    def f(a: T.handle, m: T.int32):
        pass
    @T.host
    def main(a: T.handle, m: T.int32):
"""


@cases(
    ("T.launch(«'g')", "the module has no function 'g'", ""),
    ("T.launch(«m)", "the name of a function is a string", ""),
    ("«m + 1", "a host program does not do this", "T.host_alloc, T.launch"),
    ("«x = m", "a host program does not do this", ""),
    ("«x = T.exp(m)", "a host program does not do this", ""),
    ("T.scan(«x)", "unknown buffer 'x'", ""),
    ("«x.y = T.host_alloc(m, 'int32')", "an array is assigned to a plain name", ""),
    ("x = T.host_alloc(«1.5, 'int32')", "the literal 1.5 does not become an int64 by itself", ""),
    ("x = T.host_alloc(1, 'int32')\n        «x = T.host_alloc(1, 'int32')", "x is made twice", ""),
    ("«m = T.host_alloc(1, 'int32')", "m is a scalar, and an array is bound to a handle", ""),
)
def test_a_wrong_host_program_is_refused_where_it_stands(text, message, hint):
    check_error(f"{MODULE}        {text}\n", message, hint=hint)


def test_a_host_program_has_the_parameters_of_the_source():
    text = MODULE.replace("main(a: T.handle, m: T.int32)", "main(«aa: T.handle)") + "        pass\n"
    check_error(text, "aa is no parameter of f", hint="did you mean 'a'?")


def test_a_class_without_functions_is_no_module():
    text = "from spcomp import script as T\n@T.ir_module\n«class M:\n    pass\n"
    check_error(text, "the module M has no T.prim_func")
    with pytest.raises(ScriptError, match=r"the module Empty has no T.prim_func"):

        @T.ir_module
        class Empty:
            pass


def test_a_class_with_two_functions_must_say_which_runs_when():
    text = (
        MODULE.partition("    @T.host")[0]
        + "    @T.prim_func\n    «def g(a: T.handle):\n        pass\n"
    )
    message = "the module M has 2 functions and does not say which runs when"
    check_error(text, message, hint="@T.host")
    with pytest.raises(ScriptError, match="has 2 functions"):

        @T.ir_module
        class Two:
            @T.prim_func
            def f(a: T.handle):
                pass

            @T.prim_func
            def g(a: T.handle):
                pass


def test_only_functions_defined_with_def_can_be_decorated():
    with pytest.raises(ScriptError, match=r"partial.* is not a function"):
        T.prim_func(functools.partial(print))
    with pytest.raises(ScriptError, match="<lambda> is not a plain function"):
        T.prim_func(lambda a: a)


def test_a_function_without_source_is_refused():
    names = {"T": T}
    exec("def f(a: T.handle): pass", names)
    with pytest.raises(ScriptError, match="the source of f cannot be read") as caught:
        T.prim_func(names["f"])
    assert caught.value.hint.startswith("define it in a file or a notebook")


@pytest.mark.parametrize(
    "use",
    [
        lambda: T.dense_fixed(3),
        lambda: T.float32(1),
        lambda: T.exp(1.0),
        lambda: T.axis.spatial(1, 2),
        lambda: T.sp_iter([], "", "x"),
    ],
)
def test_names_of_the_language_mean_nothing_outside_a_script(use):
    with pytest.raises(ScriptError, match=r"T\.\w+ has a meaning only inside a script") as caught:
        use()
    assert "@T.prim_func" in caught.value.hint


def test_an_annotation_outside_a_script_is_just_an_object():
    assert T.Buffer[(4,), "float32"] is T.Buffer
    assert isinstance(T.Buffer((4,), "float32"), T.Buffer)


def test_an_error_shows_the_line_of_the_users_file(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(
        textwrap.dedent("""
        from spcomp import script as T

        class Holder:
            @T.prim_func
            def f(a: T.handle) -> None:
                A = T.match_buffer(a, (4,), "float32")
                A[0] = B[1]
        """)
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False, env=env
    )
    assert f"{path}:8:16: unknown buffer 'B'" in result.stderr
    assert "        A[0] = B[1]\n" + " " * (8 + 15) + "^" in result.stderr
