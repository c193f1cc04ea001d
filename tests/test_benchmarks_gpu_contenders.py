"""Who takes part in the GPU benchmarks, without a GPU: ours emulated, PyTorch on the CPU."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.gpu import graphs, harness, ours, with_torch, with_triton, worker
from benchmarks.gpu.devices import Host
from benchmarks.gpu.harness import Row
from benchmarks.gpu.lines import SHARES, SUITE
from benchmarks.gpu.problems import problem
from tests import fake_cuda, fake_libraries
from tests.fake_launches import emulate

FIRST = {line.operation: line for line in reversed(SUITE)}


class TorchOnCpu(Host):
    """A device whose arrays are tensors on the CPU, so that rivals in PyTorch can be tried."""

    is_gpu = True
    place = "cpu"

    def __init__(self):
        import torch

        self.torch = torch

    def array(self, x):
        return self.torch.from_numpy(np.ascontiguousarray(x))

    def host(self, x):
        return x.numpy()

    def empty(self, shape):
        return self.array(super().empty(shape))

    def random(self, shape, seed):
        return self.array(super().random(shape, seed))

    def row_of(self, csr):
        lengths = csr.indptr.diff().long()
        return self.torch.arange(csr.shape[0]).repeat_interleave(lengths).int()

    def workload(self, name):
        drawn = graphs.WORKLOADS[name][1](np)
        if name in ("band", "butterfly"):  # as large as blocks of 64 and a reach of 256 need
            one = graphs.band(np, 384, 256), graphs.butterfly(np, 384, 64)
            drawn = one[name == "butterfly"]

        def adopted(value):
            if isinstance(value, tuple) and not isinstance(value[0], int):
                return tuple(map(adopted, value))
            return self.array(value) if isinstance(value, np.ndarray) else value

        return replace(drawn, **{f.name: adopted(getattr(drawn, f.name)) for f in fields(drawn)})


@pytest.mark.parametrize("operation", SHARES)
@pytest.mark.sample(8)
def test_our_kernels_compute_every_operation_in_the_emulator(operation):
    line, device = FIRST[operation], Host()
    row = Row(line)
    work = problem(line, device.workload(line.workload), device)
    forms = worker.contenders(operation, device)
    assert all(name.startswith(harness.OURS) for name in forms)
    harness.run_line(work, forms, 0.0, row, lambda _: None)
    assert not row.wrong
    assert "spcomp" in row.times, row.missing
    others = set(forms) - set(row.times)  # the emulator refuses parts of an array of numpy
    assert all("multiple of 16 bytes" in row.missing[name] for name in others)


class OnFake(Host):
    """A fake GPU that emulates kernels, with tensors like those of PyTorch on it."""

    is_gpu = True
    target = "cuda:sm_90"

    def __init__(self, gpu):
        self.gpu = gpu
        self.torch = SimpleNamespace(sparse_csr_tensor=self.sparse)

    def array(self, x):
        return FakeTensor(self.gpu.put(x, 0), x.shape, str(x.dtype))

    def sparse(self, indptr, indices, values, shape):
        return fake_libraries.SparseTensor("csr", shape, (indptr, indices, values))

    def host(self, x):
        return self.gpu.array(x.data_ptr(), x.shape, x.dtype.removeprefix("torch."))

    def empty(self, shape):
        return self.array(super().empty(shape))

    def adopted(self, value):
        if isinstance(value, tuple) and not isinstance(value[0], int):
            return tuple(map(self.adopted, value))
        return self.array(value) if isinstance(value, np.ndarray) else value


class FakeTensor(fake_libraries.Tensor):
    __module__ = "torch"

    def swapaxes(self, *_):
        return self  # the test turns it

    def __len__(self):
        return self.shape[0]

    def reshape(self, _):
        shape = (math.prod(self.shape),)
        return FakeTensor(self.pointer, shape, self.dtype.removeprefix("torch."))


# not spgemm: its result is a tensor of PyTorch, which the fake one is not
@pytest.mark.parametrize("operation", [name for name in SHARES if name != "spgemm"])
def test_our_kernels_take_tensors_of_a_gpu(operation, monkeypatch):
    line, host = FIRST[operation], Host()
    work = problem(line, host.workload(line.workload), host)
    with fake_cuda.installed() as gpu:
        emulate(gpu, monkeypatch)
        fake_libraries.install(monkeypatch, gpu)
        device = OnFake(gpu)
        parts = {
            f.name: device.adopted(getattr(work.pattern, f.name)) for f in fields(work.pattern)
        }
        arrays = {name: device.array(array) for name, array in work.arrays.items()}
        there = replace(work, device=device, pattern=replace(work.pattern, **parts), arrays=arrays)
        for name, prepare in ours.CONTENDERS[operation].items():
            one = prepare(there)
            for _ in range(2):
                found = device.host(one.result(one.call()))
            work.check(found.swapaxes(0, 1) if operation == "attention" else found, name)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("module", "operation"),
    [
        *(("with_torch", name) for name in with_torch.CONTENDERS),
        *(("with_triton", name) for name in with_triton.CONTENDERS),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_rivals_compute_what_we_compute(module, operation, monkeypatch):
    if module == "with_triton":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        pytest.importorskip("triton", reason="no Triton, which can interpret its kernels")
    device = TorchOnCpu()
    found = {"with_torch": with_torch, "with_triton": with_triton}[module].CONTENDERS
    line = FIRST[operation]
    narrow = [s for s in SUITE if s.operation == operation and s.feat in (1, 32, 64)]
    line = next(iter(narrow), line)
    work = problem(line, device.workload(line.workload), device)
    for name, prepare in found.get(operation, {}).items():
        if "compile" in name or "flex" in name:
            continue  # they compile for minutes on a CPU
        made = prepare(work)
        for variant, one in (made if isinstance(made, dict) else {"": made}).items():
            work.check(one.result(one.call()), f"{name} {variant}", one.rounding)
