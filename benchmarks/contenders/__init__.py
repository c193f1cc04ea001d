"""Who computes an operator: a registry of rivals and of our own forms, filled by its modules.

A contender is a function that takes a Problem and returns a call without arguments which computes
the operator, or a Prepared; everything that a user would do once is done before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from types import ModuleType

    from benchmarks.problem import Problem

MODULES = (
    *("ours", "products", "conversions", "with_scipy", "with_torch", "with_numba"),
    "with_graphblas",
    "with_mkl",  # the last to set its threads: PyTorch sets MKL's too
)
PACKAGES = (
    *("spcomp", "numpy", "scipy", "llvmlite", "mkl", "sparse_dot_mkl", "torch", "numba"),
    *("python-graphblas", "suitesparse-graphblas"),
)
OURS = "spcomp"


class MissingError(Exception):
    """A contender cannot run here, or cannot express the operator; the message says why."""


@dataclass(slots=True)
class Prepared:
    """A contender that is ready: *call* computes; *value* turns what it returns into an array."""

    call: Callable[[], object]
    value: Callable[[Any], Any] = np.asarray
    close: Callable[[], object] = lambda: None


Prepare: TypeAlias = "Callable[[Problem], Prepared | Callable[[], object]]"


@dataclass(frozen=True, slots=True)
class Contender:
    """*library* as the user names it; *handle*: what it may prepare includes the sparse operand."""

    name: str
    library: str
    prepare: Prepare
    handle: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether it is a form of our own."""
        return self.library == OURS

    def ready(self, problem: Problem) -> Prepared:
        """Return it ready to run; raises MissingError."""
        made = self.prepare(problem)
        return made if isinstance(made, Prepared) else Prepared(made)


_registry: dict[str, dict[str, Contender]] = {}


def contender(
    name: str, *operators: str, library: str = "", handle: bool = False
) -> Callable[[Prepare], Prepare]:
    """Register the decorated function as *name* for *operators*."""

    def register(prepare: Prepare) -> Prepare:
        for operator in operators:
            entry = Contender(name, library or name.split("_")[0], prepare, handle)
            _registry.setdefault(operator, {})[name] = entry
        return prepare

    return register


def contenders(operator: str) -> tuple[Contender, ...]:
    """Return who computes *operator*, our own forms first."""
    modules()
    return tuple(_registry.get(operator, {}).values())


def modules() -> tuple[ModuleType, ...]:
    """Return the modules that hold contenders; none of them loads its library by itself."""
    return tuple(import_module(f"{__name__}.{name}") for name in MODULES)


def need(module: str) -> Any:
    """Return a rival's *module*; raises MissingError if it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingError(f"{module} is not installed ({error})") from error


def set_threads(count: int) -> None:
    """Let every library that is here use *count* threads."""
    for module in modules():
        if hasattr(module, "set_threads"):
            try:
                module.set_threads(count)
            except MissingError:
                continue


def versions() -> dict[str, str]:
    """Return the versions of what takes part, by package."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
