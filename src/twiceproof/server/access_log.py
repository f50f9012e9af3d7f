"""One line per request: the route, not the address; no token, no query, no body. They may hold secrets."""

from __future__ import annotations

import logging

from ..flows.workers.log import About, about_var
from ..observe.told import Told
from .principal import Principal

__all__ = ["write_access"]

log = logging.getLogger("twiceproof.access")


def write_access(
    method: str, path: str, status: int, seconds: float, principal: Principal | None, client: str, told: list[Told]
) -> None:
    """Key and run are fields of the record, as they are of a run's own lines; the door is no flow."""
    if not log.isEnabledFor(logging.INFO):
        return
    who = f" {principal.name}@{principal.tenant}" if principal is not None and principal.name else ""
    if not told:
        log.info("%s %s %d in %.1f ms, from %s%s", method, path, status, seconds * 1000, client, who)
        return
    first = told[0]
    token = about_var.set(About(first.run, first.run, key=first.key, door=first.door))
    try:
        log.info("%s %s %d in %.1f ms, from %s%s: %s", method, path, status, seconds * 1000, client, who, first.outcome)
    finally:
        about_var.reset(token)
