"""Wrong scripts: each error by its class, its place (the ``«`` in the text) and its message."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap

import pytest

from spcomp import script as T
from spcomp.errors import FormatError, ScriptError, SpcompError
from spcomp.script.parse import parse_function, parse_source
from tests.conftest import ROOT

HEAD = """from spcomp import script as T

@T.prim_func
def f(a: T.handle, b: T.handle, ptr: T.handle, idx: T.handle, m: T.int32, n: T.int32,
      nnz: T.int32, w: T.float32, ok: T.bool) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (ptr, idx))
    N = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_buffer(b, (n,), "float32")
"""


def check_error(text, message, kind=ScriptError, hint=""):
    """Assert that *text* is refused with *message* at its ``«``."""
    before, mark, after = text.partition("«")
    assert mark
    line, col = before.count("\n") + 1, len(before) - before.rfind("\n") - 1
    with pytest.raises(SpcompError) as caught:
        parse_source(before + after, "wrong.py")
    error = caught.value
    assert type(error) is kind
    assert error.message == message
    assert (error.span.file, error.span.line, error.span.col) == ("wrong.py", line, col)
    assert hint in error.hint
    caret = str(error).splitlines()[2]
    assert caret.index("^") == len(f"{line:>5} | ") + col
    return error


def body(*lines):
    return HEAD + "".join(f"    {line}\n" for line in lines)


def cases(*rows):
    ids = [row[1] for row in rows]
    return pytest.mark.parametrize(("text", "message", "hint"), rows, ids=ids)


# -- expressions -----------------------------------------------------------------------------


@cases(
    ("«unknwon", "unknown name 'unknwon'", ""),
    ("«nnx", "unknown name 'nnx'", "did you mean 'nnz'?"),
    ("«a", "a is a handle, not a value", "match it to a buffer"),
    ("«I", "I is an axis, not a value", "use a variable that runs over it"),
    ("«B", "B is a buffer, not a value", "index it: B[...]"),
    ("«T.float32", "T.float32 is no value", ""),
    ("«m.size", "unknown name 'm.size'", ""),
    ("«'text'", "'text' is no number", ""),
    ("«None", "None is no number", ""),
    ("«[m]", "a script has no expression of the kind list", ""),
    ("(«lambda: m)", "a script has no expression of the kind lambda", ""),
    ("«m @ n", "@ has no meaning here", "iterate over the axes"),
    ("«0 < m < n", "comparisons do not chain here", "write ... m and m ... n"),
    ("«m is n", "is and in have no meaning here", "use == or !="),
    ("«w & 1", "& needs integers, not floats", ""),
    ("«ok << ok", "<< needs integers, not bools", ""),
    ("«ok + ok", "no arithmetic + on bools", ""),
    ("«-ok", "- has no meaning for bool", ""),
    ("«~w", "~ has no meaning for float32", ""),
    ("«T.popcount(w)", "popcount needs an integer, not a float32", ""),
    ("«T.abs(ok)", "abs needs a number, not a bool", ""),
    ("«m + 3000000000", "the literal 3000000000 does not fit int32", ""),
    ("«99999999999999999999", "the literal 99999999999999999999 does not fit int64", ""),
    ("«1 // 0", "// of [1, 0] cannot be computed", ""),
    ("«T.sqrt(-1)", "sqrt of [-1] cannot be computed", ""),
    ("«(-8) ** 0.5", "pow of [-8, 0.5] is no real number", ""),
    ("B[«w]", "an integer is needed here, not float32", 'T.cast(value, "int64")'),
    ("B[«0:2]", "a slice has no value, only T.reads and T.writes take one", ""),
    ("B[«m, n]", "B takes 1 index, not 2", ""),
    ("A[«m]", "A takes 2 indices, not 1", "its axes are I, J"),
    ("«C[m]", "unknown buffer 'C'", ""),
    ("«m[0]", "m is a scalar, not a buffer", ""),
    ("«a[0]", "a is a handle, not a buffer", "match it first"),
    ("«B[0][0]", "a buffer is given by its name", ""),
    ("«foo(m)", "foo cannot be called in a script", "use the functions of T"),
    ("«min(m)", "min cannot be called in a script", ""),
    ("«T.expp(m)", "T has no function 'expp'", "did you mean 'exp'?"),
    ("«T.exp(m, n, m)", "T.exp: too many positional arguments", "T.exp(x, dtype=None)"),
    ("«T.exp()", "T.exp: missing a required argument: 'x'", ""),
    ("T.min(«*m)", "T.min takes no starred arguments", ""),
    ("«T.exp(**m)", "T.exp takes no ** arguments", ""),
    ("T.exp(«None)", "None is no number", ""),
    ("T.lower_bound(«None, 0, 1, w)", "a buffer is given by its name", ""),
    ("«T.min(m)", "T.min takes two or more values", ""),
    ("«T.serial(m)", "T.serial has no value", ""),
    ("«T.cast(m, 'handle')", "nothing can be cast to a handle", ""),
    ("T.cast(m, «'float33')", "unknown dtype 'float33'", "did you mean 'float32'?"),
    ("T.cast(m, «n)", "a dtype is a string", "write it in quotes"),
    ("«T.handle(m)", "T.handle is the type of a parameter, not of a value", ""),
    ("«T.int8(300)", "the literal 300 does not fit int8", 'T.cast(value, "int8")'),
    ("«T.min_value('handle')", "handle has no min value", ""),
    ("T.broadcast(w, «1)", "a vector has two or more lanes", ""),
    ("T.broadcast(w, «m)", "a number known when the script is read is needed here", ""),
    ("T.broadcast(w, «1.5)", "a whole number is needed here", ""),
    ("T.vector_reduce(«'-', w)", "no reduction '-'", "it is +, *, min or max"),
    ("T.lower_bound(B, «w, 0, w)", "a value of float32 does not become an int64 by itself", ""),
)
def test_a_wrong_expression_is_refused_where_it_stands(text, message, hint):
    check_error(body(f"T.evaluate({text})"), message, hint=hint)


LISTED = [1, 2]


def test_a_python_object_that_is_no_number_is_named_by_its_type():
    def script(a: T.handle) -> None:
        A = T.match_buffer(a, (4,), "float32")
        A[0] = LISTED

    with pytest.raises(ScriptError, match="LISTED is a Python list") as caught:
        parse_function(script)
    assert caught.value.span.line == script.__code__.co_firstlineno + 2


# -- statements ------------------------------------------------------------------------------


@cases(
    (["«x = y = m"], "one assignment sets one thing", "write two"),
    (["«x, y = m"], "one assignment binds one name", "write one each"),
    (["x = m", "«x = n"], "x is a scalar already, and a name keeps its value", "alloc_buffer"),
    (["«I = m"], "I is an axis already, and a name keeps its value", ""),
    (["«a.b = m"], "a variable is a plain name here", ""),
    (["«x: T.int32"], "a variable needs its value", ""),
    (["«x += 1"], "a name keeps its value", "use an element of a buffer"),
    (["«B[0] @= w"], "@ has no meaning here", ""),
    (["«return"], "a script returns nothing", "write the result into a buffer"),
    (["while ok:", "    «break"], "a loop cannot be left early", ""),
    (["while ok:", "    «continue"], "an iteration cannot be cut short", ""),
    (["«def g(): pass"], "functions cannot be defined in a script", ""),
    (["«assert ok"], "a script asserts nothing", "T.fail"),
    (["«import os"], "a script has no import statement", ""),
    (["«try:", "    pass", "finally:", "    pass"], "a script has no try statement", ""),
    (["«m + 1"], "the value is not used", "T.evaluate(value)"),
    (["«T.exp(w)"], "the value is not used", ""),
    (["while ok:", "    pass", "else:", "    «pass"], "a loop has no else", ""),
    (["for i in range(3):", "    pass", "else:", "    «pass"], "a loop has no else", ""),
    (["for i in «B:", "    pass"], "this is nothing to loop over", "T.serial"),
    (["for i in «T.exp(m):", "    pass"], "this is nothing to loop over", ""),
    (["for i in «range(0, 4, 2):", "    pass"], "range takes an end, or a begin and an end", ""),
    (
        ["for i in T.serial(«w):", "    pass"],
        "a value of float32 does not become an int64 by itself",
        'T.cast(value, "int64")',
    ),
    (
        ["for i in range(«2.5):", "    pass"],
        "the literal 2.5 does not become an int64 by itself",
        "write a literal that int64 holds",
    ),
    (["for «i, j in T.grid(m):", "    pass"], "2 variables for 1 loops of T.grid", ""),
    (["for «i in T.grid():", "    pass"], "1 variables for 0 loops of T.grid", ""),
    (
        ["for i in «T.thread_binding(4):", "    pass"],
        "T.thread_binding needs the name of its thread",
        "",
    ),
    (["for «m in range(3):", "    pass"], "m is declared already, as a scalar", ""),
    (
        ["for i in range(3):", "    for «i in range(3):", "        pass"],
        "i is declared already, as a scalar",
        "",
    ),
    (["for «B[0] in range(3):", "    pass"], "a variable is a plain name here", ""),
    (
        ["for i in T.serial(3, annotations=«[1]):", "    pass"],
        "attributes are a dict with strings for keys",
        "",
    ),
    (
        ["for i in T.serial(3, annotations=«{1: 2}):", "    pass"],
        "attributes are a dict with strings for keys",
        "",
    ),
    (["for i in T.serial(3, annotations=«{**m}):", "    pass"], "** has no meaning here", ""),
    (["T.fail(«m)"], "the message is a string", "write it in quotes"),
    (["«T.reads(B[0])"], "T.reads has no meaning here", "it stands in T.block"),
    (["x = «T.axis.spatial(m, n)"], "T.axis.spatial has no meaning here", "it stands in T.block"),
    (
        ["if ok:", "    X = «T.dense_fixed(m)"],
        "T.dense_fixed has no meaning here",
        "it stands in the function",
    ),
    (["with «T.init():", "    pass"], "T.init has no meaning here", "T.sp_iter or T.block"),
    (["with T.let(m) as x, «T.let(n) as y:", "    pass"], "one with opens one thing", ""),
    (["with «m:", "    pass"], "this cannot be opened by with", ""),
    (["with «T.exp(w):", "    pass"], "T.exp cannot be opened by with", ""),
    (["«with T.let(m):", "    pass"], "with T.let(...) needs a name", "add: as x"),
)
def test_a_wrong_statement_is_refused_where_it_stands(text, message, hint):
    check_error(body(*text), message, hint=hint)


@pytest.mark.parametrize(
    ("kind", "value", "message", "hint"),
    [
        (
            "int32",
            "«w",
            "a value of float32 does not become an int32 by itself",
            'T.cast(value, "int32")',
        ),
        (
            "int32",
            "«0.5",
            "the literal 0.5 does not become an int32 by itself",
            "write a literal that int32 holds",
        ),
        ("bool", "«m", "a value of int32 does not become a bool by itself", ""),
        ("int8", "«300", "the literal 300 does not fit int8", ""),
        ("float32", "«T.broadcast(w, 4)", "a vector of 4 lanes does not become a float32", ""),
    ],
)
def test_a_value_that_loses_its_kind_is_not_stored_by_itself(kind, value, message, hint):
    text = body(f"B[0] = {value}").replace('b, (n,), "float32"', f'b, (n,), "{kind}"')
    check_error(text, message, hint=hint)


# -- declarations ----------------------------------------------------------------------------


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
            "X = «T.sparse_variable(I, (n, None), (ptr, None))",
            "an indptr without indices has no meaning in a function of coordinate space",
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


# -- iterations, blocks, merges --------------------------------------------------------------


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
    (["«with T.merge('union'):", "    pass"], "0 cursors bind 1 variables", ""),
    (["with T.merge('union') as [c]:", "    «pass"], "a merge holds cases only", "T.case"),
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


# -- levels ----------------------------------------------------------------------------------


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
            "    with «T.merge('union') as [c]:",
            "        with T.case():",
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


# -- functions, files, modules ---------------------------------------------------------------


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
    with pytest.raises(ScriptError, match="the module Empty has no T.prim_func"):

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
    with pytest.raises(ScriptError, match="partial.* is not a function"):
        T.prim_func(functools.partial(print))
    with pytest.raises(ScriptError, match="<lambda> is not a plain function"):
        T.prim_func(lambda a: a)


def test_a_function_without_source_is_refused():
    names = {"T": T}
    exec("def f(a: T.handle): pass", names)
    with pytest.raises(ScriptError, match="the source of f cannot be read") as caught:
        T.prim_func(names["f"])
    assert caught.value.hint == "define it in a file"


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
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False, env=env
    )
    assert f"{path}:8:16: unknown buffer 'B'" in done.stderr
    assert "        A[0] = B[1]\n" + " " * (8 + 15) + "^" in done.stderr
