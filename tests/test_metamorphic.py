"""The same mathematics said in another way, or over data stored in another way, gives the same."""

from __future__ import annotations

import ast
import random
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import SpcompError
from tests.interpreted_notation import interpreted
from tests.level_tensors import full, tensor
from tests.notation_oracle import SEMIRINGS
from tests.random_notation import Case, Writer

ACCESS = re.compile(r"\b([ABDE])\[([^\]]*)\]")
EXACT = {  # formats that store what they are given and no more
    1: ("sparse", "coo", "hash", "bitmap"),
    2: ("csr", "csc", "dcsr", "dcsc", "csf", "coo", "hash", "bitmap"),
    3: ("csf", "coo", "hash", "bitmap", "dense,compressed,compressed"),
    4: ("csf", "coo", "hash", "bitmap"),
}
SEEDS, CHUNK, COMPILED = 600, 30, 2


def stored_as(pick: random.Random, values: Any, stored: Any, *, sparse: bool) -> Any:
    """An operand in a format chosen at random: of a dense one, the order in memory."""
    if not sparse:
        return np.asfortranarray(values) if pick.random() < 0.5 else np.ascontiguousarray(values)
    rank = values.ndim
    if rank == 2 and pick.random() < 0.4:
        coo = sps.coo_array((values[stored], np.nonzero(stored)), shape=values.shape)
        return coo.asformat(pick.choice(("csr", "csc", "coo")))
    layout = spcomp.Format.parse(pick.choice(EXACT[rank]), rank)
    if pick.random() < 0.3:
        layout = replace(layout, order=tuple(pick.sample(range(rank), rank)))
    return tensor(values, stored, layout)


def again(case: Case, pick: random.Random, text: str, arrays: dict[str, Any]) -> Case:
    """The program *text* over *arrays*, each stored in some format, into a dense result."""
    args: dict[str, Any] = {}
    for name, arg in case.args.items():
        values, stored = arrays[name]
        args[name] = arg
        if np.ndim(values):
            args[name] = stored_as(pick, values, stored, sparse=name in case.sparse)
    formats = {"C": "dense"} if text.startswith("C[") else {}
    return replace(case, text=text, args=args, arrays=arrays, formats=formats)


def plain(seed: int) -> Case | None:
    """A program of one statement and whole operands; None: the seed has another."""
    case = Writer(seed).write()
    given = "+=" in case.text or "\n" in case.text or "W[" in case.text
    if case.unclear or given or any("(" in inside for _, inside in ACCESS.findall(case.text)):
        return None
    if any(re.search(r"-?\d", inside) for _, inside in ACCESS.findall(case.text)):
        return None
    return case


def transposed(case: Case, pick: random.Random) -> Case:
    """The operands with their dimensions in another order, and their indices in it."""
    orders = {n: pick.sample(range(v.ndim), v.ndim) for n, (v, _) in arrays_of(case).items()}

    def swapped(found: re.Match[str]) -> str:
        indices = found[2].split(", ")
        return f"{found[1]}[{', '.join(indices[dim] for dim in orders[found[1]])}]"

    arrays = {
        n: (v.transpose(orders[n]), s.transpose(orders[n])) for n, (v, s) in arrays_of(case).items()
    }
    return again(case, pick, ACCESS.sub(swapped, case.text), {**case.arrays, **arrays})


def arrays_of(case: Case) -> dict[str, tuple[Any, Any]]:
    return {n: case.arrays[n] for n in case.args if np.ndim(case.arrays[n][0])}


def permuted(case: Case, pick: random.Random) -> tuple[Case, list[str]] | None:
    """The operands with the coordinates of all indices in another order; and the result's indices.

    None if coordinates are compared or returned, or two indices run over one dimension.
    """
    used: dict[str, set[str]] = {}
    for name, inside in ACCESS.findall(case.text):
        used.setdefault(name, set()).add(inside)
    several = any(len(found) > 1 for found in used.values())
    names = {n.id for n in ast.walk(ast.parse(case.text)) if isinstance(n, ast.Name)}
    as_number = re.search(r"\b[ijklm] <=|arg(max|min)", case.text)
    if several or as_number or "m" in names:
        return None
    orders = {index: pick.sample(range(n), n) for index, n in case.sizes.items()}
    arrays = dict(case.arrays)
    for name, (inside,) in used.items():
        at = np.ix_(*(orders[index] for index in inside.split(", ")))
        arrays[name] = tuple(a[at] for a in case.arrays[name])
    target = case.text.split(" = ")[0]
    left = target[2:-1].split(", ") if "[" in target else []
    for index in left:
        orders[index] = list(np.argsort(orders[index]))
    made = again(case, pick, case.text, arrays)
    return replace(made, sizes={**case.sizes}), [orders[index] for index in left]


def dense(result: Any) -> Any:
    return np.asarray(result) if np.ndim(result) == 0 else full(result)


