"""The explorer's page in headless Chromium: by pointer, by keyboard, at phone width."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from urllib.parse import unquote

import pytest

import spcomp
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
addEventListener("load", () => {
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


@functools.cache
def page() -> str:
    return spcomp.compile(BY_NAME["csrmm"].build()).explore().html


def seen_in(tmp_path, actions, width=1400):
    """Run *actions* in the page; return what they put into ``seen``."""
    file = tmp_path / "page.html"
    file.write_text(page().replace("</head>", SCRIPT % actions, 1), "utf-8")
    command = [CHROMIUM, *FLAGS, f"--window-size={width},900", f"--user-data-dir={tmp_path}/home"]
    run = subprocess.run(
        [*command, "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=60
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
