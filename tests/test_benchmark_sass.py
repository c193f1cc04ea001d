"""Figures of GPU machine code: parser and loops on recorded listings; compilers if there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.contenders import MissingError
from benchmarks.sass import analyse, tools
from benchmarks.sass.__main__ import COUNTS, CUDA
from benchmarks.sass.__main__ import main as sass_main
from benchmarks.sass.flow import flow
from benchmarks.sass.listing import Instruction, Listing, listings
from benchmarks.sass.report import Loads, in_flight, report, table
from spcomp.runtime.cuda.occupancy import occupancy

RECORDED = Path(__file__).parent / "sass"


def recorded(name: str) -> Listing:
    return listings((RECORDED / f"{name}.sass").read_text())[name]


def parse(*lines: str, arch: str = "sm_90") -> Listing:
    """A listing of these lines: instructions, 16 bytes each, and labels, which end with a colon."""
    text, address = f"\t.target {arch}\n\t.section\t.text.k,\n", 0
    for line in lines:
        if line.endswith(":"):
            text += f"{line}\n"
        else:
            text += f"        /*{address:04x}*/  {line} ;\n"
            address += 16
    return listings(text)["k"]


def one(line: str) -> Instruction:
    return parse(line).instructions[0]


def numbers(text: str) -> set[int]:
    return {int(word) for word in text.split()}


@pytest.mark.parametrize(
    ("line", "kind", "writes", "reads"),
    [
        ("FFMA R8, R13, R35.reuse, R9", "multiply-add", "8", "13 35 9"),
        ("@!P0 LDG.E.128.CONSTANT R12, desc[UR4][R14.64]", "global load", "12 13 14 15", "14 15"),
        ("LDG.E.CONSTANT R7, [R4.64]", "global load", "7", "4 5"),
        ("LDG.E.64 R6, desc[UR4][R2.64]", "global load", "6 7", "2 3"),
        ("STG.E.128 desc[UR4][R2.64], R8", "global store", "", "2 3 8 9 10 11"),
        ("STG.E desc[UR4][R2.64], R8", "global store", "", "2 3 8"),
        ("SHFL.IDX PT, R14, R30, R39, 0x181f", "shuffle", "14", "30 39"),
        ("SHFL.BFLY PT, R5, R0, 0x8, 0x1f", "shuffle", "5", "0"),
        ("VOTE.ANY R5, PT, P0", "shuffle", "5", ""),
        ("ISETP.GE.AND P0, PT, R7, UR4, PT", "integer", "", "7"),
        ("LOP3.LUT P1, RZ, R28, 0x4, RZ, 0xc0, !PT", "integer", "", "28"),
        ("LEA R14, P0, R19.reuse, R12, 0x4", "integer", "14", "19 12"),
        ("IMAD.WIDE R12, R13, 0x200, R30", "integer", "12 13", "13 30"),
        ("IMAD.MOV.U32 R2, RZ, RZ, R1", "move", "2", "1"),
        ("HFMA2.MMA R24, -RZ, RZ, 0, 0", "move", "24", ""),
        ("HFMA2.MMA R24, R2, R3, R24", "multiply-add", "24", "2 3 24"),
        ("CS2R R10, SRZ", "move", "10 11", ""),
        ("FSETP.GT.AND P0, PT, R2, R3, PT", "float", "", "2 3"),
        ("FSEL R4, R15, R6, !P1", "float", "4", "15 6"),
        ("LDS.128 R16, [R36]", "shared", "16 17 18 19", "36"),
        ("LDL.64 R2, [R1+0x8]", "local", "2 3", "1"),
        ("STL [R1], R9", "local", "", "1 9"),
        ("RED.E.ADD.F32.FTZ.RN.STRONG.GPU desc[UR4][R2.64], R7", "atomic", "", "2 3 7"),
        ("ATOMG.E.ADD.STRONG.GPU PT, R5, desc[UR4][R2.64], R7", "atomic", "5", "2 3 7"),
        ("ATOMS.ADD R5, [R2], R7", "shared", "5", "2 7"),
        ("REDUX.SUM UR4, R3", "shuffle", "", "3"),
        ("ULDC.64 UR4, c[0x0][0x208]", "constant", "", ""),
        ("DFMA R4, R6, R8, R4", "multiply-add", "4 5", "6 8 4"),
        ("WARPSYNC.COLLECTIVE R31, `(.L_x_45)", "control", "", "31"),
        ("BRA.DIV UR6, `(.L_x_4)", "control", "", ""),
        ("LDGSTS.E.BYPASS.128 [R3], desc[UR4][R6.64]", "global load", "", "3 6 7"),
    ],
)  # fmt: skip
def test_an_instruction(line, kind, writes, reads):
    found = one(line)
    assert (found.kind, found.writes, found.reads) == (kind, numbers(writes), numbers(reads))


@pytest.mark.parametrize(
    ("line", "products"),
    [
        ("FFMA R8, R13, R35, R9", 1),
        ("HFMA2 R8, R13, R35, R9", 2),
        ("HFMA2.MMA R8, -RZ, RZ, 0, 0", 0),
        ("HMMA.16816.F32 R4, R8, R12, R4", 64),
        ("HMMA.1688.F32.TF32 R4, R8, R12, R4", 32),
        ("DMMA.884 R4, R8, R12, R4", 8),
        ("FADD R8, R13, R35", 0),
    ],
)
def test_multiply_adds_of_a_lane(line, products):
    assert one(line).multiply_adds == products


LOOP = [
    "MOV R1, c[0x0][0x28]",
    ".L_x_0:",
    "ISETP.GE.AND P0, PT, R2, R3, PT",  # 0x10
    "@P0 BRA `(.L_x_1)",
    "LDG.E R4, desc[UR4][R6.64]",  # 0x30
    "LDG.E R5, desc[UR4][R6.64+0x4]",
    "FFMA R8, R4, R5, R8",
    ".L_x_1:",
    "IADD3 R2, R2, 0x1, RZ",  # 0x60
    "ISETP.GE.AND P1, PT, R2, R9, PT",
    "@!P1 BRA `(.L_x_0)",
    "EXIT",  # 0x90
    ".L_x_2:",
    "BRA `(.L_x_2)",
    "NOP",
]


def test_blocks_and_a_loop():
    found = flow(parse(*LOOP))
    assert set(found.graph.edges) == {
        (0x0, 0x10), (0x10, 0x30), (0x10, 0x60), (0x30, 0x60), (0x60, 0x10), (0x60, 0x90),
    }  # fmt: skip
    assert [(loop.header, set(loop.blocks)) for loop in found.loops] == [(0x10, {0x10, 0x30, 0x60})]


def test_the_way_round_a_loop_does_its_work():
    found = flow(parse(*LOOP))
    assert [i.address for i in found.way(found.loops[0])] == list(range(0x10, 0x90, 0x10))


def test_the_way_round_leaves_out_what_does_no_work():
    rest = [line.replace("FFMA", "IMAD") for line in LOOP]
    found = flow(parse(*rest))
    assert [i.address for i in found.way(found.loops[0])] == [0x10, 0x20, 0x60, 0x70, 0x80]


def test_a_branch_for_lanes_that_have_parted_is_not_followed():
    code = [*LOOP[:2], "BRA.DIV UR6, `(.L_x_2)", *LOOP[2:-3], ".L_x_2:", "NOP", "BRA `(.L_x_1)"]
    found = flow(parse(*code))
    assert max(found.graph) == 0xA0  # EXIT
    assert len(found.loops) == 1


def test_nested_loops():
    inner = [".L_x_0:", "FADD R2, R2, R3", "@P0 BRA `(.L_x_0)"]
    code = [".L_x_9:", "MOV R2, RZ", *inner, "NOP", "@P1 BRA `(.L_x_9)", "EXIT"]
    found = flow(parse(*code))
    assert {loop.header: set(loop.blocks) for loop in found.loops} == {
        0x00: {0x00, 0x10, 0x30},
        0x10: {0x10},
    }
    assert [loop.header for loop in found.innermost] == [0x10]
    assert [i.address for i in found.way(None)] == [0x00, 0x10, 0x20, 0x30, 0x40, 0x50]


def test_jump_tables_name_their_targets():
    table = 'BRX R4 -0x190 (*"BRANCH_TARGETS .L_x_1,.L_x_2"*)'
    code = parse(table, ".L_x_1:", "EXIT", "NOP", ".L_x_2:", "EXIT")
    assert code.targets(code.instructions[0]) == (0x10, 0x30)
    assert set(flow(code).graph.edges) == {(0x00, 0x10), (0x00, 0x30)}


def test_a_branch_on_a_uniform_predicate_may_fall_through():
    assert one("BRA.U !UP0, `(.L_x_1)").falls_through
    assert one("@P0 EXIT").falls_through
    assert not one("EXIT").falls_through
    assert not one("BRA `(.L_x_1)").falls_through


def loads(*lines: str, times: int = 1) -> Loads:
    return in_flight(parse(*lines).instructions * times)


def test_loads_wait_for_the_first_use():
    a, b = "LDG.E.128 R4, desc[UR4][R2.64]", "LDG.E.64 R8, desc[UR4][R2.64+0x10]"
    assert loads(a, b, "FFMA R0, R4, R8, R0") == Loads(2, 24)
    assert loads(a, "FFMA R0, R7, R7, R0", b) == Loads(1, 16)
    assert loads(a, b, "FFMA R0, R4, R4, R0", a) == Loads(2, 24)  # b still comes
    assert loads(a, "IADD3 R2, R2, 0x20, RZ", a) == Loads(1, 16)  # the same register again


def test_an_address_that_is_loaded_is_waited_for():
    first, second = "LDG.E R4, desc[UR4][R2.64]", "LDG.E R5, desc[UR4][R6.64]"
    gather = ["IMAD.WIDE R8, R4, 0x4, R10", "LDG.E R9, desc[UR4][R8.64]"]
    assert loads(first, second, *gather) == Loads(2, 8)


def test_loads_for_the_next_trip_count():
    ahead = ["FFMA R0, R4, R1, R0", "MOV R4, R5", "LDG.E R5, desc[UR4][R2.64]"]
    late = ["LDG.E R6, desc[UR4][R2.64+0x80]", "FFMA R0, R6, R1, R0"]
    assert loads(*late, *ahead).count == 1
    assert loads(*ahead, *late[:1], times=2).count == 2


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "warps", "limit"),
    [
        ("sm_90", 256, 32, 0, 64, "warps"),
        ("sm_90", 256, 43, 0, 40, "registers"),  # 48 for a lane: 42 warps, five blocks of 8
        ("sm_90", 256, 80, 0, 24, "registers"),
        ("sm_80", 1024, 64, 0, 32, "registers"),
        ("sm_80", 1024, 65, 0, 0, "registers"),  # does not run
        ("sm_90a", 32, 16, 0, 32, "blocks"),
        ("sm_90", 128, 32, 100 * 1024, 8, "shared"),
        ("sm_80", 128, 32, 100 * 1024, 4, "shared"),
        ("sm_86", 256, 32, 0, 48, "warps"),
    ],
)
def test_occupancy(arch, threads, registers, shared, warps, limit):
    found = occupancy(arch, threads, registers, shared)
    assert found is not None
    assert (found.warps, found.limit) == (warps, limit)


def test_occupancy_of_what_is_not_known():
    assert occupancy("sm_13", 256, 32, 0) is None
    assert occupancy("sm_90", 0, 32, 0) is None


def test_facts_of_a_recorded_kernel():
    found = recorded("csr_spmv_long")
    assert (found.arch, found.registers, found.stack) == ("sm_90", 32, 0)
    assert (found.shared, found.threads) == (32, 256)  # without the system's 1024 bytes


def test_a_report_of_recorded_spmm():
    found = report(recorded("csr_spmm_32"), features=32)
    assert (found.registers, found.threads, found.local, found.shared) == (45, 256, 0, 0)
    assert found.occupancy is not None
    assert found.occupancy.warps == 40
    main = found.main
    assert [trip.multiply_adds for trip in found.trips] == [16, 16]  # whole rows, what is left
    assert main == found.trips[0]
    assert (main.instructions, main.widths, main.in_flight) == (41, {128: 4}, Loads(4, 64))
    assert (main.kinds["multiply-add"], main.kinds["shuffle"]) == (16, 8)
    assert sum(main.kinds.values()) == main.instructions
    assert (found.nonzeros, found.per_nonzero) == (16, 41 / 16)
    assert found.bytes_in_flight == 64 * 32 * 40


def test_a_report_of_recorded_spmv():
    found = report(recorded("csr_spmv_long"), features=1)
    assert (found.main.multiply_adds, found.nonzeros) == (8, 256)
    assert found.main.in_flight == Loads(10, 64)


def test_a_kernel_without_loops_is_taken_whole():
    found = report(parse(*LOOP[4:7], "EXIT"), features=1, threads=64)
    assert found.trips == ()
    assert (found.main.instructions, found.per_nonzero) == (4, 4 / 32)
    assert "no loop" in str(found)
    assert "| 4 (no loop) |" in table([found])


def test_local_memory_is_counted():
    assert report(parse("STL [R1], R9", "LDL R9, [R1]", "EXIT")).local == 2


def test_tables_and_json_hold_the_figures():
    found = report(recorded("csr_spmm_32"), features=32)
    assert "| csr_spmm_32 | 45 | 0 | 0 | 40 | 41 | 4 x 128 | 4 (64 B) | 80 | 16 | 2.56 |" in table(
        [found]
    )
    for part in ("main loop at", "16 multiply-adds", "4 of 128 bits", "2.56", "62%"):
        assert part in str(found)
    data = json.loads(json.dumps(found.as_json()))
    assert data["main"]["in_flight"] == {"count": 4, "bytes": 64}
    assert data["per_nonzero"] == 41 / 16


CUOBJDUMP = """
	code for sm_80
	.target	sm_80

		Function : scale
	.headerflags	@"EF_CUDA_SM80"
        /*0000*/                   MOV R1, c[0x0][0x28] ;       /* 0x00000a0000017a02 */
                                                                /* 0x000fc40000000f00 */
        /*0010*/                   LDG.E R2, [R4.64] ;          /* 0x0000000404027981 */
        /*0020*/                   FFMA R3, R2, R2, R3 ;        /* 0x0000000202037223 */
        /*0030*/              @!P0 BRA 0x10 ;                   /* 0x0000000000007947 */
        /*0040*/                   EXIT ;                       /* 0x000000000000794d */
