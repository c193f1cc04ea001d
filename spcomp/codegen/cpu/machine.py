"""Flat IR to machine code, the machine: what a CPU's name means, and what this CPU has."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from spcomp.errors import BackendError
from spcomp.locks import hold_while_forking, shield_from_signals
from spcomp.target import Target

_V2 = ["cx16", "sahf", "popcnt", "sse3", "ssse3", "sse4.1", "sse4.2"]
_V3 = [*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"]
_V4 = [*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]
LEVELS: dict[str, list[str]] = {
    "x86-64": [],
    "x86-64-v2": _V2,
    "x86-64-v3": _V3,
    "x86-64-v4": _V4,
    "aarch64": ["neon"],
}
# CPUs by the highest level they support: code uses the level's instructions, tuned for the CPU.
_TUNED: dict[str, str] = {
    "x86-64": "core2 k8 btver1",
    "x86-64-v2": "nehalem westmere sandybridge ivybridge silvermont goldmont tremont btver2 bdver2",
    "x86-64-v3": "haswell broadwell skylake alderlake raptorlake meteorlake arrowlake lunarlake"
    " gracemont sierraforest bdver4 znver1 znver2 znver3",
    "x86-64-v4": "skylake-avx512 cascadelake cooperlake cannonlake icelake-client icelake-server"
    " tigerlake rocketlake sapphirerapids emeraldrapids graniterapids znver4 znver5",
    "aarch64": "apple-m1 apple-m2 apple-m3 cortex-a72 cortex-a76 neoverse-n1 neoverse-v1"
    " neoverse-n2 neoverse-v2 ampere1",
}
_LEVEL_OF = {cpu: level for level, cpus in _TUNED.items() for cpu in cpus.split()}
_LEVEL_OF |= {level: level for level in LEVELS}


# llvmlite lets one thread into LLVM at a time: every function takes this lock, even those that
# Python's garbage collection calls. No function of LLVM can be called without it.
_LOCK = llvm.ffi.lib._lock  # noqa: SLF001
hold_while_forking(_LOCK._lock)  # noqa: SLF001


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function of LLVM under the lock, which a ``with`` takes in C: see ``locks.Lock``.

    llvmlite takes it by a method in Python, where a signal could leave it locked for good.
    """
    with _LOCK._lock:  # noqa: SLF001
        listeners = list(_LOCK._cblist)  # noqa: SLF001 (numba's)
        for acquired, _ in listeners:
            acquired()
        try:
            return self._cfn(*args, **kwargs)
        finally:
            for _, released in listeners:
                released()


llvm.ffi._lib_fn_wrapper.__call__ = _call  # noqa: SLF001
_host_name: Callable[[], str] = cache(shield_from_signals(llvm.get_host_cpu_name))
_host_triple: Callable[[], str] = cache(shield_from_signals(llvm.get_process_triple))


@cache
@shield_from_signals
def _host_features() -> dict[str, bool]:
    features = dict(llvm.get_host_cpu_features())
    return features | ({"neon": True} if _host_family() == "aarch64" else {})  # not all report it


@cache
def resolve(target: Target) -> Target:
    """Return *target* with features and vector width; raises BackendError for an unknown CPU.

    ``native`` becomes what SPCOMP_CPU names, else the host CPU with the features it reports, since
    its name alone may promise what a virtual machine hides.
    """
    if target.cpu == "native" and (chosen := os.environ.get("SPCOMP_CPU")):
        target = dataclasses.replace(target, cpu=chosen)
    if target.kind != "cpu":
        raise BackendError(f"{target} is not a CPU target")
    if target.features:
        return target
    if target.cpu == "native":
        host = _host_features()
        text = ",".join(f"{'+' if on else '-'}{name}" for name, on in sorted(host.items()))
        width = _width({name for name, on in host.items() if on})
        return dataclasses.replace(target, cpu=_host_name(), features=text, vector_bits=width)
    if (level := _LEVEL_OF.get(target.cpu)) is None:
        raise BackendError(f"unknown cpu {target.cpu!r}", hint=f"cpus are {', '.join(_LEVEL_OF)}")
    names = LEVELS[level]
    features = ",".join(f"+{name}" for name in (names or ["sse2"]))
    return dataclasses.replace(target, features=features, vector_bits=_width(set(names)))


def _width(features: set[str]) -> int:
    if "avx512f" in features:
        return 512
    return 256 if "avx" in features else 128


def has_half(target: Target) -> bool:
    """Whether the resolved *target* converts float16 in one instruction."""
    return "+f16c" in target.features.split(",") or is_arm(target)


def has_fma(target: Target) -> bool:
    """Whether the resolved *target* multiplies and adds in one instruction."""
    return "+fma" in target.features.split(",") or is_arm(target)


def is_arm(target: Target) -> bool:
    """Whether the resolved *target* is a 64-bit ARM."""
    return "+neon" in target.features.split(",")


def attributes(target: Target) -> str:
    """Return the function attributes that fix the CPU of the resolved *target*."""
    level = _LEVEL_OF.get(target.cpu, target.cpu)
    base = target.cpu if _is_host(target) else {"aarch64": "generic"}.get(level, level)
    facts = {"target-cpu": base, "target-features": target.features}
    if base != target.cpu and target.cpu not in LEVELS:
        facts["tune-cpu"] = target.cpu
    if target.vector_bits:
        facts["prefer-vector-width"] = str(target.vector_bits)
    return " ".join(f'"{name}"="{value}"' for name, value in facts.items())


def _is_host(target: Target) -> bool:
    """Whether *target* is ``native`` resolved: it alone says which features are missing."""
    return ",-" in target.features or target.features.startswith("-")


def family(target: Target) -> str:
    """Return ``x86_64`` or ``aarch64``."""
    return "aarch64" if is_arm(resolve(target)) else "x86_64"


def triple(target: Target) -> str:
    """Return the LLVM triple of the resolved *target*: the host's if it is of the same family."""
    ours = family(target)
    return _host_triple() if _host_family() == ours else f"{ours}-unknown-linux-gnu"


def _host_family() -> str:
    name = _host_triple().split("-")[0]
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(name, name)


def check_runnable(target: Target) -> None:
    """Raise BackendError if this machine lacks what the resolved *target*'s code may use."""
    host = _host_features()
    required = [name[1:] for name in target.features.split(",") if name.startswith("+")]
    missing = [name for name in required if not host.get(name, False)]
    if triple(target) != _host_triple() or missing:
        raise BackendError(
            f"this machine cannot run code for {target}"
            + (f": it lacks {', '.join(missing)}" if missing else ""),
            hint="code for it can be built, not called",
        )
