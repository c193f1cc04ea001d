"""What somebody might hand over to crash the process or to get a wrong answer without a word."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.compiler.pipeline import lower
from spcomp.errors import (
    ArgumentError,
    FormatError,
    LoweringError,
    OutOfMemoryError,
    ScheduleError,
    ScriptError,
    SpcompWarning,
)
from spcomp.ir.interpret.program import interpret
from spcomp.ir.printer.program import print_program
from spcomp.ir.structural import structural_equal
from spcomp.ir.verify.program import verify
from spcomp.runtime.pool import num_threads
from spcomp.script.parse import parse_source
from tests.layers import TARGET, reparsed
from tests.test_api import A, B, spmm

F32 = np.float32
ROOT = Path(__file__).resolve().parent.parent


def parsed(text):
    """Return the one program in *text*, a function without its decorator."""
    (func,) = parse_source(f"from spcomp import script as T\n\n\n@T.prim_func\n{text}", "attack.py")
    return func


def on_vector(body, dtype="float32", params=""):
    """Return a program over i in I of length n, with A and C along I."""
    return parsed(
        f"""def attack(a: T.handle, c: T.handle, n: T.int32{params}) -> None:
    I = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I,), "{dtype}")
    C = T.match_sparse_buffer(c, (I,), "{dtype}")
    with T.sp_iter([I], "S", "attack") as [i]:
"""
        + "".join(f"        {line}\n" for line in body.splitlines())
    )


def below(level, body):
    """Return a program below coordinate space, over A and C of n elements and an index array E."""
    declare = "T.match_buffer({}, (n,), '{}')"
    lines = [f"{name} = {declare.format(name.lower(), t)}" for name, t in _BUFFERS]
    if level == "position":
        lines = ["I = T.dense_fixed(n)"]
        lines += [f"{n} = T.match_sparse_buffer({n.lower()}, (I,), '{t}')" for n, t in _BUFFERS]
    text = "def attack(a: T.handle, c: T.handle, e: T.handle, n: T.int32) -> None:\n"
    return parsed(text + "".join(f"    {line}\n" for line in [*lines, *body.splitlines()]))


_BUFFERS = (("A", "float32"), ("C", "float32"), ("E", "int32"))


# -- programs written below coordinate space ---------------------------------------------------

ASTRAY = {
    "store": "for i in T.serial(n + 100000000):\n    C[i] = A[0]",
    "load": "for i in T.serial(n):\n    C[i] = A[i + 1000000000]",
    "negative": "for i in T.serial(n):\n    C[i] = A[i - 1000000000]",
    "loaded index": "for i in T.serial(n):\n    C[E[i]] = A[i]",
    "nested index": "for i in T.serial(n):\n    C[i] = A[E[E[i]]]",
    "condition": "for i in T.serial(n):\n    if A[E[i]] > 0.0:\n        C[i] = A[i]",
    "bound": "for i in T.serial(T.cast(A[n * 1000000], 'int64')):\n    C[i] = A[0]",
    "let": "for i in T.serial(n):\n    x = A[E[i]]\n    C[i] = x",
    "while": "while A[E[0]] > 0.0:\n    C[0] = 1.0",
    "search": "for i in T.serial(n):\n    C[T.lower_bound(E, 1000000000, 1000000100, i) % n] = 1.0",
}
IN_SUBPROCESS = """
import numpy as np, sys
import spcomp
from spcomp.errors import SpcompError
from tests import test_adversarial as attack

wild = np.full(4, 2**30, "int32")
for level in ("position", "flat"):
    for name, body in attack.ASTRAY.items():
        kernel = spcomp.compile(attack.below(level, body))
        try:
            kernel(np.ones(4, "f4"), np.zeros(4, "f4"), wild, 4)
        except SpcompError as error:
            assert "outside" in str(error), (level, name, str(error))
        else:
            raise AssertionError((level, name, "was not noticed"))
