"""The store of the tuner: several processes, a killed one, read-only homes, damaged files."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sps

from spcomp.errors import ArgumentError, FileError, SpcompWarning
from spcomp.tune import store as module
from spcomp.tune.choice import Choice
from spcomp.tune.problem import Problem, statistics_of
from spcomp.tune.store import Record, Store, default_path, user_store

ROOT = Path(__file__).parents[1]
RECORD = Record(
    "measured", "p", "{}", "{}", "m", "v", Choice().to_json(), 1e-3, 1.5, 1.4, 1.6, created=1.0
)
WRITER = """
import sys, time
from dataclasses import replace
from pathlib import Path
from tests.test_tune_store import RECORD
from spcomp.tune.store import Store
store = Store(Path(sys.argv[1]))
for k in range(int(sys.argv[3])):
    store.add([replace(RECORD, program=sys.argv[2], created=float(2 * k)),
               replace(RECORD, program=sys.argv[2], created=float(2 * k + 1))])
    if k == 0:
        print("writing", flush=True)
"""


@pytest.fixture(autouse=True)
def everything_is_said_again():
    module._say_once.cache_clear()
    module._store.cache_clear()


def writer(path: Path, program: str, count: int) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WRITER, str(path), program, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT)


def matrix(seed: int, density: float = 0.05) -> sps.csr_array:
    return sps.random_array((300, 300), density=density, format="csr", rng=seed)


def problem(seed: int = 0, density: float = 0.05) -> Problem:
    return Problem("p", (("feat", 32),), statistics_of({"A": matrix(seed, density)}))


def winner(where: Problem, **changes: object) -> Record:
    keys = {"extents": where.extents_text, "matrices": where.matrices_text}
    return replace(RECORD, kind="any", **{**keys, **changes})  # type: ignore[arg-type]


def test_what_is_added_is_there_in_another_store(tmp_path):
    Store(tmp_path / "a.db").add([RECORD, replace(RECORD, created=2.0)])
    assert Store(tmp_path / "a.db").records() == [RECORD, replace(RECORD, created=2.0)]
    assert Store(tmp_path / "a.db").records("other") == []


def test_two_processes_write_and_one_is_killed(tmp_path):
    """All records of the one that ends are there, and the transactions of the killed are whole."""
    path = tmp_path / "a.db"
    with writer(path, "killed", 100_000) as slow, writer(path, "ends", 40) as quick:
        assert slow.stdout is not None
        assert slow.stdout.readline() == "writing\n"
        time.sleep(0.3)
        slow.send_signal(signal.SIGKILL)
        assert quick.wait(timeout=120) == 0
    found = [record.program for record in Store(path).records()]
    assert found.count("ends") == 80
    assert found.count("killed") > 0
    assert found.count("killed") % 2 == 0
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_old_measurements_are_forgotten_and_winners_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LIMIT", 10)
    store, where = Store(tmp_path / "a.db"), problem()
    store.add([winner(where)])
    for k in range(30):
        store.add([replace(RECORD, created=float(k))])
    found = store.records()
    assert [r.created for r in found if r.kind == "measured"] == [float(k) for k in range(20, 30)]
    assert sum(r.kind == "any" for r in found) == 1


def test_the_newest_winner_stays(tmp_path):
    store, where = Store(tmp_path / "a.db"), problem()
    for created in (2.0, 3.0, 1.0):
        store.add([winner(where, created=created, speedup=created)])
    assert len(store.records()) == 1
    found = store.winner(where, "m", "v", "any")
    assert found is not None
    assert (found[0].speedup, found[1]) == (3.0, 0.0)
    assert store.has("p")
    assert not store.has("q")


def test_a_winner_is_for_near_matrices_of_the_same_extents_machine_and_versions(tmp_path):
    store, where = Store(None), problem()
    store.add([winner(where)])
    near, far = problem(seed=1), problem(density=0.2)
    assert 0 < near.distance(json.loads(where.matrices_text)) < 0.25
    found = store.winner(near, "m", "v", "any")
    assert found is not None
    assert found[1] > 0
    assert store.winner(far, "m", "v", "any") is None
    assert store.winner(where, "other", "v", "any") is None
    assert store.winner(where, "m", "other", "any") is None
    assert store.winner(where, "m", "v", "as_is") is None
    assert store.winner(replace(where, extents=(("feat", 64),)), "m", "v", "any") is None
    assert store.winner(replace(where, matrices=()), "m", "v", "any") is None


@pytest.mark.parametrize("text", ["{}", '{"kind": "any", "color": 3}', "[]", "3", "hello"])
def test_a_line_that_is_no_record_is_named_with_what_is_wrong(text):
    line = json.dumps(asdict(RECORD))
    why = {
        "{}": "it has no kind, program, extents,",
        "[]": "a record is an object of JSON",
        "3": "a record is an object of JSON",
        "hello": "Expecting value",
    }
    with pytest.raises(FileError, match=r"^import:2: no record of the tuner: ") as caught:
        Store(None).load([line, text])
    assert why.get(text, "there is no color in a record") in caught.value.message


@pytest.mark.parametrize("text", ['{"kind": "any"}', "known.jsonl", b"{}", Path("known.jsonl")])
def test_a_text_or_a_path_is_not_taken_for_lines(text):
    with pytest.raises(ArgumentError, match=r"argument lines: got .*, expected lines") as caught:
        Store(None).load(text)
    assert "open(" in caught.value.hint


@pytest.mark.parametrize(
    "content", [b"not a database" * 100, b"SQLite format 3\0" + b"\xff" * 5000]
)
def test_a_damaged_file_is_set_aside_and_nothing_else_is_lost(tmp_path, content):
    path = tmp_path / "tuning.db"
    path.write_bytes(content)
    (tmp_path / "key").write_bytes(b"k")
    with pytest.warns(SpcompWarning, match="is damaged .* moved to tuning-damaged"):
        Store(path).add([RECORD])
    assert Store(path).records() == [RECORD]
    (aside,) = tmp_path.glob("tuning-damaged-*.db")
    assert aside.read_bytes() == content
    assert (tmp_path / "key").read_bytes() == b"k"


def test_a_file_cut_off_in_the_middle_is_set_aside(tmp_path):
    path = tmp_path / "tuning.db"
    Store(path).add([replace(RECORD, created=float(k)) for k in range(500)])
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.warns(SpcompWarning, match="is damaged"):
        Store(path).records()
    Store(path).add([RECORD])
    assert Store(path).records() == [RECORD]


def test_a_file_of_another_layout_is_set_aside(tmp_path):
    path = tmp_path / "tuning.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.warns(SpcompWarning, match="layout is 99"):
        assert Store(path).records() == []


def test_without_a_place_to_write_records_are_kept_in_memory_and_it_says_so_once(
    tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPCOMP_CACHE_DIR", str(tmp_path / "file" / "below"))
    with pytest.warns(SpcompWarning, match="kept in memory only"):
        user_store().add([RECORD])
    user_store().add([replace(RECORD, created=2.0)])
    assert user_store().records() == [RECORD, replace(RECORD, created=2.0)]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_cannot_be_written_is_still_read(tmp_path):
    path = tmp_path / "a.db"
    Store(path).add([RECORD])
    path.chmod(0o400)
    tmp_path.chmod(0o500)
    try:
        store = Store(path)
        with pytest.warns(SpcompWarning, match="kept in memory only"):
            store.add([replace(RECORD, created=2.0)])
        assert store.records() == [RECORD, replace(RECORD, created=2.0)]
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs permissions of POSIX")
def test_a_directory_that_others_may_write_to_is_not_used(tmp_path, monkeypatch):
    tmp_path.chmod(0o777)
    monkeypatch.setenv("SPCOMP_CACHE_DIR", str(tmp_path))
    with pytest.warns(SpcompWarning, match="others may write"):
        assert default_path() is None


def test_records_are_exported_and_imported_once(tmp_path):
    here, there = Store(tmp_path / "a.db"), Store(tmp_path / "b.db")
    here.add([RECORD, winner(problem())])
    lines = list(here.export())
    assert all(json.loads(line) for line in lines)
    assert there.load(lines) == 2
    assert there.load(lines) == 2
    assert there.records() == here.records()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"choice": "{}"}, "no choice"),
        ({"kind": "other"}, "no kind"),
        ({"seconds": "fast"}, "seconds is 'fast'"),
        ({"choice": json.dumps({**json.loads(RECORD.choice), "formats": {"A": "os()"}})}, "format"),
        ({"choice": json.dumps({**json.loads(RECORD.choice), "trace": "{}"})}, "not a step"),
        ({"more": 1}, "more"),
        ({"extents": "[]"}, "no numbers by name"),
        ({"extents": '{"m": "large"}'}, "no numbers by name"),
        ({"matrices": "[]"}, "no object"),
        ({"matrices": '{"A": 3}'}, "no numbers by name"),
        ({"features": '{"loops": NaN}'}, "no numbers by name"),
        ({"seconds": 10**400}, "seconds is 1000"),
        ({"program": "\ud800"}, "program is '"),
    ],
)
def test_a_line_that_is_no_record_is_refused_with_its_number(change, why):
    from dataclasses import asdict

    store = Store(None)
    lines = [json.dumps(asdict(RECORD)), "", json.dumps({**asdict(RECORD), **change})]
    with pytest.raises(FileError, match=f"here:3: no record of the tuner: .*{why}"):
        store.load(lines, "here")
    assert store.records() == []


def test_whole_numbers_are_read_as_floats():
    from dataclasses import asdict

    store = Store(None)
    assert store.load([json.dumps({**asdict(RECORD), "seconds": 10**30})]) == 1
    assert [record.seconds for record in store.records()] == [1e30]


def test_a_choice_is_the_same_after_it_was_text():
    steps = '{"func": "f", "step": "split", "loop": "k", "factors": 16}\n'
    from spcomp.schedule.step import Trace

    choice = Choice((("A", "hyb(1, [1, 2])"),), Trace.from_json_lines(steps), (("feat", 8),), 2)
    assert Choice.from_json(choice.to_json()) == choice
    assert str(choice) == "A in hyb(1, [1, 2]), 1 steps, 2 threads"
    with pytest.raises(ArgumentError, match="no format"):
        Choice.from_json(choice.to_json().replace("hyb(1", "__import__(1"))


def test_the_distance_of_statistics_is_zero_for_equal_ones_and_symmetric():
    mine, other = problem(0), problem(5)
    assert mine.distance(json.loads(mine.matrices_text)) == 0
    ahead = mine.distance(json.loads(other.matrices_text))
    assert ahead == pytest.approx(other.distance(json.loads(mine.matrices_text)), rel=0.1)
    assert np.isinf(mine.distance({}))
