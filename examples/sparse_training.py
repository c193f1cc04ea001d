"""Three models with sparse parts are trained with PyTorch: attention, voxels, and lists of items.

A transformer block whose queries see a band of keys; a 3-D convolution of a surface in a grid,
which has a matrix for each of 27 offsets; and a recommender whose users have lists of items of
different lengths (a jagged nested tensor). ``--size 10`` makes all of them ten times as large.
"""

import argparse
import warnings
from collections.abc import Callable

import torch
from torch.nn import Embedding, LayerNorm, Linear, Module, Parameter

import spcomp
from spcomp.torch import attention, rgcn

warnings.filterwarnings("ignore", message="Sparse CSR")  # torch says that its tensors are new
warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors")
Tensor = torch.Tensor


class Block(Module):
    """A transformer block: attention under a mask, then two products for each row."""

    def __init__(self, width: int, heads: int, mask: Tensor) -> None:
        super().__init__()
        self.heads, self.mask = heads, mask
        self.inner, self.outer = Linear(width, 3 * width), Linear(width, width)
        self.up, self.down = Linear(width, 2 * width), Linear(2 * width, width)
        self.norms = torch.nn.ModuleList([LayerNorm(width), LayerNorm(width)])

    def forward(self, x: Tensor) -> Tensor:
        """Return *x* (rows, width) after attention and products, each added to what was there."""
        heads = self.inner(self.norms[0](x)).view(len(x), 3, self.heads, -1)
        query, key, value = heads.permute(1, 2, 0, 3)
        seen = attention(query, key, value, self.mask)
        x = x + self.outer(seen.transpose(0, 1).flatten(1))
        return x + self.down(torch.relu(self.up(self.norms[1](x))))


def band(count: int, reach: int) -> Tensor:
    """Return a sparse mask: row i may see the rows that are *reach* away or less."""
    at = torch.arange(count)
    return ((at[:, None] - at).abs() <= reach).to_sparse_csr()


class Voxels(Module):
    """Two submanifold convolutions: a site takes from the sites around it that are filled."""

    def __init__(self, pairs: Tensor, offsets: Tensor) -> None:
        super().__init__()
        self.pairs, self.offsets = pairs, offsets
        self.first = Parameter(torch.randn(27, 3, 16) / 9)
        self.second = Parameter(torch.randn(27, 16, 1) / 20)

    def forward(self, x: Tensor) -> Tensor:
        """Return a number for each site."""
        inner = torch.relu(rgcn(x, self.first, self.pairs, self.offsets, "sum"))
        return rgcn(inner, self.second, self.pairs, self.offsets, "sum")


def neighbours(sites: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Return pairs of *sites* that are next to each other, and which of 27 offsets they have."""
    number = torch.full((side + 2,) * 3, -1)
    number[tuple(sites.T + 1)] = torch.arange(len(sites))
    ends, starts, offsets = [], [], []
    for offset, step in enumerate(torch.cartesian_prod(*[torch.arange(-1, 2)] * 3)):
        found = number[tuple((sites + 1 + step).T)]
        (at,) = (found >= 0).nonzero(as_tuple=True)
        ends.append(at)
        starts.append(found[at])
        offsets.append(torch.full_like(at, offset))
    return torch.stack([torch.cat(starts), torch.cat(ends)]), torch.cat(offsets)


class Recommender(Module):
    """A user is the sum of the items on a list; its products with items are their scores."""

    total = spcomp.compile("U[b, f] = sum(j, X[b, j, f])")

    def __init__(self, items: int, width: int) -> None:
        super().__init__()
        self.items, self.wanted = Embedding(items, width), Embedding(items, width)

    def forward(self, lists: Tensor) -> Tensor:
        """Return a score of each item for each of *lists*, a nested tensor of numbers."""
        rows = torch.nested.nested_tensor_from_jagged(
            self.items(lists.values()), offsets=lists.offsets()
        )
        return self.total(X=rows) @ self.wanted.weight.T


def train(name: str, model: Module, loss: Callable[[], Tensor], steps: int) -> None:
    """Train *model* to make *loss* small."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        losses.append(loss())
        losses[-1].backward()
        optimizer.step()
    print(f"{name}: loss {losses[0].item():.3f} to {losses[-1].item():.3f}")
    assert losses[-1] < losses[0] / 2


def main() -> None:
    """Train the three, and compare attention with that of PyTorch under a dense mask."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    asked = parser.parse_args()
    torch.manual_seed(0)

    rows, mask = torch.randn(96 * asked.size, 16), band(96 * asked.size, 2)
    block = Block(16, 2, mask)
    shifted = rows.roll(1, 0)  # each row is to say what the one before it was
    square = torch.nn.functional.mse_loss
    train("attention", block, lambda: square(block(rows), shifted), asked.steps)

    side = 10 * asked.size
    grid = torch.cartesian_prod(*[torch.arange(side)] * 3)
    middle = (grid - side / 2).float().norm(dim=1)
    sites = grid[(middle - side / 3).abs() < 1]  # a sphere
    voxels = Voxels(*neighbours(sites, side))
    x = sites / side - 0.5
    train("voxels", voxels, lambda: square(voxels(x)[:, 0], x.prod(1) * 20), asked.steps)

    lengths = torch.randint(1, 6, (60 * asked.size,))
    likes = torch.randint(4, lengths.shape)  # the group of items that a user likes
    items = 5 * torch.randint(4, (int(lengths.sum()),)) + likes.repeat_interleave(lengths)
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    lists = torch.nested.nested_tensor_from_jagged(items, offsets=ends)
    recommender = Recommender(20, 8)
    entropy = torch.nn.functional.cross_entropy
    groups = lambda: recommender(lists).view(-1, 4, 5).logsumexp(1)  # noqa: E731
    train("recommender", recommender, lambda: entropy(groups(), likes), asked.steps)

    query = torch.randn(2, 96 * asked.size, 8)
    dense = torch.nn.functional.scaled_dot_product_attention
    wanted = dense(query, query, query, attn_mask=mask.to_dense())
    error = (attention(query, query, query, mask) - wanted).abs().max().item()
    print(f"max error {error:.1e} of attention")
    assert error < 1e-5


if __name__ == "__main__":
    main()
