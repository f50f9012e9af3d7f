"""`with app.outbox(connection) as outbox`: messages in the user's own transaction.

They are written when the block ends, just before the user's COMMIT, so that locks on lanes are held only briefly. If
the transaction is rolled back, there is no message. Except with Django, the commit itself is not observed: relays are
notified a few times shortly after the block, and find later commits when they next query.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, cast

from ..claims.policy import Duration
from ..errors import Misuse, TwiceproofWarning
from ..operations import Operation, await_, block
from ..records import Address, Outcome, Written
from ..stores.notifications import queue_channel
from ..stores.user_drivers import is_django
from ..stores.user_transaction import Join, JoinedStore
from ..threads import BackgroundThread, ThreadRun
from .lanes import LaneState, after_conflict, append_writes, lane_address
from .message import Message, insert_message, message_of, queue_of_target, refuse_other_payload
from .routing import Routing
from .sending import MessageOrigin, Sending, SentMessage, address_of_message, make_messages

__all__ = ["Drafted", "LateRings", "OutboxBlock", "TransactionOutbox", "land_messages"]


RINGS = (0.02, 0.1, 0.5, 2.0)  # seconds after the block: the commit follows it and is not observed
MINTED = (
    "A message was sent from a transaction without key=: if your code runs twice, there will be two messages. Give it "
    'a key that stays the same, like key="order:17:paid".'
)

Make = Callable[[Sending, str], list[Message]]
Drafted = tuple[Message, float]  # a message, and after how many seconds it is due


class OutboxBlock(ABC):
    """The messages of one transaction of the user's, until the block ends."""

    def __init__(
        self, tenant: str, routing: Routing, origin: Callable[[], MessageOrigin], mint: Callable[[], str]
    ) -> None:
        self._tenant = tenant
        self._routing = routing
        self._origin = origin
        self._mint = mint
        self._drafts: list[Drafted] = []
        self._open = False

    def send(
        self,
        topic: str,
        body: Any,
        *,
        key: str | None = None,
        order: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Duration = 0.0,
        content_type: str | None = None,
    ) -> SentMessage:
        """Send a message when the transaction is committed.

        Args:
            topic: What it is about; routes choose targets by it.
            body: Plain data, which becomes JSON, or bytes with a content type.
            key: The delivery key. The same key with the same body is one message; with another body,
                `PayloadMismatch`.
            order: Messages with the same order key are published in the order of their commits.
            headers: Headers to send along.
            delay: How long to wait before it is published.
            content_type: The type of a body of bytes.
        """
        if not self._open:
            raise Misuse("The block of app.outbox has ended, or has not begun; send within `with app.outbox(…)`.")
        given = Sending(topic, body, key, order, headers, delay, content_type)
        messages = make_messages(self._routing, given, key or self._mint(), self._origin())
        drafts = self._drafts_of(messages, given.due_in)
        if key is None:
            warnings.warn(MINTED, TwiceproofWarning, stacklevel=2)
        self._drafts += drafts
        return SentMessage(messages[0].key, tuple(message.target for message in messages))

    @abstractmethod
    def _drafts_of(self, messages: list[Message], due_in: float) -> list[Drafted]:
        """Return what to write for the messages of one `send`, one for each route. Raises Misuse for what cannot be
        sent.
        """

    @abstractmethod
    def _land(self) -> Operation[None]:
        """Write the drafts in the user's transaction."""

    def __enter__(self) -> Self:
        self._open = True
        return self

    async def __aenter__(self) -> Self:
        return self.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        if error is None:
            block(self._land())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        if error is None:
            await await_(self._land())


