"""The search space of the tuner: formats that statistics allow, decisions, and legal traces."""

from __future__ import annotations

import random

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import formats as F
from spcomp.compiler.options import Options
from spcomp.errors import ArgumentError
from spcomp.schedule.default.facts import Facts
from spcomp.tune.bound import Bounds
from spcomp.tune.choice import Choice
from spcomp.tune.layouts import format_of, format_text, formats_for, stored_per_element
from spcomp.tune.space import Candidate, Space
from spcomp.tune.statistics import matrix_statistics
from spcomp.tune.templates import DEFAULT, TEMPLATES
from tests.layers import source

ROWS, FEAT = 120, 40


spmm = source("csrmm")


def band() -> sps.csr_array:
    offsets = [-2, -1, 0, 1, 2]
    return sps.diags_array([1.0, 2, 3, 4, 5], offsets=offsets, shape=(ROWS, ROWS)).tocsr()


def blocks() -> sps.csr_array:
    pattern = sps.random_array((ROWS // 4, ROWS // 4), density=0.2, rng=0)
    return sps.csr_array(sps.kron(pattern, np.ones((4, 4))))


def scattered() -> sps.csr_array:
    return sps.random_array((ROWS, ROWS), density=0.1, format="csr", rng=1)


def few_rows() -> sps.csr_array:
    return sps.csr_array(scattered().toarray() * (np.arange(ROWS) % 4 == 0)[:, None])


MATRICES = {"band": band, "blocks": blocks, "scattered": scattered, "few rows": few_rows}


def space_of(name: str, *, extents: dict[str, int] | None = None) -> tuple[Space, sps.csr_array]:
    csr = MATRICES[name]().astype(np.float32)
    statistics = {"A": matrix_statistics(csr)}
    sizes = {"feat": FEAT} if extents is None else extents
    return Space(spmm, Options.of(), sizes, Facts(), statistics, threads=4), csr


@pytest.mark.parametrize(
    "layout",
    [
        F.bsr(2), F.bsr((2, 4)), F.dbsr(3), F.dcsr(), F.dia(), F.ell(), F.ell(7),
        F.ell3d([(2, 1), (4, 8)]), F.hyb(2, [1, 2, 4]), F.hyb(1, [2, 8], padded=True), F.hyb(),
        F.hyb(3), F.padding(4), F.sliced_diagonal(), F.sliced_diagonal(8, 0.5), F.sr_bcrs(4, 8),
        F.sell(), F.sell(8), F.sell(4, 128),
        F.Kept(),
    ],
    ids=str,
)  # fmt: skip
def test_a_format_is_the_same_after_it_was_text(layout):
    assert format_of(format_text(layout)) == layout


@pytest.mark.parametrize(
    "text", ["", "csc", "bsr", "bsr(0)", "bsr(x)", "F.bsr(2)", "ell(", "ell(1)()"]
)
def test_text_that_is_no_format_is_refused(text):
    with pytest.raises(ArgumentError, match="no format"):
        format_of(text)


def test_rules_of_the_users_have_no_text():
    rules = F.ell().rules(next(b for b in spmm.buffers if b.name == "A"))
    assert format_text(spcomp.decompose(spmm, A=list(rules)).formats["A"]) == ""


def test_formats_are_those_that_statistics_allow():
    found = {name: set(formats_for(matrix_statistics(make()))) for name, make in MATRICES.items()}
    assert {"dia()", "sliced_diagonal(None, 0.25)", "ell()"} <= found["band"]
    assert {"bsr((2, 2))", "bsr((4, 4))", "sr_bcrs(4, 8)"} <= found["blocks"]
    assert not any(text.startswith(("dia", "bsr", "sliced")) for text in found["scattered"])
    assert [name for name, texts in found.items() if "dcsr()" in texts] == ["few rows"]
    assert all(any(text.startswith("hyb") for text in texts) for texts in found.values())
    assert not set(formats_for(matrix_statistics(sps.csr_array((5, 5)))))


@pytest.mark.parametrize(("short", "offered"), [(0, True), (1, True), (10, False)])
def test_segments_are_no_candidate_where_many_elements_are_in_none(short, offered):
    rows = np.arange(512)
    some = np.where(rows % 16 < 3, 1.0, 0.0)  # three of sixteen are too few for a segment
    diagonals = [np.ones(512)] * 2 + [some] * short
    offsets = [0, 1, *range(20, 20 + 5 * short, 5)]
    columns = [np.roll(d, k) for d, k in zip(diagonals, offsets, strict=True)]
    matrix = sps.dia_array((columns, offsets), shape=(512, 512)).tocsr()
    matrix.eliminate_zeros()
    assert ("sliced_diagonal(None, 0.25)" in set(formats_for(matrix_statistics(matrix)))) == offered


def test_what_a_format_stores_is_known_and_bounded():
    s = matrix_statistics(blocks())
    assert stored_per_element("bsr((4, 4))", s) == pytest.approx(1.0)
    assert all(stored_per_element(text, s) <= 2.0 for text in formats_for(s))


def test_the_first_candidate_is_the_default():
    space, _ = space_of("band")
    first, *others = space.seeds()
    assert first == Candidate()
    assert space.choice(first) == Choice()
    assert str(first) == DEFAULT
    assert {str(c) for c in others} >= {"A in dia()", "A in ell()"}


def test_the_default_decisions_give_the_default_trace():
    feat = 64  # rows that all processors prefetch
    space, csr = space_of("scattered", extents={"feat": feat})
    kernel = spcomp.compile(spmm).specialize(A=csr, B=np.ones((ROWS, feat), np.float32))
    thread = space.choice(Candidate(decisions=(("prefetch", 16),)))
    assert thread is not None
    assert thread.trace == kernel.trace


@pytest.mark.parametrize(
    ("decision", "step"),
    [
        (("tile", 1), "split('k', 16)"),
        (("prefetch", 8), "prefetch('j', 8)"),
        (("rows", "balanced"), "split_nnz('i', 4096)"),
        (("unroll", "sparse"), "unroll('j')"),
    ],
)
def test_a_decision_shows_in_the_trace(decision, step):
    space, _ = space_of("scattered")
    space.options = Options.of("cpu:x86-64-v4")
    choice = space.choice(Candidate(decisions=(decision,)))
    assert choice is not None
    assert step in str(choice.trace)
    assert choice.extents == (("feat", FEAT),)


def test_no_prefetch_is_a_decision():
    space, _ = space_of("scattered")
    choice = space.choice(Candidate(decisions=(("prefetch", 0),)))
    assert choice is not None
    assert "prefetch" not in str(choice.trace)


def test_decisions_that_a_program_does_not_have_are_not_in_the_space():
    space, _ = space_of("scattered")
    assert "scatter" not in space.dimensions(())
    assert {"tile", "prefetch", "rows", "chunk", "hub", "unroll", "threads"} == set(
        space.dimensions(())
    )
    assert space.dimensions(())["threads"] == (DEFAULT, 1, 2)


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.sample(3)
def test_random_candidates_of_all_formats_compile_and_compute_the_same(name):
    space, csr = space_of(name)
    rng = random.Random(5)
    dense = np.random.default_rng(0).random((ROWS, FEAT), dtype=np.float32)
    want = csr @ dense
    candidates = [space.random(rng, formats, 3) for formats in space.formats]
    candidates += [space.random(rng, (), 4) for _ in range(6)]
    for candidate in dict.fromkeys(candidates):
        choice = space.choice(candidate)
        assert choice is not None, candidate
        kernel = choice.kernel(spmm, space.options)
        np.testing.assert_allclose(
            kernel(A=csr, B=dense), want, rtol=1e-4, atol=1e-4, err_msg=str(candidate)
        )
        assert Choice.from_json(choice.to_json()) == choice


def test_mutations_change_one_decision_and_crossings_take_those_of_either():
    space, _ = space_of("scattered")
    rng = random.Random(1)
    first = Candidate(decisions=(("prefetch", 4), ("tile", 2)))
    for _ in range(20):
        child = space.mutated(rng, first)
        assert child != first
        names = TEMPLATES["cpu"].values.keys() | {"threads"}
        mine, its = dict(first.decisions), dict(child.decisions)
        assert sum(mine.get(n, DEFAULT) != its.get(n, DEFAULT) for n in names) == 1
        other = Candidate(decisions=(("prefetch", 64), ("unroll", "sparse")))
        crossed = dict(space.crossed(rng, first, other).decisions)
        assert crossed.get("prefetch") in (4, 64)
        assert crossed.get("tile") in (2, None)


def test_everything_counts_all_candidates_once():
    space, _ = space_of("scattered")
    space._dimensions[()] = {"prefetch": (DEFAULT, 0, 8), "unroll": (DEFAULT, "sparse")}
    listed = list(space.everything(()))
    assert len(listed) == len(set(listed)) == 6
    assert listed[0] == Candidate()


def test_the_bound_of_a_format_grows_with_what_it_stores():
    space, csr = space_of("scattered")
    bounds = Bounds(space, {"A": matrix_statistics(csr)})
    plain = bounds.least(Candidate(), Candidate(), 1e-3)
    assert 0 < plain <= 1e-3
    assert bounds.least(Candidate((("A", "dia()"),)), Candidate(), 1e-3) > plain
    assert bounds.least(Candidate(), Candidate(), 1e-9) == pytest.approx(1e-9)
    assert bounds.estimate(Candidate()) > 0
    features = bounds.features(Candidate(decisions=(("prefetch", 8),)))
    assert features["prefetch_distance"] == 8
    assert features["decides_prefetch"] > 0
    assert features["A.nnz"] == csr.nnz


def test_a_program_in_several_phases_has_traces_and_no_bound():
    csr = scattered().astype(np.float32)
    kernel = spcomp.compile("C[i, j] = A[i, k] * B[k, j]")
    planned = kernel.planned({"A": csr, "B": csr})
    statistics = {"A": matrix_statistics(csr), "B": matrix_statistics(csr)}
    space = Space(planned.func, Options.of(), {}, Facts(), statistics, threads=2)
    bounds = Bounds(space, statistics)
    assert bounds.least(Candidate(), Candidate(), 1e-3) == 0.0
    choice = space.choice(Candidate(decisions=(("rows", "balanced"),)))
    assert choice is not None
    assert choice.trace is not None
    assert len({func for func, _ in choice.trace}) == 2
