"""Opens every page of the built site in Chromium: ``python docs/check.py SITE AXE``.

SITE is the folder that ``mkdocs build`` made, AXE the file axe.min.js of the npm package axe-core. Checked are contrast (light and
dark), names and labels, errors in the console, requests to anywhere else, and the width of a phone.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
INDEX = "/search/search_index.json"
LIMIT = 1500  # seconds for all pages, on a machine with other work
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"),
    *(
        "--remote-debugging-port=0",
        "--window-size=1400,1000",
    ),  # the first: it does not end by itself
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)
DRIVER = """<!doctype html><html lang="en"><title>check</title><script type="module">
const pages = %s;
const axe = await (await fetch("/axe.js")).text();
const frame = document.body.appendChild(document.createElement("iframe"));
const rest = () => new Promise((done) => setTimeout(done, 100));
const show = async (page) => {
  frame.style = "border:0;width:1300px;height:900px";
  await new Promise((done) => { frame.onload = done; frame.src = page; });
  await rest();
  return frame.contentWindow;
};
const faults = (result) => result.violations.flatMap((rule) =>
  rule.nodes.map((node) => `${rule.id}: ${node.target.join(" ")}: ${node.failureSummary.split("\\n")[1]}`));
for (const page of pages) {
  const told = [];
  try {
    const view = await show(page);
    for (const { name } of view.performance.getEntriesByType("resource"))
      if (!name.startsWith(location.origin)) told.push(`requests ${name}`);
    for (const list of view.document.querySelectorAll("pre code, tbody"))
      [...list.children].slice(40).forEach((more) => more.remove()); // the rest looks alike
    const still = view.document.createElement("style");
    still.textContent = "* { transition: none !important }";
    view.document.head.append(still);
    view.eval(axe);
    const what = page === "/index.html" ? view.document : view.document.querySelector("article");
    told.push(...faults(await view.axe.run(what)));
    view.document.body.dataset.mdColorScheme = "slate";
    await rest();
    told.push(...faults(await view.axe.run(what, { runOnly: ["color-contrast"] })).map((text) => `dark: ${text}`));
    frame.style.width = "390px";
    await rest();
    const phone = view.document.documentElement;
    if (phone.scrollWidth > Math.max(phone.clientWidth, 390)) told.push(`is ${phone.scrollWidth} wide on a phone`);
  } catch (error) { told.push(String(error)); }
  await fetch("/found", { method: "POST", body: JSON.stringify({ [page]: told }) });
}
</script><body></body></html>"""


class Server(ThreadingHTTPServer):
    """Serves the site, and the page that drives the check; holds what this found, by page."""

    def __init__(self, site: Path, axe: Path) -> None:
        paths = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
        self.pages = [f"/{path}" for path in paths if not path.startswith("files/")]  # listings
        index = json.loads((site / INDEX[1:]).read_text())
        index["docs"] = index["docs"][:1]  # each page reads it
        self.own = {
            "/check.html": (DRIVER % json.dumps(self.pages)).encode(),
            "/axe.js": axe.read_bytes(),
            INDEX: json.dumps(index).encode(),
        }
        self.found: dict[str, list[str]] = {}
        self.done = threading.Event()
        super().__init__(("127.0.0.1", 0), partial(Answer, directory=str(site)))


class Answer(SimpleHTTPRequestHandler):
    """Answers one request of the browser."""

    server: Server

    def do_GET(self) -> None:
        """Send a page of our own, or a file of the site."""
        own = self.server.own.get(self.path)
        if own is None:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(self.path))
        self.end_headers()
        self.wfile.write(own)

    def do_POST(self) -> None:
        """Keep what is wrong on a page."""
        server = self.server
        server.found |= json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        if len(server.found) == len(server.pages):
            server.done.set()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def check(site: Path, axe: Path, chromium: str) -> dict[str, list[str]]:
    """Return what is wrong, by page of *site*; raises TimeoutError if the browser does not end."""
    server = Server(site, axe)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/check.html"
    with TemporaryDirectory(ignore_cleanup_errors=True) as home:
        log = Path(home) / "log"
        command = [chromium, *FLAGS, f"--user-data-dir={home}/user", address]
        with log.open("w") as stderr:
            browser = subprocess.Popen(command, stderr=stderr)
            try:
                if not server.done.wait(LIMIT):
                    seen = f"{len(server.found)} of {len(server.pages)} pages"
                    raise TimeoutError(f"{seen} in {LIMIT} seconds")
            finally:
                browser.terminate()
                browser.wait()
                server.shutdown()
        said = [line for line in log.read_text().splitlines() if ":CONSOLE" in line]
    if wrong := [line for line in said if re.search("ERROR:CONSOLE|Uncaught", line)]:
        server.found["console"] = wrong
    return server.found


def main() -> None:
    """Print what is wrong and how many pages were opened; exit with 1 if anything is."""
    chromium = next(filter(None, map(shutil.which, PROGRAMS)), None)
    site, axe = map(Path, sys.argv[1:])
    if chromium is None or not axe.is_file():
        print("skipped: there is no", "Chromium" if chromium is None else axe)
        return
    found = check(site, axe, chromium)
    for page, faults in found.items():
        for fault in faults:
            print(f"{page}: {fault}")
    print(f"{len(found)} pages opened, {sum(map(len, found.values()))} faults")
    raise SystemExit(any(found.values()))


if __name__ == "__main__":
    main()
