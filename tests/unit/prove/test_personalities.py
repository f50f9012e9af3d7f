"""Flows against providers as they are documented: answers lost, windows over, errors replayed, conflicts adopted."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.flows.stage import Died, Stage
from twiceproof import NeedsReview, NotDone, Waiting, env
from twiceproof.claims.claim import address_of
from twiceproof.clock import Clock
from twiceproof.effects import http
from twiceproof.effects.http_client import shared_client
from twiceproof.effects.providers import Provider, normal_key, providers
from twiceproof.effects.repeat import keyed
from twiceproof.prove.worlds.personalities import LOST_AT, ProviderWorld

FIND = http.find("GET /search?reference={effect_key}", at="items[0]")
PATHS = {
    "paypal-orders": "/v2/checkout/orders",
    "paypal-payments": "/v2/payments/captures",
    "paypal-payments-v1": "/v1/payments/payment",
    "paypal-payouts": "/v1/payments/payouts",
    "paypal-subscriptions": "/v1/billing/subscriptions",
    "paypal-vault": "/v3/vault/payment-tokens",
    "mangopay": "/v2.01/shop/payins",
    "hubspot-send": "/marketing/v4/email/single-send",
    "graph-calendar": "/me/events",
    "google-calendar": "/calendar/v3/calendars/shop/events",
    "azure-repeatable": "/emails:send",
}
KEYED = [row for row in providers().values() if row.kind == "keyed" and row.place != "client"]
VERIFIED = [*KEYED, providers()["google-calendar"]]


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()
    shared_client().close()


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[ProviderWorld]:
    row: Provider = request.param
    with ProviderWorld(row.id, hosts=[f"api.{row.id}.test"]) as made:
        yield made


def described(row: Provider, *, amount: int = 5, **options: Any) -> http.HttpEffect:
    path = PATHS.get(row.id, "/v1/payments")
    return http.post(f"https://api.{row.id}.test{path}", json={"amount": amount}, provider=row, **options)


def paying(stage: Stage, make: Callable[[], http.HttpEffect], *, is_async: bool = False, **process: Any) -> Any:
    app = stage.process(**process)
    if is_async:

        @app.effect(external="payment:{result[id]}")
        async def pay(order: int) -> Any:
            return make()

        @app.flow(key="order:{order}", name="sync")
        async def flow(order: int) -> Any:
            return (await pay(order))["id"]

        return lambda order: asyncio.run(flow(order))

    @app.effect(external="payment:{result[id]}")
    def pay(order: int) -> Any:
        return make()

    @app.flow(key="order:{order}", name="sync")
    def flow(order: int) -> Any:
        return pay(order)["id"]

    return flow


def finished(stage: Stage, flow: Any, world: ProviderWorld | None = None) -> Any:
    """Call it until it has ended: where it waits, time goes by, here and at the provider."""
    for _ in range(30):
        try:
            return flow(17)
        except Waiting:
            stage.clock.advance(60)
            if world is not None:
                world.advance(60)
    raise AssertionError("it never ended")


def writes(world: ProviderWorld) -> int:
    return sum(not asked.startswith("GET") for asked in world.exchanges())


# -- answers that are lost -----------------------------------------------------------------------


@pytest.mark.parametrize("world", VERIFIED, indirect=True, ids=lambda row: row.id)
def test_an_answer_lost_after_execution_is_one_effect_with_its_result(world: ProviderWorld) -> None:
    for place in LOST_AT:
        world.reset()
        world.lose_at(1, place)
        stage = Stage()
        assert finished(stage, paying(stage, lambda: described(world.row))) == "r_1"
        assert sum(world.look().values()) == 1, place
        (record,) = world.records()
        assert normal_key(record["key"]) == normal_key(record["effect_key"]) != ""
        stage.close()


@pytest.mark.parametrize("world", KEYED[:1], indirect=True, ids=lambda row: row.id)
@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_a_request_lost_on_its_way_is_sent_again(stage: Stage, world: ProviderWorld, is_async: bool) -> None:
    world.lose_before(1)
    assert finished(stage, paying(stage, lambda: described(world.row), is_async=is_async)) == "r_1"
    assert (writes(world), sum(world.look().values())) == (2, 1)


@pytest.mark.parametrize("world", KEYED[:1], indirect=True, ids=lambda row: row.id)
def test_the_twin_that_ignores_keys_shows_that_they_are_what_protects(stage: Stage, world: ProviderWorld) -> None:
    with ProviderWorld("stripe", hosts=["api.naive.test"], ignores_keys=True) as naive:
        naive.lose_at(1, "silence")
        effect = http.post("https://api.naive.test/v1/payments", json={"amount": 5}, provider="stripe")
        assert finished(stage, paying(stage, lambda: effect)) == "r_2"
        assert sum(naive.look().values()) == 2


@pytest.mark.parametrize("world", KEYED[:1], indirect=True, ids=lambda row: row.id)
@pytest.mark.parametrize("at", [2, 3, 4])
def test_a_process_killed_between_effect_and_record_does_not_pay_twice(
    stage: Stage, world: ProviderWorld, at: int
) -> None:
    make = lambda: described(world.row, look=FIND)  # noqa: E731
    for kill in (at, 1, None):
        try:
            found = finished(stage, paying(stage, make, at=kill))
        except Died:
            stage.lapse()
            stage.clock.advance(40)
    assert found == "r_1"
    assert sum(world.look().values()) == 1


# -- windows -------------------------------------------------------------------------------------

SPANS = ("azure-repeatable", "brevo", "qonto", "paypal-orders", "stripe", "adyen", "paypal-payments")  # 5 min to 45 d
WINDOWS = [providers()[name] for name in SPANS]


@pytest.mark.parametrize("world", WINDOWS, indirect=True, ids=lambda row: row.window)
@pytest.mark.parametrize("looks", [True, False], ids=["with a look", "without"])
def test_a_window_that_is_over_is_followed_by_a_look_or_a_review(
    stage: Stage, world: ProviderWorld, looks: bool
) -> None:
    options = {"look": FIND} if looks else {}
    flow = paying(stage, lambda: described(world.row, **options), at=3)
    with pytest.raises(Died):
        flow(17)
    assert sum(world.look().values()) == 1
    gone = world.row.window_seconds + 60
    stage.clock.advance(gone)
    world.advance(gone)
    again = paying(stage, lambda: described(world.row, **options))
    if looks:
        assert finished(stage, again, world) == "r_1"
    else:
        with pytest.raises(NeedsReview, match=r"forgets keys|nothing says how to look"):
            finished(stage, again, world)
    assert (writes(world), sum(world.look().values())) == (1, 1)


REPEATABLE = providers()["azure-repeatable"]


@pytest.mark.parametrize("world", [REPEATABLE], indirect=True, ids=lambda row: row.id)
@pytest.mark.parametrize("kills", [(), (3,), (3, 3)], ids=["answer lost", "killed", "killed twice"])
def test_the_time_of_the_first_attempt_is_the_same_in_every_attempt(
    stage: Stage, world: ProviderWorld, kills: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another one the provider refuses the key, as it does with another body."""
    days = itertools.count(0.0, 86_400.0)  # of the system's clock, which counts only outside of a run
    monkeypatch.setattr("twiceproof.effects.http_request.system_clock", Clock(now=lambda: next(days)))
    if not kills:
        world.lose_at(1, "silence")
    for at in kills:
        with pytest.raises(Died):
            paying(stage, lambda: described(world.row), at=at)(17)
        stage.lapse()
        stage.clock.advance(40)
    assert finished(stage, paying(stage, lambda: described(world.row))) == "r_1"
    assert (writes(world), sum(world.look().values())) == (max(2, 1 + len(kills)), 1)


