"""The flow under test: five steps, one of each kind. `bare` takes their protection away, for the control."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from uuid import uuid4

import psycopg

from tests.faults.chaos.effect_client import Effects
from twiceproof import Absent, App, Happened, Retry, check

LEASE = 3.0
SETTLING = 1.0  # a killed worker's request may be on its way for a moment: the effects take milliseconds
RETRY = Retry(attempts=40, first=0.02, most=0.3)
TABLE = "CREATE TABLE booked (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n bigint NOT NULL)"
# No unique index: it would turn a second booking into an error, and hide what is to be counted.
INSERT = "INSERT INTO booked (n) VALUES (%s) RETURNING id"

Connect = Callable[[], AbstractContextManager[psycopg.Connection[Any]]]


def declare(app: App, effects: Effects, connect: Connect, *, bare: bool = False) -> Any:
    """The flow, on this app."""
    probe = check(lambda n: _found(effects, n), settling=SETTLING)

    @app.step(repeat="safe", retry=RETRY)
    def look_up(n: int) -> int:
        effects.do("safe", n)
        return n

    @app.step(repeat="keyed", retry=RETRY)
    def charge(n: int) -> int:
        return effects.do("keyed", n, key=uuid4().hex if bare else app.effect_key())

    @app.step(repeat="safe" if bare else probe, retry=RETRY)
    def invoice(n: int) -> int:
        return effects.do("check", n)

    book = _bare_booking(app, connect) if bare else _booking(app, connect)

    @app.step(repeat="safe" if bare else "never", retry=RETRY)
    def announce(n: int) -> int:
        return effects.do("never", n)

    @app.flow(key="order:{n}", lease=LEASE)
    def fulfil(n: int) -> list[int]:
        effects.visit(n)
        look_up(n)
        return [charge(n), invoice(n), book(n), announce(n)]

    return fulfil


def _found(effects: Effects, n: int) -> Happened | Absent:
    receipt = effects.find("check", n)
    return Absent() if receipt is None else Happened(receipt)


def _booking(app: App, connect: Connect) -> Callable[[int], int]:
    @app.transaction(connect=connect, retry=RETRY)
    def book(db: psycopg.Connection[Any], n: int) -> int:
        return _insert(db, n)

    return book


def _bare_booking(app: App, connect: Connect) -> Callable[[int], int]:
    """A transaction of its own, apart from the ledger's."""

    @app.step(repeat="safe", retry=RETRY)
    def book(n: int) -> int:
        with connect() as db, db.transaction():
            return _insert(db, n)

    return book


def _insert(db: psycopg.Connection[Any], n: int) -> int:
    row = db.execute(INSERT, (n,)).fetchone()
    assert row is not None
    return int(row[0])


def lending(dsn: str) -> Connect:
    """A connection for each thread, kept while it is whole: PostgreSQL forks a process for each new one."""
    here = threading.local()

    @contextlib.contextmanager
    def lend() -> Iterator[psycopg.Connection[Any]]:
        db = getattr(here, "db", None)
        if db is None or db.closed:
            here.db = db = psycopg.connect(dsn)
        yield db
        if db.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            db.close()

    return lend
