"""Wrong bodies: each error by its class, its place (the ``«`` in the text) and its message."""

from __future__ import annotations

import pytest

from spcomp import script as T
from spcomp.errors import ScriptError
from spcomp.script.parse import parse_function
from tests.script_helpers import body, cases, check_error


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
    ("«1 // 0", "1 // 0 cannot be computed: integer division or modulo by zero", ""),
    ("«T.sqrt(-1)", "sqrt(-1) cannot be computed: math domain error", ""),
    ("«(-8) ** 0.5", "pow(-8, 0.5) is no real number", ""),
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
    ("T.lower_bound(B, 0, 1, w, slope=«True)", "a whole number is needed here", ""),
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
    (['T.fail(«f"{m}")'], "a text is shown as it is written", "texts and numbers in turn"),
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
