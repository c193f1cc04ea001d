"""The command line for GPUs: what ``build`` writes and ``show`` prints, and what kernels tell."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.codegen import nvvm
from spcomp.compiler.pipeline import lower
from spcomp.errors import ArgumentError, BackendError
from spcomp.runtime.cuda import driver, ptxas
from spcomp.schedule.step import Trace
from spcomp.target import target
from tests import fake_cuda
from tests.fake_launches import InEmulator, emulate
from tests.programs import BY_NAME

ROOT = Path(__file__).parents[1]
KERNEL = ROOT / "examples" / "kernel.py"
TARGET = "cuda:sm_90"
ASSEMBLING = """
from spcomp import script as T

@T.prim_func
def add(a: T.handle, b: T.handle, c: T.handle, ap: T.handle, ai: T.handle, bp: T.handle,
        bi: T.handle, m: T.int32, n: T.int32, na: T.int32, nb: T.int32) -> None:
    I = T.dense_fixed(m)
    JA = T.sparse_variable(I, (n, na), (ap, ai), "int32")
    JB = T.sparse_variable(I, (n, nb), (bp, bi), "int32")
    JC = T.sparse_variable(I, (n, None), (None, None), "int32")
    A = T.match_sparse_buffer(a, (I, JA), "float32")
    B = T.match_sparse_buffer(b, (I, JB), "float32")
    C = T.match_sparse_buffer(c, (I, JC), "float32")
    with T.sp_iter([I, T.union(JA, JB)], "SS", "add") as [i, j]:
        C[i, j] = A[i, j] + B[i, j]

@T.prim_func
def divide(a: T.handle, q: T.handle, n: T.int32, d: T.int32) -> None:
    I = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I,), "int32")
    Q = T.match_sparse_buffer(q, (I,), "int32")
    with T.sp_iter([I], "S", "divide") as [i]:
        Q[i] = A[i] // d
"""


KNOWN = "data: rows of up to 64 elements on average, a row so long that threads share it, few rows"


def command(*args: object, **env: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "spcomp", *map(str, args)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(line, capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with what ``build`` writes of two programs for a GPU."""
    folder = tmp_path_factory.mktemp("out")
    (folder / "programs.py").write_text(ASSEMBLING)
    kinds = "ptx,llvm,json,py"
    run = command(
        "build", folder / "programs.py", "-o", folder, "--target", TARGET, "--emit", kinds
    )
    assert run.returncode == 0, run.stderr
    return folder


def compiled(name, **options):
    return spcomp.compile(BY_NAME[name].build("float32", "int32"), target=TARGET, **options)


@pytest.fixture
def gpu(monkeypatch):
    with fake_cuda.installed() as gpu:
        monkeypatch.setattr(numba, "cuda", sys.modules["numba.cuda"], raising=False)
        yield gpu


def loaded(folder, name, gpu):
    """Return the module that ``build`` wrote, whose PTX runs in the emulator."""
    program = InEmulator((folder / f"{name}.ll").read_text())
    gpu.programs[(folder / f"{name}.ptx").read_text()] = program
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}_cuda.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def test_what_is_possible_for_a_gpu_is_written(tmp_path):
    run = command("build", KERNEL, "csrmm", "-o", tmp_path, "--target", TARGET, "--json")
    assert run.returncode == 0, run.stderr
    kinds = ["coordinate", "position", "flat", "llvm", "ptx", "json", "py"]
    kinds += ["cubin"] * (ptxas.tool("ptxas") is not None)
    (program,) = json.loads(run.stdout)["programs"]
    assert list(program["artefacts"]) == kinds
    assert program["milliseconds"]["llvm"] > 0
    assert ".target sm_90" in (tmp_path / "csrmm.ptx").read_text()


@pytest.mark.parametrize(
    ("kind", "machine", "instead"),
    [
        ("so", TARGET, "ptx, json, py, cubin"),
        ("header,ptx", TARGET, "ptx, json, py, cubin"),
        ("ptx", "cpu", "asm, obj, so, header"),
    ],
)
def test_what_makes_no_sense_for_a_target_is_refused(tmp_path, kind, machine, instead):
    run = command("build", KERNEL, "csrmm", "-o", tmp_path, "--target", machine, "--emit", kind)
    assert run.returncode == 2
    whose = "cuda:sm_NN" if machine == "cpu" else "cpu"
    assert f"--emit: {kind.partition(',')[0]} is for --target {whose}; for {machine}" in run.stderr
    assert instead in run.stderr
    assert not list(tmp_path.iterdir())


