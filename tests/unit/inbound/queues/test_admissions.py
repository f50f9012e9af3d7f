"""Deliveries become claims and runs, and each is settled by its own outcome."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.unit.inbound.queues.post_office import PostOffice, post_office, runs
from twiceproof import App, NotDone, by
from twiceproof.brokers.base import Ack, Reject, Requeue
from twiceproof.claims.claim import claim_of
from twiceproof.errors import StoreUnavailable
from twiceproof.inbound.admit import Admitted
from twiceproof.inbound.dead_letters import DeadLetter
from twiceproof.inbound.queues import admissions
from twiceproof.inbound.queues.admissions import settlement_of
from twiceproof.operations import block
from twiceproof.stores.base import scan_all


def flow_of(app: App, seen: list[Any], **options: Any) -> Any:
    @app.flow(key="order:{order[id]}", name="sync", **options)
    def sync(order: dict[str, Any]) -> None:
        seen.append(order["id"])

    return sync


def claims(app: App) -> list[tuple[str, str]]:
    records = [record for kind in ("claim", "run") for record in block(scan_all(app.store, kind))]
    return sorted((claim.operation, claim.key) for claim in map(claim_of, records))


# -- starting runs -------------------------------------------------------------------------------


def test_a_message_starts_one_run_and_is_acknowledged(app: App, office: PostOffice) -> None:
    seen: list[Any] = []
    app.consume("main/orders", start=flow_of(app, seen))
    office.post({"id": 17}, "m1")
    assert office.drain() == {"new": 1} and office.left == []
    assert runs(app) == 1 and seen == [17]


def test_a_message_that_comes_again_is_a_duplicate(app: App, office: PostOffice) -> None:
    seen: list[Any] = []
    app.consume("main/orders", start=flow_of(app, seen))
    for key in ("m1", "m1", "m2"):  # redelivered, and published a second time
        office.post({"id": 17}, key)
    assert office.drain() == {"new": 1, "duplicate": 2} and office.left == []
    assert runs(app) == 1 and seen == [17]


def test_a_message_without_key_has_one_claim_only(app: App, office: PostOffice) -> None:
    app.consume("main/orders", start=flow_of(app, []))
    office.post({"id": 17}, "m1")
    office.drain()
    assert claims(app) == [("sync", "order:17")]


def test_with_a_key_the_message_has_a_claim_of_its_own(app: App, office: PostOffice) -> None:
    app.consume("main/orders", start=flow_of(app, []), key="mail:{headers[CE-ID]}")
    office.post({"id": 17}, "m1", ce_id="e1")
    office.post({"id": 17}, "m2", ce_id="e1")
    assert office.drain() == {"new": 1, "duplicate": 1}
    assert claims(app) == [
        ("queue.main.orders", "mail:e1"),
        ("sync", "order:17"),
    ]


def test_two_consumers_of_one_topic_both_get_a_message(app: App, office: PostOffice) -> None:
    calls: list[str] = []
    app.consume("main/orders", name="billing", inline=True)(lambda body: calls.append("billing"))
    app.consume("main/orders", name="mailing", inline=True)(lambda body: calls.append("mailing"))
    for name in ("main/billing", "main/mailing"):
        office.post({"id": 17}, "m1")
        office.drain(office.reader(name))
    assert sorted(calls) == ["billing", "mailing"]


def test_a_run_that_is_held_elsewhere_is_not_started_again(app: App, office: PostOffice) -> None:
    seen: list[Any] = []
    sync = flow_of(app, seen)
    app.consume("main/orders", start=sync)
    sync.start({"id": 17})
    office.post({"id": 17}, "m1")
    assert office.drain() == {"duplicate": 1} and office.left == []
    assert runs(app) == 1


def test_a_flow_gets_headers_and_the_delivery_by_name(app: App, office: PostOffice) -> None:
    seen: list[Any] = []

    @app.flow(key="{delivery[key]}", ignore=("headers", "delivery"))
    def sync(order: dict[str, Any], headers: dict[str, str], delivery: dict[str, Any]) -> None:
        seen.append((order, headers["ce-type"], "x-delivery-count" in headers, delivery))

    app.consume("main/orders", start=sync)
    office.post({"id": 1}, "m1", ce_type="orders.paid", x_delivery_count="3")
    assert office.drain() == {"new": 1} and runs(app) == 1
    assert seen == [
        ({"id": 1}, "orders.paid", False, {"place": "orders", "key": "m1", "sequence": 1, "partition": ""}),
    ]


def test_several_parameters_get_the_fields_of_a_body(app: App, office: PostOffice) -> None:
    seen: list[Any] = []

    @app.flow(key="order:{id}")
    def sync(id: int, total: int = 0) -> None:  # noqa: A002
        seen.append((id, total))

    app.consume("main/orders", start=sync)
    office.post({"id": 1, "total": 5}, "m1")
    office.drain()
    assert runs(app) == 1 and seen == [(1, 5)]


def test_a_function_between_makes_what_the_flow_gets(app: App, office: PostOffice) -> None:
    seen: list[Any] = []

    @app.consume("main/orders", start=flow_of(app, seen))
    def paid(body: dict[str, Any]) -> dict[str, Any] | None:
        return body["order"] if body["paid"] else None

    office.post({"order": {"id": 1}, "paid": True}, "m1")
    office.post({"order": {"id": 2}, "paid": False}, "m2")
    assert office.drain() == {"new": 2} and runs(app) == 1 and seen == [1]


def test_only_the_newest_of_an_object_is_applied(app: App, office: PostOffice) -> None:
    seen: list[Any] = []

    @app.flow(key="{order[id]}", order=by(object="{order[id]}", version="{delivery[sequence]}"))
    def sync(order: dict[str, Any], delivery: dict[str, Any]) -> None:
        seen.append((order["id"], order["total"]))

    app.consume("main/orders", start=sync)
    office.post({"id": "a", "total": 1}, "m1")
    office.post({"id": "a", "total": 2}, "m2")
    late, newer = office.broker.receive("orders", 2, 0.0)
    office.broker.settle([(newer, Requeue(0.0))])
    assert office.drain() == {"new": 1} and runs(app) == 1
    office.broker.settle([(late, Requeue(0.0))])
    assert office.drain() == {"new": 1} and runs(app) == 1
    assert seen == [("a", 2)]


def test_a_correlation_id_goes_into_the_run(app: App, office: PostOffice) -> None:
    app.consume("main/orders", start=flow_of(app, []))
    office.post({"id": 17}, "m1", correlation_id="evt-1")
    office.drain()
    assert [run.correlation for run in app.runs(flow="sync")] == ["evt-1"]


def test_duplicates_are_counted_under_the_consumer(app: App, office: PostOffice) -> None:
    app.consume("main/orders", start=flow_of(app, []))
    for _ in range(3):
        office.post({"id": 17}, "m1")
    office.drain()
    app.tally.flush()
    assert [(one.source, one.operation, one.count) for one in app.duplicates()] == [("main/orders", "sync", 2)]


# -- inline --------------------------------------------------------------------------------------


def inline(app: App, calls: list[Any], error: BaseException | None = None, **options: Any) -> Any:
    options = {"key": "mail:{body[id]}", **options}

    @app.consume("main/orders", inline=True, **options)
    def send(body: dict[str, Any]) -> None:
        calls.append(body["id"])
        if error is not None:
            raise error

    return send


def test_a_function_runs_once_for_a_message_that_comes_again(app: App, office: PostOffice) -> None:
    calls: list[Any] = []
    inline(app, calls)
    for _ in range(3):
        office.post({"id": 17}, "m1")
    reader = office.reader()
    office.drain(reader)
    office.deliver_again()  # those that found it busy
    assert office.drain(reader)["new"] == 1 and office.left == [] and calls == [17]


def test_an_async_function_is_awaited(app: App, office: PostOffice) -> None:
    calls: list[Any] = []

    @app.consume("main/orders", inline=True)
    async def send(body: dict[str, Any]) -> None:
        calls.append(body["id"])

    office.post({"id": 17}, "m1")
    assert office.drain() == {"new": 1} and calls == [17]


def test_an_error_that_is_clean_is_tried_again_later(app: App, office: PostOffice) -> None:
    calls: list[Any] = []
    inline(app, calls, NotDone("the line is busy"))
    office.post({"id": 17}, "m1")
    reader = office.reader()
    assert office.drain(reader) == {"failed": 1} and len(office.left) == 1
    office.deliver_again()
    assert office.drain(reader) == {"failed": 2} and calls == [17, 17]


def test_after_its_attempts_a_message_is_a_dead_letter(app: App, office: PostOffice) -> None:
    inline(app, [], NotDone("the line is busy"), attempts=2)
    office.post({"id": 17}, "m1")
    reader = office.reader()
    office.drain(reader)
    office.deliver_again()
    assert office.drain(reader) == {"failed": 1, "poison": 1} and office.left == []
    (letter,) = office.letters()
    assert "the line is busy" in letter.reason and letter.hook == "main/orders"


def test_an_unknown_end_is_reviewed_and_its_message_kept(app: App, office: PostOffice) -> None:
    calls: list[Any] = []
    error: list[BaseException] = [ValueError("half done")]

    @app.consume("main/orders", inline=True, key="mail:{body[id]}")
    def send(body: dict[str, Any]) -> None:
        calls.append(body["id"])
        if error:
            raise error[0]

    office.post({"id": 17}, "m1")
    assert office.drain() == {"poison": 1} and office.left == []
    (letter,) = office.letters()
    assert letter.reason.startswith("NeedsReview") and office.replay(letter.id) == ["poison"]
    assert calls == [17]
    app.settle("queue.main.orders", "mail:17", "did-not-happen", by="ada")
    error.clear()
    assert office.replay(letter.id) == ["new"] and calls == [17, 17] and office.letters() == []


def test_work_that_may_be_repeated_is_tried_again(app: App, office: PostOffice) -> None:
    inline(app, [], ValueError("half done"), repeat="safe")
    office.post({"id": 17}, "m1")
    assert office.drain() == {"failed": 1} and office.letters() == []


def test_a_message_that_is_worked_on_elsewhere_is_requeued(app: App, office: PostOffice) -> None:
    calls: list[Any] = []
    inline(app, calls)
    office.post({"id": 17}, "m1")
    with app.claim("queue.main.orders", "mail:17"):
        assert office.drain() == {"busy": 1} and len(office.left) == 1
    office.deliver_again()
    assert office.drain() == {"duplicate": 1} and calls == []


# -- what cannot be processed --------------------------------------------------------------------

POISON = {
    "not JSON": (b"{", "application/json"),
    "nested": (b"[" * 10_000 + b"]" * 10_000, "application/json"),
    "NUL": (b"\x00", "application/json"),
    "NUL in the key": (b'{"id": "a\\u0000b"}', "application/json"),
    "5 MB": (b'"' + b"x" * 5_000_000 + b'"', "application/json"),
    "content type": (b'{"id": 1}', "text/plain"),
    "gzip": (b"\x1f\x8b\x08\x00", "application/json"),
    "no id": (b"{}", "application/json"),
}


@pytest.mark.parametrize("name", POISON)
@pytest.mark.parametrize("own_claim", [False, True])
def test_poison_becomes_a_dead_letter_and_the_queue_moves_on(
    app: App, office: PostOffice, name: str, own_claim: bool
) -> None:
    seen: list[Any] = []
    app.consume("main/orders", start=flow_of(app, seen), **({"key": "{body[id]}"} if own_claim else {}))
    body, kind = POISON[name]
    office.post(body, "m1", kind=kind)
    office.post({"id": 2}, "m2")
    assert office.drain() == {"poison": 1, "new": 1} and office.left == []
    (letter,) = office.letters()
    assert letter.is_whole and letter.size == len(body)
    assert runs(app) == 1 and seen == [2]


@pytest.mark.parametrize("body", [b'{"id": 1}', b"{"])
def test_a_header_that_is_not_utf_8_is_escaped(app: App, office: PostOffice, body: bytes) -> None:
    app.consume("main/orders", inline=True, key="{headers[x-key]}")(lambda body: None)
    for key in ("a\udcff", "a\udcfe"):  # as clients read the bytes FF and FE: two keys, not one
        office.post(body)
        stored = office.queues.queues["orders"][-1]
        stored.message = structs.replace(stored.message, key=key, headers={"x-key": key, "\udcff": "x"})
    assert office.drain() == {"new" if body != b"{" else "poison": 2}
    assert office.left == []


def test_poison_that_comes_again_is_one_dead_letter(app: App, office: PostOffice) -> None:
    app.consume("main/orders", inline=True)(lambda body, headers: None)
    office.post(b"{", "m1", ce_id="e1")
    for _ in range(2):
        office.broker.receive("orders", 1, 0.0)
        office.broker.close()  # it was delivered, and not settled
    office.drain()
    office.post(b"{", "m1", ce_id="e1")
    office.queues.queues["orders"][0].sequence = 1
    office.drain()
    assert len(office.letters()) == 1


def test_poison_is_rejected_if_so_declared(app: App, office: PostOffice) -> None:
    app.consume("main/orders", start=flow_of(app, []), poison="reject")
    office.post(b"{", "m1")
    assert office.drain() == {"poison": 1} and office.left == [] and office.rejected == [b"{"]
    assert len(office.letters()) == 1


def test_a_dead_letter_is_replayed_under_the_same_key(app: App, office: PostOffice) -> None:
    calls: list[Any] = []
    app.consume("main/orders", inline=True, largest=10)(lambda body: calls.append(body))
    office.post({"id": 17, "more": "text"}, "m1")
    assert office.drain() == {"poison": 1}
    app.consume("main/orders", inline=True)(lambda body: calls.append(body))  # the cause is repaired
    (letter,) = office.letters()
    assert office.replay(letter.id) == ["new"] and office.letters() == []
    office.post({"id": 17, "more": "text"}, "m1")
    assert office.drain() == {"duplicate": 1} and len(calls) == 1


def test_another_body_under_a_known_key_is_kept_aside(app: App, office: PostOffice) -> None:
    app.consume("main/orders", start=flow_of(app, []))
    office.post({"id": 17, "total": 1}, "m1")
    office.post({"id": 17, "total": 2}, "m2")
    assert office.drain() == {"new": 1, "mismatch": 1} and office.left == []
    assert "PayloadMismatch" in office.letters()[0].reason


def test_without_a_dead_letter_nothing_is_acknowledged(
    app: App, office: PostOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.consume("main/orders", start=flow_of(app, []))
    monkeypatch.setattr(DeadLetter, "is_whole", False)
    office.post(b"{", "m1")
    assert office.drain() == {"failed": 1} and office.left == [b"{"]


def test_redacted_fields_are_not_stored(app: App, office: PostOffice) -> None:
    seen: list[Any] = []

    @app.flow(key="order:{order[id]}")
    def sync(order: dict[str, Any]) -> None:
        seen.append(order)

    app.consume("main/orders", start=sync, redact=("card",))
    office.post({"id": 1, "card": "4111"}, "m1")
    assert office.drain() == {"new": 1} and runs(app) == 1
    assert "4111" not in str(seen)


# -- a mixed batch -------------------------------------------------------------------------------


def test_each_of_a_mixed_batch_is_settled_by_its_own_word(
    app: App, office: PostOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = flow_of(app, [])
    app.consume("main/orders", start=sync, key="{body[id]}")
    known = {"id": "known"}
    office.post(known, "m0")
    office.drain()
    start = admissions.QueueAdmission._start

    def failing(self: Any, event: Any) -> Any:
        if event.id == "store":
            raise StoreUnavailable("the store went away")
        return (yield from start(self, event))

    monkeypatch.setattr(admissions.QueueAdmission, "_start", failing)
    bodies = [b"{", {"id": "known", "other": 1}, {"id": "busy"}, known, {"id": "new"}, {"id": "store"}]
    for number, body in enumerate(bodies):
        office.post(body, f"m{number + 1}")
    reader = office.reader()
    with app.claim("queue.main.orders", "busy"):
        reader.round(0.0)
    assert reader.outcomes == {
        "poison": 1,
        "mismatch": 1,
        "busy": 1,
        "duplicate": 1,
        "new": 1,
        "unavailable": 1,
    }
    assert office.left == [b'{"id":"busy"}', b'{"id":"store"}'] and len(office.letters()) == 2


@pytest.mark.parametrize(
    ("outcome", "settled"),
    [
        ("new", Ack()),
        ("duplicate", Ack()),
        ("review", Ack()),
        ("poison", Ack()),
        ("mismatch", Ack()),
        ("busy", Requeue(7.0)),
        ("failed", Requeue(0.5)),
        ("unavailable", Requeue(0.5)),
    ],
)
def test_every_outcome_has_one_settlement(app: App, outcome: Any, settled: Any) -> None:
    app.consume("main/orders", start=flow_of(app, []))
    admitted = Admitted(outcome, retry_in=7.0)
    assert settlement_of(app.consumers["main/orders"], admitted, 1, 1.0) == settled


def test_a_message_that_keeps_failing_comes_less_and_less_often(app: App) -> None:
    app.consume("main/orders", start=flow_of(app, []), poison="reject")
    consumer = app.consumers["main/orders"]
    pauses = [settlement_of(consumer, Admitted("failed"), times, 1.0) for times in (1, 2, 3, 20, 10**9, None)]
    assert pauses == [Requeue(0.5), Requeue(1.0), Requeue(2.0), Requeue(30.0), Requeue(30.0), Requeue(0.5)]
    assert settlement_of(consumer, Admitted("poison", reason="why"), 1, 1.0) == Reject("why")


def test_one_key_twice_in_a_batch_is_a_duplicate_not_busy(tmp_path: Path) -> None:
    with App(f"sqlite:///{tmp_path / 'shop.db'}") as app, post_office(app) as office:
        app.consume("main/orders", start=flow_of(app, []), key="{body[id]}")
        for number in range(60):
            office.post({"id": number % 20}, f"m{number}")
        assert office.drain() == {"new": 20, "duplicate": 40} and office.left == []


def test_a_sender_cannot_give_a_key_by_our_headers(app: App, office: PostOffice) -> None:
    app.consume("main/orders", inline=True)(lambda body: None)
    office.post({}, "m1")
    office.post({}, twiceproof_delivery_key="m2")
    assert office.drain() == {"new": 1, "poison": 1}


def test_a_sender_cannot_forge_what_the_broker_says(app: App, office: PostOffice) -> None:
    calls: list[Any] = []
    app.consume("main/orders", inline=True)(lambda body, delivery: calls.append(delivery["key"]))
    office.post({}, "m1", twiceproof_delivery_key="forged")
    assert office.drain() == {"new": 1} and calls == ["m1"]
