"""The stand-in for the outside: real clients reach it by the names it stands for, and it counts what they do."""

from __future__ import annotations

import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from twiceproof import App
from twiceproof.errors import Misuse
from twiceproof.prove.diagnosis import wrong_declarations
from twiceproof.prove.fixture import NotSafe, prove
from twiceproof.prove.scenarios.scenario import Scenario, ScenarioOutcome, TimelineEvent, Verdict, judge
from twiceproof.prove.worlds.http import HttpWorld

API = "http://api.shop.test"


@pytest.fixture
def world() -> Iterator[HttpWorld]:
    answers = {
        "POST /invoices": {"status": 201, "body": {"id": "inv_1"}},
        "GET api.shop.test/invoices/*": {"body": {"id": "inv_1"}, "after": "POST /invoices"},
        "POST /refused": {"status": 409, "body": "no"},
    }
    with HttpWorld(["api.shop.test", "pay.test:8080"], answers=answers) as world:
        yield world


@pytest.fixture
def keyed() -> Iterator[HttpWorld]:
    with HttpWorld(["api.shop.test"], honours_keys=True) as world:
        yield world


def post(path: str, body: Any = None, **headers: str) -> Any:
    data = json.dumps(body).encode()
    request = urllib.request.Request(API + path, data, {"Content-Type": "application/json", **headers}, method="POST")
    with urllib.request.urlopen(request, timeout=5) as answer:
        return json.loads(answer.read())


def test_a_request_is_answered_as_it_was_told_and_counted_by_what_it_asked(world: HttpWorld) -> None:
    assert post("/invoices", {"total": 1}) == post("/invoices", {"total": 1}) == {"id": "inv_1"}
    post("/invoices", {"total": 2})
    assert sorted(world.look().values()) == [1, 2]
    assert all(name.startswith("POST api.shop.test/invoices #") for name in world.look())
    assert world.exchanges() == ["POST api.shop.test/invoices"] * 3


@pytest.mark.parametrize("how", ["blocking", "awaiting", "streamed"])
def test_other_clients_find_it_too(world: HttpWorld, how: str) -> None:
    import asyncio

    async def awaited() -> Any:
        async with httpx2.AsyncClient() as client:
            return await client.put(f"{API}/x", json={})

    if how == "awaiting":
        answer = asyncio.run(awaited())
    else:
        given: Any = {"json": {}} if how == "blocking" else {"content": iter([b"{", b"}"])}
        answer = httpx2.put(f"{API}/x", **given)
    assert answer.status_code == 200 and list(world.look()) == [f"PUT api.shop.test/x #{answer.json()['id']}"]


def test_looking_is_no_effect_and_finds_what_was_done_before(world: HttpWorld) -> None:
    assert httpx2.get(f"{API}/invoices/inv_1").status_code == 404
    assert httpx2.head(f"{API}/invoices/inv_1").status_code == 404
    assert world.look() == {}
    post("/invoices")
    assert httpx2.get(f"{API}/invoices/inv_1").json() == {"id": "inv_1"}
    assert httpx2.get(f"{API}/nothing").status_code == 404
    assert sum(world.look().values()) == 1


def test_what_is_refused_is_no_effect(world: HttpWorld) -> None:
    with pytest.raises(urllib.error.HTTPError):
        post("/refused")
    assert world.look() == {}


def test_a_host_with_a_port_is_met_at_that_port_alone(world: HttpWorld) -> None:
    assert httpx2.post("http://pay.test:8080/charges").status_code == 200
    assert list(world.look()) == ["POST pay.test:8080/charges"]
    with pytest.raises(httpx2.ConnectError):
        httpx2.post("http://pay.test:8081/charges")


def test_the_second_request_with_a_key_is_answered_with_the_first_answer(keyed: HttpWorld) -> None:
    first = post("/charges", {"total": 1}, **{"Idempotency-Key": "a"})
    assert post("/charges", {"total": 1}, **{"Idempotency-Key": "a"}) == first
    assert list(keyed.look().values()) == [1]
    with pytest.raises(urllib.error.HTTPError, match="422"):
        post("/charges", {"total": 2}, **{"Idempotency-Key": "a"})
    post("/charges", {"total": 1}, **{"Idempotency-Key": "b"})
    assert list(keyed.look().values()) == [2]


def test_without_being_told_so_it_does_not_honour_keys(world: HttpWorld) -> None:
    for _ in range(2):
        post("/charges", **{"Idempotency-Key": "a"})
    assert list(world.look().values()) == [2]


