"""Between processes: IR trees, steps and descriptions as plain text, and back.

The text is JSON with one row per object: its class, then its fields. An object stands after those
it refers to, which it names as ``[row]``. A tuple is ``["tuple", ...]``, a frozenset
``["set", ...]``. Reading makes only objects of our own dataclasses, and runs nothing else.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from typing import Any

_MODULES = re.compile(r"spcomp\.(dtypes|errors|codegen\.abi|compiler\.saved|(ir|schedule)(\.\w+)+)")
_SCALARS = (type(None), bool, int, float, str)
# what decode raises for text that encode did not write
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ImportError, RecursionError)


def encode(value: object) -> bytes:
    """Return *value* as text; raises TypeError for a value that has no plain form."""
    rows: list[list[Any]] = []
    row_of: dict[int, int] = {}

    def put(item: Any) -> Any:
        kind: Any = type(item)
        if kind in _SCALARS:
            return item
        if kind is tuple:
            return ["tuple", *map(put, item)]
        if kind is frozenset:
            return ["set", *map(put, sorted(item))]
        if id(item) not in row_of:
            row = [_name(kind), *(put(getattr(item, name)) for name in _fields(kind))]
            row_of[id(item)] = len(rows)
            rows.append(row)
        return [row_of[id(item)]]

    last = put(value)
    return json.dumps([*rows, last], separators=(",", ":")).encode()


def decode(data: bytes) -> Any:
    """Return the value that ``encode`` wrote as *data*; raises one of UNREADABLE."""
    objects: list[Any] = []

    def get(item: Any) -> Any:
        if type(item) is not list:
            return item
        if item[0] == "tuple":
            return tuple(map(get, item[1:]))
        if item[0] == "set":
            return frozenset(map(get, item[1:]))
        return objects[item[0]]

    *rows, last = json.loads(data)
    for name, *values in rows:
        kind = _class(name)
        fields_ = [get(value) if type(value) is list else value for value in values]
        objects.append(kind(**dict(zip(_fields(kind), fields_, strict=True))))
    return get(last)


@cache
def _name(kind: Any) -> str:
    name = f"{kind.__module__}.{kind.__qualname__}"
    if _class(name) is not kind:
        raise TypeError(f"{name} is not what it is called")
    return name


@cache
def _class(name: str) -> Any:
    """Return the class called *name*; raises TypeError unless it is a dataclass in _MODULES."""
    module, _, class_name = name.rpartition(".")
    if _MODULES.fullmatch(module):
        kind = getattr(import_module(module), class_name)
        if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == module:
            return kind
    raise TypeError(f"{name} is no plain description")


@cache
def _fields(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))
