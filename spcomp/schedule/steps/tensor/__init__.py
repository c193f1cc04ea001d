"""Steps that put micro-kernels in the place of blocks."""
