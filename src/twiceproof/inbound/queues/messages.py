"""A queue's delivery as an envelope, the event in it, and the key of that event.

A key must be the same at every delivery of a message. It is made by `key=`, a template or a function over `body`,
`headers` and `delivery`, or it is the sender's id. Delivery tags, receipt handles, counts of deliveries and lock tokens
differ at each delivery: they are refused as keys, and are not passed to a flow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from hashlib import sha256
from inspect import Parameter, Signature
from typing import Any

from ...brokers.base import QueueDelivery
from ...claims.request import Arguments
from ...clock import Clock
from ...errors import Misuse, UnstableKeyWarning
from ...keys import KeyMaker, UnstableKeyDetector
from ...keys.key import TemplateField
from ...keys.stability import Suspect, name_sign, warn_unstable
from ..source import Envelope, Event, Poison, Reading, Source
from ..sources.parsing import is_json, media_type, named, parse_json

__all__ = [
    "BESIDE",
    "NO_KEY",
    "MessageHeaders",
    "MessageKey",
    "QueueSource",
    "arguments_of",
    "delivery_of",
    "envelope_of",
    "headers_of",
    "refuse_changing_fields",
    "refuse_unsteady_parameters",
]


log = logging.getLogger("twiceproof.consume")

PREFIX = "twiceproof-delivery-"  # prefix of the headers that carry a delivery's stable fields, also into dead letters
STABLE = ("place", "key", "sequence", "partition")  # the fields of a delivery that a redelivery shares
BESIDE = ("headers", "delivery")  # what a function may take beside the body
CARRIED = ("ce-", "correlation-id", "traceparent")  # headers that a dead letter keeps

# Headers that brokers and clients set anew at each delivery, or count deliveries in.
CHANGING = frozenset(
    (
        "delivery-tag",
        "redelivered",
        "x-acquired-count",
        "x-death",
        "x-delivery-count",
        "x-first-death-exchange",
        "x-first-death-queue",
        "x-first-death-reason",
        "x-last-death-exchange",
        "x-last-death-queue",
        "x-last-death-reason",
        "approximatereceivecount",
        "receipt-handle",
        "receipthandle",
        "lock-token",
        "locktoken",
        "delivery-count",
        "deliverycount",
        "nats-num-delivered",
    )
)
SIGNATURE = Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("body", *BESIDE)])
NO_KEY = (
    "it has no id by which a redelivery could be recognised; have the sender set one (message_id, Nats-Msg-Id, ce-id), "
    'or give key=, such as key="order:{body[id]}"'
)


class MessageHeaders(dict[str, str]):
    """Headers by name in any case."""

    def __missing__(self, name: str) -> str:
        lower = name.lower()
        if lower == name:
            raise KeyError(name)
        return self[lower]


# -- a delivery as an envelope -------------------------------------------------------------------


def envelope_of(delivery: QueueDelivery, entry_point: str, tenant: str, now: float) -> Envelope:
    """Return the delivery for admission and, if need be, storage, without the fields that differ at each delivery."""
    headers = {name: value for name, value in delivery.headers.items() if not _is_ours(name) and name not in CHANGING}
    found = {name: getattr(delivery, name) for name in STABLE}
    headers |= {f"{PREFIX}{name}": str(value) for name, value in found.items() if value not in ("", None)}
    if delivery.content_type:
        headers["content-type"] = delivery.content_type
    headers = {_as_text(name): _as_text(value) for name, value in headers.items()}
    times = "" if delivery.times is None else str(delivery.times)
    return Envelope(entry_point, delivery.body, headers, tenant, now, query=times)  # differs each time


def _as_text(value: str) -> str:
    """Escape half surrogate pairs, which no store takes: some clients read bytes that are not UTF-8 as such."""
    return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()


def _is_ours(name: str) -> bool:
    """Whether a header is one that we set: a sender must not be able to set it."""
    return name.startswith(PREFIX)


def delivery_of(envelope: Envelope) -> dict[str, Any]:
    """Return the stable fields of a delivery: `place`, `key`, `sequence`, `partition`."""
    found: dict[str, Any] = {name: envelope.header(f"{PREFIX}{name}") for name in STABLE}
    found["sequence"] = int(found["sequence"]) if found["sequence"] else None
    return found


def headers_of(envelope: Envelope) -> dict[str, str]:
    """Return the message's own headers."""
    return {name: value for name, value in envelope.headers.items() if not _is_ours(name)}


