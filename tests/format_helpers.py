"""Programs to decompose, matrices to store in formats, and a program over parts interpreted."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import scipy.sparse as sps

import spcomp
from spcomp import formats
from spcomp.ir.interpret.program import interpret
from spcomp.script.parse import parse_source

LIBRARY = {  # that every matrix can be stored in, and other buffers along it
    "bsr": formats.bsr(2),
    "dbsr": formats.dbsr((2, 3)),
    "dcsr": formats.dcsr(),
    "ell": formats.ell(),
    "ell2": formats.ell(2),
    "padding": formats.padding(2),
    "hyb": formats.hyb(2, [1, 2]),
    "hyb_padded": formats.hyb(2, [1, 2], padded=True),
    "sr_bcrs": formats.sr_bcrs(2, 2),
    "dia": formats.dia(),
    "sell": formats.sell(2),
}

HEADER = """from spcomp import script as T

@T.prim_func
def f(a: T.handle, b: T.handle, c: T.handle, indptr: T.handle, indices: T.handle,
      m: T.int32, n: T.int32, feat: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    N = T.dense_fixed(n)
    K = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (I, J), "float32")
"""

BODIES = {
    "sddmm": """
    B = T.match_sparse_buffer(b, (N, K), "float32")
    C = T.match_sparse_buffer(c, (I, N), "float32")
    with T.sp_iter([I, J, K], "SSR", "f") as [i, j, k]:
        with T.init():
            C[i, j] = 0.0
        C[i, j] = C[i, j] + A[i, j] * B[j, k] * B[j, k]
""",
    "spmv": """
    B = T.match_sparse_buffer(b, (N, K), "float32")
    C = T.match_sparse_buffer(c, (I, K), "float32")
    with T.sp_iter([I, J, K], "SRS", "f") as [i, j, k]:
        with T.init():
            C[i, k] = 0.0
        C[i, k] = C[i, k] + A[i, j] * B[j, k]
""",
    "max": """
    B = T.match_sparse_buffer(b, (N, K), "float32")
    C = T.match_sparse_buffer(c, (I, K), "float32")
    with T.sp_iter([I, K, J], "SSR", "f") as [i, k, j]:
        with T.init():
            C[i, k] = T.min_value("float32")
        x = A[i, j] + B[j, k]
        C[i, k] = T.max(C[i, k], x)
""",
    "transposed": """
    B = T.match_sparse_buffer(b, (I, K), "float32")
    C = T.match_sparse_buffer(c, (N, K), "float32")
    with T.sp_iter([T.fuse(I, J), K], "RSS", "f") as [i, j, k]:
        with T.init():
            C[j, k] = 1.0
        C[j, k] = C[j, k] - B[i, k] * A[i, j]
""",
    "lower": """
    B = T.match_sparse_buffer(b, (N, K), "float32")
    C = T.match_sparse_buffer(c, (I, K), "float32")
    with T.sp_iter([I, J, K], "SRS", "f") as [i, j, k]:
        if j < i:
            C[i, k] = C[i, k] + A[i, j] * B[j, k]
""",
    "dense": """
    B = T.match_sparse_buffer(b, (N, K), "float32")
    C = T.match_sparse_buffer(c, (I, N), "float32")
    with T.sp_iter([I, N], "SS", "clear") as [i, j]:
        C[i, j] = 0.0
    with T.sp_iter([I, J], "SS", "f") as [i, j]:
        C[i, j] = A[i, j] * 2.0
""",
    "sampled": """
    B = T.match_sparse_buffer(b, (N, K), "float32")
    C = T.match_sparse_buffer(c, (I,), "float32")
    with T.sp_iter([K], "R", "each") as [k]:
        with T.sp_iter([I, J], "SR", "f") as [i, j]:
            C[i] = C[i] + A[i, j] * T.exp(B[j, k]) * 0.0
            C[i] = C[i] + A[i, j]
