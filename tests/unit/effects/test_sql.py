"""find_or_create, upsert and insert_once on every database."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.effects.sql_places import EVERYWHERE, Place, lost_connection, places, sql_error, sqlite_place
from twiceproof import Absent, Happened, Misuse, NotDone, OutcomeUnknown, Unknown
from twiceproof.effects import sql, sql_dialects
from twiceproof.effects.base import Effect
from twiceproof.effects.sql import Row
from twiceproof.effects.sql_connection import SqlError
from twiceproof.effects.sql_databases import database_of
from twiceproof.prove.clocks import ManualClock

ANA = {"email": "ana@example.com"}


@pytest.fixture(params=EVERYWHERE)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    yield from places(request, tmp_path)


def find(place: Place, name: str = "Ana", **more: Any) -> Row:
    return sql.find_or_create(place.url, "customers", key=ANA, values={"name": name}, **more).perform("tp_1")


# -- find_or_create ------------------------------------------------------------------------------


def test_the_first_call_creates_the_row_and_the_second_finds_it(place: Place) -> None:
    first, second = find(place), find(place, "Anna")
    assert (first.created, second.created) == (True, False)
    assert first.values == second.values == {"id": 1, "email": "ana@example.com", "name": "Ana"}
    assert place.customers() == [("ana@example.com", "Ana")]


def test_a_row_that_is_found_draws_no_number(place: Place) -> None:
    for _ in range(5):
        find(place)
    other = sql.find_or_create(place.url, "customers", key={"email": "bo@example.com"}).perform("tp_2")
    assert other["id"] == 2


def test_the_result_comes_back_from_json_with_its_type(place: Place) -> None:
    row = find(place)
    assert msgspec.json.decode(msgspec.json.encode(row), type=Row) == row
    effect = sql.find_or_create(place.url, "customers", key=ANA)
    assert isinstance(effect, Effect) and effect.result_type is Row and effect.repeat.kind == "safe"


def test_other_columns_are_returned_on_request_only(place: Place) -> None:
    assert "phone" not in find(place).values
    assert find(place, returning=["phone"]).values["phone"] is None


def test_a_number_that_is_the_primary_key_is_a_key(place: Place) -> None:
    place.run("CREATE TABLE payments (order_id INTEGER PRIMARY KEY, cents INTEGER NOT NULL)")
    effect = sql.find_or_create(place.url, "payments", key={"order_id": 17}, values={"cents": 5})
    assert [effect.perform("tp_1") for _ in range(2)] == [Row(first, {"order_id": 17, "cents": 5}) for first in (1, 0)]
    upserted = sql.upsert(place.url, "payments", key={"order_id": 17}, values={"cents": 6})
    assert upserted.perform("tp_1")["cents"] == 6


def test_a_passing_error_is_followed_by_another_attempt(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    true_insert, errors = sql.RowWriter.find_or_insert, [sql_error("passing"), sql_error("passing")]

    def unlucky(writer: Any) -> Any:
        if errors:
            raise errors.pop()
        return true_insert(writer)

    monkeypatch.setattr(sql.RowWriter, "find_or_insert", unlucky)
    assert find(place).created and not errors


def test_a_database_that_is_busy_for_long_is_given_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr(sql, "system_clock", clock)

    def busy(writer: Any) -> Any:
        raise sql_error("passing")

    monkeypatch.setattr(sql.RowWriter, "find_or_insert", busy)
    with pytest.raises(NotDone, match="busy for 10 s") as refusal:
        find(place)
    assert refusal.value.retry_after == 1.0 and "final" not in refusal.value.data


def test_with_a_mark_created_is_true_again_for_the_call_that_created(place: Place) -> None:
    effect = sql.find_or_create(place.url, "customers", key=ANA, mark="made_by")
    assert [effect.perform(key).created for key in ("tp_1", "tp_1", "tp_2")] == [True, True, False]
    assert "made_by" not in effect.perform("tp_1").values


def test_a_lost_race_is_read_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other inserts between our look and our insert."""
    overtaken = _overtake(monkeypatch, lambda: place.run("INSERT INTO customers (email) VALUES ('ana@example.com')"))
    row = find(place)
    assert overtaken and not row.created and row["name"] is None


