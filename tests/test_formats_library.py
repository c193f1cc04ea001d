"""The formats of the library: what programs over them compute, and how matrices are converted."""

import numpy as np
import pytest
import scipy.sparse as sps
from hypothesis import given
from hypothesis import strategies as st

import spcomp
from spcomp.errors import ArgumentError, FormatError
from spcomp.formats import Kept, bsr, dbsr, dcsr, dia, ell, ell3d, hyb, padding, sr_bcrs
from spcomp.ir.printer.program import print_program
from spcomp.script.parse import parse_source
from tests.format_helpers import (
    BODIES,
    HEADER,
    in_format,
    in_rows,
    interpreted_parts,
    matrices,
    others,
    output,
    parse,
    program,
)

FORMATS = {
    "bsr": bsr(2),
    "bsr of a pair": bsr((3, 4)),
    "dbsr": dbsr(3),
    "dcsr": dcsr(),
    "ell": ell(),
    "ell of 2": ell(2),
    "padding": padding(3),
    "sr_bcrs": sr_bcrs(4, 2),
    "dia": dia(),
    "hyb": hyb(1, [1, 2, 4]),
    "hyb of parts": hyb(3, [2, 4]),
    "hyb that pads": hyb(2, [1, 2, 4], padded=True),
}
SOME = {name: FORMATS[name] for name in ("bsr", "padding", "hyb", "hyb that pads")}
MATRICES = matrices()


def computed(name, layout, csr):
    """What the program *name* computes in compressed rows, and over the parts of *layout*."""
    dense = others(name, csr.shape)
    outs = [output(name, csr.shape) for _ in range(2)]
    in_rows(name)(A=csr, **dense, out=outs[0])
    in_format(name, layout)(A=csr, **dense, out=outs[1])
    return outs


CASES = [(name, which) for name in BODIES for which in ("bsr", "hyb", "hyb that pads")]
CASES += [(name, which) for name in ("spmv", "max") for which in FORMATS]


@pytest.mark.parametrize(("name", "which"), dict.fromkeys(CASES))
@pytest.mark.sample(16, long=4)
def test_a_program_over_parts_computes_what_it_does_over_csr(name, which):
    for csr in MATRICES.values():
        want, got = computed(name, FORMATS[which], csr)
        np.testing.assert_array_equal(got, want)


@pytest.mark.sample(4, long=3)
@pytest.mark.parametrize("which", FORMATS)
@pytest.mark.parametrize("name", ["spmv", "max"])
def test_the_interpreter_agrees_on_what_the_parts_mean(name, which):
    for key in ("nothing stored", "wide", "empty rows", "stored zeros"):
        csr = MATRICES[key]
        dense, start = others(name, csr.shape), output(name, csr.shape)
        want = start.copy()
        in_rows(name)(A=csr, **dense, out=want)
        kernel = in_format(name, FORMATS[which])
        np.testing.assert_array_equal(interpreted_parts(kernel, csr, dense["B"], start), want)


@st.composite
def layouts(draw):
    """Any format with small sizes."""
    size = st.integers(1, 5)
    widths = st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True).map(sorted)
    return draw(
        st.one_of(
            st.builds(bsr, st.tuples(size, size)),
            st.builds(dbsr, size),
            st.builds(dcsr),
            st.builds(ell, st.one_of(st.none(), size)),
            st.builds(padding, size),
            st.builds(sr_bcrs, size, size),
            st.builds(hyb, st.integers(1, 3), widths, padded=st.booleans()),
        )
    )


@given(layouts(), st.integers(0, 20), st.integers(0, 20), st.integers(0, 99), st.data())
def test_any_matrix_is_what_it_was_in_any_format(layout, m, n, seed, data):
    density = data.draw(st.sampled_from([0.05, 0.4, 0.9]))
    rng = np.random.default_rng(seed)
    csr = sps.csr_array((rng.random((m, n)) < density) * rng.integers(1, 9, (m, n)) * 1.0)
    csr = csr.astype(np.float32)
    csr.data[rng.random(csr.nnz) < 0.1] = 0
    dense = rng.integers(-4, 5, (n, 2)).astype(np.float32)
    kernel = spcomp.decompose(program("spmv"), A=layout).compile()
    out = np.full((m, 2), 7, np.float32)
    np.testing.assert_array_equal(interpreted_parts(kernel, csr, dense, out), csr @ dense)


