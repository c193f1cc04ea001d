"""For graph learning: pytorch_scatter's functions that have a reduction in their names.

Those by ``min`` and ``max`` return the values, and which element each was.
"""

from __future__ import annotations

from functools import partial

import torch

from spcomp.torch.operations import scatter, scattered, segment_coo, segment_csr, segmented
from spcomp.torch.shapes import leading


def _least_or_greatest(
    src: torch.Tensor,
    index: torch.Tensor,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
    *,
    reduce: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    return scattered(src, index, leading("index", index, src), out, dim_size, reduce)


scatter_sum = scatter_add = partial(scatter, reduce="sum")
scatter_mul = partial(scatter, reduce="mul")
scatter_mean = partial(scatter, reduce="mean")
scatter_min = partial(scattered, reduce="min")
scatter_max = partial(scattered, reduce="max")
segment_sum_csr = segment_add_csr = partial(segment_csr, reduce="sum")
segment_mean_csr = partial(segment_csr, reduce="mean")
segment_min_csr = partial(segmented, reduce="min")
segment_max_csr = partial(segmented, reduce="max")
segment_sum_coo = segment_add_coo = partial(segment_coo, reduce="sum")
segment_mean_coo = partial(segment_coo, reduce="mean")
segment_min_coo = partial(_least_or_greatest, reduce="min")
segment_max_coo = partial(_least_or_greatest, reduce="max")
