"""The one way in: what is believed, claimed, started and answered, and what a death in between leaves."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import pytest

from tests.unit.flows.stage import Stage
from tests.unit.inbound.post import SECRET, Post, posted
from twiceproof import App, Misuse
from twiceproof.claims.retention import sweep
from twiceproof.inbound.dead_letters import letters
from twiceproof.inbound.hook import RECENT_SECONDS
from twiceproof.inbound.replay import replay_letter
from twiceproof.inbound.reply import Reply
from twiceproof.inbound.sources import SOURCES, find_source
from twiceproof.operations import block


def shop(stage: Stage, at: int | None = None, *, landed: bool = False, **options: Any) -> App:
    app = stage.process(at, landed=landed)

    @app.flow(key="order:{order[id]}", ignore=("order.sent_at",))
    def sync_order(order: dict[str, Any]) -> str:
        if order.get("broken") and not stage.effects["repaired"]:
            raise ValueError("broken")
        stage.effects[order["id"]] += 1
        return str(order["id"])

    app.webhook(Post(), **{"secret": SECRET, "start": sync_order, **options})
    return app


def work(app: App) -> None:
    app.worker(concurrency=2).run(until_idle=True)


def said(reply: Reply) -> dict[str, Any]:
    return dict(msgspec.json.decode(reply.body), status=reply.status)


def test_a_delivery_starts_one_run_and_is_answered_before_it_is_done(stage: Stage) -> None:
    app = shop(stage)
    answer = said(app.receive(*posted({"id": "17"})))
    assert answer["status"] == 200 and answer["state"] == "new" and answer["duplicate"] is False
    assert not stage.effects
    work(app)
    assert stage.effects == {"17": 1}
    assert app.attach(answer["run"]).state == "done"


def test_a_second_delivery_is_a_duplicate_that_names_the_first_ones_run(stage: Stage) -> None:
    app = shop(stage)
    first = said(app.receive(*posted({"id": "17"})))
    again = said(app.receive(*posted({"id": "17"})))
    work(app)
    late = said(app.receive(*posted({"id": "17"})))
    work(app)
    assert again["run"] == late["run"] == first["run"]
    assert (again["state"], late["state"], again["status"]) == ("duplicate", "duplicate", 200)
    assert stage.effects == {"17": 1}


def test_a_field_that_varies_between_deliveries_does_not_make_another_event(stage: Stage) -> None:
    app = shop(stage)
    app.receive(*posted({"id": "17", "sent_at": 1}))
    assert said(app.receive(*posted({"id": "17", "sent_at": 2})))["state"] == "duplicate"


def test_other_contents_under_the_same_id_are_kept_and_not_answered_as_the_first(stage: Stage) -> None:
    app = shop(stage)
    first = said(app.receive(*posted({"id": "17", "total": 1})))
    other = said(app.receive(*posted({"id": "17", "total": 2})))
    assert (other["state"], other["status"]) == ("mismatch", 200)
    assert "run" not in other and first["run"]
    assert [letter.refused_events for letter in block(letters(app.store, "default"))] == [("17",)]


@pytest.mark.parametrize("secret", ["", "another", SECRET + " "])
def test_a_forged_delivery_touches_nothing(stage: Stage, secret: str) -> None:
    app = shop(stage)
    before = app.engine.commits  # type: ignore[attr-defined]
    reply = app.receive(*posted({"id": "17"}, secret))
    assert reply.status == 401 and b"signature" in reply.body
    assert app.engine.commits == before  # type: ignore[attr-defined]


def test_an_unknown_address_is_answered_like_a_forged_delivery(stage: Stage) -> None:
    app = shop(stage)
    forged = app.receive(*posted({"id": "17"}, "another"))
    _, body, headers = posted({"id": "17"})
    assert app.receive("elsewhere", body, headers) == forged


def test_both_secrets_are_believed_while_one_follows_the_other(stage: Stage) -> None:
    app = shop(stage, secret=("new one", SECRET))
    assert said(app.receive(*posted({"id": "1"})))["state"] == "new"
    assert said(app.receive(*posted({"id": "2"}, "new one")))["state"] == "new"
    assert app.receive(*posted({"id": "3"}, "withdrawn")).status == 401


def test_what_cannot_be_read_is_acknowledged_and_kept_aside_once(stage: Stage) -> None:
    app = shop(stage)
    for _ in range(3):
        assert said(app.receive(*posted(b"{nonsense")))["state"] == "poison"
    (letter,) = block(letters(app.store, "default"))
    assert letter.size == len(b"{nonsense") and letter.body and "x-sign" not in letter.headers


def test_an_event_without_an_id_is_kept_aside(stage: Stage) -> None:
    app = shop(stage)
    assert said(app.receive(*posted({"total": 1})))["state"] == "poison"
    assert len(block(letters(app.store, "default"))) == 1


def test_what_is_too_large_is_refused_before_it_is_read(stage: Stage) -> None:
    app = shop(stage)
    assert app.receive(*posted(b"x" * 100_001)).status == 413
    assert said(app.receive(*posted({"id": "1", "note": "x" * 90_000})))["state"] == "new"


def test_an_event_whose_flow_refuses_it_is_kept_aside_and_taken_in_by_a_replay(stage: Stage) -> None:
    app = shop(stage)
    strict = {"on": True}

    @app.webhook(Post(), secret=SECRET, start=_flow(app), name="post")
    def order_of(payload: dict[str, Any]) -> dict[str, Any]:
        if strict["on"]:
            raise KeyError("customer")
        return payload

    assert said(app.receive(*posted({"id": "17"})))["state"] == "poison"
    (letter,) = block(letters(app.store, "default"))
    assert "KeyError" in letter.reason
    strict["on"] = False
    assert [one.outcome for one in block(replay_letter(app.runtime, app.hooks, letter.id))] == ["new"]
    work(app)
    assert stage.effects == {"17": 1} and not block(letters(app.store, "default"))
    assert said(app.receive(*posted({"id": "17"})))["state"] == "duplicate"


def test_a_letter_that_nobody_replays_is_swept_after_thirty_days(stage: Stage) -> None:
    app = shop(stage)
    app.receive(*posted(b"{nonsense"))
    stage.clock.advance(29 * 86_400)
    block(sweep(app.store))
    assert len(block(letters(app.store, "default"))) == 1
    stage.clock.advance(2 * 86_400)
    block(sweep(app.store))
    assert not block(letters(app.store, "default"))


def test_a_replay_that_does_not_help_keeps_the_letter(stage: Stage) -> None:
    app = shop(stage)
    app.receive(*posted(b"{nonsense"))
    (letter,) = block(letters(app.store, "default"))
    with pytest.raises(Misuse, match="still cannot be read"):
        block(replay_letter(app.runtime, app.hooks, letter.id))
    assert block(letters(app.store, "default"))


def test_an_event_that_is_not_meant_for_the_flow_is_claimed_and_starts_nothing(stage: Stage) -> None:
    app = shop(stage)

    @app.webhook(Post(), secret=SECRET, start=_flow(app), name="post")
    def order_of(payload: dict[str, Any]) -> dict[str, Any] | None:
        return None if payload.get("draft") else payload

    assert "run" not in said(app.receive(*posted({"id": "17", "draft": True})))
    assert said(app.receive(*posted({"id": "17", "draft": True})))["state"] == "duplicate"
    assert said(app.receive(*posted({"id": "18"})))["run"]


def test_a_redelivery_of_an_event_whose_run_failed_tries_it_again(stage: Stage) -> None:
    app = shop(stage)
    first = said(app.receive(*posted({"id": "17", "broken": True})))
    work(app)
    assert app.attach(first["run"]).state == "failed"
    stage.effects["repaired"] = 1
    again = said(app.receive(*posted({"id": "17", "broken": True})))
    work(app)
    assert (again["state"], again["run"]) == ("new", first["run"])
    assert app.attach(first["run"]).state == "done" and stage.effects["17"] == 1


def test_a_redelivery_does_not_revive_a_run_that_somebody_cancelled(stage: Stage) -> None:
    app = shop(stage)
    first = said(app.receive(*posted({"id": "17"})))
    app.attach(first["run"]).cancel(by="ann")
    assert said(app.receive(*posted({"id": "17"})))["state"] == "duplicate"
    work(app)
    assert (app.attach(first["run"]).state, stage.effects["17"]) == ("failed", 0)


def test_in_a_storm_of_duplicates_a_done_run_is_read_once_in_a_few_seconds(stage: Stage) -> None:
    app = shop(stage)
    app.receive(*posted({"id": "17"}))
    work(app)
    looks = [_looks(app, {"id": "17"}), _looks(app, {"id": "17"})]
    stage.clock.advance(RECENT_SECONDS)
    assert [*looks, _looks(app, {"id": "17"})] == [1, 0, 1]


def test_a_run_under_way_is_looked_at_each_time_for_it_may_have_failed_since(stage: Stage) -> None:
    app = shop(stage)
    first = said(app.receive(*posted({"id": "17", "broken": True})))
    assert said(app.receive(*posted({"id": "17", "broken": True})))["state"] == "duplicate"  # it has not failed yet
    work(app)
    assert app.attach(first["run"]).state == "failed"
    assert said(app.receive(*posted({"id": "17", "broken": True})))["state"] == "new"


def test_duplicates_that_the_flows_own_key_blocks_are_counted_under_their_webhook(stage: Stage) -> None:
    app = shop(stage)

    @app.webhook(Post(), secret=SECRET, start=_flow(app), name="post")
    def order_of(payload: dict[str, Any]) -> dict[str, Any]:
        return {"id": payload["order"]}

    for event in ("a", "b", "b", "c"):
        app.receive(*posted({"id": event, "order": "17"}))
    asyncio.run(app.receiving(*posted([{"id": "d", "order": "17"}, {"id": "e", "order": "17"}])))
    block(app.flows["sync_order"].start(({"id": "17"},), {}))  # by hand: no webhook's
    seen = {(row.source, row.key): row.count for row in app.duplicates()}
    assert seen == {("post", "order:17"): 4, ("post", "b"): 1, ("", "order:17"): 1}


def _looks(app: App, event: dict[str, Any]) -> int:
    """How often a duplicate's run is read."""
    read, seen = app.store.read, list[str]()

    def reading(at: Any) -> Any:
        seen.append(at.space)
        return read(at)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app.store, "read", reading)
        assert said(app.receive(*posted(event)))["state"] == "duplicate"
    return sum("/sync_order/" in space for space in seen)


