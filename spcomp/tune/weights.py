"""Under the tuner: the model that comes with spcomp: trees that xgboost trained."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.codegen.cpu.machine import resolve
from spcomp.knobs import knobs_of

if TYPE_CHECKING:
    from spcomp.target import Target

_AMOUNTS = (  # features that grow with the matrix
    *("operations", "requested", "from_l2", "from_l3", "from_memory", "prefetches", "working_set"),
)
_GATHERING, _OTHERS = map(Path(__file__).with_name, ("weights_gather.json", "weights.json"))


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree of decisions: at node k, *feature* k below *threshold* k goes to *yes* k, else *no* k.

    A feature that is not there goes to *missing* k. At a leaf *feature* is -1, and *threshold* the
    value.
    """

    feature: tuple[int, ...]
    threshold: tuple[float, ...]
    yes: tuple[int, ...]
    no: tuple[int, ...]
    missing: tuple[int, ...]

    def value(self, row: Sequence[float]) -> float:
        """Return the value of the leaf that *row* comes to."""
        at = 0
        while (feature := self.feature[at]) >= 0:
            x = row[feature]
            if x != x:
                at = self.missing[at]
            else:
                at = self.yes[at] if x < self.threshold[at] else self.no[at]
        return self.threshold[at]


@dataclass(frozen=True, slots=True)
class Weights:
    """Predicts how many times as fast as the default a candidate is, from features by name.

    *names*: the features; *base*: what is added to the *trees*' values. *sure*: from what
    prediction on a candidate is preferred to the default. *trained*: on what, as text.
    """

    names: tuple[str, ...]
    trees: tuple[Tree, ...]
    base: float
    sure: float
    trained: str = ""

    def predict(self, candidates: Sequence[Mapping[str, float]]) -> list[float]:
        """Return the speed-ups that are expected."""
        found = map(of_any_name, candidates)
        table = np.array([[row.get(name, nan) for name in self.names] for row in found], np.float64)
        rows = table.astype(np.float32).tolist()  # thresholds are single values of the training
        return [exp(self.base + sum(tree.value(row) for tree in self.trees)) for row in rows]

    def knows(self, formats: Iterable[tuple[str, str]]) -> bool:
        """Whether the training had such *formats*: older weights have not seen ``sell``."""
        new = any(text.startswith("sell") for _, text in formats)
        return "matrix.sell" in self.names or not new

    def to_json(self) -> str:
        """Return the weights as text, thresholds with the digits that single values need."""
        trees = [
            [list(tree.feature), [float(str(x)) for x in np.array(tree.threshold, np.float32)],
             list(tree.yes), list(tree.no), list(tree.missing)] for tree in self.trees
        ]  # fmt: skip
        head: dict[str, Any] = {"trained": self.trained, "sure": self.sure, "base": self.base}
        lines = ",\n".join(json.dumps(tree, separators=(",", ":")) for tree in trees)
        names = json.dumps(list(self.names))
        return f'{json.dumps(head)[:-1]},\n"names": {names},\n"trees": [\n{lines}\n]}}\n'

    @staticmethod
    def from_json(text: str) -> Weights:
        """Return the weights that *text* says."""
        read = json.loads(text)
        for tree in read["trees"]:
            tree[1] = np.array(tree[1], np.float32).tolist()
        trees = tuple(Tree(*(tuple(column) for column in tree)) for tree in read["trees"])
        return Weights(tuple(read["names"]), trees, read["base"], read["sure"], read["trained"])


def of_any_name(features: Mapping[str, float]) -> dict[str, float]:
    """Return *features* with statistics of the matrix with most elements only, called ``matrix``.

    What one program calls its matrix means nothing to another. Amounts are there for each element,
    too. Distances of reuse are left out: they tell the kinds of the training from each other, and
    the model learns these by heart.
    """
    names = {name.partition(".")[0] for name in features if "." in name}
    largest = max(sorted(names), key=lambda name: features[f"{name}.nnz"], default="")
    found = {
        f"matrix.{key}" if key else name: value
        for name, value in features.items()
        if (head := name.partition("."))[0] == largest or not head[1]
        if not (key := head[2]).startswith("reuse_")
    }
    stored = max(found.get("matrix.nnz", 1.0), 1.0)
    return found | {f"{k}_each": found[k] / stored for k in _AMOUNTS if k in found}


def weights(target: Target) -> Weights | None:
    """Return the weights that come with spcomp for *target*; None if there are none."""
    return _read(file_for(target)) if target.kind == "cpu" else None


def file_for(target: Target) -> Path:
    """Return where the weights for a CPU are: those that gather whole vectors have their own."""
    cpu = resolve(target)
    return _GATHERING if knobs_of(cpu).gathers(cpu.vector_bits) else _OTHERS


@cache
def _read(file: Path) -> Weights:
    return Weights.from_json(file.read_text(encoding="utf-8"))
