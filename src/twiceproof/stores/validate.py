"""Input checks that every store makes before it reads or writes: one list, so that all backends refuse the same."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import lru_cache

from ..errors import BadWrite
from ..records import RECORD_KINDS, Address, Check, Insert, Replace, Write

__all__ = [
    "MOST_BODY",
    "validate_address",
    "validate_bodies",
    "validate_due",
    "validate_order",
    "validate_scan",
    "validate_writes",
]


MOST_SPACE = 1_400  # bytes; PostgreSQL limits an index row to 2,704
MOST_KIND = 64
MOST_KEY = 1_024
MOST_STATE = 32
MOST_QUEUE = 256
MOST_BODY = 16 * 1024 * 1024
MOST_FENCE = 2**63 - 1  # the largest integer of the databases; a forged token may hold any number
MOST_SECONDS = 110 * 365 * 86_400.0  # a setting may be 100 years with its leap days, and more is added to it


def validate_bodies(writes: Sequence[Write], body_limit: int) -> None:
    """Refuse what a store cannot take whose records are smaller than others'."""
    for write in writes:
        body = write.body if isinstance(write, Insert | Replace) else None
        if body is not None and len(body) * 4 > body_limit and len(body.encode()) > body_limit:
            raise BadWrite(
                f"A record's body has {len(body.encode()):,} bytes, and this store takes {body_limit:,}; "
                "keep large values beside it, with App(resources=…), or use postgresql://."
            )


def validate_writes(writes: Sequence[Write], batch_limit: int) -> None:
    if len(writes) == 1:
        if _is_plain(writes[0]):
            return
    elif 1 < len(writes) <= batch_limit and _fit_together(writes) and all(map(_is_plain, writes)):
        return
    if not writes:
        raise BadWrite("A write needs at least one Insert, Replace, Remove or Check; give one.")
    if len(writes) > batch_limit:
        raise BadWrite(f"{len(writes)} writes are more than this store lands together ({batch_limit}); split them.")
    if len(writes) > 1:
        _validate_together(writes)
    for write in writes:
        validate_address(write.at)
        _validate_write(write)


def _is_plain(write: Write) -> bool:
    """Accept the everyday write in one test: checking it field by field took a tenth of a claim's time.

    Each type has its own branch: a line that sees several types is slow at every attribute.
    """
    if type(write) is Insert:
        return _is_plain_put(write.at, write.body, write.state, write.queue, write.lease, write.due_in)
    if type(write) is Replace:
        return _is_plain_fence(write.fence, write.version) and _is_plain_put(
            write.at, write.body or "", write.state, write.queue, write.lease, write.due_in
        )
    return type(write) is Check and _is_plain_condition(write) and _is_plain_put(write.at, "", "", "", None, None)


def _is_plain_put(at: Address, body: str, state: str, queue: str, lease: float | None, due_in: float | None) -> bool:
    try:
        text = "".join((at.space, at.kind, at.key, state, queue, body))
    except TypeError:
        return False
    return (
        text.isascii()
        and "\0" not in text
        and 0 < len(at.space) <= MOST_SPACE
        and 0 < len(at.kind) <= MOST_KIND
        and 0 < len(at.key) <= MOST_KEY
        and len(state) <= MOST_STATE
        and len(queue) <= MOST_QUEUE
        and len(text) <= MOST_BODY
        and (lease is None or (type(lease) is float and 0.0 < lease <= MOST_SECONDS))
        and (due_in is None or (type(due_in) is float and 0.0 <= due_in <= MOST_SECONDS))
    )


def _is_plain_fence(fence: int | None, version: str | None) -> bool:
    return version is None and type(fence) is int and 0 < fence <= MOST_FENCE


def _is_plain_condition(check: Check) -> bool:
    if check.absent:
        return check.fence is None and check.version is None
    return _is_plain_fence(check.fence, check.version)


def _fit_together(writes: Sequence[Write]) -> bool:
    """Whether all writes go to one space, and none to the same address as another."""
    first = writes[0].at.space
    return len({write.at for write in writes}) == len(writes) and all(write.at.space == first for write in writes)


def _validate_together(writes: Sequence[Write]) -> None:
    if len({write.at.space for write in writes}) > 1:
        raise BadWrite("One write touches one space; write to each space on its own.")
    if len({write.at for write in writes}) < len(writes):
        raise BadWrite("One write names an address once; merge the writes to the same address.")


