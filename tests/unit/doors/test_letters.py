"""Letters: what a delivery that could not be taken in leaves behind, however large it was, and what a replay finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from twiceproof import App
from twiceproof.claims.retention import sweep
from twiceproof.doors import letter_body
from twiceproof.doors.letters import Letter, letters
from twiceproof.doors.replay import replay_letter
from twiceproof.drive import block

from ..flows.stage import Stage
from .post import SECRET, Post, posted

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

    def letters(self) -> list[Letter]:
        return block(letters(self.app.store, "default"))

    def replay(self, letter: Letter) -> list[str]:
        return [one.word for one in block(replay_letter(self.app.parts, self.app.hooks, letter.id))]

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


def test_a_delivery_with_declared_secrets_leaves_its_digest_and_is_acknowledged(stage: Stage) -> None:
    shop = Shop(stage.process(), redact=("card",))
    assert shop.deliver(large(300_000)) == (200, "poison")
    (letter,) = shop.letters()
    assert not letter.is_whole and letter.digest and not shop.beside()


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
