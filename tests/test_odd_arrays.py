"""Arrays as files, views and other machines give them: used rightly, or refused."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError, OutOfMemoryError, SpcompError
from tests.layers import source

DENSE = np.array([[0, 1.0, 0], [2, 0, 3], [0, 0, 0], [4, 0, 5]])
X = np.array([1.0, 10, 100])


class Mine(np.ndarray):
    """A subclass of numpy's arrays."""


def unaligned(array: Any) -> Any:
    """*array* at an odd address, read-only as it comes from a file."""
    return np.frombuffer(b"x" + array.tobytes(), array.dtype, offset=1).reshape(array.shape)


def strided(array: Any) -> Any:
    """*array* as every second element of another."""
    return np.repeat(array, 2, axis=0)[::2]


def read_only(array: Any) -> Any:
    """*array*, not to be written."""
    made = array.copy()
    made.flags.writeable = False
    return made


def mapped(array: Any) -> Any:
    """*array* as numpy maps files."""
    made = np.memmap("/dev/zero", array.dtype, "c", 0, array.shape) if array.size else array
    made[...] = array
    return made


SAME = {  # what holds the same numbers
    "swapped": lambda a: a.astype(a.dtype.newbyteorder()),
    "unaligned": unaligned,
    "unaligned and swapped": lambda a: unaligned(a.astype(a.dtype.newbyteorder())),
    "strided": strided,
    "backwards": lambda a: a[::-1].copy()[::-1],
    "read-only": read_only,
    "mapped": mapped,
    "of a subclass": lambda a: a.view(Mine),
    "with metadata": lambda a: a.astype(np.dtype(a.dtype, metadata={"x": 1})),
}
INTEGERS = {
    f"as {kind}": partial(lambda kind, a: a.astype(kind), kind)
    for kind in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i2", ">i8", ">u4", ">u8")
}
OTHERS = {  # what no index array is
    "bool": lambda a: a.astype(bool),
    "float": lambda a: a.astype(float),
    "complex": lambda a: a.astype(complex),
    "objects": lambda a: a.astype(object),
    "text": lambda a: a.astype("U2"),
    "dates": lambda a: a.astype("M8[s]"),
    "records": lambda a: np.zeros(a.shape, [("x", "i4")]),
    "masked": lambda a: np.ma.masked_array(a, a == 0),
    "huge": lambda a: a.astype("u8") + np.uint64(1 << 63),
    "far": lambda a: (a.astype("i8") + 1) << 40,
    "far, swapped": lambda a: (a.astype("i4") + (1 << 24)).astype(">i4"),
    "negative": lambda a: a.astype("i4") - 9,
    "flat": lambda a: a[None],
    "shorter": lambda a: a[:-1],
    "empty": lambda a: a[:0],
    "one": lambda a: a[:1].reshape(()),
    "list": lambda a: a.tolist(),
    "none": lambda _: None,
}
PARTS = {  # the arrays of a matrix
    **dict.fromkeys(("csr", "csc", "bsr"), ("indptr", "indices", "data")),
    "coo": ("row", "col", "data"),
    "dia": ("offsets", "data"),
}


def matrix(layout: str, part: str, change: Any) -> Any:
    """DENSE in a format of scipy, one of its arrays changed behind scipy's back."""
    made: Any = sps.csr_array(DENSE).asformat(layout)
    if layout == "bsr":
        made = sps.csr_array(DENSE).tobsr((2, 1))
    if part in ("row", "col"):
        made.coords = tuple(
            change(own) if name == part else own
            for name, own in zip(("row", "col"), made.coords, strict=True)
        )
    elif part == "data" and layout != "csr":
        made.data = change(made.data)
    else:
        setattr(made, part, change(getattr(made, part)))
    return made


def integers(part: str) -> dict[str, Any]:
    """The types that hold the numbers of an index array; the offsets of diagonals are negative."""
    return {
        how: change
        for how, change in INTEGERS.items()
        if part != "data" and not (part == "offsets" and "u" in how)
    }


def dense(result: Any) -> Any:
    """*result* as an array."""
    if isinstance(result, spcomp.Tensor):
        return result.to_dense()
    return result.toarray() if sps.issparse(result) else np.asarray(result)


