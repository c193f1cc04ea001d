"""Targets: a frozen value that says which machine code is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from spcomp.errors import BackendError, expect

TargetKind: TypeAlias = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class Target:
    """A machine: ``cpu`` (this one), ``cpu:x86-64-v3``, ``cuda:sm_90``.

    *features* and *vector_bits* are empty until the back end resolves the target: for ``native``
    they are the host's.
    """

    kind: TargetKind = "cpu"
    cpu: str = "native"
    features: str = ""
    vector_bits: int = 0

    def __str__(self) -> str:
        return self.kind if self.cpu == "native" else f"{self.kind}:{self.cpu}"

    def lanes(self, bits: int) -> int:
        """Return how many elements of *bits* fill a vector register (at least 1)."""
        return max(1, self.vector_bits // bits)


def target(spec: str | Target) -> Target:
    """Return the target that *spec* names; raises BackendError for one that does not exist."""
    if isinstance(spec, Target):
        return spec
    expect("target", spec, str, "the name of a machine")
    kind, _, cpu = spec.partition(":")
    match kind:
        case "cpu":
            return Target("cpu", cpu or "native")
        case "cuda":
            return Target("cuda", cpu or "sm_80")
    raise BackendError(f"unknown target {spec!r}", hint="targets are cpu, cpu:NAME and cuda:sm_NN")
