"""HTTP requests as effects: `http.post("https://api.example.com/invoices", json=…, provider="stripe")`.

Creating one does nothing. How it may be repeated follows from the description, before a byte is sent: from the
provider's key, a look at the destination, or the method. It is sent once: no retries, no redirects, one deadline for
the whole request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any, Literal, TypedDict, Unpack
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from ..errors import Misuse, NotDone, OutcomeUnknown
from ..keys.duration import seconds
from .base import Absent, Happened, Look, Unknown, look_of, require
from .etag import change
from .http_answers import has_conflict, kept, refuse, succeeded, unanswered_look
from .http_client import HttpAnswer, HttpRequest, TooLarge
from .http_request import KEY, Auth, HttpCall, answer_of, at_path, read_url
from .providers import Provider, key_form
from .providers import provider as provider_row
from .repeat import DEFAULT_SETTLING, NEVER, SAFE, Declared, Repeat, declare

__all__ = [
    "KEY",
    "Find",
    "HttpAnswer",
    "HttpEffect",
    "change",
    "delete",
    "find",
    "get",
    "head",
    "patch",
    "post",
    "put",
]


Duration = str | float | timedelta
Keep = Literal["body", "status", "response"]
IDEMPOTENT = ("GET", "HEAD", "PUT", "DELETE")


class Find(Struct, frozen=True):
    """A recipe that looks for an effect. See `find`."""

    url: str
    at: str = ""
    absent: tuple[int, ...] = ()
    headers: Mapping[str, Any] = {}
    settling: float = DEFAULT_SETTLING

    def look(self, call: HttpCall, effect_key: str, key: str) -> Look:
        """Ask the destination, with the authorization of the original call."""
        url = self.url.replace("{key}", key).replace(KEY, effect_key)
        url = call.origin + url if url.startswith("/") else url
        answer = call.reading(url, self.headers).send(effect_key)
        if answer.status in self.absent:
            return Absent()
        if not 200 <= answer.status < 300:
            return unanswered_look(answer.status)
        return self._found(answer_of(answer))

    def _found(self, body: Any) -> Look:
        """`items[0]` must be the only item: no item means Absent, and with several it is unknown which one is ours. So
        must it where a part of it is the result: `items[0].id`."""
        stem, only, rest = self.at.rpartition("[0]")
        if not only:
            stem, rest = rest, ""
        found = at_path(body, stem) if stem else body
        if isinstance(found, list):
            if len(found) > 1:
                return Unknown.several(_id_of(one, number) for number, one in enumerate(found, 1))
            if not found:
                return Absent()
            found = found[0]
        found = at_path(found, rest) if rest else found
        return Happened(found) if found is not None else Unknown(f"nothing is at {self.at or 'the answer'}")


def _id_of(record: Any, number: int) -> str:
    known = record.get("id") if isinstance(record, dict) else None
    return str(known) if isinstance(known, str | int) else f"number {number} of the answer"


def find(
    request: str,
    *,
    at: str = "",
    absent: int | Collection[int] = (),
    headers: Mapping[str, Any] | None = None,
    settling: Duration = DEFAULT_SETTLING,
) -> Find:
    """Describe how to look for an effect: `http.find("GET /invoices?reference={key}", at="items[0]", absent=404)`.

    Args:
        request: GET and a URL, or a path on the effect's own host. `{key}` is the effect key in the provider's form,
            `{effect_key}` the effect key itself.
        at: Where the result is in the answer. A list, or `[0]` of one, must hold one item: none means absent, several
            mean unknown.
        absent: Statuses that mean that there is nothing.
        headers: Further headers of the look.
        settling: How long the destination may take until it shows what it did.
    """
    method, _, url = request.partition(" ")
    if method != "GET" or not url:
        raise Misuse(f'find({request!r}) must only read; write it as "GET /invoices?reference={{key}}".')
    if not url.startswith("/"):
        read_url(url)
    statuses = (absent,) if isinstance(absent, int) else tuple(absent)
    return Find(url, at, statuses, headers or {}, seconds(settling, name="settling", positive=False))


class HttpEffect(Struct, frozen=True):
    """One request, and its options. Made by `get`, `post`, `put` and the others."""

    call: HttpCall
    provider: Provider | None = None
    finds: Find | Callable[[str], Any] | None = None
    own_repeat: Declared | None = None
    own_name: str = ""
    keep: Keep = "body"
    returns: Any = Any
    final: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return self.own_name or self.call.name

    @property
    def result_type(self) -> Any:
        return {"status": int, "response": HttpAnswer}.get(self.keep, self.returns)

    @property
    def repeat(self) -> Declared:
        """`repeat=` if given; otherwise by the provider's row, a look or the method; otherwise never."""
        if self.own_repeat is not None:
            return self.own_repeat
        row, settling = self._row, self.call.timeout + self._settling
        if row is not None and row.kind == "keyed":
            # A probe has each start recorded, with its time and its URL: in another region the key would act again.
            probe = self.look if self.finds is not None or row.regional or row.first_sent else None
            return Declared("keyed", probe, settling, row.window_seconds)
        if self.finds is not None or (row is not None and row.kind == "check"):
            return Declared("check", self.look, settling)
        harmless = self.call.method in IDEMPOTENT or (row is not None and row.kind == "safe")
        return SAFE if harmless and not self.call.is_conditional else NEVER

    @property
    def _row(self) -> Provider | None:
        """Return the provider's row, if it covers such a request."""
        path = urlsplit(self.call.url).path
        return self.provider if self.provider is not None and self.provider.covers(self.call.method, path) else None

    @property
    def _settling(self) -> float:
        return self.finds.settling if isinstance(self.finds, Find) else DEFAULT_SETTLING

    def describe(self) -> dict[str, Any]:
        row = {} if self.provider is None else {"provider": self.provider.id}
        return {**self.call.describe(), **row}

    def perform(self, effect_key: str) -> Any:
        """Send it once. Raises NotDone if nothing was done, OutcomeUnknown if that is not known."""
        request = self.call.request(effect_key, self.provider)
        try:
            answer = self.call.transmit(request)
        except TooLarge as large:
            return self._unread(request, large)
        if succeeded(request, answer):
            return kept(request, answer, self.keep, self.returns)
        if self._row is not None and has_conflict(answer, self._row):
            return self._first_result(request, answer, effect_key)
        raise refuse(request, answer, self._row, self.final, self.call.secrets())

    def _unread(self, request: HttpRequest, large: TooLarge) -> int:
        """Handle a truncated answer: its status is known, which is enough if nothing else is kept."""
        status = int(large.data["status"])
        if self.keep == "status" and 200 <= status < 300:
            return status
        if request.method in IDEMPOTENT[:2]:
            raise NotDone(str(large), final=True) from large
        raise large

    def _first_result(self, request: HttpRequest, answer: HttpAnswer, effect_key: str) -> Any:
        """Fetch the result of the first request with this key: the conflict proves that it was carried out."""
        row = self._row
        assert row is not None and row.conflict is not None  # noqa: S101 - the caller asked
        try:
            url = _fetch_url(row, self.call, answer, row.key(effect_key))
            found = self.call.reading(url).send(effect_key)
            if succeeded(request, found):
                body = msgspec.json.encode(at_path(answer_of(found), row.conflict.at))
                first = HttpAnswer(found.status, {**found.headers, "content-type": "application/json"}, body)
                return kept(request, first, self.keep, self.returns)
        except (LookupError, ValueError, NotDone, OutcomeUnknown) as error:
            raise OutcomeUnknown(
                f"{request.shown} was done before, and its result could not be had: {error}"
            ) from error
        told = f"{request.shown} was done before, and its result was answered with {found.status}; ask again."
        raise OutcomeUnknown(told)

    @property
    def can_look(self) -> bool:
        """Whether anything says how to look for it. Some rows have a probe without that."""
        return self._finds() is not None

    def look(self, effect_key: str) -> Look:
        """Ask the destination. Never writes; whatever goes wrong is Unknown."""
        key = effect_key if self.provider is None else key_form(effect_key, self.provider.form)
        finds = self._finds()
        if finds is None:
            return Unknown("nothing says how to look for it; give look=http.find(…)")
        try:
            return finds.look(self.call, effect_key, key) if isinstance(finds, Find) else look_of(finds(effect_key))
        except Exception as error:  # noqa: BLE001 - a look that fails has found out nothing
            return Unknown(f"the look failed with {type(error).__name__}: {error}"[:300], failed=True)

    def _finds(self) -> Find | Callable[[str], Any] | None:
        row = self._row
        if self.finds is None and row is not None and row.look:
            return Find(row.look.replace("{url}", self.call.url.partition("?")[0]), absent=(404, 410))
        return self.finds


