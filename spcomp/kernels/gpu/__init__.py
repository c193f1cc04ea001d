"""Calls whose kernels run on a GPU: their arguments, memory and results."""
