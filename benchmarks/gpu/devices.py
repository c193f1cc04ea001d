"""Where a line is measured: a GPU through PyTorch, or this machine's CPU, which emulates one.

Arrays are tensors on the GPU, and numpy arrays on the CPU. Both have the same few methods.
"""

from __future__ import annotations

import importlib.metadata
import time
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from benchmarks.gpu.graphs import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Callable

Device: TypeAlias = "Gpu | Host"
CYCLES = 1.9e9  # of a multiprocessor in a second, about; only the pause before a call depends on it
PAUSE = (
    5e-6,
    1e-3,
)  # seconds: how long the GPU waits, at least and at most, for the host to be ahead
PACKAGES = (
    "torch",
    "triton",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "numba-cuda",
    "llvmlite",
    "numpy",
    "scipy",
)


class DeviceLostError(Exception):
    """A kernel has failed in a way that leaves the process without the GPU."""


def versions() -> dict[str, str]:
    """Return the versions of what takes part, by package."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


class Host:
    """The CPU, where our kernels are emulated: it shows that everything runs, not how fast."""

    is_gpu = False
    name = "emulator"
    target = "cuda:sm_90,emulate"
    place = "cpu"
    xp: Any = np
    torch: Any = None
    properties: Any = None

    def array(self, x: Any) -> Any:
        """Return the numpy array *x* on the device."""
        return x

    def host(self, x: Any) -> Any:
        """Return *x* as a numpy array."""
        return np.asarray(x)

    def empty(self, shape: tuple[int, ...]) -> Any:
        """Return an array for a result; what is not written shows, as it is NaN."""
        return np.full(shape, np.nan, np.float32)

    def random(self, shape: tuple[int, ...], seed: int) -> Any:
        """Return float32 numbers from -1 to 1."""
        return np.random.default_rng(seed).random(shape, np.float32) * 2 - 1

    def row_of(self, csr: Any) -> Any:
        """Return the row of each element, int32."""
        return np.repeat(np.arange(csr.shape[0], dtype=np.int32), np.diff(csr.indptr))

    def workload(self, name: str) -> Any:
        """Return the matrix, mask or relations called *name*."""
        return _tiny(name)

    def synchronize(self) -> None:
        """Wait for the device; raises DeviceLostError if it is of no use any more."""

    def release(self) -> None:
        """Give back memory that nothing uses."""

    def start(
        self,
        call: Callable[[], object],
        *,
        flush: bool,  # noqa: ARG002
        lead: float,  # noqa: ARG002
        number: int,
    ) -> Any:
        """Run *call* *number* times; return what ``seconds`` turns into their time."""
        begin = time.perf_counter()
        for _ in range(number):
            call()
        return (time.perf_counter() - begin) / number

    def seconds(self, token: Any) -> float:
        """Return how long a call of what ``start`` started has taken, waiting for it."""
        return float(token)

    def graph(self, call: Callable[[], object]) -> Callable[[], object]:
        """Return *call* recorded, without the work of the host."""
        return call

    def copy_bandwidth(self) -> float:
        """Return bytes read and written per second by a copy of a large array."""
        return 1e10

    def describe(self) -> dict[str, Any]:
        """Return what is known of the device and the libraries."""
        return {"gpu": self.name, "versions": versions()}


@cache
def _tiny(name: str) -> Any:
    return WORKLOADS[name][1](np)


class Gpu:
    """The current GPU of PyTorch."""

    is_gpu = True
    place = "cuda"

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError("PyTorch sees no GPU")
        self.torch: Any = torch
        torch.cuda.init()
        properties: Any = torch.cuda.get_device_properties(0)
        self.properties, self.name = properties, properties.name
        self.target = f"cuda:sm_{properties.major}{properties.minor}"
        self.l2_bytes = getattr(properties, "L2_cache_size", 64 << 20)
        self._scratch = torch.empty(2 * self.l2_bytes, dtype=torch.uint8, device=self.place)
        self._workloads: dict[str, Any] = {}
        self.xp: Any = np
        try:
            import cupy  # type: ignore[import-not-found,unused-ignore]

            self.xp = cupy
        except Exception:  # it is not there, or for another CUDA
            pass  # workloads are then drawn on the host

    def array(self, x: Any) -> Any:
        """Return the numpy array *x* on the device."""
        return self.torch.from_numpy(np.ascontiguousarray(x)).cuda()

    def host(self, x: Any) -> Any:
        """Return *x* as a numpy array."""
        return x.detach().cpu().numpy()

    def empty(self, shape: tuple[int, ...]) -> Any:
        """Return an array for a result; what is not written shows, as it is NaN."""
        return self.torch.full(shape, float("nan"), device=self.place)

    def random(self, shape: tuple[int, ...], seed: int) -> Any:
        """Return float32 numbers from -1 to 1."""
        rng = self.torch.Generator(device=self.place).manual_seed(seed)
        return self.torch.rand(shape, generator=rng, device=self.place) * 2 - 1

    def row_of(self, csr: Any) -> Any:
        """Return the row of each element, int32."""
        torch = self.torch
        rows = torch.arange(csr.shape[0], dtype=torch.int32, device=self.place)
        return torch.repeat_interleave(rows, csr.indptr.diff().long())

    def workload(self, name: str) -> Any:
        """Return the matrix, mask or relations called *name*, drawn at the first call."""
        if name not in self._workloads:
            drawn = WORKLOADS[name][0](self.xp)
            of_it = {f.name: self._adopted(getattr(drawn, f.name)) for f in fields(drawn)}
            self._workloads[name] = replace(drawn, **of_it)
            self.release()
        return self._workloads[name]

    def _adopted(self, value: Any) -> Any:
        if isinstance(value, tuple) and value and not isinstance(value[0], int):
            return tuple(map(self._adopted, value))
        if not isinstance(value, self.xp.ndarray):
            return value
        return self.torch.as_tensor(value, device=self.place).clone()  # of PyTorch's own memory

    def synchronize(self) -> None:
        """Wait for the device; raises DeviceLostError if it is of no use any more."""
        try:
            self.torch.cuda.synchronize()
            self._scratch[:1].zero_()
            self.torch.cuda.synchronize()
        except RuntimeError as error:
            raise DeviceLostError(str(error).splitlines()[0]) from error

    def release(self) -> None:
        """Give back memory that nothing uses."""
        self.torch.cuda.empty_cache()
        if self.xp is not np:
            self.xp.get_default_memory_pool().free_all_blocks()

    def start(self, call: Callable[[], object], *, flush: bool, lead: float, number: int) -> Any:
        """Put *call* on the stream *number* times; return what ``seconds`` turns into their time.

        *flush* overwrites the L2 cache before it; otherwise it runs once before it is timed.
        *lead*: the seconds that the host needs for a call; the GPU waits as long, so that the
        host's work is not measured. With 0 it does not wait.
        """
        cuda = self.torch.cuda
        if flush:
            self._scratch.zero_()
        else:
            call()
        if lead:
            cuda._sleep(int(CYCLES * min(max(1.5 * lead, PAUSE[0]), PAUSE[1])))  # noqa: SLF001
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(number):
            call()
        end.record()
        return begin, end, number

    def seconds(self, token: Any) -> float:
        """Return how long a call of what ``start`` started has taken, waiting for it."""
        begin, end, number = token
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / number

    def graph(self, call: Callable[[], object]) -> Callable[[], object]:
        """Return *call* recorded, without the work of the host."""
        cuda = self.torch.cuda
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            call()
        cuda.synchronize()
        recorded = cuda.CUDAGraph()
        with cuda.stream(cuda.current_stream()), cuda.graph(recorded):  # a failure leaves another
            call()
        recorded.replay()
        cuda.synchronize()
        replay: Callable[[], object] = recorded.replay
        return replay

    def copy_bandwidth(self) -> float:
        """Return bytes read and written per second by a copy of a large array."""
        source = self.torch.ones(1 << 28, device=self.place)
        copy = self.torch.empty_like(source)
        took = []
        for _ in range(15):
            token = self.start(lambda: copy.copy_(source), flush=False, lead=1e-5, number=1)
            took.append(self.seconds(token))
        return float(2 * source.nbytes / np.median(took))

    def describe(self) -> dict[str, Any]:
        """Return what is known of the device and the libraries."""
        return {
            "gpu": self.name,
            "multiprocessors": self.properties.multi_processor_count,
            "memory": self.properties.total_memory,
            "l2_bytes": self.l2_bytes,
            "cuda": self.torch.version.cuda,
            "versions": versions(),
        }


@dataclass(frozen=True, slots=True)
class Ready:
    """A contender that is ready: *call* computes; *result* turns what it returns into the result.

    *rounding*: of its operands before it computes, if that is coarser than float32.
    """

    call: Callable[[], Any]
    result: Callable[[Any], Any] = lambda returned: returned
    rounding: float = 0.0
