"""The whole route on one screen: program, stages, LLVM IR, machine code, Kernel."""

from __future__ import annotations

import ctypes
import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from keyword import iskeyword
from time import perf_counter
from types import NoneType
from typing import TYPE_CHECKING, Any, overload

from spcomp.compiler.kernel import CHECKS, Check, Kernel
from spcomp.compiler.signature import Interface, interface
from spcomp.compiler.variants import (
    Variants,
    Version,
    inner_extents,
    is_narrow,
    repeated,
    row_pointers,
)
from spcomp.errors import (
    ArgumentError,
    BackendError,
    LoweringError,
    expect,
    refuse_deep_nests,
    warned_before,
    warnings_noted,
)
from spcomp.ir.func import Func
from spcomp.ir.module import MEASURED, Module
from spcomp.ir.structural import content_hash
from spcomp.locks import Lock, cached_property
from spcomp.schedule.default.cpu import Facts
from spcomp.schedule.step import Trace
from spcomp.schedule.steps.sharing.hubs import longest_row
from spcomp.target import Target
from spcomp.target import target as parse_target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spcomp.codegen.abi import Emitted
    from spcomp.compiler.formats import Decomposed, FormatKernel
    from spcomp.compiler.formats_choose import ChoosingKernel, Undecided
    from spcomp.compiler.notation import NotationKernel
    from spcomp.compiler.pipeline import Stages
    from spcomp.formats.format import Format
    from spcomp.formats.rules import ComposableFormat
    from spcomp.ir.module import HostOp
    from spcomp.notation.nodes import Program as Notation
    from spcomp.notation.objects import Function, Symbol
    from spcomp.notation.semiring import Semiring
    from spcomp.runtime.executable import Executable

_NOTATION = ("spcomp.notation.objects", "spcomp.notation.nodes")
_TRACES = "kernel.trace is one, and Trace.from_json_lines makes one of text"
CACHE_SIZE = 256  # programs kept compiled in memory
_cache: OrderedDict[tuple[object, ...], Compiled] = OrderedDict()
_lock = Lock()


@dataclass(frozen=True, slots=True)
class Options:
    """What ``compile`` was asked for, besides the program."""

    target: Target
    name: str | None = None
    constants: dict[str, int | float] = field(default_factory=dict)
    threads: int | None = None
    check: Check = "full"
    trace: Trace | None = None
    fast_math: bool = False
    facts: Facts | None = None  # None: all calls get this version, whatever their data is like


