"""Kernels of index notation: compiled when they meet arguments of a new kind."""
