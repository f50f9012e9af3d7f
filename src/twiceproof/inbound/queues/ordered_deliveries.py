"""Messages of one order key, one after the other: `app.consume(…, order="{body[id]}")`.

- Only one reader of an ordered consumer reads at a time, by a slot in the ledger: of two that share a queue, one could
  get the first message and the other the second. The slot is held longer than a broker holds a delivery, so that the
  deliveries of a dead reader reach the next one before later messages.
- In that reader the messages of each order key are admitted one at a time; the others wait in memory. One that is to be
  retried stays the first of its key: given back to the broker, it would come after the later ones.
- A run follows the last run of its order key, which a record per key names (its tail), and begins after that has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from ...brokers.base import DeliverySettlement, QueueDelivery, Requeue
from ...claims.claim import body_of, claim_of, run_id
from ...claims.held_claim import HeldClaim
from ...claims.policy import DEFAULT_KEEP
from ...claims.states import EXPIRE
from ...errors import Misuse
from ...flows.engine.run_states import work_of
from ...flows.handle import Handle
from ...flows.limits import give_back, take_slot
from ...flows.runtime import TAIL_KIND, Runtime
from ...keys import KeyMaker
from ...keys.duration import seconds
from ...operations import Operation, block
from ...records import SELF, Address, Insert, Record, Replace, Written
from ..source import Envelope
from .messages import SIGNATURE, MessageHeaders, MessageKey, delivery_of, headers_of, refuse_changing_fields

__all__ = ["OrderKey", "OrderedDeliveries", "ReaderLease", "follow_tail"]


READER_LEASE = 60.0  # seconds; longer than brokers hold a delivery by default (NATS 30)
TAILS = "~tail"  # no operation: names have no tilde

Settled = tuple[QueueDelivery, DeliverySettlement]


class OrderKey(MessageKey):
    """The declared order key of a consumer's messages: a template or a function, as for `key=`."""

    def __init__(self, title: str, order: str | Callable[..., str]) -> None:
        if not isinstance(order, str) and not callable(order):
            raise Misuse(
                f'{title}: order= takes a template like "{{body[id]}}", or a function; by(…) belongs to @app.flow, for '
                "objects of which only the newest version counts."
            )
        self.maker = KeyMaker(order, SIGNATURE)
        self.title = title
        refuse_changing_fields(title, self.maker.fields)

    def make(self, envelope: Envelope, body: Any) -> str:
        headers = MessageHeaders(headers_of(envelope))
        return self.maker.make({"body": body, "headers": headers, "delivery": delivery_of(envelope)})


# -- the one reader --------------------------------------------------------------------------------


