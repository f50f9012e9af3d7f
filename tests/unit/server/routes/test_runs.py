"""Runs at their addresses: started once, listed, looked at, stopped, tried again."""

from __future__ import annotations

from base64 import b64decode, b64encode

import pytest

from tests.unit.middleware.test_request import MALFORMED
from tests.unit.server.routes.client import Client
from twiceproof import App, NotDone
from twiceproof.claims import lists as listing
from twiceproof.claims.claim import run_id, short_id


@pytest.fixture
def broken():
    """What the flow's step does when it is called: nothing, or raise this."""
    return []


@pytest.fixture
def sync(app, broken):
    @app.step(repeat="never")
    def charge(order):
        if broken:
            raise broken.pop()
        return {"charged": order["total"]}

    @app.flow(key="order:{order[id]}", name="sync")
    def flow(order):
        return charge(order)

    @app.flow(key="greet:{name}", name="greet")
    def greet(name: str, word: str = "hello"):
        return f"{word} {name}"

    @app.flow(key="nightly", name="nightly")
    def nightly():
        return "done"

    return flow


def work(app):
    app.worker().run(until_idle=True)


ORDER = {"id": 7, "total": 12.50}


def test_a_start_is_accepted_and_a_second_one_hears_of_the_first(app, client, sync):
    first = client("POST", "/v1/runs/sync", ORDER, 202)
    assert (first["state"], first["started"], first["key"]) == ("queued", True, "order:7")
    assert first.headers["location"] == f"/v1/runs/{first['run']}"
    again = client("POST", "/v1/runs/sync", ORDER, 200)
    assert (again["run"], again["started"], again["state"]) == (first["run"], False, "queued")
    work(app)
    done = client("POST", "/v1/runs/sync", ORDER, 200)
    assert (done["state"], done["result"]) == ("done", {"charged": 12.5})


@pytest.mark.parametrize("headers", [{}, {"idempotency_key": "k-1"}], ids=["bare", "with a request key"])
def test_a_second_start_is_counted_as_blocked_at_this_door(app, client, sync, headers):
    client("POST", "/v1/runs/sync", ORDER, 202, **headers)
    assert app.duplicates() == []
    client("POST", "/v1/runs/sync", ORDER, 200, **headers)
    (row,) = app.duplicates()
    assert (row.count, row.source, row.operation, row.key) == (1, "http", "sync", "order:7")
    assert b'twiceproof_outcomes_total{entry_point="runs",outcome="duplicate"} 1.0' in client("GET", "/metrics").body


def test_the_same_key_with_another_body_is_refused(client, sync):
    client("POST", "/v1/runs/sync", ORDER, 202)
    assert client("POST", "/v1/runs/sync", {**ORDER, "total": 13}, 422)["next"]


@pytest.mark.parametrize("headers", [{}, {"idempotency_key": "k-1"}], ids=["bare", "with a request key"])
def test_a_body_of_wrong_types_is_refused_and_the_corrected_one_is_taken(app, client, sync, headers):
    refused = client("POST", "/v1/runs/greet", {"name": "ann", "word": 5}, 400, **headers)
    assert "greet declares word: str" in refused["detail"] and refused["next"]
    run = client("POST", "/v1/runs/greet", {"name": "ann", "word": "hi"}, 202, **headers)["run"]
    work(app)
    assert client("GET", f"/v1/runs/{run}", status=200)["result"] == "hi ann"


def test_a_body_is_spread_by_name_where_a_flow_takes_several(app, client, sync):
    run = client("POST", "/v1/runs/greet", {"name": "ann"}, 202)["run"]
    work(app)
    assert client("GET", f"/v1/runs/{run}", status=200)["result"] == "hello ann"


def test_a_flow_that_takes_nothing_is_started_with_nothing(client, sync):
    client("POST", "/v1/runs/nightly", status=202)
    client("POST", "/v1/runs/nightly", {}, 200)


