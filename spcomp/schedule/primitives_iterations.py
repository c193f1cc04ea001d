"""The steps on sparse iterations, as methods that return the schedule with the step applied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from spcomp.errors import front_doors
from spcomp.schedule.coordinate import SparseFuse, SparseReorder
from spcomp.schedule.step import Steps, listed


@front_doors
class IterationPrimitives(Steps):
    """Steps in coordinate space; each raises ScheduleError where it would change the meaning."""

    __slots__ = ()

    def sparse_reorder(self, iteration: str, new_order: Sequence[str]) -> Self:
        """``sp_iter([I, J, K]): s  ->  sp_iter([K, I, J]): s``, see :class:`SparseReorder`.

        >>> stage1.sparse_reorder("csrmm", ["k", "i", "j"]).get_sp_iters("csrmm")
        ('k', 'i', 'j')
        """
        return self.apply(SparseReorder(iteration, listed(new_order)))

    def sparse_fuse(self, iteration: str, iters: Sequence[str]) -> Self:
        """``sp_iter([I, J, K]): s  ->  sp_iter([T.fuse(I, J), K]): s``, see :class:`SparseFuse`.

        >>> stage1.sparse_fuse("csrmm", ["i", "j"]).lower_sparse_iter().loops[-2:]
        ('i_j', 'k')
        """
        return self.apply(SparseFuse(iteration, listed(iters)))
