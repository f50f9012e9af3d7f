"""While the first request is at work, when it dies, and when the store does not answer."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from tests.unit.middleware.harness import Client, Shop
from twiceproof import App, StoreUnavailable
from twiceproof.errors import StoreUnsafe
from twiceproof.middleware import Route
from twiceproof.records import Remove


def meanwhile(client, shop, *steps):
    """The first request is at work while these steps happen; what it response, and what they answered."""
    found = []

    def answer(asked):
        if asked.count == 1:
            found.extend(in_another_thread(step) for step in steps)
        return 201, [], [b"made by %d" % asked.count]

    shop.answer = answer
    return client.ask(), found


def in_another_thread(step):
    found = []
    thread = threading.Thread(target=lambda: found.append(step()))
    thread.start()
    thread.join()
    return found[0]


def test_a_duplicate_meanwhile_is_told_409_and_when_to_come_back(client, shop):
    first, [response] = meanwhile(client, shop, client.ask)
    assert first.status == 201
    told = response.problem()
    assert (told["status"], told["type"], told["state"]) == (409, "urn:twiceproof:in-progress", "in progress")
    assert response.header("retry-after") == "5"
    assert shop.count == 1
    assert client.ask().body == b"made by 1"


@pytest.mark.parametrize("error", [None, OSError("child")], ids=["answers", "raises"])
def test_a_forked_child_that_comes_out_too_says_nothing_about_its_parents_key(tmp_path, shop, error):
    parent, ended = os.getpid(), []

    def answer(asked):
        child = os.fork()
        if child:
            ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        elif error:
            raise error
        return (201, [], [b"parent"]) if child else (500, [], [b"child"])

    shop.answer = answer
    with App(f"sqlite:///{tmp_path}/fork.db?durability=process") as app:
        client = Client("wsgi", shop, app=app)
        try:
            response = client.ask()
        except OSError as raised:
            response = raised
        if os.getpid() != parent:  # pragma: no cover - in the child
            os._exit(0 if response is error or response.body == b"child" else 1)
        assert (response.body, client.ask().body, ended, shop.count) == (b"parent", b"parent", [0], 1)


def test_nobody_is_told_to_wait_longer_than_the_lease(make_client, shop):
    client = make_client(routes=[Route("/pay", lease=2)])
    _, [response] = meanwhile(client, shop, client.ask)
    assert response.header("retry-after") == "2"


def test_time_to_come_back_is_at_least_a_second(make_client, shop, clock):
    client = make_client(routes=[Route("/pay", lease=2)])
    _, [_, response] = meanwhile(client, shop, lambda: clock.advance(1.9), client.ask)
    assert response.header("retry-after") == "1"


@pytest.mark.parametrize("status", [503, 202])
def test_what_a_duplicate_hears_meanwhile_can_be_said_per_route(make_client, shop, status):
    client = make_client(routes=[Route("/pay", busy=status)])
    _, [response] = meanwhile(client, shop, client.ask)
    assert response.status == status
    assert int(response.header("retry-after")) >= 1
    assert b'"state":"in progress"' in response.body


def test_a_duplicate_with_another_payload_is_refused_also_meanwhile(client, shop):
    _, [response] = meanwhile(client, shop, lambda: client.ask(b"[]"))
    assert response.status == 422


def test_a_duplicate_that_waits_gets_the_first_answer(tmp_path):
    """On real time: it waits for the other thread, not for a clock."""
    with App("memory://") as app:
        shop, begun, go = Shop(), threading.Event(), threading.Event()

        def answer(asked):
            begun.set()
            go.wait(10)
            return 201, [], [b"made by %d" % asked.count]

        shop.answer = answer
        response = []
        for kind in ("wsgi", "asgi"):
            client = Client(
                kind, shop, app=app, routes=[Route("/pay", busy="wait")], principal=lambda _, kind=kind: kind
            )
            threads = [threading.Thread(target=lambda c=client: response.append(c.ask())) for _ in range(5)]
            for thread in threads:
                thread.start()
            begun.wait(10)
            go.set()
            for thread in threads:
                thread.join(10)
            begun.clear()
            go.clear()
        assert shop.count == 2
        assert sorted(one.body for one in response) == [b"made by 1"] * 5 + [b"made by 2"] * 5
        assert sum(one.replayed for one in response) == 8


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_patience_has_an_end(kind):
    with App("memory://") as app:
        shop = Shop()
        client = Client(kind, shop, app=app, routes=[Route("/pay", busy="wait", wait="10ms")])
        _, [response] = meanwhile(client, shop, client.ask)
        assert response.problem()["state"] == "in progress"


# -- death ---------------------------------------------------------------------------------------


def test_a_request_whose_process_died_is_not_repeated_blindly(make_client, shop, clock):
    """The first one is still inside when its lease lapses, as if it had been killed: a retry asks for a person."""
    client = make_client()
    _, [_, response] = meanwhile(client, shop, lambda: clock.advance(31), client.ask)
    assert (response.status, response.problem()["state"]) == (409, "review")
    assert shop.count == 1


def test_a_request_whose_process_died_runs_again_where_that_is_declared_safe(make_client, shop, clock):
    client = make_client(routes=[Route("/pay", repeat="safe")])
    _, [_, response] = meanwhile(client, shop, lambda: clock.advance(31), client.ask)
    assert (response.status, response.body) == (201, b"made by 2")
    assert client.ask().body == b"made by 2"


def test_a_holder_that_comes_back_late_is_told_so_and_leaves_evidence(make_client, shop, clock, app):
    client = make_client(routes=[Route("/pay", repeat="safe")])
    first, _ = meanwhile(client, shop, lambda: clock.advance(31), client.ask)
    assert (first.status, first.problem()["type"]) == (409, "urn:twiceproof:claim-lost")
    [evidence] = app.store.scan("evidence").block().records
    assert "made by 1" in evidence.body


def test_a_heartbeat_keeps_the_claim_while_the_handler_runs(make_client, shop, clock, app):
    def beat():
        clock.advance(20)
        app._heartbeat.beat()

    first, [*_, response] = meanwhile(make_client(), shop, beat, beat, make_client().ask)
    assert response.problem()["state"] == "in progress"
    assert first.status == 201


def test_when_it_is_over_nothing_beats_any_more(client, shop, app):
    client.ask()
    shop.answer = lambda asked: (500, [], [b""])
    client.ask(key="k-2")
    assert app._heartbeat._holds == {}


def test_a_claim_that_was_taken_away_meanwhile_does_not_make_the_answer_count(client, shop, app):
    def take_away():
        [record] = app.store.scan("claim").block().records
        app.store.write(Remove(record.at, version=record.version)).block()

    first, _ = meanwhile(client, shop, take_away)
    assert first.problem()["type"] == "urn:twiceproof:claim-lost"
    assert first.problem()["state"] == "gone"


def test_a_process_that_slept_through_its_lease_asks_before_it_begins(client, shop, clock, engine):
    commit = engine.inner.commit

    def pause(batches):
        answers = commit(batches)
        engine.inner.commit = commit
        clock.advance(31)
        return answers

    engine.inner.commit = pause
    assert client.ask().status == 201  # nobody else came: it is still ours
    assert client.ask().replayed


def test_a_handler_that_is_cancelled_leaves_an_unknown_outcome(app, shop):
    client = Client("asgi", shop, app=app)
    inside = asyncio.Event()

    async def stuck(scope, receive, send):
        inside.set()
        await asyncio.Event().wait()

    async def cancel():
        client.middleware._inner = stuck
        task = asyncio.create_task(client.ask_asgi("POST", "/pay", "", SENT, [b"{}"]))
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await client.ask_asgi("POST", "/pay", "", SENT, [b"{}"])

    assert asyncio.run(cancel()).problem()["state"] == "review"


SENT = [("idempotency-key", "k-1"), ("authorization", "Bearer ann")]


# -- the store -----------------------------------------------------------------------------------


def test_while_the_store_does_not_answer_nothing_runs(client, shop, engine):
    engine.fail(StoreUnavailable("gone fishing"))
    response = client.ask()
    assert (response.status, response.problem()["type"]) == (503, "urn:twiceproof:ledger-unavailable")
    assert response.header("retry-after") == "5"
    assert "fishing" not in response.body.decode()
    assert shop.count == 0
    assert client.ask().status == 201


def test_a_closed_store_lets_nothing_run(client, shop, app):
    app.close()
    assert client.ask().status == 503
    assert shop.count == 0


def test_an_answer_that_could_not_be_recorded_is_given_and_is_not_repeated(client, shop, engine, clock):
    _, response = client.ask(key="warm"), None

    def answer(asked):
        engine.fail(StoreUnavailable("gone fishing"))
        return 201, [], [b"done"]

    shop.answer = answer
    response = client.ask()
    assert (response.status, response.body) == (201, b"done")
    assert client.ask().problem()["state"] == "in progress"
    clock.advance(31)
    assert client.ask().problem()["state"] == "review"
    assert shop.count == 2


def test_an_error_whose_record_fails_says_so(client, shop, engine):
    def answer(asked):
        engine.fail(StoreUnavailable("gone fishing"))
        raise ValueError("the till is stuck")

    shop.answer = answer
    with pytest.raises(ValueError, match="stuck") as caught:
        client.ask()
    assert "could not record this failure" in caught.value.__notes__[0]


def test_a_lost_acknowledgement_of_the_take_is_not_a_duplicate(client, shop, engine):
    engine.lose_reply()
    assert client.ask().status == 201
    assert shop.count == 1


def test_a_store_that_can_lose_acknowledged_writes_is_refused_unless_it_is_accepted(make_client, engine, clock):
    from twiceproof.stores.grouped import GroupedStore

    engine.best_effort = True
    store = GroupedStore(engine, clock=clock)
    with App(store, clock=clock) as app:
        with pytest.raises(StoreUnsafe, match="/pay may never be repeated blindly"):
            make_client(app=app, routes=["/pay"])
        make_client(app=app, routes=[Route("/pay", repeat="safe")])
        make_client(app=App(store, clock=clock, best_effort=True), routes=["/pay"])


@pytest.mark.parametrize("method", ["patch", "Patch", "post"])
def test_a_method_in_small_letters_is_guarded_as_what_frameworks_take_it_for(make_client, shop, method):
    """A browser's fetch sends `patch` as it was written, and Flask and Django serve it."""
    client = make_client(routes=[Route("/pay", required=True)])
    assert client.ask(method=method, key=None).status == 400
    first, again, upper = client.ask(method=method), client.ask(method=method), client.ask(method=method.upper())
    assert (first.replayed, again.replayed, upper.replayed, shop.count) == (False, True, True, 1)
    assert upper.body == again.body == first.body


@pytest.mark.parametrize("path", ["/pay/", "//pay"])
def test_a_slash_too_many_is_no_way_past_the_guard(make_client, shop, path):
    client = make_client(routes=[Route("/pay", required=True)])
    assert client.ask(path=path, key=None).status == 400
    assert [client.ask(path=path).replayed for _ in range(2)] == [False, True]
    assert client.ask().replayed is False, "another address may be another answer"
    assert shop.count == 2
