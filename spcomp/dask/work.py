"""What runs on a worker: the kernel of a statement, compiled once in a process."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from dask.tokenize import tokenize

from spcomp.dask.received import kept
from spcomp.kernels.notation.kernel import NotationKernel
from spcomp.notation.nodes import Access, Assignment, Op, Program
from spcomp.notation.semiring import Semiring

if TYPE_CHECKING:
    from spcomp.compiler.options import Options

UFUNCS = {
    "+": np.add, "*": np.multiply, "min": np.minimum, "max": np.maximum,
    "or": np.logical_or, "and": np.logical_and,
}  # fmt: skip


@dataclass(frozen=True)
class Work:
    """A program of index notation that tasks run; equal ones are compiled once in a process.

    *names*: the arguments, in the order in which tasks give them.
    """

    program: Program = field(compare=False)
    names: tuple[str, ...] = field(compare=False)
    formats: Mapping[str, Any] = field(compare=False)
    semiring: Semiring = field(compare=False)
    options: Options = field(compare=False)
    token: str = ""

    @classmethod
    def of(
        cls,
        stmt: Assignment,
        names: tuple[str, ...],
        formats: Mapping[str, Any],
        semiring: Semiring,
        options: Options,
    ) -> Work:
        """Return the work of one statement."""
        kept = {name: formats[name] for name in (stmt.target.name, *names) if name in formats}
        parts = Program((stmt,)), names, kept, semiring, options
        return cls(*parts, tokenize(pickle.dumps(parts)))

    def __call__(self, *blocks: Any) -> Any:
        """Return the result for *blocks*."""
        result = kernel_of(self)(**dict(zip(self.names, blocks, strict=True)))
        return np.asarray(result) if np.isscalar(result) else result


@lru_cache(maxsize=256)
def kernel_of(work: Work) -> NotationKernel:
    """Return the kernel that does *work*."""
    return NotationKernel(work.program, dict(work.formats), work.semiring, work.options)


def run(work: Work, *blocks: Any) -> Any:
    """Return the result of *work* for *blocks*."""
    return work(*map(kept, blocks))


def union(
    target: Access, op: str, formats: Mapping[str, Any], options: Options, semiring: Semiring
) -> Work:
    """Return the work that combines two sparse partial results of *target* by *op*."""
    names = f"{target.name}_1", f"{target.name}_2"
    both = tuple(Access(name, target.indices) for name in names)
    stmt = Assignment(target, Op("+", both))
    return Work.of(stmt, names, formats, Semiring(op, semiring.mul), options)


def combine(op: str, left: Any, right: Any) -> Any:
    """Return two dense partial results combined by *op*."""
    return UFUNCS[op](left, right)
