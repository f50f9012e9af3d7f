"""Standard Webhooks: checked against the reference package, and by key pairs."""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import structs
from standardwebhooks import Webhook, WebhookVerificationError

from tests.contracts.sources.keys import key_pair
from twiceproof.inbound.source import Envelope
from twiceproof.inbound.sources import find_source
from twiceproof.prove.source_contract.case import NOW, OTHER, SECRET

BODY = b'{"type":"order.paid","data":{"n":1}}'


def signed(*signatures: str, name: str = "msg_1", at: float = NOW) -> Envelope:
    headers = {"webhook-id": name, "webhook-timestamp": f"{at:.0f}", "webhook-signature": " ".join(signatures)}
    return Envelope("standard_webhooks", BODY, {"content-type": "application/json", **headers})


def reference(secret: str = SECRET) -> str:
    return Webhook(secret).sign("msg_1", datetime.fromtimestamp(NOW, UTC), BODY.decode())


def public_of(pair: str) -> str:
    private = Ed25519PrivateKey.from_private_bytes(b64decode(pair.removeprefix("whsk_")))
    return "whpk_" + b64encode(private.public_key().public_bytes_raw()).decode()


def pair_signature(pair: str) -> str:
    private = Ed25519PrivateKey.from_private_bytes(b64decode(pair.removeprefix("whsk_")))
    return "v1a," + b64encode(private.sign(f"msg_1.{NOW:.0f}.".encode() + BODY)).decode()


@pytest.fixture
def source():
    return find_source("standard_webhooks")


def test_what_the_reference_signs_is_believed(source):
    assert source.verify(signed(reference()), [SECRET], NOW) == ""
    assert source.verify(signed(reference(OTHER)), [SECRET], NOW)


