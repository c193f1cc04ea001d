"""Around a call with distributed arguments: what depends on fixed ones alone is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask.core import toposort
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task
from dask.utils import ensure_dict

from spcomp.dask.call import Call
from spcomp.dask.chunks import Chunks
from spcomp.dask.collection import DistributedTensor, Values, rebuilt
from spcomp.kernels.notation.kernel import NotationKernel
from spcomp.kernels.protocol import Bound


class BoundCall(Bound):
    """A NotationKernel with some arguments fixed; call it with the others by name.

    The first call with arguments in these blocks computes what tasks read of the fixed ones, and
    what is computed of these alone: blocks, the coordinates that they have, results of statements.
    It stays where it was computed, as after ``persist()``, and later calls read it there. There are
    no tasks for pairs of blocks of which one needs nothing of the other.
    """

    def __init__(self, kernel: NotationKernel, arguments: Mapping[str, Any]) -> None:
        super().__init__(kernel, arguments)
        self._kernel = kernel
        self._kept: dict[Any, Any] = {}
        self._seen: set[Any] = set()
        self._touches: dict[Any, Any] = {}

    def __call__(self, /, *, out: Any = None, **named: Any) -> Any:
        """Return the results, as collections; raises SpcompError as the kernel does."""
        call = Call.of(self._kernel, out, self._with_bound(named), self._touched)
        results = [call.operands[name] for name in call.prepared.results]
        merged = HighLevelGraph.merge(*(result.__dask_graph__() for result in results))
        graph = self._with_kept(ensure_dict(merged))
        kinds = tuple((n, call.operands[n].chunks) for n in sorted(named) if n in call.operands)
        if kinds not in self._seen:
            keys = self._frontier(merged, call, named, [result.name for result in results])
            self._kept |= dict(Values(graph, keys).persist().__dask_graph__()) if keys else {}
            self._seen.add(kinds)
            graph = self._with_kept(graph)
        return call.returned(lambda x: rebuilt(x, HighLevelGraph.from_collections(x.name, graph)))

    def _touched(self, name: str, tensor: DistributedTensor, chunks: Chunks) -> Any:
        """Return which of the pieces *chunks* each block of *tensor* needs, if it is bound."""
        if name not in self.arguments:
            return None
        if (tensor.name, chunks) not in self._touches:
            self._touches[tensor.name, chunks] = tensor.touched(chunks)
        return self._touches[tensor.name, chunks]

    def _with_kept(self, graph: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return *graph* with what is kept in the place of its tasks."""
        return {key: self._kept.get(key, node) for key, node in graph.items()}

    def _frontier(
        self, graph: HighLevelGraph, call: Call, named: Mapping[str, Any], results: list[str]
    ) -> list[Any]:
        """Return the keys that depend on bound arguments alone, and are read by others."""
        given = {n: x.name for n, x in call.operands.items() if n in call.kernel.arguments}
        changing = {name for n, name in given.items() if n in named}
        for tasks in call.tasks:
            if set(tasks.scalars()) & named.keys():
                changing |= set(tasks.results)
        fixed = {name for n, name in given.items() if n not in named}
        needs = {key: deps - {key} for key, deps in graph.get_all_dependencies().items()}
        steady: set[Any] = set()
        moving: set[Any] = set()
        for key in toposort(graph, dependencies=needs):
            name = key[0] if isinstance(key, tuple) else key
            if name in changing or needs[key] & moving:
                moving.add(key)
            elif name in fixed or needs[key] & steady:
                steady.add(key)
        read = {dep for key in graph if key not in steady for dep in needs[key]}
        return [
            key
            for key in steady
            if (key in read or key[0] in results)
            and key not in self._kept
            and (needs[key] or isinstance(graph[key], Task))  # else it is there
        ]
