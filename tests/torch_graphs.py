"""Graphs and comparisons that tests of torch.compile share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the torch extra")
st: Any = pytest.importorskip("spcomp.torch")

ALWAYS = st.Costs(density=float("inf"), call=0, edge=0, element=0)  # however small
N, M, E, F = 7, 5, 40, 4  # nodes that edges come from, to which they go, edges, features


def numbers(*shape: int, seed: int = 0, dtype: Any = None) -> Any:
    made = torch.from_numpy(np.random.default_rng(seed).normal(size=shape))
    return made.to(dtype or torch.float32).requires_grad_()


def edges(seed: int = 0) -> Any:
    """Edges, some of them twice; node 3 of those to which they go has none."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(np.stack([rng.integers(N, size=E), rng.choice([0, 1, 2, 4], E)]))


def compiled(model: Callable[..., Any], **options: Any) -> Any:
    """The *model* with its aggregations as ours, and the rest as PyTorch runs it."""
    torch._dynamo.reset()
    return torch.compile(model, backend="spcomp_eager", options={"spcomp": ALWAYS}, **options)


def both(model: Callable[..., Any], call: Callable[..., Any], *args: Any) -> None:
    """Compare results and gradients of *call* with those of *model*."""
    leaves = [x for x in args if x.requires_grad]
    wanted, found = model(*args), call(*args)
    assert found.dtype == wanted.dtype
    assert torch.allclose(found, wanted, atol=1e-5, equal_nan=True)
    if leaves:
        up = numbers(*wanted.shape, seed=9, dtype=wanted.dtype).detach()
        ours, theirs = (torch.autograd.grad(y, leaves, up) for y in (found, wanted))
        for one, other in zip(ours, theirs, strict=True):
            assert torch.allclose(one, other, atol=1e-5, equal_nan=True)


def column(index: Any, like: Any) -> Any:
    return index.view(-1, *[1] * (like.dim() - 1)).expand_as(like)
