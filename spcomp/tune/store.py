"""Under the tuner: what was measured and what won, in a database that all processes share.

The file lies in the user's cache directory. SQLite serialises writers and, after a process was
killed, rolls back what it had not finished. A file that is damaged is set aside, and a directory
that cannot be written is a store in memory; both say so once.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from spcomp.errors import ArgumentError, FileError, ScheduleError, expect, warn
from spcomp.locks import Lock
from spcomp.runtime import cache as disk
from spcomp.tune.choice import Choice
from spcomp.tune.problem import NEAR, Problem

Kind: TypeAlias = Literal["measured", "any", "as_is"]
KINDS: tuple[Kind, ...] = ("measured", "any", "as_is")
LAYOUT = 1  # of the tables; a file of another one is set aside
LIMIT = 10_000  # measurements that are kept, the newest; winners stay
PATIENCE = 10.0  # seconds to wait for other processes
ATTEMPTS = 3  # to use a file that turns out to be damaged
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Record:
    """A choice with what was measured of it, or that it won.

    *kind*: ``measured``; ``any``: the best of all; ``as_is``: the best that takes matrices as they
    come. *program*, *extents*, *matrices*: the problem, see :class:`Problem`. *machine*,
    *versions*: where. *choice*: as text. *seconds*: of a call; *speedup*, *low*, *high*: over the
    default, with an interval of 95 %; *conversion*: seconds, once for each matrix. *features*: what
    the schedule does, as a cost model takes it. *created*: seconds since 1970.
    """

    kind: Kind
    program: str
    extents: str
    matrices: str
    machine: str
    versions: str
    choice: str
    seconds: float
    speedup: float
    low: float
    high: float
    conversion: float = 0.0
    features: str = "{}"
    created: float = 0.0

    def told(self, distance: float) -> str:
        """Return what won, and what was measured of it, for matrices at *distance*."""
        choice = Choice.from_json(self.choice)
        like = "the same matrices" if distance == 0 else f"matrices {distance:.2f} away"
        like = like if json.loads(self.matrices) else "tensors of which no statistics are known"
        when = time.strftime("%Y-%m-%d", time.localtime(self.created))
        text = (
            f"{choice}; {self.speedup:.2f} ({self.low:.2f} to {self.high:.2f})"
            f" times as fast as the default, measured on {when} with {like}"
        )
        return text if choice != Choice() else f"{text}: it is the default"

    @property
    def waiting(self) -> str:
        """What is said of a choice that matrices that may change do not get; else nothing."""
        choice = Choice.from_json(self.choice)
        if not choice.formats:
            return ""
        bound = ", ".join(f"{name}=..." for name, _ in choice.formats)
        steady = ", ".join(f"{name}=spcomp.tune.frozen({name})" for name, _ in choice.formats)
        return (
            f"; {choice} was {self.speedup:.2f} times as fast: it waits for matrices whose arrays"
            f" are read-only, and no views of arrays that are not, as of {steady},"
            f" or bind({bound}, calls=...)"
        )

    def checked(self) -> Record:
        """Return the record, whose numbers are floats, all texts readable; raises ArgumentError."""
        if self.kind not in KINDS:
            raise ArgumentError(f"no kind of record: {self.kind!r}", hint=f"kinds: {KINDS}")
        for field in fields(Record):
            value = getattr(self, field.name)
            fits = _is_number if field.type == "float" else _is_text
            if not fits(value):
                raise ArgumentError(f"{field.name} is {value!r}, expected {field.type}")
        of_matrices = json.loads(self.matrices)
        if not isinstance(of_matrices, dict):
            raise ArgumentError(f"no object of JSON: {self.matrices[:100]!r}")
        for found in (json.loads(self.extents), json.loads(self.features), *of_matrices.values()):
            if not isinstance(found, dict) or not all(map(_is_number, found.values())):
                raise ArgumentError(f"no numbers by name: {str(found)[:100]!r}")
        Choice.from_json(self.choice)
        numbers: Any = {f.name: float(getattr(self, f.name)) for f in _FLOATS}
        return replace(self, **numbers)


def _read(found: Any) -> Record:
    """Return the record that a line of JSON says; raises ArgumentError, ScheduleError, ..."""
    if not isinstance(found, dict):
        raise ArgumentError(f"a record is an object of JSON, got {type(found).__name__}")
    if unknown := [name for name in found if name not in _NAMES]:
        raise ArgumentError(f"there is no {', '.join(unknown)} in a record")
    needed = (field.name for field in fields(Record) if field.default is MISSING)
    if absent := [name for name in needed if name not in found]:
        raise ArgumentError(f"it has no {', '.join(absent)}")
    return Record(**found).checked()


def _is_number(value: Any) -> bool:
    """Whether *value* is a number that a float holds."""
    return isinstance(value, (int, float)) and abs(value) <= sys.float_info.max


def _is_text(value: Any) -> bool:
    """Whether *value* is text that a file holds."""
    return isinstance(value, str) and value.isprintable()


_NAMES = tuple(field.name for field in fields(Record))
_FLOATS = tuple(field for field in fields(Record) if field.type == "float")
_COLUMNS = ", ".join(
    f"{f.name} {'REAL' if f.type == 'float' else 'TEXT'} NOT NULL" for f in fields(Record)
)
_KEY = "kind, program, extents, matrices, machine, versions"
_CREATE = (
    f"CREATE TABLE IF NOT EXISTS records ({_COLUMNS}, UNIQUE ({_KEY}, choice, created))",
    f"CREATE INDEX IF NOT EXISTS by_problem ON records ({_KEY})",
    f"PRAGMA user_version = {LAYOUT}",
)
_INSERT = (
    f"INSERT OR IGNORE INTO records ({', '.join(_NAMES)})"
    f" VALUES ({', '.join(':' + name for name in _NAMES)})"
)
_REPLACED = "DELETE FROM records WHERE created <= :created AND " + " AND ".join(
    f"{name} = :{name}" for name in _KEY.split(", ")
)
_NEWER = "SELECT 1 FROM records WHERE " + " AND ".join(
    f"{name} = :{name}" for name in _KEY.split(", ")
)
_FORGET = (
    "DELETE FROM records WHERE kind = 'measured' AND rowid <= (SELECT max(rowid) FROM records) - ?"
)
_SELECT = f"SELECT {', '.join(_NAMES)} FROM records"


class Store:
    """The records in the file *path*; in memory if it is None. Threads and processes may share it.

    Each operation is a transaction: after a crash there is all of it or nothing.
    """

    def __init__(self, path: str | PathLike[str] | None) -> None:
        expect("path", path, (str, PathLike, type(None)), "the path of a file")
        self.path = None if path is None else Path(path)
        self._memory: sqlite3.Connection | None = None
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.path,)  # what is only in memory stays behind

    def add(self, records: Iterable[Record]) -> None:
        """Add *records*; a winner replaces an earlier one of the same problem."""
        rows = [asdict(record) for record in records]

        def write(connection: sqlite3.Connection) -> bool:
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                for row in rows:
                    if row["kind"] != "measured":
                        connection.execute(_REPLACED, row)
                        if connection.execute(_NEWER, row).fetchone() is not None:
                            continue
                    connection.execute(_INSERT, row)
                connection.execute(_FORGET, (LIMIT,))
            return True

        if rows and not self._on_disk(write):
            self._in_memory(write, make=True)

    def winner(
        self, problem: Problem, machine: str, versions: str, kind: Kind
    ) -> tuple[Record, float] | None:
        """Return the winner for *problem* or the nearest one, and its distance; None if far."""
        places = "kind = ? AND program = ? AND extents = ? AND machine = ? AND versions = ?"
        rows: list[tuple[Any, ...]] = []
        for known in (problem, *problem.earlier):
            key = (kind, known.program, known.extents_text, machine, versions)
            rows += self._rows(f"{_SELECT} WHERE {places}", key)
        records = [Record(*row) for row in rows]
        near = [(problem.distance(json.loads(record.matrices)), record) for record in records]
        near = [(distance, record) for distance, record in near if distance <= NEAR]
        if not near:
            return None
        distance, record = min(near, key=lambda pair: (pair[0], -pair[1].created))
        return record, distance

    def winners(self, program: str) -> list[Record]:
        """Return all winners for the program with this digest."""
        query = f"{_SELECT} WHERE program = ? AND kind != 'measured' ORDER BY created"
        return [Record(*row) for row in self._rows(query, (program,))]

    def has(self, program: str) -> bool:
        """Whether there is a winner for the program with this digest."""
        query = "SELECT 1 FROM records WHERE program = ? AND kind != 'measured' LIMIT 1"
        return bool(self._rows(query, (program,)))

    def records(self, machine: str = "", kind: str = "") -> list[Record]:
        """Return the records, of *machine* and *kind* if these are given, oldest first."""
        query = f"{_SELECT} WHERE (? = '' OR machine = ?) AND (? = '' OR kind = ?) ORDER BY created"
        return [Record(*row) for row in self._rows(query, (machine, machine, kind, kind))]

    def export(self) -> Iterator[str]:
        """Yield all records, each a line of JSON."""
        return (json.dumps(asdict(record)) + "\n" for record in self.records())

    def load(self, lines: Iterable[str], name: str = "import") -> int:
        """Add the records of *lines*, as ``export`` yields them; return how many there were.

        Nothing is added if a line cannot be read: FileError says which line of *name*.
        """
        if isinstance(lines, (str, bytes, PathLike)):
            hint = "write with open(path) as lines: store.load(lines), or give text.splitlines()"
            got = type(lines).__name__
            raise ArgumentError(f"argument lines: got {got}, expected lines of text", hint=hint)
        records = []
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    records.append(_read(json.loads(line)))
                except (ValueError, TypeError, RecursionError, ScheduleError) as error:
                    first = str(error).splitlines()[0]
                    raise FileError(f"{name}:{number}: no record of the tuner: {first}") from error
        self.add(records)
        return len(records)

    def _rows(self, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Return the rows that *query* finds in the file and in memory."""

        def read(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
            return connection.execute(query, values).fetchall()

        return [*(self._on_disk(read) or ()), *(self._in_memory(read) or ())]

    def _on_disk(self, action: Callable[[sqlite3.Connection], T]) -> T | None:
        """Return the result of *action*; None, with a warning once, if the file is of no use.

        A damaged file is set aside, and *action* is done on a new one.
        """
        for _ in range(ATTEMPTS if self.path is not None else 0):
            assert self.path is not None
            mark = _identity(self.path)
            try:
                with _connection(self.path) as connection:
                    return action(connection)
            except sqlite3.OperationalError as error:
                _say_once(f"{self.path} cannot be used ({error}): tuning is kept in memory only")
                return None
            except sqlite3.DatabaseError as error:
                self._set_aside(mark, str(error))
        return None

    def _in_memory(
        self, action: Callable[[sqlite3.Connection], T], *, make: bool = False
    ) -> T | None:
        """Return the result of *action* on the records in memory; None if there are none."""
        with self._lock:
            if self._memory is None:
                if not make:
                    return None
                self._memory = sqlite3.connect(
                    ":memory:", check_same_thread=False, isolation_level=None
                )
                _prepare(self._memory)
            return action(self._memory)

    def _set_aside(self, mark: tuple[int, int] | None, why: str) -> None:
        """Rename the damaged file, unless another process has done so meanwhile."""
        assert self.path is not None
        aside = self.path.with_name(f"{self.path.stem}-damaged-{time.time_ns()}{self.path.suffix}")
        journal = self.path.with_name(f"{self.path.name}-journal")
        try:
            if mark is not None and _identity(self.path) == mark:
                if journal.exists():  # it would be played back into the new file
                    journal.rename(aside.with_name(f"{aside.name}-journal"))
                self.path.rename(aside)
                _say_once(f"{self.path} is damaged ({why}): it was moved to {aside.name}")
        except OSError as error:
            _say_once(f"{self.path} is damaged ({why}) and cannot be moved: {error}")


@contextmanager
def _connection(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection for one operation, so that forks and threads share none."""
    connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
    try:
        _prepare(connection)
        yield connection
    finally:
        connection.close()


def _prepare(connection: sqlite3.Connection) -> None:
    """Make the tables if there are none; raises DatabaseError for a file of another layout."""
    (layout,) = connection.execute("PRAGMA user_version").fetchone()
    if layout not in (0, LAYOUT):
        raise sqlite3.DatabaseError(f"its layout is {layout}, expected {LAYOUT}")
    if layout == 0:
        for statement in _CREATE:
            connection.execute(statement)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        state = os.stat(path)  # noqa: PTH116 (as the cache reads it)
    except OSError:
        return None
    return state.st_dev, state.st_ino


@cache
def _say_once(message: str) -> None:
    warn(message)


def default_path() -> Path | None:
    """Return the file of the user's store; None, with a warning, if it could not be kept safe."""
    if refused := disk.info().refused:
        _say_once(f"{refused}: tuning is kept in memory only")
        return None
    folder = disk.directory()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        _say_once(f"{folder} cannot be made ({error.strerror}): tuning is kept in memory only")
        return None
    return folder / "tuning.db"


@cache
def _store(_directory: Path) -> Store:
    return Store(default_path())


def user_store() -> Store:
    """Return the store in the user's cache directory (SPCOMP_CACHE_DIR)."""
    return _store(disk.directory())
