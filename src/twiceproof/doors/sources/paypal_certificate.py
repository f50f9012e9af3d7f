"""PayPal's certificates: given by the user, or fetched from PayPal's own hosts and from nowhere else."""

from __future__ import annotations

import functools
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections import deque
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from .ed25519 import need_cryptography

__all__ = ["Certificate", "Certificates"]

PATH = "/v1/notifications/certs/"
MOST_KEPT = 8
LARGEST = 64 * 1024
MOST_FAILED = 10  # fetches in vain within a minute: anybody can make up a name, and have us ask PayPal for it
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
        # Written anew it must be the same text: base64's last letter has bits that mean nothing.
        return b64encode(signature).decode() == text


class Certificates:
    def __init__(
        self, given: Collection[str], fetch: Callable[[str], bytes] | None, hosts: Collection[str]
    ) -> None:  # fmt: skip
        self._given = [Certificate(pem.encode()) for pem in given]
        self._fetch = fetch
        self._hosts = frozenset(hosts)
        self._kept: dict[str, Certificate] = {}
        self._failed: deque[float] = deque(maxlen=MOST_FAILED)
        self._one = Lock()

    def of(self, url: str, now: float) -> list[Certificate] | str:
        """Those to verify by, or why there are none. A given one counts whatever the delivery says."""
        if self._fetch is None:
            valid = [known for known in self._given if known.is_valid(now)]
            return valid or "the certificate that was given is out of date; get PayPal's current one"
        if not self._is_paypals(url):
            return "its certificate is not on one of PayPal's hosts"
        found = self._kept.get(url) or self._fetched(url, now)
        if isinstance(found, str):
            return found
        return [found] if found.is_valid(now) else "its certificate is out of date"

    def _fetched(self, url: str, now: float) -> Certificate | str:
        """One at a time, and not without end in vain."""
        assert self._fetch is not None  # noqa: S101 - for mypy
        with self._one:
            if url in self._kept:
                return self._kept[url]
            if len(self._failed) == MOST_FAILED and now - self._failed[0] < MINUTE:
                return "too many certificates that do not exist were asked for within a minute"
            try:
                return self._keep(url, Certificate(self._fetch(url)[:LARGEST]))
            except Exception as error:  # noqa: BLE001 - whatever the user's fetch raises
                self._failed.append(now)
                return f"its certificate could not be fetched: {type(error).__name__}"

    def _is_paypals(self, url: str) -> bool:
        """Anybody can write a URL into a header: a certificate of one's own choice proves nothing."""
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
    """Kept, because checking its primes takes a fifth of a second."""
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
