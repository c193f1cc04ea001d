"""Pictures have what they draw, at any size, and are well-formed; notebooks show programs."""

from __future__ import annotations

import base64
import re
import zlib
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from examples.spmm import csrmm
from spcomp import viz
from spcomp.display.density import density
from spcomp.display.html import code
from spcomp.errors import ArgumentError, FileError, FormatError

CSR = sps.random_array((30, 20), density=0.1, format="csr", dtype=np.float32, rng=0)
DENSE = np.ones((20, 8), np.float32)


def pixels(svg: str) -> np.ndarray:
    """The PNG in *svg* as [rows, columns, 4]; it is of the kind that we write."""
    data = base64.b64decode(re.search(r"base64,([^\"]+)", svg)[1])
    wide, high = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    begin = data.index(b"IDAT") + 4
    size = int.from_bytes(data[begin - 8 : begin - 4], "big")
    rows = np.frombuffer(zlib.decompress(data[begin : begin + size]), np.uint8)
    return rows.reshape(high, 1 + 4 * wide)[:, 1:].reshape(high, wide, 4)


@pytest.mark.parametrize("of", ["csr", "coo", "dcsr", "dense", spcomp.formats.hyb(2)])
def test_a_spy_plot_is_opaque_where_elements_are(of):
    shown = pixels(viz.spy(spcomp.convert(CSR, of)).svg)
    assert np.array_equal(shown[..., 3] > 0, CSR.toarray() != 0)


def test_cells_of_a_large_matrix_count_their_elements():
    rows, columns = np.array([0, 1, 999, 999]), np.array([0, 0, 10**12 - 1, 5])
    grid = density([(rows, columns)], (1000, 10**12), most=10)
    assert grid.counts.shape == (1, 10, 10)
    assert [grid.counts[0][at] for at in ((0, 0), (9, 9), (9, 0))] == [2, 1, 1]
    assert grid.stored == 4


def test_denser_cells_are_more_opaque():
    grid = density([(np.zeros(9, int), np.array([0] * 8 + [1]))], (1, 2), most=2)
    ((dense, faint),) = grid.pixels()[..., 3]
    assert dense == 255
    assert 0 < faint < dense


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (1, 1)])
def test_there_may_be_nothing_to_draw(shape):
    picture = viz.spy(sps.csr_array(shape, dtype=np.float32))
    ET.fromstring(picture.svg)
    assert "0 stored" in picture.title


def test_a_vector_is_a_row_and_of_a_tensor_two_dimensions_are_drawn():
    assert "1 x 3, 2 stored" in viz.spy(np.array([1.0, 0.0, 2.0])).title
    assert "2 x 3" in viz.spy(np.ones((2, 3, 4))).title


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ArgumentError, match="expected a tensor"):
        viz.spy("A")
    with pytest.raises(ArgumentError, match="has no dimensions"):
        viz.spy(np.zeros(()))
    with pytest.raises(ArgumentError, match="argument most"):
        viz.spy(CSR, most=0)
    with pytest.raises(FormatError):
        viz.format(CSR, "no such format")
    with pytest.raises(ArgumentError, match="expected a program"):
        viz.forest(3)
    with pytest.raises(ArgumentError, match="has no axes"):
        viz.forest(spcomp.Schedule(csrmm).lower_sparse_buffer().func)


def test_a_format_of_several_parts_has_a_colour_and_a_bar_for_each():
    hyb = spcomp.formats.hyb(2, [1, 4], padded=True)
    parts, picture = spcomp.convert(CSR, hyb), viz.format(CSR, hyb)
    texts = " ".join(ET.fromstring(picture.svg).itertext())
    assert all(
        f"{name}: {len(rows)} elements" in texts for name, (rows, _) in parts.elements().items()
    )
    slots = sum(part["values"].size for part in parts.parts.values())
    assert f"{100 * (slots - CSR.nnz) / slots:.3g} % padding" in picture.title
    shown = pixels(picture.svg)
    places = [shown[rows, columns, :3] for rows, columns in parts.elements().values() if len(rows)]
    colours = [np.unique(place, axis=0) for place in places]
    assert all(len(colour) == 1 for colour in colours)
    assert len({tuple(colour[0]) for colour in colours}) == len(colours) > 2


def test_the_elements_of_parts_are_those_of_the_matrix():
    for layout in (spcomp.formats.hyb(2), spcomp.formats.sliced_diagonal(), spcomp.formats.hyb()):
        parts = spcomp.convert(CSR, layout).elements()
        rows, columns = (np.concatenate([part[at] for part in parts.values()]) for at in (0, 1))
        assert sorted(zip(rows, columns, strict=True)) == sorted(zip(*CSR.nonzero(), strict=True))


def test_blocks_are_filled_up_with_padding():
    stored = spcomp.convert(CSR, "bsr(2)").data.size
    assert f"{100 * (stored - CSR.nnz) / stored:.3g} % padding" in viz.format(CSR, "bsr(2)").title


def test_a_forest_names_all_axes(tmp_path):
    viz.forest(csrmm).save(tmp_path / "axes.svg")
    texts = list(ET.parse(tmp_path / "axes.svg").getroot().itertext())
    assert {"I", "J", "J_detach", "K"} <= set(texts)
    assert viz.forest(spcomp.Schedule(csrmm)).svg == viz.forest(csrmm).svg


