"""Under the tuner: what is tuned, as a key: program, sizes, statistics of matrices, machine."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from math import inf, log
from typing import TYPE_CHECKING, Any

from spcomp.codegen.cpu.machine import resolve
from spcomp.codegen.llvm.module import LLVM_VERSION
from spcomp.compiler.variants import inner_extents
from spcomp.ir.printer.program import print_program
from spcomp.runtime.cuda.driver import device_properties, missing
from spcomp.target import Target
from spcomp.tensors.tensor import Tensor
from spcomp.tune.machine import machine_of
from spcomp.tune.statistics import MatrixStatistics, matrix_statistics

if TYPE_CHECKING:
    from spcomp.compiler.options import Options
    from spcomp.ir.func import Func

NEAR = 0.25  # at this distance a matrix is still near enough for what was found with another
VAST = 1 << 30  # columns whose marks take gigabytes
_SIZES = ("rows", "columns", "nnz")  # a tenth of their difference counts: they only scale the work
_SHAPES = ("mean", "longest", "ell", "hyb", "sliced", "dia")  # compared as ratios
_SHARES = ("block_fill", "reuse")  # compared as differences


@dataclass(frozen=True, slots=True)
class Problem:
    """A program with matrices, as the store keeps it.

    *program*: a digest of it and of the options that change its code. *extents*: the sizes that are
    compiled in, by name. *matrices*: their statistics, by argument. *earlier*: the keys that
    versions before this one kept it under.
    """

    program: str
    extents: tuple[tuple[str, int], ...]
    matrices: tuple[tuple[str, MatrixStatistics], ...]
    earlier: tuple[Problem, ...] = field(default=(), compare=False)

    @property
    def extents_text(self) -> str:
        """The extents as text, equal for equal extents."""
        return json.dumps(dict(sorted(self.extents)))

    @property
    def matrices_text(self) -> str:
        """The statistics as text."""
        return json.dumps({name: matrix.numbers for name, matrix in sorted(self.matrices)})

    def distance(self, other: Mapping[str, Mapping[str, float]]) -> float:
        """Return how far the matrices are from those of *other*, statistics by name: 0 if alike."""
        mine = {name: matrix.numbers for name, matrix in self.matrices}
        if mine.keys() != other.keys():
            return inf
        return max((_distance(mine[name], other[name]) for name in mine), default=0.0)


def digest(func: Func, options: Options) -> str:
    """Return the digest of a program: of *func* and the options that change its code or threads."""
    constants = sorted((name, repr(value)) for name, value in options.constants.items())
    how: tuple[Any, ...]
    how = constants, options.fast_math, options.check == "off", str(options.target)
    if options.threads is not None:
        how = *how, options.threads
    text = f"{print_program(func)}\n{how}"  # printed: traces refer to loops by name
    return sha256(text.encode()).hexdigest()


def digests(func: Func, options: Options) -> tuple[str, ...]:
    """Return the digest of a program, and that of earlier versions if it was another one.

    A size of a dense operand is none of its constants: a call may tell the same size.
    """
    sizes = inner_extents(func)
    rest = {name: value for name, value in options.constants.items() if name not in sizes}
    found = digest(func, replace(options, constants=rest))
    return (found,) if len(rest) == len(options.constants) else (found, digest(func, options))


def statistics_of(matrices: Mapping[str, Any]) -> tuple[tuple[str, MatrixStatistics], ...]:
    """Return the statistics of those *matrices* that have two dimensions; raises ArgumentError.

    One whose level has offsets of diagonals in the place of coordinates has none, nor one with so
    many columns that their marks would take far more memory than its elements.
    """
    flat = {
        name: m
        for name, m in matrices.items()
        if len(getattr(m, "shape", ())) == 2 and not _has_shared_offsets(m) and max(m.shape) < VAST
    }
    return tuple((name, matrix_statistics(matrix)) for name, matrix in sorted(flat.items()))


def _has_shared_offsets(matrix: Any) -> bool:
    """Whether *matrix* is what index notation makes of diagonals: all rows share one array."""
    levels = matrix.levels if isinstance(matrix, Tensor) else ()
    return any(
        level is not None and level.kind == "fixed" and level.arrays[0].ndim == 1
        for level in levels
    )


def _distance(mine: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Return the distance between matrices: the largest of those in any one respect."""
    if mine == other:
        return 0.0
    sizes = [abs(_ratio(mine, other, name)) / 10 for name in _SIZES]
    shapes = [abs(_ratio(mine, other, name)) for name in _SHAPES]
    shares = [abs(mine[k] - other.get(k, mine[k])) for k in mine if k.startswith(_SHARES)]
    uneven = abs(mine["spread"] - other.get("spread", inf)) / max(mine["mean"], 1.0)
    return max(*sizes, *shapes, *shares, uneven)


def _ratio(mine: Mapping[str, float], other: Mapping[str, float], name: str) -> float:
    return log(max(mine[name], 1e-9) / max(other.get(name, 1e-9), 1e-9))


def fingerprint(target: Target | None = None) -> str:
    """Return what measurements of code for *target* depend on: processor, caches, threads."""
    target = target or Target()
    where = machine_of(target)
    caches = f"caches {where.l1} {where.l2} {where.l3}, {where.threads} threads"
    if target.kind == "cpu":
        processor = f"{platform.machine()} {resolve(Target()).cpu}"
        return f"{platform.system()} {processor}, {where.vector_bits} bits, {caches}"
    name = "none" if missing() is not None else device_properties().name
    return f"{target}, {name}, {caches}"


@cache
def versions() -> str:
    """Return the versions that machine code depends on."""
    try:
        ours = version("spcomp")
    except PackageNotFoundError:
        ours = "source"
    return f"spcomp {ours}, llvmlite {version('llvmlite')}, LLVM {LLVM_VERSION}"
