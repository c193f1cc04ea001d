"""Programs as operators of torch: torch's own checks, torch.compile and torch.export."""

from __future__ import annotations

import subprocess
import sys
from itertools import count
from typing import Any

import numpy as np
import pytest

import spcomp
from spcomp.errors import ArgumentError, SpcompError

torch = pytest.importorskip("torch", reason="needs the torch extra")
op: Any = pytest.importorskip("spcomp.torch").op

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning")]
NUMBERS = count()
DENSE = [[1.0, 0, 2, 0], [0, 3, 0, 0], [4, 0, 0, 5]]
SDDMM = "C[i, j] = A[i, j] * X[i, k] * Y[k, j]"
SOFTMAX = """
    m[i] = max(j, A[i, j])
    e[i, j] = exp(A[i, j] - m[i]) if A[i, j]
    C[i, j] = e[i, j] / sum(k, e[i, k])
    d[i] = sum(j, A[i, j] is not None)
"""


def registered(program: str, formats: dict[str, str] | None = None, **more: Any) -> Any:
    """The operator of *program*, under a name of its own."""
    return op(program, name=f"spcomp_test::op{next(NUMBERS)}", formats=formats, **more)


def parts(dtype: Any = None) -> tuple[Any, ...]:
    """The parts of the matrix, of which the values require gradients."""
    csr = torch.tensor(DENSE).to(dtype or torch.float32).to_sparse_csr()
    return csr.crow_indices(), csr.col_indices(), csr.values().clone().requires_grad_(), 4


def numbers(*shape: int, dtype: Any = None) -> Any:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return made.to(dtype or torch.float32).requires_grad_()


@pytest.fixture(scope="module")
def spmm() -> Any:
    return registered("C[i, k] = A[i, j] * B[j, k]", {"A": "csr"})


@pytest.mark.parametrize("name", ["float64", "float32", "bfloat16"])
def test_operators_pass_the_checks_of_torch(spmm: Any, name: str) -> None:
    dtype = getattr(torch, name)
    for call, args in (
        (spmm, (*parts(dtype), numbers(4, 3, dtype=dtype))),
        (spmm, (*parts(dtype), numbers(3, 4, dtype=dtype).T)),
        (
            registered(SDDMM, {"A": "csr"}),
            (*parts(dtype), numbers(3, 2, dtype=dtype), numbers(2, 4, dtype=dtype)),
        ),
        (registered(SOFTMAX, {"A": "csr"}), parts(dtype)),
        (registered("y[i] = alpha * x[i]"), (numbers(dtype=dtype), numbers(3, dtype=dtype))),
    ):
        found = torch.library.opcheck(call, args)
        assert set(found.values()) == {"SUCCESS"}


def test_values_and_gradients_of_operators(spmm: Any) -> None:
    full, dense = torch.tensor(DENSE).double(), numbers(4, 3, dtype=torch.float64)
    rows, columns, values, count = parts(torch.float64)
    assert torch.allclose(spmm(rows, columns, values, count, dense), full @ dense)
    assert torch.autograd.gradcheck(
        lambda values, dense: spmm(rows, columns, values, count, dense), (values, dense)
    )
    softmax = registered(SOFTMAX, {"A": "csr"})
    found, sizes = softmax(rows, columns, values, count)
    assert sizes.tolist() == [2, 1, 2]
    assert torch.allclose(found[:2], torch.tensor([1.0, 2]).double().softmax(0))
    assert torch.autograd.gradcheck(lambda v: softmax(rows, columns, v, count)[0], (values,))


def test_one_graph_for_all_sizes(spmm: Any) -> None:
    torch._dynamo.reset()
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    def layer(*args: Any) -> Any:
        return torch.relu(spmm(*args)) * 2

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=backend)
    full = torch.tensor(DENSE)
    for width in (3, 5, 7):
        args, dense = parts(), numbers(4, width)
        compiled(*args, dense).sum().backward()
        grads = args[2].grad, dense.grad
        other, plain = full.clone().requires_grad_(), dense.detach().clone().requires_grad_()
        (torch.relu(other @ plain) * 2).sum().backward()
        assert torch.allclose(grads[0], other.grad[full != 0], atol=1e-5)
        assert torch.allclose(grads[1], plain.grad, atol=1e-5)
    assert len(graphs) == 1


