"""For every level: a program as data: parameters, axes, buffers and a body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from spcomp.ir.node import Node, attr, node
from spcomp.ir.stmt import Attrs, Stmt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spcomp.ir.axis import AnyBuffer, Axis, BufferDomain
    from spcomp.ir.expr import Var


SHARE_GRID = "share_grid"  # attribute: nests that touch nothing of each other's may share a grid


@node
class Func(Node):
    """A program at one level; the class says which.

    *params* in the script's order: handles (Var of dtype handle) and scalars. *axes* and *buffers*
    in the order of declaration; a buffer's *data* is a parameter.
    """

    LEVEL: ClassVar[int]  # 2 in coordinate space, 1 in position space, 0 over flat buffers
    name: str = attr()
    params: tuple[Var, ...] = attr()
    axes: tuple[Axis, ...] = attr()
    buffers: tuple[AnyBuffer, ...] = attr()
    body: Stmt
    domains: tuple[BufferDomain, ...] = attr(default=())
    attrs: Attrs = attr(default=())

    def attr(self, name: str, default: Any = None) -> Any:
        """Return the function attribute *name*."""
        return dict(self.attrs).get(name, default)

    def with_attr(self, name: str, value: Any) -> Func:
        """Return the function with the attribute *name* set."""
        return self.replace(attrs=tuple((dict(self.attrs) | {name: value}).items()))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}({', '.join(p.name for p in self.params)})>"

    def script(self, *, show_meta: bool = False) -> str:
        """Return the function as a Python file."""
        raise NotImplementedError

    def show(self) -> None:
        """Write the script to stdout."""
        raise NotImplementedError

    def specialize(self, values: Mapping[Var | str, float]) -> Self:
        """Return the function with scalar parameters fixed to *values*."""
        raise NotImplementedError
