"""Around the route: what every kernel can do, also with some of its arguments bound."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Self

from spcomp.display.html import folded, heading, numbered, table
from spcomp.errors import ArgumentError, SpcompError, front_door
from spcomp.kernels.opaque import opaque, tell_torch
from spcomp.kernels.timing import Evaluator

if TYPE_CHECKING:
    import os

    from spcomp.compiler.interface import Signature
    from spcomp.explore.explorer import Explorer
    from spcomp.formats.rules import ComposableFormat
    from spcomp.runtime.gpu import Resources
    from spcomp.schedule.step import Trace


COMPILED = "it is compiled already: give the text, or the function, that it was compiled from"


def as_it_is(value: Any) -> Any:
    """Return *value*."""
    return value


@dataclass(frozen=True, slots=True)
class InnerCall:
    """A call of *kernel* with *arguments* by name; *deliver* makes the outer kernel's results."""

    kernel: Runnable
    arguments: Mapping[str, Any]
    deliver: Callable[[Any], Any] = as_it_is


class Runnable(ABC):
    """A kernel: what ``compile`` and ``bind`` return.

    Some kernels compile when they are called. Before their first call ``trace``, ``stage``,
    ``source`` and, for index notation, ``signature`` raise ArgumentError.
    """

    def __init_subclass__(cls) -> None:
        if "__call__" in vars(cls):
            opaque(vars(cls)["__call__"])

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Return a kernel; torch may have been loaded after its class."""
        tell_torch()
        return super().__new__(cls)

    @abstractmethod
    def __call__(self, /, *, out: Any = None, **named: Any) -> Any:
        """Run the program; raises ArgumentError for arguments that it cannot take."""

    @abstractmethod
    def bind(self, /, **named: Any) -> Runnable:
        """Return a callable that takes the rest of the arguments, with *named* fixed."""

    @abstractmethod
    def specialize(self, /, **named: Any) -> Runnable:
        """Return the kernel that a call with arguments like these runs; compiled if need be."""

    @abstractmethod
    def explain(self, /, **named: Any) -> str:
        """Return what was decided, and why, for arguments like *named* if there are any."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name given to ``compile``, else the program's."""

    @property
    @abstractmethod
    def signature(self) -> Signature:
        """The parameters with their dtypes, shapes and roles, and the names of the results."""

    @abstractmethod
    def kernels(self) -> tuple[Runnable, ...]:
        """Return the kernels that a call runs, or ran last, in order: one for each program."""

    chooses: ClassVar[bool] = False  # whether the arguments of a call decide which kernel runs

    def choose(self, /, **named: Any) -> Runnable:  # noqa: ARG002
        """Return the kernel that is chosen for a call with *named*; this one if none is."""
        return self

    @property
    def last_chosen(self) -> Mapping[str, ComposableFormat]:
        """The formats in which the kernel chosen last stores matrices, by name, if any are."""
        return {}

    @property
    def note(self) -> str:
        """What ``explain`` says first: why the kernel is not the default one; usually nothing."""
        return ""

    @property
    def only_calls(self) -> Any:
        """The Calls by name, if a call is nothing else; None: it does more, or runs elsewhere."""
        return None

    def explain_launches(self) -> str:
        """Return what a call launches on a GPU as text, a line for each launch."""
        return ""

    def check(self) -> None:  # noqa: B027 (only calls on a GPU are not waited for)
        """Wait for calls on a GPU that nothing waited for; raises ArgumentError if one failed.

        Other calls that fail have raised it.
        """

    def _only_kernel(self) -> Runnable:
        """Return the one kernel that a call runs; raises ArgumentError if there are several."""
        kernels = self.kernels()
        if len(kernels) > 1:
            raise ArgumentError(
                f"{self.name} runs as {len(kernels)} programs, one after the other",
                hint="stage and source show them all, explain says why",
            )
        return kernels[0]

    @property
    def trace(self) -> Trace:
        """The schedule steps that were applied, in order; ``compile(..., trace=)`` takes them."""
        return self._only_kernel().trace

    @property
    def timings(self) -> dict[str, float]:
        """Seconds that each step of compilation took, of all programs that a call runs."""
        total: dict[str, float] = {}
        for kernel in self.kernels():
            for step, seconds in kernel.timings.items():
                total[step] = total.get(step, 0.0) + seconds
        return total

    @property
    def schedulable(self) -> Any:
        """What a Schedule takes of the kernel: the program that a call runs, without steps.

        Raises ArgumentError if there are several, or none yet.
        """
        return self._only_kernel().schedulable

    def stage(self, name: str) -> str:
        """Return the program at ``coordinate``, ``position`` or ``flat``; raises ArgumentError."""
        return "\n".join(kernel.stage(name) for kernel in self.kernels())

    def source(self, kind: str = "llvm") -> str:
        """Return what was generated: ``llvm`` IR, or ``asm``, for a GPU ``ptx``.

        Raises ArgumentError for another.
        """
        return "\n".join(kernel.source(kind) for kernel in self.kernels())

    def explore(self, /, path: str | os.PathLike[str] | None = None, **named: Any) -> Explorer:
        """Return a page with all stages side by side, linked line by line; see docs/explorer.md.

        A notebook shows it. With *path* it is written there, too, as one file of HTML. With
        arguments *named* it is of what a call with them runs, with the time of each nest beside its
        line, pictures of the matrices, and the call in the roofline model. Raises ArgumentError for
        a kernel that compiles when it is called and was not called yet.
        """
        if named:
            result: Explorer = import_module("spcomp.viz.call").explored(self, named)
        else:
            from spcomp.explore.explorer import explorer

            result = explorer(self.name, self.kernels())
        if path is not None:
            result.save(path)
        return result

    @front_door
    def interpret(
        self, stage: str = "coordinate", /, *, compare: bool = False, **named: Any
    ) -> Any:
        """Return what a call with *named* returns, computed by the interpreter of *stage*.

        Stages are ``coordinate``, ``position``, ``flat`` and ``code``, which is the machine code.
        With *compare*, all of them are run, and the Comparison of their results is returned: it
        says which stage is the first to compute something else, and at which element. Interpreters
        are plain Python: some 10^5 operations take a second. Raises ArgumentError, also where a
        call runs several programs.
        """
        call = self.inner_call(named)
        found = call.kernel.interpret(stage, compare=compare, **call.arguments)
        return found if compare else call.deliver(found)

    @front_door
    def profile(self, /, *, repeat: int = 10, **named: Any) -> Any:
        """Return the time of each phase, and of each nest of loops, of a call with *named*.

        Times are medians of *repeat* calls on copies of the arguments. Raises ArgumentError, also
        where a call runs several programs.
        """
        call = self.inner_call(named)
        return call.kernel.profile(repeat=repeat, **call.arguments)

    @abstractmethod
    def inner_call(self, named: Mapping[str, Any]) -> InnerCall:
        """Return the call of another kernel that a call with *named* comes down to.

        Raises ArgumentError, also where there are several.
        """

    def _repr_html_(self) -> str:
        title, _, text = repr(self)[1:-1].partition(": ")
        try:
            params, trace = self.signature.params, self.trace
        except SpcompError:  # nothing was called yet, or it runs as several programs
            written = text.strip("'\"").replace("\\n", "\n")
            return heading(title) + (f"<pre>{escape(written)}</pre>" if written else "")
        rows = ((p.name, p.kind, p.dtype, ", ".join(p.shape), ", ".join(p.layout)) for p in params)
        head = ("parameter", "kind", "dtype", "shape", "axes")
        steps = numbered(escape(str(step)) for _, step in trace)
        times = (
            (step, f"{1e3 * seconds:.2f} ms")
            for kernel in self.kernels()
            for step, seconds in kernel.timings.items()
        )
        return (
            heading(title)
            + table(head, rows)
            + folded("the steps of its schedule", steps)
            + folded("how long it took to compile", table(("step", "time"), times))
            + "<p>All stages, line by line: <code>kernel.explore()</code></p>"
        )

    @property
    def resources(self) -> Mapping[str, Resources]:
        """What each kernel takes of a GPU, by name: registers, spills, shared memory, occupancy.

        Raises BackendError if there is neither ptxas nor a GPU, or the code is for a CPU.
        """
        return {
            name: found for kernel in self.kernels() for name, found in kernel.resources.items()
        }

    def time_evaluator(self, *, number: int = 10, repeat: int = 1) -> Evaluator:
        """Return a function that times calls with the arguments it is given, as TVM's does.

        Its result has ``mean``, ``median``, ``min``, ``max``, ``std`` and ``results``, in seconds:
        *repeat* results, each the mean of *number* calls in a row. One call before them is not
        counted. To compare kernels, time them in turns: the machine changes. Raises ArgumentError.
        """
        for name, count in (("number", number), ("repeat", repeat)):
            if not isinstance(count, int) or count < 1:
                raise ArgumentError(f"argument {name}: got {count!r}, expected a positive integer")
        return Evaluator(self, number, repeat)


