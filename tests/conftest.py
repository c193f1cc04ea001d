"""What every test runs under: frozen IR, a cache of its own, golden files, markers."""

from __future__ import annotations

import ctypes.util
import difflib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ["SPCOMP_FROZEN"] = "1"  # read when spcomp.ir is imported: writing to a node raises
_CACHE = tempfile.mkdtemp(prefix="spcomp-test-cache-")
os.environ["SPCOMP_CACHE_DIR"] = _CACHE

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = Path(__file__).resolve().parent / "golden"


def _has_gpu() -> bool:
    name = ctypes.util.find_library("cuda")
    return name is not None and ctypes.CDLL(name).cuInit(0) == 0


NEEDS: dict[str, tuple[str, Callable[[], bool], str]] = {
    "torch": ("needs PyTorch", lambda: bool(importlib.util.find_spec("torch")), "no torch"),
    "gpu": ("needs an NVIDIA GPU", _has_gpu, "no NVIDIA driver that starts"),
    "ptxas": ("needs ptxas", lambda: bool(shutil.which("ptxas")), "no ptxas on the path"),
    "shared_data": (
        "needs the matrices of ../shared/data",
        lambda: (ROOT.parent / "shared" / "data").is_dir(),
        "no ../shared/data beside the repository",
    ),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden instead of comparing"
    )
    parser.addoption("--long", action="store_true", help="run the tests marked long, too")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: takes minutes; run by pytest --long")
    for name, (text, _, _) in NEEDS.items():
        config.addinivalue_line("markers", f"{name}: {text}")
    try:
        from hypothesis import Phase, settings
    except ModuleNotFoundError:
        return
    quick = [phase for phase in Phase if phase is not Phase.explain]
    options = {"deadline": None, "derandomize": True, "database": None, "phases": quick}
    settings.register_profile("ci", max_examples=25, **options)
    settings.load_profile("ci")


def pytest_unconfigure() -> None:
    shutil.rmtree(_CACHE, ignore_errors=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("long") and not item.config.getoption("--long"):
        pytest.skip("takes minutes: pytest --long")
    for name, (_, present, reason) in NEEDS.items():
        if item.get_closest_marker(name) and not present():
            pytest.skip(reason)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real matrices beside the repository."""
    _, present, reason = NEEDS["shared_data"]
    if not present():
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
