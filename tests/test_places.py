"""Places in the source survive all passes, down to instructions; without debug nothing changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import numpy as np
import pytest

import spcomp
from spcomp.codegen.llvm.debug import MARK, Debug
from spcomp.errors import ArgumentError, Span
from spcomp.ir.expr import Var, const
from spcomp.ir.places import place, places
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import Evaluate, Seq
from spcomp.script.parse import parse_source
from tests.programs import BY_NAME

TEN = ("csrmm", "sddmm", "spmv_t_axpby", "hyper_gnn", "mttkrp", "stencil", "argmax")
TEN = (*TEN, "union_dense", "coo_keys", "tables_greatest")
HERE, THERE = Span("f.py", 3, 4), Span("f.py", 7)
_LABEL, _TARGET = re.compile(r"^([\w.$]+):"), re.compile(r"label %([\w.$]+)")
_JUMP = re.compile(r"^\tj\w+\s+(\.L\w+)")


def source_of(name: str, kind: str, *, debug: bool = True) -> list[str]:
    kernel = spcomp.compile(BY_NAME[name].build(), check="off", debug=debug)
    return kernel.source(kind).splitlines()


def in_loops(lines: list[str], targets: Callable[[str], Iterable[str]]) -> list[int]:
    """The numbers of the lines between a label and a jump back to it."""
    labels = {m[1]: k for k, line in enumerate(lines) if (m := _LABEL.match(line))}
    ends = ((labels.get(t, len(lines)), k) for k, l in enumerate(lines) for t in targets(l))
    return sorted({k for begin, end in ends for k in range(begin, end + 1)})


def llvm_counts(name: str) -> tuple[int, int]:
    lines = source_of(name, "llvm")
    unknown = {m[1] for line in lines if (m := re.match(r"(!\d+) = !DILocation\(line: 0,", line))}
    inside = [lines[k] for k in in_loops(lines, _TARGET.findall) if lines[k].startswith("  ")]
    found = [re.search(r"!dbg (!\d+)$", line) for line in inside]
    return sum(m is not None and m[1] not in unknown for m in found), len(inside)


def assembly_counts(name: str) -> tuple[int, int]:
    lines, known, at = source_of(name, "asm"), [], 0
    for line in lines:
        if location := re.match(r"\s+\.loc\s+\d+ (\d+)", line):
            at = int(location[1])
        known.append(at > 0)
    inside = [k for k in in_loops(lines, _JUMP.findall) if re.match(r"\t[a-z]", lines[k])]
    return sum(known[k] for k in inside), len(inside)


@pytest.mark.long
def test_instructions_in_loops_have_a_line():
    """Nearly all of them: LLVM merges some of several lines, and then says line 0."""
    for count in (llvm_counts, assembly_counts):
        known, all_ = (sum(numbers) for numbers in zip(*map(count, TEN), strict=True))
        assert all_ > 900
        assert known >= 0.95 * all_


def test_the_sum_of_spmm_is_where_the_fma_is():
    lines, at = source_of("csrmm", "asm"), "0"
    found = set()
    for line in lines:
        if location := re.match(r"\s+\.loc\s+\d+ (\d+)", line):
            at = location[1]
        if "fmadd" in line:
            found.add(at)
    text = BY_NAME["csrmm"].text().splitlines()
    assert all("A[i, j] * B[j, k]" in text[int(number) - 1] for number in found)
    assert found


@pytest.mark.parametrize("name", ["csrmm", "union_dense"])
def test_debug_adds_metadata_and_nothing_else(name):
    plain = "\n".join(source_of(name, "llvm", debug=False))
    marked = source_of(name, "llvm")
    kept = [re.sub(r",? !dbg !\d+", "", line) for line in marked]
    kept = [line for line in kept if not re.match(r"!\d+ = .*(!DI|\{i32)|!llvm\.", line)]
    assert "!dbg" not in plain
    assert "\n".join(kept) == plain


def test_what_a_rewriter_makes_has_the_place_of_what_it_replaces():
    class Renew(Rewriter):
        def visit_Evaluate(self, node: Evaluate) -> Evaluate:
            return Evaluate(node.value)

    old = Evaluate(const(1), span=HERE)
    assert Renew().visit(old).span == HERE
    assert Renew().visit(Evaluate(const(1))).span is None


def test_the_parts_of_a_new_list_have_its_place_and_variables_keep_their_own():
    x = Var("x", const(1).type)

    class Split(Rewriter):
        def visit_Evaluate(self, node: Evaluate) -> Seq:
            return Seq((Evaluate(node.value), Evaluate(x, span=THERE)))

    new = Split().visit(Evaluate(x, span=HERE))
    assert [part.span for part in new.body] == [HERE, THERE]
    assert x.span is None


def test_the_place_of_a_statement_is_its_own_or_that_of_its_expressions():
    value = const(1) + const(2)
    assert place(Evaluate(value)) is None
    here = value.replace(span=HERE)
    assert place(Evaluate(here)) == HERE
    assert places(Evaluate(here, span=THERE)) == (THERE, HERE)


def test_lines_are_marked_with_the_place_of_the_node_being_written():
    debug = Debug([])
    lines = debug.lines()
    debug.here = HERE
    lines.append("  ret void")
    lines.append("join:")
    assert lines == [f"  ret void{MARK}0", "join:"]
    (text,) = debug.attach(["\n".join(["define void @f() {", *lines, "}"])])
    assert re.search(r"define void @f\(\) !dbg !\d+ \{\n  ret void, !dbg !\d+\njoin:\n\}", text)
    assert any("line: 3, column: 5" in node for node in debug.metadata)


def test_equal_programs_at_other_lines_are_not_confused():
    text = BY_NAME["csrmm"].text()
    here, below = (parse_source(n * "\n" + text, f"moved{n}.py")[0] for n in (0, 40))
    lines = [spcomp.compile(f, debug=True).source("llvm").count("(line: 1") for f in (here, below)]
    assert lines[0] > 0
    assert lines[1] == 0


def test_a_failure_at_run_time_names_the_line_when_asked():
    text = """from spcomp import script as T


@T.prim_func
def positive(a: T.handle, n: T.int32) -> None:
    A = T.match_buffer(a, (n,), "float32")
    for i in T.serial(n):
        if A[i] < 0.0:
            T.fail("a number is negative")
"""
    (func,) = parse_source(text, "failing.py")
    negative = np.array([1, -1], "float32")
    with pytest.raises(ArgumentError, match=r"failing.py:9:13: a number is negative"):
        spcomp.compile(func, debug=True)(A=negative)
    with pytest.raises(ArgumentError, match=r"^(?!.*failing.py).*a number is negative"):
        spcomp.compile(func)(A=negative)


def test_the_environment_asks_for_debug(monkeypatch):
    monkeypatch.setenv("SPCOMP_DEBUG", "1")
    assert "!dbg" in spcomp.compile(BY_NAME["csrmm"].build()).source("llvm")
    assert "!dbg" not in spcomp.compile(BY_NAME["csrmm"].build(), debug=False).source("llvm")
