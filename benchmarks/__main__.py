"""The command ``python -m benchmarks``: measure, print, write JSON and a picture."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.harness import Options, Row
    from benchmarks.problem import Case
    from benchmarks.roofline import Bandwidth


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Return the command line, parsed; exits for a wrong one."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description="spcomp against the libraries people would use instead"
    )
    add = parser.add_argument
    add("--only", nargs="+", metavar="OP", help="operators, such as spmm sddmm")
    add("--matrices", nargs="+", metavar="M", help="workloads by name, or .mtx files")
    add("--feat", nargs="+", type=int, metavar="F", help="feature sizes of the suite to keep")
    add("--vs", nargs="+", metavar="LIB", help="libraries: scipy mkl torch numba graphblas")
    add("--rounds", type=int, default=0, help="samples of each contender (15; quick: 3)")
    add("--seconds", type=float, default=0, help="length of a sample (0.04; quick: 0.01)")
    add("--threads", type=int, default=2, help="threads for everybody (default: 2)")
    add("--quick", action="store_true", help="small inputs, few samples: does it all run?")
    add("--ablate", action="store_true", help="what each kind of default step earns, instead")
    add("--json", type=Path, metavar="FILE", help="write everything that was measured")
    add("--plot", type=Path, metavar="FILE", help="draw the ratios (.png, .svg, .pdf)")
    add("--from", type=Path, metavar="JSON", dest="source", help="show results, measure nothing")
    add("--target", choices=("cpu", "cuda"), default="cpu", help="cuda: kernels on a GPU")
    add("--out", type=Path, metavar="DIR", help="cuda: where results are written, line by line")
    add("--minutes", type=float, default=8.6, help="cuda: for everything (default: 8.6)")
    add("--dry-run", action="store_true", help="cuda: tiny inputs, emulated, without a GPU")
    add("--list", action="store_true", help="print the lines of the suite and stop")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    asked = arguments(given)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's threads are the harness's own
    os.environ.setdefault("NUMBA_NUM_THREADS", str(max(asked.threads, os.cpu_count() or 1)))
    if not sys.stdout.isatty():
        os.environ.setdefault("COLUMNS", "150")  # rich takes a pipe for a narrow terminal
    if asked.target == "cuda":
        return _on_gpu(asked)
    from benchmarks import report
    from benchmarks.suite import select

    if asked.source:
        rows, steady = report.load(asked.source)
        report.show(rows, steady=steady)
        return _draw(rows, asked.plot)
    cases = select(asked.only, asked.matrices, asked.feat)
    if asked.list or not cases:
        sys.stdout.writelines(f"{case.label}\n" for case in cases)
        return 0 if cases else 2
    return _run(asked, cases)


def _on_gpu(asked: argparse.Namespace) -> int:
    """Measure on a GPU, or show what a JSON file holds; returns the exit code."""
    from benchmarks.gpu import lines, report, run

    if asked.source:
        sys.stdout.write(report.markdown(*report.load(asked.source)))
        return 0
    chosen = lines.select(asked.only, asked.matrices, asked.feat)
    if asked.list or not chosen:
        sys.stdout.writelines(f"{line.label}\n" for line in chosen)
        return 0 if chosen else 2
    folder = asked.out or Path(__file__).parent / "results"
    if asked.dry_run and not asked.out:
        folder = Path(tempfile.mkdtemp(prefix="spcomp-dry-run-"))
    whole = asked.only is None and not asked.dry_run
    seconds = 60 * asked.minutes
    found = run.start(chosen, folder, seconds, logs=asked.out, dry=asked.dry_run, tests=whole)
    rows = list(found.rows.values())
    sys.stdout.write(report.markdown(found.about, found.tests, rows))
    return 1 if any(row.wrong for row in rows) or len(rows) < len(chosen) else 0


def _run(asked: argparse.Namespace, cases: list[Case]) -> int:
    from benchmarks import contenders, machine, report
    from benchmarks.harness import Options
    from benchmarks.roofline import FOOTPRINTS, measure_bandwidth

    options = Options(
        rounds=asked.rounds or (3 if asked.quick else 15),
        seconds=asked.seconds or (0.01 if asked.quick else 0.04),
        retakes=1 if asked.quick else 3,
        quick=asked.quick,
        libraries=tuple(asked.vs) if asked.vs else None,
    )
    contenders.set_threads(asked.threads)
    bandwidth = measure_bandwidth(asked.threads, FOOTPRINTS[: 3 if asked.quick else None])
    where = machine.describe(asked.threads)
    if asked.ablate:
        return _ablate(cases, options, bandwidth, asked.json)
    rows: list[Row] = []
    for case in cases:
        rows.append(_measured(case, options, bandwidth))
        if asked.json:  # after every line: a run that is cut short is not lost
            report.save(asked.json, report.document(where, bandwidth, rows))
    report.show(rows, steady=bandwidth.clean)
    return 1 if any(row.wrong for row in rows) else _draw(rows, asked.plot)


def _measured(case: Case, options: Options, bandwidth: Bandwidth) -> Row:
    from benchmarks import report
    from benchmarks.harness import run_case

    row = run_case(case, options, bandwidth)
    sys.stderr.write("  ".join(cell for cell in report.line(row) if cell) + "\n")
    return row


def _ablate(cases: list[Case], options: Options, bandwidth: Bandwidth, json: Path | None) -> int:
    from benchmarks import machine, report
    from benchmarks.ablate import ablate

    found = []
    for case in cases:
        sys.stderr.write(f"{case.label}\n")
        found.append(ablate(case, options))
    report.show_ablation(found)
    if json:
        report.save(json, report.document(machine.describe(0), bandwidth, [], found))
    return 0


def _draw(rows: list[Row], path: Path | None) -> int:
    if path is None:
        return 0
    from benchmarks.plot import draw

    try:
        draw(rows, path)
    except ImportError:
        sys.stderr.write("error: --plot needs matplotlib: pip install spcomp[bench]\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
