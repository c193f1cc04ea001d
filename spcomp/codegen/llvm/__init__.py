"""Flat IR as the text of LLVM IR, for any target."""
