"""Classes of functions with a host program."""

from __future__ import annotations

from spcomp import script as T
from spcomp.ir.module import HostAlloc, Launch, Module, Return, Scan
from spcomp.ir.structural import structural_equal
from spcomp.script.parse import parse_source
from tests.layers import reparsed


@T.ir_module
class Phases:
    @T.prim_func
    def total(a: T.handle, ptr: T.handle, m: T.int32) -> None:
        A = T.match_buffer(a, (m,), "float32")
        A[0] = 1.0

    @T.prim_func
    def count(m: T.int32, ptr: T.handle) -> None:
        P = T.match_buffer(ptr, (m,), "int32")
        P[0] = 1

    @T.prim_func
    def total(a: T.handle, m: T.int32) -> None:  # noqa: F811 - it has the name of the source
        A = T.match_buffer(a, (m,), "float32")
        A[0] = 2.0

    @T.host
    def main(a: T.handle, ptr: T.handle, m: T.int32) -> None:
        """Count, then fill."""
        ptr = T.host_alloc(m + 1, "int32")
        T.launch("count")
        T.scan(ptr)
        extra = T.host_alloc(ptr[m], "float32", fill=-1)
        T.launch("total")
        T.host_return(ptr, extra)


def test_a_class_is_a_module_and_keeps_functions_of_one_name():
    assert isinstance(Phases, Module)
    assert [func.name for func in Phases.funcs] == ["count", "total"]
    assert Phases.source.name == "total"
    assert [type(op) for op in Phases.host] == [HostAlloc, Launch, Scan, HostAlloc, Launch, Return]
    assert structural_equal(reparsed(Phases, "phases"), Phases)


def test_the_arrays_of_a_host_program_are_bound_by_name():
    first, second = (op for op in Phases.host if isinstance(op, HostAlloc))
    assert first.buffer.data is Phases.source.params[1]
    assert (second.buffer.data.name, second.fill) == ("extra", -1)
    assert [b.name for b in Phases.host[-1].buffers] == ["ptr", "extra"]


def test_a_module_of_one_function_needs_no_host_program():
    @T.ir_module
    class Alone:
        @T.prim_func
        def main(a: T.handle) -> None:
            A = T.match_buffer(a, (1,), "float32")
            A[0] = 1.0

    assert Alone.is_single
    assert Alone["main"].name == "main"


def test_a_module_may_be_its_source_alone():
    text = """
@T.ir_module
class C:
    @T.prim_func
    def f(a: T.handle):
        pass
    @T.host
    def main(a: T.handle):
        T.launch("f")
        T.launch("f")
"""
    (module,) = parse_source(text, "class.py")
    assert module.funcs == (module.source,)
    (single,) = parse_source(text[: text.index("    @T.host")], "class2.py")
    assert single.is_single
