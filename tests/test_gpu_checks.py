"""Index arrays on a GPU are checked there: kernels find what the host finds, and say the same."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError
from spcomp.runtime.cuda.arrays import array_of, place_of
from spcomp.runtime.residents import Residents
from spcomp.target import target
from spcomp.tensors import verdict as there
from spcomp.tensors.checks import ANY, Coordinates, Pointers
from spcomp.tensors.verdict import Verdict
from tests import fake_libraries
from tests.programs import BY_NAME
from tests.test_cuda_kernels import Torch, kinds

TARGET = "cuda:sm_90"


def csr(seed, kind, rows=70, columns=40):
    rng = np.random.default_rng(seed)
    matrix = sps.random_array((rows, columns), density=0.2, format="csr", dtype="f4", rng=rng)
    return {"indptr": matrix.indptr.astype(kind), "indices": matrix.indices.astype(kind)}


def planted(seed, kind):
    """Yield index arrays with a fault each, some with none, and the checks that a call makes."""
    rng, (rows, columns) = np.random.default_rng(seed), (70, 40)
    for number in range(60):
        arrays = csr(number, kind)
        indptr, indices = arrays["indptr"], arrays["indices"]
        stored, at = indices.size, int(rng.integers(indices.size))
        row = int(rng.integers(1, rows))
        limits = np.iinfo(kind)
        faults = [
            ("indices", at, indices[at]),  # none
            ("indices", at, columns + number % 3),
            ("indices", at, -1),
            ("indptr", row, indptr[row] + 1000),
            ("indptr", 0, 1),
            ("indptr", -1, stored - 1),
            ("indices", at - 1, indices[at]),  # twice, or the last of a row
            ("indices", [at - 1, at], indices[[at, at - 1]]),
            ("indptr", row, indptr[row - 1] - 2),
            ("indices", [0, -1], [limits.min, limits.max]),
        ]
        name, where, value = faults[number % len(faults)]
        arrays[name][where] = value
        order = int(rng.integers(3))
        longest = int(rng.choice([ANY, 12]))
        exact = bool(rng.integers(2))
        limits = (0, stored) if exact else (ANY, 0)
        yield (
            arrays,
            Pointers("indptr", rows, *limits, stored, longest),
            Coordinates("indices", 0, columns - 1, order, "indptr" if order else ""),
        )


def said(run):
    try:
        run()
    except ArgumentError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_kernels_find_the_faults_that_the_host_finds_and_say_the_same(gpu, kind):
    found = 0
    for arrays, *asked in planted(3, kind):
        memory = Residents(place_of([]))

        def on_host(arrays=arrays, asked=asked):
            for check in asked:
                check.run(arrays, str)

        def on_gpu(arrays=arrays, asked=asked, memory=memory):
            verdict = Verdict(memory, target(TARGET))
            put = {name: memory.resident(array_of(a, memory.place)) for name, a in arrays.items()}
            for check in asked:
                assert verdict.takes(check, put)
                verdict.ask(check, put, str)
            verdict.read()

        message = said(on_host)
        assert said(on_gpu) == message
        found += message != ""
    assert found >= 35


def test_fibers_of_one_width_are_checked_in_order(gpu):
    memory = Residents(place_of([]))
    for at, order in ((4, 2), (5, 2), (5, 1), (0, 0)):
        indices = np.tile(np.arange(5, dtype=np.int32), 6)
        indices[at] = indices[at - 1] if order == 2 else 0
        check = Coordinates("indices", 0, 5, order, "", 5)
        put = {"indices": memory.resident(array_of(indices, memory.place))}
        verdict = Verdict(memory, target(TARGET))
        verdict.ask(check, put, str)
        assert said(verdict.read) == said(lambda c=check, a=indices: c.run({"indices": a}, str))


def test_the_kernels_have_no_races_and_read_nothing_outside():
    """They run in the emulator, which would say so, on the very arrays with faults."""
    where = "cuda:sm_90,emulate"
    for arrays, pointers, coordinates in planted(5, "int32"):
        indptr, indices = arrays["indptr"], arrays["indices"]
        n, fibers = indices.size, indptr.size - 1
        within = n, 0, coordinates.high
        order = there.ascending("int32", "int32", target=where)
        runs = [
            (there.between("int32", target=where), (indices, *within)),
            (there.delimiting("int32", target=where), (indptr, fibers + 1, *pointers[2:])),
            (order, (indices, indptr, *within, fibers, 1)),
        ]
        for program, args in runs:
            said(lambda program=program, args=args: program(*args))


def test_a_call_reads_a_verdict_and_no_index_array(gpu):
    kind, arrays = Torch(gpu), csr(1, "int32")
    data = np.ones(arrays["indices"].size, np.float32)
    matrix = sps.csr_array((data, arrays["indices"], arrays["indptr"]), shape=(70, 40))
    kernel = spcomp.compile(BY_NAME["csrmm"].build("float32", "int32"), target=TARGET)
    dense = kind.put(np.ones((40, 8), np.float32))
    bound = kernel.bind(A=kind.csr(matrix))
    sizes = [size for _, size, _ in kinds(gpu, "download")]
    assert sorted(sizes) == [4, matrix.indptr.nbytes]
    out = kind.put(np.zeros((70, 8), np.float32))
    gpu.log.clear()
    bound(B=dense, out=out)  # the first call, too
    assert not kinds(gpu, "download", "synchronize", "upload")
    np.testing.assert_allclose(kind.get(out), matrix @ np.ones((40, 8)), rtol=1e-5)


def test_a_product_reads_three_words_and_checks_a_matrix_once(gpu):
    kind, arrays = Torch(gpu), csr(1, "int32", 40, 40)
    data = np.ones(arrays["indices"].size, np.float32)
    matrix = sps.csr_array((data, arrays["indices"], arrays["indptr"]), shape=(40, 40))
    form = "C[i, j] = A[i, k] * B[k, j]"
    kernel = spcomp.compile(form, formats={"C": "csr"}, target=TARGET)
    one, other = kind.csr(matrix), kind.csr(matrix)
    checked = {}
    for name, b in (("the same", one), ("another", other)):
        gpu.log.clear()
        gpu.launches.clear()
        (indptr, indices, values), shape = kind.arrays_of(kernel(A=one, B=b))
        found = sps.csr_array((values, indices, indptr), shape=shape)
        np.testing.assert_allclose(found.toarray(), (matrix @ matrix).toarray(), rtol=1e-5)
        # what checks say, whether the result is too large, and how many elements it has
        assert [size for _, size, _ in kinds(gpu, "download")] == [4, 4, 4]
        names = [launch.name for launch in gpu.launches]
        checked[name] = [sum(x in n for n in names) for x in ("delimiting", "ascending")]
    assert checked == {"the same": [1, 1], "another": [2, 2]}
    wrong = sps.csr_array((data, arrays["indices"][::-1].copy(), arrays["indptr"]), shape=(40, 40))
    with pytest.raises(ArgumentError, match="argument B"):
        kernel(A=one, B=kind.csr(wrong))


def test_index_arrays_by_name_are_checked_when_they_are_bound(gpu):
    kind, arrays = Torch(gpu), csr(1, "int32")
    data = np.ones(arrays["indices"].size, np.float32)
    kernel = spcomp.compile(BY_NAME["csrmm"].build("float32", "int32"), target=TARGET)
    fixed = {"A": kind.put(data), "n": 40, **{k: kind.put(a) for k, a in arrays.items()}}
    bound = kernel.bind(**fixed)
    gpu.log.clear()
    gpu.launches.clear()
    dense, out = kind.put(np.ones((40, 8), np.float32)), kind.put(np.zeros((70, 8), np.float32))
    bound(B=dense, out=out)
    assert [launch.name for launch in gpu.launches] == ["csrmm"]
    assert not kinds(gpu, "download", "synchronize")
    arrays["indices"][5] = 40
    with pytest.raises(ArgumentError, match=r"indices: got 40 at position 5, expected 0\.\.39"):
        kernel.bind(**{**fixed, "indices": kind.put(arrays["indices"])})


def test_indices_of_another_type_are_converted_there(gpu):
    kind, arrays = Torch(gpu), csr(1, "int64")
    data = np.ones(arrays["indices"].size, np.float32)
    matrix = sps.csr_array((data, arrays["indices"], arrays["indptr"]), shape=(70, 40))
    kernel = spcomp.compile(BY_NAME["csrmm"].build("float32", "int32"), target=TARGET)
    dense = kind.put(np.ones((40, 8), np.float32))
    given = fake_libraries.SparseTensor(
        "csr", matrix.shape, (*map(kind.put, arrays.values()), kind.put(data))
    )
    made = kernel(A=given, B=dense)
    np.testing.assert_allclose(kind.get(made), matrix @ np.ones((40, 8)), rtol=1e-5)
    assert sorted(size for _, size, _ in kinds(gpu, "download")) == [4, 71 * 4]
    assert not kinds(gpu, "upload")
    arrays["indices"][7] = 1 << 40
    parts = (*map(kind.put, arrays.values()), kind.put(data))
    with pytest.raises(ArgumentError, match=r"A\.indices: got .*, expected values that int32 hol"):
        kernel(A=fake_libraries.SparseTensor("csr", matrix.shape, parts), B=dense)


def test_operands_with_one_pattern_in_two_copies_are_compared_there(gpu):
    kind, arrays = Torch(gpu), csr(1, "int32")
    data = np.ones(arrays["indices"].size, np.float32)
    matrix = sps.csr_array((data, arrays["indices"], arrays["indptr"]), shape=(70, 40))
    scale = spcomp.compile(BY_NAME["csr_element_wise"].build("float32", "int32"), target=TARGET)
    again = kind.put(arrays["indices"])
    assert scale(A=kind.csr(matrix), indices=again) is not None
    assert matrix.indices.nbytes not in [size for _, size, _ in kinds(gpu, "download")]
    other = arrays["indices"].copy()
    other[-1] -= 1
    with pytest.raises(ArgumentError, match="expected the same pattern"):
        scale(A=kind.csr(matrix), indices=kind.put(other))
