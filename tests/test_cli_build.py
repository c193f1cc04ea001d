"""``spcomp build`` writes every artefact: each is read back, linked, called."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
import scipy.sparse as sps

from spcomp.cli import options
from spcomp.codegen.abi import c_parameters
from spcomp.io.replace import replacing

ROOT = Path(__file__).parents[1]
KERNEL = ROOT / "examples" / "kernel.py"
PROGRAMS = ("csrmm", "sddmm", "segment_reduce")
SUFFIXES = ["coordinate.py", "position.py", "flat.py", "ll", "s", "o", "so", "h"]
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def spcomp(*args: object, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spcomp", *map(str, args)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder that ``spcomp build examples/kernel.py`` fills, and the summary that it prints."""
    folder = tmp_path_factory.mktemp("out")
    result = spcomp("build", KERNEL, "-o", folder, "--json")
    assert result.returncode == 0, result.stderr
    return folder, json.loads(result.stdout)


@pytest.fixture
def csrmm():
    rng = np.random.default_rng(0)
    a = sps.random_array((7, 5), density=0.4, format="csr", dtype=np.float32, rng=rng)
    return a, rng.random((5, 3), dtype=np.float32), np.full((7, 3), 9, np.float32)


@needs_cc
def test_every_artefact_of_every_program_is_written(built):
    folder, _ = built
    expected = {f"{name}.{suffix}" for name in PROGRAMS for suffix in SUFFIXES}
    assert {path.name for path in folder.iterdir()} == expected
    assert all(path.stat().st_size for path in folder.iterdir())


def test_the_summary_says_what_was_written_and_how_long_it_took(built):
    _, summary = built
    assert [program["name"] for program in summary["programs"]] == list(PROGRAMS)
    for program in summary["programs"]:
        for artefact in program["artefacts"].values():
            assert Path(artefact["path"]).stat().st_size == artefact["bytes"]
        assert list(program["milliseconds"]) == ["parse", "lower", "emit", "llvm"]
        assert all(0 <= spent < 5000 for spent in program["milliseconds"].values())
        assert program["milliseconds"]["parse"] > 0  # the rest may come from the disk


@pytest.mark.parametrize("stage", ["coordinate", "position", "flat"])
def test_a_printed_stage_builds_to_the_same_machine_code(built, tmp_path, stage):
    folder, _ = built
    result = spcomp("build", folder / f"csrmm.{stage}.py", "-o", tmp_path, "--emit", "asm,obj,flat")
    assert result.returncode == 0, result.stderr
    for suffix in ("s", "o", "flat.py"):
        assert (tmp_path / f"csrmm.{suffix}").read_bytes() == (
            folder / f"csrmm.{suffix}"
        ).read_bytes()


def test_a_program_written_at_a_stage_has_no_stage_above(built, tmp_path):
    folder, _ = built
    result = spcomp("build", folder / "sddmm.flat.py", "-o", tmp_path, "--emit", "all")
    assert result.returncode == 0, result.stderr
    assert not (tmp_path / "sddmm.position.py").exists()
    assert (tmp_path / "sddmm.flat.py").exists()


def test_what_was_asked_for_and_is_left_out_is_said(built, tmp_path):
    folder, _ = built
    asked = (folder / "csrmm.flat.py", "-o", tmp_path, "--emit", "coordinate,flat,llvm")
    result = spcomp("build", *asked)
    assert result.returncode == 0, result.stderr
    assert result.stderr == "csrmm.coordinate.py is left out: csrmm has no coordinate stage\n"
    assert {path.name for path in tmp_path.iterdir()} == {"csrmm.flat.py", "csrmm.ll"}


@needs_cc
def test_the_coordinate_stage_of_a_schedule_is_written(built, tmp_path):
    folder, _ = built
    text = "import spcomp\nfrom kernel import csrmm\n"
    text += 'sched = spcomp.Schedule(csrmm).lower_sparse_iter().parallel("i")\n'
    (tmp_path / "own.py").write_text(text)
    asked = (tmp_path / "own.py", "sched", "-o", tmp_path / "out", "--emit", "all")
    result = spcomp("build", *asked, PYTHONPATH=f"{ROOT}{os.pathsep}{KERNEL.parent}")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    written = (tmp_path / "out" / "sched.coordinate.py").read_text()
    assert written == (folder / "csrmm.coordinate.py").read_text()


