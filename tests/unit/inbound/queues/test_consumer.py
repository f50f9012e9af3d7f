"""Declarations of consumers, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.inbound.queues.post_office import PostOffice
from twiceproof import App, Misuse, by
from twiceproof.brokers.base import QueueDelivery
from twiceproof.errors import UnstableKeyWarning
from twiceproof.inbound.queues.admissions import admit_delivery
from twiceproof.operations import block


def send(body: Any) -> None:
    """A consumer's function."""


def sync_of(app: App, **options: Any) -> Any:
    @app.flow(**{"key": "order:{order[id]}", "name": "sync", **options})
    def sync(order: dict[str, Any]) -> None: ...

    return sync


@pytest.mark.parametrize(
    "key",
    [
        "{delivery[tag]}",
        "{delivery[times]}",
        "{delivery[until]}",
        "{delivery[receipt_handle]}",
        "{delivery}",
        "m:{body[id]}:{delivery[redelivered]}",
        "{headers[x-delivery-count]}",
        "{headers[X-Death]}",
        "{headers[redelivered]}",
        "{headers[lock-token]}",
    ],
)
def test_a_key_that_is_new_at_each_delivery_is_refused(app: App, key: str) -> None:
    with pytest.raises(Misuse, match="each redelivery would be new work; use an id of the message"):
        app.consume("main/orders", key=key, inline=True)(send)
    assert not app.consumers


@pytest.mark.parametrize(
    "key", ["{delivery[key]}", "{headers[ce-id]}", "mail:{body[id]}", "{delivery[place]}:{body[id]}"]
)
def test_a_key_that_stays_is_accepted(app: App, key: str) -> None:
    app.consume("main/orders", key=key, inline=True)(send)
    assert app.consumers["main/orders"].key_text == key


def test_a_flow_whose_own_key_is_new_each_time_is_refused(app: App) -> None:
    @app.flow(key="{delivery[times]}", ignore=("delivery",))
    def sync(order: Any, delivery: Any) -> None: ...

    with pytest.raises(Misuse, match="each redelivery would be new work"):
        app.consume("main/orders", start=sync)


def test_a_sequence_as_key_is_warned_about(app: App) -> None:
    with pytest.warns(UnstableKeyWarning, match="a message that is published twice has two"):
        app.consume("main/orders", key="{delivery[sequence]}", inline=True)(send)


def test_a_sequence_that_is_declared_stable_is_not_warned_about(app: App) -> None:
    app.consume("main/orders", key="{delivery[sequence]}", inline=True, stable=("delivery.sequence",))(send)
    assert "main/orders" in app.consumers


def test_a_field_whose_name_changes_is_warned_about(app: App) -> None:
    with pytest.warns(UnstableKeyWarning, match="headers.x-attempt"):
        app.consume("main/orders", key="{headers[x-attempt]}", inline=True)(send)


def test_a_warning_names_the_line_of_the_declaration(app: App) -> None:
    with pytest.warns(UnstableKeyWarning) as caught:
        app.consume("main/orders", key="{delivery[sequence]}", start=sync_of(app))
    assert caught[0].filename == __file__


@pytest.mark.parametrize("name", ["delivery", "headers"])
def test_a_flow_that_compares_what_varies_is_refused(app: App, name: str) -> None:
    def function(order: Any, delivery: Any = None, headers: Any = None) -> None: ...

    other = "headers" if name == "delivery" else "delivery"
    flow = app.flow(key="order:{order[id]}", ignore=(other,), name="sync")(function)
    with pytest.raises(Misuse, match=rf'ignore=\("{name}",\)'):
        app.consume("main/orders", start=flow)


@pytest.mark.parametrize(("version", "refused"), [("{order[version]}", True), ("{delivery[sequence]}", False)])
def test_a_delivery_may_be_taken_for_its_version(app: App, version: str, refused: bool) -> None:
    @app.flow(key="{order[id]}", order=by(object="{order[id]}", version=version))
    def sync(order: Any, delivery: Any) -> None: ...

    if refused:
        with pytest.raises(Misuse, match="ignore="):
            app.consume("main/orders", start=sync)
    else:
        app.consume("main/orders", start=sync)


