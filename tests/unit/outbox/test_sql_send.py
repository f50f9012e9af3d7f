"""`twiceproof_send` in PostgreSQL: messages from triggers and other languages, with no other right than that."""

from __future__ import annotations

import threading
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.unit.outbox.stand_in import StandInBroker
from twiceproof import App, PayloadMismatch
from twiceproof.brokers.base import Refused
from twiceproof.operations import block
from twiceproof.outbox.message import message_of
from twiceproof.outbox.queries import drop

pytestmark = pytest.mark.server
SEND = "SELECT twiceproof.twiceproof_send(%s, %s, %s::json, %s)"
ORDERED = "SELECT twiceproof.twiceproof_send(%s, %s, %s::json, %s, order_key => %s)"
NASTY = ["'; DROP TABLE stock; --", '"}{"', "\\u0000", "{schema}", "%s", "Ünï", "a\\'b", "x" * 500, "$$", "=cmd"]


class Ledger:
    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.app = App(dsn)
        self.broker = StandInBroker()
        self.app.broker("main", self.broker)
        self.app.route("orders.*", to="main")

    def run(self, sql: str, *values: Any) -> Any:
        with psycopg.connect(self.dsn) as db:
            cursor = db.execute(sql.encode(), values)
            return cursor.fetchone() if cursor.description else None

    def published(self) -> list[str]:
        self.app.relay().run(until_idle=True)
        return self.broker.keys


@pytest.fixture
def ledger(postgres_dsn: str) -> Iterator[Ledger]:
    ledger = Ledger(postgres_dsn)
    yield ledger
    ledger.app.close()


def test_a_message_is_published_if_its_transaction_was_committed(ledger: Ledger) -> None:
    with psycopg.connect(ledger.dsn) as db:
        assert db.execute(SEND, ("main", "orders.paid", '{"order": 17}', "gone")).fetchone() == (True,)
        db.rollback()
    assert ledger.run(SEND, "main", "orders.paid", '{"order": 17}', "kept") == (True,)
    assert ledger.published() == ["kept"]
    (message,) = ledger.broker.taken
    assert (message.body, message.topic, message.place) == (b'{"order": 17}', "orders.paid", "orders.paid")
    assert message.headers["ce-id"] == "kept"


def test_the_same_key_and_body_is_one_message_and_another_body_an_error(ledger: Ledger) -> None:
    assert ledger.run(SEND, "main", "orders.paid", '{"a":1,"b":2}', "k") == (True,)
    assert ledger.run(SEND, "main", "orders.paid", '{"b":2, "a":1}', "k") == (False,)
    with pytest.raises(psycopg.errors.UniqueViolation, match="use another key"):
        ledger.run(SEND, "main", "orders.paid", '{"a":2}', "k")
    assert ledger.published() == ["k"]


def test_a_trigger_can_send(ledger: Ledger) -> None:
    ledger.run("CREATE TABLE stock (id int, name text)")
    ledger.run(
        "CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "PERFORM twiceproof.twiceproof_send('main', 'orders.paid', row_to_json(NEW), 'stock:' || NEW.id); "
        "RETURN NEW; END $$"
    )
    ledger.run("CREATE TRIGGER tell AFTER INSERT ON stock FOR EACH ROW EXECUTE FUNCTION tell()")
    ledger.run("INSERT INTO stock VALUES (1, 'apple'), (2, 'pear')")
    assert sorted(ledger.published()) == ["stock:1", "stock:2"]