class Bound(Runnable):
    """A *kernel* with some *arguments* fixed, by name; calls give the others.

    Its code is that of the kernel.
    """

    def __init__(self, kernel: Runnable, arguments: Mapping[str, Any]) -> None:
        self.kernel, self.arguments = kernel, dict(arguments)

    def _with_bound(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """Return *named* with the bound arguments; raises ArgumentError for a name in both."""
        self.refuse_bound(named)
        return {**self.arguments, **named}

    def refuse_bound(self, named: Mapping[str, Any]) -> None:
        """Raise ArgumentError if one of *named* is bound already."""
        for name in named:
            if name in self.arguments:
                raise ArgumentError(f"argument {name}: is bound already")

    def bind(self, /, **named: Any) -> Runnable:
        """Return a callable that takes the rest of the arguments, with *named* fixed, too."""
        return self.kernel.bind(**self._with_bound(named))

    def specialize(self, /, **named: Any) -> Runnable:
        """Return the kernel that a call with arguments like these runs; compiled if need be."""
        return self.kernel.specialize(**self._with_bound(named))

    def explain(self, /, **named: Any) -> str:
        """Return what was decided, and why, for arguments like *named* and the bound ones."""
        return self.kernel.explain(**self._with_bound(named))

    @property
    def name(self) -> str:
        """The name of the kernel."""
        return self.kernel.name

    @property
    def signature(self) -> Signature:
        """The signature of the kernel without the bound arguments."""
        return self.kernel.signature.without(self.arguments)

    def kernels(self) -> tuple[Runnable, ...]:
        """Return the kernels that a call runs, or ran last, in order: one for each program."""
        return self.kernel.kernels()

    def inner_call(self, named: Mapping[str, Any]) -> InnerCall:
        """Return the call of another kernel that a call with *named* comes down to."""
        return self.kernel.inner_call(self._with_bound(named))

    def __repr__(self) -> str:
        return f"<{self.name} with {', '.join(self.arguments) or 'nothing'} bound>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _bound_again, (self.kernel, self.arguments)  # machine code is made again


def _bound_again(kernel: Runnable, arguments: Mapping[str, Any]) -> Runnable:
    """Return *kernel* with *arguments* bound, as it was pickled."""
    return kernel.bind(**arguments)
