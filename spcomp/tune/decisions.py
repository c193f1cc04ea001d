"""Around the route: what was decided for calls, remembered by the kinds of their arguments."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from spcomp.kernels.decomposed.choose import ChoosingKernel
from spcomp.kernels.decomposed.kernel import FormatKernel
from spcomp.kernels.decomposed.latest import identity_of
from spcomp.kernels.protocol import Bound, Runnable, as_it_is
from spcomp.locks import Lock
from spcomp.runtime.pool import get_num_threads
from spcomp.tensors.parts.parts import Parts
from spcomp.tensors.tensor import Tensor

if TYPE_CHECKING:
    from spcomp.formats.rules import ComposableFormat

MOST = 32  # kinds of arguments for which a kernel remembers what it does
NONE = "tuned: nothing was found for this program with matrices like these"


class Decision(NamedTuple):
    """The *kernel* for some arguments, None for the default one, and a *note* that says why.

    *taken*: returns those of a call's arguments that the kernel takes.
    """

    kernel: Runnable | None
    note: str
    taken: Callable[[Mapping[str, Any]], Mapping[str, Any]] = as_it_is

    @property
    def formats(self) -> Mapping[str, ComposableFormat]:
        """The formats in which the kernel stores matrices, by name."""
        kernel = self.kernel.kernel if isinstance(self.kernel, Bound) else self.kernel
        if isinstance(kernel, ChoosingKernel):
            return kernel.last_chosen
        return kernel.program.formats if isinstance(kernel, FormatKernel) else {}


class Decisions:
    """What *decide* says for arguments of a kernel; the last :data:`MOST` kinds are remembered.

    It is asked again when the process uses another number of threads.

    *last*: what was said last; its note is *undecided* before.
    """

    def __init__(self, decide: Callable[[Mapping[str, Any]], Decision], undecided: str) -> None:
        self._decide = decide
        self._known: OrderedDict[object, Decision] = OrderedDict()
        self._lock = Lock()
        self.last = Decision(None, undecided)

    def of(self, named: Mapping[str, Any]) -> Decision:
        """Return the decision for calls with arguments like *named*."""
        kinds = tuple([(name, *_kind(arg)) for name, arg in named.items()])
        key = get_num_threads(), kinds
        try:
            decision = self._known[key]
        except KeyError:
            with self._lock:
                decision = self._known[key] = self._decide(named)
                while len(self._known) > MOST:
                    self._known.popitem(last=False)
        except TypeError:  # an argument of no known kind: the call says what is wrong
            return Decision(None, NONE)
        self.last = decision
        return decision

    @property
    def only(self) -> Decision | None:
        """The decision for all calls so far; None: there are several, or none."""
        known = tuple(self._known.values())
        return known[0] if len(known) == 1 else None


def is_matrix(arg: Any) -> bool:
    """Whether *arg* is a tensor that stores some elements only, in any library."""
    if isinstance(arg, (Tensor, Parts)):
        return True
    return hasattr(arg, "nnz") or getattr(arg, "is_sparse", False) is True


def _kind(arg: Any) -> tuple[Any, ...]:
    """Return what tells an argument from others: its type, shape, elements, and if it may change.

    A matrix of the same shape with as many elements is taken for the same.
    """
    shape = getattr(arg, "shape", None)
    if not is_matrix(arg):
        return (shape,) if shape else (type(arg), _whole(arg))
    if shape is None:
        return type(arg), None
    stored = arg.values.size if isinstance(arg, Tensor) else getattr(arg, "nnz", 0)
    return type(arg), tuple(shape), stored, is_kept(arg)


def _whole(arg: Any) -> int | None:
    """Return the whole number *arg*, of any library; None if it is something else."""
    try:
        return operator.index(arg)
    except TypeError:
        return None


def is_kept(arg: Any) -> bool:
    """Whether none of the arrays of the matrix *arg* can change."""
    return identity_of(("A",), {"A": arg}) is not None
