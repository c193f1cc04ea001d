"""At a call: whether tensors of torch are among the arguments, and the module that knows them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import lru_cache
from importlib import import_module
from os import PathLike
from sys import modules
from typing import Any


def bridge() -> Any:
    """Return the module that knows torch: it lies above this one, and torch may not be there."""
    return import_module("spcomp.torch.tensors")


def hint_about(given: Any, else_: str) -> str:
    """Return what to do with the argument *given*, which is no array; *else_*: with most others."""
    if isinstance(given, (str, PathLike)):
        return f"spcomp.read({str(given)!r}) reads a file"
    if type(given).__module__.partition(".")[0] == "networkx":
        return "networkx.to_scipy_sparse_array makes an array of a graph"
    return else_


@lru_cache(maxsize=64)
def is_tensor(kind: Hashable) -> bool:
    """Return whether the class *kind* is one of torch's tensors."""
    return kind.__module__.partition(".")[0] == "torch" and hasattr(kind, "layout")


def is_torch(given: Any) -> bool:
    """Return whether *given* is a tensor of torch."""
    kind: Any = type(given)
    return "torch" in modules and is_tensor(kind)


def has_torch(given: Iterable[Any], out: Any = None) -> bool:
    """Return whether a tensor of torch is among the arguments *given*, or given as *out*."""
    if "torch" not in modules:
        return False
    kinds: Any = map(type, given if out is None else (*given, *outputs(out)))
    return any(map(is_tensor, kinds))


def outputs(out: Any) -> list[Any]:
    """Return what is given as *out*: one result, several in order, or by their names."""
    if isinstance(out, (list, tuple)):
        return list(out)
    return list(out.values()) if isinstance(out, dict) else [out]


def arrays_of(named: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments *named* as index notation takes them: themselves, without torch's."""
    if not has_torch(named.values()):
        return named
    as_argument = bridge().argument
    return {n: as_argument(n, a) if is_torch(a) else a for n, a in named.items()}