@pytest.mark.parametrize("name", ["standard_webhooks", "svix"])
def test_the_reference_believes_our_sample(name):
    sent = find_source(name).sample(SECRET, time.time())
    headers = {known.replace("svix-", "webhook-"): value for known, value in sent.headers.items()}
    assert Webhook(SECRET).verify(sent.body, headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(OTHER).verify(sent.body, headers)


def test_a_secret_may_come_without_its_prefix(source):
    assert source.verify(signed(reference()), [SECRET.removeprefix("whsec_")], NOW) == ""


KEYS = [b64encode(bytes(range(size))).decode() for size in (24, 25, 26, 32)]


@pytest.mark.parametrize("name", ["standard_webhooks", "svix"])
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("prefix", ["whsec_", ""])
@pytest.mark.parametrize("kept", [0, 1], ids=["none", "half"])
def test_a_secret_without_its_padding_is_the_same_secret(name, key, prefix, kept):
    """The reference package adds what is missing, and senders leave it out."""
    source, bare = find_source(name), prefix + key.rstrip("=") + "=" * min(kept, key.count("="))
    sent = structs.replace(source.seal(BODY, prefix + key, NOW), source=name)
    assert source.verify(sent, [bare], NOW) == ""
    assert Webhook(bare).sign("msg_1", datetime.fromtimestamp(NOW, UTC), BODY.decode()) == reference(prefix + key)
    assert source.verify(source.seal(BODY, bare, NOW), [prefix + key], NOW) == ""


def test_a_key_pair_without_its_padding_is_the_same(source):
    pair = key_pair(1)
    assert source.verify(signed(pair_signature(pair)), [public_of(pair).rstrip("=")], NOW) == ""
    assert source.verify(source.seal(BODY, pair.rstrip("="), NOW), [public_of(pair)], NOW) == ""


@pytest.mark.parametrize("key", ["A", "AAAAA", "A=", "=AAA", "AA==AA", "AA AA", "AAA=="])
def test_what_is_no_base64_even_with_padding_is_no_secret(source, key):
    assert source.verify(signed(reference()), [f"whsec_{key}"], NOW)


def test_one_good_signature_among_several_is_enough(source):
    both = signed(reference(OTHER), reference())
    assert source.verify(both, [SECRET], NOW) == source.verify(both, [OTHER], NOW) == ""
    assert source.verify(signed(reference(OTHER), "v2,abc", "v1,"), [SECRET], NOW)


def test_the_event_is_named_by_its_header(source):
    (event,) = source.read(signed(reference()))
    assert (event.id, event.type, event.payload["data"]) == ("msg_1", "order.paid", {"n": 1})


def test_an_id_with_a_dot_is_refused(source):
    """It could move a part of the id into the time."""
    text = Webhook(SECRET).sign("msg.1", datetime.fromtimestamp(NOW, UTC), BODY.decode())
    assert "form" in source.verify(signed(text, name="msg.1"), [SECRET], NOW)


def test_a_public_key_vouches_for_a_v1a_signature(source):
    pair = key_pair(1)
    assert source.verify(signed(pair_signature(pair)), [public_of(pair)], NOW) == ""
    assert source.verify(signed(pair_signature(pair)), [public_of(key_pair(2))], NOW)
    assert source.verify(signed(pair_signature(pair)), [public_of(pair)], NOW + 301)
    assert source.verify(signed(reference(), pair_signature(pair)), [public_of(pair)], NOW) == ""


def test_both_kinds_of_secrets_may_stand_side_by_side(source):
    pair = key_pair(1)
    secrets = [SECRET, public_of(pair)]
    assert source.verify(signed(reference()), secrets, NOW) == ""
    assert source.verify(signed(pair_signature(pair)), secrets, NOW) == ""


def test_a_public_key_is_not_taken_for_a_shared_secret(source):
    """Everybody has it, and could make a v1 signature with it."""
    public = public_of(key_pair(1))
    for key in (public.removeprefix("whpk_"), "whsec_" + public.removeprefix("whpk_")):
        assert source.verify(signed(reference(key)), [public], NOW)


def test_a_shared_secret_does_not_vouch_for_a_v1a_signature(source):
    relabelled = reference().replace("v1,", "v1a,")
    assert source.verify(signed(relabelled), [SECRET], NOW)
    assert source.verify(signed(relabelled), [SECRET, public_of(key_pair(1))], NOW)


@pytest.mark.parametrize("secret", ["whsec_no base64!", "whsec_", "whpk_AAAA", "whsk_AAAA", "whpk_é"])
def test_a_secret_that_cannot_be_one_is_told(source, secret):
    assert source.verify(signed(reference(), pair_signature(key_pair(1))), [secret], NOW)


def test_without_the_crypto_extra_its_name_is_told(source, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives.asymmetric", None)
    with pytest.raises(ValueError, match=r"twiceproof\[crypto\]"):
        source.verify(signed("v1a,AAAA"), [public_of(key_pair(1))], NOW)


def test_svix_knows_its_own_headers():
    svix = find_source("svix")
    sent = svix.sample(SECRET, NOW)
    assert {"svix-id", "svix-timestamp", "svix-signature"} <= set(sent.headers)


def test_svix_also_sends_the_headers_of_the_standard():
    svix = find_source("svix")
    sent = svix.sample(SECRET, NOW)
    renamed = {name.replace("svix-", "webhook-"): value for name, value in sent.headers.items()}
    plain, both = (structs.replace(sent, headers=headers) for headers in (renamed, {**renamed, **sent.headers}))
    for one in (plain, both):
        assert svix.verify(one, [SECRET], NOW) == ""
        assert svix.verify(one, [OTHER], NOW)
        assert svix.read(one) == svix.read(sent)


@pytest.mark.parametrize("missing", ["id", "timestamp", "signature"])
def test_one_set_of_svix_headers_counts_and_not_a_mixture(missing):
    """Whoever looks at the other set would see another id or time."""
    svix = find_source("svix")
    sent = svix.sample(SECRET, NOW)
    mixed = dict(sent.headers)
    mixed[f"webhook-{missing}"] = mixed.pop(f"svix-{missing}")
    assert svix.verify(structs.replace(sent, headers=mixed), [SECRET], NOW)


def test_a_foreign_id_beside_svix_own_is_not_the_events():
    svix = find_source("svix")
    sent = svix.sample(SECRET, NOW)
    forged = structs.replace(sent, headers={**sent.headers, "webhook-id": "msg_forged"})
    assert svix.verify(forged, [SECRET], NOW) == "" and svix.read(forged) == svix.read(sent)


def test_the_standards_own_source_knows_no_svix_headers(source):
    assert source.verify(find_source("svix").sample(SECRET, NOW), [SECRET], NOW)