def test_a_row_that_is_deleted_after_a_lost_race_is_inserted(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.run("INSERT INTO customers (email) VALUES ('ana@example.com')")
    _look_apart(monkeypatch)
    looks: list[Any] = []
    true_find = sql.RowWriter.find

    def hidden_once(writer: Any) -> Any:
        looks.append(1)
        if len(looks) == 1:
            return None
        if len(looks) == 2:
            place.run("DELETE FROM customers")
        return true_find(writer)

    monkeypatch.setattr(sql.RowWriter, "find", hidden_once)
    assert find(place).created


def test_a_row_that_is_refused_and_never_seen_ends_the_loop(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    _look_apart(monkeypatch)
    find(place)
    monkeypatch.setattr(sql.RowWriter, "find", lambda writer: None)
    with pytest.raises(NotDone, match="does not show it: it is hidden from this user"):
        find(place)


def _look_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """On PostgreSQL too, look by one statement and insert by another, so that a test can act in between."""
    monkeypatch.setattr(sql_dialects.PostgresRules, "finds_and_inserts", False)


def _overtake(monkeypatch: pytest.MonkeyPatch, act: Any) -> list[bool]:
    _look_apart(monkeypatch)
    done: list[bool] = []
    true_insert = sql.RowWriter.insert

    def insert(writer: Any) -> Any:
        if not done:
            done.append(True)
            act()
        return true_insert(writer)

    monkeypatch.setattr(sql.RowWriter, "insert", insert)
    return done


# -- another unique index ------------------------------------------------------------------------


def with_phone(place: Place, email: str) -> Row:
    return sql.find_or_create(place.url, "customers", key={"email": email}, values={"phone": "1"}).perform("tp_1")


def test_a_refusal_by_another_unique_index_is_told_apart(place: Place) -> None:
    with_phone(place, "ana@example.com")
    with pytest.raises(NotDone, match=r"no row with this key, and its unique index \S*phone\S* refused") as refusal:
        with_phone(place, "bo@example.com")
    assert refusal.value.final
    assert len(place.customers()) == 1


def test_a_race_that_another_unique_index_ends_finds_the_row(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both insert the same row; which of its two indexes refuses the second is chance."""
    insert = "INSERT INTO customers (email, phone) VALUES ('ana@example.com', '1')"
    overtaken = _overtake(monkeypatch, lambda: place.run(insert))
    assert not with_phone(place, "ana@example.com").created and overtaken


BLOCKED = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type='Lock' AND datname=current_database()",
    # Not innodb_trx: that view stays as it is while somebody reads it more often than every 0.1 s.
    "mysql": (
        "SELECT CAST(variable_value AS INT) FROM information_schema.global_status"
        " WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'"
    ),
}


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_caller_waits_for_another_that_is_inserting_the_row(place: Place, ends: str) -> None:
    """The other has inserted it and not committed: whether it is there is decided by how that transaction ends."""
    if place.dialect == "sqlite":
        return  # it has one writer at a time
    find_other = sql.find_or_create(place.url, "customers", key={"email": "bo@example.com"}, values={"phone": "7"})
    find_other.perform("tp_0")
    place.run("DELETE FROM customers")
    with contextlib.closing(place.connection()) as other, ThreadPoolExecutor(1) as pool:
        other.cursor().execute("INSERT INTO customers (email, phone) VALUES ('bo@example.com', '7')")
        waiting = pool.submit(find_other.perform, "tp_1")
        while place.run(BLOCKED[place.dialect]) != [(1,)]:
            assert not waiting.done()
        getattr(other, ends)()
        assert waiting.result(20).created == (ends == "rollback")
    assert len(place.customers()) == 1


# -- upsert --------------------------------------------------------------------------------------


def upsert(place: Place, **values: Any) -> Row:
    return sql.upsert(place.url, "customers", key=ANA, values=values).perform("tp_1")


def test_an_upsert_inserts_then_changes_what_differs(place: Place) -> None:
    assert upsert(place, name="Ana").created
    changed = upsert(place, name="Anna")
    assert (changed.created, changed["name"]) == (False, "Anna")
    assert place.customers() == [("ana@example.com", "Anna")]


def test_an_upsert_of_an_equal_row_writes_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    upsert(place, name="Ana")
    monkeypatch.setattr(sql.RowWriter, "update", lambda writer: pytest.fail("it was written"))
    assert upsert(place, name="Ana")["name"] == "Ana"


def test_an_upsert_that_another_unique_index_refuses_changes_nothing(place: Place) -> None:
    with_phone(place, "bo@example.com")
    upsert(place, phone="2")
    with pytest.raises(NotDone, match="unique index"):
        upsert(place, phone="1")
    assert place.run("SELECT phone FROM customers ORDER BY id") == [("1",), ("2",)]


# -- insert_once ---------------------------------------------------------------------------------


def insert_once(place: Place, name: str) -> Row:
    return sql.insert_once(place.url, "customers", key=ANA, values={"name": name}).perform("tp_1")


def test_the_same_row_again_is_no_error(place: Place) -> None:
    assert [insert_once(place, "Ana").created for _ in range(2)] == [True, False]


def test_other_values_under_the_same_key_are_refused(place: Place) -> None:
    insert_once(place, "Ana")
    with pytest.raises(NotDone, match="a row with this key and other values in name") as refusal:
        insert_once(place, "Eve")
    assert refusal.value.final
    assert place.customers() == [("ana@example.com", "Ana")]


TYPES = {
    "postgresql": "id UUID PRIMARY KEY, paid NUMERIC(12,4), at TIMESTAMPTZ, day DATE, raw BYTEA, notes JSONB, "
    "ok BOOL, r REAL",
    "sqlite": "id TEXT PRIMARY KEY, paid NUMERIC, at TEXT, day TEXT, raw BLOB, notes TEXT, ok INTEGER, r REAL",
    "mysql": "id UUID PRIMARY KEY, paid DECIMAL(12,4), at DATETIME(6), day DATE, raw BLOB, notes JSON, "
    "ok BOOL, r DOUBLE",
}


def test_decimals_dates_uuids_bytes_and_json_are_kept_and_recognised(place: Place) -> None:
    place.run(f"CREATE TABLE payments ({TYPES[place.dialect]})")
    values = {
        "paid": Decimal("19.9"),
        "at": datetime(2026, 3, 1, 9, 30, 0, 250_000, tzinfo=UTC),
        "day": date(2026, 3, 1),
        "raw": b"\x00\xff",
        "notes": {"lines": [1, "é"]},
        "ok": True,
        "r": 0.1,
    }
    effect = sql.insert_once(place.url, "payments", key={"id": uuid.UUID(int=7)}, values=values)
    first, again = effect.perform("tp_1"), effect.perform("tp_1")
    assert (first.created, again.created) == (True, False)
    assert first.values == again.values == msgspec.json.decode(msgspec.json.encode(first), type=Row).values
    assert first["id"] == str(uuid.UUID(int=7)) and first["day"] == "2026-03-01" and first["raw"] == "AP8="
    assert Decimal(str(first["paid"])) == Decimal("19.9") and first["at"].startswith("2026-03-01T09:30:00.25")
    for column, other in {"paid": Decimal("19.91"), "raw": b"\x00", "notes": {"lines": [2]}, "ok": False}.items():
        changed = sql.insert_once(place.url, "payments", key={"id": uuid.UUID(int=7)}, values={**values, column: other})
        with pytest.raises(NotDone, match=f"other values in {column}"):
            changed.perform("tp_1")


# -- looking -------------------------------------------------------------------------------------


def test_looking_finds_the_row_by_its_key_and_never_writes(place: Place) -> None:
    effect = sql.insert_once(place.url, "customers", key=ANA, values={"name": "Ana"})
    assert effect.look("tp_1") == Absent()
    assert place.customers() == []
    row = effect.perform("tp_1")
    assert effect.look("tp_1") == Happened(Row(False, row.values))
    other = sql.upsert(place.url, "customers", key=ANA, values={"name": "Eve"})
    assert other.look("tp_1") == Unknown("the row is there, with other values in name")


def test_a_look_that_fails_is_unknown(place: Place) -> None:
    effect = sql.find_or_create(place.url, "nowhere", key=ANA)
    found = effect.look("tp_1")
    assert isinstance(found, Unknown) and "There is no table nowhere" in found.why


# -- refusals at first use -----------------------------------------------------------------------


def refusal_of(place: Place, table: str = "orders", **key: Any) -> str:
    with pytest.raises(NotDone) as refusal:
        sql.find_or_create(place.url, table, key=key).perform("tp_1")
    assert refusal.value.final
    return str(refusal.value)


def test_a_key_without_a_unique_index_is_refused_with_the_statement_that_makes_one(place: Place) -> None:
    place.run("CREATE TABLE orders (id INTEGER PRIMARY KEY, shop INTEGER NOT NULL, number INTEGER NOT NULL)")
    text = refusal_of(place, shop=1, number=2)
    ddl = "CREATE UNIQUE INDEX orders_shop_number_key ON orders (shop, number);"
    assert text.endswith(ddl) and "two callers at once would both insert" in text
    assert place.run("SELECT count(*) FROM orders") == [(0,)]
    place.run(ddl)
    assert sql.insert_once(place.url, "orders", key={"number": 2, "shop": 1}, values={"id": 5}).perform("tp_1").created


def test_an_index_on_more_or_fewer_columns_does_not_make_the_key_unique(place: Place) -> None:
    place.run("CREATE TABLE orders (id INTEGER PRIMARY KEY, shop INTEGER, number INTEGER, UNIQUE (shop, number))")
    assert "on exactly (number)" in refusal_of(place, number=2)
    assert "on exactly (id, shop)" in refusal_of(place, id=1, shop=2)


FLAWED = {
    "postgresql": {
        "ON orders (number) WHERE number > 0": "is partial (WHERE (number > 0))",
        "ON orders (abs(number))": "is on an expression (abs(number))",
    },
    "sqlite": {
        "ON orders (number) WHERE number > 0": "is partial",
        "ON orders (abs(number))": "is on an expression",
    },
    "mysql": {"ON orders (code(3))": "covers only the first 3 characters of code"},
}


def test_a_unique_index_that_does_not_cover_every_row_is_named(place: Place) -> None:
    place.run("CREATE TABLE orders (id INTEGER PRIMARY KEY, number INTEGER, code VARCHAR(20))")
    for ddl, flaw in FLAWED[place.dialect].items():
        place.run(f"CREATE UNIQUE INDEX flawed {ddl}")
        database_of(place.url).tables.clear()
        key = {"code": "a"} if "code" in ddl else {"number": 1}
        assert f"Its unique index flawed {flaw}" in refusal_of(place, **key)
        place.run("DROP INDEX flawed ON orders" if place.dialect == "mysql" else "DROP INDEX flawed")


FOLDED = {
    "postgresql": "CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false); "
    "CREATE TABLE people (email TEXT COLLATE folded PRIMARY KEY, name TEXT)",
    "sqlite": "CREATE TABLE people (email TEXT COLLATE NOCASE PRIMARY KEY, name TEXT)",
    "mysql": "CREATE TABLE people (email VARCHAR(100) COLLATE utf8mb4_general_ci PRIMARY KEY, name TEXT)",
}


@pytest.mark.parametrize("verb", ["find_or_create", "upsert", "insert_once"])
def test_a_collation_that_merges_keys_is_refused_at_first_use(place: Place, verb: str) -> None:
    place.run(*FOLDED[place.dialect].split("; "))
    first = getattr(sql, verb)(place.url, "people", key={"email": "ana@example.com"}, values={"name": "Ana"})
    with pytest.raises(
        NotDone, match=r"compares email by collation .* Nothing was written\. .*normalized=True"
    ) as told:
        first.perform("tp_1")
    assert told.value.final and isinstance(first.look("tp_1"), Unknown)
    assert place.run("SELECT email FROM people") == []


@pytest.mark.server
def test_a_type_that_merges_keys_is_refused_at_first_use(postgres_dsn: str) -> None:
    place = Place(postgres_dsn)
    try:
        place.run("CREATE EXTENSION citext")
    except SqlError:
        pytest.skip("this PostgreSQL has no citext")
    place.run("CREATE TABLE people (email citext PRIMARY KEY)")
    with pytest.raises(NotDone, match="compares email by type citext"):
        sql.find_or_create(place.url, "people", key=ANA).perform("tp_1")
    database_of(place.url).close_idle()


def test_the_collation_counts_for_texts_only(place: Place) -> None:
    folded = {"postgresql": "", "sqlite": "COLLATE NOCASE", "mysql": "COLLATE utf8mb4_general_ci"}[place.dialect]
    place.run(f"CREATE TABLE sizes (number INTEGER PRIMARY KEY, name VARCHAR(20) {folded})")
    assert sql.find_or_create(place.url, "sizes", key={"number": 7}, values={"name": "x"}).perform("tp_1").created


@pytest.mark.parametrize("verb", ["find_or_create", "upsert", "insert_once"])
def test_two_keys_that_the_collation_merges_are_refused_with_the_cure(place: Place, verb: str) -> None:
    place.run(*FOLDED[place.dialect].split("; "))
    make = getattr(sql, verb)
    first = make(place.url, "people", key={"email": "ana@example.com"}, values={"name": "Ana"}, normalized=True)
    assert first.perform("tp_1").created and not first.perform("tp_1").created
    merged = make(place.url, "people", key={"email": "ANA@example.com"}, values={"name": "Eve"}, normalized=True)
    with pytest.raises(NotDone, match=r"takes the two for the same\. Nothing was written\. Bring email") as refusal:
        merged.perform("tp_2")
    assert refusal.value.final and isinstance(merged.look("tp_2"), Unknown)
    assert place.run("SELECT email, name FROM people") == [("ana@example.com", "Ana")]


def test_two_keys_that_the_collation_tells_apart_are_two_rows(place: Place) -> None:
    exact = {"postgresql": 'COLLATE "C"', "sqlite": "COLLATE BINARY", "mysql": "COLLATE utf8mb4_bin"}
    place.run(f"CREATE TABLE people (email VARCHAR(100) {exact[place.dialect]} PRIMARY KEY)")
    for email in ("ana@example.com", "ANA@example.com"):
        assert sql.find_or_create(place.url, "people", key={"email": email}).perform("tp_1").created


def test_unknown_columns_are_refused_with_those_there_are(place: Place) -> None:
    with pytest.raises(NotDone, match="has no column emial; it has id, email, phone"):
        sql.find_or_create(place.url, "customers", key={"emial": "x"}).perform("tp_1")


def test_a_value_that_the_table_refuses_is_final_and_a_missing_parent_is_not(place: Place) -> None:
    place.run("CREATE TABLE shops (id INTEGER PRIMARY KEY)")
    parent = "shop INTEGER NOT NULL, FOREIGN KEY (shop) REFERENCES shops (id)"
    place.run(f"CREATE TABLE orders (id INTEGER PRIMARY KEY, {parent})")
    with pytest.raises(NotDone, match=r"(?i)null") as refusal:
        sql.insert_once(place.url, "orders", key={"id": 1}, values={"shop": None}).perform("tp_1")
    assert refusal.value.final
    if place.dialect != "sqlite":  # which checks no parents unless it is told to
        with pytest.raises(NotDone, match="foreign key") as missing:
            sql.insert_once(place.url, "orders", key={"id": 1}, values={"shop": 3}).perform("tp_1")
        assert "final" not in missing.value.data


def test_names_are_quoted(place: Place) -> None:
    mark = {"mysql": "`{}`"}.get(place.dialect, '"{}"')
    table, column = mark.format("select"), mark.format("100% of; --x")
    place.run(f"CREATE TABLE {table} ({column} VARCHAR(20) PRIMARY KEY)")
    made = sql.find_or_create(place.url, "select", key={"100% of; --x": "a'b"})
    assert [made.perform("tp_1").created for _ in range(2)] == [True, False]


def test_a_text_that_looks_like_sql_is_a_value(place: Place) -> None:
    text = "x'); DROP TABLE customers; --"
    assert sql.find_or_create(place.url, "customers", key={"email": text}).perform("tp_1")["email"] == text
    assert place.customers() == [(text, None)]


# -- lost connections ----------------------------------------------------------------------------


def test_an_idle_connection_that_its_server_closed_is_replaced(place: Place) -> None:
    find(place)
    for handle in [connection.handle for connection in database_of(place.url)._idle]:
        if place.dialect == "sqlite":
            return  # it has no server
        import os
        import socket

        descriptor = handle.pgconn.socket if place.dialect == "postgresql" else handle._sock.fileno()
        with socket.socket(fileno=os.dup(descriptor)) as wire:
            wire.shutdown(socket.SHUT_RDWR)
    assert not find(place).created


def test_a_connection_lost_while_writing_leaves_the_outcome_unknown(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from twiceproof.effects import sql_rows

    find(place)  # the table is checked
    true_run = sql_rows.SqlConnection.run

    def run(connection: Any, text: str, values: Any = ()) -> Any:
        answer = true_run(connection, text, values)
        if "INSERT" in text:
            raise lost_connection(connection.dialect)
        return answer

    effect = sql.find_or_create(place.url, "customers", key={"email": "bo@example.com"}, values={"name": "Bo"})
    with monkeypatch.context() as patched:
        patched.setattr(sql_rows.SqlConnection, "run", run)
        with pytest.raises(OutcomeUnknown, match="may have been written"):
            effect.perform("tp_2")
    assert not effect.perform("tp_2").created


# -- descriptions --------------------------------------------------------------------------------


def test_the_description_has_no_password(tmp_path: Path) -> None:
    effect = sql.upsert(
        "postgresql://u:hunter2secret@h/crm", "invoices", key={"order_id": 17}, values={"n": Decimal(1)}
    )
    assert "hunter2secret" not in str(effect.describe()) + effect.name
    assert effect.name == "upsert invoices/order_id=17"
    assert effect.describe() == {
        "sql": "upsert",
        "database": "crm",
        "table": "invoices",
        "key": {"order_id": 17},
        "values": {"n": "1"},
    }


@pytest.mark.parametrize("url", ["mysql://u:hunter2secret@h", "mysql://u:hunter2secret@[h/crm", "u:hunter2secret@h"])
def test_a_url_without_a_database_is_not_described(url: str) -> None:
    assert sql.find_or_create(url, "customers", key=ANA).describe()["database"] == ""


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"key": {}}, "needs key="),
        ({"key": {"email": None}}, "any number of NULLs"),
        ({"key": {"email": ""}}, "email is empty"),
        ({"key": {"shop": "", "email": ""}}, "shop is empty"),
        ({"key": {"shop": 1, "email": "\u200b\ufeff"}}, "email is blank"),
        ({"key": {"shop": 1, "email": " \u3164"}}, "email is blank"),
        ({"key": {"rate": 0.5}}, "use a Decimal"),
        ({"key": ANA, "values": {"email": "x"}}, "leave it in key= alone"),
        ({"key": ANA, "values": {"x": object()}}, "give plain values"),
        ({"key": {"": 1}}, "not the name of a table or column"),
        ({"key": {"a\0b": 1}}, "not the name of a table or column"),
        ({"key": {"é" * 40: 1}}, "not the name of a table or column"),
        ({"key": ANA, "returning": "phone"}, "give a list of columns"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_when_it_is_written(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(Misuse, match=says):
        sql.find_or_create("sqlite:///crm.db", "customers", **wrong)


def test_an_empty_text_beside_another_column_of_the_key_is_a_value() -> None:
    size = sql.find_or_create("sqlite:///crm.db", "sizes", key={"article": 17, "suffix": ""})
    assert size.request.key["suffix"] == ""


def test_an_index_of_another_collation_than_its_column_is_used_as_it_compares(tmp_path: Path) -> None:
    place = sqlite_place(tmp_path)
    place.run("CREATE TABLE people (email TEXT)", "CREATE UNIQUE INDEX one ON people (email COLLATE NOCASE)")
    with pytest.raises(NotDone, match="by collation NOCASE"):
        sql.find_or_create(place.url, "people", key=ANA).perform("tp_1")
    sql.find_or_create(place.url, "people", key=ANA, normalized=True).perform("tp_1")
    with contextlib.closing(place.connection()), pytest.raises(NotDone, match="takes the two for the same"):
        sql.find_or_create(place.url, "people", key={"email": "ANA@example.com"}, normalized=True).perform("tp_2")


@pytest.mark.server
def test_a_connection_that_cuts_texts_off_is_refused(mariadb_url: str) -> None:
    place = Place(mariadb_url)

    def loose() -> Any:
        connection = place.connection()
        connection.cursor().execute("SET SESSION sql_mode = ''")
        return connection

    with pytest.raises(NotDone, match="sql_mode is not strict"):
        sql.find_or_create(loose, "customers", key=ANA).perform("tp_1")
    assert find(place).created
    database_of(place.url).close_idle()
