"""Buffers along a matrix that is stored in a format: read with it, written, and put together."""

from functools import cache

import numpy as np
import pytest
import scipy.sparse as sps
from hypothesis import given, settings
from hypothesis import strategies as st

import spcomp
from spcomp import formats
from spcomp.errors import ArgumentError, FormatError
from spcomp.ir.interpret.program import interpret
from spcomp.kernels.kernel import Kernel
from spcomp.runtime.pool import num_threads
from spcomp.script.parse import parse_source
from tests import format_helpers

HEADER = """from spcomp import script as T

@T.prim_func
def f(a: T.handle, x: T.handle, y: T.handle, v: T.handle, c: T.handle, indptr: T.handle,
      indices: T.handle, m: T.int32, n: T.int32, feat: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    N = T.dense_fixed(n)
    K = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    X = T.match_sparse_buffer(x, (I, K), "float32")
    Y = T.match_sparse_buffer(y, (N, K), "float32")
    V = T.match_sparse_buffer(v, (I, J), "float32")
    C = T.match_sparse_buffer(c, (I, J), "float32")
"""
BODIES = {
    "sddmm": """
    with T.sp_iter([I, J, K], "SSR", "sddmm") as [i, j, k]:
        with T.init():
            C[i, j] = 1.0
        C[i, j] = C[i, j] + A[i, j] * V[i, j] * X[i, k] * Y[j, k]
""",
    "greatest": """
    with T.sp_iter([T.fuse(I, J), K], "SSR", "greatest") as [i, j, k]:
        with T.init():
            C[i, j] = X[i, 0] - Y[j, 0]
        C[i, j] = T.max(C[i, j], A[i, j] + V[i, j] + X[i, k] * Y[j, k])
""",
    "lower": """
    with T.sp_iter([I, J], "SS", "lower") as [i, j]:
        if j < i:
            C[i, j] = A[i, j] * X[i, 0] + V[i, j] * Y[j, 0]
""",
    "updated": """
    with T.sp_iter([I, J], "SS", "updated") as [i, j]:
        C[i, j] = C[i, j] + V[i, j] * A[i, j]
    with T.sp_iter([I, K], "SS", "dense") as [i, k]:
        X[i, k] = 2.0 * X[i, k]
""",
    "steps": """
    E = T.alloc_sparse_buffer((I, J), "float32")
    M = T.alloc_sparse_buffer((I,), "float32")
    with T.sp_iter([I, J, K], "SSR", "scores") as [i, j, k]:
        with T.init():
            E[i, j] = 0.0
        E[i, j] = E[i, j] + V[i, j] * X[i, k] * Y[j, k]
    with T.sp_iter([I, J], "SR", "most") as [i, j]:
        with T.init():
            M[i] = T.min_value("float32")
        M[i] = T.max(M[i], E[i, j])
    with T.sp_iter([I, J], "SS", "apart") as [i, j]:
        C[i, j] = M[i] - E[i, j] * A[i, j]
""",
}
FORMATS = format_helpers.LIBRARY
CASES = [("sddmm", which) for which in FORMATS]
CASES += [(name, which) for name in BODIES for which in ("bsr", "hyb", "dia") if name != "sddmm"]


@cache
def program(name, header=HEADER):
    (func,) = parse_source(header + BODIES[name], "f.py")
    return func


@cache
def kernels(name, which):
    return spcomp.compile(program(name)), spcomp.decompose(
        program(name), A=FORMATS[which]
    ).compile()


def matrix(m, n, density, seed=0):
    """A matrix of small integers, one of them a stored zero."""
    rng = np.random.default_rng(seed)
    csr = sps.csr_array((rng.random((m, n)) < density) * rng.integers(1, 5, (m, n)) * 1.0)
    csr = csr.astype(np.float32)
    csr.data[1:2] = 0
    return csr


def arguments(csr, k=3, seed=1):
    """What a call takes beside the matrix; c is what the result starts from."""
    rng = np.random.default_rng(seed)
    shapes = {"X": (csr.shape[0], k), "Y": (csr.shape[1], k), "V": (csr.nnz,), "C": (csr.nnz,)}
    return {name: rng.integers(-3, 4, shape).astype(np.float32) for name, shape in shapes.items()}


