"""One line: every contender is checked, its best variant chosen, and all are timed in turns."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.gpu.devices import DeviceLostError, Ready
from benchmarks.gpu.lines import Line
from benchmarks.problem import WrongResultError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from benchmarks.gpu.problems import Problem

OURS = "spcomp"  # names of contenders that begin with it are ours
LEAST, MOST = 20, 100  # rounds
FEWEST = 5  # rounds, where LEAST would take more than twice the time for the line
TRIALS = 3  # timings by which the variants of a contender are compared
SLOW, SLOW_ROUNDS = 12.0, 3  # so many times slower than the best: no more than so many rounds
SMALL = 100e-6  # seconds: below it launches are measured, too, and graphs of them
REPLAYS = 20  # calls in a row, where launches are measured
MODES = ("cold", "warm", "graph", "loop")


class Timer(Protocol):
    """What starts a call and says how long it took; see ``devices.Gpu``."""

    def start(self, call: Callable[[], object], *, flush: bool, lead: float, number: int) -> Any:
        """Start *call* *number* times."""

    def seconds(self, token: Any) -> float:
        """Return how long a call of what ``start`` returned has taken."""

    def graph(self, call: Callable[[], object]) -> Callable[[], object]:
        """Return *call* recorded."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds per call: the *median*, the tenth part below *low* and above *high*, how many."""

    median: float
    low: float
    high: float
    rounds: int


@dataclass(slots=True)
class Row:
    """The result of one line.

    *times* by contender and mode: ``cold`` (L2 flushed), ``warm``, and for short calls ``graph``
    (replays in a row) and ``loop`` (calls in a row, the host's work included). *variants*: which
    of its algorithms a contender took. *missing*, *wrong* and *notes* say what failed. *cold* and
    *gather*: the bytes of ``problems.Problem``.
    """

    line: Line
    times: dict[str, dict[str, Times]] = field(default_factory=dict)
    variants: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    cold: float = 0.0
    gather: float = 0.0
    nnz: int = 0
    seconds: float = 0.0

    def ours(self, mode: str) -> tuple[str, float] | None:
        """Return our fastest form and its median in *mode*."""
        return _fastest(self.times, mode, lambda name: name.startswith(OURS))

    def rival(self, mode: str) -> tuple[str, float] | None:
        """Return the fastest other one; what rounds its operands does not count."""
        return _fastest(self.times, mode, lambda n: not n.startswith(OURS) and n not in self.notes)

    def ratio(self, mode: str) -> float | None:
        """Return the fastest rival's time over ours: above 1 we are faster."""
        ours, rival = self.ours(mode), self.rival(mode)
        return rival[1] / ours[1] if ours and rival else None

    def to_json(self) -> dict[str, Any]:
        """Return everything about the row."""
        return asdict(self)

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> Row:
        """Return the row that ``to_json`` wrote."""
        times = {
            name: {mode: Times(**t) for mode, t in modes.items()}
            for name, modes in row["times"].items()
        }
        return Row(**{**row, "line": Line(**row["line"]), "times": times})


def run_line(
    work: Problem,
    contenders: Mapping[str, Callable[[Problem], Any]],
    seconds: float,
    row: Row,
    begin: Callable[[str], None],
) -> None:
    """Measure *work* for about *seconds*, into *row*; *begin* hears who is about to run.

    Raises DeviceLostError when a contender has taken the GPU from the process.
    """
    row.cold, row.gather, row.nnz = work.cold, work.gather, len(work.pattern.values)
    ready: dict[str, Ready] = {}
    for name, prepare in contenders.items():
        if name in row.missing:
            continue
        begin(name)
        attempt(work, name, prepare, row, ready)
    begin("timing")
    for name, modes in race(work.device, {n: r.call for n, r in ready.items()}, seconds).items():
        row.times[name] = modes
    begin("graphs")
    short = [n for n, modes in row.times.items() if modes["warm"].median < SMALL]
    for name in short:
        row.times[name] |= launches(work.device, ready[name].call, row, name)


