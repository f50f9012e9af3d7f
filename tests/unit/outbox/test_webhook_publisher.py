"""Messages as Standard Webhooks, posted to a real HTTP server on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from tests.unit.effects.ssrf_corpus import CLOSED_URLS
from twiceproof import App, Misuse, env
from twiceproof.brokers.base import Confirmed, OutgoingMessage, Refused, Unconfirmed
from twiceproof.effects.webhook_client import WebhookClient, signed_headers
from twiceproof.inbound.source import Envelope
from twiceproof.inbound.sources.standard_webhooks import StandardWebhooks
from twiceproof.outbox.routing import webhook
from twiceproof.outbox.webhook_publisher import WebhookPublisher

SECRET = "whsec_" + "c2VjcmV0" * 4


class Receiver:
    """Answers each request with the next status, the last one again and again; 0 cuts the connection."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[tuple[int, dict[str, str]]] = [(200, {})]
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
                status, headers = receiver.answers.pop(0) if len(receiver.answers) > 1 else receiver.answers[0]
                if not status:
                    self.connection.close()
                    return
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *args: None  # type: ignore[method-assign]
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


def publisher(receiver: Receiver, **more: Any) -> WebhookPublisher:
    sender = WebhookClient(allow=("127.0.0.0/8",), http=True, timeout=2.0)
    return WebhookPublisher(receiver.url, lambda: [SECRET], sender=sender, timeout=2.0, **more)


def message(key: str, order: str = "") -> OutgoingMessage:
    return OutgoingMessage("hook", key, b'{"n":1}', "orders.paid", order, {"ce-type": "orders.paid"})


def test_each_attempt_has_the_same_id_and_a_new_timestamp_and_signature(receiver: Receiver) -> None:
    times = iter([1_700_000_000.0, 1_700_000_060.0])
    hook = publisher(receiver, now=lambda: next(times))
    receiver.answers = [(500, {}), (200, {})]
    assert hook.publish([message("a")], 30) == [Refused("the receiver answered 500")]
    assert hook.publish([message("a")], 30) == [Confirmed("200")]
    (first, body), (second, _) = receiver.requests
    assert first["webhook-id"] == second["webhook-id"] == "a"
    assert (first["webhook-timestamp"], second["webhook-timestamp"]) == ("1700000000", "1700000060")
    assert first["webhook-signature"] == signed_headers("a", 1_700_000_000.0, body, [SECRET])["webhook-signature"]
    assert first["webhook-signature"] != second["webhook-signature"]
    assert (first["ce-type"], first["content-type"]) == ("orders.paid", "application/json")


