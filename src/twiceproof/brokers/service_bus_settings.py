"""Reads the settings of Azure Service Bus entities over HTTPS, and explains its errors."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from urllib.parse import quote, unquote, urlsplit
from xml.etree import ElementTree

from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusAuthorizationError, ServiceBusError

from .base import BrokerFinding

__all__ = ["condition_of", "count_active", "examine_place", "explained", "is_rejection"]

ANSWER_SECONDS = 5.0
TOKEN_SECONDS = 300
VERSION = "2021-05"  # of the management over HTTPS
DURATION = re.compile(r"P(?:([\d.]+)D)?(?:T(?:([\d.]+)H)?(?:([\d.]+)M)?(?:([\d.]+)S)?)?")
FEW_DELIVERIES, SHORT_LOCK, SHORT_RETENTION = 100, 10, 86_400  # below which a setting is a warning
OPEN_ENDED = ("", "amqp:internal-error", "amqp:client-error", "amqp:unknown-error")  # the message may be stored


# -- errors --------------------------------------------------------------------------------------


def condition_of(error: BaseException) -> str:
    """Return the error's AMQP condition, such as `amqp:not-found`, which the client does not publish."""
    return str(getattr(error, "_condition", None) or "")


def is_rejection(error: ServiceBusError) -> bool:
    """Whether Service Bus answered that it does not accept the message. After any other error it may have stored it."""
    cause = type(error.inner_exception).__name__ if error.inner_exception is not None else ""
    return cause in ("MessageException", "MessageSendFailed") and condition_of(error) not in OPEN_ENDED


def explained(url: str, error: BaseException) -> str:
    """Say why there is no connection, without the key, and the next move."""
    parts = urlsplit(url)
    where = f"Azure Service Bus at {parts.netloc.rpartition('@')[2]}"
    if isinstance(error, ServiceBusAuthenticationError | ServiceBusAuthorizationError):
        return f"{where} refuses the policy {parts.username!r}; check its name, its key and its rights (Send, Listen)."
    return f"{where} cannot be reached ({type(error).__name__}); check the namespace in the URL, and the network."


# -- settings ------------------------------------------------------------------------------------


def examine_place(url: str, place: str, dedupe: float, port: int) -> list[BrokerFinding]:
    """Report what a queue, topic or subscription loses or repeats. To read its settings needs the right Manage."""
    try:
        settings = _settings(url, place, port)
    except (OSError, ElementTree.ParseError) as error:
        reason = f"HTTP {error.code}" if isinstance(error, urllib.error.HTTPError) else type(error).__name__
        text = f"Its settings cannot be read ({reason}); give the policy the right Manage to have them checked."
        return [BrokerFinding("warning", place, text)]
    if not settings:
        text = f"Service Bus has no queue, topic or subscription {place!r}; create it, or correct the name."
        return [BrokerFinding("error", place, text)]
    return list(_judged(place, settings, dedupe))


def count_active(url: str, place: str, port: int) -> int | None:
    """Return how many messages of a queue or a subscription are neither settled, scheduled nor dead letters, those
    under a lock among them. None: Service Bus does not say.
    """
    found = _description(url, place, port)
    counts = [one.text for one in found.iter() if one.tag.endswith("ActiveMessageCount")] if found is not None else []
    return int(counts[0]) if counts and counts[0] else None


def _settings(url: str, place: str, port: int) -> dict[str, str]:
    found = _description(url, place, port)
    return {} if found is None else {one.tag.rpartition("}")[2]: one.text or "" for one in found}


def _description(url: str, place: str, port: int) -> ElementTree.Element | None:
    """Ask the management for what it calls a QueueDescription, a TopicDescription or a SubscriptionDescription."""
    parts = urlsplit(url)
    scheme = "http" if parts.scheme == "servicebus+amqp" else "https"
    host = f"{parts.hostname}:{port}" if port else parts.netloc.rpartition("@")[2]
    address = f"{scheme}://{host}/{quote(place)}"
    token = _token(address, unquote(parts.username or ""), unquote(parts.password or ""))
    request = urllib.request.Request(f"{address}?api-version={VERSION}", headers={"Authorization": token})  # noqa: S310
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:  # noqa: S310 - the scheme is ours
        tree = ElementTree.fromstring(answer.read())  # noqa: S314 - from the broker that messages are trusted to
    return next((one for one in tree.iter() if one.tag.endswith("Description")), None)


def _token(resource: str, policy: str, key: str) -> str:
    """A shared access signature, as the documents of Service Bus describe it."""
    encoded = quote(resource.lower(), safe="")
    until = int(time.time() + TOKEN_SECONDS)
    signed = hmac.new(key.encode(), f"{encoded}\n{until}".encode(), hashlib.sha256).digest()
    signature = quote(base64.b64encode(signed), safe="")
    return f"SharedAccessSignature sr={encoded}&sig={signature}&se={until}&skn={quote(policy)}"


def _judged(place: str, settings: dict[str, str], dedupe: float) -> Iterator[BrokerFinding]:
    if "RequiresDuplicateDetection" in settings:
        yield _on_duplicates(place, settings, dedupe)
    if int(settings.get("MaxDeliveryCount") or FEW_DELIVERIES) < FEW_DELIVERIES:
        count = settings["MaxDeliveryCount"]
        text = f"A message goes to its dead letters after {count} deliveries. Set the maximum delivery count to 2000."
        yield BrokerFinding("warning", place, text)
    lock = _seconds(settings.get("LockDuration", ""))
    if lock is not None and lock < SHORT_LOCK:
        text = f"A delivery comes again after {lock:g} seconds, while work on it may go on. Set the lock to a minute."
        yield BrokerFinding("warning", place, text)
    if settings.get("RequiresSession") == "true":
        yield BrokerFinding("ok", place, "It requires sessions: one receiver at a time for each order key.")
    keeps = _seconds(settings.get("DefaultMessageTimeToLive", ""))
    if keeps is not None and keeps < SHORT_RETENTION:
        text = f"It loses what is not received within {keeps:.0f} seconds. Set the time to live to 14 days."
        yield BrokerFinding("warning", place, text, keeps=keeps)
    elif keeps is not None:
        yield BrokerFinding("ok", place, f"It keeps messages for {keeps:.0f} seconds.", keeps=keeps)


def _on_duplicates(place: str, settings: dict[str, str], dedupe: float) -> BrokerFinding:
    window = _seconds(settings.get("DuplicateDetectionHistoryTimeWindow", "")) or 0.0
    if settings["RequiresDuplicateDetection"] != "true":
        text = "It keeps no keys: a message that is published again is delivered again. Duplicate detection is chosen"
        return BrokerFinding("warning", place, f"{text} when an entity is created; create it anew with it.")
    text = f"It drops a message whose key it has seen within {window:g} seconds."
    if dedupe > window:
        wrong = f"The URL says dedupe={dedupe:g}; write dedupe={window:g}."
        return BrokerFinding("warning", place, f"{text} {wrong}")
    return BrokerFinding("ok", place, text)


def _seconds(duration: str) -> float | None:
    """The seconds of a duration as XML writes it, such as PT1M."""
    match = DURATION.fullmatch(duration)
    if not duration or match is None:
        return None
    return sum(float(part or 0) * size for part, size in zip(match.groups(), (86_400, 3_600, 60, 1), strict=True))
