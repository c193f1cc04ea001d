"""Thresholds are asked of the target: one printable value, and each decides where it says so."""

from __future__ import annotations

import ast
import json
from dataclasses import FrozenInstanceError, asdict, replace
from pathlib import Path

import pytest

import spcomp
from spcomp.codegen.cpu.emit import emit
from spcomp.codegen.cpu.machine import resolve
from spcomp.compiler.pipeline import lower
from spcomp.errors import BackendError
from spcomp.ir.printer.program import print_module
from spcomp.knobs import CPU_KNOBS, KNOBS, Knobs, knobs_of
from spcomp.schedule.default.facts import Facts
from spcomp.target import Target
from tests.layers import TARGET, source

DECIDES = {  # what each decides in: a program, extents, and where it shows
    "csrmm": ({}, "tile_vectors prefetch_distance prefetch_bytes_least", "trace"),
    "csrmm parts": ({"feat": 256}, "prefetch_parts", "trace"),
    "csrmm wide": ({"feat": 1024}, "prefetch_distance_least", "trace"),
    "math_calls": ({}, "chunk_vector", "trace"),
    "csrmm hubs": ({}, "chunk_nested hub_piece", "trace"),
    "csrmm_t": ({"feat": 128}, "scatter_parts", "trace"),
    "csrmm_t half": ({"feat": 64}, "scatter_bytes", "trace"),
    "csr_reduce hubs": ({}, "chunk_elements", "trace"),
    "coo_segment": ({}, "stream_vectors chunk_sorted most_chunks", "trace"),
    "coo_segment runs": ({}, "run_chunks most_parts", "trace"),
    "dcsr_spmm": ({}, "chunk_fibers", "trace"),
    "spgemm": ({}, "chunk_workspace", "trace"),
    "spgemm rows": ({}, "fiber_ordered table_small table_spare mark_words rank_lanes", "position"),
    "spgemm blocks": ({}, "block_products", "flat"),
    "csr_add": ({}, "union_operands surprise_limit block_elements block_rows", "flat"),
    "csr_mul": ({}, "search_factor meeting_limit meeting_shorter meeting_longer", "flat"),
    "sddmm": ({}, "dot_accumulators", "flat"),
    "sddmm narrow": ({"feat": 8}, "prefetch_bytes_dot", "trace"),
    "csr_reduce": ({}, "mask_bits", "flat"),
    "spmv": ({}, "staged_rows staged_elements staged_least", "trace"),
    "spmv code": ({}, "single_lanes", "llvm"),
    "coo_segment code": ({}, "run_lanes", "llvm"),
    "csrmm hubs code": ({}, "line_bytes", "llvm"),
}
FACTS = {"hubs": Facts(hubs=True, skewed=True), "runs": Facts(runs=True)}
CASES = [(program, name) for program, (_, names, _) in DECIDES.items() for name in names.split()]
OWN = {  # module-level numbers of passes and schedules that are no threshold of a target
    "passes.assembly.marks.BITS": "of a word",
    "passes.flat.guard_accesses.MOST": "how far a proof goes",
    "passes.grid.compact_buffers.TILE": "what a matrix of a tensor core holds",
    "schedule.default.facts.MOST_ROW": "what Facts tells apart",
    "schedule.nests.sinking.SMALL": "how long a dimension may become by a proof",
    "schedule.steps.base.MOST": "products with trip counts stay in 64 bits",
    "schedule.steps.blocks.memory.MAX_ELEMENTS": "what a stack frame holds",
    "schedule.steps.blocks.memory.WIDEST": "what storage_align takes",
    "schedule.steps.loops.prefetch.LINE": "what the step prefetch means",
    "schedule.steps.loops.tiling.MOST_PIECES": "what split takes",
    "schedule.steps.sharing.gather_rows.TOGETHER": "what registers hold",
    "schedule.steps.sharing.hubs.PIECES": "what split_hubs means",
    "schedule.steps.sharing.hubs.SHARE": "what split_hubs means",
    "schedule.steps.sharing.split_nnz.MAX_CHUNKS": "what the steps that cut loops mean",
    "schedule.steps.sharing.split_nnz.ROW": "what split_nnz means",
    "schedule.steps.sharing.split_runs.ROUNDS": "what split_runs means",
    "schedule.steps.sharing.split_runs.SIZE": "what split_runs means",
    "schedule.steps.sharing.row_groups.UNEVEN": "what stage_products means",
    "schedule.steps.tensor.intrinsics.DRAWS": "how often an intrinsic is tried",
}