def fresh(args):
    return {name: array.copy() for name, array in args.items()}


def outcome(kernel, csr, args):
    """The results of a call that is given its outputs."""
    args = fresh(args)
    kernel(A=csr, **args)
    return {name: args[name] for name in ("C", "X")}


@pytest.mark.parametrize(("name", "which"), CASES)
@pytest.mark.sample(8, long=2)
def test_a_program_over_parts_writes_what_it_does_over_csr(name, which):
    plain, parts = kernels(name, which)
    for m, n, density in ((7, 5, 0.4), (8, 9, 0.5), (6, 9, 0.0), (1, 1, 1.0)):
        csr = matrix(m, n, density)
        args = arguments(csr)
        expected, got = outcome(plain, csr, args), outcome(parts, csr, args)
        for one, array in expected.items():
            np.testing.assert_array_equal(got[one], array)


@pytest.mark.parametrize("layout", [formats.hyb(), formats.hyb(1), formats.bsr(2)], ids=str)
@pytest.mark.parametrize("kind", [sps.csr_array, sps.csr_matrix])
def test_results_along_a_matrix_have_its_type_whatever_its_format(kind, layout):
    kernel = spcomp.decompose(program("sddmm"), A=layout).compile()
    csr = kind(matrix(6, 5, 0.5))
    named = {name: x for name, x in arguments(csr).items() if name != "C"} | {"V": csr}
    wanted = kernel(A=csr, **named)
    bound = kernel.bind(A=csr)
    for found in (wanted, bound(**named)):
        assert type(found) is kind
        np.testing.assert_array_equal(found.toarray(), wanted.toarray())


@pytest.mark.parametrize(("name", "which"), [case for case in CASES if case[0] != "updated"])
def test_the_interpreter_agrees_on_what_the_parts_mean(name, which):
    plain, parts = kernels(name, which)
    csr = matrix(7, 6, 0.5)
    args = arguments(csr)
    made = parts.convert(A=csr)
    known = {"x": args["X"].reshape(-1), "y": args["Y"].reshape(-1), "feat": 3, "m": 7, "n": 6}
    for part in parts.program.parts["A"]:
        rule = part.rule.name
        buffers = part.rule.new_format_desc.buffers
        (values,) = (b.data.name for b in buffers if b.name == "A")
        for key, value in {**made.parts[rule], **made.sizes[rule]}.items():
            flat = value.flatten() if isinstance(value, np.ndarray) else value
            known[part.params[values if key == "values" else key].name] = flat
        for old, new in part.beside.items():
            if new.data is not None:
                known[new.data.name] = stored(made.order.numbers[rule], args[old.name])
    interpret(parts.program.func, {p.name: known[p.name] for p in parts.program.func.params})
    got = args["C"].copy()
    for part in parts.program.parts["A"]:
        numbers = made.order.numbers[part.rule.name].reshape(-1)
        (new,) = (new for old, new in part.beside.items() if old.name == "C")
        got[numbers[numbers > 0] - 1] = known[new.data.name][numbers > 0]
    np.testing.assert_array_equal(got, outcome(plain, csr, args)["C"])


def stored(numbers, values):
    """The *values* as a part holds them, 99 in padding."""
    numbers = numbers.reshape(-1)
    return np.where(numbers > 0, np.append(values, 99)[numbers - 1], 99).astype(np.float32)


