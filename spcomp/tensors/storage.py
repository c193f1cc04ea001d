"""At the call: an argument of any library, taken apart into arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from spcomp.arrays import Array
from spcomp.tensors.tensor import Level

if TYPE_CHECKING:
    from spcomp.tensors.checks import Condition

Style: TypeAlias = Literal["array", "matrix", "tensor", "raw"]  # of a result


@dataclass(frozen=True, slots=True)
class AttributeNames:
    """The names of the attributes of an argument that hold its arrays.

    *values* "": the argument is the array. *indptr* and *indices* "": its index arrays never
    change; two arguments of its class have the same ones if their attributes *same* are the same.
    *extents*: the attribute that holds its two extents.
    """

    values: str = ""
    indptr: str = ""
    indices: str = ""
    same: tuple[str, ...] = ()
    extents: str = ""


CONVERTED = "is converted at each call"


class Storage(NamedTuple):
    """The arrays of an *argument*.

    *shape* has an extent per axis and *levels* an entry per axis; both are None for a bare array
    of values. *checked*: the index arrays are in range (and, from scipy, canonical). *checks*: the
    checks that another argument could fail. *source*: where the arrays come from, or why that
    cannot be said.
    """

    argument: Any
    values: Array | None
    shape: tuple[int, ...] | None = None
    levels: tuple[Level | None, ...] | None = None
    style: Style = "raw"
    checked: bool = False
    source: AttributeNames | str = CONVERTED
    checks: tuple[Condition, ...] = ()


def is_parts(arg: Any) -> bool:
    """Whether *arg* is a Parts; asked by name, so that its module need not be loaded."""
    return type(arg).__module__ == "spcomp.tensors.parts.parts"