def test_operators_can_be_exported(spmm: Any) -> None:
    class Layer(torch.nn.Module):
        def forward(self, rows: Any, columns: Any, values: Any, dense: Any) -> Any:
            return spmm(rows, columns, values, 4, dense)

    args = (*(x.detach() for x in parts()[:3]), numbers(4, 3).detach())
    exported = torch.export.export(Layer(), args)
    assert "spcomp_test" in str(exported.graph)
    assert torch.allclose(exported.module()(*args), torch.tensor(DENSE) @ args[-1])


def gathered(x: Any, source: Any, target: Any, count: int) -> Any:
    return torch.zeros(count, *x.shape[1:], dtype=x.dtype).index_add(0, target, x[source])


@pytest.mark.parametrize(
    ("program", "sizes", "plain"),
    [
        ("Z[e, f] = X[src[e], f]", None, lambda x, s, _t, _d: x[s]),
        (
            "s[dst[e], f] = X[src[e], f]; Y[n, f] = s[n, f] * d[n]",
            None,
            lambda x, s, t, d: gathered(x, s, t, 4) * d[:, None],
        ),
        (
            "Y[dst[e], f] = X[src[e], f]",
            {"Y": 6},
            lambda x, s, t, _d: gathered(x, s, t, 6),
        ),
        ("Y[src[e], f] = X[src[e], f]", None, lambda x, s, _t, _d: gathered(x, s, s, 3)),
    ],
)
def test_index_vectors_are_operands(program: str, sizes: Any, plain: Any) -> None:
    torch._dynamo.reset()
    made = registered(program, sizes=sizes)
    source, target = torch.tensor([1, 0, 2, 1, 1]), torch.tensor([3, 0, 0, 2, 3])
    x, d = numbers(3, 2, dtype=torch.float64), numbers(4, dtype=torch.float64)
    everything = {"X": x, "src": source, "dst": target, "d": d}
    args = tuple(everything[name] for name in spcomp.compile(program).arguments)
    assert set(torch.library.opcheck(made, args).values()) == {"SUCCESS"}
    expected = plain(x, source, target, d)
    assert torch.allclose(made(*args), expected)
    compiled = torch.compile(lambda *a: made(*a) * 2, fullgraph=True, backend="aot_eager")
    result = compiled(*args)
    assert torch.allclose(result, expected * 2)
    leaves = [leaf for leaf in (x, d) if any(leaf is arg for arg in args)]
    found = torch.autograd.grad(result.square().sum(), leaves)
    for one, other in zip(
        found, torch.autograd.grad((expected * 2).square().sum(), leaves), strict=True
    ):
        assert torch.allclose(one, other)


def test_lengths_at_index_vectors_are_known_at_registration() -> None:
    line = "Y[dst[e]] = x[e]"
    with pytest.raises(ArgumentError, match="no operand says how long Y is") as caught:
        registered(line)
    assert 'sizes={"Y": n}' in caught.value.hint
    for sizes in ({"x": 3}, {"Y": -1}, {"Y": 2.0}):
        with pytest.raises(ArgumentError, match="argument sizes"):
            registered(line, sizes=sizes)
    with pytest.raises(ArgumentError, match="argument dst: got 7 at position 0"):
        registered(line, sizes={"Y": 5})(torch.ones(1), torch.tensor([7]))


@pytest.mark.parametrize("way", ["kernel", "bound", "einsum"])
def test_calls_of_kernels_break_the_graph(way: str) -> None:
    torch._dynamo.reset()
    eye, edges, x = np.eye(3, dtype=np.float32), torch.tensor([[0, 1, 2], [2, 0, 0]]), numbers(3)
    kernel = spcomp.compile("y[i] = A[i, j] * x[j]")
    call = {
        "kernel": lambda x: kernel(A=eye, x=x),
        "bound": kernel.bind(A=eye),
        "einsum": lambda x: spcomp.einsum("ij,j->i", eye, x),
    }[way]
    graphs = []

    def layer(x: Any) -> Any:
        found = call(x=torch.relu(x) * 2)
        return spcomp.torch.gather_scatter(found[:, None], edges) * 2

    compiled = torch.compile(layer, backend=lambda graph, _: graphs.append(graph) or graph)
    result = compiled(x)
    assert torch.equal(result, layer(x))
    (found,) = torch.autograd.grad(result.sum(), x)
    assert torch.equal(found, 4 * (x > 0))
    assert len(graphs) == 3  # before, between and after the two calls, and nothing inside