@given(st.sampled_from(list(FORMATS)), st.integers(0, 25), st.integers(0, 25), st.integers(0, 99))
def test_compiled_programs_over_parts_compute_what_they_do_over_csr(which, m, n, seed):
    rng = np.random.default_rng(seed)
    pattern = rng.random((m, n)) < rng.choice([0.05, 0.3, 0.8])
    csr = sps.csr_array(pattern * rng.integers(1, 9, (m, n))).astype(np.float32)
    csr.data[rng.random(csr.nnz) < 0.1] = 0
    for name in ("spmv", "max"):
        want, got = computed(name, FORMATS[which], csr)
        np.testing.assert_array_equal(got, want)


VECTORS = """
    B = T.match_sparse_buffer(b, (N,), "float32")
    C = T.match_sparse_buffer(c, (I,), "float32")
    with T.sp_iter([I, J], "SR", "f") as [i, j]:
        with T.init():
            C[i] = {start}
        C[i] = {step}
"""
STEPS = {
    "sum": ("0.0", "C[i] + A[i, j] * B[j]"),
    "other sum": ("0.0", "C[i] - (A[i, j] + B[j])"),
    "max": ('T.min_value("float32")', "T.max(C[i], A[i, j] * B[j])"),
    "product": ("1.0", "C[i] * (A[i, j] + B[j])"),
}


@pytest.mark.parametrize("which", FORMATS)
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.sample(8, long=2)
def test_a_vector_is_read_where_something_is_stored_only(name, which):
    start, step = STEPS[name]
    text = HEADER.replace("feat: T.int32, ", "").replace("    K = T.dense_fixed(feat)\n", "")
    func = parse(text + VECTORS.format(start=start, step=step), "float32")
    csr = MATRICES["wide"].astype(np.float32)
    x = np.arange(1, csr.shape[1] + 1, dtype=np.float32) % 4 - 1.5
    x[np.diff(csr.tocsc().indptr) == 0] = np.nan
    want = spcomp.compile(func)(A=csr, B=x)
    assert np.isfinite(want).any()
    np.testing.assert_array_equal(
        spcomp.decompose(func, A=FORMATS[which]).compile()(A=csr, B=x), want
    )


def skewed(rows=400, columns=11_000, dtype=np.float32):
    """A matrix with a row of 9000 elements, one of 600, and short ones."""
    rng = np.random.default_rng(5)
    coo = sps.random_array((rows, columns), density=0.001, rng=rng).tocoo()
    long = rng.permutation(columns)[:9000], rng.permutation(columns)[:600]
    at = [coo.coords[0], np.full(9000, 17), np.full(600, 399)], [coo.coords[1], *long]
    row, column = map(np.concatenate, at)
    values = rng.integers(1, 9, len(row))
    return sps.csr_array((values, (row, column)), (rows, columns)).astype(dtype)


@pytest.mark.sample(4, long=3)
@pytest.mark.parametrize("which", [name for name in FORMATS if name != "dia"])
def test_long_rows_and_many_elements_are_converted(which):
    csr = skewed()
    dense = np.random.default_rng(6).integers(-4, 5, (11_000, 2)).astype(np.float32)
    np.testing.assert_array_equal(in_format("spmv", FORMATS[which])(A=csr, B=dense), csr @ dense)


@pytest.mark.sample(4, long=3)
@pytest.mark.parametrize("which", FORMATS)
def test_the_same_bits_come_from_any_number_of_threads(which):
    rng = np.random.default_rng(3)
    csr = sps.random_array((500, 300), density=0.05, rng=rng, dtype=np.float32, format="csr")
    csr, dense, result = sps.csr_array(csr), rng.random((300, 2), np.float32), set()
    kernel = in_format("spmv", FORMATS[which])
    for threads in (1, 2, 5):
        with spcomp.num_threads(threads):
            result.add(kernel(A=csr, B=dense).tobytes())
    assert len(result) == 1


