"""What all brokers have in common when they publish: which messages they accept, and which may be under way at once."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from .base import Confirmed, OutgoingMessage, Publication, Refused, Unconfirmed

__all__ = ["AFTER_UNCONFIRMED", "lanes_of", "native_id", "publish_all", "publish_fit", "refusal_of"]

WINDOW = 500  # messages under way at once on one connection
LONGEST_ID = 255  # bytes: what fits into AMQP's message-id, and into what other brokers have for it

AFTER_UNCONFIRMED = Refused("An earlier message of its order key was not confirmed; publish that one first.")
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_|~-]{1,127}")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")

Send = Callable[[OutgoingMessage], Awaitable[Publication]]


# -- which messages are taken --------------------------------------------------------------------


def refusal_of(message: OutgoingMessage, most_bytes: int) -> Refused | None:
    """Return why no broker here accepts the message, or None. The rules are those of the strictest broker: what one
    broker accepts, the others accept too, and no message is changed on its way.
    """
    why = _why_refused(message, most_bytes)
    return None if why is None else Refused(why, final=True)


def publish_fit(
    messages: Sequence[OutgoingMessage],
    most_bytes: int,
    publish: Callable[[list[OutgoingMessage]], Sequence[Publication]],
) -> list[Publication]:
    """Publish the acceptable messages in one call; return the outcomes of all, in order.

    Messages after a refused one of the same order key are not published.
    """
    refused: dict[int, Refused] = {}
    stopped: set[str] = set()
    for at, message in enumerate(messages):
        no = AFTER_UNCONFIRMED if message.order in stopped else refusal_of(message, most_bytes)
        if no is not None:
            refused[at] = no
            stopped |= {message.order} - {""}
    fit = [message for at, message in enumerate(messages) if at not in refused]
    published = iter(publish(fit) if fit else ())
    return [refused[at] if at in refused else next(published) for at in range(len(messages))]


def _why_refused(message: OutgoingMessage, most_bytes: int) -> str | None:
    if not message.key or CONTROL.search(message.key) or not _encodes(message.key + message.order):
        return "The message's key is empty or has control characters; give it a key of printable text."
    if len(message.body) > most_bytes:
        return (
            f"The body has {len(message.body):,} bytes and the broker takes {most_bytes:,}; "
            "store it elsewhere and send a reference."
        )
    for name, value in {**message.headers, "content-type": message.content_type}.items():
        if not _is_header_name(name):
            return f"The header name {name[:60]!r} is not valid; use letters, digits, dots and dashes."
        if not _is_plain(value):
            return f"The header {name!r} has control characters or blanks at its ends; remove them."
    return None


@lru_cache(maxsize=1_024)
def _is_header_name(name: str) -> bool:
    return HEADER_NAME.fullmatch(name) is not None


def _is_plain(value: str) -> bool:
    """Whether a header's value arrives as it is. Most are printable ASCII, which needs no search."""
    if value.isascii() and value.isprintable():
        return not value or (value[0] != " " and value[-1] != " ")
    return not CONTROL.search(value) and value == value.strip() and _encodes(value)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


def native_id(key: str) -> str:
    """The key as the broker's own message id: the key itself, or its SHA-256 if it is too long. Always the same."""
    data = key.encode()
    return key if len(data) <= LONGEST_ID else f"sha256:{hashlib.sha256(data).hexdigest()}"


# -- which may be under way at once --------------------------------------------------------------


def lanes_of(messages: Sequence[OutgoingMessage]) -> list[list[int]]:
    """Group the positions of messages that must be published one after the other: those with the same order key, and
    those with the same key.

    Clients match a returned message by its id, so two with the same id must not be under way together.
    """
    lanes: dict[tuple[str, str], list[int]] = {}
    for at, message in enumerate(messages):
        lanes.setdefault(("order", message.order) if message.order else ("key", message.key), []).append(at)
    return list(lanes.values())


async def publish_all(
    messages: Sequence[OutgoingMessage],
    send: Send,
    patience: float,
    *,
    broken: asyncio.Future[None] | None = None,
    window: int = WINDOW,
) -> list[Publication]:
    """Publish with many under way; return one outcome per message, after at most `patience` seconds or when `broken` is
    done.

    A message handed over without an answer is `Unconfirmed`; one not handed over is `Refused`.
    """
    batch = _Batch(messages, send, window)
    tasks = [asyncio.ensure_future(batch.publish_lane(lane)) for lane in lanes_of(messages)]
    everything = asyncio.gather(*tasks, return_exceptions=True)
    until: set[asyncio.Future[Any]] = {everything} if broken is None else {everything, broken}
    await asyncio.wait(until, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.wait({everything})
    return list(batch.outcomes(is_broken=broken is not None and broken.done()))


class _Batch:
    """Messages under way, and the outcome of each."""

    def __init__(self, messages: Sequence[OutgoingMessage], send: Send, window: int) -> None:
        self._messages = messages
        self._send = send
        self._window = asyncio.Semaphore(window)
        self._begun: set[int] = set()
        self._outcomes: dict[int, Publication] = {}

    async def publish_lane(self, lane: list[int]) -> None:
        for position, at in enumerate(lane):
            outcome = await self._publish(at)
            if self._messages[at].order and not isinstance(outcome, Confirmed):
                self._outcomes.update(dict.fromkeys(lane[position + 1 :], AFTER_UNCONFIRMED))
                return

    async def _publish(self, at: int) -> Publication:
        async with self._window:
            self._begun.add(at)
            outcome = await self._send(self._messages[at])
        self._outcomes[at] = outcome
        return outcome

    def outcomes(self, *, is_broken: bool) -> Iterator[Publication]:
        reason = "the connection ended" if is_broken else "the time was over"
        for at in range(len(self._messages)):
            if at in self._outcomes:
                yield self._outcomes[at]
            elif at in self._begun:
                yield Unconfirmed(f"It was handed over, and {reason} before an answer came.")
            else:
                yield Refused(f"It was not handed over: {reason}; publish it again.", away=True)
