"""Whose key, for which route, with what payload: as hashes, so that no credential lands in the ledger."""

from __future__ import annotations

from hashlib import blake2b, sha512

from ...errors import ValueRefused
from ...keys import body_hash
from .form import Multipart, multipart_of
from .rule import Rule
from .visit import FORM, Visit

__all__ = ["Identity"]

SCHEME = "h1:"  # a later release that hashes otherwise must not read old fingerprints as mismatches
LONGEST_SECRET = 64  # bytes that the hash takes as its key


class Identity:
    """With a secret, nobody who reads the ledger can try out which credential or payload fits a hash."""

    def __init__(self, secret: str | bytes = b"") -> None:
        given = secret.encode() if isinstance(secret, str) else secret
        self._secret = given if len(given) <= LONGEST_SECRET else sha512(given).digest()

    def key(self, visit: Visit) -> str:
        """The claim's key. A client's own key stays readable; a form's token, which is a secret, does not."""
        place = visit.rule.place(visit.path)
        if visit.source == FORM:
            return "form~" + self._digest("scope", visit.principal, visit.method, place, visit.key)
        return f"{visit.key}~{self._digest('scope', visit.principal, visit.method, place, visit.source)}"

    def fingerprint(self, visit: Visit, body: bytes) -> str:
        """Of everything that was asked: another method, address, type or body is another request."""
        kind, contents = visit.content_type, body
        if (form := multipart_of(kind)) is not None:
            kind, contents = form.kind, _parts_of(form, body)
        elif visit.rule.ignore and "json" in kind:
            contents = _without(visit.rule, body)
        return SCHEME + self._digest("payload", visit.method, visit.path, visit.query, kind, body=contents)

    def _digest(self, *parts: str, body: bytes = b"") -> str:
        """Over the parts as Python writes them, quoted: two lists of parts never give one text."""
        hasher = blake2b(repr(parts).encode(), key=self._secret, digest_size=16)
        if body:
            hasher.update(body)
        return hasher.hexdigest()


def _without(rule: Rule, body: bytes) -> bytes:
    """Without the fields that may differ. What is not JSON is compared as it is: the app will refuse it."""
    try:
        return body_hash(body, rule.ignore).encode()
    except ValueRefused:
        return body


def _parts_of(form: Multipart, body: bytes) -> bytes:
    """What stands between the boundaries, each piece with its length.

    Clients draw another boundary each time they send the same form. Taken out with nothing put in its place, a field
    whose text looks like an end of it would be the same as two fields.
    """
    pieces = body.split(form.delimiter)
    return b"".join(b"%d:%s" % (len(piece), piece) for piece in pieces)
