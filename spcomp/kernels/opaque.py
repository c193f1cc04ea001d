"""Around torch.compile: calls that it does not look into, but breaks its graph at."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_WAITING: list[CodeType] = []  # until torch is loaded


_REASON = (
    "spcomp runs machine code; spcomp.torch.op(program, name=...) makes an operator of a program,"
    " which torch.compile takes"
)


def opaque(function: F) -> F:
    """Return *function*, marked as ``torch.compiler.disable`` marks one.

    That would load torch; this costs a call nothing.
    """
    marks = {"_torchdynamo_disable": True, "_torchdynamo_disable_msg": _REASON}
    vars(function).update(marks)  # where torch traces a call of it
    _WAITING.append(function.__code__)
    tell_torch()
    return function


def tell_torch() -> None:
    """Let torch, if it is loaded, skip what opaque functions run, and what that calls."""
    frames: Any = sys.modules.get("torch._C._dynamo.eval_frame") if _WAITING else None
    if not hasattr(frames, "_FrameExecStrategy"):  # of torch 2.7 and later
        return
    skip = frames._FrameAction.SKIP  # noqa: SLF001
    while _WAITING:
        frames.set_code_exec_strategy(_WAITING.pop(), frames._FrameExecStrategy(skip, skip))  # noqa: SLF001
