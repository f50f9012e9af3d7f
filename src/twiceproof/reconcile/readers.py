"""Readers of sources: rows of a database, a CSV file, a directory or any iterable, each read to its own end.

A reader can be read repeatedly, and keeps no rows in memory. It reports when it did not reach its end, so that rows
that were not read do not count as missing.
"""

from __future__ import annotations

import contextlib
import contextvars
import csv
import inspect
import itertools
import json
import queue
import re
import threading
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from ..clock import Clock, system_clock
from ..effects.repeat import Retry
from ..effects.sql_connection import SqlConnection
from ..effects.sql_databases import connect, database_of
from ..errors import Misuse, NotDone

__all__ = [
    "Reading",
    "Row",
    "RowReader",
    "Rows",
    "SourceIncomplete",
    "as_reader",
    "csv_rows",
    "file_rows",
    "json_rows",
    "pumped",
    "sql_rows",
]

Row = Mapping[str, Any]

BATCH = 1_000  # rows that pass between threads at once
AHEAD = 4  # batches that a reader may be ahead of its consumer


class SourceIncomplete(NotDone):
    """A source was not read to its end, or changed while it was read. In a reconciliation it becomes a finding."""


class Reading(Struct, frozen=True):
    """One reading of a source: its clock, and how requests that were refused are retried."""

    clock: Clock
    retry: Retry = Retry(attempts=5, first=0.5, most="1m", within="10m")
    roll: Callable[[], float] = lambda: 1.0


@runtime_checkable
class RowReader(Protocol):
    """Something that can be read from its beginning, any number of times."""

    unstable: bool  # a row may come twice, because the source changes while it is read

    def rows(self, reading: Reading) -> Iterator[Row]:
        """Return the rows. Raises `SourceIncomplete` if some could not be read."""


class Rows:
    """A reader that can also be iterated by itself, outside of a reconciliation: `for row in csv_rows(…)`."""

    unstable = False

    def rows(self, reading: Reading) -> Iterator[Row]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Row]:
        return self.rows(Reading(system_clock))


# -- any iterable --------------------------------------------------------------------------------


class IterableRows(Rows):
    """The rows of an iterable that can be iterated again, or of a function that returns one."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def rows(self, reading: Reading) -> Iterator[Row]:
        found = self._given() if callable(self._given) else self._given
        if isinstance(found, RowReader):
            return found.rows(reading)
        return _awaited_rows(found) if isinstance(found, AsyncIterable) else iter(found)


def _awaited_rows(rows: AsyncIterable[Row]) -> Iterator[Row]:
    """Iterate an asynchronous iterable, on an event loop of its own."""
    import asyncio

    loop = asyncio.new_event_loop()
    following = aiter(rows)
    try:
        while True:
            try:
                yield loop.run_until_complete(anext(following))
            except StopAsyncIteration:
                return
    finally:
        if inspect.isasyncgen(following):
            loop.run_until_complete(following.aclose())
        loop.close()


def as_reader(given: Any) -> RowReader:
    """Return a reader for the argument of `find.source`. A generator is refused: it could be read only once."""
    if isinstance(given, RowReader):
        return given
    if isinstance(given, Iterator) or (isinstance(given, AsyncIterable) and hasattr(given, "__anext__")):
        raise Misuse(
            "A source is read again for the second look, and an iterator ends after the first; give the function that "
            "makes it, without calling it."
        )
    if callable(given) or isinstance(given, Iterable | AsyncIterable):
        return IterableRows(given)
    raise Misuse(f"{given!r:.60} has no rows; give sql_rows(…), http_pages(…), csv_rows(…), a list, or a function.")


# -- databases -----------------------------------------------------------------------------------


class SqlRows(Rows):
    """The rows of one query, in one statement: a consistent view of the database."""

    def __init__(self, db: Any, query: str, params: Mapping[str, Any] | None) -> None:
        self._db = db
        self._query = query
        self._params = dict(params or {})

    def rows(self, reading: Reading) -> Iterator[Row]:
        with connect(self._db) as connection, _streaming(connection, self._query, self._params) as cursor:
            names = [column[0] for column in cursor.description or ()]
            while batch := cursor.fetchmany(BATCH):
                for values in batch:
                    yield dict(zip(names, values, strict=True))


def sql_rows(db: Any, query: str, params: Mapping[str, Any] | None = None) -> SqlRows:
    """Read the rows of a query, a few at a time: `sql_rows("postgresql://…", "SELECT … WHERE at >= :since", {…})`.

    Args:
        db: A URL (`sqlite:///shop.db`, `postgresql://…`, `mariadb://…`), `env("NAME")` of one, a function that makes a
            connection, a SQLAlchemy engine, or a pool.
        query: One SELECT. Parameters are written `:name`.
        params: Values by name; they are never put into the text of the query.
    """
    if not isinstance(query, str) or not query.strip():
        raise Misuse('sql_rows needs a query; write one like "SELECT id, total FROM orders".')
    return SqlRows(database_of(db), query, params)


# A quoted text, a cast, or a parameter. Texts and casts stay as they are.
_NAMED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|::|:(?P<name>[A-Za-z_]\w*)")


@contextlib.contextmanager
def _streaming(connection: SqlConnection, query: str, params: Mapping[str, Any]) -> Iterator[Any]:
    """Lend a cursor that fetches a few rows at a time. With a plain one, servers send all of them at once."""
    handle = connection.handle
    if connection.dialect == "sqlite":
        cursor = handle.cursor()
        cursor.row_factory = None
        with contextlib.closing(cursor):
            yield cursor.execute(query, dict(params))
    elif connection.dialect == "postgresql":
        from psycopg.rows import tuple_row

        with handle.transaction(), handle.cursor("twiceproof_rows", row_factory=tuple_row) as cursor:
            handle.execute("SET TRANSACTION READ ONLY")
            yield cursor.execute(_pyformat(query), params) if params else cursor.execute(query)
    else:
        from pymysql.cursors import SSCursor

        with contextlib.closing(handle.cursor(SSCursor)) as cursor:
            cursor.execute(_pyformat(query), dict(params)) if params else cursor.execute(query)
            yield cursor


def _pyformat(query: str) -> str:
    """Write `:name` as `%(name)s`, and a literal `%` as `%%`, also in quoted texts: drivers read it there."""
    return _NAMED.sub(lambda found: f"%({found['name']})s" if found["name"] else found[0], query.replace("%", "%%"))


# -- files ---------------------------------------------------------------------------------------


class CsvRows(Rows):
    """The rows of a CSV file with a header. A line with too few fields means that the file is truncated."""

    def __init__(self, path: str | Path, encoding: str, delimiter: str) -> None:
        self._path = Path(path)
        self._encoding = encoding
        self._delimiter = delimiter

    def rows(self, reading: Reading) -> Iterator[Row]:
        with self._path.open(encoding=self._encoding, newline="") as file:
            lines = csv.reader(file, delimiter=self._delimiter, strict=True)
            names = next(lines, None)
            if not names:
                raise SourceIncomplete(f"{self._path.name} has no header line")
            width = len(names)
            for line in lines:
                if len(line) != width:
                    if not line:
                        continue
                    raise SourceIncomplete(
                        f"{self._path.name} line {lines.line_num} has {len(line)} of {width} fields: it was cut off"
                    )
                yield dict(zip(names, line, strict=True))


def csv_rows(path: str | Path, *, encoding: str = "utf-8-sig", delimiter: str = ",") -> CsvRows:
    """Read the rows of a CSV file whose first line has the names. All values are text.

    Args:
        path: The file.
        encoding: Its encoding; a byte order mark is skipped.
        delimiter: The character between two fields.
    """
    return CsvRows(path, encoding, delimiter)


class JsonRows(Rows):
    """The rows of a file with one JSON object in each line."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def rows(self, reading: Reading) -> Iterator[Row]:
        with self._path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield self._object(line, number)

    def _object(self, line: str, number: int) -> Row:
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict):
                return row
        raise SourceIncomplete(
            f"{self._path.name} line {number} is no JSON object: it was cut off, or is no JSON lines"
        )


