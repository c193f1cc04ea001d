"""Below everything: the type alias of a numpy array of any dtype, for signatures."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
