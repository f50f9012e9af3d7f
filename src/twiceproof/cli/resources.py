"""Large values outside the store: whether they can be reached, and what crashed attempts left there."""

from __future__ import annotations

from collections.abc import Iterator

from ..claims.orphans import orphans, remove_orphans
from ..claims.shelf import open_shelf
from ..clock import Clock
from ..drive import block
from ..errors import Misuse, StoreUnavailable
from ..stores.base import Finding, Store

__all__ = ["check_resources", "clear_orphans"]


def check_resources(store: Store, url: str, clock: Clock) -> Iterator[Finding]:
    if not url:
        yield Finding("ok", "resources", "in the store")
        return
    try:
        lost = len(block(orphans(store, open_shelf(url), clock.now())))
    except (Misuse, StoreUnavailable) as error:
        yield Finding("refuse", "resources", str(error))
        return
    if lost:
        advice = "If no other store uses this place: twiceproof claims sweep --orphans"
        yield Finding("warn", "resources", f"{lost} that no run knows of, older than a day", advice)
    else:
        yield Finding("ok", "resources", f"in {url.partition('?')[0]}")


def clear_orphans(store: Store, url: str, clock: Clock) -> int:
    """How many went."""
    if not url:
        raise Misuse("Resources are kept in the store, which has no orphans; set TWICEPROOF_RESOURCES to their place.")
    return block(remove_orphans(store, open_shelf(url), clock.now()))
