"""A recording HTTP server."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import sha256
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct

from ...errors import Misuse
from .stand_in import StandIn

__all__ = [
    "REPEATABLE",
    "HttpService",
    "HttpWorld",
    "WorldAnswer",
    "WorldAnswers",
    "WorldRequest",
    "answers_from",
    "counts_from",
    "matches",
    "read_request",
    "written",
]


REPEATABLE = ("PUT ", "DELETE ")  # repeated, they change nothing


class WorldAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    """A prepared answer. `after` names a request: until it was carried out, the answer is 404."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = {}
    after: str = ""


class WorldAnswers(Struct, frozen=True):
    """Answers by `METHOD host/path`, or `METHOD /path` for every host. In a path, * stands for anything."""

    known: dict[str, WorldAnswer]

    def knows(self, asked: str) -> bool:
        return any(matches(pattern, asked) for pattern in self.known)

    def find(self, asked: str, digest: str, was_done: Callable[[str], bool]) -> WorldAnswer:
        for pattern, answer in self.known.items():
            if matches(pattern, asked):
                there = not answer.after or was_done(answer.after)
                return answer if there else WorldAnswer(404, {"error": f"not before {answer.after}"})
        if asked.startswith(("GET ", "HEAD ")):
            return WorldAnswer(404, {"error": "nothing is known of it; give an answer"})
        return WorldAnswer(200, {"id": digest})


def matches(pattern: str, asked: str) -> bool:
    """`asked` is METHOD host/path."""
    method, _, place = pattern.partition(" ")
    asked_method, _, asked_place = asked.partition(" ")
    if place.startswith("/"):
        asked_place = "/" + asked_place.partition("/")[2]
    return method == asked_method and (_path_pattern(place).fullmatch(asked_place) is not None)


@lru_cache(1_000)
def _path_pattern(place: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, place.split("*"))), re.DOTALL)


def answers_from(given: dict[str, Any]) -> WorldAnswers:
    """Checked when given; a wrong answer would be noticed only in the middle of a scenario."""
    if not isinstance(given, dict):
        raise Misuse('Answers are given by request; write {"POST /charges": {"status": 201, "body": {"id": "ch_1"}}}.')
    try:
        known = {_pattern(name): msgspec.convert(value, WorldAnswer) for name, value in given.items()}
    except msgspec.ValidationError as error:
        raise Misuse(f'An answer is {{"status": 201, "body": …, "headers": …, "after": …}}; {error}.') from None
    return WorldAnswers(known)


def counts_from(given: Sequence[str]) -> tuple[str, ...]:
    """Requests that count as effects each time, though their method is idempotent."""
    if isinstance(given, str):
        raise Misuse(f'Requests that are counted are a list; write counts=["{given}"].')
    found = tuple(_pattern(name) for name in given)
    for name in found:
        if not name.startswith(REPEATABLE):
            raise Misuse(f"{name!r} is always counted; leave it out: counts is for PUT and DELETE.")
    return found


def _pattern(name: str) -> str:
    method, _, place = name.partition(" ")
    if not (method.isupper() and "/" in place):
        raise Misuse(f'{name!r} names no request; write it as "POST /invoices" or "GET api.shop.test/invoices/*".')
    return name


LONGEST_BODY = 32 * 1024 * 1024
MOST_HEADERS = 200


class WorldRequest(Struct, frozen=True):
    """`host` is as the client wrote it, without the default port of the scheme."""

    method: str
    host: str
    target: str
    headers: dict[str, str]
    body: bytes


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> WorldRequest | int | None:
    """Read a request. None: the client has no more; a byte: it does not speak HTTP."""
    line = await _line(reader)
    if isinstance(line, int) or not line:
        return line or None
    method, target, version = line.split(" ")
    if not version.startswith("HTTP/1."):
        return None
    headers: dict[str, str] = {}
    while (field := await reader.readline()).strip():
        name, _, value = field.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
        if len(headers) > MOST_HEADERS:
            return None
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    host = headers.get("host", "").lower().removesuffix(":80").removesuffix(":443")
    return WorldRequest(method.upper(), host, _path(target), headers, await _body(reader, headers))