def test_where_failures_are_kept_a_redelivery_is_a_duplicate(stage: Stage) -> None:
    app = shop(stage, on_failed="keep")
    first = said(app.receive(*posted({"id": "17", "broken": True})))
    work(app)
    assert said(app.receive(*posted({"id": "17", "broken": True})))["state"] == "duplicate"
    assert app.attach(first["run"]).state == "failed"


def test_a_list_is_claimed_item_by_item(stage: Stage) -> None:
    app = shop(stage)
    app.receive(*posted({"id": "2"}))
    reply = asyncio.run(app.receiving(*posted([{"id": str(number)} for number in range(5)])))
    assert said(reply)["state"] == "new"
    assert said(asyncio.run(app.receiving(*posted([{"id": "4"}, {"id": "0"}]))))["state"] == "duplicate"
    work(app)
    assert stage.effects == {str(number): 1 for number in range(5)}


def test_one_bad_item_does_not_harm_its_neighbours(stage: Stage) -> None:
    app = shop(stage)
    app.receive(*posted([{"id": "1"}, {"total": 3}, {"id": "2"}]))
    work(app)
    assert stage.effects == {"1": 1, "2": 1}
    assert len(block(letters(app.store, "default"))) == 1


@pytest.mark.parametrize("odd", [7, ["7"], {"a": 1}, 1.5])
def test_an_id_that_is_no_text_is_kept_aside_in_a_letter_that_can_be_read(stage: Stage, odd: Any) -> None:
    app = shop(stage)
    assert said(app.receive(*posted({"id": odd})))["state"] == "poison"
    app.receive(*posted([{"id": odd}, {"id": "2"}]))
    work(app)
    assert stage.effects == {"2": 1}
    assert {letter.refused_events for letter in block(letters(app.store, "default"))} == {(str(odd),)}


