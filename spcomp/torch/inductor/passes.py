"""Before inductor parts a graph into forward and backward: the pass that inserts our kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass, get_custom_graph_passes

import spcomp
from spcomp.torch.inductor.cost import USUAL, Costs
from spcomp.torch.inductor.rewrite import Finding, rewrite


class Pass(CustomGraphPass):  # type: ignore[misc]
    """What inductor calls on a graph before it is parted into forward and backward."""

    def __init__(
        self, costs: Costs = USUAL, heard: Callable[[list[Finding]], None] | None = None
    ) -> None:
        self.costs = costs
        self._heard = heard

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Replace the aggregations in *graph*."""
        findings = rewrite(graph, self.costs)
        if self._heard is not None:
            self._heard(findings)

    def uuid(self) -> str:
        """Return what compiled graphs in torch's caches depend on."""
        return f"spcomp {spcomp.__version__} {_hash()} {self.costs}"


@cache
def _hash() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def passes() -> list[Any]:
    """Return the passes of what inductor compiles now."""
    return list(get_custom_graph_passes(config.joint_custom_pre_pass))


def is_ours() -> bool:
    """Whether what inductor compiles now is for this backend."""
    return any(isinstance(known, Pass) for known in passes())
