"""First step of every command: run the user's kernel file and find the programs in it."""

from __future__ import annotations

import ast
import contextlib
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import click

from spcomp.errors import (
    ArgumentError,
    InternalError,
    ScriptError,
    Span,
    SpcompError,
    nearest_or_all,
)
from spcomp.ir.func import Func
from spcomp.ir.module import Module
from spcomp.kernels.decomposed.choose import Undecided
from spcomp.kernels.decomposed.kernel import Decomposed
from spcomp.kernels.notation.kernel import NotationKernel
from spcomp.kernels.protocol import Bound, Runnable
from spcomp.schedule.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

Program: TypeAlias = Func | Module[Any] | Schedule


def load(path: str, wanted: Sequence[str] = ()) -> dict[str, Program]:
    """Return the programs that the Python file *path* defines, by variable, in order.

    A program is a function, a module or a schedule; one with two names is there twice. Results of
    ``decompose``, and kernels, stand for the programs that they run; those of index notation, which
    stand for what their calls ran, come last. One that is only compiled by a call, or was for
    several kinds of arguments, is skipped, which is said, and refused with click's usage error if
    it is one of those *wanted*. Output of the file goes to stderr. Raises ScriptError, at the
    user's line, for a file that does not run, has no program, or defines two programs of the same
    name.
    """
    with _ErrorsAtLine(path), _as_script(path):
        names = runpy.run_path(path, run_name="spcomp.kernel_file")
    programs: dict[str, Program] = {}
    for variable, value in sorted(names.items(), key=lambda item: _notation(item[1]) is not None):
        found = _programs(variable, value)
        if isinstance(found, str):
            if variable in wanted:
                raise click.BadParameter(
                    f"{variable} is no program by itself: {found}", param_hint="NAME"
                )
            if not wanted:
                click.echo(f"{variable} is skipped: {found}", err=True)
            continue
        for k, program in enumerate(found):
            programs[f"{variable}_{k}" if len(found) > 1 else variable] = program
    if not programs:
        raise ScriptError(
            f"there is no program in {path}",
            hint="a program is a function decorated with @T.prim_func, at the top level",
        )
    _refuse_homonyms(path, programs)
    return programs


def _programs(variable: str, value: object) -> list[Program] | str:
    """Return the programs that *value* is or runs, or why they are not known."""
    if isinstance(value, Func | Module | Schedule):
        return [value]
    if isinstance(value, Decomposed):
        return [value.func]
    if isinstance(value, Undecided):
        return "its format depends on the matrix"
    if not isinstance(value, Runnable):
        return []
    names = value.arguments if isinstance(value, NotationKernel) else ()
    call = f"{variable}.specialize({', '.join(f'{name}=...' for name in names) or '...'})"
    notation = _notation(value)
    kinds = 0 if notation is None else notation.kinds
    if kinds > 1:
        return f"it was compiled for {kinds} kinds of arguments; name the kernel of one, k = {call}"
    try:
        kernels: Sequence[Any] = value.kernels()
        return [kernel.program for kernel in kernels]
    except ArgumentError:
        return f"it is compiled when it is called; call it in the file, or write {call} there"


def _notation(value: object) -> NotationKernel | None:
    """Return the kernel of index notation that *value* is, or binds arguments of."""
    kernel = value.kernel if isinstance(value, Bound) else value
    return kernel if isinstance(kernel, NotationKernel) else None


def select(programs: Mapping[str, Program], names: Sequence[str]) -> dict[str, Program]:
    """Return the programs with these *names*, or without any each once, by its first name.

    Raises click's usage error.
    """
    for name in names:
        if name not in programs:
            raise click.BadParameter(
                f"there is no program {name!r}; {nearest_or_all(name, programs)}", param_hint="NAME"
            )
    once: dict[int, str] = {}
    for name, program in programs.items():
        once.setdefault(id(program), name)
    return {name: programs[name] for name in names or once.values()}


def select_one(path: str, names: Sequence[str]) -> tuple[str, Program]:
    """Return the program of the file *path* that *names* names, or its only one.

    Raises click's usage error.
    """
    programs = select(load(path, names), names)
    if len(programs) > 1:
        raise click.BadParameter(f"name one of {', '.join(programs)}", param_hint="NAME")
    (found,) = programs.items()
    return found


@contextlib.contextmanager
def _as_script(path: str) -> Iterator[None]:
    """Let the file import its neighbours; keep stdout, and the folder, for the command itself."""
    before, folder = list(sys.path), Path.cwd()
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.path[:] = before
        os.chdir(folder)


class _ErrorsAtLine:
    """Turns every exception of the user's file into a ScriptError at its line."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception | SystemExit) and not isinstance(
            error, SpcompError | InternalError
        ):
            raise ScriptError(_what(error), self._where(error)) from error

    def _where(self, error: BaseException) -> Span:
        if isinstance(error, SyntaxError) and error.filename is not None:
            return Span(error.filename, error.lineno or 1, max(0, (error.offset or 1) - 1))
        frames = traceback.extract_tb(error.__traceback__)
        user_frames = [frame for frame in frames if frame.filename == self.path]
        return (
            Span(self.path, user_frames[-1].lineno or 1, user_frames[-1].colno or 0)
            if user_frames
            else Span(self.path, 1)
        )


def _what(error: BaseException) -> str:
    match error:
        case SyntaxError():
            return f"the file is not Python: {error.msg}"
        case SystemExit():
            return "the file ends the process while it is loaded"
    detail = f": {error}" if str(error) else ""
    return f"the file does not run: {type(error).__name__}{detail}"


def _refuse_homonyms(path: str, programs: Mapping[str, Program]) -> None:
    """Refuse a program that hides an earlier one of the same name."""
    first: dict[str, int] = {}
    for statement in ast.parse(Path(path).read_bytes()).body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef) and statement.name in programs:
            if statement.name in first:
                raise ScriptError(
                    f"two programs are called {statement.name!r}",
                    Span(path, statement.lineno, statement.col_offset),
                    hint=f"rename one; the first is on line {first[statement.name]}",
                )
            first[statement.name] = statement.lineno
