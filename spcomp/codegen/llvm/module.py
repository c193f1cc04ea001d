"""LLVM IR text to a module of LLVM, for every target: parsing, which verifies."""

from __future__ import annotations

import mmap
from functools import cache

import llvmlite.binding as llvm

from spcomp.errors import InternalError

ROOM = 32 << 20  # bytes that LLVM may need at once, at most
ROOM_EACH = 256  # and for each character of its text
LLVM_VERSION = ".".join(str(part) for part in llvm.llvm_version_info)


def require_room(size: int) -> None:
    """Raise MemoryError unless *size* bytes are free: LLVM ends the process if it has none."""
    private = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
    try:
        mmap.mmap(-1, size, *([private] if private else [])).close()
    except (OSError, OverflowError):
        raise MemoryError(f"no memory for machine code: {size >> 20} MiB are wanted") from None


def parse(llvm_ir: str) -> llvm.ModuleRef:
    """Return the module of the text *llvm_ir*; raises InternalError if it is not well-formed."""
    require_room(ROOM + ROOM_EACH * len(llvm_ir))
    initialize()
    try:
        return llvm.parse_assembly(llvm_ir)  # parsing verifies
    except RuntimeError as error:
        raise InternalError("LLVM IR emission", str(error)) from error


@cache
def initialize() -> None:
    """Make LLVM's code generators known, once."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    # in line tables, an instruction without a place goes with the one before, not with line 0
    llvm.set_option("spcomp", "--use-unknown-locations=Disable")