class TransactionOutbox(OutboxBlock):
    """The messages of one transaction, until the block ends. Use it in the savepoint that the messages belong to."""

    def __init__(
        self,
        store: JoinedStore,
        connection: Any,
        *,
        tenant: str,
        routing: Routing,
        origin: Callable[[], MessageOrigin],
        mint: Callable[[], str],
        ring: Callable[[set[str]], None],
    ) -> None:
        super().__init__(tenant, routing, origin, mint)
        self._join = store.join(connection)
        self._connection = connection
        self._ring = ring

    def _drafts_of(self, messages: list[Message], due_in: float) -> list[Drafted]:
        return [(message, due_in) for message in messages]

    def _land(self) -> Operation[None]:
        if not self._drafts:
            return
        yield from land_messages(self._join, self._tenant, self._drafts)
        channels = {queue_channel(queue_of_target(self._tenant, message.target)) for message, _ in self._drafts}
        if is_django(self._connection):
            from django.db import transaction

            transaction.on_commit(lambda: self._ring(channels), using=self._connection.alias)
        else:
            self._ring(channels)


def land_messages(join: Join, tenant: str, drafts: Sequence[Drafted]) -> Operation[None]:
    """Write messages in the transaction of a join: unordered ones together, ordered ones lane by lane."""
    alone = _without_repeats([draft for draft in drafts if not draft[0].order], tenant)
    ordered = [message for message, _ in drafts if message.order]
    inserts = [insert_message(at, message, delay) for at, (message, delay) in alone.items()]
    outcomes = yield from join.insert_each(inserts, ordered=bool(ordered))
    for (message, _), outcome in zip(alone.values(), outcomes, strict=True):
        _refuse_other(outcome, message)
    lanes: dict[Address, LaneState] = {}
    for message in sorted(ordered, key=lambda one: (one.target, one.order)):  # always in this order: no deadlocks
        lane = lane_address(tenant, message.target, message.order)
        lanes[lane] = yield from _append(join, lane, message, lanes.get(lane, LaneState()))


def _without_repeats(drafts: Sequence[Drafted], tenant: str) -> dict[Address, Drafted]:
    """Return the drafts by address: one statement inserts them all, so each key may occur only once."""
    found: dict[Address, Drafted] = {}
    for message, delay in drafts:
        first, _ = found.setdefault(address_of_message(tenant, message), (message, delay))
        refuse_other_payload(first, message)
    return found


def _refuse_other(outcome: Outcome, message: Message) -> None:
    if not isinstance(outcome, Written) and outcome.found is not None:
        refuse_other_payload(message_of(outcome.found), message)


def _append(join: Join, lane: Address, message: Message, known: LaneState) -> Operation[LaneState]:
    while True:
        outcome = yield from join.write(*append_writes(lane, [message], known))
        if isinstance(outcome, Written):
            return LaneState(outcome.version, known.next + 1, known.state, known.due_in)
        after = after_conflict(lane, outcome, known)
        if isinstance(after, Message):
            refuse_other_payload(after, message)
            return known
        known = after


class LateRings:
    """Notifies relays a few times after a block, because the user's COMMIT follows at an unknown time."""

    def __init__(self, notify: Callable[[set[str]], None], monotonic: Callable[[], float]) -> None:
        self._notify = notify
        self._monotonic = monotonic
        self._due: list[tuple[float, str]] = []
        self._thread = BackgroundThread(self, LateRings._turn, "twiceproof-rings", grace=1.0, finish=True)

    def __call__(self, channels: set[str]) -> None:
        now = self._monotonic()
        waiting = {(at, name) for at, name in self._due if at > now}
        fresh = channels - {name for at, name in waiting if at <= now + RINGS[0]}
        if fresh:
            self._thread.send([(now + after, name) for after in RINGS for name in fresh])

    def _turn(self, run: ThreadRun) -> float | None:
        message = run.message
        due = [*self._due, *(cast("list[tuple[float, str]]", message) if isinstance(message, list) else [])]
        now = self._monotonic()
        self._notify({name for at, name in due if at <= now})
        self._due = [one for one in due if one[0] > now]
        return min(at for at, _ in self._due) - now if self._due else None

    def stop(self) -> None:
        """Notify now what would have been notified later."""
        self._thread.stop(for_good=True)
        left, self._due = {name for _, name in self._due}, []
        if left:
            self._notify(left)