def arguments_of(names: Collection[str], body: Any, envelope: Envelope) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a function: `headers` and `delivery` by name, and the body.

    One other parameter gets the whole body, several get its fields.
    """
    beside: dict[str, Any] = {}
    if "headers" in names:
        beside["headers"] = headers_of(envelope)
    if "delivery" in names:
        beside["delivery"] = delivery_of(envelope)
    rest = [name for name in names if name not in beside]
    if len(rest) == 1:
        return (), {rest[0]: body, **beside}
    return ((), {**body, **beside}) if isinstance(body, dict) else ((body,), beside)


# -- its key -------------------------------------------------------------------------------------


_DEPTH = 5  # of the call of `app.consume` above the making of a `MessageKey`


class MessageKey:
    """The declared key of a consumer's messages: a template or a function over `body`, `headers` and `delivery`."""

    def __init__(self, title: str, key: str | Callable[..., str], stable: Collection[str], clock: Clock) -> None:
        self.maker = KeyMaker(key, SIGNATURE)
        self.title = title
        self._clock = clock
        refuse_changing_fields(title, self.maker.fields)
        found = [suspect for field in self.maker.fields if (suspect := _suspect(field))]
        UnstableKeyDetector(title, self.maker, stable)  # refuses stable= that is one text
        told = {name.replace("[", ".").replace("]", "") for name in stable}
        warn_unstable(title, [one for one in found if not {one.path, one.path.partition(".")[0]} & told], _DEPTH)
        known = (*stable, "delivery", *(one.path for one in found))
        self._watch = UnstableKeyDetector(title, self.maker, known)

    @property
    def needs(self) -> tuple[str, ...]:
        """The headers that the key uses, which a dead letter keeps; all of them for a function that takes them."""
        if self.maker.is_function:
            return ("",) if "headers" in self.maker.takes or not self.maker.takes else ()
        used = [field for field in self.maker.fields if field.name == "headers" and field.steps]
        return tuple(str(field.steps[0].to).lower() for field in used)

    def make(self, envelope: Envelope, body: Any) -> str:
        headers = MessageHeaders(headers_of(envelope))
        arguments = {"body": body, "headers": headers, "delivery": delivery_of(envelope)}
        key = self.maker.make(arguments)
        if self._watch.is_on:
            try:
                self._watch.look(arguments, key, self._clock.now())
            except UnstableKeyWarning as warning:  # if warnings are errors, the message must not be lost
                log.warning("%s", warning)
        return key


def _suspect(field: TemplateField) -> Suspect | None:
    if field.name != "delivery":
        sign = name_sign(field)
    elif str(field.steps[0].to) == "sequence":
        sign = "is the number of a publication, so that a message that is published twice has two"
    else:
        sign = None
    return Suspect(field.path, sign) if sign else None


def refuse_changing_fields(title: str, fields: Collection[TemplateField]) -> None:
    """Refuse a key that differs at each delivery: every redelivery would be new work."""
    for field in fields:
        name = str(field.steps[0].to) if field.steps else ""
        if field.name == "delivery" and name not in STABLE:
            raise Misuse(
                f"{title}: the key uses {{{field.text}}}, which is not the same at every delivery of a message, so "
                f"that each redelivery would be new work; use an id of the message, such as {{body[id]}}, "
                f"{{headers[ce-id]}} or {{delivery[key]}}."
            )
        if field.name == "headers" and name.lower() in CHANGING:
            raise Misuse(
                f"{title}: the key uses the header {name}, which changes with each delivery, so that each redelivery "
                "would be new work; use an id of the message, such as {body[id]}, {headers[ce-id]} or {delivery[key]}."
            )


# -- its event -----------------------------------------------------------------------------------


class QueueSource(Source):
    """Reads the one event of a queue's delivery. Nothing is signed: the broker's own login is the proof of origin."""

    name = "queue"
    signed = False

    def __init__(
        self,
        key: MessageKey | None,
        *,
        native: bool,
        largest: int,
        needs: tuple[str, ...] = (),
        order: MessageKey | None = None,
    ) -> None:
        self.key = key
        self.order = order
        self.native = native and key is None  # the sender's own id is the key; without one there is no key
        self.largest = largest
        self.needs = (PREFIX, *CARRIED, *(key.needs if key else ()), *(order.needs if order else ()), *needs)

    def read(self, envelope: Envelope) -> Reading:
        body = self._body(envelope)
        if isinstance(body, Poison):
            return body
        name = self._id(envelope, body)
        if isinstance(name, Poison):
            return name
        if self.order is not None:
            try:
                self.order.make(envelope, body)
            except Exception as error:  # noqa: BLE001 - a user's function
                return Poison(f"its order key cannot be made: {type(error).__name__}: {error}")
        return [Event(name, body, envelope.header("ce-type"), envelope.header(f"{PREFIX}sequence"), envelope.query)]

    def _body(self, envelope: Envelope) -> Any:
        """Return the JSON value of the body, or Poison. Many senders give no content type: then JSON is tried."""
        if len(envelope.body) > self.largest:
            return Poison(f"its body has {len(envelope.body):,} bytes, more than largest={self.largest:,}")
        kind = media_type(envelope)
        if kind and not is_json(kind):
            return Poison(f"its content type is {kind[:80]!r}; have the sender use application/json")
        return parse_json(envelope.body)

    def _id(self, envelope: Envelope, body: Any) -> str | Poison:
        given = envelope.header(f"{PREFIX}key")
        if self.key is None:
            if given or self.native:
                return named(given) if given else Poison(NO_KEY)
            return sha256(envelope.body).hexdigest()[:24]  # a name for people: the run's key is the flow's own
        try:
            return self.key.make(envelope, body)
        except Exception as error:  # noqa: BLE001 - a user's function
            return Poison(f"its key cannot be made: {type(error).__name__}: {error}")


def refuse_unsteady_parameters(title: str, arguments: Arguments, ignore: Collection[str], version_in: str) -> None:
    """Refuse a flow that takes, and compares, fields that differ when a message is published twice.

    `version_in` is the argument with an ordered flow's version, which is part of the key.
    """
    taken = [name for name in BESIDE if name in arguments.signature.parameters]
    seen = {name.partition(".")[0] for name in ignore}
    left = [name for name in taken if name not in seen and name != version_in]
    if left:
        names = ", ".join(f'"{name}"' for name in left)
        raise Misuse(
            f"{title}: the flow takes {left[0]}, which differs when a message is published twice, and the second would "
            f"be refused as another payload; leave it out of the comparison: @app.flow(…, ignore=({names},))."
        )
