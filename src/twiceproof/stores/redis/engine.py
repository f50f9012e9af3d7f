"""RedisEngine: commits, reads and scans by scripts; hands out due records.

Every operation is a Lua script in one slot: conditions first, then writes, stamped by the server's clock. A command
that arrives late, from an abandoned connection, meets the same conditions as any other: a fence, a version or an
absence that no longer holds.

Due records are handed out longest overdue first across all lanes, in two round trips. The queues asked for are not
sent (there may be thousands): a lane reports the heads of its queues, and those served by others are left out the
next time.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from msgspec import Struct

from ...clock import Clock, system_clock
from ...errors import BadWrite
from ...records import Address, Batch, Due, Found, Outcome, Page, Record
from ..base import FEW, POINT, Disconnected, Finding, NoLedger, SpaceBusy, StorePromises, end_of_prefix
from ..notifications import names_to_notify
from .cluster import RedisCluster, ScriptCall, commit_answers, opening, settled, whole
from .codec import (
    META_KEY,
    SCHEMA,
    SERVER_TIME,
    Arguments,
    Lane,
    Meta,
    Scripts,
    address,
    arguments,
    encode,
    found,
    is_one_put,
    lane_of,
    micros,
    outcome,
    portions,
    record,
    record_key,
    seconds,
    slot_of,
    too_large,
)
from .connection import Command, NotNow, understood
from .doctor import RedisFacts, examine, examine_servers, is_best_effort, refuse_unsafe, survey
from .notify import UNRELIABLE, OnChange, RedisListener, mark
from .url import RedisUrl

__all__ = ["Others", "RedisEngine", "hand_out"]


UNSERVED_PAUSE = 1.0
MOST_DIGITS = 6  # of the number of a lane, in a cursor
MOST_NAMES = 1_000  # of other workers' queues that are remembered
ROUNDS, FOR_THE_NEXT = 20, 3  # tries to get past other workers' queues, and past those that are due later


class DueHead(Struct, order=True, frozen=True):
    """When something fell due, and where it waits."""

    due_at: int
    lane: int
    queue: str


class Heads(Struct):
    """Heads of the servers' queues. `missed`: some server did not return all."""

    ripe: list[DueHead]
    later: list[float]
    now: float
    missed: bool


class Others:
    """Queues that were found but not requested, by kind: of other workers' flows, or of retention."""

    def __init__(self) -> None:
        self._names: dict[str, dict[str, None]] = {}

    def beside(self, kind: str, asked: Collection[str]) -> list[str]:
        return [name for name in list(self._names.get(kind, ())) if name not in asked]

    def add(self, kind: str, names: Collection[str]) -> None:
        known = self._names.setdefault(kind, {})
        known.update(dict.fromkeys(names))
        if len(known) > MOST_NAMES:
            self._names[kind] = {}  # they are found again


def hand_out(
    nodes: RedisCluster, scripts: Scripts, others: Others, kind: str, queues: Collection[str], limit: int, hide: float
) -> Due:
    asked = queues if isinstance(queues, set | frozenset | dict) else frozenset(queues)
    heads = _peek(nodes, scripts, others, kind, asked, limit)
    chosen = heapq.nsmallest(limit, heads.ripe)
    counts = Counter((peek.lane, peek.queue) for peek in chosen)
    records, now = _take(nodes, scripts, kind, counts, hide) if counts else ([], heads.now)
    if len(heads.ripe) > len(chosen):
        heads.later.append(0.0)
    if records:
        heads.later.append(hide)
    if heads.missed:
        heads.later.append(UNSERVED_PAUSE)
    return Due(records, min(heads.later, default=None), now)


def _peek(
    nodes: RedisCluster, scripts: Scripts, others: Others, kind: str, asked: Collection[str], limit: int
) -> Heads:
    """Ask until each lane has returned the first due records of the requested queues, or that there are none."""
    heads = Heads([], [], 0.0, missed=False)
    few = len(asked) <= FEW
    names = list(asked) if few else others.beside(kind, asked)
    left = list(nodes.lanes)
    for round_ in range(ROUNDS):
        met: set[str] = set()
        answers = list(_ask(nodes, scripts, heads, (kind, limit, names, few), left))
        left = [lane for lane, answer in answers if not _add(heads, lane, answer, asked, limit, met, round_)]
        others.add(kind, met)
        if not left:
            break
        names += met
    return heads


