"""Under the tuner: a program with the arguments that it is tuned for, and what it computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.compiler.options import Options
from spcomp.errors import ArgumentError, SpcompError
from spcomp.ir.func import Func
from spcomp.ir.module import Module
from spcomp.kernels.compile import compile as compiled
from spcomp.kernels.decomposed.kernel import FormatKernel
from spcomp.kernels.kernel import Kernel
from spcomp.kernels.notation.kernel import NotationKernel
from spcomp.kernels.notation.planned import CompiledVersion, Planned
from spcomp.kernels.notation.specialized import kernel_behind
from spcomp.locks import cached_property
from spcomp.notation.adjoint.adjoint import Adjoint
from spcomp.schedule.schedule import Schedule
from spcomp.tensors.libraries.foreign import arrays_of
from spcomp.tensors.libraries.scipy import is_scipy, native_scipy, with_values
from spcomp.tensors.tensor import Tensor
from spcomp.tune.choice import SizedBound
from spcomp.tune.decisions import is_matrix
from spcomp.tune.winners import Asked, FixedWinner, TunedKernel

if TYPE_CHECKING:
    from spcomp.arrays import Array
    from spcomp.kernels.protocol import Runnable
    from spcomp.tensors.parts.parts import Parts
    from spcomp.tune.choice import Choice
    from spcomp.tune.problem import Problem

TERMS = 16  # roundings that a result may have gone through, as a multiple of eps


@dataclass(frozen=True, eq=False)
class Task:
    """A function *func* to be tuned on *arguments*; *program* is what the user gave, with a *name*.

    *default*: the kernel that others are compared with. *notation*: the user's kernel, if that is
    one of index notation, of which *func* was made.
    """

    program: Any
    func: Func
    options: Options
    arguments: Mapping[str, Any]
    default: Kernel
    name: str
    notation: NotationKernel | None = None

    @classmethod
    def of(cls, program: Any, arguments: Mapping[str, Any], **options: Any) -> Task:
        """Return the task for *program*; *options* are those of ``compile``.

        Raises SpcompError where the program cannot be compiled for *arguments*, or has a schedule.
        """
        if options.get("trace") is not None or (isinstance(program, Schedule) and program.decided):
            raise ArgumentError(
                "argument program: its steps are decided already",
                hint="give the function without a schedule; space= takes candidates of your own",
            )
        if isinstance(program, Schedule):
            program = program.func
        named = arrays_of(dict(arguments))
        kernel = compiled(program, **options, tuned=False)
        if isinstance(kernel, NotationKernel):
            return cls._of_notation(program, kernel, named)
        if isinstance(program, Adjoint):
            raise ArgumentError(
                "argument program: adjoints of index notation are not tuned",
                hint="tune a line of it, as print(adjoint) shows, or the adjoint of a function",
            )
        if not isinstance(kernel, Kernel):
            raise ArgumentError(
                "argument program: formats are decided already", hint="tune finds formats itself"
            )
        if isinstance(program, Module):
            if not program.is_single:
                raise ArgumentError(
                    f"{kernel.name} has {len(program.funcs)} functions",
                    hint="give the program in coordinate space, before it was lowered",
                )
            program = program.funcs[0]
        return cls(program, program, kernel.options, named, kernel, kernel.name)

    @classmethod
    def _of_notation(cls, program: Any, kernel: NotationKernel, named: Mapping[str, Any]) -> Task:
        named = dict(named)
        sizes = {} if "sizes" in kernel.arguments else named.pop("sizes", {})
        planned = kernel.planned(named)
        if not isinstance(planned, Planned):
            raise ArgumentError(
                f"{kernel.name} runs as several programs, one after the other",
                hint="tune them one by one; explain shows them",
            )
        plain = kernel_behind(kernel.specialize(**named))
        if not isinstance(plain, Kernel):
            raise ArgumentError(
                f"{kernel.name}: formats are decided already", hint="tune it with csr arguments"
            )
        given = kernel.operands(named, sizes)
        version = CompiledVersion.of(planned, plain, given, {})
        made = {a.name: a.make(given[a.source].value) for a in version.arguments}
        return cls(program, planned.func, plain.options, made, plain, kernel.name, kernel)

    @cached_property
    def asked(self) -> Asked:
        """The call of the default kernel."""
        return Asked(self.default, self.func, self.arguments)

    @property
    def matrices(self) -> dict[str, Any]:
        """The arguments that store some elements only, which are bound."""
        return self.asked.matrices

    @property
    def problem(self) -> Problem:
        """The key of the task in the store."""
        return self.asked.problem

    @property
    def version(self) -> Kernel:
        """The version of the default kernel that these arguments get."""
        return self.asked.version

    @cached_property
    def written(self) -> tuple[str, ...]:
        """The names of the arguments that a call changes."""
        params = self.default.signature.params
        return tuple(p.name for p in params if p.kind in ("inout", "out") and p.name in self.rest)

    @cached_property
    def rest(self) -> dict[str, Any]:
        """The arguments that are given at each call."""
        return {name: arg for name, arg in self.arguments.items() if name not in self.matrices}

    def kernel(self, choice: Choice) -> Runnable:
        """Return the program compiled as *choice* says; it is called like the user's."""
        if self.notation is None and not self._states(choice):
            return choice.kernel(self.func, self.options)
        kernel = self.fixed(choice)
        if isinstance(kernel, TunedKernel):
            kernel.decide(self.arguments)  # now, so that it says what it does
        return kernel

    def fixed(self, choice: Choice) -> Runnable:
        """Return the user's kernel, which does what *choice* says wherever that is for a call."""
        tuner = FixedWinner(choice)
        if self.notation is None:
            return tuner.kernel(self.func, replace(self.options, tuned=tuner))
        return self.notation.with_options(replace(self.notation.options, tuned=tuner))

    def bind(self, kernel: Runnable, choice: Choice, parts: dict[Any, Parts]) -> Runnable:
        """Return *kernel*, compiled as *choice* says, with the matrices bound.

        *parts*: converted matrices by name and format, which are used again.
        """
        matrices = dict(self.matrices)
        if isinstance(kernel, FormatKernel):
            for name, text in choice.formats:
                key = name, text
                if key not in parts:
                    parts[key] = kernel.convert(**{name: matrices[name]})
                matrices[name] = parts[key]
        bound = kernel.bind(**matrices)
        return SizedBound(bound, matrices, choice) if self._states(choice) else bound

    def _states(self, choice: Choice) -> bool:
        """Whether the arguments state a size that *choice* compiles in."""
        return not choice.sizes.keys().isdisjoint(self.arguments)

    def run(self, bound: Runnable) -> list[Array]:
        """Return all arrays that a call computes, of arguments that stay as they are."""
        rest = self._copied()
        returned = bound(**rest)
        return [*flatten(returned), *(np.asarray(rest[name]) for name in self.written)]

    def call(self, bound: Runnable) -> Callable[[], Any]:
        """Return the call that is timed: into the same array each time, if it makes one."""
        rest = self._copied()
        result = bound(**rest)
        if type(result) is np.ndarray and not self.written:
            return partial(bound, **rest, out=result)
        return partial(bound, **rest)

    def _copied(self) -> dict[str, Any]:
        written = {name: np.array(self.rest[name]) for name in self.written}
        return {**self.rest, **written}


