"""What machine code may call: what its program declares, and a few names of the code generator."""

from __future__ import annotations

import warnings

import llvmlite.binding as llvm
import pytest

import spcomp
from spcomp.codegen.cpu.llvm import object_code
from spcomp.codegen.cpu.symbols import check_symbols, undefined
from spcomp.errors import InternalError, SpcompWarning
from spcomp.target import target
from tests.layers import source
from tests.programs import PROGRAMS

CPUS = ("x86-64-v2", "apple-m1")  # the least on x86, and no x86 at all
MORE = ("x86-64-v3", "x86-64-v4", "znver4", "neoverse-n1")
SYSTEMS = ("x86_64-unknown-linux-gnu", "aarch64-apple-macosx", "x86_64-pc-windows-msvc")
CALLING = """
declare double @sin(double)
declare void @a_name_that_is_longer_than_eight(ptr)
@table = external global i32
define double @f(double %x, ptr %p) {
  call void @a_name_that_is_longer_than_eight(ptr %p)
  %y = call double @sin(double %x)
  ret double %y
}
define internal i32 @g() {
  ret i32 0
}
"""


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_names_that_an_object_needs_are_read_from_every_kind_of_file(system):
    object_code(CALLING, target("cpu"))  # LLVM is set up by it
    machine = llvm.Target.from_triple(system).create_target_machine(reloc="pic")
    module = llvm.parse_assembly(CALLING)
    module.triple = system
    needed = undefined(machine.emit_object(module)) - {"_GLOBAL_OFFSET_TABLE_", "_fltused"}
    assert needed == {"sin", "a_name_that_is_longer_than_eight"}


def test_an_object_that_calls_what_its_program_does_not_is_refused_by_name():
    code = object_code(CALLING, target("cpu"))
    check_symbols(code, CALLING)
    with pytest.raises(InternalError, match="calls sin, the program does not"):
        check_symbols(code, CALLING.replace("@sin", "@tan"))


def test_every_compilation_is_searched(monkeypatch):
    seen = []
    monkeypatch.setattr("spcomp.codegen.cpu.llvm.check_symbols", lambda *args: seen.append(args))
    object_code(CALLING, target("cpu"))
    assert [text for _, text in seen] == [CALLING]


def built(program, dtype, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpcompWarning)
        kernel = spcomp.compile(source(program.name, dtype), target=f"cpu:{name}")
    return kernel.object_bytes  # searched where it was made


@pytest.mark.parametrize("name", CPUS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
@pytest.mark.sample(8)
def test_a_program_compiles_for_a_cpu_whatever_the_host(program, name):
    assert built(program, program.dtypes[0], name)


@pytest.mark.long
@pytest.mark.parametrize("name", CPUS + MORE)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
@pytest.mark.sample(12, long=12)
def test_a_program_compiles_for_every_cpu_in_every_dtype(program, name):
    for dtype in program.dtypes:
        assert built(program, dtype, name)
