"""Equality of IR up to renaming, and its content hash: the printer's law and the cache's key."""

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from spcomp.dtypes import DType
from spcomp.ir.axis import Axis, Buffer, SparseBuffer
from spcomp.ir.expr import Var
from spcomp.ir.module import Module

if TYPE_CHECKING:
    from collections.abc import Callable

_SHARED = (Axis, SparseBuffer, Buffer)  # what a function refers to from many places


def structural_equal(a: object, b: object, *, names: bool = True) -> bool:
    """Say whether *a* and *b* are one program.

    Takes functions, modules, nodes, host operations, domains and tuples of them. Spans and the
    names of variables do not count; variables, axes and buffers must correspond one to one, in
    both directions. Names of functions, blocks, axes, buffers and sparse iterations do count; so do
    those of the parameters of a Module's functions, which are bound by name. *names* False: no name
    of a function does, nor of what is in it.
    """
    return a is b or _tokens(a, names=names) == _tokens(b, names=names)


def content_hash(a: object) -> str:
    """Return the sha256 (hex) that *a* shares with all that is structurally equal, and no other."""
    return hashlib.sha256("\n".join(_tokens(a)).encode()).hexdigest()


def _tokens(root: object, *, names: bool = True) -> list[str]:
    if not isinstance(root, Module):
        return _walk(root, [], names=names)
    tokens = ["Module", str(len(root.funcs))]
    for func in (root.source, *root.funcs):  # each has variables of its own
        _walk((tuple(var.name for var in func.params), func), tokens)
    return _walk(root.host, tokens, by_name=True)


def _walk(
    root: object, tokens: list[str], *, by_name: bool = False, names: bool = True
) -> list[str]:
    """Append the canonical description of *root*: preorder, what is shared numbered as met.

    Every token tells how many items follow, so that no two trees have one description.
    """
    numbers: dict[object, int] = {}
    known = _PARTS if names else _NAMELESS
    stack = [root]
    while stack:
        item = stack.pop()
        kind = type(item)
        if kind is Var:
            tokens.append(_variable(item, numbers, by_name=by_name))
        elif kind in _SHARED and item in numbers:
            tokens.append(f"@{numbers[item]}")
        elif (parts := known.get(kind) or _composite(kind, names=names)) is not None:
            if kind in _SHARED:
                numbers[item] = len(numbers)
            tokens.append(kind.__name__)
            stack.extend(parts(item))
        elif kind in (tuple, list):
            tokens.append(f"({len(item)}")  # type: ignore[arg-type]
            stack.extend(reversed(item))  # type: ignore[call-overload]
        elif kind is DType:
            tokens.append(_dtype_name(item))
        elif kind is dict:
            stack.append(tuple(item.items()))  # type: ignore[attr-defined]
        else:
            tokens.append(repr(item))
    return tokens


def _variable(var: Any, numbers: dict[object, int], *, by_name: bool) -> str:
    number = numbers.get(var)
    if number is None:
        number = numbers[var] = len(numbers)
        return f"{var.name if by_name else ''}:{_dtype_name(var.type)}"
    return f"@{number}"


@cache
def _dtype_name(dtype: Any) -> str:
    return str(dtype)


_PARTS: dict[type, Callable[[Any], tuple[Any, ...]]] = {}
_NAMELESS: dict[type, Callable[[Any], tuple[Any, ...]]] = {}


def _composite(kind: type, *, names: bool) -> Callable[[Any], tuple[Any, ...]] | None:
    """Return what gets the fields of a *kind*, last first; None for what has none."""
    if not is_dataclass(kind) or kind is DType:
        return None
    known, left_out = (_PARTS, ("span",)) if names else (_NAMELESS, ("span", "name"))
    given = [field.name for field in reversed(fields(kind)) if field.name not in left_out]
    if len(given) == 1:  # attrgetter of one name gives no tuple
        get = attrgetter(given[0])
        known[kind] = lambda item: (get(item),)
    else:
        known[kind] = attrgetter(*given) if given else lambda _: ()
    return known[kind]
