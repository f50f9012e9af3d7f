"""`kill -9` of the database while workers are at it: nothing acknowledged is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.acceptance.children import Child
from tests.acceptance.places import PostgresPlace, RedisPlace
from tests.servers import PostgresServer, ValkeyServer
from twiceproof import App, ClaimLost, InProgress, NeedsReview, StoreUnavailable, StoreUnsafe
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.postgres.engine import PostgresEngine

pytestmark = [pytest.mark.server, pytest.mark.slow]

KEYS = 2_000
KILLS = 3


@pytest.fixture(params=["postgres", "valkey"])
def server(request):
    return request.getfixturevalue(f"killable_{request.param}")


@pytest.fixture
def fragile(server, tmp_path):
    if isinstance(server, ValkeyServer):
        place = RedisPlace(server.url, tmp_path)
    else:
        place = PostgresPlace(server.create_database(), tmp_path)
    place.app().close()
    return place


def guarded(app, place):
    @app.once(key="order:{order_id}")
    async def charge(order_id):
        place.do(f"charge {order_id}")
        return f"receipt {order_id}"

    return charge


def worker(place):
    """Calls for every key, and tells which were answered."""

    async def deliver(child, charge, keys):
        for key in keys:
            try:
                await charge(key)
                child.tell(key)
            except (ClaimLost, InProgress, NeedsReview, StoreUnavailable):
                continue

    def run(child):
        async def main(charge):
            keys = iter(range(KEYS))
            await asyncio.gather(*(deliver(child, charge, keys) for _ in range(64)))

        with place.app() as app:
            child.tell("open")
            asyncio.run(main(guarded(app, place)))

    return Child(run)


def kill_again_and_again(server, place):
    """The keys that were acknowledged while the server was killed and restarted under its workers."""
    workers = [worker(place), worker(place)]
    assert [child.hear() for child in workers] == ["open", "open"]  # a store is not opened while its server is away
    acknowledged = set()
    for _ in range(KILLS):
        acknowledged |= {workers[0].hear() for _ in range(200)}
        server.kill()
        server.start()
    for child in workers:
        while (key := child.hear()) is not None:
            acknowledged.add(key)
        assert child.end() == 0
    return acknowledged


def test_what_was_acknowledged_survives_the_death_of_the_server(server, fragile):
    acknowledged = kill_again_and_again(server, fragile)
    effects = fragile.effects()
    assert len(effects) == len(set(effects)), "something was done twice"
    with fragile.app() as app:
        assert asyncio.run(replay(guarded(app, fragile), acknowledged)) == len(acknowledged)
    assert fragile.effects() == effects, "something acknowledged was forgotten and done again"
    assert len(acknowledged) > KEYS / 2


def test_control_postgres_that_does_not_wait_for_its_log_forgets_and_repeats(tmp_path):
    lazy = {"synchronous_commit": "off", "wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}
    with PostgresServer(lazy) as server:
        place = PostgresPlace(server.create_database(), tmp_path)
        with pytest.raises(StoreUnsafe):
            place.app()
        place.app = lambda: App(GroupedStore(unchecked_postgres(place.url)))
        forget_and_repeat(server, place)


def forget_and_repeat(server, place):
    """Two claims are acknowledged, the server dies at once, and the same two are asked for again."""
    place.app().close()  # the schema is old news when the server dies
    server.stop()
    server.start()
    with place.app() as app:
        assert asyncio.run(replay(guarded(app, place), [1, 2])) == 2
        server.kill()
    server.start()
    with place.app() as app:
        assert asyncio.run(replay(guarded(app, place), [1, 2])) == 2
    first, again = place.effects()[:2], place.effects()[2:]
    assert first == ["charge 1", "charge 2"]
    # The last one is gone for sure; whoever else makes the server write its log takes the one before it along.
    assert again in (["charge 1", "charge 2"], ["charge 2"])


def unchecked_postgres(url):
    """The protection taken away: opened although the server would lose acknowledged writes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("twiceproof.stores.postgres.engine.refuse_unsafe", lambda *_: None)
        return PostgresEngine(url)


def test_control_valkey_without_an_append_only_file_forgets_and_repeats(tmp_path):
    with ValkeyServer({"appendonly": "no", "save": ""}) as server:
        with pytest.raises(StoreUnsafe):
            RedisPlace(server.url, tmp_path).app()
        forget_and_repeat(server, RedisPlace(server.url + "?durability=cache", tmp_path))


async def replay(charge, keys):
    """Call again for what was acknowledged; how many were answered as before."""
    answered = 0
    for key in keys:
        with contextlib.suppress(InProgress):
            answered += await charge(key) == f"receipt {key}"
    return answered
