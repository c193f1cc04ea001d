"""Draws the pictures of these pages and writes the pages that the code decides: run it in docs/."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import numpy as np

import spcomp
from spcomp import viz

HERE = Path(__file__).parent


def pictures() -> dict[str, str]:
    """Return the text of each picture by its path."""
    graph = nx.to_scipy_sparse_array(nx.karate_club_graph(), dtype=np.float32, format="csr")
    hyb = spcomp.formats.hyb(1, [1, 2, 4, 8], padded=True)
    return {
        "pictures/hyb.svg": viz.format(graph, hyb).svg,
    }


def files() -> dict[str, str]:
    """Return the text of all files that this module writes, by path."""
    return pictures()


def main() -> None:
    """Write all files."""
    for name, text in files().items():
        (HERE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