@pytest.mark.parametrize("which", SOME)
@pytest.mark.parametrize("dtype", ["float64", "int32", "float16"])
@pytest.mark.sample(8, long=2)
def test_other_dtypes_work(which, dtype):
    func = parse(HEADER + BODIES["spmv"].replace("0.0", "0"), dtype)
    kernel = spcomp.decompose(func, A=FORMATS[which]).compile()
    for key in ("wide", "stored zeros"):
        csr = MATRICES[key]
        dense = others("spmv", csr.shape, dtype=dtype)["B"]
        want = (csr @ dense.astype(np.float32)).astype(dtype)
        csr = csr if dtype == "float16" else csr.astype(dtype)
        arguments = spcomp.Tensor.from_scipy(csr).with_values(csr.data.astype(dtype))
        np.testing.assert_array_equal(kernel(A=arguments, B=dense), want)


def test_bfloat16_travels_as_its_bits():
    func = parse(HEADER + BODIES["spmv"], "bfloat16")
    csr = MATRICES["wide"]
    bits = (csr.data.view(np.uint32) >> 16).astype(np.uint16)
    dense = others("spmv", csr.shape)["B"]
    arguments = spcomp.Tensor.from_scipy(csr).with_values(bits)
    short = (dense.view(np.uint32) >> 16).astype(np.uint16)
    for layout in (bsr(2), hyb(1, [1, 2])):
        got = spcomp.decompose(func, A=layout).compile()(A=arguments, B=short)
        back = (np.asarray(got).astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_array_equal(back, csr @ dense)


@pytest.mark.parametrize("which", SOME)
def test_indices_of_64_bits_work(which):
    kernel = in_format("spmv", FORMATS[which], idtype="int64")
    for key in ("wide", "nothing stored"):
        csr = MATRICES[key]
        dense = others("spmv", csr.shape)["B"]
        np.testing.assert_array_equal(kernel(A=csr, B=dense), csr @ dense)


@pytest.mark.sample(4, long=3)
@pytest.mark.parametrize("which", FORMATS)
def test_padding_reads_no_infinity_and_no_nan_of_the_operand(which):
    csr = MATRICES["rows that are no multiple"]
    dense = others("spmv", csr.shape)["B"]
    dense[5], dense[14] = np.inf, np.nan
    want, got = in_rows("spmv")(A=csr, B=dense), in_format("spmv", FORMATS[which])(A=csr, B=dense)
    np.testing.assert_array_equal(got, want)
    assert np.isfinite(got).sum() > np.isfinite(got).size // 2


@pytest.mark.parametrize("which", FORMATS)
def test_a_stored_zero_stays_an_element(which):
    csr = MATRICES["stored zeros"]
    dense = np.full((20, 2), np.inf, np.float32)
    got = in_format("spmv", FORMATS[which])(A=csr, B=dense)
    np.testing.assert_array_equal(got, in_rows("spmv")(A=csr, B=dense))
    assert np.isnan(got).any()


def test_repeated_elements_are_summed_and_unsorted_rows_are_taken():
    coo = sps.coo_array(([1.0, 2.0, 4.0], ([1, 1, 2], [3, 3, 0])), (6, 6)).astype(np.float32)
    dense = others("spmv", (6, 6))["B"]
    level = ("compressed", np.array([0, 3, 3, 5]), np.array([4, 0, 2, 5, 1]))
    tensor = spcomp.Tensor((3, 6), (None, level), np.arange(1, 6, dtype=np.float32))
    for layout in SOME.values():
        kernel = in_format("spmv", layout)
        np.testing.assert_array_equal(kernel(A=coo, B=dense), coo @ dense)
        np.testing.assert_array_equal(kernel(A=tensor, B=dense), tensor.to_dense() @ dense)


def test_a_tensor_with_an_element_twice_is_refused():
    level = ("compressed", np.array([0, 3]), np.array([1, 4, 1]))
    twice = spcomp.Tensor((1, 6), (None, level), np.ones(3, np.float32))
    for layout in SOME.values():
        with pytest.raises(ArgumentError, match="argument A: has an element twice"):
            in_format("spmv", layout).convert(A=twice)


def test_blocks_are_those_of_scipy():
    csr = MATRICES["scattered"][:24, :24].tocsr()
    result, want = in_format("spmv", bsr(4)).convert(A=csr), csr.tobsr((4, 4)).sorted_indices()
    blocks = result.parts["blocks"]
    np.testing.assert_array_equal(blocks["JO_indptr"], want.indptr)
    np.testing.assert_array_equal(blocks["JO_indices"], want.indices)
    np.testing.assert_array_equal(blocks["values"].reshape(-1, 4, 4), want.data)
    assert result.parts["rest"]["values"].size == 0


def test_rows_are_cut_into_pieces_that_fill_buckets():
    csr = sps.csr_array(np.tril(np.ones((14, 14), np.float32)))
    parts = in_format("spmv", hyb(1, [1, 4, 8])).convert(A=csr).parts
    assert parts["0_2"]["R_indices"].tolist() == [7, 8, 9, 10, 11, 12, 13]
    assert parts["0_1"]["R_indices"].tolist() == [3, 4, 5, 6, 11, 12, 13]
    assert parts["0_0"]["R_indices"].tolist() == [0, 1, 1, 2, 2, 2, 4, 5, 5, 6, 6, 6, 8, 9, 9,
                                                  10, 10, 10, 12, 13, 13]  # fmt: skip
    assert sum(part["values"].size for part in parts.values()) == csr.nnz


def test_padded_rows_lie_in_the_first_bucket_that_holds_them_and_hubs_in_pieces():
    csr = sps.csr_array(np.tril(np.ones((7, 7), np.float32)))
    parts = in_format("spmv", hyb(1, [1, 2, 4], padded=True)).convert(A=csr).parts
    assert parts["0_0"]["R_indices"].tolist() == [0]
    assert parts["0_1"]["R_indices"].tolist() == [1]
    assert parts["0_2"]["R_indices"].tolist() == [2, 3, 4, 4, 5, 5, 6, 6]
    assert parts["0_2"]["J_indices"][:4].tolist() == [0, 1, 2, 2]
    assert parts["0_2"]["values"][:4].tolist() == [1, 1, 1, 0]


def test_column_parts_hold_their_columns():
    csr = MATRICES["full"]
    result = in_format("spmv", hyb(3, [2, 4])).convert(A=csr).parts
    for part in range(3):
        for bucket in range(2):
            columns = result[f"{part}_{bucket}"]["J_indices"]
            assert set(columns // 5) <= {part}


def test_tiles_list_the_columns_that_any_of_their_rows_has():
    csr = sps.csr_array(np.array([[1, 0, 2, 0], [0, 0, 3, 4]], np.float32))
    tiles = in_format("spmv", sr_bcrs(2, 2)).convert(A=csr).parts["tiles"]
    assert tiles["JO_indptr"].tolist() == [0, 2]
    assert tiles["JI_indices"].tolist() == [0, 2, 3, 3]
    assert tiles["values"].reshape(4, 2).tolist() == [[1, 0], [2, 3], [0, 4], [0, 0]]


def test_diagonals_that_are_not_worth_it_are_refused():
    rng = np.random.default_rng(0)
    coo = rng.permutation(3000)[:900], rng.permutation(3000)[:900]
    csr = sps.csr_array((np.ones(900, np.float32), coo), (3000, 3000))
    with pytest.raises(ArgumentError, match=r"'diagonals' would store \d+ values for 900 "):
        in_format("spmv", dia()).convert(A=csr)


CSF = """from spcomp import script as T

@T.prim_func
def f(a: T.handle, b: T.handle, c: T.handle, p1: T.handle, i1: T.handle, p2: T.handle,
      i2: T.handle, r: T.int32, m: T.int32, n: T.int32, rows: T.int32, nnz: T.int32) -> None:
    R = T.dense_fixed(r)
    I = T.sparse_variable(R, (m, rows), (p1, i1), "int32")
    J = T.sparse_variable(I, (n, nnz), (p2, i2), "int32")
    M = T.dense_fixed(m)
    N = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (R, I, J), "float32")
    B = T.match_sparse_buffer(b, (R, N), "float32")
    C = T.match_sparse_buffer(c, (M,), "float32")
    with T.sp_iter([R, I, J], "RSR", "f") as [r_, i, j]:
        with T.init():
            C[i] = 0.0
        C[i] = C[i] + A[r_, i, j] * B[r_, j]
"""


def relations(rng, shape, density):
    """A tensor of relations with whole numbers, and the same as an array."""
    full = (rng.random(shape) < density) * rng.integers(1, 9, shape).astype(np.float32)
    kept = [np.flatnonzero(part.any(axis=1)) for part in full]
    rows = [sps.csr_array(part[some]) for part, some in zip(full, kept, strict=True)]
    first = np.cumsum([0, *(len(some) for some in kept)])
    lengths = np.concatenate([np.diff(part.indptr) for part in rows])
    levels = (
        None,
        ("compressed", first, np.concatenate(kept)),
        ("compressed", np.cumsum([0, *lengths]), np.concatenate([part.indices for part in rows])),
    )
    return spcomp.Tensor(shape, levels, np.concatenate([part.data for part in rows])), full


@pytest.mark.parametrize("buckets", [[(2, 3)], [(4, 1), (2, 2), (1, 8)], [(1, 1)]])
def test_relations_in_buckets_compute_what_they_do_in_fibers(buckets):
    kernel = spcomp.decompose(parse(CSF), A=ell3d(buckets)).compile()
    rng = np.random.default_rng(8)
    for shape, density in (((3, 9, 7), 0.3), ((2, 30, 40), 0.05), ((1, 1, 1), 1.0), ((2, 4, 5), 0)):
        tensor, full = relations(rng, shape, density)
        dense = rng.integers(-4, 5, (shape[0], shape[2])).astype(np.float32)
        want = np.einsum("rij,rj->i", full, dense)
        np.testing.assert_array_equal(kernel(A=tensor, B=dense), want)


def test_hyb_chooses_by_the_lengths_of_rows():
    def chosen(lengths, columns):
        parts = hyb(buckets=[1]).chosen(lengths, columns).col_parts
        assert hyb(parts).chosen(lengths, columns).col_parts == parts
        return parts, hyb(parts).chosen(lengths, columns).buckets

    assert chosen(np.array([0, 0]), 10) == (1, (1,))
    assert chosen(np.full(100, 3), 100) == (1, (1, 2))
    assert chosen(np.full(100, 50), 100) == (1, (1, 2, 4, 8, 16, 32))
    assert chosen(np.full(100, 100), 1 << 15) == (4, (1, 2, 4, 8, 16))
    assert chosen(np.full(9, 5000), 1 << 20)[0] == 8
    assert hyb(2).chosen(np.full(9, 5000), 1 << 20).col_parts == 2
    assert hyb(buckets=[3]).chosen(np.full(9, 8), 9) == hyb(1, [3])


@pytest.mark.parametrize("layout", [hyb(), hyb(2), hyb(buckets=[1, 2])])
def test_a_kernel_chooses_for_each_matrix_and_keeps_what_it_made(layout):
    kernel = spcomp.decompose(program("spmv"), A=layout).compile()
    for key in ("full", "scattered", "nothing stored", "wide"):
        csr = MATRICES[key]
        dense = others("spmv", csr.shape)["B"]
        np.testing.assert_array_equal(kernel(A=csr, B=dense), csr @ dense)
        result = kernel.convert(A=csr)
        np.testing.assert_array_equal(kernel(A=result, B=dense), csr @ dense)
        np.testing.assert_array_equal(kernel.bind(A=csr)(B=dense), csr @ dense)
        assert kernel.choose(A=csr) is kernel.choose(A=result)
        assert not result.format.is_open
    with pytest.raises(ArgumentError, match="missing argument A of f"):
        kernel(B=dense)


def test_hyb_keeps_the_program_where_nothing_is_given():
    plain, open_ = program("spmv"), spcomp.decompose(program("spmv"), A=hyb())
    result = open_.settle(A=MATRICES["full"])
    assert result.formats["A"] == Kept()
    assert result.func is result.source
    kept, csr = open_.compile().choose(A=MATRICES["full"]), MATRICES["full"].copy()
    assert kept.trace == spcomp.compile(plain).trace
    bound, dense = kept.bind(A=csr), others("spmv", csr.shape)["B"]
    want = csr @ dense
    csr.data[:] = 0
    np.testing.assert_array_equal(bound(B=dense), want)  # as of all formats, a copy


def test_what_is_chosen_can_be_printed():
    program_ = spcomp.decompose(program("spmv"), A=hyb(1))
    result = program_.settle(A=MATRICES["full"])
    assert result.formats["A"] == hyb(1, [1, 2, 4, 8])
    assert 'T.sp_iter([O_0_3, R_0_3, J_0_3, K], "SRRS", "f_0_3")' in result.script()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bsr(0), "block is 0, expected a positive integer"),
        (lambda: bsr((2, 2, 2)), "expected an integer or two"),
        (lambda: bsr(1000), r"expected sizes in 1..256"),
        (lambda: ell(True), "width is True"),
        (lambda: padding(-1), "size is -1"),
        (lambda: sr_bcrs(2, 0), "group is 0"),
        (lambda: hyb(0), "col_parts is 0"),
        (lambda: hyb(65), r"col_parts is 65, expected an integer in 1..64"),
        (lambda: hyb(1, []), r"buckets is \[\], expected widths that ascend"),
        (lambda: hyb(1, [2, 2]), "expected widths that ascend"),
        (lambda: ell3d([(1, 4), (1, 2)]), "with ascending widths"),
        (lambda: ell3d([]), "with ascending widths"),
    ],
)
def test_a_format_out_of_range_is_refused(make, message):
    with pytest.raises(FormatError, match=message):
        make()


