"""The live explorer: a page that follows a file, served to this machine only."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from spcomp.errors import SpcompError
from spcomp.explore.html import html
from spcomp.explore.page import Page

HOST = "127.0.0.1"
PATIENCE = 20.0  # seconds that a request waits for a change
PAUSE = 0.3  # seconds between two looks at the file


@dataclass(slots=True)
class State:
    """The last page of a file that compiled, and the error if the file does not compile now."""

    page: Page
    error: str = ""
    version: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def update(self, make: Callable[[], Page]) -> None:
        """Show what *make* returns, or its error."""
        try:
            page, error = make(), ""
        except SpcompError as problem:
            page, error = self.page, str(problem)
        with self.changed:
            self.page, self.error = page, error
            self.version += 1
            self.changed.notify_all()

    def after(self, version: int) -> str:
        """Return the state as JSON once it is not that of *version*, or after a while."""
        with self.changed:
            self.changed.wait_for(lambda: self.version != version, PATIENCE)
            now = {"version": self.version, "error": self.error}
            page = self.page.to_json() if self.version != version else "null"
        return f'{{"page": {page}, {json.dumps(now)[1:]}'


class _Handler(BaseHTTPRequestHandler):
    """Answers two requests: the page, and what has changed since."""

    def __init__(self, state: State, *args: object) -> None:
        self.state = state
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Send the page, or the state after a version; other addresses do not exist."""
        host = self.headers.get("Host", "").partition(":")[0]
        url = urlsplit(self.path)
        if host not in (HOST, "localhost"):  # a page of another site that uses its own name for us
            self.send_error(403)
        elif url.path == "/":
            self._send(html(self.state.page, live=-1), "text/html")
        elif url.path == "/state":
            (text,) = parse_qs(url.query).get("after", ["-1"])[:1]
            version = int(text) if text.lstrip("-").isdigit() else -1
            self._send(self.state.after(version), "application/json")
        else:
            self.send_error(404)

    def _send(self, text: str, kind: str) -> None:
        data = text.encode()
        try:
            self.send_response(200)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(data)
        except ConnectionError:
            pass  # the reader has gone

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def server(state: State, port: int = 0) -> ThreadingHTTPServer:
    """Return a server of *state* on this machine; raises OSError if *port* is taken."""
    made = ThreadingHTTPServer((HOST, port), partial(_Handler, state))
    made.daemon_threads = True
    return made


def watch(path: Path, state: State, make: Callable[[], Page], stop: threading.Event) -> None:
    """Update *state*, now and whenever the file *path* changes, until *stop*."""
    before = None
    while True:
        if (now := _stamp(path)) not in (before, None):
            before = now
            state.update(make)
        if stop.wait(PAUSE):
            return


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return what changes with the file; None while an editor replaces it."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
