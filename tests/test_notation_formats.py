"""Index notation over matrices in formats of several parts: asked for, and given."""

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import formats
from spcomp.errors import ArgumentError, FormatError, SpcompError
from spcomp.kernels.notation.kernel import NotationKernel
from tests.level_tensors import full
from tests.random_notation import Case, Writer

FORMATS = {
    "hyb": formats.hyb(2, [1, 2]),
    "padded": formats.hyb(1, [2], padded=True),
    "bsr": formats.bsr(2),
    "dbsr": formats.dbsr((2, 3)),
    "dcsr": formats.dcsr(),
    "ell": formats.ell(),
    "padding": formats.padding(2),
    "sr_bcrs": formats.sr_bcrs(2, 2),
    "dia": formats.dia(),
    "sliced": formats.sliced_diagonal(4),
    "sell": formats.sell(4),
    "slices": formats.sell(2, 1),
    "open": formats.hyb(col_parts=2),
    "named": "hyb",
    "kept": formats.hyb(),
}
ALONG = [name for name in FORMATS if name != "sliced"]  # which has no place for other buffers
PROGRAMS = {
    "y[i] = A[i, j] * x[j]": lambda a, s, o: a @ o["x"],
    "y[j] = A[i, j] * w[i] + x[j]": lambda a, s, o: o["w"] @ a + o["x"],
    "C[i, k] = A[i, j] * B[j, k]": lambda a, s, o: a @ o["B"],
    "y[i] = max(j, A[i, j])": lambda a, s, o: np.where(s, a, -np.inf).max(1, initial=-np.inf),
    "y[i] = sum(j, where(A[i, j] > 1, x[j], 0))": lambda a, s, o: (s & (a > 1)) @ o["x"],
    "t = A[i, j] * A[i, j]": lambda a, s, o: (a * a).sum(),
    "n[i] = X[i, k] * X[i, k] if A[i, j]": lambda a, s, o: s.sum(1) * (o["X"] ** 2).sum(1),
    "D[i, j] = A[i, j] + M[i, j]": lambda a, s, o: a + o["M"],
    "y[i] = A[i, j] * x[j] / sum(k, A[i, k])": lambda a, s, o: _quotient(a @ o["x"], a, s),
    "y[:] = A[1:6:2, j] * x[j]": lambda a, s, o: a[1:6:2] @ o["x"],
    "t = A[2, j] * x[j]": lambda a, s, o: a[2] @ o["x"],
}
LIKE = {  # results with the pattern of A
    "C[i, j] = 2 * A[i, j]": lambda a, s, o: 2 * a,
    "C[j, i] = A[i, j] * x[j]": lambda a, s, o: (a * o["x"]).T,
    "C[i, j] = A[i, j] * X[i, k] * Y[k, j]": lambda a, s, o: a * (o["X"] @ o["Y"]),
    "C[i, j] = X[i, k] * Y[k, j] if A[i, j]": lambda a, s, o: s * (o["X"] @ o["Y"]),
    "m[i] = max(j, A[i, j]); e[i, j] = exp(A[i, j] - m[i]) if A[i, j];"
    " C[i, j] = e[i, j] / sum(k, e[i, k])": lambda a, s, o: _softmax(a, s),
    "q[i, j] = X[i, k] * Y[k, j] if A[i, j]; m[i] = max(j, q[i, j]);"
    " e[i, j] = exp(q[i, j] - m[i]) if A[i, j];"
    " D[i, k] = e[i, j] * B[j, k] / sum(l, e[i, l])": lambda a, s, o: (
        _softmax(o["X"] @ o["Y"], s) @ o["B"]
    ),
}


def _quotient(above, a, s):
    with np.errstate(all="ignore"):
        return np.where(s.any(1), above / a.sum(1), 0)


def _softmax(a, s):
    with np.errstate(all="ignore"):
        made = np.where(s, np.exp(a - np.where(s, a, -np.inf).max(1, keepdims=True)), 0)
        return np.where(s, made / made.sum(1, keepdims=True), 0)


def matrix(m=8, n=9, density=0.4, dtype=np.float64):
    """A matrix with rows that are empty, a stored zero, and where it has elements."""
    rng = np.random.default_rng(m)
    stored = rng.random((m, n)) < density
    stored[3:5] = False
    array = np.where(stored, rng.integers(1, 5, (m, n)), 0).astype(dtype)
    csr = sps.csr_array((array[stored], np.nonzero(stored)), shape=(m, n))
    csr.data[1:2] = 0
    return csr, csr.toarray(), stored


