"""Asks the store on a thread of its own: whoever waits for the answer can be called away, also by a signal handler."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

from ...stores.hand import Hand

__all__ = ["Scout"]

R = TypeVar("R")


class Scout(Generic[R]):
    """On a network that has gone silent a question can take a minute, which a process that is told to end has not."""

    def __init__(self) -> None:
        self._hand = Hand("twiceproof-look")
        self._news: SimpleQueue[R | BaseException | None] = SimpleQueue()

    def send(self, look: Callable[[], R], called_away: Callable[[], bool]) -> R | None:
        """What was found, or None if we were called away: then nobody wants it any more."""
        news = self._news = SimpleQueue()  # what an earlier one brings late is not taken for this one's
        if called_away():  # before anybody could have told us
            return None
        self._hand.do(lambda: news.put(_told(look)))
        found = news.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def call_away(self) -> None:
        self._news.put(None)

    def close(self) -> None:
        self._hand.stop(0)


def _told(look: Callable[[], R]) -> R | BaseException:
    try:
        return look()
    except BaseException as error:  # noqa: BLE001 - it is raised where the answer is waited for
        return error
