"""Memory that compiled models keep for later results: whose it is, how much, and its use."""

from __future__ import annotations

import gc
import re
import threading
from typing import Any

import numpy as np
import pytest

from tests.torch_graphs import ALWAYS, compiled, st, torch

memory: Any = pytest.importorskip("spcomp.torch.inductor.memory")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning")]
MEGABYTE = 1 << 20
BYTES, FLOATS = np.dtype(np.uint8), np.dtype(np.float32)


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_of_arrays_that_are_gone_is_used_again() -> None:
    kept = memory.Memory()
    shape = (1 << 10, 1 << 9)
    one = kept.array(shape, FLOATS)
    one[:] = 1
    first, view = address(one), torch.from_numpy(one)[5:]
    del one
    other = kept.array(shape, FLOATS)
    assert address(other) != first  # a view is left
    assert view.sum() == view.numel()
    del view
    again = kept.array(shape, np.dtype(np.int32))
    assert address(again) == first
    assert again.shape == shape
    assert kept.array((0, 3), np.dtype(np.float64)).shape == (0, 3)


def test_arrays_of_about_the_same_size_share_memory() -> None:
    kept = memory.Memory()
    one = kept.array((8 * MEGABYTE - 700,), BYTES)
    first = address(one)
    assert first % 64 == 0
    del one
    other = kept.array((2 * MEGABYTE - 100,), FLOATS)
    assert address(other) == first
    assert len(other) == 2 * MEGABYTE - 100


@pytest.mark.parametrize("size", [MEGABYTE, MEGABYTE + 1, 3 * MEGABYTE - 1, 5_000_001, 1 << 24])
def test_a_block_is_at_most_an_eighth_too_long(size: int) -> None:
    block = memory.Memory().leased(size)
    assert size <= len(block) <= size * 9 / 8


def test_half_as_much_again_is_kept_as_was_in_use_at_once() -> None:
    kept = memory.Memory()
    two = [kept.array((4 * MEGABYTE,), BYTES) for _ in range(2)]
    two.clear()
    assert kept._bytes == 8 * MEGABYTE
    other = kept.array((4 * MEGABYTE - MEGABYTE // 2,), BYTES)
    assert kept._used + kept._bytes == 23 * MEGABYTE // 2  # nothing is given up
    more = kept.array((MEGABYTE,), BYTES)
    assert kept._used + kept._bytes == 17 * MEGABYTE // 2
    del other, more
    assert kept._used == 0
    for size in range(1, 9):
        kept.array((size * MEGABYTE,), BYTES)
        assert kept._bytes <= 12 * MEGABYTE
    kept.clear()
    assert kept._bytes == 0
    assert kept.array((MEGABYTE,), BYTES).shape == (MEGABYTE,)


def test_the_memory_that_was_not_used_for_longest_is_given_up() -> None:
    kept = memory.Memory()
    old, new = kept.array((4 * MEGABYTE,), BYTES), kept.array((2 * MEGABYTE,), BYTES)
    at = address(new)
    del old, new
    kept.array((5 * MEGABYTE,), BYTES)
    assert kept._bytes == 7 * MEGABYTE
    assert address(kept.array((2 * MEGABYTE,), BYTES)) == at


def test_threads_never_share_memory() -> None:
    kept, wrong = memory.Memory(), []

    def work(number: int) -> None:
        for turn in range(60):
            array = kept.array((MEGABYTE + turn % 3 * 200_000,), BYTES)
            array[::4096] = number
            gc.collect(0)
            if (array[::4096] != number).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert kept._used == 0


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int64", "bool", "complex64"])
def test_tensors_are_as_those_of_torch(name: str) -> None:
    dtype = getattr(torch, name)
    for sizes, strides in [
        ((1100, 1024), (1024, 1)),
        ((1024, 1100), (1, 1024)),
        ((3, 5), (5, 1)),
        ((0, 1 << 22), (1 << 22, 1)),
        ((1 << 21, 1), (1, 1)),
        ((2, 3), (3_000_000, 7)),
        ((), ()),
    ]:
        made = memory.empty_strided(sizes, strides, dtype)
        assert (tuple(made.shape), made.stride(), made.dtype) == (sizes, strides, dtype)
        assert not made._is_view()
        made.fill_(1)
        assert (made == 1).all()


def model(x: Any, w: Any, ei: Any) -> Any:
    hidden = torch.relu(torch.tanh(x) @ w)
    return torch.zeros_like(hidden).index_add(0, ei[1], hidden[ei[0]]) * 2 + hidden.cumsum(0)


def test_what_is_kept_can_be_given_back() -> None:
    sorting: Any = pytest.importorskip("spcomp.torch.inductor.sorting")
    ei = torch.from_numpy(np.random.default_rng(0).integers(9000, size=(2, 9000)))
    x = torch.randn(9000, 64, dtype=torch.float64, requires_grad=True)
    call = compiled(lambda x, ei: torch.zeros_like(x).index_add(0, ei[1], x.sin()[ei[0]]))
    pending = call(x, ei)
    first = torch.autograd.grad(call(x, ei).sum(), x)[0]
    assert memory.MEMORY._bytes > 0
    assert sorting._VECTORS._made
    st.empty_cache()
    assert memory.MEMORY._bytes == 0
    assert not sorting._VECTORS._made
    again = torch.autograd.grad(pending.sum(), x)[0]
    assert torch.equal(first, again)
    assert torch.equal(first, torch.autograd.grad(call(x, ei).sum(), x)[0])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_code_of_inductor_uses_memory_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.utils import run_and_get_code

    monkeypatch.setattr(memory, "MEMORY", memory.Memory())
    torch.manual_seed(0)
    ei = torch.from_numpy(np.random.default_rng(0).integers(3000, size=(2, 9000)))
    x = torch.randn(3000, 200, dtype=torch.float64)
    w = torch.randn(200, 100, dtype=torch.float64, requires_grad=True)
    torch._dynamo.reset()
    ours = torch.compile(model, backend="spcomp", options={"spcomp": ALWAYS})
    results, codes = run_and_get_code(lambda: ours(x, w, ei))
    assert all(code.count("import empty_strided as empty_strided_kept") == 1 for code in codes)
    assert "empty_strided_kept((3000, 100)" in codes[0]
    assert not re.search(r"empty_strided_kept\(\(\d?\d, ", "".join(codes))  # small ones stay
    wanted = model(x, w, ei)
    (theirs,) = torch.autograd.grad(wanted.sum(), w)
    for _ in range(3):
        results = ours(x, w, ei)
        (found,) = torch.autograd.grad(results.sum(), w, retain_graph=True)
        assert torch.allclose(results, wanted)
        assert torch.allclose(found, theirs)
    bytes_used = memory.MEMORY._most
    assert bytes_used > 0
    kept = results.detach().clone()
    del found
    ours(x * 2, w, ei)
    assert torch.equal(results, kept)  # what is in use is left alone
    results.detach().mul_(2)  # as torch's results, it can be changed
    del results
    gc.collect()
    assert memory.MEMORY._used == 0

    torch._dynamo.reset()
    _, codes = run_and_get_code(torch.compile(model), x, w.detach(), ei)
    assert "spcomp" not in "".join(codes)  # other backends write what they did
