"""Messages, brokers and consumers at their addresses: listed, shown, resent, dropped, paused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.outbox.stand_in import NO_ROUTE, StandInBroker
from tests.unit.server.routes.client import Client
from twiceproof import App, Retry


@pytest.fixture
def broker(app: App) -> StandInBroker:
    made = StandInBroker()
    app.broker("main", made, retry=Retry(attempts=1))
    app.broker("audit", made)
    app.route("orders.*", to="main")
    app.route("orders.audited", to="audit")
    return made


@pytest.fixture
def parked(app: App, broker: StandInBroker) -> str:
    broker.always["order:17:paid"] = NO_ROUTE
    app.send("orders.paid", {"card": "4111"}, key="order:17:paid")
    app.send("orders.paid", {"id": 18}, key="order:18:paid")
    app.relay().run(until_idle=True)
    return "order:17:paid"


def states(client: Client, query: str = "") -> dict[str, str]:
    found = client("GET", f"/v1/messages{query}", status=200).json
    return {one["key"]: one["state"] for one in found["messages"]}


def test_messages_are_listed_without_their_bodies(client, parked):
    listed = client("GET", "/v1/messages", status=200)
    assert "4111" not in listed.text and listed["more"] is False
    assert states(client) == {parked: "parked"}
    assert states(client, "?state=all") == {parked: "parked", "order:18:paid": "sent"}
    assert states(client, "?state=sent&to=main&topic=orders.paid") == {"order:18:paid": "sent"}
    assert client("GET", "/v1/messages?state=all&limit=1", status=200)["more"] is True
    client("GET", "/v1/messages?state=shut", status=400)
    client("GET", "/v1/messages?sort=key", status=400)


def test_one_message_is_shown_with_its_body(client, parked):
    shown = client("GET", f"/v1/messages/{parked}", status=200).json
    assert (shown["state"], shown["why"], shown["body"]) == ("parked", "no such queue", {"card": "4111"})
    client("GET", "/v1/messages/order:99:paid", status=404)


def test_a_parked_message_is_resent_with_the_same_key(app, client, broker, parked):
    broker.always.clear()
    resent = client("POST", f"/v1/messages/{parked}", {"decision": "resend", "by": "ann", "note": "made it"})
    assert (resent.status, resent["state"], resent["by"]) == (200, "pending", "ann") and "4111" not in resent.text
    app.relay().run(until_idle=True)
    assert broker.keys.count(parked) == 1 and states(client) == {}


def test_a_parked_message_is_resent_with_a_new_key(app, client, broker, parked):
    body = {"decision": "resend", "as_new": True, "by": "ann"}
    fresh = client("POST", f"/v1/messages/{parked}", body, status=200)["key"]
    app.relay().run(until_idle=True)
    assert fresh != parked and broker.keys.count(fresh) == 1
    old = client("GET", f"/v1/messages/{parked}", status=200).json
    assert old["state"] == "dropped" and [one["outcome"] for one in old["attempts"]] == ["refused"]


def test_a_message_is_dropped_once(client, parked):
    dropped = client("POST", f"/v1/messages/{parked}", {"decision": "drop", "by": "ann"}, status=200)
    assert dropped["state"] == "dropped"
    again = client("POST", f"/v1/messages/{parked}", {"decision": "drop", "by": "ann"}, status=409)
    assert again["type"].endswith("message-settled") and "GET /v1/messages" in again["next"]


def test_the_name_of_the_token_decides_over_what_is_sent(app, parked):
    body = {"decision": "drop", "by": "ann"}
    assert Client(app, by="ben")("POST", f"/v1/messages/{parked}", body, status=200)["by"] == "ben"


def test_what_cannot_be_decided_is_refused_with_the_next_move(client, parked):
    client("POST", f"/v1/messages/{parked}", {"decision": "drop"}, status=400)
    client("POST", f"/v1/messages/{parked}", {"decision": "forget", "by": "ann"}, status=400)
    client("POST", "/v1/messages/none", {"decision": "drop", "by": "ann"}, status=404)
    client("POST", "/v1/messages/order:18:paid", {"decision": "resend", "by": "ann"}, status=409)


def test_a_message_to_several_brokers_is_named_with_one(app, client, broker):
    app.send("orders.audited", 1, key="both")
    several = client("GET", "/v1/messages/both", status=409)
    assert several["type"].endswith("several-messages") and "audit, main" in several["detail"]
    assert client("GET", "/v1/messages/both?to=audit", status=200)["target"] == "audit"
    client("POST", "/v1/messages/both", {"decision": "drop", "by": "ann"}, status=409)
    client("POST", "/v1/messages/both", {"decision": "drop", "by": "ann", "to": "audit"}, status=200)
    assert client("GET", "/v1/messages/both?to=main", status=200)["state"] == "pending"


def test_what_is_no_name_of_a_broker_is_refused(client, parked):
    client("GET", "/v1/messages?to=a%2Fb", status=400)
    client("GET", f"/v1/messages/{parked}?to=%C2%84", status=400)
    client("POST", f"/v1/messages/{parked}", {"decision": "drop", "by": "ann", "to": "a/b"}, status=400)
    client("GET", f"/v1/messages/{parked}?to=main", status=200)


def test_another_tenants_messages_are_not_there(app, parked):
    other = Client(app, by="eve", tenant="acme")
    assert states(other, "?state=all") == {}
    other("GET", f"/v1/messages/{parked}", status=404)
    other("POST", f"/v1/messages/{parked}", {"decision": "drop"}, status=404)


def test_brokers_and_consumers_are_listed(app, client, broker):
    @app.flow(key="order:{order[id]}")
    def sync(order: dict[str, Any]) -> None: ...

    app.consume("main/orders", start=sync)
    main, audit = client("GET", "/v1/brokers", status=200)["brokers"]
    assert main == {"name": "main", "routes": ["orders.*"], "consumers": ["main/orders"], "paused": None}
    assert audit["routes"] == ["orders.audited"]
    (consumer,) = client("GET", "/v1/consumers", status=200)["consumers"]
    assert (consumer["name"], consumer["starts"], consumer["broker_declared"]) == ("main/orders", "sync", True)


def test_a_paused_broker_gets_nothing_until_it_is_resumed(app, client, broker):
    paused = client("POST", "/v1/brokers/main", {"decision": "pause", "by": "ann", "note": "theirs"}, status=200)
    assert (paused["target"], paused["by"], paused["why"]) == ("main", "ann", "theirs")
    app.send("orders.paid", 1, key="k")
    app.relay().run(until_idle=True)
    assert broker.keys == []
    assert client("GET", "/v1/brokers", status=200)["brokers"][0]["paused"]["by"] == "ann"
    client("POST", "/v1/brokers/main", {"decision": "resume", "by": "ann"}, status=200)
    app.relay().run(until_idle=True)
    assert broker.keys == ["k"]
    client("POST", "/v1/brokers/main", {"decision": "resume", "by": "ann"}, status=409)


def test_only_the_apps_own_tenant_pauses_and_lists_brokers(app, broker):
    other = Client(app, by="eve", tenant="acme")
    other("POST", "/v1/brokers/main", {"decision": "pause"}, status=403)
    other("GET", "/v1/brokers", status=403)
    other("GET", "/v1/consumers", status=403)


def test_a_pause_of_an_unknown_broker_or_by_nobody_is_refused(client, broker):
    client("POST", "/v1/brokers/mian", {"decision": "pause", "by": "ann"}, status=404)
    client("POST", "/v1/brokers/main", {"decision": "pause"}, status=400)