@needs_cc
def test_the_library_computes_what_scipy_does(built, csrmm):
    folder, _ = built
    a, b, c = csrmm
    library = ctypes.CDLL(str(folder / "csrmm.so"))
    arrays = (a.data, b, c, a.indptr.astype(np.int32), a.indices.astype(np.int32))
    pointers = (ctypes.c_void_p(array.ctypes.data) for array in arrays)
    assert library.csrmm(*pointers, *map(ctypes.c_int32, (7, 5, 3, a.nnz))) == 0
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)


@needs_cc
def test_the_library_needs_only_the_system(built):
    folder, _ = built
    run = subprocess.run(["nm", "-D", "-u", folder / "csrmm.so"], capture_output=True, text=True)
    if run.returncode:
        pytest.skip("no nm")
    assert "spcomp_" not in run.stdout


@needs_cc
def test_the_header_and_the_object_make_a_c_program(built, tmp_path):
    folder, _ = built
    (tmp_path / "main.c").write_text("""
#include <stdio.h>
#include "segment_reduce.h"
int main(void) {
    float a[] = {1, 2, 3, 4}, b[3];
    int32_t indptr[] = {0, 1, 1, 4};
    int32_t status = segment_reduce(a, b, indptr, 3, 5, 4);
    printf("%d %g %g %g", status, b[0], b[1], b[2]);
    return 0;
}
""")
    command = ["cc", "-Wall", "-Werror", "-I", folder, "main.c", folder / "segment_reduce.o"]
    subprocess.run([*command, "-lm", "-lpthread", "-o", "main"], check=True, cwd=tmp_path)
    run = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True)
    assert run.stdout == "0 1 0 9"


def test_the_header_documents_every_parameter_and_status(built):
    folder, _ = built
    text = (folder / "csrmm.h").read_text()
    for name in ["a", "b", "c", "indptr", "indices", "m", "n", "feat", "nnz"]:
        assert f" * {name}: " in text
    assert " * c: C(m, feat) along I dense_fixed, K dense_fixed, written" in text
    assert " * indptr: axis J: where each fiber begins, and the end" in text
    assert " * nnz: axis J: number of positions" in text
    assert "0: done" in text
    assert "const float *a" in text
    assert "    float *c" in text


def test_the_table_shows_files_sizes_and_times(tmp_path):
    result = spcomp(
        "build", KERNEL, "csrmm", "-o", tmp_path / "deep" / "out", "--emit", "flat,llvm"
    )
    assert result.returncode == 0, result.stderr
    assert "csrmm" in result.stdout
    assert " ms" in result.stdout
    assert "KiB" in result.stdout
    assert {path.name for path in (tmp_path / "deep" / "out").iterdir()} == {
        "csrmm.flat.py", "csrmm.ll",
    }  # fmt: skip


def test_constants_are_compiled_in(tmp_path):
    result = spcomp("build", KERNEL, "-o", tmp_path, "--emit", "coordinate", "--const", "feat=64")
    assert result.returncode == 0, result.stderr
    text = (tmp_path / "csrmm.coordinate.py").read_text()
    assert "64" in text
    assert "feat" not in text
    assert "64" not in (tmp_path / "segment_reduce.coordinate.py").read_text()


def test_another_target_is_built_for(tmp_path):
    result = spcomp(
        "build", KERNEL, "csrmm", "-o", tmp_path, "--emit", "llvm", "--target", "cpu:x86-64"
    )
    assert result.returncode == 0, result.stderr
    assert '"target-cpu"="x86-64"' in (tmp_path / "csrmm.ll").read_text()
    result = spcomp("build", KERNEL, "-o", tmp_path, "--target", "tpu")
    assert (result.returncode, result.stdout) == (2, "")
    assert "'--target': unknown target 'tpu'; targets are cpu" in result.stderr
    result = spcomp("build", KERNEL, "-o", tmp_path, "--target", "cuda:sm_91")
    assert result.returncode == 2
    assert "'--target': unknown GPU 'sm_91'; GPUs are sm_80" in result.stderr


