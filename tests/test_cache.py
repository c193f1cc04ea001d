"""The object cache on disk: hits, damage, races, limits, directories that cannot be used."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from spcomp.cli.main import main
from spcomp.codegen import cpu
from spcomp.runtime import cache
from spcomp.target import Target

NAME = "ab" + "0" * 62


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPCOMP_CACHE_DIR", str(tmp_path / "cache"))


def entry(name=NAME):
    return cache.directory() / name[:2] / f"{name}.o"


def test_what_is_put_is_got():
    assert cache.get(NAME) is None
    cache.put(NAME, b"object")
    assert cache.get(NAME) == b"object"
    info = cache.info()
    assert (info.entries, info.directory) == (1, cache.directory())
    assert info.size > len(b"object")
    assert cache.clear() == 1
    assert cache.get(NAME) is None


def test_the_key_tells_programs_targets_and_options_apart():
    keys = {
        cache.key("a", Target()),
        cache.key("b", Target()),
        cache.key("a", Target("cpu", "x86-64")),
        cache.key("a", Target("cpu", "native", "+avx")),
        cache.key("a", Target(), 2),
    }
    assert len(keys) == 5
    assert cache.key("a", Target()) == cache.key("a", Target())


@pytest.mark.parametrize("damage", [b"", b"spcomp1\n", b"rubbish" * 20])
def test_a_damaged_entry_is_a_miss_and_is_replaced(damage):
    cache.put(NAME, b"object")
    entry().write_bytes(damage)
    assert cache.get(NAME) is None
    cache.put(NAME, b"object")
    assert cache.get(NAME) == b"object"


def test_a_flipped_byte_is_a_miss():
    cache.put(NAME, b"object")
    data = bytearray(entry().read_bytes())
    data[-1] ^= 1
    entry().write_bytes(data)
    assert cache.get(NAME) is None


def test_a_directory_that_cannot_be_written_means_no_cache(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", Path("/proc/nowhere")):
        monkeypatch.setenv("SPCOMP_CACHE_DIR", str(place))
        cache.put(NAME, b"object")
        assert cache.get(NAME) is None
        assert cache.info().entries == 0
        assert cache.clear() == 0


def test_a_full_disk_leaves_nothing_behind(monkeypatch):
    def fail(*_):
        raise OSError("no space left on device")

    cache.directory().mkdir()
    monkeypatch.setattr(Path, "replace", fail)
    cache.put(NAME, b"object")
    assert [path for path in cache.directory().rglob("*") if path.is_file()] == []


def test_the_least_recently_used_entries_go_first(monkeypatch):
    names = [f"{k:02x}" + "0" * 62 for k in range(5)]
    for age, name in enumerate(names):
        cache.put(name, bytes(1000))
        os.utime(entry(name), (age, age))
    cache.get(names[0])  # now the most recently used
    monkeypatch.setattr(cache, "SIZE_LIMIT", 3500)
    cache.put("ff" + "0" * 62, bytes(1000))
    kept = {path.stem for path in cache.directory().glob("??/*.o")}
    assert kept == {names[0], names[4], "ff" + "0" * 62}


def test_left_over_temporary_files_are_swept():
    cache.put(NAME, b"object")
    stale, fresh = entry().parent / "tmp-old", entry().parent / "tmp-new"
    stale.write_bytes(b"x")
    fresh.write_bytes(b"x")
    os.utime(stale, (0, 0))
    cache.put(NAME, b"object")
    assert not stale.exists()
    assert fresh.exists()
    assert cache.info().entries == 1


def test_writers_and_readers_at_once_see_whole_objects():
    bodies = [bytes([k]) * 50_000 for k in range(4)]
    seen = set()

    def work(body):
        for _ in range(30):
            cache.put(NAME, body)
            seen.add(cache.get(NAME))

    threads = [threading.Thread(target=work, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen <= set(bodies)


def test_processes_at_once_see_whole_objects():
    script = (
        "import sys; from spcomp.runtime import cache\n"
        "for k in range(150):\n"
        f"    cache.put({NAME!r}, sys.argv[1].encode() * 50_000)\n"
        f"    body = cache.get({NAME!r})\n"
        "    assert body is not None and len(body) == 50_000 and len(set(body)) == 1\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", script, str(k)]) for k in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert cache.info().entries == 1


def test_a_directory_that_became_read_only_still_serves(monkeypatch):
    def refuse(*_, **__):
        raise OSError(30, "read-only file system")

    cache.put(NAME, b"object")
    for module, name in ((cache.tempfile, "mkstemp"), (os, "utime"), (Path, "unlink")):
        monkeypatch.setattr(module, name, refuse)
    cache.put("cd" + "0" * 62, b"other")
    assert cache.get(NAME) == b"object"
    assert cache.get("cd" + "0" * 62) is None
    assert cache.clear() == 0


def test_an_object_for_another_cpu_is_not_taken():
    text = "define i32 @f__packed(ptr %slots) {\n  ret i32 0\n}\n"
    fewer = Target("cpu", "x86-64")
    cache.put(cache.key(text, cpu.resolve(fewer)), b"for another machine")
    assert cache.get(cache.key(text, cpu.resolve(Target()))) is None


def test_the_command_line_shows_and_empties_it():
    cache.put(NAME, b"object")
    shown = CliRunner().invoke(main, ["cache", "info"]).output
    assert "objects" in shown
    assert "256.0 MiB" in shown
    cleared = CliRunner().invoke(main, ["cache", "clear"])
    assert cleared.output.startswith("deleted 1 files in ")
    assert cache.get(NAME) is None


def test_a_writer_that_is_killed_leaves_no_entry(tmp_path):
    script = (
        "import os, signal; from pathlib import Path; from spcomp.runtime import cache\n"
        "Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"cache.put({NAME!r}, b'object')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode != 0
    assert cache.get(NAME) is None
    cache.put(NAME, b"object")
    assert cache.get(NAME) == b"object"


def test_the_default_directory_is_the_users(monkeypatch):
    monkeypatch.delenv("SPCOMP_CACHE_DIR")
    assert "spcomp" in str(cache.directory())
