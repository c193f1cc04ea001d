"""Draws the pictures of these pages and writes those that the code decides: run it as it is."""

from __future__ import annotations

import inspect
import linecache
import re
import sys
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import networkx as nx
import numpy as np

import spcomp
from spcomp import errors, viz
from spcomp.errors import SpcompError
from spcomp.schedule.steps.base import Step
from spcomp.schedule.steps.catalog import STEPS

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import drawings  # noqa: E402 - the modules beside this one
import grammar  # noqa: E402

KINDS = {
    "iterations": "Iterations, before there are loops",
    "loops": "Loops",
    "sharing": "Loops over sparse rows, shared among threads",
    "blocks": "Blocks, copies, reductions",
    "tensor": "Micro-kernels",
}
CALL = """\
kernel = spcomp.compile("C[i, k] = A[i, j] * B[j, k]")
"""
SCRIPT = """\
@T.prim_func
def f(x: T.handle, n: T.int32) -> None:
    I = T.dense_fixed(n)
    X = T.match_sparse_buffer(x, (I,), "float32")
"""
CASES = (
    ("An argument does not fit", CALL + "kernel(A=graph, B=np.ones((3, 8), np.float32))",
     "Compare the shapes. `n_j` is the length of the index `j`, which `A` gave."),
    ("An argument is missing, or has another name", CALL + "kernel(A=graph, X=B)",
     "Names are those of the program; `kernel.signature` lists them."),
    ("A type does not fit", "spcomp.compile(csrmm)(A=graph.astype(np.float64), B=B)",
     "A script declares its types: convert the argument, or change the script. Index notation takes all types."),
    ("Index notation that cannot be read", 'spcomp.compile("y[i] = A[i, j] * x[k")', "The caret is where reading ended."),
    ("A name that is not declared", SCRIPT + """\
    with T.sp_iter([I], "S", "f") as [i]:
        X[i] = Z[i] + 1.0""", "Declare the buffer with `T.match_buffer` or `T.match_sparse_buffer`."),
    ("An axis without a parent", """\
@T.prim_func
def f(x: T.handle, p: T.handle, q: T.handle, n: T.int32, nnz: T.int32) -> None:
    J = T.sparse_variable(None, (n, nnz), (p, q), "int32")""", "A tree of axes begins with `T.dense_fixed`."),
    ("A step that would change the result", 'spcomp.Schedule(csrmm).lower_sparse_iter().parallel("j")',
     "Choose another loop, or first a step that makes this one legal, such as `rfactor` or an `atomic` annotation."),
    ("A loop that does not exist", 'spcomp.Schedule(csrmm).lower_sparse_iter().unroll("x")',
     "`sch.loops` lists the loops; `sch.made` those that the last step made."),
    ("A format that does not exist", 'spcomp.convert(graph, "cssr")', "The hint lists the names."),
    ("Index arrays that are wrong", """\
indices = graph.indices.copy()
indices[3] = 99
spcomp.compile(csrmm)(A=type(graph)((graph.data, indices, graph.indptr), shape=(34, 34)), B=B)""",
     "The matrix is damaged: it has no column 99. Calls check index arrays, so that nothing is read out of bounds."),
    ("A file that breaks its format", """\
Path("bad.mtx").write_text("%%MatrixMarket matrix coordinate real general\\n2 2 1\\n3 1 1.0\\n")
spcomp.read("bad.mtx")""", "The message has the line of the file."),
)  # fmt: skip


def pictures() -> dict[str, str]:
    """Return the text of each picture by its path."""
    hyb = spcomp.formats.hyb(1, [1, 2, 4, 8], padded=True)
    drawn = {
        "pictures/hyb.svg": viz.format(_graph(), hyb).svg,
        "pictures/csrmm.svg": viz.forest(_csrmm()).svg,
        "pictures/merge.svg": drawings.merge(),
        "pictures/assembly.svg": drawings.assembly(),
        "pictures/shared.svg": drawings.shared(),
        **drawings.stages(),
        **drawings.steps(_tutorial()),
    }
    return {path: _on_white(text) for path, text in drawn.items()}


def _on_white(svg: str) -> str:
    """Return the picture *svg* on white: a page may be dark where the reader's system is not."""
    light = re.sub(r"@media\(prefers-color-scheme:dark\)\{.*?\}(?=text\.on|<)", "", svg)
    white = '</style>\n<rect width="100%" height="100%" fill="#fff"/>'
    return light.replace("</style>", white, 1)