def test_a_role_that_may_execute_it_may_do_nothing_else(ledger: Ledger) -> None:
    ledger.run("DROP ROLE IF EXISTS sender_only")
    ledger.run("CREATE ROLE sender_only")
    ledger.run("GRANT USAGE ON SCHEMA twiceproof TO sender_only")
    with psycopg.connect(ledger.dsn) as db:
        db.execute("SET ROLE sender_only")
        with pytest.raises(psycopg.errors.InsufficientPrivilege), db.transaction():
            db.execute(SEND, ("main", "orders.paid", "{}", "a"))  # not without the right
    ledger.run("GRANT EXECUTE ON FUNCTION twiceproof.twiceproof_send TO sender_only")
    with psycopg.connect(ledger.dsn) as db:
        db.execute("SET ROLE sender_only")
        db.execute(SEND, ("main", "orders.paid", "{}", "a"))
        db.execute(ORDERED, ("main", "orders.paid", "{}", "b", "o"))
        for forbidden in (
            "SELECT * FROM twiceproof.twiceproof_records",
            "DELETE FROM twiceproof.twiceproof_records",
            "SELECT twiceproof.twiceproof_append('s', 'q', '=k', '{}')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), db.transaction():
                db.execute(forbidden.encode())
        db.execute("RESET ROLE")
    ledger.run("REVOKE ALL ON SCHEMA twiceproof FROM sender_only")
    ledger.run("REVOKE ALL ON FUNCTION twiceproof.twiceproof_send FROM sender_only")
    ledger.run("DROP ROLE sender_only")
    assert sorted(ledger.published()) == ["a", "b"]


@pytest.mark.parametrize("text", NASTY)
def test_keys_and_bodies_are_taken_as_they_are(ledger: Ledger, text: str) -> None:
    import json

    assert ledger.run(SEND, "main", "orders.paid", json.dumps({"text": text}), text) == (True,)
    record = ledger.app.store.scan("message").block().records[0]
    assert message_of(record).key == text
    assert ledger.published() == [text]
    assert json.loads(ledger.broker.taken[0].body) == {"text": text}
    assert ordered(ledger, text, order=text) == (True,)
    assert ledger.published() == [text, text]
    assert ledger.broker.taken[1].order == text


@pytest.mark.parametrize(
    "values",
    [
        ("a/b", "orders.paid", "{}", "k"),
        ("", "orders.paid", "{}", "k"),
        ("main", "orders/paid", "{}", "k"),
        ("main", "", "{}", "k"),
        ("main", "orders.paid", "{}", ""),
        ("main", "orders.paid", "{}", " k"),
        ("main", "orders.paid", "{}", "a\nb"),
        ("main", "orders.paid", None, "k"),
        ("main", "orders.paid", "{}", "\u200b\ufeff"),
        ("main", "orders.paid", "{}", "\u2800"),
        ("main", "orders.paid", "{}", "\u3164"),
        ("main", "orders.paid", '{"a": 1, "a": 2}', "k"),
        ("main", "orders.paid", '{"a": 1, "\\u0061": 2}', "k"),
        ("main", "orders.paid", '[{"b": {"a": 1, "a": 1}}]', "k"),
        (None, "orders.paid", "{}", "k"),
    ],
)
def test_what_could_not_be_published_is_refused(ledger: Ledger, values: tuple[Any, ...]) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        ledger.run(SEND, *values)
    assert ledger.published() == []


def test_an_order_key_or_headers_that_python_would_refuse_are_refused(ledger: Ledger) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="order key is invisible"):
        ledger.run(ORDERED, "main", "orders.paid", "{}", "k", "\u200b")
    headers = (
        "SELECT twiceproof.twiceproof_send('main', 'orders.paid', '{}', 'k', headers => '{\"x\": \"1\", \"x\": \"2\"}')"
    )
    with pytest.raises(psycopg.errors.InvalidParameterValue, match='the name "x" is twice in one object'):
        ledger.run(headers)
    assert ledger.published() == []


@pytest.mark.parametrize(
    "body", ['{"a": {"a": 1}, "b": [{"a": 1}, {"a": 1}]}', '[{"a": 1}, {"a": 1}]', '"{a, a}"', "{}"]
)
def test_a_name_may_be_in_several_objects_and_a_key_may_hold_what_is_invisible(ledger: Ledger, body: str) -> None:
    assert ledger.run(SEND, "main", "orders.paid", body, "k\u200b1") == (True,)
    assert ledger.published() == ["k\u200b1"]


BODIES = [
    {"order": 17, "a": [1, {"z": None, "aa": True}], "": {}},
    [],
    'text with " \\ / \x01 \x7f \n é 𝄞 \u2028',
    {"price": 1.5, "zero": 0.0, "minus": -0.0, "whole": 100.0, "large": 1e20, "small": 1e-7, "next": 1e16},
    {"b": 1, "a": 2, "ä": 3, "aa": 4, "𝄞": 5, "\uffff": 6},
    12345678901234567890,
    1.2345678901234568e17,
    None,
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: str(body)[:20])
@pytest.mark.parametrize("first", ["python", "sql"])
def test_a_message_of_python_and_one_of_sql_with_the_same_key_and_body_are_one(
    ledger: Ledger, first: str, body: Any
) -> None:
    import json

    text = json.dumps(body, ensure_ascii=False)
    if first == "python":
        assert not ledger.app.send("orders.paid", body, key="k").earlier
        assert ledger.run(SEND, "main", "orders.paid", text, "k") == (False,)
    else:
        assert ledger.run(SEND, "main", "orders.paid", text, "k") == (True,)
        assert ledger.app.send("orders.paid", body, key="k").earlier
    assert ledger.published() == ["k"]
    assert ledger.run(SEND, "main", "orders.paid", text, "k") == (False,)  # its body is dropped, the digest is not
    assert ledger.app.send("orders.paid", body, key="k").earlier


@pytest.mark.parametrize("spelt", ["1.50", "15e-1", "0.15e1"])
def test_how_a_number_is_spelt_makes_no_other_body(ledger: Ledger, spelt: str) -> None:
    ledger.app.send("orders.paid", {"price": 1.5}, key="k")
    assert ledger.run(SEND, "main", "orders.paid", f'{{"price": {spelt}}}', "k") == (False,)


