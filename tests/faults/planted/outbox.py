"""Bugs of messages: published, marked or named when or as they must not be."""

from __future__ import annotations

import itertools
import os
from typing import Any

from msgspec import structs

from twiceproof.operations import block
from twiceproof.outbox import lanes, relay, transaction_outbox
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


def whole_batch_verdict() -> None:
    """One answer of a target counts for every message that was published with it."""
    ask = TargetRelay._ask
    TargetRelay._ask = lambda self, messages: [ask(self, messages)[-1]] * len(messages)  # type: ignore[method-assign]


def lane_not_bumped() -> None:
    """A message that is added to a lane leaves the lane's record as it is."""
    writes = lanes.append_writes

    def unbumped(lane: Any, message: Any, known: Any, delay: float = 0.0) -> Any:
        made = writes(lane, message, known, delay)
        return made[:2] if known.version else made

    lanes.append_writes = transaction_outbox.append_writes = unbumped


def key_per_attempt() -> None:
    """A message has another key with each attempt."""
    made, count = relay.outgoing, itertools.count()

    def renamed(record: Any, message: Any) -> Any:
        return structs.replace(made(record, message), key=f"{message.key}-{os.getpid()}-{next(count)}")

    relay.outgoing = renamed  # type: ignore[attr-defined]