def _tutorial() -> spcomp.Schedule:
    """Return the schedule that the tutorial on schedules makes, by running what it shows."""
    text = (HERE / "tutorials" / "schedules.md").read_text(encoding="utf-8")
    names = {"csrmm": _csrmm(), "graph": _graph(), "B": np.ones((34, 64), np.float32)}
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        with redirect_stdout(StringIO()):
            exec(block, names)
    made: spcomp.Schedule = names["final"]
    return made


def steps() -> str:
    """Return the page of all steps of schedules, from their docstrings."""
    lines = [
        "# The steps of schedules",
        "",
        f"All {len(STEPS)} steps: methods of `Schedule`, with what stands before and after the arrow.",
        "What is common to them, and what is refused and why, is on the page [schedules](schedules.md).",
        "This page is generated from the code.",
        "",
        "```python",
        'sch = spcomp.Schedule(csrmm).lower_sparse_iter().parallel("i")',
        "print(sch.trace)",
        "```",
    ]
    for folder, title in KINDS.items():
        lines += ["", f"## {title}"]
        for name, step in sorted(STEPS.items()):
            if step.__module__.split(".")[-2] == folder:
                lines += _step(name, step)
    return "\n".join(lines) + "\n"


def _step(name: str, step: type[Step]) -> list[str]:
    method = getattr(spcomp.Schedule, name, None)
    text = inspect.getdoc(step) or ""
    call = f"{name}{_parameters(method)}" if method else name
    return ["", f"### {name}", "", f"`{call}`", "", _markdown(text)]


def _parameters(method: Any) -> str:
    whole = inspect.signature(method)
    shown = [p.replace(annotation=p.empty) for p in list(whole.parameters.values())[1:]]
    return str(inspect.Signature(shown))


def _markdown(text: str) -> str:
    """Return a docstring's *text* as Markdown: code stands between single backquotes."""
    return text.replace("``", "`")


def error_page() -> str:
    """Return the page of errors: the classes, and what the commonest ones say."""
    lines = [
        "# Errors",
        "",
        "A mistake that you can mend raises a `SpcompError`, which shows the place in your file, what is wrong, and what",
        "to do about it. Python itself says where a function, or an argument of one, does not exist (AttributeError, TypeError). Any",
        "other exception is a bug of spcomp. This page is generated from the code: its messages are real ones.",
        "",
        "| class of `spcomp.errors` | is also | what it means |",
        "|---|---|---|",
    ]
    for name, kind in sorted(vars(errors).items()):
        if isinstance(kind, type) and issubclass(kind, SpcompError | errors.SpcompWarning):
            bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
            first = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
            lines.append(f"| `{name}` | {bases} | {_markdown(first)} |")
    lines += [
        "",
        "```python",
        "try:",
        '    spcomp.compile("y[i] = A[i, j] *")',
        "except spcomp.errors.SpcompError as error:",
        "    print(error.message, error.span, error.hint)",
        "```",
        "",
        "The traceback has the lines of your own files, and the last one of spcomp; with `SPCOMP_DEBUG=1` it has all.",
    ]
    for title, code, advice in CASES:
        kind, message = _raised(code)
        lines += ["", f"## {title}", "", "```python fragment", code, "```", ""]
        lines += ["```", f"{kind}: {message}", "```", "", advice]
    return "\n".join(lines) + "\n"


def _raised(code: str) -> tuple[str, str]:
    """Return the class and the text of the error that *code*, a file of its own, raises."""
    linecache.cache["kernel.py"] = (len(code), None, code.splitlines(keepends=True), "kernel.py")
    names = {
        "np": np,
        "spcomp": spcomp,
        "T": spcomp.script,
        "csrmm": _csrmm(),
        "Path": Path,
        "graph": _graph(),
    }
    names["B"] = np.ones((34, 64), np.float32)
    try:
        with TemporaryDirectory() as folder, chdir(folder):
            exec(compile(code, "kernel.py", "exec"), names)
    except SpcompError as error:
        return type(error).__name__, str(error)
    raise AssertionError(f"no error:\n{code}")


def _graph() -> Any:
    return nx.to_scipy_sparse_array(nx.karate_club_graph(), dtype=np.float32, format="csr")


def _csrmm() -> Any:
    from examples.spmm import csrmm

    return csrmm


def files() -> dict[str, str]:
    """Return the text of all files that this module writes, by path."""
    return {**pictures(), "steps.md": steps(), "errors.md": error_page(), "ir.md": grammar.page()}


def main() -> None:
    """Write all files."""
    for name, text in files().items():
        (HERE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
