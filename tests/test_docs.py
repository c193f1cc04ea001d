"""The Python in README.md and docs/ runs: a page is typed in from top to bottom."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp

ROOT = Path(__file__).parents[1]
CSR = sps.random_array((34, 34), density=0.2, format="csr", dtype=np.float32, rng=0)
PAGES = ["README", "notation", "adjoints", "formats", "calling", "io", "sparsetir", "torch"]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def text_of(page: str) -> str:
    return (ROOT / (f"{page}.md" if page == "README" else f"docs/{page}.md")).read_text()


def run(block: str, path: Path, names: dict[str, object]) -> None:
    path.write_text(block)  # the script language reads its source
    exec(compile(block, str(path), "exec"), names)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    "page",
    [
        "README",
        "notation",
        "adjoints",
        "formats",
        "calling",
        "io",
        "sparsetir",
        "torch",
        "emulator",
        "gpu",
    ],
)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    """What a page does not say itself, it takes from the first block of the README, and says so.

    A piece of a program, which starts inside of it, is left out.
    """
    monkeypatch.chdir(tmp_path)
    text = text_of(page)
    names: dict[str, object] = {}
    if "of [the README]" in text or "of\n[the README]" in text:
        run(BLOCK.findall(text_of("README"))[0], tmp_path / "readme.py", names)
    if page in ("formats", "torch"):
        pytest.importorskip("torch")
    if page == "io":
        spcomp.write("matrix.mtx", CSR)
        spcomp.write("dense.mtx", np.ones((34, 64), np.float32))
        spcomp.write("tensor.tns.gz", spcomp.convert(np.ones((2, 2, 2)), "csf"))
    blocks = [block for block in BLOCK.findall(text) if not block.startswith("with T.")]
    for number, block in enumerate(blocks):
        run(block, tmp_path / f"{page}_{number}.py", names)
    assert blocks


BENCH = re.compile(r"spcomp bench (\S+) (\w+) --data A=(\S+)([^`\n]*)")


@pytest.mark.parametrize("page", ["README", "cli"])
def test_what_a_page_times_can_be_timed(page, tmp_path, monkeypatch):
    from click.testing import CliRunner

    from spcomp.cli.main import main

    monkeypatch.chdir(tmp_path)
    ((file, name, data, rest),) = BENCH.findall(text_of(page))
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text((ROOT / "examples" / "kernel.py").read_text())
    spcomp.write(data, CSR)
    rest = rest.replace(",mkl,torch", "")  # which are not everywhere
    arguments = ["bench", file, name, "--data", f"A={data}", *rest.split(), "--rounds", "2"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output


def test_what_the_walks_through_the_code_name_is_there():
    """Each ``package.module.function`` in ``docs/develop.md``, as modules of spcomp."""
    text = (ROOT / "docs/develop.md").read_text()
    packages = "|".join(path.parent.name for path in (ROOT / "spcomp").glob("*/__init__.py"))
    names = re.findall(rf"`((?:{packages})\.[\w.]+)`", text)
    assert len(names) > 20
    for name in names:
        assert pkgutil.resolve_name(f"spcomp.{name}"), name
