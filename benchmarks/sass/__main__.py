"""The command ``python -m benchmarks.sass``: figures of the CUDA kernels here, or of others."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.contenders import MissingError
from benchmarks.sass.listing import listings
from benchmarks.sass.ours import ours
from benchmarks.sass.report import Report, report, table
from benchmarks.sass.tools import disassembly

if TYPE_CHECKING:
    from collections.abc import Iterator

CUDA = Path(__file__).parents[1] / "cuda"
# How non-zeros are counted: by the multiply-adds that each takes, or so many in a trip of a warp.
COUNTS: dict[str, dict[str, Any]] = {
    "csr_spmm_32": {"features": 32},
    "csr_spmm_128": {"features": 128},
    "csr_softmax_spmm_32": {"features": 32},
    "csr_softmax_spmm_128": {"features": 128},
    "csr_spmv_4": {"features": 1},
    "csr_spmv_8": {"features": 1},
    "csr_spmv_16": {"features": 1},
    "csr_spmv_32": {"features": 1},
    "csr_spmv_long": {"features": 1},
    "sddmm_32": {"features": 32},
    "sddmm_128": {"features": 128},
    "segment_sum": {"nonzeros": 256},
}


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Return the command line, parsed; exits for a wrong one."""
    parser = argparse.ArgumentParser("python -m benchmarks.sass", description=__doc__)
    add = parser.add_argument
    add("files", nargs="*", type=Path, help=".cu, .ptx or .cubin (default: benchmarks/cuda)")
    add("--ours", action="store_true", help="what spcomp emits for the same operations")
    add("--arch", default="sm_90", help="what ptxas compiles for (default: sm_90)")
    add("--kernel", nargs="+", metavar="NAME", help="these kernels only")
    add("--features", type=int, default=0, help="multiply-adds that a non-zero takes")
    add("--nonzeros", type=float, default=0, help="non-zeros of a warp in a trip of its main loop")
    add("--threads", type=int, default=0, help="of a block, where the code does not say")
    add("--shared", type=int, default=0, help="dynamic shared bytes of a block")
    add("--table", action="store_true", help="one line for each kernel, in Markdown")
    add("--json", action="store_true", help="all figures as JSON")
    return parser.parse_args(given)


def reports(asked: argparse.Namespace) -> Iterator[Report]:
    """Yield what was asked for; raises MissingError where a compiler is not there."""
    if asked.ours:
        yield from ours(asked.arch)
        return
    for path in asked.files or sorted(CUDA.glob("*.cu")):
        for kernel, listing in sorted(listings(disassembly(path, asked.arch)).items()):
            if asked.kernel and kernel not in asked.kernel:
                continue
            counts = {"features": asked.features, "nonzeros": asked.nonzeros}
            if not any(counts.values()):
                counts = COUNTS.get(kernel, {})
            yield report(listing, threads=asked.threads, shared=asked.shared, **counts)


def main(given: list[str] | None = None) -> int:
    """Run the command; returns its exit code: 0, also where compilers are missing."""
    asked = arguments(given)
    try:
        found = list(reports(asked))
    except MissingError as error:
        sys.stdout.write(f"nothing to report: {error}\n")
        return 0
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if asked.kernel and not found:
        sys.stderr.write(f"no kernel is called {' or '.join(asked.kernel)}\n")
        return 1
    if asked.json:
        text = json.dumps([each.as_json() for each in found], indent=1)
    else:
        text = table(found) if asked.table else "\n\n".join(map(str, found))
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