def shown(program: str) -> dict[str, str]:
    name, *facts = program.split()
    extents = DECIDES[program][0]
    known = FACTS.get(facts[0], Facts()) if facts else Facts()
    stages = lower(source(name), TARGET, extents, facts=known)
    assert stages.position is not None
    return {
        "trace": str(stages.trace),
        "position": print_module(stages.position),
        "flat": print_module(stages.flat),
        "llvm": emit(stages.flat, TARGET).llvm_ir,
    }


@pytest.mark.parametrize(("program", "name"), CASES)
@pytest.mark.sample(8, long=3)
def test_another_threshold_makes_another_decision(program, name, monkeypatch):
    where = DECIDES[program][2]
    before, own = shown(program), getattr(CPU_KNOBS, name)
    other = own * 2 if name == "mask_bits" else max(1, own // 2)
    monkeypatch.setitem(KNOBS, "cpu", replace(CPU_KNOBS, **{name: other}))
    assert shown(program)[where] != before[where]


@pytest.mark.parametrize(
    ("name", "cpu", "ahead"),
    [
        ("csrmm", "znver4", {8: False, 16: True, 32: True}),
        ("csrmm", "x86-64-v3", {8: False, 16: True, 32: True}),
        ("csrmm", "x86-64-v4", {8: False, 16: False, 32: False, 64: True}),
        ("sddmm", "x86-64-v4", {8: False, 16: False, 32: True, 64: True}),
    ],
)
def test_processors_that_gather_are_asked_for_longer_rows_only(name, cpu, ahead):
    """No row of 8 numbers: a vector may be wider than the row."""
    for feat, wanted in ahead.items():
        trace = lower(source(name), resolve(Target("cpu", cpu)), {"feat": feat}).trace
        assert ("prefetch" in str(trace)) == wanted, feat


def test_zen_4_gathers_by_instruction_from_what_is_far():
    def flat(cpu):
        return print_module(lower(source("spmv"), resolve(Target("cpu", cpu))).flat)

    before, both = flat("znver3"), flat("znver4")
    is_far = "if 524288 <= n * T.int64(4):"
    assert is_far not in before
    far, near = both.split(is_far)[1].split("else:\n            for i_g in")
    assert '"int64x8"' in far
    assert '"int64x4"' not in far
    assert '"int64x4"' in near
    assert '"int64x8"' not in near


def test_half_as_many_vectors_make_tiles_half_as_wide(monkeypatch):
    wide = str(lower(source("csrmm"), TARGET, {"feat": 64}).trace)
    monkeypatch.setitem(KNOBS, "cpu", replace(CPU_KNOBS, tile_vectors=4))
    narrow = str(lower(source("csrmm"), TARGET, {"feat": 64}).trace)
    assert "split('k', 64)" in wide
    assert "split('k', 32)" in narrow


def test_thresholds_are_a_frozen_value_that_prints():
    assert eval(repr(CPU_KNOBS), {"Knobs": Knobs}) == CPU_KNOBS
    assert Knobs(**json.loads(json.dumps(asdict(CPU_KNOBS)))) == knobs_of(Target())
    with pytest.raises(FrozenInstanceError):
        CPU_KNOBS.tile_vectors = 4  # type: ignore[misc]


def test_a_kind_of_target_that_nobody_measured_has_none(monkeypatch):
    monkeypatch.delitem(KNOBS, "cuda")
    with pytest.raises(BackendError, match="no thresholds are known for cuda:sm_90"):
        knobs_of(Target("cuda", "sm_90"))
    func = source("csrmm")
    with pytest.raises(BackendError, match="cuda"):
        spcomp.lower_sparse_iter(func, target="cuda")
    low = spcomp.lower_sparse_iter(func, target="cpu:x86-64-v3")
    with pytest.raises(BackendError, match="cuda"):
        spcomp.lower_sparse_buffer(low, target="cuda")


def test_passes_and_schedules_have_no_threshold_of_their_own():
    root = Path(spcomp.__file__).parent
    found = set()
    for path in (*root.glob("passes/**/*.py"), *root.glob("schedule/**/*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        for stmt in ast.parse(path.read_text("utf-8")).body:
            if isinstance(stmt, ast.Assign) and _is_number(stmt.value):
                names = [n.id for target in stmt.targets for n in ast.walk(target)
                         if isinstance(n, ast.Name)]  # fmt: skip
                found |= {f"{module}.{name}" for name in names}
    assert found == set(OWN)


def _is_number(value: ast.expr) -> bool:
    """Whether *value* is a number, an operation on numbers, or several of these."""
    kinds = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.operator, ast.unaryop, ast.Load)
    nodes = list(ast.walk(value))
    leaves = [node.value for node in nodes if isinstance(node, ast.Constant)]
    return (
        bool(leaves)
        and all(isinstance(node, kinds) for node in nodes)
        and all(isinstance(leaf, int | float) and not isinstance(leaf, bool) for leaf in leaves)
    )
