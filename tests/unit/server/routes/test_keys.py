"""The history of a key over HTTP: what came, what was done, what was blocked, and who said what."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.server.local_server import Shop
from tests.unit.server.routes.client import Client
from twiceproof import App, NotDone
from twiceproof.server.ui.dashboard import PageRequest


@pytest.fixture
def shop(app: App) -> App:
    """A flow whose step fails once for good, and a guarded function."""
    closed = [True]

    @app.step(repeat="safe", external="bill:{result}")
    def bill(n: int) -> int:
        if closed[0]:
            raise NotDone("closed", final=True)
        return n

    @app.flow(key="order:{n}")
    def pay(n: int) -> int:
        return bill(n)

    @app.once(key="{n}")
    def ship(n: int) -> dict[str, int]:
        return {"n": n}

    app.pay, app.ship, app.closed = pay, ship, closed  # type: ignore[attr-defined]
    return app


def told(history: Any) -> list[tuple[str, str, str]]:
    return [(line["kind"], line["what"], line["state"]) for line in history["history"]]


def test_the_story_of_a_run_has_its_steps_its_repeats_and_who_acted(shop, client, clock):
    run = shop.pay.start(17).id
    clock.advance(1.0)
    shop.worker().run(until_idle=True)
    clock.advance(1.0)
    client("POST", f"/v1/runs/{run}/retry", {"by": "ann"}, 200)
    shop.closed[0] = False
    clock.advance(1.0)
    shop.worker().run(until_idle=True)
    clock.advance(1.0)
    shop.pay.start(17)
    shop.tally.flush()
    history = client("GET", "/v1/keys/pay/order%3A17", status=200)
    assert (history["state"], history["result"], history["ids"]) == ("done", 17, ["bill:17"])
    assert (history["came"], history["blocked"]) == (2, 1)
    assert client("GET", f"/v1/runs/{history['run']}", status=200)["run"]["key"] == "order:17"
    lines = told(history)
    assert lines[0] == ("came", "call", "new")
    assert ("step", "bill", "done") in lines
    assert ("said", "ann", "") in lines
    assert lines[-1] == ("came", "call", "repeat")
    assert [line["at"] for line in history["history"]] == sorted(line["at"] for line in history["history"])


def test_the_story_of_a_claim_has_its_result_and_no_run(shop, client):
    shop.ship(7)
    shop.ship(7)
    shop.tally.flush()
    history = client("GET", "/v1/keys/ship/7", status=200)
    assert (history["run"], history["state"], history["result"], history["blocked"]) == ("", "done", {"n": 7}, 1)
    assert (history["history"][0]["kind"], history["history"][0]["state"]) == ("came", "new")
    assert history["kept_until"] > history["created_at"]


def test_the_story_of_a_run_names_the_webhook_and_its_event_and_counts_its_repeats(app, client):
    @app.flow(key="order:{order[id]}")
    def sync(order: dict[str, Any]) -> None: ...

    app.webhook(Shop(), secret="s3cret", start=sync)
    for _ in range(3):
        client("POST", "/hooks/shop", {"id": "17"}, 200, x_secret="s3cret")
        app.worker().run(until_idle=True)
    app.tally.flush()
    history = client("GET", "/v1/keys/sync/order%3A17", status=200)
    assert (history["came"], history["blocked"]) == (3, 2)
    first = history["history"][0]
    assert (first["kind"], first["what"], first["state"], first["detail"]) == ("came", "webhook shop", "new", "17")


def test_the_page_tells_the_same_story(shop, client, monkeypatch):
    shop.ship(7)
    shown: dict[str, Any] = {}
    show = PageRequest.show

    def noted(page: PageRequest, *given: Any, **values: Any) -> Any:
        shown.update(values)
        return show(page, *given, **values)

    monkeypatch.setattr(PageRequest, "show", noted)
    client("GET", "/keys/ship/7", status=200)
    history = client("GET", "/v1/keys/ship/7", status=200)
    assert [line.what for line in shown["lines"]] == [line["what"] for line in history["history"]]


@pytest.mark.parametrize("path", ["ship/8", "none/7", "a%20b/7", "ship/%00"])
def test_a_key_that_is_not_on_record_is_not_found(shop, client, path):
    shop.ship(7)
    assert client("GET", f"/v1/keys/{path}", status=404)["type"].endswith("no-such-key")


def test_another_tenants_key_is_not_found(shop):
    shop.ship(7)
    Client(shop, tenant="acme")("GET", "/v1/keys/ship/7", status=404)
