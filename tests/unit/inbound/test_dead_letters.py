"""Letters: what a delivery that could not be taken in leaves behind, however large it was, and what a replay finds."""

from __future__ import annotations

from base64 import b64decode, b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.flows.stage import Stage
from tests.unit.inbound.post import SECRET, Post, posted
from twiceproof import App
from twiceproof.claims.claim import address_of
from twiceproof.claims.retention import sweep
from twiceproof.inbound import dead_letters as letter_body
from twiceproof.inbound.dead_letters import DeadLetter, letters
from twiceproof.inbound.replay import replay_letter
from twiceproof.inbound.source import Poison
from twiceproof.operations import block
from twiceproof.records import Address, Insert, Remove

MIB = 1024 * 1024


class Parcel(Post):
    largest = 30 * MIB


class Shop:
    """An app whose mapping has a bug until it is repaired."""

    def __init__(self, app: App, source: Post | None = None, **options: Any) -> None:
        self.app = app
        self.bug = True
        self.taken: list[str] = []

        @app.flow(key="order:{order}")
        def sync(order: str) -> None:
            self.taken.append(order)

        @app.webhook(source or Parcel(), secret=SECRET, start=sync, **options)
        def order_of(event: dict[str, Any]) -> str:
            if self.bug:
                raise KeyError("customer")
            return str(event["id"])

    def deliver(self, content: Any) -> tuple[int, str]:
        reply = self.app.receive(*posted(content))
        return reply.status, msgspec.json.decode(reply.body)["state"]

    def letters(self) -> list[DeadLetter]:
        return block(letters(self.app.store, "default"))

    def replay(self, letter: DeadLetter) -> list[str]:
        return [one.outcome for one in block(replay_letter(self.app.runtime, self.app.hooks, letter.id))]

    def work(self) -> list[str]:
        self.app.worker().run(until_idle=True)
        return sorted(self.taken)

    def beside(self) -> int:
        return len(self.app.store.scan("resource").block().records)


@pytest.fixture
def shop(stage: Stage) -> Shop:
    return Shop(stage.process())


def large(size: int) -> dict[str, str]:
    return {"id": "17", "pad": "x" * size}


@pytest.mark.parametrize("size", [10, 300_000, 14 * MIB])
def test_a_delivery_that_a_bug_stopped_is_kept_whole_and_taken_in_by_a_replay(shop: Shop, size: int) -> None:
    assert shop.deliver(large(size)) == (200, "poison")
    (letter,) = shop.letters()
    assert letter.is_whole and letter.size > size
    shop.bug = False
    assert shop.replay(letter) == ["new"]
    assert shop.work() == ["17"]
    assert not shop.letters() and not shop.beside()


def test_a_large_body_lies_on_the_shelf_where_there_is_one(tmp_path: Path) -> None:
    with App("memory://", resources=f"dir://{tmp_path}/shelf") as app:
        shop = Shop(app)
        shop.deliver(large(300_000))
        assert len(list(tmp_path.rglob("*.res"))) == 1
        shop.bug = False
        assert shop.replay(shop.letters()[0]) == ["new"]
        assert not list(tmp_path.rglob("*.res"))


def test_a_delivery_that_cannot_be_kept_is_asked_for_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledged, it would be lost: its sender never comes again."""
    monkeypatch.setattr(letter_body, "PIECE", 3_000)  # a hundredth of it in each: more than land together
    assert shop.deliver(large(300_000)) == (503, "failed")
    assert shop.deliver(large(280_000)) == (200, "poison")
    assert {letter.size > 300_000: letter.is_whole for letter in shop.letters()} == {True: False, False: True}


def test_what_can_be_neither_read_nor_kept_is_acknowledged(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would come again for days, and never be read."""
    monkeypatch.setattr(letter_body, "PIECE", 3_000)
    assert shop.deliver(b"{" * 400_000) == (200, "poison")


# -- declared secrets --------------------------------------------------------------------------------


def paid(size: int = 10) -> dict[str, str]:
    return {**large(size), "card": "4242-canary"}


def everything_kept(app: App) -> str:
    """Also what is written as base64."""
    kinds = ("dead-letter", "resource", "claim", "step")
    bodies = [record.body for kind in kinds for record in app.store.scan(kind).block().records]
    inside = [msgspec.json.decode(body).get("body", "") for body in bodies if body.startswith("{")]
    pieces = [record.body for record in app.store.scan("resource").block().records]
    return "".join(bodies) + "".join(b64decode(text).decode() for text in inside + pieces)


@pytest.mark.parametrize("size", [10, 300_000])
def test_a_delivery_with_declared_secrets_is_kept_without_them_and_replayed(stage: Stage, size: int) -> None:
    shop = Shop(stage.process(), redact=("card",))
    assert shop.deliver(paid(size)) == (200, "poison")
    (letter,) = shop.letters()
    assert letter.is_whole and letter.size > size
    shop.bug = False
    kept = everything_kept(shop.app)
    assert "[redacted]" in kept and "canary" not in kept
    assert shop.replay(letter) == ["new"]
    assert shop.deliver(paid(size)) == (200, "duplicate")
    assert shop.work() == ["17"]
    assert not shop.letters() and not shop.beside()


