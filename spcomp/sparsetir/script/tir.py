"""Before the route: ``from spcomp.sparsetir.script import tir as T``, the script language.

It reads what SparseTIR published as SparseTIR does: a buffer whose elements have no address is
declared, and refused where its program is lowered; a function of level 0 may keep its blocks; parts
of a format are one computation, see :mod:`spcomp.sparsetir.composable`.
"""

from __future__ import annotations

from functools import partial

from spcomp.script.decorators import *  # noqa: F403
from spcomp.script.parse import decorate
from spcomp.script.syntax import *  # noqa: F403
from spcomp.sparsetir.composable import as_read

prim_func = partial(decorate, published=as_read)
