"""What a user gets wrong in a call: an SpcompError that names it, never an error from inside."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import Schedule
from spcomp import sparsetir as tvm
from spcomp.errors import ArgumentError, FormatError, ScheduleError, ScriptError, SpcompError
from spcomp.schedule.step import Trace
from tests.layers import source

MATRIX = sps.csr_array(np.array([[1.0, 0, 2], [0, 3, 0]]))
VECTOR = np.array([1.0, 2, 3])
PATTERN = (MATRIX.indptr, MATRIX.indices)
SPMM = source("csrmm")
STAGE1 = Schedule(SPMM)
STAGE2 = STAGE1.lower_sparse_iter()
GRAPH = nx.path_graph(3)
SPMV = "y[i] = A[i, j] * x[j]"
ODD = [None, 3, "a", [1], lambda: 1, object()]

WRONG: list[tuple[Callable[[], Any], type[SpcompError], str]] = [
    (lambda: STAGE1.sparse_reorder("csrmm", 3), ScheduleError, "new_order cannot be 3"),
    (lambda: STAGE1.sparse_fuse("csrmm", None), ScheduleError, "iters cannot be None"),
    (lambda: STAGE2.pad_einsum("csrmm1", 2), ScheduleError, "padding cannot be 2"),
    (lambda: STAGE2.reorder_block_iter_var("csrmm1", 1), ScheduleError, "new_order cannot"),
    (lambda: STAGE2.hide_buffer_access("csrmm1", "read", 0), ScheduleError, "indices cannot"),
    (lambda: STAGE2.reverse_cache_read("csrmm1", 0, dim_order=1), ScheduleError, "dim_order"),
    (lambda: STAGE2.reverse_cache_write("csrmm1", 0, dim_order=1), ScheduleError, "dim_order"),
    (lambda: STAGE2.sample_perfect_tile("k", 2, decision=4), ScheduleError, "decision cannot"),
    (lambda: STAGE2.sample_perfect_tile("k", "2"), ScheduleError, "n cannot be '2'"),
    (lambda: STAGE2.sample_categorical(3), ScheduleError, "candidates cannot be 3"),
    (lambda: STAGE2.sample_categorical([3], 1), ScheduleError, "probs cannot be 1"),
    (lambda: STAGE2.horizontal_fuse(3, 4), ScheduleError, "loops cannot be 3"),
    (lambda: STAGE2.tensorize("k", ["mma"]), ScheduleError, r"intrinsic cannot be \['mma'\]"),
    (lambda: STAGE2.get_kind(["i"]), ScheduleError, "no loop"),
    (lambda: STAGE2.get_producers(["i"]), ScheduleError, "no block"),
    (lambda: STAGE2.get_block(np.arange(2)), ScheduleError, "no block"),
    (lambda: STAGE2.annotations(np.arange(2)), ScheduleError, "nothing is called"),
    (lambda: STAGE2.replay([]), ArgumentError, "trace: got list, expected a Trace"),
    (lambda: Trace.from_json_lines(None), ArgumentError, "text: got NoneType"),
    (lambda: Trace.from_json_lines("[" * 100_000), ScheduleError, "not a step"),
    (lambda: spcomp.compile(SPMM, target=3), ArgumentError, "target: got int"),
    (lambda: spcomp.compile(SPMM, trace=[]), ArgumentError, "trace: got list"),
    (lambda: spcomp.compile(SPMM, name=3), ArgumentError, "name: got int"),
    (lambda: spcomp.compile(SPMM, constants=3), ArgumentError, "constants: got int"),
    (lambda: spcomp.compile(SPMM, trace="{}"), ArgumentError, "Trace.from_json_lines"),
    (lambda: spcomp.convert("a.mtx", "csr"), ArgumentError, r"spcomp.read\('a.mtx'\)"),
    (lambda: spcomp.convert(Path("a.mtx"), "csr"), ArgumentError, r"spcomp.read\('a.mtx'\)"),
    (lambda: spcomp.compile(SPMM)(A="a.mtx", B=1), ArgumentError, r"spcomp.read\('a.mtx'\)"),
    (lambda: spcomp.compile(SPMM)(A=GRAPH, B=1), ArgumentError, "networkx.to_scipy_sparse_array"),
    (lambda: spcomp.compile("y[i] = softmax(x[i])"), ScriptError, r"m\[i\] = max\(j, A\[i, j\]\)"),
    (lambda: spcomp.compile("y[i] = relu(x[i])"), ScriptError, r"maximum\(x, 0\)"),
    (lambda: spcomp.compile(SPMV, formats="csr"), ArgumentError, "formats: got str"),
    (lambda: spcomp.compile(SPMV, formats={"A": None}), ArgumentError, "formats: got NoneType"),
    (lambda: spcomp.compile(SPMV, functions=3), ArgumentError, "functions: got int"),
    (lambda: spcomp.compile(SPMV, speed=3), ArgumentError, "speed: is none of compile's"),
    (lambda: spcomp.compile(SPMM, semiring="or_and"), ArgumentError, "semiring: is for index"),
    *(
        (partial(spcomp.compile, program, name=name), ArgumentError, f"name: got {name!r}")
        for program in (SPMV, SPMM)
        for name in ("1x", "a b", "a-b", "", "class")
    ),
    (lambda: spcomp.compile("y[i] = a * x[i]", constants={"a": "2"}), ArgumentError, "got str"),
    *(
        (partial(function, spcomp.compile(program)), ArgumentError, "it was compiled from")
        for program in (SPMV, SPMM)
        for function in (spcomp.compile, spcomp.tune, partial(spcomp.adjoint, wrt="x"))
    ),
    (lambda: spcomp.einsum(3, MATRIX), ArgumentError, "subscripts: got int"),
    (lambda: spcomp.indices(3), ArgumentError, "names: got int"),
    (lambda: spcomp.Function(3), ArgumentError, "body: got int"),
    (lambda: spcomp.Format("hyb"), FormatError, "'hyb' is no .*\nhint: .*parts"),
    (lambda: spcomp.convert(MATRIX, "crs"), FormatError, "'crs' is no format of 2 .*\nhint: .*csr"),
    (lambda: spcomp.Tensor.from_coo(3, VECTOR, (3,)), ArgumentError, "coordinates and shape"),
    (lambda: spcomp.Tensor.from_coo([[0]], [1.0], ("a",)), ArgumentError, "coordinates and shape"),
    (lambda: spcomp.Tensor.from_coo([[0]], [1.0], (3,), 3), ArgumentError, "format: got int"),
    (lambda: spcomp.formats.hyb(1, 4), FormatError, "buckets is 4"),
    (lambda: spcomp.specialize_buffer(SPMM, "B", 3), ArgumentError, "is a function, got int"),
    (lambda: spcomp.specialize_buffer(SPMM, "B", lambda i, j: "a"), ArgumentError, "gives str"),
    (lambda: spcomp.format_decompose(SPMM, 3), ArgumentError, "rules: got int"),
    (lambda: spcomp.format_decompose(SPMM, [3]), ArgumentError, "rules: got int"),
    (lambda: spcomp.format_decompose(3, []), ArgumentError, "func: got int"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), WRONG)
def test_a_wrong_argument_is_named(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize(
    "function",
    [Schedule, spcomp.lower_sparse_iter, spcomp.lower_sparse_buffer, spcomp.remove_preprocess,
     spcomp.extract_preprocess, spcomp.remove_unused_args],
)  # fmt: skip
def test_what_is_no_program_is_refused_by_all_that_take_one(function):
    kernels = () if function is Schedule else (spcomp.compile(SPMM),)  # a Schedule takes a kernel
    for odd in (*ODD, *kernels):
        with pytest.raises(ArgumentError, match=f"got {type(odd).__name__}, expected a"):
            function(odd)


RULE = {
    "name": "r", "new_format_desc": SPMM, "buffers_to_rewrite": ["A"],
    "axes_before_rewrite": ["I", "J"], "axes_after_rewrite": ["I", "J"],
    "axis_map": {"I": ["I"], "J": ["J"]}, "idx_map": lambda i, j: (i, j),
    "inv_idx_map": lambda i, j: (i, j),
}  # fmt: skip


@pytest.mark.parametrize("field", RULE)
def test_a_rule_with_a_wrong_argument_is_refused(field):
    spcomp.FormatRewriteRule(**RULE)
    for odd in (None, 3, [], object()):
        with pytest.raises((ArgumentError, FormatError)):
            spcomp.FormatRewriteRule(**RULE | {field: odd})


def test_numpy_integers_are_widths_of_buckets():
    program = spcomp.decompose(SPMM, A=spcomp.formats.hyb(np.int64(2), np.array([1, 2])))
    dense = np.eye(3, dtype=np.float32)
    made = spcomp.compile(program)(A=MATRIX.astype(np.float32), B=dense)
    assert np.array_equal(made, MATRIX.toarray())


def test_a_notation_kernel_can_be_timed():
    kernel = spcomp.compile(SPMV)
    for callee, named in (
        (kernel, {"A": MATRIX, "x": VECTOR}),
        (kernel.bind(A=MATRIX), {"x": VECTOR}),
    ):
        timing = callee.time_evaluator(number=2, repeat=3)(**named)
        assert len(timing.results) == 3
        assert timing.min > 0
    with pytest.raises(ArgumentError, match="number: got 0"):
        kernel.time_evaluator(number=0)


def test_a_number_of_index_notation_can_be_compiled_in():
    kernel = spcomp.compile("y[i] = a * x[i] + b * z[i]", constants={"a": 3})
    assert kernel.arguments == ("x", "b", "z")
    made = kernel(x=VECTOR, z=VECTOR, b=1.0)
    assert np.array_equal(made, 4 * VECTOR)
    with pytest.raises(ArgumentError, match="unexpected argument a"):
        kernel(x=VECTOR, z=VECTOR, a=2, b=1)


@pytest.mark.parametrize(
    ("text", "name", "hint"),
    [
        ("y[i] = alpha * x[i]", "alfa", "did you mean 'alpha'"),
        ("y[i] = a * b * x[i]", "r", "there is a, b"),
        ("y[i] = 2 * x[i]", "x", "there is none"),
        ("s = sum(i, x[i])\ny[i] = s * x[i]", "s", "there is none"),
    ],
)
def test_a_number_that_index_notation_does_not_have_is_refused_at_once(text, name, hint):
    with pytest.raises(ArgumentError, match=f"constants: the program has no number '{name}'") as e:
        spcomp.compile(text, constants={name: 3})
    assert hint in e.value.hint


@pytest.mark.parametrize(
    ("text", "functions", "message"),
    [("y[i] = maximum(x[i])", {}, "maximum takes two or more arguments, got 1"),
     ("y[i] = sum(j, x[i])", {}, "sum runs over j, which is no index of anything"),
     ("y[i] = f(x[i])", {"f": lambda a, b: a}, "f does not take 1 arguments"),
     ("y[i] = f(x[i])", {"f": lambda a: None}, "f returns NoneType, expected an expression")],
)  # fmt: skip
def test_a_call_in_notation_that_cannot_be_made_is_shown(text, functions, message):
    with pytest.raises(ScriptError, match=message) as caught:
        spcomp.compile(text, functions=functions)
    *_, line, caret = str(caught.value).split("\nhint")[0].split("\n")
    assert line[caret.index("^")] == text[7]


def test_a_long_line_is_shown_around_the_mistake():
    text = "y[i] = " + "x[i] + " * 100 + "x[i] @ x[i]" + " + x[i]" * 100
    with pytest.raises(ScriptError) as caught:
        spcomp.compile(text)
    _, line, caret, _ = str(caught.value).split("\n")
    assert len(line) < 200
    assert line[caret.index("^") :].startswith("x[i] @ x[i]")


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:Sparse")
def test_tensors_that_numpy_cannot_hold_are_refused():
    torch = pytest.importorskip("torch")
    spmv, spmm = spcomp.compile(SPMV), spcomp.compile(SPMM)
    single = MATRIX.astype(np.float32)
    for odd in (torch.ones(3, device="meta"), torch.ones(3, dtype=torch.complex64).conj()):
        with pytest.raises(ArgumentError, match="argument x"):
            spmv(A=MATRIX, x=odd)
        with pytest.raises(ArgumentError, match="argument B"):
            spmm(A=single, B=odd.expand(2, 3).T)
    with pytest.raises(ArgumentError, match="requires gradients"):
        spmm(A=single, B=torch.ones((3, 2), requires_grad=True))  # scripts have no gradient yet
    with pytest.raises(ArgumentError, match="argument A: got a tensor of layout sparse_csr"):
        spmm(A=torch.eye(3).to_sparse_csr(), B=np.eye(3, dtype=np.float32))


@pytest.mark.parametrize(
    ("call", "message"),
    [(lambda: tvm.build(SPMM, target=3), "target: got int"),
     (lambda: tvm.IRModule(3), "functions: got int"),
     (lambda: tvm.sparse.lower_sparse_iter(3), "main: got int, expected a function"),
     (lambda: tvm.sparse.format_decompose(3, []), "main: got int, expected a function"),
     (lambda: tvm.sparse.column_part_hyb(2, 3, *PATTERN, 1.5, [1]), "num_col_parts: got 1.5"),
     (lambda: tvm.sparse.column_part_hyb("a", 3, *PATTERN, 1, [1]), "num_rows: got 'a'"),
     (lambda: tvm.sparse.column_part_hyb(2, 3, *PATTERN, 1, None), "buckets: got NoneType"),
     (lambda: tvm.sparse.condense(*PATTERN, "a", 2), "t: got 'a', expected at least 1"),
     (lambda: SPMM.specialize(3), "values: got int")],
)  # fmt: skip
def test_the_names_of_sparsetir_refuse_wrong_arguments(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


class Bare:
    """Gives an array, and says nothing else of it."""

    def __array__(self, dtype=None, copy=None):
        return np.ones(3)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.ones((3, 1)), r"got 2 dimensions(.|\n)*give x\.ravel\(\), or write"),
        (np.ndarray, r"got type, expected an array(.|\n)*np\.asarray"),
        (Bare(), r"got Bare, expected an array(.|\n)*np\.asarray"),
    ],
)
def test_hints_say_how_to_make_an_array_of_it(x, message):
    with pytest.raises(ArgumentError, match=f"argument x: {message}"):
        spcomp.compile("y[i] = A[i, j] * x[j]")(A=sps.eye_array(3, format="csr"), x=x)
