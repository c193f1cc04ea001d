"""Programs of the second generator, which knows the documentation alone (``tests/second``)."""

from __future__ import annotations

import subprocess
import sys

import pytest


def failures(seed: int, count: int) -> str:
    """Return what ``python -m tests.second`` prints of *count* programs, or "" if none fails."""
    command = [sys.executable, "-m", "tests.second", f"--seed={seed}", f"--count={count}"]
    done = subprocess.run([*command, "--shrink=5"], capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("seed", [0, 1000, 2000, 3000])
def test_random_programs_do_what_the_documentation_says(seed):
    assert failures(seed, 50) == ""


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10_000, 14_000, 1_000))
def test_hundreds_of_random_programs_do_what_the_documentation_says(seed):
    assert failures(seed, 100) == ""


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
