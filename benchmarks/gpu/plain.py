"""Test files run without pytest, which a machine with a GPU may not have.

``python -m benchmarks.gpu.plain SECONDS FILES`` ends by itself after about so many seconds.

It stands in for what the tests that need a GPU use of pytest: marks, parameters, ``raises``,
``importorskip`` and ``skip``. Tests with fixtures are not run, and counted.
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
import sys
import time
import traceback
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class SkippedError(Exception):
    """A test does not run here; the message says why."""


def skip(reason: str = "", **_: Any) -> None:
    """Leave the test."""
    raise SkippedError(reason)


def importorskip(name: str, **_: Any) -> Any:
    """Return the module *name*, or leave the test."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SkippedError(str(error)) from error


@contextmanager
def raises(kind: Any, match: str | None = None) -> Iterator[SimpleNamespace]:
    """Fail unless what is inside raises *kind* with a message in which *match* is found."""
    found = SimpleNamespace(value=None)
    try:
        yield found
    except kind as error:
        found.value = error
        if match and not re.search(match, str(error)):
            raise AssertionError(f"{match!r} is not in {error}") from error
        return
    raise AssertionError(f"{kind} was not raised")


class _Marks:
    """``pytest.mark``: parameters are kept with the function, names of other marks, too."""

    def parametrize(self, names: Any, values: Any, **_: Any) -> Callable[[Any], Any]:
        listed = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)

        def mark(test: Any) -> Any:
            cases = [
                dict(zip(listed, value if len(listed) > 1 else [value], strict=True))
                for value in values
            ]
            before = getattr(test, "cases", [{}])
            test.cases = [{**a, **b} for a in before for b in cases]
            return test

        return mark

    def __getattr__(self, name: str) -> Any:
        def mark(*args: Any, **_: Any) -> Any:
            test: Any = args[0] if args and inspect.isfunction(args[0]) else None
            if test is None:
                return mark
            test.marks = {*getattr(test, "marks", ()), name}
            return test

        mark.name = name  # type: ignore[attr-defined]
        return mark


def stand_in() -> ModuleType:
    """Return a module that stands for pytest."""
    module: Any = ModuleType("pytest")
    module.mark, module.raises, module.skip = _Marks(), raises, skip
    module.importorskip, module.param = importorskip, lambda *values, **_: values
    module.fixture = lambda *args, **_: args[0] if args and callable(args[0]) else lambda f: f
    stand: ModuleType = module
    return stand


def run(paths: list[str], mark: str = "gpu", until: float = math.inf) -> dict[str, int]:
    """Run the tests with *mark* in the files *paths* until the time *until*; print failures.

    Those with few cases come first. Returns how many did what.
    """
    counts = {"passed": 0, "failed": 0, "skipped": 0, "not run": 0}
    found = []
    for path in paths:
        name = ".".join(Path(path).with_suffix("").parts)
        try:
            found += [(f"{path}::{test.__name__}", test) for test in marked(name, mark)]
        except Exception:
            counts["failed"] += 1
            sys.stdout.write(f"FAILED {path}: {traceback.format_exc(limit=-1)}")
    for title, test in sorted(found, key=lambda item: len(_cases(item[1]))):
        for case in _cases(test):
            late = time.time() > until
            counts["not run" if late else _outcome(title, test, case)] += 1
    return counts


def marked(module: str, mark: str) -> list[Any]:
    """Return the tests of *module* with *mark*, in order; raises what its import does."""
    names = vars(importlib.import_module(module))
    marks = names.get("pytestmark", [])
    whole = mark in {
        getattr(m, "name", "") for m in (marks if isinstance(marks, list) else [marks])
    }
    tests = (test for title, test in names.items() if title.startswith("test_"))
    return [test for test in tests if whole or mark in getattr(test, "marks", ())]


def _cases(test: Any) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = getattr(test, "cases", [{}])
    return cases


def _outcome(title: str, test: Any, case: dict[str, Any]) -> str:
    if set(inspect.signature(test).parameters) - set(case):
        return "not run"
    try:
        test(**case)
    except SkippedError:
        return "skipped"
    except Exception:
        sys.stdout.write(f"FAILED {title} {case or ''}\n{traceback.format_exc(limit=-3)}")
        return "failed"
    return "passed"


def main() -> int:
    """Run the files on the command line, behind the seconds that it may take; returns the status.

    The process may be killed, so everything is printed at once.
    """
    sys.path.insert(0, str(Path.cwd()))
    sys.modules["pytest"] = stand_in()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    counts = run(sys.argv[2:], until=time.time() + float(sys.argv[1]))
    sys.stdout.write(", ".join(f"{count} {what}" for what, count in counts.items()) + "\n")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