def test_a_program_is_called_by_the_variable_that_holds_it(tmp_path):
    text = KERNEL.read_text() + "\nrenamed = csrmm.specialize({'feat': 32})\n"
    (tmp_path / "kernel.py").write_text(text)
    result = spcomp("build", tmp_path / "kernel.py", "renamed", "-o", tmp_path, "--emit", "header")
    assert result.returncode == 0, result.stderr
    assert "int32_t renamed(" in (tmp_path / "renamed.h").read_text()


def test_without_a_c_compiler_the_rest_is_built_unless_the_library_was_asked_for(tmp_path):
    args = ("build", KERNEL, "csrmm", "-o", tmp_path)
    result = spcomp(*args, CC="/nowhere/cc")
    assert result.returncode == 0, result.stderr
    assert not (tmp_path / "csrmm.so").exists()
    assert (tmp_path / "csrmm.h").exists()
    result = spcomp(*args, "--emit", "so", CC="/nowhere/cc")
    assert result.returncode == 1
    assert result.stderr.startswith("error: no C compiler to link the library with\nhint: ")


@needs_cc
def test_a_linker_that_fails_is_reported(tmp_path):
    result = spcomp(
        "build", KERNEL, "csrmm", "-o", tmp_path, "--emit", "so", CC=shutil.which("false")
    )
    assert result.returncode == 1
    assert "cannot link csrmm" in result.stderr


def test_an_output_that_cannot_be_a_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    assert spcomp("build", KERNEL, "-o", tmp_path / "file").returncode == 2
    result = spcomp("build", KERNEL, "-o", tmp_path / "file" / "below")
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    (tmp_path / "csrmm.ll").mkdir()
    result = spcomp("build", KERNEL, "-o", tmp_path, "--emit", "llvm")
    assert result.returncode == 1
    assert "csrmm.ll" in result.stderr
    assert "Traceback" not in result.stderr


def test_several_programs_show_a_progress_bar_on_a_terminal(tmp_path):
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "spcomp", "build", str(KERNEL), "-o", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    run = subprocess.run([*command, "--emit", "flat"], stderr=end, stdout=subprocess.PIPE, env=env)
    os.close(end)
    shown = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    assert run.returncode == 0
    assert "compiling" in shown


def test_a_program_with_a_host_program_says_so_and_is_built_again_from_its_phases(tmp_path):
    result = spcomp("build", ROOT / "examples" / "sparse_add.py", "-o", tmp_path)
    assert result.returncode == 0, result.stderr
    header = (tmp_path / "spadd.h").read_text()
    assert "spadd.flat.py shows what it does around it" in header
    assert "made by the host program" in header
    assert "int32_t spadd_pack(" in header
    assert "T.trim(" in (tmp_path / "spadd.flat.py").read_text()
    result = spcomp(
        "build", tmp_path / "spadd.position.py", "-o", tmp_path / "again", "--emit", "asm"
    )
    assert result.returncode == 0, result.stderr
    again = (tmp_path / "again" / "spadd.s").read_text()
    assert again == (tmp_path / "spadd.s").read_text()