""",
}


def parse(source: str, dtype: str = "float32", idtype: str = "int32") -> Any:
    """Return the program in *source* with other types."""
    source = source.replace("float32", dtype).replace('"int32")', f'"{idtype}")')
    (func,) = parse_source(source.strip() + "\n", "f.py")
    return func


@cache
def program(name: str, dtype: str = "float32", idtype: str = "int32") -> Any:
    """Return the program of BODIES called *name*."""
    return parse(HEADER + BODIES[name], dtype, idtype)


@cache
def kernels(
    name: str, lanes: int | None = 4, min_fill: float = 0.25, dtype: str = "float32"
) -> tuple[Any, Any]:
    """Return the Kernel of the program *name* in CSR, and in diagonal segments."""
    func = program(name, dtype)
    layout = spcomp.formats.sliced_diagonal(lanes, min_fill)
    return spcomp.compile(func), spcomp.decompose(func, A=layout).compile()


@cache
def in_format(name: str, layout: Any, dtype: str = "float32", idtype: str = "int32") -> Any:
    """Return the Kernel of the program *name* over the parts of *layout*."""
    return spcomp.decompose(program(name, dtype, idtype), A=layout).compile()


@cache
def in_rows(name: str, dtype: str = "float32", idtype: str = "int32") -> Any:
    """Return the Kernel of the program *name* as it is, in compressed rows."""
    return spcomp.compile(program(name, dtype, idtype))


def matrices() -> dict[str, Any]:
    """Return small matrices of whole numbers, by what is odd about them."""
    rng = np.random.default_rng(0)

    def filled(pattern: Any) -> Any:
        return sps.csr_array(pattern * rng.integers(1, 9, pattern.shape).astype(np.float32))

    def band(m: int, n: int, *offsets: int) -> Any:
        apart = np.arange(n)[None, :] - np.arange(m)[:, None]
        return filled(np.isin(apart, offsets))

    def scattered(m: int, n: int, density: float) -> Any:
        return filled(rng.random((m, n)) < density)

    jitter = np.zeros((24, 40), bool)
    for row in range(24):
        jitter[row, row + rng.integers(0, 4, 5)] = True
    holes = band(30, 30, -7, -1, 0, 1, 7)
    holes.data[holes.indptr[10] : holes.indptr[16]] = 0
    holes.eliminate_zeros()
    zeros = band(20, 20, 0, 1)
    zeros.data[::3] = 0
    zeros.data[1::7] = -0.0
    return {
        "no rows": sps.csr_array((0, 5), dtype=np.float32),
        "no columns": sps.csr_array((5, 0), dtype=np.float32),
        "nothing stored": sps.csr_array((9, 9), dtype=np.float32),
        "fewer columns than lanes": band(12, 3, -2, -1, 0, 1),
        "fewer rows than lanes": scattered(3, 30, 0.5),
        "one element": band(1, 1, 0),
        "a stencil": band(32, 32, -8, -1, 0, 1, 8),
        "rows that are no multiple": band(23, 23, -1, 0, 1),
        "wide": band(11, 50, 0, 3, 20, 39),
        "tall": band(50, 11, -39, -20, -3, 0),
        "jitter": filled(jitter),
        "empty rows": holes,
        "scattered": scattered(25, 25, 0.2),
        "full": scattered(9, 13, 1.0),
        "stored zeros": zeros,
    }


def others(name: str, shape: tuple[int, ...], k: int = 2, dtype: str = "float32") -> dict[str, Any]:
    """Return the dense arguments of the program *name*, whole numbers."""
    rows = shape[0] if name == "transposed" else shape[1]
    values = np.random.default_rng(1).integers(-4, 5, (rows, k)).astype(dtype)
    return {"B": values}


def output(name: str, shape: tuple[int, ...], k: int = 2, dtype: str = "float32") -> Any:
    """Return an array of ones for the result of the program *name*."""
    m, n = shape
    sizes = {"transposed": (n, k), "dense": (m, n), "sddmm": (m, n), "sampled": (m,)}
    return np.ones(sizes.get(name, (m, k)), dtype)


def interpreted_parts(kernel: Any, csr: Any, dense: Any, out: Any) -> Any:
    """Return what the program over the parts means, by the interpreter."""
    made, parts = kernel.convert(A=csr), kernel.program.parts["A"]
    known = {"b": dense.reshape(-1), "c": out.reshape(-1).copy(), "feat": dense.shape[1]}
    known |= {"m": csr.shape[0], "n": csr.shape[1]}
    for part in parts:
        arrays, sizes = made.parts[part.rule.name], made.sizes[part.rule.name]
        for key, value in {**arrays, **sizes}.items():
            own = part.params["a" if key == "values" else key]
            known[own.name] = value.flatten() if isinstance(value, np.ndarray) else value
        for axis in ("P", "R", "J"):
            for size in (f"{axis}_count", f"{axis}_width"):
                if size in part.params and size not in sizes:
                    known[part.params[size].name] = len(arrays[f"{axis}_indices"])
    params = [param.name for param in kernel.program.func.params]
    interpret(kernel.program.func, {name: known[name] for name in params})
    return known["c"].reshape(out.shape)
