"""The record of a call: its steps in order, and why it cannot be repeated if it cannot."""

import numpy as np
import pytest

import spcomp
from spcomp import script as T
from spcomp.errors import ArgumentError
from spcomp.kernels.learn import learn
from spcomp.runtime.replay import entry
from tests.test_api import spmm
from tests.test_entry import csr, full_way, spmm_args

pytestmark = pytest.mark.skipif(not entry.available(), reason="no call entry on this Python")


@T.prim_func
def add_patterns(
    a: T.handle,
    b: T.handle,
    c: T.handle,
    p: T.handle,
    q: T.handle,
    m: T.int32,
    n: T.int32,
    k: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, k), (p, q), "int32")
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (I, J), "float32")
    C = T.match_sparse_buffer(c, (I, J), "float32")
    with T.sp_iter([I, J], "SS", "add_patterns") as [i, j]:
        C[i, j] = A[i, j] + B[i, j]


def test_a_pattern_that_two_arguments_share_in_other_types_is_compared_as_it_was():
    a = csr(np.random.default_rng(17))
    level = ("compressed", a.indptr.astype("int64"), a.indices.astype("int64"))
    tensor = spcomp.Tensor(a.shape, [None, level], a.data)
    out = np.empty_like(a.data)
    kernel = spcomp.compile(add_patterns)
    for _ in range(4):
        kernel(A=a, B=tensor, C=out)
        np.testing.assert_array_equal(out, 2 * a.data)
    assert kernel._calls.repeats
    row = int(np.flatnonzero(np.diff(a.indptr))[0])
    a.indptr[row + 1 :] -= 1
    a.indptr[-1] += 1
    with pytest.raises(ArgumentError, match="differs from that of A"):
        kernel(A=a, B=tensor, C=out)


def record(kernel, **named):
    """The record of a call that was done the full way."""
    return full_way(kernel)._call(named)


def test_the_record_of_a_call_shows_its_steps_in_order():
    args = spmm_args(np.random.default_rng(18))
    call = record(spcomp.compile(spmm), A=args["A"], B=args["B"])
    lines = str(call).splitlines()
    steps = [line.split()[0] for line in lines]
    order = ["take", "sizes", "check", "allocate", "version", "run", "wrap"]
    assert list(dict.fromkeys(steps)) == order
    assert "m = 30, n = 20" in lines[2]
    assert any("Coordinates(array='indices', low=0, high=19, order=2" in line for line in lines)
    np.testing.assert_allclose(call.result, args["A"] @ args["B"], rtol=1e-5)


def test_what_cannot_be_repeated_says_why():
    args = spmm_args(np.random.default_rng(19))
    kernel, a, b = spcomp.compile(spmm), args["A"], args["B"]
    assert str(learn(record(kernel, A=a, B=b))).startswith("take 0, A")
    assert learn(record(kernel, A=a.tocoo(), B=b)) == "A is converted at each call"
    assert learn(record(kernel, A=a, B=b[:, ::2])) == "B is converted at each call"
    tensor = spcomp.Tensor.from_scipy(a)
    both = record(spcomp.compile(add_patterns), A=a, B=tensor)
    assert "depend on the order of the arguments" in learn(both)
