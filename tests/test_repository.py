"""The repository keeps its own rules: sizes, docstrings, versions, and commands that are run."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import spcomp

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "spcomp").rglob("*.py"))
SOURCES = [
    *MODULES,
    *sorted((ROOT / "examples").glob("*.py")),
    *sorted((ROOT / "tests").glob("*.py")),
]
README = (ROOT / "README.md").read_text()
CI = (ROOT / ".ci" / "run").read_text()


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def commands(text: str) -> list[str]:
    """The shell commands of a document, comments dropped."""
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    lines = (line.split("  #")[0].strip() for block in blocks for line in block.splitlines())
    return [line for line in lines if line]


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_module_is_over_500_lines(path):
    assert len(path.read_text().splitlines()) <= 500


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_function_is_over_60_lines(path):
    long = [f.name for f in functions(path) if (f.end_lineno or 0) - f.lineno + 1 > 60]
    assert not long


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_says_where_it_stands(path):
    docstring = ast.get_docstring(ast.parse(path.read_bytes()))
    assert docstring, "a module starts with a docstring"
    assert docstring.splitlines()[0].endswith((".", ":", "?")), "its first line is a sentence"


def test_every_folder_with_modules_is_a_package():
    assert {path.parent for path in MODULES} == {
        path.parent for path in MODULES if path.name == "__init__.py"
    }


HAND_ON = {"spcomp/locks.py"}  # catch what is raised on one thread, to raise it on another


def test_no_module_catches_every_exception():
    found = [
        f"{name_of(path)}:{node.lineno}"
        for path in MODULES
        if name_of(path) not in HAND_ON
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or ast.unparse(node.type) in ("Exception", "BaseException"))
    ]
    assert not found


def test_the_version_is_said_once_in_each_place():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    newest = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert setup["metadata"]["version"] == spcomp.__version__ == newest[1]
    assert f"\nversion: {spcomp.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_readme_commands_are_run_by_ci():
    lines = [line.strip() for line in CI.splitlines()]
    missing = [
        c
        for c in commands(README)
        if c.replace("examples/kernel.py", "kernel.py") not in lines and c not in lines
    ]
    assert commands(README)
    assert not missing


def test_the_readme_says_both_commands_and_an_example_on_its_first_screen():
    first = "\n".join(README.splitlines()[:40])
    assert "pip install ." in first
    assert "pytest" in first
    assert "@T.prim_func" in first
    assert "spcomp.compile" in first


def test_the_readme_links_to_files_that_exist():
    for document in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name}: {link}"


def test_the_site_has_every_page_in_its_navigation():
    listed = re.findall(r"[\w/]+\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(listed) == sorted(pages)


def test_importing_spcomp_loads_nothing_heavy():
    heavy = ["llvmlite", "networkx", "numba", "scipy", "torch", "rich", "click"]
    code = f"import spcomp, sys; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert run.stdout.strip() == "[]", run.stderr


def test_the_configuration_names_no_layer_that_the_design_forbids():
    setup = (ROOT / "setup.cfg").read_text()
    assert setup.count("type = layers") >= 10
    for package in ("llvmlite", "networkx", "numba", "scipy"):
        assert f"forbidden_modules = {package}" in setup
