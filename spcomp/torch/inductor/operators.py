"""In compiled graphs: the operators that stand there for aggregation along edges."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from spcomp.torch.inductor.sorting import Places, key_of, vector_of

LIBRARY = "spcomp_inductor"  # not "spcomp": that is for operators of users
_LIBRARY = torch.library.Library(LIBRARY, "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag,)
_LIBRARY.define("index_key(Tensor index) -> Tensor", tags=_TAGS)
_LIBRARY.define("degree(Tensor index, Tensor key, SymInt size, bool wraps) -> Tensor", tags=_TAGS)
_LIBRARY.define(
    "aggregate(Tensor x, Tensor? weight, Tensor index, Tensor key, SymInt size, bool wraps,"
    " Tensor? source, Tensor? source_key, bool source_wraps, str reduce) -> Tensor",
    tags=_TAGS,
)


def _index_key(index: torch.Tensor) -> torch.Tensor:
    """Return a number for the contents of *index*, the same for equal contents."""
    return torch.tensor([key_of(index)])


def _degree(index: torch.Tensor, key: torch.Tensor, size: int, wraps: bool) -> torch.Tensor:  # noqa: FBT001
    """Return how often each number from 0 to *size* occurs in *index*."""
    return _places(index, key, size, wraps).counts.clone()


def _aggregate(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    index: torch.Tensor,
    key: torch.Tensor,
    size: int,
    wraps: bool,  # noqa: FBT001
    source: torch.Tensor | None,
    source_key: torch.Tensor | None,
    source_wraps: bool,  # noqa: FBT001
    reduce: str,
) -> torch.Tensor:
    """Return rows of *x*, reduced: row ``source[e]`` goes to place ``index[e]`` of *size*.

    Without *source*, it is row e. *weight* (elements, heads...) is multiplied with it, where x has
    the dimensions (rows, heads..., features...). A place without elements is 0.
    """
    places = _places(index, key, size, wraps)
    rows = None
    if source is not None:
        assert source_key is not None
        rows = _places(source, source_key, len(x), source_wraps)
    shape = (size, *x.shape[1:])
    if not prod(shape) or not len(index):
        return x.new_zeros(shape)
    bound = places.bound(
        reduce, str(x.dtype).removeprefix("torch."), rows, weighted=weight is not None
    )
    if weight is not None:
        heads = weight.reshape(len(index), -1)
        flat = heads.reshape(-1) if heads.shape[1] == 1 else heads  # twice as fast
        heads = flat.index_select(0, places.order).reshape(heads.shape)
        found = bound(W=heads.numpy(), X=x.reshape(len(x), heads.shape[1], -1).contiguous().numpy())
    else:
        found = bound(X=x.reshape(len(x), -1).contiguous().numpy())
    made = torch.from_numpy(found).reshape(shape)
    if reduce != "sum" and len(places.empty):
        made.index_fill_(0, places.empty, 0)
    return made


def _places(index: torch.Tensor, key: torch.Tensor, size: int, wraps: bool) -> Places:  # noqa: FBT001
    return vector_of(index, int(key)).places(size, wraps=wraps)


def _fake_index_key(index: torch.Tensor) -> torch.Tensor:
    return index.new_empty(1, dtype=torch.int64)


def _fake_degree(index: torch.Tensor, key: torch.Tensor, size: Any, wraps: bool) -> torch.Tensor:  # noqa: ARG001, FBT001
    return index.new_empty(size, dtype=torch.int64)


def _fake_aggregate(x: torch.Tensor, weight: Any, index: Any, key: Any, size: Any, *_: Any) -> Any:  # noqa: ARG001
    return x.new_empty((size, *x.shape[1:]))


for _name, _call, _fake in (
    ("index_key", _index_key, _fake_index_key),
    ("degree", _degree, _fake_degree),
    ("aggregate", _aggregate, _fake_aggregate),
):
    _LIBRARY.impl(_name, _call, "CPU")
    torch.library.register_fake(f"{LIBRARY}::{_name}", _fake, lib=_LIBRARY)

index_key = torch.ops.spcomp_inductor.index_key.default
degree = torch.ops.spcomp_inductor.degree.default
aggregate = torch.ops.spcomp_inductor.aggregate.default
