"""A user's COMMIT whose answer is lost, or that never arrives: the messages are there if the rows are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.unit.outbox.test_transaction_outbox import (
    Ledger,
    by_async_psycopg,
    by_async_session,
    by_async_sqlalchemy,
    by_asyncpg,
    by_psycopg,
    by_session,
    by_sqlalchemy,
    two_of_each,
)

pytestmark = pytest.mark.server
WAYS = (by_psycopg, by_async_psycopg, by_asyncpg, by_sqlalchemy, by_session, by_async_sqlalchemy, by_async_session)
ALL = ["1", "2", "x", "y"]


@pytest.fixture
def proxy(postgres_dsn: str, fault_proxy: Any) -> Any:
    parts = urlsplit(postgres_dsn)
    return fault_proxy(parts.hostname, parts.port)


@pytest.fixture
def far(postgres_dsn: str, proxy: Any) -> Iterator[Ledger]:
    """The ledger is near; the user's own connections go through the proxy."""

    def run(sql: str) -> list[Any]:
        with psycopg.connect(postgres_dsn) as db:
            cursor = db.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    ledger = Ledger(postgres_dsn, run)
    ledger.url = proxy.url(postgres_dsn)
    yield ledger
    ledger.app.close()


def there(ledger: Ledger) -> tuple[list[str], list[str]]:
    """What the user's table has, and the messages; those of an order key come in its order."""
    published = ledger.published()
    assert [key for key in published if key in "12"] == sorted(key for key in published if key in "12")
    return ledger.stock(), sorted(published)


@pytest.mark.parametrize("way", WAYS)
def test_messages_are_there_although_the_answer_to_the_commit_was_lost(
    far: Ledger, proxy: Any, way: Callable[..., None]
) -> None:
    proxy.drop_next_reply(match=b"COMMIT")
    with contextlib.suppress(Exception):  # each driver has its own
        way(far, True, two_of_each)
    assert proxy.counters.replies_dropped == 1
    assert there(far) == (["a"], ALL)


@pytest.mark.parametrize("way", WAYS)
def test_no_message_is_there_if_the_connection_ends_before_the_commit(
    far: Ledger, proxy: Any, way: Callable[..., None]
) -> None:
    drop = proxy.drop_next_reply

    def messages(db: Any, outbox: Any) -> None:
        two_of_each(db, outbox)
        drop(match=b"twiceproof_records")  # they are written in the transaction, which is not committed

    with contextlib.suppress(Exception):
        way(far, True, messages)
    assert proxy.counters.replies_dropped == 1
    assert there(far) == ([], [])
    way(far, True, two_of_each)  # and the same keys can be sent again
    assert there(far) == (["a"], ALL)