"""


def test_a_program_below_coordinate_space_fails_where_an_index_leaves_its_buffer():
    run = subprocess.run(
        [sys.executable, "-c", IN_SUBPROCESS], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("level", ["position", "flat"])
def test_an_index_that_is_not_evaluated_does_not_fail(level):
    body = "for i in T.serial(n):\n    C[i] = T.if_then_else(i > 0, A[i - 1], 7.0)"
    c = np.zeros(4, F32)
    spcomp.compile(below(level, body))(np.arange(4, dtype=F32), c, np.zeros(4, "int32"), 4)
    assert c.tolist() == [7, 0, 1, 2]


CHOSEN = (
    "T.Select({few}, {behind}, {seven})",
    "T.Select(not {few}, {seven}, {behind})",
    "T.Select({few} and {behind} > T.broadcast(n * 0, 4), {behind}, {seven})",
    "T.Select({none}, T.broadcast(A[n], 4), T.Select({few}, {behind}, {seven}))",
)
LANES = "T.ramp(0, 1, 4)"
PARTS = {
    "few": f"{LANES} < T.broadcast(T.cast(n - 1, 'int64'), 4)",
    "none": f"{LANES} < T.broadcast(T.cast(-n, 'int64'), 4)",
    "behind": f"A[{LANES} + 1]",
    "seven": "T.broadcast(T.float32(7), 4)",
}


@pytest.mark.parametrize("chosen", CHOSEN)
def test_an_index_of_a_lane_that_is_not_chosen_does_not_fail(chosen):
    func, c = below("flat", f"C[{LANES}] = {chosen.format(**PARTS)}"), np.zeros(4, F32)
    spcomp.compile(func)(np.arange(4, dtype=F32), c, np.zeros(4, "int32"), 4)
    assert c.tolist() == [1, 2, 3, 7]


def test_indices_that_are_proved_inside_cost_nothing():
    flat = lower(below("flat", "for i in T.serial(n):\n    C[i] = A[i] + C[i]"), TARGET).flat
    text = print_program(flat.funcs[0])
    assert "T.fail" not in text
    assert "if " not in text


def test_an_axis_whose_arrays_no_buffer_is_matched_to_can_be_indexed():
    func = parsed(
        """def attack(a: T.handle, c: T.handle, p: T.handle, j: T.handle, m: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (m, 5), (p, j))
    A = T.match_sparse_buffer(a, (I, J), "float32")
    C = T.match_buffer(c, (m,), "float32")
    for i in T.serial(m):
        C[i] = A[i, 0]
"""
    )
    a, c, p = np.arange(5, dtype=F32), np.zeros(3, F32), np.array([0, 2, 3, 5], "int32")
    spcomp.compile(func)(a=a, c=c, p=p, j=np.array([0, 1, 0, 0, 2], "int32"), m=3)
    assert c.tolist() == [0, 2, 3]
    flat = lower(func, TARGET).flat
    verify(flat, "flatten_buffers")
    assert structural_equal(reparsed(flat, "flat"), flat.funcs[0])


SHARED = """def attack(a: T.handle, e: T.handle, p: T.handle, n: T.int32) -> None:
    I = T.dense_fixed(n)
    J = T.sparse_variable(I, (n, 4), (p, e))
    A = T.match_buffer(a, (n,), "float32")
    {view}
    for i in T.serial(n):
        A[i] = T.cast(V[i, 3], "float32")
        V[i, 3] = V[i, 3] + V[i, 3]
"""


@pytest.mark.parametrize("handle", ["a", "e", "p"])
@pytest.mark.parametrize("check", ["full", "off"])
def test_a_second_buffer_takes_no_more_of_an_array_than_there_is(handle, check):
    dtype = "float32" if handle == "a" else "int32"
    func = parsed(SHARED.format(view=f'V = T.match_buffer({handle}, (n, 4), "{dtype}")'))
    arrays = {"a": np.ones(4, F32), "e": np.zeros(4, "int32"), "p": np.arange(5, dtype="int32")}
    with pytest.raises(ArgumentError, match=f"V: room .n . 4. is {len(arrays[handle])}, expected"):
        spcomp.compile(func, check=check)(**arrays, n=4)


@pytest.mark.parametrize("style", ["matrix", "arrays"])
def test_all_axes_over_one_index_array_are_measured(style):
    func = parsed(
        """def attack(a: T.handle, c: T.handle, p: T.handle, e: T.handle, m: T.int32, w: T.int32):
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (m, 4), (p, e))
    F = T.sparse_fixed(I, (m, w), e)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    C = T.match_sparse_buffer(c, (I, F), "float32")
    with T.sp_iter([I, F], "SS", "attack") as [i, k]:
        C[i, k] = T.cast(k, "float32")
    with T.sp_iter([I, J], "SS", "use") as [i, j]:
        A[i, j] = A[i, j] + A[i, j]
