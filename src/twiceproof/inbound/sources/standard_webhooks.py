"""Standard Webhooks and Svix: HMAC-SHA256 or ed25519 signatures over `id.time.body`."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Sequence
from typing import Any

import msgspec

from ...errors import Misuse
from ..source import WINDOW, Envelope, Event, Poison, Reading
from .parsing import made_up_id, named, object_of, text_at
from .signed import NO_KEY, NO_SECRET, UNSIGNED, WRONG_SIGNATURE, Encoding, Signed, Signer, mac, moment, raw, stale

__all__ = ["PARTS", "StandardWebhooks", "Svix", "fits", "need_cryptography", "sign"]


def need_cryptography() -> Misuse:
    return Misuse('This signature needs the package "cryptography"; install it with: pip install "twiceproof[crypto]"')


def _module() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise need_cryptography() from None
    return ed25519


def fits(key: bytes, message: bytes, signature: bytes, *, private: bool = False) -> bool:
    """Whether the signature was made with this key. From a private key, its public key is derived."""
    ed25519 = _module()
    from cryptography.exceptions import InvalidSignature

    try:
        public = _private(key).public_key() if private else ed25519.Ed25519PublicKey.from_public_bytes(key)
        public.verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def sign(key: bytes, message: bytes) -> bytes:
    signature: bytes = _private(key).sign(message)
    return signature


def _private(key: bytes) -> Any:
    return _module().Ed25519PrivateKey.from_private_bytes(key[:32])  # some append the public key


SHARED, PUBLIC, PRIVATE = "whsec_", "whpk_", "whsk_"
PARTS = ("id", "timestamp", "signature")
BASE64: Encoding = "base64"


class StandardWebhooks(Signer):
    """Secrets are `whsec_…`, or the sender's public key `whpk_…` for ed25519."""

    name = "standard_webhooks"
    prefix = "webhook"
    retry_window = 272_105.0  # 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h, 24 h
    deadline = 15.0
    window = WINDOW

    def __init__(self) -> None:
        self.covered = tuple(f"{self.prefix}-{part}" for part in PARTS)
        self.needs = self.covered[:1]

    def headers_of(self, envelope: Envelope) -> tuple[str, ...]:
        """Return the names of the three headers in this delivery."""
        return self.covered

    def signed_part(self, envelope: Envelope) -> Signed | str:
        name, time, signatures = (envelope.header(header) for header in self.headers_of(envelope))
        at = moment(time)
        if not (name and signatures):
            return UNSIGNED
        if at is None or "." in name:  # with a dot, part of the id could pass for the time
            return "its id or its time is not in its sender's format"
        return Signed(signatures.split(" "), raw(f"{name}.{time}.") + envelope.body, at)

    def sign(self, secret: str, message: bytes) -> str:
        key = _key_of(secret.removeprefix(SHARED))
        return f"v1,{mac(key, message, encoding=BASE64)}" if key else ""

    def verify(self, envelope: Envelope, secrets: Sequence[str], now: float) -> str:
        """Verify each kind of signature with its own kind of secret only."""
        pairs = [secret for secret in secrets if secret.startswith((PUBLIC, PRIVATE))]
        shared = [secret for secret in secrets if secret not in pairs]
        verdict = super().verify(envelope, shared, now)
        if verdict not in (WRONG_SIGNATURE, NO_KEY, NO_SECRET) or not pairs:
            return verdict
        return self._verify_pairs(envelope, pairs, now)

    def _verify_pairs(self, envelope: Envelope, pairs: Sequence[str], now: float) -> str:
        part = self.signed_part(envelope)
        if isinstance(part, str):
            return part
        given = [text[4:] for text in part.given if text.startswith("v1a,")][:8]
        if not any(_ed25519_fits(pair, part.message, text) for pair in pairs for text in given):
            return WRONG_SIGNATURE
        return stale(part.at or 0.0, now, self.window)

    def read(self, envelope: Envelope) -> Reading:
        payload = object_of(envelope)
        if isinstance(payload, Poison):
            return payload
        name = named(envelope.header(self.headers_of(envelope)[0]))
        return name if isinstance(name, Poison) else [Event(name, payload, text_at(payload, "type"), delivery=name)]

    def example(self, payload: Any = None) -> bytes:
        return msgspec.json.encode({"type": "order.created", "data": {"order": 1}} if payload is None else payload)

    def seal(self, body: bytes, secret: str, now: float) -> Envelope:
        name, time = made_up_id(body, "msg_"), f"{now:.0f}"
        message = raw(f"{name}.{time}.") + body
        signature = self.sign(secret, message)
        if secret.startswith(PRIVATE):
            signature = f"v1a,{b64encode(sign(_key_of(secret.removeprefix(PRIVATE)), message)).decode()}"
        headers = dict(zip(self.covered, (name, time, signature), strict=True))
        return Envelope(self.name, body, {"content-type": "application/json", **headers}, received_at=now)


def _key_of(text: str) -> bytes:
    """Decode a key. Senders, and people who copy it, omit padding, all or a part of it."""
    return _bytes_of(text + "=" * (-len(text) % 4))


def _bytes_of(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (NotBase64, ValueError):
        return b""  # never a valid key


def _ed25519_fits(pair: str, message: bytes, text: str) -> bool:
    kind, private = (PRIVATE, True) if pair.startswith(PRIVATE) else (PUBLIC, False)
    signature = _bytes_of(text)
    # Encoded again it must be the same text: the last base64 character has unused bits.
    return b64encode(signature).decode() == text and fits(
        _key_of(pair.removeprefix(kind)), message, signature, private=private
    )


class Svix(StandardWebhooks):
    name = "svix"
    prefix = "svix"
    retry_window = 99_305.0  # 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 10 h

    def __init__(self) -> None:
        super().__init__()
        self.unbranded = tuple(f"{StandardWebhooks.prefix}-{part}" for part in PARTS)
        self.needs = (*self.needs, self.unbranded[0])

    def headers_of(self, envelope: Envelope) -> tuple[str, ...]:
        """Use Svix's own headers if any is present, so that the id that is read is the one that is signed."""
        return self.covered if any(envelope.header(name) for name in self.covered) else self.unbranded