async def _line(reader: asyncio.StreamReader) -> str | int:
    first = await reader.read(1)
    if not first or first[0] < ord("A") or first[0] > ord("z"):
        return first[0] if first else ""
    return (first + await reader.readline()).decode("latin-1").strip()


def _path(target: str) -> str:
    """A client behind a proxy sends the whole URL."""
    if target.startswith("http://"):
        return "/" + target.removeprefix("http://").partition("/")[2]
    return target


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return await _chunks(reader)
    size = int(headers.get("content-length") or 0)
    return await reader.readexactly(_bounded(size)) if size else b""


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while True:
        size = int((await reader.readline()).split(b";")[0], 16)
        if size == 0:
            while (await reader.readline()).strip():
                pass
            return body
        body += await reader.readexactly(size)
        _bounded(len(body))
        await reader.readline()


def _bounded(size: int) -> int:
    if not 0 <= size <= LONGEST_BODY:
        raise ValueError("the body is too long for a stand-in")
    return size


def written(answer: WorldAnswer, *, bodiless: bool) -> bytes:
    text = answer.body if isinstance(answer.body, str) else msgspec.json.encode(answer.body).decode()
    body = b"" if answer.body is None or answer.status in (204, 304) else text.encode()
    kind = "text/plain; charset=utf-8" if isinstance(answer.body, str) else "application/json"
    fields = {"content-type": kind, **{name.lower(): value for name, value in answer.headers.items()}}
    fields["content-length"] = str(len(body))
    lines = [f"HTTP/1.1 {answer.status} {_phrase(answer.status)}", *(f"{name}: {fields[name]}" for name in fields)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (b"" if bodiless else body)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Answer"


LOOKING = ("GET", "HEAD", "OPTIONS")
TLS_HELLO = 0x16
# Links and references of ours: each attempt makes others.
MADE_ANEW = re.compile(rb"/v1/(?:approvals/link|callbacks)/[\w-]+|res://[\w./-]+")


class RecordedCall(Struct, frozen=True):
    """What was answered to an Idempotency-Key, and the request it was for."""

    asked: str
    answer: WorldAnswer


class HttpService:
    """Keeps everything in memory, for the current scenario."""

    def __init__(
        self,
        answers: WorldAnswers,
        *,
        honours_keys: bool,
        counts: tuple[str, ...] = (),
        same: tuple[str, ...] = (),
        elsewhere: Callable[[str], bool] = lambda after: False,
    ) -> None:
        self._answers = answers
        self._same = same
        self._elsewhere = elsewhere
        self._counts = counts
        self._honours_keys = honours_keys
        self._tls = False
        self._clear()

    def _clear(self) -> None:
        self._done: Counter[str] = Counter()  # effects, with the digest of their body
        self._last: dict[str, str] = {}  # by place, the last effect there
        self._asked: list[str] = []
        self._keys: dict[str, RecordedCall] = {}
        self._unanswered: list[str] = []  # reads for which there is no answer
        self._losing = 0

    # -- the prover's questions ------------------------------------------------------------------

    def command(self, word: str, value: Any) -> Any:
        match word:
            case "look":
                return dict(self._done)
            case "exchanges":
                return self._asked
            case "lose":
                self._losing = int(value)
            case "unanswered":
                return self._unanswered
            case "spoken to in TLS":
                return self._tls
            case _:
                self._clear()
        return None

    # -- requests --------------------------------------------------------------------------------

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (request := await self._request(reader, writer)) is not None:
            answer = self._answered(request)
            if len(self._asked) == self._losing:
                writer.transport.abort()  # carried out, but not answered
                return
            writer.write(written(answer, bodiless=request.method == "HEAD"))
            await writer.drain()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> WorldRequest | None:
        request = await read_request(reader, writer)
        if isinstance(request, int):
            self._tls = self._tls or request == TLS_HELLO
            return None
        return request

    def _answered(self, request: WorldRequest) -> WorldAnswer:
        digest = sha256(MADE_ANEW.sub(b"", request.body)).hexdigest()[:8]
        asked = f"{request.method} {request.host}{request.target}"
        self._asked.append(asked)
        if request.method in LOOKING:
            if not self._answers.knows(asked):
                self._unanswered.append(asked.partition("?")[0])
            return self._answers.find(asked, digest, self._was_done)
        effect = f"{asked} #{digest}" if request.body else asked
        key = request.headers.get("idempotency-key", "") if self._honours_keys else ""
        if key and (kept := self._keys.get(key)) is not None:
            other = WorldAnswer(422, {"error": "this key was used for another request"})
            return kept.answer if kept.asked == effect else other
        return self._carried_out(asked, effect, digest, key)

    def _carried_out(self, asked: str, effect: str, digest: str, key: str) -> WorldAnswer:
        answer = self._answers.find(asked, digest, self._was_done)
        place = asked.partition(" ")[2]
        if answer.status < 400 and not self._changes_nothing(asked, effect, self._last.get(place, "")):
            self._done[effect] += 1
            self._last[place] = effect
        if key:
            self._keys[key] = RecordedCall(effect, answer)
        return answer

    def _changes_nothing(self, asked: str, effect: str, last: str) -> bool:
        """A PUT or DELETE that finds its own work, with nothing done there since."""
        counted = any(matches(pattern, asked) for pattern in self._counts)
        same = asked.startswith(REPEATABLE) or any(matches(pattern, asked) for pattern in self._same)
        return effect == last and same and not counted

    def _was_done(self, pattern: str) -> bool:
        if "/" not in pattern:
            return self._elsewhere(pattern)
        return any(matches(pattern, effect.partition(" #")[0]) for effect in self._done)


class HttpWorld(StandIn):
    """`with HttpWorld(["api.shop.test"]) as world:` routes these names here, for http://, https:// and every port.

    Requests are counted by method, host, path and body; GET and HEAD only read. The same PUT or DELETE again changes
    nothing and is no effect, unless `counts` names it (`["PUT /meters/*"]`). With `honours_keys`, a repeated
    Idempotency-Key with the same request is answered with the first answer and is no effect. `same` are further
    requests that change nothing when they are repeated; `elsewhere` tells whether what an answer's `after` names was
    done, if it is no request.
    """

    def __init__(
        self,
        hosts: list[str],
        *,
        answers: dict[str, Any] | None = None,
        honours_keys: bool = False,
        counts: Sequence[str] = (),
        same: Sequence[str] = (),
        elsewhere: Callable[[str], bool] = lambda after: False,
    ) -> None:
        known = answers_from({} if answers is None else answers)
        service = HttpService(
            known,
            honours_keys=honours_keys,
            counts=counts_from(counts),
            same=tuple(_pattern(name) for name in same),
            elsewhere=elsewhere,
        )
        super().__init__(hosts, service)

    @property
    def url(self) -> str:
        """For a program with a configurable base URL."""
        return f"http://127.0.0.1:{self._aside.port}"

    def unanswered(self) -> list[str]:
        """Reads of the last scenario that found nothing because no answer to them was given."""
        return msgspec.convert(self._aside.ask("unanswered"), list[str])

    def exchanges(self) -> list[str]:
        """Requests of the last scenario. Raises if a client insisted on TLS that could not be redirected."""
        if self._aside.ask("spoken to in TLS"):
            raise Misuse(
                "The flow called https:// with a client that brings its own TLS, and the stand-in has no certificate "
                "that it would trust; make its base URL a setting, and say http:// in it while it is proved."
            )
        return super().exchanges()
