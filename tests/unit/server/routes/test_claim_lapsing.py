"""Claims that were taken over HTTP and never ended: they come to light, and a late word still counts."""

import asyncio
import json
import logging

import pytest

from tests.unit.server.local_server import LocalServer
from twiceproof import App
from twiceproof.claims.retention import ABANDONED_AFTER, park_unfinished
from twiceproof.operations import block
from twiceproof.prove.clocks import ManualClock
from twiceproof.server.serve import DrainingServer
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine

JSON = [("content-type", "application/json")]
PATH = "/v1/claims/ship/17"


@pytest.fixture
def app():
    clock = ManualClock()
    with App(GroupedStore(MemoryEngine(clock), clock=clock), clock=clock) as made:
        yield made


@pytest.fixture
def server(app):
    return LocalServer(app)


def take(server, path=PATH, **more):
    return server.call("PUT", path, json.dumps({"lease": "5m", **more}).encode(), JSON)


def end(server, word, token, path=PATH, **more):
    return server.call("POST", f"{path}/{word}", json.dumps({"token": token, **more}).encode(), JSON)


def state(server, path=PATH):
    return server.call("GET", path).json["state"]


def test_a_claim_that_was_never_ended_waits_for_review_an_hour_after_its_lease(server, app, caplog):
    take(server)
    app.clock.advance(300 + ABANDONED_AFTER - 1)
    assert block(park_unfinished(app.store)) == 0 and state(server) == "held"
    app.clock.advance(2)
    with caplog.at_level(logging.WARNING):
        assert block(park_unfinished(app.store)) == 1
    assert state(server) == "review"
    assert "1 claims were taken over HTTP and never ended" in caplog.text
    assert "twiceproof review list" in caplog.text


def test_it_reaches_a_person(server, app):
    told = []
    app.notify(told.append)
    take(server)
    app.clock.advance(300 + ABANDONED_AFTER)
    block(park_unfinished(app.store))
    app.incidents[0].flush()
    assert [(notice.event, notice.operation, notice.key) for notice in told] == [("review", "ship", "17")]


def test_a_late_word_of_the_holder_still_counts(server, app):
    token = take(server).json["token"]
    app.clock.advance(300 + ABANDONED_AFTER)
    block(park_unfinished(app.store))
    assert end(server, "complete", token, result={"parcel": 7}).status == 200
    assert state(server) == "done" and take(server).json["result"] == {"parcel": 7}


def test_a_holder_that_renews_late_holds_it_again(server, app):
    token = take(server).json["token"]
    app.clock.advance(300 + ABANDONED_AFTER)
    block(park_unfinished(app.store))
    assert end(server, "renew", token, lease="5m").status == 200
    assert state(server) == "held"


def test_after_a_persons_word_a_late_one_is_evidence_and_no_more(server, app):
    token = take(server).json["token"]
    app.clock.advance(300 + ABANDONED_AFTER)
    block(park_unfinished(app.store))
    app.settle("ship", "17", "did-not-happen", by="eve")
    assert end(server, "complete", token, result=1).status == 409


def test_who_says_that_it_does_no_harm_takes_it_from_review(server, app):
    take(server)
    app.clock.advance(300 + ABANDONED_AFTER)
    block(park_unfinished(app.store))
    assert take(server).json["state"] == "review"
    again = take(server, repeat="safe")
    assert (again.status, again.json["claimed"]) == (201, True)


def test_what_is_held_by_functions_and_runs_is_left_to_them(server, app):
    """`repeat="safe"` means that the next call does it again: parked, it would have to ask a person."""
    with app.claim("pack", "1", lease="5m"), app.claim("pack", "2", lease="5m", repeat="safe"):
        app.clock.advance(300 + ABANDONED_AFTER)
        assert block(park_unfinished(app.store)) == 0


def test_of_many_each_is_parked_once(server, app, monkeypatch):
    monkeypatch.setattr("twiceproof.claims.retention.PARK_PAGE", 3)
    for number in range(10):
        take(server, f"/v1/claims/ship/{number}")
    app.clock.advance(300 + ABANDONED_AFTER)
    take(server, "/v1/claims/ship/live")
    assert block(park_unfinished(app.store)) == 10
    assert block(park_unfinished(app.store)) == 0
    assert state(server, "/v1/claims/ship/live") == "held"


def test_a_server_that_holds_nothing_itself_tidies_up(server, app):
    take(server)
    serving = DrainingServer(server.application, drain=5.0, announce=lambda: None)
    app.clock.advance(300 + ABANDONED_AFTER)

    async def tick():
        await serving.on_tick(0)

    asyncio.run(tick())
    app._housekeeper._thread.stop(30)  # ends after the sweep that is under way
    assert state(server) == "review"