def json_rows(path: str | Path) -> JsonRows:
    """Read the rows of a file of JSON lines: one object in each line.

    Args:
        path: The file.
    """
    return JsonRows(path)


class FileRows(Rows):
    """One row for each file of a directory."""

    def __init__(self, directory: str | Path, pattern: str) -> None:
        self._directory = Path(directory)
        self._pattern = pattern

    def rows(self, reading: Reading) -> Iterator[Row]:
        if not self._directory.is_dir():
            raise SourceIncomplete(f"{self._directory.name} is no directory")
        for path in self._directory.glob(self._pattern):
            found = path.stat()
            if path.is_file():
                yield {"path": str(path), "name": path.name, "size": found.st_size, "modified": found.st_mtime}


def file_rows(directory: str | Path, pattern: str = "*") -> FileRows:
    """Read the files of a directory as rows with `path`, `name`, `size` and `modified` (seconds since 1970).

    Args:
        directory: The directory.
        pattern: Which files, such as `*.pdf` or `**/*.pdf`.
    """
    return FileRows(directory, pattern)


# -- on a thread of their own --------------------------------------------------------------------


class _End(Struct, frozen=True):
    error: BaseException | None


def pumped(reader: RowReader, reading: Reading, patience: float) -> Iterator[list[Row]]:
    """Return the rows in batches, read on a thread: a source that hangs must not block the run for ever.

    Raises `SourceIncomplete` if the reader fails before its end, or if no row comes for `patience` seconds.
    """
    batches: queue.Queue[list[Row] | _End] = queue.Queue(AHEAD)
    given_up = threading.Event()
    context = contextvars.copy_context()
    thread = threading.Thread(
        target=context.run, args=(_pump, reader, reading, batches, given_up), name="twiceproof-source", daemon=True
    )
    thread.start()
    try:
        while True:
            try:
                batch = batches.get(timeout=patience)
            except queue.Empty:
                raise SourceIncomplete(f"no row came for {patience:g} s") from None
            if isinstance(batch, _End):
                thread.join()
                _raise_end(batch)
                return
            yield batch
    finally:
        given_up.set()


def _pump(
    reader: RowReader, reading: Reading, batches: queue.Queue[list[Row] | _End], given_up: threading.Event
) -> None:
    error: BaseException | None = None
    try:
        rows = iter(reader.rows(reading))
        try:
            while batch := list(itertools.islice(rows, BATCH)):
                if not _put(batches, batch, given_up):
                    return
        finally:
            if hasattr(rows, "close"):
                rows.close()
    except BaseException as failed:  # noqa: BLE001 - it is raised again where the rows are used
        error = failed
    _put(batches, _End(error), given_up)


def _put(batches: queue.Queue[list[Row] | _End], item: list[Row] | _End, given_up: threading.Event) -> bool:
    while not given_up.is_set():
        try:
            batches.put(item, timeout=0.1)
        except queue.Full:
            continue
        return True
    return False


def _raise_end(end: _End) -> None:
    error = end.error
    if error is None:
        return
    if isinstance(error, SourceIncomplete | Misuse) or not isinstance(error, Exception):
        raise error
    raise SourceIncomplete(f"{type(error).__name__}: {error}"[:300]) from error
