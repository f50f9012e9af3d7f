"""Responses: what one means for the claim, recording it, restoring it for retries, and problems as HTML pages.

Answers given before any handler ran (no such route, an invalid body) are not recorded. Only 4xx are considered:
repeating those has no effect outside.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, MutableMapping
from hashlib import sha256
from html import escape
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct, structs

from ..errors import NotDone
from ..inbound.reply import JSON, Reply
from .routes import RouteRule

__all__ = [
    "NEVER_KEPT",
    "STATE_KEY",
    "AnswerCutShort",
    "AnswerOvertaken",
    "ClaimAction",
    "LeftOut",
    "RecordedAnswer",
    "Recording",
    "as_page",
    "flask_routing_failed",
    "handler_not_reached",
    "kept_headers",
    "make_answer",
    "not_begun",
    "of_error",
    "of_status",
    "restore",
]


Headers = list[tuple[str, str]]

# Headers of one connection, one moment or one caller: never replayed.
HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "trailers",
        "transfer-encoding",
        "upgrade",
    }
)
NOT_KEPT = HOP_BY_HOP | {"set-cookie", "set-cookie2", "date", "server", "age", "content-length"}
OURS = frozenset({"idempotency-key", "idempotent-replayed"})
LONG = 64 * 1024
PLAIN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\n[^\r\n\0]*")  # a header's name and value, a newline between


class LeftOut(Struct, frozen=True, omit_defaults=True, gc=False):
    """A body larger than the limit."""

    size: int
    digest: str


class RecordedAnswer(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    status: int = msgspec.field(name="http_status")  # this name distinguishes it from a result given by a person
    headers: Headers = []
    text: str = ""
    raw: bytes = b""  # where the body is not text
    left_out: LeftOut | None = None

    @property
    def body(self) -> bytes:
        return self.raw or self.text.encode()


_decode = msgspec.json.Decoder(RecordedAnswer).decode
_encode = msgspec.json.Encoder().encode


def make_answer(status: int, headers: Iterable[tuple[str, str]], body: bytes) -> RecordedAnswer:
    kept = kept_headers(headers)
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return RecordedAnswer(status, kept, raw=body)
    if "\0" in text or (len(body) > LONG and len(_encode(text)) > len(body) * 4 / 3):
        # Databases refuse NUL; text that needs many escapes is shorter as bytes.
        return RecordedAnswer(status, kept, raw=body)
    return RecordedAnswer(status, kept, text)


def kept_headers(headers: Iterable[tuple[str, str]]) -> Headers:
    pairs = [(name.lower(), value) for name, value in headers]
    named = {item.strip().lower() for name, value in pairs if name == "connection" for item in value.split(",")}
    return [pair for pair in pairs if pair[0] not in NOT_KEPT and pair[0] not in OURS and pair[0] not in named]


def restore(text: str | Raw) -> RecordedAnswer:
    """Return the recorded response. Any other JSON is a result given by a person who settled the claim: a 200."""
    try:
        answer = _decode(text)
        if all(PLAIN.fullmatch(f"{name}\n{value}") for name, value in answer.headers):
            return answer
        # Not written by us: with a line break in it, a header could become two, or the body of another response.
        return structs.replace(answer, headers=[pair for pair in answer.headers if PLAIN.fullmatch("\n".join(pair))])
    except msgspec.ValidationError:
        return RecordedAnswer(200, [("content-type", JSON)], text if isinstance(text, str) else bytes(text).decode())


HTML = "text/html; charset=utf-8"
SHAPE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
    "<h1>{title}</h1><p>{detail}</p><p>{next}</p></html>"
)


def as_page(reply: Reply) -> Reply:
    """Render a problem as an HTML page for browsers."""
    fields = msgspec.json.decode(reply.body)
    shown = {name: escape(str(fields.get(name, ""))) for name in ("title", "detail", "next")}
    kept = [pair for pair in reply.headers if pair[0] != "content-type"]
    return Reply(reply.status, (("content-type", HTML), *kept), SHAPE.format(**shown).encode())


NO_BODY = frozenset({204, 304})  # may have a content-length without a body


class AnswerCutShort(Exception):
    """The app ended before its response was complete."""


class AnswerOvertaken(Exception):
    """Raised when a request loses its claim after its response has begun: the end must not be sent."""

    def __init__(self) -> None:
        super().__init__("the request lost its claim, so another response counts; this one is aborted")


class Recording:
    """Keeps a response up to the limit; of a larger one only size and digest."""

    __slots__ = ("_announced", "_chunks", "_digest", "_most", "headers", "size", "status")

    def __init__(self, most: int) -> None:
        self._most = most
        self._chunks: list[bytes] = []
        self._digest: Any = None  # set once the chunks were dropped
        self._announced = -1
        self.status = 0  # 0: no response yet
        self.headers: list[tuple[str, str]] = []
        self.size = 0

    def start(self, status: int, headers: list[tuple[str, str]]) -> None:
        self.status, self.headers, self._announced = status, headers, -1  # a WSGI app may call start_response again
        for name, value in headers:
            if name.lower() == "content-length" and value.isdecimal():
                self._announced = int(value)

    def add(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self._digest is not None:
            self._digest.update(chunk)
        elif self.size <= self._most:
            self._chunks.append(chunk)
        else:
            self._digest = sha256(b"".join([*self._chunks, chunk]))
            self._chunks.clear()

    @property
    def is_complete(self) -> bool:
        """Whether the announced length was sent: the client will not wait for more."""
        return self.size >= self._announced >= 0

    @property
    def is_cut_short(self) -> bool:
        """Whether there is no response, or less of it than announced."""
        return self.status == 0 or (self.size < self._announced and self.status not in NO_BODY)

    @property
    def is_over_limit(self) -> bool:
        """Whether the response exceeds the limit, so that reading it to its end is useless."""
        return self._digest is not None

    @property
    def body(self) -> bytes:
        return b"".join(self._chunks)

    def answer(self) -> RecordedAnswer:
        if self._digest is None:
            return make_answer(self.status, self.headers, self.body)
        left_out = LeftOut(self.size, self._digest.hexdigest())
        return RecordedAnswer(self.status, kept_headers(self.headers), left_out=left_out)


STATE_KEY = "twiceproof.idempotency"  # the key of the held request in an ASGI scope or a WSGI environ

Carrier = MutableMapping[str, Any]  # an ASGI scope or a WSGI environ


def not_begun(carrier: Carrier) -> None:
    """Report that this request is refused before its work began: its response is not stored, whatever its status."""
    held = carrier.get(STATE_KEY)
    if held is not None:
        held.begun = False


def handler_not_reached(carrier: Carrier, recording: Recording) -> bool:
    if not 400 <= recording.status < 500:
        return False
    return _routing_failed(carrier) or _validation_failed(recording)


def _routing_failed(scope: Carrier) -> bool:
    """Whether routing failed: Starlette and FastAPI set the endpoint that they found, Litestar its handler.

    For a mounted app they set the app itself until it has found an endpoint; apps and routers have `routes`.
    """
    if "app" not in scope or "route_handler" in scope:
        return False
    return "endpoint" not in scope or hasattr(scope["endpoint"], "routes")


def flask_routing_failed(status: int, environ: Carrier) -> bool:
    """Whether Flask's routing failed. Flask keeps its request in the environ until its response begins."""
    found = getattr(environ.get("werkzeug.request"), "routing_exception", None)
    return 400 <= status < 500 and found is not None


