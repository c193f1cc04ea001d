"""Beside the route: structural equality of trees; for equal values see arith.linear.same_value.

Bound variables may have other names; free ones must be the same objects. An expression binds no
variables: *expr_equal* compares two, with the key *fingerprint*. A program binds all of them:
*structural_equal*, which the printer preserves. Its key in the cache is *content_hash*; its key
within a process, with what is known of the names, is arith.alike.pattern.
"""

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from spcomp.dtypes import DType
from spcomp.ir.axis import Axis, Buffer, SparseBuffer
from spcomp.ir.expr import Expr, Var
from spcomp.ir.module import Module
from spcomp.ir.node import Node

if TYPE_CHECKING:
    from collections.abc import Callable

_SHARED = (Axis, SparseBuffer, Buffer)  # a function refers to one from many places


def expr_equal(a: Expr | None, b: Expr | None) -> bool:
    """Say whether *a* and *b* are one expression: same nodes, same variables, same buffers."""
    if a is b:
        return True
    if a is None or type(a) is not type(b) or isinstance(a, Var):
        return False
    return all(_same(getattr(a, name), getattr(b, name)) for name in a.FIELDS if name != "span")


def _same(x: Any, y: Any) -> bool:
    if isinstance(x, Expr):
        return expr_equal(x, y)
    if isinstance(x, tuple) and isinstance(y, tuple):
        return len(x) == len(y) and all(map(_same, x, y))
    return x is y or (not isinstance(x, Node) and _leaf(x) == _leaf(y))


def fingerprint(node: object) -> object:
    """Return a hashable key of an expression; keys are equal exactly where expr_equal is true.

    A tuple of expressions, buffers and None has a key too.
    """
    if isinstance(node, tuple):
        return tuple(map(fingerprint, node))
    if not isinstance(node, Expr) or isinstance(node, Var):
        return node if isinstance(node, Node) else _leaf(node)
    fields = (fingerprint(getattr(node, name)) for name in node.FIELDS if name != "span")
    return (type(node), *fields)


def _leaf(value: object) -> object:
    """Return a key that distinguishes 0, 0.0, -0.0 and False, and makes nan equal itself."""
    return (type(value), repr(value)) if isinstance(value, (bool, float)) else value


def structural_equal(a: object, b: object, *, names: bool = True) -> bool:
    """Say whether *a* and *b* are the same program.

    Takes functions, modules, nodes, host operations, domains and tuples of them. Spans and the
    names of variables do not count; variables, axes and buffers must correspond one to one, in
    both directions. Names of functions, blocks, axes, buffers and sparse iterations do count; so do
    those of the parameters of a Module's functions, which are bound by name. *names* False: the
    names of a function, and of everything in it, do not count either.
    """
    return a is b or _tokens(a, names=names) == _tokens(b, names=names)


def content_hash(a: object) -> str:
    """Return the sha256 of *a* as hex; equal exactly for programs that are structurally equal."""
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
    """Append the canonical description of *root*: preorder, shared nodes numbered at first use.

    Every token determines how many items follow, so that no two trees have the same description.
    """
    numbers: dict[object, int] = {}
    getters = _PARTS if names else _NAMELESS
    stack = [root]
    while stack:
        item = stack.pop()
        kind = type(item)
        if kind is Var:
            tokens.append(_variable(item, numbers, by_name=by_name))
        elif kind in _SHARED and item in numbers:
            tokens.append(f"@{numbers[item]}")
        elif (parts := getters.get(kind) or _composite(kind, names=names)) is not None:
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
    """Return a getter of the fields of a *kind*, last first; None for a kind without fields."""
    if not is_dataclass(kind) or kind is DType:
        return None
    getters, left_out = (_PARTS, ("span",)) if names else (_NAMELESS, ("span", "name"))
    names_ = [field.name for field in reversed(fields(kind)) if field.name not in left_out]
    if len(names_) == 1:  # attrgetter of one name gives no tuple
        get = attrgetter(names_[0])
        getters[kind] = lambda item: (get(item),)
    else:
        getters[kind] = attrgetter(*names_) if names_ else lambda _: ()
    return getters[kind]
