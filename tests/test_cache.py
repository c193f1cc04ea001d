"""The object cache on disk: hits, damage, races, limits, directories that cannot be used."""

import hashlib
import os
import pickle
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from spcomp.cli.main import main
from spcomp.codegen import cpu
from spcomp.compiler import plain
from spcomp.errors import SpcompWarning
from spcomp.runtime import cache
from spcomp.target import Target

NAME = "ab" + "0" * 62


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPCOMP_CACHE_DIR", str(tmp_path / "cache"))


POSIX = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no owners and modes")
OTHER = "cd" + "1" * 62


@pytest.fixture
def untold(monkeypatch):
    """Nothing has been warned of yet."""
    monkeypatch.setattr(cache, "_warned", set())


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
    for way in ("replace", "hardlink_to"):
        monkeypatch.setattr(Path, way, fail)
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
    result = subprocess.run([sys.executable, "-c", script], check=False)
    assert result.returncode != 0
    assert cache.get(NAME) is None
    cache.put(NAME, b"object")
    assert cache.get(NAME) == b"object"


def test_the_default_directory_is_the_users(monkeypatch):
    monkeypatch.delenv("SPCOMP_CACHE_DIR")
    assert "spcomp" in str(cache.directory())


@POSIX
def test_the_directory_and_its_secret_are_the_users_alone():
    cache.put(NAME, b"object")
    for path, mode in ((cache.directory(), 0o700), (cache.directory() / "key", 0o600)):
        assert path.stat().st_mode & 0o777 == mode
    assert entry().parent.stat().st_mode & 0o777 == 0o700


@POSIX
@pytest.mark.usefixtures("untold")
@pytest.mark.parametrize("mode", [0o770, 0o777, 0o1777, 0o702])
def test_a_directory_that_others_may_write_to_is_refused_once_and_said(mode):
    cache.put(NAME, b"object")
    cache.directory().chmod(mode)
    with pytest.warns(SpcompWarning, match="others may write to the cache directory"):
        assert cache.get(NAME) is None
    cache.put(OTHER, b"object")
    assert not entry(OTHER).exists()
    assert "others may write" in cache.info().refused
    assert "others may write" in CliRunner().invoke(main, ["cache", "info"]).output
    assert cache.clear() == 0
    cache.directory().chmod(0o755)
    assert cache.get(NAME) == b"object"
    assert not cache.info().refused


@POSIX
@pytest.mark.usefixtures("untold")
def test_a_directory_of_another_user_is_refused(monkeypatch):
    cache.put(NAME, b"object")
    monkeypatch.setattr(os, "geteuid", lambda: cache.directory().stat().st_uid + 1)
    with pytest.warns(SpcompWarning, match="belongs to another user"):
        assert cache.get(NAME) is None


@POSIX
@pytest.mark.usefixtures("untold")
def test_the_default_directory_is_closed_where_a_habit_left_it_open(monkeypatch, tmp_path):
    monkeypatch.delenv("SPCOMP_CACHE_DIR")
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *_, **__: str(tmp_path / "default"))
    (tmp_path / "default").mkdir()
    (tmp_path / "default").chmod(0o775)
    cache.put(NAME, b"object")
    assert cache.get(NAME) == b"object"
    assert (tmp_path / "default").stat().st_mode & 0o777 == 0o700


def test_entries_that_were_exchanged_or_cut_are_misses():
    cache.put(NAME, b"one")
    cache.put(OTHER, b"another")
    mine, other = entry().read_bytes(), entry(OTHER).read_bytes()
    entry().write_bytes(other)
    entry(OTHER).write_bytes(other[:-1])
    assert cache.get(NAME) is None
    assert cache.get(OTHER) is None
    entry().write_bytes(mine)
    assert cache.get(NAME) == b"one"


def test_an_entry_of_another_secret_is_a_miss(tmp_path, monkeypatch):
    cache.put(NAME, b"planted")
    planted = entry().read_bytes()
    monkeypatch.setenv("SPCOMP_CACHE_DIR", str(tmp_path / "mine"))
    cache.put(NAME, b"object")
    entry().write_bytes(planted)
    assert cache.get(NAME) is None


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_no_entry_runs_anything(tmp_path):
    body = pickle.dumps(Evil(tmp_path / "ran"))
    cache.put(NAME, b"object")
    for data in (body, b"spcomp1\n" + hashlib.sha256(body).digest() + body):  # as 0.6.0 had it
        entry().write_bytes(data)
        assert cache.get(NAME) is None
    with pytest.raises(plain.UNREADABLE):
        plain.decode(body)
    assert not (tmp_path / "ran").exists()


@POSIX
@pytest.mark.parametrize("what", ["fifo", "directory", "link", "device", "huge"])
@pytest.mark.parametrize("place", ["entry", "folder", "key"])
def test_what_is_no_file_of_ours_is_a_miss(what, place, tmp_path):
    cache.put(NAME, b"object")
    kept = tmp_path / "kept"
    kept.write_bytes(entry().read_bytes())
    path = {"entry": entry(), "folder": entry().parent, "key": cache.directory() / "key"}[place]
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    match what:
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "link":
            path.symlink_to(kept)
        case "device":
            path.symlink_to("/dev/zero")
        case "huge":
            path.touch()
            os.truncate(path, 1 << 40)
    assert cache.get(NAME) is None
    cache.put(NAME, b"again")
    assert cache.get(NAME) in (b"again", None)
    cache.info()
    cache.clear()


def test_a_tilde_is_the_users_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("SPCOMP_CACHE_DIR", "~/x")
    assert cache.directory() == tmp_path / "x"
    monkeypatch.setenv("SPCOMP_CACHE_DIR", "~nobody-of-this-name/x")
    assert cache.directory() == Path("~nobody-of-this-name/x")


def test_a_system_without_owners_has_a_cache(monkeypatch):
    for name in ("getuid", "geteuid"):
        monkeypatch.delattr(os, name, raising=False)
    cache.put(NAME, b"object")
    cache.directory().chmod(0o777)
    assert cache.get(NAME) == b"object"


@pytest.mark.parametrize("limit", [10, 40, 100])
def test_a_disk_that_is_full_keeps_nothing(limit, tmp_path):
    script = (
        "import resource; from spcomp.runtime import cache\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        f"cache.put({NAME!r}, b'object' * 100); assert cache.get({NAME!r}) is None\n"
    )
    pytest.importorskip("resource")
    subprocess.run([sys.executable, "-c", script], check=True)
    left = [path for path in cache.directory().rglob("*") if path.is_file()]
    assert [path.name for path in left] == ["key"] * (limit >= 32)
