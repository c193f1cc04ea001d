"""``spcomp build``: compile the programs of a file and write every stage and artefact."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spcomp.cli import gpu, native, options
from spcomp.cli.load import load, select
from spcomp.cli.table import print_table, size
from spcomp.runtime.cuda.ptxas import assemble, tool
from spcomp.target import target as as_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from spcomp.cli.load import Program
    from spcomp.kernels.kernel import Kernel
    from spcomp.target import Target

SUFFIX = {
    "coordinate": ".coordinate.py",
    "position": ".position.py",
    "flat": ".flat.py",
    "llvm": ".ll",
    "asm": ".s",
    "obj": ".o",
    "so": native.LIBRARY,
    "header": ".h",
    "ptx": ".ptx",
    "json": ".json",
    "py": "_cuda.py",
    "cubin": ".cubin",
}  # every artefact, in the order of the route
FOR_CPU = ("asm", "obj", "so", "header")
FOR_GPU = ("ptx", "json", "py", "cubin")
PYTHON_STEPS = ("parse", "lower", "emit")
LLVM_STEPS = ("llvm parse", "optimize", "codegen")


@dataclass(frozen=True, slots=True)
class BuildResult:
    """The files of one program by artefact, and times in milliseconds by step."""

    name: str
    files: Mapping[str, Path]
    milliseconds: Mapping[str, float]


def _artefacts(
    _ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...] | None:
    """Return the artefacts that the user names, or None for the default."""
    kinds = [kind.strip() for text in texts for kind in text.split(",")]
    for kind in kinds:
        if kind not in (*SUFFIX, "all"):
            raise click.BadParameter(f"{kind!r} is not one of {', '.join(SUFFIX)}, all")
    return tuple(k for k in SUFFIX if k in kinds or "all" in kinds) if kinds else None


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
@options.fast_math
@click.option("--json", "as_json", is_flag=True, help="Print a summary for programs to read.")
def build(
    file: str,
    names: tuple[str, ...],
    output: Path,
    target: str,
    emit: tuple[str, ...] | None,
    constants: options.Constants,
    fast_math: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001 - click passes options by name
) -> None:
    """Compile the programs in FILE, or those named, and write their artefacts."""
    _check_artefacts(as_target(target), emit)
    programs = select(load(file, names), names)
    fixed = options.constants_of(constants, programs)
    _make_folder(output)
    results = []
    for name, program in _progress(programs):
        kernel = options.compiled(name, program, target, fixed[name], fast_math=fast_math)
        results.append(_build(name, program, kernel, emit, output, Path(file)))
    if as_json:
        click.echo(json.dumps(_summary(file, target, results), indent=2))
    else:
        _print(results, output)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.FileError(str(folder), error.strerror or "") from error


def _progress(programs: Mapping[str, Program]) -> Iterable[tuple[str, Program]]:
    """Return the programs, with a progress bar for several of them on a terminal."""
    if len(programs) < 2 or not sys.stderr.isatty():
        return programs.items()
    from rich.console import Console
    from rich.progress import track

    return track(programs.items(), "compiling", console=Console(stderr=True), transient=True)


def _build(
    name: str,
    program: Program,
    kernel: Kernel,
    emit: tuple[str, ...] | None,
    folder: Path,
    source: Path,
) -> BuildResult:
    files = {}
    for kind, content in _contents(name, program, kernel, emit):
        files[kind] = folder / f"{name}{SUFFIX[kind]}"
        if kind == "py" and files[kind].exists() and files[kind].samefile(source):
            raise click.UsageError(f"{source} would be overwritten; choose another folder with -o")
        options.write(files[kind], content)
    return BuildResult(name, files, _times(kernel, options.stages(program)[0]))


def _contents(
    name: str, program: Program, kernel: Kernel, emit: tuple[str, ...] | None
) -> Iterator[tuple[str, bytes]]:
    """Yield artefacts and their contents; without *emit*, only what is possible here."""
    stages = options.stages(program)
    for kind in _possible(kernel.target, emit):
        if kind in options.STAGES:
            if kind in stages:
                yield kind, kernel.stage(kind).encode()
            elif emit is not None:
                file = f"{name}{SUFFIX[kind]}"
                click.echo(f"{file} is left out: {name} has no {kind} stage", err=True)
        elif kind in ("llvm", "asm", "ptx"):
            yield kind, kernel.source(kind).encode()
        else:
            content = _artefact(kind, name, program, kernel, asked=emit is not None)
            if content is not None:
                yield kind, content


def _artefact(
    kind: str, name: str, program: Program, kernel: Kernel, *, asked: bool
) -> bytes | None:
    """Return the artefact *kind*; None if its tool is missing here, and nobody has *asked*."""
    match kind:
        case "obj":
            return native.object_file(kernel)
        case "so":
            linker = native.compiler()
            return native.library(kernel, linker) if asked or linker is not None else None
        case "header":
            return native.header(name, kernel, options.source(program)).encode()
        case "json":
            return gpu.description(name, kernel).encode()
        case "py":
            return gpu.loader(name, kernel, options.source(program)).encode()
    there = asked or tool("ptxas") is not None
    return assemble(kernel.source("ptx"), kernel.target.cpu).cubin if there else None


def _possible(target: Target, emit: tuple[str, ...] | None) -> Iterator[str]:
    """Yield the artefacts for *target* among those of *emit*."""
    others = FOR_GPU if target.kind == "cpu" else FOR_CPU
    yield from (kind for kind in (SUFFIX if emit is None else emit) if kind not in others)


def _check_artefacts(target: Target, emit: tuple[str, ...] | None) -> None:
    """Raise click's usage error if *emit*, unless it is all, names what *target* does not have."""
    others, instead = (FOR_GPU, FOR_CPU) if target.kind == "cpu" else (FOR_CPU, FOR_GPU)
    whose = "cuda:sm_NN" if target.kind == "cpu" else "cpu"
    for kind in () if emit is None or len(emit) == len(SUFFIX) else emit:
        if kind in others:
            raise click.BadParameter(
                f"{kind} is for --target {whose}; for {target} there are {', '.join(instead)}",
                param_hint="--emit",
            )


