"""The whole route on one screen: program, stages, LLVM IR, machine code, Kernel."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from types import NoneType
from typing import TYPE_CHECKING, Any, Unpack, cast, overload

from spcomp.compiler.options import Check, CompileOptions, Options, Tuner, Winning
from spcomp.errors import ArgumentError, expect
from spcomp.ir.func import Func
from spcomp.ir.module import Module
from spcomp.kernels.kernel import Kernel
from spcomp.kernels.protocol import COMPILED, Runnable
from spcomp.schedule.step import Trace
from spcomp.target import Target

if TYPE_CHECKING:
    from spcomp.formats.format import Format
    from spcomp.formats.rules import ComposableFormat
    from spcomp.kernels.adjoint.kernel import AdjointKernel
    from spcomp.kernels.decomposed.choose import ChoosingKernel, Undecided
    from spcomp.kernels.decomposed.kernel import Decomposed, FormatKernel
    from spcomp.kernels.notation.kernel import NotationKernel
    from spcomp.notation.adjoint.adjoint import Adjoint
    from spcomp.notation.nodes import Program as Notation
    from spcomp.notation.objects import Function, Symbol
    from spcomp.notation.semiring import Semiring

_ADJOINT = "spcomp.notation.adjoint.adjoint"
_NOTATION = ("spcomp.notation.objects", "spcomp.notation.nodes")


@overload
def compile(  # noqa: A001
    program: Decomposed,
    **options: Unpack[CompileOptions],
) -> FormatKernel: ...


@overload
def compile(  # noqa: A001
    program: Undecided,
    **options: Unpack[CompileOptions],
) -> ChoosingKernel: ...


@overload
def compile(  # noqa: A001
    program: str | Symbol | Notation,
    *,
    formats: Mapping[str, str | Format | ComposableFormat] | None = ...,
    semiring: Semiring | str = ...,
    functions: Mapping[str, Function] | None = ...,
    **options: Unpack[CompileOptions],
) -> NotationKernel: ...


@overload
def compile(  # noqa: A001
    program: Adjoint,
    *,
    formats: Mapping[str, str | Format | ComposableFormat] | None = ...,
    **options: Unpack[CompileOptions],
) -> AdjointKernel: ...


@overload
def compile(  # noqa: A001
    program: Any,
    **options: Unpack[CompileOptions],
) -> Kernel: ...


def compile(  # noqa: A001
    program: Any,
    *,
    target: str | Target = "cpu",
    name: str | None = None,
    constants: Mapping[str, int | float] | None = None,
    threads: int | None = None,
    check: Check | None = None,
    trace: Trace | None = None,
    fast_math: bool = False,
    debug: bool | None = None,
    tuned: bool | str | os.PathLike[str] | Winning | Tuner | None = None,
    formats: Mapping[str, str | Format | ComposableFormat] | None = None,
    semiring: Semiring | str | None = None,
    functions: Mapping[str, Function] | None = None,
    **unknown: Any,
) -> Kernel | FormatKernel | ChoosingKernel | NotationKernel | AdjointKernel:
    """Compile *program* to a callable Kernel.

    Args:
        program: A function of the script language at any stage, a Module or a Schedule; the result
            of ``decompose``, which gives a FormatKernel or ChoosingKernel; or index notation, such
            as ``"C[i, k] = A[i, j] * B[j, k]"``, which gives a NotationKernel.
        target: ``cpu`` (this machine), ``cpu:x86-64-v3``, ``cuda:sm_90`` or ``cuda:sm_90,emulate``,
            which runs on the CPU; code for another machine can be read, not run.
        name: What the Kernel is called, an identifier; the program's name if not given.
        constants: Values of scalar parameters to compile in.
        threads: How many threads a call uses at most; by default the process's setting.
        check: How much of the index arrays is checked: ``full`` at every call, ``bind`` only in
            ``Kernel.bind`` and ``Tensor``, ``off`` nowhere (dtypes and shapes always are). By
            default what ``SPCOMP_CHECK`` says, else ``full``.
        trace: The steps to take, maybe none, in place of the default ones: see ``Kernel.trace``.
        fast_math: Whether floats may be added and multiplied in another order than written. By
            default they are not, but ``a * b + c`` may be rounded once.
        debug: Whether code and failures name lines of the source; by default as ``SPCOMP_DEBUG``.
        tuned: Whether calls do what ``spcomp.tune`` found to be fastest, which ``explain`` says; a
            Store, or its path, in place of the user's. By default as ``SPCOMP_TUNED``, 0 or 1.
        formats: Of index notation: how tensors are stored, by name: names of formats, or Formats.
            By default arguments stay as they are, and results follow the notation's rules.
        semiring: Of index notation: what ``+`` and ``*`` mean; by default ``plus_times``.
        functions: Of index notation: the user's own, by name.
        **unknown: Refused.

    Raises:
        SpcompError: The child that fits; ArgumentError for an option that does not exist.
    """
    asked = target, name, constants, threads, check, trace
    options = Options.of(*asked, fast_math=fast_math, debug=debug, **unknown)
    is_notation = isinstance(program, (str, tuple, list)) or type(program).__module__ in _NOTATION
    tuner = _tuner(tuned, program, options, is_notation=is_notation)
    options = options if tuner is None else replace(options, tuned=tuner)
    if is_notation:
        from spcomp.kernels.notation.program import compile_notation

        return compile_notation(program, options, formats, semiring, functions)
    if type(program).__module__ == _ADJOINT:
        _refuse_notation(semiring=semiring, functions=functions)
        return _adjoint_kernel(program, formats, options)
    _refuse_notation(formats=formats, semiring=semiring, functions=functions)
    return _kernel(program, options)


def _adjoint_kernel(program: Any, formats: Any, options: Options) -> AdjointKernel:
    from spcomp.kernels.adjoint.kernel import AdjointKernel

    return AdjointKernel(program, formats or {}, options)


def _tuner(tuned: Any, program: Any, options: Options, *, is_notation: bool) -> Tuner | None:
    """Return what chooses kernels by what was measured; None if nothing does."""
    store = None
    if not isinstance(tuned, (bool, NoneType)):  # a Tuner is a protocol, slow to ask for
        from spcomp.tune.winners import store_of

        if (store := store_of(tuned)) is None:
            expect("tuned", tuned, (Tuner,), "True or False, a Store, or the path of one")
            return cast("Tuner", tuned)
        tuned = True
    asked = os.environ.get("SPCOMP_TUNED", "0") not in ("", "0") if tuned is None else tuned
    if not asked:
        return None
    if (
        options.trace is not None
        or options.target.kind != "cpu"
        or not (is_notation or isinstance(program, Func))
    ):
        if tuned:
            hint = "it is for functions without a schedule and index notation, on CPUs"
            why = "its steps or formats are given already"
            if options.target.kind != "cpu":
                why = f"stored winners are applied on CPUs only, got {options.target}"
            raise ArgumentError(f"argument tuned: {why}", hint=hint)
        return None
    from spcomp.tune.winners import StoredWinners  # above, so only where it is asked for

    return StoredWinners(store)


def _refuse_notation(**options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            raise ArgumentError(f"argument {name}: is for index notation only")


def _kernel(program: Any, options: Options) -> Kernel | FormatKernel | ChoosingKernel:
    """Return the kernel of what is no index notation; raises ArgumentError for other things."""
    if isinstance(program, (Func, Module)):
        if options.tuned is not None:
            tuned: Kernel = options.tuned.kernel(program, options)
            return tuned
        return Kernel.of(program, options)
    from spcomp.kernels.decomposed.choose import ChoosingKernel, Undecided
    from spcomp.kernels.decomposed.kernel import Decomposed, FormatKernel
    from spcomp.schedule.schedule import Schedule

    if isinstance(program, Decomposed):
        return FormatKernel.of(program, options)
    if isinstance(program, Undecided):
        return ChoosingKernel(program, options)
    if isinstance(program, Schedule):
        return Kernel.of(program, options)
    hint = "give a line of index notation, a function decorated with @T.prim_func, or a Schedule"
    if isinstance(program, Runnable):
        hint = COMPILED
    elif callable(program):
        hint = "decorate the function with @T.prim_func (from spcomp import script as T)"
    raise ArgumentError(f"argument program: got {type(program).__name__}", hint=hint)
