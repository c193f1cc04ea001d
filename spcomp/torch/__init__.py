"""For users of PyTorch: its tensors to ours and back, operations with their gradients."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spcomp.tensors.torch import from_torch, to_torch
from spcomp.torch.composite import (
    scatter_log_softmax,
    scatter_logsumexp,
    scatter_softmax,
    scatter_std,
)
from spcomp.torch.graphs import (
    attention,
    edge_softmax,
    gat_attention,
    rgcn,
    sampled_matmul,
)
from spcomp.torch.inductor.register import register
from spcomp.torch.named import (
    scatter_add,
    scatter_max,
    scatter_mean,
    scatter_min,
    scatter_mul,
    scatter_sum,
    segment_add_coo,
    segment_add_csr,
    segment_max_coo,
    segment_max_csr,
    segment_mean_coo,
    segment_mean_csr,
    segment_min_coo,
    segment_min_csr,
    segment_sum_coo,
    segment_sum_csr,
)
from spcomp.torch.operations import (
    gather_coo,
    gather_csr,
    gather_scatter,
    scatter,
    sddmm,
    segment_coo,
    segment_csr,
    segment_reduce,
    spmm,
)
from spcomp.torch.operators import op

if TYPE_CHECKING:
    from spcomp.torch.inductor.backend import disable as disable
    from spcomp.torch.inductor.backend import enable as enable
    from spcomp.torch.inductor.backend import explain as explain
    from spcomp.torch.inductor.cache import empty_cache as empty_cache
    from spcomp.torch.inductor.cost import Costs as Costs

_HOME = {
    "Costs": "spcomp.torch.inductor.cost",
    "empty_cache": "spcomp.torch.inductor.cache",
    **dict.fromkeys(("disable", "enable", "explain"), "spcomp.torch.inductor.backend"),
}

__all__ = [
    "sampled_matmul",
    "rgcn",
    "gat_attention",
    "edge_softmax",
    "attention",
    "Costs",
    "disable",
    "empty_cache",
    "enable",
    "explain",
    "from_torch",
    "gather_coo",
    "gather_csr",
    "gather_scatter",
    "op",
    "scatter",
    "scatter_add",
    "scatter_log_softmax",
    "scatter_logsumexp",
    "scatter_max",
    "scatter_mean",
    "scatter_min",
    "scatter_mul",
    "scatter_softmax",
    "scatter_std",
    "scatter_sum",
    "sddmm",
    "segment_add_coo",
    "segment_add_csr",
    "segment_coo",
    "segment_csr",
    "segment_max_coo",
    "segment_max_csr",
    "segment_mean_coo",
    "segment_mean_csr",
    "segment_min_coo",
    "segment_min_csr",
    "segment_reduce",
    "segment_sum_coo",
    "segment_sum_csr",
    "spmm",
    "to_torch",
]

register()


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)  # torch.compile's modules load slowly


def __dir__() -> list[str]:
    return sorted(__all__)
