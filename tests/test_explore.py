"""The explorer: its data, its page as a file, and the command that writes it."""

from __future__ import annotations

import html.parser
import json
import linecache
import re

import numpy as np
import pytest
import scipy.sparse
from click.testing import CliRunner

import spcomp
from spcomp.cli.main import main
from spcomp.errors import ArgumentError, FileError, Span
from spcomp.explore.machine import assembly_lines, llvm_lines
from spcomp.explore.source import Source
from spcomp.explore.steps import Change
from tests.programs import BY_NAME


@pytest.fixture(scope="module")
def page():
    return spcomp.compile(BY_NAME["csrmm"].build()).explore().page


def linked(pane, place):
    return [row.text for row in pane.rows if place in row.places]


def test_each_stage_is_a_pane_in_the_order_of_the_route(page):
    (view,) = page.views
    names = ["source", "coordinate", "position", "flat", "llvm", "asm"]
    assert [pane.name for pane in view.panes] == names
    assert "J sparse_variable" in view.forest


def test_the_sum_is_linked_to_what_it_became_in_every_stage(page):
    panes = {pane.name: pane for pane in page.views[0].panes}
    (at,) = [k for k, row in enumerate(panes["source"].rows) if "* B[j, k]" in row.text]
    for name in ("coordinate", "position", "flat"):
        assert linked(panes[name], at)
        assert all("+" in text and "*" in text for text in linked(panes[name], at))
    assert any("fmul" in text for text in linked(panes["llvm"], at))
    assert any("vfmadd" in text for text in linked(panes["asm"], at))
    assert not any("vfmadd" in row.text for row in panes["asm"].rows if at not in row.places)


def test_what_is_shown_of_machine_code_is_the_code_without_debug_data(page):
    plain = spcomp.compile(BY_NAME["csrmm"].build()).source("llvm").splitlines()
    panes = {pane.name: pane for pane in page.views[0].panes}
    assert [row.text for row in panes["llvm"].rows] == plain
    assert not any(".loc" in row.text or "debug" in row.text for row in panes["asm"].rows)


def test_steps_show_the_program_after_them_and_what_changed(page):
    (view,) = page.views
    texts = [step.text for step in view.steps]
    assert texts[0] == "parallel('i')"
    first = {row.mark: row.text.strip() for row in view.steps[0].rows if row.mark}
    assert first["-"].startswith("for i in T.serial(")
    assert first["+"].startswith("for i in T.parallel(")
    after = [row.text for row in view.steps[-1].rows if row.mark != "-"]
    (position,) = [pane for pane in view.panes if pane.name == "position"]
    assert after == [row.text for row in position.rows]


def test_index_notation_is_linked_by_its_terms():
    kernel = spcomp.compile("C[i, k] = A[i, j] * B[j, k] + D[i, k]")
    with pytest.raises(ArgumentError):
        kernel.explore()
    a = scipy.sparse.random(5, 6, 0.5, "csr", dtype="float32", rng=np.random.default_rng(1))
    kernel(A=a, B=np.ones((6, 2), "float32"), D=np.ones((5, 2), "float32"))
    panes = {pane.name: pane for pane in kernel.explore().page.views[0].panes}
    texts = [row.text for row in panes["source"].rows]
    assert texts == ["C[i, k] = ", "A[i, j] * B[j, k] + ", "D[i, k]"]
    assert all("*" in text for text in linked(panes["coordinate"], 1))
    assert any("fmadd" in text for text in linked(panes["asm"], 1))


def test_rows_of_source_reach_to_the_end_of_the_function():
    text = "import x\n\n@f\ndef g(\n    a,\n):\n    b = (\n        a)\n\nz = 1\n"
    linecache.cache["some.py"] = (len(text), None, text.splitlines(keepends=True), "some.py")
    source = Source.of([Span("some.py", 4), Span("some.py", 7, 4), Span("gone.py", 1)])
    assert [label for label, _ in source.rows] == [f"some.py:{k}" for k in range(3, 9)]
    assert source.numbers([Span("some.py", 7, 8), Span("gone.py", 1), Span("some.py", 7)]) == (4,)


