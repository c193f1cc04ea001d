"""``SPCOMP_LOG=1``: first calls say what they compile and learn, others say nothing."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp

A = sps.random(50, 60, 0.1, "csr", dtype="float32", rng=np.random.default_rng(1))


def said(capsys):
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("spcomp: ") for line in lines)
    return "\n".join(lines)


def test_first_calls_say_what_they_compile_and_learn(monkeypatch, capsys):
    monkeypatch.setenv("SPCOMP_LOG", "1")
    kernel = spcomp.compile("y[i] = 3.25 * A[i, j] * x[j]")
    args = {"A": A, "x": np.ones(60, "float32")}
    assert not said(capsys)
    kernel(**args)
    first = said(capsys)
    assert "is planned for A: csr_matrix csr float32, x: ndarray float32" in first
    assert "lowered to LLVM IR in " in first or "read from the cache on disk" in first
    assert " bytes of machine code, " in first
    kernel(**args)
    assert "call 2 of a kind is learned" in said(capsys)
    kernel(**args)
    assert not said(capsys)


def test_what_cannot_be_learned_says_why(monkeypatch, capsys):
    monkeypatch.setenv("SPCOMP_LOG", "1")
    kernel = spcomp.compile("y[i] = 3.5 * A[i, j] * x[j]")
    for _ in range(2):
        kernel(A=A, x=np.ones((60, 2), "float32")[:, 0])
    assert "call 2 of a kind takes the full way, as others will: x is converted" in said(capsys)


@pytest.mark.parametrize("value", [None, "", "0"])
def test_nobody_who_does_not_ask_is_told(monkeypatch, capsys, value):
    if value is None:
        monkeypatch.delenv("SPCOMP_LOG", raising=False)
    else:
        monkeypatch.setenv("SPCOMP_LOG", value)
    kernel = spcomp.compile("y[i] = 3.75 * A[i, j] * x[j]")
    kernel(A=A, x=np.ones(60, "float32"))
    assert not capsys.readouterr().err