def _validate_write(write: Write) -> None:
    if isinstance(write, Insert):
        _validate_content(write)
        return
    if isinstance(write, Replace):
        _validate_content(write)
    conditions = (write.fence is not None) + (write.version is not None)
    if isinstance(write, Check):
        conditions += write.absent
    if conditions != 1:
        raise BadWrite(f"{type(write).__name__} needs exactly one condition: give a fence or a version.")
    if write.fence is not None and not 0 < write.fence <= MOST_FENCE:
        raise BadWrite(f"Fence {write.fence} was never drawn; give the one the store handed out.")


def _validate_content(write: Insert | Replace) -> None:
    if write.body is not None and write.body != "":
        _validate_text("body", write.body, MOST_BODY)
    if write.state != "":
        _validate_text("state", write.state, MOST_STATE)
    if write.queue != "":
        _validate_text("queue", write.queue, MOST_QUEUE)
    if write.lease is not None:
        _validate_seconds("lease", write.lease, positive=True)
    if write.due_in is not None:
        _validate_seconds("due_in", write.due_in)


def validate_address(at: Address) -> None:
    _validate_text("space", at.space, MOST_SPACE)
    _validate_text("kind", at.kind, MOST_KIND)
    _validate_text("key", at.key, MOST_KEY)


def _validate_text(name: str, text: str, most: int) -> None:
    if type(text) is str and text.isascii() and 0 < len(text) <= most and "\0" not in text:
        return
    if not isinstance(text, str):
        raise BadWrite(f"A record's {name} is text, not {type(text).__name__}; encode it first.")
    if not text:
        raise BadWrite(f"A record's {name} is empty; give one.")
    if "\0" in text:
        raise BadWrite(f"A record's {name} holds a NUL character, which databases cut or refuse; encode it first.")
    size = len(text) if text.isascii() else _size(name, text)
    if size > most:
        raise BadWrite(f"A record's {name} has {size:,} bytes, more than the {most:,} a store takes; shorten it.")


def _size(name: str, text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise BadWrite(f"A record's {name} holds a lone surrogate, which is not text; repair it first.") from None


def _validate_seconds(name: str, seconds: float, *, positive: bool = False) -> None:
    """A lease of 0 seconds is refused: it has expired when it is granted, and its holder would not know."""
    if type(seconds) is float and 0.0 < seconds <= MOST_SECONDS:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
        raise BadWrite(f"{name}={seconds!r} is not a number of seconds; give one.")
    if seconds < 0 or (positive and seconds == 0) or seconds > MOST_SECONDS:
        raise BadWrite(f"{name}={seconds!r} is out of range; give {'more than ' if positive else ''}0 seconds.")


def validate_scan(limit: int, kind: str, space: str | None, state: str | None) -> None:
    _validate_limit(limit)
    _validate_text("kind", kind, MOST_KIND)
    if space is not None:
        _validate_text("space", space, MOST_SPACE)
    if state:
        _validate_text("state", state, MOST_STATE)


def validate_order(kind: str, space: str | None, newest: bool | None, prefix: str | None) -> None:
    """What a scan may combine. Each store refuses the rest, also one that could do it."""
    if newest is None and prefix is None:
        return
    if space is not None:
        raise BadWrite("One space is listed by key; give neither newest= nor prefix= with space=.")
    if prefix is None:
        return
    _validate_text("prefix", prefix, MOST_SPACE)
    if newest is not None and (prefix.count("/") != 2 or prefix[-1] != "/" or not _is_by_family(kind)):
        raise BadWrite(
            f"There is no order by age of {kind!r} within {prefix!r}; leave out newest= or prefix=, and filter."
        )


def _is_by_family(kind: str) -> bool:
    return kind in RECORD_KINDS and RECORD_KINDS[kind].by_family


def validate_due(limit: int, hide: float, kind: str, queues: Collection[str]) -> None:
    _validate_limit(limit)
    _validate_seconds("hide", hide)
    _validate_text("kind", kind, MOST_KIND)
    if type(queues) is frozenset:
        _validate_queues(queues)
        return
    for queue in queues:
        if queue != "":
            _validate_queue(queue) if type(queue) is str else _validate_text("queue", queue, MOST_QUEUE)


@lru_cache(maxsize=16)
def _validate_queues(queues: frozenset[str]) -> None:
    """Cached: a worker looks with the same set, of a queue for each tenant, again and again."""
    for queue in queues - {""}:
        _validate_text("queue", queue, MOST_QUEUE)


@lru_cache(maxsize=65_536)
def _validate_queue(queue: str) -> None:
    """Cached: a worker polls the same queues, which may be thousands, again and again."""
    _validate_text("queue", queue, MOST_QUEUE)


def _validate_limit(limit: int) -> None:
    if not 1 <= limit <= 10_000:
        raise BadWrite(f"limit={limit} is out of range; ask for 1 to 10,000 records at a time.")