def _validation_failed(recording: Recording) -> bool:
    """Recognise validation errors of FastAPI and Litestar. Other apps call `not_begun`."""
    if recording.status not in (400, 422):
        return False
    try:
        document = msgspec.json.decode(recording.body)
    except msgspec.MsgspecError:
        return False
    detail = document.get("detail") if isinstance(document, dict) else None
    if isinstance(detail, str):
        return recording.status == 400 and detail.startswith("Validation failed for ")
    return isinstance(detail, list) and bool(detail) and all(_is_fault(item) for item in detail)


def _is_fault(item: Any) -> bool:
    return isinstance(item, dict) and {"loc", "msg", "type"} <= item.keys()


# keep: final, replayed · release: as if it was never received · retry: failed, a retry runs · park: goes to review
ClaimAction = Literal["keep", "release", "retry", "park"]

# Authentication, rate limits, too early, too slow: about this attempt, not about the request itself.
NEVER_KEPT = frozenset({401, 403, 407, 408, 425, 429})


def of_status(status: int, rule: RouteRule) -> ClaimAction:
    if status in NEVER_KEPT:
        return "release"
    if status < 400:
        return "keep"
    if status < 500:
        return _of_refusal(rule)
    if rule.keeps == "all":
        return "keep"
    return "retry" if rule.reruns or status in rule.clean else "park"


def _of_refusal(rule: RouteRule) -> ClaimAction:
    """4xx: the app refused, and nothing was done."""
    if rule.keeps in ("2xx+4xx", "all"):
        return "keep"
    return "retry" if rule.keeps == "resume" else "release"


def of_error(error: BaseException, rule: RouteRule) -> ClaimAction:
    """The action for an error raised by the app. It may have been raised after the work was done."""
    if rule.reruns or _says_not_done(error):
        return "retry"
    return "keep" if rule.keeps == "all" and isinstance(error, Exception) else "park"


def _says_not_done(error: BaseException) -> bool:
    """Only `NotDone` counts. A refused connection is about one call, and a handler makes several: it may have charged
    the card before the mail server was down."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_says_not_done, error.exceptions))
    return isinstance(error, NotDone)