USES = {  # what is done with a matrix, and what has to come out
    "product": (lambda A: spcomp.compile("y[i] = A[i, j] * x[j]")(A=A, x=X), DENSE @ X),
    "scatter": (lambda A: spcomp.compile("y[j] = A[i, j] * x[i]")(A=A, x=np.ones(4)), DENSE.sum(0)),
    "sum": (
        lambda A: spcomp.compile("C[i, j] = A[i, j] + B[i, j]")(A=A, B=sps.csr_array(DENSE)),
        2 * DENSE,
    ),
    "scaled": (lambda A: spcomp.compile("C[i, j] = 2 * A[i, j]")(A=A), 2 * DENSE),
    "turned": (lambda A: spcomp.compile("C[j, i] = A[i, j]", formats={"C": "csr"})(A=A), DENSE.T),
    "part": (lambda A: spcomp.compile("y[i] = A[i, 2]")(A=A), DENSE[:, 2]),
    "window": (lambda A: spcomp.compile("C[i, j] = A[i, j(0, 3, 2)]")(A=A), DENSE[:, ::2]),
    "bound": (lambda A: spcomp.compile("y[i] = A[i, j] * x[j]").bind(A=A)(x=X), DENSE @ X),
    **{
        f"to {name}": (lambda A, name=name: spcomp.convert(A, name), DENSE)
        for name in ("csr", "csc", "coo", "dense", "dcsr", "bsr(2, 1)", "dia", "hash", "ell")
    },
}


def outcome(use: Any, arg: Any) -> Any:
    """What *use* makes of *arg*; None if it refuses it as the user's fault."""
    try:
        return dense(use(arg))
    except SpcompError:
        return None


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("layout", PARTS)
@pytest.mark.sample(8, long=3)
def test_arrays_that_hold_the_same_are_the_same(layout, use):
    run, want = USES[use]
    for part in PARTS[layout]:
        for how, change in {**SAME, **integers(part)}.items():
            got = run(matrix(layout, part, change))
            np.testing.assert_array_equal(dense(got), want, err_msg=f"{part} {how}")


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("layout", PARTS)
@pytest.mark.sample(8, long=3)
def test_arrays_that_are_no_index_arrays_are_refused(layout, use):
    run, want = USES[use]
    for part in PARTS[layout]:
        for how, change in OTHERS.items():
            try:
                arg = matrix(layout, part, change)
            except (TypeError, ValueError, AttributeError):
                continue  # scipy itself refuses it
            got = outcome(run, arg)
            if got is not None and part != "data":
                np.testing.assert_array_equal(got, want, err_msg=f"{part} {how}")


CSR = sps.csr_array(DENSE.astype("f4"))
FITTING = ("list", "shorter", "one", "empty", "flat")  # raw arrays may be of any shape
B = np.arange(6, dtype="f4").reshape(3, 2)


def changed(part: str, change: Any) -> dict[str, Any]:
    """The arrays of a csr array, one of them changed."""
    arrays = {name: getattr(CSR, name) for name in ("data", "indptr", "indices")}
    return arrays | {part: change(arrays[part])}


def leveled(part: str, change: Any) -> Any:
    """A Tensor of them."""
    own = changed(part, change)
    level = ("compressed", own["indptr"], own["indices"])
    return spcomp.Tensor(CSR.shape, [None, level], own["data"])


def listed(part: str, change: Any) -> Any:
    """A Tensor of coordinates, one array of which is changed."""
    coo = CSR.tocoo()
    own = {"indptr": coo.row, "indices": coo.col, "data": coo.data}
    own[part] = change(own[part])
    coords = own["indptr"], own["indices"]
    return spcomp.Tensor.from_coo(coords, own["data"], CSR.shape, "csr")


def filed(part: str, change: Any, path: Any) -> Any:
    """What is read of an archive of them."""
    np.savez(path, format=b"csr", shape=CSR.shape, **changed(part, change))
    return spcomp.read(path)


def raw(part: str, change: Any, *, bound: bool) -> Any:
    """The product that a program takes raw arrays for."""
    own = changed(part, change)
    given = {"A": own["data"], "indptr": own["indptr"], "indices": own["indices"]}
    kernel = spcomp.compile(source("csrmm"))
    return kernel.bind(**given)(B=B) if bound else kernel(**given, B=B)


@pytest.mark.parametrize("part", ["indptr", "indices", "data"])
def test_arrays_that_hold_the_same_are_the_same_wherever_they_enter(part, tmp_path):
    for how, change in SAME.items():
        made = [leveled(part, change), listed(part, change)]
        if how != "with metadata":  # which files do not hold
            made.append(filed(part, change, tmp_path / "a.npz"))
        for one in made:
            np.testing.assert_array_equal(dense(one), DENSE, err_msg=how)
        for bound in (False, True):
            np.testing.assert_array_equal(raw(part, change, bound=bound), DENSE @ B, err_msg=how)
    for change in INTEGERS.values() if part != "data" else ():
        for made in (leveled(part, change), listed(part, change)):
            np.testing.assert_array_equal(dense(made), DENSE)