def _ask(
    nodes: RedisCluster, scripts: Scripts, heads: Heads, asked: tuple[Any, ...], lanes: Sequence[Lane]
) -> Iterator[tuple[Lane, Any]]:
    groups = nodes.groups(lanes)
    calls = [
        ScriptCall(group[0], scripts.peek, [encode((*asked, [lane.prefix for lane in group]))]) for group in groups
    ]
    for group, reply in zip(groups, _answered(nodes.ask(calls)), strict=True):
        if isinstance(reply, Exception):
            heads.missed = True
        else:
            heads.now = seconds(reply[0])
            yield from zip(group, reply[1:], strict=True)


def _add(heads: Heads, lane: Lane, answer: Any, asked: Collection[str], limit: int, met: set[str], round_: int) -> bool:
    """False: others' queues, or heads that were too early, were in the way: this lane is to be asked again."""
    ripe, full, later, more = answer
    ours = [(queue, scores) for name, *scores in ripe if (queue := name.decode()) in asked]
    following = [seconds(int(at)) - heads.now for name, at in later if name.decode() in asked]
    met.update(queue for name, *_ in (*ripe, *later) if (queue := name.decode()) not in asked)
    hidden = full and len(ours) < limit
    unknown = more and not following
    if (hidden and round_ < ROUNDS - 1) or (unknown and round_ < FOR_THE_NEXT):
        return False
    heads.ripe += [DueHead(int(score), lane.number, queue) for queue, scores in ours for score in scores]
    heads.later += following
    heads.missed = heads.missed or bool(hidden or unknown)
    return True


def _take(
    nodes: RedisCluster, scripts: Scripts, kind: str, counts: Counter[tuple[int, str]], hide: float
) -> tuple[list[Record], float]:
    groups = nodes.groups([nodes.lanes[number] for number in sorted({lane for lane, _ in counts})])
    asked = [encode((kind, micros(hide), list(_parts(group, counts)))) for group in groups]
    calls = [ScriptCall(group[0], scripts.take, [packed]) for group, packed in zip(groups, asked, strict=True)]
    taken: list[tuple[int, Record]] = []
    now = 0.0
    for reply in _answered(nodes.ask(calls)):
        if not isinstance(reply, Exception):
            now = seconds(reply[0])
            taken += _records(reply[1:], kind)
    taken.sort(key=lambda pair: pair[0])
    return [found for _, found in taken], now


def _parts(lanes: Sequence[Lane], counts: Counter[tuple[int, str]]) -> Iterator[tuple[str, str, int]]:
    for lane in lanes:
        for (number, queue), count in counts.items():
            if number == lane.number:
                yield lane.prefix, queue, count


def _records(rows: list[Any], kind: str) -> Iterator[tuple[int, Record]]:
    for score, member, packed in rows:
        yield int(score), record(address(kind, member), packed)


def _answered(replies: list[Any]) -> list[Any]:
    """Whatever some server has is handed out, also while another is away; if none answers, that is a fault."""
    return replies if any(not isinstance(reply, Exception) for reply in replies) else whole(replies)