@dataclass(frozen=True, eq=False)
class Expected:
    """The results *arrays* of the default kernel, and the *magnitudes* of what was added up."""

    arrays: list[Array]
    magnitudes: list[Array | None]
    terms: float

    @classmethod
    def of(cls, task: Task) -> Expected:
        """Return what the default kernel computes."""
        arrays = task.run(task.default.bind(**task.matrices))
        longest = max((s.longest for _, s in task.problem.matrices), default=1)
        stored = max((s.nnz for _, s in task.problem.matrices), default=1)
        whole = all(array.size <= 1 for array in arrays)
        terms = max(TERMS, sqrt(stored if whole else longest))
        return cls(arrays, _magnitudes(task, arrays), terms)

    def difference(self, arrays: list[Array]) -> str:
        """Return how *arrays* differ by more than rounding, or an empty text.

        Integers must be equal, floats within a multiple of eps times the magnitudes.
        """
        if [a.shape for a in arrays] != [a.shape for a in self.arrays]:
            return "a result has another shape"
        for got, want, size in zip(arrays, self.arrays, self.magnitudes, strict=True):
            if size is None:
                wrong = got != want
            else:
                with np.errstate(invalid="ignore"):
                    near = np.abs(got.astype(size.dtype) - want) <= self.terms * size
                    wrong = ~(near | (got == want) | (np.isnan(got) & np.isnan(want)))
            if count := int(np.count_nonzero(wrong)):
                at = int(np.flatnonzero(wrong)[0])
                pair = got.reshape(-1)[at], want.reshape(-1)[at]
                return f"{count} of {got.size} elements differ: {pair[0]}, expected {pair[1]}"
        return ""


def _magnitudes(task: Task, arrays: list[Array]) -> list[Array | None]:
    """Return, for each array of floats, eps times the magnitude of what its elements add up.

    The program on the magnitudes of its arguments computes it, for sums of products.
    """
    try:
        absolute = {name: _absolute(arg) for name, arg in task.arguments.items()}
        named = {name: absolute[name] for name in task.matrices}
        other = replace(task, arguments=absolute)
        sums = other.run(task.default.bind(**named))
    except (SpcompError, TypeError):
        sums = arrays
    result: list[Array | None] = []
    for array, total in zip(arrays, sums, strict=True):
        if array.dtype.kind != "f":
            result.append(None)
            continue
        size = np.abs(array.astype(np.float64))
        if total.shape == array.shape:
            size = size + np.nan_to_num(np.abs(total.astype(np.float64)), posinf=0.0, neginf=0.0)
        result.append(np.nan_to_num(size, posinf=0.0) * np.finfo(array.dtype).eps)
    return result


def _absolute(arg: Any) -> Any:
    kind = np.asarray(arg).dtype.kind if not is_matrix(arg) else arg.dtype.kind
    if kind != "f":
        return arg
    if is_scipy(arg) and arg.format in ("lil", "dok"):
        return abs(arg.copy())
    if is_scipy(arg):  # whose own abs refuses arrays that calls take, and sums duplicates in place
        matrix = native_scipy(arg)
        return with_values(matrix, np.abs(matrix.data))
    if isinstance(arg, Tensor):
        return arg.with_values(np.abs(arg.values))
    return abs(arg)


def flatten(result: Any) -> list[Array]:
    """Return the arrays that a result consists of; raises ArgumentError for an unknown kind."""
    if result is None:
        return []
    if isinstance(result, tuple):
        return [array for item in result for array in flatten(item)]
    if isinstance(result, Tensor):
        indices = [
            getattr(level, k, None) for level in result.levels for k in ("indptr", "indices")
        ]
        return [*(np.asarray(x) for x in indices if x is not None), np.asarray(result.values)]
    if all(hasattr(result, name) for name in ("indptr", "indices", "data")):
        return [result.indptr, result.indices, result.data]
    if hasattr(result, "coords") and hasattr(result, "data"):
        return [*result.coords, result.data]
    if isinstance(result, (np.ndarray, np.generic, int, float, bool)):
        return [np.asarray(result)]
    raise ArgumentError(f"results of type {type(result).__name__} cannot be compared")
