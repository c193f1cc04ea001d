"""Outside CI: the machine code of the corpus and the conversions under LLVM's sanitizers.

``python -m tests.sanitize address`` (or ``thread``, or ``memory``) runs programs on random inputs
with an instrumented build of all LLVM IR that spcomp emits, the pool and the conversions included.
It needs clang, ``SPCOMP_CLANG`` or ``clang-19`` to ``clang``, and its runtime library. LLVM IR has
no undefined-behaviour sanitizer: ``python -m tests.sanitize undefined`` looks for instructions
whose result can be poison instead, and says where they stand.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sps

KINDS = {"address": "asan", "thread": "tsan"}
TARGET = "cpu:x86-64-v3"
FORMATS = ("csr", "csc", "coo", "dcsr", "dcsc", "bsr(2)", "ell", "dia", "bitmap", "hash")
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:detect_stack_use_after_return=1",
    "TSAN_OPTIONS": "halt_on_error=0:exitcode=66:ignore_noninstrumented_modules=1",
}
NUMBERS = itertools.count()
STUB = """.section .note.GNU-stack
.text
.globl {name}
{name}: movabs ${address}, %rax
    jmp *%rax
"""
# Additions that must not wrap, conversions and shifts that must be in range, and so on.
POISON = re.compile(
    r"\b(nsw|nuw|exact|nnan|ninf|fptosi|fptoui|shl|lshr|ashr|llvm\.assume|unreachable)\b"
    r"(?! i\d+ \S+, \d)"
)
# What LLVM 22 spells otherwise than clang 19: alignments of masked accesses are arguments there.
SPELLINGS = (
    (r"captures\(none\)", "nocapture"),
    (r"nocreateundeforpoison ", ""),
    (r"(@llvm\.masked\.(?:load|gather)\S*\()(ptr|<\d+ x ptr>) align (\d+) (%[^,]+)",
     r"\1\2 \4, i32 \3"),
    (r"(@llvm\.masked\.(?:store|scatter)\S*\(.*?, )(ptr|<\d+ x ptr>) align (\d+) (%[^,]+)",
     r"\1\2 \4, i32 \3"),
    (r"(declare .*@llvm\.masked\.(?:load|gather)\S*\()(ptr|<\d+ x ptr>)", r"\1\2, i32"),
    (r"(declare .*@llvm\.masked\.(?:store|scatter)\S*\(.*?, )(ptr|<\d+ x ptr>)", r"\1\2, i32"),
)  # fmt: skip


def main() -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser("python -m tests.sanitize", description=__doc__)
    parser.add_argument("kind", choices=(*KINDS, "undefined"))
    parser.add_argument("--rounds", type=int, default=3, help="inputs for each program")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="programs of the corpus")
    asked = parser.parse_args()
    if asked.kind == "undefined":
        return undefined(asked.only)
    if "SPCOMP_SANITIZED" in os.environ:
        return run(asked.kind, asked.rounds, asked.only)
    clang = compiler()
    runtime = library(clang, KINDS[asked.kind])
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, **OPTIONS, "LD_PRELOAD": runtime, "SPCOMP_SANITIZED": clang}
        env |= {"SPCOMP_CACHE_DIR": folder, "PYTHONMALLOC": "malloc", "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.sanitize", *sys.argv[1:]]
        return subprocess.run(command, env=env, check=False).returncode


def compiler() -> str:
    """Return the path of clang; ends the program where there is none."""
    names = [
        os.environ.get("SPCOMP_CLANG", ""),
        *(f"clang-{n}" for n in range(22, 18, -1)),
        "clang",
    ]
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    return found or sys.exit("no clang: install one, or set SPCOMP_CLANG")


def library(clang: str, kind: str) -> str:
    """Return the path of the sanitizer's shared runtime."""
    command = [clang, f"--print-file-name=libclang_rt.{kind}-x86_64.so"]
    path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return path if Path(path).exists() else sys.exit(f"{clang} has no runtime for {kind}")


