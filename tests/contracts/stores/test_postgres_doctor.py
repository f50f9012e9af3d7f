"""A server that would lose acknowledged writes is refused, at opening and by the doctor; its twin is not."""

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.servers import PostgresServer
from twiceproof.claims.policy import DEFAULT_LEASE
from twiceproof.clock import Clock
from twiceproof.errors import StoreUnsafe
from twiceproof.stores.postgres import doctor as postgres_doctor
from twiceproof.stores.postgres.doctor import PostgresSettings, promises
from twiceproof.stores.postgres.engine import PostgresEngine

pytestmark = pytest.mark.server

SAFE = PostgresSettings("on", "on", "on", "", "read committed", "off", 150_000, False, 3)


def findings(engine):
    return {finding.name: finding for finding in engine.examine()}


@pytest.fixture
def engine(postgres_dsn):
    engine = PostgresEngine(postgres_dsn)
    yield engine
    engine.close()


def set_for_database(dsn, setting):
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute(f'ALTER DATABASE "{conninfo_to_dict(dsn)["dbname"]}" SET {setting}')


def test_a_sound_server_is_refused_nothing(engine):
    assert "refuse" not in {finding.level for finding in engine.examine()}


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_a_server_that_does_not_sync_is_refused(setting):
    with PostgresServer({setting: "off"}) as server, pytest.raises(StoreUnsafe, match=f"{setting}: off"):
        PostgresEngine(server.dsn())


@pytest.mark.parametrize(
    "setting",
    [
        "synchronous_commit = off",
        "default_transaction_isolation = 'repeatable read'",
        "default_transaction_read_only = on",
    ],
)
def test_a_database_set_to_lose_or_confuse_writes_is_refused(postgres_dsn, setting):
    set_for_database(postgres_dsn, setting)
    with pytest.raises(StoreUnsafe) as caught:
        PostgresEngine(postgres_dsn)
    assert caught.value.findings[0].advice


@pytest.mark.parametrize(
    ("change", "level"),
    [
        ({}, "ok"),
        ({"standby": True}, "refuse"),
        ({"version": 130_010}, "refuse"),
        ({"synchronous_commit": "local"}, "ok"),
        ({"synchronous_commit": "local", "standbys": "*"}, "refuse"),
        ({"synchronous_commit": "remote_apply", "standbys": "*"}, "ok"),
    ],
)
def test_each_promise_is_judged(change, level):
    settings = PostgresSettings(**{**{name: getattr(SAFE, name) for name in SAFE.__struct_fields__}, **change})
    worst = {finding.level for finding in promises(settings)} - {"ok"} or {"ok"}
    assert worst == {level}


def test_the_commit_function_itself_refuses_an_old_snapshot(engine, postgres_dsn):
    """A joined transaction has its own level, whatever the database's default."""
    with psycopg.connect(postgres_dsn) as db:
        db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(psycopg.errors.RaiseException, match="READ COMMITTED"):
            db.execute(
                "SELECT twiceproof.twiceproof_commit("
                "'', '', '', '', '{}', '{}', '', '', '{}', '', '', '{}', '{}', '{}', '', NULL)"
            )


def test_a_clock_that_differs_is_told_and_one_that_agrees_is_not(engine, postgres_dsn):
    assert findings(engine)["clock"].level == "ok"
    late = PostgresEngine(postgres_dsn, clock=Clock(now=lambda: 1_000_000.0))
    assert findings(late)["clock"].level == "warn"
    late.close()


@pytest.mark.parametrize(
    ("tls", "address", "level"),
    [
        (False, "192.0.2.7", "warn"),
        (False, "2001:db8::7", "warn"),
        (True, "192.0.2.7", "ok"),
        (False, "127.0.0.1", "ok"),
        (False, "::1", "ok"),
        (False, "/run/postgresql", "ok"),
        (False, "", "ok"),
    ],
)
def test_results_that_travel_in_the_clear_are_warned_about(tls, address, level):
    assert postgres_doctor._encryption(tls=tls, address=address).level == level


def test_a_server_on_this_machine_needs_no_encryption(engine):
    assert findings(engine)["encryption"].level == "ok"


def test_another_server_than_before_is_told_with_what_to_run(engine, postgres_dsn):
    assert findings(engine)["server"].level == "ok"
    with psycopg.connect(postgres_dsn, autocommit=True) as db:
        db.execute("UPDATE twiceproof.twiceproof_facts SET value = 'elsewhere/1' WHERE name = 'server'")
    found = findings(engine)["server"]
    assert found.level == "warn"
    assert "twiceproof doctor --accept-server" in found.advice


def test_a_pooler_is_seen(pgbouncer, postgres_dsn, engine):
    assert findings(engine)["pooler"].level == "ok"
    pooled = PostgresEngine(pgbouncer.dsn(postgres_dsn))
    assert findings(pooled)["pooler"].level == "warn"
    pooled.close()


@pytest.mark.parametrize("name", ["idle_in_transaction_session_timeout", "lock_timeout"])
@pytest.mark.parametrize(
    ("value", "level", "found"),
    [
        ("0", "warn", "unset"),
        ("1d", "warn", "86400 s: "),
        ("30001ms", "warn", "30.001 s: "),
        ("30s", "ok", "30 s"),
        ("250ms", "ok", "0.25 s"),
    ],
)
def test_a_transaction_that_may_be_forgotten_for_longer_than_a_lease_is_told(postgres_dsn, name, value, level, found):
    with psycopg.connect(postgres_dsn, autocommit=True) as db:
        db.execute(f"ALTER DATABASE {db.info.dbname} SET {name} = '{value}'")
    engine = PostgresEngine(postgres_dsn)
    seen = findings(engine)[name]
    engine.close()
    assert (seen.level, seen.found.startswith(found)) == (level, True)


def test_the_lease_that_is_compared_with_is_the_one_that_claims_have():
    assert postgres_doctor.LEASE == DEFAULT_LEASE


def test_dead_rows_and_a_forgotten_transaction_are_named(engine, postgres_dsn, monkeypatch):
    found = findings(engine)
    assert (found["dead rows"].level, found["oldest transaction"].level) == ("ok", "ok")
    monkeypatch.setattr(postgres_doctor, "LONG_OPEN", 0.0)
    monkeypatch.setattr(postgres_doctor, "FEW_DEAD", -1)
    with psycopg.connect(postgres_dsn) as forgotten:
        forgotten.execute("SELECT 1")
        found = findings(engine)
    assert "pg_stat_activity" in found["oldest transaction"].advice
    dead = postgres_doctor._dead_rows(10, 11, "twiceproof")
    assert (dead.level, postgres_doctor._dead_rows(11, 11, "twiceproof").level) == ("warn", "ok")