"""
    )
    csr = sps.csr_array(np.ones((2, 2), F32))
    given = {"A": csr} if style == "matrix" else {"a": csr.data, "p": csr.indptr, "e": csr.indices}
    with pytest.raises(ArgumentError, match="is 4, expected 2000"):
        spcomp.compile(func)(**given, c=np.zeros(2000, F32), m=2, w=1000)


@pytest.mark.parametrize("handle", ["p", "e"])
def test_a_program_in_coordinate_space_does_not_write_where_its_elements_lie(handle):
    func = parsed(
        f"""def attack(a: T.handle, p: T.handle, e: T.handle, n: T.int32):
    I = T.dense_fixed(n)
    J = T.sparse_variable(I, (n, 4), (p, e))
    A = T.match_sparse_buffer(a, (I,), "float32")
    V = T.match_sparse_buffer({handle}, (I,), "int32")
    with T.sp_iter([I], "S", "attack") as [i]:
        V[i] = 1 << 30
    with T.sp_iter([I, J], "SR", "use") as [i, j]:
        A[i] = A[i] + A[j]
"""
    )
    with pytest.raises(FormatError, match="V is written, and says where elements lie along J"):
        spcomp.compile(func)


@pytest.mark.parametrize("handle", ["a", "e"])
def test_buffers_on_one_array_have_its_dtype(handle):
    func = parsed(SHARED.format(view=f'V = T.match_buffer({handle}, (n, 4), "float64")'))
    with pytest.raises(FormatError, match="V has dtype float64"):
        spcomp.compile(func)


@pytest.mark.parametrize("level", ["position", "coordinate"])
def test_a_view_with_strides_reaches_its_last_element_and_no_further(level):
    loop = (
        "for k in T.serial(n):" if level == "position" else 'with T.sp_iter([I], "S", "x") as [k]:'
    )
    func = parsed(
        f"""def attack(c: T.handle, n: T.int32) -> None:
    I = T.dense_fixed(n)
    C = T.match_buffer(c, (n, 3), "float32", strides=(8, 2))
    {loop}
        X = T.alloc_buffer((2, n), "float32", strides=(n * 1000000, 1))
        X[1, k] = 2.0
        C[k, 2] = X[1, k]
