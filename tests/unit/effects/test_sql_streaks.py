"""Rows that are all new, or all there already, take one statement each; one that is not as expected is still right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.effects.sql_places import EVERYWHERE, Place, places
from twiceproof import NotDone
from twiceproof.effects import sql
from twiceproof.effects.sql import Row
from twiceproof.effects.sql_connection import SqlConnection
from twiceproof.effects.sql_rows import SURE

PLAIN = "CREATE TABLE plain (email VARCHAR(100) NOT NULL PRIMARY KEY, name VARCHAR(100))"


@pytest.fixture(params=EVERYWHERE)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    yield from places(request, tmp_path)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The first word of each statement."""
    words: list[str] = []
    run = SqlConnection.run

    def noted(self: SqlConnection, statement: str, values: Any = ()) -> Any:
        words.append(statement.split(maxsplit=1)[0])
        return run(self, statement, values)

    monkeypatch.setattr(SqlConnection, "run", noted)
    return words


def find(place: Place, number: int | str, table: str = "customers", **values: Any) -> Row:
    key = {"email": f"{number}@example.com"}
    return sql.find_or_create(place.url, table, key=key, values=values or {"name": "x"}).perform("tp_1")


def all_new(place: Place, table: str = "customers") -> None:
    for number in range(SURE):
        assert find(place, number, table).created


def all_known(place: Place, table: str = "customers") -> None:
    for _ in range(SURE):
        assert not find(place, 0, table).created


@pytest.mark.parametrize(
    ("table", "statements"),
    [
        ("customers", {"postgresql": "INSERT", "sqlite": "SELECT INSERT", "mysql": "SELECT INSERT"}),
        ("plain", {"postgresql": "INSERT", "sqlite": "SELECT INSERT", "mysql": "INSERT"}),
    ],
)
def test_after_new_rows_the_insert_comes_first_if_it_uses_nothing_up(
    place: Place, begun: list[str], table: str, statements: dict[str, str]
) -> None:
    place.run(PLAIN)
    all_new(place, table)
    begun.clear()
    assert find(place, "next", table).created
    assert " ".join(begun) == statements[place.dialect]


def test_after_known_rows_the_look_comes_first(place: Place, begun: list[str]) -> None:
    all_new(place)
    all_known(place)
    begun.clear()
    assert not find(place, 1).created
    assert begun == ["SELECT"]
    assert find(place, "new").created


@pytest.mark.parametrize("table", ["customers", "plain"])
def test_a_known_row_among_new_ones_is_found_as_it_is(place: Place, table: str) -> None:
    place.run(PLAIN)
    all_new(place, table)
    found = find(place, 1, table, name="other")
    assert (found.created, found["name"]) == (False, "x")
    assert find(place, "next", table).created


def test_a_known_row_among_new_ones_draws_no_number(place: Place) -> None:
    all_new(place)
    for _ in range(2):
        find(place, 0)
    assert find(place, "next")["id"] == SURE + 1


@pytest.mark.server
def test_a_known_row_among_new_ones_fires_no_trigger(postgres_dsn: str) -> None:
    place = Place(postgres_dsn)
    place.run(
        "CREATE TABLE asked (email TEXT)",
        PLAIN,
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO asked VALUES (new.email); RETURN new; END $$",
        "CREATE TRIGGER note BEFORE INSERT ON plain FOR EACH ROW EXECUTE FUNCTION note()",
    )
    all_new(place, "plain")
    assert not find(place, 0, "plain").created
    assert len(place.run("SELECT * FROM asked")) == SURE


@pytest.mark.server
@pytest.mark.parametrize("default", ["DEFAULT nextval('numbers')", "GENERATED ALWAYS AS IDENTITY"])
def test_whatever_draws_the_number_none_is_drawn_for_a_known_row(postgres_dsn: str, default: str) -> None:
    place = Place(postgres_dsn)
    place.run(
        "CREATE SEQUENCE numbers",
        f"CREATE TABLE numbered (email VARCHAR(100) PRIMARY KEY, name TEXT, number BIGINT {default})",
    )
    all_new(place, "numbered")
    assert not find(place, 0, "numbered").created
    find(place, "next", "numbered")
    assert place.run("SELECT max(number) FROM numbered") == [(SURE + 1,)]


def test_a_new_row_that_another_index_refuses_is_told_apart(place: Place) -> None:
    place.run("CREATE TABLE phones (email VARCHAR(100) NOT NULL PRIMARY KEY, name VARCHAR(100) UNIQUE)")
    for number in range(SURE):
        assert find(place, number, "phones", name=str(number)).created
    with pytest.raises(NotDone, match=r"its unique index .* refused a new one"):
        find(place, "next", "phones", name="0")
    assert find(place, "next", "phones", name="free").created


def test_keys_that_differ_in_trailing_spaces_are_not_merged(place: Place) -> None:
    """MariaDB's collations ignore them."""
    place.run(PLAIN)
    all_new(place, "plain")
    other = sql.find_or_create(place.url, "plain", key={"email": "0@example.com "}, values={"name": "x"})
    if place.dialect == "mysql":
        with pytest.raises(NotDone, match="written differently"):
            other.perform("tp_1")
    else:
        assert other.perform("tp_1").created
