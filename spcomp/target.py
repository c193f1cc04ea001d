"""Below everything: targets, frozen values for the machine that code is compiled for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, TypeAlias

from spcomp.errors import BackendError, expect

TargetKind: TypeAlias = Literal["cpu", "cuda"]
EMULATE = "SPCOMP_CUDA_EMULATE"  # of the environment: "1" lets code for GPUs run on the CPU
VARIABLES = (EMULATE, "SPCOMP_CHECK", "SPCOMP_DEBUG", "SPCOMP_TUNED")  # that options depend on


@dataclass(frozen=True, slots=True)
class Target:
    """A machine: ``cpu`` (this one), ``cpu:x86-64-v3``, ``cuda:sm_90``, ``cuda:sm_90,emulate``.

    ``cuda`` alone is ``cuda:sm_80``. *features* and *vector_bits* are empty until the back end
    resolves the target; for ``native`` they are then those of the host. *emulate*: the code for a
    GPU runs on this machine's CPU.
    """

    kind: TargetKind = "cpu"
    cpu: str = "native"
    features: str = ""
    vector_bits: int = 0
    emulate: bool = False

    def __str__(self) -> str:
        name = self.kind if self.cpu == "native" else f"{self.kind}:{self.cpu}"
        return f"{name},emulate" if self.emulate else name

    def lanes(self, bits: int) -> int:
        """Return how many elements of *bits* fill a vector register (at least 1)."""
        return max(1, self.vector_bits // bits)


def target(spec: str | Target) -> Target:
    """Return the target that *spec* names; raises BackendError for an unknown kind.

    Code for GPUs is emulated if *spec* or ``SPCOMP_CUDA_EMULATE=1`` says so.
    """
    if isinstance(spec, Target):
        return spec
    expect("target", spec, str, "the name of a machine")
    machine, _, option = spec.partition(",")
    kind, _, name = machine.partition(":")
    if kind == "cpu" and not option:
        return Target("cpu", name or "native")
    if kind == "cuda" and option in ("", "emulate"):
        return Target("cuda", name or "sm_80", emulate=bool(option) or _emulates())
    hint = "targets are cpu, cpu:NAME, cuda, cuda:sm_NN and cuda:sm_NN,emulate"
    raise BackendError(f"unknown target {spec!r}", hint=hint)


def on_gpu(target: Target) -> bool:
    """Return whether code for *target* runs on a GPU: then arrays of a call lie there."""
    return target.kind == "cuda" and not target.emulate


def environment() -> tuple[str | None, ...]:
    """Return what the environment says of options: a part of the key of what is compiled."""
    return tuple(map(os.environ.get, VARIABLES))


def _emulates() -> bool:
    return os.environ.get(EMULATE) == "1"
