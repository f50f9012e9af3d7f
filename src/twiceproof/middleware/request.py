"""From headers to a keyed request: key, caller, fingerprint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from hashlib import blake2b, sha512
from uuid import UUID

from msgspec import Struct, structs

from ..errors import Misuse, ValueRefused
from ..inbound.reply import Malformed, Reply, read_key
from ..keys import body_hash
from . import problems
from .forms import Multipart, multipart_of, read_token, token_in
from .routes import BY_HEADER, BY_REPEATABILITY, FORM, KeyedRequest, RouteRule, Source, Who

__all__ = ["FIRST_SENT", "REQUEST_ID", "Identity", "Reader", "is_too_old", "read_pair"]


SCHEME = "h1:"  # a later release that hashes otherwise must not read old fingerprints as mismatches
LONGEST_SECRET = 64  # bytes that the hash takes as its key


class Identity:
    """With a secret, nobody who reads the ledger can try out which credential or payload fits a hash."""

    def __init__(self, secret: str | bytes = b"") -> None:
        given = secret.encode() if isinstance(secret, str) else secret
        self._secret = given if len(given) <= LONGEST_SECRET else sha512(given).digest()

    def key(self, visit: KeyedRequest) -> str:
        """The claim's key. A client's own key stays readable; a form's token, which is a secret, does not."""
        place = visit.rule.place(visit.path)
        if visit.source == FORM:
            return "form~" + self._digest("scope", visit.principal, visit.method, place, visit.key)
        return f"{visit.key}~{self._digest('scope', visit.principal, visit.method, place, visit.source)}"

    def fingerprint(self, visit: KeyedRequest, body: bytes) -> str:
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


def _without(rule: RouteRule, body: bytes) -> bytes:
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


REQUEST_ID = "repeatability-request-id"
FIRST_SENT = "repeatability-first-sent"

AHEAD = 300.0  # seconds that a client's clock may be ahead of ours


def read_pair(request_id: str, first_sent: str, now: float) -> tuple[str, float] | Malformed:
    """The key, in one form however it was written, and the time."""
    sent = read_first_sent(first_sent, now)
    if isinstance(sent, Malformed):
        return sent
    try:
        return str(UUID(request_id.strip())), sent
    except ValueError:
        return Malformed(f"{REQUEST_ID} is not a GUID")


def read_first_sent(value: str, now: float) -> float | Malformed:
    if not value.strip():
        return Malformed(f"{REQUEST_ID} came without {FIRST_SENT}")
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):  # a time zone of twenty digits
        return Malformed(f"{FIRST_SENT} is not a date like Tue, 15 Nov 2022 12:45:26 GMT")
    sent = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if sent > now + AHEAD:
        return Malformed(f"{FIRST_SENT} lies in the future")
    return sent


def is_too_old(sent: float, now: float, keep: float | None) -> bool:
    """Whether it may be forgotten by now that this request was ever made."""
    return keep is not None and now - sent > keep


KEY = "idempotency-key"


class SentKey(Struct, frozen=True, gc=False):
    """The key as it was sent."""

    source: Source
    key: str
    echo: str = ""
    at: float | None = None  # when it was first sent, where the client says so


class Reader:
    """One middleware's way of reading requests."""

    def __init__(self, *, anonymous: str | None, secret: str | bytes, now: Callable[[], float]) -> None:
        self._anonymous = anonymous
        self._secret = secret
        self._now = now

    def read(
        self, rule: RouteRule, method: str, path: str, query: str, headers: Mapping[str, str], who: Callable[[], Who]
    ) -> KeyedRequest | Reply | None:
        """None: it comes without a key, and may."""
        sent = self._sent(rule, headers)
        if isinstance(sent, Malformed):
            return problems.malformed(sent.reason, repeatability=KEY not in headers)
        if sent is None:
            return problems.missing(path, form="") if rule.route.required else None
        if sent.at is not None and is_too_old(sent.at, self._now(), rule.life.keep):
            return problems.too_old(form=False)
        principal = self._scope_of(who(), sent.source)
        if principal is None:
            return problems.anonymous(path, required=rule.route.required)
        return KeyedRequest(
            rule,
            method,
            path,
            query,
            principal,
            sent.source,
            sent.key,
            sent.echo,
            headers.get("content-type", ""),
            sent.source == FORM and "text/html" in headers.get("accept", ""),
            sent.at is not None,
        )

    def _sent(self, rule: RouteRule, headers: Mapping[str, str]) -> SentKey | Malformed | None:
        value, request_id, first_sent = headers.get(KEY), headers.get(REQUEST_ID), headers.get(FIRST_SENT)
        if value is not None:
            return self._by_header(value, first_sent)
        if request_id is not None:
            pair = read_pair(request_id, first_sent or "", self._now())
            return pair if isinstance(pair, Malformed) else SentKey(BY_REPEATABILITY, pair[0], at=pair[1])
        return SentKey(FORM, "") if rule.route.form else None

    def _by_header(self, value: str, first_sent: str | None) -> SentKey | Malformed:
        key = read_key(value)
        at = None if first_sent is None else read_first_sent(first_sent, self._now())
        if isinstance(key, Malformed):
            return key
        return at if isinstance(at, Malformed) else SentKey(BY_HEADER, key, value.strip(), at)

    def _scope_of(self, principal: Who, source: Source) -> str | None:
        """A caller called "public" is not the public. A form's token is unguessable: it needs no caller."""
        if principal is not None and not isinstance(principal, str):
            principal = _name_of(principal)
        if principal:
            return "caller:" + principal
        if self._anonymous is not None:
            return "anonymous:" + self._anonymous
        return "form:" if source == FORM else None

    def read_form(self, visit: KeyedRequest, body: bytes) -> KeyedRequest | Reply | None:
        """The visit with the key that is in the form. None: there is none, and need not be."""
        rule = visit.rule
        value = token_in(visit.content_type, body, rule.route.form)
        if not value:
            return problems.missing(visit.path, form=rule.route.form) if rule.route.required else None
        token = read_token(value, self._secret)
        if isinstance(token, Malformed):
            return problems.malformed(token.reason, form=True)
        if token.drawn_at is not None and is_too_old(token.drawn_at, self._now(), rule.life.keep):
            return problems.too_old(form=True)
        return structs.replace(visit, key=token.value)


def _name_of(principal: object) -> str:
    """A user's number says who it is, 0 too. What is another text each time (a coroutine) would run every retry."""
    if isinstance(principal, int | UUID) and not isinstance(principal, bool):
        return str(principal)
    raise Misuse(
        f"principal= gave a {type(principal).__name__}, which names nobody; have it return text, a number or None, and "
        "not be async."
    )