def test_a_buffer_that_has_no_place_in_a_format_is_refused():
    for layout in (*FORMATS.values(), hyb()):
        with pytest.raises(FormatError, match="B cannot be stored in"):
            spcomp.decompose(program("spmv"), B=layout)
    with pytest.raises(FormatError, match="A cannot be stored in padded rows of relations"):
        spcomp.decompose(program("spmv"), A=ell3d([(1, 1)]))


def test_padded_parts_run_in_vectors_and_are_skipped_by_one_condition():
    kernel = spcomp.decompose(program("spmv"), A=hyb(1, [4], padded=True))
    flat = kernel.compile(constants={"feat": 32}).stage("flat")
    lines = [line.strip() for line in flat.splitlines()]
    at = lines.index("if A_0_0[r * 4 + j_1] != 0.0:")
    assert lines[at + 1].startswith("for k_1_i_v in T.unroll(")
    assert lines[at + 2].startswith("C_local[T.ramp(")
    assert "if_then_else" not in lines[at + 2]
    (func,) = parse_source(flat, "f.py")
    assert print_program(func) == flat


@pytest.mark.parametrize("name", ["spmv", "max"])
def test_a_matrix_without_padding_runs_without_conditions(name):
    kernel = spcomp.decompose(program(name), A=bsr(2)).compile()
    plain = spcomp.compile(program(name))
    blocks = sps.random_array((4, 3), density=0.6, format="csr", dtype=np.float32, rng=4)
    full = sps.csr_array(sps.kron(blocks, np.ones((2, 2), np.float32)))
    holed = full.copy()
    holed.data[3] = 0
    b = np.arange(12, dtype=np.float32).reshape(6, 2)
    for csr, stored in ((full, True), (holed, False)):
        assert kernel.convert(A=csr).full is stored
        bound = kernel.bind(A=csr)
        assert ("!= 0.0" not in bound.inner.kernel.stage("flat")) is stored
        np.testing.assert_array_equal(bound(B=b), plain(A=csr, B=b))
