"""PayPal: `id|time|webhook id|crc32 of the body` under RSA with SHA-256, by PayPal's own certificate."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Any
from zlib import crc32

import msgspec

from ...errors import Misuse
from ..envelope import Envelope
from ..source import Event, Poison, Reading, Source
from .event_id import made_up_id, named, text_at
from .json_body import object_of
from .paypal_certificate import Certificates
from .signature import FORGED, NOBODY_TRUSTED, UNSIGNED, not_blank, raw, stale

__all__ = ["PayPal"]

ID, TIME, SIGNATURE, ALGORITHM, CERTIFICATE = (
    f"paypal-{name}" for name in ("transmission-id", "transmission-time", "transmission-sig", "auth-algo", "cert-url")
)
RSA = "SHA256withRSA"


class PayPal(Source):
    """Its secret is the webhook's id. `certificate` is PayPal's, as PEM; or `fetch` gets it, from PayPal's hosts only.

    `key` is a private key for making samples: PayPal's own is not to be had.
    """

    name = "paypal"
    horizon = 3 * 86_400.0  # up to 25 tries
    # Whether a later try is signed with a new time is not said anywhere; an old one within these days is a duplicate.
    window = 3 * 86_400.0 + 3_600.0
    covered = (ID, TIME, SIGNATURE)
    needs = (ID,)

    def __init__(
        self,
        *,
        certificate: str | Collection[str] = (),
        fetch: Callable[[str], bytes] | None = None,
        hosts: Collection[str] = ("api.paypal.com", "api.sandbox.paypal.com"),
        key: str = "",
    ) -> None:
        if not certificate and fetch is None:
            raise Misuse("PayPal signs by certificate; give certificate= (its PEM), or fetch= to get it from PayPal.")
        self.certificates = Certificates((certificate,) if isinstance(certificate, str) else certificate, fetch, hosts)
        self.key = key
        self.waits = fetch is not None

    def verify(self, envelope: Envelope, secrets: Sequence[str], now: float) -> str:
        at, signature = _moment(envelope.header(TIME)), envelope.header(SIGNATURE)
        if at is None or not (envelope.header(ID) and signature):
            return UNSIGNED
        if envelope.header(ALGORITHM) != RSA:
            return f"it is not signed by {RSA}"
        known = not_blank(secrets)
        if not known:
            return NOBODY_TRUSTED
        found = self.certificates.of(envelope.header(CERTIFICATE), now)
        if isinstance(found, str):
            return found
        messages = [_message(envelope, secret) for secret in known]
        if not any(one.fits(message, signature) for one in found for message in messages):
            return FORGED
        return stale(at, now, self.window)

    def read(self, envelope: Envelope) -> Reading:
        payload = object_of(envelope)
        if isinstance(payload, Poison):
            return payload
        name = named(payload.get("id"))
        if isinstance(name, Poison):
            return name
        return [Event(name, payload, text_at(payload, "event_type"), delivery=envelope.header(ID))]

    def example(self, payload: Any = None) -> bytes:
        given = {"resource": {"id": "80F85758S3080410K", "state": "completed"}} if payload is None else payload
        more = {"id": made_up_id(given, "WH-"), "event_type": "PAYMENT.SALE.COMPLETED"}
        return msgspec.json.encode({**more, **given} if isinstance(given, dict) else given)

    def seal(self, body: bytes, secret: str, now: float) -> Envelope:
        if not self.key:
            raise Misuse("Only PayPal has the key to its certificate; send a sample from PayPal's webhooks simulator.")
        time = datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        headers = {
            "content-type": "application/json",
            ALGORITHM: RSA,
            ID: made_up_id(body + time.encode()),  # another one for each try
            TIME: time,
            CERTIFICATE: "https://api.paypal.com/v1/notifications/certs/CERT-sample",
        }
        bare = Envelope(self.name, body, headers, received_at=now)
        signature = b64encode(self.certificates.sign(self.key, _message(bare, secret))).decode()
        return Envelope(self.name, body, {**headers, SIGNATURE: signature}, received_at=now)


def _message(envelope: Envelope, webhook: str) -> bytes:
    return raw(f"{envelope.header(ID)}|{envelope.header(TIME)}|{webhook}|{crc32(envelope.body)}")


def _moment(text: str) -> float | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if at.utcoffset() is None else at.timestamp()
