"""Our kernels on a GPU against the libraries and kernels that people use there.

``python -m benchmarks --target cuda``: a parent (``run``) plans the time, starts a worker that
measures line by line (``worker``), starts another one if a kernel takes the process down, and
writes tables.
"""