"""
    )
    c = np.zeros(21, F32)
    spcomp.compile(func)(c=c, n=3)
    assert np.flatnonzero(c).tolist() == [4, 12, 20]
    args = {"c": np.zeros(21, F32), "n": 3}
    interpret(func, args)
    assert np.array_equal(args["c"], c)
    with pytest.raises(ArgumentError, match="room"):
        spcomp.compile(func)(c=c[:20], n=3)


def test_checks_that_are_off_trust_a_program_below_coordinate_space():
    program = below("flat", "for i in T.serial(n):\n    C[E[i]] = A[i]")
    assert "fail" not in spcomp.compile(program, check="off").stage("flat")
    assert "fail" in spcomp.compile(program).stage("flat")


def test_a_false_claim_of_a_parallel_loop_in_position_space_is_an_error_at_its_line():
    program = below("position", "for i in T.parallel(n):\n    C[0] = C[0] + A[i]")
    with pytest.raises(ScheduleError, match="loop i cannot be parallel") as caught:
        spcomp.compile(program)
    assert caught.value.span.line == 10


def test_a_false_claim_of_a_vectorized_loop_is_an_error():
    program = below("position", "for i in T.vectorized(n - 1):\n    C[i + 1] = C[i]")
    with pytest.raises(ScheduleError, match="loop i cannot be vectorized"):
        spcomp.compile(program)


def test_a_parallel_loop_over_flat_buffers_that_is_not_proved_runs_serially_with_a_warning():
    program = below("flat", "for i in T.parallel(n):\n    C[0] = C[0] + A[i]")
    with pytest.warns(SpcompWarning, match="loop i is not proved to be parallel"):
        kernel = spcomp.compile(program)
    c = np.zeros(100000, F32)
    with num_threads(4):
        kernel(np.ones(100000, F32), c, np.zeros(100000, "int32"), 100000)
    assert c[0] == 100000


# -- index arrays whose class hides elements ---------------------------------------------------


def test_masked_index_arrays_are_refused_wherever_they_come_from():
    indices = np.ma.masked_array(A.indices.copy(), mask=np.zeros(A.nnz, bool))
    indices.data[0], indices.mask[0] = 1_000_000, True
    kernel = spcomp.compile(spmm)
    matrix = A.copy()
    matrix.indices = indices
    arguments = (A.data, B, np.zeros((6, 3), F32), A.indptr, indices, 6, 7, 3, A.nnz)
    for call in (
        lambda: kernel(*arguments),
        lambda: kernel(A=matrix, B=B),
        lambda: spcomp.Tensor((6, 7), (None, ("compressed", A.indptr, indices)), A.data),
    ):
        with pytest.raises(ArgumentError, match="masked array"):
            call()


def test_index_arrays_of_another_class_are_read_as_they_are():
    matrix = sps.csr_array(A)
    matrix.indices = np.asarray(A.indices).view(np.recarray)
    np.testing.assert_allclose(spcomp.compile(spmm)(A=matrix, B=B), A @ B, rtol=1e-5)


def test_what_a_tensor_was_checked_for_cannot_be_changed_afterwards():
    level = ("compressed", A.indptr, A.indices)
    tensor = spcomp.Tensor((6, 7), (None, level), A.data)
    for change in (
        lambda: setattr(tensor, "shape", (6, 1)),
        lambda: setattr(tensor, "levels", (None, None)),
        lambda: tensor.levels[1].indices.setflags(write=True),
        lambda: tensor.levels[1].indices.__setitem__(0, 1_000_000),
    ):
        with pytest.raises((AttributeError, ValueError)):
            change()


@pytest.mark.parametrize(
    ("shape", "levels"),
    [((2, 2.5), (None, None)), ("ab", (None, None)), ((2, 2), 3), ((-1,), (None,))],
)
def test_a_tensor_of_no_shape_is_refused(shape, levels):
    with pytest.raises(ArgumentError):
        spcomp.Tensor(shape, levels, np.ones(4, F32))


# -- what may fail fails where it is evaluated, and nowhere else -------------------------------

_NESTED = "T.if_then_else(d != 0, T.if_then_else(n // d > 0, x, x), y)"
GUARDED_DIVISIONS = (
    "C[i] = T.if_then_else(d != 0, A[i // d], 5)",
    "if d != 0:\n    C[i] = A[i // d]\nelse:\n    C[i] = 5",
    "C[i] = 5\nfor q in T.serial(d):\n    C[i] = A[i % d]",
    "C[i] = T.if_then_else(d != 0 and A[i // d] > 99, 0, 5)",
    "x = T.cast(A[i], 'float32')\ny = x + T.float32(4)\nC[i] = T.cast(" + _NESTED + ", 'int32')",
)
PLAIN_DIVISIONS = ("x = A[i // d]\nC[i] = 5", "C[i] = A[i % d]", "if A[i // d] > 0:\n    C[i] = 1")


@pytest.mark.parametrize("body", GUARDED_DIVISIONS)
def test_a_division_by_zero_that_is_not_reached_does_not_fail(body):
    c = np.zeros(3, "int32")
    spcomp.compile(on_vector(body, "int32", ", d: T.int32"))(np.ones(3, "int32"), c, 3, 0)
    assert c.tolist() == [5, 5, 5]


@pytest.mark.parametrize("body", PLAIN_DIVISIONS)
def test_a_division_by_zero_fails_even_if_nothing_depends_on_it(body):
    func = on_vector(body, "int32", ", d: T.int32")
    values = np.ones(3, "int32")
    with pytest.raises(ArgumentError, match="division by zero"):
        interpret(func, {"a": values, "c": values.copy(), "n": 3, "d": 0})
    with pytest.raises(ArgumentError, match="division by zero"):
        spcomp.compile(func)(values, values.copy(), 3, 0)


def test_an_index_made_of_parameters_alone_is_understood():
    c = np.zeros(4, F32)
    spcomp.compile(on_vector("C[i] = A[s * 2 - 1]", params=", s: T.int32"))(
        np.arange(4, dtype=F32), c, 4, 2
    )
    assert c.tolist() == [3, 3, 3, 3]


# -- init --------------------------------------------------------------------------------------


def test_an_init_of_other_elements_than_the_body_writes_runs_before_all_of_it():
    func = on_vector("with T.init():\n    C[n - 1 - i] = 0.0\nC[i] = C[i] + A[i]")
    a, c = np.arange(1, 6, dtype=F32), np.full(5, 9, F32)
    spcomp.compile(func)(a, c, 5)
    assert c.tolist() == a.tolist()


# -- size and depth ----------------------------------------------------------------------------


@pytest.mark.parametrize("terms", [1000, 20000])
def test_an_expression_that_nests_too_deeply_is_refused(terms):
    with pytest.raises((ScriptError, LoweringError), match="nests too deeply"):
        spcomp.compile(on_vector("C[i] = " + " + ".join(["A[i]"] * terms)))


def test_an_allocation_whose_size_overflows_is_out_of_memory():
    body = "X = T.alloc_buffer((z, z, z), 'float32', scope='local')\n"
    body += "X[i, 1, i] = A[i]\nC[i] = X[i, 1, (i * 3) % n]"
    kernel = spcomp.compile(on_vector(body, params=", z: T.int64"))
    with pytest.raises(OutOfMemoryError, match="out of memory"):
        kernel(np.ones(4, F32), np.zeros(4, F32), 4, 1 << 22)  # (2**22)**3 elements are 0, wrapped


@pytest.mark.parametrize("size", ["n * n", "n * n // 2", "n * 65536 - 5"])
def test_a_size_that_overflows_its_dtype_is_refused(size):
    func = parsed(
        f"""def attack(c: T.handle, n: T.int32):
    I = T.dense_fixed({size})
    C = T.match_sparse_buffer(c, (I,), "int8")
    with T.sp_iter([I], "S", "attack") as [i]:
        C[i] = C[i] + C[i]