@pytest.mark.parametrize("world", [REPEATABLE], indirect=True, ids=lambda row: row.id)
@pytest.mark.parametrize("looks", [True, False], ids=["with a look", "without"])
def test_a_provider_that_calls_the_key_forgotten_did_nothing_and_tells_nothing(
    stage: Stage, world: ProviderWorld, looks: bool
) -> None:
    """Its clock is ahead: it refuses a repeat that is in time for us, and 412 is no word about the first request."""
    make = lambda: described(world.row, **({"look": FIND} if looks else {}))  # noqa: E731
    with pytest.raises(Died):
        paying(stage, make, at=3)(17)
    stage.lapse()
    world.advance(world.row.window_seconds + 1)
    flow = paying(stage, make)
    if looks:
        assert finished(stage, flow) == "r_1"
    else:
        with pytest.raises(NeedsReview):
            finished(stage, flow)
    assert (writes(world), sum(world.look().values())) == (2, 1)


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [providers()["stripe"]], indirect=True, ids=lambda row: row.id)
@pytest.mark.parametrize("looks", [True, False], ids=["with a look", "without"])
def test_a_500_that_is_replayed_is_not_asked_for_again(stage: Stage, world: ProviderWorld, looks: bool) -> None:
    world.fail(1, 500, carried_out=True)
    flow = paying(stage, lambda: described(world.row, **({"look": FIND} if looks else {})))
    if looks:
        assert finished(stage, flow) == "r_1"
    else:
        with pytest.raises(NeedsReview):
            finished(stage, flow)
    assert writes(world) <= 2


