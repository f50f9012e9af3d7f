"""The scenarios' ledgers: one each, on any store, and nothing of them left behind; what is not empty is not touched."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.unit.prove.flows import safe, unsafe
from twiceproof.errors import Misuse, StoreUnavailable
from twiceproof.prove.fixture import prove
from twiceproof.prove.ledgers import SchemaLedgers, ledgers_at
from twiceproof.prove.prover import Prover
from twiceproof.prove.target import target_of
from twiceproof.prove.worlds.world import CallableWorld

ORDER = {"id": 7, "lines": ["a", "b"]}


def verdict_of(store: str, only: str, flows: Any = unsafe) -> str:
    target = target_of(flows.FLOWS[0], ORDER)
    report = Prover(target, CallableWorld(lambda: list(flows.outside)), store=store, only=only).run()
    assert report.store == store.partition(":")[0]
    return report.verdicts[0].word


def test_private_files_are_gone_when_the_proof_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert verdict_of("sqlite", "lost-1") == "twice"
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_in_memory_finds_the_same() -> None:
    assert (verdict_of("memory://", "lost-1"), verdict_of("memory://", "lost-1", safe)) == ("twice", "same")


@pytest.mark.parametrize("store", ["sqlite:///mine.db", "mysql://x/y", "redis+cluster://localhost"])
def test_a_store_that_could_be_somebody_s_is_refused(store: str) -> None:
    with pytest.raises(Misuse, match="leave --store out"):
        ledgers_at(store)


# -- PostgreSQL ----------------------------------------------------------------------------------

SCHEMAS = "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'twiceproof_prove%'"
TABLES = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'twiceproof%'"


def asked(dsn: str, query: str) -> list[Any]:
    import psycopg

    with psycopg.connect(dsn) as db:
        return [row[0] for row in db.execute(query.encode()).fetchall()]


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["at-once", "paused-1"])
def test_postgresql_finds_the_same_and_keeps_nothing(postgres_dsn: str, scenario: str) -> None:
    unsafe_word = "same" if scenario == "at-once" else "twice"
    assert (verdict_of(postgres_dsn, scenario), verdict_of(postgres_dsn, scenario, safe)) == (unsafe_word, "same")
    assert asked(postgres_dsn, SCHEMAS) == [] and asked(postgres_dsn, TABLES) == [0]


@pytest.mark.server
def test_an_existing_ledger_in_the_same_database_is_not_touched(postgres_dsn: str) -> None:
    from twiceproof import App

    with App(postgres_dsn) as app:
        app.once(key="mine:{number}")(_echo)(1)
    before = asked(postgres_dsn, "SELECT r::text FROM twiceproof.twiceproof_records r ORDER BY id")
    assert verdict_of(postgres_dsn, "lost-1") == "twice"
    assert asked(postgres_dsn, "SELECT r::text FROM twiceproof.twiceproof_records r ORDER BY id") == before != []
    assert asked(postgres_dsn, SCHEMAS) == []


def _echo(number: int) -> int:
    return number


@pytest.mark.server
def test_a_play_sees_nothing_of_the_database_but_its_own_schema(postgres_dsn: str) -> None:
    import psycopg

    with psycopg.connect(postgres_dsn, autocommit=True) as db:
        db.execute("CREATE TABLE mine (id int)")
    with closing(SchemaLedgers(postgres_dsn)) as ledgers:
        name = ledgers.prepare()
        assert asked(ledgers._within(name), "SELECT to_regclass('mine')::text") == [None]
        assert asked(ledgers._within(name), "SELECT to_regclass('twiceproof_records')::text") == ["twiceproof_records"]
        ledgers.forget(name)


@pytest.mark.server
@pytest.mark.slow
def test_every_scenario_is_played_on_postgresql(postgres_dsn: str) -> None:
    report = prove(safe.FLOWS[0], ORDER, world=lambda: list(safe.outside), store=postgres_dsn, depth=1)
    assert report.good and report.complete


@pytest.mark.parametrize("url", ["postgresql://me:secret@127.0.0.1:1/x", "redis://me:secret@127.0.0.1:1/1"])
def test_a_server_that_does_not_answer_is_told_without_its_url(url: str) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        ledgers_at(url).prepare()
    assert "secret" not in str(caught.value)


@pytest.mark.server
def test_an_account_that_may_not_create_schemas_is_refused(postgres_dsn: str) -> None:
    import psycopg

    with psycopg.connect(postgres_dsn, autocommit=True) as db:
        db.execute("CREATE ROLE prove_guest LOGIN")
    with pytest.raises(Misuse, match="may not create schemas"):
        ledgers_at(postgres_dsn.replace("//postgres@", "//prove_guest@"))
    with psycopg.connect(postgres_dsn, autocommit=True) as db:
        db.execute("DROP ROLE prove_guest")


# -- Redis ---------------------------------------------------------------------------------------


@pytest.mark.server
@pytest.mark.parametrize("scenario", ["at-once", "paused-1"])
def test_redis_finds_the_same_in_an_empty_database(redis_url: str, valkey_server: Any, scenario: str) -> None:
    unsafe_word = "same" if scenario == "at-once" else "twice"
    assert (verdict_of(redis_url, scenario), verdict_of(redis_url, scenario, safe)) == (unsafe_word, "same")
    assert valkey_server.call("DBSIZE") == 0


@pytest.mark.server
def test_a_redis_database_that_holds_anything_is_refused_and_left_alone(redis_url: str, valkey_server: Any) -> None:
    valkey_server.call("SET", "somebody's", "1")
    with pytest.raises(Misuse, match="not empty"):
        verdict_of(redis_url, "lost-1")
    assert valkey_server.call("GET", "somebody's") in (b"1", "1") and valkey_server.call("DBSIZE") == 1


def test_a_redis_database_must_be_named() -> None:
    with pytest.raises(Misuse, match="by its number"):
        ledgers_at("redis://localhost:6379")