def test_the_same_event_twice_in_one_list_is_one(stage: Stage) -> None:
    app = shop(stage)
    reply = asyncio.run(app.receiving(*posted([{"id": "1"}, {"id": "1"}])))
    assert said(reply)["state"] == "new"
    work(app)
    assert stage.effects == {"1": 1}


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("commit", [1, 2, 3])
def test_a_receiver_that_dies_anywhere_is_followed_by_the_senders_next_try(
    stage: Stage, commit: int, landed: bool
) -> None:
    dying = shop(stage, commit, landed=landed)
    assert dying.receive(*posted({"id": "17"})).status == 503
    app = shop(stage)
    stage.clock.advance(60)
    assert said(app.receive(*posted({"id": "17"})))["status"] == 200
    work(app)
    assert said(app.receive(*posted({"id": "17"})))["state"] == "duplicate"
    work(app)
    assert stage.effects == {"17": 1}


def test_while_one_receiver_is_at_it_another_asks_the_sender_to_come_again(stage: Stage) -> None:
    shop(stage, 2).receive(*posted({"id": "17"}))  # died with the claim in its hands
    reply = shop(stage).receive(*posted({"id": "17"}))
    assert reply.status == 503 and reply.header("retry-after") == "1"


@pytest.mark.parametrize(("options", "held"), [({}, 15), ({"lease": "2s"}, 2)])
def test_a_dead_receivers_event_is_held_for_its_lease_and_then_taken_in(
    stage: Stage, options: dict[str, Any], held: int
) -> None:
    shop(stage, 2, **options).receive(*posted({"id": "17"}))
    app = shop(stage, **options)
    stage.clock.advance(held - 0.1)
    assert app.receive(*posted({"id": "17"})).status == 503
    stage.clock.advance(0.2)
    assert said(app.receive(*posted({"id": "17"})))["state"] == "new"


