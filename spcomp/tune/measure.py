"""Under the tuner: candidates compiled side by side, checked, and timed in turns."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from math import comb
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from spcomp.errors import SpcompError, without_warnings
from spcomp.kernels.decomposed.kernel import FormatKernel
from spcomp.kernels.kernel import Kernel
from spcomp.runtime.pool import get_num_threads
from spcomp.target import on_gpu
from spcomp.tune.choice import Choice
from spcomp.tune.task import Expected, Task

if TYPE_CHECKING:
    from spcomp.kernels.protocol import Runnable
    from spcomp.tensors.parts.parts import Parts
    from spcomp.tune.space import Candidate

SAMPLE = 1e-3  # seconds of a sample, at least one call: what disturbs one, disturbs the next
FIRST = 4  # calls of which the quickest says how many make a sample
MOST_CALLS = 10_000
LEAST, MOST = 6, 24  # rounds: of six, the extremes are an interval of 97 % for the median
GIVE_UP = 3  # rounds after which a candidate that lost each of them clearly is not timed again
CLEARLY = 0.9  # the ratio below which a round is lost clearly
WARM = 0.05  # seconds: shorter calls are made once before each sample, to have caches warm


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio of times, above 1 if ours are shorter: the median of *rounds*, and 95 % about it."""

    value: float
    low: float
    high: float
    rounds: int = 0

    @property
    def is_faster(self) -> bool:
        """Whether noise does not explain that ours are shorter."""
        return self.low > 1.0 and self.rounds >= LEAST

    def times(self, factor: float) -> Interval:
        """Return the interval scaled by *factor*."""
        return Interval(self.value * factor, self.low * factor, self.high * factor, self.rounds)

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def interval(ratios: Sequence[float]) -> Interval:
    """Return the median of *ratios* with an interval of at least 95 %, from order statistics.

    It assumes nothing about how times are distributed. With fewer than six ratios it is their
    range, which covers less.
    """
    ordered, count = sorted(ratios), len(ratios)
    skip, tail = 0, 2.0 ** -(count - 1)  # both tails that a narrower interval would leave out
    while skip < (count - 1) // 2:
        tail += comb(count, skip + 1) * 2.0 ** -(count - 1)
        if tail > 0.05:
            break
        skip += 1
    return Interval(median(ordered), ordered[skip], ordered[count - 1 - skip], count)


def by_clock(call: Callable[[], Any], count: int) -> float:
    """Return the seconds of *count* calls, by this machine's clock."""
    begin = perf_counter()
    for _ in range(count):
        call()
    return perf_counter() - begin


def by_evaluator(call: Callable[[], Any], count: int) -> float:
    """Return the seconds of *count* calls, by the kernel's ``time_evaluator``."""
    assert isinstance(call, partial)
    bound: Any = call.func
    return count * float(bound.time_evaluator(number=count)(**call.keywords).mean)


@dataclass(slots=True)
class Entry:
    """A candidate on its way to be measured.

    *kernel* and *code*, a digest, once it is compiled; *call* once it is ready to be timed; *error*
    if it cannot be. *conversion*: seconds; *calls*: how many make a sample; *seconds*: of a call.
    *timer*: returns the seconds of so many calls.
    """

    candidate: Candidate
    choice: Choice
    kernel: Runnable | None = None
    code: str = ""
    bound: Runnable | None = None
    call: Callable[[], Any] | None = None
    error: str = ""
    conversion: float = 0.0
    seconds: float = 0.0
    calls: int = 1
    timer: Callable[[Callable[[], Any], int], float] = by_clock


