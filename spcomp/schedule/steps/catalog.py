"""All kinds of steps by name: importing this module imports all modules that define steps."""

from __future__ import annotations

from spcomp.schedule.steps.base import STEPS
from spcomp.schedule.steps.blocks import (  # noqa: F401
    blockize,
    blocks,
    caching,
    compact,
    decompose_reduction,
    inline,
    layout,
    match_to_alloc,
    memory,
    moving,
    rfactor,
)
from spcomp.schedule.steps.iterations import (  # noqa: F401
    mark_fiber,
    sparse,
)
from spcomp.schedule.steps.loops import (  # noqa: F401
    annotate,
    bind,
    loops,
    prefetch,
    sampling,
    tiling,
)
from spcomp.schedule.steps.sharing import (  # noqa: F401
    gather_rows,
    horizontal,
    hubs,
    list_runs,
    online_softmax,
    partial_results,
    segments,
    sorted_rows,
    split_nnz,
    split_positions,
    split_rows,
    split_runs,
    stage_products,
    stage_weights,
    workspaces,
)
from spcomp.schedule.steps.tensor import (  # noqa: F401
    pad_einsum,
    tensorize,
)

__all__ = ["STEPS"]
