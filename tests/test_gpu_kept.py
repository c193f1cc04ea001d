"""Bound calls on a GPU compute what depends on their index arrays alone once."""

from __future__ import annotations

import gc
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

import spcomp
from benchmarks import programs
from spcomp.codegen.abi import Emitted, FunctionABI, Param
from spcomp.dtypes import float32, handle, int32
from spcomp.ir.analysis.grid import Grid
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import Var, const
from spcomp.ir.module import HostAlloc, Launch
from spcomp.kernels.gpu import kept
from spcomp.kernels.gpu.kept import divide
from spcomp.runtime.cuda import timing
from tests.test_cuda_kernels import TARGET, Torch
from tests.test_gpu_repeats import with_a_hub


@pytest.fixture
def sampled(gpu):
    """Return a sampled product whose pattern is bound: its first kernel lists the rows."""
    there, A = Torch(gpu), with_a_hub()
    rng = np.random.default_rng(5)
    x, y = rng.random((20, 32), np.float32), rng.random((6000, 32), np.float32)
    right = np.einsum("pk,pk->p", x[np.repeat(np.arange(20), np.diff(A.indptr))], y[A.indices])
    bound = spcomp.compile(programs.parse(programs.SDDMM), target=TARGET).bind(J=there.csr(A))
    out = there.put(np.zeros(A.nnz, np.float32))
    arrays = {"A": there.put(x), "B": there.put(y)}

    def run(**more):
        """Run the call; return the kernels that it started, after a check of the result."""
        begin = len(gpu.launches)
        there.get(out)[:] = np.nan
        bound(**arrays, out=out, **more)
        names = [launch.name for launch in gpu.launches[begin:]]
        np.testing.assert_allclose(there.get(out), right, rtol=1e-4)
        return names

    def recorded():
        """Return a graph of the call."""
        return timing.capture(lambda stream: bound(**arrays, out=out, stream=stream))

    return SimpleNamespace(run=run, recorded=recorded, get=lambda: there.get(out), right=right)


def test_kernels_that_read_index_arrays_only_run_once(gpu, sampled):
    assert [name[-2:] for name in sampled.run()][-2:] == ["_0", "_1"]
    room = list(gpu.next)
    for _ in range(2):
        assert [name[-2:] for name in sampled.run()] == ["_1"]
    assert [name[-2:] for name in sampled.run(stream=0x99)] == ["_1"]
    assert gpu.next == room


def test_what_is_kept_lives_as_long_as_the_kernel(gpu, sampled, monkeypatch):
    torch, made = sys.modules["torch"], []
    empty = torch.empty

    def watched(*args, **named):
        array = empty(*args, **named)
        made.append((weakref.ref(array), array.pointer))
        return array

    monkeypatch.setattr(torch, "empty", watched)
    sampled.run()
    gc.collect()
    living = {pointer.to_bytes(8, "little") for array, pointer in made if array() is not None}
    sampled.run()
    assert living & {*gpu.launches[-1].arguments}


def test_what_is_kept_is_computed_before_another_stream_reads_it(gpu, sampled):
    gpu.log.clear()
    sampled.run()
    assert any("synchronize" in str(entry).lower() for entry in gpu.log)
    gpu.log.clear()
    sampled.run(stream=0x99)
    assert not any("synchronize" in str(entry).lower() for entry in gpu.log)


def test_a_first_call_that_is_recorded_keeps_nothing(gpu, sampled):
    begin = len(gpu.launches)
    sampled.recorded().launch()
    assert [launch.name[-2:] for launch in gpu.launches[begin:]][-2:] == ["_0", "_1"]
    np.testing.assert_allclose(sampled.get(), sampled.right, rtol=1e-4)
    sampled.run()
    sampled.run()


def test_graphs_of_later_calls_use_what_is_kept(gpu, sampled):
    sampled.run()
    begin = len(gpu.launches)
    sampled.recorded().launch()
    assert [launch.name[-2:] for launch in gpu.launches[begin:]] == ["_1"]
    np.testing.assert_allclose(sampled.get(), sampled.right, rtol=1e-4)


def test_as_much_as_the_index_arrays_have_is_kept_in_any_case(sampled, monkeypatch):
    monkeypatch.setattr(kept, "MOST_BYTES", 0)
    sampled.run()
    assert [name[-2:] for name in sampled.run()] == ["_1"]  # one number for each of theirs


def buffer(name):
    return Buffer(name, Var(name, handle), (const(4),), int32)


def abi(name, reads=(), writes=(), *, may_fail=False):
    params = [Param(n, handle, float32) for n in reads]
    params += [Param(n, handle, float32, written=True) for n in writes]
    grid = Grid((const(1), const(1), const(1)), (1, 1, 1), 0, may_fail)
    return FunctionABI(name, name, "", tuple(params), grid=grid)


@pytest.mark.parametrize(
    ("functions", "once"),
    [
        ([("f", ["p"], ["t"]), ("g", ["t", "x"], ["y"])], "tf"),
        ([("f", ["p"], ["t"]), ("g", ["t"], ["u"]), ("h", ["u", "x"], ["y"])], "tufg"),
        ([("f", ["x"], ["t"]), ("g", ["t"], ["u"]), ("h", ["u"], ["y"])], ""),
        ([("f", ["p"], ["t"]), ("g", ["x"], ["t"]), ("h", ["t"], ["y"])], ""),
        ([("f", ["p"], ["t"]), ("g", ["t"], ["u"]), ("h", ["x"], ["u"])], "tf"),
        ([("f", ["p"], ["y"])], ""),
        ([("f", ["p"], ["p"])], "f"),
    ],
)  # fmt: skip
def test_launches_are_divided_by_what_they_read_and_who_writes_it(functions, once):
    emitted = Emitted("", tuple(abi(*each) for each in functions))
    written = {name for _, _, writes in functions for name in writes}
    ops = [HostAlloc(buffer(name), None) for name in "tu" if name in written]
    ops += [Launch(name) for name, _, _ in functions]
    first, each = divide(ops, emitted, {"p"})
    assert "".join(op.buffer.name if isinstance(op, HostAlloc) else op.func for op in first) == once
    assert [*filter(first.__contains__, ops)] == first
    assert [*filter(each.__contains__, ops)] == each
    assert len(first) + len(each) == len(ops)


def test_a_kernel_that_may_fail_runs_in_every_call():
    emitted = Emitted("", (abi("f", ["p"], ["t"], may_fail=True), abi("g", ["t"], ["y"])))
    ops = [HostAlloc(buffer("t"), None), Launch("f"), Launch("g")]
    assert divide(ops, emitted, {"p"}) == ([], ops)