@dataclass(frozen=True, eq=False)
class Compiled:
    """A program and all that was made of it; shared by the Kernels of equal programs."""

    program: Any
    options: Options
    target: Target  # with the features of the machine
    lowered: Stages | None  # None: an earlier process has lowered it
    trace: Trace
    emitted: Emitted
    interface: Interface
    funcs: Mapping[str, Func]
    host: Sequence[HostOp]
    spent: dict[str, float]

    @cached_property
    def stages(self) -> Stages:
        """The program at every level; lowered now if that was not needed before."""
        return self.lowered or _lower(self.program, self.options, self.target)

    @cached_property
    def executable(self) -> Executable | BackendError:
        """The machine code, made when first asked for: all calls may go to versions of it.

        An error where this machine cannot run it.
        """
        from spcomp.runtime.executable import Executable

        try:
            return Executable(self.emitted, self.target)
        except BackendError as error:
            return error

    @property
    def timings(self) -> dict[str, float]:
        """Seconds that each step took, from lowering to linking."""
        code = self.executable
        return self.spent if isinstance(code, BackendError) else {**self.spent, **code.timings}

    def variant(self, values: Mapping[str, Any]) -> Compiled:
        """Return the version with the extents of inner dense axes, as in *values*, compiled in.

        It has the same functions and host program, without the parameters that became constants.
        """
        return self._variants.pick(values)

    @cached_property
    def _variants(self) -> Variants[Compiled]:
        if _is_decided(self.program, self.options):
            return Variants(self, (), (), self._specialized)
        source = _source(self.program)
        names = tuple(n for n in inner_extents(source) if n not in self.options.constants)
        return Variants(self, names, row_pointers(source), self._specialized, repeated(source))

    def _specialized(self, version: Version) -> Compiled:
        constants = {**self.options.constants, **dict(version.extents)}
        options = replace(self.options, constants=constants, facts=version.facts)
        with warned_before():
            return _compiled(self.program, options)

    @cached_property
    def is_measured(self) -> bool:
        """Whether a person wrote what the host program launches: nobody vouches for the results."""
        return any(func.attr(MEASURED, False) for func in self.funcs.values())

    @property
    def is_chosen(self) -> bool:
        """Whether which version a call gets depends on its matrices."""
        return not _is_decided(self.program, self.options)

    @property
    def keys(self) -> tuple[str, ...]:
        """The arrays of sorted coordinates that decide, too: those looked at have to be these."""
        return repeated(_source(self.program)) if self.is_chosen else ()

    def longest_row(self, stored: int, rows: int) -> int | None:
        """Return how long one of *rows* with *stored* elements may be for this version of them.

        None: any length.
        """
        facts = self.options.facts
        if facts is None:  # the general version is what calls without long rows get
            return longest_row(stored) if self._variants.names else None
        names = inner_extents(_source(self.program))
        if facts.hubs or not names:
            return None
        return longest_row(stored, rows * is_narrow(names, self.options.constants))

    def call(self, name: str, slots: Sequence[int]) -> int:
        """Run the function *name* on its slots; return the status. Raises BackendError."""
        if isinstance(self.executable, BackendError):
            raise self.executable
        return self.executable.call(name, (ctypes.c_int64 * len(slots))(*slots))

    def message(self, name: str, status: int) -> str:
        """Return what the *status* of the function *name* means."""
        return self.emitted[name].message(status)

    def stage(self, name: str) -> str:
        """Return the program printed at the stage *name*."""
        from spcomp.ir.printer.program import print_program

        if name not in ("coordinate", "position", "flat"):
            raise ArgumentError(
                f"argument name: got {name!r}", hint="stages are coordinate, position and flat"
            )
        module = getattr(self.stages, name)
        if module is None:
            raise ArgumentError(
                f"argument name: the program has no {name} stage, it is written below it"
            )
        return str(print_program(module.funcs[0] if module.is_single else module))

    def source(self, kind: str) -> str:
        """Return the LLVM IR or the assembly."""
        from spcomp.codegen import cpu

        if kind not in ("llvm", "asm"):
            raise ArgumentError(f"argument kind: got {kind!r}", hint="sources are llvm and asm")
        llvm_ir = self.emitted.llvm_ir
        return llvm_ir if kind == "llvm" else cpu.assembly(llvm_ir, self.target)

    def object_bytes(self) -> bytes:
        """Return the machine code as an object file."""
        from spcomp.codegen import cpu

        if isinstance(self.executable, BackendError):
            return cpu.compile(self.emitted.llvm_ir, self.target).object
        return self.executable.object_bytes


@overload
def compile(  # noqa: A001
    program: Decomposed,
    *,
    target: str | Target = ...,
    name: str | None = ...,
    constants: Mapping[str, int | float] | None = ...,
    threads: int | None = ...,
    check: Check | None = ...,
    trace: Trace | None = ...,
    fast_math: bool = ...,
) -> FormatKernel: ...


@overload
def compile(  # noqa: A001
    program: Undecided,
    *,
    target: str | Target = ...,
    name: str | None = ...,
    constants: Mapping[str, int | float] | None = ...,
    threads: int | None = ...,
    check: Check | None = ...,
    trace: Trace | None = ...,
    fast_math: bool = ...,
) -> ChoosingKernel: ...


@overload
def compile(  # noqa: A001
    program: str | Symbol | Notation,
    *,
    formats: Mapping[str, str | Format | ComposableFormat] | None = ...,
    semiring: Semiring | str = ...,
    functions: Mapping[str, Function] | None = ...,
    target: str | Target = ...,
    name: str | None = ...,
    constants: Mapping[str, int | float] | None = ...,
    threads: int | None = ...,
    check: Check | None = ...,
    trace: Trace | None = ...,
    fast_math: bool = ...,
) -> NotationKernel: ...


