"""GPU kernels on the CPU: the LLVM IR that goes to PTX, run, checked and explained."""

from spcomp.runtime.emulator.emulated import Emulated

__all__ = ["Emulated"]
