"""Bugs of messages: published or marked at the wrong time, or with the wrong key."""

from __future__ import annotations

import itertools
import os
from typing import Any

from msgspec import structs

from twiceproof.brokers.base import Unconfirmed
from twiceproof.operations import block
from twiceproof.outbox import lanes, linked, relay, transaction_outbox
from twiceproof.outbox.message import tenant_of
from twiceproof.outbox.outcomes import Sent
from twiceproof.outbox.relay import TargetRelay
from twiceproof.outbox.sending import write_message
from twiceproof.outbox.transaction_outbox import TransactionOutbox


def publish_before_commit() -> None:
    """A message in a user's transaction is written by a commit of its own, before theirs."""
    made, send = TransactionOutbox.__init__, TransactionOutbox.send

    def remember(self: Any, store: Any, *args: Any, **kwargs: Any) -> None:
        made(self, store, *args, **kwargs)
        self._store = store

    def at_once(self: Any, *args: Any, **kwargs: Any) -> Any:
        sent = send(self, *args, **kwargs)
        for message, delay in self._drafts:
            block(write_message(self._store, self._tenant, message, delay))
        self._drafts.clear()
        return sent

    TransactionOutbox.__init__ = remember  # type: ignore[assignment, method-assign]
    TransactionOutbox.send = at_once  # type: ignore[method-assign]


def mark_before_confirm() -> None:
    """A message is marked as sent before it is published."""
    publish = TargetRelay._publish

    def marked(self: Any, tried: Any) -> None:
        for one in tried:
            one.decision = Sent(one.message)
        self._record(relay.HandOut(tried, list({id(one.lane): one.lane for one in tried if one.lane}.values())))
        for one in tried:
            one.decision = None
        publish(self, tried)

    TargetRelay._publish = marked  # type: ignore[method-assign]


def marks_without_version() -> None:
    """A mark is written on whatever is in the ledger by then."""
    record = TargetRelay._record

    def unconditional(self: Any, out: Any) -> bool:
        for one in out.tried:
            one.record = self._store.read(one.record.at).block().record or one.record
        return record(self, out)

    TargetRelay._record = unconditional  # type: ignore[method-assign]


def cursor_instead_of_due() -> None:
    """A relay goes on behind the newest message that was sent: an older one that was put off is never looked at."""
    hand_out = TargetRelay._hand_out

    def behind(self: Any, limit: int) -> Any:
        found, next_in = hand_out(self, limit)
        sent = self._store.scan("message", state="sent", limit=1_000).block().records
        newest = {tenant_of(one.at): one.created_at for one in sorted(sent, key=lambda one: one.created_at)}
        return [one for one in found if one.created_at > newest.get(tenant_of(one.at), 0.0)], next_in

    TargetRelay._hand_out = behind  # type: ignore[method-assign]


def whole_batch_verdict() -> None:
    """One answer of a target counts for every message that was published with it."""
    ask = TargetRelay._ask
    TargetRelay._ask = lambda self, messages: [ask(self, messages)[-1]] * len(messages)  # type: ignore[method-assign]


def silence_is_sent() -> None:
    """A message whose target did not answer counts as sent."""
    decide = relay.decide

    def sent(message: Any, answer: Any, *more: Any) -> Any:
        return Sent(message) if isinstance(answer, Unconfirmed) else decide(message, answer, *more)

    relay.decide = sent


def lane_not_bumped() -> None:
    """A message that is added to a lane leaves the lane's record as it is."""
    writes = lanes.append_writes

    def unbumped(lane: Any, messages: Any, known: Any, delay: float = 0.0) -> Any:
        made = writes(lane, messages, known, delay)
        return [write for write in made if write.at != lane] if known.version else made

    lanes.append_writes = transaction_outbox.append_writes = linked.append_writes = unbumped


def key_per_attempt() -> None:
    """A message has another key with each attempt."""
    made, count = relay.outgoing, itertools.count()

    def renamed(record: Any, message: Any) -> Any:
        return structs.replace(made(record, message), key=f"{message.key}-{os.getpid()}-{next(count)}")

    relay.outgoing = renamed  # type: ignore[attr-defined]