class ReaderLease:
    """The slot of the one reader that may read. Others wait, and take over when it is released or lapses."""

    def __init__(self, runtime: Runtime, operation: str) -> None:
        self._runtime = runtime
        self._operation = operation
        self._slot: HeldClaim | None = None

    def is_ours(self) -> bool:
        """Take it if it is free. False: another reader has it, or had it while this process slept."""
        slot = self._slot
        if slot is None:
            self._slot = block(take_slot(self._runtime, self._operation, "reader", 1, READER_LEASE))
            return self._slot is not None
        record = self._runtime.store.read(slot.held.at).block().record
        if slot.lost is None and record is not None and record.fence == slot.held.fence:
            return True
        self.let_lapse()
        return False

    def give_back(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            block(give_back(self._runtime, [slot]))

    def let_lapse(self) -> None:
        """Let the slot lapse instead of releasing it, as long as the broker may hold unsettled deliveries: the next
        reader gets those first.
        """
        slot, self._slot = self._slot, None
        if slot is not None:
            self._runtime.heartbeat.drop(slot)


# -- deliveries by order key ----------------------------------------------------------------------


class _DeliveriesOfKey:
    """The held deliveries of one order key. `is_busy`: the first one is being admitted."""

    __slots__ = ("is_busy", "retry_at", "tries", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[QueueDelivery] = deque()
        self.is_busy = False
        self.retry_at = 0.0
        self.tries = 0

    def add(self, delivery: QueueDelivery) -> None:
        """Add a delivery after the others, but before those with a later number in the same partition."""
        behind = range(int(self.is_busy), len(self.waiting))
        later = (at for at in behind if _is_before(delivery, self.waiting[at]))
        self.waiting.insert(next(later, len(self.waiting)), delivery)

    def next(self, now: float) -> QueueDelivery | None:
        if self.is_busy or now < self.retry_at or not self.waiting:
            return None
        self.is_busy = True
        self.tries += 1
        return self.waiting[0]


class OrderedDeliveries:
    """The deliveries that a reader holds, by order key."""

    def __init__(self) -> None:
        self._by_key: dict[str, _DeliveriesOfKey] = {}
        self._orders: dict[int, str] = {}

    def add_all(self, found: Iterable[tuple[str, QueueDelivery]]) -> None:
        for order, delivery in found:
            self._orders[id(delivery)] = order
            self._by_key.setdefault(order, _DeliveriesOfKey()).add(delivery)

    def ready(self, now: float) -> list[QueueDelivery]:
        """Return the first delivery of each key that has none under way and no retry to wait for."""
        return [first for line in self._by_key.values() if (first := line.next(now)) is not None]

    def times(self, delivery: QueueDelivery) -> int:
        """Return how often it was admitted here."""
        return self._by_key[self._orders[id(delivery)]].tries

    def settle(self, settlements: Sequence[Settled], now: float) -> Iterator[Settled]:
        """Yield the settlements for the broker. A delivery that is to be retried is kept here instead."""
        for delivery, settlement in settlements:
            line = self._by_key[self._orders[id(delivery)]]
            line.is_busy = False
            if isinstance(settlement, Requeue):
                line.retry_at = now + settlement.after
                continue
            line.waiting.popleft()
            line.retry_at, line.tries = 0.0, 0
            order = self._orders.pop(id(delivery))
            if not line.waiting:
                del self._by_key[order]
            yield delivery, settlement

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being admitted."""
        return not any(line.is_busy for line in self._by_key.values())

    def clear(self) -> None:
        self._by_key, self._orders = {}, {}


def _is_before(one: QueueDelivery, other: QueueDelivery) -> bool:
    if one.sequence is None or other.sequence is None or one.partition != other.partition:
        return False
    return one.sequence < other.sequence


# -- runs that follow each other -----------------------------------------------------------------


class _Tail(Struct, frozen=True):
    """The last run of an order key."""

    run: str = ""


def follow_tail(
    runtime: Runtime, operation: str, order: str, begin: Callable[[str], Operation[tuple[Handle, bool]]]
) -> Operation[tuple[Handle, bool]]:
    """Begin a run that follows the last one of its order key, and make it the last.

    A message that is redelivered after a crash in between finds its run, which still follows the tail. A duplicate of
    an earlier message changes nothing: other runs follow it already.
    """
    at = Address(f"{runtime.tenant}/{TAILS}/{operation}/{order}", TAIL_KIND, SELF)
    found = (yield from runtime.store.read(at)).record
    handle, first = yield from begin(_tail_of(found).run)
    run = run_id(handle.at.space)
    follows = _tail_of(found).run if first else (yield from _followed(runtime, handle))
    while follows == _tail_of(found).run != run:
        if isinstance((yield from runtime.store.write(_tail_write(at, run, found))), Written):
            break
        found = (yield from runtime.store.read(at)).record
    return handle, first


def _followed(runtime: Runtime, handle: Handle) -> Operation[str | None]:
    record = (yield from runtime.store.read(handle.at)).record
    return None if record is None else work_of(claim_of(record)).follows


def _tail_of(record: Record | None) -> _Tail:
    return _Tail() if record is None else msgspec.json.decode(record.body, type=_Tail)


def _tail_write(at: Address, run: str, found: Record | None) -> Insert | Replace:
    body, keep = body_of(_Tail(run)), seconds(DEFAULT_KEEP, name="keep")
    if found is None:
        return Insert(at, body, queue=EXPIRE, due_in=keep)
    return Replace(at, body, version=found.version, queue=EXPIRE, due_in=keep)
