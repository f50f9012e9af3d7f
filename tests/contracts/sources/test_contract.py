"""Every source keeps the contract."""

from __future__ import annotations

import pytest

from tests.contracts.sources.keys import certificate, key_pair
from twiceproof.inbound.sources import SOURCES, find_source
from twiceproof.inbound.sources.cloudevents import CloudEvents
from twiceproof.prove.source_contract import SourceContract

URL = "https://shop.example/hooks?x=1"


class TestStandardWebhooks(SourceContract):
    def make_source(self):
        return find_source("standard_webhooks")


class TestStandardWebhooksByKeyPair(SourceContract):
    secret, other_secret = key_pair(1), key_pair(2)
    compares = False

    def make_source(self):
        return find_source("standard_webhooks")


class TestSvix(SourceContract):
    def make_source(self):
        return find_source("svix")


class TestStripe(SourceContract):
    def make_source(self):
        return find_source("stripe")


class TestGitHub(SourceContract):
    def make_source(self):
        return find_source("github")


class TestShopify(SourceContract):
    def make_source(self):
        return find_source("shopify")


class TestShopifyByEvent(SourceContract):
    def make_source(self):
        return find_source("shopify", by="event-id")


class TestSlack(SourceContract):
    def make_source(self):
        return find_source("slack")


FORMS = {
    "nothing": b"",
    "a NUL in the id": b"MessageSid=SM%00&SmsStatus=received",
    "invalid UTF-8": b"MessageSid=SM1&Body=%ff",
    "bytes outside ASCII": "MessageSid=SM1&Body=é".encode(),
    "a name twice": b"MessageSid=SM1&MessageSid=SM2",
    "too many fields": b"MessageSid=SM1" + b"&a=1" * 501,
    "no id": b"Body=hello",
    "a blank id": b"MessageSid=&Body=hello",
}


class TestTwilio(SourceContract):
    exact = False

    def make_source(self):
        return find_source("twilio", url=URL)

    def poisons(self):
        return FORMS


class TestSquare(SourceContract):
    def make_source(self):
        return find_source("square", url=URL)


class TestPayPal(SourceContract):
    secret, other_secret = "1JE4291016473214C", "5TS33333AA222222B"
    compares = False

    def make_source(self):
        pem, key = certificate()
        return find_source("paypal", certificate=pem, key=key)


class TestCloudEvents(SourceContract):
    def make_source(self):
        return find_source("cloudevents")


class TestCloudEventsByHeader(SourceContract):
    def make_source(self):
        return find_source("cloudevents", header="Authorization")


class Batches(CloudEvents):
    def example(self, payload=None):
        return b"[" + super().example(payload) + b"]"


class TestCloudEventsInBatches(SourceContract):
    def make_source(self):
        return Batches()


class TestEventGrid(SourceContract):
    def make_source(self):
        return find_source("event_grid")


class TestDataverse(SourceContract):
    def make_source(self):
        return find_source("dataverse")


class TestGeneric(SourceContract):
    def make_source(self):
        return find_source("generic", id="data.order.id", type="kind", signature="X-Signature")


class TestGenericWithTimeAndHeaderId(SourceContract):
    def make_source(self):
        return find_source(
            "generic",
            id="header:X-Event-Id",
            type="header:X-Event-Type",
            signature="X-Signature",
            prefix="sha512=",
            algorithm="sha512",
            encoding="base64",
            timestamp="X-Time",
            signs="{id}.{timestamp}.{url}.{body}",
            url=URL,
        )


class TestGenericByFingerprint(SourceContract):
    def make_source(self):
        return find_source("generic", fingerprint=("order.id", "status"), signature="X-Signature")


def test_every_source_of_the_catalogue_runs_the_contract():
    cases = [case for case in globals().values() if isinstance(case, type) and issubclass(case, SourceContract)]
    tried = {case().make_source().name for case in cases if case is not SourceContract}
    assert tried == set(SOURCES)


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_is_found_by_the_name_it_bears(name):
    module, kind = SOURCES[name]
    found = getattr(__import__(f"twiceproof.inbound.sources.{module}", fromlist=[kind]), kind)
    assert found.name == name
