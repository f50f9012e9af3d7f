"""The broker seam: publish, receive, settle, examine, close. Every outcome is about one message; a batch as a whole has
none.

Methods of a broker block. A broker whose client is asynchronous keeps an event loop on a thread of its own, and is
called in batches. Every call has a time limit: on a silent network it returns, with `Unconfirmed` where the message may
have been stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct, field

__all__ = [
    "Ack",
    "Broker",
    "BrokerFinding",
    "Confirmed",
    "DeliverySettlement",
    "Extend",
    "OutgoingMessage",
    "Publication",
    "QueueDelivery",
    "Refused",
    "Reject",
    "Requeue",
    "Unconfirmed",
]


# -- publishing ----------------------------------------------------------------------------------


class OutgoingMessage(Struct, frozen=True):
    """A message on its way to a broker. `key` is the same at every attempt: receivers deduplicate by it."""

    place: str  # what the broker calls it: an exchange, a subject, a stream, a queue, a topic
    key: str
    body: bytes
    topic: str = ""  # the subject; the routing key where the broker has one
    order: str = ""  # messages with the same order key keep their order; "" has none
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"


class Confirmed(Struct, frozen=True):
    """The broker has stored it. `receipt` is its answer; `duplicate`: it had this key already."""

    receipt: str = ""
    duplicate: bool = False


class Refused(Struct, frozen=True):
    """The broker has certainly not stored it: no route, no queue, too large, not connected.

    `away`: the broker could not be reached, so other messages would be refused too. `final`: retrying cannot help.
    `gone`: the receiver wants no more messages at all, and the target is paused until a person resumes it.
    """

    why: str
    retry_after: float | None = None
    away: bool = False
    final: bool = False
    gone: bool = False


class Unconfirmed(Struct, frozen=True):
    """It was handed over and no answer came: the broker may have stored it."""

    why: str


Publication = Confirmed | Refused | Unconfirmed


# -- receiving -----------------------------------------------------------------------------------


class QueueDelivery(Struct, frozen=True):
    """One hand-over of a message by a broker. It comes again unless it is settled."""

    place: str
    body: bytes
    headers: dict[str, str]  # names in lower case
    tag: Any  # the broker's own handle, for `settle`
    key: str = ""  # the id that the sender gave; "" if it gave none
    sequence: int | None = None  # its number within `partition`, where the broker has one
    partition: str = ""
    times: int | None = None  # how often it was delivered, this time included; None where the broker cannot say
    until: float | None = None  # the local monotonic time until which it is not delivered to others
    content_type: str = ""


class Ack(Struct, frozen=True):
    """The work is recorded durably: do not deliver the message again."""


class Requeue(Struct, frozen=True):
    """Deliver it again, not before `after` seconds."""

    after: float = 0.0


class Reject(Struct, frozen=True):
    """Do not deliver it again: it goes to the broker's own dead letters, where it has some."""

    why: str = ""


class Extend(Struct, frozen=True):
    """Work on it continues: do not deliver it to others for so many seconds more."""

    seconds: float


DeliverySettlement = Ack | Requeue | Reject | Extend


# -- the seam ------------------------------------------------------------------------------------


class BrokerFinding(Struct, frozen=True):
    """What `examine` found: `level` is "ok", "warning" or "error"; `text` ends with the next move.

    `keeps` is how many seconds a message stays and may be delivered again, where the broker says so.
    """

    level: str
    subject: str
    text: str
    keeps: float | None = None


class Broker(Protocol):
    """A broker that messages are published to and received from."""

    dedupe: float  # seconds for which it drops messages with a key that it has seen; 0: it does not

    def publish(self, messages: Sequence[OutgoingMessage], patience: float) -> Sequence[Publication]:
        """Publish in the order given and return one outcome per message, after at most `patience` seconds.

        Of messages with the same order key, none is handed over after one that was not confirmed.
        """

    def receive(self, place: str, limit: int, wait: float) -> Sequence[QueueDelivery]:
        """Return up to `limit` deliveries of one place; after `wait` seconds those that have arrived, possibly none."""

    def settle(self, settlements: Sequence[tuple[QueueDelivery, DeliverySettlement]]) -> None:
        """Settle deliveries, each in its own way. Settling twice or too late does no harm; a lost settlement leads to a
        redelivery.
        """

    def examine(self, places: Sequence[str] = ()) -> Sequence[BrokerFinding]:
        """Report what its configuration loses or duplicates."""

    def close(self) -> None:
        """Close. Unsettled deliveries are delivered again. Returns within seconds, also on a silent network."""
