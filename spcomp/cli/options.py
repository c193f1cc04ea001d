"""Options that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import click

from spcomp.errors import BackendError, nearest_or_all
from spcomp.io.replace import replacing
from spcomp.ir.func import Func
from spcomp.ir.module import Module
from spcomp.ir.program import CoordFunc, FlatFunc, PosFunc
from spcomp.target import target as as_target

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from spcomp.cli.load import Program
    from spcomp.explore.explorer import Explorer
    from spcomp.kernels.kernel import Kernel

STAGES = ("coordinate", "position", "flat")
_LEVELS: tuple[type[Func], ...] = (CoordFunc, PosFunc, FlatFunc)
Constants: TypeAlias = dict[str, int | float]


def _constants(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> Constants:
    constants: Constants = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            constants[name] = float(value) if set(value) & set(".einf") else int(value)
        except ValueError:
            equals = ""
        if not (name and equals):
            raise click.BadParameter(f"{text!r} is not NAME=NUMBER")
    return constants


def _target(_ctx: click.Context, _param: click.Parameter, text: str) -> str:
    """Return *text*; raises click's usage error unless it names a machine that code is made for."""
    if text != "cpu":  # which is always there
        from spcomp.compiler.backends import backend_of

        try:
            chosen = as_target(text)
            backend_of(chosen.kind).resolve(chosen)
        except BackendError as error:
            raise click.BadParameter(f"{error.message}; {error.hint}") from error
    return text


def _one_name(_ctx: click.Context, _param: click.Parameter, name: str | None) -> tuple[str, ...]:
    return () if name is None else (name,)


file = click.argument("file", type=click.Path(exists=True, dir_okay=False))
names = click.argument("names", metavar="[NAME ...]", nargs=-1)
one_name = click.argument("names", metavar="[NAME]", required=False, callback=_one_name)
target = click.option(
    "--target", default="cpu", show_default=True, callback=_target,
    help="cpu, cpu:NAME or cuda:sm_NN.",
)  # fmt: skip
const = click.option(
    "--const", "constants", metavar="NAME=NUMBER", multiple=True, callback=_constants,
    help="Fix a scalar parameter; may be repeated.",
)  # fmt: skip
fast_math = click.option(
    "--fast-math", is_flag=True, help="Let floats be added and multiplied in any order."
)


def source(program: Program) -> Func:
    """Return the source function of *program*."""
    module = _module(program)
    return module.source if isinstance(module, Module) else module


def written(program: Program) -> Func:
    """Return the function that *program* began as: for a schedule, before its first step."""
    return program if isinstance(program, Func) else program.source


def stages(program: Program) -> tuple[str, ...]:
    """Return the stages of *program*: the one that it is written at, and those below.

    A schedule, wherever it is now, has the stage of the program that it began as, too.
    """
    module = _module(program)
    func = module.funcs[0] if isinstance(module, Module) else module
    below = STAGES[_LEVELS.index(type(func)) :]
    begun = not isinstance(program, Module) and isinstance(written(program), CoordFunc)
    return tuple(s for s in STAGES if s in below or (begun and s == "coordinate"))


def _module(program: Program) -> Func | Module[Any]:
    return program if isinstance(program, Func | Module) else program.func


def constants_of(constants: Constants, programs: Mapping[str, Program]) -> dict[str, Constants]:
    """Return the *constants* of each program; raises click's usage error for an unknown one."""
    scalars = {
        name: [param.name for param in source(program).params if param.dtype.kind != "handle"]
        for name, program in programs.items()
    }
    everything = dict.fromkeys(param for params in scalars.values() for param in params)
    for name in constants:
        if name not in everything:
            raise click.BadParameter(
                f"no program has a scalar parameter {name!r}; {nearest_or_all(name, everything)}",
                param_hint="--const",
            )
    return {
        name: {const: value for const, value in constants.items() if const in params}
        for name, params in scalars.items()
    }


def compiled(
    name: str, program: Program, target: str, constants: Constants, *, fast_math: bool = False
) -> Kernel:
    """Return the Kernel of *program*, with the name *name* in stages and machine code.

    It does not check indices, so a printed stage, whose indices would be checked otherwise, gives
    the same machine code as the program that it was printed from.
    """
    from spcomp.kernels.compile import compile  # noqa: A004

    if isinstance(program, Func) and program.name != name:
        program = program.replace(name=name)
    return compile(
        program, target=target, name=name, constants=constants, check="off", fast_math=fast_math
    )


def explored(
    title: str,
    programs: Mapping[str, Program],
    target: str,
    constants: Mapping[str, Constants],
    *,
    fast_math: bool,
) -> Explorer:
    """Return the explorer of *programs*, with *constants* by the names of their programs."""
    from spcomp.explore.explorer import explorer

    kernels = (
        compiled(name, program, target, constants[name], fast_math=fast_math)
        for name, program in programs.items()
    )
    return explorer(title, kernels)


def write(path: Path, content: bytes) -> None:
    """Write a file completely or not at all; raises click's file error if that fails."""
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)  # a pipe, or a device: it cannot be replaced
            return
        with replacing(path) as file:
            file.write(content)
    except OSError as error:
        raise click.FileError(str(path), error.strerror or "") from error
