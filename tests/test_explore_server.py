"""The live explorer: it answers this machine only, and follows its file."""

from __future__ import annotations

import json
import os
import threading
import urllib.error
import urllib.request

import pytest

from spcomp.errors import ScriptError
from spcomp.explore import server as live
from spcomp.explore.page import Page, View


def page(name):
    return Page("kernel.py", (View(name, "cpu", (), (), ""),))


@pytest.fixture
def served():
    """A state, and a function that asks its server."""
    state = live.State(page("first"))
    web = live.server(state)
    serve = {"poll_interval": 0.01}
    thread = threading.Thread(target=web.serve_forever, kwargs=serve, daemon=True)
    thread.start()

    def ask(path, **headers):
        address = "http://{}:{}".format(*web.server_address[:2])
        request = urllib.request.Request(address + path, headers=headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.read().decode()

    yield state, ask, web
    web.shutdown()
    thread.join(10)
    web.server_close()


def test_only_this_machine_is_answered(served):
    _, ask, web = served
    assert web.server_address[0] == "127.0.0.1"
    with pytest.raises(urllib.error.HTTPError, match="403"):
        ask("/", Host="elsewhere.example")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        ask("/etc/passwd")


def test_the_page_says_that_it_is_live(served):
    _, ask, _ = served
    assert '{"live": -1, "title": "kernel.py"' in ask("/")


def test_a_request_waits_for_a_change(served, monkeypatch):
    state, ask, _ = served
    assert json.loads(ask("/state?after=-1"))["page"]["views"] == [
        {"name": "first", "target": "cpu"}
    ]
    timer = threading.Timer(0.05, lambda: state.update(lambda: page("second")))
    timer.start()
    answer = json.loads(ask("/state?after=0"))
    assert (answer["version"], answer["error"]) == (1, "")
    assert answer["page"]["views"][0]["name"] == "second"
    monkeypatch.setattr(live, "PATIENCE", 0.01)
    assert json.loads(ask("/state?after=1")) == {"page": None, "version": 1, "error": ""}
    assert json.loads(ask("/state?after=nonsense"))["page"] is not None


def test_an_error_leaves_the_last_page(served):
    state, ask, _ = served

    def fail():
        raise ScriptError("there is no program")

    state.update(fail)
    answer = json.loads(ask("/state?after=0"))
    assert answer["error"] == "there is no program"
    assert answer["page"]["views"][0]["name"] == "first"


def test_a_change_of_the_file_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "PAUSE", 0.005)
    file, state, stop = tmp_path / "k.py", live.State(page("first")), threading.Event()
    file.write_text("1")
    seen = []
    how = (file, state, lambda: seen.append(1) or page("new"), stop)
    thread = threading.Thread(target=live.watch, args=how, daemon=True)
    thread.start()
    assert json.loads(state.after(0))["version"] == 1
    os.utime(file, (1, 1))
    assert json.loads(state.after(1))["version"] == 2
    stop.set()
    thread.join(10)
    assert seen == [1, 1]