class RedisEngine:
    """Scripts, and the servers that run them."""

    promises = StorePromises(
        "with `appendfsync always`", "may be lost: best effort", "each server's", "2", "1", "Valkey, Redis and clusters"
    )
    batch_limit = 100
    group_limit = 500
    reads_first = False  # a read is a round trip, as a write is
    newest_first = False  # the indexes have the names of records, in their order
    one_per_space = False
    remote = True
    now_lua = SERVER_TIME  # the store's clock: a test may put another here

    def __init__(self, url: str, *, clock: Clock = system_clock, create: bool = True, accept: bool = False) -> None:
        self.target = RedisUrl.of(url)
        self.links_spaces = not self.target.cluster  # a script of a cluster has one lane
        self._scripts = Scripts(self.now_lua)
        self._nodes = RedisCluster(self.target, self._scripts, clock)
        self._listener = RedisListener(self._nodes.open_ear)
        self._others = Others()
        try:
            with opening(self._nodes):
                self._open(create, accept)
        except BaseException:
            self._nodes.close()
            raise

    def _open(self, create: bool, accept: bool) -> None:
        facts = survey(self._nodes)
        refuse_unsafe(self.target, facts)
        self.best_effort = is_best_effort(self.target, facts)
        self.meta = self._create() if create else self._known(facts)
        self.lanes = self._nodes.lanes = [Lane(number) for number in range(self.meta.lanes)]
        self._nodes.strict = not self.best_effort and not accept
        self._nodes.greet()

    def _create(self) -> Meta:
        """Create the store, or learn how it was created. Ten processes may do this at once: one is first."""
        wanted = Meta(SCHEMA, self.target.lanes).text()
        return Meta.read(self._meta(("SET", META_KEY, wanted, "NX"), ("GET", META_KEY)))

    def _known(self, facts: Sequence[RedisFacts]) -> Meta:
        text = self._meta(("GET", META_KEY))
        if text is None:
            raise NoLedger(
                f"There is no ledger in this Redis database; {POINT}.", findings=examine_servers(self.target, facts)
            )
        return Meta.read(text)

    def _meta(self, *commands: Command) -> Any:
        *_, text = self._nodes.run(self._nodes.node_of(slot_of(META_KEY.encode())), *commands)
        if isinstance(text, Exception):
            raise understood(text)
        return text

    # -- commits ---------------------------------------------------------------------------------

    def commit(self, batches: Sequence[Batch]) -> Sequence[Outcome | SpaceBusy | Exception]:
        if len(batches) == 1 and not self.target.cluster and is_one_put(batches[0]):
            return [self._put(batches[0])]
        packed = [self._packed(batch) for batch in batches]
        groups = self._grouped([batch.space for batch in batches])
        parts = [(lane, part) for lane, places in groups for part in portions(places, packed)]
        replies = self._nodes.ask(
            [
                ScriptCall(lane, self._scripts.commit, [one for i in places for one in packed[i]])
                for lane, places in parts
            ]
        )
        answers: list[Any] = [None] * len(batches)
        for (_, places), reply in zip(parts, settled(replies), strict=True):
            for i, answer in zip(places, commit_answers(reply, [batches[i] for i in places]), strict=True):
                answers[i] = answer
        return self._sure(answers)

    def _put(self, batch: Batch) -> Outcome | SpaceBusy | Exception:
        """One write of one caller, on one server: with its own script, because most commits are of this kind."""
        reply = self._nodes.ask_one(ScriptCall(self.lanes[0], self._scripts.put, self._packed(batch)))
        if type(reply) is list:
            return outcome(batch, reply[1], seconds(reply[0]))
        if isinstance(reply, NotNow):
            self._nodes.doubt()
        return commit_answers(settled([reply])[0], [batch])[0]

    def _packed(self, batch: Batch) -> Arguments:
        """With the names to notify. In a cluster each message would go to every server: there, callers poll."""
        marks = "" if self.target.cluster else ",".join(map(mark, names_to_notify(batch)))
        return arguments(batch, self._lane, marks or None)

    def _sure(self, answers: list[Any]) -> list[Any]:
        """A server that took the script but none of its writes has lost its role, or its replicas."""
        for i, answer in enumerate(answers):
            if answer is None:
                answers[i] = too_large()
            elif isinstance(answer, NotNow):
                self._nodes.doubt()
                raise Disconnected(answer, sent=True)
        return answers

    def _lane(self, space: str) -> Lane:
        return self.lanes[lane_of(space, len(self.lanes))]

    def _grouped(self, spaces: Sequence[str]) -> list[tuple[Lane, Sequence[int]]]:
        """What goes into one call, by place: everything on one server; in a cluster, what shares a lane."""
        if not self.target.cluster:
            return [(self.lanes[0], range(len(spaces)))] if spaces else []
        places: dict[int, list[int]] = {}
        for i, space in enumerate(spaces):
            places.setdefault(lane_of(space, len(self.lanes)), []).append(i)
        return [(self.lanes[number], mine) for number, mine in places.items()]

    def due(self, kind: str, queues: Collection[str], limit: int, hide: float) -> Due:
        return hand_out(self._nodes, self._scripts, self._others, kind, queues, limit, hide)

    def listen(self, on_change: OnChange) -> float | None:
        """Notify of changes by other processes from now on."""
        return UNRELIABLE if self.target.cluster else self._listener.start(on_change)

    # -- reads -----------------------------------------------------------------------------------

    def fetch(self, addresses: Sequence[Address]) -> Sequence[Found]:
        keys = [record_key(self._lane(at.space).prefix, at) for at in addresses]
        groups = self._grouped([at.space for at in addresses])
        replies = self._nodes.ask(
            [ScriptCall(lane, self._scripts.fetch, [encode([keys[i] for i in places])]) for lane, places in groups]
        )
        answers: list[Any] = [None] * len(addresses)
        for (_, places), (now, *packed) in zip(groups, whole(replies), strict=True):
            for i, one in zip(places, packed, strict=True):
                answers[i] = Found(found(addresses[i], one), seconds(now))
        return answers

    def scan(
        self,
        kind: str,
        space: str | None,
        state: str | None,
        after: str | None,
        limit: int,
        newest: bool | None = None,
        prefix: str | None = None,
    ) -> Page:
        """Lane by lane, in each by space and key: the indexes know nothing of age, so that `newest` is ignored."""
        first, last_met = _position(after, prefix)
        lanes = self.lanes[first:] if space is None else [self._lane(space)]
        named = f"k{kind}\0" if state is None else f"s{kind}\0{state}\0"
        begins = prefix if space is None else f"{space}\0"
        records: list[Record] = []
        cursors: list[str] = []
        now = 0.0
        for group in self._nodes.groups(lanes):
            parts = [(lane.prefix, *_range(named, begins, last_met if lane is lanes[0] else "")) for lane in group]
            left = limit + 1 - len(records)
            now, rows = self._rows(group[0], (kind, left, len(named.encode()), parts))
            for place, member, packed in rows:
                if len(records) == limit:
                    return Page(records, cursors[-1], now, cursors)
                records.append(record(address(kind, member), packed))
                cursors.append(f"{group[place].number}:{member.decode()}")
        return Page(records, None, now, cursors)

    def beside(self, spaces: Sequence[str], kinds: Sequence[str], limit: int) -> Sequence[Record]:
        """All kinds at once: a script each, one after the other without waiting."""
        asked = [
            (kind, lane, [(self._lane(spaces[i]).prefix, *_range(f"k{kind}\0", f"{spaces[i]}\0", "")) for i in places])
            for lane, places in self._grouped(spaces)
            for kind in kinds
        ]
        replies = self._nodes.ask(
            [
                ScriptCall(
                    lane, self._scripts.scan, [encode((kind, limit * len(parts), len(kind.encode()) + 2, parts))]
                )
                for kind, lane, parts in asked
            ]
        )
        return [
            record(address(kind, member), packed)
            for (kind, _, _), (_, *rows) in zip(asked, whole(replies), strict=True)
            for _, member, packed in rows
        ]

    def _rows(self, lane: Lane, asked: tuple[Any, ...]) -> tuple[float, list[Any]]:
        ((now, *rows),) = whole(self._nodes.ask([ScriptCall(lane, self._scripts.scan, [encode(asked)])]))
        return seconds(now), rows

    # -- life ------------------------------------------------------------------------------------

    def examine(self) -> Sequence[Finding]:
        with opening(self._nodes):
            return examine(self._nodes, self.meta)

    def close(self) -> None:
        self._listener.close()
        self._nodes.close()

    def abandon(self) -> None:
        self._listener.reset()
        self._nodes.abandon()


def _position(after: str | None, prefix: str | None) -> tuple[int, str]:
    """A scan goes lane by lane, and in each by space and key."""
    if after is None:
        return 0, ""
    number, colon, last_met = after.partition(":")
    if not colon or not number.isdecimal() or len(number) > MOST_DIGITS or not last_met.startswith(prefix or ""):
        raise BadWrite("This cursor is not of this scan of a Redis store; begin it again without one.")
    return int(number), last_met


def _range(named: str, begins: str | None, last_met: str) -> tuple[str, str]:
    """From and to, as Redis writes a range of names: `(` leaves the end itself out."""
    start = f"{named}{begins or ''}"
    return f"({named}{last_met}" if last_met else f"[{start}", f"({end_of_prefix(start)}"