@pytest.mark.parametrize("body", [{"nom": "ann"}, {"name": "ann", "x": 1}, [1], "ann", None, {}])
def test_a_body_that_does_not_fit_the_flow_is_refused(client, sync, body):
    assert "greet takes (name, word)" in client("POST", "/v1/runs/greet", body, 400)["detail"]


def test_a_body_without_what_the_key_is_made_of_is_refused(client, sync):
    client("POST", "/v1/runs/sync", {"total": 1}, 400)


def test_a_body_around_the_one_thing_that_a_flow_takes_is_told_apart(app, client):
    @app.flow(key="order:{order}", name="ship", stable=("order",))
    def ship(order: str):
        return order

    refused = client("POST", "/v1/runs/ship", {"order": "5"})
    assert refused.status == 400 and "the value of 'order' by itself" in refused.json["next"]
    assert client("POST", "/v1/runs/ship", "5").status == 202


def test_a_flow_that_is_not_there_is_told_with_those_that_are(client, sync):
    assert "greet, nightly, sync" in client("POST", "/v1/runs/snyc", {}, 404)["next"]


@pytest.mark.parametrize("again", ["abc", '"abc"', ' "abc" '])
def test_one_request_key_is_one_request_quoted_or_bare(client, sync, again):
    first = client("POST", "/v1/runs/sync", ORDER, 202, idempotency_key="abc")
    assert client("POST", "/v1/runs/sync", ORDER, 200, idempotency_key=again)["run"] == first["run"]


@pytest.mark.parametrize("value", MALFORMED)
def test_a_malformed_request_key_is_refused_as_by_the_middleware_and_starts_nothing(client, sync, value):
    refused = client("POST", "/v1/runs/sync", ORDER, 400, idempotency_key=value)
    assert refused["type"] == "urn:twiceproof:idempotency-key-malformed"
    assert client("GET", "/v1/runs")["runs"] == []


def test_a_request_key_with_another_body_starts_nothing(client, sync):
    client("POST", "/v1/runs/sync", ORDER, 202, idempotency_key="abc")
    client("POST", "/v1/runs/sync", {"id": 8, "total": 1}, 422, idempotency_key="abc")
    assert len(client("GET", "/v1/runs")["runs"]) == 1


def test_a_request_key_is_its_callers_own(app, sync):
    """Two callers that count from one do not meet, and neither learns what the other asked for."""
    a, b, nobody = Client(app, "a"), Client(app, "b"), Client(app)
    orders = [{"id": number, "total": 1} for number in (1, 2, 3, 4)]
    runs = [
        client("POST", "/v1/runs/sync", order, 202, idempotency_key=key)["run"]
        for client, order, key in zip((a, b, nobody, nobody), orders, ("k-1", "k-1", "k-1", "a/k-1"), strict=True)
    ]
    assert len(set(runs)) == 4
    assert a("POST", "/v1/runs/sync", orders[0], 200, idempotency_key="k-1")["run"] == runs[0]
    a("POST", "/v1/runs/sync", orders[1], 422, idempotency_key="k-1")


def test_two_request_keys_for_one_order_are_one_run(client, sync):
    """A browser that draws a new key per click does not defeat the flow's own key."""
    first = client("POST", "/v1/runs/sync", ORDER, 202, idempotency_key="click-1")
    assert client("POST", "/v1/runs/sync", ORDER, 200, idempotency_key="click-2")["run"] == first["run"]


def test_a_refused_start_leaves_its_request_key_free(client, sync):
    client("POST", "/v1/runs/sync", {"total": 1}, 400, idempotency_key="abc")
    client("POST", "/v1/runs/sync", ORDER, 202, idempotency_key="abc")


def test_a_wait_ends_with_the_run(app, client, sync):
    client("POST", "/v1/runs/sync", ORDER, 202)
    work(app)
    assert client("POST", "/v1/runs/sync?wait=5s", ORDER, 200)["result"] == {"charged": 12.5}


