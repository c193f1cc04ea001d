"""PyTorch on the GPU: sparse operators, scatters with atomics, torch.compile, flex_attention."""

from __future__ import annotations

import importlib
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.contenders import MissingError
from benchmarks.gpu.devices import Ready
from benchmarks.gpu.ours import Contenders, matrix, row_sums
from benchmarks.gpu.problems import TF32

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.gpu.problems import Problem

ROOM = 8e9  # bytes: a contender that stores more between two steps does not take part
WIDE = 3_000_000  # elements: torch.compile takes a while, which many lines would add up


def _csr(work: Problem) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that its CSR support is in beta
        return matrix(work)


def _room(work: Problem, per_element: float) -> None:
    if (size := per_element * len(work.pattern.values)) > ROOM:
        raise MissingError(f"would store {size / 1e9:.0f} GB between its steps")


def _compiled(function: Callable[..., Any]) -> Any:
    torch = importlib.import_module("torch")
    torch.compiler.reset()  # a second size as a variation of the first would be compiled as dynamic
    return torch.compile(function, dynamic=False)


def _mm(work: Problem) -> Any:
    a, b = _csr(work), work.arrays["B"]
    return Ready(lambda: a @ b)


def _scattered(work: Problem) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    torch, csr, b = work.device.torch, work.pattern, work.arrays["B"]
    rows = work.device.row_of(csr).long()

    def product(values: Any, rows: Any, columns: Any, b: Any) -> Any:
        result = torch.zeros(work.out, device=b.device)
        return result.index_add_(0, rows, values[:, None] * b[columns])

    return product, (csr.values, rows, csr.indices.long(), b)


def _scatter(work: Problem) -> Any:
    _room(work, 8.0 * work.line.feat)
    product, operands = _scattered(work)
    return Ready(partial(product, *operands))


def _compiled_scatter(work: Problem) -> Any:
    if work.line.feat != 128 or len(work.pattern.values) > WIDE:
        raise MissingError("takes part at F = 128 on smaller graphs only: it takes long to compile")
    product, operands = _scattered(work)
    return Ready(partial(_compiled(product), *operands))


def _sampled(work: Problem) -> Any:
    torch, csr = work.device.torch, work.pattern
    ones = torch.ones_like(csr.values)
    pattern = torch.sparse_csr_tensor(csr.indptr, csr.indices, ones, csr.shape)
    x, y = work.arrays["X"], work.arrays["Y"]
    sampled = partial(torch.sparse.sampled_addmm, pattern, x, beta=0.0)
    forms = {"Y by columns": y.T, "Y by rows": y.T.contiguous()}
    return {
        text: Ready(partial(sampled, form), lambda found: found.values())
        for text, form in forms.items()
    }


def _gathered_dots(work: Problem) -> Any:
    _room(work, 12.0 * work.line.feat)
    x, y, rows = (work.arrays[name] for name in ("X", "Y", "rows"))
    columns = work.pattern.indices
    return Ready(lambda: (x[rows] * y[columns]).sum(1))


