"""A storm of duplicates on flows: over processes, over threads and over tasks, each key has one run."""

from __future__ import annotations

import asyncio
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.acceptance import test_storm
from tests.acceptance.wrappers import Wrapped

KEYS, CALLERS = 200, 20
AT_ONCE = 50


def flow_of_two(app, place):
    @app.step(repeat="safe")
    async def upsert(order_id):
        place.do(f"upsert {order_id}")

    @app.step(repeat="never")
    async def charge(order_id):
        place.do(f"charge {order_id}")

    @app.flow(key="order:{order_id}")
    async def sync(order_id):
        await upsert(order_id)
        await charge(order_id)
        return f"receipt {order_id}"

    return sync


@pytest.mark.slow
def test_four_thousand_calls_for_two_hundred_keys_are_two_hundred_runs(place, monkeypatch):
    monkeypatch.setattr(test_storm, "CALLERS", CALLERS)
    answers = test_storm.storm(place, flow_of_two, KEYS)
    assert all(answer in ("in progress", f"receipt {key}") for key, answer in answers)
    assert sorted(place.effects()) == sorted(f"{what} {key}" for what in ("upsert", "charge") for key in range(KEYS))


class Meeting(Wrapped):
    """Knows when everybody has asked for the run: `met` is set."""

    def __init__(self, inner):
        super().__init__(inner)
        self.met = threading.Event()
        self._asked = itertools.count(1)

    def commit(self, batches):
        self._count(batches)
        return self.inner.commit(batches)

    def fetch(self, addresses):
        self._count(addresses)
        return self.inner.fetch(addresses)

    def _count(self, asked):
        for _ in asked:
            if next(self._asked) == AT_ONCE:
                self.met.set()


def meeting(place):
    app = place.app(Meeting)
    return app, app.store.engine.met


def test_fifty_threads_with_one_key_are_one_run(place):
    app, met = meeting(place)
    with app, ThreadPoolExecutor(AT_ONCE) as pool:

        @app.step(repeat="never")
        def charge(order):
            place.do("charge")
            assert met.wait(30)

        @app.flow(key="order:{order}", on_duplicate="wait")
        def sync(order):
            charge(order)
            return "receipt"

        assert list(pool.map(sync, [1] * AT_ONCE)) == ["receipt"] * AT_ONCE
    assert place.effects() == ["charge"]


def test_fifty_tasks_with_one_key_are_one_run(place):
    app, met = meeting(place)
    with app:

        @app.step(repeat="never")
        async def charge(order):
            place.do("charge")
            assert await asyncio.to_thread(met.wait, 30)

        @app.flow(key="order:{order}", on_duplicate="wait")
        async def sync(order):
            await charge(order)
            return "receipt"

        async def main():
            return await asyncio.gather(*(sync(1) for _ in range(AT_ONCE)))

        assert asyncio.run(main()) == ["receipt"] * AT_ONCE
    assert place.effects() == ["charge"]
