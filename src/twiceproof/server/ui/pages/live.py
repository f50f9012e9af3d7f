"""The event stream of a browser: what needs attention, and the states of the runs that its tabs show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from ....errors import Misuse
from ....flows.runtime import own_run
from ....inbound.reply import Reply, retry_after
from ....operations import await_
from ....records import Address
from ...request import StreamReply
from ...tokens import Scope
from ..dashboard import PageRequest, PageSpec
from ..live import MOST_RUNS, LiveStream

__all__ = ["PAGES"]


async def _runs(page: PageRequest) -> tuple[Address, ...]:
    """Return the runs that are asked for; those of other tenants are left out like those that do not exist."""
    found = []
    for name in page.asked("runs").split(",")[:MOST_RUNS]:
        if name:
            try:
                found.append(await await_(own_run(page.store, page.tenant, name)))
            except Misuse:
                continue
    return tuple(found)


async def stream(page: PageRequest) -> Reply:
    feed = page.dashboard.feed
    session = page.session if page.call.principal.name else ""
    if feed.is_full(session):
        return Reply(503, (("content-type", "text/plain"), retry_after(30)), b"Too many browsers are listening.\n")
    since = page.asked("since")
    after = float(since) if since.replace(".", "", 1).isdecimal() else page.now

    async def may_listen() -> bool:
        if not session:  # there may be a cookie all the same: of another server on this machine
            return await page.dashboard.access.has_no_token()
        known = await page.dashboard.sessions.principal(session, is_used=False)  # nobody may be there
        return known is not None and known.may(Scope.READ)

    listener = LiveStream(page.app, await _runs(page), after, asyncio.Event(), may_listen, session=session)
    status = page.call.server_status

    def pieces(gone: asyncio.Future[None]) -> AsyncIterator[bytes]:
        return feed.stream(listener, gone, status)

    return StreamReply(200, (("content-type", "text/event-stream"), ("x-accel-buffering", "no")), b"", pieces)


PAGES = (PageSpec("GET", "/live", Scope.READ, stream),)
