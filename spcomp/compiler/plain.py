"""Between processes: trees of IR, steps and descriptions as plain text, and back.

JSON of one row per object, its class first, then its fields; an object comes after those it refers
to, and is referred to as ``[row]``. A tuple is ``["tuple", ...]``, a frozenset ``["set", ...]``.
Reading makes objects of dataclasses of ours that only describe, and runs nothing else.
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
# what decode raises for what encode has not written
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ImportError, RecursionError)


def encode(value: object) -> bytes:
    """Return *value* as text; raises TypeError for what is no plain description."""
    rows: list[list[Any]] = []
    seen: dict[int, int] = {}

    def put(item: Any) -> Any:
        kind: Any = type(item)
        if kind in _SCALARS:
            return item
        if kind is tuple:
            return ["tuple", *map(put, item)]
        if kind is frozenset:
            return ["set", *map(put, sorted(item))]
        if id(item) not in seen:
            row = [_name(kind), *(put(getattr(item, name)) for name in _fields(kind))]
            seen[id(item)] = len(rows)
            rows.append(row)
        return [seen[id(item)]]

    last = put(value)
    return json.dumps([*rows, last], separators=(",", ":")).encode()


def decode(data: bytes) -> Any:
    """Return the value that ``encode`` made *data* of; raises one of UNREADABLE."""
    made: list[Any] = []

    def get(item: Any) -> Any:
        if type(item) is not list:
            return item
        if item[0] == "tuple":
            return tuple(map(get, item[1:]))
        if item[0] == "set":
            return frozenset(map(get, item[1:]))
        return made[item[0]]

    *rows, last = json.loads(data)
    for name, *values in rows:
        kind = _class(name)
        found = [get(value) if type(value) is list else value for value in values]
        made.append(kind(**dict(zip(_fields(kind), found, strict=True))))
    return get(last)


@cache
def _name(kind: Any) -> str:
    name = f"{kind.__module__}.{kind.__qualname__}"
    if _class(name) is not kind:
        raise TypeError(f"{name} is not what it is called")
    return name


@cache
def _class(name: str) -> Any:
    """Return the class called *name*, if it is a dataclass of a module that describes."""
    module, _, own = name.rpartition(".")
    if _MODULES.fullmatch(module):
        kind = getattr(import_module(module), own)
        if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == module:
            return kind
    raise TypeError(f"{name} is no plain description")


@cache
def _fields(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))
