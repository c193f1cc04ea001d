"""Flat IR to PTX, the machine: which GPUs there are, and what their names mean."""

from __future__ import annotations

import dataclasses

from spcomp.errors import BackendError
from spcomp.target import Target

TRIPLE = "nvptx64-nvidia-cuda"
ALIGN = 16  # bytes that divide the address of every array: the widest load of a thread
LANE_BITS = 128  # that a thread loads or stores at once
# The version of PTX by GPU: the lowest that has all that code for this GPU uses, since a driver
# has to be as new as the version.
PTX = {
    "sm_80": 70,
    "sm_86": 71,
    "sm_87": 74,
    "sm_89": 78,
    "sm_90": 78,
    "sm_90a": 80,
    "sm_100": 86,
    "sm_100a": 86,
    "sm_120": 87,
}

SHARED = {  # KiB of memory that the threads of a block share, at most (CUDA C++ Programming Guide)
    **dict.fromkeys(("sm_80", "sm_87"), 163),
    **dict.fromkeys(("sm_86", "sm_89", "sm_120"), 99),
    **dict.fromkeys(("sm_90", "sm_90a", "sm_100", "sm_100a"), 227),
}


def resolve(target: Target) -> Target:
    """Return *target* with features and vector width; raises BackendError for an unknown GPU."""
    if target.kind != "cuda":
        raise BackendError(f"{target} is not a CUDA target")
    if target.features:
        return target
    if target.cpu not in PTX:
        raise BackendError(f"unknown GPU {target.cpu!r}", hint=f"GPUs are {', '.join(PTX)}")
    features = f"+ptx{PTX[target.cpu]}"
    return dataclasses.replace(target, features=features, vector_bits=LANE_BITS)