@pytest.mark.parametrize("place", ["orders", "/orders", "main/", "", 17])
def test_a_place_needs_a_broker_and_a_queue(app: App, place: Any) -> None:
    with pytest.raises(Misuse, match='"BROKER/QUEUE"'):
        app.consume(place, start=sync_of(app))


def test_a_place_may_have_any_letters(app: App) -> None:
    app.consume("main/orders.eu/work:1", key="{body[id]}", inline=True)(send)
    assert app.consumers["main/orders.eu/work:1"].policy.operation == "queue.main.orders.eu.work.1"


def test_two_consumers_of_one_name_are_refused(app: App) -> None:
    app.consume("main/orders", start=sync_of(app))
    app.consume("main/orders", start=sync_of(app))  # the same again, as when a module is loaded twice
    with pytest.raises(Misuse, match="give one of them another name="):
        app.consume("main/orders", inline=True)(send)


def test_two_places_that_would_share_their_claims_are_refused(app: App) -> None:
    app.consume("main/a:b", inline=True)(send)
    with pytest.raises(Misuse, match="give one of them another name="):
        app.consume("main/a+b", inline=True)(send)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"prefetch": 0}, "prefetch=0 is out of range"),
        ({"prefetch": 20_000}, "out of range"),
        ({"poison": "drop"}, "poison='drop' is not known"),
        ({"on_failed": "never"}, "on_failed='never' is not known"),
        ({"keep": "1d"}, "give keep= and lease= to @app.flow"),
        ({"lease": "1d"}, "give keep= and lease= to @app.flow"),
        ({"attempts": 3}, "attempts= is for inline=True"),
        ({"pre": 3}, "pre= is not known"),
        ({"inline": True}, "leave one of them out"),
    ],
)
def test_options_that_do_nothing_are_refused(app: App, options: dict[str, Any], why: str) -> None:
    with pytest.raises(Misuse, match=why):
        app.consume("main/orders", start=sync_of(app), **options)


def test_an_inline_consumer_needs_one_attempt_at_least(app: App) -> None:
    with pytest.raises(Misuse, match="give one or more"):
        app.consume("main/orders", inline=True, attempts=0)(send)


def test_a_plain_function_without_inline_is_refused(app: App) -> None:
    with pytest.raises(Misuse, match="or say inline=True"):
        app.consume("main/orders")(send)


def test_a_flow_may_be_decorated(app: App) -> None:
    app.consume("main/orders")(sync_of(app))
    assert app.consumers["main/orders"].flow.name == "sync"


def test_keep_belongs_to_the_claims_of_a_declared_key(app: App) -> None:
    app.consume("main/orders", start=sync_of(app), key="{body[id]}", keep="90d")
    assert app.consumers["main/orders"].policy.life.keep == 90 * 86_400


def test_a_broker_that_is_not_declared_is_named(app: App) -> None:
    app.consume("main/orders", start=sync_of(app))
    with pytest.raises(Misuse, match=r'declare it: app.broker\("main"'):
        app.consuming()


def test_a_consumer_that_does_not_exist_is_named(app: App, office: PostOffice) -> None:
    app.consume("main/orders", start=sync_of(app))
    with pytest.raises(Misuse, match="those that are declared: main/orders"):
        app.consuming(["main/mails"])


@pytest.mark.parametrize("key", [None, "{body[id]}"])
def test_another_tenant_has_claims_and_runs_of_its_own(app: App, key: str | None) -> None:
    app.consume("main/orders", start=sync_of(app), key=key)
    delivery = QueueDelivery("orders", b'{"id": "17"}', {"content-type": "application/json"}, "m1")
    consumer = app.consumers["main/orders"]
    for view, outcome in ((app, "new"), (app.of("acme"), "new"), (app.of("acme"), "duplicate")):
        assert block(admit_delivery(view.runtime, consumer, delivery)).outcome == outcome
    assert [run.tenant for run in app.runs()] == ["default"]
    assert [run.tenant for run in app.of("acme").runs()] == ["acme"]


def test_a_consumer_is_declared_for_all_tenants(app: App) -> None:
    with pytest.raises(Misuse, match="main/orders cannot be declared for one tenant"):
        app.of("acme").consume("main/orders", start=sync_of(app))
    assert not app.consumers
