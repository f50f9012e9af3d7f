"""A run that was not applied because a newer version was: what is kept of it, and what a caller is told."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct

from ...claims.claim import Spill
from ...claims.outcomes import Done
from ...claims.results import Packed
from ...errors import Stale
from ...shell import typed
from .mark import Drop
from .version import Version

__all__ = ["Dropped", "dropped", "packed", "stale", "stale_error"]

STALE = "stale"  # beside a result that says so; a flow's own result never has it


class Dropped(Struct, frozen=True):
    """The run's result, for people and programs."""

    stale: bool
    object: str
    version: str
    newest: str
    applied_by: str  # the run
    why: str


def dropped(thing: str, version: Version, drop: Drop) -> Dropped:
    newest, run = drop.mark.version, drop.mark.run
    why = f"version {newest} of {thing} was let through before"
    if drop.same:
        why = f"version {newest} of {thing} was let through before, with the same payload or as part of a newer state"
    return Dropped(True, thing, version.text, newest, run, why)


def packed(what: Dropped) -> Packed:
    return Packed(inline=Raw(msgspec.json.encode(what)), spill=Spill("", 0, reason=STALE))


def stale(done: Done) -> Dropped | None:
    """What a finished run says about that, if it was dropped."""
    if done.spill is None or done.spill.reason != STALE or not done.result:
        return None
    return msgspec.json.decode(done.result, type=Dropped)


def stale_error(operation: str, key: str, run: str, what: Dropped, where: Sequence[str]) -> Stale:
    return Stale(
        f"{operation} for {key!r} is stale: {what.why}. There is nothing to do; look at that run with: "
        f"{typed(*where, 'runs', 'show', what.applied_by)}",
        operation=operation, key=key, run=run, object=what.object, version=what.version, newest=what.newest,
        applied_by=what.applied_by,
    )  # fmt: skip
