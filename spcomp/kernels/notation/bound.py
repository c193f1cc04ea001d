"""Around the route: a kernel of index notation with some arguments fixed."""

from __future__ import annotations

from typing import Any

from spcomp.kernels.notation.call import BoundArguments
from spcomp.kernels.notation.runner import Runner
from spcomp.kernels.protocol import Bound, Runnable


class BoundNotation(Bound):
    """A NotationKernel with some arguments fixed; call it with the others by name."""

    def __init__(self, kernel: Runnable, runner: Runner, arguments: dict[str, Any]) -> None:
        super().__init__(kernel, arguments)
        self._runner, self._bound = runner, BoundArguments.of(arguments)

    def __call__(self, *, out: Any = None, **named: Any) -> Any:
        """Run the program on the bound arguments and *named*; returns as the kernel does."""
        self.refuse_bound(named)
        return self._runner.call(out, named, self._bound)

    def check(self) -> None:
        """Wait for calls on a GPU that nothing waited for; raises ArgumentError if one failed."""
        for kernel in self._bound.kernels.values():
            if isinstance(kernel, Runnable):
                kernel.check()