def test_the_kernel_file_is_not_overwritten(tmp_path):
    file = tmp_path / "add_cuda.py"
    file.write_text(ASSEMBLING)
    run = command("build", file, "add", "-o", tmp_path, "--target", TARGET, "--emit", "py")
    assert run.returncode == 2
    assert "would be overwritten" in run.stderr
    assert file.read_text() == ASSEMBLING


def test_the_description_says_how_to_launch(built):
    value = json.loads((built / "add.json").read_text())
    assert value["ptx"] == "add.ptx"
    assert [step["step"] for step in value["host"]].count("launch") == len(value["kernels"])
    assert value["deterministic"] is True
    assert value["version"] == 1
    (matrix,) = (p for p in value["parameters"] if p["argument"] == "A")
    assert (len(matrix["shape"]), len(matrix["layout"])) == (2, 2)
    notes = (built / "add_cuda.py").read_text()
    assert "float32 array of the values that are stored of (m, n), in" in notes
    assert "float32 array that is made and returned: give None" in notes
    ptx = (built / "add.ptx").read_text()
    for kernel in value["kernels"]:
        assert f".entry {kernel['symbol']}(" in ptx
        names = {argument["name"]: 7 for argument in kernel["arguments"]}
        assert all(eval(extent, names) >= 1 for extent in kernel["blocks"])
        assert len(kernel["threads"]) == 3
    (status,) = json.loads((built / "divide.json").read_text())["kernels"]
    assert status["status"] is True


def test_the_module_runs_the_program(built, gpu):
    rng = np.random.default_rng(3)
    A, B = (
        sps.random_array((9, 12), density=0.3, format="csr", dtype=np.float32, rng=rng)
        for _ in range(2)
    )
    cuda, add = sys.modules["numba.cuda"], loaded(built, "add", gpu)
    there = (cuda.to_device(a) for a in (A.data, B.data, A.indptr, A.indices, B.indptr, B.indices))
    a, b, *index = there
    found = add(a, b, None, *index, 9, 12, A.nnz, B.nnz)
    expected = (A + B).sorted_indices()
    for name, array in (("JC_indptr", expected.indptr), ("JC_indices", expected.indices)):
        np.testing.assert_array_equal(found[name].copy_to_host(), array)
    np.testing.assert_allclose(found["c"].copy_to_host(), expected.data, rtol=1e-6)


