"""Levels with places that hold nothing, iterated as they are: ell, hash tables, diagonals."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import Format, Tensor
from spcomp.errors import ArgumentError, FormatError, LoweringError
from spcomp.ir.interpret.program import interpret
from spcomp.ir.printer.program import print_program
from spcomp.kernels.notation import arguments as notation_args
from spcomp.kernels.notation.stored import in_order
from spcomp.script.parse import parse_source
from tests.interpreted_notation import interpreted
from tests.level_tensors import full, present, random, tensor

NATIVE = ("ell", "hash", "dia", "dense,hashed,dense", "compressed,fixed", "compressed,hashed")
X = np.arange(1.0, 15.0).reshape(7, 2)
x, z = np.arange(7.0), np.arange(6.0)


def padded(array, stored, layout):
    """A Tensor whose padding is not a number."""
    made = tensor(array, stored, Format(layout))
    kept = made.elements()[1]
    values = np.full(made.values.size, np.nan)
    values[kept] = made.values.reshape(-1)[kept]
    return made.with_values(values.reshape(made.values.shape))


PROGRAMS = {  # of the values, and where they are present
    "y[i] = A[i, j] * x[j]": lambda a, p: a @ x,
    "y[j] = A[i, j] * z[i]": lambda a, p: a.T @ z,
    "C[i, k] = A[i, j] * X[j, k]": lambda a, p: a @ X,
    "s = A[i, j] * x[j] * z[i]": lambda a, p: z @ a @ x,
    "y[i] = A[i, j] * x[j] - z[i]": lambda a, p: a @ x - z,
    "y[i] = sum(j, exp(A[i, j]))": lambda a, p: (np.exp(a) * p).sum(axis=1),
    "s = B[i, j] if A[i, j]": lambda a, p: (z[:, None] + x)[p].sum(),
    "y[i] = max(j, A[i, j])": lambda a, p: np.where(p, a, -np.inf).max(axis=1),
}


@pytest.mark.parametrize("layout", ["ell", "hash", "dia"])
@pytest.mark.parametrize("text", PROGRAMS)
def test_a_level_with_padding_is_iterated_as_it_is_in_every_stage(text, layout):
    array, stored = random((6, 7))
    every = {"x": x, "z": z, "X": X, "B": z[:, None] + x}
    args = {name: every[name] for name in every if f"{name}[" in text}
    args["A"] = padded(array, stored, layout)
    kernel = spcomp.compile(text)
    want = PROGRAMS[text](array, present(args["A"]))
    np.testing.assert_allclose(kernel(**args), want, rtol=1e-14)
    assert f"{layout}, used as it is" in kernel.explain()
    for stage in ("coordinate", "position", "flat"):
        np.testing.assert_allclose(interpreted(kernel, args, stage), want, rtol=1e-14)


@pytest.mark.parametrize("layout", NATIVE)
def test_nothing_is_converted_at_a_call(layout, monkeypatch):
    def refuse(*args):
        raise AssertionError("converted")

    monkeypatch.setattr(notation_args, "stored", refuse)
    if layout.count(",") == 2:
        array, stored = random((6, 7, 2))
        A = tensor(array, stored, Format(layout))
        got = spcomp.compile("C[i, k] = A[i, j, k] * x[j]")(A=A, x=x)
        np.testing.assert_array_equal(got, np.einsum("ijk,j->ik", array, x))
        return
    array, stored = random((6, 7))
    got = spcomp.compile("y[i] = A[i, j] * x[j]")(A=tensor(array, stored, Format(layout)), x=x)
    np.testing.assert_array_equal(got, array @ x)


def test_of_two_that_are_needed_the_one_without_order_is_iterated():
    array, stored = random((6, 7))
    other, _ = random((6, 7), 1)
    kernel = spcomp.compile("s = A[i, j] * B[i, j]")
    for layout in ("ell", "dia"):
        A = tensor(array, stored, Format(layout))
        assert kernel(A=A, B=sps.csr_array(other)) == (array * other).sum()
        assert "in level 1 of A, reduced: its coordinates come in no order" in kernel.explain()


# -- tables that are probed ----------------------------------------------------------------------

PROBES = {  # of H, which is a table, and G, which is stored in another way
    "y[i] = G[i, j] * H[i, j]": lambda h, p, g, q: (g * h).sum(axis=1),
    "y[i] = G[i, j] * H[i, j] * (x[j] - H[i, j])": lambda h, p, g, q: (g * h * (x - h)).sum(axis=1),
    "y[i] = (G[i, j] - H[i, j] if G[i, j]) * x[j]": lambda h, p, g, q: ((g - h) * q) @ x,
    "y[i] = max(j, G[i, j] if H[i, j])": lambda h, p, g, q: np.where(p & q, g, -np.inf).max(axis=1),
    "y[k] = G[i, j] * G[k, j] * H[i, j]": lambda h, p, g, q: g @ (g * h).sum(axis=0),
    "C[i, j] = G[i, j] * H[i, j]": lambda h, p, g, q: g * h,
    "C[i, j] = G[i, j] if H[i, j]": lambda h, p, g, q: g * p,
}


@pytest.mark.parametrize("layout", ["csr", "dcsr", "hash", "ell", "dia", "bitmap"])
@pytest.mark.parametrize("text", PROBES)
def test_a_table_is_probed_where_another_operand_is_stored(text, layout):
    (h, p), (g, q) = random((6, 7)), random((6, 7), 1)
    given = {"H": padded(h, p, "hash"), "G": tensor(g, q, Format(layout))}
    if "x[" in text:
        given["x"] = x
    want = PROBES[text](h, present(given["H"]), g, present(given["G"]))
    kernel = spcomp.compile(text)
    np.testing.assert_allclose(full(kernel(**given)), want, rtol=1e-14)
    if layout not in ("hash", "bitmap") or text[0] == "C":
        assert "H[i, j]: hash, used as it is" in kernel.explain()
        assert "level 1 of H" not in kernel.explain()
    if text.startswith("C"):
        return
    for stage in ("coordinate", "position", "flat"):
        np.testing.assert_allclose(interpreted(kernel, given, stage), want, rtol=1e-14)


def test_a_bitmap_is_asked_beside_an_operand_that_a_sparse_result_is_like():
    (h, p), (g, _) = random((6, 7)), random((6, 7), 1)
    given = {"G": sps.csr_array(g), "H": tensor(h, p, Format("bitmap"))}
    for text, want in (
        ("C[i, j] = G[i, j] * H[i, j]", g * h),
        ("C[i, j] = G[i, j] if H[i, j]", g * p),
    ):
        kernel = spcomp.compile(text)
        np.testing.assert_array_equal(full(kernel(**given)), want)
        assert "H[i, j]: bitmap, float64" in kernel.explain()


def test_of_several_tables_the_first_is_iterated_and_the_others_are_probed():
    found = [random((6, 7), seed) for seed in range(3)]
    given = {n: tensor(a, s, Format("hash")) for n, (a, s) in zip("ABC", found, strict=True)}
    kernel = spcomp.compile("s = A[i, j] * B[i, j] * C[i, j]")
    assert kernel(**given) == np.prod([array for array, _ in found], axis=0).sum()
    assert "for j in level 1 of A" in kernel.explain()
    assert "if stored B[i, j] and C[i, j]" in kernel.explain()


def test_what_is_probed_bounds_no_loop():
    """Else all coordinates would be probed for, where few are stored."""
    (h, p), (g, _) = random((6, 7)), random((6, 7), 1)
    H, G = tensor(h, p, Format("hash")), sps.csr_array(g)
    for text, want in (
        ("y[i] = (G[i, j] + H[i, j]) * x[j]", (g + h) @ x),
        ("C[i, j] = G[i, j] + H[i, j]", g + h),
        ("C[i, j] = G[i, j] * x[j] + H[i, j]", g * x + h),
    ):
        kernel = spcomp.compile(text)
        given = {"G": G, "H": H} | ({"x": x} if "x[" in text else {})
        np.testing.assert_array_equal(full(kernel(**given)), want)
        assert "H[i, j]: hash, iterated as csr" in kernel.explain()


@pytest.mark.parametrize("idtype", [np.int32, np.int64])
def test_tables_of_any_size_are_probed(idtype):
    rng = np.random.default_rng(0)
    kernel = spcomp.compile("y[i] = A[i, j] * B[i, j]")
    for density in (0, 0.01, 0.3, 1):
        a, b = (rng.random((40, 90)) * (rng.random((40, 90)) < d) for d in (0.3, density))
        layout = Format("hash", idtype=np.dtype(idtype).name)
        B = spcomp.convert(sps.csr_array(b), layout)
        np.testing.assert_allclose(kernel(A=sps.csr_array(a), B=B), (a * b).sum(axis=1))


def test_rows_that_are_picked_by_a_padded_level_are_walked_where_it_has_a_coordinate():
    array, stored = random((6, 7))
    other, _ = random((7, 5), 1)
    kernel = spcomp.compile("C[i, k] = A[i, j] * B[j, k]", formats={"C": "dense"})
    for layout in ("ell", "hash", "dia"):
        args = {"A": padded(array, stored, layout), "B": sps.csr_array(other)}
        np.testing.assert_array_equal(kernel(**args), array @ other)
        assert "used as it is" in kernel.explain()


def test_sums_and_sparse_results_convert_and_say_so():
    array, stored = random((6, 7))
    A = tensor(array, stored, Format("ell"))
    kernel = spcomp.compile("C[i, j] = A[i, j] + B[i, j]")
    np.testing.assert_array_equal(full(kernel(A=A, B=sps.csr_array(array))), 2 * array)
    assert "A[i, j]: ell, iterated as csr" in kernel.explain()


def test_what_is_in_a_padded_row_twice_is_summed_before_all_else():
    indices = np.array([[1, 1, -1], [0, 2, -1]])
    A = Tensor((2, 3), (None, ("fixed", indices)), np.array([[3.0, 4.0, 0.0], [1.0, 2.0, 0.0]]))
    kernel = spcomp.compile("y[i] = max(j, A[i, j])")
    assert kernel(A=A).tolist() == [7.0, 2.0]
    assert "iterated as csr" in kernel.explain()
    mixed = Tensor((2, 3), (None, ("fixed", np.array([[2, -1, 0], [-1, 1, 2]]))), A.values)
    assert kernel(A=mixed).tolist() == [3.0, 2.0]
    assert "used as it is" in kernel.explain()


def test_rows_of_one_width_in_any_order_are_iterated_as_they_are():
    values = np.array([[3.0, 4.0], [1.0, 2.0]])
    for dtype in (np.int64, np.uint8):
        A = Tensor((2, 256), (None, ("fixed", np.array([[255, 1], [2, 0]], dtype))), values)
        kernel = spcomp.compile("y[i] = A[i, j] * x[j]")
        assert kernel(A=A, x=np.arange(256.0)).tolist() == [3 * 255 + 4, 2]
        assert "used as it is" in kernel.explain()
        twice = Tensor((2, 256), (None, ("fixed", np.array([[255, 255], [2, 0]], dtype))), values)
        least = spcomp.compile("y[i] = min(j, A[i, j])")
        assert least(A=twice).tolist() == [7.0, 1.0]
        assert "iterated as csr" in least.explain()


def test_padding_at_the_end_of_rows_is_foreseen_and_free_places_of_tables_are_not():
    array, stored = random((6, 7))
    kernel = spcomp.compile("y[i] = A[i, j] * x[j]")
    for layout, vectors in (("ell", False), ("hash", True)):
        made = kernel.specialize(A=tensor(array, stored, Format(layout)), x=x)
        assert ("vectorize" in str(made.trace)) == vectors


@pytest.mark.parametrize("layout", ["ell", "hash", "dia", "coo", "csf"])
def test_levels_are_made_axes_once_and_values_are_those_of_the_call(layout):
    array, stored = random((6, 7))
    A = tensor(array, stored, Format(layout))
    kernel = spcomp.compile("y[i] = A[i, j] * x[j]")
    for factor in (1, 2, 3):
        np.testing.assert_array_equal(kernel(A=A, x=x), factor * array @ x)
        A.values = array_of(A, (factor + 1) * array)
    assert in_order(A).levels is in_order(A).levels
    bound = kernel.bind(A=A)
    np.testing.assert_array_equal(bound(x=x), 4 * array @ x)


def array_of(made, array):
    """The values of a Tensor like *made* of the elements of *array*."""
    coordinates, places = made.elements()
    values = np.zeros(made.values.size)
    values[places] = array[coordinates]
    return values.reshape(made.values.shape)


def test_a_matrix_is_iterated_as_csr_where_that_is_asked_for():
    array, stored = random((6, 7))
    kernel = spcomp.compile("y[i] = A[i, j] * x[j]", formats={"A": "csr"})
    A = tensor(array, stored, Format("hash"))
    np.testing.assert_array_equal(kernel.bind(A=A)(x=x), array @ x)
    assert "used as it is" not in kernel.explain()


# -- axes of scripts -----------------------------------------------------------------------------

SCRIPT = """
from spcomp import script as T

