"""The stand-in's own process: requests are read, counted, answered, and sometimes not answered."""

from __future__ import annotations

import asyncio
from collections import Counter
from hashlib import sha256
from typing import Any

from msgspec import Struct

from .http_answers import REPEATABLE, Answer, Answers, matches
from .http_wire import Request, read_request, written

__all__ = ["HttpService"]

LOOKING = ("GET", "HEAD", "OPTIONS")
TLS_HELLO = 0x16


class Kept(Struct, frozen=True):
    """What was answered to an Idempotency-Key, and what had been asked."""

    asked: str
    answer: Answer


class HttpService:
    """All of it is in memory, for the play that is on."""

    def __init__(self, answers: Answers, *, honours_keys: bool, counts: tuple[str, ...] = ()) -> None:
        self._answers = answers
        self._counts = counts
        self._honours_keys = honours_keys
        self._tls = False
        self._clear()

    def _clear(self) -> None:
        self._done: Counter[str] = Counter()  # effects, with the digest of their body
        self._last: dict[str, str] = {}  # by place, the last effect there
        self._asked: list[str] = []
        self._keys: dict[str, Kept] = {}
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
                writer.transport.abort()  # carried out, and nobody is told
                return
            writer.write(written(answer, bodiless=request.method == "HEAD"))
            await writer.drain()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
        request = await read_request(reader, writer)
        if isinstance(request, int):
            self._tls = self._tls or request == TLS_HELLO
            return None
        return request

    def _answered(self, request: Request) -> Answer:
        digest = sha256(request.body).hexdigest()[:8]
        asked = f"{request.method} {request.host}{request.target}"
        self._asked.append(asked)
        if request.method in LOOKING:
            return self._answers.find(asked, digest, self._was_done)
        effect = f"{asked} #{digest}" if request.body else asked
        key = request.headers.get("idempotency-key", "") if self._honours_keys else ""
        if key and (kept := self._keys.get(key)) is not None:
            other = Answer(422, {"error": "this key was used for another request"})
            return kept.answer if kept.asked == effect else other
        return self._carried_out(asked, effect, digest, key)

    def _carried_out(self, asked: str, effect: str, digest: str, key: str) -> Answer:
        answer = self._answers.find(asked, digest, self._was_done)
        place = asked.partition(" ")[2]
        if answer.status < 400 and not self._changes_nothing(asked, effect, self._last.get(place, "")):
            self._done[effect] += 1
            self._last[place] = effect
        if key:
            self._keys[key] = Kept(effect, answer)
        return answer

    def _changes_nothing(self, asked: str, effect: str, last: str) -> bool:
        """A PUT or DELETE that finds its own work, and nothing that was done there since."""
        counted = any(matches(pattern, asked) for pattern in self._counts)
        return effect == last and asked.startswith(REPEATABLE) and not counted

    def _was_done(self, pattern: str) -> bool:
        return any(matches(pattern, effect.partition(" #")[0]) for effect in self._done)
