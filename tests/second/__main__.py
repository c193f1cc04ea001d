"""Random programs in child processes: ``python -m tests.second --seed 0 --count 100 --jobs 2``.

A child that ends, or says nothing for minutes, has met a program that crashes or hangs: that is a
failure like a wrong number, and another child goes on behind it. What fails is printed as it was
drawn, as small as it could be made, and with the command that runs it alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Empty, Queue
from signal import SIGABRT
from threading import Thread
from typing import IO, Any

PATIENCE = 300.0  # seconds that a program may take, beside others that are busy
PROGRESS = 500  # programs after which there is a line on stderr
CHILD = [sys.executable, "-X", "faulthandler", "-m", "tests.second"]


@dataclass
class Tally:
    """What came of programs."""

    programs: int = 0
    versions: int = 0
    calls: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, message: dict[str, Any]) -> None:
        """Count what a child says of a program."""
        self.programs += 1
        self.versions += message.get("versions", 0)
        self.calls += message.get("calls", 0)
        if message.get("refused"):
            self.refusals[message["refused"]] += 1
        if self.programs % PROGRESS == 0:
            print(f"{self.programs} programs", file=sys.stderr, flush=True)  # noqa: T201
        if "failure" in message:
            self.failures.append(message)
            print(message["failure"], flush=True)  # noqa: T201

    def text(self) -> str:
        """Return the counts as lines."""
        kinds = Counter(failure["kind"] for failure in self.failures)
        lines = [f"{count:6} refused: {text}" for text, count in self.refusals.most_common()]
        lines += [f"{count:6} failed: {kind}" for kind, count in kinds.most_common()]
        refused = sum(self.refusals.values())
        total = f"{self.programs} programs, {self.versions} versions, {self.calls} calls"
        return "\n".join([*lines, f"{total}, {refused} refused, {len(self.failures)} failures"])


def work(seeds: range, seconds: float) -> None:
    """Run the programs of *seeds*, and say on stdout what came of each."""
    import gc
    import warnings

    from tests.second import report

    warnings.simplefilter("ignore")
    gc.freeze()  # modules stay
    gc.set_threshold(20_000, 20, 20)
    for seed in seeds:
        print(json.dumps(report.outcome(seed, seconds)), flush=True)  # noqa: T201


def _messages(child: subprocess.Popen[str], patience: float) -> Iterator[dict[str, Any]]:
    """Yield what *child* says until it ends; raises Empty where it says nothing for long.

    Then it is aborted, which prints where it hangs.
    """
    assert child.stdout is not None
    lines: Queue[str] = Queue()
    reader = Thread(target=_read, args=(child.stdout, lines))
    reader.start()
    try:
        while line := lines.get(timeout=patience):
            yield json.loads(line)
    except Empty:
        child.send_signal(SIGABRT)
        raise
    finally:
        reader.join()


def _read(stdout: IO[str], lines: Queue[str]) -> None:
    """Put what comes from *stdout* among *lines*, and an empty line where it ends."""
    for line in stdout:
        lines.put(line)
    lines.put("")


def job(seeds: range, seconds: float, tally: Tally) -> None:
    """Run *seeds* in children, one after the other."""
    at = 0
    while at < len(seeds):
        rest = seeds[at:]
        span = f"{rest.start}:{rest.stop}:{rest.step}"
        command = [*CHILD, "--work", span]
        command += ["--shrink", str(seconds)]
        hangs = False
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            try:
                for message in _messages(child, PATIENCE + seconds):
                    tally.add(message)
                    at += 1
            except Empty:
                hangs = True
        if at < len(seeds):
            kind = "hang" if hangs else f"crash {child.returncode}"
            text = f"{kind}: python -m tests.second --seed {seeds[at]} --count 1"
            tally.add({"kind": kind, "failure": text})
            at += 1


def main() -> int:
    """Run what the command line says; returns how the process ends."""
    parser = argparse.ArgumentParser(prog="python -m tests.second", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first program")
    parser.add_argument("--count", type=int, default=100, help="how many")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    parser.add_argument("--shrink", type=float, default=20, help="seconds to make a failure small")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(range(*map(int, options.work.split(":"))), options.shrink)
        return 0
    tally = Tally()
    seeds = range(options.seed, options.seed + options.count)
    with ThreadPoolExecutor(options.jobs) as pool:
        shares = [seeds[at :: options.jobs] for at in range(options.jobs)]
        for future in [pool.submit(job, share, options.shrink, tally) for share in shares]:
            future.result()
    print(tally.text())  # noqa: T201
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
