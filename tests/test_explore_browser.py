"""The explorer's page in headless Chromium: by pointer, by keyboard, at phone width."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from tests.pictures import pixels
from tests.programs import BY_NAME

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
]
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000")

# What a test does in the page: it leaves what it saw in an element that --dump-dom shows.
SCRIPT = """<script>
const seen = {errors: []};
addEventListener("error", (event) => seen.errors.push(String(event.message)));
addEventListener("load", async () => {
  const press = (key) => document.activeElement.dispatchEvent(
    new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
  const texts = (query) => [...document.querySelectorAll(query)].map((e) => e.textContent);
  const lit = (name) => texts(`#pane-${name} .lit`);
  const point = (element) => element.dispatchEvent(new MouseEvent("mouseover", {bubbles: true}));
  const row = (name, text) => [...document.querySelectorAll(`#pane-${name} .rows li`)]
    .find((element) => element.textContent.includes(text));
  const isSeen = (element) => Boolean(element.offsetWidth && element.offsetHeight);
  try { %s } catch (error) { seen.errors.push(String(error)); }
  const result = document.createElement("pre");
  result.id = "seen";
  result.textContent = encodeURIComponent(JSON.stringify(seen));
  document.body.append(result);
});
</script></head>"""


A = sps.random(40, 50, 0.1, "csr", dtype="float32", rng=np.random.default_rng(1))


@functools.cache
def page() -> str:
    kernel = spcomp.compile(BY_NAME["csrmm"].build())
    return kernel.explore(A=A, B=np.ones((50, 32), "float32")).html


@functools.cache
def merging() -> str:
    kernel = spcomp.compile("C[i, j] = A[i, j] + B[i, j]")
    return kernel.explore(A=A, B=A).html


def axe() -> str:
    """The text of axe-core, which npm installs here, for all, or where SPCOMP_AXE says."""
    folders = [os.environ.get("SPCOMP_AXE", "node_modules/axe-core")]
    if shutil.which("npm") is not None:
        found = subprocess.run(["npm", "root", "-g"], capture_output=True, text=True, timeout=60)
        folders.append(f"{found.stdout.strip()}/axe-core")
    files = [Path(folder) / "axe.min.js" for folder in folders]
    return next((file.read_text("utf-8") for file in files if file.is_file()), "")


def seen_in(tmp_path, actions, width=1400, *, html=page, head="", flags=()):
    """Run *actions* in the page; return what they put into ``seen``."""
    file = tmp_path / "page.html"
    file.write_text(html().replace("</head>", head + SCRIPT % actions, 1), "utf-8")
    command = [CHROMIUM, *FLAGS, f"--window-size={width},900", f"--user-data-dir={tmp_path}/home"]
    run = subprocess.run(
        [*command, *flags, "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=60
    )
    found = re.search(r'<pre id="seen">([^<]*)</pre>', run.stdout)
    assert found, run.stderr
    seen = json.loads(unquote(found[1]))
    assert not seen.pop("errors")
    return seen


def test_pointing_at_the_sum_lights_up_the_fma(tmp_path):
    seen = seen_in(
        tmp_path,
        """
        point(row("source", "* B[j, k]"));
        seen.flat = lit("flat"); seen.asm = lit("asm"); seen.status = $("#status").textContent;
        point(row("asm", "vfmadd"));
        seen.source = lit("source");
        point(row("asm", "vfmadd").parentElement.firstElementChild);
        seen.none = lit("source");
        """,
    )
    assert seen["flat"]
    assert all("B[T.ramp" in text or "masked_load(B" in text for text in seen["flat"])
    assert any("vfmadd" in text for text in seen["asm"])
    assert "Assembly" in seen["status"]
    assert any("* B[j, k]" in text for text in seen["source"])
    assert seen["none"] == []


def test_a_click_keeps_the_links_until_the_next(tmp_path):
    seen = seen_in(
        tmp_path,
        """
        row("source", "T.float32(0)").click(); point(row("source", "* B[j, k]"));
        seen.kept = lit("source");
        row("source", "T.float32(0)").click(); point(row("source", "* B[j, k]"));
        seen.free = lit("source");
        """,
    )
    assert "T.float32(0)" in seen["kept"][0]
    assert "* B[j, k]" in seen["free"][0]


def test_arrow_keys_move_through_lines_and_stages(tmp_path):
    seen = seen_in(
        tmp_path,
        """
        $("#pane-source .rows").focus();
        press("End"); seen.end = lit("source");
        press("ArrowUp"); seen.up = lit("source"); seen.linked = lit("flat").length;
        press("ArrowRight"); seen.right = document.activeElement.parentElement.id;
        seen.active = document.querySelector(".active").textContent;
        press("n"); press("ArrowLeft"); seen.left = document.activeElement.parentElement.id;
        press("Escape"); seen.dropped = document.querySelectorAll(".lit").length;
        """,
    )
    assert "* B[j, k]" in seen["end"][0]
    assert "T.float32(0)" in seen["up"][0]
    assert seen["linked"]
    assert (seen["right"], seen["left"]) == ("pane-coordinate", "pane-source")
    assert "C[i, k] = 0.0" in seen["active"]
    assert seen["dropped"] == 0


def test_the_slider_goes_through_the_steps(tmp_path):
    seen = seen_in(
        tmp_path,
        """
        const slider = $("#pane-steps input");
        const changed = () => texts("#pane-steps .add");
        seen.first = changed(); seen.said = slider.getAttribute("aria-valuetext");
        slider.value = 1; slider.dispatchEvent(new Event("input")); seen.one = changed();
        seen.step = $("#step").textContent;
        $("#pane-steps [aria-label='Next step']").click(); seen.two = $("#step").textContent;
        slider.value = slider.max; slider.dispatchEvent(new Event("input"));
        seen.disabled = $("#pane-steps [aria-label='Next step']").disabled;
        """,
    )
    assert seen["first"] == []
    assert "before the first" in seen["said"]
    assert any("T.parallel(" in text for text in seen["one"])
    assert "parallel('i')" in seen["step"]
    assert seen["two"].startswith("2 of ")
    assert seen["disabled"]


def test_everything_has_a_name_for_screen_readers(tmp_path):
    seen = seen_in(
        tmp_path,
        """
        const titled = (e) => $(`#${e.getAttribute("aria-labelledby")}`).textContent;
        const name = (e) => e.ariaLabel || (e.tagName === "SECTION" ? titled(e) : e.textContent);
        seen.unnamed = [...document.querySelectorAll("button, input, section, nav, ol")]
          .filter((e) => !name(e).trim()).map((e) => e.outerHTML);
        seen.ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
        seen.requests = performance.getEntriesByType("resource").map((entry) => entry.name);
        """,
    )
    assert seen["unnamed"] == []
    assert len(seen["ids"]) == len(set(seen["ids"]))
    assert not [name for name in seen["requests"] if not name.startswith("data:")]


def test_a_phone_shows_one_stage_and_nothing_sticks_out(tmp_path):
    seen = seen_in(
        tmp_path,
        """
        const shown = () => [...document.querySelectorAll(".pane")].filter(isSeen).map((e) => e.id);
        seen.first = shown();
        row("source", "* B[j, k]").click();
        panes.find((pane) => pane.name === "asm").button.click();
        seen.second = shown(); seen.lit = lit("asm").length;
        seen.wide = document.documentElement.scrollWidth > innerWidth;
        """,
        width=500,  # the narrowest window that Chromium makes
    )
    assert seen["first"] == ["pane-source"]
    assert seen["second"] == ["pane-asm"]
    assert seen["lit"]
    assert not seen["wide"]


def test_the_call_is_shown_beside_the_program(tmp_path):
    seen = seen_in(
        tmp_path,
        """
        const line = row("source", "T.sp_iter(");
        seen.time = line.querySelector(".time").textContent;
        const there = line.querySelector(".time").getBoundingClientRect();
        const frame = $("#pane-source .rows").getBoundingClientRect();
        seen.inside = there.right <= frame.right + 1 && there.left >= frame.left;
        seen.pictures = [...document.querySelectorAll("#pane-pictures svg")]
          .map((e) => [e.getAttribute("aria-label"), isSeen(e.parentElement)]);
        """,
    )
    assert re.fullmatch(r"[\d.]+ us, [\d.]+ GB/s(, threads busy \d+ %)?", seen["time"])
    assert seen["inside"]
    (matrix, is_seen), (roof, _) = seen["pictures"]
    assert matrix.startswith("40 x 50, 200 stored")
    assert is_seen
    assert "FLOP/s" in roof


def test_the_lattice_of_a_merge_is_linked_to_its_operands(tmp_path):
    seen = seen_in(
        tmp_path,
        """
        seen.rows = texts("#pane-merges .rows li");
        point(row("merges", "{A_j}: as one ends"));
        seen.source = lit("source"); seen.flat = lit("flat").length;
        """,
        html=merging,
    )
    assert seen["rows"][0] == "union over j: A_j, B_j"
    assert seen["rows"][1] == "    {A_j, B_j}: as one ends, {A_j} {B_j} remain"
    assert seen["source"]
    assert seen["flat"]


@pytest.mark.parametrize("flags", [(), ("--blink-settings=preferredColorScheme=0",)])
@pytest.mark.parametrize("width", [1400, 500])
def test_axe_finds_nothing_wrong(tmp_path, width, flags):
    text = axe()
    if not text:
        pytest.skip("there is no axe-core: npm install -g axe-core, or SPCOMP_AXE=its folder")
    seen = seen_in(
        tmp_path,
        """
        row("source", "* B[j, k]").click();
        $("#pane-steps input").value = 1;
        $("#pane-steps input").dispatchEvent(new Event("input"));
        const found = await axe.run(document, {resultTypes: ["violations"]});
        seen.dark = matchMedia("(prefers-color-scheme: dark)").matches;
        seen.checked = found.passes.length;
        seen.wrong = found.violations.map((each) =>
          [each.id, each.help, ...each.nodes.slice(0, 3).map((node) => node.html.slice(0, 200))]);
        """,
        width=width,
        head=f"<script>{text}</script>",
        flags=flags,
    )
    assert seen["dark"] == bool(flags)
    assert seen["checked"] > 10
    assert seen["wrong"] == []


KEPT = 'point(row("source", "* B[j, k]")); row("source", "* B[j, k]").click();'


@pytest.mark.parametrize("width", [1400, 500])
def test_a_screenshot_shows_what_is_lit_and_where_panes_are(tmp_path, width):
    """The picture has the structure of the page: colours of rows where their boxes are."""
    seen = seen_in(
        tmp_path,
        KEPT
        + """
        const box = (e) => { const r = e.getBoundingClientRect();
          return [r.left, r.top, r.right, r.bottom, getComputedStyle(e).backgroundColor]; };
        const inside = (e) => isSeen(e) && e.getBoundingClientRect().bottom < innerHeight
          && e.getBoundingClientRect().right <= innerWidth;
        seen.lit = [...document.querySelectorAll("section .rows .lit")].filter(inside).map(box);
        seen.panes = [...document.querySelectorAll('[id^="pane-"]')].filter(isSeen).map(box)
          .filter(([left, top]) => left < innerWidth - 50 && top < innerHeight - 50);
        """,
        width,
    )
    shot = tmp_path / "shot.png"
    window = ("--hide-scrollbars", f"--window-size={width},900", f"--screenshot={shot}")
    command = [CHROMIUM, *FLAGS, *window, f"--user-data-dir={tmp_path}/home"]
    subprocess.run([*command, (tmp_path / "page.html").as_uri()], capture_output=True, timeout=60)
    picture = pixels(shot)
    assert seen["lit"]
    assert len(seen["panes"]) > 2 if width > 1000 else len(seen["panes"]) == 1
    for left, top, right, bottom, colour in seen["lit"]:
        part = picture[int(top) + 1 : int(bottom) - 1, int(left) + 1 : int(right) - 1]
        wanted = [int(number) for number in re.findall(r"\d+", colour)[:3]]
        assert (part == wanted).all(axis=2).mean() > 0.5, (colour, left, top)
    for left, top, right, bottom, _ in seen["panes"]:
        part = picture[int(top) : int(bottom), int(left) : int(right)]
        assert len(np.unique(part.reshape(-1, 3), axis=0)) > 8  # text, in colours
