"""``python -m tests.guarded end``: programs and conversions on arrays with no memory beside.

Every argument ends (or begins: ``begin``) where a page begins that may not be touched, so that a
read or write outside ends the process. The last name that was printed is whose fault it is. Run by
tests/test_guarded.py.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import warnings

import numpy as np
import scipy.sparse as sps

import spcomp
from tests.layers import kernel, source
from tests.programs import PROGRAMS, fresh

FORMATS = ("csr", "csc", "coo", "dcsr", "ell", "bsr(2, 2)", "dia", "hash", "bitmap")
_kept = []


def guarded(array, side):
    """A copy of *array* that ends, or begins, beside a page that may not be touched."""
    array, page = np.ascontiguousarray(array), mmap.PAGESIZE
    size = -(-array.nbytes // page) * page
    memory = mmap.mmap(-1, size + 2 * page)
    _kept.append(memory)  # views of it may be kept by a kernel
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    offset = page if side == "begin" else page + size - array.nbytes
    made = np.frombuffer(memory, array.dtype, array.size, offset).reshape(array.shape)
    made[...] = array
    for at in (start, start + page + size):
        if ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(at), page, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    return made


def call(program, side):
    """Run *program* on all cases and dtypes, all arrays guarded; check what it computes."""
    for dtype in program.dtypes:
        made, params = kernel(program.name, dtype), source(program.name, dtype).params
        for case in program.cases:
            inputs = program.inputs(case, dtype)
            results = {
                name: guarded(value, side) if isinstance(value, np.ndarray) else value
                for name, value in fresh(inputs).items()
            }
            made(*(results[param.name] for param in params))
            program.check(inputs, results, dtype, f"{side}, {case}")


def convert(name, side):
    """Convert matrices of some sizes to the format called *name* and back, their arrays guarded."""
    for rows, columns, density in ((2, 2, 1.0), (8, 6, 0.4), (64, 34, 0.1), (300, 200, 0.05)):
        matrix = sps.random_array((rows, columns), density=density, format="csr", rng=rows)
        arrays = (guarded(x, side) for x in (matrix.data, matrix.indices, matrix.indptr))
        given = sps.csr_array(tuple(arrays), shape=matrix.shape, copy=False)
        back = spcomp.convert(spcomp.convert(given, name), "csr")
        np.testing.assert_array_equal(back.toarray(), matrix.toarray())


def main(side):
    """Run everything; a name is printed before its turn."""
    warnings.simplefilter("ignore")
    for program in PROGRAMS:
        if not program.assembles:  # those take scipy's arrays, which it copies
            print(program.name, flush=True)  # noqa: T201
            call(program, side)
    for name in FORMATS:
        print(name, flush=True)  # noqa: T201
        convert(name, side)


if __name__ == "__main__":
    main(sys.argv[1])
