"""Reads a keyed request: its key, its caller, and the fingerprint of its contents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b, sha512
from uuid import UUID

from msgspec import Struct, structs

from ..errors import Misuse, ValueRefused
from ..inbound.reply import Malformed, Reply, read_key
from ..keys import body_hash
from . import problems
from .forms import Multipart, multipart_of, read_token, token_in
from .routes import BY_HEADER, FORM, Caller, KeyedRequest, RouteRule, Source

__all__ = ["Identity", "Reader", "is_too_old"]


SCHEME = "h1:"  # a later release with another hash must not read old fingerprints as mismatches
LONGEST_SECRET = 64  # bytes that the hash accepts as its key


class Identity:
    """Hashes callers and payloads. With a secret, a reader of the store cannot test guesses against the hashes."""

    def __init__(self, secret: str | bytes = b"") -> None:
        given = secret.encode() if isinstance(secret, str) else secret
        self._secret = given if len(given) <= LONGEST_SECRET else sha512(given).digest()

    def key(self, request: KeyedRequest) -> str:
        """Return the claim's key. A client's key stays readable; a form's token is a secret, and is hashed."""
        place = request.rule.scope_path(request.path)
        if request.source == FORM:
            return "form~" + self._digest("scope", request.principal, request.method, place, request.key)
        return f"{request.key}~{self._digest('scope', request.principal, request.method, place, request.source)}"

    def fingerprint(self, request: KeyedRequest, body: bytes) -> str:
        """Hash method, URL, content type and body: if one differs, it is a different request."""
        kind, contents = request.content_type, body
        if (form := multipart_of(kind)) is not None:
            kind, contents = form.kind, _parts_of(form, body)
        elif request.rule.ignore and "json" in kind:
            contents = _without(request.rule, body)
        return SCHEME + self._digest("payload", request.method, request.path, request.query, kind, body=contents)

    def _digest(self, *parts: str, body: bytes = b"") -> str:
        """Hash the quoted parts, so that two different lists of parts never give the same text."""
        hasher = blake2b(repr(parts).encode(), key=self._secret, digest_size=16)
        if body:
            hasher.update(body)
        return hasher.hexdigest()


def _without(rule: RouteRule, body: bytes) -> bytes:
    """Hash the body without the ignored fields. A body that is not JSON is compared as it is."""
    try:
        return body_hash(body, rule.ignore).encode()
    except ValueRefused:
        return body


def _parts_of(form: Multipart, body: bytes) -> bytes:
    """Return the parts between the boundaries, each with its length.

    Clients generate a new boundary each time they send the same form. The lengths are needed because, without the
    boundaries, one field whose text looks like a part's end would equal two fields.
    """
    pieces = body.split(form.delimiter)
    return b"".join(b"%d:%s" % (len(piece), piece) for piece in pieces)


def is_too_old(sent: float, now: float, keep: float | None) -> bool:
    """Whether the first request of this age may be forgotten by now."""
    return keep is not None and now - sent > keep


KEY = "idempotency-key"


class SentKey(Struct, frozen=True, gc=False):
    """The key as it was sent."""

    source: Source
    key: str
    echo: str = ""


class Reader:
    """Reads the keys of requests for one middleware."""

    def __init__(self, *, anonymous: str | None, secret: str | bytes, now: Callable[[], float]) -> None:
        self._anonymous = anonymous
        self._secret = secret
        self._now = now

    def read(
        self,
        rule: RouteRule,
        method: str,
        path: str,
        query: str,
        headers: Mapping[str, str],
        caller: Callable[[], Caller],
    ) -> KeyedRequest | Reply | None:
        """Return None for a request without a key, if none is required."""
        sent = self._sent(rule, headers)
        if isinstance(sent, Malformed):
            return problems.malformed(sent.reason)
        if sent is None:
            return problems.missing(path, form="") if rule.route.required else None
        principal = self._scope_of(caller(), sent.source)
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
        )

    def _sent(self, rule: RouteRule, headers: Mapping[str, str]) -> SentKey | Malformed | None:
        value = headers.get(KEY)
        if value is None:
            return SentKey(FORM, "") if rule.route.form else None
        key = read_key(value)
        return key if isinstance(key, Malformed) else SentKey(BY_HEADER, key, value.strip())

    def _scope_of(self, principal: Caller, source: Source) -> str | None:
        """Prefix the caller, so that a caller named "public" differs from the anonymous scope "public". A form's token
        cannot be guessed, so it needs no caller.
        """
        if principal is not None and not isinstance(principal, str):
            principal = _name_of(principal)
        if principal:
            return "caller:" + principal
        if self._anonymous is not None:
            return "anonymous:" + self._anonymous
        return "form:" if source == FORM else None

    def read_form(self, request: KeyedRequest, body: bytes) -> KeyedRequest | Reply | None:
        """Return the request with the key from its form. None: the form has no key, and none is required."""
        rule = request.rule
        value = token_in(request.content_type, body, rule.route.form)
        if not value:
            return problems.missing(request.path, form=rule.route.form) if rule.route.required else None
        token = read_token(value, self._secret)
        if isinstance(token, Malformed):
            return problems.malformed(token.reason, form=True)
        if token.issued_at is not None and is_too_old(token.issued_at, self._now(), rule.life.keep):
            return problems.form_too_old()
        return structs.replace(request, key=token.value)


def _name_of(principal: object) -> str:
    """Accept a user's number, also 0. A value with a new text each time (a coroutine) would run every retry."""
    if isinstance(principal, int | UUID) and not isinstance(principal, bool):
        return str(principal)
    raise Misuse(
        f"principal= gave a {type(principal).__name__}, which does not identify a caller; return text, a number or "
        "None, and do not use async."
    )
