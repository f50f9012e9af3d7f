"""Many callers in several processes ask for the same rows: each row is created once, and one caller is told so."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.effects.sql_places import EVERYWHERE, Place, places
from twiceproof.effects import sql

PROCESSES, CALLERS, KEYS = 4, 8, 50

LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


@pytest.fixture(params=EVERYWHERE)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    yield from places(request, tmp_path)


def source_of(place: Place, level: str) -> Any:
    """Connections as a user makes them, with this isolation level."""
    if place.dialect == "sqlite":
        return place.url  # it knows no other level

    def isolated() -> Any:
        connection = place.connection()
        if place.dialect == "postgresql":
            connection.isolation_level = LEVELS.index(level) + 2  # psycopg.IsolationLevel
        else:
            with connection.cursor() as cursor:
                cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
        return connection

    return isolated


def ask(place: Place, verb: str, level: str, seed: str) -> list[int]:
    """Return the keys that this caller was told to have created. Every caller has an order of its own."""
    source, keys = source_of(place, level), list(range(KEYS))
    random.Random(seed).shuffle(keys)
    make = getattr(sql, verb)
    wanted = [make(source, "customers", key={"email": f"{key}@example.com"}, values={"name": "x"}) for key in keys]
    return [key for key, effect in zip(keys, wanted, strict=True) if effect.perform(f"tp_{seed}").created]


def worker(url: str, verb: str, level: str, number: str) -> None:
    """One process of `CALLERS` threads. It prints what they created."""
    place = object.__new__(Place)
    place.url, place.dialect = url, url.partition(":")[0].replace("mariadb", "mysql")
    created: list[list[int]] = []
    errors: list[BaseException] = []

    def call(caller: int) -> None:
        try:
            created.append(ask(place, verb, level, f"{number}-{caller}"))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(caller,)) for caller in range(CALLERS)]
    print("ready", flush=True)
    sys.stdin.readline()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"created": [key for keys in created for key in keys], "errors": [repr(e) for e in errors]}))


def race(place: Place, verb: str, level: str) -> Counter[int]:
    command = [sys.executable, "-m", "tests.unit.effects.test_sql_races", place.url, verb, level]
    crew = [
        subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in range(PROCESSES)
    ]
    try:
        for process in crew:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        told = [json.loads(process.communicate("go\n", timeout=120)[0]) for process in crew]
    finally:
        for process in crew:
            process.kill()
            process.communicate()
    assert [error for one in told for error in one["errors"]] == []
    return Counter(key for one in told for key in one["created"])


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("verb", ["find_or_create", "upsert", "insert_once"])
def test_each_row_is_created_by_exactly_one_of_many_callers(place: Place, verb: str, level: str) -> None:
    if place.dialect == "sqlite" and level != "SERIALIZABLE":
        return  # its transactions are serializable, whatever is asked for
    created = race(place, verb, level)
    assert created == Counter(range(KEYS))
    assert place.run("SELECT count(*) FROM customers") == [(KEYS,)]


if __name__ == "__main__":
    worker(*sys.argv[1:])