@pytest.mark.parametrize("wait", ["soon", "-1s", "5"])
def test_a_wait_that_is_none_is_refused(client, sync, wait):
    client("POST", f"/v1/runs/sync?wait={wait}", ORDER, 400)


def test_a_run_that_failed_says_why_and_is_tried_again(app, client, sync, broken):
    broken.append(NotDone("a bug", final=True))
    run = client("POST", "/v1/runs/sync", ORDER, 202)["run"]
    work(app)
    assert "a bug" in client("POST", "/v1/runs/sync", ORDER, 200)["error"]
    assert client("POST", f"/v1/runs/{run}/retry", status=200)["state"] == "queued"
    work(app)
    assert client("GET", f"/v1/runs/{run}")["run"]["state"] == "done"
    assert "nothing to try again" in client("POST", f"/v1/runs/{run}/retry", status=409)["detail"]


def test_a_run_in_review_is_settled(app, client, sync, broken):
    broken.append(TimeoutError("no answer"))
    run = client("POST", "/v1/runs/sync", ORDER, 202)["run"]
    work(app)
    assert [one["run"] for one in client("GET", "/v1/runs?state=review")["runs"]] == [run]
    client("POST", f"/v1/reviews/{run}", {"verdict": "happened", "by": "ann"}, 409)
    word = {"verdict": "happened", "result": {"charged": 1}, "by": "ann", "note": "asked the bank"}
    assert client("POST", f"/v1/reviews/{run}", word, 200)["state"] == "queued"
    work(app)
    assert client("GET", f"/v1/runs/{run}")["result"] == {"charged": 1}
    assert client("GET", f"/v1/runs/{run}")["settled"]["by"] == "ann"


def test_what_needs_no_word_is_told_with_a_next_move_of_its_own(app, client, sync):
    run = client("POST", "/v1/runs/sync", ORDER, 202)["run"]
    work(app)
    told = client("POST", f"/v1/reviews/{run}", {"verdict": "happened", "result": 1, "by": "ann"}, 409)
    assert told["detail"].endswith("there is nothing to settle")
    assert told["next"] == f"Look at it with: twiceproof runs show {run}"


def test_a_token_settles_under_its_own_name(app, sync, broken):
    broken.append(TimeoutError("no answer"))
    client = Client(app, by="ann")
    run = client("POST", "/v1/runs/sync", ORDER, 202)["run"]
    work(app)
    client("POST", f"/v1/reviews/{run}", {"verdict": "abandon", "by": "bob"}, 200)
    assert client("GET", f"/v1/runs/{run}")["settled"]["by"] == "ann"


def test_a_run_is_cancelled_before_it_begins(app, client, sync):
    run = client("POST", "/v1/runs/sync", ORDER, 202)["run"]
    assert client("POST", f"/v1/runs/{run}/cancel", {"by": "ann"}, 200)["state"] == "failed"
    work(app)
    assert client("GET", f"/v1/runs/{run}")["steps"] == []


def test_runs_are_listed_page_by_page_and_filtered(app, client, sync):
    for n in range(5):
        client("POST", "/v1/runs/sync", {"id": n, "total": 1}, 202)
    client("POST", "/v1/runs/greet", {"name": "ann"}, 202)
    first = client("GET", "/v1/runs?flow=sync&limit=3", status=200)
    rest = client("GET", f"/v1/runs?flow=sync&limit=3&after={first['after']}", status=200)
    assert (len(first["runs"]), len(rest["runs"])) == (3, 2)
    assert {one["key"] for page in (first, rest) for one in page["runs"]} == {f"order:{n}" for n in range(5)}
    assert [one["key"] for one in client("GET", "/v1/runs?prefix=greet")["runs"]] == ["greet:ann"]
    assert client("GET", "/v1/runs?state=done")["runs"] == []
    assert client("GET", "/v1/runs?state=all")["runs"] == client("GET", "/v1/runs")["runs"]


ELSEWHERE = b64encode(b"done:lane-3:x").decode()  # a cursor of another kind of store


