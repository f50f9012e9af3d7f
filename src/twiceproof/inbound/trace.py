"""Trace: the chain from an event to its run, the run's effects and messages, and what their consumers did.

Each link keeps what it came from: a run its event and its message, a message its run, a claim its message. A trace
begins at whatever has the key, and goes from there to all causes and to all consequences, also in other ledgers:
messages are the links between them. It reads ledgers from beginning to end, once for each step of the chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from ..claims.claim import CLAIM, RUN, claim_of, parse_space, shown_id, shown_run
from ..flows.engine.ledger import STEP_KIND, entries_in
from ..flows.engine.run_states import work_of
from ..flows.engine.step_identity import effect_key
from ..flows.external_ids import runs_by_external_id
from ..operations import Operation, block
from ..outbox.lanes import HELD_LANE, LANE
from ..outbox.message import MESSAGE_KIND, message_of, tenant_of
from ..records import Address, Record
from ..stores.base import Store
from .admit import EventNote

__all__ = ["TraceLink", "trace"]


PAGE = 1_000
EFFECT_PREFIX = "tp_"  # of effect keys, and of the keys of messages that were given none

LinkKind = Literal["claim", "run", "effect", "message"]
Identity = tuple[str | int, ...]  # a claim's and a run's begins with its ledger; a message is the same in all


class TraceLink(Struct, frozen=True, kw_only=True):
    """One link of a chain. Times are those of its ledger, in seconds since 1970."""

    kind: LinkKind
    id: str  # OPERATION/KEY of a claim; a run's id; an effect's key; a message's key
    name: str  # of a run FLOW/KEY, of an effect its step, of a message TOPIC to TARGET
    state: str
    at: float
    ledger: int  # which of the ledgers that were given, counted from 1
    correlation: str = ""
    external: str = ""  # the id that an effect's destination gave it
    depth: int = 0  # how many links lead to it


class Node(Struct, frozen=True):
    """A record as a link: its identity, the texts that name it, its cause, and its known consequences."""

    link: TraceLink
    at: Address
    identity: Identity
    names: frozenset[str]
    causes: frozenset[Identity] = frozenset()
    leads: frozenset[Identity] = frozenset()


def trace(stores: Sequence[Store], tenant: str, key: str) -> list[TraceLink]:
    """Return the chain of a key: causes first, each link followed by its consequences. Empty: there is no such key."""
    found = _Chain(stores, tenant)
    found.begin(key)
    found.follow()
    return list(found.in_order())


class _Chain:
    def __init__(self, stores: Sequence[Store], tenant: str) -> None:
        self._stores = stores
        self._tenant = tenant
        self._up: dict[tuple[int, Address], Node] = {}  # what the key names, and all that led to it
        self._down: dict[tuple[int, Address], Node] = {}  # the key's links, and all their consequences

    def begin(self, key: str) -> None:
        spaces = {
            (number, space)
            for number, store in enumerate(self._stores, 1)
            for space in block(_spaces_named(store, self._tenant, key))
        }
        for node in self._nodes():
            if key in node.names or ((node.link.ledger, node.at.space) in spaces and node.link.kind == "run"):
                self._up[_place(node)] = self._down[_place(node)] = node

    def follow(self) -> None:
        """Read the ledgers again for as long as that adds links."""
        while self._grow():
            pass

    def _grow(self) -> bool:
        causes = {one for node in self._up.values() for one in node.causes}
        known_up = {node.identity for node in self._up.values()}
        known_down = {node.identity for node in self._down.values()}
        leads = {one for node in self._down.values() for one in node.leads}
        before = len(self._up) + len(self._down)
        for node in self._nodes():
            if node.identity in causes or node.leads & known_up:
                self._up.setdefault(_place(node), node)
            if node.causes & known_down or node.identity in leads:
                self._down.setdefault(_place(node), node)
        return len(self._up) + len(self._down) > before

    def _nodes(self) -> Iterator[Node]:
        for number, store in enumerate(self._stores, 1):
            for kind in (CLAIM, RUN, MESSAGE_KIND):
                after: str | None = None
                while True:
                    page = store.scan(kind, after=after, limit=PAGE).block()
                    own = [record for record in page.records if tenant_of(record.at) == self._tenant]
                    yield from (_node(record, number) for record in own if record.state not in (LANE, HELD_LANE))
                    after = page.after
                    if after is None:
                        break

    # -- as a list -------------------------------------------------------------------------------

    def in_order(self) -> Iterator[TraceLink]:
        left = dict(self._up | self._down)
        roots = sorted(left.values(), key=lambda node: (bool(self._parents(node)), *_age_of(node)))
        for node in roots:
            yield from self._with_consequences(node, left, 0)

    def _parents(self, node: Node) -> list[Node]:
        every = (self._up | self._down).values()
        return [one for one in every if one is not node and _follows(node, one)]

    def _with_consequences(self, node: Node, left: dict[tuple[int, Address], Node], depth: int) -> Iterator[TraceLink]:
        if left.pop(_place(node), None) is None:
            return
        yield msgspec.structs.replace(node.link, depth=depth)
        if node.link.kind == "run":
            effects = block(_effects(self._stores[node.link.ledger - 1], node.at.space, node.link.ledger))
            yield from (msgspec.structs.replace(effect, depth=depth + 1) for effect in effects)
        for after in sorted(left.values(), key=_age_of):
            if _follows(after, node):
                yield from self._with_consequences(after, left, depth + 1)


def _place(node: Node) -> tuple[int, Address]:
    return node.link.ledger, node.at


def _follows(node: Node, cause: Node) -> bool:
    return cause.identity in node.causes or node.identity in cause.leads


# -- records as links ----------------------------------------------------------------------------


def _node(record: Record, ledger: int) -> Node:
    if record.at.kind == MESSAGE_KIND:
        return _of_message(record, ledger)
    return _of_run(record, ledger) if record.at.kind == RUN else _of_claim(record, ledger)


def _of_claim(record: Record, ledger: int) -> Node:
    operation, key = parse_space(record.at.space)[1:]
    note = _event_note(record)
    name = f"{operation}/{key}"
    run = shown_run(note.run)
    link = TraceLink(kind="claim", id=name, name=note.type, state=record.state, at=record.created_at, ledger=ledger)
    return Node(
        link,
        record.at,
        (ledger, "claim", operation, key),
        frozenset((key, name)),
        frozenset({("message", note.message or key)}),
        frozenset({(ledger, "run", run)} if run else ()),
    )


def _event_note(record: Record) -> EventNote:
    """A claim of a guarded function has any result, and is no event's."""
    try:
        return msgspec.json.decode(claim_of(record).result, type=EventNote)
    except msgspec.DecodeError:
        return EventNote()


