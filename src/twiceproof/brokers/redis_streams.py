"""Redis Streams, on Redis 6.2 or newer and Valkey. Best effort: Redis acknowledges a message before a replica or a disk
has it.

A place to publish to is an existing stream: `XGROUP CREATE stream group 0 MKSTREAM`. A place to receive from is
`STREAM/GROUP`. Each call is one Lua script, so that no other client is between its reads and writes: an XACK alone
would settle the delivery of another consumer, which has taken the message over meanwhile.

Redis has no delays. A sorted set beside the stream says until when a delivery is held beyond the lease, or is not
handed out (`STREAM:GROUP:not-before`); `lease` is the idle time after which others take a delivery over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
from redis.backoff import NoBackoff
from redis.connection import Connection, ConnectionPool
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    MasterDownError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.retry import Retry

from ..clock import Clock, Ids, system_clock
from ..errors import BrokerUnavailable
from .base import (
    BrokerFinding,
    Confirmed,
    DeliverySettlement,
    Extend,
    OutgoingMessage,
    Publication,
    QueueDelivery,
    Refused,
    Requeue,
    Unconfirmed,
)
from .publishing import AFTER_UNCONFIRMED, native_id, publish_fit

__all__ = ["RedisStreamBroker"]

LEASE = 60.0
MOST_BYTES = 16 * 1024 * 1024
CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 5.0
CLOSE_SECONDS = 2.0
LOOK = 0.5  # seconds between two queries for deliveries that others have released
NOT_NOW = ("READONLY", "MASTERDOWN", "LOADING", "NOREPLICAS", "MISCONF")  # errors of a server that takes no writes
FIELDS = ("key", "body", "headers", "type")

PUBLISH = """
local outcomes, stopped = {}, {}
for n = 1, #ARGV, 6 do
  local order, answer = ARGV[n + 1], nil
  if order ~= '' and stopped[order] then
    answer = {'after', ''}
  else
    local id = redis.pcall('XADD', KEYS[tonumber(ARGV[n])], 'NOMKSTREAM', '*', 'key', ARGV[n + 2],
      'body', ARGV[n + 3], 'headers', ARGV[n + 4], 'type', ARGV[n + 5])
    if not id then answer = {'none', ''}
    elseif type(id) == 'table' then answer = {'error', id.err}
    else answer = {'stored', id} end
  end
  if answer[1] ~= 'stored' then stopped[order] = true end
  outcomes[#outcomes + 1] = answer
end
return outcomes
"""

NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

RECEIVE = (
    NOW
    + """
local stream, held, group, consumer = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local lease, limit, taken = ARGV[3], tonumber(ARGV[4]), {}
local function take(pending)
  local got = redis.call('XCLAIM', stream, group, consumer, 0, pending[1])
  if got[1] then taken[#taken + 1] = {got[1][1], got[1][2], pending[4] + 1} end
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', held, '-inf', now, 'LIMIT', 0, limit)) do
  local pending = redis.call('XPENDING', stream, group, id, id, 1)
  if pending[1] then take(pending[1]) end
  redis.call('ZREM', held, id)
end
local start = '-'
while #taken < limit do
  local page = redis.call('XPENDING', stream, group, 'IDLE', lease, start, '+', 100)
  for _, pending in ipairs(page) do
    if #taken < limit and not redis.call('ZSCORE', held, pending[1]) then take(pending) end
  end
  if #page < 100 then break end
  start = '(' .. page[#page][1]
end
if #taken < limit then
  local new = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', limit - #taken, 'STREAMS', stream, '>')
  for _, entry in ipairs(new and new[1] and new[1][2] or {}) do taken[#taken + 1] = {entry[1], entry[2], 1} end
end
local last, about = '0-0', redis.call('XINFO', 'STREAM', stream)
for n = 1, #about, 2 do if about[n] == 'last-generated-id' then last = about[n + 1] end end
local first = redis.call('ZRANGE', held, 0, 0, 'WITHSCORES')
return {taken, last, first[2] and math.max(0, first[2] - now) or -1}
"""
)

SETTLE = (
    NOW
    + """
local stream, held, group, consumer, lease = KEYS[1], KEYS[2], ARGV[1], ARGV[2], tonumber(ARGV[3])
for n = 4, #ARGV, 4 do
  local id, times, word, ms = ARGV[n], tonumber(ARGV[n + 1]), ARGV[n + 2], tonumber(ARGV[n + 3])
  local pending = redis.call('XPENDING', stream, group, id, id, 1)[1]
  if pending and pending[2] == consumer and pending[4] == times then
    redis.call('ZREM', held, id)
    if word == 'done' then
      redis.call('XACK', stream, group, id)
    elseif word == 'requeue' then
      redis.call('XCLAIM', stream, group, 'returned', 0, id, 'JUSTID')
      redis.call('ZADD', held, now + ms, id)
    else
      redis.call('XCLAIM', stream, group, consumer, 0, id, 'JUSTID')
      if ms > lease then redis.call('ZADD', held, now + ms, id) end
    end
  end
end
"""
)

RELEASE = (
    NOW
    + """
local stream, held, group, consumer = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
while true do
  local page = redis.call('XPENDING', stream, group, '-', '+', 100, consumer)
  for _, pending in ipairs(page) do
    redis.call('XCLAIM', stream, group, 'returned', 0, pending[1], 'JUSTID')
    redis.call('ZADD', held, now, pending[1])
  end
  if #page == 0 then break end
end
redis.call('XGROUP', 'DELCONSUMER', stream, group, consumer)
"""
)


class RedisStreamBroker:
    """`redis+stream://user:password@host:6379/0`, `rediss+stream://…`; one server, no cluster."""

    dedupe = 0.0

    def __init__(
        self, url: str, *, lease: float = LEASE, clock: Clock = system_clock, ids: Callable[[], str] | None = None
    ) -> None:
        self._url = url.replace("+stream", "", 1)
        self._lease = lease
        self._clock = clock
        self._consumer = (ids or Ids())()
        self._places: set[str] = set()  # places received from
        self._pool = ConnectionPool.from_url(
            self._url,
            socket_connect_timeout=CONNECT_SECONDS,
            socket_timeout=ANSWER_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )

    def publish(self, messages: Sequence[OutgoingMessage], patience: float) -> Sequence[Publication]:
        return publish_fit(messages, MOST_BYTES, lambda fit: self._publish(fit, patience))

    def receive(self, place: str, limit: int, wait: float) -> Sequence[QueueDelivery]:
        end = self._clock.monotonic() + wait
        stream, group = _parts(place)
        while True:
            taken, last, due = self._ask(place, RECEIVE, group, self._consumer, _ms(self._lease), limit)
            left = end - self._clock.monotonic()
            if taken or left <= 0:
                self._places.add(place)
                return [self._delivery(place, *entry) for entry in taken]
            pause = min(left, LOOK, due / 1000 if due >= 0 else LOOK)
            self._wait_for_more(stream, last, pause)

    def settle(self, settlements: Sequence[tuple[QueueDelivery, DeliverySettlement]]) -> None:
        by_place: dict[str, list[object]] = {}
        for delivery, word in settlements:
            if delivery.place in self._places:
                by_place.setdefault(delivery.place, []).extend((*delivery.tag, *_words(word)))
        for place, arguments in by_place.items():
            with contextlib.suppress(BrokerUnavailable):  # unsettled deliveries are delivered again
                self._ask(place, SETTLE, _parts(place)[1], self._consumer, _ms(self._lease), *arguments)

    def examine(self, places: Sequence[str] = ()) -> Sequence[BrokerFinding]:
        try:
            with self._borrowed() as connection:
                facts = _facts(_call(connection, ANSWER_SECONDS, "INFO"))
                sync = _call(connection, ANSWER_SECONDS, "CONFIG", "GET", "appendfsync")
        except (RedisError, OSError) as error:
            return [BrokerFinding("error", "connection", self._explain(error))]
        return [*_examine_server(facts, sync), *(self._examine_place(place) for place in places)]

    def waiting(self, place: str) -> int | None:
        """Return the group's lag, which servers have counted since Redis 7."""
        stream, group = _parts(place)
        try:
            with self._borrowed() as connection:
                groups = _call(connection, ANSWER_SECONDS, "XINFO", "GROUPS", stream)
        except (RedisError, OSError):
            return None
        found = next((one for one in map(_pairs, groups) if one.get(b"name") == group.encode()), {})
        return found.get(b"lag")

    def close(self) -> None:
        """Give back what is not settled, and remove this consumer from its group."""
        places, self._places = self._places, set()
        for place in places:
            try:
                self._ask(place, RELEASE, _parts(place)[1], self._consumer, seconds=CLOSE_SECONDS)
            except BrokerUnavailable:
                break  # others take it over when the lease is over
        self._pool.disconnect()

    # -- publishing ----------------------------------------------------------------------------

    def _publish(self, messages: Sequence[OutgoingMessage], patience: float) -> list[Publication]:
        streams = list(dict.fromkeys(message.place for message in messages))
        arguments = [part for message in messages for part in _fields(message, streams)]
        sent = False
        try:
            with self._borrowed() as connection:
                sent = True
                answers = _call(connection, patience, "EVAL", PUBLISH, len(streams), *streams, *arguments)
        except (ReadOnlyError, MasterDownError, BusyLoadingError) as error:  # it did nothing
            return [self._not_now(str(error)) for _ in messages]
        except ResponseError as error:
            return [Refused(f"Redis refused it: {error}; check the server.") for _ in messages]
        except (RedisError, OSError) as error:
            if sent:
                return [Unconfirmed(f"Redis did not answer ({type(error).__name__}).") for _ in messages]
            return [Refused(self._explain(error), away=True) for _ in messages]
        return [self._publication(message, *answer) for message, answer in zip(messages, answers, strict=True)]

    def _publication(self, message: OutgoingMessage, code: bytes, said: bytes) -> Publication:
        text = said.decode(errors="replace")
        if code == b"stored":
            return Confirmed(text)
        if code == b"after":
            return AFTER_UNCONFIRMED
        if code == b"none":
            name = message.place
            return Refused(f"Redis has no stream {name!r}; run XGROUP CREATE … MKSTREAM, or correct the route.")
        if text.startswith(NOT_NOW):
            return self._not_now(text)
        return Refused(f"Redis did not store it: {text}; check its memory and the key.")

    def _not_now(self, text: str) -> Refused:
        """The server takes no writes from anybody. After a failover its address may lead to another one: the next call
        connects anew.
        """
        self._pool.disconnect(inuse_connections=False)
        return Refused(f"Redis takes no writes right now: {text}; check which server the URL leads to.", away=True)

    # -- receiving -----------------------------------------------------------------------------

    def _delivery(self, place: str, entry_id: bytes, flat: Sequence[bytes], times: int) -> QueueDelivery:
        fields = {name.decode(errors="replace"): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
        headers = _headers(fields.get("headers", b""))
        number, _, part = entry_id.decode().partition("-")
        return QueueDelivery(
            place=place,
            body=fields.get("body", b""),
            headers=headers,
            tag=(entry_id, times),
            key=fields.get("key", b"").decode(errors="replace") or headers.get("ce-id", ""),
            sequence=int(number) << 20 | int(part),
            partition=place.partition("/")[0],
            times=times,
            until=self._clock.monotonic() + self._lease,
            content_type=fields.get("type", b"").decode(errors="replace"),
        )

    def _wait_for_more(self, stream: str, last: bytes, seconds: float) -> None:
        """Wait until something newer than `last` is added (without reading it), or the time is over."""
        asked = ("XREAD", "COUNT", 1, "BLOCK", max(1, _ms(seconds)), "STREAMS", stream, last)
        try:
            with self._borrowed() as connection:
                _call(connection, seconds + ANSWER_SECONDS, *asked)
        except (RedisError, OSError):  # this user may not read streams, say: the next query follows later all the same
            self._clock.sleep(seconds)

    def _ask(self, place: str, script: str, *arguments: object, seconds: float = ANSWER_SECONDS) -> Any:
        stream, group = _parts(place)
        try:
            with self._borrowed() as connection:
                return _call(connection, seconds, "EVAL", script, 2, stream, f"{stream}:{group}:not-before", *arguments)
        except ResponseError as error:
            if "NOGROUP" in str(error) or "no such key" in str(error):
                text = f"Redis has no group {place!r}; run XGROUP CREATE, and write STREAM/GROUP."
                raise BrokerUnavailable(text, missing=True) from None
            raise BrokerUnavailable(f"Redis refused: {error}; check the server.", missing=False) from None
        except (RedisError, OSError) as error:
            raise BrokerUnavailable(self._explain(error), missing=False) from None

    # -- connections ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def _borrowed(self) -> Iterator[Connection]:
        """A connection from the pool. After any error it is closed instead of returned: an answer may still arrive on
        it.
        """
        connection = self._pool.get_connection()
        try:
            yield connection
        except ResponseError:
            raise  # that was the answer
        except BaseException:
            connection.disconnect()  # type: ignore[no-untyped-call]
            raise
        finally:
            self._pool.release(connection)

    def _explain(self, error: BaseException) -> str:
        parts = urlsplit(self._url)
        where = f"Redis at {parts.hostname}:{parts.port or 6379}"
        if isinstance(error, AuthenticationError):
            return f"{where} refuses the user or the password; check both in the URL."
        return f"{where} cannot be reached ({type(error).__name__}); check that it runs, and the address in the URL."

    def _examine_place(self, place: str) -> BrokerFinding:
        stream = place.partition("/")[0]
        try:
            with self._borrowed() as connection:
                groups = _call(connection, ANSWER_SECONDS, "XINFO", "GROUPS", stream)
        except ResponseError:
            return BrokerFinding("error", place, f"There is no stream for {place!r}; run XGROUP CREATE … MKSTREAM.")
        except (RedisError, OSError) as error:
            return BrokerFinding("error", place, self._explain(error))
        if not groups:
            return BrokerFinding("warning", place, f"The stream {stream!r} has no group; run XGROUP CREATE.")
        return BrokerFinding("ok", place, f"The stream {stream!r} has {len(groups)} groups; trim it with XTRIM MINID.")


def _call(connection: Connection, seconds: float, *command: Any) -> Any:
    connection.send_command(*command)  # type: ignore[no-untyped-call]
    if not connection.can_read(timeout=seconds):
        raise TimeoutError("no answer in time")
    return connection.read_response(disable_decoding=True)


def _pairs(answer: Any) -> dict[bytes, Any]:
    """Return names with values, which come as a map from RESP3 on, and before that as a list of both in turns."""
    return answer if isinstance(answer, dict) else dict(zip(answer[::2], answer[1::2], strict=True))


def _parts(place: str) -> tuple[str, str]:
    stream, _, group = place.rpartition("/")
    return (stream, group) if stream else (group, "-")


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _fields(message: OutgoingMessage, streams: list[str]) -> Iterator[object]:
    yield streams.index(message.place) + 1
    yield message.order
    yield native_id(message.key)
    yield message.body
    yield msgspec.json.encode({name.lower(): value for name, value in message.headers.items()})
    yield message.content_type


def _words(word: DeliverySettlement) -> tuple[str, int]:
    if isinstance(word, Requeue):
        return "requeue", _ms(word.after)
    if isinstance(word, Extend):
        return "extend", _ms(word.seconds)
    return "done", 0  # also for a rejection: there are no dead letters, and the entry stays for other groups


def _headers(encoded: bytes) -> dict[str, str]:
    with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
        return msgspec.json.decode(encoded, type=dict[str, str])
    return {}  # a field of that name from another sender


def _facts(info: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in info.decode(errors="replace").splitlines() if ":" in line)
    return {name: value for name, _, value in pairs}


def _examine_server(facts: dict[str, str], sync: Sequence[bytes]) -> Iterator[BrokerFinding]:
    yield BrokerFinding(
        "warning", "durability", "Best effort: a failover loses what was confirmed. Keep the outbox's resends in mind."
    )
    if facts.get("aof_enabled") != "1":
        yield BrokerFinding("warning", "appendonly", "A restart loses messages. Set appendonly yes.")
    elif len(sync) == 2 and sync[1] != b"always":
        yield BrokerFinding("warning", "appendfsync", "A power failure loses the last second. Set appendfsync always.")
    if facts.get("maxmemory_policy", "noeviction") != "noeviction":
        text = "A full server may evict whole streams. Set maxmemory-policy noeviction."
        yield BrokerFinding("warning", "maxmemory-policy", text)
