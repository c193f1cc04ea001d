"""Under ``spcomp bench`` and the benchmarks: interleaved timing, disturbed samples, ratios.

Contenders take turns (A B C A B C ...), so that a slow minute of the machine slows all of them.
Results are ratios of medians, with an interval from resampling whole rounds.
"""

from __future__ import annotations

import gc
import math
import os
import time
import warnings
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MAX_WAIT = 0.03  # the share of a sample that our threads may wait for a CPU
MAX_OTHERS = 0.15  # how many CPUs other processes may use meanwhile
TRIALS = {1: 12.0, 3: 4.0}  # rounds: contenders so many times slower than the best leave then
LONG = 0.25  # seconds: calls that take longer need no warm-up before each sample
WARM_UP = 2  # calls that are not timed, as the first ones may compile or be recorded
PAUSE = 0.1  # seconds added to the pause before each retake
DRAWS = 2000  # resamplings behind an interval
_TICK = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01
_STAT, _TASKS = Path("/proc/stat"), Path("/proc/self/task")

Samples: TypeAlias = "Sequence[Sample]"


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement: mean *seconds* of *calls*; *dirty* if other processes used the CPUs."""

    seconds: float
    calls: int
    dirty: bool = False


@dataclass(frozen=True, slots=True)
class Ratio:
    """The best rival's time divided by ours: above 1 we are faster.

    95 % of the resampled ratios lie from *low* to *high*; *rival* is the fastest one. *clean* says
    that enough of the samples were taken while no other process used the CPUs.
    """

    value: float
    low: float
    high: float
    rival: str
    clean: bool


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds that have passed, and that CPUs have worked, since the machine started."""

    wall: float
    own: float
    waited: float
    busy: float

    @staticmethod
    def now() -> Usage:
        """Read the counters; zero for those that the system does not have."""
        return Usage(time.perf_counter(), time.process_time(), _seconds_waited(), _seconds_busy())

    def was_disturbed(self, now: Usage) -> bool:
        """Whether other processes disturbed what ran from this reading to *now*."""
        wall = now.wall - self.wall
        others = (now.busy - self.busy) - (now.own - self.own)
        return (
            now.waited - self.waited > MAX_WAIT * wall + 1e-5 or others > MAX_OTHERS * wall + _TICK
        )


def measure(
    calls: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 15,
    seconds: float = 0.02,
    retakes: int = 3,
) -> dict[str, tuple[Sample, ...]]:
    """Time *calls* in turn and return the samples of each, in the order of the rounds.

    A sample takes about *seconds* and at least one call, after calls that are not timed. It is
    taken again, up to *retakes* times, while other processes use the CPUs. A contender far slower
    than the best is left out after a few rounds.
    """
    plans = {name: _calibrate(call, seconds) for name, call in calls.items()}
    samples: dict[str, list[Sample]] = {name: [] for name in calls}
    racing = list(calls)
    for at in range(rounds):
        if at in TRIALS:
            racing = _still_racing(samples, TRIALS[at])
        for name in racing:
            samples[name].append(_sample(calls[name], plans[name], retakes))
    return {name: tuple(series) for name, series in samples.items()}


def median(samples: Samples) -> float:
    """Return the median seconds per call of the clean samples, of all if none is clean."""
    clean = [sample.seconds for sample in samples if not sample.dirty]
    return float(np.median(clean or [sample.seconds for sample in samples]))


def ratio(pairs: Mapping[str, tuple[Samples, Samples]]) -> Ratio:
    """Return the ratio to the best rival; *pairs* has (rival's samples, ours) by rival.

    The interval is a bootstrap over rounds, each with all samples of that round. The best rival is
    chosen anew in each draw, which favours the rivals.
    """
    full = max(min(map(len, pair)) for pair in pairs.values())
    racing = {n: pair for n, pair in pairs.items() if min(map(len, pair)) == full}
    times = np.array([[_clean(side[:full]) for side in pair] for pair in racing.values()])
    rng = np.random.default_rng(0)
    drawn = times[:, :, rng.integers(0, full, (DRAWS, full))]
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", RuntimeWarning
        )  # draws in which somebody has no clean sample
        each = np.nanmin(_quotient(np.nanmedian(drawn, axis=3)), axis=0)
        low, high = np.nanpercentile(each, [2.5, 97.5])
    value = _quotient(np.nanmedian(times, axis=2))
    best = int(value.argmin())
    enough = max(2, full // 3)
    sides = list(racing.values())[best]
    clean = all(sum(not sample.dirty for sample in side[:full]) >= enough for side in sides)
    return Ratio(float(value[best]), float(low), float(high), list(racing)[best], clean)


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive numbers, or nan without any."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def _still_racing(samples: Mapping[str, Sequence[Sample]], patience: float) -> list[str]:
    medians = {name: median(series) for name, series in samples.items()}
    best = min(medians.values())
    return [name for name, value in medians.items() if value <= patience * best]


def _clean(samples: Samples) -> list[float]:
    """Return the seconds per call, nan for dirty samples; all of them if none is clean."""
    none = all(sample.dirty for sample in samples)
    return [sample.seconds if none or not sample.dirty else math.nan for sample in samples]


def _quotient(medians: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    quotient: np.ndarray[Any, Any] = medians[:, 0] / medians[:, 1]
    return quotient


def _calibrate(call: Callable[[], object], seconds: float) -> tuple[int, int]:
    """Return how many calls last about *seconds*, and how many to make before them."""
    _time(call, WARM_UP)
    count, elapsed = 1, _time(call, 1)
    while elapsed < seconds / 4 and count < 1_000_000:
        count *= 4
        elapsed = _time(call, count)
    each = elapsed / count
    count = max(1, round(seconds / max(each, 1e-9)))
    return count, 0 if each > LONG else max(1, count // 8)


def _sample(call: Callable[[], object], plan: tuple[int, int], retakes: int) -> Sample:
    count, before = plan
    for attempt in range(retakes + 1):
        time.sleep(PAUSE * attempt)
        _wait_until_idle()
        _time(call, before)
        start = Usage.now()
        elapsed = _time(call, count)
        disturbed = start.was_disturbed(Usage.now())
        if not disturbed:
            break
    return Sample(elapsed / count, count, disturbed)


def _time(call: Callable[[], object], count: int) -> float:
    """Return the seconds that *count* calls take, without garbage collections."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        begin = time.perf_counter()
        for _ in repeat(None, count):
            call()
        return time.perf_counter() - begin
    finally:
        if collecting:
            gc.enable()


def _wait_until_idle(limit: float = 0.4) -> None:
    """Wait until the previous contender's worker threads stop spinning, as OpenMP's do."""
    end = time.perf_counter() + limit
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(0.002)
        if time.process_time() - before < 0.0005:
            return


def _seconds_waited() -> float:
    """Return how many seconds the threads of this process waited for a CPU."""
    total = 0
    try:
        tasks = list(_TASKS.iterdir())
    except OSError:
        return 0.0
    for task in tasks:
        try:
            total += int((task / "schedstat").read_text().split()[1])
        except (OSError, IndexError):  # it has just ended, or the system counts nothing
            continue
    return total * 1e-9


def _seconds_busy() -> float:
    """Return how many seconds all CPUs together were busy, time taken by the host included."""
    try:
        user, nice, system, _, _, irq, softirq, steal = map(
            int, _STAT.read_text().split(maxsplit=9)[1:9]
        )
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + irq + softirq + steal) * _TICK