def test_a_lost_answer_is_lost_after_the_request_was_carried_out(world: HttpWorld) -> None:
    world.lose(2)
    post("/invoices")
    with pytest.raises((ConnectionError, urllib.error.URLError)):
        post("/invoices")
    post("/invoices")
    assert list(world.look().values()) == [3]
    world.reset()
    assert (world.look(), world.exchanges()) == ({}, [])


@pytest.mark.parametrize("how", ["urllib", "blocking", "awaiting"])
def test_https_is_met_too(world: HttpWorld, how: str) -> None:
    import asyncio

    url, body = "https://api.shop.test/invoices", b"x" * 300_000

    async def awaiting() -> int:
        async with httpx2.AsyncClient() as client:
            return (await client.post(url, content=body)).status_code

    def by_urllib() -> int:
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=5) as answer:
            return int(answer.status)

    status = {
        "urllib": by_urllib,
        "blocking": lambda: httpx2.post(url, content=body).status_code,
        "awaiting": lambda: asyncio.run(awaiting()),
    }[how]()
    assert status == 201
    assert world.exchanges() == ["POST api.shop.test/invoices"] and list(world.look().values()) == [1]


def test_tls_that_a_client_brings_along_itself_is_told_with_what_to_do(world: HttpWorld) -> None:
    with socket.create_connection(("api.shop.test", 443)) as hello:
        hello.sendall(b"\x16\x03\x01")
        assert hello.recv(1) == b""
    with pytest.raises(Misuse, match="make its base URL a setting"):
        world.exchanges()


