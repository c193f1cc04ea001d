"""Between processes: the result of lowering a program, kept so that it is lowered only once.

It lies in the cache on disk, under a key made of the program, the options, the target and the
source of the compiler. The machine code lies there too, under its LLVM IR.
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
    """A compiled program without its machine code and its upper levels."""

    emitted: Emitted
    heads: tuple[Func, ...]  # the flat functions without their bodies
    host: tuple[HostOp, ...]
    order_needed: frozenset[str]
    trace: Trace


def heads(module: Module[Any]) -> tuple[Func, ...]:
    """Return the functions of *module* with empty bodies: only how they are called is left."""
    return tuple(func.replace(body=Seq(())) for func in module.funcs)


def load(key: object, target: Target) -> Saved | None:
    """Return what was saved for *key*, or None; the repr of *key* must tell programs apart."""
    data = cache.get(_name(key, target))
    if data is None:
        return None
    try:
        value = plain.decode(data)
    except plain.UNREADABLE:
        return None
    return value if isinstance(value, Saved) else None


def store(key: object, target: Target, saved: Saved) -> None:
    """Keep *saved* for *key*; do nothing if some part of it has no plain form."""
    try:
        data = plain.encode(saved)
    except (TypeError, RecursionError):
        return
    cache.put(_name(key, target), data)


def _name(key: object, target: Target) -> str:
    return cache.key(f"program {key!r}", target, sys.implementation.cache_tag, _compiler())


@remember
def _compiler() -> str:
    """A fingerprint of the compiler's source: results of other sources are stale.

    It covers the text, not the times of the files, which installers may set to a constant.
    """
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(root)} {len(text)}\n".encode() + text)
    return digest.hexdigest()
