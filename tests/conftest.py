"""What every test runs under: frozen IR, a cache of its own, golden files, markers."""

from __future__ import annotations

import difflib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

os.environ["SPCOMP_FROZEN"] = "1"  # read when spcomp.ir is imported: writing to a node raises
_CACHE = tempfile.mkdtemp(prefix="spcomp-test-cache-")
os.environ["SPCOMP_CACHE_DIR"] = _CACHE

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = Path(__file__).resolve().parent / "golden"


def _no_gpu() -> str:
    from spcomp.runtime.cuda.driver import missing

    return missing() or ""


def _absent(present: bool, reason: str) -> str:
    return "" if present else reason


NEEDS: dict[str, tuple[str, Callable[[], str]]] = {  # what it is, and why it is not there
    "torch": (
        "needs PyTorch",
        lambda: _absent(bool(importlib.util.find_spec("torch")), "no torch"),
    ),
    "dask": (
        "needs Dask and distributed",
        lambda: _absent(bool(importlib.util.find_spec("distributed")), "no distributed"),
    ),
    "gpu": ("needs an NVIDIA GPU", _no_gpu),
    "ptxas": ("needs ptxas", lambda: _absent(bool(shutil.which("ptxas")), "no ptxas on the path")),
    "shared_data": (
        "needs the matrices of ../shared/data",
        lambda: _absent(
            (ROOT.parent / "shared" / "data").is_dir(), "no ../shared/data beside the repository"
        ),
    ),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden instead of comparing"
    )
    parser.addoption("--long", action="store_true", help="run the tests that take long, too")
    parser.addoption("--all", action="store_true", help="run every case there is, for an hour")
    parser.addoption("--cpu", metavar="NAME", help="let code be for this CPU where none is named")


def pytest_configure(config: pytest.Config) -> None:
    config.option.long |= config.option.all
    if cpu := config.getoption("--cpu"):
        os.environ["SPCOMP_CPU"] = cpu
    for name, (text, _) in NEEDS.items():
        config.addinivalue_line("markers", f"{name}: {text}")
    try:
        from hypothesis import Phase, settings
    except ModuleNotFoundError:
        return
    quick = [phase for phase in Phase if phase is not Phase.explain]
    options = {"deadline": None, "derandomize": True, "database": None, "phases": quick}
    examples = 25 if config.getoption("--long") else 10
    settings.register_profile("ci", max_examples=examples, **options)
    settings.load_profile("ci")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run about one case in n of tests marked ``sample(n)``; with ``--long``, one in *long*."""
    if config.getoption("--all"):
        return
    seen: set[str] = set()
    for item in items:
        if (mark := item.get_closest_marker("sample")) is None:
            continue
        function = item.nodeid.split("[")[0]
        each = mark.kwargs.get("long", 1) if config.getoption("--long") else mark.args[0]
        if function in seen and crc32(item.nodeid.encode()) % each:
            item.add_marker(pytest.mark.skip(reason=f"one case in {each} runs: see pytest --all"))
        seen.add(function)


def pytest_unconfigure() -> None:
    shutil.rmtree(_CACHE, ignore_errors=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for name, (_, absent) in NEEDS.items():
        if item.get_closest_marker(name) and (reason := absent()):
            pytest.skip(reason)
    if item.get_closest_marker("long") and not item.config.getoption("--long"):
        pytest.skip("takes long: pytest --long runs it")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real matrices beside the repository."""
    if reason := NEEDS["shared_data"][1]():
        pytest.skip(reason)
    return ROOT.parent / "shared" / "data"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with ``tests/golden/NAME``; with ``--update-golden``, write it."""
    update = request.config.getoption("--update-golden")

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if update:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        want = path.read_text(encoding="utf-8") if path.exists() else ""
        diff = difflib.unified_diff(want.splitlines(), text.splitlines(), name, "now", lineterm="")
        changed = "\n".join(diff)
        assert not changed, f"{name} differs (pytest --update-golden accepts it):\n{changed}"

    return compare


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A GPU that is not there, whose kernels the emulator runs, with PyTorch and CuPy on it."""
    from tests import fake_cuda, fake_libraries
    from tests.fake_launches import emulate

    with fake_cuda.installed() as fake:
        emulate(fake, monkeypatch)
        fake_libraries.install(monkeypatch, fake)
        yield fake
