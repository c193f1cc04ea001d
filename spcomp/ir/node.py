"""Under the IR: nodes are plain slotted records, compared by identity and never changed."""

from __future__ import annotations

import os
from dataclasses import MISSING, dataclass, field, fields
from operator import attrgetter
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from spcomp.errors import Span

_N = TypeVar("_N", bound="Node")
_T = TypeVar("_T")
NODES: dict[str, type[Node]] = {}  # every node class by name, for visitors to check against
_FROZEN = os.environ.get("SPCOMP_FROZEN") == "1"  # set in tests: writing to a node then raises


def attr(*, default: Any = MISSING, kw_only: bool = False) -> Any:
    """A field that is data, not a child."""
    return field(default=default, kw_only=kw_only, metadata={"role": "attr"})


def binder() -> Any:
    """A field that introduces one or several variables; their uses are inside the node."""
    return field(metadata={"role": "binder"})


def declaration() -> Any:
    """A child that this node declares: nodes below refer to it, and follow when it is rewritten."""
    return field(metadata={"declares": True})


@dataclass_transform(
    frozen_default=True, eq_default=False, field_specifiers=(attr, binder, declaration)
)
def node(cls: type[_N]) -> type[_N]:
    """Make *cls* an IR node: frozen to the type checker, a plain slotted class at run time."""
    cls_ = dataclass(eq=False, slots=True, frozen=_FROZEN)(cls)
    cls_.FIELDS = tuple(f.name for f in fields(cls_))
    cls_.CHILDREN = tuple(f.name for f in fields(cls_) if "role" not in f.metadata)
    cls_.BINDERS = tuple(f.name for f in fields(cls_) if f.metadata.get("role") == "binder")
    cls_.DECLARES = tuple(f.name for f in fields(cls_) if "declares" in f.metadata)
    cls_.values_of = attrgetter(*cls_.FIELDS)
    NODES[cls_.__name__] = cls_
    return cls_


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[_T]) -> type[_T]:
    """Make *cls* a frozen dataclass compared by content, whose values are cheap to construct."""
    return dataclass(slots=True, unsafe_hash=True, frozen=_FROZEN)(cls)


@node
class Node:
    """Base of all IR; *span* is where the user wrote it and is never compared."""

    FIELDS: ClassVar[tuple[str, ...]]
    CHILDREN: ClassVar[tuple[str, ...]]  # a child is a Node, None, or a tuple of Nodes and Nones
    BINDERS: ClassVar[tuple[str, ...]]
    DECLARES: ClassVar[tuple[str, ...]]  # children that others refer to
    values_of: ClassVar[attrgetter[Any]]  # gets all FIELDS of a node at once
    span: Span | None = attr(default=None, kw_only=True)

    def same_as(self, other: object) -> bool:
        """Whether *other* is this very node; TVM's name for it."""
        return self is other

    def replace(self, **changes: Any) -> Self:
        """Return a copy with *changes*; the span stays."""
        same = zip(self.FIELDS, self.values_of(self), strict=True)
        return type(self)(**{**dict(same), **changes})

    def rebuilt(self, **children: Any) -> Node:
        """Return the node with other *children*; Rewriter calls it."""
        return self.replace(**children)