@overload
def compile(  # noqa: A001
    program: Any,
    *,
    target: str | Target = ...,
    name: str | None = ...,
    constants: Mapping[str, int | float] | None = ...,
    threads: int | None = ...,
    check: Check | None = ...,
    trace: Trace | None = ...,
    fast_math: bool = ...,
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
    formats: Mapping[str, str | Format | ComposableFormat] | None = None,
    semiring: Semiring | str | None = None,
    functions: Mapping[str, Function] | None = None,
    **unknown: Any,
) -> Kernel | FormatKernel | ChoosingKernel | NotationKernel:
    """Compile *program* to a callable Kernel.

    Args:
        program: A function of the script language at any level, a Module, a Schedule, or what
            ``decompose`` returns, which gives a FormatKernel; or index notation, a string such as
            ``"C[i, k] = A[i, j] * B[j, k]"``, which gives a NotationKernel.
        target: ``cpu`` (this machine), ``cpu:x86-64-v3``; code for another can be read, not run.
        name: What the Kernel is called, an identifier; the program's name if not given.
        constants: Values of scalar parameters to compile in.
        threads: How many threads a call uses at most; by default the process's setting.
        check: How much of the index arrays is checked: ``full`` at every call, ``bind`` only in
            ``Kernel.bind`` and ``Tensor``, ``off`` nowhere (dtypes and shapes always are). By
            default what ``SPCOMP_CHECK`` says, else ``full``.
        trace: The steps to take instead of the default ones: an edited ``Kernel.trace``, or none.
        fast_math: Whether sums and products of floats may be computed in another order than
            written. By default nothing is moved, but ``a * b + c`` may be rounded once.
        formats: Of index notation: how tensors are stored, by name: texts, Formats, those of
            ``spcomp.formats``; by default as arguments are, and as the notation's rules say.
        semiring: Of index notation: what ``+`` and ``*`` mean; by default ``plus_times``.
        functions: Of index notation: the user's own, by name.
        **unknown: Refused.

    Raises:
        SpcompError: The child that fits: ScriptError, FormatError, LoweringError, ScheduleError,
            BackendError; ArgumentError for an option that does not exist.
    """
    for wrong in unknown:
        hint = "for index notation there are formats, semiring and functions besides"
        raise ArgumentError(f"argument {wrong}: is none of compile's", hint=hint)
    options = _options(target, name, constants, threads, check, trace, fast_math=fast_math)
    if isinstance(program, (str, tuple, list)) or type(program).__module__ in _NOTATION:
        from spcomp.compiler.notation_program import compile_notation

        return compile_notation(program, options, formats, semiring, functions)
    _refuse_notation(formats=formats, semiring=semiring, functions=functions)
    if not isinstance(program, (Func, Module)):
        from spcomp.compiler.formats import Decomposed, FormatKernel

        if isinstance(program, Decomposed):
            return FormatKernel(program, _kernel(program.func, options))
        from spcomp.compiler.formats_choose import ChoosingKernel, Undecided

        if isinstance(program, Undecided):
            return ChoosingKernel(program, options)
    return _kernel(program, options)


def _refuse_notation(**options: Any) -> None:
    for name in (name for name, value in options.items() if value is not None):
        raise ArgumentError(f"argument {name}: is for index notation only")


def _options(
    target: str | Target,
    name: str | None,
    constants: Mapping[str, int | float] | None,
    threads: int | None,
    check: Check | None,
    trace: Trace | None,
    *,
    fast_math: bool,
) -> Options:
    expect("name", name, (str, NoneType), "a string")
    if name is not None and (not name.isidentifier() or iskeyword(name)):
        raise ArgumentError(f"argument name: got {name!r}", hint="write an identifier, as spmm_2")
    expect("constants", constants, (Mapping, NoneType), "numbers by the names of parameters")
    expect("trace", trace, (Trace, NoneType), "a Trace", hint=_TRACES)
    expect("fast_math", fast_math, bool, "True or False")
    return Options(
        parse_target(target),
        name,
        dict(constants or {}),
        _threads(threads),
        _check(check),
        trace,
        fast_math,
    )


def _kernel(program: Any, options: Options) -> Kernel:
    with refuse_deep_nests(LoweringError):
        return Kernel(_compiled(_checked_program(program), options), options)


def kernel_of(func: Func, options: Options) -> Kernel:
    """Return the Kernel of a program that spcomp made."""
    return _kernel(func, options)


