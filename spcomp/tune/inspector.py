"""Around the route: kernels that are bound to what is expected to be fastest for their matrices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.errors import ArgumentError
from spcomp.ir.func import Func
from spcomp.kernels.inspection import Inspection
from spcomp.kernels.kernel import Kernel, frozen
from spcomp.kernels.notation.kernel import NotationKernel
from spcomp.tensors.libraries.scipy import in_range, is_scipy
from spcomp.tensors.tensor import Tensor
from spcomp.tune.choice import Choice
from spcomp.tune.decisions import Decision, is_matrix
from spcomp.tune.store import Store, user_store
from spcomp.tune.suggestion import advised
from spcomp.tune.winners import Asked, StoredWinners, TunedBound, TunedKernel, Winner, Winners

if TYPE_CHECKING:
    from spcomp.compiler.options import Options
    from spcomp.kernels.protocol import Runnable

UNDECIDED = "inspected: nothing is chosen yet, since sizes come with the first call"


@dataclass(frozen=True, slots=True)
class Inspector(Winners):
    """Chooses what is expected to be fastest for *calls* calls; many if None."""

    calls: int | None = None
    store: Store | None = None

    def kernel(self, func: Func, options: Options) -> InspectingKernel:
        """Return the kernel of *func* whose matrices are inspected when they are bound."""
        return InspectingKernel(func, options, self)

    def knows(self, program: str) -> bool:  # noqa: ARG002
        """Whether anything won: an expectation needs no measurement of this program."""
        return True

    def find(self, asked: Asked) -> Winner | None:
        """Return what is expected to be fastest, and how far that is known."""
        advice = advised(asked, self.store or user_store(), self.calls)
        calls = "many calls" if self.calls is None else f"{self.calls} calls"
        calls = "1 call" if self.calls == 1 else calls
        if advice.choice == Choice():
            why = ", as measured with such matrices" if advice.source == "store" else ""
            return Winner(advice.choice, f"inspected for {calls}: the default is kept{why}")
        known = "measured with such matrices" if advice.source == "store" else "expected"
        note = f"inspected for {calls}: {advice.choice}; {known} to be {advice.speedup:.2f} times"
        return Winner(advice.choice, f"{note} as fast as the default")


class InspectingKernel(TunedKernel):
    """A TunedKernel that inspects matrices when they are bound; without bound ones a Kernel."""

    undecided = UNDECIDED

    def decide(self, named: Any) -> Decision:  # noqa: ARG002
        """Return the default: nothing is bound, so that nothing is converted."""
        return self.last

    def bind(self, **named: Any) -> TunedBound:  # type: ignore[override]
        """Return a callable for the other arguments; matrices in it are copies."""
        if (inspection := Inspection.take(named, self.takes)) is not None:
            inspector = Inspector(inspection.calls, _store_of(self._winners))
            return inspector.kernel(self._func, self._options).bind(**named)
        steady = {name: _copied(name, arg) for name, arg in named.items()}
        default = Kernel.bind(self, **steady)  # what is wrong is refused now
        return TunedBound(self, default, steady, at_once=True)


def _copied(name: str, arg: Any) -> Any:
    """Return *arg*, called *name*; a matrix as a copy that nobody changes.

    Raises ArgumentError for arrays that scipy's copies would refuse in words of their own.
    """
    if isinstance(arg, Tensor):  # its levels cannot change
        return arg.with_values(np.array(arg.values))
    if not is_matrix(arg):
        return arg
    if getattr(arg, "format", "") in ("csr", "bsr") and isinstance(arg.data, np.ndarray):
        steady = frozen(arg)
        steady.data = np.array(arg.data)
        return steady
    if is_scipy(arg) and arg.format == "coo":
        in_range(arg, f"{name}.")
    copy = getattr(arg, "copy", None) or getattr(arg, "clone", None)
    return arg if copy is None else copy()


def _store_of(tuner: Any) -> Store | None:
    """Return the store that *tuner* looks into; None for the user's."""
    return tuner.store if isinstance(tuner, (Inspector, StoredWinners)) else None


def bind(kernel: Any, inspection: Inspection, named: dict[str, Any]) -> Runnable:
    """Return *kernel* with *named* bound, as *inspection* asks.

    Raises ArgumentError for kernels whose steps are decided, or that run on a GPU.
    """
    options = kernel.options
    inspector = Inspector(inspection.calls, _store_of(options.tuned))
    if options.trace is None and options.target.kind == "cpu":
        if isinstance(kernel, NotationKernel):
            if decided := [name for name in kernel.formats if name in kernel.arguments]:
                raise ArgumentError(
                    f"{kernel.name}: the format of {', '.join(decided)} is decided already",
                    hint="leave it out of formats=, or bind without calls= and inspect=",
                )
            steady = {name: _copied(name, arg) for name, arg in named.items()}
            return kernel.with_options(replace(options, tuned=inspector)).bind(**steady)
        if isinstance(kernel.program, Func):
            return inspector.kernel(kernel.program, options).bind(**named)
    hint = "calls= and inspect= are for functions without a schedule and index notation, on CPUs"
    raise ArgumentError(f"{kernel.name}: its steps or its machine are decided already", hint=hint)
