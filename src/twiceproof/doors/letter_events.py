"""A letter's events: by what names it holds them, and what is kept of them where its body held declared secrets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec
from msgspec import structs

from ..errors import Misuse
from .redact import redact
from .source import Event

__all__ = ["name_of", "read_events", "write_events"]


def name_of(event: Event) -> str:
    """As a letter can hold it: a source of the user's own may take any value for an id, and one such letter would
    keep all of them from being read.
    """
    return str(event.id).encode("utf-8", "backslashreplace").decode()


def write_events(events: Sequence[Event], paths: Collection[str], asked: Callable[[Event], str]) -> bytes:
    """As the flow would have been given them, each known by the fingerprint that it has now.

    Nothing where there are none, or where a source of the user's own made one that is no plain JSON.
    """
    try:
        return msgspec.json.encode([_hidden(event, paths, asked) for event in events]) if events else b""
    except (TypeError, ValueError, RecursionError):
        return b""


def read_events(body: bytes) -> list[Event]:
    return msgspec.json.decode(body, type=list[Event])


def _hidden(event: Event, paths: Collection[str], asked: Callable[[Event], str]) -> Event:
    try:
        known = asked(event)
    except Misuse:  # it is refused for that, and will be again
        known = ""
    return structs.replace(event, id=name_of(event), payload=redact(event.payload, paths), contents=None, asked=known)
