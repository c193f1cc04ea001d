"""For users of PyTorch: its tensors to ours and back, operations with their gradients."""

from spcomp.tensors.torch import from_torch, to_torch
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

__all__ = [
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
