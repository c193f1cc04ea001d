"""For every level: a Module, functions of one level and the host program that runs them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from spcomp.ir.axis import Buffer
from spcomp.ir.expr import Expr
from spcomp.ir.func import Func

MEASURED = "measured"
"""Attribute of a function in a user's own Module: its arrays are measured at every launch."""
F = TypeVar("F", bound=Func)
G = TypeVar("G", bound=Func)


@dataclass(frozen=True, slots=True)
class Launch:
    """Run the function *func*; its parameters are bound by name."""

    func: str


@dataclass(frozen=True, slots=True)
class Scan:
    """Set ``buffer[0]`` to 0 and ``buffer[1:]`` to their running sums."""

    buffer: Buffer


@dataclass(frozen=True, slots=True)
class HostAlloc:
    """Allocate ``buffer.shape[0]`` elements set to *fill*, bound to the name of *buffer*.

    *fill* None: the elements are undefined until a function writes them.

    The host computes the size: it may use the scalar parameters of the source and load from
    buffers allocated before. Functions take the array as the handle parameter of that name.
    """

    buffer: Buffer
    fill: int | float | bool | None = 0

    @property
    def size(self) -> Expr:
        """The number of elements."""
        return self.buffer.shape[0]


@dataclass(frozen=True, slots=True)
class Trim:
    """Keep the first *size* elements, computed as in HostAlloc, of the array bound to *buffer*."""

    buffer: Buffer
    size: Expr


@dataclass(frozen=True, slots=True)
class Return:
    """The *buffers*, allocated by HostAlloc, are the arrays of the assembled results."""

    buffers: tuple[Buffer, ...]


HostOp: TypeAlias = Launch | Scan | HostAlloc | Trim | Return


@dataclass(frozen=True, slots=True)
class Module(Generic[F]):
    """Functions of one level and a host program; a program of one function is a Module of one.

    *source* is the function as written: its parameters and buffers are the interface, and
    *host* runs with its parameters.
    """

    source: Func
    funcs: tuple[F, ...]
    host: tuple[HostOp, ...]

    def __getitem__(self, name: str) -> F:
        """Return the function called *name*; ``main`` is the first. Raises KeyError."""
        for func in self.funcs:
            if name in (func.name, "main"):
                return func
        raise KeyError(name)

    @property
    def is_single(self) -> bool:
        """Whether the host program only launches the one function."""
        return self.host == (Launch(self.funcs[0].name),)

    def with_funcs(self, *funcs: G) -> Module[G]:
        """Return the module with *funcs* in place of its functions."""
        return Module(self.source, funcs, self.host)


def single(func: F) -> Module[F]:
    """Return the Module that only runs *func*."""
    return Module(func, (func,), (Launch(func.name),))


def returned(host: Iterable[HostOp]) -> tuple[Buffer, ...]:
    """Return the arrays that the program *host* returns: those of assembled results."""
    return tuple(b for op in host if isinstance(op, Return) for b in op.buffers)