def rebuild(program: Any, options: Options) -> Kernel:
    """Return the Kernel that was pickled as *program* and *options*."""
    return Kernel(_compiled(program, options), options)


def _compiled(program: Any, options: Options) -> Compiled:
    """Return the compiled *program*, from memory if an equal one was compiled before."""
    key = _key(program, options)
    with _lock:
        if (found := _cache.get(key)) is not None:
            _cache.move_to_end(key)
            return found
    made = _build(program, options, key)
    with _lock:
        made = _cache.setdefault(key, made)
        while len(_cache) > CACHE_SIZE:
            _cache.popitem(last=False)
    return made


def _build(program: Any, options: Options, key: tuple[object, ...]) -> Compiled:
    from spcomp.codegen import cpu
    from spcomp.compiler import saved
    from spcomp.compiler.pipeline import as_module

    if options.target.kind != "cpu":
        raise BackendError(f"target {options.target} has no code generator yet")
    target = cpu.resolve(options.target)
    begin = perf_counter()
    timings: dict[str, float] = {}
    stages = None
    known = saved.load(key, target)
    if known is None:
        with warnings_noted() as noted:
            stages = _lower(program, options, target)
        timings |= {**stages.timings, "lower": perf_counter() - begin}
        emitted = cpu.emit(stages.flat, target, fast_math=options.fast_math)
        timings["emit"] = perf_counter() - begin - timings["lower"]
        flat = stages.flat
        known = saved.Saved(
            emitted, saved.heads(flat), flat.host, stages.order_needed, stages.trace
        )
        if not noted:  # warnings are for every process to hear
            saved.store(key, target, known)
    return Compiled(
        program=program,
        options=options,
        target=target,
        lowered=stages,
        trace=known.trace,
        emitted=known.emitted,
        interface=interface(as_module(program, options.constants).source, known.order_needed),
        funcs={func.name: func for func in known.heads},
        host=known.host,
        spent=timings,
    )


def _lower(program: Any, options: Options, target: Target) -> Stages:
    from spcomp.compiler.pipeline import lower

    trusted = options.check == "off"
    return lower(
        program,
        target,
        options.constants,
        trace=options.trace,
        trusted=trusted,
        facts=options.facts or Facts(),
    )


def _is_decided(program: Any, options: Options) -> bool:
    """Whether the user has chosen the schedule, so that there is one version."""
    if isinstance(program, (Func, Module)):
        return options.trace is not None
    return bool(options.trace is not None or program.decided or program.lowered)


def _source(program: Any) -> Func:
    """The function as written."""
    if isinstance(program, Module):
        return program.source
    func: Func = program if isinstance(program, Func) else program.source
    return func


def _key(program: Any, options: Options) -> tuple[object, ...]:
    """What decides the machine code, and the names by which it is called."""
    base = program if isinstance(program, (Func, Module)) else program.mod
    params = tuple(param.name for param in _source(program).params)
    constants = tuple(
        sorted((name, repr(v)) for name, v in options.constants.items())
    )  # not -0.0 == 0
    trusted = options.check == "off"
    own = () if base is program else (program.trace, program.decided, program.lowered)
    key = content_hash(base), params, options.target, constants, trusted, options.trace
    return (*key, options.facts, options.fast_math, type(program).__name__, *own)


def _checked_program(program: Any) -> Any:
    if isinstance(program, (Func, Module)):
        return program
    from spcomp.schedule.schedule import Schedule

    if isinstance(program, Schedule):
        return program
    hint = "give a line of index notation, a function decorated with @T.prim_func, or a Schedule"
    if callable(program):
        hint = "decorate the function with @T.prim_func (from spcomp import script as T)"
    raise ArgumentError(f"argument program: got {type(program).__name__}", hint=hint)


def _check(level: str | None) -> Check:
    chosen = level if level is not None else os.environ.get("SPCOMP_CHECK") or "full"
    for known in CHECKS:
        if chosen == known:
            return known
    raise ArgumentError(f"argument check: got {chosen!r}", hint=f"levels are {', '.join(CHECKS)}")


def _threads(count: int | None) -> int | None:
    if count is not None and (not isinstance(count, int) or count < 1):
        raise ArgumentError(f"argument threads: got {count!r}, expected a positive integer")
    return count
