"""Beside distributed tensors: their blocks on the workers of a cluster, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from spcomp.dask.collection import rebuilt
from spcomp.errors import ArgumentError

if TYPE_CHECKING:
    from distributed import Client

    from spcomp.dask.run import Plan


def place(collection: Any, client: Client, plan: Plan | None = None) -> Any:
    """Return *collection*, computed and kept on the workers of *client*: equal shares, in order.

    ``kernel.plan(workers=...)`` assumes this placement; ``persist()`` leaves it to Dask. Others
    compute what lay on a worker that is lost.

    Args:
        collection: A DistributedTensor or an array of Dask.
        client: Of dask.distributed.
        plan: For a result of the call that it is the plan of, with an estimate for as many workers:
            each task runs on the worker that the plan has it on, so that what is sent is what it
            says.

    Raises:
        ArgumentError: for a plan without an estimate, of other workers or another call.
    """
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    keys = [(collection.name, *at) for at in np.ndindex(*collection.numblocks)]
    if plan is not None:
        return _as_planned(collection, client, _addresses(plan, keys, workers))
    graph = collection.__dask_optimize__(collection.__dask_graph__(), keys)
    layer: dict[Any, Any] = {}
    for number, worker in enumerate(workers):
        mine = [k for n, k in enumerate(keys) if n * len(workers) // len(keys) == number]
        if mine:
            futures = client.get(
                graph, mine, workers=[worker], allow_other_workers=True, sync=False
            )
            layer |= dict(zip(mine, futures, strict=True))
    return rebuilt(collection, HighLevelGraph.from_collections(collection.name, layer))


def _addresses(plan: Plan, keys: list[Any], workers: list[str]) -> dict[Any, str]:
    """Return for each task of *plan* the worker that runs it."""
    found = plan.estimate
    if found is None or found.workers != len(workers):
        raise ArgumentError(
            f"argument plan: it is not one for {len(workers)} workers",
            hint=f"kernel.plan(..., workers={len(workers)}) is",
        )
    if not {*keys} <= {*found.owners}:
        raise ArgumentError("argument plan: it is that of another call")
    return {key: workers[owner] for key, owner in found.owners.items()}


def _as_planned(collection: Any, client: Client, addresses: dict[Any, str]) -> Any:
    """Return *collection*, persisted, each task with a key in *addresses* there.

    Its graph is not optimised, for that would join tasks that the plan has in different places.
    """
    graph = dict(collection.__dask_graph__().cull(collection.__dask_keys__()))
    layer = MaterializedLayer(
        graph, annotations={"workers": addresses.get, "allow_other_workers": True}
    )
    placed = HighLevelGraph({collection.name: layer}, {collection.name: set()})
    return client.persist(rebuilt(collection, placed), optimize_graph=False)
