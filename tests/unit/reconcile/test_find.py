"""What `find` declares: ready-made symptoms, the ledger alone, and refusals."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from tests.unit.reconcile.shop import Shop
from twiceproof import Misuse, NeedsReview, OutcomeUnknown


def found_by(shop: Shop, app, declare) -> list[tuple[str, str]]:
    @app.reconcile(grace="0s", name=f"invoices{len(app.reconciliations)}")
    def one(find):
        yield declare(find)

    report = app.reconcile_now(one.flow.name, tick=shop.tick())
    return [(found.check, found.key) for found in report.findings]


@pytest.fixture
def app(shop: Shop):
    return shop.stage.process()


def test_two_records_with_one_identity_are_found_whatever_their_case(shop, app):
    people = [{"id": number, "email": f"user{number}@example.com"} for number in range(2_000)]
    chosen = random.Random(3).sample(range(2_000), 50)
    people += [{"id": 10_000 + number, "email": f" USER{number}@Example.com"} for number in chosen]
    seen = found_by(shop, app, lambda find: find.same_identity(find.source("people", people, key="{id}", id="{id}")))
    assert {key for _, key in seen} == {f"user{number}@example.com" for number in chosen}
    assert {check for check, _ in seen} == {"same-identity:people"}


def test_two_charges_for_one_order_are_found_among_those_that_count(shop, app):
    charges = [{"id": f"ch_{number}", "order": number, "state": "paid"} for number in range(2_000)]
    chosen = random.Random(5).sample(range(2_000), 100)
    charges += [{"id": f"again_{number}", "order": number, "state": "paid"} for number in chosen[:50]]
    charges += [{"id": f"failed_{number}", "order": number, "state": "failed"} for number in chosen[50:]]

    def declare(find):
        source = find.source("charges", charges, key="{id}", id="{id}")
        return find.charges_per_order(source, order="{order}", where=lambda row: row["state"] == "paid")

    assert {key for _, key in found_by(shop, app, declare)} == {str(number) for number in chosen[:50]}


@pytest.mark.parametrize("symptom", ["identity", "charges", "mails"])
def test_a_symptom_is_found_at_a_source_that_is_looked_at_by_its_own_key(shop, app, symptom):
    """The look knows the source's key. Asked for a mail address, it finds nothing, and the duplicate seemed gone."""
    rows = [{"id": number, "email": "ann@example.com", "order": 7} for number in (1, 3)]
    asked = []

    def look(key):
        asked.append(key)
        return [row for row in rows if str(row["id"]) == key]

    def declare(find):
        source = find.source("rows", rows, key="{id}", id="{id}", look=look)
        match symptom:
            case "identity":
                return find.same_identity(source)
            case "charges":
                return find.charges_per_order(source, order="{order}")
        return find.mails_per_customer(source, customer="{email}")

    assert {key for _, key in found_by(shop, app, declare)} == {"7" if symptom == "charges" else "ann@example.com"}
    assert asked == []


def test_a_look_that_returns_a_row_without_its_key_tells_nothing(shop, app):
    def declare(find):
        orders = find.source("shop", [{"id": 1}], key="order:{id}")
        books = find.source("books", [], key="order:{reference}", empty=True, look=lambda key: [{"number": "in_1"}])
        return find.missing(orders, books)

    assert found_by(shop, app, declare) == []


def test_a_check_of_something_that_is_no_source_is_refused(shop, app):
    with pytest.raises(Misuse, match=r"find.missing takes what find.source\(…\) or find.ledger\(…\) returned"):
        found_by(shop, app, lambda find: find.missing("shop", "books"))


def test_two_mails_to_one_customer_are_found_within_the_time(shop, app):
    now = datetime.fromtimestamp(shop.stage.clock.now(), UTC)
    old, new = (now - timedelta(days=40)).isoformat(), now.isoformat()
    mails = [{"id": number, "to": f"c{number}@b.de", "kind": "welcome", "at": new} for number in range(500)]
    mails.append({"id": 1_000, "to": "c7@b.de", "kind": "welcome", "at": new})
    mails.append({"id": 1_001, "to": "C8@b.de", "kind": "welcome", "at": new})
    mails.append({"id": 1_002, "to": "c9@b.de", "kind": "welcome", "at": old})
    mails.append({"id": 1_003, "to": "c10@b.de", "kind": "bill", "at": new})

    def declare(find):
        source = find.source("mails", mails, key="{id}", id="{id}", at="{at}")
        return find.mails_per_customer(source, customer="{to}:{kind}")

    assert {key for _, key in found_by(shop, app, declare)} == {"c7@b.de:welcome", "c8@b.de:welcome"}


def test_the_ledger_alone_shows_reviews_and_steps_without_their_id(shop, app):
    @app.step(repeat="never", external="inv:{result[id]}")
    def create(order: int) -> dict:
        if order == 1:
            raise OutcomeUnknown("no answer")
        return {"id": "in_2"} if order == 2 else {}

    @app.flow(key="order:{order}", stable=("order",))
    def sync(order: int) -> dict:
        return create(order)

    with pytest.raises(NeedsReview):
        sync(1)
    sync(2)
    sync(3)
    seen = found_by(shop, app, lambda find: find.ledger_only())
    assert seen == [("ledger", "sync/order:1"), ("ledger", "sync/order:3/create")]


def test_the_ledger_alone_shows_keys_that_are_forgotten_too_early(shop, app):
    @app.flow(key="{event[id]}")
    def handle(event: dict) -> None: ...

    with pytest.warns(Warning, match="processed twice"):
        app.webhook("stripe", secret="whsec_x", start=handle, keep="1h")
    assert found_by(shop, app, lambda find: find.ledger_only()) == [("ledger", "webhook/stripe")]


def test_the_tick_and_times_before_it_are_the_same_in_every_attempt(shop, app):
    seen = []

    def declare(find):
        seen.append((find.tick, find.since("30d")))
        return find.ledger_only()

    found_by(shop, app, declare)
    assert {tick - since for tick, since in seen} == {timedelta(days=30)}


def test_declarations_that_cannot_be_meant_are_refused(shop, app):
    class Unstable:
        unstable = True

        def rows(self, reading):
            return iter([{"id": 1}])

    def source(find, name="a", rows=({"id": 1},)):
        return find.source(name, rows, key="{id}")

    wrong = [
        lambda find: find.duplicates(source(find, rows=Unstable())),
        lambda find: find.missing(one := source(find), one),
        lambda find: find.disagree(source(find), source(find, "b")),
        lambda find: find.ledger(len),
        lambda find: find.differ(source(find), source(find, "b"), fields={}),
        lambda find: (source(find), source(find)),
        lambda find: find.duplicates(source(find), then="undo"),
    ]
    for declare in wrong:
        with pytest.raises(Misuse):
            found_by(shop, app, declare)


def test_a_source_that_no_check_uses_is_not_read(shop, app):
    read = []

    def declare(find):
        find.source("unused", lambda: read.append(1), key="{id}")
        return find.duplicates(find.source("used", [{"id": 1}], key="{id}", id="{id}"))

    assert found_by(shop, app, declare) == [] and not read