def test_steps_are_shown_with_what_they_changed(tmp_path):
    sch = spcomp.Schedule(csrmm).lower_sparse_iter().parallel("i").unroll("k")
    steps = viz.schedule(sch)
    assert [step for step, _, _ in steps.steps] == [
        "lower_sparse_iter()",
        "parallel('i')",
        "unroll('k')",
    ]
    assert steps.steps[-1][2] == sch.func.script()
    assert "-    for i in T.serial(m):\n+    for i in T.parallel(m):" in str(steps)
    steps.save(tmp_path / "steps.html")
    assert (tmp_path / "steps.html").read_text().count("<details>") == 3
    assert viz.schedule(spcomp.Schedule(csrmm)).steps == ()
    elsewhere = spcomp.Schedule(spcomp.Schedule(csrmm).lower_sparse_iter().func, sch.trace)
    with pytest.raises(ArgumentError, match="cannot be applied again"):
        viz.schedule(elsewhere)


def test_a_roofline_counts_operations_and_bytes():
    kernel = spcomp.compile("C[i, k] = A[i, j] * B[j, k]")
    found = viz.roofline(kernel, A=CSR, B=DENSE)
    assert found.operations == pytest.approx(2 * CSR.nnz * 8)
    arrays = CSR.data, CSR.indices, CSR.indptr, DENSE
    assert found.moved == sum(array.nbytes for array in arrays) + 30 * 8 * 4
    assert 0 < found.limit <= found.peak
    assert "FLOP/s" in str(found)
    ET.fromstring(found.svg)
    assert viz.roofline(spcomp.compile(csrmm), A=CSR, B=DENSE, operations=7).operations == 7
    assert viz.roofline(kernel.bind(A=CSR), B=DENSE).operations == found.operations
    scaled = spcomp.compile("C[i, k] = s * A[i, j] * B[j, k]")
    assert viz.roofline(scaled, A=CSR, B=DENSE, s=2.5).operations > found.operations
    with pytest.raises(ArgumentError, match="argument operations"):
        viz.roofline(kernel, A=CSR, B=DENSE, operations=0)
    with pytest.raises(ArgumentError, match="no operations on floats"):
        viz.roofline(spcomp.compile("a[i] = any(j, A[i, j] > 0)"), A=CSR)


def test_matplotlib_gets_the_same_data():
    calls = []
    record = lambda *args, **named: calls.append((args, named))  # noqa: E731
    ax = SimpleNamespace(imshow=record, set_title=record, loglog=record, plot=record, set=record)
    assert viz.spy(CSR, ax=ax) is ax
    assert np.array_equal(calls[0][0][0][..., 3] > 0, CSR.toarray() != 0)
    found = viz.Roofline("f", 100.0, 50.0, 1e-6, 1e9, 1e10)
    assert found.draw(ax) is ax
    assert ([2.0], [1e8], "o") in [args for args, _ in calls[2:]]


def shown(thing: object) -> str:
    """What a notebook shows, which is well-formed."""
    html = thing._repr_html_()
    ET.fromstring(f"<div>{html}</div>")
    return html


def test_programs_are_coloured_and_lose_no_character():
    text = "".join(ET.fromstring(shown(csrmm)).itertext())
    assert text == csrmm.script().rstrip()
    assert '<span style="color:#b45fc4">with</span>' in shown(csrmm)
    assert ET.fromstring(code('x = """a\nb""" # é <&>\ny = 1\n')).text is None
    assert code("") == code("\n")


def test_notebooks_show_kernels_schedules_and_tensors():
    kernel = spcomp.compile(csrmm)
    assert "<td" in shown(kernel)
    assert "<li>" in shown(kernel.bind(A=CSR))
    notation = spcomp.compile("y[i] = A[i, j] * x[j]")
    assert "<table" not in shown(notation)  # its formats are not known yet
    assert "y[i] = A[i, j] * x[j]" in shown(notation)
    notation(A=CSR, x=np.ones(20, np.float32))
    assert "<table" in shown(notation)
    sch = spcomp.Schedule(csrmm).lower_sparse_iter().parallel("i")
    assert "parallel(&#x27;i&#x27;)" in shown(sch)
    assert "indptr, indices" in shown(spcomp.Format("csr"))
    assert "int32[31]" in shown(spcomp.Tensor.from_scipy(CSR))
    assert "<image" in shown(spcomp.Tensor.from_scipy(CSR))
    assert "<image" not in shown(spcomp.convert(np.ones(3), "sparse"))
    assert "levels: dense, compressed" in shown(spcomp.Format("csr"))
    assert "ms</td>" in shown(kernel)  # the time of compilation
    assert "median" in shown(kernel.time_evaluator(number=1)(A=CSR, B=DENSE))
    shown(spcomp.Tensor((0, 0), (None, None), np.zeros(0)))
    assert "<td" in shown(spcomp.convert(CSR, spcomp.formats.hyb(2)))


def test_pictures_are_not_saved_as_what_they_are_not(tmp_path):
    picture = viz.forest(csrmm)
    with pytest.raises(ArgumentError, match=r"x.png is no name of an SVG file"):
        picture.save(tmp_path / "x.png")
    with pytest.raises(FileError, match="cannot be written: No such file"):
        picture.save(tmp_path / "missing" / "x.svg")