def test_a_letter_tells_no_hash_over_what_is_redacted(stage: Stage) -> None:
    """All the rest is beside it: of a card's number, each guess could be tried."""
    shop = Shop(stage.process(), redact=("card",))
    assert shop.deliver(paid()) == shop.deliver({**paid(), "card": "1111"}) == (200, "poison")
    assert len(shop.letters()) == 1


def test_an_event_that_is_told_by_some_of_its_fields_is_the_same_one_after_a_replay(stage: Stage) -> None:
    class Chosen(Parcel):
        def read(self, envelope: Any) -> Any:
            return [msgspec.structs.replace(one, contents=[one.payload["id"]]) for one in super().read(envelope)]

    shop = Shop(stage.process(), Chosen(), redact=("card",))
    shop.deliver(paid())
    shop.bug = False
    assert shop.replay(shop.letters()[0]) == ["new"]
    assert shop.deliver({**paid(), "attempt": 2}) == (200, "duplicate")


def test_a_delivery_with_declared_secrets_that_cannot_be_kept_is_asked_for_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letter_body, "PIECE", 3_000)
    shop = Shop(stage.process(), redact=("card",))
    assert shop.deliver(paid(300_000)) == (503, "failed")


def test_of_what_cannot_be_read_where_secrets_are_declared_only_a_digest_is_kept(stage: Stage) -> None:
    shop = Shop(stage.process(), redact=("card",))
    assert shop.deliver(b'{"card": "4242-canary') == (200, "poison")
    (letter,) = shop.letters()
    assert not letter.is_whole and letter.digest and not shop.beside()
    assert "canary" not in everything_kept(shop.app)


