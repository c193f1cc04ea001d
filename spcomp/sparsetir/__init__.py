"""Before the route: the names of TVM and SparseTIR, so that published programs run.

``from spcomp import sparsetir as tvm``, and in place of ``from tvm.sparse import ...``,
``from spcomp.sparsetir.sparse import ...``. A thin layer over spcomp: a Schedule here changes in
place and returns names, an IRModule is a dictionary of functions, arrays are numpy's.
"""

from spcomp.sparsetir import ir as ir
from spcomp.sparsetir import nd as nd
from spcomp.sparsetir import script as script
from spcomp.sparsetir import sparse as sparse
from spcomp.sparsetir import testing as testing
from spcomp.sparsetir import tir as tir
from spcomp.sparsetir.build import build as build
from spcomp.sparsetir.module import IRModule as IRModule
from spcomp.sparsetir.nd import cpu as cpu
from spcomp.sparsetir.nd import cuda as cuda

__all__ = ["IRModule", "build", "cpu", "cuda", "ir", "nd", "script", "sparse", "testing", "tir"]