def arguments(csr, text):
    m, n = csr.shape
    rng = np.random.default_rng(1)
    shapes = {"x": (n,), "w": (m,), "B": (n, 3), "X": (m, 2), "Y": (2, n), "M": (m, n)}
    made = {k: rng.integers(-2, 4, shape).astype(csr.dtype) for k, shape in shapes.items()}
    return {name: array for name, array in made.items() if f"{name}[" in text}


def check(text, layout, oracle, **options):
    kernel = spcomp.compile(text, formats={"A": layout})
    for csr, array, stored in (matrix(**options), matrix(6, 5, 0.0, **options)):
        own = arguments(csr, text)
        want = oracle(array, stored, own)
        inputs = (csr, spcomp.convert(csr, layout)) if text in PROGRAMS else (csr,)
        for given in inputs:
            calls = [kernel(A=given, **own), kernel.bind(A=given)(**own)]
            if own:
                calls.append(kernel.bind(**own)(A=given))
            for found in calls:
                found = full(found) if np.ndim(want) else found
                np.testing.assert_allclose(found, want, rtol=1e-5)
    return kernel


CASES = [(text, which) for text in PROGRAMS for which in ("hyb", "bsr", "named")]
CASES += [("y[i] = A[i, j] * x[j]", which) for which in FORMATS]
CASES_LIKE = [(text, which) for text in LIKE for which in ("hyb", "bsr")]
CASES_LIKE += [("C[j, i] = A[i, j] * x[j]", which) for which in ALONG]


@pytest.mark.parametrize(("text", "which"), dict.fromkeys(CASES))
@pytest.mark.sample(16, long=2)
def test_a_matrix_is_stored_in_the_format_that_is_asked_for(text, which):
    kernel = check(text, FORMATS[which], PROGRAMS[text])
    shown = {"open": "Hyb(col_parts=2, buckets=(1", "named": "Hyb(col_parts=1, buckets=(1"}
    shown["kept"] = "Hyb(col_parts=None, buckets=None, padded=False), iterated as csr, float64"
    assert f"]: {shown.get(which, FORMATS[which])}" in kernel.explain()


@pytest.mark.parametrize(("text", "which"), dict.fromkeys(CASES_LIKE))
@pytest.mark.sample(8, long=2)
def test_results_and_values_between_lie_along_the_parts(text, which):
    check(text, FORMATS[which], LIKE[text])


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_other_types_of_values_are_stored_so(dtype):
    text = "y[i] = A[i, j] * x[j]"
    for which in ("hyb", "dbsr", "dia", "sliced"):
        check(text, FORMATS[which], PROGRAMS[text], dtype=dtype)


def test_any_argument_is_stored_so():
    csr, array, _ = matrix()
    x = np.arange(9.0)
    wide, unsorted = csr.copy(), csr[:, ::-1].copy()[:, ::-1]
    wide.indptr, wide.indices = wide.indptr.astype(np.int64), wide.indices.astype(np.int64)
    frozen = csr.copy()
    for part in (frozen.data, frozen.indices, frozen.indptr):
        part.flags.writeable = False
    twice = sps.coo_array((np.tile(csr.tocoo().data / 2, 2), np.tile(csr.tocoo().coords, 2)))
    given = [csr, wide, unsorted, frozen, twice, sps.csr_matrix(csr), csr.tocsc(), csr.tocoo()]
    given += [csr.toarray(), spcomp.convert(csr, "hash"), spcomp.convert(csr, "dcsc")]
    for layout in ("hyb", formats.bsr(2), formats.dia()):
        kernel = spcomp.compile("y[i] = A[i, j] * x[j]", formats={"A": layout})
        for A in given:
            np.testing.assert_array_equal(kernel(A=A, x=x), array @ x)
            assert "iterated as" not in kernel.explain()


@pytest.mark.parametrize("name", ["lil", "dok"])
def test_formats_of_scipy_to_fill_are_refused_with_what_to_ask_for(name):
    for tensor in "Ay":
        with pytest.raises(ArgumentError, match=f"{name} is no format that") as caught:
            spcomp.compile("y[i] = A[i, j] * x[j]", formats={tensor: name})
        assert '"csr"' in str(caught.value)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_torch_tensors_are_stored_so_and_come_back():
    torch = pytest.importorskip("torch")
    _, array, _ = matrix()
    kernel = spcomp.compile("C[i, j] = A[i, j] * x[j]", formats={"A": "hyb"})
    A, x = torch.from_numpy(array).to_sparse_coo(), torch.arange(9.0, dtype=torch.float64)
    found = kernel(A=A, x=x)
    assert found.layout == torch.sparse_csr
    np.testing.assert_array_equal(found.to_dense().numpy(), array * np.arange(9.0))


