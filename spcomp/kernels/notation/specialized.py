"""Around the route: the kernel of a call of index notation, where it takes other arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spcomp.kernels.protocol import InnerCall, Runnable

if TYPE_CHECKING:
    from spcomp.compiler.interface import Signature


def kernel_behind(kernel: Runnable) -> Runnable:
    """Return the kernel that runs in the calls of a SpecializedKernel; another one as it is."""
    return kernel.kernel if isinstance(kernel, SpecializedKernel) else kernel


class SpecializedKernel(Runnable):
    """The *kernel* that calls of *notation* with some arguments run, called as the user calls it.

    It takes them in another order or format, a csc matrix as the rows of its transpose, say. All
    else, such as ``object_bytes``, is that of *kernel*; its ``signature`` is what it takes.
    """

    def __init__(self, notation: Runnable, kernel: Runnable) -> None:
        self._notation, self.kernel = notation, kernel

    def __call__(self, /, *args: Any, out: Any = None, **named: Any) -> Any:
        """Run the program on arguments by name, as ``notation`` does. Raises ArgumentError."""
        return self._notation(*args, out=out, **named)

    def bind(self, /, **named: Any) -> Runnable:
        """Return a callable that takes the rest of the arguments, with *named* fixed."""
        return self._notation.bind(**named)

    def specialize(self, /, **named: Any) -> Runnable:
        """Return the kernel that a call with arguments like these runs; compiled if need be."""
        return self._notation.specialize(**named)

    def explain(self, /, **named: Any) -> str:
        """Return what was decided, and why, for arguments like *named* if there are any."""
        return self._notation.explain(**named) if named else self.kernel.explain()

    @property
    def name(self) -> str:
        """The name of the kernel."""
        return self.kernel.name

    @property
    def signature(self) -> Signature:
        """The parameters of the kernel, as it takes them."""
        return self.kernel.signature

    @property
    def note(self) -> str:
        """Why the kernel is not the default one."""
        return self.kernel.note

    def explain_launches(self) -> str:
        """Return what the kernel launches on a GPU."""
        return self.kernel.explain_launches()

    def kernels(self) -> tuple[Runnable, ...]:
        """Return the kernel's own."""
        return self.kernel.kernels()

    def inner_call(self, named: Mapping[str, Any]) -> InnerCall:
        """Return the call of the kernel that a call with *named* comes down to."""
        return self._notation.inner_call(named)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the kernel."""
        if name.startswith("_") or name == "kernel":
            raise AttributeError(name)
        return getattr(self.kernel, name)

    def __repr__(self) -> str:
        return repr(self.kernel)
