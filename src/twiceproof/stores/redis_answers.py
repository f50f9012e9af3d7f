"""What to make of the replies of several servers, some of which may not have come."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import StoreUnavailable, StoreUnsafe
from ..records import Batch, Outcome
from .base import AGAIN, Again, Disconnected, Finding
from .redis_faults import Broken, Elsewhere, IsReplica, NotNow
from .redis_nodes import Nodes
from .redis_rows import outcome, seconds

__all__ = ["commit_answers", "opening", "settled", "whole"]


def settled(replies: list[Any]) -> list[Any]:
    """The replies, if every server's word is known; else the group must be tried again.

    A server that is away for longer must not hold up the callers of the others: once nothing was sent to
    it any more, its part alone fails.
    """
    down = [reply for reply in replies if isinstance(reply, (Broken, NotNow))]
    sent = any(isinstance(reply, Broken) and reply.sent for reply in down)
    if sent or (down and len(down) == len(replies)):
        raise Disconnected(down[0], sent=sent)
    return replies


def commit_answers(reply: Any, batches: Sequence[Batch]) -> list[Outcome | Again | Exception]:
    if type(reply) is list:
        now = seconds(reply[0])
        return [outcome(batch, answer, now) for batch, answer in zip(batches, reply[1:], strict=True)]
    if isinstance(reply, Elsewhere):
        return [AGAIN] * len(batches)
    if isinstance(reply, (Broken, NotNow)):
        return [_unserved(reply)] * len(batches)
    return [reply] * len(batches)


def whole(replies: list[Any]) -> list[Any]:
    """All the replies, or the first fault among them: half a read is none."""
    for reply in replies:
        if isinstance(reply, Broken | NotNow | Elsewhere):
            raise Disconnected(reply, sent=getattr(reply, "sent", False))
        if isinstance(reply, Exception):
            raise reply
    return replies


def _unserved(error: Exception) -> StoreUnavailable:
    return StoreUnavailable(
        f"The server of this space does not answer ({error}); the write may or may not have landed. "
        "Bring it back or wait for the failover, then read before you try again.",
        unsure=True,
    )


@contextlib.contextmanager
def opening(nodes: Nodes) -> Iterator[None]:
    """For work outside of the store's own retries."""
    try:
        yield
    except IsReplica as error:
        finding = Finding("refuse", "role", str(error), "Name the master in the store's URL.")
        raise StoreUnsafe(f"{error}: it takes no writes. {finding.advice}", findings=[finding]) from error
    except (Broken, NotNow, Elsewhere) as error:
        raise StoreUnavailable(
            f"The Redis server {nodes.target.host}:{nodes.target.port} does not answer ({error}). "
            "Check that it runs and that the URL is right, then try again.",
            unsure=False,
        ) from error