@pytest.mark.parametrize("world", [providers()["stripe"]], indirect=True, ids=lambda row: row.id)
def test_the_control_that_only_knows_a_key_asks_eight_times(stage: Stage, world: ProviderWorld) -> None:
    world.fail(1, 500, carried_out=True)

    def plain() -> http.HttpEffect:
        url = "https://api.stripe.test/v1/payments"
        return http.post(url, json={}, headers={"Idempotency-Key": http.KEY}, repeat=keyed(window="24h"))

    with pytest.raises(NeedsReview):
        finished(stage, paying(stage, plain))
    assert writes(world) == 8


@pytest.mark.parametrize("world", [providers()["stripe"]], indirect=True, ids=lambda row: row.id)
def test_a_declined_card_fails_at_once(stage: Stage, world: ProviderWorld) -> None:
    world.fail(1, 402)
    with pytest.raises(NotDone, match="402"):
        finished(stage, paying(stage, lambda: described(world.row)))
    assert (writes(world), world.look()) == (1, {})


@pytest.mark.parametrize("world", [providers()["stripe"]], indirect=True, ids=lambda row: row.id)
def test_a_key_used_for_another_body_is_for_a_person_and_no_refusal(stage: Stage, world: ProviderWorld) -> None:
    bodies = iter(range(100))
    world.lose_at(1, "silence")

    def unstable() -> http.HttpEffect:
        effect = described(world.row)
        return http.post(effect.call.url, content=str(next(bodies)), provider="stripe")

    app = stage.process()

    @app.step(repeat=keyed(window="24h"))
    def pay(order: int) -> Any:
        return unstable().perform(app.effect_key())

    @app.flow(key="order:{order}", name="sync")
    def flow(order: int) -> Any:
        return pay(order)

    with pytest.raises(NeedsReview):
        finished(stage, flow)
    assert (writes(world), sum(world.look().values())) == (2, 1)


BUSY = [row for row in KEYED if row.in_progress]


@pytest.mark.parametrize("world", BUSY, indirect=True, ids=lambda row: row.id)
def test_a_request_in_progress_is_waited_for_with_the_same_key(stage: Stage, world: ProviderWorld) -> None:
    world.be_busy(1)
    assert finished(stage, paying(stage, lambda: described(world.row))) == "r_1"
    assert (writes(world), sum(world.look().values())) == (2, 1)


CONFLICTS = [row for row in KEYED if row.conflict]


@pytest.mark.parametrize("world", CONFLICTS, indirect=True, ids=lambda row: row.id)
def test_a_conflict_that_proves_it_happened_is_adopted(stage: Stage, world: ProviderWorld) -> None:
    world.lose_at(1, "silence")
    assert finished(stage, paying(stage, lambda: described(world.row))) == "r_1"
    assert (writes(world), sum(world.look().values())) == (2, 1)
    assert world.exchanges()[-1].startswith("GET ")


@pytest.mark.parametrize("loses", [True, False], ids=["answer lost", "answered"])
@pytest.mark.parametrize("at", [2, 3])
def test_another_region_within_the_window_is_for_a_person(stage: Stage, at: int, loses: bool) -> None:
    """Regions do not share keys: sent to another one, the same key would pay a second time."""
    region = ["eu"]

    def make() -> http.HttpEffect:
        return http.post(f"https://{region[0]}.adyen.test/v71/payments", json={"amount": 5}, provider="adyen")

    with ProviderWorld("adyen", hosts=["eu.adyen.test", "us.adyen.test"]) as world:
        if loses:
            world.lose_at(1, "silence")
        with pytest.raises(Died):
            finished(stage, paying(stage, make, at=at, landed=at == 2))
        stage.lapse()
        region[0] = "us"
        with pytest.raises(NeedsReview):
            finished(stage, paying(stage, make))
        assert sum(world.look().values()) <= 1


