"""The examples in the documentation of schedules: each runs, and every step has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import spcomp.schedule
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.steps.base import STEPS
from spcomp.script.parse import parse_source
from tests import softmax_program
from tests.layers import source

MIXINS = [
    importlib.import_module(f"spcomp.schedule.{found.name}")
    for found in pkgutil.iter_modules(spcomp.schedule.__path__)
    if found.name.startswith("primitives_") or found.name == "queries"
]
EXAMPLES = [
    example
    for module in MIXINS
    for example in doctest.DocTestFinder(recurse=True).find(module)
    if example.examples
]
METHODS = {
    name: method
    for _, cls in inspect.getmembers(Schedule)
    if inspect.isfunction(cls)
    for name, method in [(cls.__name__, cls)]
    if not name.startswith("_") and method.__module__ in {module.__name__ for module in MIXINS}
}
ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "schedules.md").read_text()
WORKSPACE = """from spcomp import script as T

@T.prim_func
def clear(a: T.handle, m: T.int32, n: T.int32) -> None:
    T.func_attr({"sparse_tir_level": 1})
    A = T.match_buffer(a, (m, n), "float32")
    for i in T.serial(m):
        W = T.alloc_buffer((n,), "float32", scope="workspace")
        for j in T.serial(n):
            A[i, j] = W[j]
"""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name.split(".")[-1])
def test_an_example_prints_what_it_says(example):
    """``stage1`` and ``stage2`` are csrmm, over i, j and k; ``coo`` runs over single entries."""
    stage1 = Schedule(source("csrmm"))
    example.globs |= {"stage1": stage1, "stage2": stage1.lower_sparse_iter()}
    example.globs["coo"] = Schedule(source("coo_spmm")).lower_sparse_iter()
    example.globs["sddmm"] = Schedule(source("sddmm")).lower_sparse_iter()
    text = source("csrmm").script().replace("A[i, j] *", "T.exp(A[i, j]) *")
    weighted = parse_source(text, "weighted.py")[0]
    example.globs["weighted"] = Schedule(weighted).lower_sparse_iter()
    example.globs["spmv"] = Schedule(source("spmv")).lower_sparse_iter()
    example.globs["softmax"] = softmax_program.rows()
    example.globs["masked"] = Schedule(source("masked_total")).lower_sparse_iter()
    example.globs["workspace"] = Schedule(parse_source(WORKSPACE, "clear.py")[0])
    out: list[str] = []
    failed = doctest.DocTestRunner().run(example, out=out.append).failed
    assert not failed, "".join(out)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_a_schedule_shows_an_example(name):
    assert ">>>" in inspect.getdoc(METHODS[name])


@pytest.mark.parametrize("name", STEPS)
def test_every_step_says_what_becomes_of_a_program(name):
    assert "->" in inspect.getdoc(STEPS[name])


@pytest.mark.parametrize("name", [*STEPS, *METHODS])
def test_the_page_on_schedules_names_every_step_and_question(name):
    assert f"`{name}(" in PAGE or f"`{name}`" in PAGE


def test_the_readme_counts_the_steps():
    assert f"{len(STEPS)} steps" in (ROOT / "README.md").read_text()
