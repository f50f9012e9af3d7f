"""Live changes: what a look costs, how often there is one, and who is told."""

import asyncio
import json
import threading
import time
from types import SimpleNamespace

import pytest
from bench.ledgers import ReadCounter

from twiceproof import App
from twiceproof.claims.claim import RUN, address_of
from twiceproof.operations import block
from twiceproof.server.ui import live
from twiceproof.server.ui.live import LATEST, MOST_OF_ONE, LiveFeed, LiveStream, look_at

HOUR = 3_600.0


@pytest.fixture
def app():
    with App("memory://") as made:

        @made.flow(key="{order}")
        def ship(order):
            return order

        for number in range(3):
            ship.start(number)
        yield made


def listener(app, *keys, may_listen=True):
    async def asked():
        return may_listen

    runs = tuple(address_of("default", "ship", key, RUN) for key in keys)
    return LiveStream(app, runs, time.time(), asyncio.Event(), asked)


class SilentWatch:
    """A standing wait that nothing is heard by. Its hours pass at once; `over` is called after the last of them."""

    def __init__(self, hours, over):
        self.left = hours * HOUR
        self.waits = []
        self._over = over
        self._woken = threading.Event()

    def wait(self, seconds):
        self.waits.append(seconds)
        self.left -= seconds
        if self.left < 0:
            self._over()
            self._woken.wait(10)  # until the first stream has ended

    def move(self, names): ...

    def wake(self):
        if self.left < 0:
            self._woken.set()

    def close(self): ...


async def listened(app, listeners, watch_of, monkeypatch):
    """Return what each listener was told until `over` was called."""
    monkeypatch.setattr(live, "APART", 0.0)
    loop, gone = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
    watch = watch_of(lambda: loop.call_soon_threadsafe(lambda: gone.done() or gone.set_result(None)))
    monkeypatch.setattr(app.store, "watch", lambda places: watch, raising=False)
    feed, status = LiveFeed(app), SimpleNamespace(draining=False)

    async def hear(one):
        return [event async for event in feed.stream(one, gone, status)]

    told = await asyncio.gather(*map(hear, listeners))
    return told, watch, feed


def test_a_look_is_few_reads_however_many_browsers_there_are(app):
    counter = ReadCounter(app.store.engine)
    runs = [address_of("default", "ship", str(number), RUN) for number in range(3)]
    found = block(look_at(app, runs))
    assert counter.requests <= 7
    assert [state["state"] for state in found.states.values()] == ["queued"] * 3


def test_an_open_tab_reads_at_most_three_times_a_minute_when_nothing_happens(app, monkeypatch):
    counter = ReadCounter(app.store.engine)
    hours = 2
    _, watch, feed = asyncio.run(
        listened(app, [listener(app, "1")], lambda over: SilentWatch(hours, over), monkeypatch)
    )
    assert watch.waits[:4] == [2.0, 4.0, 8.0, 16.0] and watch.waits[-1] == LATEST
    assert counter.requests / (sum(watch.waits) / 60) <= 3
    assert feed.streams == 0


def test_sixty_four_browsers_cost_the_store_what_one_costs(app, monkeypatch):
    asked = []
    for count in (1, 64):
        counter = ReadCounter(app.store.engine)
        listeners = [listener(app, "0", "1", "2") for _ in range(count)]
        told, _, feed = asyncio.run(listened(app, listeners, lambda over: SilentWatch(0.1, over), monkeypatch))
        assert all(json.loads(events[0].removeprefix(b"data: "))["counts"]["review"] == 0 for events in told)
        asked.append((counter.requests, feed.looks))
    assert asked[0] == asked[1]


def test_streams_that_show_the_same_share_what_they_are_told(app):
    found = block(look_at(app, [address_of("default", "ship", "1", RUN)]))
    first, second, other = listener(app, "1"), listener(app, "1"), listener(app)
    first.since = second.since = 0.0
    assert found.message_for(first) is found.message_for(second)
    assert json.loads(found.message_for(first))["newer"] == 3
    assert json.loads(found.message_for(other))["runs"] == {}


def test_a_session_that_is_over_is_told_nothing_more(app, monkeypatch):
    told, _, _ = asyncio.run(
        listened(app, [listener(app, may_listen=False)], lambda over: SilentWatch(0.01, over), monkeypatch)
    )
    assert told == [[]]


def test_one_session_does_not_take_the_streams_of_all(app):
    feed, gone = LiveFeed(app), SimpleNamespace(done=lambda: False)

    async def opened(session):
        one = listener(app)
        one.session = session
        stream = feed.stream(one, gone, SimpleNamespace(draining=False))
        await anext(stream)
        return stream

    async def counted():
        streams = await asyncio.gather(*(opened("ann") for _ in range(MOST_OF_ONE)))
        full = feed.is_full("ann"), feed.is_full("bob"), feed.is_full("")
        for stream in streams:
            await stream.aclose()
        return full, feed.is_full("ann")

    assert asyncio.run(counted()) == ((True, False, False), False)