@pytest.mark.parametrize("query", ["state=open", "limit=0", "limit=x", "since=yesterday"])
def test_a_question_that_is_none_is_refused(client, sync, query):
    assert client("GET", f"/v1/runs?{query}", status=400)["next"]


@pytest.mark.parametrize("name", ["since", "until"])
@pytest.mark.parametrize("time", ["nan", "NaN", "inf", "-inf", "-1", "1e300", "1789000000000"])
def test_a_time_that_no_run_can_have_is_refused(client, sync, name, time):
    assert name in client("GET", f"/v1/runs?{name}={time}", status=400)["detail"]


@pytest.mark.parametrize("time", ["0", "-0", "1.5", "1789000000", "253402300800"])
def test_a_time_that_a_run_can_have_is_taken(client, sync, time):
    client("GET", f"/v1/runs?since={time}&until={time}", status=200)


@pytest.mark.parametrize("after", ["zz", "%C2%A3", ELSEWHERE])
def test_a_place_that_is_not_in_the_list_is_not_found(tmp_path, after):
    with App(f"sqlite:///{tmp_path}/ledger.db") as app:
        assert "leave it out" in Client(app)("GET", f"/v1/runs?after={after}", status=404)["next"]
        assert Client(app)("GET", "/v1/runs?after=", status=200)["runs"] == []


@pytest.mark.parametrize("tenant", ["acme", "zebra"])
def test_a_cursor_tells_nothing_of_another_tenants_keys(app, client, sync, tenant, monkeypatch):
    monkeypatch.setattr(listing, "SCAN", 4)
    theirs = Client(app, tenant=tenant)
    for number in range(9):
        client("POST", "/v1/runs/sync", {"id": f"secret-{number}", "total": 1}, 202)
    for number in range(4):
        theirs("POST", "/v1/runs/sync", {"id": number, "total": 1}, 202)
    found, path = [], "/v1/runs?limit=2"
    while path:
        page = theirs("GET", path, status=200)
        found += [run["key"] for run in page["runs"]]
        after = page["after"] or ""
        for cursor in (after, page["before"] or "", page["newer"] or ""):
            assert b"secret" not in b64decode(cursor + "===", b"-_")
        path = after and f"/v1/runs?limit=2&after={after}"
    assert found == [f"order:{number}" for number in reversed(range(4))]


@pytest.mark.parametrize("spelled", [run_id, short_id])
@pytest.mark.parametrize("space", ["default/sync/none", "acme/sync/order:7"])
def test_the_id_of_what_is_not_there_or_another_tenants_is_unknown(app, client, sync, space, spelled):
    Client(app, tenant="acme")("POST", "/v1/runs/sync", ORDER, 202)
    client("GET", f"/v1/runs/{spelled(space)}", status=404)
    client("POST", f"/v1/runs/{spelled(space)}/cancel", status=404)
    client("POST", f"/v1/reviews/{spelled(space)}", {"verdict": "abandon", "by": "ann"}, 404)


@pytest.mark.parametrize("name", ["run_zz", "nonsense", run_id("default/sync/none"), run_id("acme/sync/order:7")])
def test_what_is_not_there_or_another_tenants_is_not_found(app, client, sync, name):
    theirs = Client(app, tenant="acme")("POST", "/v1/runs/sync", ORDER, 202)
    assert theirs["run"] == short_id("acme/sync/order:7") and client("GET", "/v1/runs")["runs"] == []
    client("GET", f"/v1/runs/{name}", status=404)
    client("POST", f"/v1/runs/{name}/cancel", status=404)
    client("POST", f"/v1/runs/{name}/retry", status=404)
    client("POST", f"/v1/reviews/{name}", {"verdict": "abandon", "by": "ann"}, 404)


def test_a_cancelled_run_is_not_revived(client, sync):
    run = sync.start({"id": 7}).id
    client("POST", f"/v1/runs/{run}/cancel", {"by": "ann"}, 200)
    assert "cancelled by ann" in client("POST", f"/v1/runs/{run}/retry", status=409)["detail"]
    assert client("GET", f"/v1/runs/{run}", status=200)["undoing"] == "cancelled"