"""
    )
    n = 1 << 16
    with pytest.raises(ArgumentError, match=r"42949672\d\d, which int32 does not hold"):
        spcomp.compile(func)(c=np.zeros(eval(size), np.int8), n=n)


@pytest.mark.parametrize("constants", [{"y": 1 << 32}, {"y": 1 << 32, "z": 1 << 32}])
def test_an_allocation_whose_constant_size_overflows_is_out_of_memory(constants):
    body = "X = T.alloc_buffer((z, y, y), 'float32', scope='local')\n"
    body += "X[i, 1000 * i, 1] = A[i]\nC[i] = X[i, 1000 * i, 1]"
    func = on_vector(body, params=", y: T.int64, z: T.int64")
    rest = {"y": 1 << 32, "z": 1 << 32}.keys() - constants
    with pytest.raises(OutOfMemoryError, match="out of memory"):
        spcomp.compile(func, constants=constants)(
            a=np.ones(4, F32), c=np.zeros(4, F32), n=4, **dict.fromkeys(rest, 8)
        )


def test_many_buffers_do_not_overflow_the_stack():
    body = "".join(
        f"X{k} = T.alloc_buffer((8000,), 'float32', scope='local')\nX{k}[i % 8000] = A[i]\n"
        for k in range(60)
    )
    body += "C[i] = X0[i] + X59[i % 8000]"
    llvm = spcomp.compile(on_vector(body)).source("llvm")
    assert llvm.count("alloca [8000 x float]") <= 2


def test_a_buffer_of_a_negative_size_takes_no_room_from_the_stack_of_others():
    body = "X = T.alloc_buffer((-100000,), 'float32')\nY = T.alloc_buffer((20000,), 'float32')\n"
    llvm = spcomp.compile(on_vector(body + "Y[i] = A[i]\nX[i] = 1.0\nC[i] = Y[i]")).source("llvm")
    assert "alloca [20000 x float]" not in llvm


def test_indices_made_of_names_that_double_compile_in_no_time():
    lines = [f"x{k + 1} = x{k} * x{k}" for k in range(30)]
    body = "\n".join(["for i in T.serial(n):", "    x0 = i + 1", *(f"    {x}" for x in lines)])
    c = np.zeros(4, F32)
    kernel = spcomp.compile(below("flat", f"{body}\n    C[x30 % n] = A[i]"))
    kernel(np.ones(4, F32), c, np.zeros(4, "int32"), 4)
    assert c.tolist() == [1, 1, 0, 0]


def test_vectors_that_no_machine_has_are_refused():
    body = f"C[T.ramp(0, 1, {1 << 20})] = T.broadcast(T.float32(1), {1 << 20})"
    with pytest.raises(LoweringError, match="1048576 lanes"):
        spcomp.compile(below("flat", body))


def test_unrolled_loops_inside_another_are_not_written_out_many_times():
    body = "for q in T.unroll(256):\n    for k in T.unroll(100):\n        C[q] = C[q] + A[k]"
    llvm = spcomp.compile(below("flat", body)).source("llvm")
    assert "llvm.loop.unroll.enable" not in llvm


def test_an_unrolled_loop_of_a_whole_range_of_integers_compiles():
    body = (
        "C[i] = A[i]\nif n > 5:\n    for q in T.unroll(-9223372036854775807, 9223372036854775807):"
    )
    c = np.zeros(2, F32)
    spcomp.compile(on_vector(body + "\n        C[i] = A[i]"))(np.ones(2, F32), c, 2)
    assert c.tolist() == [1, 1]