def test_results_have_the_kind_of_the_matrix_and_out_is_written():
    csr, array, _ = matrix()
    for layout in ("hyb", formats.bsr(2)):
        kernel = spcomp.compile("C[i, j] = 2 * A[i, j]", formats={"A": layout})
        assert isinstance(kernel(A=csr), sps.csr_array)
        assert isinstance(kernel(A=spcomp.convert(csr, layout)), sps.csr_array)
        assert isinstance(kernel(A=sps.csr_matrix(csr)), sps.csr_matrix)
        out = csr.copy()
        assert kernel(A=csr, out=out) is out
        np.testing.assert_array_equal(out.toarray(), 2 * array)
        total = np.ones(8)
        spcomp.compile("y[i] += A[i, j]", formats={"A": layout})(A=csr, y=total)
        np.testing.assert_array_equal(total, 1 + array.sum(1))


def test_several_matrices_are_stored_each_in_its_format():
    csr, array, _ = matrix()
    other = sps.csr_array(np.arange(12.0).reshape(3, 4) % 5)
    text = "C[i, j] = A[i, j] * w[i]; y[k] = D[k, l] * v[l]"
    asked = {"A": formats.hyb(2, [1, 2]), "D": formats.sliced_diagonal(2)}
    kernel = spcomp.compile(text, formats=asked)
    C, y = kernel(A=csr, D=other, w=np.arange(8.0), v=np.arange(4.0))
    np.testing.assert_array_equal(C.toarray(), array * np.arange(8.0)[:, None])
    np.testing.assert_array_equal(y, other @ np.arange(4.0))
    assert "SlicedDiagonal(lanes=2" in kernel.explain()


def test_programs_in_several_steps_store_it_in_each():
    csr, array, _ = matrix()
    other = sps.csr_array(np.eye(8, 9) + array)
    text = "S[i, j] = D[i, j] + E[i, j]; y[i] = S[i, j] * x[j]; z[i] = A[i, j] * y[i]"
    kernel = spcomp.compile(text, formats={"A": "hyb"})
    found = kernel(A=csr, D=other, E=csr, x=np.arange(9.0))
    want = array.sum(1) * ((other + csr) @ np.arange(9.0))
    np.testing.assert_array_equal(found, want)
    assert "A[i, j]: Hyb(col_parts=1" in kernel.explain()


def test_python_objects_and_semirings_have_formats_of_parts():
    csr, array, stored = matrix()
    i, j = spcomp.indices("i j")
    A, x, y = spcomp.symbols("A x y")
    y[i] = A[i, j] * x[j]
    kernel = spcomp.compile(y, formats={"A": formats.hyb(1, [1, 4])}, semiring="min_plus")
    want = np.where(stored, array + np.arange(9.0), np.inf).min(1, initial=np.inf)
    np.testing.assert_array_equal(kernel(A=csr, x=np.arange(9.0)), want)


def test_reductions_inside_a_value_are_statements_of_their_own_where_parts_are_asked_for():
    text = "y[i] = A[i, j] * x[j] / sum(k, A[i, k]) + max(l, A[i, l])"
    parts = spcomp.compile(text, formats={"A": "hyb"})
    apart = ["sum_2[i] = sum(k, A[i, k])"]
    apart += ["y[i] = A[i, j] * x[j] / sum_2[i] + max(l, A[i, l])"]
    assert str(parts.program).split("\n") == apart
    assert str(spcomp.compile(text, formats={"A": "bsr(2)"}).program) == text
    large = "C[i, j] = A[i, j] * sum(k, X[i, k] * Y[k, j])"
    assert str(spcomp.compile(large, formats={"A": "hyb"}).program) == large


def test_the_kernel_and_its_code_are_those_of_the_format_chosen():
    csr, _, _ = matrix()
    kernel = spcomp.compile("y[i] = A[i, j] * x[j]", formats={"A": "hyb"})
    made = kernel.specialize(A=csr, x=np.ones(9))
    assert made.program.formats["A"] == spcomp.convert(csr, "hyb").format
    assert "A_0_0" in kernel.stage("position")
    assert "define" in kernel.source("llvm")
    assert "buckets=(1, 2, 4)" in kernel.explain(A=csr, x=np.ones(9))