def test_a_claim_is_no_run_to_be_cancelled(client, sync):
    run = client("PUT", "/v1/claims/ship/1", {}, 201)["run"]
    client("POST", f"/v1/runs/{run}/cancel", status=404)
    client("GET", f"/v1/runs/{run}", status=404)


def test_an_unclean_failure_of_the_flow_is_not_a_failure_of_the_door(app: App, client, sync, broken):
    broken.append(NotDone("closed", retry_after=99))
    client("POST", "/v1/runs/sync", ORDER, 202)
    work(app)
    assert client("POST", "/v1/runs/sync", ORDER, 200)["state"] == "waiting"


def test_a_key_function_that_breaks_leaves_its_request_key_free(app, client):
    """It is not busy for half a minute, nor bound for ever to a body that started nothing."""

    @app.flow(key=lambda order: order["id"])
    def ship(order):
        return order

    client("POST", "/v1/runs/ship", {"nr": "17"}, 500, idempotency_key="req-1")
    client("POST", "/v1/runs/ship", {"id": "17"}, 202, idempotency_key="req-1")
    client("POST", "/v1/runs/ship", {"id": "18"}, 422, idempotency_key="req-1")


@pytest.mark.parametrize("how", ["retry", "reviews"])
def test_a_run_whose_code_broke_off_goes_on_after_a_fix(app, client, how):
    mistaken = [True]

    @app.flow(key="order:{order[id]}", name="sync")
    def flow(order):
        return order.total if mistaken else order["total"]

    run = client("POST", "/v1/runs/sync", ORDER, 202)["run"]
    work(app)
    assert "broke off with AttributeError" in client("GET", f"/v1/runs/{run}")["run"]["reason"]
    mistaken.clear()
    if how == "retry":
        assert client("POST", f"/v1/runs/{run}/retry", status=200)["state"] == "queued"
    else:
        word = {"verdict": "retry", "by": "ann", "note": "repaired"}
        assert client("POST", f"/v1/reviews/{run}", word, 200)["state"] == "queued"
    work(app)
    assert client("GET", f"/v1/runs/{run}")["result"] == ORDER["total"]


@pytest.mark.parametrize("spelled", [short_id, run_id, lambda space: space.partition("/")[2].replace("/", "%2F")])
def test_a_run_is_named_by_either_id_and_as_flow_and_key(app, client, sync, broken, spelled):
    broken.append(NotDone("closed", final=True))
    begun = client("POST", "/v1/runs/sync", ORDER, 202)
    name = spelled("default/sync/order:7")
    assert begun["run"] == short_id("default/sync/order:7")
    assert begun.headers["location"] == f"/v1/runs/{begun['run']}"
    work(app)
    assert client("GET", f"/v1/runs/{name}", status=200)["run"]["run"] == begun["run"]
    assert client("POST", f"/v1/runs/{name}/retry", status=200)["run"] == begun["run"]
    assert client("POST", f"/v1/runs/{name}/cancel", {"by": "ann"}, 200)["run"] == begun["run"]


@pytest.mark.parametrize("spelled", [short_id, run_id])
def test_a_review_is_settled_by_either_id(app, client, sync, broken, spelled):
    broken.append(TimeoutError("no answer"))
    client("POST", "/v1/runs/sync", ORDER, 202)
    work(app)
    name = spelled("default/sync/order:7")
    settled = client("POST", f"/v1/reviews/{name}", {"verdict": "abandon", "by": "ann"}, 200)
    assert settled["run"] == short_id("default/sync/order:7")


def test_a_request_that_comes_again_is_answered_by_the_same_id(app, client, sync):
    first = client("POST", "/v1/runs/sync", ORDER, 202, idempotency_key="abc")
    again = client("POST", "/v1/runs/sync", ORDER, 200, idempotency_key="abc")
    assert first["run"] == again["run"] == short_id("default/sync/order:7")
