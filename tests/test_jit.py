"""Objects to addresses, and executables: linking, life time, pickling, targets, artefacts."""

import ctypes
import itertools
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

import spcomp
from spcomp import dtypes as dt
from spcomp.codegen import cpu
from spcomp.codegen.abi import pack, symbols
from spcomp.codegen.cpu.machine import LEVELS
from spcomp.errors import BackendError, InternalError
from spcomp.ir import expr as ex
from spcomp.ir.module import single
from spcomp.runtime import cache, jit, pool
from spcomp.runtime.executable import Executable
from spcomp.target import Target, target
from tests.test_codegen import buffer, build, function, load, loop, slots_of, store


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPCOMP_CACHE_DIR", str(tmp_path))


def squares(kind="parallel"):
    out, x, n, i = buffer("out", dt.float32), buffer("x", dt.float32), ex.Var("n", dt.int64), None
    i = ex.Var("i", dt.int64)
    return function(loop(i, n, store(out, i, load(x, i) * load(x, i)), kind), out, x, n)


def check(executable, n=1000):
    x = np.arange(n, dtype=np.float32)
    result = np.zeros_like(x)
    assert executable.call("f", slots_of(executable, [result, x, n])) == 0
    assert np.array_equal(result, x * x)


def test_an_object_links_against_the_process_and_given_symbols():
    ir = (
        "declare double @cos(double)\ndeclare double @ours(double)\n"
        "define double @twice(double %x) {\n %a = call double @cos(double %x)\n"
        " %b = call double @ours(double %a)\n ret double %b\n}"
    )
    callback = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(lambda v: v + 1)
    where = ctypes.cast(callback, ctypes.c_void_p).value
    loaded = jit.load(cpu.object_code(ir, target("cpu")), ["twice"], {"ours": where})
    twice = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(loaded.addresses["twice"])
    assert twice(0.0) == 2.0


def test_a_missing_symbol_is_a_backend_error():
    ir = "declare void @gone()\ndefine void @f() {\n call void @gone()\n ret void\n}"
    with pytest.raises(BackendError, match="does not link"):
        jit.load(cpu.object_code(ir, target("cpu")), ["f"])


def test_bad_llvm_ir_is_our_bug():
    with pytest.raises(InternalError, match="LLVM IR"):
        cpu.object_code("define nonsense", target("cpu"))


def test_many_executables_come_and_go():
    for _ in range(20):
        check(build(squares()))


def test_code_stays_when_the_linker_and_its_neighbours_are_gone():
    obj = cpu.object_code("define i32 @f(ptr %s) {\n ret i32 7\n}\n", target("cpu"))
    kept = [jit.load(obj, ["f"]) for _ in range(100)][::40]
    for _ in range(3 * jit.OBJECTS_PER_LINKER):
        jit.load(obj, ["f"])
    assert [loaded.function("f")(None) for loaded in kept] == [7, 7, 7]


def test_an_executable_pickles_with_its_object():
    executable = build(squares())
    copy = pickle.loads(pickle.dumps(executable))
    assert copy.object_bytes == executable.object_bytes
    assert "optimize" not in copy.timings
    check(copy)


def test_the_second_build_comes_from_the_disk():
    first, second = build(squares()), build(squares())
    assert "codegen" in first.timings
    assert "codegen" not in second.timings
    assert first.object_bytes == second.object_bytes
    check(second)