def test_a_letter_that_was_left_without_its_body_gets_it_with_the_next_delivery(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(letter_body, "PIECE", 3_000)
        shop.deliver(large(300_000))
    shop.deliver(large(300_000))
    assert [letter.is_whole for letter in shop.letters()] == [True]


def test_a_sender_that_insists_does_not_fill_the_store(shop: Shop) -> None:
    for _ in range(3):
        shop.deliver(large(300_000))
    assert len(shop.letters()) == shop.beside() == 1


def test_a_large_letter_is_swept_with_its_body(stage: Stage, shop: Shop) -> None:
    shop.deliver(large(300_000))
    stage.clock.advance(30 * 86_400 - 1)
    block(sweep(shop.app.store))
    assert shop.letters()[0].is_whole and shop.beside() == 1
    stage.clock.advance(2 * 86_400)
    block(sweep(shop.app.store))
    assert not shop.letters() and not shop.beside()


def test_a_body_that_outlived_its_letter_is_no_obstacle_to_the_next_one(stage: Stage, shop: Shop) -> None:
    shop.deliver(large(300_000))
    stage.clock.advance(30 * 86_400 + 1)
    block(sweep(shop.app.store))
    assert not shop.letters() and shop.beside()
    shop.deliver(large(300_000))
    stage.clock.advance(29 * 86_400)
    block(sweep(shop.app.store))
    shop.bug = False
    assert shop.replay(shop.letters()[0]) == ["new"]


def test_an_empty_body_is_kept_too(stage: Stage) -> None:
    """Some senders say everything in headers."""

    class Silent(Parcel):
        def read(self, envelope: Any) -> Any:
            return super().read(msgspec.structs.replace(envelope, body=b'{"id":"17"}'))

    shop = Shop(stage.process(), Silent())
    assert shop.deliver(b"") == (200, "poison")
    shop.bug = False
    assert shop.replay(shop.letters()[0]) == ["new"]


# -- many events in one delivery -------------------------------------------------------------------


def some(count: int) -> list[dict[str, str]]:
    return [{"id": f"i{number}", "pad": "x" * 150} for number in range(count)]


def test_a_delivery_of_many_events_is_kept_once_however_many_of_them_were_refused(stage: Stage) -> None:
    shop = Shop(stage.process())
    _, body, _ = posted(some(500))
    assert shop.deliver(body) == (200, "poison")
    (letter,) = shop.letters()
    assert sorted(letter.events) == sorted(one["id"] for one in some(500)) and "KeyError" in letter.reason
    kept = sum(len(record.body) for record in shop.app.store.scan("dead-letter").block().records)
    assert kept < 2 * len(body)
    shop.bug = False
    assert shop.replay(letter) == ["new"] * 500
    assert len(shop.work()) == 500 and not shop.letters()


class Choosy(Shop):
    """Refuses the events that it was told to."""

    def __init__(self, app: App) -> None:
        super().__init__(app)
        self.bug = False
        self.refused: set[str] = set()

        @app.webhook(Parcel(), secret=SECRET, start=_flow(app), name="post")
        def order_of(event: dict[str, Any]) -> str:
            if event["id"] in self.refused:
                raise KeyError(event["id"])
            return str(event["id"])


def _flow(app: App) -> Any:
    class Declared:
        flow = app.flows["sync"]

    return Declared


@pytest.fixture
def choosy(stage: Stage) -> Choosy:
    return Choosy(stage.process())


def test_only_what_was_refused_is_replayed_and_what_still_is_stays(choosy: Choosy) -> None:
    choosy.refused = {"i1", "i3"}
    assert choosy.deliver(some(5)) == (200, "new")
    (letter,) = choosy.letters()
    assert sorted(letter.events) == ["i1", "i3"]
    choosy.refused = {"i3"}
    assert sorted(choosy.replay(letter)) == ["new", "poison"]
    (letter,) = choosy.letters()
    assert letter.events == ("i3",)
    choosy.refused = set()
    assert choosy.replay(letter) == ["new"] and not choosy.letters()
    assert choosy.work() == ["i0", "i1", "i2", "i3", "i4"]


def test_a_redelivery_leaves_the_letter_as_it_is_and_another_body_has_its_own(choosy: Choosy) -> None:
    choosy.refused = {"i1"}
    choosy.deliver(some(3))
    choosy.refused = {"i1", "i2"}  # the latter was taken in before: it is a duplicate
    choosy.deliver(some(3))
    assert [letter.events for letter in choosy.letters()] == [("i1",)]
    choosy.deliver(some(4)[:2])
    assert len(choosy.letters()) == 2  # another body is another delivery


def test_an_event_that_is_refused_later_joins_those_of_the_same_body(choosy: Choosy, stage: Stage) -> None:
    choosy.refused = {"i1"}
    choosy.deliver(some(3))
    before = choosy.app.store.scan("dead-letter").block().records[0].due_at
    choosy.refused = {"i1", "i0"}
    stage.clock.advance(29 * 86_400)
    claim = choosy.app.store.read(address_of("default", "hook.post", "i0")).block().record
    assert claim is not None
    choosy.app.store.write(Remove(claim.at, version=claim.version)).block()  # it was forgotten
    choosy.deliver(some(3))
    (letter,) = choosy.letters()
    assert sorted(letter.events) == ["i0", "i1"]
    assert choosy.app.store.scan("dead-letter").block().records[0].due_at == pytest.approx(before)


def test_a_delivery_with_an_unreadable_event_is_kept_as_a_whole_and_once(stage: Stage) -> None:
    class Torn(Parcel):
        def read(self, envelope: Any) -> Any:
            return [*super().read(envelope), Poison("torn")]

    shop = Shop(stage.process(), Torn())
    shop.deliver(some(3))
    (letter,) = shop.letters()
    assert letter.events == () and letter.reason == "torn"
    shop.bug = False
    assert sorted(shop.replay(letter)) == ["new", "new", "new", "poison"]
    assert shop.letters() == [letter]


def test_ids_that_would_fill_a_letter_are_left_out_and_the_whole_is_replayed(shop: Shop) -> None:
    long = [{"id": f"{number}" + "x" * 900} for number in range(400)]
    shop.deliver(long)
    (letter,) = shop.letters()
    assert letter.events == ()
    shop.bug = False
    assert shop.replay(letter) == ["new"] * 400 and not shop.letters()


@pytest.mark.parametrize("event", ["17", ""])
def test_a_letter_of_an_earlier_form_is_read_replayed_and_removed(shop: Shop, event: str) -> None:
    """It names one event, or none, and there was one for each."""
    _, body, _ = posted([{"id": "17"}, {"id": "18"}])
    name = "ltr_" + sha256(f"post {sha256(body).hexdigest()} {event}".encode()).hexdigest()[:24]
    old = {
        "id": name,
        "hook": "post",
        "reason": "KeyError: 'customer'",
        "body": b64encode(body).decode(),
        "digest": sha256(body).hexdigest(),
        "size": len(body),
        "received_at": 1.0,
        **({"event": event} if event else {}),
    }
    at = Address(f"default/hook@dead-letters/{name}", "dead-letter", "self")
    shop.app.store.write(Insert(at, msgspec.json.encode(old).decode(), "kept")).block()
    (letter,) = shop.letters()
    meant = [event] if event else ["17", "18"]
    assert letter.is_whole and shop.replay(letter) == ["poison"] * len(meant)
    assert shop.letters() == [letter]
    shop.bug = False
    assert shop.replay(letter) == ["new"] * len(meant)
    assert shop.work() == meant and not shop.letters()


def test_two_deliveries_with_one_body_and_other_ids_in_their_headers_are_two_letters(stage: Stage) -> None:
    """CloudEvents in headers: of two that cannot be decoded, one was kept, and the other was acknowledged and lost."""
    app = stage.process()

    @app.webhook("cloudevents", secret=SECRET)
    @app.flow(key="{event[id]}")
    def take(event: dict[str, Any]) -> None: ...

    for name in ("%FF", "%FE", "%FF"):
        headers = {"ce-specversion": "1.0", "ce-id": name, "ce-source": "/shop", "ce-type": "paid"}
        reply = app.receive("cloudevents", b"", headers.items(), url=f"https://shop.example/?code={SECRET}")
        assert (reply.status, msgspec.json.decode(reply.body)["state"]) == (200, "poison")
    kept = block(letters(app.store, "default"))
    assert sorted(letter.headers["ce-id"] for letter in kept) == ["%FE", "%FF"]