"""


def test_listings_of_cuobjdump_are_read():
    found = report(listings(CUOBJDUMP)["scale"], features=1)
    assert (found.kernel, found.arch, found.instructions) == ("scale", "sm_80", 5)
    assert (found.main.address, found.main.instructions) == (0x10, 3)


def test_without_compilers_the_command_says_so(monkeypatch, capsys):
    monkeypatch.setattr(tools, "cuda_tool", lambda name: None)
    assert sass_main([]) == 0
    assert "nothing to report: no nvcc" in capsys.readouterr().out


PTX = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry dot(.param .u64 a, .param .u64 out, .param .u32 n) .maxntid 128, 1, 1 {
  .reg .f32 %f<5>; .reg .b32 %r<3>; .reg .b64 %rd<5>; .reg .pred %p<2>;
  ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [out]; ld.param.u32 %r1, [n];
  cvta.to.global.u64 %rd1, %rd1; cvta.to.global.u64 %rd2, %rd2;
  mov.f32 %f1, 0f00000000;
LOOP:
  ld.global.f32 %f2, [%rd1];
  fma.rn.f32 %f1, %f2, %f2, %f1;
  add.s64 %rd1, %rd1, 4;
  add.s32 %r1, %r1, -1;
  setp.ne.s32 %p1, %r1, 0;
  @%p1 bra LOOP;
  st.global.f32 [%rd2], %f1;
  ret;
}
"""


