"""The Redis store: claims at scale, on one Redis or Valkey server or on a cluster of them.

Every operation is a Lua script in one slot: conditions first, then writes, stamped by the server's clock. A
command that arrives late, from a connection given up on, meets the same conditions as any other: a fence, a
version or an absence that no longer holds. What an absence cannot catch, `Node._silence` does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ..clock import Clock, system_clock
from ..errors import BadWrite
from ..records import Address, Batch, Due, Found, Outcome, Page, Record
from .base import Again, Disconnected, Finding
from .no_ledger import POINT, NoLedger
from .redis_answers import commit_answers, opening, settled, whole
from .redis_doctor import Facts, examine, examine_servers, is_best_effort, refuse_unsafe, survey
from .redis_due import Others, hand_out
from .redis_faults import NotNow, understood
from .redis_lanes import META_KEY, SCHEMA, Lane, Meta, lane_of, slot_of
from .redis_links import Command
from .redis_nodes import Call, Nodes
from .redis_notify import UNHEARD, Heard, Listener, mark
from .redis_rows import (
    Arguments,
    address,
    arguments,
    encode,
    found,
    is_one_put,
    outcome,
    portions,
    record,
    record_key,
    seconds,
    too_large,
)  # fmt: skip
from .redis_scripts import SERVER_TIME, Scripts
from .redis_target import Target
from .rings import rings

__all__ = ["RedisEngine"]


class RedisEngine:
    """Scripts, and the servers that run them."""

    batch_limit = 100
    group_limit = 500
    reads_first = False  # a read is a round trip, as a write is
    one_per_space = False
    remote = True
    now_lua = SERVER_TIME  # the store's clock: a test may put another here

    def __init__(self, url: str, *, clock: Clock = system_clock, create: bool = True, accept: bool = False) -> None:
        self.target = Target.of(url)
        self._scripts = Scripts(self.now_lua)
        self._nodes = Nodes(self.target, self._scripts, clock)
        self._listener = Listener(self._nodes.open_ear)
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

    def _known(self, facts: Sequence[Facts]) -> Meta:
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

    def commit(self, batches: Sequence[Batch]) -> Sequence[Outcome | Again | Exception]:
        if len(batches) == 1 and not self.target.cluster and is_one_put(batches[0]):
            return [self._put(batches[0])]
        packed = [self._packed(batch) for batch in batches]
        groups = self._grouped([batch.space for batch in batches])
        parts = [(lane, part) for lane, places in groups for part in portions(places, packed)]
        replies = self._nodes.ask(
            [Call(lane, self._scripts.commit, [one for i in places for one in packed[i]]) for lane, places in parts]
        )
        answers: list[Any] = [None] * len(batches)
        for (_, places), reply in zip(parts, settled(replies), strict=True):
            for i, answer in zip(places, commit_answers(reply, [batches[i] for i in places]), strict=True):
                answers[i] = answer
        return self._sure(answers)

    def _put(self, batch: Batch) -> Outcome | Again | Exception:
        """One write of one caller, on one server: a script and a way of their own, as this is what most commits are."""
        reply = self._nodes.ask_one(Call(self.lanes[0], self._scripts.put, self._packed(batch)))
        if type(reply) is list:
            return outcome(batch, reply[1], seconds(reply[0]))
        if isinstance(reply, NotNow):
            self._nodes.doubt()
        return commit_answers(settled([reply])[0], [batch])[0]

    def _packed(self, batch: Batch) -> Arguments:
        """With what to tell waiters elsewhere. In a cluster each word would go to every server: there, they look."""
        marks = "" if self.target.cluster else ",".join(map(mark, rings(batch)))
        return arguments(batch, self._lane(batch.space).prefix, marks or None)

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

    def listen(self, heard: Heard) -> float | None:
        """From now on, tell which spaces changed in other processes."""
        return UNHEARD if self.target.cluster else self._listener.start(heard)

    # -- reads -----------------------------------------------------------------------------------

    def fetch(self, addresses: Sequence[Address]) -> Sequence[Found]:
        keys = [record_key(self._lane(at.space).prefix, at) for at in addresses]
        groups = self._grouped([at.space for at in addresses])
        replies = self._nodes.ask(
            [Call(lane, self._scripts.fetch, [encode([keys[i] for i in places])]) for lane, places in groups]
        )
        answers: list[Any] = [None] * len(addresses)
        for (_, places), (micros, *packed) in zip(groups, whole(replies), strict=True):
            for i, one in zip(places, packed, strict=True):
                answers[i] = Found(found(addresses[i], one), seconds(micros))
        return answers

    def scan(self, kind: str, space: str | None, state: str | None, after: str | None, limit: int) -> Page:
        first, last_met = _position(after)
        lanes = self.lanes[first:] if space is None else [self._lane(space)]
        prefix = f"k{kind}\0" if state is None else f"s{kind}\0{state}\0"
        records: list[Record] = []
        cursor, now = "", 0.0
        for group in self._nodes.groups(lanes):
            parts = [(lane.prefix, *_range(prefix, space, last_met if lane is lanes[0] else "")) for lane in group]
            left = limit + 1 - len(records)
            now, rows = self._rows(group[0], (kind, left, len(prefix.encode()), parts))
            for place, member, packed in rows:
                if len(records) == limit:
                    return Page(records, cursor, now)
                records.append(record(address(kind, member), packed))
                cursor = f"{group[place].number}:{member.decode()}"
        return Page(records, None, now)

    def beside(self, spaces: Sequence[str], kinds: Sequence[str], limit: int) -> Sequence[Record]:
        """All kinds at once: a script each, one after the other without waiting."""
        asked = [
            (kind, lane, [(self._lane(spaces[i]).prefix, *_range(f"k{kind}\0", spaces[i], "")) for i in places])
            for lane, places in self._grouped(spaces)
            for kind in kinds
        ]
        replies = self._nodes.ask(
            [
                Call(lane, self._scripts.scan, [encode((kind, limit * len(parts), len(kind.encode()) + 2, parts))])
                for kind, lane, parts in asked
            ]
        )
        return [
            record(address(kind, member), packed)
            for (kind, _, _), (_, *rows) in zip(asked, whole(replies), strict=True)
            for _, member, packed in rows
        ]

    def _rows(self, lane: Lane, asked: tuple[Any, ...]) -> tuple[float, list[Any]]:
        ((micros, *rows),) = whole(self._nodes.ask([Call(lane, self._scripts.scan, [encode(asked)])]))
        return seconds(micros), rows

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


def _position(after: str | None) -> tuple[int, str]:
    """A scan goes lane by lane, and in each by space and key."""
    if after is None:
        return 0, ""
    number, colon, last_met = after.partition(":")
    if not colon or not number.isdecimal():
        raise BadWrite("This cursor is not of a Redis store; start the scan again without one.")
    return int(number), last_met


def _range(prefix: str, space: str | None, last_met: str) -> tuple[str, str]:
    """From and to, as Redis writes a range of names: `(` leaves the end itself out."""
    start = prefix if space is None else f"{prefix}{space}\0"
    return f"({prefix}{last_met}" if last_met else f"[{start}", f"({start[:-1]}\1"