def _scattered_sums(work: Problem, name: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a function that adds up segments by the operator *name*, and its operands."""
    torch, x, rows = work.device.torch, work.arrays["X"], work.arrays["rows"].long()

    def sums(rows: Any, x: Any) -> Any:
        return getattr(torch.zeros(work.out, device=x.device), name)(0, rows, x)

    return sums, (rows[:, None].expand_as(x) if name == "scatter_add_" else rows, x)


def _sums(name: str) -> Callable[[Problem], Any]:
    def prepare(work: Problem) -> Any:
        function, operands = _scattered_sums(work, name)
        return Ready(partial(function, *operands))

    return prepare


def _compiled_sums(work: Problem) -> Any:
    if work.line.feat != 32 or len(work.pattern.values) > WIDE:
        raise MissingError("takes part at F = 32 on smaller graphs only: it takes long to compile")
    function, operands = _scattered_sums(work, "index_add_")
    return Ready(partial(_compiled(function), *operands))


def _segment_reduce(work: Problem) -> Any:
    lengths, x = work.pattern.indptr.diff().long(), work.arrays["X"]
    reduce = work.device.torch.segment_reduce
    return Ready(partial(reduce, x, "sum", lengths=lengths, axis=0, unsafe=True))


def _weights(work: Problem) -> Callable[[], Any]:
    """Return a call for the softmax of rows, by maxima and sums scattered with atomics."""
    torch, values = work.device.torch, work.pattern.values
    rows, count = work.device.row_of(work.pattern).long(), work.pattern.shape[0]

    def call() -> Any:
        top = torch.full((count,), -torch.inf, device=values.device)
        top = top.scatter_reduce_(0, rows, values, "amax")
        shifted = (values - top[rows]).exp()
        total = torch.zeros(count, device=values.device).index_add_(0, rows, shifted)
        return shifted / total[rows]

    return call


def _softmax(work: Problem) -> Any:
    return Ready(_weights(work))


def _sparse_softmax(work: Problem) -> Any:
    torch, coo = work.device.torch, _csr(work).to_sparse_coo().coalesce()
    return Ready(lambda: torch.sparse.softmax(coo, 1), lambda result: result.coalesce().values())


def _softmax_product(work: Problem) -> Any:
    torch, csr, b = work.device.torch, work.pattern, work.arrays["B"]
    weights = _weights(work)

    def call() -> Any:
        return torch.sparse_csr_tensor(csr.indptr, csr.indices, weights(), csr.shape) @ b

    return Ready(call)


def _heads_second(result: Any) -> Any:
    return result.reshape(result.shape[-3:]).swapaxes(0, 1)


def rule(workload: str) -> Callable[..., Any]:
    """Return the mask *workload* as flex_attention takes it: a function of the positions."""
    if workload == "band":
        return lambda _batch, _head, i, j: (i - j).abs() <= 256

    def in_butterfly(_batch: Any, _head: Any, i: Any, j: Any) -> Any:
        differ = (i // 64) ^ (j // 64)
        return (differ & (differ - 1)) == 0

    return in_butterfly


def _flex(*, half: bool) -> Callable[[Problem], Any]:
    def prepare(work: Problem) -> Any:
        torch, size = work.device.torch, work.out[0]
        flex = importlib.import_module("torch.nn.attention.flex_attention")
        kind = torch.float16 if half else torch.float32
        operands = [work.arrays[name][None].to(kind) for name in "QKV"]
        attend, found = _compiled(flex.flex_attention), {}
        for width in (128,) if half else (128, 64):  # each is compiled
            mask = flex.create_block_mask(
                rule(work.line.workload), None, None, size, size, work.device.place, width
            )
            call = partial(attend, *operands, block_mask=mask, scale=1.0)
            found[f"blocks of {width}"] = Ready(call, _heads_second, TF32 if half else 0.0)
        return found

    return prepare


def _dense(work: Problem) -> Any:
    torch, (size, _, _) = work.device.torch, work.out
    at = torch.arange(size, device=work.device.place)
    seen = rule(work.line.workload)(None, None, at[:, None], at)
    operands = [work.arrays[name][None] for name in "QKV"]
    attend = torch.nn.functional.scaled_dot_product_attention
    return Ready(partial(attend, *operands, attn_mask=seen, scale=1.0), _heads_second)


def _spgemm(work: Problem) -> Any:
    a = _csr(work)
    return Ready(lambda: a @ a, partial(row_sums, work))


def _by_relation(work: Problem) -> Any:
    """For every relation, features times its weights, and a sparse product: as DGL and PyG do."""
    torch, edges, x, w = work.device.torch, work.pattern, work.arrays["X"], work.arrays["W"]
    ends = edges.relation.long().bincount(minlength=edges.count).cumsum(0).tolist()
    parts = []
    for begin, end in zip([0, *ends], ends, strict=False):
        lengths = edges.row[begin:end].long().bincount(minlength=edges.nodes)
        pointers = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
        held = edges.column[begin:end], edges.values[begin:end]
        parts.append(torch.sparse_csr_tensor(pointers, *held, (edges.nodes, edges.nodes)))

    def call() -> Any:
        result = torch.zeros(work.out, device=x.device)
        for r, part in enumerate(parts):
            result = torch.addmm(result, part, x @ w[r])
        return result

    return Ready(call)


def _gathered(work: Problem, *, compiled: bool = False) -> Any:
    """All relations at once: features times all weights, gathered by edge, scattered."""
    torch, edges, x, w = work.device.torch, work.pattern, work.arrays["X"], work.arrays["W"]
    if 4.0 * edges.count * edges.nodes * work.line.feat > ROOM:
        raise MissingError("the product of all features and weights does not fit")
    kind, row, column = (part.long() for part in (edges.relation, edges.row, edges.column))

    def layer(x: Any, w: Any, kind: Any, row: Any, column: Any, values: Any) -> Any:
        messages = torch.matmul(x, w)[kind, column] * values[:, None]
        return torch.zeros(work.out, device=x.device).index_add_(0, row, messages)

    run = _compiled(layer) if compiled else layer
    return Ready(partial(run, x, w, kind, row, column, edges.values))


CONTENDERS: dict[str, Contenders] = {
    "spmm": {
        "torch.sparse": _mm,
        "torch index_add": _scatter,
        "torch.compile scatter": _compiled_scatter,
    },
    "spmv": {"torch.sparse": _mm},
    "sddmm": {"torch.sparse sampled_addmm": _sampled, "torch gather": _gathered_dots},
    "segments": {
        "torch index_add": _sums("index_add_"),
        "torch scatter_add": _sums("scatter_add_"),
        "torch segment_reduce": _segment_reduce,
        "torch.compile scatter": _compiled_sums,
    },
    "softmax": {"torch scatter": _softmax, "torch.sparse softmax": _sparse_softmax},
    "softmax_spmm": {"torch scatter, sparse": _softmax_product},
    "attention": {
        "flex_attention": _flex(half=False),
        "flex_attention f16": _flex(half=True),
        "torch dense, masked": _dense,
    },
    "spgemm": {"torch.sparse": _spgemm},
    "rgcn": {
        "torch by relation": _by_relation,
        "torch gather": _gathered,
        "torch.compile gather": partial(_gathered, compiled=True),
    },
}