def _of_run(record: Record, ledger: int) -> Node:
    flow, key = parse_space(record.at.space)[1:]
    work = work_of(claim_of(record))
    run, name = shown_id(record.at), f"{flow}/{key}"
    known = work.correlation or run
    link = TraceLink(
        kind="run", id=run, name=name, state=record.state, at=record.created_at, ledger=ledger, correlation=known
    )
    causes: set[Identity] = {(ledger, "run", shown_run(work.parent))} if work.parent else set()
    if work.event is not None:
        operation, event, message = work.event
        causes |= {(ledger, "claim", operation, event), ("message", message or event)}
    return Node(link, record.at, (ledger, "run", run), frozenset((key, name, run, known)), frozenset(causes))


def _age_of(node: Node) -> tuple[float, str]:
    """In order of time. What one commit has written is as old as another: by name."""
    return node.link.at, node.link.name


def _of_message(record: Record, ledger: int) -> Node:
    message = message_of(record)
    known = message.headers.get("correlation-id", "")
    link = TraceLink(
        kind="message",
        id=message.key,
        name=f"{message.topic} to {message.target}",
        state=record.state,
        at=record.created_at,
        ledger=ledger,
        correlation=known,
    )
    names = frozenset((message.key, known)) if known else frozenset((message.key,))
    causes: frozenset[Identity] = frozenset({(ledger, "run", message.run)} if message.run else ())
    return Node(link, record.at, ("message", message.key), names, causes)


def _effects(store: Store, space: str, ledger: int) -> Operation[list[TraceLink]]:
    """Return the steps of a run with their effect keys; waits, timers and sends have none."""
    return [
        TraceLink(
            kind="effect",
            id=effect_key(space, entry.name),
            name=entry.name,
            state=entry.state,
            at=entry.at,
            ledger=ledger,
            external=entry.note.external,
        )
        for entry in (yield from entries_in(store, space))
        if entry.note.repeat
    ]


def _spaces_named(store: Store, tenant: str, key: str) -> Operation[set[str]]:
    """Return the spaces of runs of which a step got this external id, or has this effect key."""
    links = yield from runs_by_external_id(store, tenant, key)
    spaces = {f"{tenant}/{link.flow}/{link.key}" for link in links}
    after: str | None = None
    while key.startswith(EFFECT_PREFIX):
        page = yield from store.scan(STEP_KIND, after=after, limit=PAGE)
        spaces |= {one.at.space for one in page.records if effect_key(one.at.space, one.at.key) == key}
        after = page.after
        if after is None:
            break
    return {space for space in spaces if space.startswith(f"{tenant}/")}
