"""Calls repeated with other data, layouts and copies: each returns what a first call does."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest

import spcomp
from spcomp.errors import SpcompError
from tests.level_tensors import tensor
from tests.random_notation import Case, Writer, elements
from tests.random_operands import layout, operand

CALLS = 8  # a call is learnt when it is the second, fourth or eighth of its kind
SEEDS, CHUNK, ROUNDS = 100, 20, 6
ROWS = ("sparse", "csr", "csf", "csf")
TEXTS = (
    "C[i, j, k] = x[k] * A[i, j, k]",
    "C[k, i, j] = x[k] * A[i, j, k]",
    "C[k, i] = x[k] * A[i, k]",
    "C[i, k] = x[k] * A[i, k]",
    "C[k, j, i] = x[k] * A[i, j, k]",
    "C[i, j] = x[i] * y[j]",
    "C[i, j, k] = A[i, j] * x[k]",
    "C[i, j, k, l] = A[i, j] * B[k, l]",
    "C[i, j, k] = A[i, j, k] * 2",
    "C[i, j] = A[i, j] + B[i, j]",
    "C[i, j] = A[i, j] * B[i, j]",
    "C[j, i] = A[i, j]",
    "C[i, k] = A[i, j] * B[j, k]",
    "C[i, l] = A[i, j, k] * B[j, l] * D[k, l]",
    "y[i] = A[i, j] * x[j]",
    "C[i] = max(j, A[i, j])",
    "C = A[i, j] * B[i, j]",
    "C[i, j] = A[i, j] * x[i]",
    "C[i, j] = A[i, j] * sum(k, B[i, k] * D[j, k])",
)


class Small(Writer):
    """Writes programs whose extents are 0 and 1 as often as others."""

    def _sizes(self) -> None:
        self.case.sizes = {name: self.random.choice((0, 1, 1, 2, 3)) for name in "ijkl"}
        self.case.sizes["m"] = self.case.sizes["i"]


def scaled(arg: Any, factor: int) -> Any:
    """*arg* with its values times *factor*, as its dtype computes: also sums of repeated ones."""
    if isinstance(arg, (int, float)) or arg.dtype == bool or factor == 1:
        return arg
    if isinstance(arg, spcomp.Tensor):
        return arg.with_values(np.asarray(arg.values * arg.dtype.type(factor)))
    if isinstance(arg, np.ndarray):
        return np.asarray(arg * arg.dtype.type(factor), order="K")
    made = arg.copy()
    if made.format in ("lil", "dok"):
        return (made * made.dtype.type(factor)).asformat(made.format)
    made.data = made.data * made.dtype.type(factor)
    return made


def relaid(pick: random.Random, arg: Any) -> Any:
    """*arg*, the same object or one that holds the same in another way."""
    way = pick.randrange(8)
    if isinstance(arg, (int, float)) or way > 3:
        return arg
    if isinstance(arg, np.ndarray):
        return array_relaid(pick, arg)
    if isinstance(arg, spcomp.Tensor):
        return arg.with_values(array_relaid(pick, arg.values))
    made = arg.copy()
    if way == 2:
        return made
    if made.format in ("csr", "csc", "bsr"):
        kind = pick.choice((np.int32, np.int64))
        made.indices, made.indptr = made.indices.astype(kind), made.indptr.astype(kind)
        made.data = array_relaid(pick, made.data)
    elif way == 3:
        made = type(arg)(arg)
    return made


def array_relaid(pick: random.Random, array: Any) -> Any:
    """*array* with other strides, or at another place, or read-only."""
    way = pick.randrange(6)
    if way == 0:
        return np.asfortranarray(array)
    if way == 1 and array.ndim:
        return np.repeat(array, 2, axis=0)[::2]
    if way == 2:
        raw = np.zeros(array.nbytes + 1, np.uint8)[1:].view(np.uint8)
        made = np.frombuffer(raw.data, array.dtype, array.size).reshape(array.shape)
        made[...] = array
        return made
    made = array.copy()
    made.flags.writeable = way != 3
    return made


def same(got: Any, want: Any, about: object) -> None:
    """Assert that two results are alike in type, format, dtype, shape, and to the bit."""
    assert type(got) is type(want), f"{about}: {type(got)} {type(want)}"
    if isinstance(want, tuple):
        for one, other in zip(got, want, strict=True):
            same(one, other, about)
        return
    assert got.dtype == want.dtype, f"{about}: {got.dtype} {want.dtype}"
    assert got.shape == want.shape, f"{about}: {got.shape} {want.shape}"
    if isinstance(want, (np.ndarray, np.generic)):
        assert np.asarray(got).tobytes() == np.asarray(want).tobytes(), f"{about}: {got} {want}"
        return
    assert got.format == want.format, f"{about}: {got.format} {want.format}"
    if isinstance(want, spcomp.Tensor):
        assert got.layout == want.layout, f"{about}: {got.layout} {want.layout}"
    for one, other in zip(elements(got)[0], elements(want)[0], strict=True):
        np.testing.assert_array_equal(one, other, err_msg=str(about))
    assert elements(got)[1].tobytes() == elements(want)[1].tobytes(), about


def outcome(call: Any) -> Any:
    """What *call* returns, or the kind of error that it ends in."""
    try:
        return call()
    except SpcompError as error:
        return type(error), error.message


def written(pick: random.Random, arrays: np.random.Generator, text: str) -> Case:
    """The program *text* with random operands of extents that are 0 or 1 as often as others."""
    case = Case(text, {index: pick.choice((0, 1, 1, 1, 1, 2, 3)) for index in "ijklm"})
    case.exact = False
    for name, indices in re.findall(r"([ABDxy])\[([^]]+)\]", text.split("=", 1)[1]):
        own = indices.split(", ")
        given = operand(pick, arrays, name, own, tuple(case.sizes[index] for index in own))
        if given.text != f"{name}[{indices}]" or name in case.args:
            continue
        kind = pick.choice(("dense", "compressed", "levels", "any"))
        if kind == "dense":
            given = given._replace(
                arg=given.values.copy(), stored=np.ones_like(given.stored), sparse=False
            )
        elif kind != "any":  # Tensors, which a plan takes for the same if their levels are
            chosen = spcomp.Format.parse(ROWS[len(own) - 1], len(own))
            chosen = chosen if kind == "compressed" else layout(pick, len(own))
            arg = tensor(given.values, given.stored, chosen)
            held = np.zeros(given.values.shape, bool)
            held[arg.coordinates()] = True
            given = given._replace(arg=arg, stored=held, sparse=not arg.layout.is_dense)
        case.args[name], case.arrays[name] = given.arg, (given.values, given.stored)
        case.sparse |= {name} if given.sparse else set()
    return case


def repeat(case: Case, pick: random.Random) -> None:
    """Call the program of *case* repeatedly; each result is that of a kernel called first."""
    kernel, arguments, arrays = case.kernel(), case.args, case.arrays
    steady = {name for name in arguments if pick.random() < 0.5}  # the same object every time
    for turn in range(CALLS):
        factor = pick.choice((1, 1, 1, 2, -1))
        case.args = {
            n: a if n in steady else relaid(pick, scaled(a, factor)) for n, a in arguments.items()
        }
        case.arrays = {
            n: (v if n in steady or np.isscalar(v) else scaled(np.asarray(v), factor), there)
            for n, (v, there) in arrays.items()
        }
        got = outcome(lambda: kernel(**case.arguments()))
        want = outcome(lambda: case.kernel()(**case.arguments()))
        about = f"call {turn}, {case}"
        if isinstance(want, tuple) and want and isinstance(want[0], type):
            assert got == want, about
            continue
        same(got, want, about)
        case.check(got, kernel)


@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
@pytest.mark.sample(3)
def test_a_repeated_call_of_a_random_program_returns_what_a_first_call_does(start):
    for seed in range(start, start + CHUNK):
        case = Small(seed).write()
        if not case.unclear:  # else the program is refused, as it should be
            repeat(case, random.Random(seed))


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.sample(8, long=3)
def test_a_repeated_call_returns_what_a_first_call_does(text):
    for seed in range(ROUNDS):
        pick = random.Random(f"{text} {seed}")
        case = written(pick, np.random.default_rng(seed), text)
        repeat(case, pick)
