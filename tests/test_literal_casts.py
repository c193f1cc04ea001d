"""Literals that are cast: wrapped and rounded as numbers that are cast at run time."""

from __future__ import annotations

import ast
import math
import re

import numpy as np
import pytest

import spcomp

CASTS = {
    "uint8(300)": 44,
    "int8(200)": -56,
    "int32(5000000000)": 705032704,
    "float32(0.1)": float(np.float32(0.1)),
    "float32(1e300)": math.inf,
    "float64(float16(0.1))": float(np.float16(0.1)),
    "int8(uint8(-1))": -1,
    "bool(2)": 1,
}


@pytest.mark.parametrize("text", CASTS)
def test_a_literal_is_cast_as_a_number_is(text):
    x = np.ones(1)
    wanted = CASTS[text]
    assert spcomp.compile(f"y[i] = {text} * x[i]")(x=x)[0] == wanted
    number = re.search(r"[-\d.e]+(?=\))", text)[0]
    of_constant = f"y[i] = {text.replace(f'({number})', '(alpha)')} * x[i]"
    constants = {"alpha": ast.literal_eval(number)}
    assert spcomp.compile(of_constant, constants=constants)(x=x)[0] == wanted


def test_a_literal_of_a_narrow_float_is_stored_rounded():
    text = """
@T.prim_func
def f(b: T.handle, n: T.int64) -> None:
    B = T.match_buffer(b, (n,), "float64")
    for i in T.serial(n):
        B[i] = T.float32(0.1)
"""
    b = np.zeros(1)
    spcomp.compile(spcomp.parse(text))(B=b)
    assert b[0] == np.float32(0.1)
