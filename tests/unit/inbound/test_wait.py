"""Answers that wait for a run's end: the first delivery's, a redelivery's, and a duplicate's that finds it at work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.unit.flows.stage import Stage
from tests.unit.inbound.post import SECRET, Post, posted
from twiceproof import by
from twiceproof.operations import InThread


class Shop:
    """An app whose deliveries wait, and what happens while they do: `meanwhile`, one after the other."""

    def __init__(self, stage: Stage, **options: Any) -> None:
        self.app = app = stage.process()
        self.broken = True
        self.runs = 0
        self.meanwhile: list[Callable[[], object]] = []

        @app.flow(key="order:{order[id]}")
        def sync(order: dict[str, Any]) -> None:
            self.runs += 1
            if self.broken:
                raise ValueError("broken")

        app.webhook(Post(), **{"secret": SECRET, "start": sync, "wait": "10s", **options})
        app.store.pause = self._pause  # type: ignore[method-assign]

    def _pause(self, space: str, seconds: float) -> InThread[None]:
        def wait() -> None:
            self.app.runtime.clock.sleep(seconds)
            if self.meanwhile:
                self.meanwhile.pop(0)()

        return InThread(wait)

    def work(self) -> None:
        self.app.worker(concurrency=1).run(until_idle=True)

    def deliver(self) -> tuple[int, str]:
        reply = self.app.receive(*posted({"id": "17"}))
        return reply.status, msgspec.json.decode(reply.body)["state"]


@pytest.fixture
def shop(stage: Stage) -> Shop:
    return Shop(stage)


def test_a_redelivery_waits_for_the_run_that_it_has_tried_again(shop: Shop) -> None:
    """Told that all is well, the sender would stop, and the run would stay failed."""
    shop.meanwhile = [shop.work, shop.work]
    assert [shop.deliver(), shop.deliver()] == [(503, "failed"), (503, "failed")]
    shop.broken, shop.meanwhile = False, [shop.work]
    assert shop.deliver() == (200, "new")
    assert shop.deliver() == (200, "duplicate") and shop.runs == 3


def test_a_duplicate_waits_for_the_run_that_another_delivery_began(shop: Shop) -> None:
    heard: list[tuple[int, str]] = []
    shop.meanwhile = [lambda: heard.append(shop.deliver()), shop.work]
    assert shop.deliver() == (503, "failed")
    assert heard == [(503, "failed")] and shop.runs == 1


def test_a_duplicate_whose_run_ends_well_meanwhile_is_a_duplicate(shop: Shop) -> None:
    heard: list[tuple[int, str]] = []
    shop.broken, shop.meanwhile = False, [lambda: heard.append(shop.deliver()), shop.work]
    assert shop.deliver() == (200, "new")
    assert heard == [(200, "duplicate")] and shop.runs == 1


def test_a_duplicate_does_not_wait_longer_than_the_first_one_did(stage: Stage, shop: Shop) -> None:
    assert shop.deliver() == (200, "new")
    before = stage.clock.monotonic()
    assert shop.deliver() == (200, "duplicate")
    assert stage.clock.monotonic() - before == 10


def test_a_duplicate_of_a_run_that_is_done_does_not_wait(stage: Stage, shop: Shop) -> None:
    shop.broken, shop.meanwhile = False, [shop.work]
    shop.deliver()
    before = stage.clock.monotonic()
    assert shop.deliver() == (200, "duplicate") and stage.clock.monotonic() == before


def test_where_failures_are_kept_a_redelivery_does_not_ask_for_more(stage: Stage) -> None:
    """Its run will not be tried again, however often it comes."""
    shop = Shop(stage, on_failed="keep")
    shop.meanwhile = [shop.work]
    assert [shop.deliver(), shop.deliver()] == [(503, "failed"), (200, "duplicate")]
    assert shop.runs == 1


def test_a_duplicate_that_waits_hears_of_a_failure_that_is_kept(stage: Stage) -> None:
    shop, heard = Shop(stage, on_failed="keep"), list[tuple[int, str]]()
    shop.meanwhile = [lambda: heard.append(shop.deliver()), shop.work]
    assert shop.deliver() == (503, "failed") and heard == [(503, "failed")]


def test_an_event_that_a_newer_one_overtook_is_taken_in(stage: Stage) -> None:
    app = stage.process()

    @app.webhook(Post(), secret=SECRET, wait="10s")
    @app.flow(key="order:{order[id]}", order=by(object="{order[object]}", version="{order[version]}"))
    def sync(order: dict[str, Any]) -> None: ...

    def work(space: str, seconds: float) -> InThread[None]:
        return InThread(lambda: app.worker(concurrency=1).run(until_idle=True))

    app.store.pause = work  # type: ignore[method-assign]
    newer, older = ({"id": str(number), "object": "a", "version": number} for number in (2, 1))
    assert app.receive(*posted(newer)).status == 200
    for word in ("new", "duplicate"):
        reply = app.receive(*posted(older))
        assert reply.status == 200 and msgspec.json.decode(reply.body)["state"] == word
