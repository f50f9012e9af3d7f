"""Lists over HTTP: claims, duplicates, workers and dead letters, with what a replay would do."""

from __future__ import annotations

from typing import Any

import pytest
from bench.ledgers import ReadCounter

from tests.unit.inbound.test_dead_letters import Shop
from tests.unit.server.routes.client import Client
from twiceproof import App


@pytest.fixture
def shop(app: App) -> App:
    @app.once(key="{n}")
    def ship(n: int) -> int:
        return n

    @app.flow(key="order:{n}")
    def sync(n: str) -> None: ...

    app.ship, app.sync = ship, sync  # type: ignore[attr-defined]
    return app


# -- claims --------------------------------------------------------------------------------------


def keys(found: Any) -> list[str]:
    return [claim["key"] for claim in found["claims"]]


def test_claims_are_listed_the_newest_first_and_page_by_page(shop, client):
    for n in range(5):
        shop.ship(n)
    first = client("GET", "/v1/claims?limit=2", status=200)
    second = client("GET", f"/v1/claims?limit=2&after={first['after']}", status=200)
    assert (keys(first), keys(second)) == (["4", "3"], ["2", "1"])
    assert keys(client("GET", f"/v1/claims?limit=2&after={second['before']}", status=200)) == ["4", "3"]


def test_claims_are_filtered(shop, client):
    for n in (1, 2, 11, 12):
        shop.ship(n)
    assert keys(client("GET", "/v1/claims?operation=ship&state=done&limit=1", status=200)) == ["12"]
    assert sorted(keys(client("GET", "/v1/claims?operation=ship&prefix=1", status=200))) == ["1", "11", "12"]
    assert keys(client("GET", "/v1/claims?prefix=1", status=200)) == ["12", "11", "1"]
    assert keys(client("GET", "/v1/claims?state=review", status=200)) == []
    assert keys(client("GET", "/v1/claims?operation=shi", status=200)) == []


@pytest.mark.parametrize("query", ["state=gone", "limit=0", "operation=a%20b"])
def test_a_filter_that_cannot_be_is_refused(client, query):
    client("GET", f"/v1/claims?{query}", status=400)


def test_a_place_that_is_not_in_the_list_of_claims_is_not_found(client):
    assert client("GET", "/v1/claims?after=zz", status=404)["type"].endswith("no-such-page")


def test_another_tenants_claims_are_not_listed(shop, client):
    shop.ship(1)
    assert keys(Client(shop, tenant="acme")("GET", "/v1/claims", status=200)) == []


@pytest.mark.parametrize("query", ["acts?operation", "duplicates?flow", "dead-letters?hook"])
def test_what_is_no_name_is_refused_rather_than_not_found(client, query):
    client("GET", f"/v1/{query}=a%20b", status=400)


# -- duplicates and workers ----------------------------------------------------------------------


def test_the_keys_that_came_most_often_are_listed(shop, client):
    for n in (1, 2, 2, 2):
        shop.ship(n)
    shop.tally.flush()
    (one,) = client("GET", "/v1/duplicates?flow=ship", status=200)["duplicates"]
    assert (one["operation"], one["key"], one["blocked"]) == ("ship", "2", 2)
    assert client("GET", "/v1/duplicates?source=stripe", status=200)["duplicates"] == []
    assert Client(shop, tenant="acme")("GET", "/v1/duplicates", status=200)["duplicates"] == []


def test_a_run_that_no_worker_takes_is_stranded(shop, client, clock):
    shop.sync.start("7")
    clock.advance(1.0)
    found = client("GET", "/v1/workers", status=200)
    assert (found["workers"], found["stranded"]) == ([], {"sync@1": 1})
    shop.worker().run(until_idle=True)
    assert client("GET", "/v1/workers", status=200)["stranded"] == {}


# -- dead letters --------------------------------------------------------------------------------


@pytest.fixture
def till(app: App) -> Shop:
    """A webhook whose mapping has a bug until it is repaired, with one delivery that was put aside."""
    made = Shop(app)
    assert made.deliver({"id": "17"}) == (200, "poison")
    return made


def test_dead_letters_are_read_page_by_page(app, till, client):
    """Each has its body with it: a server that read them all for one page could be stopped by them."""
    for n in range(20, 31):
        till.deliver({"id": str(n)})
    counter, met, after = ReadCounter(app.store.engine), [], ""
    while after is not None:
        counter.clear()
        page = client("GET", f"/v1/dead-letters?limit=5{after and f'&after={after}'}", status=200)
        assert counter.records <= 6 and page["more"] is (page["after"] is not None)
        met += [letter["id"] for letter in page["dead_letters"]]
        after = page["after"]
    assert sorted(met) == sorted(letter.id for letter in till.letters()) and len(met) == 12
    client("GET", "/v1/dead-letters?after=nonsense", status=404)


