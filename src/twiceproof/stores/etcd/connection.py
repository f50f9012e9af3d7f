"""EtcdTable: rows as keys, changed by transactions that compare revisions; over etcd's JSON gateway.

The gateway needs nothing but the standard library, and its answers carry a `Date`, which etcd's own protocol does not.
Many transactions go as one request, each with its own comparisons: a transaction of transactions.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from typing import Any

from ...clock import Clock
from ...errors import BadWrite, StoreError, StoreFull, StoreUnsafe
from ..base import Disconnected, Finding
from ..rows.server_clock import ServerClock, date_of
from ..rows.table import ABSENT, ANY, UNANSWERED, Change, Landed, LaneRow, Place, RowsDiffer, Throttled, closed
from .url import EtcdUrl

__all__ = ["EtcdTable"]

SECONDS_TO_CONNECT, SECONDS_TO_ANSWER = 2.0, 5.0  # when a leader dies, requests stay unanswered
MOST_OPERATIONS = 128  # etcd's own limit of a transaction, with those inside of it
MOST_BYTES = 1_200_000  # of a request; etcd's own limit is 1.5 MiB
SPARE = 16  # connections that are kept
SICK = 1.0  # seconds for which a member that did not answer is tried last


class EtcdTable:
    """The keys under one prefix."""

    checks = True
    most_changes = MOST_OPERATIONS

    def __init__(self, target: EtcdUrl, clock: Clock) -> None:
        self.target = target
        self.clock = ServerClock(clock)
        self.requests = 0  # counted for tests and benches
        self._token: str | None = None
        self._cluster: str | None = None
        self._leaked: list[Any] = []
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._spare: list[tuple[tuple[str, int], http.client.HTTPConnection]] = []
        self._under_way: set[http.client.HTTPConnection] = set()
        self._sick: dict[tuple[str, int], float] = {}
        self._closed = False

    # -- rows --------------------------------------------------------------------------------------

    def read(self, places: Sequence[Place]) -> Sequence[LaneRow | None]:
        found = self._look([{"key": self._key(place)} for place in places])
        return [self._row(kvs[0]) if kvs else None for kvs in found]

    def range(self, lane: int, after: str, before: str, limit: int) -> Sequence[LaneRow]:
        return self.ranges([(lane, after, before, limit)])[0]

    def ranges(self, asked: Sequence[tuple[int, str, str, int]]) -> Sequence[Sequence[LaneRow]]:
        looks = [
            {"key": self._key((lane, after + "!")), "range_end": self._key((lane, before)), "limit": limit}
            for lane, after, before, limit in asked
        ]
        return [[self._row(kv) for kv in kvs] for kvs in self._look(looks)]

    def _look(self, looks: Sequence[dict[str, Any]]) -> list[Any]:
        """Linearizable: etcd's default."""
        if len(looks) == 1:
            return [self.ask("kv/range", looks[0]).get("kvs", ())]
        found: list[Any] = []
        for start in range(0, len(looks), MOST_OPERATIONS):
            wanted = [{"request_range": look} for look in looks[start : start + MOST_OPERATIONS]]
            answer = self.ask("kv/txn", {"success": wanted})
            found += [one["response_range"].get("kvs", ()) for one in answer["responses"]]
        return found

    def change_each(self, transactions: Sequence[Sequence[Change]]) -> Sequence[Landed | RowsDiffer | Exception]:
        written = [self._transaction(changes) for changes in transactions]
        answers: list[Landed | RowsDiffer | Exception] = []
        for part in _parts(transactions, written):
            answers += self._send([transactions[nth] for nth in part], [written[nth] for nth in part])
        return answers

    def _send(
        self, transactions: Sequence[Sequence[Change]], written: Sequence[dict[str, Any]]
    ) -> list[Landed | RowsDiffer | Exception]:
        try:
            if len(written) == 1:
                answer = self.ask("kv/txn", written[0])
                return [self._answer(transactions[0], answer, answer)]
            answer = self.ask("kv/txn", {"success": [{"request_txn": one} for one in written]})
        except Exception as error:  # noqa: BLE001 - the answer for these transactions alone
            return [error] * len(written)
        parts = [one["response_txn"] for one in answer["responses"]]
        return [self._answer(*pair, answer) for pair in zip(transactions, parts, strict=True)]

    def _answer(self, changes: Sequence[Change], answer: Any, outer: Any) -> Landed | RowsDiffer:
        if answer.get("succeeded"):
            revision = outer["header"]["revision"]
            return Landed([revision if change.data is not None else None for change in changes])
        looks = [one["response_range"].get("kvs", ()) for one in answer.get("responses", ())]
        compared = [change.place for change in changes if change.expected is not ANY]
        return RowsDiffer(
            {place: self._row(kvs[0]) if kvs else None for place, kvs in zip(compared, looks, strict=True)}
        )

    def _transaction(self, changes: Sequence[Change]) -> dict[str, Any]:
        compared = [change for change in changes if change.expected is not ANY]
        return {
            "compare": [self._comparison(change) for change in compared],
            "success": [self._operation(change) for change in changes if not change.check],
            "failure": [{"request_range": {"key": self._key(change.place)}} for change in compared],
        }

    def _comparison(self, change: Change) -> dict[str, Any]:
        revision = "0" if change.expected is ABSENT else str(change.expected)
        return {"target": "MOD", "result": "EQUAL", "key": self._key(change.place), "mod_revision": revision}

    def _operation(self, change: Change) -> dict[str, Any]:
        key = self._key(change.place)
        if change.data is None:
            return {"request_delete_range": {"key": key}}
        return {"request_put": {"key": key, "value": b64encode(change.data).decode()}}

    def _key(self, place: Place) -> str:
        return b64encode(f"{self.target.prefix}{place[0]}/{place[1]}".encode()).decode()

    def _row(self, kv: Any) -> LaneRow:
        lane, _, key = b64decode(kv["key"]).decode().removeprefix(self.target.prefix).partition("/")
        return LaneRow((int(lane), key), kv["mod_revision"], b64decode(kv.get("value", "")))

    # -- asking ------------------------------------------------------------------------------------

    def ask(self, path: str, wanted: dict[str, Any]) -> Any:
        """One request, to one member, and what its failure means."""
        return self._asked(path, wanted, None, self.clock)

    def ask_member(self, member: tuple[str, int], clock: ServerClock) -> Any:
        """Return this member's status and its own time."""
        return self._asked("maintenance/status", {}, member, clock)

    def _asked(self, path: str, wanted: dict[str, Any], member: tuple[str, int] | None, clock: ServerClock) -> Any:
        self.requests += 1
        if self.target.user is not None and self._token is None:
            self._sign_in()
        status, answer = self._post(path, wanted, member, clock)
        if status == 200:
            self._refuse_another(answer.get("header", {}).get("cluster_id"))
            return answer
        error = meaning(status, str(answer.get("error") or answer.get("message") or ""))
        if isinstance(error, _SignInAgain):
            self._token = None
            raise Disconnected(error, sent=False)
        raise error

    def _sign_in(self) -> None:
        """Request a token. A failure here leaves no write with an unknown outcome."""
        login = {"name": self.target.user, "password": self.target.password}
        try:
            status, answer = self._post("auth/authenticate", login, None, self.clock)
        except Disconnected as error:
            raise Disconnected(error, sent=False) from None
        if status == 200:
            self._token = str(answer["token"])
            return
        text = str(answer.get("error") or answer.get("message") or "")
        if "not enabled" in text:
            raise StoreError("This etcd asks for no name; take user:password@ out of the store's URL.")
        if 400 <= status < 500:
            raise StoreError("etcd refused the name or the password in the store's URL; check them.")
        raise Disconnected(ConnectionError(text or f"status {status}"), sent=False)

    def _refuse_another(self, cluster: str | None) -> None:
        """Refuse to continue on another cluster: its revisions start anew, so known revisions must not be compared
        there.
        """
        if self._cluster is None:
            self._cluster = cluster
        if cluster is not None and cluster != self._cluster:
            found = "another cluster answers than the one that was opened: it was restored, or replaced"
            finding = Finding("refuse", "cluster", found, "Open the store again, after settling what was under way.")
            raise StoreUnsafe(f"etcd: {finding.found}. {finding.advice}", findings=[finding])

    def _post(
        self, path: str, wanted: dict[str, Any], member: tuple[str, int] | None, clock: ServerClock
    ) -> tuple[int, Any]:
        who, link = self._borrow(member)
        headers = {"Content-Type": "application/json"} | ({"Authorization": self._token} if self._token else {})
        sent = self.clock.monotonic()
        try:
            link.request("POST", f"/v3/{path}", json.dumps(wanted).encode(), headers)
            response = link.getresponse()
            body = response.read()
        except BaseException as error:
            self._lose(who, link)
            if isinstance(error, OSError | http.client.HTTPException | ValueError):
                raise Disconnected(error, sent=True) from error
            raise
        clock.heard(date_of(response.headers.get("Date")), sent, clock.monotonic())
        self._give_back(who, link)
        try:
            return response.status, json.loads(body)
        except ValueError:
            return response.status, {"error": body[:200].decode(errors="replace")}

    def _lose(self, who: tuple[str, int], link: http.client.HTTPConnection) -> None:
        """Drop all connections to a member that does not answer: each of them would have to time out by itself."""
        with self._mutex:
            self._under_way.discard(link)
            lost = [spare for member, spare in self._spare if member == who]
            self._spare = [one for one in self._spare if one[0] != who]
            self._sick[who] = self.clock.monotonic() + SICK
        for one in (link, *lost):
            one.close()

    def _borrow(self, member: tuple[str, int] | None) -> tuple[tuple[str, int], http.client.HTTPConnection]:
        found = self._idle(member) or self._new(member)
        with self._mutex:
            if not self._closed:
                self._under_way.add(found[1])
                return found
        found[1].close()
        raise closed()

    def _idle(self, member: tuple[str, int] | None) -> tuple[tuple[str, int], http.client.HTTPConnection] | None:
        with self._mutex:
            if self._closed:
                raise closed()
            for nth, (who, link) in enumerate(self._spare):
                if member in (None, who) and not self._is_sick(who):
                    del self._spare[nth]
                    return who, link
        return None

    def _new(self, member: tuple[str, int] | None) -> tuple[tuple[str, int], http.client.HTTPConnection]:
        last: Exception = ConnectionError("no member is known")
        for who in [member] if member else sorted(self.target.members, key=self._is_sick):
            try:
                return who, self._connected(who)
            except OSError as error:
                last = error
                self._sick[who] = self.clock.monotonic() + SICK
        raise Disconnected(last, sent=False)

    def _connected(self, who: tuple[str, int]) -> http.client.HTTPConnection:
        if self.target.tls:
            context = ssl.create_default_context(cafile=self.target.ca)
            link: http.client.HTTPConnection = http.client.HTTPSConnection(
                *who, timeout=SECONDS_TO_CONNECT, context=context
            )
        else:
            link = http.client.HTTPConnection(*who, timeout=SECONDS_TO_CONNECT)
        link.connect()
        link.sock.settimeout(SECONDS_TO_ANSWER)
        return link

    def _is_sick(self, who: tuple[str, int]) -> bool:
        return self._sick.get(who, 0.0) > self.clock.monotonic()

    def _give_back(self, who: tuple[str, int], link: http.client.HTTPConnection) -> None:
        with self._mutex:
            self._under_way.discard(link)
            if len(self._spare) < SPARE and not self._closed and link.sock is not None:
                self._spare.insert(0, (who, link))
                return
        link.close()

    def close(self) -> None:
        """Callers that wait for an answer get an error."""
        with self._mutex:
            self._closed = True
            spare, self._spare = self._spare, []
            under_way = list(self._under_way)
        for _, link in spare:
            link.close()
        for link in under_way:
            with contextlib.suppress(OSError, AttributeError):  # it ends by itself just now
                link.sock.shutdown(socket.SHUT_RDWR)

    def abandon(self) -> None:
        """In a forked child the parent's connections stay open and unused: closing them would end them for both."""
        self._leaked.append(self._spare)
        self.clock.abandon()
        self._reset()