# -- given in parts ------------------------------------------------------------------------------


def test_parts_that_are_given_are_used_as_they_are_where_they_can_be(monkeypatch):
    csr, array, _ = matrix()
    for layout in ("hyb", formats.bsr(2), formats.dia(), formats.sliced_diagonal(4)):
        made = spcomp.convert(csr, layout)
        kernel = spcomp.compile("D[i, j] = A[i, j] + M[i, j]")
        M = np.ones(csr.shape)
        calls = (
            lambda: kernel(A=made, M=M),  # noqa: B023
            lambda: kernel.bind(M=M)(A=made),  # noqa: B023
            lambda: kernel.bind(A=made)(M=M),  # noqa: B023
        )
        for call in calls:
            call()  # planned by what it holds
        with monkeypatch.context() as patch:
            patch.setattr(spcomp.Parts, "to_tensor", None)
            for call in calls:
                np.testing.assert_array_equal(call(), array + M)
        assert f"A[i, j]: {made.format}, float64" in kernel.explain()


def test_parts_that_are_given_are_iterated_as_csr_where_a_program_cannot_have_them():
    csr, array, _ = matrix()
    other = sps.csr_array(np.triu(np.ones((8, 9))))
    for layout in ("hyb", formats.bsr(2), formats.ell()):
        made = spcomp.convert(csr, layout)
        for text, want in (
            ("C[i, j] = A[i, j] * D[i, j]", array * other.toarray()),
            ("C[i, j] = A[i, j] + D[i, j]", array + other.toarray()),
            ("C[i, j] = A[i, j] if A[i, j] > 1; y[i] = D[i, j]", np.where(array > 1, array, 0)),
        ):
            kernel = spcomp.compile(text)
            found = kernel(A=made, D=other)
            np.testing.assert_array_equal(full(found[0] if "y" in text else found), want)
            assert f"A[i, j]: {made.format}, iterated as csr, float64" in kernel.explain()


def test_parts_that_are_given_are_converted_where_another_format_is_asked_for():
    csr, array, _ = matrix()
    made = spcomp.convert(csr, formats.bsr(2))
    for asked in ("csr", "dcsr", "bsr(2)", "hyb", formats.dia()):
        kernel = spcomp.compile("y[i] = A[i, j] * x[j]", formats={"A": asked})
        np.testing.assert_array_equal(kernel(A=made, x=np.arange(9.0)), array @ np.arange(9.0))
    np.testing.assert_array_equal(spcomp.einsum("ij,j->i", made, np.arange(9.0)), array @ range(9))


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("C[i, j] = A[i, j] * D[i, j]", "C is assembled row by row"),
        ("y[i] = A[i, j] * D[i, j]", "A_j is not iterated on its own"),
        ("y[i] = A[i, j] * A[j, i]", ".*A.* is decomposed, but used other than at the element"),
        ("C[i, j] = A[i, j] if A[i, j] > 1", "C is assembled row by row"),
        ("y[i] = argmax(j, A[i, j])", "it does not iterate over all of I, A_j"),
    ],
)
def test_programs_that_cannot_have_parts_are_refused_and_not_run_over_csr(text, reason):
    csr, _, _ = matrix()
    for layout in ("hyb", formats.bsr(2)):
        kernel = spcomp.compile(text, formats={"A": layout})
        with pytest.raises(FormatError, match=f"cannot be stored as .*: {reason}") as caught:
            kernel(A=csr[:8, :8], **({"D": csr[:8, :8]} if "D" in text else {}))
        assert 'ask for "csr"' in caught.value.hint


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"C": "hyb"}, "C is a result, which is not made in parts"),
        ({"x": formats.bsr(2)}, "is no format of x, which has 1 dimensions"),
        ({"a": "hyb"}, "is no format of a, which has 0 dimensions"),
        ({"A": formats.ell3d([(1, 2)])}, "is no format of A, which has 2 dimensions"),
        ({"A": "hyb(1, 2)"}, r"'hyb\(1, 2\)' is no format of 2 dimensions"),
        ({"Z": "hyb"}, "the program has no Z"),
        ({"A": [formats.bsr(2)]}, "got list, expected a name or a Format"),
    ],
)
def test_formats_that_do_not_fit_are_refused_before_a_call(asked, message):
    with pytest.raises(ArgumentError, match=message):
        spcomp.compile("C[i, j] = a * A[i, j] * x[j]", formats=asked)


