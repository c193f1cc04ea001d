"""Between processes: what lowering a program gave, so that the next one need not lower it again.

Kept in the cache of objects under a key that covers the program, the options, the target and the
compiler's own source; the machine code itself is found there by its LLVM IR.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from functools import cache as remember
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spcomp.compiler import plain
from spcomp.ir.stmt import Seq
from spcomp.runtime import cache

if TYPE_CHECKING:
    from spcomp.codegen.abi import Emitted
    from spcomp.ir.func import Func
    from spcomp.ir.module import HostOp, Module
    from spcomp.schedule.step import Trace
    from spcomp.target import Target


@dataclass(frozen=True, slots=True)
class Saved:
    """All of a compiled program but its machine code and what is only there to be printed."""

    emitted: Emitted
    heads: tuple[Func, ...]  # the flat functions without their bodies
    host: tuple[HostOp, ...]
    order_needed: frozenset[str]
    trace: Trace


def heads(module: Module[Any]) -> tuple[Func, ...]:
    """Return the functions of *module* without their bodies: how they are called."""
    return tuple(func.replace(body=Seq(())) for func in module.funcs)


def load(key: object, target: Target) -> Saved | None:
    """Return what was saved for *key*, which must print all that it depends on; or None."""
    data = cache.get(_name(key, target))
    if data is None:
        return None
    try:
        found = plain.decode(data)
    except plain.UNREADABLE:
        return None
    return found if isinstance(found, Saved) else None


def store(key: object, target: Target, saved: Saved) -> None:
    """Keep *saved* for *key*, unless there is something in it that has no plain form."""
    try:
        data = plain.encode(saved)
    except (TypeError, RecursionError):
        return
    cache.put(_name(key, target), data)


def _name(key: object, target: Target) -> str:
    return cache.key(f"program {key!r}", target, sys.implementation.cache_tag, _compiler())


@remember
def _compiler() -> str:
    """A fingerprint of the compiler's source: what it made is stale when it changes.

    Of the text, as installers may give all files of all versions one time.
    """
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(root)} {len(text)}\n".encode() + text)
    return digest.hexdigest()
