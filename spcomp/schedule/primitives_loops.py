"""The steps on loops, as methods that return the schedule with the step applied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, cast

from spcomp.errors import front_doors
from spcomp.schedule.sampled import Sampling
from spcomp.schedule.steps.base import Steps, as_tuple
from spcomp.schedule.steps.blocks.blocks import LiftLoop
from spcomp.schedule.steps.iterations.mark_fiber import MarkFiber
from spcomp.schedule.steps.iterations.sparse import SparseFuse, SparseReorder
from spcomp.schedule.steps.loops.annotate import Annotate, Unannotate, Value
from spcomp.schedule.steps.loops.bind import Bind
from spcomp.schedule.steps.loops.loops import AddUnitLoop, Parallel, Unroll, Vectorize
from spcomp.schedule.steps.loops.prefetch import Prefetch
from spcomp.schedule.steps.loops.sampling import SampleCategorical, SamplePerfectTile
from spcomp.schedule.steps.loops.tiling import Fuse, LoopPartition, Reorder, Split
from spcomp.schedule.steps.sharing.gather_rows import GatherRows
from spcomp.schedule.steps.sharing.horizontal import HorizontalFuse
from spcomp.schedule.steps.sharing.hubs import SplitHubs
from spcomp.schedule.steps.sharing.list_runs import ListRuns
from spcomp.schedule.steps.sharing.online_softmax import OnlineSoftmax
from spcomp.schedule.steps.sharing.partial_results import PartialResults
from spcomp.schedule.steps.sharing.segments import GroupRuns, SplitSorted
from spcomp.schedule.steps.sharing.sorted_rows import SortedRows
from spcomp.schedule.steps.sharing.split_nnz import MAX_CHUNKS, SplitNnz
from spcomp.schedule.steps.sharing.split_positions import SplitPositions
from spcomp.schedule.steps.sharing.split_rows import SplitRows
from spcomp.schedule.steps.sharing.split_runs import SplitRuns
from spcomp.schedule.steps.sharing.stage_products import StageProducts
from spcomp.schedule.steps.sharing.stage_weights import StageWeights
from spcomp.schedule.steps.sharing.workspaces import ShareWorkspace


@front_doors
class LoopPrimitives(Sampling):
    """Steps that change loops; each raises ScheduleError where it would change the meaning."""

    __slots__ = ()

    def split(self, loop: str, factors: int | Sequence[int | None]) -> Self:
        """``for k in n: s  ->  for k_o in ceil(n / f): for k_i in f: s``, guarded where needed.

        *factors*: trip counts, outermost first, at most one of them None (as large as needed); a
        number f stands for [None, f]. More than two pieces are called k_0, k_1, ...

        >>> stage2.split("k", [None, 2, 4]).loops
        ('i', 'j', 'k_0', 'k_1', 'k_2')
        """
        sizes = tuple(factors) if isinstance(factors, (list, tuple)) else factors
        return self.apply(Split(loop, cast("int | tuple[int | None, ...]", sizes)))

    def loop_partition(self, loop: str, multiple: int) -> Self:
        """``for k in n: s  ->  for k in n // m * m: s; for k_rest in the rest: s``.

        See :class:`LoopPartition`; TVM's takes the lengths of all parts.

        >>> stage2.reorder("k", "j").loop_partition("k", 8).loops
        ('i', 'k', 'j', 'k_rest', 'j_rest')
        """
        return self.apply(LoopPartition(loop, multiple))

    def reorder(self, *loops: str) -> Self:
        """``for j: for k: s  ->  for k: for j: s``, see :class:`Reorder`.

        >>> stage2.reorder("k", "j").loops
        ('i', 'k', 'j')
        """
        return self.apply(Reorder(loops))

    def fuse(self, *loops: str) -> Self:
        """``for i in n: for j in m: s  ->  for i_j in n * m: s``, see :class:`Fuse`.

        >>> stage2.split("k", [None, 2, 4]).fuse("k_0", "k_1", "k_2").loops
        ('i', 'j', 'k_0_k_1_k_2')
        """
        return self.apply(Fuse(loops))

    def lift_loop(self, loop: str) -> Self:
        """``block: for k in n: s  ->  for k in n: block: s``, see :class:`LiftLoop`.

        >>> stage2.reorder("k", "j").lift_loop("k").get_loops("csrmm0")
        ('i', 'k')
        """
        return self.apply(LiftLoop(loop))

    def parallel(self, loop: str) -> Self:
        """``for i in n: s  ->  for i in n, on all threads: s``, see :class:`Parallel`.

        >>> stage2.parallel("i").get_kind("i")
        'parallel'
        """
        return self.apply(Parallel(loop))

    def vectorize(self, loop: str) -> Self:
        """``for k in serial(n): s  ->  for k in vectorized(n): s``, see :class:`Vectorize`.

        >>> stage2.vectorize("k").get_kind("k")
        'vectorized'
        """
        return self.apply(Vectorize(loop))

    def unroll(self, loop: str) -> Self:
        """``for i in n: s  ->  s[i := 0]; s[i := 1]; ...`` when code is emitted; always legal.

        >>> stage2.unroll("j").get_kind("j")
        'unroll'
        """
        return self.apply(Unroll(loop))

    def bind(self, loop: str, thread: str) -> Self:
        """``for i in serial(n): s  ->  for i in thread_binding(n, "blockIdx.x"): s``.

        *thread*: blockIdx, threadIdx or vthread, with ``.x``, ``.y`` or ``.z``. A CPU runs the
        grid by loops, the outermost blocks in parallel; see :class:`Bind`.

        >>> stage2.bind("i", "blockIdx.x").bind("k", "threadIdx.x").get_kind("i")
        'blockIdx.x'
        """
        return self.apply(Bind(loop, thread))

    def add_unit_loop(self, target: str) -> Self:
        """``s  ->  for s_u in 1: s`` around the block or loop *target*; always legal.

        >>> stage2.add_unit_loop("csrmm1").get_loops("csrmm1")
        ('j', 'k', 'csrmm1_u')
        """
        return self.apply(AddUnitLoop(target))

    def annotate(self, target: str, key: str, value: Value) -> Self:
        """``block s  ->  block s {key: value}`` for a block, loop or iteration.

        ``"atomic"`` lets the iterations around a block update one element in any order; see
        :class:`Annotate` for the keys that mean something.

        >>> stage2.annotate("k", "pragma_unroll_explicit", 0).annotations("k")
        {'pragma_unroll_explicit': 0}
        """
        return self.apply(Annotate(target, key, value))

    def sample_perfect_tile(
        self,
        loop: str,
        n: int,
        max_innermost_factor: int = 16,
        decision: Sequence[int] | None = None,
        *,
        seed: int = 0,
    ) -> Self:
        """Choose *n* factors whose product is the trip count of *loop*; :attr:`sampled` has them.

        They are *decision*, or drawn at random: the same for the same *seed* and earlier steps. The
        step stores what was drawn, so that a trace replays to the same program.

        >>> tiled = stage2.split("k", 24).sample_perfect_tile("k_i", 3, decision=[3, 2, 4])
        >>> tiled.split("k_i", tiled.sampled).loops
        ('i', 'j', 'k_o', 'k_i_0', 'k_i_1', 'k_i_2')
        """
        if decision is None:
            decision = self._draw_tile(loop, n, max_innermost_factor, seed)
        return self.apply(SamplePerfectTile(loop, n, max_innermost_factor, as_tuple(decision)))

    def sample_categorical(
        self,
        candidates: Sequence[Value],
        probs: Sequence[float] | None = None,
        decision: int | None = None,
        *,
        seed: int = 0,
    ) -> Self:
        """Choose one of *candidates*; :attr:`sampled` has it.

        It is the one at *decision*, or drawn with the probabilities *probs*, by default equal ones.

        >>> chosen = stage2.sample_categorical([8, 16, 32], [0.2, 0.5, 0.3], decision=1)
        >>> chosen.sampled
        16
        """
        choices = as_tuple(candidates)
        uniform = (1.0,) * len(choices) if isinstance(choices, tuple) else ()
        weights = uniform if probs is None else as_tuple(probs)
        if decision is None:
            decision = self._draw_index(weights, seed)
        return self.apply(SampleCategorical(choices, weights, decision))

    def unannotate(self, target: str, key: str) -> Self:
        """``block s {key: value}  ->  block s``, see :class:`Unannotate`.

        >>> stage2.annotate("k", "note", "hot").unannotate("k", "note").annotations("k")
        {}
        """
        return self.apply(Unannotate(target, key))

    def prefetch(self, loop: str, distance: int) -> Self:
        """``for j: s(B[J_indices[j], k])  ->  for j: prefetch B[J_indices[j + d], k]; s``.

        *distance* d is in positions; see :class:`Prefetch`.

        >>> tiled = stage2.split("k", 16).reorder("k_o", "j", "k_i")
        >>> tiled.prefetch("j", 8).loops
        ('i', 'k_o', 'j', 'k_i_line', 'k_i')
        """
        return self.apply(Prefetch(loop, distance))

    def split_nnz(self, loop: str, size: int) -> Self:
        """``for i in n: s  ->  for i_c in chunks: for i in cut(i_c) to cut(i_c + 1): s``.

        Chunks have *size* elements, or nearly; see :class:`SplitNnz`.

        >>> stage2.split_nnz("i", 8192).parallel("i_c").loops
        ('i_c', 'i', 'j', 'k')
        """
        return self.apply(SplitNnz(loop, size))

    def split_hubs(self, loop: str, inner: str, size: int) -> Self:
        """``for i: for j: s  ->  short rows as they are, then long rows in pieces of *size*``.

        See :class:`SplitHubs`.

        >>> stage2.split_hubs("i", "j", 8192).made[:2]
        ('i_at', 'i_piece')
        """
        return self.apply(SplitHubs(loop, inner, size))

    def split_rows(self, loop: str, inner: str, size: int) -> Self:
        """``for i: for j in row(i): s  ->  for i: beginnings; for p: pieces; for i: their sums``.

        Rows of more than *size* elements are cut at its multiples; see :class:`SplitRows`.

        >>> stage2.split_rows("i", "j", 256).made
        ('i_cut', 'i_piece', 'j_hub', 'k_hub', 'i_sum', 'i_part', 'k_sum')
        """
        return self.apply(SplitRows(loop, inner, size))

    def split_positions(
        self, loop: str, inner: str, size: int, turns: int, parts: int = 1, listed: int = 0
    ) -> Self:
        """``for i: for j in row(i): s  ->  for i_c: for i_t: rows of a group; for j in size: s``.

        A part has *turns* groups, or fewer. *listed*: a nest before finds the rows, of so many
        elements at a time. See :class:`SplitPositions`.

        >>> sddmm.split_positions("i", "j", 4, 8).loops
        ('i_c', 'i_t', 'j_row', 'j', 'k')
        """
        return self.apply(SplitPositions(loop, inner, size, turns, parts=parts, listed=listed))

    def stage_products(
        self, loop: str, inner: str, rows: int, most: int, least: int = 0, abreast: int = 0
    ) -> Self:
        """``for i: for j in row(i): W[i] op= x  ->  for i_g: for j_p: t[j_p] = x; sums of rows``.

        For groups of *rows* rows with up to *most* elements, if there are *least* rows; rows of up
        to *abreast* elements add up theirs side by side. See :class:`StageProducts`.

        >>> spmv.stage_products("i", "j", 16, 256).made
        ('i_g', 'j_p', 'i_s', 'j_s')
        """
        return self.apply(StageProducts(loop, inner, rows, most, least, abreast))

    def stage_weights(self, loop: str, inner: str) -> Self:
        """``for i: for j: for k: s(f(i, j))  ->  t[i, j] = f(i, j); for i: for j: for k: s(t)``.

        What depends on rows and elements alone is computed once; see :class:`StageWeights`.

        >>> sch = weighted.stage_weights("i", "j")  # where A[i, j] is T.exp(A[i, j])
        >>> sch.made, "i_weights[vi, vj] * B[J_indices[vi, vj], vk]" in sch.func.script()
        (('i_weight', 'j_weight'), True)
        """
        return self.apply(StageWeights(loop, inner))

    def split_sorted(self, loop: str, size: int, long: int = 0, *, most: int = MAX_CHUNKS) -> Self:
        """``for e in n: W[key[e]] op= x  ->  for e_c in chunks: for e in the chunk: s``.

        Chunks of about *size* elements are cut where the key changes. If *long* is not 0, they are
        also cut inside the run of a key that fills more than *long* chunks. There are *most* chunks
        at the most; see :class:`SplitSorted`.

        >>> coo.split_sorted("e", 1024).made
        ('e_c',)
        """
        return self.apply(SplitSorted(loop, size, long, most=most))

    def group_runs(self, loop: str) -> Self:
        """``for e: W[key[e]] op= x  ->  for each run of one key: for e in the run: s``.

        See :class:`GroupRuns`.

        >>> print(coo.split_sorted("e", 1024).group_runs("e").trace)
        coo_spmm: split_sorted('e', 1024, 0)
        coo_spmm: group_runs('e')
        """
        return self.apply(GroupRuns(loop))

    def split_runs(self, loop: str, size: int, groups: int, *, at_once: int = 4) -> Self:
        """``for e: W[key[e]] op= x  ->  for parts: sums of runs; for partial sums: their sums``.

        Parts of *size* elements, *groups* of them in a block of threads; all loads of *at_once*
        elements come before their sums. See :class:`SplitRuns`.

        >>> lanes = coo.split("k_1", 32).bind("k_1_o", "blockIdx.y").bind("k_1_i", "threadIdx.x")
        >>> lanes.split_runs("e", 32, 4).made[:2]
        ('e_b', 'e_g')
        """
        return self.apply(SplitRuns(loop, size, groups, at_once=at_once))

    def list_runs(self, loop: str, size: int, groups: int, *, at_once: int = 4) -> Self:
        """``for e: W[key[e]] op= x  ->  for rows: begins; for parts: sums; for rows: their sums``.

        Parts of long runs have *size* elements; see :class:`ListRuns`.

        >>> lanes = coo.split("k_1", 32).bind("k_1_o", "blockIdx.y").bind("k_1_i", "threadIdx.x")
        >>> lanes.list_runs("e", 128, 4).made[:3]
        ('e_row', 'e_b', 'e_g')
        """
        return self.apply(ListRuns(loop, size, groups, at_once=at_once))

    def sorted_rows(self, loop: str, rows: str, size: int, *, most: int = MAX_CHUNKS) -> Self:
        """``for r: W[r] = 0; for e: W[key[e]] op= x  ->  for r: W[r] = 0; for e in r: W[r] op= x``.

        In chunks of about *size* rows and elements, *most* at the most; see :class:`SortedRows`.

        >>> coo.sorted_rows("e", "i", 1024).made
        ('e_c',)
        """
        return self.apply(SortedRows(loop, rows, size, most=most))

    def horizontal_fuse(self, loops: Sequence[str], size: int) -> Self:
        """``for i: s; for j: t  ->  for c in chunks: for i in part(c): s; for j in part(c): t``.

        Nests that follow each other run as one parallel loop, in chunks of about *size* elements;
        see :class:`HorizontalFuse`.

        >>> coo.horizontal_fuse(["i", "o"], 1024).made
        ('rows_c',)
        """
        return self.apply(HorizontalFuse(as_tuple(loops), size))

    def gather_rows(
        self, loops: Sequence[str], width: int = 1, *, apart: Sequence[str] = ()
    ) -> Self:
        """``for i: W[i] = 0; for p: W[row[p]] op= x  ->  for i: t = 0; for p of i: t op= x; ...``.

        With *width* elements of a row at a time; entries of the lists *apart* have sums of their
        own. See :class:`GatherRows`.

        >>> coo.gather_rows(["i", "o"], apart=["o"]).made[:3]
        ('i_first', 'e_entry', 'k_entry')
        """
        return self.apply(GatherRows(as_tuple(loops), width, apart=as_tuple(apart)))

    def share_workspace(self, loop: str) -> Self:
        """Let the iterations of a serial *loop* share their workspaces.

        ``for i: W = workspace(); s  ->  W = workspace(); for i: s``.

        >>> print(workspace.share_workspace("i").trace)
        clear: share_workspace('i')
        """
        return self.apply(ShareWorkspace(loop))

    def mark_fiber(self, merge: str, cursor: int) -> Self:
        """Look up one operand of an intersection in marks, which are made further out.

        ``for k: merge(intersect, a[k], m): s  ->  mark m; for k: for j in a[k]: if j in m: s``;
        *merge* is the coordinate, *cursor* the number of the operand; see :class:`MarkFiber`.

        >>> masked.mark_fiber("j", 1).loops
        ('o', 'i', 'mark', 'k', 'j', 'clear')
        """
        return self.apply(MarkFiber(merge, cursor))

    def online_softmax(self, loop: str, size: int) -> Self:
        """Let each iteration of *loop* compute a softmax, and sums with it, in one pass.

        ``M = max(X); E = exp(X - M); S += E; O += E * V / S  ->  all of that, *size* X a turn``;
        see :class:`OnlineSoftmax`.

        >>> softmax.online_softmax("i", 32).loops
        ('i', 'k_1', 'i_turn', 'j', 'j_3', 'j_1', 'k_2', 'j_2', 'k', 'k_3')
        """
        return self.apply(OnlineSoftmax(loop, size))

    def partial_results(self, loop: str) -> Self:
        """Let each iteration of *loop* compute its own sum, then add the sums in order.

        ``for c: s(W[e] op= x)  ->  for c: a = 0; s(a op= x); P[c] = a; for c: W[e] op= P[c]``;
        see :class:`PartialResults`.

        >>> masked.partial_results("i").parallel("i").loops
        ('o', 'i', 'k', 'i_1')
        """
        return self.apply(PartialResults(loop))


@front_doors
class IterationPrimitives(Steps):
    """Steps in coordinate space; each raises ScheduleError where it would change the meaning."""

    __slots__ = ()

    def sparse_reorder(self, iteration: str, new_order: Sequence[str]) -> Self:
        """``sp_iter([I, J, K]): s  ->  sp_iter([K, I, J]): s``, see :class:`SparseReorder`.

        >>> stage1.sparse_reorder("csrmm", ["k", "i", "j"]).get_sp_iters("csrmm")
        ('k', 'i', 'j')
        """
        return self.apply(SparseReorder(iteration, as_tuple(new_order)))

    def sparse_fuse(self, iteration: str, iters: Sequence[str]) -> Self:
        """``sp_iter([I, J, K]): s  ->  sp_iter([T.fuse(I, J), K]): s``, see :class:`SparseFuse`.

        >>> stage1.sparse_fuse("csrmm", ["i", "j"]).lower_sparse_iter().loops[-2:]
        ('i_j', 'k')
        """
        return self.apply(SparseFuse(iteration, as_tuple(iters)))