@T.prim_func
def product(a: T.handle, b: T.handle, c: T.handle, indices: T.handle, m: T.int64, n: T.int64,
            w: T.int64) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_fixed(I, (n, w), indices, sorted=False, padded=True)
    N = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I, J), "float64")
    B = T.match_sparse_buffer(b, (N,), "float64")
    C = T.match_sparse_buffer(c, (I,), "float64")
    with T.sp_iter([I, J], "SR", "product") as [i, j]:
        with T.init():
            C[i] = 0.0
        C[i] = C[i] + A[i, j] * B[j]
"""


def script(*changes: tuple[str, str]):
    text = SCRIPT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_source(text, "padded.py")[0]


def test_a_padded_axis_takes_tensors_with_padding_and_arrays():
    array, stored = random((6, 7))
    A = tensor(array, stored, Format("ell"))
    kernel = spcomp.compile(script())
    np.testing.assert_array_equal(kernel(A=A, B=x), array @ x)
    level = A.levels[1]
    indices = level.indices.reshape(-1).astype(np.int32)
    given = {"a": A.values.reshape(-1), "indices": indices, "n": 7, "m": 6}
    np.testing.assert_array_equal(kernel(**given, B=x), array @ x)
    wrong = indices.copy()
    wrong[0] = -2
    with pytest.raises(ArgumentError, match=r"got -2 at position 0, expected -1\.\.6"):
        kernel(**given | {"indices": wrong}, B=x)
    plain = spcomp.compile(script((", padded=True", "")))
    with pytest.raises(ArgumentError, match="with padding"):
        plain(A=A, B=x)


def test_elements_of_a_padded_axis_are_found_and_padding_is_not():
    array, stored = random((6, 7))
    A = tensor(array, stored, Format("ell"))
    every = (("[I, J]", "[I, N]"), ("A[i, j]", "A[i, j - 1]"))
    kernel = spcomp.compile(script(*every))
    np.testing.assert_array_equal(kernel(A=A, B=x), array[:, :-1] @ x[1:])


def test_what_is_read_at_padding_is_not_read_before_it_is_known_to_be_none():
    program = script(
        ("indices: T.handle,", "indices: T.handle, p: T.handle,"),
        ("    C = T.match", '    P = T.match_sparse_buffer(p, (N,), "int64")\n    C = T.match'),
        ("B[j]", "B[P[j]]"),
    )
    array, stored = random((6, 7))
    A, places = tensor(array, stored, Format("ell")), np.array([3, 1, 0, 6, 2, 5, 4])
    np.testing.assert_array_equal(spcomp.compile(program)(A=A, B=x, P=places), array @ x[places])
    indices = A.levels[1].indices.astype(np.int32)
    raw = {"a": A.values.reshape(-1), "b": x, "p": places, "indices": indices.reshape(-1)}
    stages = spcomp.compile(program)._compiled.stages
    for stage in (stages.coordinate, stages.position, stages.flat):
        c = np.zeros(6)
        interpret(stage, raw | {"c": c, "m": 6, "n": 7, "w": indices.shape[1]})
        np.testing.assert_array_equal(c, array @ x[places])


def test_padding_makes_no_elements_of_a_result():
    keeps = script(
        ("    N = T.dense_fixed(n)\n", "    Z = T.sparse_variable(I, (n, None), (None, None))\n"),
        ('    B = T.match_sparse_buffer(b, (N,), "float64")\n', ""),
        ("C = T.match_sparse_buffer(c, (I,)", "C = T.match_sparse_buffer(c, (I, Z)"),
        ("        with T.init():\n            C[i] = 0.0\n", ""),
        ("C[i] = C[i] + A[i, j] * B[j]", "C[i, j] = 2.0 * A[i, j]"),
        ('"SR"', '"SS"'),
    )
    array, stored = random((6, 7))
    made = spcomp.compile(keeps)(A=tensor(array, stored, Format("ell")))
    assert made.nnz == stored.sum()
    np.testing.assert_array_equal(made.toarray(), 2 * array)


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("sorted=False, ", "", "an axis with padding has coordinates in no order"),
        ("padded=True", "shifted=True", "an axis that is shifted has padding"),
        (
            "sparse_fixed(I, (n, w), indices",
            "sparse_variable(I, (n, w), (b, indices), hashed=True, unique=False",
            "a coordinate once",
        ),
    ],
)
def test_a_padded_axis_that_is_none_is_refused(old, new, error):
    with pytest.raises(FormatError, match=error):
        script((old, new))


TABLES = (
    ("a: T.handle,", "a: T.handle, p: T.handle,"),
    ("T.sparse_fixed(I, (n, w), indices", "T.sparse_variable(I, (n, w), (p, indices), hashed=True"),
)


def test_a_hashed_axis_takes_tensors_of_tables_and_arrays_that_are_tables():
    array, stored = random((6, 7))
    A = tensor(array, stored, Format("hash"))
    _, level = A.levels
    p, indices = level.indptr.astype(np.int32), level.indices.astype(np.int32)
    given = {"a": A.values, "p": p, "indices": indices, "m": 6, "n": 7, "w": indices.size}
    for probes in ((), (("[I, J]", "[I, N]"),)):
        kernel = spcomp.compile(script(*TABLES, *probes))
        np.testing.assert_array_equal(kernel(A=A, B=x), array @ x)
        for _ in range(3):  # a call that was learnt, too
            np.testing.assert_array_equal(kernel(**given, B=x), array @ x)
        assert "hash_probe" in print_program(kernel._compiled.stages.position) or not probes
    wide = {"p": p + 3, "indices": np.r_[5, 5, 5, indices, 4], "w": indices.size + 4}
    wide |= {"a": np.r_[np.ones(3), A.values, 1.0], "indices": wide["indices"].astype(np.int32)}
    np.testing.assert_array_equal(kernel(**given | wide, B=x), array @ x)
    moved = given | {"indices": np.roll(indices, 1)}
    with pytest.raises(ArgumentError, match="where it would not be found"):
        kernel(**moved, B=x)
    with pytest.raises(ArgumentError, match="expected a power of two"):
        kernel(**given | {"p": p + (p > 0) * (p < 20)}, B=x)
    with pytest.raises(ArgumentError, match="expected dense,hashed"):
        kernel(A=tensor(array, stored, Format("csr")), B=x)


def test_positions_of_a_padded_axis_cannot_be_flattened():
    flat = script(("[I, J]", "[T.flatten(I, J)]"), ('"SR"', '"R"'), ("[i, j]", "[p]"),
                  ("C[i] = 0.0", "C[0] = 0.0"),
                  ("C[i] = C[i] + A[p] * B[j]", "C[0] = C[0] + B[0]"))  # fmt: skip
    with pytest.raises(LoweringError, match="an axis with padding cannot be flattened"):
        spcomp.compile(flat)


def test_a_dense_operand_of_another_width_of_positions_is_of_another_kind():
    small, large = (np.broadcast_to(np.int8(0), (n,)) for n in (100, 2**31 + 1))
    assert notation_args.kind_of(small) != notation_args.kind_of(large)
