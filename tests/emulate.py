"""``python -m tests.emulate``: the corpus as code for 64-bit ARM under qemu; outside the suite.

Needs ``qemu-aarch64`` and ``aarch64-linux-gnu-gcc`` (Debian: qemu-user, gcc-aarch64-linux-gnu).
Each program becomes an executable with a driver in C that reads its arguments and writes its
arrays; what comes back is checked as in the suite. Programs of several phases are left out: Python
runs those.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

from spcomp.codegen import cpu
from spcomp.codegen.abi import PARALLEL_FOR, PAUSE, pack
from spcomp.compiler.pipeline import lower
from spcomp.target import target
from tests.programs import PROGRAMS, fresh

CPU = "cpu:neoverse-n1"
DRIVER = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
int32_t %(packed)s(void *slots);
int32_t %(pool)s(void (*run)(void *, int64_t, int64_t), void *context, int64_t n, int64_t grain) {
  int64_t step = grain > 0 ? grain : n / 3 + 1;
  for (int64_t begin = 0; begin < n; begin += step)
    run(context, begin, begin + step < n ? begin + step : n);
  return 0;
}
int64_t %(pause)s(void *context) { return INT64_MAX; }
int main(void) {
  int64_t count, size[99];
  void *slots[99];
  if (fread(&count, 8, 1, stdin) != 1) return 90;
  for (int64_t k = 0; k < count; k++) {
    if (fread(size + k, 8, 1, stdin) != 1) return 91;
    if (size[k] >= 0) slots[k] = malloc(size[k] + 1);
    void *at = size[k] < 0 ? (void *)(slots + k) : slots[k];
    size_t bytes = size[k] < 0 ? 8 : size[k];
    if (fread(at, 1, bytes, stdin) != bytes) return 92;
  }
  int32_t status = %(packed)s(slots);
  for (int64_t k = 0; k < count; k++)
    if (size[k] > 0) fwrite(slots[k], 1, size[k], stdout);
  return status ? 93 : 0;
}
"""


def executable(name, obj, packed, folder):
    """The statically linked program of the object file *obj* and a driver."""
    made, code = folder / name, folder / f"{name}.c"
    (folder / f"{name}.o").write_bytes(obj)
    code.write_text(DRIVER % {"packed": packed, "pool": PARALLEL_FOR, "pause": PAUSE})
    link = [
        "aarch64-linux-gnu-gcc",
        "-O1",
        "-static",
        "-o",
        made,
        code,
        folder / f"{name}.o",
        "-lm",
    ]
    subprocess.run(link, check=True)
    return made


def emulated(made, params, inputs):
    """Every array of *inputs* after a call of the program *made*."""
    parts, arrays = [len(params).to_bytes(8, "little")], []
    for param in params:
        value = inputs[param.name]
        if isinstance(value, np.ndarray):
            arrays.append((param.name, np.ascontiguousarray(value)))
            parts += [value.nbytes.to_bytes(8, "little"), value.tobytes()]
        else:
            slot = pack(param.dtype, value)
            parts += [
                (-1).to_bytes(8, "little", signed=True),
                slot.to_bytes(8, "little", signed=True),
            ]
    done = subprocess.run(
        ["qemu-aarch64", made], input=b"".join(parts), capture_output=True, check=True
    )
    results, at = dict(inputs), 0
    for name, array in arrays:
        data = done.stdout[at : at + array.nbytes]
        results[name], at = np.frombuffer(data, array.dtype).reshape(array.shape), at + array.nbytes
    return results


def check(program, dtype, folder):
    """Run *program* on all its cases; return how many there were, 0 if it has several phases."""
    where = cpu.resolve(target(CPU))
    flat = lower(program.build(dtype, "int32"), where).flat
    if not flat.is_single or program.assembles:
        return 0
    emitted = cpu.emit(flat, where)
    (function,) = emitted.functions
    obj = cpu.compile(emitted.llvm_ir, where).object
    made = executable(program.name, obj, function.packed, folder)
    for case in program.cases:
        inputs = program.inputs(case, dtype)
        results = emulated(made, function.params, fresh(inputs))
        program.check(inputs, results, dtype, f"emulated, {case}")
    return len(program.cases)


def main():
    """Print a line for each program; return 1 if one was wrong."""
    for tool in ("qemu-aarch64", "aarch64-linux-gnu-gcc"):
        if shutil.which(tool) is None:
            sys.stderr.write(f"{tool} is not here\n")
            return 2
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for program in PROGRAMS:
            for dtype in program.dtypes:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    try:
                        count = check(program, dtype, Path(folder))
                    except (AssertionError, subprocess.CalledProcessError, KeyError) as error:
                        wrong += 1
                        count = f"WRONG: {error!r}"[:200]
                sys.stdout.write(f"{program.name} {dtype}: {count}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{wrong} wrong\n")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
