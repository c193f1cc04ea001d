"""Under the tuner: a model that ranks candidates, trained on what was measured (xgboost)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import log, nan
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from spcomp.errors import BackendError

if TYPE_CHECKING:
    from spcomp.tune.store import Store

Features: TypeAlias = Mapping[str, float]
LEAST = 16  # measurements from which a model is trained
MOST = 4_000  # measurements that it is trained on, the newest
_TREES = 60
_PARAMS = {
    "objective": "reg:squarederror",
    "max_depth": 4,
    "eta": 0.15,
    "subsample": 0.8,
    "seed": 0,
    "nthread": 1,
    "verbosity": 0,
}


def has_xgboost() -> bool:
    """Whether xgboost is installed."""
    return find_spec("xgboost") is not None


@dataclass
class Model:
    """Predicts how many times as fast as the default a candidate is, from features by name.

    *rows*: the features and measured speed-ups that it is trained on.
    """

    rows: list[tuple[Features, float]] = field(default_factory=list)
    _names: tuple[str, ...] = ()
    _trees: Any = None
    _trained: int = 0

    @staticmethod
    def of(store: Store, machine: str) -> Model:
        """Return a model of what *store* has from *machine*."""
        records = store.records(machine, "measured")[-MOST:]
        rows = [(json.loads(r.features), r.speedup) for r in records if r.speedup > 0]
        return Model([(features, speedup) for features, speedup in rows if features])

    def add(self, features: Features, speedup: float) -> None:
        """Take a measurement into account, from the next prediction on."""
        self.rows.append((features, speedup))

    @property
    def is_ready(self) -> bool:
        """Whether there are enough measurements."""
        return len(self.rows) >= LEAST

    def predict(self, candidates: Sequence[Features]) -> list[float]:
        """Return the speed-ups that are expected; raises BackendError without xgboost."""
        xgboost = _xgboost()
        if self._trained != len(self.rows):
            self._names = tuple(sorted({name for features, _ in self.rows for name in features}))
            matrix = xgboost.DMatrix(
                self._table([features for features, _ in self.rows]),
                label=np.log([speedup for _, speedup in self.rows]),
            )
            self._trees = xgboost.train(_PARAMS, matrix, num_boost_round=_TREES)
            self._trained = len(self.rows)
        values = self._trees.predict(xgboost.DMatrix(self._table(candidates)))
        return [float(value) for value in np.exp(values)]

    def _table(self, rows: Sequence[Features]) -> Any:
        return np.array([[row.get(name, nan) for name in self._names] for row in rows], np.float64)


def rank_correlation(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Return Spearman's correlation of two rankings, 1 if they agree; 0 for fewer than three."""
    if len(predicted) < 3:
        return 0.0
    first, second = (np.argsort(np.argsort(values)) * 1.0 for values in (predicted, measured))
    return float(np.corrcoef(first, second)[0, 1])


def _xgboost() -> Any:
    try:
        import xgboost
    except ImportError as error:
        raise BackendError(
            f"the model needs xgboost: {error}", hint="pip install spcomp[tune]"
        ) from error
    return xgboost


def as_log(speedup: float) -> float:
    """Return the logarithm of a speed-up, which a search maximises."""
    return log(max(speedup, 1e-9))
