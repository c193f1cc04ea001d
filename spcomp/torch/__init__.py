"""For users of PyTorch: its tensors to ours and back, operations with their gradients."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spcomp.tensors.torch import from_torch, to_torch
from spcomp.torch.inductor.register import register
from spcomp.torch.operations import (
    gather_csr,
    gather_scatter,
    scatter,
    scatter_max,
    scatter_min,
    sddmm,
    segment_coo,
    segment_csr,
    segment_max_csr,
    segment_min_csr,
    spmm,
)
from spcomp.torch.operators import op

if TYPE_CHECKING:
    from spcomp.torch.inductor.backend import disable as disable
    from spcomp.torch.inductor.backend import enable as enable
    from spcomp.torch.inductor.backend import explain as explain
    from spcomp.torch.inductor.cost import Costs as Costs

_HOME = {
    "Costs": "spcomp.torch.inductor.cost",
    **dict.fromkeys(("disable", "enable", "explain"), "spcomp.torch.inductor.backend"),
}

__all__ = [
    "Costs",
    "disable",
    "enable",
    "explain",
    "from_torch",
    "gather_csr",
    "gather_scatter",
    "op",
    "scatter",
    "scatter_max",
    "scatter_min",
    "sddmm",
    "segment_coo",
    "segment_csr",
    "segment_max_csr",
    "segment_min_csr",
    "spmm",
    "to_torch",
]

register()


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)  # torch.compile's modules load slowly