def test_names_lead_elsewhere_only_while_the_world_is_open() -> None:
    def patched() -> list[Any]:
        return [socket.getaddrinfo, socket.socket.connect, ssl.SSLContext.wrap_socket, ssl.SSLContext.wrap_bio]

    before = patched()
    with HttpWorld(["api.shop.test"]) as world:
        assert httpx2.post("http://API.shop.test./x").status_code == 200
        assert httpx2.post(f"{world.url}/x").status_code == 200
    assert patched() == before


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"hosts": ["http://api.test"]}, "without http://"),
        ({"hosts": ["api.test"], "answers": {"invoices": {}}}, "names no request"),
        ({"hosts": ["api.test"], "answers": {"POST /x": {"state": 1}}}, "An answer is"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_next_move(given: Any, says: str) -> None:
    with pytest.raises(Misuse, match=says):
        HttpWorld(**given)


def test_an_answer_that_was_not_lost_after_all_is_told_as_missed() -> None:
    scenario = Scenario("answer-lost-1", "", loses=1)
    assert judge(scenario, ScenarioOutcome("done"), ScenarioOutcome("done")).word == "missed"
    assert judge(scenario, ScenarioOutcome("done", fired=1), ScenarioOutcome("done")).word == "same"


# -- proofs --------------------------------------------------------------------------------------

app = App("memory://")
Order = dict[str, Any]


@app.step(repeat="keyed")
def charge(order: Order) -> str:
    answer = httpx2.post(f"{API}/charges", json=order, headers={"Idempotency-Key": app.effect_key()})
    answer.raise_for_status()
    return str(answer.json()["id"])


@app.flow(key="order:{order[id]}")
def pay(order: Order) -> str:
    return charge(order)


@pytest.mark.slow
def test_a_keyed_step_is_safe_where_the_provider_honours_its_key(keyed: HttpWorld) -> None:
    report = prove(pay, {"id": 1}, world=keyed, depth=1)
    assert report.good and [one.word for one in report.verdicts if one.scenario == "answer-lost-1"] == ["same"]


@pytest.mark.slow
def test_the_same_step_is_found_out_where_the_provider_does_not(world: HttpWorld) -> None:
    with pytest.raises(NotSafe) as caught:
        prove(pay, {"id": 1}, world=world, depth=1)
    assert {"answer-lost-1", "lost-1"} <= {one.scenario for one in caught.value.report.bad}


# -- methods that may be repeated ----------------------------------------------------------------


@app.step(repeat="safe")
def save(order: Order) -> None:
    httpx2.put(f"{API}/orders/{order['id']}", json=order).raise_for_status()


@app.step(repeat="safe")
def remove(order: Order) -> None:
    httpx2.delete(f"{API}/carts/{order['id']}").raise_for_status()


@app.flow(key="order:{order[id]}")
def saved(order: Order) -> None:
    save(order)
    remove(order)


@app.step(repeat="safe")
def append(order: Order) -> None:
    httpx2.post(f"{API}/orders", json=order).raise_for_status()


@app.flow(key="order:{order[id]}")
def appended(order: Order) -> None:
    append(order)


def test_the_same_put_or_delete_again_is_no_second_effect(world: HttpWorld) -> None:
    for _ in range(2):
        httpx2.put(f"{API}/orders/1", json={"total": 1})
        httpx2.delete(f"{API}/carts/1")
    assert sorted(world.look().values()) == [1, 1]
    assert len(world.exchanges()) == 4
    httpx2.put(f"{API}/orders/1", json={"total": 2})
    assert sorted(world.look().values()) == [1, 1, 1]


def test_what_was_changed_in_between_and_is_written_again_is_an_effect(world: HttpWorld) -> None:
    """A late repetition of the first write undoes the second."""
    for total in (1, 2, 1):
        httpx2.put(f"{API}/orders/1", json={"total": total})
    assert sorted(world.look().values()) == [1, 2]
    for method in ("DELETE", "PUT", "DELETE", "POST", "DELETE"):
        httpx2.request(method, f"{API}/carts/1")
    assert world.look()["DELETE api.shop.test/carts/1"] == 3


def test_a_world_may_say_that_it_counts_requests() -> None:
    with HttpWorld(["api.shop.test"], counts=["PUT /meters/*"]) as world:
        for _ in range(2):
            httpx2.put(f"{API}/meters/1")
            httpx2.put(f"{API}/orders/1")
        assert world.look() == {"PUT api.shop.test/meters/1": 2, "PUT api.shop.test/orders/1": 1}
    with pytest.raises(Misuse, match="names no request"):
        HttpWorld(["api.shop.test"], counts=["meters"])
    with pytest.raises(Misuse, match="always counted"):
        HttpWorld(["api.shop.test"], counts=["POST /meters"])


@pytest.mark.slow
def test_a_safe_put_and_a_safe_delete_are_safe(world: HttpWorld) -> None:
    assert prove(saved, {"id": 1}, world=world, depth=1).good


@pytest.mark.slow
def test_a_safe_put_is_found_out_where_requests_are_counted() -> None:
    with HttpWorld(["api.shop.test"], counts=["PUT /orders/*"]) as world, pytest.raises(NotSafe) as caught:
        prove(saved, {"id": 1}, world=world, depth=1)
    assert [one.step for one in caught.value.report.wrong] == ["save"]


@pytest.mark.slow
def test_a_safe_post_is_still_found_out_and_never_is_the_last_advice(world: HttpWorld) -> None:
    with pytest.raises(NotSafe) as caught:
        prove(appended, {"id": 1}, world=world, depth=1)
    (wrong,) = caught.value.report.wrong
    assert wrong.step == "append" and wrong.instead.index("keyed") < wrong.instead.index("never")


def test_a_put_with_another_body_is_advised_to_send_the_same_and_not_to_give_up() -> None:
    effect = "PUT api.shop.test/orders/1 #bbbb"
    events = (
        TimelineEvent(1, "save acts", {"PUT api.shop.test/orders/1 #aaaa": 1}),
        TimelineEvent(2, "save acts", {effect: 1}),
    )
    verdict = Verdict("lost-1", "", "twice", "done", {effect: 1}, {}, "", 1, 2)
    clean = ScenarioOutcome("done", events=events[:1], seen={"PUT api.shop.test/orders/1 #aaaa": 1})
    (wrong,) = wrong_declarations({"save": "safe"}, [(verdict, ScenarioOutcome("done", events=events), clean)])
    assert "another body" in wrong.found and "same body" in wrong.instead and "never" not in wrong.instead


def test_a_put_that_comes_late_and_overwrites_is_advised_to_be_compared() -> None:
    effect = "PUT api.shop.test/orders/1 #aaaa"
    between = TimelineEvent(2, "change acts", {"PUT api.shop.test/orders/1 #bbbb": 1})
    events = (TimelineEvent(1, "save acts", {effect: 1}), between, TimelineEvent(1, "save acts", {effect: 1}))
    verdict = Verdict("paused-1", "", "twice", "done", {effect: 1}, {}, "", 2, 3)
    clean = ScenarioOutcome("done", events=events[:2], seen={effect: 1, **between.world})
    (wrong,) = wrong_declarations({"save": "safe"}, [(verdict, ScenarioOutcome("done", events=events), clean)])
    assert "If-Match" in wrong.instead and "never" not in wrong.instead
