"""Stand-ins for providers of idempotency keys, made from the table of providers: each behaves as its maker documents.

They honour keys, forget them after their window (by a clock that is moved), replay what the row says, refuse another
body, answer a repeat with a conflict, and lose answers where they are told to. They are not the providers themselves:
"behaves as documented on" the row's date.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote

import msgspec
from msgspec import Struct

from ...effects.http_request import EFFECT_KEY_HEADER, at_path
from ...effects.providers import Provider, normal_key, provider
from ...errors import Misuse
from ...keys.duration import LONGEST
from .http import WorldAnswer, WorldRequest, read_request, written
from .stand_in import StandIn

__all__ = ["LOST_AT", "ProviderService", "ProviderWorld"]


LOST_AT = ("silence", "headers", "body")  # after execution: no byte, half of the head, half of the body
WAIT = {"retry-after": "1"}


class KeptAnswer(Struct, frozen=True):
    """What one key was used for."""

    digest: str
    answer: WorldAnswer
    record: dict[str, Any]
    at: float
    first_sent: str = ""


class ProviderService:
    """One provider, in memory."""

    def __init__(self, row: Provider, *, ignores_keys: bool = False) -> None:
        self._row = row
        self._ignores_keys = ignores_keys
        self._clear()

    def _clear(self) -> None:
        self._done: Counter[str] = Counter()
        self._records: list[dict[str, Any]] = []
        self._keys: dict[tuple[str, str], KeptAnswer] = {}
        self._upserted: dict[str, tuple[str, WorldAnswer]] = {}  # by what is addressed: the last body, and its answer
        self._asked: list[str] = []
        self._writes = 0
        self._losing = 0
        self._erring = 0
        self._now = 0.0
        self._plan: dict[int, tuple[str, Any]] = {}  # by the number of a write: what goes wrong with it

    def command(self, word: str, value: Any) -> Any:
        match word:
            case "look":
                return dict(self._done)
            case "exchanges":
                return self._asked
            case "records":
                return self._records
            case "advance":
                self._now += float(value)
            case "time":
                self._now = max(self._now, float(value))
            case "lose":
                self._losing = int(value)
            case "err":
                self._erring = int(value)
            case "plan":
                number, what, detail = value
                self._plan[int(number)] = (what, detail)
            case "spoken to in TLS":
                return False
            case _:
                self._clear()
        return None

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while isinstance(request := await read_request(reader, writer), WorldRequest):
            self._asked.append(f"{request.method} {request.host}{request.target}")
            if request.method in ("GET", "HEAD"):
                if len(self._asked) == self._losing:
                    writer.transport.abort()
                    return
                writer.write(written(self._read(request), bodiless=request.method == "HEAD"))
                await writer.drain()
                continue
            self._writes += 1
            what, detail = self._plan.get(self._writes, ("", None))
            if len(self._asked) == self._losing:
                what, detail = "lose", "silence"
            if len(self._asked) == self._erring:
                what, detail = "fail", (self._row.sticky[0], True)
            if what == "refuse":  # lost on the way: never carried out
                writer.transport.abort()
                return
            answer = self._written(request, what, detail)
            if what == "lose":
                await self._lose(writer, answer, detail)
                return
            writer.write(written(answer, bodiless=False))
            await writer.drain()

    async def _lose(self, writer: asyncio.StreamWriter, answer: WorldAnswer, place: str) -> None:
        """Carried out, and the answer breaks off."""
        text = written(answer, bodiless=False)
        head = text.index(b"\r\n\r\n") + 4
        sent = {"headers": text[: head // 2], "body": text[: head + (len(text) - head) // 2]}.get(place, b"")
        if sent:
            writer.write(sent)
            await writer.drain()
            writer.close()
        else:
            writer.transport.abort()

    # -- writes ----------------------------------------------------------------------------------

    def _written(self, request: WorldRequest, what: str, detail: Any) -> WorldAnswer:
        key = "" if self._ignores_keys else self._key(request)
        place = (request.host if self._row.regional else "", key)
        digest = sha256(request.body).hexdigest()[:8]
        known = self._keys.get(place) if key else None
        if known is not None and self._now - known.at <= (self._row.window_seconds or 0.0):
            return self._repeated(known, digest, request)
        if known is not None and self._row.forgotten:
            return WorldAnswer(self._row.forgotten[0], {"error": "the first attempt is too long ago"})
        if what == "busy":  # another request with this key is at work, and will have been carried out
            self._execute(request, key, place, digest)
            return WorldAnswer(self._row.in_progress[0], {"error": "in progress"}, WAIT)
        if what == "fail":
            status, carried_out = detail
            return self._failed(request, key, place, digest, status, carried_out=carried_out)
        return self._execute(request, key, place, digest)

    def _execute(self, request: WorldRequest, key: str, place: tuple[str, str], digest: str) -> WorldAnswer:
        target = request.target.partition("?")[0]
        address, is_upsert = f"{request.host}{target}", self._row.kind == "safe" and _is_plain(self._row, request)
        before, answered = self._upserted.get(address, ("", None))
        if is_upsert and answered is not None and before == digest:
            return WorldAnswer(200, answered.body)  # by an id of the caller's: the same again changes nothing
        self._done[f"{request.method} {request.host}{target} #{digest}"] += 1
        mark = request.headers.get(EFFECT_KEY_HEADER.lower(), "")
        record = {"id": f"r_{len(self._records) + 1}", "key": key, "effect_key": mark, "path": target}
        self._records.append(record)
        answer = WorldAnswer(201, record)
        if is_upsert:
            self._upserted[address] = (digest, answer)
        if key:
            self._keys[place] = KeptAnswer(digest, answer, record, self._now, self._first_sent(request))
        return answer

    def _failed(
        self, request: WorldRequest, key: str, place: tuple[str, str], digest: str, status: int, *, carried_out: bool
    ) -> WorldAnswer:
        if carried_out:
            self._execute(request, key, place, digest)
        answer = WorldAnswer(status, {"error": "an error of the server"})
        if key and status in self._row.sticky:
            self._keys[place] = KeptAnswer(digest, answer, {}, self._now)
        return answer

    def _repeated(self, known: KeptAnswer, digest: str, request: WorldRequest) -> WorldAnswer:
        rule = self._row.conflict
        differs = known.digest != digest or known.first_sent != self._first_sent(request)
        if differs and self._row.other_body.startswith("refused"):
            return WorldAnswer(400, {"error": {"type": "idempotency_error", "message": "key used for another request"}})
        if rule is None:
            return known.answer
        body: dict[str, Any] = {"error": {"message": "the key was used before"}}
        if rule.says:
            errors = [{"reason": rule.says, "links": {"conflicting_resource_id": known.record["id"]}}]
            body = {"error": {"errors": errors}}
        return WorldAnswer(rule.status, body)

    def _key(self, request: WorldRequest) -> str:
        """Where the row says that it goes; a key that the provider would refuse is none."""
        field = self._row.field
        if self._row.first_sent and not self._first_sent(request):
            return ""  # it takes no key without the time of the first attempt
        match self._row.place:
            case "header":
                return request.headers.get(field.lower(), "")
            case "query":
                return parse_qs(request.target.partition("?")[2]).get(field, [""])[0]
            case "body":
                try:
                    return str(at_path(_body_of(request), field))
                except LookupError:
                    return ""
        return ""

    def _first_sent(self, request: WorldRequest) -> str:
        return request.headers.get(self._row.first_sent.lower(), "")

    # -- reads -----------------------------------------------------------------------------------

    def _read(self, request: WorldRequest) -> WorldAnswer:
        """One record by its id or key, a kept answer by its key, or all whose key is in the query."""
        path, _, query = request.target.partition("?")
        last = unquote(path.rsplit("/", 1)[-1])
        if query:
            wanted = {normal_key(part) for _, value in parse_qsl(query) for part in _words(value)} - {""}
            found = [one for one in self._records if {normal_key(one["key"]), normal_key(one["effect_key"])} & wanted]
            return WorldAnswer(200, {"items": found, "data": found})
        for one in self._records:
            if last in (one["id"], one["key"]):
                rule = self._row.conflict
                return WorldAnswer(200, {rule.at: one} if rule is not None and rule.at else one)
        return WorldAnswer(404, {"error": "there is none"})


def _is_plain(row: Provider, request: WorldRequest) -> bool:
    """Whether the row speaks of it, and no condition makes a repeat another request."""
    conditional = not request.headers.keys().isdisjoint(("if-match", "if-none-match"))
    return row.covers(request.method, request.target.partition("?")[0]) and not conditional


def _words(value: str) -> list[str]:
    """The parts of a search such as metadata['effect_key']:'tp_…'."""
    return value.replace("'", " ").replace('"', " ").replace(":", " ").split()


def _body_of(request: WorldRequest) -> Any:
    if "json" in request.headers.get("content-type", ""):
        return msgspec.json.decode(request.body)
    return {name: values[0] for name, values in parse_qs(request.body.decode()).items()}


class ProviderWorld(StandIn):
    """`with ProviderWorld("stripe") as world:` a provider as its row documents it, behind its own host names.

    `ignores_keys`: it takes the key and does nothing with it.
    """

    def __init__(self, name: str, *, hosts: list[str] | None = None, ignores_keys: bool = False) -> None:
        self.row = provider(name)
        named = [host for host in self.row.hosts if "*" not in host] if hosts is None else hosts
        if not named:
            raise Misuse(f'{name} has no host of its own in the table; name one: hosts=["api.{name}.test"].')
        super().__init__(named, ProviderService(self.row, ignores_keys=ignores_keys))

    @property
    def behaves_as_documented_on(self) -> str:
        return self.row.checked.isoformat()

    @property
    def url(self) -> str:
        """For a program with a configurable base URL."""
        return f"http://127.0.0.1:{self._aside.port}"

    @property
    def window(self) -> float:
        found = self.row.window_seconds
        return found if found < LONGEST else 0.0

    def advance(self, seconds: float) -> None:
        """Move the provider's clock: keys older than its window are forgotten."""
        self._aside.ask("advance", seconds)

    def set_time(self, wall: float) -> None:
        """Set the provider's clock to the time of a scenario. It never goes back."""
        self._aside.ask("time", wall)

    def repeats_errors_to(self, asked: str) -> bool:
        return bool(self.row.sticky) and not asked.startswith(("GET ", "HEAD "))

    def err(self, number: int) -> None:
        """Carry out the n-th request of the next scenario, and answer it with an error that its key gets again."""
        self._aside.ask("err", number)

    def records(self) -> list[dict[str, Any]]:
        """What was created, in order, with the keys that it came with."""
        return msgspec.convert(self._aside.ask("records"), list[dict[str, Any]])

    def lose_at(self, number: int, place: str) -> None:
        """Carry out the n-th write, and lose its answer at one of `LOST_AT`."""
        self._aside.ask("plan", [number, "lose", place])

    def lose_before(self, number: int) -> None:
        """Lose the n-th write before it is carried out."""
        self._aside.ask("plan", [number, "refuse", None])

    def fail(self, number: int, status: int = 500, *, carried_out: bool = False) -> None:
        """Answer the n-th write with an error, after it was carried out or instead."""
        self._aside.ask("plan", [number, "fail", [status, carried_out]])

    def be_busy(self, number: int) -> None:
        """Answer the n-th write as if another request with its key were at work."""
        self._aside.ask("plan", [number, "busy", None])