def test_the_official_library_accepts_it_and_not_its_changed_twin(receiver: Receiver) -> None:
    assert publisher(receiver).publish([message("a")], 30) == [Confirmed("200")]
    ((headers, body),) = receiver.requests
    assert Webhook(SECRET).verify(body, headers) == {"n": 1}
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(body.replace(b"1", b"2"), headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(body, headers | {"webhook-id": "b"})


@pytest.mark.parametrize("secret", ["", "  ", "\t", "\u200b", [SECRET, " "]])
def test_a_secret_with_nothing_visible_is_refused_when_it_is_declared(secret: Any) -> None:
    with pytest.raises(Misuse, match="give it a secret"):
        webhook("https://shop.example/hook", secret)


def test_no_trick_leads_to_an_address_that_is_not_public() -> None:
    for url in CLOSED_URLS:
        (answer,) = WebhookPublisher(url, lambda: [SECRET]).publish([message("a")], 30)
        assert isinstance(answer, Refused) and answer.final, url


def test_what_the_receiver_answers_decides(receiver: Receiver) -> None:
    hook = publisher(receiver)
    receiver.answers = [(429, {"retry-after": "7"}), (302, {"location": "/elsewhere"}), (410, {}), (0, {})]
    assert hook.publish([message("a")], 30) == [Refused("the receiver answered 429", retry_after=7.0)]
    assert hook.publish([message("a")], 30) == [Refused("the receiver answered 302")]
    (gone,) = hook.publish([message("a")], 30)
    assert isinstance(gone, Refused)
    assert (gone.away, gone.gone) == (True, True)  # the target is paused, and no message touched
    (cut,) = hook.publish([message("a")], 30)
    assert isinstance(cut, Unconfirmed)
    assert len(receiver.requests) == 4  # the redirect was not followed


def test_an_unreachable_receiver_is_away_and_a_forbidden_one_refused_for_good(receiver: Receiver) -> None:
    receiver.server.shutdown()
    receiver.server.server_close()
    (nobody,) = publisher(receiver).publish([message("a")], 30)
    assert isinstance(nobody, Refused)
    assert nobody.away
    (private,) = WebhookPublisher("https://10.0.0.1/x", lambda: [SECRET]).publish([message("a")], 30)
    assert isinstance(private, Refused)
    assert private.final


def test_behind_one_that_was_refused_the_same_order_key_waits(receiver: Receiver) -> None:
    hook = publisher(receiver)
    receiver.answers = [(500, {})]
    answers = hook.publish([message("1", "o"), message("2", "o"), message("x")], 30)
    assert sorted(headers["webhook-id"] for headers, _ in receiver.requests) == ["1", "x"]
    assert isinstance(answers[1], Refused)
    receiver.answers = [(200, {})]
    receiver.requests.clear()
    assert hook.publish([message(str(n), "o") for n in range(5)], 30) == [Confirmed("200")] * 5
    assert [headers["webhook-id"] for headers, _ in receiver.requests] == list("01234")
    hook.close()


def test_a_route_to_a_webhook_reads_its_secret_when_it_sends(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", SECRET)
    with App("memory://") as app:
        app.route("orders.*", to=webhook(receiver.url, env("HOOK"), allow=("127.0.0.1",)))
        (name,) = app.routing.targets
        assert name.startswith("127.0.0.1-")
        assert SECRET not in repr(webhook(receiver.url, SECRET))
        app.send("orders.paid", {}, key="a")
        app.relay().run(until_idle=True)
        found = app.store.scan("message").block().records
        assert [record.state for record in found] == ["parked"]  # plain http is not permitted


def test_one_message_with_letters_outside_ascii_does_not_hold_up_the_others(receiver: Receiver) -> None:
    headers = {"correlation-id": "bestellung-№5", "ce-id": "№5 at 100%", "ce-type": "orders.paid"}
    foreign = OutgoingMessage("hook", "№5", b"{}", "orders.paid", headers=headers)
    assert publisher(receiver).publish([message("a"), foreign, message("b")], 30) == [Confirmed("200")] * 3
    (sent,) = [given for given, _ in receiver.requests if given["webhook-id"] not in ("a", "b")]
    assert (sent["correlation-id"], sent["ce-id"]) == ("bestellung-%E2%84%965", "%E2%84%965%20at%20100%25")


def test_a_header_that_breaks_its_line_is_refused_for_good_and_holds_up_no_other(receiver: Receiver) -> None:
    broken = OutgoingMessage("hook", "x", b"{}", headers={"x-note": "a\r\nx-other: b"})
    refused, confirmed = publisher(receiver).publish([broken, message("b")], 30)
    assert isinstance(refused, Refused)
    assert refused.final
    assert confirmed == Confirmed("200")


@pytest.mark.parametrize("key", ["order.17.paid", "№5", "shop%3Aorder:17"])
def test_our_own_source_takes_what_is_posted_whatever_the_key(receiver: Receiver, key: str) -> None:
    publisher(receiver).publish([message(key)], 30)
    ((headers, body),) = receiver.requests
    delivery = Envelope("hook", body, headers, received_at=float(headers["webhook-timestamp"]))
    assert StandardWebhooks().verify(delivery, [SECRET], delivery.received_at) == ""
    assert unquote(headers["webhook-id"]) == key
