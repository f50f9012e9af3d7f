"""Many callers in several processes ask for the same rows: each row is created once, and one caller is told so."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.unit.effects.sql_places import EVERYWHERE, Place, places
from twiceproof.effects import sql

PROCESSES, CALLERS, KEYS = 4, 8, 50  # F21 has 4, 50 and 200

LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


@pytest.fixture(params=EVERYWHERE)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    yield from places(request, tmp_path)


@contextlib.contextmanager
def source_of(place: Place, level: str) -> Iterator[Any]:
    """A caller's own connection as a user makes it, with this isolation level, lent again and again."""
    if place.dialect == "sqlite":
        yield place.url  # it knows no other level
        return
    with contextlib.closing(place.connection()) as connection:
        for_all = "SESSION CHARACTERISTICS AS" if place.dialect == "postgresql" else "SESSION"
        connection.cursor().execute(f"SET {for_all} TRANSACTION ISOLATION LEVEL {level}")
        connection.commit()

        @contextlib.contextmanager
        def lent() -> Iterator[Any]:
            yield connection

        yield lent


def ask(place: Place, verb: str, level: str, seed: str, count: int) -> list[int]:
    """Return the keys that this caller was told to have created. Every caller has an order of its own."""
    keys = list(range(count))
    random.Random(seed).shuffle(keys)
    with source_of(place, level) as source:
        make = partial(getattr(sql, verb), source, "customers", values={"name": "x"})
        return [key for key in keys if make(key={"email": f"{key}@example.com"}).perform(f"tp_{seed}").created]


def worker(url: str, verb: str, level: str, callers: str, keys: str, number: str) -> None:
    """One process of so many threads. It prints what they created."""
    place = object.__new__(Place)
    place.url, place.dialect = url, url.partition(":")[0].replace("mariadb", "mysql")
    created: list[list[int]] = []
    errors: list[Exception] = []

    def call(caller: int) -> None:
        try:
            created.append(ask(place, verb, level, f"{number}-{caller}", int(keys)))
        except Exception as error:  # noqa: BLE001 - reported to the test
            errors.append(error)

    threads = [threading.Thread(target=call, args=(caller,)) for caller in range(int(callers))]
    print("ready", flush=True)
    sys.stdin.readline()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"created": [key for keys in created for key in keys], "errors": [repr(e) for e in errors]}))


def race(place: Place, verb: str, level: str, callers: int = CALLERS, keys: int = KEYS) -> Counter[int]:
    given = [place.url, verb, level, str(callers), str(keys)]
    command = [sys.executable, "-m", "tests.unit.effects.test_sql_races", *given]
    crew = [
        subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in range(PROCESSES)
    ]
    try:
        for process in crew:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        told = [json.loads(process.communicate("go\n", timeout=300)[0]) for process in crew]
    finally:
        for process in crew:
            process.kill()
            process.communicate()
    assert [error for one in told for error in one["errors"]] == []
    return Counter(key for one in told for key in one["created"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "level"),
    [*(("find_or_create", level) for level in LEVELS), ("upsert", "SERIALIZABLE"), ("insert_once", "REPEATABLE READ")],
)
def test_each_row_is_created_by_exactly_one_of_many_callers(place: Place, verb: str, level: str) -> None:
    """SQLite's transactions are serializable, whatever is asked for."""
    created = race(place, verb, level)
    assert created == Counter(range(KEYS))
    assert place.run("SELECT count(*) FROM customers") == [(KEYS,)]


if __name__ == "__main__":
    from tests.faults.planted import plant_ordered

    plant_ordered()
    worker(*sys.argv[1:])