@pytest.mark.parametrize("part", ["indptr", "indices", "data"])
def test_what_is_no_index_array_is_refused_wherever_it_enters(part, tmp_path):
    path = tmp_path / "a.npz"
    for how, change in OTHERS.items():
        for use in (leveled, listed, partial(filed, path=path), partial(raw, bound=False)):
            if use.__class__ is partial and how in ("none", "list", "objects", "masked"):
                continue  # which numpy would pickle
            try:
                dense(use(part, change))
            except SpcompError:
                continue
            assert part == "data" or how in FITTING, f"{use} {how}"


def test_dense_arrays_may_be_of_the_other_byte_order_where_they_are_read():
    for how, change in SAME.items():
        for text, given, want in (
            ("y[i] = A[i, j] * x[j]", {"A": DENSE, "x": change(X)}, DENSE @ X),
            ("y[i] = A[i, 2]", {"A": change(DENSE)}, DENSE[:, 2]),
            ("y[i] = A[i, j(0, 3, 2)]", {"A": change(DENSE)}, DENSE[:, ::2].sum(1)),
            ("C[i, j] = a * A[i, j]", {"A": DENSE, "a": change(X[1:2]).reshape(())}, 10 * DENSE),
        ):
            np.testing.assert_array_equal(spcomp.compile(text)(**given), want, err_msg=how)
        np.testing.assert_array_equal(dense(spcomp.convert(change(DENSE), "csr")), DENSE)
        got = spcomp.compile(source("csrmm"))(A=CSR, B=change(B))
        np.testing.assert_array_equal(got, DENSE @ B, err_msg=how)


@pytest.mark.parametrize("how", ["swapped", "unaligned", "strided", "read-only"])
def test_arrays_that_are_written_have_to_be_as_the_program_writes_them(how):
    scale = spcomp.compile("C[i, j] = 2 * A[i, j]")
    matrix_ = sps.csr_array(DENSE)
    given = matrix_.copy()
    given.data = SAME[how](np.zeros(5))
    with pytest.raises(ArgumentError, match="argument C"):
        scale(A=matrix_, out=given)
    with pytest.raises(ArgumentError, match="argument C"):
        scale(A=DENSE, out=SAME[how](np.zeros((4, 3))))


def test_values_that_are_no_numbers_are_refused_by_tensors():
    for kind in ("M8[s]", "U2", object, [("x", "i4")]):
        with pytest.raises(ArgumentError, match=r"values: got dtype .*, expected numbers"):
            spcomp.Tensor((2,), [None], np.zeros(2, kind))
    with pytest.raises(ArgumentError, match="got a masked array"):
        spcomp.Tensor((2,), [None], np.ma.masked_array([1.0, 2], [True, False]))


# -- floats of 16 bits, of which scipy has no sparse arrays ----------------------------------------

HALVES = ("csr", "csc", "coo", "bsr", "dia")
PROGRAMS = (
    *("y[i] = A[i, 2]", "C[i, j] = A[i, j(0, 3, 2)]", "C[i, j] = A[i, j] * 2", "C[j, i] = A[i, j]"),
    *(
        "C[i, k] = A[i, j] * A[k, j]",
        "C[i, j] = A[1, i] * A[j, 2]",
        "s = A[1, 2]",
        "y[j] = A[i, j]",
    ),
)


@pytest.mark.sample(4, long=3)
@pytest.mark.parametrize("text", PROGRAMS)
@pytest.mark.parametrize("layout", HALVES)
def test_halves_give_tensors_where_scipy_has_no_arrays(layout, text):
    given = matrix(layout, "data", lambda data: data.astype("f2"))
    found = spcomp.compile(text)(A=given)
    assert not sps.issparse(found)
    assert found.dtype == np.float16
    want = spcomp.compile(text)(A=DENSE.astype("f2"))
    np.testing.assert_array_equal(dense(found), want)
    if text.startswith("C"):
        for name in ("csr", "csc", "coo", "dia"):
            made = spcomp.compile(text, formats={"C": name})(A=given)
            assert isinstance(made, spcomp.Tensor)
            np.testing.assert_array_equal(made.to_dense(), want)