class Bench:
    """Compiles and times candidates of *task*, whose results must be those of the default."""

    def __init__(self, task: Task) -> None:
        self.task, self.expected = task, Expected.of(task)
        self._parts: dict[Any, Parts] = {}
        self._conversions: dict[Any, float] = {}  # seconds, by formats

    def compile(self, candidates: Iterable[tuple[Candidate, Choice]]) -> list[Entry]:
        """Return the candidates compiled, several at once; nothing is timed meanwhile."""
        entries = [Entry(candidate, choice) for candidate, choice in candidates]
        with ThreadPoolExecutor(max(get_num_threads(), 1)) as pool:
            list(pool.map(self._compile, entries))
        return entries

    def _compile(self, entry: Entry) -> None:
        task, choice = self.task, entry.choice
        try:
            with without_warnings():
                inner: Runnable = choice.kernel(task.func, task.options)
                entry.kernel = inner
                if choice.trace is not None and isinstance(inner, (Kernel, FormatKernel)):
                    _ = inner.object_bytes  # the machine code is made now
                elif not choice.layouts:
                    inner = inner.specialize(**task.arguments)
                text = repr(choice)  # without a trace, the converted matrix decides on the code
                if choice.trace is not None or not choice.layouts:
                    stored = choice.formats, choice.rules, choice.threads
                    text = f"{stored}\n{inner.source('llvm')}"
                entry.code = sha256(text.encode()).hexdigest()
        except SpcompError as error:
            entry.error = error.message

    def prepare(self, entry: Entry) -> None:
        """Convert the matrices, check the result, and find how many calls make a sample."""
        assert entry.kernel is not None
        try:
            with without_warnings():
                entry.bound = self.task.bind(entry.kernel, entry.choice, self._parts)
                if entry.choice.layouts:
                    entry.conversion = self._conversion(entry.kernel, entry.choice)
                entry.error = self.expected.difference(self.task.run(entry.bound))
                if entry.error:
                    entry.error = f"wrong: {entry.error}"
                    return
                entry.call = self.task.call(entry.bound)
        except (SpcompError, MemoryError) as error:
            entry.error = getattr(error, "message", str(error))
            return
        if on_gpu(self.task.options.target):
            entry.timer = by_evaluator
        entry.seconds = min(entry.timer(entry.call, 1) for _ in range(FIRST))
        entry.calls = min(max(round(SAMPLE / max(entry.seconds, 1e-9)), 1), MOST_CALLS)

    def _conversion(self, kernel: Runnable, choice: Choice) -> float:
        """Return the seconds of a conversion: a second one, as the first compiles what converts."""
        formats = choice.formats, choice.rules
        if formats not in self._conversions:
            begin = perf_counter()
            self.task.bind(kernel, choice, {})
            self._conversions[formats] = perf_counter() - begin
        return self._conversions[formats]

    def race(
        self, ours: Entry, other: Entry, until: float, *, most: int = MOST, patient: bool = False
    ) -> Interval:
        """Return the ratio of the other's times to ours, as ``race`` does."""
        return race(ours, other, until, most=most, patient=patient)

    def release(self, keep: Iterable[Entry]) -> None:
        """Forget converted matrices that none of *keep* uses: they take memory."""
        used = {pair for entry in keep for pair in entry.choice.formats}
        for key in [key for key in self._parts if key not in used]:
            del self._parts[key]


def race(
    ours: Entry, other: Entry, until: float, *, most: int = MOST, patient: bool = False
) -> Interval:
    """Return the ratio of the other's times to ours, timed in turns.

    The medians are noted as the seconds of both. It ends at the time *until*, when the interval
    leaves no doubt, or, unless *patient*, when ours is clearly slower. At least one round is made.
    """
    assert ours.call is not None
    assert other.call is not None
    ratios: list[float] = []
    times: list[tuple[float, float]] = []
    with _no_collections():
        while len(ratios) < most:
            theirs, own = _sample(other), _sample(ours)
            ratios.append(theirs / own)
            times.append((own, theirs))
            count = len(ratios)
            if perf_counter() + 2 * (own * ours.calls + theirs * other.calls) > until:
                break
            if not patient and count >= GIVE_UP and max(ratios) < CLEARLY:
                break
            if not patient and count >= LEAST:
                found = interval(ratios)
                if found.low > 1.0 or found.high < 1.0:
                    break
    for entry, seconds in zip((ours, other), zip(*times, strict=True), strict=True):
        entry.seconds = median(seconds)
    return interval(ratios)


def _sample(entry: Entry) -> float:
    """Return the seconds of a call, the mean of a sample."""
    assert entry.call is not None
    if entry.seconds < WARM:
        entry.call()
    return entry.timer(entry.call, entry.calls) / entry.calls


@contextmanager
def _no_collections() -> Iterator[None]:
    """Let no garbage be collected: it would count for the sample that it happens in."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
