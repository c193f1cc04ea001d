"""Around the route: a kernel of index notation with some arguments fixed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from spcomp.compiler.evaluator import Timed
from spcomp.compiler.foreign import arrays_of, bridge, has_torch
from spcomp.errors import ArgumentError

if TYPE_CHECKING:
    from spcomp.compiler.formats import Bound
    from spcomp.compiler.notation import NotationKernel, Version


class BoundNotation(Timed):
    """A NotationKernel with some arguments fixed; call it with the others by name."""

    def __init__(self, kernel: NotationKernel, bound: Mapping[str, Any]) -> None:
        self.kernel, self.bound = kernel, dict(bound)
        self._held = arrays_of(self.bound)
        self._kernels: dict[Version, Bound] = {}

    def __call__(self, *, out: Any = None, **named_args: Any) -> Any:
        """Run the program on the bound arguments and *named_args*; returns as the kernel does."""
        for name in named_args:
            if name in self.bound:
                raise ArgumentError(f"argument {name}: is bound already")
        if self._held is self.bound and not has_torch(named_args.values(), out):
            return self.kernel.run(out, named_args, self.bound, self._kernels)
        run = partial(self.kernel.run, bound=self._held, kernels=self._kernels)
        return bridge().called(run, named_args, out, self.kernel.written, self.bound.values())

    def __repr__(self) -> str:
        return f"<{self.kernel!r} with {', '.join(self.bound)} bound>"
