"""IR nodes: plain slotted records, compared by identity and never changed."""

from __future__ import annotations

import os
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from spcomp.errors import Span

_N = TypeVar("_N", bound="Node")
NODES: dict[str, type[Node]] = {}  # every node class by name, for visitors to check against
_FROZEN = os.environ.get("SPCOMP_FROZEN") == "1"  # the tests set it: writing to a node then raises


def attr(*, default: Any = MISSING, kw_only: bool = False) -> Any:
    """A field that is data, not a child."""
    return field(default=default, kw_only=kw_only, metadata={"role": "attr"})


def binder() -> Any:
    """A field that introduces one or several variables; their uses are inside the node."""
    return field(metadata={"role": "binder"})


def declared() -> Any:
    """A child that is made here; nodes below refer to it, and follow when it is rewritten."""
    return field(metadata={"declares": True})


@dataclass_transform(
    frozen_default=True, eq_default=False, field_specifiers=(attr, binder, declared)
)
def node(cls: type[_N]) -> type[_N]:
    """Make *cls* an IR node: frozen to the type checker, a plain slotted class at run time."""
    made = dataclass(eq=False, slots=True, frozen=_FROZEN)(cls)
    made.FIELDS = tuple(f.name for f in fields(made))
    made.CHILDREN = tuple(f.name for f in fields(made) if "role" not in f.metadata)
    made.BINDERS = tuple(f.name for f in fields(made) if f.metadata.get("role") == "binder")
    made.DECLARES = tuple(f.name for f in fields(made) if "declares" in f.metadata)
    NODES[made.__name__] = made
    return made


@node
class Node:
    """Base of all IR; *span* is where the user wrote it and is never compared."""

    FIELDS: ClassVar[tuple[str, ...]]
    CHILDREN: ClassVar[tuple[str, ...]]  # a child is a Node, None, or a tuple of Nodes and Nones
    BINDERS: ClassVar[tuple[str, ...]]
    DECLARES: ClassVar[tuple[str, ...]]  # children that others refer to
    span: Span | None = attr(default=None, kw_only=True)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with *changes*; the span stays."""
        same = {name: getattr(self, name) for name in self.FIELDS}
        return type(self)(**(same | changes))
