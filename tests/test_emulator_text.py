"""What the emulator reads in the text of LLVM IR: operands, sizes, the buffers of pointers."""

import pytest

from spcomp.codegen import cpu
from spcomp.errors import EmulationError
from spcomp.runtime.emulator import layout as at
from spcomp.runtime.emulator.crossing import crossing, repeated_kind
from spcomp.runtime.emulator.provenance import LOCAL, bases
from spcomp.runtime.emulator.text import Call, Instruction, Operand, read, size_of, split
from spcomp.runtime.emulator.translate import translate
from spcomp.target import Target
from tests.emulator_kernels import BARRIER, DYNAMIC, G, module


def test_operands_are_split_outside_of_brackets():
    text = 'i32 1, ptr addrspace(3) getelementptr (i8, ptr @"a,b", i64 4), <2 x i32> <i32 1, i32 2>'
    assert [len(split(text)), split("")] == [3, []]
    one, two, three = map(Operand.of, split(text))
    assert (one.kind, one.value, one.space) == ("i32", "1", 0)
    assert (two.kind, two.space) == ("ptr addrspace(3)", 3)
    assert two.value == 'getelementptr (i8, ptr @"a,b", i64 4)'
    assert (three.kind, three.value) == ("<2 x i32>", "<i32 1, i32 2>")
    noted = Operand.of("ptr addrspace(1) noalias readonly align 16 captures(none) %p")
    assert (noted.value, noted.attributes) == ("%p", "noalias readonly align 16 captures(none)")


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("i1", (1, 1)),
        ("i32", (4, 4)),
        ("i128", (16, 16)),
        ("ptr addrspace(1)", (8, 8)),
        ("<4 x half>", (8, 2)),
        ("[3 x <2 x float>]", (24, 4)),
        ("{ i8, i32, double }", (16, 1)),
    ],
)
def test_sizes_of_types_and_their_elements(kind, sizes):
    assert size_of(kind) == sizes


def test_a_type_that_has_no_size_here_is_an_error():
    with pytest.raises(EmulationError, match="x86_fp80"):
        size_of("x86_fp80")


def test_a_call_has_a_kind_a_name_and_operands():
    line = "tail call contract noundef <2 x float> @llvm.fma.v2f32(<2 x float> %a, <2 x float> %b)"
    call = Call.of(Instruction("%x", line))
    assert (call.kind, call.callee) == ("<2 x float>", "@llvm.fma.v2f32")
    assert [operand.value for operand in call.operands] == ["%a", "%b"]


def test_the_buffer_of_a_pointer_is_found_through_loops_and_casts():
    body = f"""
  %l = alloca [4 x i32], align 4
  %a = getelementptr i32, {G} %x, i64 1
  %b = addrspacecast {G} %a to ptr
  br label %loop
loop:
  %p = phi {G} [ %a, %entry ], [ %q, %loop ]
  %q = getelementptr i32, {G} %p, i64 1
  %m = phi {G} [ %x, %entry ], [ %y, %loop ]
  %n = getelementptr i32, {G} %m, i64 1
  %s = getelementptr i8, ptr addrspace(3) @shared, i64 8
  %e = getelementptr i32, ptr %l, i64 1
  %c = icmp eq {G} %q, %n
  %r = inttoptr i64 %g to {G}
  br i1 %c, label %loop, label %done
done:
  ret void"""
    (function,) = read(
        cpu.link(module(body, f"{G} %x, i32 %n0, {G} %y", variables=DYNAMIC), ())
    ).functions
    found = bases(function, {"@shared": 0}, 1)
    assert {name: found[name] for name in ("%a", "%b", "%p", "%q")} == dict.fromkeys(
        ["%a", "%b", "%p", "%q"], 1
    )
    assert (found["%y"], found["%s"], found["%e"]) == (2, 0, LOCAL)
    assert (found["%m"], found["%n"]) == (at.NO_BASE, at.NO_BASE)
    assert "%r" not in found


def test_cells_are_as_large_as_the_accesses_allow():
    def grain(kind, align):
        body = f"  store {kind} zeroinitializer, {G} %x, align {align}\n  ret void"
        return translate(module(body, f"{G} %x"), "", check=True).grain

    assert [grain("<4 x float>", 16), grain("double", 8), grain("i32", 4)] == [4, 4, 4]
    assert [grain("half", 2), grain("i32", 2), grain("i8", 1), grain("<4 x i32>", 1)] == [
        2,
        2,
        1,
        1,
    ]


def test_values_that_cross_a_wait_are_found_with_their_types():
    body = f"""
  %a = add nuw nsw i32 %tid, 1
  %b = mul i32 %a, 2
  {BARRIER}
  %c = icmp ult <2 x i32> splat (i32 1), <i32 2, i32 3>
  %d = fmul reassoc contract <4 x float> zeroinitializer, zeroinitializer
  %e = getelementptr inbounds nuw i8, {G} %x, i32 %b
  br label %next
next:
  %f = phi i32 [ %b, %entry ], [ %h, %next ]
  %h = trunc i64 %g to i32
  %i = select i1 true, {G} %e, {G} %x
  {BARRIER}
  %k = icmp eq i32 %h, %f
  br i1 %k, label %next, label %done
done:
  store i32 %tid, {G} %i, align 4
  ret void"""
    (function,) = read(cpu.link(module(body, f"{G} %x"), ())).functions
    found = crossing(function, lambda instruction: "barrier" in instruction.text)
    assert found == {"%b", "%e", "%f", "%g", "%h", "%i", "%tid"}
    kinds = {
        instruction.result: repeated_kind(instruction)
        for block in function.blocks
        for instruction in block.instructions
    }
    assert (kinds["%a"], kinds["%c"], kinds["%d"]) == ("i32", "<2 x i1>", "<4 x float>")
    assert (kinds["%e"], kinds["%h"], kinds["%i"]) == (
        "ptr addrspace(1)",
        "i32",
        "ptr addrspace(1)",
    )
    assert (kinds["%f"], kinds["%tid"]) == (None, None)


def test_code_grows_with_the_length_of_a_kernel_and_not_with_its_square():
    def size(steps):
        body = "  %v0 = sitofp i32 %tid to float\n"
        for k in range(steps):
            body += f"  %m{k} = fmul float %v{k}, 3.0\n  {BARRIER}\n"
            body += f"  %v{k + 1} = fadd float %m{k}, %v{k}\n"
        body += f"  store float %v{steps}, {G} %x, align 4\n  ret void"
        text = translate(module(body, f"{G} %x"), "", check=False).text
        return len(cpu.object_code(text, cpu.resolve(Target())))

    assert size(80) < 3 * size(40)


def test_the_line_of_an_instruction_may_have_any_characters():
    ir = f"""
define ptx_kernel void @k({G} %x) {{
  store i32 0, {G} %x, align 4, !at !0
  ret void
}}
!0 = !{{!"C:\\5Cköln\\5Ca.py:7"}}
"""
    (function,) = read(cpu.link(ir, ())).functions
    assert function.blocks[0].instructions[0].line == "C:\\köln\\a.py:7"
