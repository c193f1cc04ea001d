"""Sparse attention: the fused kernel of the example beside what torch has, in interleaved runs.

``python -m benchmarks.attention [runs]``: 4096 queries and keys, 12 heads, 64 wide.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import spcomp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HEADS, SIZE = 12, 4096
EXAMPLE = Path(__file__).parents[1] / "examples" / "sparse_attention.py"


def example() -> Any:
    """Return the example as a module: the program, its schedule, masks."""
    spec = importlib.util.spec_from_file_location(EXAMPLE.stem, EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[EXAMPLE.stem] = module
    spec.loader.exec_module(module)
    return module


def contenders(
    mask: Any, rule: Callable[..., Any], reach: int, inputs: tuple[Any, Any, Any]
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield what computes attention under *mask*, by name; *rule* is the mask for flex_attention.

    *reach*: of a band to each side, 0 if it is none.
    """
    import torch

    flex_attention = importlib.import_module("torch.nn.attention.flex_attention")
    ours = example()
    kernel = spcomp.compile(ours.scheduled())
    bound = kernel.bind(**ours.in_blocks(mask), scale=ours.WIDTH**-0.5)
    (q, k), v = map(ours.blocked, inputs[:2]), ours.striped(inputs[2])
    yield "spcomp", partial(bound, Q=q, K=k, V=v, out=np.empty_like(v))
    tensors = [torch.from_numpy(x) for x in inputs]
    one = [x[None] for x in tensors]
    torch.compiler.reset()  # a second mask as a variation of the first does not compile (2.13)
    flex = torch.compile(flex_attention.flex_attention, dynamic=False)
    for width in (128, 64, 32):
        blocks = flex_attention.create_block_mask(rule, None, None, SIZE, SIZE, "cpu", width)
        yield f"flex_attention, blocks of {width}", partial(flex, *one, block_mask=blocks)
    if reach:
        yield "bmm of dense blocks", partial(in_bmm, reach, *tensors)
    seen = torch.from_numpy(mask)
    pattern = seen.to(torch.float32).to_sparse_csr()
    yield "torch.sparse", partial(in_torch_sparse, pattern, *tensors)
    dense = torch.nn.functional.scaled_dot_product_attention
    yield "dense, with a mask", partial(dense, *one, attn_mask=seen)


def in_bmm(reach: int, q: Any, k: Any, v: Any) -> Any:
    """Return attention in a band of *reach* to each side, by products of dense blocks."""
    import torch

    heads, size, width = q.shape
    pad = (0, 0, reach, reach)
    keys, values = (
        torch.nn.functional.pad(x, pad).unfold(1, 3 * reach, reach).transpose(-1, -2)
        for x in (k, v)
    )
    at = torch.arange(size).reshape(-1, reach, 1)
    other = at[:, :1] - reach + torch.arange(3 * reach)
    seen = ((at - other).abs() <= reach) & (other >= 0) & (other < size)
    scores = torch.matmul(q.reshape(heads, -1, reach, width), keys.transpose(-1, -2))
    weights = (scores * width**-0.5).masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.matmul(weights, values).reshape(heads, size, width)


def in_torch_sparse(pattern: Any, q: Any, k: Any, v: Any) -> Any:
    """Return attention composed of torch's sparse operators, head by head."""
    import torch

    made = []
    for head in range(len(q)):
        scores = torch.sparse.sampled_addmm(
            pattern, q[head], k[head].T.contiguous(), beta=0.0, alpha=q.shape[-1] ** -0.5
        )
        weights = torch.sparse.softmax(scores.to_sparse_coo(), dim=1).to_sparse_csr()
        made.append(weights @ v[head])
    return torch.stack(made)


def measure(runs: int, named: dict[str, Callable[[], Any]]) -> None:
    """Write medians of interleaved runs, and how many times ours they are.

    Each follows a run of its own that is not measured: threads of the one before may still spin.
    """
    results = {name: np.asarray(run()).reshape(HEADS, SIZE, -1) for name, run in named.items()}
    times: dict[str, list[float]] = {name: [] for name in named}
    for _ in range(runs):
        for name, run in named.items():
            run()
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    ours = np.median(times["spcomp"])
    for name, own in times.items():
        error = np.abs(results[name] - results["spcomp"]).max()
        spent = np.median(own)
        fastest = min(own) / min(times["spcomp"])
        sys.stdout.write(
            f"  {name:28}{spent * 1e3:9.1f} ms {spent / ours:6.2f} x, fastest {fastest:.2f} x,"
            f" differs by {error:.0e}\n"
        )
        sys.stdout.flush()


def main() -> None:
    """Time attention under bands of 128 and 256 to each side, and the butterfly."""
    parser = argparse.ArgumentParser("python -m benchmarks.attention", description=main.__doc__)
    parser.add_argument("runs", nargs="?", type=int, default=9, help="of each (default: 9)")
    runs = parser.parse_args().runs
    ours = example()
    rng = np.random.default_rng(0)
    shape = (HEADS, SIZE, ours.WIDTH)
    q, k, v = (rng.standard_normal(shape, dtype=np.float32) for _ in range(3))
    for reach in (128, 256, 0):
        mask = ours.band(SIZE, reach) if reach else ours.butterfly(SIZE)
        title = f"band, {reach} to each side" if reach else "butterfly"
        sys.stdout.write(f"{title}: {mask.mean():.1%} of all pairs\n")
        rule = partial(_band, reach) if reach else _butterfly
        measure(runs, dict(contenders(mask, rule, reach, (q, k, v))))


def _band(reach: int, _batch: Any, _head: Any, i: Any, j: Any) -> Any:
    return (i - j).abs() <= reach


def _butterfly(_batch: Any, _head: Any, i: Any, j: Any) -> Any:
    differ = (i // 16) ^ (j // 16)
    return (differ & (differ - 1)) == 0


if __name__ == "__main__":
    main()