def test_places_of_llvm_are_read_from_its_metadata():
    text = """define void @f() !dbg !1 {
  ret void, !dbg !2
}
!0 = !DIFile(filename: "k\\\\C3\\\\A4.py", directory: "/tmp")
!1 = distinct !DISubprogram(name: "f", scope: !0, file: !0, line: 3)
!2 = !DILocation(line: 3, column: 5, scope: !1)
!3 = !DILocation(line: 0, column: 5, scope: !1)
!llvm.dbg.cu = !{!9}""".replace("\\\\", "\\")
    assert llvm_lines(text) == [
        ("define void @f() {", ()),
        ("  ret void", (Span("/tmp/kä.py", 3, 4),)),
        ("}", ()),
    ]


def test_an_instruction_without_a_line_goes_with_the_one_before():
    lines = ['\t.file\t1 "/tmp" "f.py"', "f:", "\tpush", "\t.loc\t1 3 5", "\tadd"]
    text = "\n".join([*lines, "\t.loc\t1 0 5", "\tret", "g:", "\tnop"])
    here = (Span("/tmp/f.py", 3, 4),)
    rows = [("f:", ()), ("    push", ()), ("    add", here), ("    ret", here)]
    assert assembly_lines(text) == [*rows, ("g:", ()), ("    nop", ())]


def marked(before, after, context=None):
    lines = (tuple((letter, ()) for letter in text) for text in (before, after))
    return [f"{mark}{line[0]}" for mark, line in Change("step", *lines).difference(context)]


def test_a_difference_keeps_equal_lines():
    assert marked("ab", "ac") == ["a", "-b", "+c"]
    assert marked("abcb", "ab") == ["a", "b", "-c", "-b"]
    assert marked("ab", "abab") == ["a", "b", "+a", "+b"]
    assert marked("", "a") == ["+a"]


def test_a_difference_of_long_programs_is_short():
    expected = ["... 3 lines as before ...", "d", "-e", "+x", "f", "... 4 lines as before ..."]
    assert marked("abcdefghij", "abcdxfghij", 1) == expected
    middle = ["a", "... 4 lines as before ...", "f"]
    assert marked("xabcdefy", "1abcdef2", 1) == ["-x", "+1", *middle, "-y", "+2"]


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
def test_code_for_each_machine_is_linked(target):
    (view,) = spcomp.compile(BY_NAME["spmv"].build(), target=target).explore().page.views
    code = view.panes[-1]
    assert code.name == {"cpu": "asm"}.get(target, "ptx")
    known = sum(bool(row.places) for row in code.rows)
    assert known > 0.5 * len(code.rows)
    assert not any(", debug" in row.text for row in code.rows)


class Links(html.parser.HTMLParser):
    """Collects what a page refers to, and its data."""

    def __init__(self, text):
        super().__init__()
        self.found, self.data, self.is_data = [], "", False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.is_data = dict(attrs).get("id") == "data"
        self.found += [v for k, v in attrs if k in ("src", "href", "action")]

    def handle_data(self, data):
        self.data += data if self.is_data else ""

    def handle_endtag(self, tag):
        self.is_data = False


def test_the_page_is_one_file_that_refers_to_nothing(page, tmp_path):
    spcomp.compile(BY_NAME["csrmm"].build()).explore(tmp_path / "out.html")
    text = (tmp_path / "out.html").read_text("utf-8")
    links = Links(text)
    assert links.found == ["data:,"]
    assert not re.search(r"https?:|@import|url\(", text)
    assert json.loads(links.data) == json.loads(page.to_json())


def test_names_in_a_page_are_text_only(tmp_path):
    text = BY_NAME["csrmm"].text().replace('"csrmm"', '"</script><b>&"')
    (tmp_path / "k.py").write_text(text)
    result = CliRunner().invoke(
        main, ["show", str(tmp_path / "k.py"), "--html", str(tmp_path / "out.html")]
    )
    assert result.exit_code == 0, result.output
    written = (tmp_path / "out.html").read_text("utf-8")
    assert written.count("</script>") == 2
    assert "<b>" not in written
    sources = json.loads(Links(written).data)["views"][0]["panes"][0]["rows"]
    assert any("</script><b>&" in row.get("text", "") for row in sources)


def test_a_notebook_shows_the_page_in_a_frame(page):
    kernel = spcomp.compile(BY_NAME["csrmm"].build())
    shown = kernel.explore()._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert 'sandbox="allow-scripts"' in shown
    assert "csrmm" in repr(kernel.explore())


def test_a_page_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(FileError, match="cannot be written"):
        spcomp.compile(BY_NAME["csrmm"].build()).explore(tmp_path / "no" / "out.html")
