"""A delivery of many events, some of which cannot be read: the others are taken in, and it is kept aside."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.unit.flows.stage import Stage
from tests.unit.inbound.post import SECRET, Post, posted
from twiceproof import App, Misuse
from twiceproof.inbound.dead_letters import INLINE, letters
from twiceproof.inbound.replay import replay_letter
from twiceproof.operations import block

GRID = {"id": "1", "topic": "/shop", "eventType": "paid", "subject": "orders/1"}
CLOUD = {"id": "1", "source": "/shop", "type": "paid", "specversion": "1.0"}
SENDERS = {"event_grid": ("application/json", GRID), "cloudevents": ("application/cloudevents-batch+json", CLOUD)}


def shop(stage: Stage, source: Any = "event_grid") -> App:
    app = stage.process()

    @app.flow(key="order:{event[id]}")
    def sync(event: Any) -> None:
        stage.do(event["id"])

    app.webhook(source, secret=SECRET, start=sync, name="post")
    return app


def deliver(app: App, source: str, items: list[Any]) -> dict[str, Any]:
    headers = [("content-type", SENDERS[source][0]), ("aeg-event-type", "Notification")]
    reply = app.receive("post", msgspec.json.encode(items), headers, url=f"https://x/hooks/post?code={SECRET}")
    assert reply.status == 200
    told: dict[str, Any] = msgspec.json.decode(reply.body)
    return told


def work(app: App) -> None:
    app.worker().run(until_idle=True)


@pytest.mark.parametrize("source", SENDERS)
@pytest.mark.parametrize("spoilt", [{"id": ""}, {"id": None}, 7, None, {}], ids=str)
def test_an_event_that_cannot_be_read_does_not_harm_its_neighbours(stage: Stage, source: str, spoilt: Any) -> None:
    app, good = shop(stage, source), SENDERS[source][1]
    bad = {**good, **spoilt} if spoilt and isinstance(spoilt, dict) else spoilt
    assert deliver(app, source, [good, bad, {**good, "id": "2"}])["state"] == "new"
    work(app)
    assert stage.effects == {"1": 1, "2": 1}
    (letter,) = block(letters(app.store, "default"))
    assert letter.reason and letter.refused_events == ()


@pytest.mark.parametrize("source", SENDERS)
def test_neighbours_are_taken_in_also_where_the_letter_is_large(stage: Stage, source: str) -> None:
    app, good = shop(stage, source), SENDERS[source][1]
    deliver(app, source, [{**good, "data": "x" * INLINE}, {**good, "id": ""}])
    work(app)
    assert stage.effects == {"1": 1}


@pytest.mark.parametrize("source", SENDERS)
def test_where_nothing_can_be_read_all_of_it_is_poison(stage: Stage, source: str) -> None:
    app = shop(stage, source)
    assert deliver(app, source, [{}, 7])["state"] == "poison"
    assert len(block(letters(app.store, "default"))) == 1


def test_a_replay_of_it_does_nothing_twice_and_keeps_it(stage: Stage) -> None:
    app = shop(stage)
    deliver(app, "event_grid", [GRID, {}])
    (letter,) = block(letters(app.store, "default"))
    words = [one.outcome for one in block(replay_letter(app.runtime, app.hooks, letter.id))]
    assert sorted(words) == ["duplicate", "poison"]
    work(app)
    assert stage.effects == {"1": 1}
    assert block(letters(app.store, "default")) == [letter]


@pytest.mark.parametrize("odd", [7, ["7"]])
def test_a_letter_of_an_odd_id_is_not_lost_by_a_replay_that_takes_nothing_in(stage: Stage, odd: Any) -> None:
    app = shop(stage, Post())
    app.receive(*posted({"id": odd}))
    (letter,) = block(letters(app.store, "default"))
    assert [one.outcome for one in block(replay_letter(app.runtime, app.hooks, letter.id))] == ["poison"]
    assert block(letters(app.store, "default")) == [letter]


def test_a_letter_whose_event_is_not_in_it_any_more_is_kept(stage: Stage) -> None:
    """Its source was told to look for the id elsewhere."""

    class Elsewhere(Post):
        def read(self, envelope: Any) -> Any:
            return [msgspec.structs.replace(event, id=event.payload["number"]) for event in super().read(envelope)]

    app = shop(stage, Post())
    app.receive(*posted({"id": "\n", "number": "n-1"}))
    (letter,) = block(letters(app.store, "default"))
    later = shop(stage, Elsewhere())
    with pytest.raises(Misuse, match="no longer contains event"):
        block(replay_letter(later.runtime, later.hooks, letter.id))
    assert block(letters(app.store, "default")) == [letter]
