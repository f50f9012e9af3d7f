"""Admits the deliveries of queues, and says how each is settled.

| outcome             | settled with                                                                            |
|---------------------|-----------------------------------------------------------------------------------------|
| new, duplicate      | `Ack`: the claim is durable                                                             |
| review              | `Ack`: a person decides                                                                 |
| busy                | `Requeue` after the claim's own time                                                    |
| failed, unavailable | `Requeue` after a backoff                                                               |
| poison, mismatch    | `Ack` once a dead letter is stored, or `Reject` with `poison="reject"`; else `Requeue`  |
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from ...brokers.base import Ack, DeliverySettlement, QueueDelivery, Reject, Requeue
from ...claims.claim import Busy, Done, InReview, LostHold
from ...claims.duplicates import source_var
from ...claims.error_classification import CLEAN_VERDICTS, fault_of
from ...claims.error_messages import unknown_after
from ...claims.held_claim import ClaimScope, EnterOutcome
from ...claims.results import Packed
from ...errors import BadWrite, Misuse, StoreError
from ...flows.engine.context import giving
from ...flows.handle import Handle
from ...flows.runtime import Runtime
from ...flows.workers.log import About, about_var
from ...keys import validate_key
from ...operations import Concurrently, InThread, Operation, Raised, Returned, UserCall
from ..admit import REFUSED_OUTCOMES, Admission, Admitted, refused
from ..source import Envelope, Event, Handshake, Poison
from .messages import delivery_of, envelope_of
from .ordered_deliveries import follow_tail

if TYPE_CHECKING:
    from .consumer import Consumer

__all__ = [
    "ConsumerCall",
    "InlineAdmission",
    "QueueAdmission",
    "RunAdmission",
    "admit_delivery",
    "admit_together",
    "order_of",
    "settlement_of",
]


log = logging.getLogger("twiceproof.consume")

FIRST_AGAIN, LONGEST_AGAIN = 0.5, 30.0  # seconds before a message that failed is delivered again
REVIEWED = (
    "NeedsReview: whether its work was done is unknown; settle its claim (twiceproof review list), then replay this "
    "dead letter, which does the work if it was not done"
)


class QueueAdmission(Admission):
    """Claims the message's key, then starts its run."""

    hook: Consumer
    order = ""  # the order key of its message

    @property
    def message(self) -> str:
        return str(delivery_of(self.envelope)["key"])

    def _admit(self, event: Event) -> Operation[Admitted]:
        try:
            return (yield from super()._admit(event))
        except BadWrite as error:  # only this message's fault: a retry would fail in the same way
            return refused(error)

    def _start(self, event: Event) -> Operation[tuple[str, bool]]:
        if self.hook.order is not None:  # before fields are redacted
            self.order = self.hook.order.make(self.envelope, event.payload)
        return (yield from super()._start(event))

    def _begin(self, arguments: tuple[Any, Any], event: Event, **work: Any) -> Operation[tuple[Handle, bool]]:
        if self.hook.order is None:
            return (yield from super()._begin(arguments, event))
        operation, begin = self.hook.queue_operation, super()._begin
        run = lambda before: begin(arguments, event, follows=before)  # noqa: E731 - one use
        return (yield from follow_tail(self.runtime, operation, self.order, run))

    def _is_retried(self, one: Admitted) -> bool:
        """Whether it is requeued: the broker keeps the message, so nothing is lost that could not be stored here."""
        return one.outcome in REFUSED_OUTCOMES


class RunAdmission(QueueAdmission):
    """Starts the message's run, whose own claim is the only one: one batch for each message."""

    def _admit(self, event: Event) -> Operation[Admitted]:
        try:
            run, first = yield from self._start(event)
        except BadWrite as error:
            return refused(error)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - the mapping or the flow rejects this message: stored for inspection
            return refused(error)
        return Admitted("new", run) if first else (yield from self._seen_before(run))


class ConsumerCall(UserCall):
    """A consumer's function, on either driver: a reader's, and that of a command which replays a dead letter."""

    __slots__ = ("_awaited",)

    def __init__(self, work: Callable[[], Any], *, awaited: bool) -> None:
        super().__init__(work)
        self._awaited = awaited

    def block(self) -> Returned | Raised:
        if not self._awaited:
            return super().block()
        import asyncio

        return UserCall(lambda: asyncio.run(self._work())).block()

    async def wait(self) -> Returned | Raised:
        return await (super().wait() if self._awaited else InThread(super().block).wait())


