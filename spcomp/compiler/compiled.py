"""The whole route: a program becomes machine code, which is kept and shared by all calls."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from spcomp.compiler.backends import Loaded, backend_of
from spcomp.compiler.interface import Interface, interface
from spcomp.compiler.options import Options
from spcomp.compiler.roles import with_results
from spcomp.compiler.variants import (
    Variants,
    Version,
    follows_one_matrix,
    inner_extents,
    is_narrow,
    lists_of_rows,
    repeatable_keys,
    row_pointers,
)
from spcomp.errors import ArgumentError, BackendError, collect_warnings, without_warnings
from spcomp.ir.func import Func
from spcomp.ir.module import MEASURED, Module, single
from spcomp.ir.places import all_places
from spcomp.ir.program import CoordFunc
from spcomp.ir.structural import content_hash
from spcomp.knobs import knobs_of
from spcomp.locks import Lock, cached_property
from spcomp.log import duration, say
from spcomp.passes.pack.group_rows import ANY_ROWS
from spcomp.schedule.default.facts import Facts
from spcomp.schedule.step import Trace
from spcomp.schedule.steps.sharing.hubs import longest_row
from spcomp.target import Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spcomp.codegen.abi import Emitted
    from spcomp.compiler.launches import KernelLaunch
    from spcomp.compiler.pipeline import Stages
    from spcomp.compiler.saved import Saved
    from spcomp.ir.module import HostOp
    from spcomp.runtime.gpu import Resources


CACHE_SIZE = 256  # programs kept compiled in memory
_cache: OrderedDict[tuple[object, ...], Compiled] = OrderedDict()
_lock = Lock()


@dataclass(frozen=True, eq=False)
class Compiled:
    """A program with its code; the Kernels of equal programs share one.

    *given*: its lowered form; None: that is made when it is first needed.
    """

    program: Any
    options: Options
    target: Target  # with the features of the machine
    interface: Interface
    given: Lowered | None

    @classmethod
    def of(cls, program: Any, options: Options, *, may_wait: bool = False) -> Compiled:
        """Return the compiled *program*, from memory if an equal one was compiled before.

        *may_wait*: it may be lowered later, where it serves no call but those that no version
        suits. Errors of the program are then raised later, too.
        """
        from spcomp.compiler.pipeline import as_module

        key = _key(program, options)
        with _lock:
            if (cached := _cache.get(key)) is not None:
                _cache.move_to_end(key)
                return cached
        target = backend_of(options.target.kind).resolve(options.target)
        waits = may_wait and _can_wait(program, options, target)
        lowered = None if waits else _load_or_lower(program, options, target, key)
        order_needed = lowered.result.order_needed if lowered else frozenset()
        face = interface(as_module(program, options.constants).source, order_needed)
        compiled = cls(program, options, target, face, lowered)
        with _lock:
            compiled = _cache.setdefault(key, compiled)
            while len(_cache) > CACHE_SIZE:
                _cache.popitem(last=False)
        return compiled

    @cached_property
    def _lowered(self) -> Lowered:
        if self.given is not None:
            return self.given
        key = _key(self.program, self.options)
        return _load_or_lower(self.program, self.options, self.target, key)

    @cached_property
    def stages(self) -> Stages:
        """The program at every level; lowers it now if that has not happened yet."""
        return self._lowered.stages or _lower_to_flat(self.program, self.options, self.target)

    @property
    def trace(self) -> Trace:
        """The steps that were applied."""
        return self._lowered.result.trace

    @property
    def order_needed(self) -> frozenset[str]:
        """The names of the axes whose coordinates a call has to check to ascend."""
        return self._lowered.result.order_needed

    @property
    def emitted(self) -> Emitted:
        """The LLVM IR, and how its functions are called."""
        return self._lowered.result.emitted

    @cached_property
    def funcs(self) -> Mapping[str, Func]:
        """The flat functions by name, without their bodies."""
        return {func.name: func for func in self._lowered.result.heads}

    @property
    def host(self) -> Sequence[HostOp]:
        """What a call does on the host, in order."""
        return self._lowered.result.host

    @cached_property
    def executable(self) -> Loaded | BackendError:
        """The machine code, or an error where this machine cannot run it.

        Made at first use: it may never be needed, if all calls go to specialised versions.
        """
        try:
            return backend_of(self.target.kind).load(self.emitted, self.target)
        except BackendError as error:
            return error

    @property
    def loaded(self) -> Loaded:
        """The machine code; raises BackendError where this machine cannot run it."""
        if isinstance(self.executable, BackendError):
            raise self.executable
        return self.executable

    @property
    def timings(self) -> dict[str, float]:
        """Seconds that each step took, from lowering to linking."""
        code = self.executable
        seconds = self._lowered.seconds
        return dict(seconds) if isinstance(code, BackendError) else {**seconds, **code.timings}

    def variant(self, values: Mapping[str, Any]) -> Compiled:
        """Return the version for the arguments *values*, with inner dense extents compiled in.

        It has the same functions and host program, without the parameters that became constants.
        """
        return self._variants.pick(values)

    @cached_property
    def _variants(self) -> Variants[Compiled]:
        if _is_decided(self.program, self.options) or self._suits_any_rows:
            return Variants(self.target, self, (), (), self._specialize)
        source = _source(self.program)
        names = tuple(n for n in inner_extents(source) if n not in self.options.constants)
        pointers, keys = row_pointers(source), repeatable_keys(source)
        lists = lists_of_rows(source)
        return Variants(self.target, self, names, pointers, self._specialize, keys, lists)

    @property
    def _suits_any_rows(self) -> bool:
        """Whether the functions themselves tell short rows from long ones."""
        assembles = any(axis.is_assembled for axis in _source(self.program).axes)
        return assembles and any(func.attr(ANY_ROWS, False) for func in self.funcs.values())

    def _specialize(self, version: Version) -> Compiled:
        constants = {**self.options.constants, **dict(version.extents)}
        options = replace(self.options, constants=constants, facts=version.facts)
        with without_warnings():
            return Compiled.of(self.program, options)

    @cached_property
    def is_measured(self) -> bool:
        """Whether the user wrote the functions that the host program launches: none is proved."""
        return any(func.attr(MEASURED, False) for func in self.funcs.values())

    @property
    def deciding(self) -> tuple[str, ...]:
        """The names of the arrays that help to decide a call's version."""
        return (*self._variants.pointers, *self._variants.keys)

    @property
    def is_chosen(self) -> bool:
        """Whether the matrices of a call decide which version it gets."""
        return not _is_decided(self.program, self.options)

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the sorted coordinate arrays that help to decide a call's version."""
        return repeatable_keys(_source(self.program)) if self.is_chosen else ()

    def longest_row(self, stored: int, rows: int) -> int | None:
        """Return the longest row that this version suits, of *rows* with *stored* elements in all.

        None: any length.
        """
        facts, knobs = self.options.facts, knobs_of(self.target)
        if facts is None:  # the general version is what calls without long rows get
            return longest_row(knobs.hub_piece, stored) if self._variants.names else None
        names = inner_extents(_source(self.program))
        if facts.hubs or not names:
            return None
        narrow = is_narrow(names, self.options.constants, knobs)
        return longest_row(knobs.hub_piece, stored, rows * narrow)

    @property
    def version(self) -> Version:
        """The extents that are compiled in, and what is known of the data."""
        constants = self.options.constants
        names = [name for name in inner_extents(_source(self.program)) if name in constants]
        extents = tuple((name, int(constants[name])) for name in names)
        return Version(extents, self.options.facts or Facts())

    def launch(self, func: Func, values: Mapping[str, Any]) -> int:
        """Run *func* with its parameters from *values*; return its status. Raises BackendError."""
        return self.loaded.launch(func, values)

    def message(self, name: str, status: int) -> str:
        """Return what the *status* of the function *name* means."""
        return self.loaded.message(name, status)

    def stage(self, name: str) -> str:
        """Return the program printed at the stage *name*."""
        from spcomp.ir.printer.program import print_program

        if name not in ("coordinate", "position", "flat"):
            raise ArgumentError(
                f"argument name: got {name!r}", hint="stages are coordinate, position and flat"
            )
        module = getattr(self.stages, name)
        if module is None and name == "coordinate":
            module = self._begun
        if module is None:
            raise ArgumentError(f"argument name: the program has no {name} stage, {self._begins}")
        if not module.is_single:
            return str(print_program(module))
        results = [plan.handle for plan in self.interface.buffers if plan.role == "out"]
        return str(print_program(with_results(module.funcs[0], results)))

    @property
    def _begun(self) -> Module[Any] | None:
        """The program before the steps of a schedule that is below coordinate space, if known."""
        from spcomp.compiler.pipeline import as_module

        if isinstance(self.program, (Func, Module)):
            return None
        source = as_module(self.program, self.options.constants).source
        return single(source) if isinstance(source, CoordFunc) else None

    @property
    def _begins(self) -> str:
        """Why the program has no stages above its own."""
        if isinstance(self.program, (Func, Module)):
            return "it is written below it"
        level = ("flat", "position", "coordinate")[self.program.func.LEVEL]
        return f"its schedule is at the {level} level"

    @cached_property
    def launches(self) -> tuple[KernelLaunch, ...]:
        """What a call launches on a GPU, in order; nothing for a CPU."""
        if self.target.kind == "cpu":
            return ()
        from spcomp.compiler.launches import launches

        return launches(self.stages.flat, self.emitted)

    @cached_property
    def resources(self) -> Mapping[str, Resources]:
        """What each kernel takes of a GPU, by name; raises BackendError if nothing can tell."""
        if self.target.kind == "cpu":
            hint = 'kernels are compiled with target="cuda:sm_90"'
            raise BackendError("resources are those of kernels for a GPU", hint=hint)
        from spcomp.runtime.gpu import resources

        return resources(self.emitted, self.target)

    def source(self, kind: str) -> str:
        """Return the LLVM IR or the assembly, which for a GPU is PTX."""
        kinds = ("llvm", "asm") if self.target.kind == "cpu" else ("llvm", "asm", "ptx")
        if kind not in kinds:
            hint = f"sources for {self.target.kind} are {', '.join(kinds)}"
            raise ArgumentError(f"argument kind: got {kind!r}", hint=hint)
        llvm_ir = self.emitted.llvm_ir
        if kind == "llvm":
            return llvm_ir
        return backend_of(self.target.kind).assembly(llvm_ir, self.target)

    def object_bytes(self) -> bytes:
        """Return the machine code as an object file."""
        if isinstance(self.executable, BackendError):
            return backend_of(self.target.kind).object(self.emitted.llvm_ir, self.target)
        return self.executable.object_bytes