def test_kernels_that_are_older_than_torch_break_the_graph() -> None:
    code = [
        "import numpy as np, spcomp",
        "old = spcomp.compile('y[i] = 2 * x[i]')",
        "import torch",
        "new = spcomp.compile('y[i] = 3 * x[i]')",
        "assert 'torch._dynamo' not in __import__('sys').modules",
        "graphs = []",
        "call = lambda x: new(x=old(x=x + 1)) - 1",
        "found = torch.compile(call, backend=lambda g, _: graphs.append(g) or g)(torch.ones(3))",
        "assert found.tolist() == [11] * 3 and len(graphs) == 2, (found, len(graphs))",
    ]
    subprocess.run([sys.executable, "-c", "\n".join(code)], check=True, timeout=300)


def test_wrong_programs_and_arguments_are_refused(spmm: Any) -> None:
    line = "C[i, k] = A[i, j] * B[j, k]"
    for program, name, formats, message in (
        (line, "a b", None, "argument name"),
        (line, "x", {"A": "bsr(2)"}, "argument formats"),
        (line, "x", {"D": "csr"}, "argument formats: the program has no D"),
        ("y[i] = x[i, 0]", "x", None, "argument program"),
        ("y[i] += x[i]", "x", None, "argument program"),
        ("C[i, j] = A[i, j] * A_values[i, j]", "x", {"A": "csr"}, "operand A_values"),
    ):
        with pytest.raises(ArgumentError, match=message):
            op(program, name=name, formats=formats)
    for program in ("C[i, j] = A[i, j] + B[i, j]", "C[i, k] = A[i, j] * B[j, k]"):
        both = {"A": "csr", "B": "csr"}
        with pytest.raises(ArgumentError, match="the pattern of C is that of no operand") as caught:
            registered(program, both)
        assert 'formats={"C": "dense"}' in caught.value.hint
        registered(program, {**both, "C": "dense"})
    rows, columns, values, count = parts()
    dense = numbers(4, 3)
    for args in (
        (rows, columns + 2, values, count, dense),
        (rows, columns, values[:3], count, dense),
        (rows + 1, columns, values, count, dense),
        (rows, columns, values, 5, dense),
    ):
        with pytest.raises((SpcompError, RuntimeError)):
            spmm(*args)
    with pytest.raises(ArgumentError, match=r"^argument A: got 3 at position 4, expected 0\.\.2"):
        spmm(rows, columns, values, 3, dense)


def test_a_name_stays_with_its_program() -> None:
    x = torch.ones(3)
    twice = op("y[i] = 2 * x[i]", name="spcomp_test::twice")
    assert op("y[i] = 2 * x[i]", name="spcomp_test::twice") is twice  # a cell that is run again
    with pytest.raises(ArgumentError, match="spcomp_test::twice is another program already"):
        op("y[i] = 3 * x[i]", name="spcomp_test::twice")
    assert torch.equal(twice(x), 2 * x)
    text, name = "y[i] = f(x[i])", "spcomp_test::own"
    ours = [
        spcomp.compile(text, functions={"f": spcomp.Function(body)}).program
        for body in (lambda a: a * 2, lambda b: b * 2, lambda a: a * 3, lambda a: a * 2.0)
    ]
    own = op(ours[0], name=name)
    assert op(ours[1], name=name) is own
    for other in ours[2:]:
        with pytest.raises(ArgumentError, match="own is another program already"):
            op(other, name=name)


def test_parts_that_are_no_matrix_and_tensors_elsewhere_are_refused() -> None:
    product = op("C[i, k] = A[i, j] * B[j, k]", name="spcomp_test::parts", formats={"A": "csr"})
    rows, columns, values = torch.tensor([0, 1, 2]), torch.tensor([0, 1]), torch.ones(2)
    dense = torch.ones(2, 3)
    for parts, message in (
        ((rows.float(), columns, values), "argument crow_indices: got torch.float32"),
        ((rows, columns.double(), values), "argument col_indices: got torch.float64"),
        ((rows, columns, values[:, None]), r"got shapes \(3,\), \(2,\), \(2, 1\)"),
        ((rows[:0], columns[:0], values[:0]), r"got shapes \(0,\)"),
    ):
        with pytest.raises(ArgumentError, match=message):
            product(*parts, 2, dense)
    with pytest.raises(ArgumentError, match="arguments lie on cpu and on meta"):
        product(rows, columns, values, 2, dense.to("meta"))