def _fetch_url(row: Provider, call: HttpCall, answer: HttpAnswer, key: str) -> str:
    assert row.conflict is not None  # noqa: S101 - the caller asked
    found = str(at_path(msgspec.json.decode(answer.body), row.conflict.id_at)) if row.conflict.id_at else ""
    base, parts = call.url.partition("?")[0], urlsplit(call.url).path.strip("/").split("/")
    named = {"url": base.rstrip("/"), "origin": call.origin, "id": found, "key": key}
    numbered = {str(number): part for number, part in enumerate(parts, 1)}
    url = row.conflict.fetch
    for name, value in {**named, **numbered}.items():
        url = url.replace(f"{{{name}}}", value)
    return url


# -- making effects ------------------------------------------------------------------------------


class HttpOptions(TypedDict, total=False):
    """The options of `post`, and of the others."""

    json: Any
    form: Mapping[str, Any] | None
    content: bytes | str | None
    params: Mapping[str, Any] | None
    headers: Mapping[str, Any] | None
    auth: Auth | None
    provider: str | Provider | None
    look: Find | Callable[[str], Any] | None
    repeat: Repeat | None
    name: str
    timeout: Duration
    keep: Keep
    result: Any
    final: int | Collection[int]
    client: Any
    untrusted: bool
    allow: Collection[str]


