"""Results with one fiber are assembled in parts, which are ranges of coordinates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import spcomp
from spcomp.compiler.pipeline import lower
from spcomp.ir.module import Launch
from spcomp.ir.printer.program import print_module
from spcomp.ir.structural import structural_equal
from spcomp.knobs import CPU_KNOBS, KNOBS
from spcomp.script.parse import parse_source
from spcomp.target import Target

CPU = Target("cpu", "x86-64-v3", vector_bits=256)
FORMATS = {1: "compressed", 2: "dcsr", 3: "csf"}
SHAPES = {1: (300,), 2: (40, 30), 3: (12, 9, 14)}
PROGRAMS = {
    "A + B": lambda a, b, _: ((a != 0) | (b != 0), a + b),
    "A * B": lambda a, b, _: ((a != 0) & (b != 0), a * b),
    "A + B + D": lambda a, b, d: ((a != 0) | (b != 0) | (d != 0), a + b + d),
    "(A + B) * D": lambda a, b, d: (((a != 0) | (b != 0)) & (d != 0), (a + b) * d),
    "A * B + D": lambda a, b, d: (((a != 0) & (b != 0)) | (d != 0), a * b + d),
}


def written(program, rank):
    indices = ", ".join("ijk"[:rank])
    value = "".join(f"{c}[{indices}]" if c.isalpha() else c for c in program)
    return f"C[{indices}] = {value}"


def dense(seed, rank, share):
    """An array of integers, *share* of them not 0; most of these under few first coordinates."""
    rng = np.random.default_rng(seed)
    found = rng.integers(1, 9, SHAPES[rank]) * (rng.random(SHAPES[rank]) < share)
    if rank > 1:
        found[5:] *= rng.random(SHAPES[rank][1:]) < 0.1
    return found.astype(float)


def stored(array):
    """*array* as a Tensor of compressed levels."""
    return spcomp.convert(array, FORMATS[array.ndim])


def unpacked(tensor):
    """The coordinates of the elements of *tensor*, by dimension."""
    position, found = np.arange(len(tensor.values)), []
    for level in reversed(tensor.levels):
        found.append(level.indices[position])
        position = np.searchsorted(level.indptr, position, side="right") - 1
    return found[::-1]


@pytest.mark.sample(3, long=2)
@pytest.mark.parametrize("rank", FORMATS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_parts_of_any_size_make_the_same_result(program, rank, monkeypatch):
    arrays = [dense(seed, rank, share) for seed, share in enumerate((0.3, 0.5, 0.02))]
    args = {name: stored(x) for name, x in zip("ABD", arrays, strict=True) if name in program}
    pattern, value = PROGRAMS[program](*arrays)
    for work in (1 << 15, 6):
        monkeypatch.setitem(KNOBS, "cpu", replace(CPU_KNOBS, part_elements=work))
        kernel = spcomp.compile(written(program, rank))
        for threads in (1, 3):
            with spcomp.num_threads(threads):
                got = kernel(**args)
            np.testing.assert_array_equal(unpacked(got), np.nonzero(pattern))
            np.testing.assert_array_equal(got.values, value[pattern])


def test_empty_operands_and_empty_extents_make_empty_results():
    for n in (0, 5):
        nothing = spcomp.convert(np.zeros(n), FORMATS[1])
        for program in ("A + B", "A * B"):
            got = spcomp.compile(written(program, 1))(A=nothing, B=nothing)
            assert list(got.levels[0].indptr) == [0, 0]
            assert len(got.values) == 0


def packed(rank, program="A + B"):
    names = [name for name in "ABD" if name in program]
    args = {name: stored(dense(seed, rank, 0.3)) for seed, name in enumerate(names)}
    kernel = spcomp.compile(written(program, rank)).specialize(**args)
    (module,) = parse_source(kernel.stage("coordinate"), "cut.py")
    return lower(module, CPU)


@pytest.mark.parametrize("rank", FORMATS)
def test_one_pass_makes_each_part_and_what_is_read_is_what_was_printed(rank):
    flat = packed(rank).flat
    assert sum(isinstance(op, Launch) for op in flat.host) == 1
    (func,) = flat.funcs
    leaf = "ijk"[rank - 1]
    work = f"(A_{leaf}_nnz + B_{leaf}_nnz) // {CPU_KNOBS.part_elements}"
    assert f"parts = T.max(T.min({work}, {CPU_KNOBS.result_parts}), 1)" in func.script()
    (again,) = parse_source(print_module(flat), "cut.py")
    assert structural_equal(flat, again)


@pytest.mark.parametrize("last", [2**62, 2**63 - 2])
def test_coordinates_near_the_end_of_64_bits_are_cut_like_others(last):
    a = spcomp.Tensor.from_coo(([5, last],), [1.0, 2.0], (last + 1,))
    for result, want in ((a + a, [2.0, 4.0]), (a * a, [1.0, 4.0])):
        assert result.coordinates()[0].tolist() == [5, last]
        assert result.values.tolist() == want
