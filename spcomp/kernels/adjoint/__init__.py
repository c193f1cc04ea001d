"""Kernels of gradients: ``spcomp.adjoint``, and what ``compile`` makes of its results."""