@needs_cc
def test_two_objects_link_into_one_program_and_share_its_threads(built, tmp_path):
    folder, _ = built
    (tmp_path / "main.c").write_text("""
#include "csrmm.h"
#include "sddmm.h"
int main(void) { spcomp_set_threads(2); return 0; }
""")
    objects = (folder / "csrmm.o", folder / "sddmm.o")
    command = ["cc", "-Wall", "-Werror", "-I", folder, "main.c", *objects, "-lm", "-lpthread"]
    run = subprocess.run([*command, "-o", "main"], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    subprocess.run([tmp_path / "main"], check=True)


SERIAL = """
from spcomp import script as T

@T.prim_func
def total(a: T.handle, y: T.handle, spare: T.handle, n: T.int32, scale: T.float64) -> None:
    I = T.dense_fixed(n)
    O = T.dense_fixed(1)
    A = T.match_sparse_buffer(a, (I,), "float16")
    Y = T.match_sparse_buffer(y, (O,), "float64")
    with T.sp_iter([I], "R", "total") as [i]:
        with T.init():
            Y[0] = 0.0
        Y[0] = Y[0] * scale + T.cast(A[i], "float64")
"""


@needs_cc
def test_a_program_without_a_parallel_loop_has_no_pool_in_its_library(tmp_path):
    (tmp_path / "total.py").write_text(SERIAL)
    result = spcomp("build", tmp_path / "total.py", "-o", tmp_path)
    assert result.returncode == 0, result.stderr
    header = (tmp_path / "total.h").read_text()
    assert "spcomp_set_threads" not in header
    for line in (" * spare: not used, may be NULL", " * scale: a number", "const uint16_t *a"):
        assert line in header
    a, y = np.arange(5, dtype=np.float16), np.zeros(1)
    library = ctypes.CDLL(str(tmp_path / "total.so"))
    pointers = (ctypes.c_void_p(array.ctypes.data) for array in (a, y))
    scalars = (ctypes.c_int32(5), ctypes.c_double(0.5))
    assert library.total(*pointers, None, *scalars) == 0
    assert y[0] == 6.125


KEYWORDS = """
from spcomp import script as T

@T.prim_func
def double(int: T.handle, class_: T.handle, größe: T.int32) -> None:
    A = T.match_buffer(int, (größe,), "float32")
    B = T.match_buffer(class_, (größe,), "float32")
    for i in T.serial(größe):
        A[i] = B[i]
"""


@needs_cc
@pytest.mark.parametrize("language", ["c", "c++"])
def test_a_header_is_c_and_cpp_whatever_the_names_of_a_program(tmp_path, language):
    (tmp_path / "words.py").write_text(KEYWORDS)
    result = spcomp("build", tmp_path / "words.py", "-o", tmp_path)
    assert result.returncode == 0, result.stderr
    text = (tmp_path / "double.h").read_text()
    assert "int32_t k_double(\n    float *int_,\n    const float *class_,\n" in text
    command = ["cc", "-Wall", "-Werror", "-fsyntax-only", "-x", language, tmp_path / "double.h"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert ctypes.CDLL(str(tmp_path / "double.so")).k_double(None, None, 0) == 0


def test_parameters_of_a_header_are_distinct():
    assert c_parameters(["int", "int_", "x", "ä"]) == ["int_", "int__", "x", "_ue4"]


@pytest.mark.parametrize(
    ("compiler", "message"),
    [("/bin/true", "it wrote no library"), ("{here}/text", "text cannot link csrmm: ")],
)
def test_a_compiler_that_does_not_link_is_named(tmp_path, compiler, message):
    (tmp_path / "text").write_text("no program")
    (tmp_path / "text").chmod(0o755)
    command = ("build", KERNEL, "csrmm", "-o", tmp_path, "--emit", "so")
    result = spcomp(*command, CC=compiler.format(here=tmp_path))
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_full_disk_leaves_no_part_of_a_file(tmp_path, monkeypatch):
    class Full:
        def write(self, content):
            raise OSError(errno.ENOSPC, "No space left on device")

    @contextlib.contextmanager
    def opened(path):
        with replacing(path) as file:
            file.write(b"; half of it")
            yield Full()

    (tmp_path / "csrmm.ll").write_text("what was there before")
    monkeypatch.setattr(options, "replacing", opened)
    with pytest.raises(click.FileError, match="No space left on device"):
        options.write(tmp_path / "csrmm.ll", b"")
    assert (tmp_path / "csrmm.ll").read_text() == "what was there before"
    assert [path.name for path in tmp_path.iterdir()] == ["csrmm.ll"]


def test_a_library_is_called_as_the_platform_calls_it():
    code = """import sys; sys.platform = sys.argv[1]
from spcomp.cli import native; print(native.LIBRARY, *native._LIBRARIES)"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    names = {
        platform: subprocess.run(
            [sys.executable, "-c", code, platform], env=env, capture_output=True, text=True
        )
        for platform in ("linux", "darwin", "win32")
    }
    shown = {platform: run.stdout.strip() or run.stderr for platform, run in names.items()}
    assert shown == {"linux": ".so -lm -lpthread", "darwin": ".dylib", "win32": ".dll"}