def one_letter(client: Client) -> dict[str, Any]:
    (letter,) = client("GET", "/v1/dead-letters", status=200)["dead_letters"]
    found: dict[str, Any] = letter
    return found


def test_a_letter_is_listed_without_its_body_and_shown_with_it(till, client):
    letter = one_letter(client)
    assert (letter["hook"], letter["text"]) == ("post", "")
    assert "customer" in letter["reason"]
    shown = client("GET", f"/v1/dead-letters/{letter['id']}", status=200)
    assert '"17"' in shown["text"]
    assert client("GET", "/v1/dead-letters?hook=other", status=200)["dead_letters"] == []


def plan_of(client: Client, letter: dict[str, Any]) -> list[tuple[str, str]]:
    found = client("GET", f"/v1/dead-letters/{letter['id']}/plan", status=200)["events"]
    return [(one["would"], one["run"]) for one in found]


def test_a_plan_says_what_the_replay_does_and_changes_nothing(app, till, client):
    letter = one_letter(client)
    before = dict(app.store.engine._records)
    assert plan_of(client, letter) == [("start", "")]
    assert dict(app.store.engine._records) == before
    till.bug = False
    (done,) = client("POST", f"/v1/dead-letters/{letter['id']}/replay", {"by": "ann"}, 200)["events"]
    assert done["outcome"] == "new"
    assert till.work() == ["17"]
    assert client("GET", "/v1/dead-letters", status=200)["dead_letters"] == []
    assert [(act["verb"], act["by"]) for act in client("GET", "/v1/acts", status=200)["acts"]] == [("replay", "ann")]


def test_of_an_event_that_was_processed_meanwhile_the_plan_names_the_run(till, client):
    letter = one_letter(client)
    till.bug = False
    assert till.deliver({"id": "17"}) == (200, "new")
    ((would, run),) = plan_of(client, letter)
    assert would == "duplicate"
    assert client("GET", f"/v1/runs/{run}", status=200)["run"]["key"] == "order:17"
    (done,) = client("POST", f"/v1/dead-letters/{letter['id']}/replay", {}, 200)["events"]
    assert done["outcome"] == "duplicate"


def test_a_replay_that_fails_again_keeps_the_letter(till, client):
    letter = one_letter(client)
    (done,) = client("POST", f"/v1/dead-letters/{letter['id']}/replay", {}, 200)["events"]
    assert done["outcome"] == "poison"
    assert one_letter(client)["id"] == letter["id"]


def test_what_cannot_be_read_has_no_plan(app, till, client):
    till.deliver(b"{")
    wrong = next(one for one in client("GET", "/v1/dead-letters", status=200)["dead_letters"] if not one["events"])
    assert "still cannot be read" in client("GET", f"/v1/dead-letters/{wrong['id']}/plan", status=409)["detail"]
    client("POST", f"/v1/dead-letters/{wrong['id']}/replay", {}, 409)


@pytest.mark.parametrize("verb", ["", "/plan"])
def test_another_tenants_letter_is_not_there(app, till, client, verb):
    letter = one_letter(client)
    theirs = Client(app, tenant="acme")
    assert theirs("GET", "/v1/dead-letters", status=200)["dead_letters"] == []
    theirs("GET", f"/v1/dead-letters/{letter['id']}{verb}", status=404)
    theirs("POST", f"/v1/dead-letters/{letter['id']}/replay", {}, 404)


# -- find ----------------------------------------------------------------------------------------


def hits(client: Client, name: str) -> list[tuple[str, str, str]]:
    found = client("GET", f"/v1/find?q={name}", status=200)["hits"]
    return [(hit["what"], hit["where"], hit["name"]) for hit in found]


def test_a_key_a_run_and_an_event_are_found_by_their_name(app, till, client):
    letter = one_letter(client)
    till.bug = False
    till.deliver({"id": "18"})
    assert hits(client, "order:18") == [("run", "sync", "order:18")]
    run = client("GET", "/v1/runs", status=200)["runs"][0]["run"]
    assert hits(client, run) == [("run", "sync", "order:18")]
    assert hits(client, "18") == [("event", "hook.post", "18"), ("run", "sync", "order:18")]  # by a field of its key
    assert hits(client, letter["id"]) == [("dead letter", "post", letter["id"])]
    assert hits(client, "19") == []
    assert hits(Client(app, tenant="acme"), "order:18") == []


def test_keys_that_begin_so_are_found_where_none_has_the_name(shop, client):
    for n in (100, 101, 17):
        shop.sync.start(str(n))
    shop.ship(10099)
    assert sorted(hits(client, "order:1")) == sorted([("run", "sync", f"order:{n}") for n in (100, 101, 17)])
    assert hits(client, "1009") == [("claim", "ship", "10099")]
    assert hits(client, "100") == [("run", "sync", "order:100")]  # a field of its key
    assert hits(client, "or") == []


def test_a_search_for_nothing_is_refused(client):
    client("GET", "/v1/find", status=400)
    client("GET", "/v1/find?q=", status=400)
