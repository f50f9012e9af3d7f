"""What brokers have in common when they publish, on a client that is a coroutine."""

from __future__ import annotations

import asyncio

import pytest

from twiceproof.brokers.base import Confirmed, OutgoingMessage, Refused, Unconfirmed
from twiceproof.brokers.publishing import AFTER_UNCONFIRMED, lanes_of, native_id, publish_all, publish_fit, refusal_of


def message(key, **more):
    return OutgoingMessage(place="orders", key=key, body=b"{}", **more)


def published(messages, send, patience=5.0, **more):
    async def run():
        return await publish_all(messages, send, patience, **more)

    return asyncio.run(run())


def test_messages_without_order_are_under_way_together():
    waiting, most = set(), []

    async def send(sent):
        waiting.add(sent.key)
        most.append(len(waiting))
        await asyncio.sleep(0)
        waiting.discard(sent.key)
        return Confirmed(sent.key)

    outcomes = published([message(str(number)) for number in range(10)], send, window=4)
    assert [outcome.receipt for outcome in outcomes] == [str(number) for number in range(10)]
    assert max(most) == 4


def test_messages_of_one_order_key_or_one_key_go_one_after_the_other():
    messages = [message("a", order="o"), message("b"), message("c", order="o"), message("b"), message("d")]
    assert lanes_of(messages) == [[0, 2], [1, 3], [4]]


@pytest.mark.parametrize("outcome", [Refused("no"), Unconfirmed("silence")])
def test_what_follows_in_its_order_is_not_handed_over(outcome):
    handed = []

    async def send(sent):
        handed.append(sent.key)
        return outcome if sent.key == "b" else Confirmed()

    messages = [message(key, order="o") for key in "abcd"] + [message("e")]
    assert published(messages, send) == [Confirmed(), outcome, AFTER_UNCONFIRMED, AFTER_UNCONFIRMED, Confirmed()]
    assert sorted(handed) == ["a", "b", "e"]


def test_without_order_a_refusal_stops_nothing():
    async def send(sent):
        return Refused("no") if sent.body == b"bad" else Confirmed()

    messages = [OutgoingMessage("orders", "a", b"bad"), message("a")]
    assert [type(one) for one in published(messages, send)] == [Refused, Confirmed]


def test_when_the_time_is_over_what_was_handed_over_is_in_doubt():
    async def send(_):
        await asyncio.Event().wait()

    outcomes = published([message("a"), message("b"), message("c")], send, 0.01, window=2)
    assert [type(one) for one in outcomes] == [Unconfirmed, Unconfirmed, Refused]


def test_a_connection_that_ends_ends_the_wait():
    async def run():
        broken = asyncio.get_running_loop().create_future()

        async def send(_):
            broken.set_result(None)
            await asyncio.Event().wait()

        async with asyncio.timeout(5):
            return await publish_all([message("a")], send, 1_000.0, broken=broken)

    (outcome,) = asyncio.run(run())
    assert isinstance(outcome, Unconfirmed)
    assert "the connection ended" in outcome.why


@pytest.mark.parametrize("error", [OSError("gone"), asyncio.CancelledError(), RuntimeError("a bug of the client")])
def test_a_client_that_fails_leaves_doubt_for_its_message_alone(error):
    async def send(sent):
        if sent.key == "a":
            raise error
        return Confirmed()

    outcomes = published([message("a"), message("b")], send)
    assert [type(one) for one in outcomes] == [Unconfirmed, Confirmed]


def test_an_unfit_message_is_refused_and_the_others_published():
    bad = message("b", headers={"note": "a\nb"})
    outcomes = publish_fit([message("a"), bad, message("c")], 10, lambda fit: [Confirmed(one.key) for one in fit])
    assert [type(one) for one in outcomes] == [Confirmed, Refused, Confirmed]
    assert [one.receipt for one in outcomes if isinstance(one, Confirmed)] == ["a", "c"]


def test_a_body_one_byte_too_large_is_refused_and_its_twin_taken():
    assert refusal_of(OutgoingMessage("orders", "a", b"x" * 11), 10).final
    assert refusal_of(OutgoingMessage("orders", "a", b"x" * 10), 10) is None


def test_a_key_too_long_for_a_message_id_is_hashed():
    assert native_id("x" * 255) == "x" * 255
    assert native_id("x" * 256) == native_id("x" * 256)
    assert len(native_id("ö" * 200)) == len("sha256:") + 64
    assert native_id("x" * 256) != native_id("x" * 257)


@pytest.mark.parametrize("more", [{"key": "a\ud800"}, {"key": "a", "order": "o\ud800"}, {"key": "a\0b"}, {"key": ""}])
def test_a_key_that_no_broker_could_encode_is_refused_for_good(more):
    """Before any client sees it: most raise in the middle of a batch, with some of it sent."""
    given = OutgoingMessage(**{"place": "orders", "body": b"{}", **more})
    handed = []
    outcomes = publish_fit([given, message("b")], 100, lambda fit: handed.extend(fit) or [Confirmed() for _ in fit])
    assert [type(outcome) for outcome in outcomes] == [Refused, Confirmed]
    assert outcomes[0].final and [one.key for one in handed] == ["b"]