class Sanitized:
    """Stands in for LLVM's JIT: modules become shared libraries that clang has instrumented."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder, self.clang = kind, folder, os.environ["SPCOMP_SANITIZED"]
        self.kept: list[ctypes.CDLL] = []

    def object(self, llvm_ir: str) -> bytes:
        """Return the object of *llvm_ir*, every function of it instrumented."""
        for pattern, replacement in SPELLINGS:
            llvm_ir = re.sub(pattern, replacement, llvm_ir)
        define = r"^(define [^{]*?)( #\d+)? \{$"
        llvm_ir = re.sub(define, rf"\1 sanitize_{self.kind}\2 {{", llvm_ir, flags=re.MULTILINE)
        source, target = self._file(".ll"), self._file(".o")
        source.write_text(llvm_ir)
        options = ("-O1", "-g", "-fPIC", f"-fsanitize={self.kind}", "-Wno-override-module")
        self._call(*options, "-x", "ir", "-c", str(source), "-o", str(target))
        return target.read_bytes()

    def library(self, obj: bytes, imports: Mapping[str, int]) -> ctypes.CDLL:
        """Return *obj* as a library of this process, what it imports at the addresses given."""
        source, stubs, target = self._file(".o"), self._file(".s"), self._file(".so")
        source.write_bytes(obj)
        stubs.write_text("".join(STUB.format(name=n, address=a) for n, a in imports.items()))
        self._call("-shared", "-o", str(target), str(source), str(stubs))
        self.kept.append(ctypes.CDLL(str(target)))
        return self.kept[-1]

    def _file(self, suffix: str) -> Path:
        return self.folder / f"{next(NUMBERS)}{suffix}"

    def _call(self, *arguments: str) -> None:
        env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        subprocess.run([self.clang, *arguments], check=True, env=env)


def install(kind: str, folder: Path) -> None:
    """Let spcomp make and load its machine code through ``Sanitized``."""
    from spcomp.codegen import cpu
    from spcomp.codegen.cpu import llvm
    from spcomp.runtime import jit

    sanitized = Sanitized(kind, folder)

    def load(
        obj: bytes,
        symbols: Iterable[str],
        imports: Mapping[str, int] | None = None,
        *,
        forever: bool = False,
    ) -> jit.LoadedCode:
        made = sanitized.library(obj, imports or {})
        where = {n: ctypes.cast(made[n], ctypes.c_void_p).value or 0 for n in symbols}
        return jit.LoadedCode(where, (made, forever))

    def compile(llvm_ir: str, target: object, opt: int = 1) -> llvm.CompiledObject:
        return llvm.CompiledObject(sanitized.object(llvm_ir), {})

    jit.load = load
    cpu.compile = compile
    cpu.object_code = lambda llvm_ir, target, opt=1: sanitized.object(llvm_ir)


def run(kind: str, rounds: int, only: list[str] | None) -> int:
    """Run everything in this process, which the sanitizer ends where it finds something."""
    import spcomp

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        install(kind, Path(folder))
        spcomp.set_num_threads(2)
        count = 0
        for work in (*corpus(rounds, only), *(conversions(rounds) if only is None else ())):
            work()
            count += 1
    sys.stdout.write(f"{kind}: {count} runs, no report\n")
    return 0


def corpus(rounds: int, only: list[str] | None) -> Iterator[Callable[[], None]]:
    """Yield the runs of every program of the corpus: each case, *rounds* inputs, checked."""
    import spcomp
    from tests.programs import PROGRAMS, fresh
    from tests.test_targets import _run

    for program in PROGRAMS:
        if only is not None and program.name not in only:
            continue
        dtype = program.dtypes[0]
        kernel = spcomp.compile(program.build(dtype), target=TARGET)
        for case, seed in itertools.product(program.cases, range(rounds)):
            if case == "indptr_offset" and program.assembles:
                continue  # scipy does not take it

            def work(program=program, kernel=kernel, case=case, seed=seed, dtype=dtype) -> None:
                inputs = program.inputs(case, dtype, seed=seed)
                results = _run(program.name, kernel, fresh(inputs))
                program.check(inputs, results, dtype)

            yield work


def conversions(rounds: int) -> Iterator[Callable[[], None]]:
    """Yield conversions of random matrices from each format to each."""
    import spcomp

    for seed, rows in itertools.product(range(rounds), (0, 2, 8, 300)):
        rng = np.random.default_rng(seed)
        matrix = sps.random_array((rows, rows + 2 * seed), density=0.1, format="csr", rng=rng)
        dense = matrix.toarray()
        for first, second in itertools.permutations(FORMATS, 2):

            def work(matrix=matrix, dense=dense, first=first, second=second) -> None:
                found: Any = spcomp.convert(spcomp.convert(matrix, first), second)
                back = found.to_dense() if hasattr(found, "to_dense") else found.toarray()
                assert (np.asarray(back) == dense).all(), (first, second)

            yield work


def undefined(only: list[str] | None) -> int:
    """Print which instructions of the corpus can give poison, by kind; always returns 0."""
    import spcomp
    from tests.programs import PROGRAMS

    seen: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for program in PROGRAMS:
        if only is not None and program.name not in only:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kernel = spcomp.compile(program.build(program.dtypes[0]), target=TARGET)
        for line in kernel.source("llvm").splitlines():
            if found := POISON.search(line):
                seen[next(filter(None, found.groups()))][program.name] += 1
    for what, programs in sorted(seen.items()):
        sys.stdout.write(f"{what:10} {sum(programs.values())} in {len(programs)} programs\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