def test_an_assignment_does_not_write_padding():
    kernel = kernels("lower", "bsr")[1]
    csr = matrix(6, 6, 0.3)
    made, args = kernel.convert(A=csr), arguments(csr)
    named = {}
    for part in kernel.program.parts["A"]:
        arrays, sizes = made.parts[part.rule.name], made.sizes[part.rule.name]
        (values,) = (b.data.name for b in part.rule.new_format_desc.buffers)
        for key, value in {**arrays, **sizes}.items():
            named[part.params[values if key == "values" else key].name] = value
        for old, new in part.beside.items():
            named[new.name] = stored(made.order.numbers[part.rule.name], args[old.name])
    kernel.kernel(**named, X=args["X"], Y=args["Y"], m=6, n=6)
    for part in kernel.program.parts["A"]:
        padding = made.order.numbers[part.rule.name].reshape(-1) == 0
        (new,) = (new for old, new in part.beside.items() if old.name == "C")
        assert (named[new.name][padding] == 99).all()


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(FORMATS)), st.integers(1, 12), st.integers(1, 12), st.integers(0, 99))
def test_any_matrix_gives_what_it_does_over_csr(which, m, n, seed):
    plain, parts = kernels("sddmm", which)
    csr = matrix(m, n, (seed % 5) / 4, seed)
    args = arguments(csr, seed=seed)
    del args["C"]
    np.testing.assert_array_equal(parts(A=csr, **args).data, plain(A=csr, **args).data)


def test_results_look_as_they_do_over_csr():
    plain, parts = kernels("sddmm", "bsr")
    csr = matrix(6, 5, 0.5)
    args = arguments(csr)
    del args["C"]
    for given_ in (csr, sps.csr_matrix(csr), csr.tocoo(), parts.convert(A=csr)):
        expected = plain(A=given_ if sps.issparse(given_) else csr, **args)
        got = parts(A=given_, **args)
        assert type(got) is type(expected)
        np.testing.assert_array_equal(got.toarray(), expected.toarray())
    tensor = spcomp.Tensor.from_scipy(csr)
    got = parts(A=tensor, **args)
    assert isinstance(got, spcomp.Tensor)
    np.testing.assert_array_equal(got.values, expected.data)
    out = np.empty(csr.nnz, np.float32)
    assert parts(A=csr, out=out, **args) is out
    np.testing.assert_array_equal(out, expected.data)


def test_a_bound_matrix_takes_values_of_its_pattern():
    plain, parts = kernels("sddmm", "hyb")
    csr = matrix(9, 7, 0.5)
    args = arguments(csr)
    del args["C"]
    bound = parts.bind(A=csr, X=args["X"])
    expected = plain(A=csr, **args)
    values = sps.csr_array((args["V"], csr.indices, csr.indptr), shape=csr.shape)
    for given_ in (args["V"], values):
        np.testing.assert_array_equal(bound(V=given_, Y=args["Y"]).data, expected.data)
    with pytest.raises(ArgumentError, match="X: is bound already"):
        bound(**args)
    dense = expected.toarray()
    csr.indices[:] = 0  # the result does not follow
    np.testing.assert_array_equal(bound(V=args["V"], Y=args["Y"]).toarray(), dense)


@pytest.mark.parametrize("name", ["sddmm", "steps"])
def test_a_matrix_without_padding_gives_what_it_does_over_csr(name):
    plain, parts = kernels(name, "bsr")
    blocks = sps.random_array((4, 3), density=0.5, format="csr", dtype=np.float32, rng=4)
    csr = sps.csr_array(sps.kron(blocks, np.ones((2, 2), np.float32)))
    csr.data[:] = np.arange(csr.nnz) % 5 + 1
    assert parts.convert(A=csr).full
    args = arguments(csr)
    expected, got = outcome(plain, csr, args), outcome(parts, csr, args)
    np.testing.assert_array_equal(got["C"], expected["C"])


WRONG = {
    "expected the same pattern": {"V": lambda csr: csr[::-1]},
    "number of elements": {"V": lambda csr: np.zeros(csr.nnz + 1, np.float32)},
    "missing argument V": {"V": None},
    "expected float32": {"V": lambda csr: np.zeros(csr.nnz)},
    "shares memory with V": {"C": "V"},
}


@pytest.mark.parametrize("message", WRONG)
def test_values_that_do_not_fit_are_refused(message):
    kernel, csr = kernels("sddmm", "bsr")[1], matrix(6, 5, 0.6)
    args = arguments(csr)
    for name, make in WRONG[message].items():
        if make is None:
            del args[name]
        else:
            args[name] = args[make] if isinstance(make, str) else make(csr)
    with pytest.raises(ArgumentError, match=message):
        kernel(A=csr, **args)


