"""Decisions about programs of index notation, as values: candidates of formats, and reasons."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import Format, Tensor
from spcomp.errors import ArgumentError, LoweringError
from spcomp.kernels.notation import arguments as notation_args
from spcomp.kernels.notation import planner as notation_planner
from spcomp.kernels.notation.arguments import call_arguments
from spcomp.kernels.notation.planned import Decision, NoPlan, Planned, Split
from spcomp.kernels.notation.runner import MOST_VERSIONS, keep
from tests.level_tensors import tensor

ROOT = Path(spcomp.__file__).parent
FOREIGN = {"_is_foreign", "_require_rank", "_kernel"}  # what other packages raise ends here
DOOR = "__call__"  # from which errors come as if they happened at the call
MATRIX = np.array([[1.0, 0, 2], [0, 3, 0], [4, 0, 5]])
CSR = sps.csr_array(MATRIX)
COO, BITMAP = Format.parse("coo", 2), Format(("dense", "bitmap"))


def stored(layout: Format) -> Tensor:
    return tensor(MATRIX, MATRIX != 0, layout)


def decide(text: str, formats: dict[str, str] | None = None, **args: object) -> Decision:
    runner = spcomp.compile(text, formats=formats)._runner
    return runner.planner.decide("f", call_arguments(args))


def test_a_matrix_is_planned_once(monkeypatch):
    plans, count = notation_planner.plan_statement, []
    monkeypatch.setattr(
        notation_planner, "plan_statement", lambda *args: (count.append(1), plans(*args))[1]
    )
    decision = decide("y[i] = A[i, j] * x[j]", A=CSR, x=np.ones(3))
    assert isinstance(decision, Planned)
    assert (len(count), decision.refusals) == (1, ())


def test_candidates_are_planned_in_order_and_the_first_that_does_is_the_decision():
    given = {"A": stored(COO), "x": np.ones(3)}
    decision = decide("y[i] = A[i, j] * x[j]", **given)
    assert isinstance(decision, Planned)
    assert decision.arguments["A"].operand.layout == given["A"].layout
    assert decision.refusals == ()
    decision = decide("y[i] = max(j, A[i, j] + x[j])", **given)
    assert isinstance(decision, Planned)
    assert [str(refusal) for refusal in decision.refusals] == [
        "as it is given: A: A is a list, and not each of its elements is added to the result once"
    ]
    assert decision.arguments["A"].operand.layout.levels == ("dense", "compressed")


def test_what_is_located_is_a_candidate_of_its_own():
    args = {"A": stored(BITMAP), "B": stored(COO), "C": CSR}
    described = {
        name: notation_args.Source(name, arg, 2).argument(None, direct=True)
        for name, arg in args.items()
    }
    assert [str(way) for way in notation_planner.candidates(described)] == [
        "as it is given: A, B",
        "where it is located: A",
        "converted",
    ]
    described.pop("B")
    assert [str(way) for way in notation_planner.candidates(described)] == [
        "where it is located: A",
        "converted",
    ]


def test_reasons_are_values_and_the_last_one_is_the_error():
    text, formats = "C[i, j] = u[i] + v[j]", {"C": "csr"}
    args = {"u": np.ones(3), "v": np.ones(3)}
    decision = decide(text, formats, **args)
    assert isinstance(decision, NoPlan)
    assert str(decision) == "converted: C[i, j] is present everywhere, but is to be stored as csr"
    with pytest.raises(LoweringError) as caught:
        spcomp.compile(text, formats=formats)(**args)
    assert str(caught.value) == str(decision.error)
    assert hash(decision.refusals[0].reason) == hash(
        decide(text, formats, **args).refusals[0].reason
    )


def test_a_split_has_the_programs_that_run_one_after_the_other():
    decision = decide("C[i, j] = A[i, k] * B[k, j] + A[i, j]", A=CSR, B=CSR)
    assert isinstance(decision, Split)
    assert [piece.result for piece in decision.pieces] == ["C_2", "C"]
    assert decision.pieces[0].formats == {"C_2": "csr"}


@pytest.mark.parametrize("format_", ["csf", "coo"])
def test_sums_inside_have_loops_of_their_own_where_those_around_would_search(format_):
    rng = np.random.default_rng(0)
    A = rng.integers(0, 3, (3, 5, 7)) * rng.integers(0, 2, (3, 5, 7)).astype(np.float32)
    X, W = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((7, 4), (3, 4, 2)))
    stored_ = spcomp.convert(Tensor.from_coo(np.nonzero(A), A[A != 0], shape=A.shape), format_)
    text = "Y[i, l] = sum((r, k), sum(j, A[r, i, j] * X[j, k]) * W[r, k, l])"
    decision = decide(text, A=stored_, X=X, W=W)
    assert isinstance(decision, Split)
    assert [piece.result for piece in decision.pieces] == ["sum_2", "Y"]
    kernel = spcomp.compile(text)
    for scale in (1, 2):
        want = np.einsum("rij,jk,rkl->il", A, X, W) * scale
        np.testing.assert_array_equal(kernel(A=stored_, X=scale * X, W=W), want)
    assert "its order is not stored" not in kernel.explain()
    assert isinstance(decide(text, A=A, X=X, W=W), Planned)  # of dense operands one program


def test_bound_arguments_are_taken_in_once(monkeypatch):
    kernel = spcomp.compile("y[i] = A[i, j] * x[j]")
    bound = kernel.bind(A=CSR)
    kinds, asked = notation_args.kind_of, []
    monkeypatch.setattr(
        notation_args, "kind_of", lambda arg: (asked.append(type(arg)), kinds(arg))[1]
    )
    for _ in range(3):
        np.testing.assert_array_equal(bound(x=np.ones(3)), MATRIX.sum(axis=1))
    assert asked == [np.ndarray] * 2  # the third goes straight to the kernel


def test_an_array_is_cut_once_to_be_planned(monkeypatch):
    cuts, asked = notation_args.look_at, []
    monkeypatch.setattr(
        notation_args, "look_at", lambda *args: (asked.append(args[0]), cuts(*args))[1]
    )
    decide("y[i] = A[i, j(1, 3, 1)] * x[j]", A=stored(COO), x=np.ones(2))
    assert asked == ["A"]


def test_an_argument_is_still_refused_by_the_first_thing_that_is_wrong():
    with pytest.raises(ArgumentError, match="argument A: got 1 dimensions"):
        decide("y[i] = A[i, j] * x[j]", A=np.ones(3), x=np.ones((3, 3)))


def test_no_error_of_ours_is_caught_where_index_notation_runs():
    """Reasons are values; what is caught comes from libraries, or from other packages."""
    for path in sorted((ROOT / "kernels" / "notation").glob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef) and function.name not in {*FOREIGN, DOOR}:
                for node in ast.walk(function):
                    if isinstance(node, ast.ExceptHandler):
                        assert ast.unparse(node.type) in ("MemoryError", "ValueError"), path


@pytest.mark.parametrize("layout", ["csr", "csc", "dcsr", "dcsc", "dense,fixed", "hash", "coo"])
@pytest.mark.parametrize("text", ["A[i, j] if B[j] else A[j, i]", "A[j, i] if B[j] else A[i, j]"])
def test_of_an_operand_read_at_two_places_only_one_is_converted(text, layout):
    A, B = spcomp.convert(MATRIX, layout), np.array([1.0, 0, 1])
    turned = MATRIX if text.startswith("A[j") else MATRIX.T
    wanted = np.where(B[:, None] != 0, turned, turned.T)
    for program in (f"C[j, i] = {text}", f"C[j, i] = {text}; t = sum(j, B[j])"):
        found = spcomp.compile(program)(A=A, B=B)
        result = getattr(found, "C", found)
        dense = result.to_dense() if isinstance(result, Tensor) else result.toarray()
        np.testing.assert_array_equal(dense, wanted)


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("s[i] = sum(j, (D[i, j] - m[i]) ** 2)", "i j"),
        ("s[j] = sum(i, (D[i, j] - m[j]) ** 2)", "i j"),
        ("s[i] = sum(j, (F[i, j] - m[i]) ** 2)", "j i"),
        ("C[i, k] = D[i, j] * X[j, k]", "i j k"),
        ("C[i, j] = H[i, k] * X[j, k]", "i j k"),
        ("t[j] = sum((i, k), U[i, j, k])", "j i k"),
        ("t[k] = sum((i, j), U[i, j, k])", "i j k"),
        ("N[i, j] = F[i, j] * m[i]", "i j"),
    ],
)
def test_the_innermost_loop_runs_along_the_operands_of_most_dimensions(text, order):
    arrays = {"m": np.ones(3), "U": np.ones((3, 3, 3))}
    arrays |= dict.fromkeys("DXH", np.ones((3, 3))) | {"F": np.asfortranarray(np.ones((3, 3)))}
    planned = decide(text, **{name: a for name, a in arrays.items() if f"{name}[" in text})
    (plan,) = planned.plans
    (nest,) = plan.nests
    assert " ".join(loop.index for loop in nest.loops) == order


def test_the_last_values_are_kept_and_of_two_threads_the_first_has_a_say():
    kept: dict[int, str] = {}
    for at in range(2 * MOST_VERSIONS):
        assert keep(kept, at, str(at)) == str(at)
    assert list(kept) == list(range(MOST_VERSIONS, 2 * MOST_VERSIONS))
    kept = {1: "first"}
    assert keep(kept, 1, "second") == kept[1] == "first"