@dataclass(frozen=True)
class Lowered:
    """What lowering a program gives, and the *seconds* that its steps took.

    *stages* are None where an earlier process lowered it.
    """

    stages: Stages | None
    result: Saved
    seconds: Mapping[str, float]


def _load_or_lower(
    program: Any, options: Options, target: Target, key: tuple[object, ...]
) -> Lowered:
    """Return *program* lowered, by an earlier process, which saved it for *key*, or now."""
    from spcomp.compiler import saved

    begin = perf_counter()
    if (result := saved.load(key, target)) is not None:
        say(_title(program, options), "lowered by an earlier process, read from the cache on disk")
        return Lowered(None, result, {})
    with collect_warnings() as warnings:
        stages = _lower_to_flat(program, options, target)
    seconds = {**stages.timings, "lower": perf_counter() - begin}
    how = {"fast_math": options.fast_math, "debug": options.debug}
    flat = stages.flat
    emitted = backend_of(target.kind).emit(flat, target, **how)
    seconds["emit"] = perf_counter() - begin - seconds["lower"]
    say(_title(program, options), f"lowered to LLVM IR in {duration(perf_counter() - begin)}")
    heads = saved.heads(flat)
    result = saved.Saved(emitted, heads, flat.host, stages.order_needed, stages.trace)
    if not warnings:  # every process has to show its warnings, so such programs are not saved
        saved.store(key, target, result)
    return Lowered(stages, result, seconds)