def test_the_module_reports_a_failure(built, gpu):
    cuda, divide = sys.modules["numba.cuda"], loaded(built, "divide", gpu)
    a, q = (cuda.to_device(np.arange(7, dtype=np.int32)) for _ in range(2))
    assert divide(a, q, 7, 2, stream=5) is None
    np.testing.assert_array_equal(q.copy_to_host(), np.arange(7) // 2)
    assert gpu.launches[-1].stream == 5
    with pytest.raises(RuntimeError, match="integer division by zero"):
        divide(a, q, 7, 0)


def test_show_prints_ptx():
    run = command("show", KERNEL, "csrmm", "--target", TARGET, "--stage", "ptx")
    assert run.returncode == 0, run.stderr
    assert ".visible .entry csrmm" in run.stdout
    refused = command("show", KERNEL, "csrmm", "--stage", "ptx")
    assert refused.returncode == 2
    assert "--stage: ptx is for --target cuda:sm_NN" in refused.stderr
    refused = command("show", KERNEL, "csrmm", "--target", TARGET, "--stage", "asm")
    assert refused.returncode == 2
    assert "--stage: asm is for --target cpu" in refused.stderr


def test_the_source_of_a_kernel_for_a_gpu_is_ptx():
    kernel = compiled("csrmm")
    assert kernel.source("ptx") == kernel.source("asm")
    with pytest.raises(ArgumentError, match="got 'ptx'"):
        spcomp.compile(BY_NAME["csrmm"].build("float32", "int32")).source("ptx")


def test_explain_says_what_is_launched():
    text = compiled("csrmm_t").explain()
    lines = [line for line in text.splitlines() if line.startswith("launch ")]
    assert [line.split(":")[0] for line in lines] == ["launch csrmm_t_0", "launch csrmm_t_1"]
    assert all("blocks (" in line and "threads " in line for line in lines)
    assert "launch" not in spcomp.compile(BY_NAME["csrmm"].build("float32", "int32")).explain()


def test_explain_of_index_notation_says_what_is_launched():
    A = sps.random_array((9, 12), density=0.3, format="csr", dtype=np.float32)
    kernel = spcomp.compile("C[i, k] = A[i, j] * B[j, k]", target=TARGET)
    assert "\nlaunch C_i_k" in kernel.explain(A=A, B=np.ones((12, 4), np.float32))


def skewed():
    """A matrix with one very long row, and a dense one."""
    dense = np.zeros((50, 3000), np.float32)
    dense[7] = 1
    return {"A": sps.csr_array(dense), "B": np.ones((3000, 64), np.float32)}


@pytest.mark.parametrize("where", [TARGET, f"{TARGET},emulate"])
def test_explain_of_index_notation_has_the_data_and_the_steps_of_the_call(where):
    kernel = spcomp.compile("C[i, k] = A[i, j] * B[j, k]", target=where)
    text = kernel.explain(**skewed())
    assert text.startswith(KNOWN)
    assert "split_rows('i', 'j', 128)" in text
    assert "vectorize('k_2')" in text
    assert text.count("\nlaunch ") == 3
    plain = {"A": sps.eye_array(50, 3000, dtype=np.float32, format="csr"), "B": skewed()["B"]}
    text = kernel.explain(**plain)
    assert text.startswith("data: rows of up to 1 elements on average, few rows\n")
    assert "split_rows" not in text
    assert text.count("\nlaunch ") == 1
    assert "split('k'" in kernel.explain()  # for any data


def test_explain_with_index_vectors_of_results_is_for_any_data():
    kernel = spcomp.compile("Y[s[e], f] += X[e, f]", target=TARGET)
    Y, X = np.zeros((4, 3), np.float32), np.ones((2, 3), np.float32)
    text = kernel.explain(s=np.array([0, 1]), X=X, Y=Y)
    assert "data:" not in text
    assert "\nlaunch " in text


@pytest.mark.skipif(driver.missing() is None, reason="there is a GPU")
def test_explain_looks_at_matrices_without_a_gpu():
    source = BY_NAME["csrmm"].build("float32", "int32")
    kernel, on_cpu = (spcomp.compile(source, target=t) for t in (TARGET, f"{TARGET},emulate"))
    text = kernel.explain(**skewed())
    assert text.startswith(KNOWN)
    assert text == on_cpu.explain(**skewed())
    assert kernel.specialize(**skewed()).source("ptx")


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_atomic_sums_of_floats_are_named(dtype):
    source = BY_NAME["csrmm_t"].build(dtype, "int32")
    position = lower(source, nvvm.resolve(target(TARGET)), trace=Trace()).position
    schedule = spcomp.Schedule(position.funcs[0])
    schedule = schedule.annotate("csrmm_t1", "atomic", True).bind("i", "blockIdx.x")
    kernel = spcomp.compile(schedule, target=TARGET)
    named = {name for launch in kernel.launches for name in launch.atomic}
    says = "adds floats to Y atomically, in any order"
    assert (named == {"Y"}) == (says in kernel.explain()) == (dtype == "float32")


@pytest.mark.skipif(ptxas.tool("ptxas") is None, reason="no ptxas")
def test_resources_come_from_ptxas():
    (used,) = compiled("csrmm").resources.values()
    assert used.source == "ptxas"
    assert 8 <= used.registers <= 255
    assert used.spilled == 0
    assert used.threads == 128
    assert used.occupancy is not None
    assert 0 < used.occupancy.share <= 1


def test_resources_come_from_the_driver_without_ptxas(monkeypatch, gpu):
    monkeypatch.setattr("spcomp.runtime.gpu.tool", lambda name: None)
    emulate(gpu, monkeypatch)
    gpu.costs["csrmm"] = {"regs": 40, "local": 16}
    (used,) = compiled("csrmm").resources.values()
    assert (used.source, used.registers, used.spilled) == ("driver", 40, 16)


def test_resources_need_ptxas_or_a_gpu(monkeypatch):
    monkeypatch.setattr("spcomp.runtime.gpu.tool", lambda name: None)
    with fake_cuda.installed(devices=0) as gpu:
        emulate(gpu, monkeypatch)
        with pytest.raises(BackendError, match=r"no ptxas .* no GPU: there is no NVIDIA GPU"):
            _ = compiled("csrmm").resources
    with pytest.raises(BackendError, match="are those of kernels for a GPU"):
        _ = spcomp.compile(BY_NAME["csrmm"].build("float32", "int32")).resources


def test_without_ptxas_a_cubin_is_refused(monkeypatch):
    monkeypatch.setattr(ptxas, "tool", lambda name: None)
    with pytest.raises(BackendError, match="there is no ptxas") as caught:
        ptxas.assemble("", "sm_90")
    assert "nvidia-cuda-nvcc" in caught.value.hint


def test_what_ptxas_says_is_read():
    log = """ptxas info    : Compiling entry function 'one' for 'sm_90'
ptxas info    : Function properties for one
    0 bytes stack frame, 8 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 512 bytes smem
ptxas info    : Compiling entry function 'two' for 'sm_90'
ptxas info    : Used 10 registers"""
    usage = ptxas._usage(log)
    assert usage == {"one": ptxas.Usage(32, 16, 512), "two": ptxas.Usage(10, 0)}
