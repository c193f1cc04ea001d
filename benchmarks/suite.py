"""Which lines a full run has, and the ratios that we mean to reach on them."""

from __future__ import annotations

from itertools import product

from benchmarks.problem import Case

GRAPHS = ("rmat", "uniform", "heavy")
SQUARED = ("directed", "sparser", "laplacian", "cora")
GRAPHBLAS = ("graphblas", "graphblas_dots")
GROUP_TARGETS = {"spmm": 1.05, "spgemm": 1.0, "spgemm_unordered": 1.0}  # geometric means

SUITE: tuple[Case, ...] = (
    *(
        Case("spmm", name, feat, target=0.95, group="spmm")
        for name, feat in product((*GRAPHS, "laplacian"), (32, 128, 512))
    ),
    Case("spmm_max", "rmat", 128, target=2.0, group="spmm_max", pairing="call"),
    Case("spmm_mean", "rmat", 128, target=2.0, group="spmm_mean", pairing="call"),
    *(
        Case("spmv", name, dtype=dtype, target=1.0, group="spmv")
        for name, dtype in product(GRAPHS, ("float32", "float64"))
    ),
    Case("spmv", "laplacian", group="spmv laplacian"),
    Case("spmv_compressed", "laplacian", target=0.85, group="spmv compressed"),
    *(Case("sddmm", "rmat", feat, target=1.5, group="sddmm", pairing="call") for feat in (32, 128)),
    *(
        Case("mttkrp", "tensor", rank, target=2.0, group="mttkrp", pairing="call")
        for rank in (16, 32)
    ),
    *(
        Case(operator, "rmat", feat, target=1.5, group="segment reduce", pairing="call")
        for operator, feat in product(
            ("segment_ragged", "segment_csr", "segment_coo"), (1, 32, 128)
        )
    ),
    *(
        Case("csrmm_t", "rmat", feat, target=1.0, group="csrmm_t", pairing="paired")
        for feat in (32, 128)
    ),
    *(
        Case(operator, name, target=1.5, group=operator, pairing="paired")
        for operator, name in product(("spadd", "hadamard"), ("rmat", "uniform", "laplacian"))
    ),
    *(
        Case(operator, name, target=0.8, group=operator, pairing="call")
        for operator, name in product(("spgemm", "spgemm_unordered"), SQUARED)
    ),
    *(
        Case(operator, name, target=2.0, group="masked", pairing="call", against=GRAPHBLAS)
        for operator, name in product(("spgemm_masked", "triangles"), ("rmat", "sparser"))
    ),
    *(
        Case(operator, name, target=1.5, group=operator, pairing="call", against=("scipy",))
        for operator, name in product(("coo_csr", "csr_csc"), (*GRAPHS, "laplacian"))
    ),
    Case("spmv", "cora", target=1.0, group="cora", pairing="paired"),
    Case("spmm", "cora", 32, target=1.0, group="cora", pairing="paired"),
    Case("spmm_hub", "hub", 32, target=1.4, group="hub", against=("spcomp_rows",)),
)


def select(
    operators: list[str] | None = None,
    matrices: list[str] | None = None,
    feats: list[int] | None = None,
) -> list[Case]:
    """Return the lines for these *operators*, *matrices* and *feats*; None means all.

    A matrix that the suite does not have, such as a MatrixMarket file, gets a line for each
    operator that takes a matrix.
    """
    known = {case.workload for case in SUITE}
    cases = [case for case in SUITE if matrices is None or case.workload in matrices]
    for name in matrices or ():
        if name not in known:
            shapes = {(c.operator, c.feat, c.dtype): c for c in SUITE if c.workload != "tensor"}
            cases += [
                Case(c.operator, name, c.feat, c.dtype, None, "", c.pairing)
                for c in shapes.values()
            ]
    return [
        case
        for case in cases
        if (operators is None or case.operator in operators)
        and (feats is None or case.feat in feats)
    ]