@pytest.fixture
def compilers():
    try:
        return [tools.tool(name) for name in ("nvcc", "ptxas", "nvdisasm")]
    except MissingError as error:
        pytest.skip(str(error))


@pytest.mark.ptxas
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_ptx_is_analysed(compilers, arch):
    found = analyse(PTX, "dot", arch=arch, features=1)
    assert (found.arch, found.threads, found.local) == (arch, 128, 0)
    assert found.main.multiply_adds >= 1
    assert found.main.in_flight.count >= 1
    assert found.per_nonzero is not None
    with pytest.raises(KeyError):
        analyse(PTX, "missing", arch=arch)


@pytest.mark.ptxas
def test_a_cubin_is_analysed_like_its_ptx(compilers):
    cubin = tools.cubin_of(PTX, "sm_80")
    assert analyse(cubin, "dot", features=1) == analyse(PTX, "dot", arch="sm_80", features=1)


@pytest.mark.ptxas
def test_ptx_that_is_refused_says_why(compilers):
    with pytest.raises(ValueError, match=r"ptxas: .*syntax"):
        analyse(PTX.replace("fma.rn.f32", "fma.rn.f32 ,"), "dot")


@pytest.mark.ptxas
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_kernels_by_hand_keep_their_figures(compilers, arch, capsys):
    assert sass_main(["--arch", arch, "--json"]) == 0
    found = {each["kernel"]: each for each in json.loads(capsys.readouterr().out)}
    assert set(found) == {*COUNTS, "segment_carry"}
    assert not any(each["local"] or each["stack"] for each in found.values())
    assert all(each["threads"] == 256 for each in found.values())
    loads_of = {"csr_spmm_32": 4, "csr_spmm_128": 4, "sddmm_32": 8, "sddmm_128": 16}
    for kernel, count in loads_of.items():
        flying = found[kernel]["main"]["in_flight"]
        assert flying["count"] >= count
        assert flying["bytes"] >= 16 * count
    assert found["csr_spmm_128"]["per_nonzero"] < 12


@pytest.mark.ptxas
def test_one_file_and_kernel(compilers, capsys):
    assert sass_main([str(CUDA / "spmv.cu"), "--kernel", "csr_spmv_8", "--table"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[2].startswith("| csr_spmv_8 |")
    assert sass_main([str(CUDA / "spmv.cu"), "--kernel", "spmm"]) == 1
    assert capsys.readouterr().err == "no kernel is called spmm\n"
