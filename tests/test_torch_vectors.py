"""Index vectors of compiled models: known again by all of their numbers; direct calls."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

from spcomp.errors import ArgumentError
from tests.torch_graphs import ALWAYS, M, N, compiled, edges, numbers, torch

equal: Any = pytest.importorskip("spcomp.torch.inductor.equal")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning")]
F = 4


def summed(x: Any, ei: Any) -> Any:
    return x.new_zeros(M, x.shape[1]).index_add_(0, ei[1], x[ei[0]])


def vector(length: int) -> Any:
    return torch.from_numpy(np.random.default_rng(length).integers(-9, 1 << 31, length))


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 2047, 2048, 2049, 4111])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_vectors_are_equal_only_if_all_numbers_are(length: int, dtype: str) -> None:
    index = vector(length)
    copy = index.to(getattr(torch, dtype), copy=True)
    assert equal.are_equal(index, copy)
    assert not equal.are_equal(vector(length + 1), copy)
    some = {*range(min(length, 20)), *range(max(0, length - 20), length), length // 2}
    for at in [n for n in sorted(some) if n < length]:
        for bit in (0, 31, 32, 63):  # of the upper half, too
            index[at] ^= 1 << bit if bit < 63 else -1 << 63
            assert not equal.are_equal(index, copy), (at, bit)
            index[at] ^= 1 << bit if bit < 63 else -1 << 63
    assert equal.are_equal(index, copy)


@pytest.mark.parametrize("missing", ["_memcmp", "_narrow"])
def test_vectors_of_any_kind_are_compared(missing: str, monkeypatch: Any) -> None:
    for name in (missing, ""):
        copy = torch.arange(50, dtype=torch.int32)
        for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
            index = copy.to(dtype)
            apart = torch.stack([index, index], 1)[:, 0]
            for one in (index, apart):
                assert equal.are_equal(one, copy)
                other = one.clone()
                other[49] = 0
                assert not equal.are_equal(other, copy)
        if name:
            monkeypatch.setattr(equal, name, lambda: None)


def test_numbers_that_differ_in_their_upper_half_are_other_places() -> None:
    x, ei = numbers(N, F), edges()
    model = compiled(summed)
    assert torch.allclose(model(x, ei), summed(x, ei), atol=1e-5)
    for value in (1 << 32, -(1 << 32)):
        wrong = ei.clone()
        wrong[1, 3] += value
        with pytest.raises(ArgumentError, match="an index vector"):
            model(x, wrong)
    assert torch.allclose(model(x, ei), summed(x, ei), atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_compiled_code_calls_operators_directly_unless_it_is_profiled() -> None:
    from torch._inductor.utils import run_and_get_code
    from torch.profiler import profile

    torch._dynamo.reset()
    x, ei = numbers(N, F).detach(), edges()
    wanted = summed(x, ei)
    options = {"spcomp": ALWAYS}
    model = torch.compile(summed, backend="spcomp", options=options)
    found, [code] = run_and_get_code(model, x, ei)
    assert torch.allclose(found, wanted, atol=1e-5)
    assert "spcomp_operators.aggregate(" in code
    assert "spcomp_inductor.aggregate.default(" not in code
    with profile() as seen:
        assert torch.equal(model(x, ei), found)
    names = {event.key for event in seen.key_averages()}
    assert names >= {"spcomp_inductor::index_key", "spcomp_inductor::aggregate"}