def test_an_answer_can_wait_for_the_runs_end_and_tells_its_failure() -> None:
    with App("memory://") as app:

        @app.webhook(Post(), secret=SECRET, wait="30s")
        @app.flow(key="order:{order[id]}")
        def take_order(order: dict[str, Any]) -> None:
            if order.get("broken"):
                raise ValueError("broken")

        worker = app.worker(concurrency=1)
        serving = threading.Thread(target=worker.run)
        serving.start()
        try:
            done, failed = app.receive(*posted({"id": "1"})), app.receive(*posted({"id": "2", "broken": True}))
        finally:
            worker.drain()
            serving.join()
        assert (said(done)["state"], done.status) == ("new", 200)
        assert app.attach(said(done)["run"]).state == "done"
        assert (said(failed)["state"], failed.status) == ("failed", 503)


def test_an_answer_does_not_wait_longer_than_it_was_told_to() -> None:
    with App("memory://") as app:

        @app.webhook(Post(), secret=SECRET, wait="1ms")
        @app.flow(key="order:{order[id]}")
        def take_order(order: dict[str, Any]) -> None: ...

        assert said(app.receive(*posted({"id": "1"})))["state"] == "new"


def test_declared_fields_reach_neither_the_flow_nor_the_store(stage: Stage) -> None:
    app = shop(stage, redact=("card.number",))
    app.receive(*posted({"id": "17", "card": {"number": "4242-canary", "name": "A"}}))
    app.receive(*posted(b'{"card": "4242-canary'))
    work(app)
    kept = [record.body for kind in ("claim", "step", "dead-letter") for record in app.store.scan(kind).block().records]
    assert kept and not [body for body in kept if "canary" in body or "NDI0Mi" in body]


