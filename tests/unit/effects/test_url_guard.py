"""What callbacks may be sent to: a corpus of tricks, each with its verdict, and their harmless neighbours."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.effects.ssrf_corpus import ADDRESSES, CLOSED_URLS, ODD_URLS, OPEN_URLS
from twiceproof import Misuse
from twiceproof.effects.url_guard import Allowed, NotAllowed, refuse_address
from twiceproof.effects.webhook_client import WebhookClient


def test_the_corpus_is_large_enough() -> None:
    assert len(set(CLOSED_URLS)) == len(CLOSED_URLS)
    assert len(CLOSED_URLS) + len(ODD_URLS) + len(OPEN_URLS) + len(ADDRESSES) >= 250
    assert len(CLOSED_URLS) >= 150


@pytest.mark.parametrize("url", [*CLOSED_URLS, *ODD_URLS])
def test_a_trick_is_refused_when_it_is_registered(url: Any) -> None:
    with pytest.raises(NotAllowed, match="not called"):
        WebhookClient().check(url)


@pytest.mark.parametrize("url", OPEN_URLS)
def test_its_harmless_neighbour_is_taken(url: str) -> None:
    target = WebhookClient().check(url)
    assert (target.host, target.port, target.path) == OPEN_URLS[url]


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_has_its_verdict(address: str) -> None:
    assert (refuse_address(address) == "") is ADDRESSES[address]


@given(st.ip_addresses())
def test_nothing_that_python_knows_as_not_global_is_open(address: Any) -> None:
    if not refuse_address(str(address)):
        assert address.is_global
        assert not address.is_multicast
        assert not address.is_reserved


@given(st.ip_addresses(v=4))
def test_no_address_gets_in_by_being_wrapped(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    for wrapped in (
        ipaddress.IPv6Address((0xFFFF << 32) | number),
        ipaddress.IPv6Address((0x0064FF9B << 96) | number),
        ipaddress.IPv6Address((0x2002 << 112) | (number << 80)),
        ipaddress.IPv6Address((0x20010000 << 96) | (~number & 0xFFFFFFFF)),
        ipaddress.IPv6Address(number),
    ):
        assert refuse_address(str(wrapped))


def test_what_is_named_is_open_and_nothing_else() -> None:
    sender = WebhookClient(allow=("10.0.0.0/8", "hooks.internal", "::1/128"))
    assert sender.check("https://10.1.2.3/").host == "10.1.2.3"
    assert sender.check("https://HOOKS.internal/").host == "hooks.internal"
    assert sender.check("https://[::1]/").host == "::1"
    for url in (
        "https://11.hooks.internal/",
        "https://db.internal/",
        "https://192.168.0.1/",
        "https://[::ffff:10.0.0.1]/",
    ):
        with pytest.raises(NotAllowed):
            sender.check(url)


@pytest.mark.parametrize("allow", ["10.0.0.0/8", ("10.0.0.1/8",), ("https://x",), ("a:1",), ("",), (" a",)])
def test_an_opening_that_means_nothing_is_refused(allow: Any) -> None:
    with pytest.raises(Misuse):
        Allowed(allow)


def test_ports_can_be_restricted() -> None:
    sender = WebhookClient(ports=(443, 8443))
    assert sender.check("https://hooks.shop.io:8443/").port == 8443
    with pytest.raises(NotAllowed, match="port 22"):
        sender.check("https://hooks.shop.io:22/")


def test_plain_http_only_if_it_is_said() -> None:
    assert WebhookClient(http=True).check("http://hooks.shop.io/").port == 80


def test_a_refusal_does_not_repeat_what_may_be_secret() -> None:
    for url in ("https://user:hunter2@hooks.shop.io/", "http://hooks.shop.io/?token=hunter2", "https://x#hunter2"):
        with pytest.raises(NotAllowed) as refused:
            WebhookClient().check(url)
        assert "hunter2" not in str(refused.value) + str(refused.value.data)


@pytest.mark.parametrize(
    ("url", "opened"),
    [
        ("https://hooks.internal/x", "hooks.internal"),
        ("https://metadata/x", "metadata"),
        ("https://127.0.0.1:9/x", "127.0.0.1"),
        ("https://[::1]/x", "::1"),
    ],
)
def test_allow_is_named_where_it_opens_the_way(url: str, opened: str) -> None:
    with pytest.raises(NotAllowed, match="allow="):
        WebhookClient().check(url)
    WebhookClient(allow=(opened,)).check(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9999/x",
        "http://hooks.internal/x",
        "https://user:pw@hooks.internal/",
        "https://hooks.internal/x#f",
        "https:///x",
        "https://hooks.internal\\x",
        "https://[fe80::1%25eth0]/",
        "https://hooks.internal:0/",
    ],
)
def test_allow_is_not_named_where_it_opens_nothing(url: str) -> None:
    with pytest.raises(NotAllowed) as refused:
        WebhookClient(allow=("127.0.0.1", "hooks.internal", "fe80::/10")).check(url)
    assert "allow=" not in str(refused.value) and "https://" in str(refused.value)
