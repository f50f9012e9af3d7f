"""A storm of duplicates on flows: over processes, over threads and over tasks, each key has one run."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.acceptance import test_storm

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


def test_fifty_threads_with_one_key_are_one_run(place):
    begun, together = threading.Event(), threading.Barrier(AT_ONCE)
    with place.app() as app, ThreadPoolExecutor(AT_ONCE) as pool:

        @app.step(repeat="never")
        def charge(order):
            place.do("charge")
            begun.wait(30)  # until the others have met it

        @app.flow(key="order:{order}", on_duplicate="wait")
        def sync(order):
            charge(order)
            return "receipt"

        def call(number):
            together.wait(30)
            threading.Timer(0.1, begun.set).start()
            return sync(1)

        assert list(pool.map(call, range(AT_ONCE))) == ["receipt"] * AT_ONCE
    assert place.effects() == ["charge"]


def test_fifty_tasks_with_one_key_are_one_run(place):
    async def main():
        met = asyncio.Event()

        @app.step(repeat="never")
        async def charge(order):
            place.do("charge")
            await met.wait()

        @app.flow(key="order:{order}", on_duplicate="wait")
        async def sync(order):
            await charge(order)
            return "receipt"

        tasks = [asyncio.create_task(sync(1)) for _ in range(AT_ONCE)]
        asyncio.get_running_loop().call_later(0.1, met.set)
        return await asyncio.gather(*tasks)

    with place.app() as app:
        assert asyncio.run(main()) == ["receipt"] * AT_ONCE
    assert place.effects() == ["charge"]
