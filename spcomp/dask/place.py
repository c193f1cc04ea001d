"""Beside distributed tensors: their blocks on the workers of a cluster, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph

from spcomp.dask.collection import DistributedTensor

if TYPE_CHECKING:
    from distributed import Client


def place(collection: Any, client: Client) -> Any:
    """Return *collection*, computed and kept on the workers of *client*: equal shares, in order.

    ``kernel.plan(workers=...)`` assumes this placement; ``persist()`` leaves it to Dask.

    Args:
        collection: A DistributedTensor or an array of Dask.
        client: Of dask.distributed.
    """
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    keys = [(collection.name, *at) for at in np.ndindex(*collection.numblocks)]
    graph = collection.__dask_optimize__(collection.__dask_graph__(), keys)
    layer: dict[Any, Any] = {}
    for number, worker in enumerate(workers):
        mine = [k for n, k in enumerate(keys) if n * len(workers) // len(keys) == number]
        if mine:
            futures = client.get(
                graph, mine, workers=[worker], allow_other_workers=False, sync=False
            )
            layer |= dict(zip(mine, futures, strict=True))
    new = HighLevelGraph.from_collections(collection.name, layer)
    if isinstance(collection, da.Array):
        return da.Array(new, collection.name, collection.chunks, meta=collection)
    tensor = DistributedTensor(new, collection.name, collection.chunks, collection.meta)
    return tensor.with_statistics(collection)
