"""In graphs of torch.compile: finds nodes that aggregate rows along edges, in all spellings."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan
from typing import Any

import torch

from spcomp.torch.inductor.shapes import (
    aten,
    column,
    constant,
    is_column,
    same,
    unchanged,
    unexpanded,
    value,
)

_DTYPES = (torch.float32, torch.float64)
_REDUCES = {"sum": "sum", "mean": "mean", "amax": "max", "amin": "min"}
_OPEN = {"max": -inf, "min": inf}
_OTHERS = {  # which we leave alone, and why
    aten.index_reduce.default: "is not among what is looked for",
    aten.segment_reduce.default: "is not among what is looked for",
    aten.scatter.reduce: "is scatter with a reduction, not scatter_add or scatter_reduce",
    aten.scatter.value_reduce: "is scatter with a reduction, not scatter_add or scatter_reduce",
    aten._embedding_bag.default: "is one function of PyTorch already",  # noqa: SLF001
    aten._embedding_bag_forward_only.default: "is one function of PyTorch already",  # noqa: SLF001
}


@dataclass(frozen=True, slots=True)
class Index:
    """An index vector: the *node* of a column. *wraps*: numbers below 0 count from the end."""

    node: torch.fx.Node
    wraps: bool


@dataclass(frozen=True, slots=True)
class Aggregation:
    """What *node* does: rows of *message* are reduced, row e goes to place ``index[e]``.

    *message*: None where only elements are counted. *base*: what is there before; None: zeros, or
    with *is_open* what no extreme is beyond, which places without elements keep. *includes*: it
    counts as an element.
    """

    node: torch.fx.Node
    reduce: str
    index: Index
    message: torch.fx.Node | None
    base: torch.fx.Node | None
    includes: bool
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class _Write:
    """The arguments of a node that writes to *base* along its first dimension."""

    base: torch.fx.Node
    index: Index | None
    source: Any
    reduce: str = "sum"
    includes: bool = True


def aggregation_of(node: torch.fx.Node) -> Aggregation | str | None:
    """Return what *node* aggregates, or why it is left alone; None: it is no aggregation."""
    write = _write(node)
    if not isinstance(write, _Write):
        return write
    made, written = value(node), value(write.source)
    if made is None or made.device.type != "cpu":
        return f"is on {made.device.type}" if made is not None else "has no known type"
    if made.dtype not in _DTYPES or written is None or written.dtype != made.dtype:
        return f"is {str(made.dtype).removeprefix('torch.')}, not float32 or float64"
    if write.index is None:
        return "has an index for each element"
    if value(write.index.node).dtype not in (torch.int64, torch.int32):
        return "has an index that is no integer"
    if not same(written.shape, (*value(write.index.node).shape[:1], *made.shape[1:])):
        return "writes to a part of each row"
    if write.includes and constant(write.base) == _OPEN.get(write.reduce, nan):
        return Aggregation(node, write.reduce, write.index, write.source, None, False, is_open=True)
    base = None if constant(write.base) == 0 else write.base
    adds = write.includes or base is None
    if constant(write.source) == 1 and write.reduce == "sum" and adds:
        return Aggregation(node, "degree", write.index, None, base, includes=True)
    return Aggregation(node, write.reduce, write.index, write.source, base, includes=write.includes)


def _write(node: torch.fx.Node) -> _Write | str | None:
    if node.target is aten.index_put.default:
        base, indices, source, *accumulate = node.args
        if not accumulate or not accumulate[0]:
            return None
        given = [dim for dim, index in enumerate(indices) if index is not None]
        if len(given) > 1:
            return "has indices for several dimensions"
        if given != [0]:
            return f"is along dimension {given[0]}" if given else None
        is_vector = value(indices[0]) is not None and value(indices[0]).dim() == 1
        return _Write(base, Index(indices[0], wraps=True) if is_vector else None, source)
    if node.target in (aten.scatter_add.default, aten.index_add.default):
        base, dim, index, source = node.args
        if node.kwargs.get("alpha", 1) != 1:
            return "has a factor alpha"
        return _along(_Write(base, None, source), dim, index)
    if node.target is aten.scatter_reduce.two:
        base, dim, index, source, reduce, *includes = node.args
        if reduce not in _REDUCES:
            return f"reduces by {reduce}"
        is_included = includes[0] if includes else node.kwargs.get("include_self", True)
        return _along(_Write(base, None, source, _REDUCES[reduce], is_included), dim, index)
    return _OTHERS.get(node.target)


def _along(write: _Write, dim: int, index: Any) -> _Write | str:
    """Return *write* with its *index*; why not, for other dimensions than the first."""
    base, written = value(write.base), value(write.source)
    if base is None or written is None or value(index) is None:
        return "has no known type"
    if not base.dim() or dim % base.dim():
        return f"is along dimension {dim}"
    vector = index if value(index).dim() == 1 else _repeated(index)
    is_whole = same(value(index).shape, written.shape) or value(index).dim() == 1
    found = Index(vector, wraps=False) if vector is not None and is_whole else None
    return _Write(write.base, found, write.source, write.reduce, write.includes)


def _repeated(index: Any) -> Any:
    """Return the column that *index* repeats along further dimensions, or None."""
    node = unexpanded(index)
    if not is_column(value(node).shape) or not same(value(node).shape[:1], value(index).shape[:1]):
        return None
    return column(node)


def gathered(node: Any) -> tuple[Any, Index] | None:
    """Return of which node *node* gathers rows, and which ones; None: it does not."""
    node = unchanged(node)
    if value(node) is None or node.op != "call_function":
        return None
    if node.target is aten.index.Tensor:
        rows, indices = node.args
        index, wraps = indices[0] if len(indices) == 1 else None, True
        index = index if value(index) is not None and value(index).dim() == 1 else None
    elif node.target in (aten.gather.default, aten.index_select.default):
        rows, dim, index = node.args[:3]
        wraps = False
        if not value(rows).dim() or dim % value(rows).dim():
            return None
        if node.target is aten.gather.default:
            index = _repeated(index) if value(index).dim() > 1 else index
    else:
        return None
    if index is None or value(index).dtype not in (torch.int64, torch.int32):
        return None
    wanted = (*value(index).shape[:1], *value(rows).shape[1:])
    is_rows = same(value(node).shape, wanted) and value(rows).dtype == value(node).dtype
    return (rows, Index(index, wraps=wraps)) if is_rows else None
