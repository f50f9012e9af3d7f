"""From a request's headers to a visit: which key, whose, and whether it may come in at all. Touches no store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

from msgspec import Struct, structs

from ...errors import Misuse
from ..key_header import Malformed, read_key
from ..reply import Reply
from . import problems
from .form import read_token, token_in
from .repeatability import FIRST_SENT, REQUEST_ID, is_too_old, read_first_sent, read_pair
from .rule import Rule
from .visit import BY_HEADER, BY_REPEATABILITY, FORM, Source, Visit, Who

__all__ = ["Reader"]

KEY = "idempotency-key"


class Sent(Struct, frozen=True, gc=False):
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
        self, rule: Rule, method: str, path: str, query: str, headers: Mapping[str, str], who: Callable[[], Who]
    ) -> Visit | Reply | None:
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
        return Visit(
            rule, method, path, query, principal, sent.source, sent.key, sent.echo, headers.get("content-type", ""),
            sent.source == FORM and "text/html" in headers.get("accept", ""), sent.at is not None,
        )  # fmt: skip

    def _sent(self, rule: Rule, headers: Mapping[str, str]) -> Sent | Malformed | None:
        value, request_id, first_sent = headers.get(KEY), headers.get(REQUEST_ID), headers.get(FIRST_SENT)
        if value is not None:
            return self._by_header(value, first_sent)
        if request_id is not None:
            pair = read_pair(request_id, first_sent or "", self._now())
            return pair if isinstance(pair, Malformed) else Sent(BY_REPEATABILITY, pair[0], at=pair[1])
        return Sent(FORM, "") if rule.route.form else None

    def _by_header(self, value: str, first_sent: str | None) -> Sent | Malformed:
        key = read_key(value)
        at = None if first_sent is None else read_first_sent(first_sent, self._now())
        if isinstance(key, Malformed):
            return key
        return at if isinstance(at, Malformed) else Sent(BY_HEADER, key, value.strip(), at)

    def _scope_of(self, principal: Who, source: Source) -> str | None:
        """A caller called "public" is not the public. A form's token is unguessable: it needs no caller."""
        if principal is not None and not isinstance(principal, str):
            principal = _name_of(principal)
        if principal:
            return "caller:" + principal
        if self._anonymous is not None:
            return "anonymous:" + self._anonymous
        return "form:" if source == FORM else None

    def read_form(self, visit: Visit, body: bytes) -> Visit | Reply | None:
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