def run(case: Case, *, compiled: bool) -> Any:
    kernel = case.kernel()
    return dense(kernel(**case.args) if compiled else interpreted(kernel, case.args))


def agree(case: Case, one: Any, other: Any) -> None:
    """Two results are the same; floats that are rounded may differ in the last digits."""
    if case.exact:
        np.testing.assert_array_equal(one, other, err_msg=str(case))
        return
    top = np.abs(one[np.isfinite(one)]).max(initial=1.0)
    eps = (
        2e-6
        if "float32" in f"{case.text}{[v.dtype for v, _ in arrays_of(case).values()]}"
        else 1e-12
    )
    np.testing.assert_allclose(one, other, rtol=eps, atol=eps * top, err_msg=str(case))


def check(seed: int, *, compiled: bool) -> bool:
    """Check the program of *seed* in four ways; False: it has a form that is not looked at."""
    case, pick = plain(seed), random.Random(seed)
    if case is None:
        return False
    try:
        first = run(again(case, pick, case.text, case.arrays), compiled=compiled)
    except SpcompError as error:  # by a documented rule, which another test looks at
        assert "by itself" in error.message, f"seed {seed}: {error}"  # noqa: PT017
        return False
    for other in (again(case, pick, case.text, case.arrays), transposed(case, pick)):
        agree(other, first, run(other, compiled=compiled))
    moved = permuted(case, pick)
    if moved is not None:
        found = run(moved[0], compiled=compiled)
        agree(moved[0], first, found[np.ix_(*moved[1])] if moved[1] else found)
    return True


@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
@pytest.mark.sample(8, long=4)
def test_programs_do_not_depend_on_formats_orders_of_dimensions_and_orders_of_rows(start):
    done = [check(seed, compiled=False) for seed in range(start, start + CHUNK - COMPILED)]
    done += [check(seed, compiled=True) for seed in range(start + CHUNK - COMPILED, start + CHUNK)]
    assert sum(done) > CHUNK / 3


# -- what is linear --------------------------------------------------------------------------------

LINEAR = (  # in A
    "C[i, k] = A[i, j] * B[j, k]",
    "C[k, i] = A[j, i] * B[j, k]",
    "y[i] = A[i, j] * x[j]",
    "y[j] = A[i, j] * z[i]",
    "C[i, j] = A[i, j] * z[i] + 2 * A[i, j]",
    "C[i, j] = A[i, j] if M[i, j]",
    "C[i, j] = A[i, j] if M[i, j] is None",
    "C[i, j] = (A[i, l] * D[l, j]) if M[i, j]",
    "C[i, j] = (A[i, l] * D[l, j]) if not stored(M[i, j])",
    "C[i, j] = A[i, j] if M[i, j] else 3 * A[i, j]",
    "s = A[i, j] * M[i, j]",
    "C[i, j] = A[i, j] * sum(k, B[j, k]) / 4",
    "C[i, j] = A[i, j] * max(l, D[i, l])",
    "C[i, k] = sum(j, A[i, j] * exp(x[j])) * z[i] + sum(j, A[i, j]) * B[0, k]",
)
INDICES = {"A": 2, "B": 2, "D": 2, "M": 2, "x": 1, "z": 1}
EXTENT = 5  # of every index


def computed(kernel: Any, arrays: dict[str, Any], pick: random.Random, ones: str) -> Any:
    """What *kernel* gives for *arrays* in some formats, those called in *ones* as dense ones."""
    args = {n: stored_as(pick, v, s, sparse=n not in ones) for n, (v, s) in arrays.items()}
    return dense(kernel(**args))


@pytest.mark.parametrize("text", LINEAR)
@pytest.mark.sample(8, long=4)
def test_a_linear_program_adds_and_scales_with_its_operand(text):
    kernel = spcomp.compile(text)
    for seed, ones in ((0, "xz"), (1, "")):
        pick, rng = random.Random(seed), np.random.default_rng(seed)
        arrays: dict[str, Any] = {}
        for name in kernel.arguments:
            stored = rng.random((EXTENT,) * INDICES[name]) < 0.5
            arrays[name] = rng.integers(1, 5, stored.shape) * stored * 1.0, stored
        values, stored = arrays.pop("A")
        side = stored & (rng.random(stored.shape) < 0.5)
        found = [
            computed(kernel, {**arrays, "A": (factor * values * kept, kept)}, pick, ones)
            for factor, kept in ((1, stored), (1, side), (1, stored & ~side), (2, stored))
        ]
        np.testing.assert_allclose(found[1] + found[2], found[0], rtol=1e-12, err_msg=text)
        np.testing.assert_array_equal(found[3], 2 * found[0], err_msg=text)


def test_all_semirings_are_among_the_random_programs():
    cases = [case for seed in range(SEEDS) if (case := plain(seed)) is not None]
    assert {case.semiring for case in cases} == {*SEMIRINGS}
