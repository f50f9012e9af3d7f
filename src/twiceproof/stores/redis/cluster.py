"""Which server has which lane; sends scripts and collects their replies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from hiredis import ReplyError
from msgspec import Struct

from ...clock import Clock
from ...errors import StoreError, StoreUnavailable, StoreUnsafe
from ...records import Batch, Outcome
from ..base import SPACE_BUSY, Disconnected, Finding, SpaceBusy
from ..open import ACCEPT, BEFORE_ACCEPTING
from .codec import Arguments, Lane, Script, Scripts, encode, outcome, seconds
from .connection import (
    Broken,
    Command,
    Elsewhere,
    IsReplica,
    NotNow,
    RedisConnection,
    RedisServer,
    is_unknown_script,
    understood,
)
from .url import RedisUrl

__all__ = ["RedisCluster", "ScriptCall", "commit_answers", "opening", "settled", "whole"]


EPOCH_STRIDE = 1_000_000  # more numbers than a lane can have handed out and lost
OURS = (Broken, NotNow, Elsewhere, StoreError)  # others do not come from a server: a signal handler's, or a bug
REFUSED = 0  # epoch.lua's answer for a replica that took over

UnderWay = tuple[RedisServer, RedisConnection, Sequence[int], Broken | None]


class ScriptCall(Struct, frozen=True):
    """One run of a script on the server of a lane."""

    lane: Lane
    script: Script
    arguments: Arguments

    def wire(self) -> bytes:
        return self.script.call(self.lane, self.arguments)

    def wire_whole(self) -> bytes:
        return self.script.call_whole(self.lane, self.arguments)


class RedisCluster:
    """The servers. Safe to use from several threads."""

    def __init__(self, target: RedisUrl, scripts: Scripts, clock: Clock) -> None:
        self.target = target
        self.lanes: Sequence[Lane] = ()
        self.strict = False  # no acknowledged write may be lost: a replica that took over is refused
        self._scripts = scripts
        self._clock = clock
        self._leaked: list[RedisConnection] = []
        self._seed = RedisServer(target.host, target.port, target)
        self._nodes: dict[str, RedisServer] = {self._seed.name: self._seed}
        self._by_slot: list[tuple[int, int, RedisServer]] = []

    # -- the map ---------------------------------------------------------------------------------

    def groups(self, lanes: Sequence[Lane]) -> list[list[Lane]]:
        """Lanes that one script may touch: all of one server's, but in a cluster a slot at a time."""
        if self.target.cluster:
            return [[lane] for lane in lanes]
        return [list(lanes)] if lanes else []

    def node_of(self, slot: int) -> RedisServer:
        if not self.target.cluster:
            return self._seed
        for first, last, node in self._by_slot or self.refresh():
            if first <= slot <= last:
                return node
        raise NotNow(f"no server of the cluster serves slot {slot}")

    def all(self) -> list[RedisServer]:
        """Every server that serves something."""
        if not self.target.cluster:
            return [self._seed]
        return list({node.name: node for _, _, node in self._by_slot or self.refresh()}.values())

    def refresh(self) -> list[tuple[int, int, RedisServer]]:
        """Ask the servers for the map of the slots, until one of them replies."""
        last: Exception = NotNow("No server of the cluster is known")
        for node in list(self._nodes.values()):
            try:
                self._by_slot = self._map_of(node)
                return self._by_slot
            except (Broken, NotNow) as error:
                last = error
        raise last

    def _map_of(self, node: RedisServer) -> list[tuple[int, int, RedisServer]]:
        (rows,) = self.run(node, ("CLUSTER", "SLOTS"))
        if isinstance(rows, Exception):
            raise understood(rows)
        return [(row[0], row[1], self._known(row[2], node)) for row in rows]

    def _known(self, entry: Sequence[Any], via: RedisServer) -> RedisServer:
        host = (entry[0] or b"").decode() or via.host  # a cluster of one does not know its own address
        node = self._nodes.get(f"{host}:{entry[1]}")
        if node is None:
            node = RedisServer(host, entry[1], self.target)
            node = self._nodes.setdefault(node.name, node)
        return node

    # -- asking ----------------------------------------------------------------------------------

    def ask(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """A reply or an exception for each call. Every server has its work before any is waited for."""
        if len(calls) == 1:
            return [self.ask_one(calls[0])]
        replies: list[Any] = [None] * len(calls)
        under_way: list[UnderWay] = []
        try:
            self._send_out(calls, replies, under_way)
            while under_way:
                self._collect(*under_way.pop(0), calls, replies)
        except BaseException:  # an interrupt: what the other servers were sent may be carried out at any time
            for node, link, _, broken in under_way:
                if broken is None:
                    node.drop(link, sent=True)
            raise
        for reply in replies:
            if isinstance(reply, Exception):
                self._noted(reply)
        return replies

    def _send_out(self, calls: Sequence[ScriptCall], replies: list[Any], under_way: list[UnderWay]) -> None:
        for node, places in self._by_node(calls, replies).items():
            try:
                link = self._borrow(node, [calls[i].lane for i in places])
            except OURS as error:  # it belongs to this server's calls alone
                _fill(replies, places, error)
                continue
            under_way.append((node, link, places, self._send(node, link, [calls[i] for i in places])))

    def ask_one(self, call: ScriptCall) -> Any:
        """The reply to one call, or an exception."""
        try:
            node = self.node_of(call.lane.slot) if self.target.cluster else self._seed
            link = self._borrow(node, (call.lane,))
        except OURS as error:  # an answer, as for one call of many
            return self._noted(error)
        try:
            link.send(call.wire())
            reply = link.receive(alone=True)
            if type(reply) is ReplyError and is_unknown_script(reply):
                link.send(call.wire_whole())
                reply = link.receive()
        except Broken as error:
            node.drop(link, sent=error.sent)
            return error
        except BaseException:
            node.drop(link, sent=True)
            raise
        node.give_back(link)
        return self._noted(understood(reply)) if type(reply) is ReplyError else reply

    def _noted(self, error: Exception) -> Exception:
        if isinstance(error, Elsewhere):
            self._by_slot = []  # the map is outdated
        return error

    def _by_node(self, calls: Sequence[ScriptCall], replies: list[Any]) -> dict[RedisServer, Sequence[int]]:
        if not self.target.cluster:
            return {self._seed: range(len(calls))} if calls else {}
        places: dict[RedisServer, Any] = {}
        for i, call in enumerate(calls):
            try:
                places.setdefault(self.node_of(call.lane.slot), []).append(i)
            except OURS as error:  # it belongs to this call alone
                replies[i] = error
        return places

    def _send(self, node: RedisServer, link: RedisConnection, calls: Sequence[ScriptCall]) -> Broken | None:
        try:
            link.send(calls[0].wire() if len(calls) == 1 else b"".join([call.wire() for call in calls]))
        except Broken as error:
            node.drop(link, sent=error.sent)
            return error
        except BaseException:
            node.drop(link, sent=True)
            raise
        return None

    def _collect(
        self,
        node: RedisServer,
        link: RedisConnection,
        places: Sequence[int],
        broken: Broken | None,
        calls: Sequence[ScriptCall],
        replies: list[Any],
    ) -> None:
        if broken:
            return _fill(replies, places, broken)
        try:
            for i in places:
                replies[i] = link.receive()
            faults = [i for i in places if isinstance(replies[i], Exception)]
            if faults:
                self._teach(link, [i for i in faults if is_unknown_script(replies[i])], calls, replies)
        except Broken as error:
            node.drop(link, sent=error.sent)
            return _fill(replies, [i for i in places if replies[i] is None], error)
        except BaseException:
            node.drop(link, sent=True)
            raise
        node.give_back(link)
        for i in faults:
            if isinstance(replies[i], Exception):
                replies[i] = understood(replies[i])
        return None

    def _teach(self, link: RedisConnection, places: list[int], calls: Sequence[ScriptCall], replies: list[Any]) -> None:
        """The server has forgotten the script (a restart, SCRIPT FLUSH): nothing was done, so send it whole."""
        if places:
            for i in places:
                replies[i] = None
            link.send(b"".join(calls[i].wire_whole() for i in places))
            for i in places:
                replies[i] = link.receive()

    def run(self, node: RedisServer, *commands: Command) -> list[Any]:
        """Plain commands to one server; its errors are returned."""
        link = node.borrow()
        try:
            replies = link.ask(*commands)
        except BaseException as error:
            node.drop(link, sent=getattr(error, "sent", True))
            raise
        node.give_back(link)
        return replies

    # -- checking a server before its first call -------------------------------------------------

    def _borrow(self, node: RedisServer, lanes: Sequence[Lane]) -> RedisConnection:
        """A link to a server that is known to serve these lanes in this epoch."""
        link = node.spare() or self._open(node)
        greeted = node.greeted
        fresh = [lane for lane in lanes if lane.number not in greeted]
        if fresh:
            self._greet(node, link, fresh if self.target.cluster else self.lanes)
        return link

    def _open(self, node: RedisServer) -> RedisConnection:
        began = self._clock.monotonic()
        if self.target.cluster and node.sick_until > began:
            raise Broken(ConnectionError(f"{node.name} did not answer a moment ago"), sent=False)
        try:
            return node.open()
        except Broken:
            # A server that is cut off costs seconds a try: the others' callers must not wait for it each time.
            took = self._clock.monotonic() - began
            node.sick_until = began + took + min(max(0.05, 2 * took), 10.0)
            raise

    def _greet(self, node: RedisServer, link: RedisConnection, lanes: Sequence[Lane]) -> None:
        """Has another process served these lanes in between? See epoch.lua."""
        calls = [self._epoch_call(node, group) for group in self.groups(lanes)]
        try:
            link.send(b"".join(call.wire_whole() for call in calls))
            replies = [link.receive() for _ in calls]
        except Broken as error:
            node.drop(link, sent=False)
            raise Broken(error, sent=False) from error
        except BaseException:
            node.drop(link, sent=False)
            raise
        for reply in replies:
            if isinstance(reply, Exception) or reply == REFUSED:
                node.give_back(link)
                raise understood(reply) if isinstance(reply, Exception) else _taken_over(node)
        node.greeted |= {lane.number for lane in lanes}
        node.trusted = node.server

    def _epoch_call(self, node: RedisServer, lanes: Sequence[Lane]) -> ScriptCall:
        prefixes = [lane.prefix for lane in lanes]
        former = node.former if self.strict and node.former else False
        asked = (node.server, EPOCH_STRIDE, prefixes, former, node.trusted not in ("", node.server, node.former))
        return ScriptCall(lanes[0], self._scripts.epoch, [encode(asked)])

    def greet(self) -> None:
        """Check the server when the store is opened, so that one that must be refused is refused then."""
        if not self.target.cluster:
            self._seed.give_back(self._borrow(self._seed, self.lanes))

    def doubt(self) -> None:
        """A server took our call but does not serve: connect afresh, and look at the map again."""
        self._by_slot = []
        self.close()

    def open_ear(self) -> RedisConnection:
        """A connection to listen on."""
        link = self._seed.connection()
        link.connect()
        return link

    # -- life ------------------------------------------------------------------------------------

    def close(self) -> None:
        for node in list(self._nodes.values()):
            node.close_spare()

    def abandon(self) -> None:
        # Shutting a parent's connection down in a child would cut it for both: keep it, unused, for ever.
        for node in self._nodes.values():
            self._leaked += node.abandon()


def _taken_over(node: RedisServer) -> StoreUnsafe:
    finding = Finding(
        "refuse",
        "failover",
        f"{node.name} was a replica and took over from another server",
        f"{BEFORE_ACCEPTING} {ACCEPT}",
    )
    return StoreUnsafe(f"{finding.found}: acknowledged writes may be lost. {finding.advice}", findings=[finding])


def _fill(replies: list[Any], places: Sequence[int], error: Exception) -> None:
    for i in places:
        replies[i] = error


def settled(replies: list[Any]) -> list[Any]:
    """The replies, if those of all servers are known; else the group must be tried again.

    A server that is away for longer must not hold up the callers of the others: once nothing was sent to
    it any more, its part alone fails.
    """
    down = [reply for reply in replies if isinstance(reply, (Broken, NotNow))]
    sent = any(isinstance(reply, Broken) and reply.sent for reply in down)
    if sent or (down and len(down) == len(replies)):
        raise Disconnected(down[0], sent=sent)
    return replies


def commit_answers(reply: Any, batches: Sequence[Batch]) -> list[Outcome | SpaceBusy | Exception]:
    if type(reply) is list:
        now = seconds(reply[0])
        return [outcome(batch, answer, now) for batch, answer in zip(batches, reply[1:], strict=True)]
    if isinstance(reply, Elsewhere):
        return [SPACE_BUSY] * len(batches)
    if isinstance(reply, (Broken, NotNow)):
        return [_unserved(reply)] * len(batches)
    return [reply] * len(batches)


def whole(replies: list[Any]) -> list[Any]:
    """All the replies, or the first fault among them: half a read is none."""
    for reply in replies:
        if isinstance(reply, Broken | NotNow | Elsewhere):
            raise Disconnected(reply, sent=getattr(reply, "sent", False))
        if isinstance(reply, Exception):
            raise reply
    return replies


def _unserved(error: Exception) -> StoreUnavailable:
    return StoreUnavailable(
        f"The server of this space does not answer ({error}); the write may or may not have landed. "
        "Bring it back or wait for the failover, then read before you try again.",
        unsure=True,
    )


@contextlib.contextmanager
def opening(nodes: RedisCluster) -> Iterator[None]:
    """For work outside of the store's own retries."""
    try:
        yield
    except IsReplica as error:
        finding = Finding("refuse", "role", str(error), "Name the master in the store's URL.")
        raise StoreUnsafe(f"{error}: it takes no writes. {finding.advice}", findings=[finding]) from error
    except (Broken, NotNow, Elsewhere) as error:
        raise StoreUnavailable(
            f"The Redis server {nodes.target.host}:{nodes.target.port} does not answer ({error}). "
            "Check that it runs and that the URL is right, then try again.",
            unsure=False,
        ) from error
