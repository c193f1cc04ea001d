"""The tutorials as notebooks: text and code in cells, without outputs.

``python docs/notebooks.py SITE`` runs those of a built site, each in a kernel of Jupyter.
"""

from __future__ import annotations

import doctest
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(python|pycon)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PICTURE = re.compile(r"^!\[.*\]\(.*\)\n", re.MULTILINE)
LINK = re.compile(r"\[([^]]+)\]\((?!https?:)[^)]+\)")
DATA = """
import networkx as nx

graph = nx.to_scipy_sparse_array(nx.karate_club_graph(), dtype=np.float32, format="csr")
B = np.ones((34, 64), np.float32)
"""


def notebook(page: str) -> str:
    """Return the text of a notebook with what the Markdown text *page* says and runs.

    Its second cell has the program and the matrices that pages of the site take as known.
    """
    program = (ROOT / "examples" / "spmm.py").read_text(encoding="utf-8").split("def main")[0]
    title, _, rest = page.partition("\n")
    cells = [_cell("markdown", title), _cell("code", program.rstrip() + "\n" + DATA)]
    at = 0
    for match in FENCE.finditer(rest):
        cells += [_cell("markdown", rest[at : match.start()]), *_code(match[1], match[2])]
        at = match.end()
    cells.append(_cell("markdown", rest[at:]))
    shown = [cell | {"id": f"c{at}"} for at, cell in enumerate(cells) if cell["source"]]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    whole = {"cells": shown, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1) + "\n"


def _code(kind: str, text: str) -> list[dict[str, Any]]:
    """Return a cell for a listing, or one for each input of a conversation."""
    if kind == "python":
        return [_cell("code", text)]
    examples = doctest.DocTestParser().get_examples(text)
    return [_cell("code", example.source, fails=bool(example.exc_msg)) for example in examples]


def _cell(kind: str, text: str, *, fails: bool = False) -> dict[str, Any]:
    """Return a cell; *fails*: it shows an error, after which the notebook goes on."""
    if kind == "markdown":
        text = LINK.sub(r"\1", PICTURE.sub("", text))
    tags = {"tags": ["raises-exception"]} if fails else {}
    cell: dict[str, Any] = {"cell_type": kind, "metadata": tags, "source": text.strip()}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def main() -> None:
    """Run all notebooks of the site in the folder that is given; the first error ends it."""
    import nbformat
    from nbclient import NotebookClient

    for path in sorted((Path(sys.argv[1]) / "tutorials").glob("*.ipynb")):
        NotebookClient(nbformat.read(path, as_version=4), timeout=300).execute()
        print(f"{path.name} runs")


if __name__ == "__main__":
    main()
