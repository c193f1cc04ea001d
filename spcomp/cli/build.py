"""``spcomp build``: compile the programs of a file and write every stage and artefact."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spcomp.cli import native, options
from spcomp.cli.load import load, select
from spcomp.cli.table import print_table, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from spcomp.cli.load import Program
    from spcomp.compiler.kernel import Kernel

SUFFIX = {
    "coordinate": ".coordinate.py",
    "position": ".position.py",
    "flat": ".flat.py",
    "llvm": ".ll",
    "asm": ".s",
    "obj": ".o",
    "so": native.LIBRARY,
    "header": ".h",
}  # every artefact, in the order of the route
PYTHON_STEPS = ("parse", "lower", "emit")
LLVM_STEPS = ("llvm parse", "optimize", "codegen")


@dataclass(frozen=True, slots=True)
class Built:
    """What came of one program: files by artefact, times in milliseconds by step."""

    name: str
    files: Mapping[str, Path]
    milliseconds: Mapping[str, float]


def _artefacts(
    _ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]
) -> tuple[str, ...] | None:
    """Return the artefacts asked for, None if the user left it open."""
    asked = [kind.strip() for text in given for kind in text.split(",")]
    for kind in asked:
        if kind not in (*SUFFIX, "all"):
            raise click.BadParameter(f"{kind!r} is not one of {', '.join(SUFFIX)}, all")
    return tuple(k for k in SUFFIX if k in asked or "all" in asked) if asked else None


@click.command()
@options.file
@options.names
@click.option(
    "-o", "--output", default=".", metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
    help="Where to write.  [default: here]",
)  # fmt: skip
@options.target
@click.option(
    "--emit", multiple=True, callback=_artefacts, metavar="KIND,...",
    help=f"What to write: {', '.join(SUFFIX)} or all.  [default: all that is possible]",
)  # fmt: skip
@options.const
@click.option("--json", "as_json", is_flag=True, help="Print a summary for programs to read.")
def build(
    file: str,
    names: tuple[str, ...],
    output: Path,
    target: str,
    emit: tuple[str, ...] | None,
    constants: options.Constants,
    as_json: bool,  # noqa: FBT001 - click passes options by name
) -> None:
    """Compile the programs in FILE, or those named, and write their artefacts."""
    programs = select(load(file), names)
    fixed = options.constants_of(constants, programs)
    _make(output)
    built = [
        _build(name, program, target, fixed[name], emit, output)
        for name, program in _progress(programs)
    ]
    if as_json:
        click.echo(json.dumps(_summary(file, target, built), indent=2))
    else:
        _print(built, output)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.FileError(str(folder), error.strerror or "") from error


def _progress(programs: Mapping[str, Program]) -> Iterable[tuple[str, Program]]:
    """The programs, behind a bar on stderr if there are several and someone watches."""
    if len(programs) < 2 or not sys.stderr.isatty():
        return programs.items()
    from rich.console import Console
    from rich.progress import track

    return track(programs.items(), "compiling", console=Console(stderr=True), transient=True)


def _build(
    name: str,
    program: Program,
    target: str,
    constants: options.Constants,
    emit: tuple[str, ...] | None,
    folder: Path,
) -> Built:
    kernel = options.compiled(name, program, target, constants)
    files = {}
    for kind, content in _contents(name, program, kernel, emit):
        files[kind] = folder / f"{name}{SUFFIX[kind]}"
        options.write(files[kind], content)
    return Built(name, files, _times(kernel, options.stages(program)[0]))


def _contents(
    name: str, program: Program, kernel: Kernel, emit: tuple[str, ...] | None
) -> Iterator[tuple[str, bytes]]:
    """Yield what to write, by artefact; what is only possible sometimes, only if asked for."""
    stages, linker = options.stages(program), native.compiler()
    for kind in SUFFIX if emit is None else emit:
        match kind:
            case "coordinate" | "position" | "flat":
                if kind in stages:
                    yield kind, kernel.stage(kind).encode()
            case "llvm" | "asm":
                yield kind, kernel.source(kind).encode()
            case "obj":
                yield kind, native.object_file(kernel)
            case "so":
                if linker is not None or emit is not None:
                    yield kind, native.library(kernel, linker)
            case "header":
                yield kind, native.header(name, kernel, options.source(program)).encode()


def _times(kernel: Kernel, stage: str) -> dict[str, float]:
    """Milliseconds by step; the parser is timed on the program as it is printed."""
    from spcomp.script.parse import parse_source

    text = kernel.stage(stage)
    begin = time.perf_counter()
    parse_source(text, f"<{kernel.name}>")
    seconds = {"parse": time.perf_counter() - begin, **kernel.timings}
    times = {step: seconds.get(step, 0.0) for step in PYTHON_STEPS}
    times["llvm"] = sum(seconds.get(step, 0.0) for step in LLVM_STEPS)
    return {step: round(1e3 * time, 3) for step, time in times.items()}


def _summary(file: str, target: str, built: Iterable[Built]) -> dict[str, object]:
    programs = [
        {
            "name": program.name,
            "artefacts": {
                kind: {"path": str(path), "bytes": path.stat().st_size}
                for kind, path in program.files.items()
            },
            "milliseconds": program.milliseconds,
        }
        for program in built
    ]
    return {"file": file, "target": target, "programs": programs}


def _print(built: Iterable[Built], output: Path) -> None:
    groups = []
    for program in built:
        python = sum(program.milliseconds[step] for step in PYTHON_STEPS)
        llvm = program.milliseconds["llvm"]
        first = (program.name, f"{python:.1f} ms", f"{llvm:.1f} ms" if llvm else "cached")
        rows = [(path.name, size(path.stat().st_size)) for path in program.files.values()]
        groups.append([(*(("", "", "") if at else first), *row) for at, row in enumerate(rows)])
    print_table(("program", ">python", ">LLVM", "file", ">size"), groups, f"written to {output}")
