"""Gradients at index vectors: gathers' are scatters and the reverse, of first and second order."""

from __future__ import annotations

import numpy as np
import pytest

import spcomp
from spcomp.errors import ScriptError

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(0)
NODES, ROWS, EDGES, FEATURES = 4, 5, 9, 3
SRC = RNG.integers(0, NODES, EDGES)
DST = RNG.integers(0, ROWS - 1, EDGES).astype(np.int32)  # a row gets nothing
SOFTMAX = """
    m[dst[e]] = max(e, w[e])
    p[e] = exp(w[e] - m[dst[e]])
    s[dst[e]] = p[e]
    Y[dst[e], f] = p[e] / s[dst[e]] * X[src[e], f]
"""
PROGRAMS = {
    "Z[e, f] = X[src[e], f]": (),
    "Z[e] = sum(f, X[src[e], f] * V[e, f])": (),
    "Z[e] = X[src[e], f] * X[dst[e], f] * X[dst[e], f]": (),
    "Z[f] = w[e] * X[src[e], f]": (),
    "Z[e] = X[src[e], f]": (),
    "Z[e] = exp(sum(f, X[src[e], f]))": (),
    "Z[e] = sum(f, w[e] * (w[e] + X[src[e], f]))": (),
    "Z[f] = X[src[e], f]": (),
    "s = X[src[e], f]": (),
    "s = w[src[e]]": (),
    "Y[dst[e], f] = sum(e, w[e] + X[src[e], f])": ("Y",),
    "Z[e, f] = tanh(X[src[e], f] + X[dst[e], f]) * w[e]": (),
    "Y[dst[e], f] = w[e] * X[src[e], f]": ("Y",),
    "Y[dst[e], f] = V[e, f] * exp(w[e]) + X[src[e], f]": ("Y",),
    "Y[dst[e], f] = min(e, w[e] * X[src[e], f])": ("Y",),
    "Y[dst[e], f] = prod(e, w[e] + X[src[e], f])": ("Y",),
    "Y[dst[e]] = sum(f, X[src[e], f] * V[e, f])": ("Y",),
    "c[dst[e]] = w[e]; Y[n, f] = c[n] * X[n, f]": (),
    "c[dst[e]] = prod(e, w[e]); Y[n, f] = c[n] * X[n, f]": (),
    SOFTMAX: ("Y",),
}


def operands(kernel, **more):
    made = {
        "X": RNG.random((ROWS, FEATURES)),
        "V": RNG.random((EDGES, FEATURES)),
        "w": RNG.random(EDGES),
    }
    tensors = {n: torch.tensor(x, requires_grad=True) for n, x in made.items()}
    known = {**tensors, "src": torch.tensor(SRC), "dst": torch.tensor(DST), **more}
    return {name: known[name] for name in kernel.arguments}


@pytest.mark.parametrize("text", PROGRAMS)
@pytest.mark.sample(8, long=3)
def test_gradients_are_those_of_differences(text):
    kernel = spcomp.compile(text)
    args = operands(kernel)
    sizes = {"sizes": dict.fromkeys(PROGRAMS[text], ROWS)} if PROGRAMS[text] else {}
    names = [name for name, x in args.items() if x.requires_grad]

    def call(*tensors):
        made = kernel(**{**args, **dict(zip(names, tensors, strict=True))}, **sizes)
        return made[made.isfinite()]  # the least of nothing is infinite

    tensors = tuple(args[name] for name in names)
    assert torch.autograd.gradcheck(call, tensors)
    if text != SOFTMAX:
        assert torch.autograd.gradgradcheck(call, tensors)


def test_gradients_are_those_of_torch():
    kernel = spcomp.compile("Y[dst[e], f] = w[e] * X[src[e], f]")
    args = operands(kernel)
    weights = torch.tensor(RNG.random((ROWS, FEATURES)))
    src, dst = args["src"], args["dst"].long()
    messages = args["w"][:, None] * args["X"][src]
    want = torch.zeros(ROWS, FEATURES, dtype=torch.float64).index_add(0, dst, messages)
    made = kernel(**args, sizes={"Y": ROWS})
    torch.testing.assert_close(made, want)
    leaves = args["w"], args["X"]
    for one, other in zip(
        torch.autograd.grad((made * weights).sum(), leaves),
        torch.autograd.grad((want * weights).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_ties_share_a_gradient_evenly():
    kernel = spcomp.compile("Y[dst[e]] = max(e, w[e])")
    w = torch.tensor([1.0, 2.0, 2.0, 0.5], requires_grad=True)
    made = kernel(w=w, dst=torch.tensor([0, 1, 1, 3]), sizes={"Y": 4})
    made[torch.tensor([0, 1, 3])].sum().backward()
    torch.testing.assert_close(w.grad, torch.tensor([1.0, 0.5, 0.5, 1.0]))


def test_adjoints_are_written_with_index_vectors():
    text = "Y[dst[e], f] = w[e] * X[src[e], f]"
    assert str(spcomp.adjoint(text, wrt="X")) == (
        "grad_X[src[e], f] = sum(e, grad_Y[dst[e], f] * w[e])"
    )
    kernel = spcomp.compile(spcomp.adjoint(text, wrt=("X", "w")))
    x, w, g = RNG.random((NODES, FEATURES)), RNG.random(EDGES), RNG.random((ROWS, FEATURES))
    want = np.zeros_like(x)
    np.add.at(want, SRC, w[:, None] * g[DST])
    bound = kernel.bind(src=SRC, dst=DST)
    for made in (kernel(X=x, w=w, src=SRC, dst=DST, grad_Y=g), bound(X=x, w=w, grad_Y=g)):
        np.testing.assert_allclose(made.grad_X, want)
        np.testing.assert_allclose(made.grad_w, (x[SRC] * g[DST]).sum(1))
    single = kernel(X=x.astype("f4"), w=w, src=SRC, dst=DST, grad_Y=g)
    assert single.grad_X.dtype == np.float32
    np.testing.assert_allclose(single.grad_X, want, rtol=1e-5)


def test_what_has_no_derivative_at_vectors_is_refused():
    with pytest.raises(ScriptError, match="a result is written at one index vector") as caught:
        spcomp.adjoint("Z[e] = X[src[e], dst[e]]", wrt="X")
    assert "^" in str(caught.value)