def test_a_webhook_needs_a_flow_and_a_secret(stage: Stage) -> None:
    app = shop(stage)
    with pytest.raises(Misuse, match="give its secret"):
        app.webhook(Post(), start=_flow(app), name="other")
    with pytest.raises(Misuse, match="needs a flow"):
        app.webhook(Post(), secret=SECRET, start=print, name="other")
    with pytest.raises(Misuse, match="on_failed"):
        app.webhook(Post(), secret=SECRET, start=_flow(app), on_failed="forget")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("secret", "why"),
    [
        (None, "give its secret"),
        (b"a secret", "not text"),
        ([5], "not text"),
        (" ", "blank"),
        ("\t\n", "blank"),
        (["good", "  "], "blank"),
        ("\u200b", "blank"),
    ],
)
def test_a_secret_that_is_none_is_refused_when_it_is_declared(stage: Stage, secret: Any, why: str) -> None:
    """`os.environ.get` of a name that is not set, or bytes: at the door, every delivery would be forged."""
    app = shop(stage)
    with pytest.raises(Misuse, match=why):
        app.webhook(Post(), secret=secret, start=_flow(app), name="other")


@pytest.mark.parametrize("name", sorted(SOURCES))
@pytest.mark.parametrize("blank", [" ", "\t"])
def test_a_blank_secret_is_refused_when_it_is_declared_for_every_source(stage: Stage, name: str, blank: str) -> None:
    options = {"generic": {"id": "id", "signature": "x-sig"}, "paypal": {"fetch": lambda url: b""}}.get(name, {})
    app = shop(stage)
    with pytest.raises(Misuse, match="blank"):
        app.webhook(name, secret=blank, start=_flow(app), **options)
    app.webhook(name, secret="one that is set", start=_flow(app), **options)


@pytest.mark.parametrize("found", [" ", (" ",), ("", "\t")])
def test_a_blank_secret_that_a_function_gives_believes_nothing(stage: Stage, found: Any) -> None:
    app = shop(stage)
    app.webhook("github", secret=lambda: found, start=_flow(app))
    for secret in [*found, ""]:
        sent = find_source("github").sample(secret, stage.clock.now())
        assert app.receive("github", sent.body, sent.headers.items()).status == 401


def test_one_text_that_a_function_gives_is_one_secret(stage: Stage) -> None:
    app = shop(stage)
    app.webhook("github", secret=lambda: "a secret", start=_flow(app))
    for secret, status in (("a secret", 200), ("a", 401)):
        sent = find_source("github").sample(secret, stage.clock.now(), {"id": "7"})
        assert app.receive("github", sent.body, sent.headers.items()).status == status


def test_a_function_that_would_have_to_be_awaited_is_refused_when_it_is_declared(stage: Stage) -> None:
    app = shop(stage)
    with pytest.raises(Misuse, match="plain one"):

        @app.webhook(Post(), secret=SECRET, start=_flow(app))
        async def order_of(event: Any) -> Any: ...


def test_a_flow_can_be_decorated_itself(stage: Stage) -> None:
    app = stage.process()

    @app.webhook(Post(), secret=SECRET)
    @app.flow(key="order:{order[id]}")
    def take_order(order: dict[str, Any]) -> None:
        stage.effects[order["id"]] += 1

    app.receive(*posted({"id": "17"}))
    work(app)
    assert stage.effects == {"17": 1}


def _flow(app: App) -> Any:
    class Declared:
        flow = app.flows["sync_order"]

    return Declared
