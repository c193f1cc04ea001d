"""The type of each expression and what a store casts."""

from __future__ import annotations

import pytest

from spcomp.ir.printer.program import print_expr, print_program
from tests.script_helpers import HEAD, parse, statement, value


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
    result = value(text)
    assert print_expr(result) == printed
    assert str(result.dtype) == kind


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
