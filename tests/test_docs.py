"""The Python in README.md and docs/ runs: a page is typed in from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import script
from tests.layers import source

ROOT = Path(__file__).parents[1]
CSR = sps.random_array((34, 34), density=0.2, format="csr", dtype=np.float32, rng=0)
DENSE = np.ones((34, 64), np.float32)
X = np.ones(34, np.float32)
SPMV = """from spcomp import script as T

@T.prim_func
def spmv(a: T.handle, x: T.handle, y: T.handle, indptr: T.handle, indices: T.handle,
         m: T.int32, n: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    J_detach = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    X = T.match_sparse_buffer(x, (J_detach,), "float32")
    Y = T.match_sparse_buffer(y, (I,), "float32")
    with T.sp_iter([I, J], "SR", "spmv") as [i, j]:
        with T.init():
            Y[i] = 0.0
        Y[i] = Y[i] + A[i, j] * X[j]
"""


def names_of(page: str) -> dict[str, object]:
    """What a page takes for granted: a matrix, dense arrays, a program, and its arguments."""
    spmm = source("csrmm")
    known: dict[str, object] = {
        "spcomp": spcomp, "csr": CSR, "csc": CSR.tocsc(), "dense": DENSE, "b": DENSE, "B": DENSE,
        "x": X, "z": X, "program": spmm, "spmm": spmm, "csrmm": spmm, "a": CSR.data,
        "kernel": spcomp.compile(spmm), "c": np.empty((34, 64), np.float32),
        "y": np.empty(34, np.float32),
        "indptr": CSR.indptr, "indices": CSR.indices, "m": 34, "n": 34, "feat": 64, "nnz": CSR.nnz,
    }  # fmt: skip
    if page == "formats":
        (known["spmv"],) = script.parse.parse_source(SPMV, "spmv.py")
        known |= {
            "rows": [0, 1, 1],
            "columns": [1, 0, 1],
            "m": 2,
            "n": 2,
            "values": np.array([1.0, 2, 3]),
        }
    if page == "calling":
        known |= {"shape": (34, 34), "levels": [None, ("compressed", CSR.indptr, CSR.indices)]}
        known["values"] = CSR.data
    return known


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("page", ["README", "notation", "formats", "calling", "io", "sparsetir"])
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    """Blocks with dots in the place of something, or inside of a program, are left out."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / (f"{page}.md" if page == "README" else f"docs/{page}.md")).read_text()
    names, ran = names_of(page), 0
    if page == "formats":
        pytest.importorskip("torch")
    if page == "io":
        spcomp.write("matrix.mtx", CSR)
        spcomp.write("dense.mtx", DENSE)
        spcomp.write("tensor.tns.gz", spcomp.convert(np.ones((2, 2, 2)), "csf"))
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL)):
        if block.startswith("with T.") or re.search(r"\(\.\.\.|, \.\.\.", block):
            continue
        if page == "formats":  # where a name means something else in each block
            names = names_of(page) | ({"x": CSR} if "convert(x" in block else {})
        path = tmp_path / f"{page}_{number}.py"  # the script language reads its source
        path.write_text(block)
        exec(compile(block, str(path), "exec"), names)
        ran += 1
    assert ran