@pytest.mark.parametrize("which", FORMATS)
def test_what_was_converted_for_another_program_has_its_elements_by_rows(which):
    csr, other = matrix(6, 5, 0.6), format_helpers.program("spmv")
    made = spcomp.decompose(other, A=FORMATS[which]).compile().convert(A=csr)
    args = arguments(csr)
    plain, parts = kernels("sddmm", which)
    for stored in (made, spcomp.convert(csr, FORMATS[which])):
        got, want = outcome(parts, stored, args), outcome(plain, csr, args)
        np.testing.assert_array_equal(got["C"], want["C"])


def test_a_format_without_a_place_for_other_buffers_is_refused():
    with pytest.raises(FormatError, match="no place for other buffers"):
        spcomp.decompose(program("sddmm"), A=formats.sliced_diagonal(4))


def test_the_same_bits_come_from_any_number_of_threads():
    rng = np.random.default_rng(5)
    csr = sps.random_array((900, 700), density=0.02, format="csr", dtype=np.float32, rng=rng)
    args = {k: rng.random(v.shape, np.float32) for k, v in arguments(csr, 9).items() if k != "C"}
    for which in ("bsr", "hyb", "sr_bcrs"):
        found = []
        for threads in (1, 2, 5):
            with num_threads(threads):
                found.append(kernels("sddmm", which)[1](A=csr, **args).data.tobytes())
        assert len(set(found)) == 1


@pytest.mark.parametrize("which", ["bsr", "hyb", "sr_bcrs"])
def test_dense_axes_lie_before_and_behind(which):
    header = HEADER.replace("    V =", "    H = T.dense_fixed(2)\n    V =")
    header = header.replace("(v, (I, J)", "(v, (I, J, K)").replace("(c, (I, J)", "(c, (H, I, J, K)")
    body = """
    with T.sp_iter([H, I, J, K], "SSSS", "heads") as [h, i, j, k]:
        C[h, i, j, k] = A[i, j] * V[i, j, k] + X[i, k] * Y[j, k]
"""
    (func,) = parse_source(header + body, "f.py")
    csr = matrix(7, 6, 0.5)
    args = arguments(csr)
    del args["C"]
    args["V"] = np.arange(csr.nnz * 3, dtype=np.float32)
    parts = spcomp.decompose(func, A=FORMATS[which]).compile()
    out = [np.zeros(2 * csr.nnz * 3, np.float32) for _ in range(2)]
    spcomp.compile(func)(A=csr, **args, C=out[0])
    parts(A=csr, **args, C=out[1])
    np.testing.assert_array_equal(out[1], out[0])


@pytest.mark.parametrize("dtype", ["float64", "int32", "int64", "float16"])
def test_other_dtypes_and_indices_of_64_bits_work(dtype):
    text = (HEADER + BODIES["sddmm"]).replace('"int32")', '"int64")').replace("float32", dtype)
    if dtype.startswith("int"):
        text = text.replace("= 1.0", "= 1")
    (func,) = parse_source(text, "f.py")
    csr = matrix(7, 6, 0.5)
    csr = sps.csr_array((csr.data.astype(np.float32), csr.indices, csr.indptr), shape=csr.shape)
    args = {k: v.astype(dtype) for k, v in arguments(csr).items() if k != "C"}
    values = csr.data.astype(dtype)
    tensor = spcomp.Tensor(csr.shape, (None, ("compressed", csr.indptr, csr.indices)), values)
    expected = spcomp.compile(func)(A=tensor, **args)
    got = spcomp.decompose(func, A=FORMATS["bsr"]).compile()(A=tensor, **args)
    np.testing.assert_array_equal(got.values, expected.values)


@pytest.mark.parametrize("which", ["bsr", "hyb"])
def test_a_specialized_kernel_is_over_the_parts_and_explained_once(which):
    csr = matrix(8, 9, 0.5)
    kernel, args = kernels("sddmm", which)[1], arguments(csr)
    special = kernel.specialize(A=csr, X=args["X"], Y=args["Y"])
    assert isinstance(special, Kernel)
    text = kernel.explain(A=csr, X=args["X"], Y=args["Y"])
    assert text.count("A is stored as") == 1
    assert str(special.trace) in text
