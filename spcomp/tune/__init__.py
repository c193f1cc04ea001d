"""Beside the route: the tuner, and what it or another search may know of a program and its data.

``spcomp.tune(program, A=csr, B=dense)`` calls :func:`tune`: the package is callable.
"""

import sys
from types import ModuleType
from typing import Any

from spcomp.tune.candidates import CandidateFeatures as CandidateFeatures
from spcomp.tune.candidates import candidate_features as candidate_features
from spcomp.tune.features import flatten_itervar_feature as flatten_itervar_feature
from spcomp.tune.features import from_tvm_ast as from_tvm_ast
from spcomp.tune.features import get_flatten_name as get_flatten_name
from spcomp.tune.features import get_itervar_feature as get_itervar_feature
from spcomp.tune.features import get_itervar_feature_flatten as get_itervar_feature_flatten
from spcomp.tune.frozen import frozen as frozen
from spcomp.tune.layouts import format_of as format_of
from spcomp.tune.machine import Machine as Machine
from spcomp.tune.machine import this_machine as this_machine
from spcomp.tune.measure import Interval as Interval
from spcomp.tune.search import Progress as Progress
from spcomp.tune.search import tune as tune
from spcomp.tune.space import Candidate as Candidate
from spcomp.tune.statistics import MatrixStatistics as MatrixStatistics
from spcomp.tune.statistics import matrix_statistics as matrix_statistics
from spcomp.tune.store import Store as Store
from spcomp.tune.store import user_store as user_store
from spcomp.tune.suggestion import Suggestion as Suggestion
from spcomp.tune.suggestion import suggest as suggest
from spcomp.tune.trial import Trial as Trial
from spcomp.tune.tuned import Tuned as Tuned

__all__ = [
    "Candidate",
    "CandidateFeatures",
    "Interval",
    "Machine",
    "MatrixStatistics",
    "Progress",
    "Store",
    "Suggestion",
    "Trial",
    "Tuned",
    "candidate_features",
    "flatten_itervar_feature",
    "format_of",
    "frozen",
    "from_tvm_ast",
    "get_flatten_name",
    "get_itervar_feature",
    "get_itervar_feature_flatten",
    "matrix_statistics",
    "suggest",
    "this_machine",
    "tune",
    "user_store",
]


class _Package(ModuleType):
    """The package, which can be called."""

    def __call__(self, program: Any, /, **named: Any) -> Tuned:
        """Return ``spcomp.tune.tune(program, **named)``."""
        return tune(program, **named)


sys.modules[__name__].__class__ = _Package
