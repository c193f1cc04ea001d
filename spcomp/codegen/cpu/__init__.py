"""Flat IR to LLVM IR for CPUs."""