# -- at random -----------------------------------------------------------------------------------


def in_parts(seed: int) -> Case:
    """A random program, its matrices given in parts or to be stored in them."""
    case = Writer(seed).write()
    layouts = [*FORMATS.values()]
    sparse = (name for name in case.args if name in case.sparse and name != "C")
    for at, name in enumerate(sparse):
        if len(case.args[name].shape) != 2:
            continue
        layout = layouts[(seed + at) % len(layouts)]
        if seed % 3:
            case.formats = {**case.formats, name: layout}
        if seed % 3 != 1:
            case.args[name] = spcomp.convert(case.args[name], layout)
    return case


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_random_programs_compute_what_masked_numpy_does_or_say_why_not(start):
    for seed in range(start, start + 20):
        case = in_parts(seed)
        if case.unclear:
            continue
        kernel: NotationKernel = case.kernel()
        try:
            results = kernel(**case.arguments())
        except SpcompError as error:
            refused = error.message
        else:
            case.check(results, kernel)
            continue
        reasons = ["present everywhere, but", "by itself"]
        reasons += ["cannot be stored as"] if case.formats else []
        assert any(text in refused for text in reasons), f"seed {seed}: {refused}\n{case}"


def test_a_pattern_in_parts_is_not_shared_beside_an_assembled_result():
    A = sps.csr_array(np.array([[1.0, 0, 2], [0, 3, 0]]))
    x, z = (spcomp.convert(np.array(v), "sparse") for v in ([1.0, 0, 2], [3.0, 4, 0]))
    text = "t[j] = x[j] * z[j]; C[j, i] = A[i, j]"
    found = spcomp.compile(text)(A=spcomp.convert(A, formats.ell(2)), x=x, z=z)
    np.testing.assert_array_equal(full(found.t), [3, 0, 0])
    np.testing.assert_array_equal(found.C.toarray(), A.toarray().T)
    with pytest.raises(
        FormatError, match=r"C lies along A, and .* is assembled in the same program"
    ):
        spcomp.compile(text, formats={"A": "hyb"})(A=A, x=x, z=z)


@pytest.mark.parametrize("layout", [formats.ell(2), formats.hyb(1, [1, 2]), formats.bsr(2)])
def test_parts_beside_a_result_with_the_pattern_of_another_matrix(layout):
    f = np.array([[1.0, 0, 0, 2], [0, 0, 0, 0], [0, 3, 4, 5], [6, 7, 8, 9]])
    g = np.array([[2.25, 0], [0.25, 0]])
    kernel = spcomp.compile("C[j, l] = F[i, k] * G[j, l]")
    made = kernel(F=spcomp.convert(sps.csr_array(f), layout), G=sps.csr_array(g))
    np.testing.assert_array_equal(made.toarray(), f.sum() * g)
    assert "F[i, k]: csr" not in kernel.explain()


@pytest.mark.parametrize("layout", ["csr", "dcsr", "coo"])
def test_zeros_of_an_array_are_not_present_in_a_sparse_format(layout):
    A = np.array([[0.0, 1.0], [0.0, -2.0]])
    for text, want in (
        ("C[i, j] = exp(A[i, j])", [[0, np.e], [0, np.exp(-2)]]),
        ("y[i] = max(j, A[i, j])", [1, -2]),
    ):
        found = spcomp.compile(text, formats={"A": layout})(A=A)
        np.testing.assert_allclose(full(found), want)


@pytest.mark.parametrize("layout", ["dia", "ell", "hyb(1)"])
def test_parts_that_another_operand_hangs_on_are_iterated_as_csr(layout):
    """A runs over the columns of D, which a union hides in the loops."""
    rng = np.random.default_rng(0)
    A, B, D = (rng.random(shape) for shape in ((4, 3), (6, 4), (5, 4)))
    D[rng.random(D.shape) < 0.5] = 0
    kernel = spcomp.compile("R[l, k] = sum((i, j), (A[j, i] - B[k, j]) if D[l, j])")
    in_parts = {name: spcomp.convert(sps.csr_array(x), layout) for name, x in (("A", A), ("D", D))}
    made = kernel(**in_parts, B=sps.csr_array(B))
    terms = A[None, None] - B[None, :, :, None]  # 1 or l, k, j, i
    np.testing.assert_allclose(made, np.where(D[:, None, :, None] != 0, terms, 0).sum((2, 3)))
    assert "D[l, j]: " in kernel.explain()
