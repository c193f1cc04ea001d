"""Programs over distributed tensors: blocks as tasks of Dask, with kernels of spcomp on them."""

from __future__ import annotations

import dask.array as _da

from spcomp.dask.collection import DistributedTensor
from spcomp.dask.files import from_binsparse, from_mtx
from spcomp.dask.load import from_array, from_scipy
from spcomp.dask.order import Partition, ordering, partition
from spcomp.dask.place import place
from spcomp.dask.run import Door, Plan
from spcomp.dask.store import read, write
from spcomp.kernels.elsewhere import register

__all__ = [
    "DistributedTensor",
    "Partition",
    "Plan",
    "from_array",
    "from_binsparse",
    "from_mtx",
    "from_scipy",
    "ordering",
    "partition",
    "place",
    "read",
    "write",
]

for _kind in (DistributedTensor, _da.Array):
    register(_kind, Door())
