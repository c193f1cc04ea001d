"""Beside the kernels: LLVM IR for NVPTX to LLVM IR for this machine, a thread as a coroutine.

A kernel becomes a coroutine (see "Coroutines in LLVM") that suspends where its thread waits for
others. Kinds of access, places of operands and so on are in ``layout``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from spcomp.codegen import cpu
from spcomp.errors import EmulationError
from spcomp.runtime.emulator import layout as at
from spcomp.runtime.emulator.functions import FunctionText
from spcomp.runtime.emulator.halves import HALVES
from spcomp.runtime.emulator.intrinsics import PRELUDE
from spcomp.runtime.emulator.sites import Site, Sites, Variable
from spcomp.runtime.emulator.text import NAME, Function, Module, Operand, read, size_of, split_type

MOST_SHARED = 227 << 10  # bytes of shared memory of a block, on compute capability 9
MOST_STATIC = 48 << 10  # bytes of it in variables of fixed size
_LIBM = "".join(  # functions that LLVM may call for its intrinsics
    f"declare {kind} @{name}{tail}({', '.join([kind] * arity)})\n"
    for arity, names in ((1, "exp2 log2 sin cos exp log log10 tanh"), (2, "fmin fmax pow"))
    for name in names.split()
    for kind, tail in (("float", "f"), ("double", ""))
)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel: its parameters, the symbol of its code, the most threads that it may have."""

    name: str
    symbol: str
    params: tuple[Operand, ...]
    most_threads: int


@dataclass(frozen=True, slots=True)
class Program:
    """A translated module.

    *variables* are those in shared memory, of *arena* bytes, the last *dynamic_bytes* of them as
    far as the launch wants. All accesses are multiples of *grain* bytes.
    """

    text: str = field(repr=False)
    kernels: Mapping[str, Kernel]
    sites: tuple[Site, ...]
    variables: tuple[Variable, ...]
    arena: int
    dynamic_bytes: int
    grain: int


def translate(ir: str, attributes: str, *, check: bool) -> Program:
    """Return *ir* for a CPU that the function *attributes* name; *check* watches all accesses.

    Raises InternalError if *ir* is not LLVM IR, and EmulationError for what cannot be emulated.
    """
    old = re.compile(r"@llvm\.nvvm\.barrier0\(\)")  # LLVM's own replacement of it loses the line
    barrier = "@llvm.nvvm.barrier.cta.sync.aligned.all"
    ir = re.sub(r"^(declare .*)@llvm\.nvvm\.barrier0\(\)", rf"\1{barrier}(i32)", ir, flags=re.M)
    ir = _once(old.sub(f"{barrier}(i32 0)", ir), f"{barrier}(i32)")
    module = read(cpu.link(ir, ()))
    _check_declarations(module)
    variables, others = _variables(module)
    arena, dynamic = _extents(variables)
    sites = Sites(variables, [line.split(" ", 1)[0] for line in others])
    defined = frozenset(function.name for function in module.functions)
    texts = [
        FunctionText(function, sites, defined, check=check).text() for function in module.functions
    ]
    body = "\n".join(texts)
    places = {variable.name: _address(variable) for variable in variables}
    body = re.sub(NAME, lambda name: places.get(name[0], name[0]), body)
    shared = f"@emu.arena = addrspace(3) global [{arena} x i8] zeroinitializer, align 128\n"
    text = "\n".join([PRELUDE + _LIBM, shared, *others, body, _halves(body)])
    text += f"\nattributes #0 = {{ nounwind {attributes} }}\n"
    if len(sites.all) >= at.MOST_SITES:
        raise EmulationError(
            f"the module has {len(sites.all)} accesses, the emulator can check {at.MOST_SITES}",
            kind="limit",
            hint="check=False",
        )
    kernels = {
        kernel.name: kernel
        for function in module.functions
        if function.kernel
        for kernel in [_kernel(function, module)]
    }
    return Program(text, kernels, tuple(sites.all), variables, arena, dynamic, sites.grain)


def _once(ir: str, name: str) -> str:
    """Return *ir* that declares *name* once."""
    first, *rest = re.split(rf"^(?=declare .*{re.escape(name)})", ir, flags=re.M)
    return first + "".join(
        part if k == 0 else part.split("\n", 1)[1] for k, part in enumerate(rest)
    )


def _kernel(function: Function, module: Module) -> Kernel:
    group = re.search(r"#\d+", function.attributes)
    text = module.attributes.get(group[0], "") if group else ""
    most = at.MOST_THREADS
    if found := re.search(r'"nvvm\.maxntid"="([\d, ]+)"', text):
        most = 1
        for extent in found[1].split(","):
            most *= int(extent)
    for param in function.params:
        if not re.fullmatch(
            r"ptr( addrspace\(1\))?|i(1|8|16|32|64)|half|bfloat|float|double", param.kind
        ):
            raise EmulationError(
                f"{function.name} has a parameter of type {param.kind}", kind="unsupported"
            )
    name = function.name[1:].strip('"')
    return Kernel(name, f"emu.kernel.{name}", tuple(function.params), min(most, at.MOST_THREADS))


_VARIABLE = re.compile(rf"({NAME}) = (.*?)addrspace\(3\) (?:global|constant) (.*)")


def _variables(module: Module) -> tuple[tuple[Variable, ...], list[str]]:
    """Return the variables in shared memory, the dynamic ones last, and the other variables."""
    fixed, dynamic, others = [], [], []
    end = 0
    for line in module.variables:
        found = _VARIABLE.match(line)
        if found is None:
            others.append(re.sub(r", !.*$", "", line))
            continue
        size = size_of(split_type(found[3])[0])[0]
        align = int((re.search(r"align (\d+)", found[3]) or ["", "16"])[1])
        if size == 0:
            dynamic.append(found[1])
            continue
        offset = -(-end // align) * align
        fixed.append(Variable(found[1], offset, size))
        end = offset + size
    start = -(-end // 128) * 128
    fixed += [Variable(name, start, None) for name in dynamic]
    return tuple(fixed), others


def _extents(variables: tuple[Variable, ...]) -> tuple[int, int]:
    """Return the bytes of shared memory, and how many of them are dynamic."""
    static = max((v.offset + v.size for v in variables if v.size is not None), default=0)
    if static > MOST_STATIC:
        raise EmulationError(
            f"the module has {static} bytes of static shared memory, {MOST_STATIC} are possible",
            kind="limit",
            hint="use dynamic shared memory",
        )
    dynamic = next((MOST_SHARED - v.offset for v in variables if v.size is None), 0)
    return MOST_SHARED if dynamic else -(-max(static, 4) // 4) * 4, dynamic


def _address(variable: Variable) -> str:
    return f"getelementptr (i8, ptr addrspace(3) @emu.arena, i64 {variable.offset})"


def _check_declarations(module: Module) -> None:
    """Raise EmulationError if *module* calls what it does not define, LLVM's own excepted."""
    for line in module.declarations:
        found = re.search(NAME + r"(?=\()", line)
        if found and not found[0].startswith("@llvm."):
            raise EmulationError(
                f"the module calls {found[0]}, which it does not define", kind="unsupported"
            )


def _halves(body: str) -> str:
    """Return the conversions of 16-bit floats that LLVM may call, if *body* has such floats."""
    return HALVES if re.search(r"\b(half|bfloat)\b", body) else ""