def _parts(transactions: Sequence[Sequence[Change]], written: Sequence[dict[str, Any]]) -> Iterator[list[int]]:
    """Return which transactions go into one request, by position: as many as etcd accepts."""
    part: list[int] = []
    most, size = 0, 0
    for nth, changes in enumerate(transactions):
        bytes_ = sum(len(change.data or b"") + 300 for change in changes)
        operations = max(len(written[nth][name]) for name in ("compare", "success", "failure"))
        if part and (len(part) + 1 + max(most, operations) > MOST_OPERATIONS or size + bytes_ > MOST_BYTES):
            yield part
            part, most, size = [], 0, 0
        part.append(nth)
        most, size = max(most, operations), size + bytes_
    if part:
        yield part


# -- what errors mean ----------------------------------------------------------------------------


class _SignInAgain(Exception):
    """The token is too old."""


def meaning(status: int, text: str) -> Exception:
    """Translate an error by etcd's text. After an unknown error the request may have been carried out."""
    for part, error in MEANINGS:
        if part in text:
            found: Exception = error(text)
            return found
    if 400 <= status < 500 and status not in UNANSWERED:
        return StoreError(f"etcd refused the request ({text[:200]}); see twiceproof doctor.")
    return Disconnected(ConnectionError(text[:200] or f"status {status}"), sent=True)


MEANINGS: tuple[tuple[str, Any], ...] = (
    ("too many requests", lambda text: Throttled(ConnectionError(text))),
    (
        "space exceeded",
        lambda text: StoreFull("etcd has no space left. Nothing was written. Compact and defragment it."),
    ),
    ("request is too large", lambda text: BadWrite("etcd does not take this write: it is too large.")),
    ("too many operations", lambda text: BadWrite("etcd does not take this write: it has too many parts.")),
    ("invalid auth token", _SignInAgain),
    ("revision of auth store is old", _SignInAgain),  # a user's rights were changed since we signed in
    ("permission denied", lambda text: StoreError("etcd: permission denied; give the user rights to the prefix.")),
    ("user name is empty", lambda text: StoreError("etcd asks for a name; write etcd://user:password@host:2379.")),
)
