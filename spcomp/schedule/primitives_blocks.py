"""The steps on blocks and memory, as methods that return the schedule with the step applied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from spcomp.errors import front_doors
from spcomp.schedule.steps.base import Steps, as_tuple
from spcomp.schedule.steps.blocks.blockize import Blockize
from spcomp.schedule.steps.blocks.blocks import HideBufferAccess, ReorderBlockIterVar
from spcomp.schedule.steps.blocks.caching import CacheRead, ReverseCacheRead, ReverseCacheWrite
from spcomp.schedule.steps.blocks.compact import Compact
from spcomp.schedule.steps.blocks.decompose_reduction import DecomposeReduction
from spcomp.schedule.steps.blocks.inline import ComputeInline, ReverseComputeInline
from spcomp.schedule.steps.blocks.layout import MapLike, TransformLayout, as_text
from spcomp.schedule.steps.blocks.match_to_alloc import MatchToAlloc
from spcomp.schedule.steps.blocks.memory import CacheWrite, SetScope, StorageAlign
from spcomp.schedule.steps.blocks.moving import ComputeAt, ReverseComputeAt
from spcomp.schedule.steps.blocks.rfactor import RFactor
from spcomp.schedule.steps.tensor.pad_einsum import PadEinsum
from spcomp.schedule.steps.tensor.tensorize import Tensorize


@front_doors
class BlockPrimitives(Steps):
    """Steps that change blocks; each raises ScheduleError where it would change the meaning."""

    __slots__ = ()

    def decompose_reduction(self, block: str, loop: str) -> Self:
        """``for j: (init; s)  ->  init; for j: s``, see :class:`DecomposeReduction`.

        >>> sch = stage2.decompose_reduction("csrmm1", "j")
        >>> sch.made, sch.get_loops("csrmm1_init")
        (('csrmm1_init',), ('k_1',))
        """
        return self.apply(DecomposeReduction(block, loop))

    def rfactor(
        self,
        loop: str,
        factor_axis: int = 0,
        scope: str = "global",
        whole: bool = False,  # noqa: FBT001, FBT002
    ) -> Self:
        """``for j: W += x[j]  ->  for j: P[j] = x[j]; for j: W += P[j]``, see :class:`RFactor`.

        >>> sch = stage2.reorder("k", "j").split("j", 8).rfactor("j_i")
        >>> sch.made, sch.get_loops("csrmm1_rf"), sch.get_loops("csrmm1")
        (('csrmm1_rf',), ('k', 'j_o', 'j_i'), ('k', 'j_i_1'))
        """
        return self.apply(RFactor(loop, factor_axis, scope, whole))

    def blockize(self, loop: str) -> Self:
        """``for j: for k: s  ->  for j: block: for k: s``, see :class:`Blockize`.

        >>> sch = stage2.blockize("k")
        >>> sch.get_loops("csrmm1_o"), sch.get_loops("csrmm1")
        (('j',), ('k',))
        """
        return self.apply(Blockize(loop))

    def tensorize(self, target: str, intrinsic: str) -> Self:
        """``for j: for k: s  ->  for j: block: the intrinsic's code``, see :class:`Tensorize`.

        *target*: a loop or a block; *intrinsic*: a name given to ``spcomp.register_intrinsic``.

        >>> from spcomp import register_intrinsic, script as T
        >>> @T.prim_func
        ... def axpy4(x: T.handle, y: T.handle, a: T.float32) -> None:
        ...     X = T.match_buffer(x, (4,), "float32")
        ...     Y = T.match_buffer(y, (4,), "float32")
        ...     for i in T.vectorized(4):
        ...         Y[i] = Y[i] + a * X[i]
        >>> axpy = register_intrinsic("axpy4", axpy4, axpy4)
        >>> sch = stage2.decompose_reduction("csrmm1", "j").loop_partition("k", 4).split("k", 4)
        >>> sch.tensorize("k_i", axpy).made
        ('csrmm1_o',)
        """
        return self.apply(Tensorize(target, intrinsic))

    def transform_layout(
        self, block: str, buffer: str | tuple[str, int], index_map: MapLike
    ) -> Self:
        """``X[i, j]  ->  X[map(i, j)]``, X allocated inside, see :class:`TransformLayout`.

        *index_map*: a function such as ``lambda i, j: (j // 4, i, j % 4)``, or its text.

        >>> sch = stage2.split("j", 8).rfactor("j_i")
        >>> sch = sch.transform_layout("csrmm1_rf", "C_rf", lambda j, k: (k // 4, j, k % 4))
        >>> sch.trace.steps[-1][1].index_map
        'lambda j, k: (k // 4, j, k % 4)'
        """
        return self.apply(TransformLayout(block, buffer, as_text(index_map)))

    def pad_einsum(self, block: str, padding: Sequence[int]) -> Self:
        """``for i in n: W += x[i]  ->  X = x, 0; for i in N: W += X[i]``, see :class:`PadEinsum`.

        >>> from spcomp import Schedule, script as T
        >>> @T.prim_func
        ... def scale(x: T.handle, y: T.handle, n: T.int32) -> None:
        ...     X = T.match_buffer(x, (n,), "float32")
        ...     Y = T.match_buffer(y, (1,), "float32")
        ...     for i in T.serial(n):
        ...         with T.block("sum"):
        ...             vi = T.axis.reduce(n, i)
        ...             Y[0] = Y[0] + X[vi]
        >>> Schedule(scale).pad_einsum("sum", [16]).made
        ('sum_X_pad',)
        """
        return self.apply(PadEinsum(block, as_tuple(padding)))

    def reorder_block_iter_var(self, block: str, new_order: Sequence[int]) -> Self:
        """``block (va, vb): s  ->  block (vb, va): s``, see :class:`ReorderBlockIterVar`.

        >>> reordered = stage2.reorder_block_iter_var("csrmm1", [1, 0])
        >>> reordered.reorder_block_iter_var("csrmm1", [1, 0]).func.script() == stage2.func.script()
        True
        """
        return self.apply(ReorderBlockIterVar(block, as_tuple(new_order)))

    def match_to_alloc(self, block: str, buffer_index: int) -> Self:
        """``C = match_buffer(c): s  ->  C = alloc_buffer(): s``, see :class:`MatchToAlloc`.

        >>> from spcomp.errors import ScheduleError
        >>> try:
        ...     stage2.match_to_alloc("csrmm1", 0)
        ... except ScheduleError as error:
        ...     print(error.message)
        match_to_alloc('csrmm1', 0): nothing but the caller reads C
        """
        return self.apply(MatchToAlloc(block, buffer_index))

    def hide_buffer_access(self, block: str, buf_type: str, indices: Sequence[int]) -> Self:
        """``block {reads A, B}: s  ->  block {reads A}: s``, see :class:`HideBufferAccess`.

        >>> hidden = stage2.hide_buffer_access("csrmm1", "read", [3])
        >>> "T.reads(C[vi, vk], A[vi, vj], B[J_indices[vi, vj], vk])" in hidden.func.script()
        True
        """
        return self.apply(HideBufferAccess(block, buf_type, as_tuple(indices)))

    def cache_read(self, block: str, read_buffer_index: int, storage_scope: str = "local") -> Self:
        """``for i: s(B[i])  ->  for a: B_local[a] = B[a]; for i: s(B_local[i])``.

        See :class:`CacheRead`.

        >>> sch = stage2.cache_read("csrmm1", 2, "shared")
        >>> sch.made, sch.get_loops("csrmm1_load")
        (('csrmm1_load',), ('ax0', 'ax1'))
        """
        return self.apply(CacheRead(block, read_buffer_index, storage_scope))

    def cache_write(
        self, block: str, write_buffer_index: int = 0, storage_scope: str = "local", at: str = ""
    ) -> Self:
        """``for i: W[i] op= x  ->  for i: t[i] op= x; for i: W[i] = t[i]``.

        See :class:`CacheWrite`; *at*: a loop around the block in which the copy lives.

        >>> sch = stage2.cache_write("csrmm1", 0, "local")
        >>> sch.made, sch.get_loops("csrmm1_store")
        (('csrmm1_store',), ('k_1',))
        >>> stage2.split("k", 8).reorder("k_o", "j", "k_i").cache_write("csrmm1", at="k_o").made
        ('csrmm1_store',)
        """
        return self.apply(CacheWrite(block, write_buffer_index, storage_scope, at))

    def compact(self, buffer: str, loop: str) -> Self:
        """``X = alloc(n, m); for i in n: s(X[i, j])  ->  for i in n: X = alloc(m); s(X[j])``.

        See :class:`Compact`.

        >>> local = stage2.cache_read("csrmm1", 1).compact("A_local", "i")
        >>> "A_local_own[vj] * B[J_indices[vi, vj], vk]" in local.func.script()
        True
        """
        return self.apply(Compact(buffer, loop))

    def reverse_cache_read(
        self,
        block: str,
        read_buffer_index: int,
        storage_scope: str = "local",
        dim_order: Sequence[int] = (),
    ) -> Self:
        """``for j: s(B[J[j]])  ->  for j: B_local[j] = B[J[j]]; for j: s(B_local[j])``.

        See :class:`ReverseCacheRead`.

        >>> sch = stage2.reverse_cache_read("csrmm1", 2, "shared")
        >>> sch.made, sch.get_loops("csrmm1_load")
        (('csrmm1_load',), ('j_1', 'k_1'))
        """
        return self.apply(
            ReverseCacheRead(block, read_buffer_index, storage_scope, as_tuple(dim_order))
        )

    def reverse_cache_write(
        self,
        block: str,
        write_buffer_index: int,
        storage_scope: str = "local",
        dim_order: Sequence[int] = (),
    ) -> Self:
        """``for i, j: W[I[i]] += x  ->  for i, j: t[i] += x; for i: W[I[i]] += t[i]``.

        See :class:`ReverseCacheWrite`.

        >>> sch = stage2.reverse_cache_write("csrmm1", 0, "local")
        >>> sch.made, sch.get_loops("csrmm1_store")
        (('csrmm1_store',), ('k_1',))
        """
        return self.apply(
            ReverseCacheWrite(block, write_buffer_index, storage_scope, as_tuple(dim_order))
        )

    def compute_at(self, block: str, loop: str, preserve_unit_loops: bool = False) -> Self:  # noqa: FBT001, FBT002
        """``for a: X[a] = f; for i: s(X[i])  ->  for i: X[i] = f; s(X[i])``.

        See :class:`ComputeAt`.

        >>> sch = stage2.cache_read("csrmm1", 2, "local").compute_at("csrmm1_load", "j")
        >>> sch.get_loops("csrmm1_load")
        ('j', 'ax1')
        """
        return self.apply(ComputeAt(block, loop, preserve_unit_loops))

    def reverse_compute_at(self, block: str, loop: str, preserve_unit_loops: bool = False) -> Self:  # noqa: FBT001, FBT002
        """``for i: X[i] = f; for a: Y[a] = X[a]  ->  for i: X[i] = f; Y[i] = X[i]``.

        See :class:`ReverseComputeAt`.

        >>> sch = stage2.reorder("k", "j").cache_write("csrmm1")
        >>> sch.reverse_compute_at("csrmm1_store", "k", True).get_loops("csrmm1_store")
        ('k', 'k_1')
        """
        return self.apply(ReverseComputeAt(block, loop, preserve_unit_loops))

    def compute_inline(self, block: str) -> Self:
        """``for i: X[i] = f(i); for a: s(X[a])  ->  for a: s(f(a))``, see :class:`ComputeInline`.

        >>> stage2.cache_read("csrmm1", 2).compute_inline("csrmm1_load").loops
        ('i', 'j', 'k')
        """
        return self.apply(ComputeInline(block))

    def reverse_compute_inline(self, block: str) -> Self:
        """``for i: X[i] = f; for a: Y[a] = g(X[a])  ->  for i: Y[i] = g(f)``.

        See :class:`ReverseComputeInline`.

        >>> sch = stage2.cache_write("csrmm1").cache_write("csrmm1_store", 0, "shared")
        >>> sch.reverse_compute_inline("csrmm1_store_store").get_loops("csrmm1_store")
        ('k_1',)
        """
        return self.apply(ReverseComputeInline(block))

    def set_scope(self, block: str, buffer_index: int, storage_scope: str) -> Self:
        """``X = alloc_buffer(n)  ->  X = alloc_buffer(n, scope="shared")``, see :class:`SetScope`.

        >>> sch = stage2.cache_write("csrmm1").set_scope("csrmm1", 0, "shared")
        >>> 'scope="shared"' in sch.func.script()
        True
        """
        return self.apply(SetScope(block, buffer_index, storage_scope))

    def storage_align(
        self, block: str, buffer_index: int, axis: int, factor: int, offset: int = 0
    ) -> Self:
        """``X = alloc_buffer((m, 30))  ->  X = alloc_buffer((m, 32))``, see :class:`StorageAlign`.

        >>> sch = stage2.cache_read("csrmm1", 2).storage_align("csrmm1_load", 0, 0, 16)
        >>> "% 16" in sch.func.script()
        True
        """
        return self.apply(StorageAlign(block, buffer_index, axis, factor, offset))
