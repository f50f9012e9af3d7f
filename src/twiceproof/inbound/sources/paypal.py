"""PayPal: RSA signatures verified with PayPal's certificates."""

from __future__ import annotations

import functools
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections import deque
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from threading import Lock
from typing import Any
from urllib.parse import urlsplit
from zlib import crc32

import msgspec

from ...errors import Misuse
from ..source import Envelope, Event, Poison, Reading, Source
from .parsing import made_up_id, named, object_of, text_at
from .signed import NO_SECRET, UNSIGNED, WRONG_SIGNATURE, not_blank, raw, stale
from .standard_webhooks import need_cryptography

__all__ = ["Certificate", "Certificates", "PayPal"]


PATH = "/v1/notifications/certs/"
MOST_KEPT = 8
LARGEST = 64 * 1024
MOST_FAILED = 10  # failed fetches within a minute: anyone can invent a URL and make this server request it
MINUTE = 60.0


class Certificate:
    def __init__(self, pem: bytes) -> None:
        self._x509, self._padding, self._hash = _parts()
        self._certificate = self._x509.load_pem_x509_certificate(pem)
        self._key: Any = self._certificate.public_key()

    def is_valid(self, now: float) -> bool:
        at = datetime.fromtimestamp(now, UTC)
        return bool(self._certificate.not_valid_before_utc <= at <= self._certificate.not_valid_after_utc)

    def fits(self, message: bytes, text: str) -> bool:
        from cryptography.exceptions import InvalidSignature

        try:
            signature = b64decode(text, validate=True)
            self._key.verify(signature, message, self._padding(), self._hash())
        except (InvalidSignature, NotBase64, ValueError):
            return False
        # Encoded again it must be the same text: the last base64 character has unused bits.
        return b64encode(signature).decode() == text


class Certificates:
    def __init__(self, given: Collection[str], fetch: Callable[[str], bytes] | None, hosts: Collection[str]) -> None:
        self._given = [Certificate(pem.encode()) for pem in given]
        self._fetch = fetch
        self._hosts = frozenset(hosts)
        self._kept: dict[str, Certificate] = {}
        self._failed: deque[float] = deque(maxlen=MOST_FAILED)
        self._one = Lock()

    def for_url(self, url: str, now: float) -> list[Certificate] | str:
        """Return the certificates to verify with, or why there are none. Configured ones take precedence over `url`."""
        if self._fetch is None:
            valid = [known for known in self._given if known.is_valid(now)]
            return valid or "the configured certificate is not valid at this time; get PayPal's current one"
        if not self._is_paypal_url(url):
            return "its certificate is not on one of PayPal's hosts"
        found = self._kept.get(url) or self._fetched(url, now)
        if isinstance(found, str):
            return found
        return [found] if found.is_valid(now) else "its certificate is not valid at this time"

    def _fetched(self, url: str, now: float) -> Certificate | str:
        """Fetch one at a time, with a limit on failures."""
        assert self._fetch is not None  # noqa: S101 - for mypy
        with self._one:
            if url in self._kept:
                return self._kept[url]
            if len(self._failed) == MOST_FAILED and now - self._failed[0] < MINUTE:
                return "too many certificates could not be fetched within a minute"
            try:
                return self._keep(url, Certificate(self._fetch(url)[:LARGEST]))
            except Exception as error:  # noqa: BLE001 - whatever the user's fetch raises
                self._failed.append(now)
                return f"its certificate could not be fetched: {type(error).__name__}"

    def _is_paypal_url(self, url: str) -> bool:
        """Anyone can write a URL into a header, so only PayPal's own hosts and path are accepted."""
        try:
            parts = urlsplit(url)
            known = parts.scheme == "https" and parts.netloc in self._hosts and parts.path.startswith(PATH)
        except ValueError:
            return False
        name = parts.path.removeprefix(PATH)
        return known and name.replace("-", "").isalnum() and name.isascii() and not (parts.query or parts.fragment)

    def _keep(self, url: str, found: Certificate) -> Certificate:
        if len(self._kept) >= MOST_KEPT:
            self._kept.clear()
        self._kept[url] = found
        return found

    @staticmethod
    def sign(key: str, message: bytes) -> bytes:
        _, padding, hash_ = _parts()
        signature: bytes = _private(key).sign(message, padding(), hash_())
        return signature


@functools.lru_cache(maxsize=4)
def _private(key: str) -> Any:
    """Cached, because checking its primes takes a fifth of a second."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    return load_pem_private_key(key.encode(), None)


def _parts() -> tuple[Any, Any, Any]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
        from cryptography.hazmat.primitives.hashes import SHA256
    except ImportError:
        raise need_cryptography() from None
    return x509, PKCS1v15, SHA256


ID, TIME, SIGNATURE, ALGORITHM, CERTIFICATE = (
    f"paypal-{name}" for name in ("transmission-id", "transmission-time", "transmission-sig", "auth-algo", "cert-url")
)
RSA = "SHA256withRSA"


class PayPal(Source):
    """The secret is the webhook's id. `certificate` is PayPal's, as PEM; or `fetch` gets it, from PayPal's hosts only.

    `key` is a private key for signing samples, because PayPal's own is not available.
    """

    name = "paypal"
    retry_window = 3 * 86_400.0  # up to 25 attempts
    # PayPal does not document whether a retry is signed with a new time; an old time in this window is a duplicate.
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
            return f"it is not signed with {RSA}"
        known = not_blank(secrets)
        if not known:
            return NO_SECRET
        found = self.certificates.for_url(envelope.header(CERTIFICATE), now)
        if isinstance(found, str):
            return found
        messages = [_message(envelope, secret) for secret in known]
        if not any(one.fits(message, signature) for one in found for message in messages):
            return WRONG_SIGNATURE
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
            raise Misuse("Only PayPal has the key of its certificate; send a sample from PayPal's webhooks simulator.")
        time = datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        headers = {
            "content-type": "application/json",
            ALGORITHM: RSA,
            ID: made_up_id(body + time.encode()),  # a new one for each attempt
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
