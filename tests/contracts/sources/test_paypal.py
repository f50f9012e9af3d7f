"""PayPal: by a certificate that was given, or fetched from PayPal's own hosts and from nowhere else."""

from __future__ import annotations

import asyncio
import threading

import pytest
from msgspec import structs

from tests.contracts.sources.keys import certificate
from twiceproof import App, Misuse
from twiceproof.inbound.source import Envelope
from twiceproof.inbound.sources import find_source
from twiceproof.prove.source_contract.case import NOW

WEBHOOK = "1JE4291016473214C"
URL = "https://api.paypal.com/v1/notifications/certs/CERT-360caa42-fca2a594-a5cafa77"


@pytest.fixture
def sent() -> Envelope:
    pem, key = certificate()
    return find_source("paypal", certificate=pem, key=key).sample(WEBHOOK, NOW)


def at_url(sent: Envelope, url: str) -> Envelope:
    return structs.replace(sent, headers={**sent.headers, "paypal-cert-url": url})


class Web:
    """Answers with the good certificate whatever is asked, and remembers it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, url: str) -> bytes:
        self.asked.append(url)
        return certificate()[0].encode()


@pytest.mark.parametrize("host", ["api.paypal.com", "api.sandbox.paypal.com"])
def test_a_certificate_of_paypals_own_is_fetched_once(sent, host):
    web = Web()
    source = find_source("paypal", fetch=web)
    for _ in range(3):
        assert source.verify(at_url(sent, URL.replace("api.paypal.com", host)), [WEBHOOK], NOW) == ""
    assert web.asked == [URL.replace("api.paypal.com", host)]


ELSEWHERE = [
    "",
    "CERT-1",
    "http://api.paypal.com/v1/notifications/certs/CERT-1",
    "https://evil.example/v1/notifications/certs/CERT-1",
    "https://api.paypal.com.evil.example/v1/notifications/certs/CERT-1",
    "https://evilpaypal.com/v1/notifications/certs/CERT-1",
    "https://api.paypal.com@evil.example/v1/notifications/certs/CERT-1",
    "https://evil.example#@api.paypal.com/v1/notifications/certs/CERT-1",
    "https://evil.example\\@api.paypal.com/v1/notifications/certs/CERT-1",
    "https://user@api.paypal.com/v1/notifications/certs/CERT-1",
    "https://api.paypal.com:8443/v1/notifications/certs/CERT-1",
    "https://api.paypal.com./v1/notifications/certs/CERT-1",
    "https://API.PAYPAL.COM/v1/notifications/certs/CERT-1",
    "https://api.paypal.com/v1/notifications/certs/../../../upload/mine",
    "https://api.paypal.com/v1/notifications/certs/%2e%2e/x",
    "https://api.paypal.com/v1/notifications/certs/CERT-1?next=//evil.example",
    "https://api.paypal.com/v1/notifications/certs/CERT-1#x",
    "https://api.paypal.com/redirect?to=https://evil.example",
    "https://[::1]/v1/notifications/certs/CERT-1",
    "https://[::1/v1/notifications/certs/CERT-1",
    "https://127.0.0.1/v1/notifications/certs/CERT-1",
    "file:///etc/passwd",
    "https://api.paypal.com/v1/notifications/certs/CERT-1\r\nHost: evil.example",
    "https://api.paypal.com/v1/notifications/certs/",
    "https://аpi.paypal.com/v1/notifications/certs/CERT-1",
]


@pytest.mark.parametrize("url", ELSEWHERE)
def test_a_certificate_is_fetched_from_nowhere_else(sent, url):
    web = Web()
    assert find_source("paypal", fetch=web).verify(at_url(sent, url), [WEBHOOK], NOW)
    assert web.asked == []


def test_a_certificate_that_cannot_be_fetched_is_not_believed(sent):
    def broken(url: str) -> bytes:
        raise OSError("no route")

    assert "OSError" in find_source("paypal", fetch=broken).verify(at_url(sent, URL), [WEBHOOK], NOW)
    assert find_source("paypal", fetch=lambda url: b"no PEM").verify(at_url(sent, URL), [WEBHOOK], NOW)


def test_a_given_certificate_counts_whatever_the_delivery_says(sent):
    source = find_source("paypal", certificate=certificate()[0])
    assert source.verify(at_url(sent, "https://evil.example/cert"), [WEBHOOK], NOW) == ""


def test_another_certificate_does_not_vouch_for_it(sent):
    other = certificate(host="other.paypal.com")[0]
    assert find_source("paypal", certificate=other).verify(sent, [WEBHOOK], NOW)
    assert find_source("paypal", certificate=[other, certificate()[0]]).verify(sent, [WEBHOOK], NOW) == ""


def test_a_certificate_that_is_out_of_date_vouches_for_nothing():
    pem, key = certificate(days=-10)
    source = find_source("paypal", certificate=pem, key=key)
    assert "not valid at this time" in source.verify(source.sample(WEBHOOK, NOW), [WEBHOOK], NOW)
    assert source.verify(source.sample(WEBHOOK, NOW - 20 * 86_400), [WEBHOOK], NOW - 20 * 86_400) == ""


def test_a_fetched_certificate_that_is_out_of_date_vouches_for_nothing(sent):
    source = find_source("paypal", fetch=Web())
    late = NOW + 2 * 365 * 86_400
    assert "not valid at this time" in source.verify(at_url(sent, URL), [WEBHOOK], late)
    assert source.verify(at_url(sent, URL), [WEBHOOK], NOW) == ""


@pytest.mark.parametrize("algorithm", ["", "SHA1withRSA", "none", "sha256withrsa", "SHA256withRSA "])
def test_another_algorithm_is_not_believed(sent, algorithm):
    source = find_source("paypal", certificate=certificate()[0])
    changed = structs.replace(sent, headers={**sent.headers, "paypal-auth-algo": algorithm})
    assert source.verify(changed, [WEBHOOK], NOW)
    assert source.verify(sent, [WEBHOOK], NOW) == ""


def test_the_event_is_named_by_the_body_and_the_delivery_by_its_transmission(sent):
    (event,) = find_source("paypal", certificate=certificate()[0]).read(sent)
    assert event.id.startswith("WH-")
    assert event.delivery == sent.header("paypal-transmission-id")


def test_without_a_certificate_it_cannot_be_declared():
    with pytest.raises(Misuse, match="certificate="):
        find_source("paypal")


def test_without_paypals_key_no_sample_can_be_made():
    with pytest.raises(Misuse, match="simulator"):
        find_source("paypal", certificate=certificate()[0]).sample(WEBHOOK, NOW)


def test_made_up_certificates_are_not_asked_for_without_end(sent):
    """Whoever writes names into a header must not have us knock at PayPal for each of them."""
    asked = []

    def nothing(url):
        asked.append(url)
        raise OSError("404")

    source = find_source("paypal", fetch=nothing)
    for number in range(50):
        assert source.verify(at_url(sent, f"{URL}{number}"), [WEBHOOK], NOW)
    assert len(asked) == 10
    assert source.verify(at_url(sent, URL), [WEBHOOK], NOW + 61)
    assert len(asked) == 11


def test_while_a_certificate_is_fetched_others_are_answered():
    """By a server, all callers share one thread: who waits in it keeps everybody waiting."""
    held, asked = threading.Event(), threading.Event()

    def slow(url):
        asked.set()
        held.wait(30)
        raise OSError

    app = App("memory://")

    @app.flow(key="{payment[id]}")
    def pay(payment):
        return payment

    app.webhook("paypal", secret=WEBHOOK, fetch=slow, start=pay)
    forged = {
        "paypal-transmission-id": "1",
        "paypal-transmission-time": "2026-01-01T00:00:00Z",
        "paypal-transmission-sig": "x",
        "paypal-auth-algo": "SHA256withRSA",
        "paypal-cert-url": URL,
    }

    async def both():
        first = asyncio.create_task(app.receiving("paypal", b"{}", forged.items()))
        while not asked.is_set():
            await asyncio.sleep(0)
        second = await app.receiving("none", b"{}", ())
        held.set()
        return second.status, (await first).status

    with app:
        assert asyncio.run(asyncio.wait_for(both(), 20)) == (401, 401)