def _times(kernel: Kernel, stage: str) -> dict[str, float]:
    """Return milliseconds by step; the parser is timed on the printed program."""
    from spcomp.script.parse import parse_source

    text = kernel.stage(stage)
    begin = time.perf_counter()
    parse_source(text, f"<{kernel.name}>")
    seconds = {"parse": time.perf_counter() - begin, **kernel.timings}
    if kernel.target.kind == "cuda":
        begin = time.perf_counter()
        kernel.source("ptx")
        seconds["codegen"] = time.perf_counter() - begin
    times = {step: seconds.get(step, 0.0) for step in PYTHON_STEPS}
    times["llvm"] = sum(seconds.get(step, 0.0) for step in LLVM_STEPS)
    return {step: round(1e3 * time, 3) for step, time in times.items()}


def _summary(file: str, target: str, results: Iterable[BuildResult]) -> dict[str, object]:
    programs = [
        {
            "name": program.name,
            "artefacts": {
                kind: {"path": str(path), "bytes": path.stat().st_size}
                for kind, path in program.files.items()
            },
            "milliseconds": program.milliseconds,
        }
        for program in results
    ]
    return {"file": file, "target": target, "programs": programs}


def _print(results: Iterable[BuildResult], output: Path) -> None:
    groups = []
    for program in results:
        python = sum(program.milliseconds[step] for step in PYTHON_STEPS)
        llvm = program.milliseconds["llvm"]
        first = (program.name, f"{python:.1f} ms", f"{llvm:.1f} ms" if llvm else "cached")
        rows = [(path.name, size(path.stat().st_size)) for path in program.files.values()]
        groups.append([(*(("", "", "") if at else first), *row) for at, row in enumerate(rows)])
    print_table(("program", ">python", ">LLVM", "file", ">size"), groups, f"written to {output}")
