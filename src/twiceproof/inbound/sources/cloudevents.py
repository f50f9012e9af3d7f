"""CloudEvents 1.0 over HTTP: binary, structured and batched, with the WebHook validation handshake."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from ..reply import Reply
from ..source import Envelope, Event, Handshake, Poison, Reading
from .parsing import json_of, made_up_id, media_type, named, parse_json, readable, text_at
from .signed import SharedSecret

__all__ = ["CloudEvents", "answer_validation", "flaw_in", "header_value"]


ORIGIN = "webhook-request-origin"
HOST = re.compile(r"[A-Za-z0-9.:*-]{1,255}")


def answer_validation(envelope: Envelope, origins: Collection[str]) -> Handshake | None:
    """Answer the validation request of the CloudEvents WebHook specification. Deliveries must still carry the secret.

    A secret in the URL is required here too. A secret in a header is not, because senders leave it out: then the reply
    reveals that the address exists, and nothing else.
    """
    if envelope.method != "OPTIONS":
        return None
    origin = envelope.header(ORIGIN)
    allow = ("allow", "POST, OPTIONS")
    if not HOST.fullmatch(origin) or (origins and origin not in origins):
        return Handshake(Reply(200, (allow,)))  # without the other headers, permission is refused
    return Handshake(Reply(200, (allow, ("webhook-allowed-origin", origin), ("webhook-allowed-rate", "*"))))


DATA, BASE64 = "data", "data_base64"
NAME = re.compile(r"[a-z0-9]+")
WHOLE = range(-(2**31), 2**31)
# Control characters, noncharacters and unpaired surrogates, which the specification forbids in attributes.
FORBIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(f"{chr(plane * 0x10000 + 0xFFFE)}{chr(plane * 0x10000 + 0xFFFF)}" for plane in range(17))
    + "]"
)
TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105 - of a media type
# Possessive quantifiers, so that thousands of blanks cause no backtracking.
PARAMETER = rf'{TOKEN}=(?:{TOKEN}|"(?:[^"\\]|\\.)*+")'
MEDIA_TYPE = re.compile(rf"{TOKEN}/{TOKEN}(?:\s*+;\s*+{PARAMETER})*+\s*+(?:;\s*+)?", re.ASCII)
URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:([A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+")
TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt]([0-9]{2}:[0-9]{2}):([0-5][0-9]|60)(\.[0-9]+)?"
    r"([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")


def flaw_in(event: dict[str, Any], tolerated: Collection[str] = ()) -> Poison | None:
    """Return why this is not a valid structured CloudEvent, or None. A null attribute counts as missing."""
    given = {name: value for name, value in event.items() if value is not None and name not in (DATA, BASE64)}
    if given.get("specversion") != "1.0":
        return Poison("it is not a CloudEvent of version 1.0")
    for name, value in given.items():
        why = _why_not(name, value) if name not in tolerated else ""
        if why:
            return Poison(f"it is not a CloudEvent: its attribute {name[:40]!r} {why}")
    missing = [name for name in ("id", "source", "type") if name not in given]
    if missing:
        return Poison(f"it is not a CloudEvent: it has no {missing[0]}")
    return _flaw_in_data(event)


def _why_not(name: str, value: Any) -> str:
    if NAME.fullmatch(name) is None:
        return "has a name with characters other than a to z and 0 to 9"
    form = FORMS.get(name)
    if form is not None:
        return (
            "" if isinstance(value, str) and not FORBIDDEN.search(value) and form(value) else f"is not {EXPECTED[name]}"
        )
    if isinstance(value, str):
        return "has a control character or a noncharacter" if FORBIDDEN.search(value) else ""
    if isinstance(value, bool) or (isinstance(value, int) and value in WHOLE):
        return ""
    return "is neither text, nor a boolean, nor a 32-bit integer"


def _is_time(text: str) -> bool:
    """Whether this is an RFC 3339 time. The second may be 60."""
    found = TIME.fullmatch(text)
    if found is None:
        return False
    try:
        datetime.fromisoformat(f"{found[1]}T{found[2]}")
    except ValueError:
        return False
    return True


FORMS: dict[str, Callable[[str], object]] = {
    "id": bool,
    "source": bool,
    "type": bool,
    "specversion": bool,
    "subject": bool,
    "time": _is_time,
    "dataschema": URI.fullmatch,
    "datacontenttype": MEDIA_TYPE.fullmatch,
}
EXPECTED = {
    **dict.fromkeys(FORMS, "text that is not empty"),
    "time": "an RFC 3339 time",
    "dataschema": "an absolute URI",
    "datacontenttype": "a media type",
}


def _flaw_in_data(event: dict[str, Any]) -> Poison | None:
    written = event.get(BASE64)
    if written is None:
        return None
    if DATA in event:
        return Poison("it is not a CloudEvent: it has both data and data_base64")
    try:
        b64decode(written, validate=True)
    except (NotBase64, ValueError, TypeError):
        return Poison("it is not a CloudEvent: its data_base64 is not base64")
    return None


def header_value(text: str) -> str | None:
    """Decode a header as the HTTP binding says (3.1.3.2): unquote, then percent-decode once. None: it is invalid.

    Replacement characters are not used: two different ids could become equal.
    """
    bare = QUOTED.sub(lambda found: re.sub(r"\\(.)", r"\1", found[1]), text)
    if '"' in QUOTED.sub("", text) or not text.isascii() or PERCENT.search(bare):
        return None
    try:
        return unquote_to_bytes(bare).decode()
    except UnicodeDecodeError:
        return None


ONE, MANY = "application/cloudevents+json", "application/cloudevents-batch+json"
STRUCTURED = "application/cloudevents"
PREFIX = "ce-"
EVENTS_OWN = {"data", "data_base64", "specversion", "type", "source", "id"}
HEADERLESS = ("data", "datacontenttype")
MOST_EVENTS = 5_000
NOT_TEXT = object()


class CloudEvents(SharedSecret):
    """The flow receives the whole event (`source`, `type`, `data`, …) in structured form, however it was sent."""

    name = "cloudevents"
    retry_window = 86_400.0
    deadline = 30.0
    needs: tuple[str, ...] = (PREFIX,)
    tolerated: tuple[str, ...] = ()  # attributes that its sender is known to write incorrectly

    def __init__(
        self, *, parameter: str = "code", header: str = "", origins: Collection[str] = (), retry_window: float = 0.0
    ) -> None:
        super().__init__(parameter=parameter, header=header)
        self.origins = frozenset(origins)
        self.retry_window = retry_window or self.retry_window

    def greet(self, envelope: Envelope) -> Handshake | None:
        return answer_validation(envelope, self.origins)

    def read(self, envelope: Envelope) -> Reading:
        kind = media_type(envelope)
        if kind == MANY:
            return self._events_of(json_of(envelope))
        if kind == ONE:
            return self._events_of([json_of(envelope)])
        if kind.startswith(STRUCTURED):
            return Poison(f"its format is {kind[:80]!r}; have the sender use {ONE}")
        if not envelope.header(PREFIX + "specversion"):
            return Poison(
                f"its content type is {kind[:80] or 'missing'!r} and it has no ce- headers, so it is not a CloudEvent"
            )
        return self._events_of([_from_headers(envelope, kind)])

    def _events_of(self, items: Any) -> Reading:
        if isinstance(items, Poison):
            return items
        if not isinstance(items, list) or len(items) > MOST_EVENTS:
            return Poison(f"its body is not an array of at most {MOST_EVENTS} events")
        return readable([self._event_of(item) for item in items])

    def _event_of(self, item: Any) -> Event | Poison:
        if isinstance(item, Poison):
            return item
        flaw = (
            flaw_in(item, self.tolerated)
            if isinstance(item, dict)
            else Poison("it is not a CloudEvent: it is not an object")
        )
        if flaw is not None:
            return flaw
        name = named(text_at(item, "source"), text_at(item, "id"))
        return name if isinstance(name, Poison) else Event(name, item, text_at(item, "type"))

    def example(self, payload: Any = None) -> bytes:
        given = {"data": {"order": 1}} if payload is None else payload
        if isinstance(given, dict) and not given.keys() & EVENTS_OWN:  # then it is the event's data
            given = {"data": given}
        more = {"specversion": "1.0", "id": made_up_id(given), "source": "/shop", "type": "order.created"}
        return msgspec.json.encode({**more, **given} if isinstance(given, dict) else given)

    def seal(self, body: bytes, secret: str, now: float) -> Envelope:
        kind = MANY if body.startswith(b"[") else ONE
        return self.enclosed(body, {"content-type": kind}, secret, now)


def _from_headers(envelope: Envelope, kind: str) -> dict[str, Any] | Poison:
    """Return the structured form of a binary event."""
    event: dict[str, Any] = {}
    for header, text in envelope.headers.items():
        if not header.startswith(PREFIX):
            continue
        name, value = header.removeprefix(PREFIX), header_value(text)
        if value is None:
            return Poison(f"its header {header[:40]} cannot be decoded: its percent signs or quotes are invalid")
        if name in HEADERLESS:
            return Poison(f"its header {header[:40]} repeats what Content-Type and the body say")
        event[name] = value
    if kind:
        event["datacontenttype"] = envelope.header("content-type")
    if not envelope.body:
        return event
    data = parse_json(envelope.body) if kind.endswith(("/json", "+json")) else _text(kind, envelope.body)
    if data is NOT_TEXT:
        return {**event, "data_base64": b64encode(envelope.body).decode()}
    return data if isinstance(data, Poison) else {**event, "data": data}


def _text(kind: str, body: bytes) -> Any:
    try:
        return body.decode() if kind.startswith("text/") else NOT_TEXT
    except UnicodeDecodeError:
        return NOT_TEXT