@pytest.mark.parametrize("layout", HALVES)
def test_halves_are_converted_to_tensors(layout):
    given = matrix(layout, "data", lambda data: data.astype("f2"))
    for name in ("csr", "csc", "coo", "bsr(2, 1)", "dia", "dcsr"):
        made = spcomp.convert(given, name)
        assert isinstance(made, spcomp.Tensor)
        assert made.dtype == np.float16
        np.testing.assert_array_equal(made.to_dense(), DENSE)
    with pytest.raises(ArgumentError, match="which scipy's lil does not hold"):
        spcomp.convert(given, "lil")
    with pytest.raises(ArgumentError, match=r"scipy\.sparse has no arrays of"):
        spcomp.convert(given, "csr").to_scipy()


def test_what_takes_too_much_memory_is_a_memory_error():
    far = spcomp.Tensor.from_coo(([0], [2**45 - 1]), [1.0], (2**45, 2**45))
    with pytest.raises(MemoryError, match="csr takes too much memory"):
        spcomp.convert(far, "csr")
    with pytest.raises(OutOfMemoryError):
        spcomp.compile("C[i] = A[i]", formats={"C": "dense"})(
            A=spcomp.Tensor.from_coo(([2**62],), [1.0], (2**62 + 1,), "sparse")
        )


def test_a_matrix_without_elements_may_be_written():
    empty = sps.csr_array((3, 3), dtype="f8")
    given = empty.copy()
    assert spcomp.compile("C[i, j] = 2 * A[i, j]")(A=empty, out=given) is given


def test_a_result_of_blocks_without_elements_is_a_tensor():
    left = sps.csr_array(np.eye(2))
    for extents in ((2, 0), (0, 3), (0, 0)):
        made = spcomp.compile("C[i, j, k, l] = A[i, j] * B[k, l]")(A=left, B=np.ones(extents))
        assert isinstance(made, spcomp.Tensor)
        assert made.shape == (2, 2, *extents)


DAMAGED = """
import sys
import numpy as np, scipy.sparse as sps, spcomp
from spcomp.errors import ArgumentError
p, x = "y[i] = A[i, j] * x[j]", np.ones(30)
A = sps.random_array((40, 30), density=0.1, format="csr", rng=1).asformat(sys.argv[1])
A = type(A)((A.data, A.indices, A.indptr), shape=A.shape)
A.indptr[3] = 99999
try:
    spcomp.suggest(p, A=A, x=x)
except ArgumentError as error:
    print(error.message)
"""


@pytest.mark.parametrize("layout", ["csr", "csc"])
def test_damaged_pointers_are_refused_before_scipy_reads_them(layout):
    run = subprocess.run(
        [sys.executable, "-c", DAMAGED, layout], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "decreases from 99999" in run.stdout


@pytest.mark.parametrize("layout", ["csc", "coo", "dia", "csr"])
def test_the_kernel_of_a_suggestion_takes_what_that_of_the_program_takes(layout):
    matrix, x = sps.csr_array(DENSE).asformat(layout), X
    found = spcomp.suggest("y[i] = A[i, j] * x[j]", A=matrix, x=x).compile()
    assert np.allclose(found(A=matrix, x=x), DENSE @ x)


def test_a_matrix_of_diagonals_is_inspected():
    matrix = spcomp.convert(DENSE, spcomp.Format("dia"))
    bound = spcomp.compile("y[i] = A[i, j] * x[j]").bind(A=matrix, inspect=True)
    assert np.allclose(bound(x=X), DENSE @ X)


def test_the_tuner_takes_the_arrays_that_calls_take():
    swapped = sps.csr_array(DENSE)
    swapped.data = swapped.data.astype(">f8")
    late = sps.csr_array(DENSE)
    late.data, late.indices = np.r_[0.0, 0, late.data], np.r_[0, 0, late.indices]
    late.indptr = late.indptr + 2
    for matrix in (swapped, late):
        tuned = spcomp.tune("y[i] = A[i, j] * x[j]", A=matrix, x=X, budget=0.3)
        assert np.allclose(tuned.kernel(A=matrix, x=X), DENSE @ X)


def test_halves_have_statistics():
    assert spcomp.tune.matrix_statistics(np.eye(4, dtype=np.float16)).nnz == 4


@pytest.mark.parametrize("wrong", ["x", 0, -1, 1.5])
def test_the_calls_of_a_suggestion_are_a_whole_number(wrong):
    matrix, program = sps.csr_array(DENSE), "y[i] = A[i, j] * x[j]"
    with pytest.raises(ArgumentError, match="calls"):
        spcomp.suggest(program, A=matrix, x=X, calls=wrong)
    assert spcomp.suggest(program, A=matrix, x=X, calls=np.int64(5)).speedup >= 1