def test_another_body_is_refused_on_both_sides(ledger: Ledger) -> None:
    ledger.app.send("orders.paid", {"price": 1.5}, key="a")
    with pytest.raises(psycopg.errors.UniqueViolation, match="use another key"):
        ledger.run(SEND, "main", "orders.paid", '{"price": 1.51}', "a")
    ledger.run(SEND, "main", "orders.paid", '{"price": 1.5}', "b")
    with pytest.raises(PayloadMismatch):
        ledger.app.send("orders.paid", {"price": "1.5"}, key="b")


# -- with an order key ---------------------------------------------------------------------------


def ordered(ledger: Ledger, key: str, body: str = "{}", order: str = "o") -> Any:
    return ledger.run(ORDERED, "main", "orders.paid", body, key, order)


def test_sql_and_python_send_into_one_lane_in_the_order_of_their_commits(ledger: Ledger) -> None:
    keys = [str(n) for n in range(12)]
    for key in keys:
        if int(key) % 3:
            ledger.app.send("orders.paid", {}, key=key, order="o")
        else:
            assert ordered(ledger, key) == (True,)
        if key == "7":
            assert ledger.published() == keys[:8]  # the lane is gone, and begins again
    assert ledger.published() == keys
    assert ledger.broker.taken[0].headers["ce-subject"] == "o"
    assert not ledger.app.store.scan("ticket").block().records


def test_an_ordered_message_of_sql_is_there_once_and_with_its_transaction(ledger: Ledger) -> None:
    with psycopg.connect(ledger.dsn) as db:
        db.execute(ORDERED, ("main", "orders.paid", "{}", "gone", "o"))
        db.rollback()
    assert ordered(ledger, "a", '{"n": 1}') == (True,)
    assert ordered(ledger, "a", '{"n": 1.0}') == (False,)
    assert ledger.app.send("orders.paid", {"n": 1}, key="a", order="o").earlier
    with pytest.raises(psycopg.errors.UniqueViolation, match="use another key"):
        ordered(ledger, "a", '{"n": 2}')
    assert ordered(ledger, "a", '{"n": 2}', order="another") == (True,)
    assert sorted(ledger.published()) == ["a", "a"]
    assert ordered(ledger, "a", '{"n": 1}') == (False,)  # its body is dropped, the digest is not


def test_a_sender_of_the_same_order_key_waits_for_the_first_to_end_and_others_do_not(ledger: Ledger) -> None:
    with psycopg.connect(ledger.dsn) as first, psycopg.connect(ledger.dsn) as second:
        first.execute(ORDERED, ("main", "orders.paid", "{}", "1", "o"))
        second.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable), second.transaction():
            second.execute(ORDERED, ("main", "orders.paid", "{}", "2", "o"))
        second.execute(ORDERED, ("main", "orders.paid", "{}", "x", "p"))
        second.commit()
        assert ledger.published() == ["x"]
        second.execute("SET lock_timeout = 0")
        waiting = threading.Thread(target=second.execute, args=(ORDERED, ("main", "orders.paid", "{}", "2", "o")))
        waiting.start()
        first.commit()
        waiting.join(20)
        second.commit()
    assert ledger.published() == ["x", "1", "2"]


def test_a_lane_that_is_held_by_a_parked_message_stays_held(ledger: Ledger) -> None:
    ledger.broker.always["1"] = Refused("no such queue", final=True)
    ordered(ledger, "1")
    assert ledger.published() == []
    ordered(ledger, "2")
    assert ledger.published() == []
    block(drop(ledger.app.store, "default", "1", by="ann"))
    assert ledger.published() == ["2"]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_an_ordered_message_of_sql_needs_read_committed(ledger: Ledger, level: str) -> None:
    with psycopg.connect(ledger.dsn) as db:
        db.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="READ COMMITTED"):
            db.execute(ORDERED, ("main", "orders.paid", "{}", "1", "o"))
    assert ledger.published() == []


def test_an_encrypted_ledger_takes_no_ordered_message_of_sql_behind_a_sealed_one(postgres_dsn: str) -> None:
    pytest.importorskip("cryptography")
    with App(postgres_dsn, keys="k1:" + b64encode(bytes(range(32))).decode()) as app:
        app.broker("main", StandInBroker())
        app.route("orders.*", to="main")
        app.send("orders.paid", {}, key="1", order="o")
        with psycopg.connect(postgres_dsn) as db, pytest.raises(psycopg.errors.FeatureNotSupported, match="encrypted"):
            db.execute(ORDERED, ("main", "orders.paid", "{}", "2", "o"))


def test_senders_in_sql_race_for_one_order_key_and_a_relay_empties_it(ledger: Ledger) -> None:
    committed: list[str] = []
    mutex = threading.Lock()

    def send(number: int) -> None:
        with psycopg.connect(ledger.dsn) as db:
            for n in range(40):
                key = f"{number}-{n}"
                db.execute(ORDERED, ("main", "orders.paid", "{}", key, "o"))
                with mutex:  # nobody else of this order key is this far: the lane is locked until the commit
                    committed.append(key)
                db.commit()

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        ledger.published()
    assert ledger.published() == committed
    assert len(committed) == 160
