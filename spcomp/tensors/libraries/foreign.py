"""At a call: whether tensors of torch are among the arguments, and the module that reads them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import lru_cache
from os import PathLike
from sys import modules
from types import ModuleType
from typing import Any


def bridge() -> ModuleType:
    """Return the module that reads torch tensors; it needs torch, which may not be installed."""
    from spcomp.tensors.libraries import torch

    return torch


def hint_about(arg: Any, else_: str) -> str:
    """Return the hint for *arg*, which is not an array; *else_* is the hint for most types."""
    if isinstance(arg, (str, PathLike)):
        return f"spcomp.read({str(arg)!r}) reads a file"
    if type(arg).__module__.partition(".")[0] == "networkx":
        return "networkx.to_scipy_sparse_array makes an array of a graph"
    return else_


@lru_cache(maxsize=64)
def is_tensor(kind: Hashable) -> bool:
    """Return whether the class *kind* is one of torch's tensors."""
    return kind.__module__.partition(".")[0] == "torch" and hasattr(kind, "layout")


def is_torch(arg: Any) -> bool:
    """Return whether *arg* is a tensor of torch."""
    kind: Any = type(arg)
    return "torch" in modules and is_tensor(kind)


def has_torch(args: Iterable[Any], out: Any = None) -> bool:
    """Return whether a tensor of torch is among the arguments *args* or in *out*."""
    if "torch" not in modules:
        return False
    kinds: Any = map(type, args if out is None else (*args, *outputs(out)))
    return any(map(is_tensor, kinds))


def outputs(out: Any) -> list[Any]:
    """Return the arrays in *out*: one, a list in order, or a dictionary by name."""
    if isinstance(out, (list, tuple)):
        return list(out)
    return list(out.values()) if isinstance(out, dict) else [out]


def arrays_of(named: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments *named* with strided torch tensors of the host as numpy arrays."""
    if not has_torch(named.values()):
        return named
    as_argument = bridge().argument
    return {n: as_argument(n, a) if is_torch(a) and not a.is_cuda else a for n, a in named.items()}