def _can_wait(program: Any, options: Options, target: Target) -> bool:
    """Whether nothing has to be known of the lowered *program* before a call chooses a version.

    Calls with extents that are worth a version never run it.
    """
    if not isinstance(program, CoordFunc) or target.kind != "cpu" or options.trace is not None:
        return False
    return bool(inner_extents(program)) and follows_one_matrix(program)


def _title(program: Any, options: Options) -> str:
    """Return how the log names *program*: with what is compiled in, and known of the data."""
    known = [*(f"{name} = {value}" for name, value in options.constants.items())]
    known += filter(None, [str(options.facts or "")])
    return f"{_source(program).name}" + (f" ({', '.join(known)})" if known else "")


def _lower_to_flat(program: Any, options: Options, target: Target) -> Stages:
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
    """Whether the user has chosen the schedule, so that there is only one version."""
    if isinstance(program, (Func, Module)):
        return options.trace is not None
    return bool(options.trace is not None or program.decided or program.lowered)


def _source(program: Any) -> Func:
    """The function as the user wrote it."""
    if isinstance(program, Module):
        return program.source
    func: Func = program if isinstance(program, Func) else program.source
    return func


def _key(program: Any, options: Options) -> tuple[object, ...]:
    """The key of the cache: all that decides the machine code and how it is called."""
    base = program if isinstance(program, (Func, Module)) else program.mod
    params = tuple(param.name for param in _source(program).params)
    constants = tuple(
        sorted((name, repr(v)) for name, v in options.constants.items())
    )  # not -0.0 == 0
    trusted = options.check == "off"
    schedule_key = () if base is program else (program.trace, program.decided, program.lowered)
    key = content_hash(base), params, options.target, constants, trusted, options.trace
    funcs = base.funcs if isinstance(base, Module) else (base,)
    where = (all_places(func.body for func in funcs),) if options.debug else ()
    return (*key, options.facts, options.fast_math, type(program).__name__, *schedule_key, *where)