def _effect(method: str, url: str, given: HttpOptions) -> HttpEffect:
    _refuse_options(given)
    if given.get("client") is None:
        require("httpcore2", "http", "An HTTP effect")
    call = HttpCall(
        method,
        url,
        given.get("json", msgspec.UNSET),
        given.get("form"),
        given.get("content"),
        given.get("params"),
        given.get("headers") or {},
        given.get("auth"),
        seconds(given.get("timeout", 30.0), name="timeout"),
        given.get("client"),
        given.get("untrusted", False),
        tuple(given.get("allow", ())),
    )
    repeat, final = given.get("repeat"), given.get("final", ())
    return HttpEffect(
        call,
        _row_of(given.get("provider")),
        given.get("look"),
        None if repeat is None else declare(repeat),
        given.get("name", ""),
        given.get("keep", "body"),
        given.get("result", Any),
        (final,) if isinstance(final, int) else tuple(final),
    )


def _row_of(given: str | Provider | None) -> Provider | None:
    row = provider_row(given) if isinstance(given, str) else given
    if row is not None and row.place == "client":
        raise Misuse(f"{row.title} takes its key in its own way ({row.field}); {row.note or 'use its own client.'}")
    return row


def _refuse_options(given: HttpOptions) -> None:
    unknown = given.keys() - HttpOptions.__annotations__.keys()
    if unknown:
        raise Misuse(f"{min(unknown)}= is not an option; there are {', '.join(HttpOptions.__annotations__)}.")
    look, keep, allow = given.get("look"), given.get("keep", "body"), given.get("allow", ())
    if keep not in ("body", "status", "response"):
        raise Misuse(f'keep={keep!r} is not valid; write "body", "status" or "response".')
    if look is not None and not isinstance(look, Find) and not callable(look):
        raise Misuse(f"look={look!r} is not valid; write look=http.find(…), or a function of the effect key.")
    if isinstance(allow, str):
        raise Misuse(f'allow={allow!r} is a string, not a list; write allow=("{allow}",).')
    if allow and not given.get("untrusted"):
        raise Misuse("allow= permits what untrusted=True would refuse; write both, or neither.")
    if given.get("client") is not None and given.get("untrusted"):
        raise Misuse("client= sends as it is made to; leave out untrusted=, which guards our own client.")


def get(url: str, **options: Unpack[HttpOptions]) -> HttpEffect:
    """GET a URL: safe to repeat. Takes the options of `post` except for a body."""
    return _effect("GET", url, options)


def head(url: str, **options: Unpack[HttpOptions]) -> HttpEffect:
    """HEAD a URL. By default its result is the status."""
    return _effect("HEAD", url, {"keep": "status", **options})


def post(url: str, **options: Unpack[HttpOptions]) -> HttpEffect:
    """POST to a URL. Without a provider that takes keys, or a look, it is never repeated blindly.

    Args:
        url: An absolute URL, without a password. `http.KEY` in it stands for the effect key.
        json, form, content: The body, one of them. `http.KEY` in a text stands for the effect key.
        params, headers: Further parameters of the query, and headers. A value in them, or in json and form, may be
            `env("NAME")`.
        auth: `env("NAME")` or a function that returns a token for `Bearer`; `("user", env("NAME"))` for `Basic`.
        provider: A name in the table of providers: its key is sent, and its rules hold.
        look: How to look for the effect: `http.find(…)`, or a function of the effect key.
        repeat: How it may be repeated, if you know better.
        name: The step's name; by default the method, host and path.
        timeout: For everything, from connecting to the last byte of the answer.
        keep: What is kept: the decoded "body", the "status", or the whole "response".
        result: The type of the body.
        final: Statuses that no retry cures: the step fails at once.
        client: Your own blocking client, like httpx2.Client or requests.Session; it must not retry.
        untrusted: The URL comes from data: only public addresses, by https.
        allow: Networks and hosts that are called although untrusted.
    """
    return _effect("POST", url, options)


def put(url: str, **options: Unpack[HttpOptions]) -> HttpEffect:
    """PUT to a URL of your own choice (an external id): safe to repeat, unless it has a condition."""
    return _effect("PUT", url, options)


def patch(url: str, **options: Unpack[HttpOptions]) -> HttpEffect:
    """PATCH a URL. As with `post`, it is not repeated without a provider or a look."""
    return _effect("PATCH", url, options)


def delete(url: str, **options: Unpack[HttpOptions]) -> HttpEffect:
    """DELETE a URL: safe to repeat. 404 and 410 (there is nothing) are success."""
    return _effect("DELETE", url, options)