# -- leading back --------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [providers()["mangopay"]], indirect=True, ids=lambda row: row.id)
def test_the_effect_key_is_at_the_target_and_the_external_id_leads_back(stage: Stage, world: ProviderWorld) -> None:
    flow = paying(stage, lambda: described(world.row))
    flow(17)
    (record,) = world.records()
    assert record["effect_key"].startswith("tp_")
    assert record["key"] == record["effect_key"].replace("_", "-")
    assert stage.entries("sync", "order:17")["pay"].note.external == "payment:r_1"


@pytest.mark.parametrize("world", [providers()["stripe"]], indirect=True, ids=lambda row: row.id)
def test_several_that_are_found_are_for_a_person(stage: Stage, world: ProviderWorld) -> None:
    two = http.find("GET /search?reference=tp_00000000000000000000000000000000", at="items[0]")
    for _ in range(2):
        plain = http.post("https://api.stripe.test/v1/x", headers={"Twiceproof-Effect-Key": "tp_" + "0" * 32})
        plain.perform("tp_" + "1" * 32)
    effect = described(world.row, repeat=None, look=two)
    world.fail(3, 500)
    with pytest.raises(NeedsReview, match="2 found"):
        finished(stage, paying(stage, lambda: effect))


@pytest.mark.parametrize("world", [providers()["stripe"]], indirect=True, ids=lambda row: row.id)
def test_no_secret_is_in_the_ledger_or_the_log(
    stage: Stage, world: ProviderWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SHOP_KEY", "sk_live_canary_4711")
    world.lose_at(1, "silence")
    make = lambda: described(world.row, auth=env("SHOP_KEY"), headers={"X-Api-Key": env("SHOP_KEY")})  # noqa: E731
    with caplog.at_level("DEBUG"):
        assert finished(stage, paying(stage, make)) == "r_1"
    steps = stage.engine.scan("step", address_of("default", "sync", "order:17").space, None, None, 10).records
    kept = [str(record) for record in (stage.record("sync", "order:17"), *steps)]
    assert "r_1" in " ".join(kept)
    assert "canary" not in " ".join([*kept, caplog.text])


def test_the_same_upsert_again_is_no_second_effect() -> None:
    def patch(total: int, **headers: str) -> None:
        url = "https://shop.my.salesforce.com/services/data/v60.0/sobjects/Order__c/Ext__c/17"
        http.patch(url, json={"total": total}, headers=headers, provider="salesforce").perform("tp_" + "0" * 32)

    with ProviderWorld("salesforce", hosts=["shop.my.salesforce.com"]) as world:
        for total, effects in ((1, 1), (1, 1), (2, 2), (1, 3)):
            patch(total)
            assert sum(world.look().values()) == effects
        patch(1, **{"If-Match": '"1"'})
        assert sum(world.look().values()) == 4
    shared_client().close()


UPSERTS = {
    "salesforce": ("PATCH", "/services/data/v60.0/sobjects/Order__c/Ext__c/17"),
    "hubspot-upsert": ("POST", "/crm/v3/objects/contacts/batch/upsert"),
    "dataverse": ("PATCH", "/api/data/v9.2/shop_orders(shop_id='17')"),
}


def test_every_upsert_of_the_table_is_among_these() -> None:
    assert [row.id for row in providers().values() if row.kind == "safe"] == sorted(
        UPSERTS, key=list(providers()).index
    )


@pytest.mark.parametrize("world", [providers()[name] for name in UPSERTS], indirect=True, ids=lambda row: row.id)
@pytest.mark.parametrize("place", LOST_AT)
def test_an_upsert_whose_answer_is_lost_is_sent_again_and_happens_once(
    stage: Stage, world: ProviderWorld, place: str
) -> None:
    method, path = UPSERTS[world.row.id]
    url = f"https://api.{world.row.id}.test{path}"
    make = http.patch if method == "PATCH" else http.post
    world.lose_at(1, place)
    assert finished(stage, paying(stage, lambda: make(url, json={"total": 5}, provider=world.row))) == "r_1"
    assert (writes(world), sum(world.look().values())) == (2, 1)


def test_it_says_when_it_was_documented() -> None:
    with ProviderWorld("stripe") as world:
        assert world.behaves_as_documented_on == "2026-11-01"