def attempt(
    work: Problem,
    name: str,
    prepare: Callable[[Problem], Any],
    row: Row,
    ready: dict[str, Ready],
) -> None:
    """Put the fastest right variant of a contender into *ready*, or into *row* why not."""
    try:
        found = prepare(work)
        variants = found if isinstance(found, dict) else {"": found}
        best, why = choose(work, name, variants)
        if best is None:
            kind = row.wrong if isinstance(why, WrongResultError) else row.missing
            kind[name] = message(why)
            return
        if best:
            row.variants[name] = best
        ready[name] = variants[best]
        if variants[best].rounding:
            row.notes[name] = "rounds its operands, so it does not count"
    except Exception as error:
        row.missing[name] = message(error)
        try:
            work.device.synchronize()
        except DeviceLostError as lost:
            raise DeviceLostError(f"{row.missing[name]}; the GPU was lost: {lost}") from error


def choose(
    work: Problem, name: str, variants: Mapping[str, Ready]
) -> tuple[str | None, Exception | None]:
    """Return the fastest variant whose result is right; None, and why, if there is none."""
    took: dict[str, float] = {}
    why: Exception | None = None
    for variant, one in variants.items():
        try:
            work.check(one.result(one.call()), name, one.rounding)
            if len(variants) == 1:
                return variant, None
            took[variant] = min(_once(work.device, one.call) for _ in range(TRIALS))
        except Exception as error:
            why = error
            work.device.synchronize()
    return (min(took, key=took.__getitem__) if took else None), why


def race(
    timer: Timer,
    calls: Mapping[str, Callable[[], object]],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, dict[str, Times]]:
    """Time *calls* in turns (A B C, C B A, ...), cold and warm, for about *seconds*."""
    leads = {name: _lead(timer, call) for name, call in calls.items()}
    taken: dict[str, dict[str, list[float]]] = {n: {"cold": [], "warm": []} for n in calls}
    racing, start = list(calls), clock()
    for at in range(MOST):
        spent = clock() - start
        if racing and enough(at, spent, seconds):
            break
        for mode in ("cold", "warm"):
            tokens = {
                name: timer.start(calls[name], flush=mode == "cold", lead=leads[name], number=1)
                for name in (reversed(racing) if at % 2 else racing)
            }
            for name, token in tokens.items():
                taken[name][mode].append(timer.seconds(token))
        if at + 1 == SLOW_ROUNDS:
            racing = _still_racing(taken)
    return {
        name: {mode: times(series) for mode, series in modes.items()}
        for name, modes in taken.items()
    }


def enough(rounds: int, spent: float, seconds: float) -> bool:
    """Whether a race stops: at LEAST rounds in the time, at FEWEST if they take too long."""
    return (rounds >= LEAST and spent >= seconds) or (rounds >= FEWEST and spent >= 2 * seconds)


def launches(timer: Timer, call: Callable[[], object], row: Row, name: str) -> dict[str, Times]:
    """Return how long calls take one after the other, from the host and as a graph."""
    found = {"loop": call}
    try:
        found["graph"] = timer.graph(call)
    except Exception as error:
        row.missing[f"{name} as a graph"] = message(error)
    result = {}
    for mode, repeated in found.items():
        series = []
        for _ in range(FEWEST):
            token = timer.start(repeated, flush=False, lead=0.0, number=REPLAYS)
            series.append(timer.seconds(token))
        result[mode] = times(series)
    return result


def times(series: Sequence[float]) -> Times:
    """Return the median and the tenth parts of *series*."""
    ordered = sorted(series)
    tenth = len(ordered) // 10
    return Times(statistics.median(ordered), ordered[tenth], ordered[-1 - tenth], len(ordered))


def geometric_mean(values: Iterable[float]) -> float | None:
    """Return the geometric mean of positive numbers, None without any."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def message(error: Exception | None) -> str:
    """Return the first lines of what *error* says, in at most 300 characters."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]


def _fastest(
    found: Mapping[str, Mapping[str, Times]], mode: str, takes_part: Callable[[str], bool]
) -> tuple[str, float] | None:
    medians = {n: t[mode].median for n, t in found.items() if mode in t and takes_part(n)}
    return min(medians.items(), key=lambda item: item[1]) if medians else None


def _still_racing(taken: Mapping[str, Mapping[str, Sequence[float]]]) -> list[str]:
    medians = {name: statistics.median(modes["warm"]) for name, modes in taken.items()}
    best = min(medians.values(), default=0.0)
    return [name for name, value in medians.items() if value <= SLOW * best]


def _once(timer: Timer, call: Callable[[], object]) -> float:
    return timer.seconds(timer.start(call, flush=False, lead=1e-4, number=1))


def _lead(timer: Timer, call: Callable[[], object]) -> float:
    """Return how long the host works for a call, which is put on the stream, not waited for."""
    _once(timer, call)
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
