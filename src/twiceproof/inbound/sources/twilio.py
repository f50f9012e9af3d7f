"""Twilio: HMAC-SHA1 over the URL and the form's sorted fields, or over the URL alone with the body's hash in it.

With a shared key it may sign with SHA-256, as named in a header. The signed URL may or may not include the port.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from ...keys.canonical import digest
from ..reply import Reply
from ..source import DeliveryOutcome, Envelope, Event, Poison, Reading
from .parsing import made_up_id, media_type, named, object_of, text_at
from .signed import UNSIGNED, Signed, Signer, mac, raw, same

__all__ = ["Twilio"]


SIGNATURE, TOKEN = "x-twilio-signature", "i-twilio-idempotency-token"
SETTINGS = "x-twilio-webhooks-signature-settings"
ALGORITHMS = {"HMAC_SHA1": "sha1", "HMAC_SHA256": "sha256"}
PORTS = {"https": 443, "http": 80}
FORM = "application/x-www-form-urlencoded"
SAMPLE_URL = "https://example.com/hooks/twilio"
MOST_FIELDS = 500
Fields = list[tuple[str, str]]


class TwilioSigned(Signed, frozen=True):
    """Adds the message for the URL's other form, with or without the port, and the hash that the sender names."""

    other: bytes = b""
    algorithm: str = "sha1"


class Twilio(Signer):
    """`url` is the URL that Twilio calls, without its query; behind a proxy this server sees another one."""

    name = "twilio"
    retry_window = 86_400.0  # a few attempts within seconds by default; configurable by the receiver
    deadline = 15.0
    covered = (SIGNATURE,)
    needs = (TOKEN,)

    def __init__(self, *, url: str = "") -> None:
        self.url = url

    def signed_part(self, envelope: Envelope) -> Signed | str:
        given, url = envelope.header(SIGNATURE), self._url_of(envelope)
        if not (given and url):
            return UNSIGNED if url else "the URL that Twilio calls is not known; give url= to the source"
        algorithm = _algorithm(envelope.header(SETTINGS))
        if algorithm not in ALGORITHMS:
            return f"its signature uses the unknown algorithm {algorithm[:40]!r}"
        fields: Fields | Poison = []
        if media_type(envelope) == FORM:
            fields = _fields(envelope.body)
        elif not _hash_fits(url, envelope.body):
            return "its body does not match the signed hash"
        if isinstance(fields, Poison):
            return fields.reason
        one, other = _message(url, fields), _message(_other_port(url), fields)
        return TwilioSigned([given], one, other=other, algorithm=ALGORITHMS[algorithm])

    def signatures(self, secret: str, part: Signed) -> Sequence[str]:
        """Sign the URL with and without its port, as Twilio's client libraries do."""
        if not isinstance(part, TwilioSigned):
            return super().signatures(secret, part)
        return [mac(raw(secret), message, part.algorithm, "base64") for message in (part.message, part.other)]

    def sign(self, secret: str, message: bytes) -> str:
        return mac(raw(secret), message, "sha1", "base64")

    def _url_of(self, envelope: Envelope) -> str:
        if not self.url or "?" in self.url:
            return self.url or envelope.url
        query = envelope.query_string
        return f"{self.url}?{query}" if query else self.url

    def read(self, envelope: Envelope) -> Reading:
        payload = object_of(envelope) if media_type(envelope) != FORM else _payload(envelope.body)
        if isinstance(payload, Poison):
            return payload
        token = envelope.header(TOKEN)
        name = named(token) if token else _id_of(payload)
        if isinstance(name, Poison):
            return name
        return [Event(name, payload, _status_of(payload), delivery=token)]

    def answer(self, outcome: DeliveryOutcome, *, run: str = "", retry_in: float = 1.0) -> Reply:
        """Reply with TwiML: Twilio executes the reply, and reports an error to its customer if it is JSON."""
        reply = super().answer(outcome, run=run, retry_in=retry_in)
        if reply.status >= 300:
            return reply
        return Reply(reply.status, (("content-type", "text/xml"),), f"<Response><!-- {outcome} --></Response>".encode())

    def example(self, payload: Any = None) -> bytes:
        given = {"Body": "hello", "From": "+15005550006"} if payload is None else payload
        fields = given if isinstance(given, dict) else {"Body": str(given)}
        more = {"MessageSid": made_up_id(given, "SM"), "SmsStatus": "received"}
        return urlencode({**more, **fields}).encode()

    def seal(self, body: bytes, secret: str, now: float) -> Envelope:
        url, fields = self.url or SAMPLE_URL, _fields(body)
        message = _message(url, [] if isinstance(fields, Poison) else fields)
        headers = {"content-type": FORM, SIGNATURE: self.sign(secret, message)}
        return Envelope(self.name, body, headers, received_at=now, url=url)


def _message(url: str, fields: Fields) -> bytes:
    return raw(url) + b"".join(raw(name + value) for name, value in sorted(set(fields)))


def _other_port(url: str) -> str:
    """Return the URL without its port, or with the default one; unchanged if it cannot be parsed."""
    try:
        parts = urlsplit(url)
        place, port = parts.netloc, parts.port
    except ValueError:
        return url
    if not place:
        return url
    head, _, tail = url.partition(place)
    if port is not None:
        return head + place[: place.rindex(":")] + tail
    return f"{head}{place}:{PORTS[parts.scheme]}{tail}" if parts.scheme in PORTS else url


def _algorithm(settings: str) -> str:
    """Parse `key=…,algorithm=HMAC_SHA256`. The default is SHA-1; two algorithms are invalid."""
    pairs = [(name.strip(), value.strip()) for name, _, value in (part.partition("=") for part in settings.split(","))]
    given = [value.upper() for name, value in pairs if name == "algorithm" and value]
    return "HMAC_SHA1" if not given else ",".join(given)


def _hash_fits(url: str, body: bytes) -> bool:
    hashes = parse_qs(url.partition("#")[0].partition("?")[2], errors="replace").get("bodySHA256", [])
    return len(hashes) == 1 and same(sha256(body).hexdigest(), hashes[0].lower())


def _fields(body: bytes) -> Fields | Poison:
    try:
        return parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS)
    except ValueError as error:
        return Poison(f"its body is not a form: {str(error)[:200]}")


def _payload(body: bytes) -> dict[str, Any] | Poison:
    fields = _fields(body)
    if isinstance(fields, Poison):
        return fields
    payload = dict(fields)
    if len(payload) != len(fields):
        return Poison("its form has a name twice")
    return payload


def _status_of(payload: dict[str, Any]) -> str:
    names = ("MessageStatus", "SmsStatus", "CallStatus", "EventType")
    return next((text for name in names if (text := text_at(payload, name))), "")


def _id_of(payload: dict[str, Any]) -> str | Poison:
    """The id if there is no token: a message's Sid and status, otherwise (a call's many requests) a hash of all."""
    message = text_at(payload, "MessageSid") or text_at(payload, "SmsSid")
    if message:
        return named(message, _status_of(payload) or "received")
    if any(name.endswith("Sid") and value for name, value in payload.items()):
        return named(digest(payload))
    return Poison("it has no id by which a redelivery could be recognised")