def test_a_damaged_cache_entry_is_compiled_again():
    build(squares())
    for path in cache.directory().glob("??/*.o"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    again = build(squares())
    assert "codegen" in again.timings
    check(again)


def test_executables_are_built_and_called_by_many_threads_at_once():
    failures = []

    def work(number):
        try:
            executable = build(squares("parallel" if number % 2 else "serial"))
            for _ in range(50):
                check(executable, 100 + number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("name", ["cpu", "cpu:x86-64", "cpu:x86-64-v3", "cpu:haswell"])
def test_code_for_older_cpus_runs_here(name):
    try:
        cpu.check_runnable(cpu.resolve(target(name)))
    except BackendError as error:
        pytest.skip(str(error))
    check(build(squares(), name))


@pytest.mark.parametrize(
    ("name", "bits"),
    [("x86-64", 128), ("x86-64-v3", 256), ("x86-64-v4", 512), ("znver4", 512), ("aarch64", 128)],
)
def test_named_cpus_have_their_vector_width(name, bits):
    resolved = cpu.resolve(target(f"cpu:{name}"))
    assert resolved.vector_bits == bits
    assert resolved.lanes(32) == bits // 32
    assert cpu.resolve(resolved) is resolved or cpu.resolve(resolved) == resolved


def test_the_native_target_takes_the_features_of_the_host():
    resolved = cpu.resolve(Target())
    assert resolved.cpu != "native"
    assert resolved.features
    assert resolved.vector_bits >= 128


def test_a_variable_says_which_cpu_native_stands_for(monkeypatch):
    cpu.resolve.cache_clear()
    monkeypatch.setenv("SPCOMP_CPU", "x86-64-v2")
    try:
        assert cpu.resolve(Target()) == cpu.resolve(target("cpu:x86-64-v2"))
        assert cpu.resolve(target("cpu:x86-64-v3")).vector_bits == 256
    finally:
        cpu.resolve.cache_clear()


def test_an_unknown_cpu_is_a_backend_error():
    with pytest.raises(BackendError, match="unknown cpu 'pentium9'"):
        cpu.resolve(target("cpu:pentium9"))
    with pytest.raises(BackendError, match="not a CPU target"):
        cpu.resolve(target("cuda"))


def test_llvm_knows_every_cpu_we_name():
    script = (
        "from spcomp.codegen import cpu; from spcomp.codegen.cpu.machine import _LEVEL_OF\n"
        "from spcomp.target import target\n"
        "for name in _LEVEL_OF:\n"
        "    t = cpu.resolve(target(f'cpu:{name}'))\n"
        "    from spcomp.codegen.cpu.machine import attributes\n"
        "    ir = f'define float @f(float %x) #0 {{ ret float %x }}\\n'\n"
        "    cpu.assembly(ir + 'attributes #0 = { ' + attributes(t) + ' }', t)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "not a recognized" not in result.stderr


@pytest.mark.parametrize(
    ("name", "word"), [("x86-64", "xmm"), ("x86-64-v4", "zmm"), ("aarch64", "fmul")]
)
def test_assembly_is_made_for_any_target(name, word):
    out, x = buffer("out", dt.float32), buffer("x", dt.float32)
    lanes = ex.Ramp(ex.const(0), 1, 16)
    func = function(store(out, lanes, load(x, lanes) * load(x, lanes)), out, x)
    where = target(f"cpu:{name}")
    assert word in cpu.assembly(cpu.emit(single(func), where).llvm_ir, where)


def test_code_that_this_machine_lacks_instructions_for_is_refused():
    where = target("cpu:aarch64" if "avx" in cpu.resolve(Target()).features else "cpu:x86-64")
    emitted = cpu.emit(single(squares()), where)
    with pytest.raises(BackendError, match="cannot run code for cpu:"):
        Executable(emitted, where)


def test_artefacts_are_at_hand():
    executable = build(squares())
    assert "define i32 @f(" in executable.llvm_ir
    assert "f__packed" in cpu.assembly(executable.llvm_ir, executable.target)
    assert executable.object_bytes[:4] in (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"d\x86")
    assert executable.address("f") > 0
    assert set(executable.timings) == {"cache", "llvm parse", "optimize", "codegen", "link"}


@pytest.mark.parametrize("opt", [0, 1, 2, 3])
def test_every_optimisation_level_gives_an_object(opt):
    emitted = cpu.emit(single(squares()), target("cpu"))
    obj = cpu.compile(emitted.llvm_ir, target("cpu"), opt).object
    check(Executable(emitted, target("cpu"), obj=obj))


def test_an_object_with_the_pool_needs_only_the_c_library():
    emitted = cpu.emit(single(squares()), target("cpu"))
    obj = pool.object_with_pool(emitted.llvm_ir, target("cpu"))
    loaded = jit.load(obj, ["f__packed", "spcomp_set_threads"], forever=True)
    x, result = np.arange(5000, dtype=np.float32), np.zeros(5000, np.float32)
    slots = np.array([result.ctypes.data, x.ctypes.data, 5000])
    ctypes.CFUNCTYPE(None, ctypes.c_int64)(loaded.addresses["spcomp_set_threads"])(2)
    for _ in range(10):
        assert loaded.function("f__packed")(slots.ctypes.data) == 0
    assert np.array_equal(result, x * x)


def test_symbols_are_ascii_and_distinct():
    assert symbols(["f", "f", "exp", "ä"]) == [
        ("f", "f__packed"),
        ("k_f", "k_f__packed"),
        ("k_exp", "k_exp__packed"),
        ("_ue4", "_ue4__packed"),
    ]


def test_scalars_pack_into_slots():
    assert pack(dt.int32, -1) == -1
    assert pack(dt.uint64, 2**64 - 1) == -1
    assert pack(dt.float32, 1.0) == 0x3F800000
    assert pack(dt.float64, 1.0) == 0x3FF0000000000000
    assert pack(dt.float16, 1e9) == 0x7C00
    assert pack(dt.bfloat16, 1.0) == 0x3F80
    assert pack(dt.bfloat16, float("nan")) == 0x7FC0
    assert pack(dt.bool_, True) == 1


def test_levels_grow():
    names = [name for name in LEVELS if name.startswith("x86")]
    for lower, higher in itertools.pairwise(names):
        assert set(LEVELS[lower]) < set(LEVELS[higher])


QUIET = """
from spcomp.errors import ScheduleError
from spcomp.compiler.pipeline import lower
from spcomp.codegen import cpu
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.schedule import Schedule
from spcomp.target import target
from tests.layers import source

where = target("cpu")
for name in ("math_calls", "csrmm", "row_dot", "floor_division", "argmax", "spmv", "leaky"):
    base = Schedule(source(name)).lower_sparse_iter()
    for loop in [loop.var.name for loop in loops_of(base.func.body)]:
        for act in (
            lambda s: s,
            lambda s: s.unroll(loop),
            lambda s: s.parallel(loop),
            lambda s: s.vectorize(loop),
            lambda s: s.split(loop, 4).unroll(f"{loop}_i"),
            lambda s: s.split(loop, 300).unroll(f"{loop}_i"),
            lambda s: s.split(loop, 8).vectorize(f"{loop}_i").unroll(f"{loop}_o"),
            lambda s: s.loop_partition(loop, 4).unroll(loop).unroll(f"{loop}_rest"),
        ):
            try:
                func = act(base).func
            except ScheduleError:
                continue
            flat = lower(func, where).flat
            cpu.object_code(cpu.emit(flat, where).llvm_ir, where)
            count = globals().get("count", 0) + 1
assert count > 60, count
"""


def test_llvm_is_quiet_whatever_loops_are_asked_to_be():
    """It tells the terminal where it does not do what metadata of loops ask for."""
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", QUIET], capture_output=True, text=True, check=False
    )
    assert (child.returncode, child.stdout, child.stderr) == (0, "", "")


@pytest.mark.parametrize("trips", [-3, 0, 1, 7, 8, 9, 31, 1000])
def test_an_unrolled_loop_of_any_number_of_trips_runs_as_often(trips):
    text = """from spcomp import script as T
@T.prim_func
def f(c: T.handle, n: T.int64, m: T.int64) -> None:
    T.func_attr({"sparse_tir_level": 0})
    C = T.match_buffer(c, (1000,), "int64")
    for k in T.unroll(m, m + n):
        C[k - m] = C[k - m] + k
"""
    result = np.zeros(1000, np.int64)
    spcomp.compile(spcomp.parse(text))(result, trips, -5)
    expected = np.zeros(1000, np.int64)
    expected[: max(trips, 0)] = np.arange(max(trips, 0)) - 5
    np.testing.assert_array_equal(result, expected)
