"""Messages as Standard Webhooks: the same `webhook-id` at every attempt, a new timestamp and signature."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from urllib.parse import quote

from ..brokers.base import Confirmed, OutgoingMessage, Publication, Refused, Unconfirmed
from ..brokers.publishing import refusal_of
from ..effects.base import header_text
from ..effects.url_guard import NotAllowed
from ..effects.webhook_client import WebhookClient, WebhookResponse, signed_headers
from ..errors import Misuse, NotDone
from .message import MOST_BODY

__all__ = ["WebhookPublisher"]


AT_ONCE = 8
GONE = 410
ASKS_TO_WAIT = (429, 503)
NO_TIME = Refused("there was no time left in this round", away=True)
IN_ATTRIBUTES = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
AFTER_ANOTHER = Refused("a message before it, with the same order key, was not confirmed", away=True)


class WebhookPublisher:
    """Posts messages to one receiver, several at once; messages with the same order key one after the other."""

    dedupe = 0.0

    def __init__(
        self,
        url: str,
        secrets: Callable[[], Sequence[str]],
        *,
        allow: Collection[str] = (),
        timeout: float = 10.0,
        sender: WebhookClient | None = None,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url
        self._secrets = secrets
        self._sender = sender or WebhookClient(allow=allow, timeout=timeout)
        self._timeout = timeout
        self._now = now
        self._monotonic = monotonic
        self._threads: ThreadPoolExecutor | None = None

    def publish(self, messages: Sequence[OutgoingMessage], patience: float) -> list[Publication]:
        until = self._monotonic() + patience
        groups: dict[str, list[int]] = {}
        for place, message in enumerate(messages):
            groups.setdefault(message.order or f"\0{place}", []).append(place)
        answers: list[Publication] = [NO_TIME] * len(messages)
        if len(groups) == 1:
            self._post_in_turn(messages, next(iter(groups.values())), answers, until)
            return answers
        if self._threads is None:
            self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="twiceproof-webhook")
        list(self._threads.map(lambda places: self._post_in_turn(messages, places, answers, until), groups.values()))
        return answers

    def close(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)

    def _post_in_turn(
        self, messages: Sequence[OutgoingMessage], places: Sequence[int], answers: list[Publication], until: float
    ) -> None:
        for position, place in enumerate(places):
            if self._monotonic() + self._timeout > until:
                return
            answers[place] = self._post(messages[place])
            if not isinstance(answers[place], Confirmed):
                for later in places[position + 1 :]:
                    answers[later] = AFTER_ANOTHER
                return

    def _post(self, message: OutgoingMessage) -> Publication:
        refused = refusal_of(message, MOST_BODY)
        if refused is not None:
            return refused
        try:
            signature = signed_headers(_webhook_id(message.key), self._now(), message.body, self._secrets())
            headers = {**_headers(message), **signature}
            return self._meaning(self._sender.post(self._url, message.body, headers))
        except NotAllowed as error:
            return Refused(str(error), final=True)
        except (NotDone, Misuse) as error:  # nothing was sent
            return Refused(str(error), away=True)
        except OSError as error:
            return Unconfirmed(f"no answer from the receiver ({error})")

    def _meaning(self, answer: WebhookResponse) -> Publication:
        if answer.ok:
            return Confirmed(str(answer.status))
        if answer.status == GONE:
            return Refused("the receiver answered 410 Gone: it wants no more messages", away=True, gone=True)
        wait = self._wait(answer.retry_after) if answer.status in ASKS_TO_WAIT else None
        return Refused(f"the receiver answered {answer.status}", retry_after=wait)

    def _wait(self, text: str) -> float | None:
        """Read Retry-After: seconds, or a date."""
        if text.isdecimal():
            return float(text)
        try:
            return max(0.0, parsedate_to_datetime(text).timestamp() - self._now())
        except (ValueError, OverflowError):
            return None


def _headers(message: OutgoingMessage) -> dict[str, str]:
    """The message's headers as HTTP takes them: CloudEvents attributes as their HTTP binding encodes them (3.1.3.2)."""
    given = {**message.headers, "content-type": message.content_type}
    return {
        name: quote(value, safe=IN_ATTRIBUTES) if name.startswith("ce-") else header_text(value)
        for name, value in given.items()
    }


def _webhook_id(key: str) -> str:
    """The key in a form that Standard Webhooks allow as an id: without dots, since a dot separates the id from the
    signed time.
    """
    return quote(key, safe=IN_ATTRIBUTES).replace(".", "%2E")
