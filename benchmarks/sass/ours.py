"""What spcomp emits by default, for the kernels that ``benchmarks/cuda`` has written by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import spcomp
from benchmarks.programs import SDDMM, SPMM, SPMV, parse
from benchmarks.sass import analyse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.sass.report import Report


@dataclass(frozen=True, slots=True)
class Ours:
    """A program with *constants* compiled in; a non-zero takes *features* multiply-adds."""

    name: str
    source: str
    constants: dict[str, int]
    features: int


KERNELS = (
    Ours("spcomp spmm_128", SPMM, {"feat": 128}, 128),
    Ours("spcomp spmm_32", SPMM, {"feat": 32}, 32),
    Ours("spcomp sddmm_128", SDDMM, {"feat": 128}, 128),
    Ours("spcomp sddmm_32", SDDMM, {"feat": 32}, 32),
    Ours("spcomp spmv", SPMV, {}, 1),
)


def ours(arch: str) -> Iterator[Report]:
    """Yield the figures of our kernels; raises MissingError where a compiler is not there."""
    for each in KERNELS:
        program = parse(each.source)
        kernel = spcomp.compile(program, target=f"cuda:{arch}", constants=each.constants)
        *_, abi = kernel.emitted.functions  # the first of two lists the rows of elements
        found = analyse(kernel.source("ptx"), abi.symbol, arch=arch, features=each.features)
        yield replace(found, kernel=each.name)
