"""In compiled graphs: the operators that stand there for aggregation along edges."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from spcomp.errors import ArgumentError
from spcomp.torch.inductor.kernels import sorted_inputs
from spcomp.torch.inductor.memory import MEMORY
from spcomp.torch.inductor.sorting import Places, key_of, vector_of

LIBRARY = "spcomp_inductor"  # not "spcomp": that is for operators of users
_LIBRARY = torch.library.Library(LIBRARY, "DEF")
_is_profiled: Callable[[], bool] = torch.autograd._profiler_enabled  # noqa: SLF001
_TAGS = (torch.Tag.pt2_compliant_tag,)
_LIBRARY.define("index_key(Tensor index) -> Tensor", tags=_TAGS)
_LIBRARY.define("degree(Tensor index, Tensor key, SymInt size, bool wraps) -> Tensor", tags=_TAGS)
_LIBRARY.define(
    "aggregate(Tensor[] inputs, Tensor index, Tensor key, SymInt size, bool wraps,"
    " Tensor? source, Tensor? source_key, SymInt rows, bool source_wraps,"
    " SymInt[] widths, int[] ranks, str filled, str program) -> Tensor[]",
    tags=_TAGS,
)


def _index_key(index: torch.Tensor) -> torch.Tensor:
    """Return a number for the contents of *index*, the same for equal contents."""
    return torch.from_numpy(np.array([key_of(index)]))  # the fastest way


def _degree(index: torch.Tensor, key: torch.Tensor, size: int, wraps: bool) -> torch.Tensor:  # noqa: FBT001
    """Return how often each number from 0 to *size* occurs in *index*."""
    return _places(index, key, size, wraps, "places that are counted").counts.clone()


def _aggregate(
    inputs: list[torch.Tensor],
    index: torch.Tensor,
    key: torch.Tensor,
    size: int,
    wraps: bool,  # noqa: FBT001
    source: torch.Tensor | None,
    source_key: torch.Tensor | None,
    rows: int,
    source_wraps: bool,  # noqa: FBT001
    widths: list[int],
    ranks: list[int],
    filled: str,
    program: str,
) -> list[torch.Tensor]:
    """Return what *program* reduces along edges, which go to *size* places by *index*.

    *source*: the other ends of the edges, of *rows*. *inputs*: the arguments of the program.
    *filled*: a digit for each result, 1: places without edges become 0. *widths*, *ranks*: shapes
    of their rows, and after those of what is kept for each edge.
    """
    _refuse_forward_mode()
    places = _places(index, key, size, wraps, "places that rows are added to")
    origin = None
    if source is not None:
        assert source_key is not None
        origin = _places(source, source_key, rows, source_wraps, "rows that are gathered")
    count = len(filled)
    shapes = _shapes(size, widths, ranks)
    if not any(map(prod, shapes[:count])):
        return [inputs[0].new_zeros(shape) for shape in shapes[:count]]
    tensors = {f"A{n}": x if x.dim() else x[None] for n, x in enumerate(inputs)}
    tensors |= {name: places.sorted(tensors[name]) for name in sorted_inputs(program)}
    arrays = {name: x.contiguous().numpy() for name, x in tensors.items()}
    dtype = arrays["A0"].dtype
    made = {f"Y{n}": MEMORY.array(shape, dtype) for n, shape in enumerate(shapes[:count])}
    for n, (_, *width) in enumerate(shapes[count:]):
        arrays[f"P{n}"] = MEMORY.array((len(index) * prod(width),), dtype)
    places.bound(program, origin)(**arrays, **made)
    results = [torch.from_numpy(array) for array in made.values()]
    for result, is_filled in zip(results, filled, strict=True):
        if is_filled == "1" and len(places.empty):
            result.index_fill_(0, places.empty, 0)
    return results


def _refuse_forward_mode() -> None:
    """Raise ArgumentError in forward mode, where the tangents of arguments would be lost."""
    if forward_ad._current_level >= 0:  # noqa: SLF001
        raise ArgumentError(
            "compiled aggregation along edges has no derivative in forward mode",
            hint="call the function without torch.compile",
        )


def _shapes(size: Any, widths: list[Any], ranks: list[int]) -> list[tuple[Any, ...]]:
    found, left = [], list(widths)
    for rank in ranks:
        found.append((size, *left[:rank]))
        left = left[rank:]
    return found


def _places(index: torch.Tensor, key: torch.Tensor, size: int, wraps: bool, use: str) -> Places:  # noqa: FBT001
    return vector_of(index, int(key)).places(size, wraps=wraps, use=use)


def _fake_index_key(index: torch.Tensor) -> torch.Tensor:
    return index.new_empty(1, dtype=torch.int64)


def _fake_degree(index: torch.Tensor, key: torch.Tensor, size: Any, wraps: bool) -> torch.Tensor:  # noqa: ARG001, FBT001
    return index.new_empty(size, dtype=torch.int64)


def _fake_aggregate(
    inputs: list[torch.Tensor],
    _index: Any,
    _key: Any,
    size: Any,
    _wraps: Any,
    _source: Any,
    _source_key: Any,
    _rows: Any,
    _source_wraps: Any,
    widths: list[Any],
    ranks: list[int],
    filled: str,
    _program: str,
) -> list[torch.Tensor]:
    shapes = _shapes(size, widths, ranks)[: len(filled)]
    return [inputs[0].new_empty(shape) for shape in shapes]


def _defined(name: str, call: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Return the operator *name*, which runs *call*; *fake* says the shapes of its results."""
    _LIBRARY.impl(name, call, "CPU")
    torch.library.register_fake(f"{LIBRARY}::{name}", fake, lib=_LIBRARY)
    return getattr(torch.ops.spcomp_inductor, name).default


INDEX_KEY = _defined("index_key", _index_key, _fake_index_key)
DEGREE = _defined("degree", _degree, _fake_degree)
AGGREGATE = _defined("aggregate", _aggregate, _fake_aggregate)


def _direct(operator: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return *call*, as a profile names *operator* only if torch's dispatcher runs it."""

    def run(*args: Any) -> Any:
        return operator(*args) if _is_profiled() else call(*args)

    return run


index_key = _direct(INDEX_KEY, _index_key)
degree = _direct(DEGREE, _degree)
aggregate = _direct(AGGREGATE, _aggregate)
