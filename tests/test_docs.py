"""What README.md and the pages of docs/ show is run, from top to bottom, and does what they say."""

from __future__ import annotations

import doctest
import json
import pkgutil
import re
import runpy
import shutil
import subprocess
import textwrap
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import viz
from spcomp.codegen.nvvm.machine import PTX
from spcomp.compiler.backends import BACKENDS
from spcomp.formats.levels import LEVELS
from spcomp.knobs import KNOBS
from spcomp.schedule.steps.catalog import STEPS
from spcomp.tensors.conversions.levels import _MAKE
from spcomp.tensors.levels import _CHECKS

ROOT = Path(__file__).parents[1]
CSR = sps.random_array((34, 34), density=0.2, format="csr", dtype=np.float32, rng=0)
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
NEEDED = {"formats": pytest.mark.torch, "torch": pytest.mark.torch, "dask": pytest.mark.dask}
KINDS = "python fragment|python torch|python|pycon|bash|json|c|"
NEEDED_MODULES = ("spcomp.torch", "spcomp.dask")
BLOCK = re.compile(rf"^( *)```({KINDS})\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
PIXELS = re.compile('base64,[^"]+')  # compressed as this version of zlib does it
PROGRAM = (ROOT / "examples" / "spmm.py").read_text().split("def main")[0]  # as in the README


@pytest.fixture
def session(tmp_path, monkeypatch):
    """The names that a page uses: the README's program and graph; files lie in the folder."""
    monkeypatch.chdir(tmp_path)
    spcomp.write("matrix.mtx", CSR)
    spcomp.write("dense.mtx", np.ones((34, 64), np.float32))
    spcomp.write("tensor.tns.gz", spcomp.convert(np.ones((2, 2, 2)), "csf"))
    names: dict[str, Any] = {
        "graph": nx.to_scipy_sparse_array(nx.karate_club_graph(), dtype=np.float32, format="csr"),
        "B": np.ones((34, 64), np.float32),
    }
    run(PROGRAM, names, tmp_path / "readme.py")
    tables = [(table, {**table}) for table in (STEPS, LEVELS, _CHECKS, _MAKE, BACKENDS, KNOBS)]
    yield names
    for table, before in tables:  # docs/extend.md adds to them
        table.clear()
        table.update(before)


def run(text: str, names: dict[str, Any], path: Path) -> None:
    path.write_text(text)  # the script language reads its source
    exec(compile(text, str(path), "exec", dont_inherit=True), names)


def converse(text: str, names: dict[str, Any]) -> None:
    """Type in the inputs of *text* and compare what is printed."""
    test = doctest.DocTestParser().get_doctest(text, names, "page", None, 0)
    out: list[str] = []
    failed = (
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        .run(test, out=out.append, clear_globs=False)
        .failed
    )
    assert not failed, "".join(out)
    names.update(test.globs)


def page_of(path: Path) -> Any:
    name = "/".join(path.with_suffix("").parts[len(ROOT.parts) :])
    return pytest.param(path, marks=NEEDED.get(path.stem, ()), id=name)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("page", [page_of(path) for path in PAGES])
@pytest.mark.sample(16)
def test_what_a_page_shows_happens(page, session, tmp_path):
    """Blocks run in order, as one session; a ``python fragment`` is a piece of a program.

    One that is marked ``python torch`` runs where there is PyTorch.
    """
    text = page.read_text()
    blocks = BLOCK.findall(text)
    assert 2 * len(blocks) == len(re.findall("^ *```", text, re.MULTILINE))  # all kinds are known
    for number, (_, kind, indented) in enumerate(blocks):
        block = textwrap.dedent(indented)
        if kind == "python" or (kind == "python torch" and find_spec("torch")):
            run(block, session, tmp_path / f"block_{number}.py")
        elif kind == "pycon":
            converse(block, session)


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/tutorials/*.md")), ids=lambda p: p.stem)
def test_a_tutorial_is_a_notebook_that_stands_alone(page):
    """CI runs them in Jupyter (``docs/notebooks.py``)."""
    write = runpy.run_path(str(ROOT / "docs" / "notebooks.py"))["notebook"]
    cells = json.loads(write(page.read_text()))["cells"]
    code = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
    assert "def csrmm" in code[0]
    assert len(code) > 4
    assert not [cell for cell in cells if "](" in cell["source"] and "/pictures/" in cell["source"]]
    assert not [text for text in code if text.startswith(">>>")]


BENCH = re.compile(r"spcomp bench (\S+) (\w+) --data A=(\S+)([^`\n]*)")


@pytest.mark.parametrize("page", [PAGES[0], ROOT / "docs/cli.md"])
def test_what_a_page_times_can_be_timed(page, tmp_path, monkeypatch):
    from click.testing import CliRunner

    from spcomp.cli.main import main

    monkeypatch.chdir(tmp_path)
    ((file, name, data, rest),) = BENCH.findall(page.read_text())
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text((ROOT / "examples" / "kernel.py").read_text())
    spcomp.write(data, CSR)
    rest = rest.replace(",mkl,torch", "")  # which are not everywhere
    arguments = ["bench", file, name, "--data", f"A={data}", *rest.split(), "--rounds", "2"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_recipe_for_c_prints_what_it_says(tmp_path):
    from click.testing import CliRunner

    from spcomp.cli.main import main

    text = (ROOT / "docs" / "howto.md").read_text()
    code, command, printed = re.search(
        r"```c\n(.*?)```.*?```bash\n(cc .*?) +# prints (.*?)\n", text, re.DOTALL
    ).groups()
    (tmp_path / "main.c").write_text(code)
    build = ["build", str(ROOT / "examples/kernel.py"), "csrmm", "--emit", "so,header", "-o"]
    assert CliRunner().invoke(main, [*build, str(tmp_path / "out")]).exit_code == 0
    run = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert run.stdout == f"{printed}\n", run.stderr


@pytest.mark.torch  # some modules are for it
def test_what_the_walks_through_the_code_name_is_there():
    """Each ``package.module.function`` in ``docs/develop.md``, as modules of spcomp."""
    text = (ROOT / "docs/develop.md").read_text()
    packages = "|".join(path.parent.name for path in (ROOT / "spcomp").glob("*/__init__.py"))
    names = re.findall(rf"`((?:{packages})\.[\w.]+)`", text)
    assert len(names) > 20
    for name in names:
        assert pkgutil.resolve_name(f"spcomp.{name}"), name


def test_the_front_page_shows_the_stages_as_they_are(session):
    shown = re.findall(
        r"```python fragment\n(.*?)```", textwrap.dedent((ROOT / "docs/index.md").read_text()), re.S
    )
    loops = spcomp.Schedule(session["csrmm"]).lower_sparse_iter()
    for text, sch in zip(shown, (loops, loops.lower_sparse_buffer()), strict=True):
        lines = sch.func.script().split("n - 1])\n")[1].splitlines()
        left_out = ("T.reads", "T.writes", "T.block_attr")
        kept = [line for line in lines if not line.strip().startswith(left_out)]
        assert textwrap.dedent(text).split() == " ".join(kept).split()


def test_the_reference_has_all_public_names():
    listed = re.findall(r"^::: (spcomp[\w.]+)", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    things = [pkgutil.resolve_name(name) for name in listed if name not in NEEDED_MODULES]
    inside = {name for thing in things if isinstance(thing, ModuleType) for name in vars(thing)}
    for package in (spcomp, viz):
        public = {n for n in package.__all__ if not isinstance(getattr(package, n), ModuleType)}
        assert public - {name.split(".")[-1] for name in listed} - inside <= {"__version__"}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_no_page_is_without_an_example(page):
    assert re.search("```(python|pycon|bash)", page.read_text()) or "::: spcomp" in page.read_text()


def test_the_page_on_gpus_names_all_that_there_is_code_for():
    text = (ROOT / "docs/gpu.md").read_text()
    assert all(f"`{name}`" in text for name in PTX)


def test_pictures_and_generated_pages_are_those_of_the_code():
    for name, text in runpy.run_path(str(ROOT / "docs" / "generate.py"))["files"]().items():
        written = (ROOT / "docs" / name).read_text()
        assert PIXELS.sub("", written) == PIXELS.sub("", text), (
            f"run python docs/generate.py: {name}"
        )
