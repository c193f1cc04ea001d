"""Stage III, flat buffers: loops and one-dimensional loads and stores, nothing else."""

from __future__ import annotations

from spcomp.ir.node import node
from spcomp.ir.stmt import Func


@node
class FlatFunc(Func):
    """A program over one-dimensional buffers; no axis, no sparse buffer, no block."""

    __repr__ = Func.__repr__
