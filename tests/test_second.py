"""Programs of the second generator, which knows the documentation alone (``tests/second``)."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tests.second import oracle
from tests.second import terms as t
from tests.second.comparison import Failure, compare
from tests.second.values import exact


def failures(seed: int, count: int) -> str:
    """Return what ``python -m tests.second`` prints of *count* programs, or "" if none fails."""
    command = [sys.executable, "-m", "tests.second", f"--seed={seed}", f"--count={count}"]
    done = subprocess.run([*command, "--shrink=5"], capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_random_programs_do_what_the_documentation_says():
    assert failures(0, 10) == ""


SEEDS = (0, 1_000, 2_000, 3_000, 10_000, 11_000, 12_000, 13_000)


@pytest.mark.long
@pytest.mark.sample(2, long=2)
@pytest.mark.parametrize("seed", SEEDS)
def test_hundreds_of_random_programs_do_what_the_documentation_says(seed):
    assert failures(seed, 25) == ""


def vector(name: str) -> t.Ref:
    return t.Ref(name, (t.Index("i"),))


def test_the_oracle_types_a_sum_as_its_parentheses_stand():
    scalar = oracle.Operand(exact(0.5, weak=0.5))
    tensors = {
        "a": scalar,
        "n": oracle.Operand(exact(np.int64([1, 2]))),
        "x": oracle.Operand(exact(np.float32([0.1, 0.2]))),
    }
    a, n, x = t.Ref("a"), vector("n"), vector("x")
    left = t.Op("-", (t.Op("-", (a, n)), x))
    right = t.Op("-", (a, t.Op("+", (n, x))))
    for value, dtype in ((left, "float64"), (right, "float32")):
        for target in (vector("C"), t.Ref("C")):
            found = oracle.assigned(t.Statement(target, value), tensors, ("+", "*"))
            assert found.dtype == dtype


def test_the_oracle_takes_a_sum_in_either_order():
    """Terms are added as written, or if one has a pattern, one by one without parentheses."""
    x, n, b = np.float32([-0.2]), np.int8([1]), np.array([-0.3])
    value = t.Op("-", (vector("b"), t.Op("-", (vector("x"), vector("n")))))
    written, flat = (b - (x - n))[0], (b - x + n)[0]
    for sparse in (False, True):
        tensors = {"b": oracle.Operand(exact(b)), "x": oracle.Operand(exact(x))}
        tensors["n"] = oracle.Operand(exact(n), sparse)
        found = oracle.assigned(t.Statement(vector("C"), value), tensors, ("+", "*"))
        for number in (written, flat):
            compare("C", np.array([number]), found, [0])
        with pytest.raises(Failure, match="value"):
            compare("C", np.array([written + 1e-3]), found, [0])


def test_a_crash_is_a_failure_with_its_seed(monkeypatch):
    from tests.second import __main__ as runner

    monkeypatch.setattr(runner, "CHILD", [sys.executable, "-c", CRASHING])
    tally = runner.Tally()
    runner.job(range(5, 8), 0.0, tally)
    assert [failure["kind"] for failure in tally.failures] == ["crash -6"]
    assert "--seed 6 " in tally.failures[0]["failure"]
    assert tally.programs == 3


def test_a_program_that_hangs_is_a_failure_with_its_seed(monkeypatch):
    from tests.second import __main__ as runner

    monkeypatch.setattr(runner, "CHILD", [sys.executable, "-c", HANGING])
    monkeypatch.setattr(runner, "PATIENCE", 2.0)
    tally = runner.Tally()
    runner.job(range(5, 6), 0.0, tally)
    assert [failure["kind"] for failure in tally.failures] == ["hang"]


CRASHING = """
import json, os, sys
seeds = range(*map(int, sys.argv[2].split(":")))
for seed in seeds:
    if seed == 6:
        os.abort()
    print(json.dumps({"refused": ""}), flush=True)
"""
HANGING = "import time; time.sleep(60)"