class InlineAdmission(QueueAdmission):
    """Claims the message's key and calls the consumer's function, whose end is recorded before the settlement."""

    def _start_run(self, event: Event, scope: ClaimScope) -> Operation[Admitted]:
        try:
            work = self._call(event)
        except (Misuse, TypeError) as error:  # the body does not fit the function
            yield from scope.release()
            return refused(error)
        yield from scope.begin()
        about = about_var.set(About(key=event.id, entry_point=self.hook.name))
        source = source_var.set(self.hook.name)
        try:
            finding: Returned | Raised = yield ConsumerCall(work, awaited=self.hook.awaits)
        finally:
            source_var.reset(source)
            about_var.reset(about)
            scope.end()
        if isinstance(finding, Raised):
            return (yield from self._failed(scope, finding.error))
        note = Packed(inline=Raw(msgspec.json.encode(self._note(event))))
        ended = yield from scope.complete(note, self.hook.policy.life)
        return self._blocked(ended) if isinstance(ended, LostHold) else Admitted("new")

    def _call(self, event: Event) -> Callable[[], object]:
        function = self.hook.function
        given = self.hook.arguments(event, self.envelope)
        assert function is not None and given is not None  # noqa: S101 - an inline consumer has one, and no `make`
        arguments = function.typed(self.hook.parameters.bind(*given))
        return lambda: function.call(arguments)

    def _failed(self, scope: ClaimScope, error: BaseException) -> Operation[Admitted]:
        """Record the failure. After a final one, or after too many, release the key and store a dead letter."""
        policy, fault = self.hook.policy, fault_of(error, retryable=True)
        verdict = self.runtime.verdicts.judge(error, policy.not_done)
        if verdict not in CLEAN_VERDICTS and policy.repeat != "safe":
            yield from scope.park(fault, unknown_after(fault))
            return self._in_review()
        why = f"{fault.type}: {fault.message}"
        if verdict == "final" or scope.hold.held.attempt >= self.hook.attempts:
            yield from scope.release()
            return Admitted("poison", reason=f"{why} (attempt {scope.hold.held.attempt})")
        yield from scope.fail(fault, policy.life)
        return Admitted("failed", reason=why)

    def _redelivered(self, done: Done) -> Operation[Admitted]:
        """Answer a redelivery. There is no run, and a claim settled by a person may have any result."""
        yield from ()
        return Admitted("duplicate")

    def _blocked(self, taken: EnterOutcome) -> Admitted:
        if isinstance(taken, InReview):
            return self._in_review()
        if isinstance(taken, Busy):  # the work has no time limit: others try again when the lease may be over
            return Admitted("busy", retry_in=min(LONGEST_AGAIN, max(1.0, taken.retry_after)))
        return super()._blocked(taken)

    def _in_review(self) -> Admitted:
        """Store the message as a dead letter, so that its work can be done later if it was not done."""
        return Admitted("poison", reason=REVIEWED)


# -- deliveries ----------------------------------------------------------------------------------

Reading = Sequence[Event | Poison]


def admit_together(
    runtime: Runtime, consumer: Consumer, deliveries: Sequence[QueueDelivery]
) -> Operation[list[tuple[QueueDelivery, Admitted]]]:
    """Admit a batch at the same time, so that their writes share commits. Each has an outcome of its own.

    Messages with the same key are admitted one after the other: the later ones would find the key busy.
    """
    rounds: list[list[tuple[QueueDelivery, Envelope, Reading]]] = []
    seen: dict[str, int] = {}
    for delivery in deliveries:
        envelope, reading = _read(runtime, consumer, delivery)
        first = reading[0]
        turn = seen.get(first.name, 0) if isinstance(first, Event) else 0
        if isinstance(first, Event):
            seen[first.name] = turn + 1
        if turn == len(rounds):
            rounds.append([])
        rounds[turn].append((delivery, envelope, reading))
    admitted: list[tuple[QueueDelivery, Admitted]] = []
    for group in rounds:
        outcomes = yield from Concurrently([_admit(runtime, consumer, envelope, read) for _, envelope, read in group])
        admitted += [(delivery, one) for (delivery, _, _), one in zip(group, outcomes, strict=True)]
    return admitted


def admit_delivery(runtime: Runtime, consumer: Consumer, delivery: QueueDelivery) -> Operation[Admitted]:
    """Admit one delivery. Every fault is an outcome, so that the delivery is settled."""
    return (yield from _admit(runtime, consumer, *_read(runtime, consumer, delivery)))


def _read(runtime: Runtime, consumer: Consumer, delivery: QueueDelivery) -> tuple[Envelope, Reading]:
    envelope = envelope_of(delivery, consumer.name, runtime.tenant, runtime.clock.now())
    try:
        reading = consumer.source.read(envelope)
    except RecursionError:
        reading = Poison("its body is nested too deeply")
    assert not isinstance(reading, Handshake)  # noqa: S101 - of webhooks
    return envelope, [reading] if isinstance(reading, Poison) else reading


def order_of(runtime: Runtime, consumer: Consumer, delivery: QueueDelivery) -> str:
    """Return the order key of a delivery. A delivery that cannot be read has a line of its own, and becomes a dead
    letter.
    """
    envelope, reading = _read(runtime, consumer, delivery)
    if consumer.order is not None and isinstance(reading[0], Event):
        return f"={consumer.order.make(envelope, reading[0].payload)}"
    return f"?{id(delivery)}"


def _admit(runtime: Runtime, consumer: Consumer, envelope: Envelope, reading: Reading) -> Operation[Admitted]:
    assert consumer.admission is not None  # noqa: S101 - every consumer has one
    try:
        consumer = (yield from consumer.live(runtime.tenant)) or consumer  # type: ignore[assignment]
        with _correlated(envelope):
            return (yield from consumer.admission(runtime, consumer, envelope).admit_all(reading))[0]  # type: ignore[no-any-return, misc]
    except StoreError as error:
        return Admitted("unavailable", reason=str(error))
    except Exception as error:
        log.exception("%s: a delivery could not be admitted", consumer.name)
        return Admitted("failed", reason=f"{type(error).__name__}: {error}")


def _correlated(envelope: Envelope) -> AbstractContextManager[None]:
    """Give the sender's correlation id to the run, if it has a usable one."""
    try:
        return giving(validate_key(envelope.header("correlation-id")))
    except Misuse:
        return nullcontext()


def settlement_of(consumer: Consumer, admitted: Admitted, times: int | None, roll: float) -> DeliverySettlement:
    """Return how a delivery is settled. `roll`, from 0 to 1, spreads retries."""
    if admitted.outcome == "busy":
        return Requeue(admitted.retry_in)
    if admitted.outcome in ("failed", "unavailable"):
        doubled = min(LONGEST_AGAIN, FIRST_AGAIN * 2 ** min(10, max(0, (times or 1) - 1)))
        return Requeue(doubled * (0.5 + roll / 2))
    if admitted.outcome in REFUSED_OUTCOMES and consumer.poison == "reject":
        return Reject(admitted.reason)
    return Ack()
