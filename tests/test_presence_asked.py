"""Conditions that ask what is stored beside values: as three-valued logic has it, or refused."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ScriptError

RNG = np.random.default_rng(3)
ONES = np.ones((4, 5))
M, N = (RNG.integers(1, 5, (4, 5)) * (RNG.random((4, 5)) < 0.5) * 1.0 for _ in range(2))
X = RNG.integers(1, 5, (4, 5)) * 1.0
GIVEN = {"M": sps.csr_array(M), "N": sps.csr_array(N), "X": X, "Y": ONES}
ABSENT = np.float64("nan")  # neither 0, false, nor 1, true
ATOMS = {
    "M[i, j] is None": (M == 0) * 1.0,
    "M[i, j] is not None": (M != 0) * 1.0,
    "stored(N[i, j])": (N != 0) * 1.0,
    "M[i, j] > 2": np.where(M != 0, M > 2, ABSENT),
    "N[i, j] > 2": np.where(N != 0, N > 2, ABSENT),
    "X[i, j] > 2": (X > 2) * 1.0,
}
PAIRS = [
    (f"{one} {op} {other}", op, ATOMS[one], ATOMS[other])
    for op, (one, other) in product(("and", "or", "&", "|"), product(ATOMS, ATOMS))
    if one[:7] != other[:7] or one != other
]


def joined(op: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Kleene's logic: what is not known matters only where it would decide."""
    if op in ("or", "|"):
        return np.where((a == 1) | (b == 1), 1, a + b)
    return np.where((a == 0) | (b == 0), 0, a * b)


def spelled(text: str, op: str) -> str:
    """``&`` and ``|`` bind more closely than comparisons."""
    return text if op in ("and", "or") else f"({text.replace(f' {op} ', f') {op} (')})"


@pytest.mark.parametrize("form", ["{}", "not ({})"])
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0])
@pytest.mark.sample(8, long=3)
def test_a_condition_holds_where_three_valued_logic_says_so_or_is_refused(pair, form):
    text, op, a, b = pair
    asks = "stored" in text or "None" in text
    kernel = spcomp.compile(f"C[i, j] = Y[i, j] if {form.format(spelled(text, op))} else 0")
    try:
        found = kernel(**{name: GIVEN[name] for name in kernel.arguments})
    except ScriptError as error:
        assert asks
        assert " if " in error.hint  # noqa: PT017 (either answer is right)
        return
    if asks:
        known = joined(op, a, b)
        np.testing.assert_array_equal(found, known == (0 if form == "not ({})" else 1))


REFUSED = {
    "M[i, j] is None or M[i, j] > 2": "(True if M[i, j] is None else M[i, j] > 2)",
    "M[i, j] > 2 or M[i, j] is None": "(True if M[i, j] is None else M[i, j] > 2)",
    "not (M[i, j] is not None and N[i, j] > 2)": "(N[i, j] > 2 if M[i, j] is not None else False)",
    "(M[i, j] is None and M[i, j] > 2) or N[i, j] is None": (
        "(True if N[i, j] is None else not stored(M[i, j]) and M[i, j] > 2)"
    ),
}


@pytest.mark.parametrize("cond", REFUSED)
def test_what_an_absent_value_would_drown_is_refused_and_the_hint_runs(cond):
    kernel = spcomp.compile(f"C[i, j] = Y[i, j] if {cond}")
    given = {name: GIVEN[name] for name in kernel.arguments}
    with pytest.raises(ScriptError, match="would decide nothing") as caught:
        kernel(**given)
    assert caught.value.span is not None
    assert REFUSED[cond] in caught.value.hint
    negation = "not " if cond.startswith("not") else ""
    written = f"{negation}{caught.value.hint.removeprefix('write ')}"
    found = spcomp.compile(f"C[i, j] = Y[i, j] if {written}")(**given)
    want = {
        "M": (M == 0) | (M > 2),
        "not": (M == 0) | ((N != 0) & ~(N > 2)),
        "(M": N == 0,
    }[cond.split("[", maxsplit=1)[0].split()[0]]
    np.testing.assert_array_equal(spcomp.convert(found, "dense"), want)
    dense = {name: getattr(own, "toarray", lambda own=own: own)() for name, own in given.items()}
    kernel(**dense)  # has one meaning


def test_where_does_not_choose_by_what_is_stored_between_values_that_may_be_absent():
    with pytest.raises(ScriptError, match="decides nothing in where") as caught:
        spcomp.compile("C[i, j] = where(M[i, j] is None, 5, M[i, j])")(M=GIVEN["M"])
    assert "write 5 if M[i, j] is None else M[i, j]" in caught.value.hint
    found = spcomp.compile("C[i, j] = 5 if M[i, j] is None else M[i, j]")(M=GIVEN["M"])
    np.testing.assert_array_equal(found, np.where(M == 0, 5, M))
    found = spcomp.compile("C[i, j] = where(M[i, j] is None, 5, X[i, j])")(M=GIVEN["M"], X=X)
    np.testing.assert_array_equal(found, np.where(M == 0, 5, X))


def test_reductions_that_tell_false_from_absent_refuse_it():
    text = "z[i] = {}(j, M[i, j] is not None and M[i, j] > 2)"
    assert spcomp.compile(text.format("any"))(M=GIVEN["M"]).tolist() == (M > 2).any(1).tolist()
    with pytest.raises(ScriptError, match="would decide nothing"):
        spcomp.compile(text.format("all"))(M=GIVEN["M"])
